//! `pmof soak`.

use std::{
    path::PathBuf,
    thread::sleep,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, bail};
use pmof::{Durability, PoolOptions};
use pmof_console::{
    children::Target,
    output::{self, say},
    reach::{ReachArgs, device_option},
    scratch::Scratch,
    trust::TrustArgs,
};
use serde::Serialize;

use self::{
    ledger::{Ledger, WrongWord},
    workload::{POOL_WORDS, ROUND_LIMIT, Workload},
    writer::{Report, Writer},
};

pub(crate) use workload::POOL_BYTES;
pub use workload::Random;
pub use writer::{WriterArgs, run_writer};

mod check;
mod diary;
pub mod ledger;
mod takeover;
mod workload;
mod write;
mod writer;

/// Kills come up to this long after a load begins, in microseconds: a few dozen batches, so that early and late ones
/// are hit.
const KILL_WITHIN_US: u64 = 30_000;

/// Lines of progress in one run.
const PROGRESS_LINES: u64 = 10;

const POOL_NAME: &str = "soak";

/// Kill targets and initiators at random under load and check that nothing acknowledged is lost.
///
/// A process writes to a pool of 1 MiB as fast as it can and tells what was acknowledged. Again and again the target,
/// the initiator or both are killed with SIGKILL; then every 8 bytes of the pool must be the last acknowledged value or
/// one issued after it. What a killed process leaves is tested; cutting the machine's power is not.
///
/// For that there are its two halves: `pmof soak write` keeps a ledger outside the machine, and `pmof soak check` compares. `pmof soak takeover` stops
/// writers, and continues them beside their successors.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct SoakArgs {
    #[command(subcommand)]
    command: Option<SoakCommand>,
    /// How many times to kill
    #[arg(long, value_name = "COUNT", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..ROUND_LIMIT))]
    kills: u64,
    /// Repeats the writes and the moments of the kills of an earlier run; not what the scheduler made of them
    #[arg(long)]
    seed: Option<u64>,
    /// Directory for the pool, on a file system that survives loss of power; a temporary one unless given
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    #[command(flatten)]
    reach: ReachArgs,
    /// Keep the pool on this devdax device or existing file instead; it is removed there at the end
    #[arg(long, value_name = "PATH")]
    device: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Have the writer acknowledge before it writes: the soak must fail
    #[arg(long, hide = true)]
    break_acknowledgement: bool,
}

#[derive(Debug, clap::Subcommand)]
enum SoakCommand {
    Write(write::WriteArgs),
    Check(check::CheckArgs),
    Takeover(takeover::TakeoverArgs),
}

impl SoakArgs {
    /// Which users' targets are trusted.
    pub fn trust(&self) -> TrustArgs {
        match &self.command {
            Some(SoakCommand::Write(args)) => args.connect.trust(),
            Some(SoakCommand::Check(args)) => args.connect.trust(),
            Some(SoakCommand::Takeover(args)) => args.reach.trust,
            None => self.reach.trust,
        }
    }
}

/// Runs `pmof soak`.
pub fn run(args: &SoakArgs) -> anyhow::Result<()> {
    match &args.command {
        Some(SoakCommand::Write(args)) => return write::run(args),
        Some(SoakCommand::Check(args)) => return check::run(args),
        Some(SoakCommand::Takeover(args)) => return takeover::run(args),
        None => args.reach.check()?,
    }
    let seed = args.seed.unwrap_or_else(seed_of_the_clock);
    let mut soak = Soak::start(args, seed).with_context(|| format!("seed {seed}"))?;
    if !args.json {
        say!("killing {} times; seed {seed}; pool under {}", args.kills, soak.scratch.path().display());
    }
    for round in 0..args.kills {
        if let Err(error) = soak.round(round) {
            let kept = soak.stop();
            return Err(error.context(format!(
                "soak failed after {round} kills; to repeat: --seed {seed}; the pool is kept in {}",
                kept.display()
            )));
        }
        if !args.json && (round + 1) % args.kills.div_ceil(PROGRESS_LINES) == 0 {
            say!("{:>6} kills, {} batches acknowledged", round + 1, soak.summary.batches_acknowledged);
        }
    }
    soak.clean_up()?;
    let summary = soak.summary();
    if args.json {
        output::print_json(&summary)?;
    } else {
        print_summary(&summary);
    }
    Ok(())
}

