//! `pmof demo`.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use pmof::{Durability, Event, Events, Pool, PoolOptions, PoolUrl, Receipt, causes};
use pmof_console::{
    children::Target,
    output::{self, say},
    reach::{ReachArgs, device_option},
    scratch::Scratch,
    words,
};
use serde::Serialize;

use self::{
    load::{Desk, Load, LoadReport},
    records::{Book, POOL_BYTES, Verified},
};

mod load;
mod records;

/// The names of the targets, one for each.
const NAMES: [&str; 3] = ["a", "b", "c"];

/// The target that is killed first, as an index into [`NAMES`].
const FIRST_VICTIM: usize = 1;

const POOL_NAME: &str = "demo";

/// Seeds the records, which are the same in every run; the moments of the kills are not.
const SEED: u64 = 2026;

/// Limit between the first receipt from a replica that is back and the event that reports it.
const EVENT_TIMEOUT: Duration = Duration::from_secs(20);

/// Show the main job on this machine in about 10 seconds: three targets, one killed and restarted, recovery, verification.
#[derive(Debug, clap::Args)]
pub(crate) struct DemoArgs {
    /// Directory for the pools, on a file system that survives loss of power; a temporary one by default
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Time of writing, 1s to 40s, so that the demo takes less than a minute. Half of it goes to three replicas, a quarter to two, and a
    /// quarter to three again
    #[arg(long, value_name = "TIME", default_value = "8s", value_parser = words::times(Duration::from_secs(1)..=Duration::from_secs(40)))]
    time: Duration,
    #[command(flatten)]
    pub(crate) reach: ReachArgs,
    /// Keep the pool of the next target on this devdax device or existing file instead; up to three times. The pool there
    /// is removed at the end
    #[arg(long, value_name = "PATH")]
    device: Vec<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What the demo did and verified.
#[derive(Debug, Serialize)]
struct Report {
    verdict: &'static str,
    transport: &'static str,
    durability: String,
    method: String,
    mechanism: String,
    evidence: String,
    file_system: String,
    len_bytes: u64,
    /// While all replicas were alive.
    complete: LoadReport,
    /// After the first kill.
    degraded: LoadReport,
    /// While the killed replica came back.
    catching_up: LoadReport,
    /// With all replicas again.
    recovered: LoadReport,
    failure: String,
    failure_noticed_ms: f64,
    catch_up: CatchUpReport,
    replicas: Vec<ReplicaReport>,
    elapsed_s: f64,
}

/// How the killed replica came back.
#[derive(Clone, Debug, Serialize)]
struct CatchUpReport {
    url: String,
    /// Upper bound of the bytes that it lacked when it reconnected.
    missing_bytes: u64,
    copied_bytes: u64,
    /// From the reconnection until it was in sync.
    took_ms: f64,
    /// From the start of its target to the first receipt that names it.
    acknowledged_after_ms: f64,
}

/// What was verified on one replica.
#[derive(Debug, Serialize)]
struct ReplicaReport {
    name: &'static str,
    killed_first: bool,
    batches_acknowledged: u64,
    records_acknowledged: u64,
    /// Acknowledged records found intact, of those that no later one had overwritten.
    records_verified: u64,
    verified_bytes: u64,
    /// Bytes among these that were issued and never acknowledged.
    unacknowledged_bytes: u64,
}

/// Runs `pmof demo`.
pub(crate) fn run(args: &DemoArgs) -> anyhow::Result<()> {
    let began = Instant::now();
    let voice = Voice { silent: args.json };
    let scratch = Scratch::new(args.dir.as_deref(), "pmof-demo-")?;
    let set = Set::new(args, &scratch)?;
    let mut targets = set.start(&voice)?;
    let (pool, mut desk) = set.make_pool(&voice, &targets)?;
    let (half, quarter) = (args.time / 2, args.time / 4);
    let mut events = pool.events();

    voice.step(3, &format!("Writing records of mixed sizes to all three, in batches, for {} s", half.as_secs_f64()));
    let complete = desk.write_and_kill(&pool, &mut targets[FIRST_VICTIM..=FIRST_VICTIM], half, NAMES.len() - 1)?;
    voice.load(&complete);
    let victim = NAMES[FIRST_VICTIM];
    voice.step(4, &format!("Meanwhile target {victim} was killed (SIGKILL). No error: two of three are a majority"));
    let failure = lost_replicas(&pool);
    voice.degraded(&complete, &failure);

    voice.step(5, &format!("Continuing with the other two for {} s", quarter.as_secs_f64()));
    let degraded = desk.write_for(&pool, quarter)?;
    voice.load(&degraded);

    voice.step(6, &format!("Restarting target {victim} on its memory and its address, while writing continues"));
    let began_return = Instant::now();
    set.restart(&mut targets[FIRST_VICTIM], FIRST_VICTIM)?;
    desk.expect_back(FIRST_VICTIM);
    let catching_up = desk.write_until_whole(&pool)?;
    let catch_up = CatchUpReport::new(&mut events, began_return.elapsed())?;
    voice.caught_up(&catch_up, &catching_up);

    voice.step(7, &format!("Writing to all three again for {} s, then killing them all", quarter.as_secs_f64()));
    let recovered = desk.write_and_kill(&pool, &mut targets, quarter, 0)?;
    voice.load(&recovered);
    drop((pool, targets));

    let replicas = set.recover(&voice, &desk.books)?;
    let loads = Loads { complete, degraded, catching_up, recovered };
    let report = Report::new(&set, loads, failure, catch_up, replicas, began.elapsed())?;
    if args.json {
        output::print_json(&report)?;
    } else {
        say!("\n{} ({:.1} s)", report.verdict, report.elapsed_s);
        say!("A demo can only kill processes; for survival of power loss it relies on the receipts.");
    }
    Ok(())
}

/// The phases of writing, in order.
struct Loads {
    complete: Load,
    degraded: Load,
    catching_up: Load,
    recovered: Load,
}

/// Where the demo's targets are and how they are reached.
struct Set<'a> {
    args: &'a DemoArgs,
    scratch: &'a Scratch,
    roots: Vec<PathBuf>,
}

