//! `persist-bench`: the work of `testbed/bare-verbs/bare-verbs.c`, with the same command line and the same line of output,
//! on the API of pmof-access. What the two differ in is what pmof adds to the calls of rdma-core.

mod client;
mod server;

use std::{net::IpAddr, path::PathBuf, process::ExitCode};

use anyhow::Result;
use clap::{Parser, Subcommand, ValueEnum};

#[derive(Debug, Parser)]
#[command(about = "Remote writes made durable by a native RDMA FLUSH, through pmof-access")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Offer SIZE bytes of MEDIUM to one client and end with it; prints `listening PORT`
    Server {
        /// The address of a local RDMA device
        address: IpAddr,
        /// The port; 0 takes a free one
        port: u16,
        /// The path of a device-DAX, or the word dram
        medium: PathBuf,
        /// Bytes
        size: u64,
    },
    /// Post batches of writes with a flush behind them, and print how long they took
    Client {
        /// The address of a local RDMA device
        source: IpAddr,
        /// The server's address
        address: IpAddr,
        /// The server's port
        port: u16,
        #[command(flatten)]
        plan: Plan,
    },
}

/// What the client does.
#[derive(Clone, Copy, Debug, clap::Args)]
struct Plan {
    /// What a batch does
    #[arg(long, value_enum)]
    op: Op,
    /// Bytes of one write
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    size: u32,
    /// Writes of one batch
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1 << 10))]
    batch: u32,
    /// Batches measured
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1 << 28))]
    count: u64,
    /// How to wait for the completion
    #[arg(long, value_enum)]
    mode: Mode,
    /// Batches before those measured
    #[arg(long, value_parser = clap::value_parser!(u64).range(0..=1 << 28))]
    warmup: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Op {
    /// Writes to consecutive places, then one flush over all of them
    WriteFlush,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// Sleep until the device announces it
    Event,
    /// Look until it is there
    Poll,
}

fn main() -> Result<ExitCode> {
    match Arguments::parse().command {
        Command::Server { address, port, medium, size } => server::serve(address, port, &medium, size)?,
        Command::Client { source, address, port, plan } => return client::run(source, (address, port).into(), &plan),
    }
    Ok(ExitCode::SUCCESS)
}
