//! `pmof bench latency` and `pmof bench bandwidth`: one workload, whose defaults differ.

use std::time::Duration;

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use pmof::{Durability, Method, Waiting};
use pmof_access::{DEFAULT_SPIN, Transport};
use pmof_console::words::{self, MethodName};

use super::{
    floor::FILE_BYTES,
    pattern::Shape,
    peers::{PEER_NAMES, Peer},
    runner::{Extent, Pace},
    stage::{Medium, POOL_BYTES, Stage, StageArgs},
};

mod contenders;
mod measure;
mod outcome;
mod side_by_side;

pub(super) use measure::run;
pub(super) use side_by_side::{PeersArgs, run_peers};

/// Longest operation that is measured: a quarter of the pool, so that consecutive ones lie in different places.
const SIZE_MAX_BYTES: u32 = (POOL_BYTES / 4) as u32;
const _: () = assert!(POOL_BYTES == FILE_BYTES);

/// Bytes of a pool on tmpfs that operations go round in: they stay in the CPU's caches, as the floor's only buffer does.
const SPAN_DEFAULT_BYTES: u64 = 64 << 10;

const SECOND: Duration = Duration::from_secs(1);

/// Longest time before measuring: in a longer one the floors' servers would be taken for dead, which are stopped meanwhile.
const RAMP_MAX: Duration = Duration::from_secs(9);

/// Longest turn: with three contenders, each pauses for less than the 30 s after which a floor gives up.
const TURN_LIMIT: Duration = Duration::from_secs(5);

/// What `--time` is divided into turns of at most.
const TIMED_TURN: Duration = Duration::from_secs(1);

/// Which of the two commands sets the defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Preset {
    Latency,
    Bandwidth,
}

/// A workload, and how long it runs.
#[derive(Debug, Args)]
pub(super) struct WorkloadArgs {
    #[command(flatten)]
    stage: StageArgs,
    /// How writes become durable [default: auto]
    #[arg(long, value_enum, conflicts_with = "method")]
    mode: Option<Mode>,
    /// Measure pools, or the connections below them [default: pool for latency, access for bandwidth]
    #[arg(long, value_enum)]
    layer: Option<Layer>,
    /// Read, write or both, in sequential or random order
    #[arg(long, value_enum, default_value_t = Access::Write)]
    rw: Access,
    /// Reads in a hundred operations of --rw rw and randrw [default: 50]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(1..=99))]
    rwmixread: Option<u8>,
    /// Bytes of each read and write [default: 512 for latency, 65536 for bandwidth]
    #[arg(long, value_name = "SIZE", value_parser = words::sizes::<u32>(1..=u64::from(SIZE_MAX_BYTES)))]
    size: Option<u32>,
    /// Operations in flight on each connection [default: 1 for latency, 16 for bandwidth]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1000))]
    depth: Option<u32>,
    /// Writes that share one flush, which together are one operation; 0: each write is one, and a flush ends each round [default: 1
    /// for latency, 0 for bandwidth]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(0..=10_000))]
    batch: Option<u32>,
    /// Threads of the initiator; with several, no process is kept on a CPU
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,
    /// Connections, a multiple of the threads [default: one a thread]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=1024))]
    connections: Option<u16>,
    /// What the pool lies on
    #[arg(long, value_enum, default_value_t = Medium::Tmpfs)]
    medium: Medium,
    /// Use this part of the 16 MiB pool, again and again [default: 65536 or what is in flight, which stays in the caches as the floor's buffer does; with
    /// --medium file all, as the floor goes round in its file]
    #[arg(long, value_name = "SIZE", value_parser = words::sizes::<u64>(1..=POOL_BYTES))]
    span: Option<u64>,
    /// Replicas of the pool, all at one target; several are also compared with a pool of one
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=16))]
    replicas: u16,
    /// Acknowledge a persist with at least this number of replicas [default: those in sync]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=16))]
    at_least: Option<u16>,
    /// Delay every byte by this time in each direction
    #[arg(long = "delay", value_name = "TIME", default_value = "0s", value_parser = words::microseconds(Duration::ZERO..=SECOND))]
    delay_us: u64,
    /// Delay one replica by this time more in each direction, and compare with the same pool whose replicas are all prompt. A
    /// persist needs all the others, and goes on without a replica that is slow (--slow-after)
    #[arg(long = "slow", value_name = "TIME", default_value = "0s", conflicts_with = "at_least", value_parser = words::microseconds(Duration::ZERO..=SECOND))]
    slow_us: u64,
    /// With --slow: leave a replica behind that takes longer than the others by this time
    #[arg(long = "slow-after", value_name = "TIME", default_value = "2ms", requires = "slow_us", value_parser = words::microseconds(Duration::from_micros(1)..=SECOND))]
    slow_after_us: u64,
    /// How the ends wait for each other [default: polling; sleeping with --delay or several threads]
    #[arg(long, value_enum)]
    waiting: Option<WaitingName>,
    /// Keep the target's CPU busy for this part of its time
    #[arg(long, value_name = "PERCENT", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=99))]
    target_load: u8,
    /// Measure what users have instead in the same rounds, each named as skipped where it is not installed; without a name all of them
    #[arg(long, value_enum, value_name = "PEER", value_delimiter = ',', num_args = 0.., require_equals = true, default_missing_values = PEER_NAMES)]
    peers: Vec<Peer>,
    /// Start operations at this rate a second, whatever happened to those before (open loop): a latency begins when its operation is due
    #[arg(long, value_name = "COUNT", value_parser = rate)]
    rate: Option<f64>,
    /// Stop the target for this time in each round: what a tail looks like
    #[arg(long = "pause-target", value_name = "TIME", default_value = "0s", value_parser = words::milliseconds(Duration::ZERO..=2 * SECOND))]
    pause_target_ms: u64,
    /// Operations of each round [default: 2000 for latency, 1000 for bandwidth, 200 with --medium file or --delay]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    count: Option<u64>,
    /// Measure each contender for this time in all instead, in rounds of at most a second
    #[arg(long, value_name = "TIME", conflicts_with = "count", value_parser = words::times(Duration::from_millis(10)..=86_400 * SECOND))]
    time: Option<Duration>,
    /// Run each contender for this time before it is measured
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = words::times(Duration::ZERO..=RAMP_MAX))]
    ramp: Duration,
    /// Rounds; each measures everything once [default: 15 for latency, 61 for bandwidth]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..=1000))]
    rounds: Option<u64>,
}

