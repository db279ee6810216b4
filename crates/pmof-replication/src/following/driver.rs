//! What following a member up needs of the pool, of the member and of the process.

use alloc::{collections::VecDeque, vec::Vec};
use core::{
    ops::{Deref, Range},
    time::Duration,
};

use pmof_control::{ConsistencyPoint, PoolName, Reply, Request, Roster, RosterMember};
use pmof_terms::Durability;
use uuid::Uuid;

use super::{known::Known, outbox::Due, points::Followed, replica::Replica, rules::Rules};
use crate::{
    asking::Reason,
    opening::{Identity, OpenedReply},
    returning::Members,
};

/// Why a member is no longer followed up.
#[derive(Debug)]
pub enum Stop<F> {
    /// The pool is being closed, or the member was removed.
    Ended,
    /// Not the member failed, but the pool: too few members in sync are left, or one was lost meanwhile.
    Later,
    /// It may come back.
    Lost(F),
    /// It is not the member that it was.
    Rejected(F),
}

impl<F> From<F> for Stop<F> {
    fn from(why: F) -> Self {
        Self::Lost(why)
    }
}

/// The result of a step of the driver `D`.
pub type Stopped<T, D> = Result<T, Stop<<D as Follows>::Failure>>;

/// What is asked of the member.
#[derive(Clone, Debug)]
pub struct Terms {
    /// What its pool has in common with the others.
    pub identity: Identity,
    /// The level that flushes are to reach.
    pub require: Durability,
    /// The member, by the roster.
    pub of_roster: RosterMember,
}

/// How much is sent at once, and how often.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Before the second try to connect; doubled each time.
    pub first_pause: Duration,
    /// The longest one.
    pub longest_pause: Duration,
    /// Of a replica that is not the member that it was.
    pub rejected_pause: Duration,
    /// Before a point is made again that too few members in sync were left for, and before a copy goes on that writes have overtaken.
    pub retry_pause: Duration,
    /// How often the member hears how far the writer is while that writes.
    pub heard_interval: Duration,
    /// The same while it does not.
    pub idle_interval: Duration,
    /// Bytes that are compared or copied between two looks at whether the pool is being closed.
    pub window_bytes: u64,
    /// Bytes that are read from a member in sync at once.
    pub read_bytes: u64,
    /// Bytes of pages that the last round of a copy reads into memory, at most, unless the bound of the lag allows for more.
    pub held_bytes: u64,
    /// Bytes that are copied in a second, at most.
    pub bytes_per_second: Option<u64>,
}

impl Limits {
    /// As they are.
    pub const SHIPPED: Self = Self {
        first_pause: Duration::from_millis(20),
        longest_pause: Duration::from_secs(2),
        rejected_pause: Duration::from_secs(30),
        retry_pause: Duration::from_millis(100),
        heard_interval: Duration::from_secs(1),
        idle_interval: Duration::from_secs(10),
        window_bytes: 16 << 20,
        read_bytes: 1 << 20,
        held_bytes: 1 << 20,
        bytes_per_second: None,
    };
}

/// The news of a member.
#[derive(Debug)]
pub enum Progress<'p> {
    /// It is connected.
    Connected {
        /// The point that it is at.
        point: Option<&'p ConsistencyPoint>,
        /// What it lacks is known, so that it need not be compared.
        is_known: bool,
    },
    /// What it lacks is copied to it.
    Copying,
    /// It is sent what is written from now on.
    Following {
        /// Bytes of pages that were copied before.
        copied_bytes: u64,
    },
    /// More was written than is kept for it.
    FellBehind {
        /// Bytes that it has yet to be sent.
        lag_bytes: u64,
    },
    /// Writes come as fast as pages are copied, or faster.
    Overtaken {
        /// Bytes of pages that are left.
        left_bytes: u64,
    },
    /// It is at another point.
    Committed {
        /// The point, with its number.
        point: Option<&'p ConsistencyPoint>,
    },
    /// It can no longer be at these points with names.
    PointsGone(VecDeque<ConsistencyPoint>),
    /// It was told how far the writer is.
    Heard,
}

/// The driver of one asynchronous member.
pub trait Follows: Sized {
    /// Why a member is lost.
    type Failure;
    /// A member, by one connection to it.
    type Member: Clone;
    /// The pool's epochs.
    type Epochs: Members<Member = Self::Member>;
    /// Keeps them while a step needs them.
    type EpochsRef: Deref<Target = Self::Epochs>;
    /// A connection to a target. Dropping it ends the connection.
    type Site;
    /// The memory of a member that is connected. Dropping it closes the member, and ends the connection.
    type Replica: Replica<Failure = Self::Failure>;
    /// The member, as those see it that write.
    type Followed: Followed;
    /// The rules.
    type Rules: Rules;

