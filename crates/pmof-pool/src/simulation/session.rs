//! One opening of the pool by a writer, as `pool.rs`, `pool/opening.rs` and `pool/epochs.rs` do it, with their own decisions.

use std::{
    cell::{Cell, Ref, RefCell},
    collections::BTreeMap,
    rc::Rc,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use pmof_control::{ControlVersion, MessageHead, Reply, Request, Roster, RosterPart};
use pmof_replication::{
    epochs::{self, Driver, Epochs, MemberQuorum},
    following::{WriteCount, finish},
    keeper::KeeperError,
    member_state::{Event, Link, MemberCell, MemberState, Transition},
    posting::{self, AckTerms},
    returning::Trust,
};
use uuid::Uuid;

use super::{
    faults::Fault,
    following::Following,
    judging::CheckedRules,
    keeping::{self, PoolKeeper},
    members::Candidate,
    names::fresh,
    plan::{Control, PAGES, WORDS},
    target::{Answer, Message},
    tasks::{Lock, Shared, Tasks, sleep, until},
    truth::{Pages, sound},
    versions::REQUEST_ID,
};
use crate::{
    ReplicaDomain,
    catch_up::CatchUp,
    membership::Membership,
    older_pages::OlderPages,
    pages::{PAGE_BYTES, PageMap},
    view::{Positions, View, bits},
};

/// A member as its writer sees it, in the states that the library ships.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) target: usize,
    pub(super) connection: Option<usize>,
    state: MemberCell,
}

impl Member {
    pub(super) fn new(target: usize, connection: Option<usize>, is_behind: bool) -> Self {
        let state = match connection {
            None => MemberState::Lost,
            Some(_) if is_behind => MemberState::Behind(Link::Connected),
            Some(_) => MemberState::InSync,
        };
        Self { target, connection, state: MemberCell::new(state) }
    }

    /// A replica that is no member yet.
    pub(super) fn candidate(target: usize, connection: usize) -> Self {
        let state = MemberCell::new(MemberState::Candidate(Link::Connected));
        Self { target, connection: Some(connection), state }
    }

    /// The same of a witness.
    pub(super) fn of_witness(self, is_witness: bool) -> Self {
        let state = if is_witness { self.state().of_witness() } else { self.state() };
        Self { state: MemberCell::new(state), ..self }
    }

    /// Nobody, in the place of one that is no member.
    pub(super) fn none(target: usize) -> Self {
        Self { target, connection: None, state: MemberCell::new(MemberState::Removed) }
    }

    /// As `Standing::reconnected`.
    pub(super) fn reconnected(&self, connection: Option<usize>, is_witness: bool) -> Self {
        let back = if is_witness { Event::BackAsWitness } else { Event::BackWithData };
        Self { target: self.target, connection, state: self.state.succeeded_by(back) }
    }

    pub(super) fn state(&self) -> MemberState {
        self.state.get()
    }

    pub(super) fn take(&self, event: Event) -> Transition {
        self.state.take(event)
    }
}

/// The pool's members at one time, and what they lack.
#[derive(Clone)]
pub(super) struct Open {
    pub(super) rules: CheckedRules,
    pub(super) members: Vec<Rc<Member>>,
    pub(super) catching_up: Vec<(usize, Arc<CatchUp>)>,
    pub(super) written: Arc<PageMap>,
}

