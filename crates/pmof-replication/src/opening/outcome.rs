//! What comes of an opening.

use alloc::{sync::Arc, vec::Vec};

use pmof_control::{Enclosed, FailureDomain, PoolState, Reply, Roster, USER_FLAGS_BYTES, WITNESS_BYTES};
use uuid::Uuid;

use crate::{
    asking::{Cause, Reason, SiteId},
    electorate::Electorate,
    keeper::KeeperError,
    lineage::Base,
};

/// What all replicas of a pool have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The pool.
    pub uuid: Uuid,
    /// Bytes of user data.
    pub size_bytes: u64,
    /// What its maker says of its contents.
    pub user_flags: [u8; USER_FLAGS_BYTES],
    /// Number of members: as the pool was made, until a roster says otherwise.
    pub replica_count: u16,
}

impl Identity {
    /// Checks that a replica is one of the pool that `first` was found of, or the first. One of a witness's size may be a witness: only the pool's
    /// roster tells, so that [`check_size`](Self::check_size) is to follow.
    ///
    /// # Errors
    /// [`Reason::Mismatch`].
    pub fn check(found: Self, first: &mut Option<Self>) -> Result<(), Reason> {
        let mut kept = *first.get_or_insert(found);
        if kept.size_bytes == WITNESS_BYTES && kept.uuid == found.uuid {
            // That was one that may be a witness.
            kept.size_bytes = found.size_bytes;
        }
        let expected_bytes = if found.size_bytes == WITNESS_BYTES { WITNESS_BYTES } else { kept.size_bytes };
        // A member that came later was made with another number of replicas.
        let expected = Self { size_bytes: expected_bytes, ..kept };
        if expected != (Self { replica_count: kept.replica_count, ..found }) {
            return Err(kept.mismatch(found.uuid, found.size_bytes));
        }
        *first = Some(kept);
        Ok(())
    }

    /// Checks that a replica has the size that it is to have. `is_witness`: the pool's roster says so.
    ///
    /// # Errors
    /// [`Reason::Mismatch`].
    pub fn check_size(&self, size_bytes: u64, is_witness: bool) -> Result<(), Reason> {
        let expected_bytes = if is_witness { WITNESS_BYTES } else { self.size_bytes };
        if size_bytes == expected_bytes { Ok(()) } else { Err(self.mismatch(self.uuid, size_bytes)) }
    }

    fn mismatch(&self, found_uuid: Uuid, found_bytes: u64) -> Reason {
        Reason::Mismatch { uuid: self.uuid, found_uuid, size_bytes: self.size_bytes, found_bytes }
    }
}

/// What the reply to an opening says of a replica.
#[derive(Debug)]
pub struct OpenedReply {
    /// Of its pool. The size is its own: that of a witness, if it is one.
    pub identity: Identity,
    /// Its index among the members.
    pub index: u16,
    /// Its identity.
    pub replica_uuid: Uuid,
    /// Its state when it was opened.
    pub state: PoolState,
    /// Where its memory is.
    pub descriptor: Vec<u8>,
    /// What no longer needs to be asked for.
    pub enclosed: Enclosed,
}

impl OpenedReply {
    /// What a reply says.
    ///
    /// # Errors
    /// [`Reason::Unexpected`], of a reply to something else.
    pub fn of(reply: Reply) -> Result<Self, Reason> {
        let Reply::Opened {
            pool_uuid: uuid,
            replica_uuid,
            size_bytes,
            replica_count,
            replica_index: index,
            user_flags,
            state,
            descriptor,
            enclosed,
        } = reply
        else {
            return Err(Reason::Unexpected);
        };
        let identity = Identity { uuid, size_bytes, user_flags, replica_count };
        Ok(Self { identity, index, replica_uuid, state, descriptor, enclosed: *enclosed })
    }

    /// Checks that the replica is of the pool that `first` was found of, or the first, as [`Identity::check`] does.
    ///
    /// # Errors
    /// [`Reason::Mismatch`], and [`Reason::Unexpected`] where its pool has fewer replicas than its index says.
    pub fn check(&self, first: &mut Option<Identity>) -> Result<(), Reason> {
        Identity::check(self.identity, first)?;
        if self.index < self.identity.replica_count { Ok(()) } else { Err(Reason::Unexpected) }
    }
}

