//! `pmof soak takeover`: writers that are stopped, and continued beside their successors.

use std::{
    io::{self, Read as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdout},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use pmof::{Durability, Pool, PoolOptions};
use pmof_console::{
    children::Target,
    interrupt::{KilledOnSignal, TemporaryDirectory},
    output::{self, say, with_mend},
    reach::ReachArgs,
};
use rustix::{fs::OFlags, process::Signal};
use serde::Serialize;

use super::{
    PROGRESS_LINES,
    ledger::{Ledger, WrongWord},
    seed_of_the_clock,
    workload::{POOL_BYTES, POOL_WORDS, ROUND_LIMIT, Random, Workload},
    writer::{self, REPORT_BYTES, Report},
};
use crate::bench::signal;

const POOL_NAME: &str = "soak";

const MEMBERS: usize = 3;

/// Two writers a round, each with a session number of its own in every word.
const SESSIONS: u64 = 2;

/// A writer is stopped up to this long after it has the pool, in microseconds.
const STOP_WITHIN_US: u64 = 30_000;

/// Up to so long the successor writes alone, and then beside the one that goes on.
const ALONE_US: u64 = 5_000;
const BESIDE_US: u64 = 20_000;

/// What a child, or the pool, has not done by then hangs.
const LIMIT: Duration = Duration::from_secs(120);

/// Between two looks at a child.
const LOOK: Duration = Duration::from_micros(200);

/// Stop writers, take their pool over, and continue them beside their successors.
///
/// Three targets keep a pool of 1 MiB. A writer is stopped (SIGSTOP) at a random moment of its load, in half of the rounds a target is killed and
/// started again, another writer takes the pool over, and the first one is continued (SIGCONT): it must end with an error, and none
/// of its writes may reach the pool. The successor is killed (SIGKILL). Then, on each member, every 8 bytes must be the last acknowledged value, or one issued after
/// it and before its writer was taken over. Each word names its session and its batch, so that a word that nobody may have written is known.
#[derive(Debug, clap::Args)]
pub(super) struct TakeoverArgs {
    /// How many writers to stop
    #[arg(long, value_name = "COUNT", default_value_t = 2000, value_parser = clap::value_parser!(u64).range(1..ROUND_LIMIT / SESSIONS))]
    count: u64,
    /// Repeats the writes and the moments of the faults of an earlier run; not what the scheduler made of them
    #[arg(long)]
    seed: Option<u64>,
    /// Directory for the pools; a temporary one unless given
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    #[command(flatten)]
    pub(super) reach: ReachArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Write what a stopped writer would have issued next behind its successor: the soak must fail
    #[arg(long, hide = true)]
    break_fence: bool,
}

/// What was done and found.
#[derive(Clone, Debug, Default, Serialize)]
struct Summary {
    takeovers: u64,
    kills_of_target: u64,
    batches_issued: u64,
    batches_acknowledged: u64,
    /// Of these, batches whose receipts named no majority of the members: the others were catching up.
    batches_of_few: u64,
    /// Batches that stopped writers issued when they were continued: no byte of them may be there.
    batches_issued_late: u64,
    /// Writers that named their successor when they ended.
    successors_named: u64,
    /// 8-byte words compared, on all members.
    words_verified: u64,
    /// Of these, words that held an issued value without an acknowledgement.
    words_unacknowledged: u64,
    elapsed_s: f64,
    transport: &'static str,
    seed: u64,
}

/// Runs `pmof soak takeover`.
pub(super) fn run(args: &TakeoverArgs) -> Result<()> {
    args.reach.check()?;
    let seed = args.seed.unwrap_or_else(seed_of_the_clock);
    let mut soak = Soak::start(args, seed).with_context(|| format!("seed {seed}"))?;
    if !args.json {
        say!("taking over {} times; seed {seed}; pools under {}", args.count, soak.directory.path().display());
    }
    for round in 0..args.count {
        if let Err(error) = soak.round(round) {
            let kept = soak.stop();
            let place = kept.display();
            return Err(error.context(format!(
                "soak failed in takeover {round}; to repeat: --seed {seed}; the pools are kept in {place}"
            )));
        }
        if !args.json && (round + 1) % args.count.div_ceil(PROGRESS_LINES) == 0 {
            say!("{:>6} takeovers, {} batches acknowledged", round + 1, soak.summary.batches_acknowledged);
        }
    }
    let summary = Summary { elapsed_s: soak.began.elapsed().as_secs_f64(), ..soak.summary };
    if args.json {
        output::print_json(&summary)?;
    } else {
        print_summary(&summary);
    }
    Ok(())
}

/// A soak in progress.
struct Soak<'a> {
    args: &'a TakeoverArgs,
    seed: u64,
    random: Random,
    workload: Workload,
    ledger: Ledger,
    summary: Summary,
    began: Instant,
    /// Before the directory, so that they are killed before their pools are removed.
    targets: Vec<Target>,
    directory: TemporaryDirectory,
}

