//! `pmof bench lanes`: the pool of a pool set on another machine, as librpmem has it.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use pmof::{Atomicity, Lane, Pending, Pool, TargetOptions, Waiting};
use pmof_access::{Address, Medium as _, Memory, Transport};
use pmof_console::{output::say, trust, words};
use pmof_control::SetName;
use pmof_pool::{RemoteSetOptions, TargetUrl};

use super::{
    floor::{FloorClient, FloorMode},
    report::{Report, latency_head, latency_line, spread_text},
    stage::{Contender, Medium, Server, Stage, StageArgs, socket_address},
    statistics::{LatencyHistogram, LatencySummary, Spread},
};

/// Size of the parts.
const POOL_BYTES: u64 = super::floor::FILE_BYTES;
/// Where persists begin: at the first byte behind a header, if there were one.
const FIRST_OFFSET: u64 = 4096;
/// What persists go round in: it stays in the caches, as the floor's only buffer does.
const SPAN_BYTES: u64 = 64 << 10;
/// What streams go round in.
const STREAM_SPAN_BYTES: u64 = 1 << 20;
/// Bytes that the floor answers: to an exchange, and to a block of a stream.
const ACK_BYTES: u32 = 8;
const STREAM_REPLY_BYTES: u32 = 64;
/// Persists of a round, and where each waits for a relay.
const COUNT: u64 = 2000;
const COUNT_SLOW: u64 = 200;
/// Blocks of a round of streaming, and those that a lane flushes before it drains.
const BLOCKS: u64 = 1024;
const BLOCKS_A_DRAIN: u64 = 16;

/// Measure remote pools of pool sets: persists one at a time, and streams of flushes that are drained now and then
///
/// The floors: the bytes there and 8 bytes back, and a one-way stream with answers, over raw TCP sockets. With --replicas the
/// range goes to COUNT remote pools at once, compared with one.
#[derive(Debug, Args)]
pub(super) struct LanesArgs {
    #[command(flatten)]
    stage: StageArgs,
    /// Bytes of each persist
    #[arg(long, value_name = "SIZE", default_value_t = 512, value_parser = words::sizes::<u32>(1..=65536))]
    size: u32,
    /// Bytes of each flush of a stream
    #[arg(long, value_name = "SIZE", default_value_t = 65536, value_parser = words::sizes::<u32>(1..=262_144))]
    stream_size: u32,
    /// Lanes of the second stream; the first has one
    #[arg(long, value_name = "COUNT", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=16))]
    lanes: u32,
    /// Remote pools that each persist goes to
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=16))]
    replicas: u16,
    /// Delay every byte by this time in each direction; streams are then left out
    #[arg(long = "delay", value_name = "TIME", default_value = "0s", value_parser = words::microseconds(Duration::ZERO..=Duration::from_secs(1)))]
    delay_us: u64,
    /// Rounds; each measures everything once
    #[arg(long, value_name = "COUNT", default_value_t = 15, value_parser = clap::value_parser!(u64).range(1..=1000))]
    rounds: u64,
}

/// Runs `pmof bench lanes`.
pub(super) fn run(args: &LanesArgs) -> Result<()> {
    ensure!(args.stage.reach.transport == Transport::Tcp, "remote pools are measured over tcp: leave --transport out");
    ensure!(args.stage.device.is_none(), "remote pools are measured on tmpfs: leave --device out");
    let stage = Stage::set(&args.stage, Medium::Tmpfs)?;
    let mut echo = args.floor(&stage, &FloorMode::Ack, args.size, ACK_BYTES)?;
    let mut single = args.pools(&stage, "single", 1)?;
    let mut several = (args.replicas > 1).then(|| args.pools(&stage, "several", args.replicas)).transpose()?;
    let mut stream = args.floor(&stage, &FloorMode::Stream, args.stream_size, STREAM_REPLY_BYTES)?;
    stage.pin_initiator()?;

    let mut findings = Findings::default();
    for _ in 0..args.rounds {
        findings.echo.add(&echo.run(|client| args.round(|| Ok(client.round_trip()?)))?);
        findings.single.add(&single.run(|pools| args.round(|| pools.persist()))?);
        if let Some(several) = &mut several {
            findings.several.add(&several.run(|pools| args.round(|| pools.persist()))?);
        }
        if args.delay_us == 0 {
            let blocks = usize::try_from(BLOCKS_A_DRAIN)?;
            findings.stream.push(args.mib_per_s(stream.run(|client| Ok(client.stream(blocks, BLOCKS)?))?));
            findings.one_lane.push(args.mib_per_s(single.run(|pools| pools.stream(args.stream_size, 1))?));
            findings.lanes.push(args.mib_per_s(single.run(|pools| pools.stream(args.stream_size, args.lanes))?));
        }
    }
    findings.print(args)
}

