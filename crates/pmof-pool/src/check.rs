//! A set whose replicas are looked at in full, each by itself and against the first; nothing is changed.

use pmof_mem::Declaration;

use crate::{
    Access, Apart, Attributes, Comparison, DIFFERENCES_MAX, Majority, PoolKind, PoolSet, RemoteReplicas, ReplicaAccess,
    Step, SyncError, distinct,
    error::UNFINISHED,
    sync::{Found, look, of_files, of_pair, plan},
    uuid_text,
    vote::majority_against,
};

/// What was found in a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckReport {
    /// What kind of pool it is; `None` for signatures that PMDK has no library for, and where no replica says it.
    pub kind: Option<PoolKind>,
    /// Bytes that were compared of each replica but the first sound one, or read of that one if it is alone.
    pub compared_bytes: u64,
    /// Every replica, in the order of the set.
    pub replicas: Vec<CheckedReplica>,
    /// Those that agree against the first sound one, if they are most of the sound ones.
    pub majority: Option<Majority>,
    /// Those that differ and were not used together.
    pub apart: Option<Apart>,
    /// Why [`sync`](crate::sync) would refuse to bring the set in order; `None` where it would not, but for a majority, or for replicas
    /// that were used apart.
    pub sync_refusal: Option<String>,
}

/// What was found in one replica.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckedReplica {
    /// What is wrong with it by itself, or with its place among the others, a sentence each.
    pub problems: Vec<String>,
    /// Where it differs from the first sound replica: the first [`DIFFERENCES_MAX`] places.
    pub mismatches: Vec<Mismatch>,
    /// How many such places there are.
    pub mismatch_count: u64,
    /// Places in which it differs and that are not in use, which means nothing.
    pub unused_count: u64,
    /// Bytes in such places that differ.
    pub unused_bytes: u64,
    /// Bytes that differ in what a running program keeps for itself, which replicas do not have in common.
    pub runtime_bytes: u64,
}

/// Bytes in which a replica differs from the first sound one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// Offset in the pool of the first byte that differs.
    pub offset: u64,
    /// Bytes up to the last one that differs.
    pub len_bytes: u64,
    /// The part of the replica, from 0, and the offset in it; `None` where that is not known.
    pub part: Option<(usize, u64)>,
}

impl CheckReport {
    /// Whether nothing is wrong.
    pub fn is_sound(&self) -> bool {
        self.replicas.iter().all(|replica| replica.problems.is_empty() && replica.mismatch_count == 0)
    }
}

