//! What a scrub of a pool found.

use std::{ops::Range, sync::Arc};

use pmof_replication::comparing::Findings;

use crate::{ReplicaPlace, member::Member};

/// A page that differed on one replica from what most of them hold, or from its digest, and was made equal to what the others hold.
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
    /// Adds what the engine found.
    pub(crate) fn add(&mut self, found: Findings<Arc<dyn Member>>) {
        let Findings { member_count, repaired, mut undecided } = found;
        self.replica_count = member_count;
        self.undecided.append(&mut undecided);
        for (member, range) in repaired {
            let replica = Arc::clone(&member.standing().place);
            log::warn!("{replica:#} held other bytes than most replicas at {range:?}, and was repaired");
            self.repaired.push(Repaired { replica, range });
        }
    }

    /// Whether the replicas hold the same.
    pub(crate) fn found_nothing(&self) -> bool {
        self.repaired.is_empty() && self.undecided.is_empty()
    }
}
