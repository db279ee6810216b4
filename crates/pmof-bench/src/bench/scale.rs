//! `pmof bench scale`: many clients of one target at once.

use std::{
    fs::{self, File, OpenOptions},
    mem,
    os::unix::fs::FileExt as _,
    path::Path,
    sync::{Barrier, OnceLock},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use pmof::{Pool, Receipt, Waiting};
use pmof_console::{children::Target, output::say, words::TransportName};

use super::{
    report::{Report, spread_text},
    stage::{Medium, Stage, StageArgs, warm},
    statistics::{LatencyHistogram, LatencySummary, Spread},
};

/// Size of each client's pool or part of it, and of each raw thread's: 64 of them are written to the disk in a moment.
const POOL_BYTES: u64 = 1 << 20;

/// Clients, unless others are named.
const CLIENTS_DEFAULT: [u16; 4] = [1, 4, 16, 64];

/// Measures persists a second of one target as its clients become more, beside as many raw threads in the same run
///
/// Each client is a thread with a pool and a connection of its own, or with --one-pool a handle of one pool, which persists, and begins
/// anew with the receipt. Each raw thread does pwrite and fdatasync of the same bytes to a file of its own on the same file system, or to
/// one file of all. Neither is kept on a CPU: all of the machine is shared by both ends.
#[derive(Debug, Args)]
pub(super) struct ScaleArgs {
    #[command(flatten)]
    stage: StageArgs,
    /// Clients at once; may be repeated [default: 1, 4, 16 and 64]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=1024))]
    clients: Vec<u16>,
    /// One pool for all clients, and one file for all raw threads, each with a part of its own
    #[arg(long)]
    one_pool: bool,
    /// Bytes of each persist
    #[arg(long, value_name = "BYTES", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=65536))]
    size: u32,
    /// What the pools lie on
    #[arg(long, value_enum, default_value_t = Medium::File)]
    medium: Medium,
    /// Have clients wait as programs do by default, instead of sleeping at once: of more threads than CPUs, those that spin keep
    /// others from their work
    #[arg(long)]
    adaptive: bool,
    /// How long each round lasts, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 500, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    round_ms: u64,
    /// Rounds; each measures everything once
    #[arg(long, value_name = "COUNT", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    rounds: u64,
}

/// Runs `pmof bench scale`.
pub(super) fn run(args: &ScaleArgs) -> Result<()> {
    ensure!(args.stage.device.is_none(), "every client has a pool of its own: leave --device out");
    ensure!(
        args.stage.reach.transport != TransportName::Verbs,
        "through an RDMA device clients do without the target's threads: leave --transport verbs out"
    );
    let stage = Stage::set(&args.stage, args.medium)?;
    let counts = if args.clients.is_empty() { &CLIENTS_DEFAULT[..] } else { &args.clients };
    let mut findings = Vec::with_capacity(counts.len());
    for (index, count) in counts.iter().enumerate() {
        findings.push(args.measure(&stage, index, *count)?);
    }
    if args.stage.json { args.print_json(&findings) } else { args.print_text(&findings) }
}

impl ScaleArgs {
    /// All rounds with so many clients.
    fn measure(&self, stage: &Stage, index: usize, count: u16) -> Result<Finding> {
        let name = format!("scale-{index}");
        let target = stage.target_anywhere(&name)?;
        let mut clients = self.clients(stage, &target, count)?;
        let files = stage.file(&format!("raw-{index}"));
        fs::create_dir(&files).with_context(|| format!("cannot make {}", files.display()))?;
        let mut raws = self.raws(&files, count)?;
        let mut finding = Finding { clients: count, pmof: Series::default(), raw: Series::default(), receipt: None };
        for _ in 0..self.rounds {
            finding.raw.add(self.round(&mut raws, Raw::step)?);
            finding.pmof.add(self.round(&mut clients, Client::step)?);
        }
        finding.receipt = clients.first().and_then(|client| client.receipt.clone());
        let pools = if self.one_pool { 1 } else { clients.len() };
        clients.iter().take(pools).try_for_each(|client| client.pool.close())?;
        Ok(finding)
    }

    fn clients(&self, stage: &Stage, target: &Target, count: u16) -> Result<Vec<Client>> {
        let make = |name: u16, parts: u16| -> Result<Pool> {
            let url = stage.pool_url(target.address(), &format!("bench-{name}"));
            let options = stage.pool_options([url], self.waiting());
            let pool = options.create(POOL_BYTES * u64::from(parts)).context("making a pool")?;
            warm(&pool)?;
            Ok(pool)
        };
        let client = |pool, part| Client { pool, at: Place::new(self.size, part), receipt: None };
        if self.one_pool {
            let pool = make(0, count)?;
            return Ok((0..count).map(|part| client(pool.clone(), part)).collect());
        }
        (0..count).map(|name| Ok(client(make(name, 1)?, 0))).collect()
    }

    fn raws(&self, files: &Path, count: u16) -> Result<Vec<Raw>> {
        let make = |name: u16, parts: u16| -> Result<File> {
            let path = files.join(name.to_string());
            let file = OpenOptions::new().write(true).create_new(true).open(&path);
            let file = file.with_context(|| format!("cannot make {}", path.display()))?;
            let bytes = vec![1; POOL_BYTES as usize * usize::from(parts)];
            file.write_all_at(&bytes, 0).and_then(|()| file.sync_all()).context("filling a file")?;
            Ok(file)
        };
        let raw = |file, part| Raw { file, at: Place::new(self.size, part) };
        if self.one_pool {
            let file = make(0, count)?;
            return (0..count).map(|part| Ok(raw(file.try_clone()?, part))).collect();
        }
        (0..count).map(|name| Ok(raw(make(name, 1)?, 0))).collect()
    }

    /// `None`: as by default.
    fn waiting(&self) -> Option<Waiting> {
        (!self.adaptive).then_some(Waiting::Adaptive { spin: Duration::ZERO })
    }

    fn round_time(&self) -> Duration {
        Duration::from_millis(self.round_ms)
    }

    /// Has every one of them step on a thread of its own, again and again until the time is up.
    fn round<W: Send>(
        &self,
        workers: &mut [W],
        step: impl Fn(&mut W) -> Result<()> + Sync,
    ) -> Result<(LatencyHistogram, Duration)> {
        let begin = Barrier::new(workers.len());
        let started = OnceLock::new();
        let turn = |worker: &mut W| -> Result<_> {
            let mut histogram = LatencyHistogram::default();
            begin.wait();
            // One beginning for all: those that get a CPU late have less time, not another.
            let start = *started.get_or_init(Instant::now);
            let mut now = Instant::now();
            while now - start < self.round_time() {
                step(worker)?;
                let before = mem::replace(&mut now, Instant::now());
                histogram.record(now - before);
            }
            Ok((histogram, now - start))
        };
        thread::scope(|scope| {
            let turn = &turn;
            let threads: Vec<_> = workers.iter_mut().map(|worker| scope.spawn(move || turn(worker))).collect();
            let (mut total, mut longest) = (LatencyHistogram::default(), Duration::ZERO);
            for thread in threads {
                let (counted, time) = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
                total.add(&counted);
                longest = longest.max(time);
            }
            Ok((total, longest))
        })
    }

    fn print_json(&self, findings: &[Finding]) -> Result<()> {
        let mut counts = Vec::with_capacity(findings.len());
        for finding in findings {
            let mut report = Report::default();
            report.put("clients", finding.clients)?;
            report.put_latencies("", &finding.pmof.summary())?.put_latencies("raw_", &finding.raw.summary())?;
            report.put_spread("persists_per_s", &finding.pmof.rate()?)?;
            report.put_spread("raw_per_s", &finding.raw.rate()?)?.put_spread("ratio_rate", &finding.ratio()?)?;
            counts.push(report.into_value());
        }
        let mut report = Report::default();
        report.put("transport", self.stage.reach.transport.name())?.put("medium", self.medium.name())?;
        report.put("size_bytes", self.size)?.put("rounds", self.rounds)?.put("round_ms", self.round_ms)?;
        report.put("waiting", self.waiting_name())?.put("one_pool", self.one_pool)?.put("counts", counts)?;
        report.put_receipt(receipt(findings)?)?;
        report.print();
        Ok(())
    }

    fn print_text(&self, findings: &[Finding]) -> Result<()> {
        let (transport, medium) = (self.stage.reach.transport.name(), self.medium.name());
        let pools = if self.one_pool { "one pool" } else { "a pool a client" };
        say!("Persists of {} bytes over {transport}, {medium}, {pools}, {}:", self.size, self.waiting_name());
        say!(
            "{:>8}{:>14}{:>10}{:>10}{:>14}{:>10}{:>10}  over raw threads",
            "clients",
            "persists/s",
            "p50 us",
            "p99 us",
            "raw/s",
            "p50 us",
            "p99 us"
        );
        for finding in findings {
            let (pmof, raw) = (finding.pmof.summary(), finding.raw.summary());
            say!(
                "{:>8}{:>14.0}{:>10.1}{:>10.1}{:>14.0}{:>10.1}{:>10.1}  {}",
                finding.clients,
                finding.pmof.rate()?.median,
                pmof.p50_us,
                pmof.p99_us,
                finding.raw.rate()?.median,
                raw.p50_us,
                raw.p99_us,
                spread_text(&finding.ratio()?)
            );
        }
        say!("{}", receipt(findings)?);
        Ok(())
    }

    fn waiting_name(&self) -> &'static str {
        if self.adaptive { "adaptive" } else { "initiators sleeping" }
    }
}