impl<'a> Set<'a> {
    fn new(args: &'a DemoArgs, scratch: &'a Scratch) -> anyhow::Result<Self> {
        args.reach.check()?;
        ensure!(
            args.device.len() <= NAMES.len(),
            "the demo has {} targets, so it takes at most that many devices",
            NAMES.len()
        );
        let roots: Vec<_> = NAMES.iter().map(|name| scratch.path().join(name)).collect();
        for root in &roots {
            std::fs::create_dir(root).with_context(|| format!("cannot create the directory {}", root.display()))?;
        }
        Ok(Self { args, scratch, roots })
    }

    fn target(&self, index: usize) -> anyhow::Result<Target> {
        self.args.reach.start_target(&self.roots[index], &strings(self.device(index)?.as_ref()))
    }

    fn restart(&self, target: &mut Target, index: usize) -> anyhow::Result<()> {
        self.args.reach.restart_target(target, &self.roots[index], &strings(self.device(index)?.as_ref()))
    }

    /// Options of a target that keeps its pool on a device.
    fn device(&self, index: usize) -> anyhow::Result<Option<String>> {
        self.args.device.get(index).map(|device| device_option(POOL_NAME, device)).transpose()
    }

    fn url(&self, target: &Target) -> String {
        self.args.reach.pool_url(target.address(), POOL_NAME)
    }

    fn start(&self, voice: &Voice) -> anyhow::Result<Vec<Target>> {
        voice.step(1, "Three targets: processes that own memory and let others write to it");
        let targets = (0..NAMES.len()).map(|index| self.target(index)).collect::<anyhow::Result<Vec<_>>>()?;
        for (index, target) in targets.iter().enumerate() {
            let (name, address, process) = (NAMES[index], target.address(), target.process_id());
            let place = self.args.device.get(index).unwrap_or(&self.roots[index]).display();
            voice.say(&format!("{name}: {address}, process {process}, memory in {place}"));
        }
        if self.args.device.len() < NAMES.len() {
            let probe = self.scratch.probe();
            let medium = format!("{} on {}", probe.kind, probe.file_system);
            let who = if self.args.device.is_empty() { "each" } else { "each without a device" };
            voice.say(&format!("{who} keeps a {medium}: {} by {}", probe.strongest, probe.promise.mechanism));
        }
        Ok(targets)
    }