impl<'a> Soak<'a> {
    fn start(args: &'a TakeoverArgs, seed: u64) -> Result<Self> {
        let parent = args.dir.clone().unwrap_or_else(std::env::temp_dir);
        let directory = TemporaryDirectory::create("pmof-soak-", &parent);
        let directory = directory.with_context(|| format!("cannot make a directory in {}", parent.display()))?;
        let start = |index: usize| {
            let root = root(directory.path(), index);
            std::fs::create_dir(&root).with_context(|| format!("cannot make {}", root.display()))?;
            args.reach.start_target(&root, &TARGET_OPTIONS)
        };
        let targets = (0..MEMBERS).map(start).collect::<Result<Vec<_>>>()?;
        let summary = Summary { transport: args.reach.transport.scheme(), seed, ..Summary::default() };
        let soak = Self {
            args,
            seed,
            random: Random::new(seed),
            workload: Workload::of_short_writes(seed),
            ledger: Ledger::new(POOL_WORDS),
            summary,
            began: Instant::now(),
            targets,
            directory,
        };
        soak.options().create(POOL_BYTES).and_then(|pool| pool.close()).map_err(with_mend)?;
        Ok(soak)
    }

    fn urls(&self) -> Vec<String> {
        self.targets.iter().map(|target| self.args.reach.pool_url(target.address(), POOL_NAME)).collect()
    }

    fn options(&self) -> PoolOptions {
        let options = self.args.reach.pool_options().require(Durability::PowerFailure);
        self.urls().into_iter().fold(options, PoolOptions::replica)
    }

    fn session(&self, number: u64, takes_over: bool) -> Result<Session> {
        Session::start(&self.urls(), (self.seed, number), &self.args.reach, takes_over)
    }

    /// One writer, its successor, and a verification.
    fn round(&mut self, round: u64) -> Result<()> {
        let first = SESSIONS * round;
        let mut stopped = self.session(first, false)?;
        self.pause(STOP_WITHIN_US);
        stopped.stop()?;
        // All that it has told so far: what it issues from here on was never posted before the takeover.
        stopped.take_in()?;
        let before = stopped.told.len();
        if self.random.below(2) == 0 {
            self.kill_target()?;
        }
        let mut successor = self.session(first + 1, true)?;
        self.pause(ALONE_US);
        stopped.signal(Signal::CONT)?;
        self.pause(BESIDE_US);
        let ended = Instant::now();
        while !stopped.has_ended()? {
            ensure!(ended.elapsed() < LIMIT, "the stopped writer did not end within {} s", LIMIT.as_secs());
            // Its pipe must not keep it from writing.
            successor.take_in()?;
            sleep(LOOK);
        }
        let words = stopped.last_words();
        self.summary.successors_named += u64::from(words.contains("took over") || words.contains("taken over"));
        ensure!(!successor.has_ended()?, "the successor failed beside the stopped writer: {}", successor.last_words());
        successor.kill()?;
        let (told_before, told_late) = stopped.told.split_at(before);
        self.take_note(first, told_before, told_late)?;
        self.ledger.end_session();
        self.take_note(first + 1, &successor.told, &[])?;
        self.summary.takeovers += 1;
        let pool = self.recover()?;
        if self.args.break_fence {
            self.write_late(&pool, first, told_before)?;
        }
        self.check(&pool, round)?;
        pool.close().map_err(with_mend)
    }

    fn pause(&mut self, within_us: u64) {
        sleep(Duration::from_micros(self.random.below(within_us)));
    }

    fn kill_target(&mut self) -> Result<()> {
        let index = self.random.below(MEMBERS as u64) as usize;
        self.targets[index].kill()?;
        self.summary.kills_of_target += 1;
        let root = root(self.directory.path(), index);
        self.args.reach.restart_target(&mut self.targets[index], &root, &TARGET_OPTIONS)
    }

