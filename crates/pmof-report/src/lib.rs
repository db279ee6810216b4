//! `pmof report`: the whole matrix of measurements, each beside its floor, as one page, one table and one JSON object; and two of
//! them compared.
//!
//! A cell is one run of `pmof bench` in a process of its own, whose command is kept beside its numbers. This crate knows nothing of how
//! it measures: it reads the JSON that the command prints.
#![forbid(unsafe_code)]
// `println!` panics where nobody reads: see `pmof_console::say`.
#![deny(clippy::print_stdout)]

use std::{net::IpAddr, path::PathBuf, time::Duration};

use anyhow::Result;
use clap::{Args, Subcommand};
use pmof_access::{FabricProvider, Transport};
use pmof_console::words;

mod child;
mod compare;
mod document;
mod journal;
mod machine;
mod matrix;
mod page;
mod progress;
mod rows;
mod run;
mod table;

pub use document::{Document, FORMAT, Finished, Outcome, Place};
pub use machine::{Lies, Machine};
pub use matrix::Plan;
pub use page::html;
pub use table::csv;

/// What is measured where nobody says what: one kind of endpoints of each provider of libfabric.
const MEASURED: [Transport; 8] = [
    Transport::Tcp,
    Transport::Shm,
    Transport::Verbs,
    Transport::Fabric(FabricProvider::Any),
    Transport::Fabric(FabricProvider::Tcp),
    Transport::Fabric(FabricProvider::Net),
    Transport::Fabric(FabricProvider::Verbs),
    Transport::Rds,
];

/// Measure everything that works on this machine, each beside its floor, and write one page
///
/// Latency by block size; bandwidth by block size, threads and depth; both under load on the target's CPU; reads, writes and mixes; each
/// mode and transport; one to three replicas. What cannot run here is shown as skipped, with its reason. Writes report.html, which needs no
/// network, report.csv and report.json. Each finished cell is saved: a report that was stopped goes on with --resume.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct ReportArgs {
    #[command(subcommand)]
    what: Option<What>,
    #[command(flatten)]
    measure: MeasureArgs,
}

#[derive(Debug, Subcommand)]
enum What {
    Compare(compare::CompareArgs),
    Rows(rows::RowsArgs),
}

#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is an option of its own")]
struct MeasureArgs {
    /// Fewer points and shorter rounds: about three minutes for each transport instead of hours
    #[arg(long)]
    quick: bool,
    /// A directory for the report, which is made; or the name of its page, such as runs/monday.html
    #[arg(long, value_name = "DIR|FILE", default_value = "pmof-report")]
    output: PathBuf,
    /// Print the names of the cells, and measure nothing
    #[arg(long, conflicts_with = "json")]
    list: bool,
    /// Go on with the report at --output that was stopped, as it was begun
    #[arg(long, conflicts_with_all = ["quick", "list", "transports", "address", "source", "only", "time", "rounds", "initiator_cpu", "target_cpu"])]
    resume: bool,
    /// What carries the bytes; several, with commas between them
    #[arg(long, value_parser = words::transports(), value_delimiter = ',', value_name = "TRANSPORT", default_values_t = MEASURED)]
    transports: Vec<Transport>,
    /// Address of this machine that the targets listen on; verbs needs one that belongs to an RDMA device [default: 127.0.0.1]
    #[arg(long, value_name = "IP")]
    address: Option<IpAddr>,
    /// Local address to come from, where routing does not decide it; verbs only
    #[arg(long, value_name = "IP")]
    source: Option<IpAddr>,
    /// Only cells whose name contains this, such as latency-write/tcp/ or /4096; may be repeated
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// Measure each contender of a cell for this time in all [default: 3s, quick 0.25s]
    #[arg(long, value_name = "TIME", value_parser = words::times(Duration::from_millis(10)..=Duration::from_secs(600)))]
    time: Option<Duration>,
    /// Rounds of a cell, in which its contenders take turns; six give 95 % confidence [default: 15, quick 7]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..=1000))]
    rounds: Option<u64>,
    /// CPU of the initiator [default: the first that this process may use]
    #[arg(long, value_name = "CPU")]
    initiator_cpu: Option<usize>,
    /// CPU of targets, floors and relays [default: the second]
    #[arg(long, value_name = "CPU")]
    target_cpu: Option<usize>,
    /// Print one JSON object about what was written
    #[arg(long)]
    json: bool,
}

impl MeasureArgs {
    fn plan(&self) -> Plan {
        let mut transports: Vec<String> = Vec::new();
        for transport in self.transports.iter().map(|transport| transport.scheme().to_owned()) {
            if !transports.contains(&transport) {
                transports.push(transport);
            }
        }
        let (seconds, rounds) = matrix::extent(self.quick);
        Plan {
            quick: self.quick,
            transports,
            address: self.address,
            source: self.source,
            only: self.only.clone(),
            seconds: self.time.map_or(seconds, |time| time.as_secs_f64()),
            rounds: self.rounds.unwrap_or(rounds),
            initiator_cpu: self.initiator_cpu,
            target_cpu: self.target_cpu,
        }
    }
}

/// Runs `pmof report`.
///
/// # Errors
/// Nothing can be measured, read or written, or a signal stopped it.
pub fn run(args: &ReportArgs) -> Result<()> {
    match &args.what {
        Some(What::Compare(args)) => compare::run(args),
        Some(What::Rows(args)) => rows::run(args),
        None => run::run(&args.measure),
    }
}
