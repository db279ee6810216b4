//! `pmof bench batch`: many persists against one batch of as many writes.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use pmof::{Pool, Receipt, Waiting};
use pmof_console::{output::say, words};

use super::{
    report::{Report, spread_text},
    stage::{Medium, POOL_BYTES, Stage, StageArgs, warm},
    statistics::Spread,
};

const POOL_NAME: &str = "bench";

/// Measure COUNT persists one after the other, against one batch of COUNT writes with one flush
#[derive(Debug, Args)]
pub(super) struct BatchArgs {
    #[command(flatten)]
    stage: StageArgs,
    /// Writes
    #[arg(long, value_name = "COUNT", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    count: u64,
    /// Bytes of each write
    #[arg(long, value_name = "SIZE", default_value_t = 64, value_parser = words::sizes::<u64>(1..=1 << 20))]
    size: u64,
    /// What the pool lies on
    #[arg(long, value_enum, default_value_t = Medium::Tmpfs)]
    medium: Medium,
    /// Wait as programs do by default, instead of spinning at both ends
    #[arg(long)]
    adaptive: bool,
    /// Rounds; each measures both once
    #[arg(long, value_name = "COUNT", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    rounds: u64,
}

/// Runs `pmof bench batch`.
pub(super) fn run(args: &BatchArgs) -> Result<()> {
    let stage = Stage::set(&args.stage, args.medium)?;
    let target = stage.target("target", POOL_NAME, !args.adaptive)?;
    stage.pin_initiator()?;
    let url = stage.pool_url(target.address(), POOL_NAME);
    let pool = stage
        .pool_options([url.clone()], (!args.adaptive).then_some(Waiting::BusyPoll))
        .create(POOL_BYTES)
        .context("making the pool")?;
    warm(&pool)?;
    let bytes = vec![7; args.size as usize];
    let (mut persists_us, mut batches_us, mut receipt) = (Vec::new(), Vec::new(), None);
    for _ in 0..args.rounds {
        let start = Instant::now();
        for index in 0..args.count {
            pool.persist(args.place(index), &bytes)?;
        }
        persists_us.push(start.elapsed().as_secs_f64() * 1e6);
        let start = Instant::now();
        receipt = Some(write_batch(&pool, args, &bytes)?);
        batches_us.push(start.elapsed().as_secs_f64() * 1e6);
    }
    pool.close()?;
    stage.clean_up(&[url])?;
    print(args, &persists_us, &batches_us, &receipt.context("there were no rounds")?)
}

impl BatchArgs {
    /// Where the write of this number goes: one after the other, and from the start again.
    fn place(&self, index: u64) -> u64 {
        index % (POOL_BYTES / self.size) * self.size
    }
}

fn write_batch(pool: &Pool, args: &BatchArgs, bytes: &[u8]) -> Result<Receipt> {
    let mut batch = pool.lane();
    for index in 0..args.count {
        batch.write(args.place(index), bytes)?;
    }
    Ok(batch.persist()?)
}

fn print(args: &BatchArgs, persists_us: &[f64], batches_us: &[f64], receipt: &Receipt) -> Result<()> {
    ensure!(batches_us.iter().all(|us| *us > 0.0), "the clock is too coarse to measure this");
    let spread = |values: &[f64]| Spread::of(values.iter().copied()).context("there were no rounds");
    let (persists, batch) = (spread(persists_us)?, spread(batches_us)?);
    let ratios: Vec<f64> = persists_us.iter().zip(batches_us).map(|(persists, batch)| persists / batch).collect();
    let speedup = spread(&ratios)?;
    let (count, size) = (args.count, args.size);
    if args.stage.json {
        let mut report = Report::default();
        report
            .put("transport", args.stage.reach.transport.scheme())?
            .put("medium", args.stage.medium_name(args.medium))?;
        report.put("count", count)?.put("size_bytes", size)?.put("rounds", args.rounds)?;
        report.put("waiting", if args.adaptive { "adaptive" } else { "polling" })?;
        report.put_spread("persists_us", &persists)?.put_spread("batch_us", &batch)?;
        report.put_spread("speedup", &speedup)?.put_receipt(receipt)?;
        report.print()?;
        return Ok(());
    }
    say!(
        "{count} writes of {size} bytes over {}, {}:",
        args.stage.reach.transport.scheme(),
        args.stage.medium_name(args.medium)
    );
    say!("a persist each  {:>12.1} us", persists.median);
    say!("one batch       {:>12.1} us", batch.median);
    say!("times faster: {}", spread_text(&speedup));
    say!("{receipt}");
    Ok(())
}
