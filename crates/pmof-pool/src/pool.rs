//! A pool kept on N replicas: written to all in parallel, durable on all with one flush each.

use std::{
    fmt,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use pmof_access::{Durability, Medium, Traffic};
use pmof_control::{ConsistencyPoint, OpenFor, USER_FLAGS_BYTES};
use pmof_locks::{MappedRwLockReadGuard, Mutex, RwLock, RwLockReadGuard};
use pmof_mem::forks::Process;
use pmof_pool_set::{Attributes, LocalSet};
use pmof_replication::posting::{self, AckTerms};
use smallvec::SmallVec;
use uuid::Uuid;

use crate::{
    PersistFailure, PoolError, Receipt, ReplicaError, ReplicaPlace,
    catch_up::CatchUp,
    intent::Intent,
    member::{
        Atomicity, Flush, FlushLevel, Flushing, Member, RELAXED_BYTES, Source, Standing, Write, Written, replica_error,
    },
    pages::PageMap,
};
use epochs::{Epochs, done};
use followers::Followers;
use group::Group;
use pending::Waiter;
use returns::{Returns, Signal};

mod acknowledge;
mod asking;
mod awaited;
mod changes;
mod closing;
mod compare;
mod domains;
mod epochs;
mod equalize;
mod events;
mod follow;
mod followers;
mod forked;
mod format;
mod group;
#[cfg(test)]
mod group_tests;
mod halt;
mod intents;
mod lane;
#[cfg(test)]
mod member_tests;
mod members;
mod mirrors;
mod opened;
mod opening;
mod options;
mod pending;
mod persisting;
mod points;
mod promotion;
mod protection;
mod receipts;
mod remote_set;
mod returns;
mod scrub;
mod set;
mod slow;
mod status;
mod telling;

pub use acknowledge::Acknowledge;
pub use changes::ChangeError;
pub use compare::Differing;
pub use events::{Event, Events};
pub use followers::{AsynchronousState, AsynchronousStatus};
pub use lane::Lane;
pub use members::{MemberState, MemberStatus, PoolMembers};
pub use options::PoolOptions;
pub use pending::Pending;
pub use points::{KeptPointStatus, MemberPoints, Rollback, RollbackError};
pub use promotion::{FormerMember, FormerState, Promotion, PromotionError};
pub use remote_set::RemoteSetOptions;
pub use set::SetOptions;
pub use status::{PoolStatus, ReplicaState, ReplicaStatus, SpareState, SpareStatus};

/// Replicas that are not part of the pool as it was opened, and why.
pub(crate) type LeftOut = Vec<(Arc<ReplicaPlace>, Arc<ReplicaError>)>;

/// What it took to make replicas equal.
#[derive(Clone, Copy, Debug, Default)]
struct Equalized {
    compared_bytes: u64,
    copied_bytes: u64,
}

/// One flush of each replica, in their order.
pub(crate) type Flushings = SmallVec<[Flushing; 4]>;

/// What a flush has come to: of replicas that failed, it says which.
type Persisted = Result<Receipt, Box<PersistFailure>>;

/// What a pool is, whatever becomes of its replicas.
#[derive(Clone, Debug)]
struct Facts {
    uuid: Uuid,
    size_bytes: u64,
    /// Bytes before the first that may be written.
    header_bytes: u64,
    user_flags: [u8; USER_FLAGS_BYTES],
    /// What the headers said, of a format that has attributes.
    attributes: Option<Attributes>,
    /// Members that it had when it was opened.
    made_count: usize,
    /// Replicas that were named when it was opened, and those that were found by them.
    replica_count: usize,
    /// Of those, the ones that the program has named: the first so many.
    named_count: usize,
    durability: Durability,
    access: OpenFor,
    left_out: LeftOut,
    /// What the opening did.
    equalized: Equalized,
    was_closed: bool,
    /// The replica that is read first.
    first_read: usize,
    /// The consistency point that it is at, where it was opened at one.
    point: Option<ConsistencyPoint>,
}

/// What a pool that is open for reading does before each read.
trait BeforeRead: fmt::Debug + Send + Sync {
    /// Has the pool be open on members that are in sync, or says why it cannot.
    fn check(&self, pool: &Shared) -> Result<(), PoolError>;

    /// What it knows of them, for a pool that is open anew.
    fn into_seen(self: Box<Self>) -> follow::Seen;
}

/// What an open pool holds, as long as its members are the same; the end of the last closes connections and unmaps memory.
struct Open {
    facts: Facts,
    /// What a persist is acknowledged by.
    terms: AckTerms,
    members: Vec<Arc<dyn Member>>,
    /// Of a native pool: who took part in what.
    epochs: Option<Arc<Epochs>>,
    /// Of a native pool of several replicas: the pages that were written since all were known to be equal.
    written: Option<Arc<PageMap>>,
    /// Of a native pool of several replicas: the extents that they may differ in.
    intent: Option<Arc<Intent>>,
    /// What those that catch up still lack, by their positions.
    catching_up: Vec<(usize, Arc<CatchUp>)>,
    /// Of a native pool that is open for writing: its asynchronous members.
    followers: Option<Arc<Followers>>,
    /// Is told of each loss.
    losses: Arc<Signal>,
    /// What happens to the replicas.
    events: Arc<events::Log>,
    /// Of a pool whose flushes take long: has persists of several threads share them.
    group: Option<Arc<Group<Flushings, Persisted>>>,
    /// The memory that ranges are persisted from.
    mirror: Option<Arc<dyn Medium>>,
    /// The replicas on this machine, which are closed together.
    local: Arc<Mutex<Option<LocalSet>>>,
    /// The replicas get their names when the pool is closed.
    is_unpublished: bool,
    /// Flushes that nobody waits for any more.
    abandoned: Mutex<Vec<Flushings>>,
    has_abandoned: AtomicBool,
}

/// What all handles of a pool share.
struct Shared {
    facts: Facts,
    /// `None` once it was closed. Whoever posts holds the lock, so that nothing is posted behind the last flush.
    open: RwLock<Option<Arc<Open>>>,
    /// The attributes in the headers, of a pool that has them.
    attributes: Mutex<Option<Attributes>>,
    /// Lanes that have written since their last flush was known to be done, and persists that failed.
    unflushed: AtomicUsize,
    /// Those of them of which the program knows that they failed.
    failed: AtomicUsize,
    waiter: Waiter,
    /// Of a native pool that is open for writing: brings back replicas that were lost.
    returns: Option<Arc<Returns>>,
    /// Of a native pool that is open for reading: has it be open on members in sync.
    follow: Option<Box<dyn BeforeRead>>,
    /// Its asynchronous members.
    followers: Option<Arc<Followers>>,
    events: Arc<events::Log>,
    telling: telling::Telling,
    /// The one that opened it: its threads and connections are there.
    process: Process,
}

/// A pool, kept on one replica or several: on targets, or on this machine. Clones are the same pool; any number of threads use it at once.
///
/// [`close`](Self::close) it: of a pool that is only dropped, nobody knows whether its replicas are equal, and the next opening for writing
/// compares them. Nor is it free at once: a target has to notice the end of the connection first, which takes milliseconds. An opening waits for
/// that, up to a second, before it fails with [`PoolRefusal::Busy`](pmof_control::PoolRefusal::Busy). The same holds after a writer's death.
///
/// Only the process that opened a pool uses it: in a child of `fork()` every call fails with [`PoolError::Forked`], and dropping a handle does nothing.
#[derive(Clone, Debug)]
pub struct Pool(Arc<Shared>);

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(returns) = &self.returns {
            returns.stop();
        }
        self.stop_followers();
        self.events.close();
    }
}

