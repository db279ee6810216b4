//! `pmof bench latency`: one persist (a write and its flush) at a time.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use pmof::{Acknowledge, Pool, PoolOptions, Receipt, Waiting};
use pmof_console::output::say;
use pmof_console::words::TransportName;

use super::{
    floor::{FloorClient, FloorMode},
    local::LocalFloor,
    report::{Report, latency_head, latency_line, spread_text},
    stage::{Contender, Medium, POOL_BYTES, Server, Stage, StageArgs, socket_address, warm},
    statistics::{LatencyHistogram, LatencySummary, Spread},
};

/// What the floor answers: enough to say that the bytes came.
const FLOOR_REPLY_BYTES: u32 = 8;

/// Longest persist that is measured: a quarter of the pool, so that consecutive ones lie in different places.
const SIZE_MAX_BYTES: u32 = (POOL_BYTES / 4) as u32;

/// Bytes of a pool on tmpfs that persists go round in: they stay in the CPU's caches, as the floor's only buffer does.
const SPAN_DEFAULT_BYTES: u64 = 64 << 10;

/// Persists of a round before those that count: a tenth, within these. The server was stopped and its caches are cold.
const WARM_UP_MIN: u64 = 10;
const WARM_UP_MAX: u64 = 200;

/// Longest round: with three things compared, each stands still for less than the 30 s after which a floor gives up.
const ROUND_LIMIT: Duration = Duration::from_secs(5);

/// Persists of a round: some 20 ms, short enough that a disturbance hits few rounds.
const COUNT_DEFAULT: u64 = 2000;
/// The same where each persist waits for a device or a network.
const COUNT_SLOW_DEFAULT: u64 = 200;

/// Measures persists one at a time: write and flush, until the receipt, beside a bare exchange of the same bytes
///
/// The floor on tmpfs: the bytes there, 8 bytes back, over a raw TCP socket. With --medium file: the same, and between
/// them pwrite and fdatasync of these bytes to a file on the same file system. The floor of --transport shm: store,
/// write-back and fence of these bytes in this process, on the same medium.
#[derive(Debug, Args)]
pub(super) struct LatencyArgs {
    #[command(flatten)]
    stage: StageArgs,
    /// Bytes of each persist
    #[arg(long, value_name = "BYTES", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=i64::from(SIZE_MAX_BYTES)))]
    size: u32,
    /// What the pool lies on
    #[arg(long, value_enum, default_value_t = Medium::Tmpfs)]
    medium: Medium,
    /// Go round in so much of the 16 MiB pool [default: 65536, which stays in the caches as the floor's buffer does; with
    /// --medium file all, as the floor goes round in its file]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1..=POOL_BYTES))]
    span: Option<u64>,
    /// Replicas of the pool, all at one target; several are also compared with a pool of one
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=16))]
    replicas: u16,
    /// Delay every byte by so much, in each direction
    #[arg(long, value_name = "US", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    delay_us: u64,
    /// Delay one replica by so much more in each direction, and compare with the same pool whose replicas are all prompt. A
    /// persist needs all the others, and goes on without a replica that is slow (--slow-after-us)
    #[arg(long, value_name = "US", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    slow_us: u64,
    /// With --slow-us: leave a replica behind that takes so much longer than the others
    #[arg(long, value_name = "US", default_value_t = 2000, requires = "slow_us", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    slow_after_us: u64,
    /// Wait as programs do by default, instead of spinning at both ends (with --delay-us, at the target alone)
    #[arg(long)]
    adaptive: bool,
    /// Persists of each round [default: 2000, or 200 with --medium file or --delay-us]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    count: Option<u64>,
    /// Rounds; each measures everything once
    #[arg(long, value_name = "COUNT", default_value_t = 15, value_parser = clap::value_parser!(u64).range(1..=1000))]
    rounds: u64,
}

