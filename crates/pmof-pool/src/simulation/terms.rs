//! What persists of a run's sessions are acknowledged by, and how long members are waited for: drawn at random, and what the engine decides by it is judged once more.

use std::{collections::BTreeSet, rc::Rc, task::Poll, time::Duration};

use pmof_control::Reply;
use pmof_replication::{
    epochs::Epochs,
    member_state::{Event, MemberState},
    posting::{
        AckTerms, LEAST_PATIENCE, Patience,
        patience::{self, Members, Waiting},
    },
};

use super::{
    faults::Fault,
    plan::Control,
    session::{Member, Session, answer, fail, positions, reply_in, try_answer},
    target::Answer,
    tasks::{sleep, steps, steps_of},
    world::World,
};
use crate::{
    ReplicaDomain,
    view::{Positions, bits},
};

/// The terms of a session: of all members where nothing goes wrong.
pub(super) fn draw(world: &mut World) -> AckTerms {
    if world.is_faultless {
        return AckTerms::ALL;
    }
    let (made, random) = (world.plan.made, &mut world.random);
    let (least, domains) = match random.below(4) {
        0 => (1 + random.below(made), 1),
        1 => (1, 2 + usize::from(random.once_in(4))),
        _ => (1, 1),
    };
    let most = [3, 6, 30][random.below(3)];
    let slow_after = (!random.once_in(6)).then(|| steps(1 + random.below(most) as u64));
    AckTerms { least, domains, slow_after, give_up_after: steps(50 + random.below(300) as u64) }
}

impl World {
    /// Whether replicas on these targets are as many, in as many domains, as a session's terms say.
    pub(super) fn are_enough(&self, terms: &AckTerms, targets: impl Iterator<Item = usize> + Clone) -> bool {
        let domains: BTreeSet<_> =
            targets.clone().filter_map(|target| self.domain(target)).map(|of| of.number).collect();
        let count = targets.count();
        count > 0 && count >= terms.least && domains.len().max(1) >= terms.domains
    }
}

/// A session's members while it goes on waiting for some of them.
pub(super) struct Remaining<'s> {
    session: &'s Session,
    /// Since when they are waited for, how long at least, and what for.
    waited: Option<(u64, Duration, Fault)>,
}

impl<'s> Remaining<'s> {
    /// Where one has no room for a write.
    pub(super) fn without_room(session: &'s Session) -> Self {
        Self { session, waited: None }
    }
}

impl Members for Remaining<'_> {
    fn terms(&self) -> AckTerms {
        match self.session.world.borrow().control {
            Some(Control::NeededLeftBehind) => AckTerms { least: 1, domains: 1, ..self.session.terms },
            _ => self.session.terms,
        }
    }

    fn with<T>(&self, look: impl FnOnce(&Epochs) -> T) -> T {
        look(&self.session.epochs.borrow())
    }

    fn positions(&self, is: impl Fn(MemberState) -> bool) -> Positions {
        positions(&self.session.members.borrow(), is)
    }

    fn domain(&self, position: usize) -> Option<ReplicaDomain> {
        self.session.domain(&self.session.members.borrow()[position])
    }

    fn leave_behind(&self, position: usize) {
        let Self { session, waited } = self;
        // One that is about to be removed is no loss.
        let was_in_use = session.in_use() & (1 << position) != 0;
        let members = session.members.borrow();
        members[position].take(Event::LeftBehind);
        let target = members[position].target;
        let left: Vec<_> = bits(session.in_use()).map(|position| members[position].target).collect();
        let world = &mut *session.world.borrow_mut();
        world.count(Fault::SlowLeftBehind);
        if was_in_use && !world.are_enough(&session.terms, left.iter().copied()) {
            world.truth.violate(|| format!("target {target} is left behind, and {left:?} are not enough"));
        }
        let Some((since, longer, fault)) = *waited else { return };
        world.count(fault);
        let waited = world.step - since;
        if waited < steps_of(longer) {
            world.truth.violate(|| format!("target {target} is left behind after {waited} steps, and has {longer:?}"));
        }
    }
}

