//! One member's return, as the engine drives it: with connections, memory and threads that block.

use std::{
    ops::Range,
    sync::{Arc, Weak},
    time::Duration,
};

use pmof_control::{FailureDomain, OpenFor, PoolName, Reply, Request};
use pmof_replication::{
    comparing::Findings,
    returning::{self as engine, Backoff, Halted, Limits, Pauses, Progress, Rejection, Returned, ShippedRules},
};
use uuid::Uuid;

use super::{Attended, Halt, Held, Returns, hold};
use crate::{
    PoolUrl, ReplicaError, ReplicaPlace, ScrubReport,
    catch_up::CatchUp,
    member::{AbsentMember, Control, FlushLevel, Flushing, Member, UNKNOWN_SUCCESSOR},
    member_state::MemberState,
    pages::PageMap,
    pool::{
        Open, Shared,
        domains::number_domains,
        epochs::{Epochs, done},
        events::{Event, Log},
        opened::Reached,
    },
    site::Site,
};

/// The return of the member at a position.
struct Return<'r> {
    returns: &'r Returns,
    pool: &'r Weak<Shared>,
    events: &'r Log,
    position: usize,
}

impl Returns {
    /// Brings the member at a position back, however long it takes.
    pub(super) fn bring_back(&self, pool: &Weak<Shared>, events: &Log, position: usize) {
        let bringing = Return { returns: self, pool, events, position };
        let Some(Returned { member, is_compared, backoff }) = done(engine::bring_back(&bringing)) else { return };
        self.attended.lock()[position] = Attended { has_thread: false, is_running: true, backoff };
        // It may have been lost again since.
        self.losses.raise();
        if !is_compared && done(engine::verify(&bringing, &member)) {
            self.losses.raise();
        }
    }
}

/// A flush of what was copied, whose answer is owed until it has come.
pub(super) struct CopyFlush {
    member: Arc<dyn Member>,
    in_flight: Option<Flushing>,
}

impl CopyFlush {
    fn finish(&mut self) -> bool {
        self.in_flight.take().is_some_and(|mut flushing| self.member.has_flushed(&mut flushing, None))
    }

    fn is_done_within(&mut self, limit: Duration) -> bool {
        self.in_flight.as_mut().is_some_and(|flushing| self.member.has_flushed(flushing, Some(limit)))
    }
}

/// No answer is owed to a copy that was given up.
impl Drop for CopyFlush {
    fn drop(&mut self) {
        self.finish();
    }
}

impl Return<'_> {
    fn open(&self) -> Result<Arc<Open>, Halt> {
        hold(self.pool)
    }

    fn url(&self) -> Arc<PoolUrl> {
        self.returns.url(self.position)
    }

    /// A failure at a replica that returns may pass by itself, except these two.
    fn unusable(error: ReplicaError) -> Halt {
        match error {
            error @ (ReplicaError::Mismatch { .. } | ReplicaError::NotDurable { .. }) => {
                Halt::Rejected(Rejection::Failed(error))
            }
            _ => Halt::Later,
        }
    }
}

