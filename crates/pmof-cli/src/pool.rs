//! `pmof pool`.

use std::{collections::BTreeSet, fmt::Write};

use anyhow::{Context, bail};
use clap::Subcommand;
use pmof::{Durability, MemberState, PoolInfo, PoolOptions, PoolUrl, causes};
use pmof_console::{
    output::{self, LevelReport, with_mend},
    reach::ConnectArgs,
    words::parsed,
};
use serde::Serialize;

use crate::{
    backup::{export, export::ExportArgs, import, import::ImportArgs},
    copy::mark,
    failure::Differs,
};
use change::{AddArgs, ClearArgs, RemoveArgs as RemoveMemberArgs, ReplaceArgs};
use check::CheckArgs;
use contents::{DumpArgs, FeatureArgs};
use describe::SetReport;
use list::ListArgs;
use place::PoolPlace;
use points::{PointsArgs, RollbackArgs};
use promote::PromoteArgs;
use release::ReleaseArgs;
use remove::RemoveArgs;
use scrub::ScrubArgs;
use sets::{CreateArgs, SyncArgs, TransformArgs};
use status::StatusArgs;
use utc::utc;

mod change;
mod check;
mod contents;
mod describe;
pub(crate) mod list;
mod place;
pub(crate) mod point;
mod points;
mod promote;
mod release;
mod removable;
mod remove;
mod replicas;
mod scrub;
mod sets;
mod status;
#[cfg(test)]
mod tests;
pub(crate) mod utc;

/// Inspect, list and remove pools; create, check and restore those of pool set files.
#[derive(Debug, clap::Args)]
pub(crate) struct PoolArgs {
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
    #[command(subcommand)]
    command: PoolCommand,
}

impl PoolArgs {
    /// Whether the command makes files for its own use, or pools that have no name yet.
    pub(crate) fn makes_files(&self) -> bool {
        matches!(self.command, PoolCommand::Export(_) | PoolCommand::Import(_))
    }
}

#[derive(Debug, Subcommand)]
enum PoolCommand {
    /// Describe pools; for pool sets, ask the hosts of their replicas; of several replicas of a pool, say which were left behind
    Info(InfoArgs),
    Status(StatusArgs),
    Add(AddArgs),
    Remove(RemoveMemberArgs),
    Replace(ReplaceArgs),
    Clear(ClearArgs),
    Promote(PromoteArgs),
    Points(PointsArgs),
    Rollback(RollbackArgs),
    Export(ExportArgs),
    Import(ImportArgs),
    /// Remove pools with all their bytes
    Rm(RemoveArgs),
    Ls(ListArgs),
    #[command(visible_alias = "kick")]
    Release(ReleaseArgs),
    Scrub(ScrubArgs),
    Create(CreateArgs),
    Check(CheckArgs),
    Sync(SyncArgs),
    Transform(TransformArgs),
    Dump(DumpArgs),
    Feature(FeatureArgs),
}

