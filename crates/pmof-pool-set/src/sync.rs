//! Synchronizes a set: restores damaged replicas and makes all equal.

use std::{ops::Range, path::PathBuf};

use pmof_mem::{Declaration, System};

use crate::{
    AccessError, Attributes, Comparison, Contents, ContentsState, Copied, EMPTY, Feature, LocalReplica, OpenFor,
    PendingDigests, PoolKind, PoolSet, PoolSetError, Reached, RemoteReplicas, ReplicaAccess, ReplicaSpec,
    contents_state, distinct,
    error::UNFINISHED,
    format::len_bytes_needed,
    made_at::{is_made_elsewhere, new_uuid_at},
    part::places_left,
    replica::{self, NewParts, Restoration, Rooms, check_restorable, check_unused},
    uuid_text,
    vote::{self, Opinions, Ranges, of_pair},
};

mod error;
mod headerless;
mod kept;
mod links;
mod misplaced;
mod newer;
mod options;
mod same;
mod sample;
#[cfg(test)]
mod tests;

pub use error::{MisplacedPart, SyncError};
pub(crate) use headerless::judge_headerless;
pub(crate) use kept::check_kept;
pub(crate) use links::check_links;
pub(crate) use misplaced::check_order;
pub(crate) use newer::check_newer;
pub use newer::opening_count;
pub use options::SyncOptions;
pub(crate) use same::{check_elsewhere, check_not_made, check_uuid};
use sample::Sample;

/// Progress of an operation on all replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The total number of bytes to compare.
    Total(u64),
    /// The number of bytes compared since the last call.
    Done(u64),
}

/// What was wrong with one replica, and what was done, or would be done in a dry run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncedReplica {
    /// Its place in the set, from 0.
    pub index: usize,
    /// Why it had to be recreated; `None` if it was sound.
    pub damage: Option<String>,
    /// What differed and was copied.
    pub copied: Copied,
    /// Whether its links to the other replicas were wrong.
    pub was_unlinked: bool,
}

/// What was done for a set, or would be done in a dry run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncReport {
    /// The replica that the others were made equal to.
    pub source: usize,
    /// Length of the pool in bytes.
    pub len_bytes: u64,
    /// Whether its links to the others were wrong.
    pub source_was_unlinked: bool,
    /// The others.
    pub replicas: Vec<SyncedReplica>,
    /// In a dry run: sound replicas, by their places in the set, whose used bytes would be overwritten although nothing shows that
    /// the source is right. Two replicas have no majority.
    pub undecided: Vec<usize>,
}

impl SyncReport {
    /// Whether nothing had to be changed.
    pub fn is_nothing(&self) -> bool {
        let is_done =
            |replica: &SyncedReplica| replica.damage.is_none() && replica.copied.blocks == 0 && !replica.was_unlinked;
        !self.source_was_unlinked && self.replicas.iter().all(is_done)
    }
}

/// The state in which a replica was found.
pub(crate) enum Found {
    Whole(Box<dyn ReplicaAccess>),
    /// It is sound, and all zeros: not a source if another one holds data.
    Empty(Box<dyn ReplicaAccess>),
    /// It is incomplete: the sync that was creating it was interrupted.
    Unfinished(Box<dyn ReplicaAccess>),
    Damaged(String),
}

/// Replicas that differ and whose links do not match the set: they were used in other sets since,
/// and nothing shows which was written last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Apart {
    /// The one to copy from.
    pub source: usize,
    /// Those that differ from it, by their places in the set, from 0.
    pub replicas: Vec<usize>,
}

impl std::fmt::Display for Apart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { source, replicas } = self;
        write!(
            f,
            "replica {source} differs from {}, and the replicas of the set are not linked to each other: they were used apart, and \
                   nothing says which was written last",
            error::list(replicas)
        )
    }
}

/// Synchronizes all replicas of a set: recreates those that are damaged or missing, copies what differs from the
/// lowest-numbered sound one that holds something or from the one that is named, and links them. It can be interrupted at any time and started again: a replica that is being created or overwritten has no
/// valid header, or is marked as [unfinished](Attributes::unfinished), until it is complete.
///
/// Where replicas differ and are not linked as the set has them, they were used apart ([`SyncError::Apart`]); where more than half of the sound replicas agree against that one in bytes that are in use, nothing is done until the operator says
/// which is right: [`SyncError::Outvoted`].
///
/// Errors: [`SyncError`].
pub fn sync(
    set: &PoolSet,
    options: &SyncOptions,
    remotes: &mut dyn RemoteReplicas,
    progress: &mut dyn FnMut(Step),
) -> Result<SyncReport, SyncError> {
    sync_found(set, options, None, remotes, progress)
}