/// Whom a kill hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Target,
    Initiator,
    Both,
}

impl Victim {
    /// They take turns.
    fn of_round(round: u64) -> Self {
        [Self::Target, Self::Initiator, Self::Both][(round % 3) as usize]
    }
}

/// What a soak did and found.
#[derive(Clone, Debug, Default, Serialize)]
struct Summary {
    kills: u64,
    kills_of_target: u64,
    kills_of_initiator: u64,
    kills_of_both: u64,
    batches_issued: u64,
    batches_acknowledged: u64,
    writes_issued: u64,
    writes_acknowledged: u64,
    /// 8-byte words compared.
    words_verified: u64,
    /// Of these, words that held an issued value without an acknowledgement.
    words_unacknowledged: u64,
    /// From the kill (and the target's restart) until the pool was open again, at worst.
    reopen_max_ms: f64,
    elapsed_s: f64,
    transport: &'static str,
    durability: String,
    evidence: String,
    seed: u64,
}

/// A soak under way.
#[derive(Debug)]
struct Soak<'a> {
    args: &'a SoakArgs,
    seed: u64,
    /// When to kill, and whom first.
    random: Random,
    workload: Workload,
    ledger: Ledger,
    summary: Summary,
    began: Instant,
    /// Before the scratch directory, so that it is killed before its pool is removed.
    target: Target,
    scratch: Scratch,
}

impl<'a> Soak<'a> {
    fn start(args: &'a SoakArgs, seed: u64) -> anyhow::Result<Self> {
        let scratch = Scratch::new(args.dir.as_deref(), "pmof-soak-")?;
        let target = start_target(args, &scratch)?;
        let pool = options(args, &target).create(POOL_BYTES)?;
        let receipt = pool.lane().persist()?;
        pool.close()?;
        let evidence = receipt.replicas.first().map(|replica| replica.promise.evidence.to_string());
        let summary = Summary {
            transport: args.reach.transport.scheme(),
            durability: Durability::PowerFailure.to_string(),
            evidence: evidence.context("a receipt of no replica")?,
            seed,
            ..Summary::default()
        };
        Ok(Self {
            args,
            seed,
            random: Random::new(seed),
            workload: Workload::new(seed),
            ledger: Ledger::new(POOL_WORDS),
            summary,
            began: Instant::now(),
            target,
            scratch,
        })
    }

    /// One load, one kill, one verification.
    fn round(&mut self, round: u64) -> anyhow::Result<()> {
        let victim = Victim::of_round(round);
        let mut writer = Writer::start(&pool_url(self.args, &self.target), self.seed, round, self.args)?;
        sleep(Duration::from_micros(self.random.below(KILL_WITHIN_US)));
        writer.expect_running()?;
        self.kill(victim, &mut writer)?;
        let told = writer.finish(victim != Victim::Target)?;
        self.take_note(round, &told)?;
        if victim != Victim::Initiator {
            self.target = start_target(self.args, &self.scratch)?;
        }
        let recovered = self.recover()?;
        match self.ledger.check(&recovered) {
            Ok(checked) => {
                self.summary.words_verified += checked.words;
                self.summary.words_unacknowledged += checked.unacknowledged_words;
            }
            Err(wrong) => bail!("{}", self.describe(&wrong, round, victim)),
        }
        self.ledger.settle(&recovered);
        Ok(())
    }

    fn kill(&mut self, victim: Victim, writer: &mut Writer) -> anyhow::Result<()> {
        self.summary.kills += 1;
        match victim {
            Victim::Target => {
                self.summary.kills_of_target += 1;
                self.target.kill()
            }
            Victim::Initiator => {
                self.summary.kills_of_initiator += 1;
                writer.kill()
            }
            Victim::Both => {
                self.summary.kills_of_both += 1;
                // The writer first: it is not waited for, so that both die at about the same time.
                writer.kill()?;
                self.target.kill()
            }
        }
    }

