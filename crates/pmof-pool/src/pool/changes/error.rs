//! What can go wrong with a change of a pool's members.

use std::sync::Arc;

use pmof_control::{REPLICAS_MAX, RosterError};
use pmof_mem::causes;
use uuid::Uuid;

use crate::{PoolError, PoolUrlError, ReplicaError, ReplicaPlace};

/// Why the members of a pool were not changed, or may not be. As a [`PoolError`], it prints all causes and has no source.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChangeError {
    /// The pool itself: it is closed, or open for reading only.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The member's URL was not understood.
    #[error("{}", causes(.0))]
    Url(PoolUrlError),
    /// The format has no members that could be changed.
    #[error(
        "the members of a pool set are those that its file names: change the file, and make the new replica by `pmof pool sync`"
    )]
    PoolSet,
    /// The pool was opened with fewer replicas than are safe.
    #[error(
        "the pool is open with a number of replicas that was asked for (min_replicas), and its members are not changed so: open it without that"
    )]
    Forced,
    /// The pool has no name yet.
    #[error("the pool gets its name when it is closed: change its members after that")]
    Unpublished,
    /// Somebody else changes the members through this handle or another of it.
    #[error("another change of the pool's members is under way: try again when it is done")]
    UnderWay,
    /// It is a member already.
    #[error("{replica} is a member of the pool already")]
    AlreadyMember {
        /// The member.
        replica: Arc<ReplicaPlace>,
    },
    /// The new member of a replacement is the old one.
    #[error(
        "{replica} is member {index} itself: name another address; to make it anew at its own, remove it from the members (pmof pool remove), remove what is left there (pmof pool rm), and add it (pmof pool add)"
    )]
    ItsOwnPlace {
        /// The member.
        replica: Arc<ReplicaPlace>,
        /// Its number.
        index: u16,
    },
    /// It is a spare, where a member with the pool's bytes is made when one is lost.
    #[error(
        "{replica} is a spare of the pool: choose another address, or take it from the spares first (pmof pool remove)"
    )]
    IsSpare {
        /// The spare.
        replica: Arc<ReplicaPlace>,
    },
    /// It is a witness, which has none of the pool's bytes.
    #[error(
        "{replica} is a witness of the pool: choose another address, or remove the witness first (pmof pool remove)"
    )]
    IsWitness {
        /// The witness.
        replica: Arc<ReplicaPlace>,
    },
    /// The new member of a replacement is a member already, and no new one.
    #[error(
        "{replica} is a member of the pool already, and has been in sync: it takes nobody's place, and nothing was changed; to have one member less, remove member {old}, \
         and to replace it, name an address where the pool has no replica"
    )]
    NotNew {
        /// The member.
        replica: Arc<ReplicaPlace>,
        /// The number of the one that was to be replaced.
        old: u16,
    },
    /// Its name leaves no room for that of the staging area of an asynchronous member.
    #[error("the name of {replica} is too long for an asynchronous member: choose one of at most {limit_bytes} bytes")]
    NameTooLong {
        /// The member.
        replica: Arc<ReplicaPlace>,
        /// Bytes that a name may have.
        limit_bytes: usize,
    },
    /// No member has this address or number.
    #[error("the pool has no member {wanted}; its members are {}", .members.join(", "))]
    NotAMember {
        /// What was asked for.
        wanted: String,
        /// The number and the address of each member.
        members: Vec<String>,
    },
    /// A replica of this pool lies there that is no member.
    #[error(
        "{replica} is a replica of this pool, and no member: one that was removed, or whose addition did not come to an end; remove it first (pmof pool rm {replica})"
    )]
    Leftover {
        /// The replica.
        replica: Arc<ReplicaPlace>,
    },
    /// What lies there has the pool's identity and bytes that the pool does not have: of another history of it, or of another pool that was made of an export.
    #[error(
        "{replica} is there already, and nothing was changed: choose another name or address, or remove it if nobody needs it (pmof pool rm {replica}): {}",
        causes(source)
    )]
    OtherHistory {
        /// The replica.
        replica: Arc<ReplicaPlace>,
        /// What it is.
        r#source: Arc<ReplicaError>,
    },
    /// Another pool has that name there.
    #[error("{replica} is of another pool, {found_uuid}: choose another name")]
    OtherPool {
        /// The replica.
        replica: Arc<ReplicaPlace>,
        /// The pool that it is of.
        found_uuid: Uuid,
    },
    /// The pool has as many members as a pool can have, or this opening has seen so many.
    #[error(
        "the pool has {count} members: it can have {REPLICAS_MAX}, and an opening of it sees no more come and go; remove one, or open it again"
    )]
    TooMany {
        /// Members that it has.
        count: usize,
    },
    /// The target of a member is of a release that keeps no list of members.
    #[error(
        "the target of {replica} is too old to keep the pool's members: start a newer one there, or remove that member first"
    )]
    TooOld {
        /// The member.
        replica: Arc<ReplicaPlace>,
    },
    /// It is the only member that has everything.
    #[error(
        "{replica} is the only member that is in sync: it has what no other has; add another, and wait until that is in sync"
    )]
    LastInSync {
        /// The member.
        replica: Arc<ReplicaPlace>,
    },
    /// Persists could never be acknowledged again as the pool was opened.
    #[error(
        "without it no persist could be acknowledged again: a persist is to be in {wanted} {what}, and {left} would be left; add another first, or open the pool with less (acknowledge)"
    )]
    PromiseBroken {
        /// Replicas, or failure domains.
        what: &'static str,
        /// As many as [`Acknowledge`](crate::Acknowledge) asks for.
        wanted: usize,
        /// As many as there would be.
        left: usize,
    },
    /// The new replica was not made. Nothing was changed.
    #[error("{replica:#} cannot be made a member: {}", causes(source))]
    NotMade {
        /// The replica.
        replica: Arc<ReplicaPlace>,
        /// Why.
        r#source: Arc<ReplicaError>,
    },
    /// The new member was lost before it had everything, so that the old one was not removed. It is a member, and catches up when it comes back.
    #[error(
        "{replica:#} is a member now and was lost before it had everything, and nothing was removed: do the same again when it is back, or remove it: {}",
        causes(source)
    )]
    NewMemberLost {
        /// The new member.
        replica: Arc<ReplicaPlace>,
        /// Why.
        r#source: Arc<ReplicaError>,
    },
    /// The members and their addresses take more room than there is. Nothing was changed.
    #[error("the pool's members cannot be kept: {}", causes(.0))]
    Roster(RosterError),
    /// Too few members are connected for the others to know of the change. Nothing was changed.
    #[error(
        "too few members are connected: a change needs most of the members as they are, and most as they will be, and one in sync that stays; nothing was changed"
    )]
    TooFew,
    /// Members were lost or came back again and again. Nothing was changed.
    #[error("members were lost or came back while the change was made, and nothing was changed: try again")]
    Disturbed,
    /// The change may hold or not: who knows was lost in the middle of it.
    #[error(
        "members were lost while the change was made, and it may hold or not: the next write that is acknowledged makes it hold, and so does the next opening if it finds one that knows; \
         `pmof pool status` shows the members"
    )]
    Undecided,
}

impl From<PoolUrlError> for ChangeError {
    fn from(error: PoolUrlError) -> Self {
        Self::Url(error)
    }
}

impl From<RosterError> for ChangeError {
    fn from(error: RosterError) -> Self {
        Self::Roster(error)
    }
}