/// A replica that is open.
#[derive(Clone, Debug)]
pub struct OpenedReplica {
    /// Among the opening's addresses.
    pub position: usize,
    /// Its connection.
    pub site: SiteId,
    /// Its index among the members.
    pub index: u16,
    /// Its identity.
    pub replica_uuid: Uuid,
    /// Its state when it was opened.
    pub state: PoolState,
    /// The members as it keeps them, if it does.
    pub roster: Option<Roster>,
    /// Bytes of its data.
    pub size_bytes: u64,
    /// Why it has to catch up, if it has to.
    pub behind: Option<Reason>,
    /// It has no data.
    pub is_witness: bool,
    /// What its target says of its failure domain.
    pub domain: Option<FailureDomain>,
    /// All words of its map of write intent, if its target told them with the replica: else they are to be asked for.
    pub intent: Option<Vec<u32>>,
}

/// A replica that a reader does not read, and that may hear of the next epoch.
#[derive(Clone, Debug)]
pub struct UnreadReplica {
    /// Among the opening's addresses.
    pub position: usize,
    /// Its connection.
    pub site: SiteId,
    /// Its state when it was opened.
    pub state: PoolState,
}

/// How the members in sync were left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// Closed in order, all of them.
    Closed,
    /// By a writer that died: at one mark, and none of them closed.
    Alike,
    /// Some closed, or one mark apart: one may be an older copy.
    Unlike,
}

/// The pool that an opening found.
#[derive(Clone, Debug)]
pub struct FoundPool {
    /// What its replicas have in common.
    pub identity: Identity,
    /// Its members.
    pub electorate: Electorate,
    /// The open replicas.
    pub opened: Vec<OpenedReplica>,
    /// Of an opening for reading: the replicas that are behind.
    pub unread: Vec<UnreadReplica>,
    /// What its next epoch descends from.
    pub base: Base,
    /// The highest mark.
    pub mark: u64,
    /// The position of one that has all that was acknowledged.
    pub source: usize,
    /// How those in sync were left.
    pub left: Left,
    /// Without the number of replicas that was asked for, these would be too few to write.
    pub is_forced: bool,
}

/// The replicas of a pool that was made.
#[derive(Clone, Debug)]
pub struct MadePool {
    /// What they have in common.
    pub identity: Identity,
    /// All of them.
    pub opened: Vec<OpenedReplica>,
}

/// Why a pool was not opened. Replicas are meant by their positions among the opening's addresses.
#[derive(Debug)]
pub enum Refusal<F> {
    /// No replica was named.
    NoReplicas,
    /// A replica that cannot be done without failed.
    Replica {
        /// Which.
        position: usize,
        /// Why.
        cause: Cause<F>,
    },
    /// No replica was opened.
    NoneOpened {
        /// Of each, why.
        replicas: Vec<(usize, Cause<F>)>,
    },
    /// Two addresses lead to one replica.
    SameReplica {
        /// The second.
        position: usize,
        /// The first.
        other: usize,
        /// Its index.
        index: u16,
    },
    /// Nothing says which of the replicas count.
    Apart {
        /// The replicas that do not belong to the others, and why.
        replicas: Vec<(usize, Reason)>,
    },
    /// The members that are open are not enough.
    TooFew {
        /// How many are open.
        here: usize,
        /// Members of the pool.
        made: usize,
        /// How many are needed.
        needed: usize,
        /// One that is missing.
        position: usize,
        /// Why.
        cause: Cause<F>,
    },
    /// Fewer members are in sync than are needed.
    Degraded {
        /// How many are.
        opened: usize,
        /// Members of the pool.
        made: usize,
        /// How many are needed.
        needed: usize,
    },
    /// A damaged slot may have held a newer roster.
    UncertainRoster,
    /// A persist could never be acknowledged.
    NeverAcknowledged {
        /// Replicas that must have the bytes.
        wanted: usize,
        /// Replicas of the pool.
        made: usize,
    },
    /// The replicas are in too few failure domains.
    TooFewDomains {
        /// How many are wanted.
        wanted: usize,
        /// How many there are.
        found: usize,
        /// The domain of each.
        replicas: Vec<(usize, Option<FailureDomain>)>,
    },
    /// What the keeper outside of the members has is not known, or does not count.
    Keeper(KeeperError),
}

/// What an opening has come to. Connections that it does not name are to be dropped.
#[derive(Debug)]
pub struct Outcome<P, F, T> {
    /// All addresses, by position: the named ones in their order, then members that rosters added.
    pub places: Vec<Arc<P>>,
    /// Replicas that are not part of the pool as it was opened, by their positions.
    pub left_out: Vec<(usize, Cause<F>)>,
    /// A replica was not awaited that may answer later.
    pub was_hasty: bool,
    /// The pool.
    pub pool: Result<T, Refusal<F>>,
}
