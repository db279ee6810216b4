//! Whether pools of targets may be removed: looked at before any of them is.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::bail;
use pmof::{Forced, MemberState, MemberStatus, PoolInfo, PoolMembers, PoolUrl, ReplicaError, causes};
use pmof_console::{
    output::{shell_word, with_mend},
    reach::ConnectArgs,
};
use pmof_pool::TargetUrl;
use uuid::Uuid;

use super::{
    list::STAGING_SUFFIX,
    place::PoolPlace,
    remove::{is_listed, is_unusable},
    status::ForcedReport,
};

/// What the name of the points that an asynchronous member keeps ends with.
const POINTS_SUFFIX: &str = ".points";

/// How long a target may take to notice that the writer of a pool is dead, and how often it is asked.
const DEATH_WAIT: Duration = Duration::from_secs(1);
const DEATH_LOOK: Duration = Duration::from_millis(20);

/// What was found before anything is removed.
pub(super) struct Looked<'p> {
    /// Pools that are gone already.
    pub(super) gone: Vec<&'p PoolUrl>,
    /// How the others were described.
    pub(super) seen: Vec<(&'p PoolUrl, Vec<PoolInfo>)>,
}

/// Refuses to remove pools of which somebody writes one; and some where another is not there, cannot be removed, or its target is out of reach: a replica would be left of a pool of several. By force
/// those that are gone already are returned, and what is damaged is removed.
pub(super) fn check_there(places: &[PoolPlace], is_forced: bool, connect: ConnectArgs) -> anyhow::Result<Looked<'_>> {
    let (mut gone, mut seen) = (Vec::new(), Vec::new());
    let is_one = places.len() < 2;
    for url in urls(places) {
        match connect.pools().replica(url.to_string()).info() {
            Ok(infos) => seen.push((url, check_not_written(url, infos, connect)?)),
            // It is not asked again and again, each time for as long as one waits.
            Err(error) if error.replica_error().is_some_and(ReplicaError::is_out_of_reach) && is_one => {
                return Err(with_mend(error).context(format!("cannot remove {url}")));
            }
            // Its removal says why.
            Err(_) if is_one => {}
            Err(error) if is_forced && error.replica_error().is_some_and(ReplicaError::is_absent) => gone.push(url),
            Err(error) if is_unusable(&error) && is_listed(url, connect)? => {
                if !is_forced {
                    let why = causes(&error);
                    bail!("{why}; `--force` removes what is left of it; cannot remove {url}; nothing was removed");
                }
            }
            Err(error) => {
                let none_there = error.replica_error().is_some_and(ReplicaError::is_absent);
                let hint = if none_there { " (`--force` removes the others all the same)" } else { "" };
                return Err(with_mend(error).context(format!("cannot remove {url}; nothing was removed{hint}")));
            }
        }
    }
    Ok(Looked { gone, seen })
}

/// Refuses a pool that somebody writes. One whose writer is dead is nobody's as soon as its target has noticed that; a writer that closes it meanwhile lives, and may open it again.
fn check_not_written(url: &PoolUrl, mut infos: Vec<PoolInfo>, connect: ConnectArgs) -> anyhow::Result<Vec<PoolInfo>> {
    let (began, mut last) = (Instant::now(), None);
    loop {
        let open = infos.iter().find_map(|info| info.open_by.clone());
        match (open, last.take()) {
            (None, Some(writer)) if infos.iter().all(|info| !info.state.is_open) => bail!(
                "cannot remove {url}: it was open for writing by {writer} until just now, who may open it again; nothing was removed"
            ),
            (None, _) => return Ok(infos),
            (Some(writer), _) if began.elapsed() >= DEATH_WAIT => bail!(
                "cannot remove {url}: it is open for writing by {writer}; end that program, or have it close the pool, first; nothing was removed"
            ),
            (Some(writer), _) => last = Some(writer),
        }
        sleep(DEATH_LOOK);
        infos = connect.pools().replica(url.to_string()).info().map_err(with_mend)?;
    }
}

