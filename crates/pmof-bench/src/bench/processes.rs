//! The hidden commands: the other processes of a measurement.

use std::{
    net::{SocketAddr, TcpListener},
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use clap::{Args, ValueEnum};
use pmof_access::Transport;
use pmof_console::{
    children::exit_with_parent,
    limits::pin_to,
    output::{print_json, say},
    words,
};

use super::{
    fabric,
    floor::{FILE_BYTES, FloorClient, FloorMode, serve_floor},
    rds, relay,
    statistics::{LatencyHistogram, LatencySummary},
    verbs,
};

/// Round trips before those that count: enough for the sockets' windows and the CPU's caches to settle.
const WARM_UP_ROUND_TRIPS: u64 = 200;

/// Serve the floor until it is killed.
#[derive(Debug, Args)]
pub struct FloorServerArgs {
    /// Loopback address to listen on, or one of an RDMA device; port 0 picks one
    #[arg(long)]
    listen: SocketAddr,
    /// Bytes of each file that is made
    #[arg(long, default_value_t = FILE_BYTES)]
    file_bytes: u64,
    /// Serve the bare program of this transport: verbs, RDS, or a provider of libfabric; all others have that of TCP
    #[arg(long, value_parser = words::transports(), default_value_t = Transport::Tcp)]
    transport: Transport,
    /// CPU to run on
    #[arg(long)]
    cpu: Option<usize>,
    /// Process number of the parent, with which this process ends
    #[arg(long)]
    exit_with_parent: Option<u32>,
}

/// Measure one floor and print one JSON object.
#[derive(Debug, Args)]
pub struct FloorClientArgs {
    /// Address of a floor server
    #[arg(long)]
    connect: SocketAddr,
    /// What the server does with each request
    #[arg(long, value_enum)]
    mode: FloorKind,
    /// File that the server makes for `--mode file-sync`; it must not exist
    #[arg(long, required_if_eq("mode", "file-sync"))]
    file: Option<PathBuf>,
    /// Bytes of a request
    #[arg(long, default_value_t = 512)]
    request_bytes: u32,
    /// Bytes of a reply
    #[arg(long, default_value_t = 64)]
    reply_bytes: u32,
    /// Requests to send
    #[arg(long, default_value_t = 20_000)]
    count: u64,
    /// Requests in flight; more than 1 measures throughput instead of latency
    #[arg(long, default_value_t = 1)]
    depth: usize,
    /// Spin on the sockets, at both ends
    #[arg(long)]
    polling: bool,
    /// CPU to run on
    #[arg(long)]
    cpu: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FloorKind {
    Ack,
    Stream,
    FileSync,
}

/// Relay connections and delays every byte, until it is killed.
#[derive(Debug, Args)]
pub struct RelayArgs {
    /// Loopback address to listen on; may be repeated, each with its `--to`
    #[arg(long, required = true)]
    listen: Vec<SocketAddr>,
    /// Address to connect to for each connection
    #[arg(long, required = true)]
    to: Vec<SocketAddr>,
    /// Delay of each direction in microseconds
    #[arg(long)]
    delay_us: u64,
    /// CPU to run on
    #[arg(long)]
    cpu: Option<usize>,
    /// Process number of the parent, with which this process ends
    #[arg(long)]
    exit_with_parent: Option<u32>,
}

/// Keep a CPU busy for a part of its time, until it is killed.
#[derive(Debug, Args)]
pub struct LoadArgs {
    /// CPU to run on
    #[arg(long)]
    cpu: usize,
    /// How much of it to take
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=99))]
    percent: u8,
    /// Process number of the parent, with which this process ends
    #[arg(long)]
    exit_with_parent: Option<u32>,
}

/// A load's busy and idle time together: short beside a round, long beside a wake-up.
const LOAD_PERIOD: Duration = Duration::from_millis(2);

/// Runs `pmof bench-load`.
pub fn run_load(args: &LoadArgs) -> Result<()> {
    args.exit_with_parent.map_or(Ok(()), exit_with_parent)?;
    pin_to(args.cpu).context("pinning to the CPU given by --cpu")?;
    let busy = LOAD_PERIOD * u32::from(args.percent) / 100;
    loop {
        let start = Instant::now();
        while start.elapsed() < busy {
            std::hint::spin_loop();
        }
        std::thread::sleep(LOAD_PERIOD.saturating_sub(busy));
    }
}

