use core::{
    cell::{Cell, RefCell},
    pin::pin,
    task::{Context, Poll, Waker},
};
use std::{
    boxed::Box,
    collections::VecDeque,
    format,
    ops::Range,
    rc::{Rc, Weak},
    string::String,
    vec,
    vec::Vec,
};

use pmof_control::{Epoch, FailureDomain, Header, PoolFormat, PoolName, Roster, USER_FLAGS_BYTES};

use core::time::Duration;
use pmof_terms::MediumKind;

use super::*;
use crate::{
    catch_up::Limit,
    comparing::{self, Findings, Scrubbed},
    epochs::{Epochs, MemberQuorum},
    lineage::Base,
    member_state::{Event, Link, MemberCell},
    membership::Membership,
    pages::PAGE_BYTES,
    view::{Positions, Rule, View},
};

mod holdings;
mod verified;
mod waits;

use holdings::Holdings;

const POSITION: usize = 2;
const SIZE_BYTES: u64 = 64 * PAGE_BYTES;
const POOL: Uuid = Uuid::from_u128(1);
/// The epoch that all were in before the last one was lost, and the writer's own behind it.
const FIRST: Uuid = Uuid::from_u128(100);
const OWN: Uuid = Uuid::from_u128(101);

const SLOW_AFTER: Duration = Duration::from_millis(1);

type Member = Rc<MemberCell>;

/// A failure of the test's driver.
#[derive(Debug)]
struct Refused(PoolRefusal);

impl Failure for Refused {
    fn may_be_lost(&self) -> bool {
        false
    }

    fn refusal(&self) -> Option<PoolRefusal> {
        Some(self.0)
    }
}

/// A pool of three that answers at once, whose last member is lost.
struct Pool {
    epochs: RefCell<Epochs>,
    members: RefCell<Vec<Member>>,
    steps: RefCell<Vec<String>>,
    names: Cell<u128>,
    /// What the target answers to requests to open the replica.
    opened: RefCell<VecDeque<Result<Reply, Refused>>>,
    holder: RefCell<PoolState>,
    trust: RefCell<Trust>,
    boot: Cell<Option<Uuid>>,
    require: Cell<Durability>,
    /// The steps that halt the next time, as slow ones.
    slow: RefCell<Vec<&'static str>>,
    /// The same of steps that lose the member.
    lost: RefCell<Vec<&'static str>>,
    /// Pages that are written when the step comes.
    written: RefCell<Vec<(&'static str, Range<u64>)>>,
    catch_up: RefCell<Option<Arc<CatchUp>>>,
    /// The member whose memory was let go of.
    let_go: RefCell<Weak<MemberCell>>,
    now: Cell<Duration>,
    /// Too few are in sync without the member.
    is_needed: Cell<bool>,
    /// How often the member is still found to be a candidate.
    candidate_looks: Cell<usize>,
    /// The pages that are not what they were, by the positions of members.
    rotten: RefCell<Vec<(usize, usize)>>,
}

/// The state of a replica that was left at the first epoch.
fn left_at_first() -> PoolState {
    let mut state = PoolState::new(FIRST, 3);
    (state.is_open, state.is_confirmed, state.opening) = (true, true, 1);
    state
}

/// The same of one that a successor has told of its epoch.
fn of_successor() -> PoolState {
    let own = Epoch { id: OWN, members: 0b011 };
    let epoch = Epoch { id: Uuid::from_u128(500), members: 0b110 };
    left_at_first().begun(2, epoch, 3, &[own, Epoch { id: FIRST, members: 0b111 }])
}

fn opened(state: PoolState) -> Reply {
    Reply::Opened {
        pool_uuid: POOL,
        replica_uuid: Uuid::from_u128(7),
        size_bytes: SIZE_BYTES,
        replica_count: 3,
        replica_index: 2,
        user_flags: [0; USER_FLAGS_BYTES],
        state,
        descriptor: Vec::new(),
        enclosed: Box::default(),
    }
}

fn done<T>(step: impl Future<Output = T>) -> T {
    match pin!(step).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(outcome) => outcome,
        Poll::Pending => panic!("it waits for a driver that answers at once"),
    }
}

