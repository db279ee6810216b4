//! `pmof pool scrub`.

use std::{thread, time::Duration};

use anyhow::{Context, bail};
use pmof::{Durability, Pool, PoolOptions, PoolUrl, ReplicaState, ReplicaStatus, ScrubReport, causes};
use pmof_console::{
    output::{self, say, with_mend},
    reach::ConnectArgs,
    words::parsed,
};
use serde::Serialize;

use crate::{
    copy::progress::Progress,
    failure::Differs,
    named::{self, LeftOut},
};

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
    len_bytes: u64,
    replicas_compared: usize,
    made_count: usize,
    compared_bytes: u64,
    repaired: Vec<RepairedPage>,
    undecided: Vec<Page>,
    damaged: Vec<RepairedPage>,
    not_compared: Vec<LeftOut>,
}

#[derive(Debug, Serialize)]
struct RepairedPage {
    url: String,
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
    let statuses = pool.status().map_err(with_mend)?.replicas;
    let not_compared = not_compared(&pool, &args.urls, &statuses);
    let report = scrubbed.map_err(with_mend).context("cannot compare the replicas")?;
    pool.close().map_err(with_mend).context("cannot close the pool")?;
    if report.replica_count < 2 {
        let left_out = named::and_not_compared(&not_compared);
        bail!(
            "only {} of {made} replicas is in sync: there is nothing to compare it with{left_out}",
            report.replica_count
        );
    }
    let (told, is_all) = (named::check_none(&not_compared), not_compared.is_empty() && report.replica_count == made);
    let and_not_compared = named::and_not_compared(&not_compared);
    if args.json {
        output::print_json(&Report::new(&report, (size_bytes, made), not_compared))?;
    } else {
        tell(&report, made, is_all);
    }
    if !report.undecided.is_empty() {
        return Err(Differs::error(format!(
            "pages differ: {}; no content is on more than half of the replicas: find out which replica is right, remove the others (pmof pool remove), and add new ones{and_not_compared}",
            report.undecided.len()
        )));
    }
    if let Some(first) = report.damaged.first() {
        return Err(Differs::error(format!(
            "pages are damaged: {}, first at byte {} of {}; no replica has them as they were written: check the devices, and restore them from a backup{and_not_compared}",
            report.damaged.len(),
            first.range.start,
            first.replica
        )));
    }
    told?;
    if report.replica_count < made {
        bail!("{} of {made} replicas were not compared: name the others too", made - report.replica_count);
    }
    Ok(())
}

/// Members that are not in sync, and those of `named` that are none.
fn not_compared(pool: &Pool, named: &[PoolUrl], statuses: &[ReplicaStatus]) -> Vec<LeftOut> {
    let mut all: Vec<_> = statuses.iter().filter_map(not_in_sync).collect();
    let is_known = |left_out: &LeftOut| statuses.iter().any(|status| status.replica.to_string() == left_out.url);
    let named: Vec<_> = named.iter().collect();
    all.extend(named::left_out(pool, &named).into_iter().filter(|left_out| !is_known(left_out)));
    all
}

fn not_in_sync(status: &ReplicaStatus) -> Option<LeftOut> {
    let reason = match &status.state {
        ReplicaState::InSync => return None,
        ReplicaState::Slow => "it is too slow".to_owned(),
        ReplicaState::Lost(why) => causes(&**why).to_string(),
        _ => "it is not in sync".to_owned(),
    };
    Some(LeftOut { url: status.replica.to_string(), reason })
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
    fn new(report: &ScrubReport, (len_bytes, made_count): (u64, usize), not_compared: Vec<LeftOut>) -> Self {
        let repaired = report.repaired.iter();
        let page = |repaired: &pmof_pool::Repaired| RepairedPage {
            url: repaired.replica.to_string(),
            page: Page::of(&repaired.range),
        };
        Self {
            len_bytes,
            replicas_compared: report.replica_count,
            made_count,
            compared_bytes: report.compared_bytes,
            repaired: repaired.map(page).collect(),
            undecided: report.undecided.iter().map(Page::of).collect(),
            damaged: report.damaged.iter().map(page).collect(),
            not_compared,
        }
    }
}

fn tell(report: &ScrubReport, made: usize, is_all: bool) {
    say!("{} bytes compared on {} of {made} replicas", report.compared_bytes, report.replica_count);
    for repaired in &report.repaired {
        say!("repaired bytes {}..{} of {}", repaired.range.start, repaired.range.end, repaired.replica);
    }
    for range in &report.undecided {
        say!("bytes {}..{} differ, and nothing says which replica is right", range.start, range.end);
    }
    for damaged in &report.damaged {
        say!(
            "bytes {}..{} of {} are damaged, and whole on no replica",
            damaged.range.start,
            damaged.range.end,
            damaged.replica
        );
    }
    let found_nothing = report.repaired.is_empty() && report.undecided.is_empty() && report.damaged.is_empty();
    if found_nothing && report.replica_count > 1 {
        let which = if is_all { "all replicas" } else { "these replicas" };
        say!("{which} are equal");
    }
}
