//! Pools that a pool set file names: created, synchronized and transformed.

use std::{fmt::Write as _, path::PathBuf};

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use pmof_console::{
    output::{self, say},
    reach::ConnectArgs,
    words,
};
use pmof_pool_set::{
    NewPool, NewSet, PoolSet, ReplicaSpec, Step, SyncOptions, SyncReport, TransformOptions, TransformReport,
};
use serde::Serialize;

use super::check::undecided_text;
use crate::{copy::progress::Progress, failure::Differs};

/// Create the pool that a pool set file names
#[derive(Debug, Args)]
pub(crate) struct CreateArgs {
    /// Pool set file
    #[arg(value_name = "SET")]
    set: PathBuf,
    /// Kind of the pool
    #[arg(long, value_enum, default_value = "obj")]
    kind: Kind,
    /// Name of the layout that programs will ask for, empty by default; object pools only
    #[arg(long, value_name = "NAME")]
    layout: Option<String>,
    /// Bytes per block, 512 by default; block pools only
    #[arg(long, value_name = "SIZE", value_parser = words::sizes::<u32>(0..=u64::from(u32::MAX)))]
    block_size: Option<u32>,
    #[command(flatten)]
    how: How,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Kind {
    /// Objects and transactions, for libpmemobj
    Obj,
    /// An append-only log, for libpmemlog
    Log,
    /// An array of blocks, for libpmemblk
    Blk,
}

/// Options of commands that change something.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct How {
    /// Change nothing; say what would be done
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print one JSON object, and show no progress
    #[arg(long)]
    pub(crate) json: bool,
}

/// Recreate replicas that are missing or damaged, and copy what differs from the first sound one
///
/// With `--dry-run` the exit status is 3 where something would be changed.
#[derive(Debug, Args)]
pub(crate) struct SyncArgs {
    /// Pool set file
    #[arg(value_name = "SET")]
    set: PathBuf,
    /// Number of the replica to copy from, counted from 0. By default the first sound one, unless most of the others agree
    /// against it
    #[arg(long, value_name = "REPLICA")]
    from: Option<usize>,
    #[command(flatten)]
    how: How,
}

/// Change the replicas of a pool to those of another pool set file
#[derive(Debug, Args)]
pub(crate) struct TransformArgs {
    /// Current pool set file of the pool
    #[arg(value_name = "FROM")]
    from: PathBuf,
    /// New pool set file; replicas that it does not name are removed with their bytes
    #[arg(value_name = "TO")]
    to: PathBuf,
    /// Host that is lost for good: its replicas, which TO does not name, are not removed; may be given several times
    #[arg(long, value_name = "HOST")]
    lost: Vec<String>,
    #[command(flatten)]
    how: How,
}

#[derive(Debug, Serialize)]
struct CreateReport {
    set: PathBuf,
    kind: &'static str,
    dry_run: bool,
    replicas: Vec<String>,
}

pub(crate) fn create(args: &CreateArgs, connect: ConnectArgs) -> anyhow::Result<()> {
    let set = PoolSet::read(&args.set)?;
    let pool = new_pool(args)?;
    let new = NewSet::new(pool);
    let failed = || format!("cannot create the pool of {}", args.set.display());
    new.plan(&set).with_context(failed)?;
    let report = CreateReport {
        set: args.set.clone(),
        kind: new.pool.kind().name(),
        dry_run: args.how.dry_run,
        replicas: set.replicas.iter().map(replica_text).collect(),
    };
    if args.how.dry_run {
        connect.set(set).check_new(&new).with_context(failed)?;
    } else {
        let made = connect.set(set).create(&new).with_context(failed)?;
        made.close().with_context(failed)?;
    }
    if args.how.json {
        return output::print_json(&report);
    }
    let verb = if args.how.dry_run { "would create" } else { "created" };
    for (index, replica) in report.replicas.iter().enumerate() {
        say!("{verb} replica {index}: {replica}");
    }
    Ok(())
}

/// The kind of the pool. Refuses options of another kind, which show that another kind was meant.
fn new_pool(args: &CreateArgs) -> anyhow::Result<NewPool> {
    if args.layout.is_some() && !matches!(args.kind, Kind::Obj) {
        bail!("`--layout` is for object pools only: leave it out, or create one with `--kind obj`");
    }
    if args.block_size.is_some() && !matches!(args.kind, Kind::Blk) {
        bail!("`--block-size` is for block pools only: leave it out, or create one with `--kind blk`");
    }
    Ok(match args.kind {
        Kind::Obj => NewPool::Obj { layout: args.layout.clone().unwrap_or_default() },
        Kind::Log => NewPool::Log,
        Kind::Blk => NewPool::Blk { block_len_bytes: args.block_size.unwrap_or(512) },
    })
}

pub(super) fn replica_text(replica: &ReplicaSpec) -> String {
    match replica {
        ReplicaSpec::Local(parts) => {
            let texts: Vec<_> = parts.iter().map(|part| format!("{} ({})", part.path.display(), part.size)).collect();
            texts.join(", ")
        }
        ReplicaSpec::Remote(remote) => format!("{} on {}", remote.set.display(), remote.node),
    }
}

#[derive(Debug, Serialize)]
struct SyncJson {
    set: PathBuf,
    dry_run: bool,
    source_replica: usize,
    source_was_unlinked: bool,
    len_bytes: u64,
    replicas: Vec<SyncedJson>,
    /// Sound replicas that a sync would overwrite although nothing says that the source is right.
    undecided: Vec<usize>,
}

#[derive(Debug, Serialize)]
struct SyncedJson {
    index: usize,
    damage: Option<String>,
    copied_blocks: u64,
    copied_bytes: u64,
    was_unlinked: bool,
}

