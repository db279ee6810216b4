//! `pmof bench takeover`: how long it takes to take a pool from a writer that hangs.

use std::{
    io::Read as _,
    path::{Path, PathBuf},
    process::{Child, Stdio},
    thread::{self, sleep},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use pmof::{Durability, PoolOptions};
use pmof_access::Transport;
use pmof_console::{
    children::{Target, this_program},
    interrupt::{KilledOnSignal, TemporaryDirectory},
    output::{print_json, say, with_mend},
    trust, words,
};
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;

use super::statistics::{LatencyHistogram, LatencySummary};
use crate::soak::POOL_BYTES;

const POOL_NAME: &str = "bench";

/// How long a writer writes before it is stopped, at least.
const LOAD_TIME: Duration = Duration::from_millis(5);

/// A writer that was continued notices within this time that it has no pool any more, or something is wrong.
const LIMIT: Duration = Duration::from_secs(30);

/// Measure how long it takes to take a pool from a writer that hangs
///
/// A writer is stopped (SIGSTOP) under load; the pool is taken over, which is timed, and written all over; then the writer is continued. It must
/// end with an error, and not a byte of it may reach the pool.
#[derive(Debug, Args)]
pub(super) struct TakeoverArgs {
    /// Takeovers
    #[arg(long, value_name = "COUNT", default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    count: u64,
    /// What carries the bytes
    #[arg(long, value_parser = words::transports(), value_name = "TRANSPORT", default_value = "tcp")]
    transport: Transport,
    /// Address to listen on, for devices, such as `verbs://192.0.2.1:0`; one of this machine's loopback or a socket unless given
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// Listen on an address that other machines reach. Nobody is authenticated: whoever connects can use the pool
    #[arg(long)]
    trust_network: bool,
    /// Directory for the pool; a temporary one unless given
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Takeovers {
    transport: &'static str,
    latency: LatencySummary,
}

/// Runs `pmof bench takeover`.
pub(super) fn run(args: &TakeoverArgs) -> Result<()> {
    let parent = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    let directory = TemporaryDirectory::create("pmof-bench-", &parent);
    let directory = directory.with_context(|| format!("cannot make a directory in {}", parent.display()))?;
    let (target, url) = start_target(args, directory.path())?;
    // The word is never relied on: nothing is cut off from power here.
    let options = trust::pool_options().require(Durability::PowerFailure).replica(&url);
    options.create(POOL_BYTES).and_then(|pool| pool.close()).map_err(with_mend)?;
    let mut latencies = LatencyHistogram::default();
    for round in 1..=args.count {
        latencies.record(take_over(&options, &url, round)?);
    }
    drop(target);
    let takeovers = Takeovers { transport: args.transport.scheme(), latency: latencies.summary() };
    if args.json {
        return print_json(&takeovers);
    }
    let Takeovers { transport, latency } = takeovers;
    let LatencySummary { samples, p50_us, p90_us, p99_us, max_us, .. } = latency;
    let [p50, p90, p99, max] = [p50_us, p90_us, p99_us, max_us].map(|us| us / 1e3);
    say!("{samples} takeovers over {transport} from writers that were stopped, of a pool of {POOL_BYTES} bytes:");
    say!("p50 {p50:.2} ms, p90 {p90:.2} ms, p99 {p99:.2} ms, max {max:.2} ms");
    say!("each of them was told when it was continued, and none of its bytes reached the pool");
    Ok(())
}

fn start_target(args: &TakeoverArgs, directory: &Path) -> Result<(Target, String)> {
    let root = directory.join("root");
    std::fs::create_dir(&root).with_context(|| format!("cannot make {}", root.display()))?;
    let listen = match (&args.listen, args.transport) {
        (Some(listen), _) => listen.clone(),
        (None, Transport::Shm) => format!("shm://{}", directory.join("socket").display()),
        (None, other) => format!("{}://127.0.0.1:0", other.scheme()),
    };
    let trust = args.trust_network.then_some("--trust-network");
    let options: Vec<_> = std::iter::once("--declare-battery-backed").chain(trust).collect();
    let target = Target::start(&root, &listen, &options)?;
    let url = words::pool_url(args.transport, target.address(), POOL_NAME);
    Ok((target, url))
}

/// Takes the pool from one writer: how long that took.
fn take_over(options: &PoolOptions, url: &str, round: u64) -> Result<Duration> {
    let mut writer = Writer::start(url, round)?;
    sleep(LOAD_TIME);
    writer.signal(Signal::STOP)?;
    let began = Instant::now();
    let pool = options.clone().take_over(Duration::ZERO).open().map_err(with_mend)?;
    let took = began.elapsed();
    let mark = vec![round as u8 | 1; POOL_BYTES as usize];
    pool.persist(0, &mark).map_err(with_mend)?;
    writer.signal(Signal::CONT)?;
    let said = writer.end()?;
    ensure!(said.contains("took over") || said.contains("taken over"), "the writer was not told: {said}");
    let mut bytes = vec![0; mark.len()];
    pool.read(0, &mut bytes).map_err(with_mend)?;
    let differing = bytes.iter().zip(&mark).filter(|(byte, mark)| byte != mark).count();
    ensure!(differing == 0, "{differing} bytes of takeover {round} are of the writer that the pool was taken from");
    pool.close().map_err(with_mend)?;
    Ok(took)
}

/// A process that writes as fast as it can. Killed when dropped.
struct Writer {
    child: Child,
    _on_signal: KilledOnSignal,
}

impl Writer {
    /// Returns when it has the pool open, and something was acknowledged.
    fn start(url: &str, round: u64) -> Result<Self> {
        let mut command = this_program("soak-writer")?;
        command.args(["--pool", url, "--seed", "1", "--round", &round.to_string()]).args(trust::option());
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = child.context("cannot start a writer")?;
        let mut output = child.stdout.take().context("a writer has no output")?;
        let writer = Self { _on_signal: KilledOnSignal::new(&child), child };
        let mut reports = [0; 1024];
        output.read_exact(&mut reports).context("the writer did not open the pool")?;
        // What it tells is read on, so that it never waits for that; and no more once it is gone.
        let drain = move || drop(std::io::copy(&mut output, &mut std::io::sink()));
        thread::Builder::new().name("pmof-reports".to_owned()).spawn(drain).context("cannot start a thread")?;
        Ok(writer)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        kill_process(Pid::from_child(&self.child), signal).context("cannot signal the writer")
    }

    /// Waits until it has ended by itself: its last words.
    fn end(&mut self) -> Result<String> {
        let until = Instant::now() + LIMIT;
        while self.child.try_wait().context("cannot ask for the writer")?.is_none() {
            ensure!(Instant::now() < until, "the writer did not notice within {} s", LIMIT.as_secs());
            sleep(Duration::from_millis(1));
        }
        let mut text = String::new();
        let mut errors = self.child.stderr.take().context("the writer has no standard error")?;
        errors.read_to_string(&mut text).context("cannot read what the writer said")?;
        Ok(text)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // It is dead already unless something failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