fn pool() -> Pool {
    let pool = whole(3);
    pool.members.borrow()[POSITION].take(Event::Lost);
    assert!(done(epochs::begin(&Locked(&pool))));
    pool.steps.take();
    pool
}

/// A pool of so many that are all in sync.
fn whole(count: u16) -> Pool {
    let all = (1 << count) - 1;
    let first = Epoch { id: FIRST, members: all };
    let indexes = (0..count).map(Some).collect();
    let mut view = View::new(Rule::of(count.into()), indexes, Base::after(first, 1, &[]), 0, all);
    view.note_equal(all);
    Pool {
        epochs: RefCell::new(Epochs::new(view, Membership::default())),
        members: RefCell::new((0..count).map(|_| Rc::new(MemberCell::new(MemberState::InSync))).collect()),
        steps: RefCell::default(),
        names: Cell::new(100),
        opened: RefCell::new([Ok(opened(left_at_first()))].into()),
        holder: RefCell::new(left_at_first()),
        trust: RefCell::default(),
        boot: Cell::new(None),
        require: Cell::new(Durability::PowerFailure),
        slow: RefCell::default(),
        lost: RefCell::default(),
        written: RefCell::default(),
        catch_up: RefCell::default(),
        let_go: RefCell::default(),
        now: Cell::new(Duration::from_secs(1)),
        is_needed: Cell::new(true),
        candidate_looks: Cell::new(0),
        rotten: RefCell::default(),
    }
}

impl Pool {
    fn step(&self, step: String) {
        self.steps.borrow_mut().push(step);
    }

    /// What was done since, in order.
    fn steps(&self) -> Vec<String> {
        self.steps.take()
    }

    fn takes(list: &RefCell<Vec<&'static str>>, step: &str) -> bool {
        let mut list = list.borrow_mut();
        let at = list.iter().position(|of| *of == step);
        at.map(|at| list.remove(at)).is_some()
    }

    /// What comes of a step of the returning member.
    fn outcome(&self, step: &str, member: &Member) -> Result<(), Halt<Refused>> {
        self.step(step.into());
        let mut written = self.written.borrow_mut();
        if let Some(at) = written.iter().position(|(at, _)| *at == step) {
            let (_, range) = written.remove(at);
            let catch_up = self.catch_up.borrow();
            let catch_up = catch_up.as_ref().unwrap();
            catch_up.missed_write(&range);
        }
        if step == "compare" && Self::takes(&self.lost, "not this compare") {
            return Ok(());
        }
        if Self::takes(&self.lost, step) {
            member.take(Event::Lost);
            return Err(Halt::Later);
        }
        if Self::takes(&self.slow, step) { Err(Halt::Slow) } else { Ok(()) }
    }

    fn state_of(&self, position: usize) -> MemberState {
        self.members.borrow()[position].get()
    }
}

struct Locked<'p>(&'p Pool);

impl Driver for Locked<'_> {
    type Keeper<'k>
        = MemberQuorum<'k, Self>
    where
        Self: 'k;

    fn keeper(&self) -> MemberQuorum<'_, Self> {
        MemberQuorum::of(self)
    }

    fn with<T>(&self, look: impl FnOnce(&mut Epochs) -> T) -> T {
        look(&mut self.0.epochs.borrow_mut())
    }

    fn positions(&self, is: impl Fn(MemberState) -> bool) -> Positions {
        let members = self.0.members.borrow();
        let is_so = members.iter().enumerate().filter(|(_, member)| is(member.get()));
        is_so.fold(0, |all, (position, _)| all | 1 << position)
    }

    async fn tell(&self, asked: Positions, request: &Request, _: &Reply) -> Positions {
        self.0.step(format!("all {asked:b}: {}", name_of(request)));
        asked & self.positions(MemberState::is_connected)
    }

    fn fresh_name(&self) -> Uuid {
        self.0.names.set(self.0.names.get() + 1);
        Uuid::from_u128(self.0.names.get())
    }

    fn note_current(&self, _: Positions) {}
}