/// What is known about the replicas of a set during a transform.
#[derive(Clone, Debug)]
pub(crate) struct Old {
    /// They were used together, whatever the links of the new set say.
    pub(crate) were_together: bool,
    /// Places in the new set of whole replicas that the old one does not have, which a transform that was ended may have made.
    pub(crate) made: Vec<usize>,
}

/// `old`: all replicas were looked at in the old set, or are new.
pub(crate) fn sync_found(
    set: &PoolSet,
    options: &SyncOptions,
    old: Option<&Old>,
    remotes: &mut dyn RemoteReplicas,
    progress: &mut dyn FnMut(Step),
) -> Result<SyncReport, SyncError> {
    let SyncOptions { declaration, dry_run, from } = *options;
    distinct::check_set(set).map_err(of_files)?;
    // A transform has done so.
    if old.is_none() {
        check_elsewhere(set, remotes)?;
    }
    if dry_run {
        for (index, parts) in set.replicas.iter().enumerate().filter_map(|(at, spec)| Some((at, spec.local()?))) {
            check_unused(parts).map_err(|error| SyncError::Replica { index, source: error.into() })?;
        }
    }
    let access = if dry_run { OpenFor::Read } else { OpenFor::Write };
    let mut found = Vec::with_capacity(set.replicas.len());
    for (index, spec) in set.replicas.iter().enumerate() {
        match look(index, spec, set, access, declaration, remotes) {
            Ok(replica) => found.push(replica),
            Err(error) => return Err(close_unchanged(found, error)),
        }
    }
    let judged = judge_headerless(set, &mut found).and_then(|()| check_order(set, &mut found));
    let ordered = judged.and_then(|()| plan(set, &mut found, from, old.is_some()));
    let planned = ordered.and_then(|mut plan| {
        check_replicated(set, &plan)?;
        plan.is_linked |= old.is_some_and(|old| old.were_together);
        if from.is_none() {
            if old.is_none() {
                check_links(set, &mut found, |_| false)?;
            }
            check_opinions(&mut found, &plan)?;
            check_newer(&mut found, &plan)?;
            if dry_run && old.is_none() {
                plan.undecided = undecided(&mut found, &plan)?;
            }
        }
        if let Some(old) = old {
            check_equal(set, &mut found, &plan, &old.made)?;
        }
        check_replaceable(set, &mut found, &plan, remotes)?;
        let is_asked = from.is_none().then(|| check_kept(set, &mut found, &plan, declaration, remotes));
        is_asked.unwrap_or(Ok(())).map(|()| plan)
    });
    match planned {
        Ok(plan) => {
            let done = Work { set, declaration, dry_run, remotes, progress }.run(found, &plan);
            let halfway = |error| SyncError::Halfway { source: Box::new(error) };
            if old.is_some() && !dry_run { done.map_err(halfway) } else { done }
        }
        Err(error) => Err(close_unchanged(found, error)),
    }
}

/// Nothing was changed; the original failure is the one to report.
pub(crate) fn close_unchanged(found: Vec<Found>, error: SyncError) -> SyncError {
    for found in found {
        if let Found::Whole(replica) | Found::Empty(replica) | Found::Unfinished(replica) = found {
            let _ = replica.close();
        }
    }
    error
}

/// What is copied from where, and the new contents of the headers.
pub(crate) struct Plan {
    source: usize,
    known: Attributes,
    len_bytes: u64,
    ring: Vec<Attributes>,
    /// Whether the sound replicas are already linked this way.
    pub(crate) is_linked: bool,
    /// As in [`SyncReport`].
    undecided: Vec<usize>,
}

impl Plan {
    /// The UUID of the pool set.
    pub(crate) fn poolset_uuid(&self) -> [u8; 16] {
        self.known.poolset_uuid
    }

