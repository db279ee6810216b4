//! A set whose replicas are looked at in full, each by itself and against the first; nothing is changed.

use pmof_mem::Declaration;

use crate::{
    Access, Attributes, Comparison, DIFFERENCES_MAX, PoolKind, PoolSet, RemoteReplicas, ReplicaAccess, Step, SyncError,
    sync::{Found, look},
    uuid_text,
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
    let mut checked = vec![CheckedReplica::default(); set.replicas.len()];
    let mut whole: Vec<Option<(Box<dyn ReplicaAccess>, Attributes)>> = Vec::new();
    for (index, spec) in set.replicas.iter().enumerate() {
        whole.push(match look(index, spec, set, Access::ReadOnly, declaration, remotes)? {
            Found::Whole(mut replica) => {
                let attributes = replica.attributes().map_err(|source| SyncError::Replica { index, source })?;
                Some((replica, attributes))
            }
            Found::Damaged(reason) => {
                checked[index].problems.push(reason);
                None
            }
        });
    }
    check_links(&whole, &mut checked);
    let len_bytes = whole.iter().flatten().map(|(replica, _)| replica.len_bytes()).min().unwrap_or(0);
    let Some(first_index) = whole.iter().position(Option::is_some) else {
        return Ok(CheckReport { kind: None, compared_bytes: 0, replicas: checked });
    };
    let failed = |index| move |source| SyncError::Replica { index, source };
    let (before, behind) = whole.split_at_mut(first_index + 1);
    let Some((first, attributes)) = before.last_mut().and_then(Option::as_mut) else {
        return Ok(CheckReport { kind: None, compared_bytes: 0, replicas: checked });
    };
    let kind = PoolKind::of_signature(&attributes.signature);
    let comparison = match first.memory() {
        Some(memory) => Comparison::of_pool(kind, &*memory, len_bytes)
            .map_err(|error| SyncError::Replica { index: first_index, source: error.into() })?,
        None => Comparison::of_kind(kind, len_bytes),
    };
    let others = behind.iter().flatten().count() as u64;
    progress(Step::Total(comparison.len_bytes() * others.max(1)));
    if others == 0 {
        comparison.read(&mut **first, &mut |bytes| progress(Step::Done(bytes))).map_err(failed(first_index))?;
    }
    for (place, other) in behind.iter_mut().enumerate() {
        let Some((other, own)) = other else { continue };
        let index = first_index + 1 + place;
        // One of another pool differs everywhere, and is told already.
        if own.poolset_uuid != attributes.poolset_uuid {
            continue;
        }
        let mut done = |bytes| progress(Step::Done(bytes));
        let found = comparison.differences(&mut **first, &mut **other, &mut done).map_err(failed(index))?;
        let mismatch = |difference: &crate::Difference| Mismatch {
            offset: difference.range.start,
            len_bytes: difference.range.end - difference.range.start,
            part: other.locate(difference.range.start),
        };
        let checked = &mut checked[index];
        checked.mismatches = found.told.iter().take(DIFFERENCES_MAX).map(mismatch).collect();
        (checked.mismatch_count, checked.unused_count) = (found.count, found.unused_count);
    }
    for (index, replica) in whole.into_iter().enumerate() {
        if let Some((replica, _)) = replica {
            replica.close().map_err(failed(index))?;
        }
    }
    Ok(CheckReport { kind, compared_bytes: comparison.len_bytes(), replicas: checked })
}

/// What the headers say of each other.
fn check_links(whole: &[Option<(Box<dyn ReplicaAccess>, Attributes)>], checked: &mut [CheckedReplica]) {
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