fn name_of(request: &Request) -> &'static str {
    match request {
        Request::Begin { .. } => "Begin",
        Request::Confirm { .. } => "Confirm",
        Request::Mark { .. } => "Mark",
        _ => "another",
    }
}

impl Members for Pool {
    type Member = Member;
    type Failure = Refused;
    type Locked<'l> = Locked<'l>;

    async fn lock(&self) -> Locked<'_> {
        Locked(self)
    }

    fn state(&self, member: &Member) -> MemberState {
        member.get()
    }

    fn put(&self, _: &Locked<'_>, position: usize, member: &Member) {
        self.members.borrow_mut()[position] = Rc::clone(member);
    }

    async fn give_roster(&self, _: &Member, _: &Roster) -> bool {
        true
    }

    async fn ask_for(
        &self,
        member: &Member,
        request: &Request,
        _: &Reply,
        _: Option<Duration>,
    ) -> Result<(), Halt<Refused>> {
        self.outcome(name_of(request), member)
    }
}

/// The return of the last member.
struct Bringing(Rc<Pool>);

impl Bringing {
    fn holdings(&self) -> Rc<Holdings> {
        Rc::new(Holdings { pool: Rc::clone(&self.0), members: self.0.members.borrow().clone() })
    }
}

impl Scrubbed for Bringing {
    type Contents = Holdings;
    type Open = Rc<Holdings>;
    type Held<'h> = Rc<Holdings>;

    fn contents(&self) -> Result<Rc<Holdings>, ()> {
        Ok(self.holdings())
    }

    async fn hold_all(&self) -> Result<Rc<Holdings>, ()> {
        Ok(self.holdings())
    }
}

impl Returns for Bringing {
    type Member = Member;
    type Failure = Refused;
    type Epochs = Pool;
    type EpochsRef = Rc<Pool>;
    type Site = ();
    type Reached = ();
    type Flushing = Member;
    type Contents = Holdings;
    type Pool = Self;
    type PoolRef = Box<Self>;
    type Held<'h> = Rc<Holdings>;
    type Rules = ShippedRules;

    fn rules(&self) -> &ShippedRules {
        &ShippedRules
    }

    fn position(&self) -> usize {
        POSITION
    }

    fn terms(&self) -> Halted<Terms, Self> {
        let user_flags = [0; USER_FLAGS_BYTES];
        let identity = Identity { uuid: POOL, size_bytes: SIZE_BYTES, user_flags, replica_count: 3 };
        Ok(Terms { identity, require: self.0.require.get(), member_count: 3 })
    }

    fn limits(&self) -> Halted<Limits, Self> {
        let window = Limit { ranges: 1, bytes: 16 * PAGE_BYTES };
        Ok(Limits {
            copied: window,
            compared: window,
            sync_bytes: 1,
            last_bytes: PAGE_BYTES,
            ..Limits::prompt(SLOW_AFTER)
        })
    }

    fn pauses(&self) -> Pauses {
        Pauses::default()
    }

    fn backoff(&self) -> Backoff {
        Backoff::new(&Pauses::default())
    }

    fn pool(&self) -> Halted<Box<Self>, Self> {
        Ok(Box::new(Self(Rc::clone(&self.0))))
    }

    fn epochs(&self) -> Halted<Rc<Pool>, Self> {
        Ok(Rc::clone(&self.0))
    }

    fn member(&self) -> Halted<Member, Self> {
        Ok(Rc::clone(&self.0.members.borrow()[POSITION]))
    }

    fn with_trust<T>(&self, look: impl FnOnce(&mut Trust) -> T) -> T {
        look(&mut self.0.trust.borrow_mut())
    }

    async fn let_go(&self, lost: Member) -> Halted<(), Self> {
        self.0.members.borrow_mut()[POSITION] = Rc::new(MemberCell::new(lost.get()));
        *self.0.let_go.borrow_mut() = Rc::downgrade(&lost);
        Ok(())
    }

