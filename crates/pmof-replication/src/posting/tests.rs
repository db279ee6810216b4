use core::{
    cell::{Cell, RefCell},
    pin::pin,
    task::{Context, Poll, Waker},
};
use std::{format, rc::Rc, string::String};

use super::*;
use crate::{
    comparing::{Compared, ShippedRules},
    epochs::Epochs,
    member_state::{Event, MemberCell},
    pages::PAGE_BYTES,
};

const SIZE_BYTES: u64 = 64 * PAGE_BYTES;

type Member = Rc<MemberCell>;

fn done<T>(step: impl Future<Output = T>) -> T {
    match pin!(step).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(outcome) => outcome,
        Poll::Pending => panic!("it waits for a driver that answers at once"),
    }
}

/// A pool of three members in sync.
struct Pool {
    members: Vec<Member>,
    written: RefCell<Arc<PageMap>>,
    older: RefCell<OlderPages>,
    slow_after: Option<Duration>,
    has_room: Cell<bool>,
    are_others_enough: Cell<bool>,
    /// The member that is lost when the map is begun.
    lost: Cell<Option<usize>>,
    terms: AckTerms,
    /// The failure domains of the members that have flushed.
    reached: Vec<Option<u16>>,
    steps: RefCell<Vec<String>>,
}

fn pool() -> Pool {
    let written = PageMap::new(SIZE_BYTES);
    written.mark(0..1);
    Pool {
        members: (0..3).map(|_| Rc::new(MemberCell::new(MemberState::InSync))).collect(),
        written: RefCell::new(Arc::new(written)),
        older: RefCell::default(),
        slow_after: Some(Duration::from_millis(1)),
        has_room: Cell::new(true),
        are_others_enough: Cell::new(true),
        lost: Cell::new(None),
        terms: AckTerms::ALL,
        reached: [0, 1, 2].map(Some).into(),
        steps: RefCell::default(),
    }
}

impl Pool {
    fn step(&self, step: String) {
        self.steps.borrow_mut().push(step);
    }

    /// Whether a member that comes back is sent the first page.
    fn is_page_known(&self) -> bool {
        let missing = PageMap::new(SIZE_BYTES);
        self.older.borrow().add_to(&missing);
        missing.meets(&(0..1)) || self.written.borrow().meets(&(0..1))
    }
}

impl Posting<u8> for Pool {
    type Member = Member;

    fn slow_after(&self) -> Option<Duration> {
        self.slow_after
    }

    fn state(&self, member: &Member) -> MemberState {
        member.get()
    }

    fn write(&self, _: &Member, write: &u8) {
        self.step(format!("{write}"));
    }

    fn write_within(&self, _: &Member, write: &u8, limit: Duration) -> bool {
        self.step(format!("{write} within {limit:?}"));
        self.has_room.get()
    }

    fn leave_behind(&self, member: &Member) {
        member.take(Event::LeftBehind);
    }

    fn leave_in_sync_behind(&self, position: usize) -> bool {
        if self.are_others_enough.get() {
            self.members[position].take(Event::LeftBehind);
        }
        self.are_others_enough.get()
    }
}

#[test]
fn a_member_without_room_is_left_behind_if_the_others_are_enough() {
    let pool = pool();
    let post_to = |position: usize| post(&pool, (position, &pool.members[position]), &7);
    assert!(post_to(0));
    assert_eq!(pool.steps.take(), ["7 within 50ms"], "a full queue of one in sync is no sign of slowness");
    pool.has_room.set(false);
    assert!(!post_to(0) && pool.members[0].get().is_slow());
    pool.steps.take();
    assert!(!post_to(0));
    assert!(pool.steps.take().is_empty(), "nothing is posted to a slow member");
    pool.are_others_enough.set(false);
    assert!(post_to(1) && pool.members[1].get().is_in_sync());
    assert_eq!(pool.steps.take(), ["7 within 50ms", "7"], "it is awaited");
    // One that catches up may be left behind in any case, and sooner.
    pool.members[0].take(Event::Admitted);
    assert!(!post_to(0) && pool.members[0].get().is_slow());
    assert_eq!(pool.steps.take(), ["7 within 1ms"]);
}

#[test]
fn without_a_limit_each_member_is_awaited() {
    let pool = Pool { slow_after: None, has_room: Cell::new(false), ..pool() };
    assert!(post(&pool, (0, &pool.members[0]), &7));
    assert_eq!(pool.steps.take(), ["7"]);
}

