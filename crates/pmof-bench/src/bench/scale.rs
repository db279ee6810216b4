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
use pmof_access::Transport;
use pmof_console::{children::Target, output::say, words};

use super::{
    floor::{FloorClient, FloorMode},
    report::{Report, spread_text},
    stage::{Helper, Medium, Stage, StageArgs, warm},
    statistics::{LatencyHistogram, LatencySummary, Spread},
    usage::Usage,
};
use workers::{Client, Exchange, Place, Raw, Worker};

mod workers;

/// Size of each client's pool or part of it, and of each raw thread's: 64 of them are written to the disk in a moment.
const POOL_BYTES: u64 = 1 << 20;

/// What an exchange's server answers: enough to say that the bytes are durable.
const REPLY_BYTES: u32 = 64;

/// Clients, unless others are named.
const CLIENTS_DEFAULT: [u16; 4] = [1, 4, 16, 64];

/// Measure persists a second of one target as its clients become more, beside as many raw threads in the same run
///
/// Each client is a thread with a pool and a connection of its own, or with --one-pool a handle of one pool, which persists, and begins
/// anew with the receipt. Each raw thread does pwrite and fdatasync of the same bytes to a file of its own on the same file system, or to
/// one file of all. Between the two lies what an exchange costs, which is measured too where each client has a pool and the transport is tcp:
/// as many threads that send the bytes over a raw socket to a thread of another process each, which does the same with them and answers.
/// Nothing is kept on a CPU: all of the machine is shared by both ends. The CPU time is that of both.
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
    #[arg(long, value_name = "SIZE", default_value_t = 512, value_parser = words::sizes::<u32>(1..=65536))]
    size: u32,
    /// What the pools lie on
    #[arg(long, value_enum, default_value_t = Medium::File)]
    medium: Medium,
    /// Have clients wait as programs do by default, instead of sleeping at once: of more threads than CPUs, those that spin keep
    /// others from their work
    #[arg(long)]
    adaptive: bool,
    /// How long each round lasts
    #[arg(long = "round", value_name = "TIME", default_value = "500ms", value_parser = words::milliseconds(Duration::from_millis(1)..=Duration::from_secs(60)))]
    round_ms: u64,
    /// Rounds; each measures everything once
    #[arg(long, value_name = "COUNT", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    rounds: u64,
}