#[derive(Debug, clap::Args)]
struct InfoArgs {
    /// Pool: `tcp://HOST[:PORT]/POOL`, `verbs://HOST[:PORT]/POOL[?source=IP]`, `fabric+PROVIDER://HOST[:PORT]/POOL[?source=IP]`, `rds://HOST[:PORT]/POOL[?source=IP]`,
    /// `shm:///PATH/OF/SOCKET?pool=POOL`, `ssh://[USER@]HOST[:PORT]/POOL` or `file:///DIRECTORY/POOL`, a pool set file, or the file that is a pool's only part; may be given several times
    #[arg(value_name = "URL|PATH", required = true, value_parser = parsed::<PoolPlace>)]
    places: Vec<PoolPlace>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &PoolArgs) -> anyhow::Result<()> {
    let connect = args.connect;
    match &args.command {
        PoolCommand::Info(args) => info(args, connect),
        PoolCommand::Status(args) => status::run(args, connect),
        PoolCommand::Add(args) => change::add(args, connect),
        PoolCommand::Remove(args) => change::remove(args, connect),
        PoolCommand::Replace(args) => change::replace(args, connect),
        PoolCommand::Clear(args) => change::clear(args, connect),
        PoolCommand::Promote(args) => promote::run(args, connect),
        PoolCommand::Points(args) => points::list(args, connect),
        PoolCommand::Rollback(args) => points::roll_back(args, connect),
        PoolCommand::Export(args) => export::run(args, connect),
        PoolCommand::Import(args) => import::run(args, connect),
        PoolCommand::Rm(args) => remove::run(args, connect),
        PoolCommand::Ls(args) => list::run(args, connect),
        PoolCommand::Release(args) => release::run(args, connect),
        PoolCommand::Scrub(args) => scrub::run(args, connect),
        PoolCommand::Create(args) => sets::create(args, connect),
        PoolCommand::Check(args) => check::run(args, connect),
        PoolCommand::Sync(args) => sets::run_sync(args, connect),
        PoolCommand::Transform(args) => sets::run_transform(args, connect),
        PoolCommand::Dump(args) => contents::dump(args),
        PoolCommand::Feature(args) => contents::feature(args, connect),
    }
}

#[derive(Debug, Serialize)]
struct InfoReport {
    pools: Vec<PoolReport>,
    /// Pools in files of this machine.
    sets: Vec<SetReport>,
    /// Of several replicas of one pool those that are not used with the others.
    apart: Vec<ApartReport>,
}

/// A replica that was left behind, or is no member of the pool any more.
#[derive(Debug, Serialize)]
struct ApartReport {
    url: String,
    reason: String,
}

#[derive(Debug, Serialize)]
struct PoolReport {
    url: String,
    pool_uuid: String,
    replica_uuid: String,
    index: u16,
    replica_count: u16,
    len_bytes: u64,
    file_len_bytes: u64,
    created_at_unix_s: u64,
    pool_format: u16,
    /// Number of openings for writing and losses of replicas so far.
    opening: u64,
    epoch: String,
    /// Incremented about once a second while a pool of several replicas is written.
    mark: u64,
    /// The last writer closed it; otherwise the next opening compares all replicas.
    is_closed: bool,
    medium: String,
    levels: Vec<LevelReport>,
    open_by: Option<String>,
    user_flags: String,
    /// Length of the file that `pmof cp` put there, if it did.
    copied_file_len_bytes: Option<u64>,
}

fn info(args: &InfoArgs, connect: ConnectArgs) -> anyhow::Result<()> {
    let (mut pools, mut sets, mut texts) = (Vec::new(), Vec::new(), Vec::new());
    for place in &args.places {
        match place {
            PoolPlace::Url(url) => {
                let infos = connect.pools().replica(url.to_string()).info().map_err(with_mend);
                let infos = infos.with_context(|| format!("cannot describe {url}"))?;
                let reports: Vec<_> = infos.iter().map(|info| PoolReport::new(url, info)).collect();
                texts.extend(reports.iter().map(PoolReport::text));
                pools.extend(reports);
            }
            PoolPlace::Path(path) => {
                let report = describe::describe(path, connect)?;
                texts.push(report.text());
                sets.push(report);
            }
        }
    }
    let problem = sets.iter().find_map(SetReport::problem);
    let is_unsound = sets.iter().any(SetReport::is_unsound);
    let apart = apart(&pools, connect)?;
    let left_behind = apart.iter().map(|apart| format!("{} is not used with the others: {}", apart.url, apart.reason));
    let left_behind: Vec<_> = left_behind.collect();
    if args.json {
        output::print_json(&InfoReport { pools, sets, apart })?;
    } else {
        output::print(&texts.join("\n"))?;
    }
    match problem {
        Some(problem) if is_unsound => Err(Differs::error(problem)),
        Some(problem) => bail!("{problem}"),
        None if !left_behind.is_empty() => Err(Differs::error(left_behind.join("; "))),
        None => Ok(()),
    }
}