fn receipt(findings: &[Finding]) -> Result<&Receipt> {
    findings.iter().find_map(|finding| finding.receipt.as_ref()).context("there is no receipt")
}

/// Where the next bytes go: from the start of a part to its end, and again.
#[derive(Debug)]
struct Place {
    bytes: Vec<u8>,
    start: u64,
    offset: u64,
}

impl Place {
    fn new(size: u32, part: u16) -> Self {
        let start = u64::from(part) * POOL_BYTES;
        Self { bytes: vec![7; size as usize], start, offset: start }
    }

    fn advance(&mut self) {
        let len_bytes = self.bytes.len() as u64;
        self.offset += len_bytes;
        if self.offset + len_bytes > self.start + POOL_BYTES {
            self.offset = self.start;
        }
    }
}

/// A client with a pool of its own, or with a handle of the one of all.
#[derive(Debug)]
struct Client {
    pool: Pool,
    at: Place,
    receipt: Option<Receipt>,
}

impl Client {
    fn step(&mut self) -> Result<()> {
        self.receipt = Some(self.pool.persist(self.at.offset, &self.at.bytes)?);
        self.at.advance();
        Ok(())
    }
}

/// A thread that does without a target.
#[derive(Debug)]
struct Raw {
    file: File,
    at: Place,
}