pub(super) struct Session {
    pub(super) world: Shared,
    pub(super) tasks: Rc<Tasks>,
    pub(super) writer: usize,
    /// Of the truth; `None` where another writer has fenced this one.
    pub(super) number: Option<usize>,
    pub(super) open: RefCell<Rc<Open>>,
    /// Those that are told of epochs.
    pub(super) members: RefCell<Vec<Rc<Member>>>,
    pub(super) epochs: RefCell<Epochs>,
    /// Held by whoever changes the members.
    pub(super) changing: Lock,
    /// Those that were told of an epoch which never came in force, and that nobody knew who went on: they are left as they are.
    pub(super) diverged: Cell<Positions>,
    /// Asynchronous members, and what they are to be sent.
    pub(super) followings: RefCell<Vec<Rc<Following>>>,
    pub(super) first_opening: Cell<u64>,
    pub(super) written_bytes: Cell<u64>,
    pub(super) kept_pages: RefCell<Pages>,
    pub(super) pointing: Lock,
    /// The pool, and writes that had begun, where a point is that is made now.
    pub(super) at_point: RefCell<(Pages, Vec<(usize, u64)>)>,
    /// Nothing is sent to asynchronous members from now on.
    pub(super) has_stopped_following: Cell<bool>,
    pub(super) writes: Arc<WriteCount>,
    /// Writes that have begun and are not kept yet.
    pub(super) under_way: RefCell<Vec<(usize, u64)>>,
    pub(super) view_lock: Lock,
    /// Whoever holds it keeps others from posting.
    pub(super) hold: Lock,
    pub(super) posting: Cell<usize>,
    pub(super) older: RefCell<OlderPages>,
    pub(super) terms: AckTerms,
    pub(super) is_stopping: Cell<bool>,
    pub(super) is_marked: Cell<bool>,
    pub(super) page_locks: [Lock; PAGES],
    pub(super) lanes: Cell<usize>,
    /// A thread brings the member back.
    pub(super) attended: RefCell<Vec<bool>>,
    /// A replica is copied to that is no member yet.
    pub(super) candidate: Cell<Option<Candidate>>,
    pub(super) trust: RefCell<BTreeMap<usize, Trust>>,
    /// Members that are compared behind their catch-up.
    pub(super) verifying: Cell<usize>,
}

pub(super) fn positions(members: &[Rc<Member>], is: impl Fn(MemberState) -> bool) -> Positions {
    members
        .iter()
        .enumerate()
        .filter(|(_, member)| is(member.state()))
        .fold(0, |all, (position, _)| all | 1 << position)
}

pub(super) fn bytes_of(page: usize) -> std::ops::Range<u64> {
    page as u64 * PAGE_BYTES..(page as u64 + 1) * PAGE_BYTES
}

/// Takes a member out of use.
pub(super) fn fail(world: &Shared, member: &Member) {
    let was_connected = member.take(Event::Lost).from.is_connected();
    if let Some(connection) = member.connection.filter(|_| was_connected) {
        world.borrow_mut().close_here(connection);
    }
}

pub(super) fn send(world: &Shared, member: &Member, message: Message) -> Option<u64> {
    let connection = member.connection.filter(|_| member.state().is_connected())?;
    Some(world.borrow_mut().send(connection, message))
}

/// An answer that is there. `None`: the member is lost.
pub(super) fn try_answer(world: &Shared, member: &Member, question: Option<u64>) -> Poll<Option<Answer>> {
    let (Some(connection), Some(question)) = (member.connection, question) else { return Poll::Ready(None) };
    let answer = std::task::ready!(world.borrow_mut().answer(connection, question));
    if !member.state().is_connected() {
        return Poll::Ready(None);
    }
    if answer.is_none() || matches!(answer, Some(Answer::Refused)) {
        fail(world, member);
        return Poll::Ready(None);
    }
    Poll::Ready(answer)
}

/// Waits for an answer. `None`: the member is lost.
pub(super) async fn answer(world: &Shared, member: &Member, question: Option<u64>) -> Option<Answer> {
    std::future::poll_fn(|_| try_answer(world, member, question)).await
}

pub(super) async fn ask(world: &Shared, member: &Member, message: Message) -> Option<Answer> {
    let question = send(world, member, message);
    answer(world, member, question).await
}

pub(super) async fn read(world: &Shared, member: &Member) -> Option<Pages> {
    match ask(world, member, Message::Read).await? {
        Answer::Pages(pages) => Some(pages),
        _ => None,
    }
}

/// A request, as it is sent to this member: in the version that its target and this program speak.
pub(super) fn encoded(world: &Shared, member: &Member, request: &Request) -> Message {
    // A target that speaks none since it was started again has ended the connection.
    let version = world.borrow().targets[member.target].version.agreed().unwrap_or(ControlVersion::NEWEST);
    // What does not fit is refused, and the member lost.
    Message::Encoded(request.encode(MessageHead { version, request_id: REQUEST_ID }).unwrap_or_default())
}

/// What a target says to a request.
pub(super) fn reply_in(answer: &Answer) -> Option<Reply> {
    match answer {
        Answer::Encoded(reply) => Reply::decode(reply).ok().map(|(_, reply)| reply),
        _ => None,
    }
}

