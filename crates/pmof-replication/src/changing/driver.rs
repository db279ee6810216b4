//! What a change of the members needs of the pool, and of the process.

use alloc::{sync::Arc, vec::Vec};
use core::{fmt::Debug, ops::Deref};

use pmof_control::{Epoch, PoolInfo, PoolState, Reply, Request, Role, Roster, RosterError, RosterMember};
use uuid::Uuid;

use crate::{asking::Failure, membership::Changed, place::Place, returning::Members};

/// A replica that was made to become a member.
#[derive(Debug)]
pub struct Made<P, S, M> {
    /// Where it is.
    pub place: Arc<P>,
    /// The connection by which it was made.
    pub site: S,
    /// Its state as it was made.
    pub state: PoolState,
    /// The member that it is to become.
    pub member: M,
    /// Its entry in the roster.
    pub of_roster: RosterMember,
}

/// Why the members were not changed.
#[derive(Debug)]
pub enum Why<'w, P, M, F> {
    /// The outcome of the change's epoch; never [`Changed::Done`].
    NotChanged(Changed),
    /// The pool has as many members as can be.
    TooMany {
        /// So many.
        count: usize,
    },
    /// The roster cannot be kept.
    Roster(RosterError),
    /// The address is in the roster.
    Known {
        /// The address.
        place: &'w Arc<P>,
        /// Its role.
        known: Role,
        /// The one that it was to have.
        wanted: Role,
    },
    /// A replica could not be made.
    NotMade {
        /// The address.
        place: &'w Arc<P>,
        /// The target's refusal, or another failure.
        why: F,
    },
    /// The new replica was lost before it was a member.
    Lost {
        /// The address.
        place: &'w Arc<P>,
        /// The replica.
        member: &'w M,
    },
    /// A replica of another pool is there.
    OtherPool {
        /// The address.
        place: &'w Arc<P>,
        /// The pool that it is of.
        found: Uuid,
    },
    /// A member is there, at another address of its target than the roster has.
    AlreadyMember {
        /// The address.
        place: &'w Arc<P>,
    },
    /// A replica of this pool is there that is in use, or has been in sync.
    InTheWay {
        /// The address.
        place: &'w Arc<P>,
        /// The replica.
        info: &'w PoolInfo,
        /// The pool's epochs, and its last opening.
        line: &'w (Vec<Epoch>, u64),
    },
    /// A writer after this one made a member of what is there.
    Superseded {
        /// The address.
        place: &'w Arc<P>,
    },
    /// No other member is in sync.
    LastInSync {
        /// The member.
        of_roster: &'w RosterMember,
        /// Where it is.
        position: Option<usize>,
    },
    /// The member that was to replace another one stays lost.
    NewMemberLost {
        /// The address.
        place: &'w Arc<P>,
        /// The member.
        member: &'w M,
    },
    /// The roster's address of a spare is none.
    NoAddress {
        /// The spare.
        spare: &'w RosterMember,
    },
    /// Someone else wants to change the members, or the pool is being closed.
    GivesWay,
}

/// The news of a change.
#[derive(Debug)]
pub enum News<'n, P, S, M> {
    /// A roster is in force: each later opening and look finds one that is not older.
    InForce {
        /// Its version, and its notes or fewer.
        age: (u64, u64),
    },
    /// The replica at this position is a member, or may be: it is brought in as any other, unless it is copied to as a [candidate](Changes::learn).
    Added {
        /// The replica.
        made: &'n Made<P, S, M>,
        /// Its position.
        position: usize,
    },
    /// It is no member, or may be none.
    Removed {
        /// Its entry in the roster.
        of_roster: &'n RosterMember,
    },
    /// What an earlier addition left was removed.
    LeftoverRemoved,
    /// A spare has taken the place of a member.
    SpareTaken {
        /// The spare.
        spare: &'n RosterMember,
        /// The member.
        lost: &'n RosterMember,
    },
    /// The member is in sync again before a spare has taken its place.
    SpareNotNeeded {
        /// The spare's address.
        place: &'n Arc<P>,
        /// The member.
        lost: &'n RosterMember,
    },
}

/// The driver of changes of one pool's members. One change runs at a time.
pub trait Changes: Sized {
    /// An address.
    type Place: Place;
    /// A connection to a target.
    type Site;
    /// A member, by one connection to it.
    type Member: Clone;
    /// A failure of a request.
    type Failure: Failure + Debug;
    /// The program's error.
    type Error;
    /// The pool's epochs.
    type Epochs: Members<Member = Self::Member>;
    /// Keeps them while a step needs them.
    type EpochsRef: Deref<Target = Self::Epochs>;
    /// A replica is copied to while it is no member. Dropping it ends that.
    type Learning;