/// Runs `pmof bench scale`.
pub(super) fn run(args: &ScaleArgs) -> Result<()> {
    ensure!(args.stage.device.is_none(), "every client has a pool of its own: leave --device out");
    ensure!(
        args.stage.reach.transport != Transport::Verbs,
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
        let target = stage.target_anywhere(&name, "")?;
        let pools = self.pools(stage, &target, count)?;
        let mut clients = self.clients(&pools, count);
        let files = stage.file(&format!("raw-{index}"));
        fs::create_dir(&files).with_context(|| format!("cannot make {}", files.display()))?;
        let mut raws = self.raws(&files, count)?;
        let mut exchanges = self.exchanges(&files, count)?;
        let mut finding = Finding::new(count, exchanges.is_some());
        for _ in 0..self.rounds {
            self.round(&mut raws, None, &mut finding.raw)?;
            if let (Some((server, exchanges)), Some(series)) = (&mut exchanges, &mut finding.exchange) {
                self.round(exchanges, Some(server.process_id()), series)?;
            }
            self.round(&mut clients, Some(target.process_id()), &mut finding.pmof)?;
        }
        finding.receipt = clients.into_iter().find_map(Client::into_receipt);
        pools.iter().try_for_each(Pool::close)?;
        Ok(finding)
    }

    /// One for each client, or the one of all.
    fn pools(&self, stage: &Stage, target: &Target, count: u16) -> Result<Vec<Pool>> {
        let (pools, parts) = if self.one_pool { (1, count) } else { (count, 1) };
        let make = |name: u16| -> Result<Pool> {
            let url = stage.pool_url(target.address(), &format!("bench-{name}"));
            let options = stage.pool_options([url], self.waiting());
            let pool = options.create(POOL_BYTES * u64::from(parts)).context("making a pool")?;
            warm(&pool)?;
            Ok(pool)
        };
        (0..pools).map(make).collect()
    }

    fn clients(&self, pools: &[Pool], count: u16) -> Vec<Client> {
        let client = |pool: &Pool, part| Client::new(pool.clone(), Place::new(self.size, part));
        match pools {
            [pool] => (0..count).map(|part| client(pool, part)).collect(),
            pools => pools.iter().map(|pool| client(pool, 0)).collect(),
        }
    }

    /// The server and its clients; `None` where nothing compares with them.
    fn exchanges(&self, files: &Path, count: u16) -> Result<Option<(Helper, Vec<Exchange>)>> {
        if self.one_pool || self.stage.reach.transport != Transport::Tcp {
            return Ok(None);
        }
        let server = Helper::floor_server_anywhere(POOL_BYTES)?;
        let address = *server.addresses().first().context("the floor server has no address")?;
        let connect = |name: u16| -> Result<Exchange> {
            let mode = match self.medium {
                Medium::File => FloorMode::FileSync(files.join(format!("exchange-{name}"))),
                Medium::Tmpfs | Medium::Kept => FloorMode::Ack,
            };
            let client = FloorClient::connect(address, &mode, self.size, REPLY_BYTES, false);
            client.map(Exchange).context("connecting to the floor server")
        };
        let clients = (0..count).map(connect).collect::<Result<_>>()?;
        Ok(Some((server, clients)))
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

    /// Has every one of them step on a thread of its own, again and again until the time is up. `server`: the process that works for them.
    fn round<W: Worker>(&self, workers: &mut [W], server: Option<u32>, series: &mut Series) -> Result<()> {
        let begin = Barrier::new(workers.len());
        let started = OnceLock::new();
        let turn = |worker: &mut W| -> Result<_> {
            let mut histogram = LatencyHistogram::default();
            begin.wait();
            // One beginning for all: those that get a CPU late have less time, not another.
            let start = *started.get_or_init(Instant::now);
            let mut now = Instant::now();
            // Each has a turn, also one whose CPU comes when the time is up.
            loop {
                worker.step()?;
                let before = mem::replace(&mut now, Instant::now());
                histogram.record(now - before);
                if now - start >= self.round_time() {
                    return Ok((histogram, now - start));
                }
            }
        };
        let cpu = |process_id| Usage::of_process(process_id).map(|usage| usage.cpu);
        let used = || -> Result<_> { Ok([cpu(std::process::id())?, server.map_or(Ok(Duration::ZERO), cpu)?]) };
        let before = used()?;
        let (round, time) = thread::scope(|scope| -> Result<_> {
            let turn = &turn;
            let threads: Vec<_> = workers.iter_mut().map(|worker| scope.spawn(move || turn(worker))).collect();
            let (mut total, mut longest) = (LatencyHistogram::default(), Duration::ZERO);
            for thread in threads {
                let (counted, time) = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
                total.add(&counted);
                longest = longest.max(time);
            }
            Ok((total, longest))
        })?;
        let after = used()?;
        series.add(&round, time, [0, 1].map(|at| after[at].saturating_sub(before[at])));
        Ok(())
    }

    fn print_json(&self, findings: &[Finding]) -> Result<()> {
        let mut counts = Vec::with_capacity(findings.len());
        for finding in findings {
            let mut report = Report::default();
            report.put("clients", finding.clients)?;
            report.put_latencies("", &finding.pmof.summary())?.put_latencies("raw_", &finding.raw.summary())?;
            report.put_spread("persists_per_s", &finding.pmof.rate()?)?;
            let [initiators_us, target_us] = finding.pmof.cpu_us();
            report.put("initiators_cpu_us", initiators_us)?.put("target_cpu_us", target_us)?;
            report.put_spread("raw_per_s", &finding.raw.rate()?)?.put_spread("ratio_rate", &finding.ratio()?)?;
            report.put("raw_cpu_us", finding.raw.cpu_us()[0])?;
            if let (Some(exchange), Some(ratio)) = (&finding.exchange, finding.exchange_ratio()) {
                report.put_latencies("exchange_", &exchange.summary())?.put_spread("ratio_exchange", &ratio)?;
                report.put_spread("exchange_per_s", &exchange.rate()?)?;
                report.put("exchange_cpu_us", exchange.cpu_us().iter().sum::<f64>())?;
            }
            counts.push(report.into_value());
        }
        let mut report = Report::default();
        report.put("transport", self.stage.reach.transport.scheme())?.put("medium", self.medium.name())?;
        report.put("size_bytes", self.size)?.put("rounds", self.rounds)?.put("round_ms", self.round_ms)?;
        report.put("waiting", self.waiting_name())?.put("one_pool", self.one_pool)?.put("counts", counts)?;
        report.put_receipt(receipt(findings)?)?;
        report.print()?;
        Ok(())
    }

    fn print_text(&self, findings: &[Finding]) -> Result<()> {
        let (transport, medium) = (self.stage.reach.transport.scheme(), self.medium.name());
        let pools = if self.one_pool { "one pool" } else { "a pool a client" };
        say!("Persists of {} bytes over {transport}, {medium}, {pools}, {}:", self.size, self.waiting_name());
        say!("{}", line(["clients", "", "a second", "p50 us", "p99 us", "CPU us", "pmof over it"].map(str::to_owned)));
        for finding in findings {
            let row = |what: &str, series: &Series, ratio: Option<&Spread>| -> Result<()> {
                let LatencySummary { p50_us, p99_us, .. } = series.summary();
                let [own_us, server_us] = series.cpu_us();
                let clients = if ratio.is_none() { finding.clients.to_string() } else { String::new() };
                let numbers = [series.rate()?.median.round(), p50_us, p99_us, own_us + server_us];
                let [rate, p50, p99, cpu] = [0, 1, 2, 3].map(|at| format!("{:.*}", usize::from(at > 0), numbers[at]));
                say!(
                    "{}",
                    line([clients, what.to_owned(), rate, p50, p99, cpu, ratio.map_or(String::new(), spread_text)])
                );
                Ok(())
            };
            row("pmof", &finding.pmof, None)?;
            if let (Some(exchange), Some(ratio)) = (&finding.exchange, finding.exchange_ratio()) {
                row("exchange", exchange, Some(&ratio))?;
            }
            row("raw", &finding.raw, Some(&finding.ratio()?))?;
        }
        say!("{}", receipt(findings)?);
        Ok(())
    }

    fn waiting_name(&self) -> &'static str {
        if self.adaptive { "adaptive" } else { "initiators sleeping" }
    }
}