impl fmt::Debug for Open {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Open").field("members", &self.members).finish_non_exhaustive()
    }
}

impl Open {
    fn new(
        (facts, terms): (Facts, AckTerms),
        members: Vec<Arc<dyn Member>>,
        epochs: Option<Epochs>,
        mirror: Option<Arc<dyn Medium>>,
    ) -> Self {
        let group = members.iter().any(|member| member.shares_flushes()).then(Arc::default);
        Self {
            facts,
            terms,
            members,
            epochs: epochs.map(Arc::new),
            written: None,
            intent: None,
            catching_up: Vec::new(),
            followers: None,
            losses: Arc::default(),
            events: Arc::default(),
            group,
            mirror,
            local: Arc::default(),
            is_unpublished: false,
            abandoned: Mutex::default(),
            has_abandoned: AtomicBool::new(false),
        }
    }

    /// The same pool with other members, of which some catch up.
    fn with_members(&self, members: Vec<Arc<dyn Member>>, catching_up: Vec<(usize, Arc<CatchUp>)>) -> Self {
        Self {
            facts: self.facts.clone(),
            terms: self.terms,
            members,
            epochs: self.epochs.clone(),
            written: self.written.clone(),
            intent: self.intent.clone(),
            catching_up,
            followers: self.followers.clone(),
            losses: Arc::clone(&self.losses),
            events: Arc::clone(&self.events),
            group: self.group.clone(),
            mirror: self.mirror.clone(),
            local: Arc::clone(&self.local),
            is_unpublished: self.is_unpublished,
            abandoned: Mutex::default(),
            has_abandoned: AtomicBool::new(false),
        }
    }