/// Of several replicas of one pool those that are not used with the others, by what all of its members say.
fn apart(pools: &[PoolReport], connect: ConnectArgs) -> anyhow::Result<Vec<ApartReport>> {
    let mut apart = Vec::new();
    let mut seen = BTreeSet::new();
    for first in pools.iter().filter(|pool| seen.insert(&pool.pool_uuid)) {
        let named = pools.iter().filter(|pool| pool.pool_uuid == first.pool_uuid).map(|pool| pool.url.clone());
        let named: Vec<_> = named.collect();
        if named.len() < 2 {
            continue;
        }
        let options = named.iter().cloned().fold(connect.pools(), PoolOptions::replica);
        let found =
            options.members().map_err(with_mend).context("cannot tell which of the replicas was left behind")?;
        for member in found.members {
            let url = member.replica.map(|replica| replica.to_string()).filter(|url| named.contains(url));
            if let (Some(url), MemberState::Behind(why) | MemberState::Foreign(why)) = (url, member.state) {
                apart.push(ApartReport { url, reason: causes(&*why).to_string() });
            }
        }
    }
    Ok(apart)
}

impl PoolReport {
    fn new(url: &PoolUrl, info: &PoolInfo) -> Self {
        let header = &info.header;
        let levels = Durability::ALL
            .iter()
            .zip(info.promises)
            .map(|(level, promise)| LevelReport::new(*level, promise.is_some(), promise));
        Self {
            url: url.to_string(),
            pool_uuid: header.pool_uuid.to_string(),
            replica_uuid: header.replica_uuid.to_string(),
            index: header.replica_index,
            replica_count: header.replica_count,
            len_bytes: header.size_bytes,
            file_len_bytes: info.file_len_bytes,
            created_at_unix_s: header.created_at_unix_s,
            pool_format: header.format.major(),
            opening: info.state.opening,
            epoch: info.state.epoch.id.to_string(),
            mark: info.state.mark,
            is_closed: !info.state.is_open,
            medium: info.medium.to_string(),
            levels: levels.collect(),
            open_by: info.open_by.clone(),
            user_flags: header.user_flags.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}")),
            copied_file_len_bytes: mark::decode(&header.user_flags),
        }
    }

    fn text(&self) -> String {
        let mut text = format!("{}\n", self.url);
        // Writing to a string cannot fail.
        let mut line = |name: &str, value: &dyn std::fmt::Display| {
            let _ = writeln!(text, "  {name:<10} {value}");
        };
        line("size", &output::size(self.len_bytes));
        match self.copied_file_len_bytes {
            Some(len_bytes) => line("contents", &format!("a file of {}, by pmof cp", output::size(len_bytes))),
            None if self.user_flags.bytes().all(|digit| digit == b'0') => line("contents", &"not described"),
            None => line("contents", &format!("user flags {}", self.user_flags)),
        }
        line("writer", &self.open_by.as_deref().unwrap_or("none"));
        line("medium", &format!("{}, {} in all", self.medium, output::size(self.file_len_bytes)));
        for level in &self.levels {
            let how = match (&level.mechanism, &level.evidence) {
                (Some(mechanism), Some(evidence)) => format!("yes, by {mechanism}, {evidence}"),
                _ => "no".to_owned(),
            };
            line("", &format!("{:<12} {how}", level.durability));
        }
        line("pool", &self.pool_uuid);
        let (index, count) = (self.index, self.replica_count);
        line("replica", &format!("number {index}, made as one of {count}, {}", self.replica_uuid));
        line("created", &utc(self.created_at_unix_s));
        let state = match (&self.open_by, self.is_closed) {
            (Some(_), _) => "",
            (None, true) => ", closed in order",
            (None, false) => ", not closed: the next writer compares the replicas",
        };
        line("opening", &format!("{}, epoch {}, mark {}{state}", self.opening, self.epoch, self.mark));
        line("format", &self.pool_format);
        text
    }
}