/// Runs `pmof bench latency`.
pub(super) fn run(args: &LatencyArgs) -> Result<()> {
    ensure!(
        args.delay_us + args.slow_us == 0 || args.stage.reach.transport == TransportName::Tcp,
        "--delay-us and --slow-us are for --transport tcp: nothing can be put between the two ends of the others"
    );
    ensure!(args.replicas == 1 || args.stage.device.is_none(), "a device holds one replica: leave --replicas out");
    ensure!(args.slow_us == 0 || args.replicas > 1, "--slow-us takes --replicas 2 or more: a pool of one waits for it");
    let stage = Stage::set(&args.stage, args.medium)?;
    let mut floor = args.floor(&stage)?.map(Series::new);
    let mut single = if args.replicas > 1 { Some(Series::new(args.pool(&stage, 1, 0)?)) } else { None };
    let prompt = (args.slow_us > 0).then(|| args.pool(&stage, args.replicas, 0)).transpose()?;
    let mut prompt = prompt.map(Series::new);
    let mut pool = Series::new(args.pool(&stage, args.replicas, args.slow_us)?);
    stage.pin_initiator()?;
    let count = args.count();
    for _ in 0..args.rounds {
        if let Some(floor) = &mut floor {
            floor.round(count)?;
        }
        if let Some(single) = &mut single {
            single.round(count)?;
        }
        if let Some(prompt) = &mut prompt {
            prompt.round(count)?;
        }
        pool.round(count)?;
    }
    let no_floor = stage.no_floor().unwrap_or_default();
    let outcome = Outcome::of(floor.as_ref().ok_or(no_floor), single.as_ref(), prompt.as_ref(), &pool)?;
    pool.contender.finish(|work| work.finish(&stage))?;
    outcome.print(args)
}

impl LatencyArgs {
    fn count(&self) -> u64 {
        let slow = self.medium == Medium::File || self.delay_us > 0;
        self.count.unwrap_or(if slow { COUNT_SLOW_DEFAULT } else { COUNT_DEFAULT })
    }

    fn span_bytes(&self) -> u64 {
        let default = if self.medium == Medium::File { POOL_BYTES } else { SPAN_DEFAULT_BYTES };
        self.span.unwrap_or(default).max(self.size.into())
    }

    /// An initiator that shares its CPU with the relay sleeps at once. `None`: as by default.
    fn initiator_waiting(&self) -> Option<Waiting> {
        match (self.adaptive, self.delay_us) {
            (true, _) => None,
            (false, 0) => Some(Waiting::BusyPoll),
            (false, _) => Some(Waiting::Adaptive { spin: Duration::ZERO }),
        }
    }

    /// With a slow replica, the others are enough.
    fn acknowledged(&self, options: PoolOptions, replicas: u16) -> PoolOptions {
        if self.slow_us == 0 || replicas < 2 {
            return options;
        }
        let others = usize::from(replicas) - 1;
        options.acknowledge(Acknowledge::AtLeast(others)).slow_after(Duration::from_micros(self.slow_after_us))
    }

    fn floor(&self, stage: &Stage) -> Result<Option<Contender<Work>>> {
        if stage.no_floor().is_some() {
            return Ok(None);
        }
        if self.stage.reach.transport == TransportName::Shm {
            let floor = LocalFloor::new(&stage.file("floor"), self.medium, self.size as usize, self.span_bytes())?;
            return Contender::new(Work::Local(floor), Vec::new()).map(Some);
        }
        let mode = match self.medium {
            Medium::Tmpfs | Medium::Kept => FloorMode::Ack,
            Medium::File => FloorMode::FileSync(stage.file("floor")),
        };
        let server = stage.floor_server()?;
        let mut address = *server.addresses().first().context("the floor server has no address")?;
        let mut servers = vec![Server::Helper(server)];
        if self.delay_us > 0 {
            let relay = stage.relay(address, 1, self.delay_us)?;
            address = *relay.addresses().first().context("the relay has no address")?;
            servers.push(Server::Helper(relay));
        }
        let polling = self.initiator_waiting() == Some(Waiting::BusyPoll);
        let client = FloorClient::connect(address, &mode, self.size, FLOOR_REPLY_BYTES, polling)
            .context("connecting to the floor server")?;
        Contender::new(Work::Floor(client), servers).map(Some)
    }