pub(crate) fn run_sync(args: &SyncArgs, connect: ConnectArgs) -> anyhow::Result<()> {
    let set = PoolSet::read(&args.set)?;
    let mut bar = Bar::new("synchronizing", !args.how.json);
    let options = SyncOptions::default().dry_run(args.how.dry_run).from(args.from);
    let report = connect.set(set).sync(&options, &mut |step| bar.step(step));
    drop(bar);
    let report = report.with_context(|| format!("cannot synchronize {}", args.set.display()))?;
    if args.how.json {
        output::print_json(&sync_json(args, &report))?;
    } else {
        output::print(&sync_text(args, &report))?;
    }
    if args.how.dry_run && !report.is_nothing() {
        return Err(Differs::error(format!("a sync would change replicas of {}", args.set.display())));
    }
    Ok(())
}

fn sync_json(args: &SyncArgs, report: &SyncReport) -> SyncJson {
    let replicas = report.replicas.iter().map(|replica| SyncedJson {
        index: replica.index,
        damage: replica.damage.clone(),
        copied_blocks: replica.copied.blocks,
        copied_bytes: replica.copied.bytes,
        was_unlinked: replica.was_unlinked,
    });
    SyncJson {
        set: args.set.clone(),
        dry_run: args.how.dry_run,
        source_replica: report.source,
        source_was_unlinked: report.source_was_unlinked,
        len_bytes: report.len_bytes,
        replicas: replicas.collect(),
        undecided: report.undecided.clone(),
    }
}

fn sync_text(args: &SyncArgs, report: &SyncReport) -> String {
    let mut text = String::new();
    let would = if args.how.dry_run { "would be " } else { "" };
    for replica in &report.replicas {
        let index = replica.index;
        let copied = output::size(replica.copied.bytes);
        let done = match &replica.damage {
            Some(damage) if args.how.dry_run => format!("would be restored from replica {}; {damage}", report.source),
            Some(damage) => format!("restored from replica {}, {copied} copied; before: {damage}", report.source),
            None if replica.copied.blocks == 0 && !replica.was_unlinked => "unchanged".to_owned(),
            None if replica.copied.blocks == 0 => format!("{would}linked to its neighbours"),
            None => format!("{would}made equal to replica {}, {copied} copied", report.source),
        };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "replica {index}: {done}");
    }
    for index in &report.undecided {
        let _ = writeln!(
            text,
            "replicas {} and {index} differ in bytes that are in use, and nothing says which is right: {}; `--from {index}` copies replica {index} instead",
            report.source,
            undecided_text(report.source, None)
        );
    }
    if report.source_was_unlinked {
        let to = if report.replicas.is_empty() { "itself, the only replica of the set" } else { "its neighbours" };
        let _ = writeln!(text, "replica {}: {would}linked to {to}", report.source);
    } else if report.replicas.is_empty() {
        let _ = writeln!(text, "{}: one replica, nothing to do", args.set.display());
    }
    text
}

#[derive(Debug, Serialize)]
struct TransformJson {
    from: PathBuf,
    to: PathBuf,
    dry_run: bool,
    /// Places in `to`.
    added: Vec<usize>,
    /// Places in `from`.
    removed: Vec<usize>,
    /// Places in `from` of replicas on lost hosts.
    left: Vec<usize>,
}

pub(crate) fn run_transform(args: &TransformArgs, connect: ConnectArgs) -> anyhow::Result<()> {
    let (from, to) = (PoolSet::read(&args.from)?, PoolSet::read(&args.to)?);
    let mut bar = Bar::new("copying", !args.how.json);
    let options = TransformOptions::default().dry_run(args.how.dry_run).lost(args.lost.clone());
    let done = connect.set(from.clone()).transform(&to, &options, &mut |step| bar.step(step));
    drop(bar);
    let TransformReport { added, removed, left } =
        done.with_context(|| format!("cannot transform {1} to {0}", args.to.display(), args.from.display()))?;
    if args.how.json {
        let (from, to) = (args.from.clone(), args.to.clone());
        return output::print_json(&TransformJson { from, to, dry_run: args.how.dry_run, added, removed, left });
    }
    let is_changed = !(added.is_empty() && removed.is_empty() && left.is_empty());
    if !is_changed {
        say!("{} names the replicas that the pool has: nothing to do", args.to.display());
    }
    let [add, remove, leave] =
        if args.how.dry_run { ["would add", "would remove", "would leave"] } else { ["added", "removed", "left"] };
    for index in added {
        say!("{add} replica {index}: {}", replica_text(&to.replicas[index]));
    }
    for index in removed {
        say!("{remove} replica {index} of the old set: {}", replica_text(&from.replicas[index]));
    }
    for index in left {
        say!(
            "{leave} replica {index} of the old set: {}; its files stay, and are refused as a stale replica if they \
             differ: remove them when the host is back",
            replica_text(&from.replicas[index])
        );
    }
    if is_changed && !args.how.dry_run {
        let (from, to) = (args.from.display(), args.to.display());
        say!("the pool now has the replicas of {to}: open, check and sync it by that file, and no longer by {from}");
    }
    Ok(())
}

/// A progress bar whose length is set later.
pub(super) struct Bar {
    verb: &'static str,
    is_wanted: bool,
    shown: Option<Progress>,
}

impl Bar {
    pub(super) fn new(verb: &'static str, is_wanted: bool) -> Self {
        Self { verb, is_wanted, shown: None }
    }

    pub(super) fn step(&mut self, step: Step) {
        match step {
            Step::Total(len_bytes) => self.shown = Some(Progress::new(self.verb, len_bytes, self.is_wanted)),
            Step::Done(len_bytes) => {
                if let Some(shown) = &self.shown {
                    shown.advance(len_bytes);
                }
            }
        }
    }
}
