//! Loads for machines whose power will be cut. Each keeps a ledger outside the machine, by which `cut-judge` decides what must be
//! there afterwards; `testbed/cut-judge/pattern.md` says what is written.

#![forbid(unsafe_code)]

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use clap::{Parser, ValueEnum};
use pmof::{
    Durability, Lane, Method, Pool, PoolOptions, TargetOptions, TargetUrl,
    mem::{Medium as _, Memory},
    pool_set::SetName,
};

use ledger::{Ledger, LedgerArgs};
use pattern::Batches;

mod lagging;
mod ledger;
mod operations;
mod pattern;
mod sets;

/// Bytes of the area of a load with one stream.
const AREA_BYTES: u64 = 1 << 20;

/// What any load writes to a device at most.
const WIPED_BYTES: u64 = 12 << 20;

/// Writes to pools until the power goes, or an error comes.
#[derive(Debug, Parser)]
enum Load {
    /// Batches to a pool of 1 MiB
    Pool(PoolArgs),
    /// Batches to a pool of 1 MiB of which one replica after the other lags
    Lagging(lagging::LaggingArgs),
    /// Opens such a pool until all replicas are equal
    Settle(lagging::SettleArgs),
    /// Batches to the pool of a target's pool set, each lane from a thread of its own
    Lanes(LanesArgs),
    /// Batches to the pool of a pool set, each lane from a thread of its own
    Set(SetArgs),
    /// Makes, fills, closes, opens and removes pools
    Operations(operations::Args),
    /// Makes the beginning of a device zero, durably
    Wipe {
        #[arg(long)]
        device: PathBuf,
    },
    /// Loses replicas of a pool set and has `pmof pool sync` make them anew
    Sync(operations::SyncArgs),
}

#[derive(Debug, clap::Args)]
struct Common {
    #[command(flatten)]
    ledger: LedgerArgs,
    /// What the batches depend on
    #[arg(long)]
    seed: u64,
    /// Failure that acknowledged batches survive
    #[arg(long, value_enum, default_value = "power-failure")]
    durability: Level,
    /// Make the pool instead of opening it
    #[arg(long)]
    create: bool,
    /// End after this many seconds
    #[arg(long)]
    seconds: Option<u64>,
}

#[derive(Debug, clap::Args)]
struct PoolArgs {
    /// Replica; may be given several times
    #[arg(long, required = true)]
    url: Vec<String>,
    /// The only method of flush to use
    #[arg(long, value_enum)]
    method: Option<FlushMethod>,
    /// Acknowledge what was written and not flushed: a power cut must lose something
    #[arg(long)]
    skip_flush: bool,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, clap::Args)]
struct LanesArgs {
    /// The target
    #[arg(long)]
    target: TargetUrl,
    /// Pool set below its root
    #[arg(long)]
    set: SetName,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, clap::Args)]
struct SetArgs {
    /// Pool set file
    #[arg(long)]
    set: PathBuf,
    /// Acknowledge what was flushed and not drained: a power cut must lose something
    #[arg(long)]
    skip_drain: bool,
    #[command(flatten)]
    common: Common,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Level {
    Visible,
    ProcessCrash,
    PowerFailure,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum FlushMethod {
    NativeFlush,
    ReadAfterWrite,
    SendAfterWrite,
}

impl Level {
    fn durability(self) -> Durability {
        match self {
            Self::Visible => Durability::Visible,
            Self::ProcessCrash => Durability::ProcessCrash,
            Self::PowerFailure => Durability::PowerFailure,
        }
    }
}

impl Common {
    fn deadline(&self) -> Option<Instant> {
        self.seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds))
    }

    fn remote_options(&self) -> TargetOptions {
        TargetOptions::default().require(Some(self.durability.durability()))
    }
}