    fn into_pool(self, returns: Option<Returns>, follow: Option<Box<dyn BeforeRead>>) -> Pool {
        let shared = Arc::new(Shared {
            followers: self.followers.clone(),
            facts: self.facts.clone(),
            events: Arc::clone(&self.events),
            attributes: Mutex::new(self.facts.attributes),
            open: RwLock::new(Some(Arc::new(self))),
            unflushed: AtomicUsize::new(0),
            failed: AtomicUsize::new(0),
            waiter: Waiter::default(),
            returns: returns.map(Arc::new),
            follow,
            telling: telling::Telling::default(),
            process: Process::current(),
        });
        Returns::start(&shared);
        shared.start_followers();
        Pool(shared)
    }
}

impl Pool {
    /// How to reach a pool whose replicas are named one by one.
    pub fn options() -> PoolOptions {
        PoolOptions::default()
    }

    /// How to reach the pool of a pool set; see [`SetOptions`].
    pub fn from_set(set: pmof_pool_set::PoolSet) -> SetOptions {
        SetOptions::new(set)
    }

    /// Size in bytes, of the header too where it has one.
    pub fn len_bytes(&self) -> u64 {
        self.0.facts.size_bytes
    }

    /// What may be written: all of it but the header, which pools of a pool set begin with.
    pub fn data_range(&self) -> Range<u64> {
        self.0.facts.header_bytes..self.0.facts.size_bytes
    }

    /// The pool's identity, the same on every replica.
    pub fn uuid(&self) -> Uuid {
        self.0.facts.uuid
    }

    /// What the pool's maker says of its contents; see [`PoolOptions::user_flags`]. Zeros for the pool of a pool set.
    pub fn user_flags(&self) -> [u8; USER_FLAGS_BYTES] {
        self.0.facts.user_flags
    }

    /// The failure that persisted bytes survive.
    pub fn durability(&self) -> Durability {
        self.0.facts.durability
    }

    /// Replicas that were named when it was opened, and those that were found by what the named ones know.
    pub fn replica_count(&self) -> usize {
        self.0.facts.replica_count
    }

    /// Members that it has: the replicas that it was made with, unless they were [changed](Self::add).
    pub fn made_count(&self) -> usize {
        self.0.open().map_or(self.0.facts.made_count, |open| open.member_count())
    }

    /// Replicas that were named, or found by those named, and that the pool was opened without, and why. Of a pool that is open for writing they may have come back
    /// since; see [`status`](Self::status).
    pub fn left_out(&self) -> &[(Arc<ReplicaPlace>, Arc<ReplicaError>)] {
        &self.0.facts.left_out
    }

    /// The replicas in their order: where each lies, and why it is out of use, if it is. Empty of a closed pool.
    pub fn replicas(&self) -> Vec<(Arc<ReplicaPlace>, Option<Arc<ReplicaError>>)> {
        let Ok(open) = self.0.open() else { return Vec::new() };
        let standings = open.places().map(|member| member.standing());
        let why = |standing: &Standing| match standing.report_failure() {
            None if standing.state().is_behind() => Some(Arc::new(ReplicaError::Behind)),
            failure => failure.cloned(),
        };
        standings.map(|standing| (Arc::clone(&standing.place), why(standing))).collect()
    }

    /// What the connections to its replicas have moved, each since it was opened; none of a closed pool.
    pub fn traffic(&self) -> Traffic {
        let mut traffic = Traffic::default();
        if let Ok(open) = self.0.open() {
            open.places().filter_map(|member| Some(member.remote()?.traffic())).for_each(|moved| traffic.add(&moved));
        }
        traffic
    }

    /// Whether all replicas are in sync.
    ///
    /// # Errors
    /// [`PoolError::Replica`]: of the first that is not, and why; [`PoolError::Closed`].
    pub fn check_replicas(&self) -> Result<(), PoolError> {
        self.0.open()?.check_none_lost()
    }

