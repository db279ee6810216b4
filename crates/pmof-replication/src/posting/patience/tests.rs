use core::{
    cell::{Cell, RefCell},
    pin::pin,
    task::{Context, Poll, Waker},
};
use std::vec;

use pmof_control::Epoch;
use pmof_terms::Evidence;
use uuid::Uuid;

use super::*;
use crate::{
    lineage::Base,
    member_state::{Event, MemberCell},
    membership::Membership,
    view::{Rule, View},
};

const MS: Duration = Duration::from_millis(1);

/// A pool of three members in sync, each in a failure domain of its own, in which time passes while someone is waited for.
struct Pool {
    epochs: RefCell<Epochs>,
    members: [MemberCell; 3],
    terms: AckTerms,
    now: Cell<Duration>,
    /// Someone else changes the epochs until then.
    changed_until: Duration,
    /// When each member answers.
    answers_at: [Duration; 3],
}

fn pool(answers_at: [u32; 3], terms: AckTerms) -> Pool {
    let epoch = Epoch { id: Uuid::from_u128(1), members: 0b111 };
    let indexes = (0..3).map(Some).collect();
    let mut view = View::new(Rule::of(3), indexes, Base::after(epoch, 1, &[]), 0, 0b111);
    view.note_equal(0b111);
    Pool {
        epochs: RefCell::new(Epochs::new(view, Membership::default())),
        members: [(); 3].map(|()| MemberCell::new(MemberState::InSync)),
        terms,
        now: Cell::new(5 * MS),
        changed_until: Duration::ZERO,
        answers_at: answers_at.map(|at| MS * (5 + at)),
    }
}

/// Of a pool that waits for 20 ms longer than for two, and for 200 ms for silent ones.
fn terms() -> AckTerms {
    AckTerms { least: 2, domains: 1, slow_after: Some(20 * MS), give_up_after: 200 * MS }
}

impl Members for Pool {
    fn terms(&self) -> AckTerms {
        self.terms
    }

    fn with<T>(&self, look: impl FnOnce(&Epochs) -> T) -> T {
        look(&self.epochs.borrow())
    }

    fn positions(&self, is: impl Fn(MemberState) -> bool) -> Positions {
        bits(0b111).filter(|position| is(self.members[*position].get())).fold(0, |all, position| all | 1 << position)
    }

    fn domain(&self, position: usize) -> Option<ReplicaDomain> {
        Some(ReplicaDomain { number: position as u16, evidence: Evidence::Declared })
    }

    fn leave_behind(&self, position: usize) {
        self.members[position].take(Event::LeftBehind);
    }
}

impl Waiting for &Pool {
    type Members = Pool;

    fn now(&self) -> Duration {
        self.now.get()
    }

    async fn wait_for_each(&mut self, slice: Duration) -> Positions {
        let in_sync = self.positions(MemberState::is_in_sync);
        let mut late = 0;
        for position in bits(in_sync) {
            let waited = self.answers_at[position].saturating_sub(self.now.get()).min(slice);
            self.now.set(self.now.get() + waited);
            late |= u64::from(self.answers_at[position] > self.now.get()) << position;
        }
        late
    }

    fn with_members<T>(&self, look: impl FnOnce(&Pool) -> T) -> Option<T> {
        (self.now.get() >= self.changed_until).then(|| look(self))
    }
}

/// Who was left behind, and after how many milliseconds the wait was over.
fn waited(pool: &Pool, patience: Option<Patience>) -> (Positions, u128) {
    let began = pool.now.get();
    let mut waiting = pool;
    let Poll::Ready(left_behind) = pin!(wait(&mut waiting, patience)).poll(&mut Context::from_waker(Waker::noop()))
    else {
        panic!("it waits for a driver that answers at once")
    };
    assert_eq!(left_behind, 0b111 & !pool.positions(MemberState::is_in_sync));
    (left_behind, pool.now.get().saturating_sub(began).as_millis())
}

#[test]
fn one_that_takes_too_long_is_left_behind() {
    let waited = |answers_at: [u32; 3]| waited(&pool(answers_at, terms()), Patience::of(&terms()));
    assert_eq!(waited([0, 0, 0]), (0, 0));
    assert_eq!(waited([0, 19, 3]), (0, 19), "no more than agreed");
    let (left_behind, after) = waited([0, 3, 500]);
    assert_eq!(left_behind, 0b100);
    assert!((23..40).contains(&after), "{after}");
    let (left_behind, after) = waited([50, 500, 0]);
    assert_eq!(left_behind, 0b010, "the time counts from when enough are done");
    assert!((70..90).contains(&after), "{after}");
}

#[test]
fn one_that_is_needed_is_waited_for() {
    let all = AckTerms { least: 3, ..terms() };
    assert_eq!(waited(&pool([0, 0, 150], all), Patience::of(&all)), (0, 150));
    let apart = AckTerms { least: 1, domains: 3, ..terms() };
    assert_eq!(waited(&pool([0, 150, 0], apart), Patience::of(&apart)), (0, 150));
    // One is no quorum of three, whatever a persist is acknowledged by.
    let one = AckTerms { least: 1, ..terms() };
    assert_eq!(waited(&pool([0, 150, 150], one), Patience::of(&one)).0, 0);
    // A lost one is none of the others.
    let pool = pool([0, 0, 150], terms());
    pool.members[1].take(Event::Lost);
    let mut waiting = &pool;
    let Poll::Ready(left) =
        pin!(wait(&mut waiting, Patience::of(&terms()))).poll(&mut Context::from_waker(Waker::noop()))
    else {
        panic!("it waits")
    };
    assert_eq!(left, 0);
}

#[test]
fn one_that_is_silent_is_waited_for_alone_in_the_end() {
    let all = AckTerms { least: 3, ..terms() };
    let (left_behind, after) = waited(&pool([0, 0, 5000], all), Patience::of(&all));
    assert_eq!(left_behind, 0);
    assert!((200..220).contains(&after), "{after}: then as without a limit");
}

#[test]
fn no_member_is_left_behind_while_epochs_change() {
    let pool = Pool { changed_until: 105 * MS, ..pool([0, 0, 500], terms()) };
    let (left_behind, after) = waited(&pool, Patience::of(&terms()));
    assert_eq!(left_behind, 0b100);
    assert!((120..140).contains(&after), "{after}");
}

#[test]
fn answers_about_epochs_have_more_time() {
    let pool = pool([0, 40, 0], terms());
    let patience = Patience::of_answers(&terms(), &pool.epochs.borrow());
    assert_eq!(waited(&pool, patience), (0, 40));
    let pool = self::pool([0, 80, 0], terms());
    let patience = Patience::of_answers(&terms(), &pool.epochs.borrow());
    assert_eq!(waited(&pool, patience).0, 0b010);
}

#[test]
fn without_a_limit_all_are_waited_for() {
    assert!(Patience::of(&AckTerms::ALL).is_none());
    assert_eq!(waited(&pool([0, 0, 500], terms()), None), (0, 0));
    // So are answers while the pool is opened.
    let epoch = Epoch { id: Uuid::from_u128(1), members: 0b111 };
    let view = View::new(Rule::of(3), vec![Some(0)], Base::after(epoch, 1, &[]), 0, 0b111);
    let opening = Epochs::new(view, Membership::default());
    assert!(Patience::of_answers(&terms(), &opening).is_none());
}