    /// A pool of so many replicas, with a target and relays of its own; the last one is later by `slow_us`.
    fn pool(&self, stage: &Stage, replicas: u16, slow_us: u64) -> Result<Contender<Work>> {
        let target = stage.target(&format!("replicas-{replicas}-{slow_us}"), "bench-0", !self.adaptive)?;
        let mut addresses = vec![target.address().to_owned(); usize::from(replicas)];
        let mut servers = Vec::new();
        if self.delay_us > 0 {
            let relay = stage.relay(socket_address(target.address())?, addresses.len(), self.delay_us)?;
            addresses = relay.addresses().iter().map(|address| format!("tcp://{address}")).collect();
            servers.push(Server::Helper(relay));
        }
        if let (true, Some(last)) = (slow_us > 0, addresses.last_mut()) {
            let relay = stage.relay(socket_address(target.address())?, 1, self.delay_us + slow_us)?;
            *last = format!("tcp://{}", relay.addresses().first().context("the relay has no address")?);
            servers.push(Server::Helper(relay));
        }
        servers.push(Server::Target(target));
        let names = (0..replicas).map(|index| format!("bench-{index}"));
        let urls: Vec<_> = addresses.iter().zip(names).map(|(address, name)| stage.pool_url(address, &name)).collect();
        let options = self.acknowledged(stage.pool_options(urls.clone(), self.initiator_waiting()), replicas);
        let pool = options.create(POOL_BYTES).context("making the pool")?;
        warm(&pool)?;
        let (span_bytes, bytes) = (self.span_bytes(), vec![7; self.size as usize]);
        let writer = Writer { pool, urls, span_bytes, bytes, offset: 0, receipt: None };
        Contender::new(Work::Pool(Box::new(writer)), servers)
    }
}

/// What is done again and again.
#[derive(Debug)]
enum Work {
    Floor(FloorClient),
    Local(LocalFloor),
    Pool(Box<Writer>),
}

/// Writes the first part of a pool from its start to its end, and again.
#[derive(Debug)]
struct Writer {
    pool: Pool,
    urls: Vec<String>,
    span_bytes: u64,
    bytes: Vec<u8>,
    offset: u64,
    receipt: Option<Receipt>,
}

impl Work {
    fn step(&mut self) -> Result<Duration> {
        match self {
            Self::Floor(client) => client.round_trip().context("an exchange with the floor server"),
            Self::Local(floor) => floor.persist(),
            Self::Pool(writer) => writer.step(),
        }
    }

    fn receipt(&self) -> Option<&Receipt> {
        match self {
            Self::Floor(_) | Self::Local(_) => None,
            Self::Pool(writer) => writer.receipt.as_ref(),
        }
    }

    /// Gives the pool back, and the device that it lies on.
    fn finish(self, stage: &Stage) -> Result<()> {
        let Self::Pool(writer) = self else { return Ok(()) };
        writer.pool.close()?;
        stage.clean_up(&writer.urls)
    }
}

impl Writer {
    fn step(&mut self) -> Result<Duration> {
        let start = Instant::now();
        let receipt = self.pool.persist(self.offset, &self.bytes)?;
        let elapsed = start.elapsed();
        self.receipt = Some(receipt);
        let len_bytes = self.bytes.len() as u64;
        self.offset += len_bytes;
        if self.offset + len_bytes > self.span_bytes {
            self.offset = 0;
        }
        Ok(elapsed)
    }
}

/// A contender and what its rounds gave.
#[derive(Debug)]
struct Series {
    contender: Contender<Work>,
    total: LatencyHistogram,
    p50s_us: Vec<f64>,
    receipt: Option<Receipt>,
}

impl Series {
    fn new(contender: Contender<Work>) -> Self {
        Self { contender, total: LatencyHistogram::default(), p50s_us: Vec::new(), receipt: None }
    }

    fn round(&mut self, count: u64) -> Result<()> {
        let (round, receipt) = self.contender.run(|work| {
            for _ in 0..(count / 10).clamp(WARM_UP_MIN, WARM_UP_MAX) {
                work.step()?;
            }
            let mut histogram = LatencyHistogram::default();
            let start = Instant::now();
            for _ in 0..count {
                histogram.record(work.step()?);
                if start.elapsed() > ROUND_LIMIT {
                    break;
                }
            }
            Ok((histogram, work.receipt().cloned()))
        })?;
        self.total.add(&round);
        self.p50s_us.push(round.p50_us());
        self.receipt = receipt;
        Ok(())
    }

    /// This one's p50 over `other`'s, round by round.
    fn ratio(&self, other: &Self) -> Result<Spread> {
        ensure!(other.p50s_us.iter().all(|p50_us| *p50_us > 0.0), "the clock is too coarse to measure this");
        let ratios = self.p50s_us.iter().zip(&other.p50s_us).map(|(own, other)| own / other);
        Spread::of(ratios).context("there were no rounds")
    }
}

