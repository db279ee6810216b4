//! `pmof status`.

use std::{fmt::Write, net::IpAddr, time::Duration};

use anyhow::{Context, bail};
use pmof::{PoolOptions, causes};
use pmof_console::{output, reach::ConnectArgs, words::parsed};
use pmof_control::{SpokenVersions, TargetStatus};
use pmof_pool::{TargetUrl, target_status};
use serde::Serialize;

use crate::{
    pool::list::{self, PoolLine},
    watch::WatchArgs,
};

/// Show how a target is: its versions, its room, its connections, and the health and the writer of each of its pools
///
/// Asking is a connection too, and is counted.
#[derive(Debug, clap::Args)]
pub(crate) struct StatusArgs {
    /// Target: `tcp://HOST[:PORT]`, `verbs://HOST[:PORT]`, `fabric+PROVIDER://HOST[:PORT]`, `rds://HOST[:PORT]` or `shm:///PATH/OF/SOCKET`
    #[arg(value_name = "ADDRESS", value_parser = parsed::<TargetUrl>)]
    target: TargetUrl,
    /// Local address to connect from, if routing does not decide it; verbs only
    #[arg(long, value_name = "IP")]
    source: Option<IpAddr>,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
    #[command(flatten)]
    watch: WatchArgs,
}

#[derive(Debug, Serialize)]
struct StatusReport {
    target: String,
    version: String,
    protocol_version: u16,
    oldest_control_version: u16,
    newest_control_version: u16,
    pool_format: u16,
    is_draining: bool,
    uptime_s: u64,
    root: String,
    is_root_writable: bool,
    is_root_attached: bool,
    free_bytes: u64,
    total_bytes: u64,
    connections: u64,
    max_connections: u64,
    memory_bytes: u64,
    memory_budget_bytes: u64,
    /// Null where the root is gone and cannot be listed.
    pools: Option<Vec<PoolLine>>,
    /// Why they are not known.
    #[serde(skip)]
    reason: Option<String>,
}

pub(crate) fn run(args: &StatusArgs) -> anyhow::Result<()> {
    if let TargetUrl::Directory(_) = args.target {
        bail!(
            "{} is a directory, which no target serves here; `pmof pool ls -l {}` lists its pools",
            args.target,
            output::shell_word(&args.target)
        );
    }
    let options = args.source.into_iter().fold(args.connect.pools(), PoolOptions::source);
    args.watch.show(|| show(args, &options))
}

fn show(args: &StatusArgs, options: &PoolOptions) -> anyhow::Result<()> {
    let status = target_status(&args.target, options).context("cannot tell how the target is")?;
    let pools = match list::lines(&args.target, options) {
        Err(error) if !status.is_root_attached => Err(causes(error.root_cause()).to_string()),
        lines => Ok(lines?),
    };
    let report = StatusReport::new(&args.target, status, pools);
    if args.watch.json { output::print_json(&report) } else { Ok(output::print(&report.text())?) }
}

impl StatusReport {
    fn new(target: &TargetUrl, status: TargetStatus, pools: Result<Vec<PoolLine>, String>) -> Self {
        let (pools, reason) = pools.map_or_else(|why| (None, Some(why)), |pools| (Some(pools), None));
        Self {
            target: target.to_string(),
            version: status.version,
            protocol_version: status.protocol_version,
            oldest_control_version: status.control_versions.oldest,
            newest_control_version: status.control_versions.newest,
            pool_format: status.pool_format,
            is_draining: status.is_draining,
            uptime_s: status.uptime_ms / 1000,
            root: status.root,
            is_root_writable: status.is_root_writable,
            is_root_attached: status.is_root_attached,
            free_bytes: status.free_bytes,
            total_bytes: status.total_bytes,
            connections: status.connections,
            max_connections: status.max_connections,
            memory_bytes: status.memory_bytes,
            memory_budget_bytes: status.memory_budget_bytes,
            pools,
            reason,
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
        let control = SpokenVersions { oldest: self.oldest_control_version, newest: self.newest_control_version };
        let versions = format!("protocol {protocol}, control messages {control}, pool format {format}");
        line("version", &format!("{}, {versions}", self.version));
        let uptime = humantime::format_duration(Duration::from_secs(self.uptime_s));
        line("up", &format!("{uptime}{}", if self.is_draining { ", told to stop" } else { "" }));
        let fault = match (self.is_root_attached, self.is_root_writable) {
            (false, _) => ", which was unmounted, mounted over, renamed or removed: no pool is opened or made",
            (true, false) => ", where no pool can be made: it is read-only for the target",
            (true, true) => "",
        };
        line("root", &format!("{}{fault}", self.root));
        line("free", &format!("{} of {}", output::size(self.free_bytes), output::size(self.total_bytes)));
        line("connections", &format!("{} of {}", self.connections, self.max_connections));
        line("memory", &format!("{} of {}", output::size(self.memory_bytes), output::size(self.memory_budget_bytes)));
        if let Some(reason) = &self.reason {
            line("pools", &format!("not known: {reason}"));
        }
        if let Some(pools) = &self.pools {
            line("pools", &pools.len());
        }
        if let Some(pools) = self.pools.as_ref().filter(|pools| !pools.is_empty()) {
            text += "\n";
            text += &list::table(pools);
        }
        text
    }
}