/// A line of the table.
fn line([clients, what, rate, p50, p99, cpu, ratio]: [String; 7]) -> String {
    format!("{clients:>8}  {what:<10}{rate:>10}{p50:>10}{p99:>10}{cpu:>10}  {ratio}").trim_end().to_owned()
}

fn receipt(findings: &[Finding]) -> Result<&Receipt> {
    findings.iter().find_map(|finding| finding.receipt.as_ref()).context("there is no receipt")
}

/// What the rounds with so many clients gave.
#[derive(Debug)]
struct Finding {
    clients: u16,
    pmof: Series,
    raw: Series,
    exchange: Option<Series>,
    receipt: Option<Receipt>,
}

impl Finding {
    fn new(clients: u16, has_exchange: bool) -> Self {
        let exchange = has_exchange.then(Series::default);
        Self { clients, pmof: Series::default(), raw: Series::default(), exchange, receipt: None }
    }

    /// Persists a second over those of the raw threads, round by round.
    fn ratio(&self) -> Result<Spread> {
        self.pmof.over(&self.raw).context("there were no rounds")
    }

    /// The same over those of the exchanges.
    fn exchange_ratio(&self) -> Option<Spread> {
        self.pmof.over(self.exchange.as_ref()?)
    }
}

#[derive(Debug, Default)]
struct Series {
    total: LatencyHistogram,
    /// Of each round, a second.
    rates: Vec<f64>,
    /// CPU time of this process and of the server.
    cpu: [Duration; 2],
}

impl Series {
    fn add(&mut self, round: &LatencyHistogram, time: Duration, cpu: [Duration; 2]) {
        self.total.add(round);
        self.rates.push(round.summary().samples as f64 / time.as_secs_f64());
        for (sum, cpu) in self.cpu.iter_mut().zip(cpu) {
            *sum += cpu;
        }
    }

    fn summary(&self) -> LatencySummary {
        self.total.summary()
    }

    fn rate(&self) -> Result<Spread> {
        Spread::of(self.rates.iter().copied()).context("there were no rounds")
    }

    fn over(&self, floor: &Self) -> Option<Spread> {
        Spread::of(self.rates.iter().zip(&floor.rates).map(|(here, floor)| here / floor))
    }

    /// For one persist, in microseconds: of this process and of the server.
    fn cpu_us(&self) -> [f64; 2] {
        let samples = self.summary().samples.max(1) as f64;
        self.cpu.map(|cpu| cpu.as_secs_f64() * 1e6 / samples)
    }
}
