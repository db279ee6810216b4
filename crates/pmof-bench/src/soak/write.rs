//! `pmof soak write`: the half that writes, with its ledger outside the machine whose power will be cut.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use pmof::{Acknowledge, Pool, PoolOptions, PoolUrl};
use pmof_console::{
    output::{self, with_mend},
    reach::ConnectArgs,
    words::{self, Level, MethodName, parsed},
};
use serde::Serialize;

use super::{
    diary::{Diary, Run},
    workload::{RING_MIN_BYTES, Ring, RingBatch},
};

/// Write to pools and keep a ledger of what was acknowledged, for `pmof soak check`
///
/// Appends records to a log that goes round in the first MiB of the pool (less, if it is smaller), and changes its tail by
/// 8-byte atomic writes; batch 0 writes all of it. The ledger begins with "run SEED POOL". Before a batch is posted the ledger gets a line "issue N", after the
/// receipt of all replicas "ack N". Ends after --time, or with an error as soon as a replica fails.
#[derive(Debug, clap::Args)]
pub(super) struct WriteArgs {
    /// Replica of the pool; may be given several times. Its old contents are lost
    #[arg(long, value_name = "URL", required = true, value_parser = parsed::<PoolUrl>)]
    pool: Vec<PoolUrl>,
    /// Make the pool, of this size, instead of opening it
    #[arg(long, value_name = "SIZE", value_parser = words::sizes::<u64>(RING_MIN_BYTES..=u64::MAX))]
    create: Option<u64>,
    /// Failure that a write must survive before it counts as acknowledged
    #[arg(long, value_enum, value_name = "LEVEL")]
    durability: Level,
    /// New or empty file, or character device, for the ledger, which must survive what this machine does not: lines are appended,
    /// each synchronously
    #[arg(long, value_name = "PATH")]
    ledger: PathBuf,
    /// What the writes depend on; the check needs the same
    #[arg(long)]
    seed: u64,
    /// The only method of flush to use; the cheapest that gives the durability unless given
    #[arg(long, value_enum, value_name = "METHOD")]
    method: Option<MethodName>,
    /// Stop after this time; else when killed
    #[arg(long, value_name = "TIME", value_parser = words::time)]
    time: Option<Duration>,
    /// Acknowledge what was written and not flushed, so that a power cut must lose something
    #[arg(long, hide = true)]
    skip_flush: bool,
    #[command(flatten)]
    pub(super) connect: ConnectArgs,
}

/// What was written.
#[derive(Debug, Serialize)]
struct Report {
    batches_acknowledged: u64,
    batches_issued: u64,
    durability: String,
    /// Of each replica.
    methods: Vec<String>,
}

/// Runs `pmof soak write`.
pub(super) fn run(args: &WriteArgs) -> Result<()> {
    let options = MethodName::force(args.method, args.connect.pools()).require(args.durability.durability());
    // Before the pool is touched: a ledger that cannot be kept is no reason to lose what the pool holds.
    let mut diary = Diary::open(&args.ledger)?;
    let options = args.pool.iter().map(ToString::to_string).fold(options, PoolOptions::replica);
    // The check looks at each replica for itself, one that was lost too.
    let options = options.acknowledge(Acknowledge::AtLeast(args.pool.len()));
    let pool = match args.create {
        Some(len_bytes) => options.create(len_bytes),
        None => options.open(),
    };
    let pool = pool.map_err(with_mend).context("cannot open the pool")?;
    let len_bytes = pool.len_bytes();
    ensure!(len_bytes >= RING_MIN_BYTES, "the pool has {len_bytes} bytes; at least {RING_MIN_BYTES} are needed");
    let receipt = pool.lane().persist()?;
    diary.begin(Run { seed: args.seed, pool: pool.uuid() })?;
    let mut ring = Ring::new(args.seed, len_bytes);
    let deadline = args.time.map(|time| Instant::now() + time);
    let mut done = 0;
    while deadline.is_none_or(|deadline| Instant::now() < deadline) {
        let (number, batch) = ring.next().context("as many batches were written as the seed has")?;
        diary.issue(number)?;
        write(&pool, &batch, args.skip_flush).with_context(|| format!("batch {number}"))?;
        diary.acknowledge(number)?;
        done = number + 1;
    }
    pool.close()?;
    output::print_json(&Report {
        batches_acknowledged: done,
        batches_issued: done,
        durability: receipt.durability.to_string(),
        methods: receipt.replicas.iter().map(|replica| replica.method.to_string()).collect(),
    })
}

fn write(pool: &Pool, ring_batch: &RingBatch, skip_flush: bool) -> Result<()> {
    let mut batch = pool.lane();
    match ring_batch {
        RingBatch::Records(writes) => {
            for write in writes {
                batch.write(write.offset(), &write.bytes())?;
            }
        }
        RingBatch::Tail(write) => batch.atomic_write(write.offset(), write.words[0])?,
    }
    if skip_flush {
        // A read is answered only when the writes before it have arrived.
        return (0..pool.replica_count()).try_for_each(|index| Ok(pool.read_replica(index, 0, &mut [0; 8])?));
    }
    let receipt = batch.persist()?;
    if receipt.replicas.len() < receipt.replica_count {
        bail!("weak receipt: {receipt}");
    }
    Ok(())
}
