//! `--force`: of two members the one that is there goes on without the other.

use anyhow::{Context, anyhow, bail};
use pmof::{Durability, MemberState, MemberStatus, Pool, PoolMembers, PoolUrl, causes};
use pmof_console::{output::with_mend, reach::ConnectArgs};
use pmof_control::WITNESS_BYTES;

use super::{How, Of, Without, open, options};
use crate::failure;

/// Opens the pool, by force with the one member that is there. Nothing is forced for a change that could not be made then: of the member `old`, to have `new` in its place.
pub(super) fn open_without(
    of: &Of,
    (old, new): (&str, Option<&PoolUrl>),
    without: &Without,
    how: &How,
    connect: ConnectArgs,
) -> anyhow::Result<(Pool, WasForced)> {
    let opened = open(of, how, connect);
    if opened.is_ok() || !without.force {
        return opened.map(|pool| (pool, WasForced(None)));
    }
    let options = options(of, how, connect);
    let found = options.members().map_err(with_mend).context("cannot tell the state of the pool")?;
    // It may have been a member once.
    if let Some(MemberState::Foreign(why)) = found.members.first().map(|member| &member.state) {
        let others = found.members.iter().filter(|member| matches!(member.state, MemberState::InSync));
        let others: Vec<_> = others.filter_map(|member| member.replica.as_ref()).map(ToString::to_string).collect();
        let in_sync = if others.is_empty() { "no member is in sync".to_owned() } else { others.join(", ") + " is" };
        bail!("{} does not go on as the pool: {}; {in_sync}, and nothing was changed", of.member, causes(&**why));
    }
    let made = found.made_count + found.witness_count;
    if (made, found.in_sync_count()) != (2, 1) {
        let in_sync = found.in_sync_count();
        bail!(
            "--force is for a pool of two members of which one is lost; this one has {made}, {in_sync} of them in sync, and nothing was changed: {:#}",
            opened.err().unwrap_or_else(|| anyhow!("it cannot be opened"))
        );
    }
    let leaving = named(&found, old)?;
    match new {
        Some(new) => check_new(&found, leaving, new, how.durability.durability(), connect)?,
        None if matches!(leaving.state, MemberState::InSync) => {
            bail!("{old} is the only member that is in sync: it has what no other has, and nothing was changed")
        }
        None => {}
    }
    let lost = found.members.iter().filter(|member| !matches!(member.state, MemberState::InSync));
    let lost: Vec<_> = lost.filter_map(|member| member.replica.as_ref()).map(ToString::to_string).collect();
    // From the epoch that this begins on, nobody waits for the other one.
    let alone = options.min_replicas(1).open().map_err(with_mend).context("cannot open the member alone")?;
    alone.close().map_err(with_mend).context("cannot close the member")?;
    let lost = if lost.is_empty() { "the other member".to_owned() } else { lost.join(", ") };
    failure::warn(&format!(
        "{} goes on alone, by force: what was acknowledged on {lost} only is lost, and that one must never be opened as this pool again; `pmof pool status` shows that until `pmof pool clear`",
        of.member,
    ));
    let forced = WasForced(Some((of.member.to_string(), lost)));
    let pool = forced.told(open(of, how, connect))?;
    Ok((pool, forced))
}

/// The member that goes on by force, and those that it goes on without, if the pool was forced.
pub(super) struct WasForced(Option<(String, String)>);

impl WasForced {
    /// What fails behind that says that it was done.
    pub(super) fn told<T>(&self, result: anyhow::Result<T>) -> anyhow::Result<T> {
        let Some((member, lost)) = &self.0 else { return result };
        result.with_context(|| {
            format!("the pool was forced: it goes on with {member}, without {lost}; the rest failed, and can be done again without --force")
        })
    }
}

/// The member that is meant by an address or a number.
pub(super) fn named<'f>(found: &'f PoolMembers, old: &str) -> anyhow::Result<&'f MemberStatus> {
    let (url, index) = (old.parse::<PoolUrl>().ok(), old.parse::<u16>().ok());
    let is_url = |member: &MemberStatus| {
        let of_member = member.replica.as_ref().and_then(|replica| replica.url());
        url.is_some() && of_member.is_some_and(|of_member| Some(of_member) == url.as_ref())
    };
    let is_meant = |member: &&MemberStatus| is_url(member) || (index.is_some() && member.index == index);
    let mut members = found.members.iter().filter(|member| !matches!(member.state, MemberState::Foreign(_)));
    members.find(is_meant).ok_or_else(|| anyhow!("the pool has no member {old}, and nothing was changed"))
}

/// Makes a replica of that size at `new`, and removes it: what fails now would fail when the other member is given up.
fn check_new(
    found: &PoolMembers,
    leaving: &MemberStatus,
    new: &PoolUrl,
    require: Durability,
    connect: ConnectArgs,
) -> anyhow::Result<()> {
    let size_bytes = if leaving.is_witness { WITNESS_BYTES } else { found.size_bytes };
    let trial = connect.pools().replica(new.to_string()).require(require);
    let made = trial.create(size_bytes).and_then(|pool| pool.close()).and_then(|()| trial.remove());
    made.map_err(with_mend).with_context(|| format!("no member can be made at {new}, and nothing was changed"))
}