#[test]
fn a_write_that_a_member_missed_is_copied_to_it() {
    let (written, page) = (PageMap::new(SIZE_BYTES), 3 * PAGE_BYTES..4 * PAGE_BYTES);
    let catching_up: Vec<_> = [0, 2].map(|at| (at, Arc::new(CatchUp::new(PageMap::new(SIZE_BYTES))))).into();
    let before: Vec<u64> = begin_write(Some(&written), &catching_up, &page);
    assert!(written.meets(&page) && before.len() == 2);
    end_write(&catching_up, before, &page, 0b101);
    let missing = || catching_up.iter().map(|(_, catch_up)| catch_up.missing_bytes() / PAGE_BYTES).collect::<Vec<_>>();
    assert_eq!(missing(), [1, 1]);
    let other = 5 * PAGE_BYTES..6 * PAGE_BYTES;
    let before: Vec<u64> = begin_write(None, &catching_up, &other);
    end_write(&catching_up, before, &other, 0b100);
    assert_eq!(missing(), [1, 2]);
    // Between the reading and the writing of a window that has the page.
    let window = catching_up[0].1.open_window(0, crate::catch_up::Limit { ranges: 1, bytes: PAGE_BYTES }).unwrap();
    let before: Vec<u64> = begin_write(None, &catching_up, &page);
    end_write(&catching_up, before, &page, 0);
    catching_up[0].1.close_window(&window);
    assert_eq!(missing(), [1, 2]);
}

impl patience::Members for Pool {
    fn terms(&self) -> AckTerms {
        self.terms
    }

    fn with<T>(&self, _: impl FnOnce(&Epochs) -> T) -> T {
        panic!("no time is over")
    }

    fn positions(&self, _: impl Fn(MemberState) -> bool) -> Positions {
        0
    }

    fn domain(&self, _: usize) -> Option<ReplicaDomain> {
        None
    }

    fn leave_behind(&self, _: usize) {}
}

/// Flushes that are done.
struct Done<'p>(&'p Pool);

impl patience::Waiting for Done<'_> {
    type Members = Pool;

    fn now(&self) -> Duration {
        panic!("there is nothing to wait for")
    }

    async fn wait_for_each(&mut self, slice: Duration) -> Positions {
        self.0.step(format!("each for {slice:?}"));
        0
    }

    fn with_members<T>(&self, look: impl FnOnce(&Pool) -> T) -> Option<T> {
        Some(look(self.0))
    }
}

impl Persist for Pool {
    type Flushing = ();
    type Waiting<'w> = Done<'w>;
    type Reached = ();
    type Outcome = bool;

    fn terms(&self) -> &AckTerms {
        &self.terms
    }

    fn waiting<'w>(&'w self, (): &'w mut ()) -> Done<'w> {
        Done(self)
    }

    async fn finish_all(&self, (): &mut ()) {
        self.step("flushed".into());
    }

    fn stop_where_fenced(&self) {
        self.step("fenced?".into());
    }

    async fn acknowledge(&self) -> bool {
        self.step("known".into());
        true
    }

    fn receipt(&self, (): (), judge: &Judge<'_>) -> bool {
        self.step("receipt".into());
        let domain = |number| ReplicaDomain { number, evidence: pmof_terms::Evidence::Declared };
        let have_it = self.reached.iter().map(|number| number.map(domain));
        judge.are_enough(have_it, |is_acknowledged| is_acknowledged || self.reached.len() == 3)
    }
}

#[test]
fn a_persist_is_acknowledged_behind_its_flush() {
    let pool = pool();
    assert!(done(finish_persist(&pool, &mut ())));
    assert_eq!(pool.steps.take(), ["flushed", "fenced?", "known", "receipt"]);
    let terms = AckTerms { slow_after: Some(Duration::from_millis(8)), ..AckTerms::ALL };
    let pool = Pool { terms, ..pool };
    assert!(done(finish_persist(&pool, &mut ())));
    assert_eq!(pool.steps.take(), ["each for 2ms", "flushed", "fenced?", "known", "receipt"]);
}