    async fn connect(&self, _: &Member) -> Option<()> {
        let is_mapped = self.0.let_go.borrow().upgrade().is_some();
        assert!(!is_mapped, "its file is locked while the memory of the lost member is mapped");
        Some(())
    }

    fn name(&self) -> PoolName {
        "orders".parse().unwrap()
    }

    async fn open(&self, site: &(), request: &Request) -> Result<Reply, Refused> {
        self.ask(site, request).await
    }

    async fn ask(&self, (): &(), request: &Request) -> Result<Reply, Refused> {
        if let Request::TakeOver { claim, silent_ms, .. } = request {
            assert_eq!(*silent_ms, u64::MAX, "no writer is fenced for its silence");
            self.0.step(format!("open {claim:?}"));
            return self.0.opened.borrow_mut().pop_front().unwrap();
        }
        self.0.step("Info".into());
        let header = Header {
            format: PoolFormat::Three,
            layout: pmof_control::FileLayout::default(),
            compatible_features: 0,
            pool_uuid: POOL,
            replica_uuid: Uuid::from_u128(7),
            size_bytes: SIZE_BYTES,
            created_at_unix_s: 0,
            replica_count: 3,
            replica_index: 2,
            user_flags: [0; USER_FLAGS_BYTES],
        };
        Ok(Reply::Info(Box::new(PoolInfo {
            name: self.name(),
            header,
            state: self.0.holder.borrow().clone(),
            file_len_bytes: SIZE_BYTES,
            medium: MediumKind::PageCache,
            promises: [None; 3],
            open_by: Some("another".into()),
        })))
    }

    fn note_failure(&self, _: &Member, _: Refused) {}

    fn reach(&self, (): &(), _: &[u8], size_bytes: u64) -> Halted<(), Self> {
        assert!([SIZE_BYTES, pmof_control::WITNESS_BYTES].contains(&size_bytes));
        Ok(())
    }

    async fn adopt(
        &self,
        lost: &Member,
        _: ((), ()),
        _: Option<Option<FailureDomain>>,
        is_witness: bool,
    ) -> Option<Member> {
        Some(Rc::new(lost.succeeded_by(if is_witness { Event::BackAsWitness } else { Event::BackWithData })))
    }

    async fn boot(&self, _: &Member) -> Option<Uuid> {
        self.0.boot.get()
    }

    fn fence(&self, successor: Option<&str>) {
        self.0.step(format!("fence for {successor:?}"));
    }

    fn give_up(&self, member: &Member) {
        member.take(Event::Lost);
        self.0.step("give up".into());
    }

    fn reference(&self) -> Halted<Option<Member>, Self> {
        Ok(self.0.members.borrow().first().cloned())
    }

    fn is_needed(&self) -> bool {
        let member = Rc::clone(&self.0.members.borrow()[POSITION]);
        self.0.is_needed.get() && self.0.outcome("needed", &member).is_ok()
    }

    async fn hold_all(&self, _: &Self) -> Halted<Rc<Holdings>, Self> {
        let member = Rc::clone(&self.0.members.borrow()[POSITION]);
        if Pool::takes(&self.0.lost, "removed") {
            member.take(Event::Removed);
        }
        self.0.outcome("hold", &member).map(|()| self.holdings())
    }

    fn add_written(&self, _: &Rc<Holdings>, missing: &PageMap) {
        missing.mark(0..PAGE_BYTES);
    }

    fn admit(&self, _: Rc<Holdings>, member: &Member, catch_up: Option<&Arc<CatchUp>>) {
        member.take(Event::Admitted);
        let missing = catch_up.map(|catch_up| catch_up.missing_bytes() / PAGE_BYTES);
        self.0.step(format!("admit, pages missing: {missing:?}"));
        *self.0.catch_up.borrow_mut() = catch_up.cloned();
    }

    fn start_flush(&self, member: &Member) -> Member {
        self.0.step("flush".into());
        Rc::clone(member)
    }