impl engine::Returns for Return<'_> {
    type Member = Arc<dyn Member>;
    type Failure = ReplicaError;
    type Epochs = Epochs;
    type EpochsRef = Arc<Epochs>;
    type Site = Site;
    type Reached = Reached;
    type Flushing = CopyFlush;
    type Contents = Open;
    type Pool = Shared;
    type PoolRef = Arc<Shared>;
    type Held<'h> = Held<'h>;
    type Rules = ShippedRules;

    fn rules(&self) -> &ShippedRules {
        &ShippedRules
    }

    fn position(&self) -> usize {
        self.position
    }

    fn terms(&self) -> Halted<engine::Terms, Self> {
        let member_count = self.open()?.member_count() as u16;
        Ok(engine::Terms { identity: self.returns.identity, require: self.returns.require, member_count })
    }

    fn limits(&self) -> Halted<Limits, Self> {
        let limits = self.open()?.terms.slow_after.map_or(Limits::SHIPPED, Limits::prompt);
        Ok(Limits { bytes_per_second: self.returns.bytes_per_second, ..limits })
    }

    fn pauses(&self) -> Pauses {
        Pauses::default()
    }

    fn backoff(&self) -> Backoff {
        self.returns.attended.lock()[self.position].backoff
    }

    fn pool(&self) -> Halted<Arc<Shared>, Self> {
        self.pool.upgrade().ok_or(Halt::Ended)
    }

    fn epochs(&self) -> Halted<Arc<Epochs>, Self> {
        self.open()?.epochs.clone().ok_or(Halt::Ended)
    }

    fn member(&self) -> Halted<Arc<dyn Member>, Self> {
        Ok(Arc::clone(&self.open()?.members[self.position]))
    }

    fn with_trust<T>(&self, look: impl FnOnce(&mut engine::Trust) -> T) -> T {
        look(&mut self.returns.trust.lock()[self.position])
    }

    async fn let_go(&self, member: Arc<dyn Member>) -> Halted<(), Self> {
        if member.remote().is_some() || member.control().is_none() {
            return Ok(());
        }
        let shared = self.pool()?;
        let mut held = self.hold_all(&shared).await?;
        let open = Arc::clone(held.open());
        let standing = open.members[self.position].standing();
        let why = standing.failure().cloned().ok_or(Halt::Later)?;
        let absent = AbsentMember::new(Arc::clone(&standing.place), why).of_witness(standing.state().is_witness());
        let absent: Arc<dyn Member> = Arc::new(absent);
        if let Some(epochs) = &open.epochs {
            epochs.replace(self.position, &absent);
        }
        let mut members = open.members.clone();
        members[self.position] = absent;
        held.change(members, open.catching_up.clone());
        Ok(())
    }

    async fn connect(&self, member: &Arc<dyn Member>) -> Option<Site> {
        let peers = self.returns.peers.lock().clone();
        let site = self.returns.reach.site(&peers, &self.url());
        site.map_err(|why| member.standing().still_fails(Arc::new(why))).ok()
    }

    fn name(&self) -> PoolName {
        self.url().name.clone()
    }

    async fn open(&self, site: &Site, request: &Request) -> Result<Reply, ReplicaError> {
        site.ask_when_free(request)
    }

    async fn ask(&self, site: &Site, request: &Request) -> Result<Reply, ReplicaError> {
        site.ask(request)
    }

    fn note_failure(&self, member: &Arc<dyn Member>, why: ReplicaError) {
        member.standing().still_fails(Arc::new(why));
    }

    fn reach(&self, site: &Site, descriptor: &[u8], size_bytes: u64) -> Halted<Reached, Self> {
        let terms = (self.returns.require, OpenFor::Write);
        let reached =
            Reached::check(site, descriptor).and_then(|()| Reached::open(site, descriptor, size_bytes, terms));
        reached.map_err(Self::unusable)
    }

    async fn adopt(
        &self,
        lost: &Arc<dyn Member>,
        (site, reached): (Site, Reached),
        domain: Option<Option<FailureDomain>>,
        is_witness: bool,
    ) -> Option<Arc<dyn Member>> {
        let domain = domain.unwrap_or_else(|| site.failure_domain(site.send(&Request::Domain)));
        let standing = lost.standing().reconnected(is_witness).with_failure_domain(domain);
        let open = self.open().ok()?;
        let member = reached.member(standing, site, self.returns.identity.size_bytes, open.mirror.as_ref()).ok()?;
        // Most of them before the pool is held for it.
        open.unprotect_raised_on(&*member);
        Some(member)
    }

    async fn boot(&self, member: &Arc<dyn Member>) -> Option<Uuid> {
        member.control().and_then(Control::boot)
    }

    fn fence(&self, successor: Option<&str>) {
        if let Ok(open) = self.open() {
            open.fence(successor.unwrap_or(UNKNOWN_SUCCESSOR));
        }
    }

    fn give_up(&self, member: &Arc<dyn Member>) {
        // Taken over there, before the pool knows of this connection.
        if let ReplicaError::Fenced { successor } = &*member.standing().fail(ReplicaError::Behind) {
            self.fence(Some(successor));
        }
    }

    fn reference(&self) -> Halted<Option<Arc<dyn Member>>, Self> {
        Ok(self.open()?.reference().cloned())
    }

    fn is_needed(&self) -> bool {
        self.open().is_ok_and(|open| open.is_needed())
    }

    async fn hold_all<'h>(&self, pool: &'h Shared) -> Halted<Held<'h>, Self> {
        self.returns.hold_all(pool)
    }

    fn add_written(&self, held: &Held<'_>, missing: &PageMap) {
        held.open().written.iter().for_each(|written| missing.add(written));
        self.returns.older.lock().add_to(missing);
    }

    fn admit(&self, mut held: Held<'_>, member: &Arc<dyn Member>, catch_up: Option<&Arc<CatchUp>>) {
        held.open().unprotect_raised_on(&**member);
        let mut members = held.open().members.clone();
        members[self.position] = Arc::clone(member);
        member.standing().is_admitted();
        number_domains(&members);
        let catch_up = catch_up.map(|catch_up| (self.position, Arc::clone(catch_up)));
        let catching_up = held.others(self.position).chain(catch_up).collect();
        held.change(members, catching_up);
    }

    fn start_flush(&self, member: &Arc<dyn Member>) -> CopyFlush {
        let in_flight = Some(member.start_flush_everything(FlushLevel::OfPool));
        CopyFlush { member: Arc::clone(member), in_flight }
    }

    async fn finish_flush(&self, mut flushing: CopyFlush) -> bool {
        flushing.finish()
    }

    async fn finish_flush_within(&self, mut flushing: CopyFlush, limit: Duration) -> bool {
        flushing.is_done_within(limit)
    }

    async fn flush_last(
        &self,
        held: &Self::Held<'_>,
        member: &Arc<dyn Member>,
        limit: Option<Duration>,
    ) -> Option<bool> {
        held.open().flush_last(self.position, &**member, limit)
    }

    async fn give_intent(
        &self,
        held: &Self::Held<'_>,
        member: &Arc<dyn Member>,
        limit: Option<Duration>,
    ) -> Halted<(), Self> {
        held.open().give_intent(member.control().ok_or(Halt::Later)?, limit)
    }

    fn note_caught_up(&self, member: &Arc<dyn Member>) -> MemberState {
        member.standing().has_caught_up()
    }

    fn note_joined(&self, mut held: Held<'_>) {
        let (members, others) = (held.open().members.clone(), held.others(self.position).collect());
        held.change(members, others);
    }

    fn interrupt(&self, member: &Arc<dyn Member>, is_slow: bool) {
        if is_slow {
            member.standing().leave_behind();
        } else if let Some(control) = member.control() {
            control.fail(ReplicaError::Behind);
        }
    }

    fn is_candidate(&self) -> bool {
        self.returns.is_candidate(self.position)
    }

    fn gives_up_candidate(&self) -> bool {
        self.returns.gives_up_candidate(self.pool, self.position)
    }

    fn note_rejected(&self, why: Rejection<ReplicaError>, is_first: bool) {
        let why = Arc::new(match why {
            Rejection::Reason(reason) => reason.into(),
            Rejection::NotAMember { index } => ReplicaError::NotAMember { index },
            Rejection::Failed(error) => error,
        });
        if let Ok(open) = self.open() {
            open.members[self.position].standing().still_fails(Arc::clone(&why));
        }
        if is_first {
            let replica = Arc::new(ReplicaPlace::Pool(PoolUrl::clone(&self.url())));
            self.events.add(Event::Rejected { replica, why });
        }
    }

    fn note_scrubbed(&self, range: &Range<u64>, found: Findings<Arc<dyn Member>>, took: Duration) {
        let mut report = ScrubReport { compared_bytes: range.end - range.start, ..ScrubReport::default() };
        report.add(found);
        self.events.add(Event::Scrubbed { report: Arc::new(report), took });
    }

    fn note(&self, member: &Arc<dyn Member>, progress: Progress) {
        let replica = Arc::clone(&member.standing().place);
        self.events.add(match progress {
            Progress::WitnessBack => Event::WitnessBack { replica },
            Progress::CatchingUp { missing_bytes } => Event::CatchingUp { replica, missing_bytes },
            Progress::InSync { copied_bytes, took, is_verified } => {
                Event::InSync { replica, copied_bytes, took, is_verified }
            }
            Progress::Verified { compared_bytes, took } => Event::Verified { replica, compared_bytes, took },
            Progress::Differs { range } => Event::Differs { replica, range },
        });
    }

    fn is_stopping(&self) -> bool {
        self.returns.is_stopping()
    }

    async fn pause(&self, pause: Duration) -> bool {
        self.returns.pause(pause)
    }

    fn now(&self) -> Duration {
        self.returns.now()
    }
}