    /// Bytes that the opening copied from one replica to others, because they differed.
    pub fn copied_bytes(&self) -> u64 {
        self.0.facts.equalized.copied_bytes
    }

    /// Bytes of the pool that the opening compared, of a native pool that was not closed in order: those that its replicas' maps of write intent
    /// name. Elsewhere the replicas are equal, unless a medium changed by itself, which [`scrub`](Self::scrub) finds.
    pub fn compared_bytes(&self) -> u64 {
        self.0.facts.equalized.compared_bytes
    }

    /// Whether the replicas were closed in order before this opening, so that they were equal. If not, they may differ in what was not
    /// acknowledged: an opening for writing has made them equal, an opening for reading has not. Also `false` for a reader while a writer
    /// has the pool. Of the pool of a pool set: whether nothing had to be copied.
    pub fn was_closed(&self) -> bool {
        self.0.facts.was_closed
    }

    /// The consistency point that it was [opened at](PoolOptions::open_at_point), if it was.
    pub fn point(&self) -> Option<&ConsistencyPoint> {
        self.0.facts.point.as_ref()
    }

    /// What the headers say, of a pool set's; `None` where there are none.
    pub fn attributes(&self) -> Option<Attributes> {
        if !self.0.process.is_current() {
            return self.0.facts.attributes;
        }
        *self.0.attributes.lock()
    }

    /// Changes what the headers on targets say, durably. A pool without headers has attributes of zeros.
    ///
    /// # Errors
    /// [`PoolError::NoHeader`] where there are none; [`PoolError::Replica`].
    pub fn set_attributes(&self, attributes: &Attributes) -> Result<(), PoolError> {
        let open = self.0.writable()?;
        let mut current = self.0.attributes.lock();
        if current.is_none() {
            return if attributes.is_zero() { open.check_none_lost() } else { Err(PoolError::NoHeader) };
        }
        for member in &open.members {
            let Some(remote) = member.remote() else { continue };
            let set = remote.set_attributes(attributes);
            set.map_err(|source| replica_error(&**member, source))?;
        }
        *current = Some(*attributes);
        Ok(())
    }

    /// The memory that the program writes to, and persists ranges of; the pool has it by [`PoolOptions::mirror`], and of a pool set as
    /// its first replica, whose files stay in use as long as it is held. `None` of a closed pool too.
    ///
    /// What is stored and never persisted stays in the mirror. Where that is the first replica of a pool set, it then differs from the
    /// others, which the next opening refuses unless told [otherwise](SetOptions::differing): persist all before the pool is closed, and
    /// store nothing after it.
    pub fn mirror(&self) -> Option<Arc<dyn Medium>> {
        self.0.open().ok()?.mirror.clone()
    }

    /// What happens to the replicas from now on; first of all that the pool [was forced](Event::Forced), if that is so. Only of pools that were opened for writing by [`PoolOptions`] is there anything to tell.
    pub fn events(&self) -> Events {
        if !self.0.process.is_current() {
            return self.0.events.of_parent(self.0.process);
        }
        let open = self.0.hold().ok();
        let epochs = open.as_ref().and_then(|open| open.epochs.as_ref());
        let forced = epochs.and_then(|epochs| epochs.roster()?.forced);
        self.0.events.listen(self.0.process, forced.map(|forced| Event::Forced { forced }))
    }

    /// One caller's stream of writes. Lanes cost nothing; a thread that writes much has its own.
    pub fn lane(&self) -> Lane {
        Lane::new(self.clone())
    }

    /// Writes one range and makes it durable on all replicas in sync: the short form of a lane's write and flush.
    ///
    /// # Errors
    /// Those of [`Lane::write`] and [`Pending::wait`].
    pub fn persist(&self, offset: u64, bytes: &[u8]) -> Result<Receipt, PoolError> {
        let len_bytes = bytes.len() as u64;
        let _room = self.0.wait_for_room(len_bytes);
        let open = self.0.writable()?;
        open.facts.check_data(offset, len_bytes)?;
        let (range, mut written) = (offset..offset + len_bytes, Written::default());
        if !bytes.is_empty() {
            written.add(Atomicity::Relaxed, (range.start, range.end));
        }
        open.write(range, Atomicity::Relaxed, true, |part| Source::part(bytes, offset, part))?;
        let receipt = open.persist(written);
        if receipt.is_err() {
            self.0.unflushed.fetch_add(1, Ordering::Release);
            self.0.failed.fetch_add(1, Ordering::Release);
        }
        receipt
    }