/// How writes become durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// Read-after-write, the appliance persistency method: the target's CPU does nothing (over verbs)
    Apm,
    /// Send-after-write, the general-purpose server persistency method: the target's CPU flushes
    Gpspm,
    /// The FLUSH operation of the devices (over verbs)
    Native,
    /// A read behind records that a connection appends to a ring in persistent memory (over verbs; pools have no rings)
    ReadAfterSend,
    /// No durability: others see the writes
    Visible,
    /// The cheapest method that reaches the level, as programs have it
    Auto,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Layer {
    /// Pools with their replicas, as programs use them
    Pool,
    /// One connection of the access layer for each
    Access,
}

/// Which operations, and in which order of places; fio's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Access {
    Read,
    Write,
    Randread,
    Randwrite,
    /// Both, as --rwmixread says
    Rw,
    /// Both in random order
    Randrw,
}

/// How the ends wait for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum WaitingName {
    /// Both ends spin
    Polling,
    /// Both ends spin for a moment and then sleep, as programs do by default
    Adaptive,
    /// The initiator sleeps at once; the target spins, but with several threads waits as by default
    Sleeping,
}

impl Mode {
    fn name(self) -> &'static str {
        match self {
            Self::Apm => "apm",
            Self::Gpspm => "gpspm",
            Self::Native => "native",
            Self::ReadAfterSend => "read-after-send",
            Self::Visible => "visible",
            Self::Auto => "auto",
        }
    }

    fn method(self) -> Option<Method> {
        match self {
            Self::Apm => Some(Method::ReadAfterWrite),
            Self::Gpspm => Some(Method::SendAfterWrite),
            Self::Native => Some(Method::NativeFlush),
            Self::ReadAfterSend | Self::Visible | Self::Auto => None,
        }
    }
}

impl Layer {
    fn name(self) -> &'static str {
        match self {
            Self::Pool => "pool",
            Self::Access => "access",
        }
    }
}

impl WaitingName {
    fn name(self) -> &'static str {
        match self {
            Self::Polling => "polling",
            Self::Adaptive => "adaptive",
            Self::Sleeping => "sleeping",
        }
    }
}