fn main() -> Result<()> {
    match Load::parse() {
        Load::Pool(args) => pool(&args),
        Load::Lagging(args) => lagging::run(&args),
        Load::Settle(args) => lagging::settle(&args),
        Load::Lanes(args) => sets::lanes(&args),
        Load::Set(args) => sets::set(&args),
        Load::Operations(args) => operations::run(&args),
        Load::Wipe { device } => wipe(&device),
        Load::Sync(args) => operations::sync(&args),
    }
}

fn wipe(device: &Path) -> Result<()> {
    let memory = Memory::open(device, None)?;
    memory.store(0, &vec![0; WIPED_BYTES as usize])?;
    memory.write_back(0, WIPED_BYTES)?;
    Ok(memory.fence()?)
}

/// Runs the batches of one stream until `deadline`.
fn stream(
    ledger: &Arc<Ledger>,
    number: u32,
    mut batches: Batches,
    deadline: Option<Instant>,
    mut persist: impl FnMut(&[pattern::Write]) -> Result<()>,
) -> Result<()> {
    while deadline.is_none_or(|deadline| Instant::now() < deadline) {
        let (batch, writes) = batches.next();
        ledger.issue(number, batch)?;
        persist(&writes).with_context(|| format!("batch {batch} of stream {number}"))?;
        ledger.acknowledge(number, batch)?;
    }
    Ok(())
}

fn pool(args: &PoolArgs) -> Result<()> {
    let common = &args.common;
    let options = Pool::options().require(common.durability.durability());
    let options = args.url.iter().fold(options, PoolOptions::replica);
    let options = match args.method {
        None => options,
        Some(FlushMethod::NativeFlush) => options.method(Method::NativeFlush),
        Some(FlushMethod::ReadAfterWrite) => options.method(Method::ReadAfterWrite),
        Some(FlushMethod::SendAfterWrite) => options.method(Method::SendAfterWrite),
    };
    let pool = begin(&options, common.create)?;
    let ledger = Arc::new(Ledger::open(&common.ledger)?);
    let batches = Batches::new(common.seed, 0, AREA_BYTES);
    stream(&ledger, 0, batches, common.deadline(), |writes| persist(&pool, writes, args.skip_flush))?;
    Ok(pool.close()?)
}

fn begin(options: &PoolOptions, create: bool) -> Result<Pool> {
    let pool = open(options, create).context("opening the pool")?;
    ensure!(pool.len_bytes() == AREA_BYTES, "the pool has {} bytes", pool.len_bytes());
    Ok(pool)
}

fn open(options: &PoolOptions, create: bool) -> Result<Pool> {
    Ok(if create { options.create(AREA_BYTES)? } else { options.open()? })
}

/// Bytes of a write that a target stores through its caches. It streams longer ones past them and fences each, which would
/// make up for the flush that is left out.
const UNFENCED_BYTES: usize = 128;

fn persist(pool: &Pool, writes: &[pattern::Write], skip_flush: bool) -> Result<()> {
    let mut batch = pool.lane();
    write(&mut batch, writes, if skip_flush { UNFENCED_BYTES } else { usize::MAX })?;
    if skip_flush {
        // A read is answered only when the writes before it have arrived.
        return (0..pool.replica_count()).try_for_each(|index| Ok(pool.read_replica(index, 0, &mut [0; 8])?));
    }
    let receipt = batch.persist()?;
    ensure!(receipt.replicas.len() == receipt.replica_count, "weak receipt: {receipt}");
    Ok(())
}

/// Writes a batch in pieces: its tail alone is written atomically.
fn write(batch: &mut Lane, writes: &[pattern::Write], piece_bytes: usize) -> Result<()> {
    if let [pattern::Write { offset: 0, bytes }] = writes {
        if bytes.len() == 8 {
            let word = bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
            return Ok(batch.atomic_write(0, word)?);
        }
    }
    for write in writes {
        for (piece, offset) in write.bytes.chunks(piece_bytes).zip((write.offset..).step_by(piece_bytes)) {
            batch.write(offset, piece)?;
        }
    }
    Ok(())
}