impl LanesArgs {
    fn waiting(&self) -> Waiting {
        // With a relay on its CPU it sleeps at once.
        if self.delay_us == 0 { Waiting::BusyPoll } else { Waiting::Adaptive { spin: Duration::ZERO } }
    }

    fn floor(&self, stage: &Stage, mode: &FloorMode, size: u32, reply: u32) -> Result<Contender<FloorClient>> {
        let server = stage.floor_server()?;
        let mut address = *server.addresses().first().context("the floor server has no address")?;
        let mut servers = vec![Server::Helper(server)];
        if self.delay_us > 0 {
            let relay = stage.relay(address, 1, self.delay_us)?;
            address = *relay.addresses().first().context("the relay has no address")?;
            servers.push(Server::Helper(relay));
        }
        let polling = self.waiting() == Waiting::BusyPoll;
        let client =
            FloorClient::connect(address, mode, size, reply, polling).context("connecting to the floor server")?;
        Contender::new(client, servers)
    }

    /// So many remote pools at a target of their own.
    fn pools(&self, stage: &Stage, name: &str, count: u16) -> Result<Contender<Pools>> {
        let target = stage.target(name, "unused", true)?;
        let mut addresses = vec![target.address().to_owned(); usize::from(count)];
        let mut servers = Vec::new();
        if self.delay_us > 0 {
            let relay = stage.relay(socket_address(target.address())?, addresses.len(), self.delay_us)?;
            addresses = relay.addresses().iter().map(|address| format!("tcp://{address}")).collect();
            servers.push(Server::Helper(relay));
        }
        servers.push(Server::Target(target));
        let root = stage.file(name);
        let options = trust::target_options().waiting(self.waiting());
        let made = addresses.iter().enumerate().map(|(index, address)| make(&root, index, address, &options));
        let remotes = made.collect::<Result<Vec<_>>>()?;
        let lanes = remotes.iter().map(Pool::lane).collect();
        let mut pools = Pools { remotes, lanes, size_bytes: self.size.into(), offset: FIRST_OFFSET };
        pools.warm()?;
        Contender::new(pools, servers)
    }

    fn round(&self, mut step: impl FnMut() -> Result<Duration>) -> Result<LatencyHistogram> {
        let count = if self.delay_us == 0 { COUNT } else { COUNT_SLOW };
        for _ in 0..count / 10 {
            step()?;
        }
        let mut histogram = LatencyHistogram::default();
        for _ in 0..count {
            histogram.record(step()?);
        }
        Ok(histogram)
    }

    fn mib_per_s(&self, elapsed: Duration) -> f64 {
        (BLOCKS * u64::from(self.stream_size)) as f64 / f64::from(1 << 20) / elapsed.as_secs_f64()
    }
}

fn make(root: &Path, index: usize, address: &str, options: &TargetOptions) -> Result<Pool> {
    let name = format!("{index}.set");
    let part = root.join(format!("{index}.part"));
    let text = format!("PMEMPOOLSET\nOPTION NOHDRS\n{POOL_BYTES} {}\n", part.display());
    std::fs::write(root.join(&name), text).context("writing a pool set")?;
    let url = TargetUrl::from(address.parse::<Address>()?);
    let memory = Memory::anonymous(POOL_BYTES)?;
    memory.store(0, &vec![7; POOL_BYTES as usize])?;
    let set = RemoteSetOptions::new(url, SetName::new(name)?).target(options.clone());
    Ok(set.mirror(std::sync::Arc::new(memory)).create(POOL_BYTES, None)?)
}

/// Remote pools that get the same.
#[derive(Debug)]
struct Pools {
    remotes: Vec<Pool>,
    /// One of each.
    lanes: Vec<Lane>,
    size_bytes: u64,
    offset: u64,
}

impl Pools {
    /// Writes all once, so that what is measured meets no page for the first time.
    fn warm(&mut self) -> Result<()> {
        for lane in &mut self.lanes {
            lane.persist_range(0..POOL_BYTES)?;
            lane.set_atomicity(Atomicity::Words);
        }
        Ok(())
    }

    fn persist(&mut self) -> Result<Duration> {
        let start = Instant::now();
        let range = self.offset..self.offset + self.size_bytes;
        if let [lane] = &mut self.lanes[..] {
            lane.persist_range(range)?;
        } else {
            for lane in &mut self.lanes {
                lane.write_range(range.clone())?;
            }
            let pending: Vec<_> = self.lanes.iter_mut().map(Lane::flush).collect();
            for pending in pending {
                pending.wait()?;
            }
        }
        let elapsed = start.elapsed();
        self.offset += self.size_bytes;
        if self.offset + self.size_bytes > FIRST_OFFSET + SPAN_BYTES {
            self.offset = FIRST_OFFSET;
        }
        Ok(elapsed)
    }