    /// Enters what a session told. `late`: of a stopped writer, since it was stopped; it may acknowledge what it had issued before, and nothing else.
    fn take_note(&mut self, session: u64, told: &[Report], late: &[Report]) -> Result<()> {
        let is_late = |at: usize| at >= told.len();
        for (at, report) in told.iter().chain(late).enumerate() {
            match *report {
                Report::Opened => {}
                Report::Few => self.summary.batches_of_few += 1,
                Report::Issued(_) if is_late(at) => self.summary.batches_issued_late += 1,
                Report::Issued(batch) => {
                    self.summary.batches_issued += 1;
                    self.ledger.issue(batch, self.workload.batch(session, batch));
                }
                Report::Acknowledged(batch) => {
                    let acknowledged = self.ledger.acknowledge(batch);
                    acknowledged.with_context(|| {
                        format!("batch {batch} of session {session} was acknowledged, and not issued before its writer was taken over")
                    })?;
                    self.summary.batches_acknowledged += 1;
                }
            }
        }
        Ok(())
    }

    /// The pool with all its members in sync.
    fn recover(&self) -> Result<Pool> {
        let pool = self.options().open_waiting(LIMIT).map_err(with_mend).context("the pool does not open again")?;
        let since = Instant::now();
        while pool.status().map_err(with_mend)?.is_degraded() {
            ensure!(since.elapsed() < LIMIT, "not all members are in sync within {} s", LIMIT.as_secs());
            sleep(LOOK);
        }
        Ok(pool)
    }

    /// The control: what a writer writes that was not fenced.
    fn write_late(&self, pool: &Pool, session: u64, told: &[Report]) -> Result<()> {
        let issued = told.iter().filter(|report| matches!(report, Report::Issued(_))).count() as u64;
        for write in self.workload.batch(session, issued) {
            pool.persist(write.offset(), &write.bytes()).map_err(with_mend)?;
        }
        Ok(())
    }

    fn check(&mut self, pool: &Pool, round: u64) -> Result<()> {
        let mut first: Option<Vec<u8>> = None;
        for member in 0..MEMBERS {
            let mut found = vec![0; POOL_BYTES as usize];
            pool.read_replica(member, 0, &mut found).map_err(with_mend)?;
            match self.ledger.check(&found) {
                Ok(checked) => {
                    self.summary.words_verified += checked.words;
                    self.summary.words_unacknowledged += checked.unacknowledged_words;
                }
                Err(wrong) => bail!("{}", self.describe(&wrong, round, member)),
            }
            let first = first.get_or_insert_with(|| found.clone());
            ensure!(*first == found, "member {member} differs from the first after takeover {round}");
        }
        self.ledger.settle(&first.unwrap_or_default());
        Ok(())
    }

    fn describe(&self, wrong: &WrongWord, round: u64, member: usize) -> String {
        let origin = |word: u64| format!("{word:#018x} ({})", self.workload.origin(word));
        let allowed = std::iter::once(&wrong.acknowledged).chain(&wrong.pending).map(|word| origin(*word));
        let allowed = allowed.collect::<Vec<_>>().join(" or, not acknowledged, ");
        let (sessions, found) = ([SESSIONS * round, SESSIONS * round + 1], origin(wrong.found));
        format!(
            "word at offset {} of member {member} is wrong after takeover {round}, from session {} by session {} (rounds below): expected {allowed}, \
             found {found}; {} words are wrong",
            wrong.offset, sessions[0], sessions[1], wrong.wrong_words
        )
    }

    /// Kills the targets and leaves their pools.
    fn stop(self) -> PathBuf {
        drop(self.targets);
        self.directory.keep()
    }
}

/// Nothing is cut off from power here, and the level is not what is tested.
const TARGET_OPTIONS: [&str; 1] = ["--declare-battery-backed"];

fn root(directory: &Path, index: usize) -> PathBuf {
    directory.join(index.to_string())
}

/// One writer's process, and what it told. Killed (SIGKILL) when dropped.
struct Session {
    child: Child,
    _on_signal: KilledOnSignal,
    output: ChildStdout,
    /// The beginning of a report.
    rest: Vec<u8>,
    told: Vec<Report>,
}