impl Raw {
    fn step(&mut self) -> Result<()> {
        self.file.write_all_at(&self.at.bytes, self.at.offset).context("pwrite")?;
        self.file.sync_data().context("fdatasync")?;
        self.at.advance();
        Ok(())
    }
}

/// What the rounds with so many clients gave.
#[derive(Debug)]
struct Finding {
    clients: u16,
    pmof: Series,
    raw: Series,
    receipt: Option<Receipt>,
}

impl Finding {
    /// Persists a second over those of the raw threads, round by round.
    fn ratio(&self) -> Result<Spread> {
        let ratios = self.pmof.rates.iter().zip(&self.raw.rates).map(|(pmof, raw)| pmof / raw);
        Spread::of(ratios).context("there were no rounds")
    }
}

#[derive(Debug, Default)]
struct Series {
    total: LatencyHistogram,
    /// Of each round, a second.
    rates: Vec<f64>,
}

impl Series {
    fn add(&mut self, (round, time): (LatencyHistogram, Duration)) {
        self.total.add(&round);
        self.rates.push(round.summary().samples as f64 / time.as_secs_f64());
    }

    fn summary(&self) -> LatencySummary {
        self.total.summary()
    }

    fn rate(&self) -> Result<Spread> {
        Spread::of(self.rates.iter().copied()).context("there were no rounds")
    }
}
