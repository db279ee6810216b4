//! Pools that a pool set file names: made, described, checked, brought in order, changed and removed.

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use pmof_pool::{
    BlockTable, CheckReport, Features, HeaderError, Mismatch, NewPool, NewSet, PartSize, PoolHeader, PoolKind, PoolSet,
    PoolSetError, ReplicaSpec, Step, SyncOptions, SyncReport, check, part_header, sync, transform, uuid_text,
};
use pmof_replica::{SetPool, SetPoolOptions, SshReplicas};
use serde::Serialize;

use super::{
    place::{block_table, set_at},
    utc,
};
use crate::{
    copy::progress::Progress,
    output::{self, say},
};

/// Makes the pool that a pool set file names
#[derive(Debug, Args)]
pub(crate) struct CreateArgs {
    /// Pool set file
    #[arg(value_name = "SET")]
    set: PathBuf,
    /// What the pool is for
    #[arg(long, value_enum, default_value = "obj")]
    kind: Kind,
    /// Name of the layout that programs will ask for; of pools of objects only
    #[arg(long, value_name = "NAME", default_value = "")]
    layout: String,
    /// Bytes of a block; of pools of blocks only
    #[arg(long, value_name = "BYTES", default_value_t = 512)]
    block_size: u32,
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

/// What changes something, and how it tells.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct How {
    /// Change nothing; tell what would be done
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print one JSON object, and show no progress
    #[arg(long)]
    pub(crate) json: bool,
}

/// Reads every replica in full and compares them
#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// Pool set file, or a pool's only part
    #[arg(value_name = "PATH")]
    path: PathBuf,
    /// Print one JSON object, and show no progress
    #[arg(long)]
    json: bool,
}

/// Makes replicas that are missing or broken anew, and copies what differs from the first sound one
#[derive(Debug, Args)]
pub(crate) struct SyncArgs {
    /// Pool set file
    #[arg(value_name = "SET")]
    set: PathBuf,
    /// Replica to copy from, by its number, from 0. Without it: the first sound one, unless most of the others agree
    /// against it
    #[arg(long, value_name = "REPLICA")]
    from: Option<usize>,
    #[command(flatten)]
    how: How,
}

/// Gives a pool other replicas: those of another pool set file
#[derive(Debug, Args)]
pub(crate) struct TransformArgs {
    /// Pool set file that the pool has
    #[arg(value_name = "FROM")]
    from: PathBuf,
    /// Pool set file that it shall have; replicas that it does not name are removed with their bytes
    #[arg(value_name = "TO")]
    to: PathBuf,
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

pub(crate) fn create(args: &CreateArgs) -> anyhow::Result<()> {
    let set = PoolSet::read(&args.set)?;
    let pool = match args.kind {
        Kind::Obj => NewPool::Obj { layout: args.layout.clone() },
        Kind::Log => NewPool::Log,
        Kind::Blk => NewPool::Blk { block_len_bytes: args.block_size },
    };
    let new = NewSet::new(pool);
    let failed = || format!("cannot make the pool of {}", args.set.display());
    new.plan(&set).with_context(failed)?;
    let report = CreateReport {
        set: args.set.clone(),
        kind: new.pool.kind().name(),
        dry_run: args.how.dry_run,
        replicas: set.replicas.iter().map(replica_text).collect(),
    };
    if args.how.dry_run {
        check_new(&set).with_context(failed)?;
    } else {
        let made = SetPool::create(&set, &new, &SetPoolOptions::default()).with_context(failed)?;
        made.close().with_context(failed)?;
    }
    if args.how.json {
        return output::print_json(&report);
    }
    let verb = if args.how.dry_run { "would make" } else { "made" };
    for (index, replica) in report.replicas.iter().enumerate() {
        say!("{verb} replica {index}: {replica}");
    }
    Ok(())
}

/// Whether parts of the set are there already, which creation would refuse.
fn check_new(set: &PoolSet) -> anyhow::Result<()> {
    set.check_files()?;
    for part in set.replicas.iter().filter_map(ReplicaSpec::local).flatten() {
        if part.path.is_file() {
            match part_header(&part.path) {
                Err(PoolSetError::Header { problem: HeaderError::Blank, .. }) => continue,
                _ => bail!("{} exists and is not blank: remove it, or name another file", part.path.display()),
            }
        }
        let directory = part.path.parent().unwrap_or(Path::new("/"));
        if !directory.is_dir() {
            bail!("{} does not exist: make the directory first", directory.display());
        }
    }
    Ok(())
}

fn replica_text(replica: &ReplicaSpec) -> String {
    match replica {
        ReplicaSpec::Local(parts) => {
            let texts: Vec<_> = parts.iter().map(|part| format!("{} ({})", part.path.display(), part.size)).collect();
            texts.join(", ")
        }
        ReplicaSpec::Remote(remote) => format!("{} on {}", remote.set.display(), remote.node),
    }
}

/// A pool set, as its parts describe it.
#[derive(Debug, Serialize)]
pub(crate) struct SetReport {
    set: PathBuf,
    options: Vec<&'static str>,
    replicas: Vec<ReplicaReport>,
}

#[derive(Debug, Serialize)]
struct ReplicaReport {
    index: usize,
    remote: Option<RemoteReport>,
    parts: Vec<PartReport>,
}

#[derive(Debug, Serialize)]
struct RemoteReport {
    node: String,
    set: PathBuf,
}

#[derive(Debug, Serialize)]
struct PartReport {
    path: PathBuf,
    /// As the set says; `None` for `AUTO`.
    len_bytes: Option<u64>,
    header: Option<HeaderReport>,
    /// Why there is no header to show, where there should be one.
    problem: Option<String>,
}

#[derive(Debug, Serialize)]
struct HeaderReport {
    kind: Option<&'static str>,
    signature: String,
    major: u32,
    features: Vec<&'static str>,
    /// Bits that no name is known for: those of another program, or of a newer one.
    unknown_features: UnknownFeatures,
    poolset_uuid: String,
    uuid: String,
    previous_part_uuid: String,
    next_part_uuid: String,
    previous_replica_uuid: String,
    next_replica_uuid: String,
    created_at_unix_s: u64,
    machine: u16,
    open_for_writing: bool,
    unsafe_shutdowns: u64,
}

#[derive(Debug, Serialize)]
struct UnknownFeatures {
    compat: u32,
    incompat: u32,
    ro_compat: u32,
}

impl HeaderReport {
    fn features_text(&self) -> String {
        let UnknownFeatures { compat, incompat, ro_compat } = self.unknown_features;
        let unknown = [("compat", compat), ("incompat", incompat), ("ro_compat", ro_compat)];
        let unknown = unknown.into_iter().filter(|(_, bits)| *bits != 0);
        let unknown = unknown.map(|(name, bits)| format!("{name} {bits:#x} (unknown)"));
        self.features.iter().map(|name| (*name).to_owned()).chain(unknown).collect::<Vec<_>>().join(", ")
    }

