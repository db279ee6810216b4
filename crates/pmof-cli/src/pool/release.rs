//! `pmof pool release`.

use std::{collections::BTreeSet, time::Duration};

use anyhow::bail;
use pmof::{MemberState, MemberStatus, PoolMembers, PoolUrl};
use pmof_console::{
    output::{self, with_mend},
    reach::ConnectArgs,
    words::{self, parsed},
};
use pmof_pool::TargetUrl;
use serde::Serialize;

/// Take pools away from writers that hang, so that other programs can open them
///
/// After that, nothing from the former writer reaches the pool; its calls fail. The next opening compares the replicas, since the pool was not closed.
/// A pool without a writer is not changed. Name all replicas of a pool: its witnesses and its asynchronous members are found by them, and are taken away from that writer, too.
#[derive(Debug, clap::Args)]
pub(crate) struct ReleaseArgs {
    /// Pool: `tcp://HOST[:PORT]/POOL`, `verbs://HOST[:PORT]/POOL[?source=IP]`, `fabric+PROVIDER://HOST[:PORT]/POOL[?source=IP]`, `rds://HOST[:PORT]/POOL[?source=IP]` or `shm:///PATH/OF/SOCKET?pool=POOL`; may be given several times
    #[arg(value_name = "URL", required = true, value_parser = parsed::<PoolUrl>)]
    urls: Vec<PoolUrl>,
    /// Release only if the target has heard nothing from the writer for this time, such as 10s, 500ms or 2min; 0s takes the pool from any writer. An idle
    /// writer is silent too
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = words::time)]
    silent_for: Duration,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct ReleaseReport {
    released: Vec<Released>,
    failed: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Released {
    url: String,
    /// Who had it open for writing, if anyone.
    was_open_by: Option<String>,
}

/// Releases all pools that can be released, and fails if one could not be.
pub(crate) fn run(args: &ReleaseArgs, connect: ConnectArgs) -> anyhow::Result<()> {
    let mut seen = BTreeSet::new();
    if let Some(twice) = args.urls.iter().find(|url| !seen.insert(url.to_string())) {
        bail!("{twice} is named twice: name each replica once; nothing was released");
    }
    let (mut released, mut failed, mut errors) = (Vec::new(), Vec::new(), Vec::new());
    let others = others(&args.urls, connect);
    let named = args.urls.iter().map(|url| (url.to_string(), true));
    let all: Vec<_> = named.chain(others.into_iter().map(|url| (url, false))).collect();
    let options = all.iter().fold(connect.pools(), |options, (url, _)| options.replica(url));
    for ((url, is_named), outcome) in all.into_iter().zip(options.take_over(args.silent_for).release()?) {
        match outcome {
            Ok(None) if !is_named => {}
            Ok(was_open_by) => released.push(Released { url, was_open_by }),
            Err(error) => {
                errors.push(format!("cannot release {url}: {:#}", with_mend(error)));
                failed.push(url);
            }
        }
    }
    if args.json {
        output::print_json(&ReleaseReport { released, failed })?;
    } else {
        let text = released.iter().map(|Released { url, was_open_by }| match was_open_by {
            Some(holder) => format!("released {url}, which {holder} had open\n"),
            None => format!("nobody has {url} open for writing\n"),
        });
        output::print(&text.collect::<String>())?;
    }
    if errors.is_empty() { Ok(()) } else { bail!("{}", errors.join("\npmof: ")) }
}

/// Witnesses and asynchronous members of the pools of which all replicas that answer are named.
fn others(named: &[PoolUrl], connect: ConnectArgs) -> BTreeSet<String> {
    let (mut found, mut known) = (BTreeSet::new(), BTreeSet::new());
    for url in named {
        // Of one pool one look is enough.
        if known.contains(&url.to_string()) {
            continue;
        }
        let rest = named.iter().filter(|other| *other != url);
        let options =
            std::iter::once(url).chain(rest).fold(connect.pools(), |options, url| options.replica(url.to_string()));
        // What cannot be asked is told of when it is released.
        let Ok(PoolMembers { members, .. }) = options.members() else { continue };
        // Silent ones count as this pool's where no other pool is named.
        let is_only = !members.iter().take(named.len()).any(|member| matches!(member.state, MemberState::Foreign(_)));
        let is_of_it = |member: &&MemberStatus| match member.state {
            MemberState::Foreign(_) => false,
            MemberState::Lost(_) => is_only,
            _ => true,
        };
        let of_it = members.iter().filter(is_of_it).filter_map(|member| member.replica.as_ref()?.url());
        known.extend(of_it.map(ToString::to_string));
        let unnamed = || members.iter().skip(named.len());
        let has_data = |member: &MemberStatus| {
            matches!(
                member.state,
                MemberState::InSync | MemberState::Syncing | MemberState::Behind(_) | MemberState::Lost(_)
            ) && !member.is_witness
        };
        if unnamed().any(has_data) {
            continue;
        }
        let is_other = |member: &&MemberStatus| {
            matches!(member.state, MemberState::Witness | MemberState::Asynchronous { lost: None, .. })
        };
        let urls = unnamed().filter(is_other).filter_map(|member| member.replica.as_ref()?.url());
        let followed = urls.filter(|url| matches!(url.target, TargetUrl::Address(_))).map(ToString::to_string);
        found.extend(followed);
    }
    found
}
