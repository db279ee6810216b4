//! What a return needs of the members, of the process and of its clock.

use alloc::sync::Arc;
use core::{
    fmt::Debug,
    ops::{Deref, Range},
    time::Duration,
};

use pmof_control::{FailureDomain, PoolName, Reply, Request, Roster};
use pmof_terms::Durability;
use uuid::Uuid;

use super::{
    Rules,
    backoff::{Backoff, Pauses},
    copy::Limits,
    trust::Trust,
};
use crate::{
    asking::{Failure, Reason},
    catch_up::CatchUp,
    comparing::{Contents, Findings, Scrubbed},
    epochs::Driver,
    member_state::MemberState,
    opening::Identity,
    pages::PageMap,
};

/// Why a member did not return this time.
#[derive(Debug)]
pub enum Halt<F> {
    /// The pool is being closed, or the writer is fenced.
    Ended,
    /// It may return later.
    Later,
    /// It does not keep up, and stays connected.
    Slow,
    /// It cannot return as it is.
    Rejected(Rejection<F>),
}

/// Why a replica cannot return as it is.
#[derive(Debug)]
pub enum Rejection<F> {
    /// What was found there does not fit the pool.
    Reason(Reason),
    /// It is no member.
    NotAMember {
        /// Its index.
        index: u16,
    },
    /// The driver's failure.
    Failed(F),
}

/// The result of a step of a return by the driver `D`.
pub type Halted<T, D> = Result<T, Halt<<D as Returns>::Failure>>;

/// The epochs of an open pool, and its members, to which requests are sent one by one.
pub trait Members {
    /// A member, by one connection to it.
    type Member: Clone;
    /// A failure of the driver's.
    type Failure: Failure + Debug;
    /// The epochs, while no one else changes them.
    type Locked<'l>: Driver
    where
        Self: 'l;

    /// Waits until no one else changes the epochs.
    fn lock(&self) -> impl Future<Output = Self::Locked<'_>>;

    /// What the member is to the pool.
    fn state(&self, member: &Self::Member) -> MemberState;

    /// Puts a member where epochs are sent from now on.
    fn put(&self, locked: &Self::Locked<'_>, position: usize, member: &Self::Member);

    /// Has a member keep the roster. False: it is lost.
    fn give_roster(&self, member: &Self::Member, roster: &Roster) -> impl Future<Output = bool>;

    /// Sends a request that has one right reply. A member that replies anything else is lost. `limit`: how long the reply may take.
    ///
    /// # Errors
    /// [`Halt::Later`], or [`Halt::Slow`] where the limit is over.
    fn ask_for(
        &self,
        member: &Self::Member,
        request: &Request,
        expected: &Reply,
        limit: Option<Duration>,
    ) -> impl Future<Output = Result<(), Halt<Self::Failure>>>;
}

/// What is asked of a replica that returns.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// What it has in common with the others.
    pub identity: Identity,
    /// The level that it must give.
    pub require: Durability,
    /// Members that have data.
    pub member_count: u16,
}

/// The news of a return.
#[derive(Debug)]
pub enum Progress {
    /// A witness is back.
    WitnessBack,
    /// The member is sent new writes, and what it lacks is copied.
    CatchingUp {
        /// Bytes that may differ.
        missing_bytes: u64,
    },
    /// The member counts again.
    InSync {
        /// Bytes that were copied.
        copied_bytes: u64,
        /// Since it was connected to.
        took: Duration,
        /// It was compared as a whole.
        is_verified: bool,
    },
    /// A member that has caught up by the map holds what the others do.
    Verified {
        /// Bytes that were compared, without zeros that both have.
        compared_bytes: u64,
        /// Since the comparison began.
        took: Duration,
    },
    /// It holds something else, and is left behind: the next catch-up compares all of it.
    Differs {
        /// The first pages that differ.
        range: Range<u64>,
    },
}