    async fn finish_flush(&self, member: Member) -> bool {
        self.0.outcome("flushed", &member).is_ok()
    }

    async fn finish_flush_within(&self, member: Member, _: Duration) -> bool {
        self.0.outcome("in time", &member).is_ok()
    }

    async fn flush_last(&self, _: &Self::Held<'_>, member: &Member, _: Option<Duration>) -> Option<bool> {
        match self.0.outcome("flush the last", member) {
            Err(Halt::Slow) => None,
            outcome => Some(outcome.is_ok()),
        }
    }

    async fn give_intent(&self, _: &Self::Held<'_>, member: &Member, _: Option<Duration>) -> Halted<(), Self> {
        self.0.outcome("intent", member)
    }

    fn note_caught_up(&self, member: &Member) -> MemberState {
        member.take(Event::CaughtUp).to
    }

    fn note_joined(&self, _: Rc<Holdings>) {
        self.0.step("joined".into());
    }

    fn interrupt(&self, member: &Member, is_slow: bool) {
        member.take(if is_slow { Event::LeftBehind } else { Event::Lost });
        self.0.step(format!("interrupted, slow: {is_slow}"));
    }

    fn is_candidate(&self) -> bool {
        let looks = self.0.candidate_looks.get();
        self.0.candidate_looks.set(looks.saturating_sub(1));
        if looks > 0 && Pool::takes(&self.0.lost, "candidate") {
            self.0.members.borrow()[POSITION].take(Event::Lost);
        }
        looks > 0
    }

    fn gives_up_candidate(&self) -> bool {
        self.0.candidate_looks.get() > 0
    }

    fn note_rejected(&self, why: Rejection<Refused>, is_first: bool) {
        self.0.step(format!("rejected: {why:?}, first: {is_first}"));
    }

    fn note_scrubbed(&self, range: &Range<u64>, found: Findings<Member>, _: Duration) {
        self.0.step(format!("{} repaired in {range:?}", found.repaired.len()));
    }

    fn note(&self, _: &Member, progress: Progress) {
        match progress {
            Progress::InSync { copied_bytes, is_verified, .. } => {
                self.0.step(format!("in sync, {} pages copied, verified: {is_verified}", copied_bytes / PAGE_BYTES));
            }
            Progress::Verified { compared_bytes, .. } => {
                self.0.step(format!("{} pages verified", compared_bytes / PAGE_BYTES));
            }
            Progress::Differs { range } => self.0.step(format!("differs in {range:?}")),
            Progress::WitnessBack | Progress::CatchingUp { .. } => {}
        }
    }

    fn is_stopping(&self) -> bool {
        false
    }

    async fn pause(&self, pause: Duration) -> bool {
        self.0.now.set(self.0.now.get() + pause);
        if pause == Pauses::default().quorum_look && self.0.state_of(POSITION).is_connected() {
            let another = self.0.members.borrow().iter().position(|member| member.get().is_lost());
            if let Some(another) = another {
                self.0.members.borrow_mut()[another] = Rc::new(MemberCell::new(MemberState::Behind(Link::Connected)));
                self.0.step(format!("{another} is back"));
            }
        }
        self.0.opened.borrow().front().is_some() || self.0.state_of(POSITION).is_connected()
    }

    fn now(&self) -> Duration {
        self.0.now.get()
    }
}

fn bring_back(pool: &Rc<Pool>) -> Option<Returned<Member>> {
    done(super::bring_back(&Bringing(Rc::clone(pool))))
}

#[test]
fn a_member_returns_in_this_order() {
    let pool = Rc::new(pool());
    let returned = bring_back(&pool).unwrap();
    assert!(!returned.is_compared && Rc::ptr_eq(&returned.member, &pool.members.borrow()[POSITION]));
    let steps = [
        &format!("open Own({FIRST})"),
        // It knows that it is behind before it is sent anything.
        "Begin",
        "Confirm",
        "hold",
        "admit, pages missing: Some(1)",
        "Mark",
        "copy",
        "flush",
        "flushed",
        // All that needs no hold.
        "flush",
        "flushed",
        "Mark",
        "flush",
        "flushed",
        "needed",
        "Mark",
        "all 111: Begin",
        "hold",
        "flush the last",
        "intent",
        "all 111: Confirm",
        "joined",
        "in sync, 1 pages copied, verified: false",
    ];
    assert_eq!(pool.steps(), steps);
    assert_eq!(pool.state_of(POSITION), MemberState::InSync);
}

