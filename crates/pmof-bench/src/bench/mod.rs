//! `pmof bench`: measurements, each beside the floor of the same transport in the same run.
//!
//! The floor of shm is the same stores, write-back and fence in this process, those of verbs and of libfabric's tcp and net the same calls
//! on bare queue pairs and endpoints, that of RDS the same bytes between two bare sockets. On a device there is none, and the report says so.
//!
//! This process is the initiator, on a CPU of its own. Targets, floor servers and relays are children on the other CPU;
//! those that are not being measured are stopped (SIGSTOP), so that what is compared takes turns in short rounds and
//! meets the same disturbances. A ratio is the median over the rounds of each round's own ratio.

use anyhow::Result;
use clap::{Args, Subcommand};
use pmof_console::{children::exit_with_parent, trust::TrustArgs};

mod batch;
mod catch_up;
mod engine;
mod fabric;
mod floor;
mod idle;
mod jobs;
mod lanes;
mod live;
mod local;
mod pattern;
mod peers;
mod processes;
mod rds;
mod relay;
mod report;
mod runner;
mod scale;
mod stage;
pub mod statistics;
mod takeover;
mod usage;
mod verbs;
mod workload;

use workload::Preset;

pub(crate) use stage::{Helper, signal, socket_address};

pub use peers::server::{PeerServerArgs, run_peer_server};
pub use processes::{
    FloorClientArgs, FloorServerArgs, LoadArgs, RelayArgs, run_floor_client, run_floor_server, run_load, run_relay,
};

/// Measure latency, bandwidth, batching, idling, many clients, how a member catches up or what others offer, beside the floor of the same transport in the same run.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// Process number of the parent, with which this process ends
    #[arg(long, hide = true, value_name = "PID")]
    exit_with_parent: Option<u32>,
    /// Which users' targets are trusted.
    #[command(flatten)]
    pub trust: TrustArgs,
    #[command(subcommand)]
    what: Measurement,
}

#[derive(Debug, Subcommand)]
enum Measurement {
    /// Measure persists (or reads) one at a time, beside a bare exchange of the same bytes
    ///
    /// The floor on tmpfs: the bytes there, 8 bytes back, over a raw TCP socket. With --medium file: the same, and between
    /// them pwrite and fdatasync of these bytes to a file on the same file system. The floor of --transport shm: store,
    /// write-back and fence of these bytes in this process, on the same medium. Those of --transport fabric+tcp, fabric+net and
    /// fabric+tcp-msg: the same write and the message behind it, on bare endpoints of libfabric. That of --transport rds: the
    /// bytes there, 8 bytes back, between two bare RDS sockets.
    Latency(workload::WorkloadArgs),
    /// Measure writes (or reads) kept in flight, each answered, beside a raw one-way stream of the same bytes with answers
    ///
    /// A round ends with a flush, which is part of its time, unless --batch asks for more of them.
    Bandwidth(workload::WorkloadArgs),
    Run(jobs::RunArgs),
    Batch(batch::BatchArgs),
    Idle(idle::IdleArgs),
    CatchUp(catch_up::CatchUpArgs),
    Lanes(lanes::LanesArgs),
    Peers(workload::PeersArgs),
    Scale(scale::ScaleArgs),
    Takeover(takeover::TakeoverArgs),
}

/// Runs `pmof bench`.
pub fn run(args: &BenchArgs) -> Result<()> {
    args.exit_with_parent.map_or(Ok(()), exit_with_parent)?;
    match &args.what {
        Measurement::Latency(args) => workload::run(args, Preset::Latency),
        Measurement::Bandwidth(args) => workload::run(args, Preset::Bandwidth),
        Measurement::Run(args) => jobs::run(args),
        Measurement::Batch(args) => batch::run(args),
        Measurement::Idle(args) => idle::run(args),
        Measurement::CatchUp(args) => catch_up::run(args),
        Measurement::Lanes(args) => lanes::run(args),
        Measurement::Peers(args) => workload::run_peers(args),
        Measurement::Scale(args) => scale::run(args),
        Measurement::Takeover(args) => takeover::run(args),
    }
}