impl Session {
    /// Starts a writer and waits until its load begins.
    fn start(pools: &[String], (seed, number): (u64, u64), reach: &ReachArgs, takes_over: bool) -> Result<Self> {
        let mut command = writer::command(pools, (seed, number), reach)?;
        command.arg("--short-writes");
        if takes_over {
            command.arg("--take-over");
        }
        let mut child = command.spawn().context("cannot start a writer")?;
        let output = child.stdout.take().context("the writer has no output")?;
        // What it has told is taken in without waiting for more.
        rustix::fs::fcntl_setfl(&output, OFlags::NONBLOCK).context("cannot read without waiting")?;
        let on_signal = KilledOnSignal::new(&child);
        let mut session = Self { child, _on_signal: on_signal, output, rest: Vec::new(), told: Vec::new() };
        let since = Instant::now();
        while session.told.is_empty() {
            if session.has_ended()? || since.elapsed() > LIMIT {
                bail!("writer {number} did not open the pool: {}", session.last_words());
            }
            sleep(LOOK);
        }
        Ok(session)
    }

    /// Takes in what it has told by now.
    fn take_in(&mut self) -> Result<()> {
        let (mut bytes, mut at) = (vec![0; 64 << 10], 0);
        loop {
            match self.output.read(&mut bytes) {
                Ok(0) => break,
                Ok(len_bytes) => self.rest.extend_from_slice(&bytes[..len_bytes]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error).context("cannot read what the writer tells"),
            }
        }
        while let Some(report) = self.rest.get(at..).and_then(<[u8]>::first_chunk::<REPORT_BYTES>) {
            self.told.push(Report::decode(*report).context("the writer tells nonsense")?);
            at += REPORT_BYTES;
        }
        self.rest.drain(..at);
        Ok(())
    }

    fn signal(&self, which: Signal) -> Result<()> {
        signal(self.child.id(), which)
    }

    /// Stops it, and waits until none of its threads runs.
    fn stop(&mut self) -> Result<()> {
        ensure!(!self.has_ended()?, "the writer failed before it was stopped: {}", self.last_words());
        self.signal(Signal::STOP)?;
        let since = Instant::now();
        while !is_stopped(self.child.id())? {
            ensure!(since.elapsed() < LIMIT, "the writer does not stop");
            sleep(LOOK);
        }
        Ok(())
    }

    /// Whether it is gone; all that it told is taken in then.
    fn has_ended(&mut self) -> Result<bool> {
        let has_ended = self.child.try_wait().context("cannot ask for the writer")?.is_some();
        self.take_in()?;
        Ok(has_ended)
    }

    fn kill(&mut self) -> Result<()> {
        self.child.kill().context("cannot kill the writer")?;
        self.child.wait().context("cannot wait for the writer")?;
        self.take_in()
    }

    /// Ends it and returns what it wrote to stderr.
    fn last_words(&mut self) -> String {
        let mut text = String::new();
        // An incomplete text is good enough; the caller reports the failure itself.
        let _ = self.child.kill();
        if let Some(mut stderr) = self.child.stderr.take() {
            let _ = stderr.read_to_string(&mut text);
        }
        text.trim_end().to_owned()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // It is dead already unless something failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether all threads of a process are stopped.
fn is_stopped(process_id: u32) -> Result<bool> {
    let tasks = std::fs::read_dir(format!("/proc/{process_id}/task")).context("the writer is gone")?;
    for task in tasks {
        // One that has ended runs no more.
        let Ok(stat) = std::fs::read_to_string(task?.path().join("stat")) else { continue };
        let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
        if !matches!(state, Some('T' | 'Z' | 'X')) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn print_summary(summary: &Summary) {
    say!(
        "takeovers: {} over {} in {:.1} s; {} targets were killed meanwhile",
        summary.takeovers,
        summary.transport,
        summary.elapsed_s,
        summary.kills_of_target
    );
    say!(
        "batches: {} issued, {} acknowledged, {} of them by no majority of the members, as the others were catching up",
        summary.batches_issued,
        summary.batches_acknowledged,
        summary.batches_of_few
    );
    say!(
        "stopped writers: {} named their successor; {} batches issued when they went on, none of which is there",
        summary.successors_named,
        summary.batches_issued_late
    );
    say!(
        "8-byte words: {} verified on {MEMBERS} members, {} of them issued and not acknowledged, none wrong; seed {}",
        summary.words_verified,
        summary.words_unacknowledged,
        summary.seed
    );
}