    /// The rules.
    fn rules(&self) -> &Self::Rules;

    /// What is asked of the member.
    fn terms(&self) -> Terms;

    /// How much is sent at once.
    fn limits(&self) -> Limits;

    /// The name of the member's pool at its target.
    fn name(&self) -> PoolName;

    /// The member, as those see it that write.
    fn followed(&self) -> &Self::Followed;

    /// Looks at what is known between two connections, or changes it. Never across a wait.
    fn with_known<T>(&self, look: impl FnOnce(&mut Known) -> T) -> T;

    /// The pool's epochs.
    ///
    /// # Errors
    /// [`Stop::Ended`].
    fn epochs(&self) -> Stopped<Self::EpochsRef, Self>;

    /// Connects to the member's target.
    ///
    /// # Errors
    /// It is not reached.
    fn connect(&self) -> impl Future<Output = Result<Self::Site, Self::Failure>>;

    /// Sends a request and waits for the reply.
    ///
    /// # Errors
    /// There is none, or it is a refusal.
    fn ask(&self, site: &Self::Site, request: &Request) -> impl Future<Output = Result<Reply, Self::Failure>>;

    /// Sends a request that opens the member, again while it is busy, as long as a connection that has ended may take to be noticed.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    fn open(&self, site: &Self::Site, request: &Request) -> impl Future<Output = Result<Reply, Self::Failure>>;

    /// What was found at the member's address does not fit.
    fn unfit(&self, why: Reason) -> Self::Failure;

    /// The member is about to be opened: a closing waits for it. False: the pool is being closed already.
    fn begin_opening(&self) -> bool;

    /// The member is open no more.
    fn note_closed(&self);

    /// Makes a member of a replica that was opened.
    ///
    /// # Errors
    /// Its memory cannot be used.
    fn adopt(&self, site: Self::Site, opened: &OpenedReply) -> Result<Self::Member, Self::Failure>;

    /// Opens what lies beside the data of a member that was told of the epoch, and finishes the change set that was interrupted. `mark`: of its state.
    ///
    /// # Errors
    /// Its memory cannot be used.
    fn open_areas(
        &self,
        member: &Self::Member,
        mark: u64,
    ) -> impl Future<Output = Result<Self::Replica, Self::Failure>>;

    /// Why a member did not do as it was told.
    fn failure(&self, member: &Self::Member) -> Self::Failure;

    /// Closes a member that is not to be followed up.
    fn close(&self, member: &Self::Member) -> impl Future<Output = ()>;

    /// Which boot of its machine it is. `None`: it is not known.
    fn boot(&self, member: &Self::Member) -> impl Future<Output = Option<Uuid>>;

    /// Looks whether a pool of its own was made of the member: its roster then.
    fn promoted(&self) -> impl Future<Output = Option<Roster>>;

    /// The member was promoted: takes all members out of use.
    fn fence(&self);

    /// Waits for something to do, for so long at most: [`Outbox::due`](super::outbox::Outbox::due).
    fn due(&self, limit: Duration) -> impl Future<Output = Due>;

    /// Whether the member still answers.
    ///
    /// # Errors
    /// It is lost.
    fn check_in_use(&self, replica: &Self::Replica) -> impl Future<Output = Result<(), Self::Failure>>;

    /// How far the pool is written now: a point without a name.
    fn far(&self) -> ConsistencyPoint;

    /// Makes everything durable on the members in sync, so that it can be read there. False: too few are left.
    fn flush_all(&self) -> impl Future<Output = bool>;

    /// [Makes a point](super::points::make_point()) without a name. False: too few members are left.
    fn make_point(&self) -> impl Future<Output = bool>;

    /// Reads from a member in sync. `None`: none is left.
    fn read(&self, range: &Range<u64>) -> impl Future<Output = Option<Vec<u8>>>;

    /// The pages of a range that differ between the member and one in sync.
    ///
    /// # Errors
    /// [`Stop::Lost`], [`Stop::Later`], [`Stop::Ended`].
    fn differing(
        &self,
        replica: &Self::Replica,
        range: &Range<u64>,
    ) -> impl Future<Output = Stopped<Vec<Range<u64>>, Self>>;

    /// The member is no longer followed up. `is_first`: the program does not know yet.
    fn note_lost(&self, why: &Self::Failure, is_first: bool);

    /// Tells the program.
    fn note(&self, progress: Progress<'_>);

    /// Tells the program what happened to the points that the member keeps.
    fn note_kept_points(&self, replica: &mut Self::Replica);

    /// Whether it is a member of the pool still.
    fn is_member(&self) -> bool;

    /// Waits. False: the pool is being closed.
    fn pause(&self, pause: Duration) -> impl Future<Output = bool>;

    /// The time since any fixed moment.
    fn now(&self) -> Duration;
}