impl Access {
    fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Randread => "randread",
            Self::Randwrite => "randwrite",
            Self::Rw => "rw",
            Self::Randrw => "randrw",
        }
    }

    fn is_random(self) -> bool {
        matches!(self, Self::Randread | Self::Randwrite | Self::Randrw)
    }
}

/// The options with their defaults filled in.
#[derive(Debug)]
struct Workload<'a> {
    args: &'a WorkloadArgs,
    mode: Mode,
    layer: Layer,
    size_bytes: u64,
    depth: u32,
    batch: u32,
    read_percent: u8,
    connections: u16,
    waiting: WaitingName,
    rounds: u64,
    turn: Extent,
    pace: Pace,
}

impl WorkloadArgs {
    fn resolve(&self, preset: Preset) -> Result<Workload<'_>> {
        let by_preset = |latency, bandwidth| if preset == Preset::Latency { latency } else { bandwidth };
        let read_percent = match self.rw {
            Access::Read | Access::Randread => 100,
            Access::Write | Access::Randwrite => 0,
            Access::Rw | Access::Randrw => self.rwmixread.unwrap_or(50),
        };
        let layer = self.layer.unwrap_or(if preset == Preset::Latency { Layer::Pool } else { Layer::Access });
        let waiting = match self.waiting {
            Some(waiting) => waiting,
            None if self.delay_us > 0 || self.threads > 1 => WaitingName::Sleeping,
            None => WaitingName::Polling,
        };
        let slow = self.medium == Medium::File || self.delay_us > 0;
        let rounds = self.rounds.unwrap_or(by_preset(15, 61));
        let (rounds, turn) = match self.time {
            None => {
                let count = self.count.unwrap_or(if slow { 200 } else { by_preset(2000, 1000) });
                (rounds, Extent { operations: count, time: TURN_LIMIT })
            }
            Some(time) => {
                let rounds = rounds.max(time.as_millis().div_ceil(TIMED_TURN.as_millis()) as u64);
                let time = time.div_f64(rounds as f64);
                (rounds, Extent { operations: u64::MAX, time })
            }
        };
        let workload = Workload {
            args: self,
            mode: self.mode.unwrap_or(Mode::Auto),
            layer,
            size_bytes: self.size.unwrap_or(by_preset(512, 65536) as u32).into(),
            depth: self.depth.unwrap_or(by_preset(1, 16) as u32),
            batch: self.batch.unwrap_or(by_preset(1, 0) as u32),
            read_percent,
            connections: self.connections.unwrap_or(self.threads),
            waiting,
            rounds,
            turn,
            pace: self.rate.map_or(Pace::Closed, |rate| Pace::Open(rate / f64::from(self.threads))),
        };
        workload.check()?;
        Ok(workload)
    }
}