    fn make_pool(&self, voice: &Voice, targets: &[Target]) -> anyhow::Result<(Pool, Desk)> {
        voice.step(2, "One pool, kept on all three; what it acknowledges must survive loss of power");
        let urls: Vec<String> = targets.iter().map(|target| self.url(target)).collect();
        let options = urls.iter().fold(self.args.reach.pool_options(), PoolOptions::replica);
        let pool = options.require(Durability::PowerFailure).create(POOL_BYTES)?;
        voice.say(&format!(
            "{} MiB, {}; a target that cannot promise that is refused",
            POOL_BYTES >> 20,
            pool.durability()
        ));
        let urls = urls.iter().map(|url| url.parse()).collect::<Result<Vec<PoolUrl>, _>>()?;
        Ok((pool, Desk::new(SEED, urls)))
    }

    /// Restarts the targets on their directories and devices, and verifies each replica by itself.
    fn recover(&self, voice: &Voice, books: &[Book]) -> anyhow::Result<Vec<ReplicaReport>> {
        voice.step(8, "All three are dead. Restarting them on the same memory, and reading each replica by itself");
        let mut reports = Vec::with_capacity(NAMES.len());
        for (index, book) in books.iter().enumerate() {
            let name = NAMES[index];
            let verified = self.verify(index, book).with_context(|| {
                format!("replica {name} lost or changed data; targets ran in {}", self.scratch.path().display())
            })?;
            voice.verified(name, index == FIRST_VICTIM, book, &verified);
            reports.push(ReplicaReport {
                name,
                killed_first: index == FIRST_VICTIM,
                batches_acknowledged: book.batches_acknowledged,
                records_acknowledged: book.records_acknowledged,
                records_verified: verified.records,
                verified_bytes: verified.bytes,
                unacknowledged_bytes: verified.unacknowledged_bytes,
            });
        }
        Ok(reports)
    }

    fn verify(&self, index: usize, book: &Book) -> anyhow::Result<Verified> {
        let target = self.target(index)?;
        let options = self.args.reach.pool_options().replica(self.url(&target)).require(Durability::PowerFailure);
        // Each for itself.
        let options = options.min_replicas(1);
        let pool = options.open_read_only()?;
        ensure!(pool.len_bytes() == POOL_BYTES, "the pool has {} bytes", pool.len_bytes());
        let mut bytes = vec![0; POOL_BYTES as usize];
        pool.read(0, &mut bytes)?;
        pool.close()?;
        let verified = book.verify(&bytes)?;
        if self.args.device.get(index).is_some() {
            options.remove()?;
        }
        Ok(verified)
    }
}

impl Report {
    fn new(
        set: &Set<'_>,
        loads: Loads,
        failure: String,
        catch_up: CatchUpReport,
        replicas: Vec<ReplicaReport>,
        elapsed: Duration,
    ) -> anyhow::Result<Self> {
        let Loads { complete, degraded, catching_up, recovered } = loads;
        let receipt = complete.receipt.replicas.first().context("a receipt of no replica")?;
        Ok(Self {
            verdict: "Every acknowledged write was recovered on every replica that acknowledged it.",
            transport: set.args.reach.transport.scheme(),
            durability: receipt.durability.to_string(),
            method: receipt.method.to_string(),
            mechanism: receipt.promise.mechanism.to_string(),
            evidence: receipt.promise.evidence.to_string(),
            file_system: set.scratch.probe().file_system.clone(),
            len_bytes: POOL_BYTES,
            complete: complete.report,
            degraded: degraded.report,
            catching_up: catching_up.report,
            recovered: recovered.report,
            failure,
            failure_noticed_ms: complete.last_took.as_secs_f64() * 1e3,
            catch_up,
            replicas,
            elapsed_s: elapsed.as_secs_f64(),
        })
    }
}

