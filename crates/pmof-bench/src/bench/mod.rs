//! `pmof bench`: measurements, each beside the floor of the same transport in the same run.
//!
//! The floor of shm is the same stores, write-back and fence in this process. Over verbs, and on a device, there is none
//! here, and the report says so.
//!
//! This process is the initiator, on a CPU of its own. Targets, floor servers and relays are children on the other CPU;
//! those that are not being measured are stopped (SIGSTOP), so that what is compared takes turns in short rounds and
//! meets the same disturbances. A ratio is the median over the rounds of each round's own ratio.

use anyhow::Result;
use clap::{Args, Subcommand};

mod bandwidth;
mod batch;
mod catch_up;
mod floor;
mod idle;
mod lanes;
mod latency;
mod local;
mod processes;
mod relay;
mod report;
mod scale;
mod stage;
pub mod statistics;
mod usage;

pub(crate) use stage::{Helper, signal, socket_address};

pub use processes::{FloorClientArgs, FloorServerArgs, RelayArgs, run_floor_client, run_floor_server, run_relay};

/// Measures latency, bandwidth, batching, idling, many clients or how a member catches up, beside the floor of the same transport in the same run.
#[derive(Debug, Args)]
pub struct BenchArgs {
    #[command(subcommand)]
    what: Measurement,
}

#[derive(Debug, Subcommand)]
enum Measurement {
    Latency(latency::LatencyArgs),
    Bandwidth(bandwidth::BandwidthArgs),
    Batch(batch::BatchArgs),
    Idle(idle::IdleArgs),
    CatchUp(catch_up::CatchUpArgs),
    Lanes(lanes::LanesArgs),
    Scale(scale::ScaleArgs),
}

/// Runs `pmof bench`.
pub fn run(args: &BenchArgs) -> Result<()> {
    match &args.what {
        Measurement::Latency(args) => latency::run(args),
        Measurement::Bandwidth(args) => bandwidth::run(args),
        Measurement::Batch(args) => batch::run(args),
        Measurement::Idle(args) => idle::run(args),
        Measurement::CatchUp(args) => catch_up::run(args),
        Measurement::Lanes(args) => lanes::run(args),
        Measurement::Scale(args) => scale::run(args),
    }
}