    /// The program's error for a reason.
    fn error(&self, why: Why<'_, Self::Place, Self::Member, Self::Failure>) -> Self::Error;

    /// Whether an error says that the outcome is not known.
    fn is_undecided(&self, error: &Self::Error) -> bool;

    /// The pool's epochs.
    ///
    /// # Errors
    /// The pool is closed.
    fn epochs(&self) -> Result<Self::EpochsRef, Self::Error>;

    /// The pool's identity.
    fn pool_uuid(&self) -> Uuid;

    /// A name for an epoch, which nothing has yet.
    fn fresh_name(&self) -> Uuid;

    /// Checks that all connected members can keep a roster.
    ///
    /// # Errors
    /// One cannot.
    fn check_members(&self) -> impl Future<Output = Result<(), Self::Error>>;

    /// Checks that what a persist promises can be met without a member.
    ///
    /// # Errors
    /// It cannot.
    fn check_promise(&self, roster: &Roster, index: u16, position: Option<usize>) -> Result<(), Self::Error>;

    /// Whether there is a position for one more member.
    fn has_room(&self) -> bool;

    /// The request that makes an empty replica of this index and role, one of `count`.
    fn creation(&self, place: &Arc<Self::Place>, of: (u16, Role), count: u16) -> Request;

    /// Connects to a target.
    ///
    /// # Errors
    /// It is not reached.
    fn connect(&self, place: &Arc<Self::Place>) -> impl Future<Output = Result<Self::Site, Self::Error>>;

    /// Sends a request and waits for the reply.
    ///
    /// # Errors
    /// The target refuses, or is lost.
    fn ask(&self, site: &Self::Site, request: &Request) -> impl Future<Output = Result<Reply, Self::Failure>>;

    /// Makes a member of a replica that was made, as `reply` says, if it fits the pool.
    ///
    /// # Errors
    /// It does not, with its connection.
    #[expect(clippy::type_complexity, reason = "each part is named by the trait")]
    fn adopt(
        &self,
        place: &Arc<Self::Place>,
        site: Self::Site,
        of: (u16, Role),
        reply: Reply,
    ) -> impl Future<Output = Result<Made<Self::Place, Self::Site, Self::Member>, (Self::Site, Self::Error)>>;

    /// Gives a new replica a position, at which it is no member yet and is sent nothing. Replicas at its address that [were never found](super::was_never_found) are awaited there
    /// no longer.
    ///
    /// # Errors
    /// The pool is closed.
    fn admit(
        &self,
        made: &Made<Self::Place, Self::Site, Self::Member>,
    ) -> impl Future<Output = Result<usize, Self::Error>>;

    /// Lets go of a replica that is no member: it is closed, and nothing is asked of it.
    fn let_go(&self, position: usize, index: u16) -> impl Future<Output = ()>;

    /// The same of one that has never been a member: another may have its position.
    fn give_up(&self, position: usize, index: u16) -> impl Future<Output = ()>;

    /// The member at a position.
    ///
    /// # Errors
    /// The pool is closed.
    fn member(&self, position: usize) -> Result<Self::Member, Self::Error>;

    /// The positions of members at an address.
    ///
    /// # Errors
    /// The pool is closed.
    fn positions_at(&self, url: &str) -> Result<Vec<usize>, Self::Error>;

    /// Whether a member with data at another position is in sync.
    ///
    /// # Errors
    /// The pool is closed.
    fn has_other_in_sync(&self, position: Option<usize>) -> Result<bool, Self::Error>;

    /// Has a replica be copied to that is no member, for the spare of an index.
    fn learn(&self, position: usize, spare: u16) -> Self::Learning;

    /// Whether the replica is to be given up.
    fn gives_way(&self, learning: &Self::Learning) -> bool;

    /// Whether the replica lacks little.
    ///
    /// # Errors
    /// The pool is closed.
    fn lacks_little(&self, position: usize) -> Result<bool, Self::Error>;

    /// The replica is a member, or may be. Whether it was lost meanwhile, so that it has to be [brought in](Self::bring_in).
    fn end(&self, learning: Self::Learning) -> bool;

    /// Has a member catch up as any other.
    fn bring_in(&self, position: usize);

    /// A spare was not taken. Whether the next one may be of use.
    fn note_not_taken(&self, spare: &RosterMember, why: Self::Error) -> bool;

    /// Another writer has superseded this one: takes all members out of use.
    fn fence(&self);

    /// Tells the program.
    fn note(&self, news: News<'_, Self::Place, Self::Site, Self::Member>);

    /// Waits a little before the next look.
    ///
    /// # Errors
    /// The pool is closed.
    fn pause(&self) -> impl Future<Output = Result<(), Self::Error>>;
}