    /// Whether every replica is linked exactly as in the set.
    pub(crate) fn is_done(&self, found: &mut [Found]) -> Result<bool, SyncError> {
        for (index, found) in found.iter_mut().enumerate() {
            let own = whole(found)?.attributes().map_err(|source| SyncError::Replica { index, source })?;
            if !names(&own, self.ring[index].next_uuid, self.ring[index].prev_uuid) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Errors: those for which a set cannot be synchronized, before anything is compared. `others_are_new`: those that cannot be read
/// are yet to be made.
pub(crate) fn plan(
    set: &PoolSet,
    found: &mut [Found],
    from: Option<usize>,
    others_are_new: bool,
) -> Result<Plan, SyncError> {
    let source = match from {
        Some(from) => named_source(found, from)?,
        None => source_of(found, others_are_new)?,
    };
    let first = whole(&mut found[source])?;
    let failed = |error| SyncError::Replica { index: source, source: error };
    let known = first.attributes().map_err(failed)?;
    let len_bytes = pool_len_bytes(set, &**first, &known);
    let mut number = |offset: u64| {
        let mut bytes = [0; 8];
        first.contents().read(offset, &mut bytes).map(|()| u64::from_le_bytes(bytes))
    };
    let kind = PoolKind::of_signature(&known.signature);
    let expected = kind.map_or(Ok(0), |kind| len_bytes_needed(kind, &mut number)).map_err(failed)?;
    if expected > len_bytes {
        let index = shortest(set, &known).unwrap_or(source);
        return Err(SyncError::TooSmall { index, len_bytes, expected });
    }
    let ring = ring(set, found, source, &known, others_are_new)?;
    let is_linked = is_linked(found, &ring)?;
    Ok(Plan { source, known, len_bytes, ring, is_linked, undecided: Vec::new() })
}

/// What a replica holds by the set; `None` for those of other machines.
fn len_bytes_by_set(replica: &ReplicaSpec, known: &Attributes) -> Option<u64> {
    crate::part::len_bytes_by_set(replica.local()?, known.features().has(Feature::SingleHeader))
}

/// The length of the pool: what its shortest local replica is long, which a broken one is by its set.
fn pool_len_bytes(set: &PoolSet, first: &dyn ReplicaAccess, known: &Attributes) -> u64 {
    let local = set.replicas.iter().filter_map(|replica| len_bytes_by_set(replica, known));
    local.chain([first.len_bytes()]).min().unwrap_or(0)
}

/// The place of the shortest local replica.
fn shortest(set: &PoolSet, known: &Attributes) -> Option<usize> {
    let lengths = set.replicas.iter().enumerate();
    let lengths = lengths.filter_map(|(index, replica)| Some((len_bytes_by_set(replica, known)?, index)));
    lengths.min().map(|(_, index)| index)
}

/// Whether all whole replicas name the neighbours that they have in the ring, or in that of the whole ones, to which the set adds
/// others.
fn is_linked(found: &mut [Found], ring: &[Attributes]) -> Result<bool, SyncError> {
    let mut whole = Vec::with_capacity(found.len());
    for (index, found) in found.iter_mut().enumerate() {
        if let Found::Whole(replica) = found {
            let own = replica.attributes().map_err(|source| SyncError::Replica { index, source })?;
            whole.push((own, ring[index]));
        }
    }
    let count = whole.len();
    let is_in_ring = whole.iter().all(|(own, planned)| names(own, planned.next_uuid, planned.prev_uuid));
    let is_before = whole
        .iter()
        .enumerate()
        .all(|(at, (own, _))| names(own, whole[(at + 1) % count].0.uuid, whole[(at + count - 1) % count].0.uuid));
    Ok(is_in_ring || is_before)
}

fn names(own: &Attributes, next_uuid: [u8; 16], prev_uuid: [u8; 16]) -> bool {
    (own.next_uuid, own.prev_uuid) == (next_uuid, prev_uuid)
}

/// The replica that somebody named, which must be one that can be believed.
fn named_source(found: &[Found], from: usize) -> Result<usize, SyncError> {
    let holds_something = found.iter().any(|found| matches!(found, Found::Whole(_)));
    let reason = match found.get(from) {
        None => {
            return Err(SyncError::Unsupported {
                why: "the set has no replica of that number",
                mend: "name one that `pmof pool info` shows; the first is 0",
            });
        }
        Some(Found::Damaged(reason)) => reason.clone(),
        Some(Found::Unfinished(_)) => UNFINISHED.to_owned(),
        Some(Found::Empty(_)) if holds_something => format!("{EMPTY}, but another one holds data"),
        Some(Found::Whole(_) | Found::Empty(_)) => return Ok(from),
    };
    Err(SyncError::NotASource { index: from, reason })
}

/// Fails where the set has replicas and PMDK's library for the pool knows none: it would not open the pool any more.
fn check_replicated(set: &PoolSet, plan: &Plan) -> Result<(), SyncError> {
    let kind = PoolKind::of_signature(&plan.known.signature);
    if set.replicas.len() < 2 || kind.is_none_or(PoolKind::can_be_replicated) {
        return Ok(());
    }
    Err(SyncError::Unsupported {
        why: "only object pools can have replicas",
        mend: "name only the first replica in the pool set file; to copy a log or block pool, copy its files while no program writes it",
    })
}

/// Fails where sound replicas differ from the source in what is in use, and most of them agree, or they were not used together.
fn check_opinions(found: &mut [Found], plan: &Plan) -> Result<(), SyncError> {
    if plan.is_linked && others(found, plan).len() < 2 {
        return Ok(());
    }
    let differing = differing(found, plan)?;
    check_agreed(found, plan, &differing)
}

/// The places of sound replicas that differ from the source in what is in use, where not more than half hold what the source holds.
fn undecided(found: &mut [Found], plan: &Plan) -> Result<Vec<usize>, SyncError> {
    let differing = differing(found, plan)?;
    let voters = differing.len() + 1;
    let is_decided = |place: &Range<u64>| {
        let is_there = |range: &Range<u64>| range.start < place.end && place.start < range.end;
        let against = differing.iter().filter(|(_, ranges)| ranges.iter().any(is_there)).count();
        (voters - against) * 2 > voters
    };
    let of = differing.iter().filter(|(_, ranges)| !ranges.iter().all(is_decided));
    Ok(of.map(|(index, _)| *index).collect())
}

/// Fails where sound replicas differ from the source in what is in use: as sync does where it would ask, else with the first of them. Of
/// replicas that differ none may go before somebody has said which is right.
pub(crate) fn check_same(found: &mut [Found], plan: &Plan) -> Result<(), SyncError> {
    let differing = differing(found, plan)?;
    check_agreed(found, plan, &differing)?;
    let first = differing.into_iter().find_map(|(index, ranges)| Some((index, ranges.first()?.start)));
    match first {
        Some((index, offset)) => {
            let reason = format!("it differs from replica {}, first at offset {offset}", plan.source);
            Err(SyncError::NotSound { index, reason })
        }
        None => Ok(()),
    }
}

/// The places of whole replicas that are not the source.
fn others(found: &[Found], plan: &Plan) -> Vec<usize> {
    let is_whole = |index: &usize| *index != plan.source && matches!(found[*index], Found::Whole(_));
    (0..found.len()).filter(is_whole).collect()
}

/// Where they differ from the source, each.
fn differing(found: &mut [Found], plan: &Plan) -> Result<Vec<(usize, Ranges)>, SyncError> {
    let (source, kind) = (plan.source, PoolKind::of_signature(&plan.known.signature));
    let mut differing = Vec::new();
    for index in others(found, plan) {
        let len_bytes = whole(&mut found[index])?.len_bytes();
        let first = whole(&mut found[source])?;
        let len_bytes = first.len_bytes().min(len_bytes);
        let comparison = vote::comparison_with(&mut **first, kind, len_bytes);
        let comparison = comparison.map_err(|error| SyncError::Replica { index: source, source: error })?;
        let found = vote::differences(found, [source, index], &comparison, &mut |_| {})?;
        differing.push((index, found.told.into_iter().map(|difference| difference.range).collect()));
    }
    Ok(differing)
}

fn check_agreed(found: &mut [Found], plan: &Plan, differing: &[(usize, Ranges)]) -> Result<(), SyncError> {
    match vote::opinions(found, plan.source, plan.is_linked, differing)? {
        Opinions { apart: Some(apart), .. } => Err(SyncError::Apart { apart }),
        Opinions { majority: Some(majority), .. } => Err(SyncError::Outvoted { majority }),
        Opinions { .. } => Ok(()),
    }
}

/// Fails where a replica that is there already differs from the source: it was left behind, and may hold what no other has. One that
/// holds the same was made by a transform that was ended.
fn check_equal(set: &PoolSet, found: &mut [Found], plan: &Plan, made: &[usize]) -> Result<(), SyncError> {
    let (source, kind) = (plan.source, PoolKind::of_signature(&plan.known.signature));
    for index in made.iter().copied() {
        let is_equal = match &found[index] {
            // None of the others holds anything.
            _ if index == source => false,
            Found::Whole(_) => {
                let comparison = vote::comparison_with(&mut **whole(&mut found[source])?, kind, plan.len_bytes);
                let comparison = comparison.map_err(|error| SyncError::Replica { index: source, source: error })?;
                check_room(index, whole(&mut found[index])?.len_bytes(), plan.len_bytes)?;
                vote::differences(found, [source, index], &comparison, &mut |_| {})?.count == 0
            }
            Found::Empty(_) | Found::Unfinished(_) | Found::Damaged(_) => true,
        };
        if !is_equal {
            return Err(SyncError::MadeAlready { index, place: place_text(&set.replicas[index]) });
        }
    }
    Ok(())
}

fn place_text(spec: &ReplicaSpec) -> String {
    match spec {
        ReplicaSpec::Local(parts) => parts.first().map(|part| part.path.display().to_string()).unwrap_or_default(),
        ReplicaSpec::Remote(remote) => format!("{} on {}", remote.set.display(), remote.node),
    }
}

/// Fails where making a broken replica anew would overwrite, or remove, what is not of the pool, or cannot be done: for all of them,
/// before the first is touched.
pub(crate) fn check_replaceable(
    set: &PoolSet,
    found: &mut [Found],
    plan: &Plan,
    remotes: &mut dyn RemoteReplicas,
) -> Result<(), SyncError> {
    let member = plan.poolset_uuid();
    let mut rooms = Rooms::default();
    for (index, spec) in set.replicas.iter().enumerate() {
        if matches!(found[index], Found::Damaged(_)) {
            let checked = match spec {
                ReplicaSpec::Local(parts) => {
                    let least = plan.len_bytes;
                    let mut sample = Sample::of(&mut **whole(&mut found[plan.source])?, least);
                    let checked = replica::check_replaceable(parts, set.options, &member, least, &mut |at, bytes| {
                        sample.holds(at, bytes)
                    });
                    sample.end().map_err(|error| SyncError::Replica { index: plan.source, source: error })?;
                    let checked = checked.and_then(|()| check_restorable(parts, set.options, least, &mut rooms));
                    checked.map_err(AccessError::from)
                }
                ReplicaSpec::Remote(remote) => remotes.check_removable(remote, &member),
            };
            checked.map_err(|source| SyncError::Replica { index, source })?;
        }
    }
    Ok(())
}

/// Two parts are one file.
pub(crate) fn of_files((index, error): (usize, PoolSetError)) -> SyncError {
    SyncError::Replica { index, source: error.into() }
}

pub(crate) fn whole(found: &mut Found) -> Result<&mut Box<dyn ReplicaAccess>, SyncError> {
    match found {
        Found::Whole(replica) | Found::Empty(replica) => Ok(replica),
        Found::Unfinished(_) => Err(SyncError::NoSource { reasons: vec![UNFINISHED.to_owned()] }),
        Found::Damaged(reason) => Err(SyncError::NoSource { reasons: vec![reason.clone()] }),
    }
}

/// Opens a replica, if it is whole by itself.
pub(crate) fn look(
    index: usize,
    spec: &ReplicaSpec,
    set: &PoolSet,
    access: OpenFor,
    declaration: Option<Declaration>,
    remotes: &mut dyn RemoteReplicas,
) -> Result<Found, SyncError> {
    let failed = |source: AccessError| SyncError::Replica { index, source };
    match spec {
        ReplicaSpec::Local(parts) => match LocalReplica::open(parts, set.options, access, declaration) {
            // Without headers nothing says what it should hold.
            Ok(replica) if replica.attributes().is_none() => Ok(Found::Whole(Box::new(replica))),
            Ok(replica) => judged(Box::new(replica)).map_err(failed),
            Err(error) => match error.damage() {
                Some(damage) => Ok(Found::Damaged(damage)),
                None => Err(failed(error.into())),
            },
        },
        ReplicaSpec::Remote(remote) => match remotes.open(remote, 0, access).map_err(failed)? {
            Reached::Whole(mut replica) => {
                if replica.attributes().map_err(failed)?.is_unfinished() {
                    return Ok(Found::Unfinished(replica));
                }
                judged(replica).map_err(failed)
            }
            Reached::Damaged(reason) | Reached::HeadersDamaged(reason) => Ok(Found::Damaged(reason)),
        },
    }
}

/// What a replica with sound headers is by its contents.
fn judged(mut replica: Box<dyn ReplicaAccess>) -> Result<Found, AccessError> {
    let kind = PoolKind::of_signature(&replica.attributes()?.signature);
    match contents_state(kind, &mut *replica)? {
        ContentsState::Sound => Ok(Found::Whole(replica)),
        ContentsState::Empty => Ok(Found::Empty(replica)),
        ContentsState::Damaged(defect) => {
            let damage = format!("{}: {defect}", replica.name());
            replica.close()?;
            Ok(Found::Damaged(damage))
        }
    }
}

/// The lowest-numbered sound replica; if all are empty the first, unless one of the others may hold data.
fn source_of(found: &[Found], others_are_new: bool) -> Result<usize, SyncError> {
    if let Some(index) = found.iter().position(|found| matches!(found, Found::Whole(_))) {
        return Ok(index);
    }
    let reason = |found: &Found| match found {
        Found::Whole(_) | Found::Empty(_) => None,
        Found::Unfinished(_) => Some(UNFINISHED.to_owned()),
        Found::Damaged(reason) => Some(reason.clone()),
    };
    let mut reasons = found.iter().enumerate().filter_map(|(index, found)| Some((index, reason(found)?)));
    match found.iter().position(|found| matches!(found, Found::Empty(_))) {
        Some(index) if others_are_new => Ok(index),
        Some(index) => match reasons.next() {
            Some((other, reason)) => Err(SyncError::EmptySource { index, other, reason }),
            None => Ok(index),
        },
        None => {
            let reasons = reasons.map(|(index, reason)| format!("replica {index}: {reason}")).collect();
            Err(SyncError::NoSource { reasons })
        }
    }
}

struct Work<'a> {
    set: &'a PoolSet,
    declaration: Option<Declaration>,
    dry_run: bool,
    remotes: &'a mut dyn RemoteReplicas,
    progress: &'a mut dyn FnMut(Step),
}

impl Work<'_> {
    fn run(mut self, mut found: Vec<Found>, plan: &Plan) -> Result<SyncReport, SyncError> {
        let Plan { source, known, len_bytes, ring, .. } = plan;
        let (source, len_bytes) = (*source, *len_bytes);
        let mut is_source_empty = false;
        let mut first = match std::mem::replace(&mut found[source], Found::Damaged(String::new())) {
            Found::Whole(first) => first,
            Found::Empty(first) => {
                is_source_empty = true;
                first
            }
            Found::Unfinished(_) => return Err(SyncError::NoSource { reasons: vec![UNFINISHED.to_owned()] }),
            Found::Damaged(reason) => return Err(SyncError::NoSource { reasons: vec![reason] }),
        };
        let mut indexes: Vec<_> = (0..self.set.replicas.len()).filter(|index| *index != source).collect();
        // New replicas come first: if one cannot be created, the links of the sound ones are unchanged.
        indexes.sort_by_key(|index| !matches!(found[*index], Found::Damaged(_)));
        let comparison = Comparison::of_kind(PoolKind::of_signature(&known.signature), len_bytes);
        (self.progress)(Step::Total(comparison.len_bytes() * indexes.len() as u64));
        let (mut replicas, mut is_any_made) = (Vec::new(), false);
        for index in indexes {
            let taken = std::mem::replace(&mut found[index], Found::Damaged(String::new()));
            replicas.push(match taken {
                Found::Whole(other) => {
                    self.equal([source, index], &comparison, &mut *first, other, &ring[index], len_bytes)?
                }
                Found::Empty(other) => SyncedReplica {
                    damage: (!is_source_empty).then(|| EMPTY.to_owned()),
                    ..self.equal([source, index], &comparison, &mut *first, other, &ring[index], len_bytes)?
                },
                Found::Unfinished(other) => SyncedReplica {
                    damage: Some(UNFINISHED.to_owned()),
                    ..self.equal([source, index], &comparison, &mut *first, other, &ring[index], len_bytes)?
                },
                Found::Damaged(damage) => {
                    let is_one_of_several = is_any_made;
                    is_any_made = true;
                    let copied = if self.dry_run {
                        (self.progress)(Step::Done(comparison.len_bytes()));
                        Copied::default()
                    } else {
                        if let (Some(remote), true) = (self.set.replicas[index].remote(), is_one_of_several) {
                            check_not_made(ring, index, remote, self.remotes)?;
                        }
                        self.restored([source, index], &comparison, &mut *first, &ring[index], len_bytes)?
                    };
                    SyncedReplica { index, damage: Some(damage), copied, was_unlinked: false }
                }
            });
        }
        replicas.sort_by_key(|replica| replica.index);
        let failed = |error| SyncError::Replica { index: source, source: error };
        let source_was_unlinked = *known != ring[source];
        if !self.dry_run && source_was_unlinked {
            first.set_attributes(&ring[source]).map_err(failed)?;
        }
        first.close().map_err(failed)?;
        Ok(SyncReport { source, len_bytes, source_was_unlinked, replicas, undecided: plan.undecided.clone() })
    }

    /// Copies what differs to a sound replica, and links it.
    fn equal(
        &mut self,
        [source, index]: [usize; 2],
        comparison: &Comparison,
        first: &mut dyn ReplicaAccess,
        mut other: Box<dyn ReplicaAccess>,
        links: &Attributes,
        len_bytes: u64,
    ) -> Result<SyncedReplica, SyncError> {
        let failed = |error| SyncError::Replica { index, source: error };
        check_room(index, other.len_bytes(), len_bytes)?;
        let mut done = |bytes| (self.progress)(Step::Done(bytes));
        let known = other.attributes().map_err(failed)?;
        let was_unlinked = known != *links;
        let (copied, is_marked) = if self.dry_run {
            (comparison.would_copy(first.contents(), other.contents(), &mut done), false)
        } else {
            let mut overwritten = Overwritten { replica: &mut *other, links, is_marked: known.is_unfinished() };
            (comparison.copy(first.contents(), &mut overwritten, &mut done), overwritten.is_marked)
        };
        let copied = copied.map_err(|error| of_pair(source, index, error))?;
        if (was_unlinked || is_marked) && !self.dry_run {
            other.set_attributes(links).map_err(failed)?;
        }
        other.close().map_err(failed)?;
        Ok(SyncedReplica { index, damage: None, copied, was_unlinked })
    }

    /// Makes a replica anew, with all that the first holds; its headers come last.
    fn restored(
        &mut self,
        [source, index]: [usize; 2],
        comparison: &Comparison,
        first: &mut dyn ReplicaAccess,
        links: &Attributes,
        len_bytes: u64,
    ) -> Result<Copied, SyncError> {
        let failed = |error: AccessError| SyncError::Replica { index, source: error };
        let mut done = |bytes| (self.progress)(Step::Done(bytes));
        match &self.set.replicas[index] {
            ReplicaSpec::Local(parts) => {
                let system = System::real();
                let options = self.set.options;
                let beside = parts_beside(self.set, source, index);
                let (least, declaration) = (len_bytes, self.declaration);
                let restoration = Restoration { options, links, least, declaration, beside: &beside };
                let mut sample = Sample::of(first, len_bytes);
                let mut holds = |at: u64, bytes: &[u8]| sample.holds(at, bytes);
                let parts = NewParts::restore(&system, parts, &restoration, &mut holds);
                sample.end().map_err(|error| SyncError::Replica { index: source, source: error })?;
                let mut parts = parts.map_err(|error| failed(error.into()))?;
                check_room(index, parts.len_bytes(), len_bytes)?;
                let copied = comparison.copy(first.contents(), parts.contents(), &mut done);
                let copied = copied.map_err(|error| of_pair(source, index, error))?;
                let replica = parts.finish(&system, Some(links)).map_err(|error| failed(error.into()))?;
                replica.close().map_err(|error| failed(error.into()))?;
                Ok(copied)
            }
            ReplicaSpec::Remote(remote) => {
                // Until it holds all, nobody takes it for a source.
                let mut other = self.remotes.replace(remote, len_bytes, &links.unfinished()).map_err(failed)?;
                let mut done = |bytes| (self.progress)(Step::Done(bytes));
                let copied = comparison.copy(first.contents(), other.contents(), &mut done);
                let copied = copied.map_err(|error| of_pair(source, index, error))?;
                other.set_attributes(links).map_err(failed)?;
                other.close().map_err(failed)?;
                Ok(copied)
            }
        }
    }
}

/// The files of this machine's replicas but the one at `index`, those of the source first.
fn parts_beside(set: &PoolSet, source: usize, index: usize) -> Vec<PathBuf> {
    let others = std::iter::once(source).chain(0..set.replicas.len()).filter(|other| *other != index);
    let specs = others.filter_map(|other| set.replicas[other].local());
    specs.filter_map(|specs| places_left(specs).ok()).flatten().collect()
}

/// A replica that is made equal to another. From the first byte on it is neither what it was nor what it is to be, so it is marked
/// as unfinished before.
struct Overwritten<'r> {
    replica: &'r mut dyn ReplicaAccess,
    links: &'r Attributes,
    is_marked: bool,
}