    fn new(header: &PoolHeader) -> Self {
        let Features { compat, incompat, ro_compat } = header.features.unknown();
        Self {
            unknown_features: UnknownFeatures { compat, incompat, ro_compat },
            kind: header.kind().map(PoolKind::name),
            signature: String::from_utf8_lossy(&header.signature).trim_end_matches('\0').to_owned(),
            major: header.major,
            features: header.features.known().map(pmof_pool::Feature::name).collect(),
            poolset_uuid: uuid_text(&header.poolset_uuid),
            uuid: uuid_text(&header.uuid),
            previous_part_uuid: uuid_text(&header.prev_part_uuid),
            next_part_uuid: uuid_text(&header.next_part_uuid),
            previous_replica_uuid: uuid_text(&header.prev_replica_uuid),
            next_replica_uuid: uuid_text(&header.next_replica_uuid),
            created_at_unix_s: header.created_at_unix_s,
            machine: header.arch.machine,
            open_for_writing: header.shutdown_state.is_dirty(),
            unsafe_shutdowns: header.shutdown_state.unsafe_shutdowns,
        }
    }
}

/// Describes the pool set at `path` by its file and the headers of its parts; nothing is locked or changed.
pub(crate) fn describe(path: &Path) -> anyhow::Result<SetReport> {
    let set = set_at(path)?;
    let options = [(set.options.single_header, "SINGLEHDR"), (set.options.no_headers, "NOHDRS")];
    let options: Vec<_> = options.into_iter().filter(|(is_set, _)| *is_set).map(|(_, name)| name).collect();
    let has_header = |index: usize| !set.options.no_headers && (index == 0 || !set.options.single_header);
    let replica = |(index, replica): (usize, &ReplicaSpec)| match replica {
        ReplicaSpec::Local(parts) => ReplicaReport {
            index,
            remote: None,
            parts: parts
                .iter()
                .enumerate()
                .map(|(index, part)| PartReport::new(&part.path, part.size, has_header(index)))
                .collect(),
        },
        ReplicaSpec::Remote(remote) => ReplicaReport {
            index,
            remote: Some(RemoteReport { node: remote.node.clone(), set: remote.set.clone() }),
            parts: Vec::new(),
        },
    };
    let replicas = set.replicas.iter().enumerate().map(replica).collect();
    Ok(SetReport { set: path.into(), options, replicas })
}

impl PartReport {
    fn new(path: &Path, size: PartSize, has_header: bool) -> Self {
        // Of a directory, what its first file says.
        let file = if path.is_dir() { path.join("000000.pmem") } else { path.into() };
        let header = has_header.then(|| part_header(&file));
        let len_bytes = match size {
            PartSize::Bytes(len_bytes) => Some(len_bytes),
            PartSize::Auto => None,
        };
        let (header, problem) = match header {
            Some(Ok(header)) => (Some(HeaderReport::new(&header)), None),
            Some(Err(error)) => (None, Some(error.to_string())),
            None => (None, None),
        };
        Self { path: path.into(), len_bytes, header, problem }
    }
}

impl SetReport {
    /// What is wrong with the first part that should have a sound header and has none.
    pub(crate) fn problem(&self) -> Option<String> {
        let mut parts = self.replicas.iter().flat_map(|replica| &replica.parts);
        let problem = parts.find_map(|part| part.problem.as_deref())?;
        Some(format!("{} is not sound: {problem}", self.set.display()))
    }