impl Workload<'_> {
    fn check(&self) -> Result<()> {
        let Self { args, connections, size_bytes, depth, .. } = self;
        ensure!(
            self.mode != Mode::ReadAfterSend,
            "read-after-send flushes rings in persistent memory that a connection appends to over verbs (pmof::access::AppendRing), and no pool is one: `cargo xtask vm test --only ring-cuts` has them in a virtual machine"
        );
        ensure!(
            args.delay_us + args.slow_us == 0 || args.stage.reach.transport == Transport::Tcp,
            "--delay and --slow are for --transport tcp: nothing can be put between the two ends of the others"
        );
        ensure!(
            args.slow_us == 0 || args.replicas > 1,
            "--slow takes --replicas 2 or more: a pool of one waits for it"
        );
        ensure!(
            args.stage.device.is_none() || (args.replicas == 1 && *connections == 1),
            "a device holds one pool of one replica: leave --replicas, --threads and --connections out"
        );
        ensure!(
            args.rwmixread.is_none() || matches!(args.rw, Access::Rw | Access::Randrw),
            "--rwmixread shares out the operations of --rw rw and randrw: {} has one kind only",
            args.rw.name()
        );
        ensure!(
            connections % args.threads == 0,
            "{connections} connections cannot be shared evenly among {} threads: ask for a multiple",
            args.threads
        );
        ensure!(
            self.layer == Layer::Pool || args.replicas == 1,
            "--layer access is one connection, which has one replica: leave --replicas out"
        );
        ensure!(
            args.at_least.is_none_or(|least| least <= args.replicas),
            "--at-least asks for more replicas than --replicas has"
        );
        ensure!(
            args.peers.is_empty() || self.compares_with_peers(),
            "--peers make durable writes one at a time on this machine: ask for --rw write, one thread and connection, --depth 1 --batch 1, and no --delay, --slow or --device"
        );
        let flight_bytes = self.flight_bytes();
        ensure!(
            flight_bytes <= POOL_BYTES,
            "{depth} operations of {} writes of {size_bytes} bytes in flight need more than the pool's {POOL_BYTES} bytes: ask for less",
            self.batch.max(1)
        );
        let posted = u64::from(*depth) * (u64::from(self.batch) + 1);
        ensure!(
            self.layer == Layer::Pool || posted <= u64::from(POSTED_MAX),
            "{posted} writes and flushes in flight are more than a connection takes ({POSTED_MAX}): lower --depth or --batch"
        );
        Ok(())
    }

    fn compares_with_peers(&self) -> bool {
        let args = self.args;
        let is_single = (self.connections, self.depth, self.batch, self.read_percent) == (1, 1, 1, 0);
        is_single && args.delay_us + args.slow_us == 0 && args.stage.device.is_none()
    }

    fn flight_bytes(&self) -> u64 {
        self.size_bytes * u64::from(self.depth) * u64::from(self.batch.max(1))
    }

    /// What an operation moves at once.
    fn operation_bytes(&self) -> u64 {
        self.size_bytes * if self.read_percent == 100 { 1 } else { u64::from(self.batch.max(1)) }
    }

    fn span_bytes(&self) -> u64 {
        let default = if self.args.medium == Medium::File { POOL_BYTES } else { SPAN_DEFAULT_BYTES };
        self.args.span.unwrap_or(default.max(self.flight_bytes())).max(self.size_bytes)
    }

    fn shape(&self) -> Shape {
        Shape {
            size_bytes: self.size_bytes,
            start: 0,
            len_bytes: self.span_bytes(),
            random: self.args.rw.is_random(),
            read_percent: self.read_percent,
            batch: self.batch,
        }
    }

    /// Operations of all rounds come from these connections of each thread.
    fn lines(&self) -> u16 {
        self.connections / self.args.threads
    }

    fn is_pinned(&self) -> bool {
        self.args.threads == 1
    }

    /// `None`: as by default. An initiator that shares its CPU with the relay sleeps at once.
    fn initiator_waiting(&self) -> Option<Waiting> {
        match self.waiting {
            WaitingName::Polling => Some(Waiting::BusyPoll),
            WaitingName::Adaptive => None,
            WaitingName::Sleeping => Some(Waiting::Adaptive { spin: Duration::ZERO }),
        }
    }

    /// How long a wait of the initiator spins before it sleeps.
    fn spin(&self) -> Duration {
        match self.initiator_waiting() {
            Some(Waiting::BusyPoll) => Duration::MAX,
            Some(Waiting::Adaptive { spin }) => spin,
            None => DEFAULT_SPIN,
        }
    }

    /// The floor is the least that can be had: it spins where pmof spins for a moment only.
    fn floor_polls(&self) -> bool {
        match self.waiting {
            WaitingName::Polling => true,
            WaitingName::Adaptive => self.is_pinned(),
            WaitingName::Sleeping => false,
        }
    }

    fn target_polls(&self) -> bool {
        self.waiting != WaitingName::Adaptive && self.is_pinned()
    }

    fn waiting_name(&self) -> &'static str {
        match (self.waiting, self.target_polls()) {
            (WaitingName::Polling, _) => "polling",
            (WaitingName::Adaptive, _) => "adaptive",
            (WaitingName::Sleeping, true) => "initiator sleeping, target polling",
            (WaitingName::Sleeping, false) => "initiator sleeping",
        }
    }

    fn method(&self) -> Option<Method> {
        self.mode.method().or(self.args.stage.reach.method.map(MethodName::method))
    }

    fn level(&self, stage: &Stage) -> Durability {
        if self.mode == Mode::Visible { Durability::Visible } else { stage.durability() }
    }
}

/// Operations posted and not completed, of one connection.
const POSTED_MAX: u32 = pmof_access::limits::SEND_QUEUE_LIMIT;

fn rate(text: &str) -> Result<f64, String> {
    number(text, 1.0..=10_000_000.0, "operations a second")
}

fn number(text: &str, range: std::ops::RangeInclusive<f64>, unit: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if range.contains(&number) {
        return Ok(number);
    }
    Err(format!("{} to {} {unit} are possible", range.start(), range.end()))
}