/// Runs `pmof bench-floor`.
pub fn run_floor_server(args: &FloorServerArgs) -> Result<()> {
    args.exit_with_parent.map_or(Ok(()), exit_with_parent)?;
    pin_if_asked(args.cpu)?;
    match args.transport {
        Transport::Verbs => return verbs::serve(args.listen).context("serving the floor of verbs"),
        Transport::Rds => return rds::serve(args.listen).context("serving the floor of RDS"),
        _ => {}
    }
    let listener = listen_on_loopback(args.listen)?;
    match args.transport {
        Transport::Fabric(provider) => fabric::serve(&listener, provider),
        _ => serve_floor(&listener, args.file_bytes),
    }
    .context("accepting floor connections")
}

/// Runs `pmof bench-floor-client`.
pub fn run_floor_client(args: &FloorClientArgs) -> Result<()> {
    ensure!(args.depth > 0 && args.count > 0, "--depth and --count are at least 1");
    pin_if_asked(args.cpu)?;
    let mode = match (args.mode, &args.file) {
        (FloorKind::Ack, _) => FloorMode::Ack,
        (FloorKind::Stream, _) => FloorMode::Stream,
        (FloorKind::FileSync, file) => FloorMode::FileSync(file.clone().context("--mode file-sync needs --file")?),
    };
    let mut client = FloorClient::connect(args.connect, &mode, args.request_bytes, args.reply_bytes, args.polling)
        .with_context(|| format!("connecting to the floor server at {}", args.connect))?;
    let json = if args.depth > 1 {
        let elapsed = client.stream(args.depth, args.count).context("streaming to the floor server")?;
        let mib = (args.count * u64::from(args.request_bytes)) as f64 / f64::from(1 << 20);
        serde_json::json!({ "floor_mib_per_s": mib / elapsed.as_secs_f64() })
    } else {
        serde_json::to_value(measure_round_trips(&mut client, args.count)?)?
    };
    print_json(&json)
}

/// Runs `pmof relay`.
pub fn run_relay(args: &RelayArgs) -> Result<()> {
    args.exit_with_parent.map_or(Ok(()), exit_with_parent)?;
    ensure!(args.listen.len() == args.to.len(), "each --listen needs one --to, in the same order");
    pin_if_asked(args.cpu)?;
    let listeners = args.listen.iter().map(|addr| listen_on_loopback(*addr)).collect::<Result<Vec<_>>>()?;
    let routes = listeners.into_iter().zip(args.to.iter().copied()).collect();
    relay::relay_all(routes, Duration::from_micros(args.delay_us)).context("relaying connections")
}

/// Warms up, then measures `count` round trips one after the other.
pub(crate) fn measure_round_trips(client: &mut FloorClient, count: u64) -> Result<LatencySummary> {
    let mut histogram = LatencyHistogram::default();
    for _ in 0..WARM_UP_ROUND_TRIPS {
        client.round_trip().context("warming up with the floor server")?;
    }
    for _ in 0..count {
        histogram.record(client.round_trip().context("a round trip with the floor server")?);
    }
    Ok(histogram.summary())
}

/// Listens and prints the line `ready tcp://ADDRESS` that scripts wait for.
///
/// Refuses all but loopback: neither the floor nor the relay knows who connects.
fn listen_on_loopback(addr: SocketAddr) -> Result<TcpListener> {
    ensure!(addr.ip().is_loopback(), "{addr} is not a loopback address: nobody is authenticated here, use 127.0.0.1");
    let listener = TcpListener::bind(addr).with_context(|| format!("listening on {addr}"))?;
    say!("ready tcp://{}", listener.local_addr().context("asking for the listener's address")?);
    Ok(listener)
}

fn pin_if_asked(cpu: Option<usize>) -> Result<()> {
    cpu.map_or(Ok(()), |cpu| pin_to(cpu).context("pinning to the CPU given by --cpu"))
}