    pub(crate) fn text(&self) -> String {
        let mut text = format!("{}\n", self.set.display());
        let first = self.replicas.iter().flat_map(|replica| &replica.parts).find_map(|part| part.header.as_ref());
        // Writing to a string cannot fail.
        let mut line = |name: &str, value: &str| {
            let _ = writeln!(text, "  {name:<10} {value}");
        };
        if let Some(header) = first {
            line("kind", &format!("{}, version {}", header.kind.unwrap_or(&header.signature), header.major));
            line("features", &header.features_text());
            line("pool set", &header.poolset_uuid);
            line("created", &utc(header.created_at_unix_s));
        }
        if !self.options.is_empty() {
            line("options", &self.options.join(", "));
        }
        for replica in &self.replicas {
            if let Some(remote) = &replica.remote {
                line(&format!("replica {}", replica.index), &format!("{} on {}", remote.set.display(), remote.node));
            }
            for (index, part) in replica.parts.iter().enumerate() {
                let name = if index == 0 { format!("replica {}", replica.index) } else { String::new() };
                let size = part.len_bytes.map_or("AUTO".to_owned(), output::size);
                line(&name, &format!("{}, {size}", part.path.display()));
                match (&part.header, &part.problem) {
                    (Some(header), _) if header.open_for_writing => line("", "not closed: in use, or its program died"),
                    (_, Some(problem)) => line("", problem),
                    _ => {}
                }
            }
        }
        text
    }
}

#[derive(Debug, Serialize)]
struct CheckJson {
    set: PathBuf,
    kind: Option<&'static str>,
    is_sound: bool,
    compared_bytes: u64,
    replicas: Vec<CheckedJson>,
    majority: Option<MajorityJson>,
    apart: Option<ApartJson>,
    /// Why `pmof pool sync` would refuse; `null` where it would not, but for a majority.
    sync_refusal: Option<String>,
}

/// Replicas that agree with each other against another one.
#[derive(Debug, Serialize)]
struct MajorityJson {
    replicas: Vec<usize>,
    against: usize,
    places: u64,
    offset: u64,
}

/// Replicas that differ from another one and were not used together with it.
#[derive(Debug, Serialize)]
struct ApartJson {
    source: usize,
    replicas: Vec<usize>,
}

#[derive(Debug, Serialize)]
struct CheckedJson {
    index: usize,
    problems: Vec<String>,
    mismatch_count: u64,
    mismatches: Vec<MismatchJson>,
    unused_mismatch_count: u64,
    /// Bytes that differ in space that is not in use.
    unused_differing_bytes: u64,
    /// Bytes that differ in what a running program keeps for itself.
    runtime_differing_bytes: u64,
}

#[derive(Debug, Serialize)]
struct MismatchJson {
    offset: u64,
    len_bytes: u64,
    part: Option<usize>,
    part_offset: Option<u64>,
}

/// A file or device that begins as neither a set nor a pool, and is a block table.
fn check_block_table(args: &CheckArgs) -> anyhow::Result<bool> {
    let is_named = PoolSet::is_set_file(&args.path).unwrap_or(true) || part_header(&args.path).is_ok();
    let Some(BlockTable { defect }) = (if is_named { None } else { block_table(&args.path)? }) else {
        return Ok(false);
    };
    if args.json {
        let (replicas, majority, sync_refusal) = (Vec::new(), None, defect.map(str::to_owned));
        let (set, is_sound, apart) = (args.path.clone(), defect.is_none(), None);
        let compared_bytes = 0;
        let kind = Some("btt");
        output::print_json(&CheckJson {
            set,
            kind,
            is_sound,
            compared_bytes,
            replicas,
            majority,
            apart,
            sync_refusal,
        })?;
    }
    match defect {
        Some(defect) => bail!("{}, a block table (BTT), is not sound: {defect}", args.path.display()),
        None if args.json => {}
        None => say!("{}: a block table (BTT) that is sound by itself", args.path.display()),
    }
    Ok(true)
}

pub(crate) fn run_check(args: &CheckArgs) -> anyhow::Result<()> {
    if check_block_table(args)? {
        return Ok(());
    }
    let set = set_at(&args.path)?;
    let mut bar = Bar::new("comparing", !args.json);
    let report = check(&set, None, &mut SshReplicas::default(), &mut |step| bar.step(step));
    drop(bar);
    let report = report.with_context(|| format!("cannot check {}", args.path.display()))?;
    if args.json {
        output::print_json(&check_json(&args.path, &report))?;
    } else {
        output::print(&check_text(&args.path, &set, &report))?;
    }
    if report.is_sound() {
        return Ok(());
    }
    let advice = match (&report.sync_refusal, &report.apart, &report.majority) {
        (Some(refusal), ..) => format!("`pmof pool sync` cannot mend it: {refusal}"),
        (None, Some(apart), _) => format!("{apart}; `pmof pool sync --from N` copies what replica N holds"),
        (None, None, Some(majority)) => format!(
            "`pmof pool sync --from {}` copies what most replicas hold, `--from {}` what the first sound one holds, which was written last if \
             the program was killed",
            majority.replicas.first().unwrap_or(&0),
            majority.against
        ),
        (None, None, None) => "`pmof pool sync` brings it in order".to_owned(),
    };
    bail!("{} is not sound; {advice}", args.path.display())
}

/// `1 byte`, `2 bytes`.
fn counted(number: u64, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

/// `1 byte differs`, `2 bytes differ`.
fn differing(bytes: u64) -> String {
    format!("{} {}", counted(bytes, "byte"), if bytes == 1 { "differs" } else { "differ" })
}

fn check_json(path: &Path, report: &CheckReport) -> CheckJson {
    let mismatch = |mismatch: &Mismatch| MismatchJson {
        offset: mismatch.offset,
        len_bytes: mismatch.len_bytes,
        part: mismatch.part.map(|(part, _)| part),
        part_offset: mismatch.part.map(|(_, offset)| offset),
    };
    let replicas = report.replicas.iter().enumerate().map(|(index, replica)| CheckedJson {
        index,
        problems: replica.problems.clone(),
        mismatch_count: replica.mismatch_count,
        mismatches: replica.mismatches.iter().map(mismatch).collect(),
        unused_mismatch_count: replica.unused_count,
        unused_differing_bytes: replica.unused_bytes,
        runtime_differing_bytes: replica.runtime_bytes,
    });
    let majority = report.majority.as_ref().map(|majority| MajorityJson {
        replicas: majority.replicas.clone(),
        against: majority.against,
        places: majority.places,
        offset: majority.offset,
    });
    CheckJson {
        set: path.into(),
        kind: report.kind.map(PoolKind::name),
        is_sound: report.is_sound(),
        compared_bytes: report.compared_bytes,
        replicas: replicas.collect(),
        majority,
        apart: report.apart.as_ref().map(|apart| ApartJson { source: apart.source, replicas: apart.replicas.clone() }),
        sync_refusal: report.sync_refusal.clone(),
    }
}

fn check_text(path: &Path, set: &PoolSet, report: &CheckReport) -> String {
    /// Mismatches that are told to people one by one.
    const TOLD: usize = 10;
    let mut text = String::new();
    // Writing to a string cannot fail.
    let mut line = |line: String| {
        let _ = writeln!(text, "{line}");
    };
    for (index, replica) in report.replicas.iter().enumerate() {
        for problem in &replica.problems {
            line(format!("replica {index}: {problem}"));
        }
        for mismatch in replica.mismatches.iter().take(TOLD) {
            let parts = set.replicas[index].local();
            let place = match mismatch.part {
                Some((part, offset)) => {
                    let path = parts.and_then(|parts| parts.get(part)).map(|part| part.path.display().to_string());
                    format!(", byte {offset} of part {part}{}", path.map_or(String::new(), |path| format!(" ({path})")))
                }
                None => String::new(),
            };
            let (offset, len_bytes) = (mismatch.offset, mismatch.len_bytes);
            let bytes = counted(len_bytes, "byte");
            line(format!("replica {index}: contents differ at offset {offset}, {bytes}{place}"));
        }
        let more = replica.mismatch_count.saturating_sub(TOLD as u64);
        if more > 0 {
            line(format!("replica {index}: contents differ at {}", counted(more, "more place")));
        }
        if replica.unused_bytes > 0 {
            line(format!(
                "replica {index}: {} in heap space that is not in use, which means nothing (libpmemobj writes there in the \
                 first replica only)",
                differing(replica.unused_bytes)
            ));
        }
        if replica.runtime_bytes > 0 {
            line(format!(
                "replica {index}: {} in what a running program keeps for itself, which replicas do not have in common",
                differing(replica.runtime_bytes)
            ));
        }
    }
    if let Some(majority) = &report.majority {
        let agreeing: Vec<_> = majority.replicas.iter().map(ToString::to_string).collect();
        line(format!(
            "replicas {} agree with each other and differ from replica {} in {}, the first at offset {}",
            agreeing.join(" and "),
            majority.against,
            counted(majority.places, "place"),
            majority.offset
        ));
    }
    if report.is_sound() {
        let (path, bytes) = (path.display(), output::size(report.compared_bytes));
        let is_same = report.replicas.iter().all(|replica| replica.unused_bytes == 0 && replica.runtime_bytes == 0);
        line(match report.replicas.len() {
            1 => format!("{path}: the replica is sound by itself, {bytes} read; there is no other to compare it with"),
            count if is_same => format!("{path}: {count} replicas are equal, {bytes} of each compared"),
            count => format!("{path}: {count} replicas are equal in all that is in use, {bytes} of each compared"),
        });
    }
    text
}

#[derive(Debug, Serialize)]
struct SyncJson {
    set: PathBuf,
    dry_run: bool,
    source_replica: usize,
    source_was_unlinked: bool,
    len_bytes: u64,
    replicas: Vec<SyncedJson>,
}

#[derive(Debug, Serialize)]
struct SyncedJson {
    index: usize,
    damage: Option<String>,
    copied_blocks: u64,
    copied_bytes: u64,
    was_unlinked: bool,
}

pub(crate) fn run_sync(args: &SyncArgs) -> anyhow::Result<()> {
    let set = PoolSet::read(&args.set)?;
    let mut bar = Bar::new("synchronizing", !args.how.json);
    let options = SyncOptions { declaration: None, dry_run: args.how.dry_run, from: args.from };
    let report = sync(&set, &options, &mut SshReplicas::default(), &mut |step| bar.step(step));
    drop(bar);
    let report = report.with_context(|| format!("cannot bring {} in order", args.set.display()))?;
    if args.how.json {
        return output::print_json(&sync_json(args, &report));
    }
    Ok(output::print(&sync_text(args, &report))?)
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
            None if replica.copied.blocks == 0 && !replica.was_unlinked => "as it should be".to_owned(),
            None if replica.copied.blocks == 0 => format!("{would}linked to its neighbours"),
            None => format!("{would}made equal to replica {}, {copied} copied", report.source),
        };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "replica {index}: {done}");
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
}

