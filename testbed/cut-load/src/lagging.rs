//! A load of a pool of which one replica lags: its target is stopped and continued all the time. And what makes all equal again.

use std::{
    fs,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use pmof::{Acknowledge, Durability, Pool, PoolOptions, Receipt};
use rustix::process::{Pid, Signal, kill_process};

use crate::{
    AREA_BYTES, Common, begin,
    ledger::Ledger,
    open,
    pattern::{self, Batches},
    stream, write,
};

/// Replicas that have what is acknowledged.
const QUORUM: usize = 2;

/// A replica that is slower by that is left behind. None is lost: in an emulated machine a flush alone may take longer than a stop.
const SLOW_AFTER: Duration = Duration::from_millis(200);
const LONGEST_STOP_MS: u64 = 1500;

/// A target goes on for so long at most before the next one is stopped: it has not caught up in that time, or just has.
const LONGEST_REST_MS: u64 = 800;
const CATCH_UP_BYTES_A_SECOND: u64 = 1 << 20;

/// All replicas are in sync within this time, or never.
const SETTLED_WITHIN: Duration = Duration::from_secs(60);

#[derive(Debug, clap::Args)]
pub(crate) struct LaggingArgs {
    /// Replica; three times
    #[arg(long, required = true)]
    url: Vec<String>,
    /// Process of a target that is stopped and continued; once for each replica
    #[arg(long, required = true)]
    target: Vec<i32>,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, clap::Args)]
pub(crate) struct SettleArgs {
    /// Replica; three times
    #[arg(long, required = true)]
    url: Vec<String>,
    /// Where the bytes of each replica are put, as FILE.0, FILE.1 and so on
    #[arg(long)]
    to: PathBuf,
}

pub(crate) fn run(args: &LaggingArgs) -> Result<()> {
    let common = &args.common;
    let options = Pool::options()
        .require(common.durability.durability())
        .acknowledge(Acknowledge::AtLeast(QUORUM))
        .slow_after(SLOW_AFTER)
        .catch_up_limit(CATCH_UP_BYTES_A_SECOND);
    let pool = begin(&args.url.iter().fold(options, PoolOptions::replica), common.create)?;
    let targets = args.target.iter().map(|pid| Pid::from_raw(*pid).with_context(|| format!("{pid} is no process")));
    let targets = targets.collect::<Result<Vec<_>>>()?;
    let ledger = Arc::new(Ledger::open(&common.ledger)?);
    let batches = Batches::new(common.seed, 0, AREA_BYTES);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let mut stopper = Some(|| stop_and_continue(&targets, common.seed, &is_over));
        let done = stream(&ledger, 0, batches, common.deadline(), |writes| {
            let receipt = persist(&pool, writes)?;
            ensure!(receipt.replicas.len() >= QUORUM, "weak receipt: {receipt}");
            // All replicas have the first batch.
            if let Some(stopper) = stopper.take() {
                scope.spawn(stopper);
            }
            Ok(())
        });
        is_over.store(true, Relaxed);
        done
    })?;
    Ok(pool.close()?)
}

fn persist(pool: &Pool, writes: &[pattern::Write]) -> Result<Receipt> {
    let mut batch = pool.lane();
    write(&mut batch, writes, usize::MAX)?;
    Ok(batch.persist()?)
}

/// Stops one target after the other for a time, whatever goes wrong with it: then the load does.
fn stop_and_continue(targets: &[Pid], seed: u64, is_over: &AtomicBool) {
    let mut random = seed | 1;
    let mut below = |limit: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        Duration::from_millis(random % limit)
    };
    let mut at = seed as usize;
    while !is_over.load(Relaxed) {
        at += 1;
        let target = targets[at % targets.len()];
        let _ = kill_process(target, Signal::STOP);
        thread::sleep(below(LONGEST_STOP_MS));
        let _ = kill_process(target, Signal::CONT);
        thread::sleep(below(LONGEST_REST_MS));
    }
}

/// Opens the pool, waits until all replicas are in sync, and tells what each has.
pub(crate) fn settle(args: &SettleArgs) -> Result<()> {
    let options = Pool::options().require(Durability::PowerFailure);
    let pool = open(&args.url.iter().fold(options, PoolOptions::replica), false)?;
    let until = Instant::now() + SETTLED_WITHIN;
    while pool.status()?.is_degraded() {
        ensure!(Instant::now() < until, "the replicas are not in sync after {SETTLED_WITHIN:?}: {:?}", pool.status()?);
        thread::sleep(Duration::from_millis(5));
    }
    let mut first = None;
    for replica in 0..pool.replica_count() {
        let mut bytes = vec![0; AREA_BYTES as usize];
        pool.read_replica(replica, 0, &mut bytes)?;
        let to = format!("{}.{replica}", args.to.display());
        fs::write(&to, &bytes).with_context(|| format!("writing {to}"))?;
        let is_equal = *first.get_or_insert_with(|| bytes.clone()) == bytes;
        ensure!(is_equal, "replica {replica} differs from replica 0, and is in sync");
    }
    Ok(pool.close()?)
}
