//! `pmof pool scrub`.

use std::{thread, time::Duration};

use anyhow::{Context, bail};
use pmof::{Durability, Pool, PoolOptions, PoolUrl, ReplicaState, ReplicaStatus, ScrubReport};
use pmof_console::{
    output::{self, say, with_mend},
    reach::ConnectArgs,
    words::parsed,
};
use serde::Serialize;

use crate::{copy::progress::Progress, failure::Differs};

/// How often it is looked whether all have caught up.
const LOOK: Duration = Duration::from_millis(20);

/// Compare all replicas of a pool, and repair pages that differ from most of them
///
/// The pool is open for writing during the scrub; replicas that are behind and can be reached catch up first. A page that has no content in common on
/// more than half of the replicas is not changed, and the exit status is 3. It is 1 if a replica cannot be compared.
#[derive(Debug, clap::Args)]
pub(super) struct ScrubArgs {
    /// All replicas of the pool: `tcp://HOST[:PORT]/POOL` and the like
    #[arg(value_name = "URL", required = true, value_parser = parsed::<PoolUrl>)]
    urls: Vec<PoolUrl>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    pool_bytes: u64,
    replicas_compared: usize,
    replicas_made: usize,
    bytes_compared: u64,
    repaired: Vec<RepairedPage>,
    undecided: Vec<Page>,
}

#[derive(Debug, Serialize)]
struct RepairedPage {
    replica: String,
    #[serde(flatten)]
    page: Page,
}

#[derive(Debug, Serialize)]
struct Page {
    offset: u64,
    len_bytes: u64,
}

impl Page {
    fn of(range: &std::ops::Range<u64>) -> Self {
        Self { offset: range.start, len_bytes: range.end - range.start }
    }
}

pub(super) fn run(args: &ScrubArgs, connect: ConnectArgs) -> anyhow::Result<()> {
    let options = args.urls.iter().map(ToString::to_string).fold(connect.pools(), PoolOptions::replica);
    // The repair promises no more durability than the pool's own writers need.
    let pool = options.require(Durability::Visible).open().map_err(with_mend).context("cannot open the pool")?;
    wait_caught_up(&pool)?;
    let progress = Progress::new("comparing", pool.len_bytes(), !args.json);
    let scrubbed = pool.scrub(&mut |bytes| progress.set(bytes));
    drop(progress);
    let made = pool.made_count();
    let size_bytes = pool.len_bytes();
    let left_out = pool.status().map_err(with_mend)?.replicas.into_iter();
    let left_out = left_out.filter(|replica| !matches!(replica.state, ReplicaState::InSync));
    let left_out: Vec<_> = left_out.map(|replica| replica.replica.to_string()).collect();
    let report = scrubbed.map_err(with_mend).context("cannot compare the replicas")?;
    pool.close().map_err(with_mend).context("cannot close the pool")?;
    if report.replica_count < 2 {
        bail!("only {} of {made} replicas is in sync: there is nothing to compare it with", report.replica_count);
    }
    if args.json {
        output::print_json(&Report::new(&report, size_bytes, made))?;
    } else {
        tell(&report, made);
    }
    if !report.undecided.is_empty() {
        return Err(Differs::error(format!(
            "pages differ: {}; no content is on more than half of the replicas: find out which replica is right, remove the others (pmof pool remove), and add new ones",
            report.undecided.len()
        )));
    }
    if report.replica_count < made {
        let names = if left_out.is_empty() { "name the others too".to_owned() } else { left_out.join(", ") };
        bail!("{} of {made} replicas were not compared: {names}", made - report.replica_count);
    }
    Ok(())
}

/// Waits until no replica catches up any more. One that is lost meanwhile is not waited for.
fn wait_caught_up(pool: &Pool) -> anyhow::Result<()> {
    let is_catching_up = |replica: &ReplicaStatus| matches!(replica.state, ReplicaState::CatchingUp { .. });
    while pool.status().map_err(with_mend)?.replicas.iter().any(is_catching_up) {
        thread::sleep(LOOK);
    }
    Ok(())
}

impl Report {
    fn new(report: &ScrubReport, pool_bytes: u64, replicas_made: usize) -> Self {
        let repaired = report.repaired.iter();
        let page = |repaired: &pmof::replica::Repaired| RepairedPage {
            replica: repaired.replica.to_string(),
            page: Page::of(&repaired.range),
        };
        Self {
            pool_bytes,
            replicas_compared: report.replica_count,
            replicas_made,
            bytes_compared: report.compared_bytes,
            repaired: repaired.map(page).collect(),
            undecided: report.undecided.iter().map(Page::of).collect(),
        }
    }
}

fn tell(report: &ScrubReport, made: usize) {
    say!("{} bytes compared on {} of {made} replicas", report.compared_bytes, report.replica_count);
    for repaired in &report.repaired {
        say!("repaired bytes {}..{} of {}", repaired.range.start, repaired.range.end, repaired.replica);
    }
    for range in &report.undecided {
        say!("bytes {}..{} differ, and nothing says which replica is right", range.start, range.end);
    }
    if report.repaired.is_empty() && report.undecided.is_empty() && report.replica_count > 1 {
        let which = if report.replica_count == made { "all replicas" } else { "these replicas" };
        say!("{which} are equal");
    }
}
