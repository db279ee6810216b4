//! `pmof status`.

use std::{fmt::Write, net::IpAddr, thread, time::Duration};

use anyhow::{Context, bail};
use pmof::{
    PoolOptions,
    control::TargetStatus,
    replica::{TargetUrl, target_status},
};
use pmof_console::{output, reach::ConnectArgs, words::parsed};
use serde::Serialize;

use crate::pool::list::{self, PoolLine};

/// Show how a target is: its versions, its room, its connections, and the health and the writer of each of its pools
///
/// Asking is a connection too, and is counted.
#[derive(Debug, clap::Args)]
pub(crate) struct StatusArgs {
    /// Target: `tcp://HOST:PORT`, `verbs://HOST:PORT` or `shm:///PATH/OF/SOCKET`
    #[arg(value_name = "ADDRESS", value_parser = parsed::<TargetUrl>)]
    target: TargetUrl,
    /// Local address to connect from, if routing does not decide it; verbs only
    #[arg(long, value_name = "IP")]
    source: Option<IpAddr>,
    #[command(flatten)]
    connect: ConnectArgs,
    /// Show it again every so many seconds, until interrupted
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1", value_parser = clap::value_parser!(u64).range(1..))]
    watch: Option<u64>,
    /// Print one JSON object; with --watch, one on each line
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct StatusReport {
    target: String,
    version: String,
    protocol_version: u16,
    pool_format: u16,
    is_draining: bool,
    uptime_s: u64,
    root: String,
    free_bytes: u64,
    total_bytes: u64,
    connections: u64,
    max_connections: u64,
    memory_bytes: u64,
    memory_budget_bytes: u64,
    pools: Vec<PoolLine>,
}

pub(crate) fn run(args: &StatusArgs) -> anyhow::Result<()> {
    if let TargetUrl::Directory(_) = args.target {
        bail!(
            "{} is a directory, which no target serves here; `pmof pool ls -l {}` lists its pools",
            args.target,
            args.target
        );
    }
    let options = args.source.into_iter().fold(args.connect.pools(), PoolOptions::source);
    let Some(seconds) = args.watch else { return show(args, &options) };
    loop {
        // What is out of reach now may be there the next time.
        if let Err(error) = show(args, &options) {
            eprintln!("pmof: {error:#}");
        }
        if !args.json {
            output::print("\n")?;
        }
        thread::sleep(Duration::from_secs(seconds));
    }
}

fn show(args: &StatusArgs, options: &PoolOptions) -> anyhow::Result<()> {
    let status = target_status(&args.target, options).context("cannot tell how the target is")?;
    let pools = list::lines(&args.target, options)?;
    let report = StatusReport::new(&args.target, status, pools);
    if args.json { output::print_json(&report) } else { Ok(output::print(&report.text())?) }
}

impl StatusReport {
    fn new(target: &TargetUrl, status: TargetStatus, pools: Vec<PoolLine>) -> Self {
        Self {
            target: target.to_string(),
            version: status.version,
            protocol_version: status.protocol_version,
            pool_format: status.pool_format,
            is_draining: status.is_draining,
            uptime_s: status.uptime_ms / 1000,
            root: status.root,
            free_bytes: status.free_bytes,
            total_bytes: status.total_bytes,
            connections: status.connections,
            max_connections: status.max_connections,
            memory_bytes: status.memory_bytes,
            memory_budget_bytes: status.memory_budget_bytes,
            pools,
        }
    }

    fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let mut line = |name: &str, value: &dyn std::fmt::Display| {
            let _ = writeln!(text, "{name:<12} {value}");
        };
        line("target", &self.target);
        let (protocol, format) = (self.protocol_version, self.pool_format);
        line("version", &format!("{}, protocol {protocol}, pool format {format}", self.version));
        let uptime = humantime::format_duration(Duration::from_secs(self.uptime_s));
        line("up", &format!("{uptime}{}", if self.is_draining { ", told to stop" } else { "" }));
        line("root", &self.root);
        line("free", &format!("{} of {}", output::size(self.free_bytes), output::size(self.total_bytes)));
        line("connections", &format!("{} of {}", self.connections, self.max_connections));
        line("memory", &format!("{} of {}", output::size(self.memory_bytes), output::size(self.memory_budget_bytes)));
        line("pools", &self.pools.len());
        if !self.pools.is_empty() {
            text += "\n";
            text += &list::table(&self.pools);
        }
        text
    }
}