/// The driver of one member's return.
pub trait Returns: Sized {
    /// A member, by one connection to it.
    type Member: Clone;
    /// A failure of the driver's.
    type Failure: Failure + Debug;
    /// The pool's epochs.
    type Epochs: Members<Member = Self::Member, Failure = Self::Failure>;
    /// Keeps them while a step needs them.
    type EpochsRef: Deref<Target = Self::Epochs>;
    /// A connection to a target, of a replica that is no member yet. Dropping it ends the connection.
    type Site;
    /// The bytes of a replica that was opened.
    type Reached;
    /// A flush in flight. Dropping it leaves nothing in flight.
    type Flushing;
    /// What the pool's members hold.
    type Contents: Contents<Member = Self::Member>;
    /// The open pool.
    type Pool: Scrubbed<Contents = Self::Contents>;
    /// Keeps it in memory.
    type PoolRef: Deref<Target = Self::Pool>;
    /// The open pool while nothing is posted.
    type Held<'h>: Deref<Target = Self::Contents>;
    /// The rules of a return.
    type Rules: Rules;

    /// The rules of a return.
    fn rules(&self) -> &Self::Rules;

    /// Where the member is among the pool's.
    fn position(&self) -> usize;

    /// What is asked of the replica.
    ///
    /// # Errors
    /// [`Halt::Ended`].
    fn terms(&self) -> Halted<Terms, Self>;

    /// How much is copied at once.
    ///
    /// # Errors
    /// [`Halt::Ended`].
    fn limits(&self) -> Halted<Limits, Self>;

    /// Pauses between two tries.
    fn pauses(&self) -> Pauses;

    /// How the tries before went.
    fn backoff(&self) -> Backoff;

    /// The pool, while a step needs it.
    ///
    /// # Errors
    /// [`Halt::Ended`].
    fn pool(&self) -> Halted<Self::PoolRef, Self>;

    /// The pool's epochs.
    ///
    /// # Errors
    /// [`Halt::Ended`].
    fn epochs(&self) -> Halted<Self::EpochsRef, Self>;

    /// The member as it is now, connected or lost.
    ///
    /// # Errors
    /// [`Halt::Ended`].
    fn member(&self) -> Halted<Self::Member, Self>;

    /// Looks at what is known of the replica's machine, or changes it.
    fn with_trust<T>(&self, look: impl FnOnce(&mut Trust) -> T) -> T;

    /// Lets go of the memory of a lost member on this machine, whose file stays locked while it is mapped: the return no longer holds `member`.
    ///
    /// # Errors
    /// [`Halt::Ended`], [`Halt::Later`].
    fn let_go(&self, member: Self::Member) -> impl Future<Output = Halted<(), Self>>;

    /// Connects to where the lost member is. `None`: that failed, which is noted.
    fn connect(&self, member: &Self::Member) -> impl Future<Output = Option<Self::Site>>;

    /// The name of the pool there.
    fn name(&self) -> PoolName;

    /// Sends a request that opens the replica, again while it is busy, as long as a connection that has ended may take to be noticed.
    fn open(&self, site: &Self::Site, request: &Request) -> impl Future<Output = Result<Reply, Self::Failure>>;

    /// Sends a request and waits for the reply.
    fn ask(&self, site: &Self::Site, request: &Request) -> impl Future<Output = Result<Reply, Self::Failure>>;

    /// Notes why the member stays lost.
    fn note_failure(&self, member: &Self::Member, why: Self::Failure);

    /// Makes the memory of the replica that was opened usable.
    ///
    /// # Errors
    /// [`Halt::Later`], or [`Halt::Rejected`] where it will fail again.
    fn reach(&self, site: &Self::Site, descriptor: &[u8], size_bytes: u64) -> Halted<Self::Reached, Self>;

    /// Makes a member of a replica that was opened, in the state behind that of `lost`. `None`: its memory failed. `domain`: of its target, if that came with the
    /// replica; else it is to be asked for.
    fn adopt(
        &self,
        lost: &Self::Member,
        reached: (Self::Site, Self::Reached),
        domain: Option<Option<FailureDomain>>,
        is_witness: bool,
    ) -> impl Future<Output = Option<Self::Member>>;