    /// Makes a range of the [`mirror`](Self::mirror) durable on all replicas in sync.
    ///
    /// # Errors
    /// Those of [`Lane::write_range`] and [`Pending::wait`].
    pub fn persist_range(&self, range: Range<u64>) -> Result<Receipt, PoolError> {
        self.lane().persist_range(range)
    }

    /// Copies bytes at `offset` out, from the first replica that is alive; of a pool opened for reading, from one that was closed in
    /// order, if there is one, and that is [still in sync](PoolOptions::open_read_only). Writes posted before are seen. Where that replica does not answer, this takes its
    /// [`loss_timeout`](PoolOptions::loss_timeout); the next replica is then read, and the next receipt or [`check_replicas`](Self::check_replicas)
    /// tells of the loss.
    ///
    /// # Errors
    /// [`PoolError::OutOfBounds`], [`PoolError::Closed`], [`PoolError::NoneLeft`]; of a pool open for reading also those of
    /// [`open_read_only`](PoolOptions::open_read_only), where the members in sync have changed.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), PoolError> {
        self.0.check_process()?;
        self.0.facts.check(offset, into.len() as u64)?;
        if let Some(follow) = &self.0.follow {
            follow.check(&self.0)?;
        }
        self.0.hold()?.read(offset, into)
    }

    /// Reads from one replica, the `index`-th of [`replicas`](Self::replicas), and from no other. Until the members are [changed](Self::add) these
    /// are the replicas of the options, in their order.
    ///
    /// # Errors
    /// [`PoolError::NoSuchReplica`], [`PoolError::OutOfBounds`], [`PoolError::Replica`].
    pub fn read_replica(&self, index: usize, offset: u64, into: &mut [u8]) -> Result<(), PoolError> {
        self.0.facts.check(offset, into.len() as u64)?;
        let open = self.0.hold()?;
        let Some(member) = open.places().nth(index) else {
            return Err(PoolError::NoSuchReplica { index, replica_count: open.places().count() });
        };
        member.read(offset, into).map_err(|source| replica_error(&**member, source))
    }

    /// Closes the pool on every replica; all its handles are then closed. Everything that was written is made durable first, so that
    /// the replicas are equal, and the next opening need not compare them.
    ///
    /// A lost replica is no error here if a quorum of the others knows that it was left behind. Where too few others are left for that, it is none if
    /// the program was told of the loss ([`PoolError::Persist`], [`check_replicas`](Self::check_replicas), [`replicas`](Self::replicas)) and each of its writes was
    /// persisted, or told to have failed: `Ok` never hides a write that may be lost. This does not wait for replicas that
    /// catch up: the next opening goes on with them. Asynchronous members that are connected are sent what they lack, for up to the
    /// [`loss_timeout`](PoolOptions::loss_timeout); so are those that are being connected to, where the program has [named a point](Self::consistency_point) that is the end of what was written.
    ///
    /// A pool made with [`PoolOptions::publish_on_close`] gets its name now. If a replica refuses or is dead, the pool is
    /// removed again from the others.
    ///
    /// # Errors
    /// [`PoolError::Replica`], [`PoolError::Set`]: of the first replica that failed and was not told of; [`PoolError::Closed`]; [`PoolError::Forked`]: the pool stays
    /// open in the process that opened it.
    pub fn close(&self) -> Result<(), PoolError> {
        self.0.check_process()?;
        self.0.finish_followers();
        if let Some(returns) = &self.0.returns {
            returns.stop();
        }
        self.0.events.close();
        // Nobody posts any more, and who waits for a flush has what it takes to see its end.
        let open = self.0.open.write().take().ok_or(PoolError::Closed)?;
        let [unflushed, failed] = [&self.0.unflushed, &self.0.failed].map(|count| count.load(Ordering::Acquire));
        open.close(unflushed == 0, unflushed == failed)
    }
}

