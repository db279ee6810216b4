//! `pmof bench bandwidth`: writes kept in flight.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use pmof::{
    Durability, PoolName, Waiting,
    access::{
        Access, Address, Completion, CompletionQueue, ConnectOptions, Connection, Flushed, Outcome, Peer, QueueOptions,
        Region, RemoteRegion, Signal,
    },
};
use pmof_console::output::say;
use pmof_console::words::{MethodName, TransportName};
use pmof_control::{MAX_MESSAGE_BYTES, OpenFor, Reply, Request};

use super::{
    floor::{FloorClient, FloorMode},
    local::LocalFloor,
    report::{Report, spread_text},
    stage::{Contender, Medium, POOL_BYTES, Server, Stage, StageArgs, warm},
    statistics::Spread,
};

/// What the floor answers to each block: as much as a reply of pmof.
const FLOOR_REPLY_BYTES: u32 = 64;

/// Writes of a round: some 20 ms at 64 KiB, so that a disturbance hits few rounds.
const COUNT_DEFAULT: u64 = 1000;

/// Longest wait for one answer: far beyond a healthy one, short enough to end a run that hangs.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

const POOL_NAME: &str = "bench";

/// Measures writes kept in flight, each answered, beside a raw one-way stream of the same bytes with answers
///
/// A round ends with a flush, which is part of its time.
#[derive(Debug, Args)]
pub(super) struct BandwidthArgs {
    #[command(flatten)]
    stage: StageArgs,
    /// Bytes of each write
    #[arg(long, value_name = "BYTES", default_value_t = 65536, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    size: u32,
    /// Writes in flight
    #[arg(long, value_name = "COUNT", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1000))]
    depth: u32,
    /// Wait as programs do by default, instead of spinning at both ends
    #[arg(long)]
    adaptive: bool,
    /// Writes of each round
    #[arg(long, value_name = "COUNT", default_value_t = COUNT_DEFAULT, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    count: u64,
    /// Rounds; each measures both once
    #[arg(long, value_name = "COUNT", default_value_t = 61, value_parser = clap::value_parser!(u64).range(1..=1000))]
    rounds: u64,
}

/// Runs `pmof bench bandwidth`.
pub(super) fn run(args: &BandwidthArgs) -> Result<()> {
    ensure!(
        args.slots_bytes() <= POOL_BYTES,
        "{} writes of {} bytes in flight need more than the pool's {POOL_BYTES} bytes: ask for less",
        args.depth,
        args.size
    );
    let stage = Stage::set(&args.stage, Medium::Tmpfs)?;
    let mut floor = args.floor(&stage)?;
    let mut pool = args.pool(&stage)?;
    stage.pin_initiator()?;
    let (mut floor_rates, mut rates, mut flushed) = (Vec::new(), Vec::new(), None);
    for _ in 0..args.rounds {
        if let Some(floor) = &mut floor {
            floor_rates.push(args.mib_per_s(floor.run(|work| {
                work.stream(args.depth as usize, u64::from(args.depth) * 2).context("warming the floor up")?;
                work.stream(args.depth as usize, args.count)
            })?));
        }
        let (elapsed, reached) = pool.run(|stream| {
            stream.run(u64::from(args.depth) * 2)?;
            stream.run(args.count)
        })?;
        rates.push(args.mib_per_s(elapsed));
        flushed = Some(reached);
    }
    let no_rounds = "there were no rounds";
    let floor = if let Some(why) = stage.no_floor() {
        Err(why)
    } else {
        let ratios = rates.iter().zip(&floor_rates).map(|(own, floor)| own / floor);
        let ratio = Spread::of(ratios).context(no_rounds)?;
        Ok((Spread::of(floor_rates.iter().copied()).context(no_rounds)?, ratio))
    };
    let findings = Findings {
        rate: Spread::of(rates.iter().copied()).context(no_rounds)?,
        floor,
        flushed: flushed.context(no_rounds)?,
    };
    pool.finish(|stream| stream.finish(&stage))?;
    findings.print(args)
}

/// The bare stream of this transport.
#[derive(Debug)]
enum Floor {
    Remote(FloorClient),
    Local(LocalFloor),
}

impl Floor {
    fn stream(&mut self, depth: usize, count: u64) -> Result<Duration> {
        match self {
            Self::Remote(client) => client.stream(depth, count).context("streaming to the floor server"),
            Self::Local(floor) => floor.stream(count),
        }
    }
}