    /// Which boot of its machine it is. `None`: it is not known.
    fn boot(&self, member: &Self::Member) -> impl Future<Output = Option<Uuid>>;

    /// Another writer has superseded this one: takes all members out of use. `successor`: who holds them, if that is known.
    fn fence(&self, successor: Option<&str>);

    /// Gives up a connection that was to be the member's. A takeover that the connection knows of fences the writer.
    fn give_up(&self, member: &Self::Member);

    /// A member in sync whose flush shows how long one takes: on another machine, where there is one, since what is on this machine answers sooner than any other.
    ///
    /// # Errors
    /// [`Halt::Ended`].
    fn reference(&self) -> Halted<Option<Self::Member>, Self>;

    /// Whether too few members are in sync to acknowledge anything.
    fn is_needed(&self) -> bool;

    /// Waits until nothing is posted, and keeps it so until the result is dropped.
    fn hold_all<'h>(&self, pool: &'h Self::Pool) -> impl Future<Output = Halted<Self::Held<'h>, Self>>;

    /// Adds the pages that were written and that not all members are known to have.
    fn add_written(&self, held: &Self::Held<'_>, missing: &PageMap);

    /// Gives the member its place: it is sent every new write, if it has data, and `catch_up` hears of these.
    fn admit(&self, held: Self::Held<'_>, member: &Self::Member, catch_up: Option<&Arc<CatchUp>>);

    /// Starts to make durable what the member was sent.
    fn start_flush(&self, member: &Self::Member) -> Self::Flushing;

    /// Waits for a flush. False: the member is lost.
    fn finish_flush(&self, flushing: Self::Flushing) -> impl Future<Output = bool>;

    /// Waits for a flush, for so long at most. False: it took longer, and was awaited all the same, or the member is lost.
    fn finish_flush_within(&self, flushing: Self::Flushing, limit: Duration) -> impl Future<Output = bool>;

    /// Makes everything durable on a member that is about to join, while nothing is posted. Whether it is; `None`: that takes longer than the limit.
    fn flush_last(
        &self,
        held: &Self::Held<'_>,
        member: &Self::Member,
        limit: Option<Duration>,
    ) -> impl Future<Output = Option<bool>>;

    /// Has a member that is about to join keep the map of write intent that the others have.
    ///
    /// # Errors
    /// [`Halt::Later`], or [`Halt::Slow`] where the limit is over.
    fn give_intent(
        &self,
        held: &Self::Held<'_>,
        member: &Self::Member,
        limit: Option<Duration>,
    ) -> impl Future<Output = Halted<(), Self>>;

    /// The member has all that the others have. Returns its state: it may be lost or left behind.
    fn note_caught_up(&self, member: &Self::Member) -> MemberState;

    /// The member counts: no catch-up notes new writes for it.
    fn note_joined(&self, held: Self::Held<'_>);

    /// The catch-up of a member has halted: a slow one is left behind, another one is lost.
    fn interrupt(&self, member: &Self::Member, is_slow: bool);

    /// Whether the replica is copied to while it is no member, and not about to become one.
    fn is_candidate(&self) -> bool;

    /// Gives up a candidate that did not return. False: it is a member.
    fn gives_up_candidate(&self) -> bool;

    /// The replica cannot return as it is. `is_first`: this was not found before.
    fn note_rejected(&self, why: Rejection<Self::Failure>, is_first: bool);

    /// Pages were compared again, since a member differed there from another one that had rotted.
    fn note_scrubbed(&self, range: &Range<u64>, found: Findings<Self::Member>, took: Duration);

    /// Tells the program.
    fn note(&self, member: &Self::Member, progress: Progress);

    /// The pool is being closed.
    fn is_stopping(&self) -> bool;

    /// Waits. False: the pool is being closed.
    fn pause(&self, pause: Duration) -> impl Future<Output = bool>;

    /// The time since any fixed moment.
    fn now(&self) -> Duration;
}
