//! `pmof pool ls`.

use std::net::IpAddr;

use anyhow::Context;
use pmof::{PoolInfo, PoolOptions, PoolRefusal, ReplicaError, causes};
use pmof_console::{output, reach::ConnectArgs, words::parsed};
use pmof_control::PoolName;
use pmof_pool::{TargetUrl, describe_pools};
use serde::Serialize;

/// List the pools of a target
#[derive(Debug, clap::Args)]
pub(super) struct ListArgs {
    /// Target: `tcp://HOST[:PORT]`, `verbs://HOST[:PORT]`, `fabric+PROVIDER://HOST[:PORT]`, `rds://HOST[:PORT]`, `shm:///PATH/OF/SOCKET` or `ssh://[USER@]HOST[:PORT]`; or a directory of this machine,
    /// `file:///DIRECTORY`
    #[arg(value_name = "ADDRESS", value_parser = parsed::<TargetUrl>)]
    target: TargetUrl,
    /// Local address to connect from, if routing does not decide it; verbs only
    #[arg(long, value_name = "IP")]
    source: Option<IpAddr>,
    /// Also show the size, the health, the epoch and the writer of each
    #[arg(short, long)]
    long: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What the name of an asynchronous member's staging area ends with.
pub(super) const STAGING_SUFFIX: &str = ".changes";

#[derive(Debug, Serialize)]
struct ListReport<P> {
    target: String,
    pools: Vec<P>,
}

/// One pool of a target.
#[derive(Debug, Serialize)]
pub(crate) struct PoolLine {
    name: String,
    /// `closed`, `open`, `not_closed`, `follows` (of an asynchronous member), `damaged` or `unreadable`.
    health: &'static str,
    len_bytes: Option<u64>,
    opening: Option<u64>,
    epoch: Option<String>,
    /// Who has it open for writing.
    open_by: Option<String>,
    medium: Option<String>,
    /// Why it cannot be used.
    reason: Option<String>,
}

pub(super) fn run(args: &ListArgs, connect: ConnectArgs) -> anyhow::Result<()> {
    let options = args.source.into_iter().fold(connect.pools(), PoolOptions::source);
    let target = args.target.to_string();
    if args.long {
        let pools = lines(&args.target, &options)?;
        return if args.json {
            output::print_json(&ListReport { target, pools })
        } else {
            Ok(output::print(&table(&pools))?)
        };
    }
    let names = pmof::list_pools(&args.target, &options).context("cannot list the pools")?;
    let pools: Vec<_> = names.iter().map(ToString::to_string).collect();
    if args.json {
        return output::print_json(&ListReport { target, pools });
    }
    Ok(output::print(&pools.iter().map(|name| [name, "\n"].concat()).collect::<String>())?)
}

/// What the target says of each of its pools.
pub(crate) fn lines(target: &TargetUrl, options: &PoolOptions) -> anyhow::Result<Vec<PoolLine>> {
    let pools = describe_pools(target, options).context("cannot list the pools")?;
    let mut lines: Vec<_> = pools.iter().map(|(name, info)| PoolLine::new(name, info.as_deref())).collect();
    let staged: Vec<_> = lines.iter().filter_map(|line| Some((staged_for(line)?, line.open_by.clone()))).collect();
    for line in lines.iter_mut().filter(|line| line.health == "not_closed") {
        if let Some((_, writer)) = staged.iter().find(|(name, _)| *name == line.name) {
            (line.health, line.open_by) = ("follows", writer.clone());
        }
    }
    Ok(lines)
}

/// The asynchronous member whose staging area this is, where no writer's death left that: its writer has that open, and the data as long as it is applied. The data
/// lies at a consistency point between two openings and is never closed; whether the last writer ended in order, the staging area says.
fn staged_for(line: &PoolLine) -> Option<String> {
    let name = line.name.strip_suffix(STAGING_SUFFIX).filter(|_| matches!(line.health, "open" | "closed"));
    name.map(ToOwned::to_owned)
}

/// One line a pool, below a heading.
pub(crate) fn table(pools: &[PoolLine]) -> String {
    let width = pools.iter().map(|pool| pool.name.len()).max().unwrap_or(0).max(4);
    let row = |name: &str, size: &str, health: &str, epoch: &str, writer: &str| {
        format!("{name:<width$}  {size:>10}  {health:<10}  {epoch:<8}  {writer}").trim_end().to_owned() + "\n"
    };
    let heading = row("NAME", "SIZE", "HEALTH", "EPOCH", "WRITER");
    let line = |pool: &PoolLine| {
        let size = pool.len_bytes.map_or_else(|| "-".to_owned(), short_size);
        let epoch = pool.epoch.as_deref().and_then(|epoch| epoch.get(..8)).unwrap_or("-");
        let writer = pool.open_by.as_deref().or(pool.reason.as_deref()).unwrap_or("-");
        row(&pool.name, &size, &words(pool.health), epoch, writer)
    };
    std::iter::once(heading).chain(pools.iter().map(line)).collect()
}

/// As people read a word of JSON.
fn words(word: &str) -> String {
    word.replace('_', " ")
}

/// Without the number of bytes.
fn short_size(len_bytes: u64) -> String {
    let size = output::size(len_bytes);
    size.split(" (").next().unwrap_or_default().to_owned()
}

impl PoolLine {
    fn new(name: &PoolName, info: Result<&PoolInfo, &ReplicaError>) -> Self {
        let name = name.to_string();
        let info = match info {
            Ok(info) => info,
            Err(error) => {
                let is_damaged = matches!(
                    error,
                    ReplicaError::Refused { refusal: PoolRefusal::NotAUsablePool | PoolRefusal::UncertainState, .. }
                );
                let health = if is_damaged { "damaged" } else { "unreadable" };
                let (len_bytes, opening, epoch, open_by, medium) = (None, None, None, None, None);
                return Self {
                    name,
                    health,
                    len_bytes,
                    opening,
                    epoch,
                    open_by,
                    medium,
                    reason: Some(causes(error).to_string()),
                };
            }
        };
        let health = match (&info.open_by, info.state.is_open) {
            (Some(_), _) => "open",
            (None, true) => "not_closed",
            (None, false) => "closed",
        };
        Self {
            name,
            health,
            len_bytes: Some(info.header.size_bytes),
            opening: Some(info.state.opening),
            epoch: Some(info.state.epoch.id.to_string()),
            open_by: info.open_by.clone(),
            medium: Some(info.medium.to_string()),
            reason: None,
        }
    }
}