#[test]
fn a_persist_is_acknowledged_by_its_terms_only() {
    let is_acknowledged = |least: usize, domains: usize, reached: &[Option<u16>]| {
        let (terms, pool) = (AckTerms { least, domains, ..AckTerms::ALL }, Pool { reached: reached.into(), ..pool() });
        let receipt = |is_acknowledged| pool.receipt((), &Judge { terms: &terms, is_acknowledged });
        assert_eq!(receipt(false), receipt(true) && reached.len() == 3);
        receipt(true)
    };
    assert!(!is_acknowledged(1, 1, &[]) && is_acknowledged(1, 1, &[None]));
    assert!(!is_acknowledged(2, 1, &[Some(1)]) && is_acknowledged(2, 1, &[Some(1); 2]));
    assert!(!is_acknowledged(1, 2, &[Some(1); 3]) && is_acknowledged(1, 2, &[Some(1), Some(2)]));
    assert!(!is_acknowledged(1, 2, &[Some(1), None, None]), "one that is unknown adds none");
    assert!(is_acknowledged(3, 3, &[Some(1), Some(2), Some(3)]) && !is_acknowledged(3, 3, &[Some(1), Some(2)]));
}

#[test]
fn terms_that_cannot_be_met_are_told() {
    let terms = |least: usize, domains: usize| AckTerms { least, domains, ..AckTerms::ALL };
    assert_eq!(terms(3, 1).check_can_be_met(2, 2), Err(("replicas", 3, 2)));
    assert_eq!(terms(1, 3).check_can_be_met(3, 2), Err(("failure domains", 3, 2)));
    assert_eq!(terms(3, 3).check_can_be_met(3, 3), Ok(()));
    assert_eq!(terms(1, 1).check_can_be_met(1, 0), Ok(()), "an unknown one is enough");
}

impl Contents for Pool {
    type Member = Member;
    type Digest = u8;
    type Failure = ();
    type Rules = ShippedRules;

    fn rules(&self) -> &ShippedRules {
        &ShippedRules
    }

    fn members(&self) -> &[Member] {
        &self.members
    }

    fn state(&self, member: &Member) -> MemberState {
        member.get()
    }

    fn is_same(&self, one: &Member, other: &Member) -> bool {
        Rc::ptr_eq(one, other)
    }

    async fn digests(&self, _: &[Member], _: &Range<u64>, _: u64) -> Result<Compared<u8>, ()> {
        Err(())
    }

    async fn copy(&self, _: &Member, _: &[Range<u64>], _: &Member) -> bool {
        false
    }

    async fn repair(&self, _: &Member, _: &Range<u64>, _: &[Member]) -> Result<bool, ()> {
        Err(())
    }

    async fn data_ranges(&self, _: &Member) -> Option<Vec<Range<u64>>> {
        None
    }

    async fn flush(&self, _: &Member) -> Result<(), ()> {
        Err(())
    }
}

impl Forgetting for Pool {
    type Contents = Self;
    type Open = Rc<Self>;
    type Held<'h> = &'h Self;
    type Flushing = ();

    fn open(&self) -> Option<Rc<Self>> {
        let written = RefCell::new(Arc::clone(&self.written.borrow()));
        Some(Rc::new(Self { members: self.members.clone(), written, ..pool() }))
    }

    fn written(&self, open: &Self) -> Option<Arc<PageMap>> {
        Some(Arc::clone(&open.written.borrow()))
    }

    fn member_count(&self, _: &Self) -> usize {
        3
    }

    fn is_catching_up(&self, _: &Self) -> bool {
        false
    }

    async fn try_hold(&self) -> Option<&Self> {
        Some(self)
    }

    async fn begin_map<'h>(&'h self, _: &'h Self) -> Rc<Self> {
        *self.written.borrow_mut() = Arc::new(PageMap::new(SIZE_BYTES));
        assert!(self.is_page_known(), "it is set aside");
        if let Some(lost) = self.lost.get() {
            self.members[lost].take(Event::Lost);
        }
        Forgetting::open(self).unwrap()
    }

    fn with_older<T>(&self, look: impl FnOnce(&mut OlderPages) -> T) -> T {
        look(&mut self.older.borrow_mut())
    }

    fn start_flush(&self, _: &Member) {}

    async fn finish_flush(&self, member: &Member, (): ()) -> bool {
        member.get().is_in_sync()
    }
}

#[test]
fn pages_that_all_members_have_are_forgotten() {
    let pool = pool();
    done(forget_written(&pool));
    assert!(!pool.is_page_known());
}

#[test]
fn pages_are_kept_that_a_member_may_lack() {
    // Lost before they were set aside, and behind that.
    let pool = pool();
    pool.members[1].take(Event::Lost);
    done(forget_written(&pool));
    assert!(pool.written.borrow().meets(&(0..1)));
    let pool = self::pool();
    pool.lost.set(Some(1));
    done(forget_written(&pool));
    assert!(pool.is_page_known() && pool.written.borrow().is_empty());
}
