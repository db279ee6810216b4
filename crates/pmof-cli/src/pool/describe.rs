//! `pmof pool info` for pool sets: what their parts and hosts report.

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
};

use pmof::causes;
use pmof_console::{output, reach::ConnectArgs};
use pmof_pool::{PartInfo, RemoteState, ReplicaFound, ReplicaInfo};
use pmof_pool_set::{
    ContentsState, Features, Misfit, PartSize, PoolHeader, PoolKind, RemoteSpec, ReplicaSpec, set_at, uuid_text,
};
use serde::Serialize;

use super::utc::utc;

/// A pool set as described by its parts.
#[derive(Debug, Serialize)]
pub(crate) struct SetReport {
    set: PathBuf,
    options: Vec<&'static str>,
    /// What is wrong with the names of the parts: two of them are one file.
    problem: Option<String>,
    replicas: Vec<ReplicaReport>,
}

#[derive(Debug, Serialize)]
struct ReplicaReport {
    index: usize,
    /// `sound`, `empty` (created and never written) or `damaged`, by their first bytes; `null` if those cannot be read.
    contents: Option<&'static str>,
    /// What is wrong with the contents.
    damage: Option<&'static str>,
    /// Why it is not one of the set's replicas: it belongs to another pool, or is linked to replicas that the set does not name.
    misfits: Vec<String>,
    remote: Option<RemoteReport>,
    parts: Vec<PartReport>,
}

#[derive(Debug, Serialize)]
struct RemoteReport {
    node: String,
    set: PathBuf,
    /// `sound`, `in_use`, `unsound` or `not_reached`.
    state: &'static str,
    /// The error of the host, or of the connection to it, if it is not sound.
    reason: Option<String>,
    len_bytes: Option<u64>,
    uuid: Option<String>,
}

impl RemoteReport {
    fn new(remote: &RemoteSpec, found: &RemoteState) -> Self {
        let (state, reason, known) = match found {
            RemoteState::Sound { attributes, len_bytes, .. } => ("sound", None, Some((attributes, *len_bytes))),
            RemoteState::Busy(reason) => ("in_use", Some(reason), None),
            RemoteState::Unsound(reason) => ("unsound", Some(reason), None),
            RemoteState::Unreached(reason) => ("not_reached", Some(reason), None),
            _ => ("not_reached", None, None),
        };
        Self {
            node: remote.node.clone(),
            set: remote.set.clone(),
            state,
            reason: reason.cloned(),
            len_bytes: known.map(|(_, len_bytes)| len_bytes),
            uuid: known.map(|(attributes, _)| uuid_text(&attributes.uuid)),
        }
    }

    /// Why it is not described, or is not sound.
    fn problem(&self, index: usize) -> Option<String> {
        let (set, node, reason) =
            (self.set.display(), &self.node, self.reason.as_deref().unwrap_or("it gives no reason"));
        match self.state {
            "sound" | "in_use" => None,
            "unsound" => Some(format!("replica {index}, {set} on {node}, is not sound: {reason}")),
            _ => Some(format!("replica {index}, {set} on {node}, was not reached: {reason}")),
        }
    }
}

#[derive(Debug, Serialize)]
struct PartReport {
    path: PathBuf,
    /// As given in the set; `None` for `AUTO`.
    len_bytes: Option<u64>,
    header: Option<HeaderReport>,
    /// Why an expected header cannot be shown.
    problem: Option<String>,
}

#[derive(Debug, Serialize)]
struct HeaderReport {
    kind: Option<&'static str>,
    signature: String,
    major: u32,
    features: Vec<&'static str>,
    /// Unknown bits: those of another program, or of a newer one.
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
            features: header.features.known().map(pmof_pool_set::Feature::name).collect(),
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

/// Describes the pool set at `path` from its file and the headers of its parts, without locking them; asks hosts for their
/// replicas. Changes nothing.
pub(crate) fn describe(path: &Path, connect: ConnectArgs) -> anyhow::Result<SetReport> {
    let set = set_at(path)?;
    let options = [(set.options.single_header, "SINGLEHDR"), (set.options.no_headers, "NOHDRS")];
    let options: Vec<_> = options.into_iter().filter(|(is_set, _)| *is_set).map(|(_, name)| name).collect();
    let info = connect.set(set.clone()).info();
    let replicas = set.replicas.iter().zip(info.replicas).enumerate();
    let replicas = replicas.map(|(index, (spec, info))| ReplicaReport::new(index, spec, &info)).collect();
    let problem = info.files.err().map(|error| causes(&error).to_string());
    Ok(SetReport { set: path.into(), options, problem, replicas })
}

impl ReplicaReport {
    fn new(index: usize, spec: &ReplicaSpec, info: &ReplicaInfo) -> Self {
        let (contents, damage) = match info.found.contents() {
            Some(ContentsState::Sound) => (Some("sound"), None),
            Some(ContentsState::Empty) => (Some("empty"), None),
            Some(ContentsState::Damaged(damage)) => (Some("damaged"), Some(damage)),
            None => (None, None),
        };
        let of_others = |misfit: &&Misfit| matches!(misfit, Misfit::OtherSet { .. } | Misfit::Neighbour { .. });
        let misfits = info.misfits.iter().filter(of_others).map(ToString::to_string).collect();
        let (mut remote, mut parts) = (None, Vec::new());
        match (spec, &info.found) {
            (ReplicaSpec::Local(specs), ReplicaFound::Here { parts: found, .. }) => {
                parts.extend(specs.iter().zip(found).map(|(spec, part)| PartReport::new(spec.size, part)));
            }
            (ReplicaSpec::Remote(spec), ReplicaFound::There(state)) => remote = Some(RemoteReport::new(spec, state)),
            _ => {}
        }
        Self { index, contents, damage, misfits, remote, parts }
    }