/// What all rounds gave.
#[derive(Debug)]
struct Outcome {
    pool: LatencySummary,
    /// The floor and the ratio to it, or why there is none.
    floor: Result<(LatencySummary, Spread), &'static str>,
    /// A pool of one replica, and how much longer several take.
    single: Option<(LatencySummary, Spread)>,
    /// A pool whose replicas are all prompt, and how much longer one with a slow replica takes.
    prompt: Option<(LatencySummary, Spread)>,
    receipt: Receipt,
}

impl Outcome {
    fn of(
        floor: Result<&Series, &'static str>,
        single: Option<&Series>,
        prompt: Option<&Series>,
        pool: &Series,
    ) -> Result<Self> {
        let compared = |other: &Series| Ok::<_, anyhow::Error>((other.total.summary(), pool.ratio(other)?));
        Ok(Self {
            pool: pool.total.summary(),
            floor: match floor {
                Ok(floor) => Ok((floor.total.summary(), pool.ratio(floor)?)),
                Err(why) => Err(why),
            },
            single: single.map(compared).transpose()?,
            prompt: prompt.map(compared).transpose()?,
            receipt: pool.receipt.clone().context("there is no receipt")?,
        })
    }

    fn print(&self, args: &LatencyArgs) -> Result<()> {
        if args.stage.json {
            return self.print_json(args);
        }
        self.print_text(args);
        Ok(())
    }

    fn print_json(&self, args: &LatencyArgs) -> Result<()> {
        let mut report = Report::default();
        report
            .put("transport", args.stage.reach.transport.name())?
            .put("medium", args.stage.medium_name(args.medium))?;
        report.put("size_bytes", args.size)?.put("replicas", args.replicas)?.put("delay_us", args.delay_us)?;
        report
            .put("span_bytes", args.span_bytes())?
            .put("count", args.count())?
            .put("rounds", args.rounds)?
            .put("waiting", waiting(args))?;
        report.put_latencies("", &self.pool)?.put_receipt(&self.receipt)?;
        match &self.floor {
            Ok((floor, ratio)) => report.put_latencies("floor_", floor)?.put_spread("ratio_p50", ratio)?,
            Err(why) => report.put_no_floor(why, &["floor_p50_us", "ratio_p50"])?,
        };
        if let Some((summary, ratio)) = &self.single {
            report.put_latencies("single_", summary)?.put_spread("ratio_replicas_p50", ratio)?;
        }
        if let Some((summary, ratio)) = &self.prompt {
            report.put("slow_us", args.slow_us)?.put("slow_after_us", args.slow_after_us)?;
            report.put_latencies("prompt_", summary)?.put_spread("ratio_slow_p50", ratio)?;
            report.put("ratio_slow_p99", self.pool.p99_us / summary.p99_us)?;
        }
        report.print();
        Ok(())
    }

    fn print_text(&self, args: &LatencyArgs) {
        let (size, replicas, delay_us) = (args.size, args.replicas, args.delay_us);
        let (transport, medium) = (args.stage.reach.transport.name(), args.stage.medium_name(args.medium));
        say!(
            "Persists of {size} bytes over {transport}, {medium}, {replicas} replica(s), {delay_us} us of delay each way, {}:",
            waiting(args)
        );
        say!("{}\n{}", latency_head(), latency_line("pmof", &self.pool));
        if let Some((summary, _)) = &self.single {
            say!("{}", latency_line("one replica", summary));
        }
        if let Some((summary, _)) = &self.prompt {
            say!("{}", latency_line("none slow", summary));
        }
        match &self.floor {
            Ok((floor, ratio)) => {
                say!("{}", latency_line("floor", floor));
                say!("p50 over the floor's: {}", spread_text(ratio));
            }
            Err(why) => say!("no floor: {why}"),
        }
        if let Some((_, ratio)) = &self.single {
            say!("p50 over one replica's: {}", spread_text(ratio));
        }
        if let Some((summary, ratio)) = &self.prompt {
            let of_p99 = self.pool.p99_us / summary.p99_us;
            say!(
                "with one replica {} us slower, p50 over that without: {}; p99: {of_p99:.3}",
                args.slow_us,
                spread_text(ratio)
            );
        }
        say!("{}", self.receipt);
    }
}

/// How the two ends wait.
fn waiting(args: &LatencyArgs) -> &'static str {
    match (args.adaptive, args.delay_us) {
        (true, _) => "adaptive",
        (false, 0) => "polling",
        (false, _) => "initiator sleeping, target polling",
    }
}
