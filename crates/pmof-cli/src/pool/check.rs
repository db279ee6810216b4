//! `pmof pool check`.

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use clap::{Args, error::ErrorKind};
use pmof_console::{
    output::{self, say},
    reach::ConnectArgs,
    words::parsed,
};
use pmof_pool_set::{
    BlockTable, CheckReport, EMPTY, Mismatch, PoolKind, PoolSet, ReplicaSpec, ReplicaState, part_header, set_at,
};
use serde::Serialize;

use super::{
    place::PoolPlace,
    replicas,
    sets::{Bar, replica_text},
};
use crate::failure::Differs;

/// Read every replica in full and compare them
///
/// Of a pool at URLs, which has to be closed, the members in sync are read and nothing is changed: `pmof pool scrub` repairs. The exit status is 3 where one is not sound or differs, and 1 where one could not be read and the rest is sound.
#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// Pool set file, or a pool's only part; or replicas of a pool: `tcp://HOST:PORT/POOL` and the like, of which those that are not named are found
    #[arg(value_name = "URL|PATH", required = true, value_parser = parsed::<PoolPlace>)]
    places: Vec<PoolPlace>,
    /// Print one JSON object, and show no progress
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct CheckJson {
    set: PathBuf,
    kind: Option<&'static str>,
    is_sound: bool,
    compared_with: Option<usize>,
    compared_bytes: u64,
    replicas: Vec<CheckedJson>,
    majority: Option<MajorityJson>,
    apart: Option<ApartJson>,
    /// Why `pmof pool sync` would refuse for any reason but a majority; otherwise `null`.
    sync_refusal: Option<String>,
}

/// Replicas that agree with each other and differ from another one.
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
    /// `sound`, `equal`, `empty`, `differs`, `unsound` or `not_checked`.
    state: &'static str,
    /// The host that has it; `null` for local replicas.
    node: Option<String>,
    /// Why it was not checked, or not completely.
    reason: Option<String>,
    problems: Vec<String>,
    mismatch_count: u64,
    mismatches: Vec<MismatchJson>,
    unused_mismatch_count: u64,
    /// Bytes that differ in unused space.
    unused_differing_bytes: u64,
    /// Bytes that differ in what a running program keeps for itself.
    runtime_differing_bytes: u64,
    /// Headers whose shutdown state has a wrong checksum.
    torn_shutdown_states: u64,
}

#[derive(Debug, Serialize)]
struct MismatchJson {
    offset: u64,
    len_bytes: u64,
    part: Option<usize>,
    part_offset: Option<u64>,
}

/// A file or device that is neither a set nor a pool, but a block table.
fn check_block_table(path: &Path, is_json: bool) -> anyhow::Result<bool> {
    let is_named = PoolSet::is_set_file(path).unwrap_or(true) || part_header(path).is_ok();
    let Some(BlockTable { defect }) = (if is_named { None } else { BlockTable::at(path)? }) else {
        return Ok(false);
    };
    if is_json {
        let (replicas, majority, sync_refusal) = (Vec::new(), None, defect.map(str::to_owned));
        let (set, is_sound, apart) = (path.to_owned(), defect.is_none(), None);
        let (compared_with, compared_bytes) = (None, 0);
        let kind = Some("btt");
        output::print_json(&CheckJson {
            set,
            kind,
            is_sound,
            compared_with,
            compared_bytes,
            replicas,
            majority,
            apart,
            sync_refusal,
        })?;
    }
    match defect {
        Some(defect) => {
            let text = format!("{}, a block table (BTT), is not sound: {defect}", path.display());
            return Err(Differs::error(text));
        }
        None if is_json => {}
        None => say!("{}: a block table (BTT) that is sound by itself", path.display()),
    }
    Ok(true)
}

pub(crate) fn run<'a>(args: &'a CheckArgs, connect: ConnectArgs) -> anyhow::Result<()> {
    let url = |place: &'a PoolPlace| match place {
        PoolPlace::Url(url) => Some(url),
        PoolPlace::Path(_) => None,
    };
    match (&args.places[..], args.places.iter().map(url).collect::<Option<Vec<_>>>()) {
        ([PoolPlace::Path(path)], _) => check_set(path, args.json, connect),
        (_, Some(urls)) => replicas::check(&urls, args.json, connect),
        _ => {
            let text = "name one pool set file, or replicas of one pool by their URLs\n";
            Err(clap::Error::raw(ErrorKind::ArgumentConflict, text).into())
        }
    }
}