/// Tells a member something. One that answers anything else is lost.
pub(super) async fn tell(world: &Shared, member: &Member, (request, expected): (&Request, &Reply)) -> bool {
    let answer = ask(world, member, encoded(world, member, request)).await;
    let is_told = answer.is_some_and(|answer| reply_in(&answer).as_ref() == Some(expected));
    if !is_told {
        fail(world, member);
    }
    is_told
}

/// As `give_roster`.
pub(super) async fn give_roster(world: &Shared, member: &Member, roster: &Roster) -> bool {
    let Ok(encoded) = roster.encode() else { return true };
    for request in RosterPart::requests(&encoded) {
        if !tell(world, member, (&request, &Reply::RosterSet)).await {
            return false;
        }
    }
    true
}

impl Driver for Session {
    type Keeper<'k> = PoolKeeper<MemberQuorum<'k, Self>>;

    fn keeper(&self) -> Self::Keeper<'_> {
        if self.world.borrow().keeper.is_some() {
            PoolKeeper::Outside(keeping::Asked { world: Rc::clone(&self.world), writer: self.writer })
        } else {
            PoolKeeper::Members(MemberQuorum::of(self))
        }
    }

    fn with<T>(&self, look: impl FnOnce(&mut Epochs) -> T) -> T {
        look(&mut self.epochs.borrow_mut())
    }

    fn positions(&self, is: impl Fn(MemberState) -> bool) -> Positions {
        positions(&self.members.borrow(), is)
    }

    /// The view is locked. A member that takes too long may be left behind.
    async fn tell(&self, asked: Positions, request: &Request, expected: &Reply) -> Positions {
        let members = self.members.borrow().clone();
        let asked = bits(asked).filter_map(|position| {
            let member = members.get(position)?;
            let question = send(&self.world, member, encoded(&self.world, member, request))?;
            if member.state().is_slow() {
                self.world.borrow_mut().count(Fault::SlowAsked);
            }
            Some((position, Rc::clone(member), Some(question)))
        });
        self.tell_asked(asked.collect(), expected).await
    }

    fn fresh_name(&self) -> Uuid {
        fresh()
    }

    fn note_current(&self, _: Positions) {}

    fn note_refused(&self, why: &KeeperError) {
        self.world.borrow_mut().note(|| format!("w{} is refused: {why}", self.writer));
        if matches!(why, KeeperError::Overruled { .. }) {
            self.world.borrow_mut().count(Fault::KeeperOverruled);
            self.give_up();
        }
    }
}