#[test]
fn what_is_written_while_a_member_is_about_to_join_is_copied_first() {
    let pool = Rc::new(pool());
    pool.written.borrow_mut().push(("needed", PAGE_BYTES..2 * PAGE_BYTES));
    bring_back(&pool).unwrap();
    let steps = pool.steps();
    let at = |step: &str| steps.iter().rposition(|of| of == step).unwrap();
    assert!(at("hold") < at("copy") && at("copy") < at("flush the last"), "{steps:?}");
    // More than fits into the time for which writers may wait: once more through the pool, without the hold.
    let pool = Rc::new(self::pool());
    pool.written.borrow_mut().push(("needed", PAGE_BYTES..4 * PAGE_BYTES));
    bring_back(&pool).unwrap();
    let steps = pool.steps();
    assert_eq!(steps.iter().filter(|step| *step == "flush the last").count(), 1, "{steps:?}");
    assert_eq!(steps.iter().filter(|step| *step == "all 111: Begin").count(), 2, "{steps:?}");
    assert!(steps.iter().rposition(|step| step == "copy") < steps.iter().rposition(|step| step == "hold"), "{steps:?}");
}

#[test]
fn a_holder_that_was_superseded_is_taken_from() {
    let pool = Rc::new(pool());
    let busy = || Err(Refused(PoolRefusal::Busy));
    *pool.opened.borrow_mut() = [busy(), Ok(opened(left_at_first()))].into();
    bring_back(&pool).unwrap();
    let expected = [format!("open Own({FIRST})"), "Info".into(), format!("open Superseded({FIRST})"), "Begin".into()];
    assert_eq!(pool.steps()[..4], expected);
}

#[test]
fn nothing_is_taken_from_a_holder_that_may_be_a_successor() {
    let pool = Rc::new(pool());
    *pool.opened.borrow_mut() = [Err(Refused(PoolRefusal::Busy))].into();
    // It knows of no epoch of this writer, nor does this one know of its.
    *pool.holder.borrow_mut() = left_at_first().begun(2, Epoch { id: Uuid::from_u128(500), members: 0b110 }, 2, &[]);
    assert!(bring_back(&pool).is_none());
    assert_eq!(pool.steps(), [format!("open Own({FIRST})"), "Info".into()]);
}

#[test]
fn a_successor_fences_as_holder_and_by_what_it_told() {
    let pool = Rc::new(pool());
    *pool.opened.borrow_mut() = [Err(Refused(PoolRefusal::Busy))].into();
    *pool.holder.borrow_mut() = of_successor();
    assert!(bring_back(&pool).is_none());
    assert_eq!(pool.steps().last().unwrap(), "fence for Some(\"another\")");
    *pool.opened.borrow_mut() = [Ok(opened(of_successor()))].into();
    assert!(bring_back(&pool).is_none());
    assert_eq!(pool.steps(), [format!("open Own({FIRST})"), "fence for None".into(), "give up".into()]);
}

#[test]
fn no_member_returns_to_a_pool_that_is_being_closed() {
    let pool = Rc::new(pool());
    pool.epochs.borrow_mut().has_ended = true;
    let found = || Ok(opened(left_at_first()));
    *pool.opened.borrow_mut() = [found(), found()].into();
    assert!(bring_back(&pool).is_none());
    assert_eq!(pool.steps(), [format!("open Own({FIRST})"), "give up".into()]);
    // Nor is the replica taken from its holder.
    *pool.opened.borrow_mut() = [Err(Refused(PoolRefusal::Busy)), found()].into();
    assert!(bring_back(&pool).is_none());
    assert_eq!(pool.steps(), [format!("open Own({FIRST})"), "Info".into()]);
}