fn check_set(path: &Path, is_json: bool, connect: ConnectArgs) -> anyhow::Result<()> {
    if check_block_table(path, is_json)? {
        return Ok(());
    }
    let set = set_at(path)?;
    let mut bar = Bar::new("comparing", !is_json);
    let report = connect.set(set.clone()).check(&mut |step| bar.step(step));
    drop(bar);
    let report = report.with_context(|| format!("cannot check {}", path.display()))?;
    if is_json {
        output::print_json(&check_json(path, &set, &report))?;
    } else {
        output::print(&check_text(path, &set, &report))?;
    }
    if report.is_sound() {
        return Ok(());
    }
    let advice = match (&report.sync_refusal, &report.apart, &report.majority) {
        (Some(refusal), ..) => format!("`pmof pool sync` cannot repair it: {refusal}"),
        (None, Some(apart), _) => format!("{apart}; `pmof pool sync --from N` copies what replica N holds"),
        (None, None, Some(majority)) => format!(
            "`pmof pool sync --from {}` copies what most replicas hold, `--from {}` what the first sound one holds, which was written last if \
             the program was killed",
            majority.replicas.first().unwrap_or(&0),
            majority.against
        ),
        (None, None, None) => match report.compared_with {
            Some(first) if (0..report.replicas.len()).any(|index| report.state(index) == ReplicaState::Differs) => {
                format!(
                    "`pmof pool sync` copies what replica {first} holds to the others, `--from N` what replica N holds; nothing says which was \
                     written last: {}",
                    undecided_text(first, report.kind)
                )
            }
            _ => "`pmof pool sync` repairs it".to_owned(),
        },
    };
    let unchecked: Vec<_> = report.unchecked().map(|(index, _)| named(&set, index)).collect();
    match (&unchecked[..], report.is_sound_so_far()) {
        ([], _) => Err(Differs::error(format!("{} is not sound; {advice}", path.display()))),
        (_, true) => bail!("{}: not checked: {}; the rest is sound", path.display(), unchecked.join(", ")),
        (_, false) => Err(Differs::error(format!(
            "{}: not checked: {}; the rest is not sound; {advice}",
            path.display(),
            unchecked.join(", ")
        ))),
    }
}

/// What an operator must know to choose between replicas that differ.
pub(super) fn undecided_text(first: usize, kind: Option<PoolKind>) -> String {
    let is_right = if first == 0 {
        "programs write replica 0 first, so it is right after a crash, and wrong if it was damaged".to_owned()
    } else {
        format!("replica {first} is wrong if it was damaged")
    };
    let objects = match kind {
        Some(PoolKind::Obj) => {
            "; bytes of objects that were allocated and never written may differ too, in the first replica only, and mean nothing"
        }
        _ => "",
    };
    is_right + objects
}

/// A replica's number and place.
fn named(set: &PoolSet, index: usize) -> String {
    format!("replica {index} ({})", replica_text(&set.replicas[index]))
}

fn state_name(state: ReplicaState) -> &'static str {
    match state {
        ReplicaState::Sound => "sound",
        ReplicaState::Equal => "equal",
        ReplicaState::Empty => "empty",
        ReplicaState::Differs => "differs",
        ReplicaState::Unsound => "unsound",
        ReplicaState::Unchecked => "not_checked",
    }
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

