//! `pmof bench idle`: what connections cost that do nothing.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::Args;
use pmof_access::{Address, Connection, Peer, QueueOptions};
use pmof_console::{output::say, trust, words};

use super::{
    report::Report,
    stage::{Medium, Stage, StageArgs},
    usage::Usage,
};

/// Rest before each look at a target: what it does for new connections is over by then.
const SETTLING: Duration = Duration::from_millis(500);

/// Measure what a target takes while its connections do nothing: CPU time, memory, threads
///
/// The target waits as it does by default. Memory is what came on top of the same target without connections.
#[derive(Debug, Args)]
pub(super) struct IdleArgs {
    #[command(flatten)]
    stage: StageArgs,
    /// Connections
    #[arg(long, value_name = "COUNT", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    connections: u32,
    /// Time to look at the CPU use
    #[arg(long = "duration", value_name = "TIME", default_value = "10s", value_parser = words::milliseconds(Duration::from_millis(1)..=Duration::from_secs(3600)))]
    duration_ms: u64,
}

/// Runs `pmof bench idle`.
pub(super) fn run(args: &IdleArgs) -> Result<()> {
    pmof_console::limits::allow_many_files();
    let stage = Stage::set(&args.stage, Medium::Tmpfs)?;
    let target = stage.target("target", "bench", false)?;
    stage.pin_initiator()?;
    std::thread::sleep(SETTLING);
    let empty = Usage::of_process(target.process_id())?;
    let connections = connect_all(target.address(), args)?;
    std::thread::sleep(SETTLING);
    let before = Usage::of_process(target.process_id())?;
    let start = Instant::now();
    std::thread::sleep(Duration::from_millis(args.duration_ms));
    let after = Usage::of_process(target.process_id())?;
    let elapsed = start.elapsed();
    let alive = connections.iter().filter(|connection| connection.is_established()).count();
    let cpu_percent = after.cpu.saturating_sub(before.cpu).as_secs_f64() / elapsed.as_secs_f64() * 100.0;
    let memory_bytes = after.resident_bytes.saturating_sub(empty.resident_bytes);
    let memory_mib = memory_bytes as f64 / f64::from(1 << 20);
    if args.stage.json {
        let mut report = Report::default();
        report.put("transport", args.stage.reach.transport.scheme())?.put("connections", alive)?;
        report.put("duration_ms", args.duration_ms)?.put("cpu_percent", cpu_percent)?;
        report.put("memory_bytes", memory_bytes)?.put("threads", after.threads)?.put("empty_threads", empty.threads)?;
        return report.print();
    }
    say!(
        "A target with {alive} idle connections over {}, for {} ms:",
        args.stage.reach.transport.scheme(),
        args.duration_ms
    );
    say!("CPU      {cpu_percent:>8.2} % of one");
    say!("memory   {memory_mib:>8.1} MiB beyond the target without connections");
    say!("threads  {:>8} ({} without connections)", after.threads, empty.threads);
    Ok(())
}

fn connect_all(address: &str, args: &IdleArgs) -> Result<Vec<Connection>> {
    let (to, source, count) = (address.parse::<Address>()?, args.stage.reach.source, args.connections);
    let peer = Peer::towards(&to, source)?;
    let queue = peer.completion_queue(QueueOptions::default())?;
    let options = trust::connect_options().source(source);
    (1..=count)
        .map(|index| peer.connect(&to, &queue, &options).with_context(|| format!("connection {index} of {count}")))
        .collect()
}