#[test]
fn a_member_that_was_removed_is_not_opened() {
    let pool = Rc::new(pool());
    pool.members.borrow()[POSITION].take(Event::Removed);
    assert!(bring_back(&pool).is_none());
    assert_eq!(pool.steps(), [""; 0]);
}

#[test]
fn a_replica_that_diverged_is_rejected_and_tried_again() {
    let pool = Rc::new(pool());
    let mut apart = PoolState::new(Uuid::from_u128(600), 3);
    apart.is_confirmed = true;
    *pool.opened.borrow_mut() = [Ok(opened(apart.clone())), Ok(opened(apart)), Ok(opened(left_at_first()))].into();
    let began = pool.now.get();
    bring_back(&pool).unwrap();
    let steps = pool.steps();
    let rejected: Vec<_> = steps.iter().filter(|step| step.starts_with("rejected")).collect();
    assert!(rejected.len() == 2 && rejected[0].ends_with("true") && rejected[1].ends_with("false"), "{steps:?}");
    assert!(pool.now.get() >= began + 2 * Pauses::default().rejected);
}

#[test]
fn a_replica_of_another_pool_or_size_is_rejected() {
    let others: [fn(&mut Reply); 2] = [
        |reply| {
            let Reply::Opened { pool_uuid, .. } = reply else { return };
            *pool_uuid = Uuid::from_u128(2);
        },
        |reply| {
            let Reply::Opened { size_bytes, .. } = reply else { return };
            *size_bytes = pmof_control::WITNESS_BYTES;
        },
    ];
    for change in others {
        let pool = Rc::new(pool());
        let mut other = opened(left_at_first());
        change(&mut other);
        *pool.opened.borrow_mut() = [Ok(other)].into();
        assert!(bring_back(&pool).is_none());
        assert!(pool.steps()[1].starts_with("rejected: Reason(Mismatch"));
    }
}

#[test]
fn one_that_is_slow_to_join_is_left_behind_and_goes_on() {
    let pool = Rc::new(pool());
    pool.slow.borrow_mut().push("flush the last");
    let returned = bring_back(&pool).unwrap();
    let steps = pool.steps();
    let after: Vec<_> = steps.iter().skip_while(|step| *step != "interrupted, slow: true").take(6).collect();
    // It keeps its connection, and the epoch that counts it is not confirmed.
    assert_eq!(after[1..6], ["flush", "flushed", "needed", "Begin", "Confirm"], "{steps:?}");
    assert_eq!(steps.iter().filter(|step| *step == "all 111: Confirm").count(), 1, "{steps:?}");
    assert!(!returned.is_compared && pool.state_of(POSITION).is_in_sync());
}

#[test]
fn a_member_joins_that_answers_each_probe_in_time() {
    let pool = Rc::new(pool());
    pool.is_needed.set(false);
    bring_back(&pool).unwrap();
    let in_time = |pool: &Pool| pool.steps().iter().filter(|step| *step == "in time").count();
    assert_eq!(in_time(&pool), 8);
    // One that does not is left behind, and probed before it catches up and before it joins.
    let pool = Rc::new(self::pool());
    pool.is_needed.set(false);
    pool.slow.borrow_mut().push("in time");
    bring_back(&pool).unwrap();
    assert_eq!(in_time(&pool), 1 + 8 + 8);
}

#[test]
fn a_later_boot_has_lost_what_was_not_durable() {
    let (one, other) = (Uuid::from_u128(1), Uuid::from_u128(2));
    for (boot, is_compared) in [(Some(one), false), (Some(other), true), (None, true)] {
        let pool = Rc::new(pool());
        pool.require.set(Durability::ProcessCrash);
        pool.trust.borrow_mut().note_boot(Some(one));
        pool.boot.set(boot);
        assert_eq!(bring_back(&pool).unwrap().is_compared, is_compared, "{boot:?}");
    }
}