fn check_json(path: &Path, set: &PoolSet, report: &CheckReport) -> CheckJson {
    let mismatch = |mismatch: &Mismatch| MismatchJson {
        offset: mismatch.offset,
        len_bytes: mismatch.len_bytes,
        part: mismatch.part.map(|(part, _)| part),
        part_offset: mismatch.part.map(|(_, offset)| offset),
    };
    let replicas = report.replicas.iter().enumerate().map(|(index, replica)| CheckedJson {
        index,
        state: state_name(report.state(index)),
        node: match &set.replicas[index] {
            ReplicaSpec::Remote(remote) => Some(remote.node.clone()),
            ReplicaSpec::Local(_) => None,
        },
        reason: replica.unchecked.clone(),
        problems: replica.problems.clone(),
        mismatch_count: replica.mismatch_count,
        mismatches: replica.mismatches.iter().map(mismatch).collect(),
        unused_mismatch_count: replica.unused_count,
        unused_differing_bytes: replica.unused_bytes,
        runtime_differing_bytes: replica.runtime_bytes,
        torn_shutdown_states: replica.torn_shutdown_states,
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
        compared_with: report.compared_with,
        compared_bytes: report.compared_bytes,
        replicas: replicas.collect(),
        majority,
        apart: report.apart.as_ref().map(|apart| ApartJson { source: apart.source, replicas: apart.replicas.clone() }),
        sync_refusal: report.sync_refusal.clone(),
    }
}

/// What cannot be judged about an only replica: only the heap of an object pool tells about parts without a header.
fn unjudged(set: &PoolSet, report: &CheckReport) -> Option<String> {
    let [replica] = &set.replicas[..] else { return None };
    let later = replica.local().and_then(|parts| parts.get(1..)).unwrap_or_default();
    let is_judged = !set.options.single_header || report.kind == Some(PoolKind::Obj);
    if later.is_empty() || is_judged || report.state(0) != ReplicaState::Sound {
        return None;
    }
    let paths: Vec<_> = later.iter().map(|part| part.path.display().to_string()).collect();
    let whose = if later.len() == 1 { "is the pool's: it has" } else { "are the pool's: they have" };
    Some(format!("whether {} {whose} no header, and there is no other replica to compare with", paths.join(", ")))
}

fn check_text(path: &Path, set: &PoolSet, report: &CheckReport) -> String {
    /// Mismatches that are listed one by one.
    const TOLD: usize = 10;
    let mut text = String::new();
    // Writing to a string cannot fail.
    let mut line = |line: String| {
        let _ = writeln!(text, "{line}");
    };
    for (index, replica) in report.replicas.iter().enumerate() {
        match (report.state(index), &replica.unchecked, report.compared_with) {
            (_, Some(reason), _) => line(format!("replica {index}: not checked: {reason}")),
            (ReplicaState::Empty, ..) if !report.is_sound() => line(format!("replica {index}: {EMPTY}")),
            (ReplicaState::Sound, ..) if !report.is_sound() => line(format!("replica {index}: sound by itself")),
            (ReplicaState::Equal, _, Some(first)) if !report.is_sound() => {
                line(format!("replica {index}: equal to replica {first}"));
            }
            _ => {}
        }
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
                "replica {index}: {} in unused heap space, which means nothing (libpmemobj writes there in the \
                 first replica only)",
                differing(replica.unused_bytes)
            ));
        }
        if replica.runtime_bytes > 0 {
            line(format!(
                "replica {index}: {} in the runtime state of a program, which replicas do not share",
                differing(replica.runtime_bytes)
            ));
        }
        if replica.torn_shutdown_states > 0 {
            line(format!(
                "replica {index}: the shutdown state of {} has a wrong checksum: it was being written when its program died, or is damaged; the \
                 contents do not depend on it, and the next opening writes it anew",
                counted(replica.torn_shutdown_states, "header")
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
    if let Some(unjudged) = unjudged(set, report) {
        line(format!("replica 0: not checked: {unjudged}"));
    }
    if report.is_sound() {
        let (path, bytes) = (path.display(), output::size(report.compared_bytes));
        let is_same = report.replicas.iter().all(|replica| replica.unused_bytes == 0 && replica.runtime_bytes == 0);
        line(match report.replicas.len() {
            1 if report.has_empty() => format!("{path}: the replica is empty: it was created and never written"),
            count if report.has_empty() => format!("{path}: all {count} replicas are empty: created and never written"),
            1 if unjudged(set, report).is_some() => {
                format!("{path}: the rest of the replica is sound by itself, {bytes} read")
            }
            1 => format!("{path}: the replica is sound by itself, {bytes} read; there is no other to compare it with"),
            count if is_same => format!("{path}: {count} replicas are equal, {bytes} of each compared"),
            count => format!("{path}: {count} replicas are equal in all that is in use, {bytes} of each compared"),
        });
    }
    text
}