impl CatchUpReport {
    /// The pool's events of the return. A replica may need several attempts; the last one counts.
    fn new(events: &mut Events, acknowledged_after: Duration) -> anyhow::Result<Self> {
        let mut missing = 0;
        loop {
            match events.next_for(EVENT_TIMEOUT).context("no event reported that the replica is in sync")? {
                Event::CatchingUp { missing_bytes, .. } => missing = missing_bytes,
                Event::InSync { replica, copied_bytes, took, .. } => {
                    return Ok(Self {
                        url: replica.to_string(),
                        missing_bytes: missing,
                        copied_bytes,
                        took_ms: took.as_secs_f64() * 1e3,
                        acknowledged_after_ms: acknowledged_after.as_secs_f64() * 1e3,
                    });
                }
                _ => {}
            }
        }
    }
}

fn strings(option: Option<&String>) -> Vec<&str> {
    option.into_iter().map(String::as_str).collect()
}

/// The replicas that are out of use, and why.
fn lost_replicas(pool: &Pool) -> String {
    let lost = pool.replicas().into_iter().filter_map(|(replica, why)| Some(format!("{replica}: {}", causes(&*why?))));
    lost.collect::<Vec<_>>().join("; ")
}

/// Prints progress for people; silent with `--json`.
#[derive(Debug)]
struct Voice {
    silent: bool,
}

impl Voice {
    fn step(&self, number: u32, text: &str) {
        if !self.silent {
            say!("{number}. {text}");
        }
    }

    fn say(&self, text: &str) {
        if !self.silent {
            say!("     {text}");
        }
    }

    fn load(&self, load: &Load) {
        let LoadReport {
            batches_acknowledged: batches,
            records_acknowledged: records,
            records_per_s,
            mib_per_s,
            latency,
            ..
        } = &load.report;
        self.say(&format!(
            "{records} records in {batches} batches: {records_per_s:.0} records/s, {mib_per_s:.1} MiB/s"
        ));
        self.say(&format!(
            "from the first write of a batch to its receipt: half took at most {:.0} us, 99 % at most {:.0} us",
            latency.p50_us, latency.p99_us
        ));
        self.receipt(&load.receipt);
    }

    fn verified(&self, name: &str, was_lost: bool, book: &Book, verified: &Verified) {
        let (acknowledged, kept) = (book.records_acknowledged, verified.records);
        if was_lost {
            self.say(&format!(
                "{name}: {acknowledged} records acknowledged, the others copied to it; the {kept} that no later one overwrote are there"
            ));
        } else if kept == acknowledged {
            self.say(&format!("{name}: all {acknowledged} acknowledged records are there, byte by byte"));
        } else {
            self.say(&format!(
                "{name}: {acknowledged} records acknowledged; the {kept} that no later one overwrote are there, byte by byte"
            ));
        }
        if verified.unacknowledged_bytes > 0 {
            let bytes = verified.unacknowledged_bytes;
            self.say(&format!("   and {bytes} bytes of the batch in flight when it was killed; nothing else"));
        }
    }

    fn degraded(&self, load: &Load, why: &str) {
        self.say(&format!("lost: {why}"));
        self.say(&format!("the persist that ran into this took {:.1} ms:", load.last_took.as_secs_f64() * 1e3));
        self.receipt(&load.last);
    }

    fn caught_up(&self, catch_up: &CatchUpReport, load: &Load) {
        let CatchUpReport { url: replica, missing_bytes, copied_bytes, took_ms, acknowledged_after_ms } = catch_up;
        self.say(&format!("{replica} is back and lacks up to {missing_bytes} bytes"));
        self.say(&format!("{replica} is in sync: {copied_bytes} bytes were copied in {took_ms:.1} ms"));
        let batches = load.report.batches_acknowledged;
        self.say(&format!(
            "{batches} batches were acknowledged meanwhile, and {acknowledged_after_ms:.0} ms after the start:"
        ));
        self.receipt(&load.last);
    }

    fn receipt(&self, receipt: &Receipt) {
        self.say(&format!(
            "receipt: {} on {} of {}",
            receipt.durability,
            receipt.replicas.len(),
            receipt.replica_count
        ));
        for replica in &receipt.replicas {
            self.say(&format!("  {replica}"));
        }
        for replica in &receipt.missing {
            self.say(&format!("  degraded, without {replica}"));
        }
    }
}