    /// Blocks through so many lanes in turn, each of which is flushed now and then.
    fn stream(&self, block_bytes: u32, lanes: u32) -> Result<Duration> {
        let pool = self.remotes.first().context("there is no pool")?;
        let block_bytes = u64::from(block_bytes);
        // All lanes together go round as much as one: it stays in the caches, as the floor's only buffer does.
        let span = (STREAM_SPAN_BYTES / u64::from(lanes) / block_bytes).max(1) * block_bytes;
        let mut streams: Vec<(Lane, Option<Pending>)> = (0..lanes).map(|_| (pool.lane(), None)).collect();
        let start = Instant::now();
        for turn in 0..BLOCKS / BLOCKS_A_DRAIN {
            let of = turn % u64::from(lanes);
            let (lane, pending) = &mut streams[of as usize];
            if let Some(pending) = pending.take() {
                pending.wait()?;
            }
            for block in 0..BLOCKS_A_DRAIN {
                let at = of * span + block * block_bytes % span;
                lane.write_range(at..at + block_bytes)?;
            }
            *pending = Some(lane.flush());
        }
        for pending in streams.into_iter().filter_map(|(_, pending)| pending) {
            pending.wait()?;
        }
        Ok(start.elapsed())
    }
}

/// Latencies of all rounds.
#[derive(Debug, Default)]
struct Series {
    total: LatencyHistogram,
    p50s_us: Vec<f64>,
}

impl Series {
    fn add(&mut self, round: &LatencyHistogram) {
        self.total.add(round);
        self.p50s_us.push(round.p50_us());
    }

    fn summary(&self) -> LatencySummary {
        self.total.summary()
    }
}

#[derive(Debug, Default)]
struct Findings {
    echo: Series,
    single: Series,
    several: Series,
    /// In MiB/s.
    stream: Vec<f64>,
    one_lane: Vec<f64>,
    lanes: Vec<f64>,
}

impl Findings {
    fn print(&self, args: &LanesArgs) -> Result<()> {
        let ratio = |own: &[f64], other: &[f64]| {
            Spread::of(own.iter().zip(other).map(|(own, other)| own / other)).context("there were no rounds")
        };
        let persist = ratio(&self.single.p50s_us, &self.echo.p50s_us)?;
        let replicas = (args.replicas > 1).then(|| ratio(&self.several.p50s_us, &self.single.p50s_us)).transpose()?;
        let streams = (args.delay_us == 0)
            .then(|| Ok::<_, anyhow::Error>([ratio(&self.one_lane, &self.stream)?, ratio(&self.lanes, &self.stream)?]))
            .transpose()?;
        let rate = |rates: &[f64]| Spread::of(rates.iter().copied()).context("there were no rounds");
        if args.stage.json {
            let mut report = Report::default();
            report
                .put("size_bytes", args.size)?
                .put("stream_size_bytes", args.stream_size)?
                .put("lanes", args.lanes)?;
            report.put("replicas", args.replicas)?.put("delay_us", args.delay_us)?.put("rounds", args.rounds)?;
            report.put_latencies("", &self.single.summary())?.put_latencies("floor_", &self.echo.summary())?;
            report.put_spread("ratio_p50", &persist)?;
            if let Some(replicas) = &replicas {
                report
                    .put_latencies("replicas_", &self.several.summary())?
                    .put_spread("ratio_replicas_p50", replicas)?;
            }
            if let Some([one, several]) = &streams {
                report.put_spread("floor_mib_per_s", &rate(&self.stream)?)?;
                report.put_spread("one_lane_mib_per_s", &rate(&self.one_lane)?)?;
                report.put_spread("lanes_mib_per_s", &rate(&self.lanes)?)?;
                report.put_spread("ratio_one_lane", one)?.put_spread("ratio_lanes", several)?;
            }
            report.print()?;
            return Ok(());
        }
        say!(
            "Persists of {} bytes to remote pools over tcp, tmpfs, {} us of delay each way:",
            args.size,
            args.delay_us
        );
        say!("{}\n{}", latency_head(), latency_line("one pool", &self.single.summary()));
        if let Some(replicas) = &replicas {
            say!("{}", latency_line(&format!("{} pools", args.replicas), &self.several.summary()));
            say!("p50 over one pool's: {}", spread_text(replicas));
        }
        say!("{}\np50 over the floor's: {}", latency_line("floor", &self.echo.summary()), spread_text(&persist));
        if let Some([one, several]) = &streams {
            say!("Flushes of {} bytes, drained every {BLOCKS_A_DRAIN}, in MiB/s:", args.stream_size);
            for (what, rates) in [("floor", &self.stream), ("one lane", &self.one_lane), ("lanes", &self.lanes)] {
                say!("{what:<12}{:>12.0}", rate(rates)?.median);
            }
            say!("one lane over the floor's: {}\n{} lanes: {}", spread_text(one), args.lanes, spread_text(several));
        }
        Ok(())
    }
}