/// Refuses members of a pool that has others which are not named: those count with them still, and may lack what they have. Refuses a pool together with its former members, and
/// what an asynchronous member needs beside its data.
pub(super) fn check_no_members_left(places: &[PoolPlace], connect: ConnectArgs) -> anyhow::Result<()> {
    let urls: Vec<_> = urls(places).collect();
    let (mut former, mut present, mut went_on) = (Vec::new(), Vec::new(), Vec::new());
    for url in &urls {
        check_not_beside_member(url, &urls, connect)?;
        let others = urls.iter().filter(|other| *other != url).copied();
        // What cannot be judged is for its target to refuse.
        let Ok(found) = members(connect, std::iter::once(*url).chain(others)) else { continue };
        let PoolMembers { pool_uuid, members, forced, .. } = found;
        let Some(member) = members.first().filter(|member| !matches!(member.state, MemberState::Lost(_))) else {
            continue;
        };
        check_of_no_other(url, member)?;
        let left: Vec<_> = members.iter().skip(urls.len()).filter(|member| !is_none(member)).collect();
        let mut is_former = is_none(member);
        for other in &left {
            if let Some(former) = as_former(url, other, connect) {
                check_of_no_other(url, &former)?;
                is_former = true;
            }
        }
        if is_former {
            former.push((pool_uuid, *url));
        } else if left.is_empty() {
            present.push((pool_uuid, *url));
            went_on.push((*url, forced));
        } else {
            return Err(others_left(url, member, &left, pool_uuid));
        }
    }
    check_apart_from_former(&present, &former)?;
    went_on.iter().try_for_each(|(url, forced)| check_not_forced(url, forced.as_ref()))
}

/// Pools of targets.
fn urls(places: &[PoolPlace]) -> impl Iterator<Item = &PoolUrl> {
    places.iter().filter_map(|place| match place {
        PoolPlace::Url(url) => Some(url),
        PoolPlace::Path(_) => None,
    })
}

fn members<'u>(
    connect: ConnectArgs,
    urls: impl IntoIterator<Item = &'u PoolUrl>,
) -> Result<PoolMembers, pmof::PoolError> {
    urls.into_iter().fold(connect.pools(), |options, url| options.replica(url.to_string())).members()
}

fn is_none(member: &MemberStatus) -> bool {
    matches!(member.state, MemberState::Foreign(_) | MemberState::Spare)
}

/// What the replica at `url` is by the word of `other`, which it takes for a member of its pool, where that knows that it is none any more: of an asynchronous member a pool may have been made.
fn as_former(url: &PoolUrl, other: &MemberStatus, connect: ConnectArgs) -> Option<MemberStatus> {
    let other = other.replica.as_ref()?.url()?;
    // The word of a replica is not enough to start a program or to open a file.
    if !matches!(other.target, TargetUrl::Address(_)) {
        return None;
    }
    let mut found = members(connect, [other, url]).ok()?.members.into_iter();
    match (found.next()?.state, found.next()?) {
        (MemberState::InSync, former) if matches!(&former.state, MemberState::Foreign(why) if why.is_of_no_member()) => {
            Some(former)
        }
        _ => None,
    }
}

/// Refuses what has something that no member has, and a copy, which is easily taken for the member.
fn check_of_no_other(url: &PoolUrl, member: &MemberStatus) -> anyhow::Result<()> {
    let MemberState::Foreign(why) = &member.state else { return Ok(()) };
    if matches!(**why, ReplicaError::ACopy { .. } | ReplicaError::AnotherHistory { .. }) {
        bail!("{url}: {}; nothing was removed", causes(&**why));
    }
    Ok(())
}

