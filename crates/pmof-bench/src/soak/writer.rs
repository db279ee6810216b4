//! The writer: a process that writes until it is killed, and tells its parent on a pipe what it issued and what was
//! acknowledged.

use std::{
    io::{Read, Write as _},
    os::unix::process::ExitStatusExt,
    process::{Child, ChildStdout, Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use clap::ValueEnum;
use pmof::{Durability, Pool, PoolOptions};
use pmof_console::{
    children::{exit_with_parent, this_program},
    interrupt::KilledOnSignal,
    reach::ReachArgs,
    trust::{self, TrustArgs},
    words::MethodName,
};

use super::{
    SoakArgs,
    workload::{BATCH_LIMIT, Workload},
};

/// A writer that was started opens its pool within this time, or something is wrong: it needs a few milliseconds.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// A writer whose target was killed ends within this time: the kernel tells it at once.
const END_TIMEOUT: Duration = Duration::from_secs(20);

/// Bytes of one report: a letter, then a number as 8 little-endian bytes. Fewer than `PIPE_BUF`, so the kernel passes a
/// report on whole or not at all.
pub(super) const REPORT_BYTES: usize = 9;

/// Batches that a writer with `--break-acknowledgement` acknowledges before it posts the first of them.
const BROKEN_AHEAD: u64 = 8;

/// Write until it is killed, telling its parent what was issued and what was acknowledged.
#[derive(Debug, clap::Args)]
pub struct WriterArgs {
    /// Replica of the pool; may be given several times
    #[arg(long, required = true)]
    pool: Vec<String>,
    /// Write at most 8 KiB at once
    #[arg(long)]
    short_writes: bool,
    /// Take the pool from a writer that hangs
    #[arg(long)]
    take_over: bool,
    /// The only method of flush to use
    #[arg(long, value_enum)]
    method: Option<MethodName>,
    /// Which users' targets are trusted.
    #[command(flatten)]
    pub trust: TrustArgs,
    /// Seed of the workload
    #[arg(long)]
    seed: u64,
    /// Which part of the workload
    #[arg(long)]
    round: u64,
    /// Acknowledge before anything is written, so that the soak must fail
    #[arg(long)]
    break_acknowledgement: bool,
    /// Process number of the parent, with which this process ends
    #[arg(long)]
    exit_with_parent: Option<u32>,
}

/// What a writer tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Report {
    /// The pool is open; the load begins.
    Opened,
    /// This batch is about to be posted.
    Issued(u64),
    /// The receipt of this batch is there.
    Acknowledged(u64),
    /// The receipt of the batch that is about to be acknowledged names no majority of the pool's members.
    Few,
}

impl Report {
    fn encode(self) -> [u8; REPORT_BYTES] {
        let (kind, number) = match self {
            Self::Opened => (b'O', 0),
            Self::Issued(batch) => (b'I', batch),
            Self::Acknowledged(batch) => (b'A', batch),
            Self::Few => (b'F', 0),
        };
        let mut bytes = [kind; REPORT_BYTES];
        bytes[1..].copy_from_slice(&number.to_le_bytes());
        bytes
    }

    pub(super) fn decode(bytes: [u8; REPORT_BYTES]) -> Option<Self> {
        let [kind, number @ ..] = bytes;
        let number = u64::from_le_bytes(number);
        match kind {
            b'O' => Some(Self::Opened),
            b'I' => Some(Self::Issued(number)),
            b'A' => Some(Self::Acknowledged(number)),
            b'F' => Some(Self::Few),
            _ => None,
        }
    }
}

/// Runs `pmof soak-writer`.
pub fn run_writer(args: &WriterArgs) -> anyhow::Result<()> {
    if let Some(parent) = args.exit_with_parent {
        exit_with_parent(parent)?;
    }
    let workload = if args.short_writes { Workload::of_short_writes(args.seed) } else { Workload::new(args.seed) };
    let options = MethodName::force(args.method, trust::pool_options()).require(Durability::PowerFailure);
    let options = args.pool.iter().fold(options, PoolOptions::replica);
    let options = if args.take_over { options.take_over(Duration::ZERO) } else { options };
    let pool = options.open()?;
    tell(Report::Opened)?;
    if args.break_acknowledgement {
        for first in (0..BATCH_LIMIT).step_by(BROKEN_AHEAD as usize) {
            for batch in first..first + BROKEN_AHEAD {
                tell(Report::Issued(batch))?;
                tell(Report::Acknowledged(batch))?;
            }
            for batch in first..first + BROKEN_AHEAD {
                persist(&pool, workload, args.round, batch)?;
            }
        }
    }
    for batch in 0..BATCH_LIMIT {
        tell(Report::Issued(batch))?;
        persist(&pool, workload, args.round, batch)?;
        tell(Report::Acknowledged(batch))?;
    }
    bail!("nobody killed the writer");
}

fn persist(pool: &Pool, workload: Workload, round: u64, number: u64) -> anyhow::Result<()> {
    let mut batch = pool.lane();
    for write in workload.batch(round, number) {
        batch.write(write.offset(), &write.bytes())?;
    }
    let receipt = batch.persist()?;
    let is_few = 2 * receipt.replicas.len() <= receipt.made_count;
    ensure!(receipt.durability == Durability::PowerFailure, "weak receipt: {receipt}");
    // A writer that died while it told its members a mark leaves those behind that had not heard of it: the next one writes to the others, and copies.
    if is_few {
        tell(Report::Few)?;
    }
    Ok(())
}

fn tell(report: Report) -> anyhow::Result<()> {
    let mut output = std::io::stdout().lock();
    output.write_all(&report.encode()).and_then(|()| output.flush()).context("cannot tell the parent")
}

/// The command of a writer whose output and errors its parent reads.
pub(super) fn command(pools: &[String], (seed, round): (u64, u64), reach: &ReachArgs) -> anyhow::Result<Command> {
    let mut command = this_program("soak-writer")?;
    command.args(["--seed", &seed.to_string(), "--round", &round.to_string()]);
    command.args(pools.iter().flat_map(|pool| ["--pool", pool]));
    if let Some(method) = reach.method.and_then(|method| method.to_possible_value()) {
        command.args(["--method", method.get_name()]);
    }
    command.args(trust::option());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Ok(command)
}

/// A writer as its parent sees it. Killed (SIGKILL) when dropped.
#[derive(Debug)]
pub(super) struct Writer {
    child: Child,
    _on_signal: KilledOnSignal,
    reports: Receiver<Report>,
}

impl Writer {
    /// Starts a writer and waits until its load begins.
    pub(super) fn start(pool: &str, seed: u64, round: u64, args: &SoakArgs) -> anyhow::Result<Self> {
        let mut command = command(&[pool.to_owned()], (seed, round), &args.reach)?;
        if args.break_acknowledgement {
            command.arg("--break-acknowledgement");
        }
        let mut child = command.spawn().context("cannot start a writer")?;
        let output = child.stdout.take().context("the writer has no output")?;
        let (sender, reports) = channel();
        std::thread::Builder::new()
            .name("pmof-reports".to_owned())
            .spawn(move || pass_on(output, &sender))
            .context("cannot start a thread")?;
        let mut writer = Self { _on_signal: KilledOnSignal::new(&child), child, reports };
        match writer.reports.recv_timeout(START_TIMEOUT) {
            Ok(Report::Opened) => Ok(writer),
            _ => bail!("the writer did not open the pool: {}", writer.last_words()),
        }
    }

    /// Fails if the writer ended by itself.
    pub(super) fn expect_running(&mut self) -> anyhow::Result<()> {
        match self.child.try_wait().context("cannot ask for the writer")? {
            None => Ok(()),
            Some(_) => bail!("the writer failed before anything was killed: {}", self.last_words()),
        }
    }

    /// Kills it with SIGKILL.
    pub(super) fn kill(&mut self) -> anyhow::Result<()> {
        self.child.kill().context("cannot kill the writer")
    }

    /// Waits until it is gone and returns all that it told, in order. `killed`: it must have died of SIGKILL, else of its
    /// target's death.
    pub(super) fn finish(mut self, killed: bool) -> anyhow::Result<Vec<Report>> {
        let deadline = Instant::now() + END_TIMEOUT;
        let mut told = Vec::new();
        loop {
            match self.reports.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(report) => told.push(report),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    bail!("the writer did not notice within {} s that its target was killed", END_TIMEOUT.as_secs())
                }
            }
        }
        let status = self.child.wait().context("cannot wait for the writer")?;
        let expected = if killed { status.signal().is_some() } else { status.code() == Some(1) };
        ensure!(expected, "the writer ended with {status}: {}", self.last_words());
        Ok(told)
    }

    /// Ends it and returns what it wrote to stderr.
    fn last_words(&mut self) -> String {
        let mut text = String::new();
        // What is missing from the text is missing; the failure itself is told by the caller.
        let _ = self.kill();
        if let Some(mut stderr) = self.child.stderr.take() {
            let _ = stderr.read_to_string(&mut text);
        }
        text.trim_end().to_owned()
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // It is dead already unless something failed.
        let _ = self.kill();
        let _ = self.child.wait();
    }
}

/// Passes reports on until the pipe ends, which outlives the writer until it is empty. What is no report ends it too.
fn pass_on(mut output: ChildStdout, reports: &Sender<Report>) {
    let mut bytes = [0; REPORT_BYTES];
    while output.read_exact(&mut bytes).is_ok() {
        let Some(report) = Report::decode(bytes) else { return };
        if reports.send(report).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_survive_the_pipe() {
        for report in [Report::Opened, Report::Issued(0), Report::Acknowledged(BATCH_LIMIT - 1)] {
            assert_eq!(Report::decode(report.encode()), Some(report));
        }
        assert_eq!(Report::decode([b'x'; REPORT_BYTES]), None);
    }
}