/// Reads every replica in full and compares it with the first sound one.
///
/// Replicas of a pool that was not closed in order may differ in what its next opening repairs, and in locks of libpmemobj, which
/// keeps their state in the first replica only.
///
/// Errors: [`SyncError`], where the check could not be done; what is wrong with the pool is in the report.
pub fn check(
    set: &PoolSet,
    declaration: Option<Declaration>,
    remotes: &mut dyn RemoteReplicas,
    progress: &mut dyn FnMut(Step),
) -> Result<CheckReport, SyncError> {
    distinct::check_set(set).map_err(of_files)?;
    let mut checked = vec![CheckedReplica::default(); set.replicas.len()];
    let mut found = Vec::with_capacity(set.replicas.len());
    for (index, spec) in set.replicas.iter().enumerate() {
        found.push(look(index, spec, set, Access::ReadOnly, declaration, remotes)?);
    }
    let plan = plan(set, &mut found, None);
    let is_linked = plan.as_ref().map_or(true, |plan| plan.is_linked);
    let sync_refusal = match (&found[..], plan.err()) {
        ([Found::Damaged(_) | Found::Unfinished(_)], _) => {
            Some("the set has no other replica to restore it from: bring back a copy".to_owned())
        }
        (_, error) => error.map(|error| error.to_string()),
    };
    let mut whole = whole_of(found, &mut checked)?;
    check_links(&whole, &mut checked);
    let len_bytes = whole.iter().flatten().map(|(replica, _)| replica.len_bytes()).min().unwrap_or(0);
    let all = &mut whole[..];
    let first_and_rest = all.iter().position(Option::is_some).and_then(move |index| {
        let (before, behind) = all.split_at_mut(index + 1);
        Some((index, before.last_mut()?.as_mut()?, behind))
    });
    let Some((first_index, (first, attributes), behind)) = first_and_rest else {
        return Ok(CheckReport {
            kind: None,
            compared_bytes: 0,
            replicas: checked,
            majority: None,
            apart: None,
            sync_refusal,
        });
    };
    let failed = |index| move |source| SyncError::Replica { index, source };
    let kind = PoolKind::of_signature(&attributes.signature);
    let comparison = match first.memory() {
        Some(memory) => Comparison::of_pool(kind, &*memory, len_bytes)
            .map_err(|error| SyncError::Replica { index: first_index, source: error.into() })?,
        None => Comparison::of_kind(kind, len_bytes),
    };
    let others = behind.iter().flatten().count() as u64;
    progress(Step::Total(comparison.len_bytes() * others.max(1)));
    if others == 0 {
        comparison.read(first.contents(), &mut |bytes| progress(Step::Done(bytes))).map_err(failed(first_index))?;
    }
    let mut differing = Vec::new();
    for (place, other) in behind.iter_mut().enumerate() {
        let Some((other, own)) = other else { continue };
        let index = first_index + 1 + place;
        // One of another pool differs everywhere, and is told already.
        if own.poolset_uuid != attributes.poolset_uuid {
            continue;
        }
        let mut done = |bytes| progress(Step::Done(bytes));
        let found = comparison.differences(first.contents(), other.contents(), &mut done);
        let found = found.map_err(|error| of_pair(first_index, index, error))?;
        let mismatch = |difference: &crate::Difference| Mismatch {
            offset: difference.range.start,
            len_bytes: difference.range.end - difference.range.start,
            part: other.locate(difference.range.start),
        };
        let checked = &mut checked[index];
        checked.mismatches = found.told.iter().take(DIFFERENCES_MAX).map(mismatch).collect();
        (checked.mismatch_count, checked.unused_count) = (found.count, found.unused_count);
        (checked.unused_bytes, checked.runtime_bytes) = (found.unused_bytes, found.runtime_bytes);
        differing.push((index, found.told.into_iter().map(|difference| difference.range).collect()));
    }
    let read = |index: usize, offset: u64, into: &mut [u8]| match &mut whole[index] {
        Some((replica, _)) => replica.contents().read(offset, into).map_err(failed(index)),
        None => Ok(()),
    };
    let is_other = |index: &usize| checked[*index].mismatch_count > 0;
    let apart: Vec<_> = (0..checked.len()).filter(|index| !is_linked && is_other(index)).collect();
    let apart = (!apart.is_empty()).then_some(Apart { source: first_index, replicas: apart });
    let majority = majority_against(first_index, &differing, read)?;
    for (index, replica) in whole.into_iter().enumerate() {
        if let Some((replica, _)) = replica {
            replica.close().map_err(failed(index))?;
        }
    }
    Ok(CheckReport { kind, compared_bytes: comparison.len_bytes(), replicas: checked, majority, apart, sync_refusal })
}

/// A replica that is whole, and what its header says.
type Whole = (Box<dyn ReplicaAccess>, Attributes);

/// The replicas that are whole; what is wrong with the others is noted.
fn whole_of(found: Vec<Found>, checked: &mut [CheckedReplica]) -> Result<Vec<Option<Whole>>, SyncError> {
    let mut whole = Vec::with_capacity(found.len());
    for (index, found) in found.into_iter().enumerate() {
        whole.push(match found {
            Found::Whole(mut replica) => {
                let attributes = replica.attributes().map_err(|source| SyncError::Replica { index, source })?;
                Some((replica, attributes))
            }
            Found::Unfinished(replica) => {
                checked[index].problems.push(UNFINISHED.to_owned());
                replica.close().map_err(|source| SyncError::Replica { index, source })?;
                None
            }
            Found::Damaged(reason) => {
                checked[index].problems.push(reason);
                None
            }
        });
    }
    Ok(whole)
}

/// What the headers say of each other.
fn check_links(whole: &[Option<Whole>], checked: &mut [CheckedReplica]) {
    let count = whole.len();
    let attributes = |index: usize| whole[index % count].as_ref().map(|(_, attributes)| *attributes);
    let Some(first) = (0..count).find_map(attributes) else { return };
    for (index, checked) in checked.iter_mut().enumerate() {
        let Some(own) = attributes(index) else { continue };
        let mut say = |problem: String| checked.problems.push(problem);
        if own.poolset_uuid != first.poolset_uuid {
            let (found, expected) = (uuid_text(&own.poolset_uuid), uuid_text(&first.poolset_uuid));
            say(format!("it is of the pool set {found}, not of {expected}"));
            continue;
        }
        if (own.signature, own.major) != (first.signature, first.major) {
            say("it is of another kind or version".into());
        }
        if own.features() != first.features() {
            say("it has other features".into());
        }
        if own.user_flags != first.user_flags {
            say("it was made on another architecture".into());
        }
        for (side, found, other) in
            [("previous", own.prev_uuid, attributes(index + count - 1)), ("next", own.next_uuid, attributes(index + 1))]
        {
            if let Some(other) = other.filter(|other| other.uuid != found) {
                let (found, expected) = (uuid_text(&found), uuid_text(&other.uuid));
                say(format!("its {side} replica should be {found}, and there is {expected}"));
            }
        }
    }
}