    /// Enters what the writer told.
    fn take_note(&mut self, round: u64, told: &[Report]) -> anyhow::Result<()> {
        for report in told {
            match *report {
                Report::Opened => bail!("the writer opened the pool twice"),
                Report::Few => bail!("the receipt of a pool with one replica does not name it"),
                Report::Issued(batch) => {
                    let writes = self.workload.batch(round, batch);
                    self.summary.batches_issued += 1;
                    self.summary.writes_issued += writes.len() as u64;
                    self.ledger.issue(batch, writes);
                }
                Report::Acknowledged(batch) => {
                    let writes = self.ledger.acknowledge(batch);
                    let writes = writes.with_context(|| format!("batch {batch} was acknowledged and not issued"))?;
                    self.summary.batches_acknowledged += 1;
                    self.summary.writes_acknowledged += writes;
                }
            }
        }
        Ok(())
    }

    /// The pool's bytes. The opening waits until its writer's death is noticed.
    fn recover(&mut self) -> anyhow::Result<Vec<u8>> {
        let asked = Instant::now();
        let pool = options(self.args, &self.target).open().context("the pool does not open again")?;
        self.summary.reopen_max_ms = self.summary.reopen_max_ms.max(asked.elapsed().as_secs_f64() * 1e3);
        let mut recovered = vec![0; POOL_BYTES as usize];
        pool.read(0, &mut recovered)?;
        pool.close()?;
        Ok(recovered)
    }

    fn describe(&self, wrong: &WrongWord, round: u64, victim: Victim) -> String {
        let origin = |word: u64| format!("{word:#018x} ({})", self.workload.origin(word));
        let expected: Vec<_> =
            std::iter::once(&wrong.acknowledged).chain(&wrong.pending).map(|word| origin(*word)).collect();
        let expected = expected.join(" or, not acknowledged, ");
        format!(
            "word at offset {} is wrong after kill {round} ({victim:?}): expected {expected}, found {}; {} words of the \
             pool are wrong",
            wrong.offset,
            origin(wrong.found),
            wrong.wrong_words
        )
    }

    /// What was done and found so far.
    fn summary(&self) -> Summary {
        Summary { elapsed_s: self.began.elapsed().as_secs_f64(), ..self.summary.clone() }
    }

    /// Frees the device, if there is one.
    fn clean_up(&self) -> anyhow::Result<()> {
        if self.args.device.is_some() {
            options(self.args, &self.target).remove()?;
        }
        Ok(())
    }

    /// Kills the target and leaves the pool.
    fn stop(self) -> PathBuf {
        drop(self.target);
        self.scratch.keep()
    }
}

fn start_target(args: &SoakArgs, scratch: &Scratch) -> anyhow::Result<Target> {
    let device = args.device.as_deref().map(|device| device_option(POOL_NAME, device)).transpose()?;
    args.reach.start_target(scratch.path(), &device.iter().map(String::as_str).collect::<Vec<_>>())
}

fn pool_url(args: &SoakArgs, target: &Target) -> String {
    args.reach.pool_url(target.address(), POOL_NAME)
}

fn options(args: &SoakArgs, target: &Target) -> PoolOptions {
    args.reach.pool_options().replica(pool_url(args, target)).require(Durability::PowerFailure)
}

pub(crate) fn seed_of_the_clock() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64 & u64::from(u32::MAX))
}

fn print_summary(summary: &Summary) {
    say!(
        "kills: {} ({} of the target, {} of the initiator, {} of both) in {:.1} s",
        summary.kills,
        summary.kills_of_target,
        summary.kills_of_initiator,
        summary.kills_of_both,
        summary.elapsed_s
    );
    say!("writes: {} issued, {} acknowledged", summary.writes_issued, summary.writes_acknowledged);
    say!("batches: {} issued, {} acknowledged", summary.batches_issued, summary.batches_acknowledged);
    say!(
        "8-byte words: {} verified, {} of them issued and not acknowledged, none wrong",
        summary.words_verified,
        summary.words_unacknowledged
    );
    say!("reopened: at worst after {:.1} ms", summary.reopen_max_ms);
    say!("every acknowledged write survived ({}, {}); seed {}", summary.durability, summary.evidence, summary.seed);
}