/// What a member was asked for, and its answer.
pub(super) struct Asked {
    pub(super) position: usize,
    pub(super) member: Rc<Member>,
    pub(super) question: Option<u64>,
    /// `None`: the member is lost.
    pub(super) answer: Poll<Option<Answer>>,
}

/// What members were asked for at once.
pub(super) struct AskedAll {
    asked_at: u64,
    pub(super) all: Vec<Asked>,
}

impl AskedAll {
    pub(super) fn now(session: &Session, all: impl Iterator<Item = (usize, Rc<Member>, Option<u64>)>) -> Self {
        let all = all.map(|(position, member, question)| Asked { position, member, question, answer: Poll::Pending });
        Self { all: all.collect(), asked_at: session.world.borrow().step }
    }

    /// Waits for what has yet to be answered, as long as it takes, except of members for which `is_given_up` holds.
    pub(super) async fn finish(&mut self, session: &Session, is_given_up: impl Fn(&Asked) -> bool) {
        for asked in &mut self.all {
            if asked.answer.is_pending() && !is_given_up(asked) {
                asked.answer = Poll::Ready(answer(&session.world, &asked.member, asked.question).await);
            }
        }
    }
}

/// The same, while it is waited for.
pub(super) struct Awaited<'s> {
    session: &'s Session,
    asked: &'s mut AskedAll,
    /// For answers about epochs, by one who keeps others from changing them; else for flushes.
    is_told: bool,
}

impl<'s> Awaited<'s> {
    pub(super) fn new(session: &'s Session, asked: &'s mut AskedAll, is_told: bool) -> Self {
        Self { session, asked, is_told }
    }

    fn late(&mut self) -> Positions {
        let mut late = 0;
        for asked in &mut self.asked.all {
            if asked.answer.is_pending() {
                asked.answer = try_answer(&self.session.world, &asked.member, asked.question);
                let is_late = asked.answer.is_pending() && (self.is_told || asked.member.state().is_in_sync());
                late |= u64::from(is_late) << asked.position;
            }
        }
        late
    }
}

impl<'s> Waiting for Awaited<'s> {
    type Members = Remaining<'s>;

    fn now(&self) -> Duration {
        steps(self.session.world.borrow().step)
    }

    async fn wait_for_each(&mut self, _: Duration) -> Positions {
        if self.late() == 0 {
            return 0;
        }
        sleep(&self.session.world, 1).await;
        self.late()
    }

    fn with_members<T>(&self, look: impl FnOnce(&Remaining<'s>) -> T) -> Option<T> {
        if !self.is_told && self.session.view_lock.is_held() {
            return None;
        }
        let longer = self.session.terms.slow_after.unwrap_or_default();
        let (longer, fault) = if self.is_told {
            (longer.max(LEAST_PATIENCE), Fault::AnswerLeftBehind)
        } else {
            (longer, Fault::FlushLeftBehind)
        };
        Some(look(&Remaining { session: self.session, waited: Some((self.asked.asked_at, longer, fault)) }))
    }
}

impl Session {
    /// Waits for the answers of members that were asked about epochs or marks. Returns the ones that have answered as expected; one that takes too long may be left behind.
    pub(super) async fn tell_asked(&self, asked: Vec<(usize, Rc<Member>, Option<u64>)>, expected: &Reply) -> Positions {
        let mut asked = AskedAll::now(self, asked.into_iter());
        let patience = Patience::of_answers(&self.patient_terms(), &self.epochs.borrow());
        let left_behind = patience::wait(&mut Awaited::new(self, &mut asked, true), patience).await;
        asked.finish(self, |asked| left_behind & (1 << asked.position) != 0).await;
        let mut answered = 0;
        for Asked { position, member, answer, .. } in asked.all {
            match answer {
                Poll::Ready(Some(answer)) if reply_in(&answer).as_ref() == Some(expected) => answered |= 1 << position,
                Poll::Ready(_) => fail(&self.world, &member),
                Poll::Pending => {}
            }
        }
        answered
    }
}