impl Shared {
    /// What the pool holds; it is not closed as long as this is borrowed.
    fn open(&self) -> Result<MappedRwLockReadGuard<'_, Arc<Open>>, PoolError> {
        self.check_process()?;
        RwLockReadGuard::try_map(self.open.read(), Option::as_ref).map_err(|_| PoolError::Closed)
    }

    /// The same without keeping it from being closed: for what waits.
    fn hold(&self) -> Result<Arc<Open>, PoolError> {
        Ok(Arc::clone(&*self.open()?))
    }

    fn writable(&self) -> Result<MappedRwLockReadGuard<'_, Arc<Open>>, PoolError> {
        if self.facts.access == OpenFor::Read {
            return Err(PoolError::ReadOnly);
        }
        self.open()
    }
}

impl Facts {
    fn check(&self, offset: u64, len_bytes: u64) -> Result<(), PoolError> {
        let size_bytes = self.size_bytes;
        let is_inside = offset.checked_add(len_bytes).is_some_and(|end| end <= size_bytes);
        if is_inside { Ok(()) } else { Err(PoolError::OutOfBounds { offset, len_bytes, size_bytes }) }
    }

    /// The same of what is to be written.
    fn check_data(&self, offset: u64, len_bytes: u64) -> Result<(), PoolError> {
        self.check(offset, len_bytes)?;
        if offset < self.header_bytes { Err(PoolError::Header { offset }) } else { Ok(()) }
    }
}

impl Open {
    /// Whether a range can be written from the mirror.
    fn check_mirror(&self, offset: u64, len_bytes: u64) -> Result<(), PoolError> {
        let size_bytes = self.mirror.as_ref().ok_or(PoolError::NoMirror)?.len_bytes();
        let is_inside = offset.checked_add(len_bytes).is_some_and(|end| end <= size_bytes);
        // Beyond the pool's own end is the caller's next check.
        let is_inside = is_inside || self.facts.check(offset, len_bytes).is_err();
        if is_inside { Ok(()) } else { Err(PoolError::OutOfBounds { offset, len_bytes, size_bytes }) }
    }

    /// Keeps the mirror like the pool, where it is not one of its replicas.
    fn store_in_mirror(&self, offset: u64, source: Source<'_>) -> Result<(), PoolError> {
        let Some(mirror) = &self.mirror else { return Ok(()) };
        match source {
            Source::Bytes(bytes) => mirror.store(offset, bytes),
            Source::Atomic(value) => mirror.atomic_store(offset, value),
            Source::Mirror => Ok(()),
        }
        .map_err(PoolError::Mirror)
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), PoolError> {
        if into.is_empty() {
            return Ok(());
        }
        match self.read_from_any(offset, into) {
            Err(PoolError::NoneLeft { source, .. }) if matches!(*source, ReplicaError::Damaged { .. }) => {
                self.read_around_damage(offset, into)
            }
            read => read,
        }
    }

    /// Reads from the first member that has all of the range as it was written; what is damaged elsewhere is repaired.
    fn read_from_any(&self, offset: u64, into: &mut [u8]) -> Result<(), PoolError> {
        let mut last = PoolError::NoReplicas;
        let (before, rest) = self.members.split_at(self.facts.first_read);
        let mut damaged: SmallVec<[usize; 2]> = SmallVec::new();
        let first_read = self.facts.first_read;
        let positions = (first_read..self.members.len()).chain(0..first_read);
        for (position, member) in positions.zip(rest.iter().chain(before)) {
            if member.state().is_witness() {
                continue;
            }
            match member.read(offset, into) {
                Ok(()) => {
                    for position in damaged {
                        self.heal_range(position, &(offset..offset + into.len() as u64));
                    }
                    return Ok(());
                }
                Err(source) => {
                    let is_damaged = matches!(*source, ReplicaError::Damaged { .. });
                    let replica = Arc::clone(&member.standing().place);
                    if is_damaged {
                        damaged.push(position);
                    }
                    // Damage is what the caller hears of, also where another one is lost.
                    if is_damaged || damaged.is_empty() {
                        last = PoolError::NoneLeft { replica, source };
                    }
                }
            }
        }
        Err(last)
    }

    /// Members that have all that was acknowledged.
    fn in_use(&self) -> impl Iterator<Item = &Arc<dyn Member>> + Clone {
        self.members.iter().filter(|member| member.state().is_in_sync())
    }

    /// Members that the pool has and that have its data.
    fn member_count(&self) -> usize {
        self.epochs.as_ref().map_or(self.facts.made_count, |epochs| epochs.member_count())
    }