impl BandwidthArgs {
    fn slots_bytes(&self) -> u64 {
        u64::from(self.size) * u64::from(self.depth)
    }

    fn mib_per_s(&self, elapsed: Duration) -> f64 {
        (self.count * u64::from(self.size)) as f64 / f64::from(1 << 20) / elapsed.as_secs_f64()
    }

    fn floor(&self, stage: &Stage) -> Result<Option<Contender<Floor>>> {
        if stage.no_floor().is_some() {
            return Ok(None);
        }
        if self.stage.reach.transport == TransportName::Shm {
            let floor = LocalFloor::new(&stage.file("floor"), Medium::Tmpfs, self.size as usize, self.slots_bytes())?;
            return Contender::new(Floor::Local(floor), Vec::new()).map(Some);
        }
        let server = stage.floor_server()?;
        let address = *server.addresses().first().context("the floor server has no address")?;
        let client = FloorClient::connect(address, &FloorMode::Stream, self.size, FLOOR_REPLY_BYTES, !self.adaptive)
            .context("connecting to the floor server")?;
        Contender::new(Floor::Remote(client), vec![Server::Helper(server)]).map(Some)
    }

    fn pool(&self, stage: &Stage) -> Result<Contender<WriteStream>> {
        let target = stage.target("target", POOL_NAME, !self.adaptive)?;
        let url = stage.pool_url(target.address(), POOL_NAME);
        let pool = stage
            .pool_options([url.clone()], (!self.adaptive).then_some(Waiting::BusyPoll))
            .create(POOL_BYTES)
            .context("making the pool")?;
        warm(&pool)?;
        pool.close()?;
        let stream = WriteStream::open(target.address(), url, self, stage.durability())?;
        Contender::new(stream, vec![Server::Target(target)])
    }
}

/// Writes from registered memory to a pool, each slot from and to a place of its own.
#[derive(Debug)]
struct WriteStream {
    peer: Peer,
    connection: Connection,
    queue: CompletionQueue,
    remote: RemoteRegion,
    source: Region,
    size_bytes: u64,
    depth: u64,
    level: Durability,
    url: String,
}

impl WriteStream {
    fn open(address: &str, url: String, args: &BandwidthArgs, level: Durability) -> Result<Self> {
        let (to, source) = (address.parse::<Address>()?, args.stage.reach.source);
        let peer = Peer::towards(&to, source)?;
        let waiting = if args.adaptive { QueueOptions::default().waiting } else { Waiting::BusyPoll };
        let queue = peer.completion_queue(QueueOptions { waiting, ..Default::default() })?;
        let method = args.stage.reach.method.map(MethodName::method);
        let connection = peer.connect(&to, &queue, &ConnectOptions { source, method, ..Default::default() })?;
        let descriptor = open_pool(&peer, &connection, level)?;
        let remote = connection.remote_region(&descriptor)?;
        ensure!(connection.prepare(&remote, ANSWER_LIMIT), "the target does not hand over its memory");
        let source = peer.allocate(args.slots_bytes(), Access::empty())?;
        source.store(0, &vec![7; args.slots_bytes() as usize])?;
        let (size_bytes, depth) = (u64::from(args.size), u64::from(args.depth));
        Ok(Self { peer, connection, queue, remote, source, size_bytes, depth, level, url })
    }

    /// Gives the pool back, and the device that it lies on.
    fn finish(self, stage: &Stage) -> Result<()> {
        let answer = ask(&self.peer, &self.connection, &Request::Close { in_order: true })?;
        ensure!(matches!(answer, Reply::Closed), "the target did not close the pool: {answer:?}");
        stage.clean_up(&[self.url])
    }

    /// Makes `total` writes and a flush; returns the time to the flush's answer, and that answer.
    fn run(&self, total: u64) -> Result<(Duration, Flushed)> {
        let (mut posted, mut completed) = (0, 0);
        let start = Instant::now();
        while completed < total {
            posted = self.post(posted, total.min(completed + self.depth))?;
            check(&self.queue.wait(ANSWER_LIMIT).context("the target does not answer")?)?;
            completed += 1;
            while let Some(done) = self.queue.poll() {
                check(&done)?;
                completed += 1;
            }
        }
        let ticket = self.connection.flush(&self.remote, .., self.level)?;
        let done = self.queue.wait_for(self.connection.id(), ticket, ANSWER_LIMIT);
        let outcome = done.context("the target does not answer the flush")?.outcome?;
        let elapsed = start.elapsed();
        let Outcome::Flushed(flushed) = outcome else { bail!("a flush was answered by {outcome:?}") };
        Ok((elapsed, flushed))
    }