impl Contents for Overwritten<'_> {
    fn data_ranges(&mut self, range: Range<u64>) -> Result<Vec<Range<u64>>, AccessError> {
        self.replica.contents().data_ranges(range)
    }

    fn start_digests(&mut self, range: Range<u64>, block_bytes: u64) -> PendingDigests<'_> {
        self.replica.contents().start_digests(range, block_bytes)
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), AccessError> {
        self.replica.contents().read(offset, into)
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), AccessError> {
        if !self.is_marked {
            self.replica.set_attributes(&self.links.unfinished())?;
            self.is_marked = true;
        }
        self.replica.contents().write(offset, bytes)
    }

    fn persist(&mut self, range: Range<u64>) -> Result<(), AccessError> {
        self.replica.contents().persist(range)
    }
}

fn check_room(index: usize, len_bytes: u64, expected: u64) -> Result<(), SyncError> {
    if len_bytes >= expected { Ok(()) } else { Err(SyncError::TooSmall { index, len_bytes, expected }) }
}

/// What the headers of all replicas must say, by what is known of those that are whole: `known` is what the source's says.
/// `others_are_new`: those that are not whole are others than those that their neighbours know.
fn ring(
    set: &PoolSet,
    found: &mut [Found],
    source: usize,
    known: &Attributes,
    others_are_new: bool,
) -> Result<Vec<Attributes>, SyncError> {
    let count = found.len();
    let mut uuids = vec![None; count];
    uuids[source] = Some(known.uuid);
    let mut all = vec![None; count];
    all[source] = Some(*known);
    for (index, found) in found.iter_mut().enumerate().filter(|(index, _)| *index != source) {
        if let Found::Whole(replica) | Found::Empty(replica) | Found::Unfinished(replica) = found {
            let attributes = replica.attributes().map_err(|source| SyncError::Replica { index, source })?;
            if attributes.poolset_uuid != known.poolset_uuid {
                let (found, expected) = (uuid_text(&attributes.poolset_uuid), uuid_text(&known.poolset_uuid));
                return Err(SyncError::OtherPool { index, found, expected });
            }
            check_uuid(&uuids, index, &attributes.uuid)?;
            uuids[index] = Some(attributes.uuid);
            all[index] = Some(attributes).filter(|attributes| !attributes.is_unfinished());
        }
    }
    // A broken one keeps the UUID that its neighbours know it by, if nobody else has that.
    for index in 0..count {
        if uuids[index].is_none() {
            let before = all[(index + count - 1) % count].map(|attributes| attributes.next_uuid);
            let behind = all[(index + 1) % count].map(|attributes| attributes.prev_uuid);
            let is_its_own = |uuid: &[u8; 16]| !others_are_new && !is_made_elsewhere(uuid, &set.replicas[index]);
            let mut named = [before, behind].into_iter().flatten().filter(is_its_own);
            let free = named.find(|uuid| !uuids.contains(&Some(*uuid)));
            uuids[index] = Some(free.unwrap_or_else(|| new_uuid_at(&set.replicas[index])));
        }
    }
    let uuid = |index: usize| uuids[index % count].unwrap_or_default();
    let linked = |index: usize| Attributes {
        uuid: uuid(index),
        next_uuid: uuid(index + 1),
        prev_uuid: uuid(index + count - 1),
        ..*known
    };
    Ok((0..count).map(linked).collect())
}