pub(crate) fn run_transform(args: &TransformArgs) -> anyhow::Result<()> {
    let (from, to) = (PoolSet::read(&args.from)?, PoolSet::read(&args.to)?);
    let mut bar = Bar::new("copying", !args.how.json);
    let done = transform(&from, &to, None, &mut SshReplicas::default(), args.how.dry_run, &mut |step| bar.step(step));
    drop(bar);
    let (added, removed) =
        done.with_context(|| format!("cannot make {} of {}", args.to.display(), args.from.display()))?;
    if args.how.json {
        let (from, to) = (args.from.clone(), args.to.clone());
        return output::print_json(&TransformJson { from, to, dry_run: args.how.dry_run, added, removed });
    }
    if added.is_empty() && removed.is_empty() {
        say!("{} names the replicas that the pool has: nothing to do", args.to.display());
    }
    let [add, remove] = if args.how.dry_run { ["would add", "would remove"] } else { ["added", "removed"] };
    for index in added {
        say!("{add} replica {index}: {}", replica_text(&to.replicas[index]));
    }
    for index in removed {
        say!("{remove} replica {index} of the old set: {}", replica_text(&from.replicas[index]));
    }
    Ok(())
}

/// A progress bar that learns its length later.
struct Bar {
    verb: &'static str,
    is_wanted: bool,
    shown: Option<Progress>,
}

impl Bar {
    fn new(verb: &'static str, is_wanted: bool) -> Self {
        Self { verb, is_wanted, shown: None }
    }

    fn step(&mut self, step: Step) {
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