    /// The replicas: all but witnesses, and those that are no members yet or any more.
    fn places(&self) -> impl Iterator<Item = &Arc<dyn Member>> {
        self.members.iter().filter(|member| member.state().is_data_member())
    }

    fn check_none_lost(&self) -> Result<(), PoolError> {
        for member in self.places() {
            let standing = member.standing();
            if let Some(why) = standing.report_failure() {
                return Err(replica_error(&**member, Arc::clone(why)));
            }
            if standing.state().is_behind() {
                return Err(replica_error(&**member, Arc::new(ReplicaError::Behind)));
            }
        }
        Ok(())
    }

    /// Posts a write to all replicas.
    fn write<'b>(
        &self,
        range: Range<u64>,
        atomicity: Atomicity,
        is_held: bool,
        source: impl Fn(&Range<u64>) -> Source<'b>,
    ) -> Result<(), PoolError> {
        let _writing = self.followers.as_ref().map(|followers| followers.begin_write());
        let posted = self.post(range.clone(), atomicity, is_held, &source);
        if let Some(followers) = &self.followers {
            // Behind that: a point has no write that the members in sync were not sent.
            match &posted {
                Ok(()) => followers.keep(&range, atomicity, self.mirror.as_ref(), source),
                Err(_) => followers.lose_track(&range),
            }
        }
        posted
    }

    fn post<'b>(
        &self,
        range: Range<u64>,
        atomicity: Atomicity,
        is_held: bool,
        source: impl Fn(&Range<u64>) -> Source<'b>,
    ) -> Result<(), PoolError> {
        self.intend(&range)?;
        let windows: SmallVec<[u64; 2]> = posting::begin_write(self.written.as_deref(), &self.catching_up, &range);
        let (mut at, mut missed) = (range.start, 0);
        while at < range.end {
            // Piece by piece, so that several replicas are fed in turn; none cuts a word.
            let piece = at..(at / RELAXED_BYTES * RELAXED_BYTES + RELAXED_BYTES).min(range.end);
            let source = source(&piece);
            self.store_in_mirror(at, source)?;
            let write = Write { offset: at, len_bytes: piece.end - at, source, atomicity, is_held };
            missed |= self.write_piece(&write);
            at = piece.end;
        }
        posting::end_write(&self.catching_up, windows, &range, missed);
        Ok(())
    }

    /// Makes durable what a lane has written.
    fn persist(&self, written: Written) -> Result<Receipt, PoolError> {
        let flush = Flush::of(written);
        let post = |flush| self.start_flush(flush, FlushLevel::OfPool);
        let persisted = match &self.group {
            Some(group) => group.persist(flush, post, |flushing| self.finish_flush(flushing)),
            None => self.finish_flush(post(flush)),
        };
        persisted.map_err(PoolError::Persist)
    }

    fn start_flush(&self, flush: Flush, level: FlushLevel) -> Flushings {
        self.collect_abandoned();
        self.members.iter().map(|member| member.start_flush(flush, level)).collect()
    }

    /// Takes in the outcomes of flushes that nobody waits for: they would stay in the queue.
    fn collect_abandoned(&self) {
        if !self.has_abandoned.load(Ordering::Relaxed) {
            return;
        }
        // Another thread that does it does it for all.
        let Some(mut abandoned) = self.abandoned.try_lock() else { return };
        abandoned.retain_mut(|flushing| {
            let mut all = flushing.iter_mut().zip(&self.members);
            !all.all(|(flushing, member)| member.is_flushed(flushing, Duration::ZERO))
        });
        self.has_abandoned.store(!abandoned.is_empty(), Ordering::Relaxed);
    }

    /// Waits for a flush of all replicas, and acknowledges it.
    fn finish_flush(&self, mut flushing: Flushings) -> Persisted {
        // What is on this machine is made durable while targets do the same.
        for (member, flushing) in self.members.iter().zip(&mut flushing) {
            if member.remote().is_none() {
                member.is_flushed(flushing, Duration::ZERO);
            }
        }
        let persisted = done(posting::finish_persist(self, &mut flushing));
        // Moved only where one is left.
        if flushing.iter().any(Flushing::is_in_flight) {
            self.abandon(flushing);
        }
        persisted
    }

    /// No member is asked for anything from now on.
    fn fence(&self, successor: &str) {
        let others = self.members.iter().filter(|member| member.state().is_connected());
        others.filter_map(|member| member.control()).for_each(|control| control.fence(successor));
    }
}
