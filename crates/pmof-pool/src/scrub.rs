//! What becomes of a page that differs between replicas in sync: decided without input or output.

use std::{ops::Range, sync::Arc};

use pmof_pool_set::Compared;

use crate::ReplicaPlace;

#[cfg(test)]
mod tests;

/// A page that differed on one replica from what most of them hold, and was made equal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repaired {
    /// The replica whose copy was wrong.
    pub replica: Arc<ReplicaPlace>,
    /// The page, in bytes of the pool.
    pub range: Range<u64>,
}

/// What [`Pool::scrub`](crate::Pool::scrub) found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScrubReport {
    /// Bytes compared.
    pub compared_bytes: u64,
    /// Replicas compared: those in sync.
    pub replica_count: usize,
    /// What was repaired.
    pub repaired: Vec<Repaired>,
    /// Pages that differ, and of which no content is on more than half of the replicas compared: nothing says which is right. They were
    /// left as they are.
    pub undecided: Vec<Range<u64>>,
}

impl ScrubReport {
    /// Whether the replicas hold the same.
    pub(crate) fn found_nothing(&self) -> bool {
        self.repaired.is_empty() && self.undecided.is_empty()
    }
}

/// What is done about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The replicas of `wrong` are to hold what `right` and most others do.
    Repair { right: usize, wrong: Vec<usize> },
    /// No content is on more than half of the replicas: nothing says which is right, and all stay as they are.
    Undecided,
}

/// Judges a block of which replicas in sync hold different bytes, and that nobody writes.
pub(crate) fn judge(compared: &Compared, block: usize) -> Verdict {
    let known = || (0..compared.replica_count()).filter(|replica| compared.digest(*replica, block).is_some());
    let count = known().count();
    let is_most = |replica: &usize| 2 * compared.unlike(*replica, block).count() < count;
    match known().find(is_most) {
        Some(right) => Verdict::Repair { right, wrong: compared.unlike(right, block).collect() },
        None => Verdict::Undecided,
    }
}

/// Which replica the others are made equal to in a block, behind a writer's death. All in sync have what was acknowledged, so that any will do for that; what more
/// than half of them hold has not rotted on one. `source`: the one where no content is on so many.
pub(crate) fn most_hold(compared: &Compared, source: usize, block: usize) -> usize {
    match judge(compared, block) {
        Verdict::Repair { right, .. } => right,
        Verdict::Undecided => source,
    }
}

/// Whether a replica that comes back is to hold what the `source` does in a block: it differs there, and no more of those in sync hold what it does, itself counted,
/// than what the source does. Else the source is the one that has rotted.
pub(crate) fn is_lacking(compared: &Compared, (source, returned): (usize, usize), block: usize) -> bool {
    let count_of = |replica: usize| {
        let held = compared.digest(replica, block);
        let holds = |other: &usize| held.is_some() && compared.digest(*other, block) == held;
        (0..compared.replica_count()).filter(holds).count()
    };
    let differs = compared.unlike(source, block).any(|other| other == returned);
    differs && count_of(returned) <= count_of(source)
}
