//! Which replica a member is, its state, and why it was lost.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use pmof_access::Evidence;
use pmof_control::FailureDomain;
use pmof_locks::Mutex;
use pmof_replication::member_state::{Event, Link, MemberCell, MemberState};
use uuid::Uuid;

use crate::{ReplicaDomain, ReplicaError, ReplicaPlace};

/// Which replica it is, and its state. Of one connection: a member that comes back has another one.
#[derive(Debug)]
pub(crate) struct Standing {
    pub(crate) place: Arc<ReplicaPlace>,
    state: MemberCell,
    /// Written before the state says that it is lost or removed.
    loss: OnceLock<Loss>,
    /// Why it is lost still, where it was tried again since.
    still: Mutex<Option<Arc<ReplicaError>>>,
    reported: Reported,
    /// Which replica it is, where that was found when the pool was opened.
    replica_uuid: Option<Uuid>,
    /// What its target says of its failure domain, if it does.
    failure_domain: Option<FailureDomain>,
    /// Which of the pool's domains that is, in one number; 0 where it is not known.
    domain: AtomicU32,
}

/// Why it was lost or removed, and when.
#[derive(Debug)]
struct Loss {
    why: Arc<ReplicaError>,
    since: Instant,
}

impl Loss {
    fn new(why: Arc<ReplicaError>) -> Self {
        Self { why, since: Instant::now() }
    }

    fn event(&self) -> Event {
        let is_of_none = self.why.is_of_no_member() || matches!(*self.why, ReplicaError::Asynchronous { .. });
        if is_of_none { Event::Removed } else { Event::Lost }
    }
}

/// To whom it was reported that it is lost or slow. It changes nothing of its state, and saves a second report.
#[derive(Debug, Default)]
struct Reported {
    /// Closing the pool need not report the loss.
    to_program: AtomicBool,
    to_watcher: AtomicBool,
}

impl Standing {
    fn at(place: Arc<ReplicaPlace>, state: MemberCell) -> Self {
        Self {
            place,
            state,
            loss: OnceLock::new(),
            still: Mutex::default(),
            reported: Reported::default(),
            replica_uuid: None,
            failure_domain: None,
            domain: AtomicU32::new(0),
        }
    }

    /// Of a replica in sync.
    pub(crate) fn new(place: Arc<ReplicaPlace>) -> Self {
        Self::at(place, MemberCell::new(MemberState::InSync))
    }

    /// Of a replica that is to catch up with the others.
    pub(crate) fn behind(place: Arc<ReplicaPlace>) -> Self {
        Self::at(place, MemberCell::new(MemberState::Behind(Link::Connected)))
    }

    /// Of a replica that is no member yet.
    pub(crate) fn candidate(place: Arc<ReplicaPlace>) -> Self {
        Self::at(place, MemberCell::new(MemberState::Candidate(Link::Connected)))
    }

    /// Of a replica that the pool is opened without; the program finds it among [`Pool::left_out`](crate::Pool::left_out).
    pub(crate) fn failed(place: Arc<ReplicaPlace>, why: Arc<ReplicaError>) -> Self {
        let reported = Reported { to_program: AtomicBool::new(true), ..Reported::default() };
        let standing = Self { reported, ..Self::new(place) };
        standing.fail_for(why);
        standing
    }

    /// Of a new connection to a member that was lost.
    pub(crate) fn reconnected(&self, is_witness: bool) -> Self {
        let back = if is_witness { Event::BackAsWitness } else { Event::BackWithData };
        Self::at(Arc::clone(&self.place), self.state.succeeded_by(back))
    }

    /// The same of a witness, if it is one.
    pub(crate) fn of_witness(self, is_witness: bool) -> Self {
        let state = if is_witness { self.state().of_witness() } else { self.state() };
        Self { state: MemberCell::new(state), ..self }
    }

    pub(crate) fn with_failure_domain(self, failure_domain: Option<FailureDomain>) -> Self {
        Self { failure_domain, ..self }
    }

    pub(crate) fn of_replica(self, replica_uuid: Uuid) -> Self {
        Self { replica_uuid: Some(replica_uuid), ..self }
    }

    pub(crate) fn replica_uuid(&self) -> Option<Uuid> {
        self.replica_uuid
    }

    pub(crate) fn failure_domain(&self) -> Option<&FailureDomain> {
        self.failure_domain.as_ref()
    }