impl Session {
    pub(super) fn view(&self) -> Ref<'_, View> {
        Ref::map(self.epochs.borrow(), |epochs| &epochs.view)
    }

    pub(super) fn membership(&self) -> Ref<'_, Membership> {
        Ref::map(self.epochs.borrow(), |epochs| &epochs.membership)
    }

    pub(super) fn in_use(&self) -> Positions {
        positions(&self.members.borrow(), MemberState::is_in_sync) & !self.membership().leaving()
    }

    /// Whether the members in use are those of an epoch that a quorum knows.
    pub(super) fn is_current(&self) -> bool {
        self.in_use() == self.view().current()
    }

    /// Where the members in sync lie.
    pub(super) fn targets_in_use(&self) -> Vec<usize> {
        let members = self.members.borrow();
        members.iter().filter(|member| member.state().is_in_sync()).map(|member| member.target).collect()
    }

    /// One member is lost, where another has what it has.
    pub(super) fn lose_one(&self) {
        let open = Rc::clone(&self.open.borrow());
        let world = &mut *self.world.borrow_mut();
        let is_reached = |member: &&Rc<Member>| member.connection.is_some_and(|connection| world.is_open(connection));
        let in_use = open.members.iter().filter(|member| member.state().is_in_sync()).filter(is_reached).count();
        // One that is compared may be left behind at the same time: with rot, that is one failure already.
        let least = 1 + self.verifying.get();
        let may_be_lost = |member: &&Rc<Member>| member.state().is_witness() || in_use > least;
        let lost = open.members.iter().filter(|member| member.state().is_well()).filter(is_reached);
        let lost: Vec<_> = lost.filter(may_be_lost).collect();
        if lost.is_empty() {
            return;
        }
        let member = lost[world.random.below(lost.len())];
        if let Some(connection) = member.connection {
            world.count(Fault::OneLost);
            world.lose_for_a_moment(connection);
        }
    }

    /// What its persists are acknowledged by, with the time that members have.
    pub(super) fn patient_terms(&self) -> AckTerms {
        let slow_after = self.terms.slow_after;
        match self.world.borrow().control {
            Some(Control::LeftBehindEarly) => {
                AckTerms { slow_after: slow_after.and(Some(Duration::ZERO)), ..self.terms }
            }
            _ => self.terms,
        }
    }

    /// The failure domain of a member.
    pub(super) fn domain(&self, member: &Member) -> Option<ReplicaDomain> {
        self.world.borrow().domain(member.target)
    }

    /// The writer knows of each connection that is lost.
    pub(super) fn has_noticed_losses(&self) -> bool {
        let (members, world) = (self.members.borrow(), self.world.borrow());
        let is_reached = |member: &Rc<Member>| member.connection.is_some_and(|connection| world.is_open(connection));
        members.iter().all(|member| !member.state().is_connected() || is_reached(member))
    }

    /// The pool's epoch is all replicas', and the writer knows it.
    pub(super) fn is_whole(&self) -> bool {
        let (view, membership) = (self.view(), self.membership());
        let done = self.in_use() | self.diverged.get();
        let is_done = |index: u16| view.position(index).is_some_and(|position| done & (1 << position) != 0);
        let is_idle = |roster: &Roster| roster.spares().all(|spare| spare.replica_uuid.is_nil());
        let roster = membership.roster();
        roster.is_none_or(|roster| roster.with_data().all(|member| is_done(member.index)) && is_idle(roster))
            && !membership.has_change()
            && self.in_use() != 0
            && self.in_use() == view.current()
            && self.open.borrow().catching_up.is_empty()
    }

    pub(super) fn give_up(&self) {
        for member in self.members.borrow().iter() {
            fail(&self.world, member);
        }
    }

    /// Begins the opening's epoch and makes the members in sync equal. Returns what the pool holds.
    pub(super) async fn begin(&self, is_clean: bool, source: usize) -> Option<Pages> {
        if !self.change().await {
            let members = self.members.borrow().clone();
            // Where the keeper is outside of the members, theirs is not enough.
            let is_refused = self.world.borrow().keeper.is_some();
            if is_refused || members.iter().any(|member| !member.state().is_in_sync()) {
                return None;
            }
        }
        if !is_clean {
            if self.in_use().count_ones() > 1 {
                self.equalize(source).await?;
            } else {
                epochs::tell_mark(self).await;
            }
            if !self.is_current() && !self.change().await {
                return None;
            }
        }
        let in_use = self.in_use();
        self.epochs.borrow_mut().view.note_equal(in_use);
        let members = self.members.borrow().clone();
        let (before, rest) = members.split_at(source);
        for member in rest.iter().chain(before).filter(|member| member.state().is_in_sync()) {
            if let Some(pages) = read(&self.world, member).await {
                return Some(pages);
            }
        }
        None
    }

    pub(super) async fn flush_everything(&self) {
        let members = self.members.borrow().clone();
        for member in members.iter().filter(|member| member.state().is_in_sync()) {
            let _ = ask(&self.world, member, Message::Flush).await;
        }
    }

    /// A new epoch. The view is locked.
    pub(super) async fn change(&self) -> bool {
        let is_done = epochs::begin(self).await;
        if !is_done {
            self.world.borrow_mut().count(Fault::ChangeAbandoned);
        }
        is_done
    }

    /// As `Epochs::acknowledge`.
    pub(super) async fn acknowledge(&self, members: &[Rc<Member>]) -> bool {
        // A mark that the member lacks which has joined would show it to be older.
        let has_marks = self.world.borrow().control != Some(Control::KeeperUnknownIsNone);
        let is_due = !self.is_marked.get() || (has_marks && self.world.borrow_mut().random.once_in(4));
        if !is_due && positions(members, MemberState::is_in_sync) == self.view().current() {
            return true;
        }
        let _guard = self.view_lock.lock().await;
        epochs::acknowledge(self, || is_due, || self.is_marked.set(true)).await
    }

    /// One write, and its persist.
    async fn persist(&self, page: usize) {
        let _rooms = self.wait_for_room().await;
        until(|| !self.hold.is_held()).await;
        self.posting.set(self.posting.get() + 1);
        let writing = (!self.followings.borrow().is_empty()).then(|| self.writes.begin());
        let open = Rc::clone(&self.open.borrow());
        let value = self.world.borrow_mut().truth.issue(self.number, page);
        self.under_way.borrow_mut().push((page, value));
        let is_marked = self.world.borrow().control != Some(Control::PageNotMarked);
        let (written, range) = (is_marked.then_some(&*open.written), bytes_of(page));
        let before: Vec<_> = posting::begin_write(written, &open.catching_up, &range);
        let mut missed = 0;
        for (position, member) in open.members.iter().enumerate() {
            if !posting::post(self, (position, member), &Message::Write { page, words: [value; WORDS] }) {
                missed |= 1 << position;
            }
            if self.world.borrow_mut().random.once_in(4) {
                sleep(&self.world, 1).await;
            }
        }
        if !open.catching_up.is_empty() {
            self.world.borrow_mut().count(Fault::WrittenWhileCatchingUp);
        }
        posting::end_write(&open.catching_up, before, &range, missed);
        self.keep(page, [value; WORDS]);
        self.under_way.borrow_mut().retain(|write| *write != (page, value));
        drop(writing);
        self.posting.set(self.posting.get() - 1);
        let write = Some((page, value));
        self.finish_persist(open, write).await;
    }

    /// Has all in sync flush what was posted, and those who are to know of losses know of them, as a persist of everything does.
    pub(super) async fn persist_all(&self) -> bool {
        until(|| !self.hold.is_held()).await;
        let open = Rc::clone(&self.open.borrow());
        self.finish_persist(open, None).await
    }

    /// A thread of the program that writes until the pool is to be closed.
    pub(super) async fn write_on(&self) {
        self.lanes.set(self.lanes.get() + 1);
        while !self.is_stopping.get() {
            let (page, pause) = {
                let random = &mut self.world.borrow_mut().random;
                (random.below(PAGES), random.below(8))
            };
            {
                let _page = self.page_locks[page].lock().await;
                self.persist(page).await;
            }
            sleep(&self.world, pause).await;
        }
        self.lanes.set(self.lanes.get() - 1);
    }

    /// Waits until nobody posts, and keeps it so.
    pub(super) async fn hold_all(&self) -> Option<super::tasks::Guard<'_>> {
        let guard = self.hold.lock().await;
        until(|| self.posting.get() == 0 || self.is_stopping.get()).await;
        (!self.is_stopping.get()).then_some(guard)
    }

    /// As `Pool::close`.
    pub(super) async fn close(&self) {
        self.is_stopping.set(true);
        until(|| self.lanes.get() == 0).await;
        finish(self).await;
        let _hold = self.hold.lock().await;
        self.flush_everything().await;
        {
            let _guard = self.view_lock.lock().await;
            if !self.is_current() {
                let _ = self.change().await;
            }
            self.epochs.borrow_mut().has_ended = true;
        }
        let members = self.open.borrow().members.clone();
        for member in members.iter().filter(|member| member.state().is_in_sync() || member.state().is_witness()) {
            let _ = ask(&self.world, member, encoded(&self.world, member, &Request::Close { in_order: true })).await;
        }
        self.give_up();
    }

    /// Members in sync that nobody writes are equal.
    pub(super) fn check_equal(&self) {
        let members = self.members.borrow().clone();
        let mut world = self.world.borrow_mut();
        let is_reached = |member: &&Rc<Member>| {
            let target = &world.targets[member.target];
            member.state().is_in_sync() && target.open.is_some() && target.open_by() == member.connection
        };
        let reached: Vec<_> = members.iter().filter(is_reached).collect();
        let all: Vec<_> = reached.iter().map(|member| sound(&world.targets[member.target].durable)).collect();
        if all.iter().any(|pages| *pages != all[0]) {
            world.truth.violate(|| format!("members in sync differ when the pool is opened: {all:?}"));
        }
    }
}