    /// What is wrong with its contents. The contents of a pool that is being opened may look damaged.
    fn problem(&self) -> Option<String> {
        let is_open = self.parts.iter().any(|part| part.header.as_ref().is_some_and(|header| header.open_for_writing));
        let damage = self.damage.filter(|_| !is_open)?;
        Some(format!("replica {} is not sound: {damage}", self.index))
    }
}

impl PartReport {
    fn new(size: PartSize, part: &PartInfo) -> Self {
        let len_bytes = match size {
            PartSize::Bytes(len_bytes) => Some(len_bytes),
            PartSize::Auto => None,
        };
        let (header, problem) = match &part.header {
            Some(Ok(header)) => (Some(HeaderReport::new(header)), None),
            Some(Err(error)) => (None, Some(causes(error).to_string())),
            None => (None, None),
        };
        Self { path: part.path.clone(), len_bytes, header, problem }
    }
}

impl SetReport {
    /// Whether more is wrong than that a replica was not reached.
    pub(crate) fn is_unsound(&self) -> bool {
        let is_unsound = |replica: &ReplicaReport| {
            let is_there = replica.remote.as_ref().is_some_and(|remote| remote.state == "unsound");
            let has_parts = replica.parts.iter().any(|part| part.problem.is_some());
            is_there || has_parts || replica.problem().is_some() || !replica.misfits.is_empty()
        };
        self.problem.is_some() || self.replicas.iter().any(is_unsound)
    }

    /// What is wrong with the first part that lacks the sound header it should have, and with each remote replica.
    pub(crate) fn problem(&self) -> Option<String> {
        let mut parts = self.replicas.iter().flat_map(|replica| &replica.parts);
        let part = parts.find_map(|part| part.problem.as_ref());
        let part = part.map(|problem| format!("{} is not sound: {problem}", self.set.display()));
        let remotes = self.replicas.iter().filter_map(|replica| replica.remote.as_ref()?.problem(replica.index));
        let remotes = remotes.map(|problem| format!("{}: {problem}", self.set.display()));
        let contents = self.replicas.iter().filter_map(ReplicaReport::problem);
        let contents = contents.map(|problem| format!("{}: {problem}", self.set.display()));
        let misfits = self.replicas.iter().filter(|replica| !replica.misfits.is_empty()).map(|replica| {
            format!("{}: replica {} does not fit: {}", self.set.display(), replica.index, replica.misfits.join(", "))
        });
        let files = self.problem.as_ref().map(|problem| format!("{} cannot be used: {problem}", self.set.display()));
        let problems: Vec<_> = files.into_iter().chain(part).chain(remotes).chain(contents).chain(misfits).collect();
        (!problems.is_empty()).then(|| problems.join("; "))
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
        let mut contents = Vec::new();
        for replica in &self.replicas {
            if let Some(remote) = &replica.remote {
                let size = remote.len_bytes.map(|bytes| format!(", {}", output::size(bytes))).unwrap_or_default();
                let place = format!("{} on {}{size}", remote.set.display(), remote.node);
                line(&format!("replica {}", replica.index), &place);
                match (remote.state, &remote.reason) {
                    ("not_reached", Some(reason)) => line("", &format!("not reached: {reason}")),
                    (_, Some(reason)) => line("", reason),
                    _ => {}
                }
            }
            match (replica.contents, replica.damage) {
                (Some("empty"), _) => contents.push(format!("replica {} was created and never written", replica.index)),
                (_, Some(damage)) => contents.push(format!("replica {}: {damage}", replica.index)),
                _ => {}
            }
            contents.extend(replica.misfits.iter().map(|misfit| format!("replica {}: {misfit}", replica.index)));
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
        if let Some(problem) = &self.problem {
            line("", problem);
        }
        for (index, words) in contents.iter().enumerate() {
            line(if index == 0 { "contents" } else { "" }, words);
        }
        text
    }
}