    /// Posts writes until so many were posted in all.
    fn post(&self, mut posted: u64, until: u64) -> Result<u64> {
        let mut batch = self.connection.batch();
        while posted < until {
            let at = posted % self.depth * self.size_bytes;
            batch.write(&self.remote, at, self.source.slice(at..at + self.size_bytes)?)?;
            posted += 1;
        }
        batch.submit();
        Ok(posted)
    }
}

fn check(done: &Completion) -> Result<()> {
    match &done.outcome {
        Ok(_) => Ok(()),
        Err(error) => Err(error.clone()).context("a write failed"),
    }
}

/// Opens the pool on a connection of the access layer; gives its descriptor.
fn open_pool(peer: &Peer, connection: &Connection, require: Durability) -> Result<Vec<u8>> {
    let request = Request::Open { name: PoolName::new(POOL_NAME)?, access: OpenFor::Write, require };
    match ask(peer, connection, &request)? {
        Reply::Opened { descriptor, .. } => Ok(descriptor),
        other => bail!("the target did not open the pool: {other:?}"),
    }
}

fn ask(peer: &Peer, connection: &Connection, request: &Request) -> Result<Reply> {
    let answer = peer.allocate(MAX_MESSAGE_BYTES as u64, Access::empty())?;
    let ticket = connection.receive(answer.slice(..)?, 0)?;
    connection.batch().signal(Signal::OnError).send(&request.encode(1)?)?;
    let done = connection.queue().wait_for(connection.id(), ticket, ANSWER_LIMIT);
    let outcome = done.context("the target does not answer")?.outcome?;
    let Outcome::Received { len_bytes, .. } = outcome else { bail!("a receive gave {outcome:?}") };
    let mut message = vec![0; len_bytes as usize];
    answer.read(0, &mut message)?;
    Ok(Reply::decode(&message)?.1)
}

/// What all rounds gave; rates in MiB/s.
#[derive(Debug)]
struct Findings {
    rate: Spread,
    /// The floor's rate and the ratio to it, or why there is none.
    floor: Result<(Spread, Spread), &'static str>,
    flushed: Flushed,
}

impl Findings {
    fn print(&self, args: &BandwidthArgs) -> Result<()> {
        let Flushed { durability, method, promise } = self.flushed;
        if args.stage.json {
            let mut report = Report::default();
            report
                .put("transport", args.stage.reach.transport.name())?
                .put("medium", args.stage.medium_name(Medium::Tmpfs))?;
            report.put("size_bytes", args.size)?.put("depth", args.depth)?;
            report.put("count", args.count)?.put("rounds", args.rounds)?;
            report.put("waiting", if args.adaptive { "adaptive" } else { "polling" })?;
            report.put_spread("mib_per_s", &self.rate)?;
            match &self.floor {
                Ok((rate, ratio)) => {
                    report.put_spread("floor_mib_per_s", rate)?.put_spread("ratio_bandwidth", ratio)?
                }
                Err(why) => report.put_no_floor(why, &["floor_mib_per_s", "ratio_bandwidth"])?,
            };
            report.put("durability", durability.to_string())?.put("method", method.to_string())?;
            report.put("mechanism", promise.mechanism.to_string())?.put("evidence", promise.evidence.to_string())?;
            report.print();
            return Ok(());
        }
        let (size, depth, transport) = (args.size, args.depth, args.stage.reach.transport.name());
        say!("Writes of {size} bytes over {transport}, {depth} in flight, flushed at the end of each round:");
        say_rate("pmof", &self.rate);
        match &self.floor {
            Ok((rate, ratio)) => {
                say_rate("floor", rate);
                say!("over the floor's: {}", spread_text(ratio));
            }
            Err(why) => say!("no floor: {why}"),
        }
        say!("{durability} ({method}, {}, {})", promise.mechanism, promise.evidence);
        Ok(())
    }
}

fn say_rate(what: &str, rate: &Spread) {
    say!("{what:<8}{:>10.0} MiB/s ({:.0} to {:.0} over the rounds)", rate.median, rate.min, rate.max);
}