    /// Which of the pool's failure domains it is in.
    pub(crate) fn domain(&self) -> Option<ReplicaDomain> {
        let domain = self.domain.load(Ordering::Relaxed).checked_sub(1)?;
        let evidence = if domain & 1 == 0 { Evidence::Probed } else { Evidence::Declared };
        Some(ReplicaDomain { number: (domain >> 1) as u16, evidence })
    }

    pub(crate) fn set_domain(&self, domain: Option<ReplicaDomain>) {
        let known =
            |domain: ReplicaDomain| 1 + 2 * u32::from(domain.number) + u32::from(domain.evidence == Evidence::Declared);
        self.domain.store(domain.map_or(0, known), Ordering::Relaxed);
    }

    /// What it is to the pool: one load.
    #[inline]
    pub(crate) fn state(&self) -> MemberState {
        self.state.get()
    }

    /// An epoch that makes it a member is in force, or may be.
    pub(crate) fn is_made_a_member(&self) {
        self.state.take(Event::MadeMember);
    }

    /// The others go on without it. Before anything that it lacks is acknowledged, enough of them know durably that it is behind.
    pub(crate) fn leave_behind(&self) {
        self.state.take(Event::LeftBehind);
    }

    /// It is written again.
    pub(crate) fn is_admitted(&self) {
        self.reported.to_watcher.store(false, Ordering::Relaxed);
        self.state.take(Event::Admitted);
    }

    /// It has all that the others have. Returns what it is: it may have been lost or left behind meanwhile.
    pub(crate) fn has_caught_up(&self) -> MemberState {
        self.state.take(Event::CaughtUp).to
    }

    /// Takes it out of use. What failed first stays the reason, which is returned.
    pub(crate) fn fail(&self, error: ReplicaError) -> Arc<ReplicaError> {
        self.fail_for(Arc::new(error))
    }

    /// The same, for a reason that others have too.
    pub(crate) fn fail_for(&self, why: Arc<ReplicaError>) -> Arc<ReplicaError> {
        let loss = self.loss.get_or_init(|| Loss::new(why));
        let state = self.state.take(loss.event()).to;
        assert!(!state.is_connected(), "a member that has failed is {state:?}");
        Arc::clone(&loss.why)
    }

    fn loss(&self) -> Option<&Loss> {
        if self.state().is_connected() {
            return None;
        }
        Some(self.loss.get().expect("the reason is written before the state"))
    }

    /// Why it was lost or removed, if it was.
    pub(crate) fn failure(&self) -> Option<&Arc<ReplicaError>> {
        self.loss().map(|loss| &loss.why)
    }

    /// Why nothing is read from it, which is not in sync.
    pub(crate) fn why_not_read(&self) -> Arc<ReplicaError> {
        self.failure().map_or_else(|| Arc::new(ReplicaError::Behind), Arc::clone)
    }

    /// The same, as it was found when it was tried last.
    pub(crate) fn latest_failure(&self) -> Option<Arc<ReplicaError>> {
        let why = self.failure()?;
        Some(self.still.lock().clone().unwrap_or_else(|| Arc::clone(why)))
    }

    /// One that is lost was tried again, and this is why it stays so.
    pub(crate) fn still_fails(&self, why: Arc<ReplicaError>) {
        *self.still.lock() = Some(why);
    }

    /// How long it has been lost, if it is.
    pub(crate) fn failed_for(&self) -> Option<Duration> {
        self.loss().map(|loss| loss.since.elapsed())
    }

    /// Why it was lost, as an answer to the program: closing the pool need not report it again.
    pub(crate) fn report_failure(&self) -> Option<&Arc<ReplicaError>> {
        let failure = self.failure()?;
        self.reported.to_program.store(true, Ordering::Relaxed);
        Some(failure)
    }

    /// Whether the program knows that it was lost.
    pub(crate) fn is_loss_reported(&self) -> bool {
        self.reported.to_program.load(Ordering::Relaxed)
    }

    /// Whether the watcher has yet to hear that it is lost or slow. It hears once.
    pub(crate) fn is_news_to_watcher(&self) -> bool {
        let to_watcher = &self.reported.to_watcher;
        !to_watcher.load(Ordering::Relaxed) && !to_watcher.swap(true, Ordering::Relaxed)
    }
}