/// Refuses a pool that was forced, as long as nobody has said that that is known: a member that it went on without may have gone on, too.
fn check_not_forced(url: &PoolUrl, forced: Option<&Forced>) -> anyhow::Result<()> {
    let Some(forced) = forced.map(ForcedReport::new) else { return Ok(()) };
    bail!(
        "{url} may be one of two histories of its pool, and nothing was removed: {forced}, and the others may have gone on as well; find out which is to be kept (pmof pool status, pmof cp --min-replicas 1) \
         and say that you know (pmof pool clear {url}), or remove it all the same by --force"
    )
}

fn others_left(url: &PoolUrl, member: &MemberStatus, left: &[&MemberStatus], pool: Uuid) -> anyhow::Error {
    let index = member.index.map_or_else(String::new, |index| index.to_string());
    let name = |other: &MemberStatus| other.replica.as_ref().map_or_else(|| "MEMBER".to_owned(), ToString::to_string);
    let counts = |other: &&&MemberStatus| !matches!(other.state, MemberState::Asynchronous { .. });
    let urls: Vec<_> = left.iter().filter_map(|other| other.replica.as_ref()?.url()).collect();
    let is_elsewhere = !urls.is_empty() && urls.iter().all(|other| other.name != url.name);
    let names: Vec<_> = urls.iter().map(ToString::to_string).collect();
    let of = format!(
        "({pool}, with {})",
        if names.is_empty() { "members whose addresses are not known".to_owned() } else { names.join(", ") }
    );
    let mistake = if is_elsewhere {
        ". None of them has its name: is it the pool that you mean, or was its file put there by mistake? "
    } else {
        ": "
    };
    let all = "name all of them to remove the whole pool, or remove it all the same by --force";
    if let Some(other) = left.iter().find(counts) {
        return anyhow::anyhow!(
            "{url} is member {index} of a pool that has others {of}, and nothing was removed{mistake}make it no member first (pmof pool remove {} {index}), {all}",
            name(other)
        );
    }
    anyhow::anyhow!(
        "{url} is member {index} of a pool that has others {of}, which are asynchronous, and nothing was removed{mistake}{all}"
    )
}

/// Refuses a pool's members together with those that are none any more: whoever removes what is left of a pool may not mean the pool.
fn check_apart_from_former(present: &[(Uuid, &PoolUrl)], former: &[(Uuid, &PoolUrl)]) -> anyhow::Result<()> {
    let Some((pool, url)) = present.iter().find(|(pool, _)| former.iter().any(|(of, _)| of == pool)) else {
        return Ok(());
    };
    let of_pool = |all: &[(Uuid, &PoolUrl)]| {
        let of_pool = all.iter().filter(|(of, _)| of == pool);
        of_pool.map(|(_, url)| shell_word(url)).collect::<Vec<_>>().join(" ")
    };
    let (present, former) = (of_pool(present), of_pool(former));
    bail!(
        "{url} has the pool as it is now, others that are named are no members of it any more, and nothing was removed: `pmof pool rm {former}` removes those, and \
         `pmof pool rm {present}` the pool itself"
    )
}

/// Refuses the staging area, or the points, of an asynchronous member that is not named itself.
fn check_not_beside_member(url: &PoolUrl, named: &[&PoolUrl], connect: ConnectArgs) -> anyhow::Result<()> {
    let name = url.name.as_str();
    let of = |suffix| name.strip_suffix(suffix).and_then(|name| name.parse().ok());
    let (what, name) = match (of(STAGING_SUFFIX), of(POINTS_SUFFIX)) {
        (Some(name), _) => ("the staging area", name),
        (_, Some(name)) => ("what the points are kept in", name),
        _ => return Ok(()),
    };
    let member = PoolUrl { name, ..url.clone() };
    if named.contains(&&member) {
        return Ok(());
    }
    let Ok(found) = members(connect, [&member]) else { return Ok(()) };
    if !found.members.first().is_some_and(|found| matches!(found.state, MemberState::Asynchronous { .. })) {
        return Ok(());
    }
    bail!(
        "{url} is {what} of {member}, an asynchronous member of a pool, which is of no use without it, and nothing was removed: make that no member first \
         (pmof pool remove {member} {member}), or remove it all the same by --force"
    )
}
