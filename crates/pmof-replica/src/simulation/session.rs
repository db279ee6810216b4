//! One opening of the pool by a writer, as `pool.rs`, `pool/opening.rs` and `pool/epochs.rs` do it, with their own decisions.

use std::{
    cell::{Cell, RefCell},
    future::Future,
    rc::Rc,
    sync::Arc,
    task::Poll,
};

use pmof_control::{PoolState, Reply, Request};

use super::{
    plan::{Control, PAGES, WORDS},
    tasks::{Lock, Shared, Tasks, sleep, until},
    truth::Pages,
    world::{Answer, Fault, Message},
};
use crate::{
    catch_up::CatchUp,
    lineage::{Agreement, Found, agree},
    older_pages::OlderPages,
    pages::{PAGE_BYTES, PageMap},
    view::{Change, Introduction, Positions, Rule, Step, View},
};

/// A member as its writer sees it.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) target: usize,
    connection: Option<usize>,
    is_failed: Cell<bool>,
    pub(super) is_behind: Cell<bool>,
    /// Nobody waits for it.
    pub(super) is_slow: Cell<bool>,
}

impl Member {
    pub(super) fn new(target: usize, connection: Option<usize>, is_behind: bool) -> Self {
        Self {
            target,
            connection,
            is_failed: Cell::new(connection.is_none()),
            is_behind: Cell::new(is_behind),
            is_slow: Cell::default(),
        }
    }

    pub(super) fn is_in_use(&self) -> bool {
        !self.is_failed() && !self.is_behind.get()
    }

    pub(super) fn leave_behind(&self) {
        self.is_behind.set(true);
        self.is_slow.set(true);
    }

    pub(super) fn is_failed(&self) -> bool {
        self.is_failed.get()
    }
}

/// The pool's members at one time, and what they lack.
#[derive(Clone, Debug)]
pub(super) struct Open {
    pub(super) members: Vec<Rc<Member>>,
    pub(super) catching_up: Vec<(usize, Rc<CatchUp>)>,
    pub(super) written: Arc<PageMap>,
}

pub(super) struct Session {
    pub(super) world: Shared,
    pub(super) tasks: Rc<Tasks>,
    pub(super) writer: usize,
    /// Of the truth; `None` where another writer has fenced this one.
    number: Option<usize>,
    pub(super) open: RefCell<Rc<Open>>,
    /// Those that are told of epochs.
    pub(super) members: RefCell<Vec<Rc<Member>>>,
    pub(super) view: RefCell<View>,
    pub(super) view_lock: Lock,
    /// Whoever holds it keeps others from posting.
    pub(super) hold: Lock,
    posting: Cell<usize>,
    pub(super) older: RefCell<OlderPages>,
    pub(super) is_stopping: Cell<bool>,
    pub(super) has_ended: Cell<bool>,
    /// As `State::changes`.
    pub(super) changes: Cell<u64>,
    is_marked: Cell<bool>,
    page_locks: [Lock; PAGES],
    lanes: Cell<usize>,
    /// A thread brings the member back.
    pub(super) attended: RefCell<Vec<bool>>,
}

pub(super) fn positions(members: &[Rc<Member>], is: impl Fn(&Member) -> bool) -> Positions {
    members.iter().enumerate().filter(|(_, member)| is(member)).fold(0, |all, (position, _)| all | 1 << position)
}

pub(super) fn bytes_of(page: usize) -> std::ops::Range<u64> {
    page as u64 * PAGE_BYTES..(page as u64 + 1) * PAGE_BYTES
}

/// Takes a member out of use.
pub(super) fn fail(world: &Shared, member: &Member) {
    if let (Some(connection), false) = (member.connection, member.is_failed.replace(true)) {
        world.borrow_mut().close_here(connection);
    }
}

pub(super) fn send(world: &Shared, member: &Member, message: Message) -> Option<u64> {
    let connection = member.connection.filter(|_| !member.is_failed())?;
    Some(world.borrow_mut().send(connection, message))
}

/// Waits for an answer. `None`: the member is lost.
pub(super) async fn answer(world: &Shared, member: &Member, question: Option<u64>) -> Option<Answer> {
    let (connection, question) = (member.connection?, question?);
    let answer = std::future::poll_fn(|_| world.borrow_mut().answer(connection, question)).await;
    if member.is_failed() {
        return None;
    }
    if answer.is_none() || matches!(answer, Some(Answer::Refused)) {
        fail(world, member);
        return None;
    }
    answer
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

/// Asks the same of members at once. One that answers anything else is lost.
async fn tell(world: &Shared, members: &[Rc<Member>], message: Message, expected: &Reply) {
    let asked: Vec<_> = members.iter().map(|member| send(world, member, message.clone())).collect();
    for (member, question) in members.iter().zip(asked) {
        if question.is_some() {
            match answer(world, member, question).await {
                Some(Answer::Told(reply)) if reply == *expected => {}
                _ => fail(world, member),
            }
        }
    }
}

/// A target that has opened its replica.
struct Opened {
    target: usize,
    connection: usize,
    state: PoolState,
}

/// Opens the pool. `None`: not this time.
pub(super) async fn open(world: &Shared, tasks: &Rc<Tasks>, writer: usize) -> Option<Rc<Session>> {
    let opened = ask_all(world, writer).await;
    let session = match opened {
        Some(ref opened) => open_those(world, tasks, writer, opened).await,
        None => None,
    };
    if session.is_none() {
        world.borrow_mut().count(Fault::OpeningAbandoned);
    }
    session
}

/// `None`: one of them is in use by another writer.
async fn ask_all(world: &Shared, writer: usize) -> Option<Vec<Opened>> {
    let count = world.borrow().targets.len();
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by_key(|target| world.borrow().targets[*target].restored.is_some());
    let (mut opened, mut is_busy) = (Vec::new(), false);
    let takes_over = world.borrow_mut().random.once_in(6);
    for target in order {
        let Some(connection) = world.borrow_mut().connect(writer, target) else { continue };
        let member = Member::new(target, Some(connection), false);
        match ask(world, &member, Message::Open { takes_over }).await {
            Some(Answer::Opened(state)) => opened.push(Opened { target, connection, state }),
            Some(_) => {
                is_busy = true;
                fail(world, &member);
            }
            None => {}
        }
    }
    opened.sort_by_key(|opened| opened.target);
    if is_busy {
        release(world, &opened).await;
        return None;
    }
    Some(opened)
}

async fn release(world: &Shared, opened: &[Opened]) {
    for Opened { target, connection, .. } in opened {
        let member = Member::new(*target, Some(*connection), false);
        let _ = ask(world, &member, Message::Tell(Request::Close { in_order: false })).await;
        fail(world, &member);
    }
}

/// As `Opening::judge` does.
fn judge(world: &Shared, opened: &[Opened], made: u16) -> Option<Agreement> {
    if opened.is_empty() {
        return None;
    }
    let control = world.borrow().control;
    let mut states: Vec<_> = opened.iter().map(|opened| opened.state.clone()).collect();
    if control == Some(Control::MarksNotCompared) {
        for state in &mut states {
            state.mark = 0;
        }
    }
    let found = opened.iter().zip(&states).map(|(opened, state)| Found { index: opened.target as u16, state });
    let found: Vec<_> = found.collect();
    let mut agreement = agree(&found, made).ok()?;
    agreement.put_stale_behind(&found);
    if control == Some(Control::BehindAsSource) {
        agreement.in_sync.extend(agreement.behind.drain(..).map(|(position, _)| position));
        agreement.source = agreement.in_sync.last().copied()?;
    }
    let is_enough = control == Some(Control::TooFewVotes) || agreement.is_enough(&found, (1 << made) - 1, true);
    is_enough.then_some(agreement)
}

async fn open_those(world: &Shared, tasks: &Rc<Tasks>, writer: usize, opened: &[Opened]) -> Option<Rc<Session>> {
    let made = world.borrow().targets.len();
    let Some(agreement) = judge(world, opened, made as u16) else {
        release(world, opened).await;
        return None;
    };
    let mut members: Vec<_> = (0..made).map(|target| Rc::new(Member::new(target, None, false))).collect();
    let mut indexes = vec![None; made];
    for (position, Opened { target, connection, .. }) in opened.iter().enumerate() {
        let member = Member::new(*target, Some(*connection), !agreement.in_sync.contains(&position));
        if agreement.foreign.iter().any(|(foreign, _)| *foreign == position) {
            fail(world, &member);
        } else {
            indexes[*target] = Some(*target as u16);
        }
        members[*target] = Rc::new(member);
    }
    let source = opened[agreement.source].target;
    let is_clean = agreement.is_clean;
    let in_use = positions(&members, Member::is_in_use);
    let view = View::new(Rule::of(made), indexes, agreement.base, agreement.mark, in_use);
    let written = Arc::new(PageMap::new(PAGES as u64 * PAGE_BYTES));
    let open = Open { members: members.clone(), catching_up: Vec::new(), written };
    let mut session = Session {
        world: Rc::clone(world),
        tasks: Rc::clone(tasks),
        writer,
        number: None,
        open: RefCell::new(Rc::new(open)),
        members: RefCell::new(members),
        view: RefCell::new(view),
        view_lock: Lock::default(),
        hold: Lock::default(),
        posting: Cell::new(0),
        older: RefCell::default(),
        is_stopping: Cell::new(false),
        has_ended: Cell::new(false),
        changes: Cell::new(0),
        is_marked: Cell::new(false),
        page_locks: Default::default(),
        lanes: Cell::new(0),
        attended: RefCell::new(vec![false; made]),
    };
    let Some(found) = session.begin(is_clean, source).await else {
        session.give_up();
        return None;
    };
    let opening = session.view.borrow().opening();
    session.number = world.borrow_mut().truth.opened(opening, &found);
    if session.number.is_some() {
        session.check_equal();
    } else {
        world.borrow_mut().count(Fault::FencedWhileOpening);
    }
    if session.in_use().count_ones() < made as u32 {
        world.borrow_mut().count(Fault::OpenedWithoutAll);
    }
    world.borrow_mut().note(|| format!("w{writer} has opened the pool, in sync {in_use:b}: {found:?}"));
    Some(Rc::new(session))
}

impl Session {
    pub(super) fn in_use(&self) -> Positions {
        positions(&self.members.borrow(), Member::is_in_use)
    }

    /// As `State::connected`.
    pub(super) fn connected(&self) -> Positions {
        let prompt = self.prompt();
        if self.view.borrow().is_quorum(prompt) {
            prompt
        } else {
            positions(&self.members.borrow(), |member| !member.is_failed())
        }
    }

    fn prompt(&self) -> Positions {
        positions(&self.members.borrow(), |member| !member.is_failed() && !member.is_slow.get())
    }

    /// As `State::leave_behind`.
    fn leave_behind(&self, member: &Member) -> bool {
        let position = self.members.borrow().iter().position(|other| std::ptr::eq(Rc::as_ptr(other), member));
        let slow = position.map_or(0, |position| 1 << position);
        let may = self.view.borrow().may_go_on_with(self.prompt() & !slow, self.in_use() & !slow);
        if may && slow != 0 {
            member.leave_behind();
            self.world.borrow_mut().count(Fault::SlowLeftBehind);
        }
        may && slow != 0
    }

    /// Waits for an answer; now and then not as long as it takes, where the others are enough. `None`: the member is lost, or left behind.
    /// `has_view`: the view is locked by the caller.
    async fn answer_in_time(&self, member: &Member, question: Option<u64>, has_view: bool) -> Option<Answer> {
        let mut patience = {
            let mut world = self.world.borrow_mut();
            let is_impatient = !world.is_faultless && world.random.once_in(4);
            is_impatient.then(|| world.random.below(40))
        };
        let mut waiting = std::pin::pin!(answer(&self.world, member, question));
        std::future::poll_fn(|context| {
            if let Poll::Ready(answer) = waiting.as_mut().poll(context) {
                return Poll::Ready(answer);
            }
            if member.is_slow.get() && !has_view {
                return Poll::Ready(None);
            }
            if let Some(steps) = &mut patience {
                *steps = steps.saturating_sub(1);
                let is_free = has_view || !self.view_lock.is_held();
                if *steps == 0 && is_free && !member.is_slow.get() && self.leave_behind(member) {
                    return Poll::Ready(None);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// Asks the same of members at once. One that answers anything else is lost, one that takes too long is left behind. The view is locked.
    pub(super) async fn tell(&self, asked: Positions, (request, expected): (Request, Reply)) {
        let members = self.members.borrow().clone();
        let asked = members.iter().enumerate().filter(|(position, _)| asked & (1 << position) != 0);
        let message = Message::Tell(request);
        let asked: Vec<_> = asked.map(|(_, member)| (member, send(&self.world, member, message.clone()))).collect();
        for (member, question) in asked {
            if question.is_none() {
                continue;
            }
            if member.is_slow.get() {
                self.world.borrow_mut().count(Fault::SlowAsked);
            }
            match self.answer_in_time(member, question, true).await {
                Some(Answer::Told(reply)) if reply == expected => {}
                None if member.is_slow.get() => {}
                _ => fail(&self.world, member),
            }
        }
    }

    /// The pool's epoch is all replicas', and the writer knows it.
    pub(super) fn is_whole(&self) -> bool {
        let made = self.members.borrow().len();
        let current = self.view.borrow().current();
        self.in_use().count_ones() as usize == made
            && self.in_use() == current
            && self.open.borrow().catching_up.is_empty()
    }

    pub(super) fn give_up(&self) {
        for member in self.members.borrow().iter() {
            fail(&self.world, member);
        }
    }

    /// Begins the opening's epoch and makes the members in sync equal. Returns what the pool holds.
    async fn begin(&self, is_clean: bool, source: usize) -> Option<Pages> {
        if !self.change().await {
            let members = self.members.borrow().clone();
            if members.iter().any(|member| !member.is_in_use()) {
                return None;
            }
        }
        if !is_clean {
            if self.in_use().count_ones() > 1 {
                self.equalize(source).await?;
            } else {
                self.tell_mark().await;
            }
            if self.in_use() != self.view.borrow().current() && !self.change().await {
                return None;
            }
        }
        self.view.borrow_mut().note_equal(self.in_use());
        let members = self.members.borrow().clone();
        let (before, rest) = members.split_at(source);
        for member in rest.iter().chain(before).filter(|member| member.is_in_use()) {
            if let Some(pages) = read(&self.world, member).await {
                return Some(pages);
            }
        }
        None
    }

    async fn equalize(&self, source: usize) -> Option<()> {
        let members = self.members.borrow().clone();
        let right = read(&self.world, &members[source]).await?;
        for member in members.iter().filter(|member| member.is_in_use()) {
            let Some(found) = read(&self.world, member).await else { continue };
            for page in (0..PAGES).filter(|page| found[*page] != right[*page]) {
                send(&self.world, member, Message::Write { page, words: right[page] });
            }
        }
        self.flush_everything().await;
        self.tell_mark().await;
        Some(())
    }

    async fn flush_everything(&self) {
        let members = self.members.borrow().clone();
        for member in members.iter().filter(|member| member.is_in_use()) {
            let _ = ask(&self.world, member, Message::Flush).await;
        }
    }

    async fn tell_mark(&self) {
        let request = self.view.borrow().mark();
        self.tell_in_use(request).await;
    }

    async fn tell_in_use(&self, request: Request) {
        self.tell(self.in_use(), (request, Reply::Marked)).await;
    }

    /// A change of the epoch, driven as `Epochs::begin_in` does. The view is locked.
    pub(super) async fn change(&self) -> bool {
        self.go_on(Change::default()).await
    }

    /// As `Epochs::go_on`. The view is locked.
    pub(super) async fn go_on(&self, mut change: Change) -> bool {
        self.changes.set(self.changes.get() + 1);
        loop {
            let connected = self.connected();
            let step = self.view.borrow_mut().step(&mut change, connected, self.in_use());
            match step {
                Step::TellAll(question) => self.tell(connected, *question).await,
                Step::Done(is_done) => {
                    if !is_done {
                        self.world.borrow_mut().count(Fault::ChangeAbandoned);
                    }
                    return is_done;
                }
            }
        }
    }

    /// As `Epochs::introduce`. The view is locked.
    pub(super) async fn introduce(&self, member: &Rc<Member>, found: Option<&PoolState>) -> bool {
        let introduction = self.view.borrow_mut().introduction(member.target as u16, found);
        match introduction {
            None => false,
            Some(Introduction::ByChange) => self.change().await,
            Some(Introduction::Tell(told)) => {
                for (request, reply) in told {
                    tell(&self.world, std::slice::from_ref(member), Message::Tell(request), &reply).await;
                }
                !member.is_failed()
            }
        }
    }

    /// As `Epochs::acknowledge`.
    async fn acknowledge(&self, members: &[Rc<Member>]) -> bool {
        let is_due = !self.is_marked.get() || self.world.borrow_mut().random.once_in(4);
        let current = || self.view.borrow().current();
        if !is_due && positions(members, Member::is_in_use) == current() {
            return true;
        }
        let _guard = self.view_lock.lock().await;
        if self.has_ended.get() {
            return self.in_use() == current();
        }
        let is_settled = self.view.borrow().is_settled(self.in_use()) || self.change().await;
        if !is_settled || !is_due {
            return is_settled;
        }
        let request = self.view.borrow_mut().raise_mark();
        self.tell_in_use(request).await;
        self.is_marked.set(true);
        self.in_use() == current() || self.change().await
    }

    /// One write, and its persist.
    async fn persist(&self, page: usize) {
        until(|| !self.hold.is_held()).await;
        self.posting.set(self.posting.get() + 1);
        let open = Rc::clone(&self.open.borrow());
        let value = self.world.borrow_mut().truth.issue(self.number, page);
        if self.world.borrow().control != Some(Control::PageNotMarked) {
            open.written.mark(bytes_of(page));
        }
        let before: Vec<_> = open.catching_up.iter().map(|(_, catch_up)| catch_up.before_write()).collect();
        let mut missed = 0;
        for (position, member) in open.members.iter().enumerate() {
            if self.has_room(member) {
                send(&self.world, member, Message::Write { page, words: [value; WORDS] });
            } else {
                missed |= 1 << position;
            }
            if self.world.borrow_mut().random.once_in(4) {
                sleep(&self.world, 1).await;
            }
        }
        if !open.catching_up.is_empty() {
            self.world.borrow_mut().count(Fault::WrittenWhileCatchingUp);
        }
        for ((position, catch_up), before) in open.catching_up.iter().zip(before) {
            if missed & (1 << position) == 0 {
                catch_up.after_write(before, &bytes_of(page));
            } else {
                catch_up.missed_write(&bytes_of(page));
            }
        }
        self.posting.set(self.posting.get() - 1);
        let in_sync = open.members.iter().filter(|member| !member.is_behind.get());
        let flushing: Vec<_> = in_sync.map(|member| (member, send(&self.world, member, Message::Flush))).collect();
        let mut reached = Vec::new();
        for (member, question) in flushing {
            if matches!(self.answer_in_time(member, question, false).await, Some(Answer::Flushed)) {
                reached.push(Rc::clone(member));
            }
        }
        let is_early = match self.world.borrow().control {
            Some(Control::AcknowledgedEarly) => true,
            Some(Control::SlowAcknowledgedEarly) => open.members.iter().any(|member| member.is_slow.get()),
            _ => false,
        };
        if is_early {
            self.receipt(&open, &reached, page, value, true);
        }
        let is_acknowledged = self.acknowledge(&open.members).await;
        self.receipt(&open, &reached, page, value, is_acknowledged || is_early);
    }

    /// As `Open::write_on`: whether a write is posted.
    fn has_room(&self, member: &Member) -> bool {
        if member.is_slow.get() {
            return false;
        }
        {
            let mut world = self.world.borrow_mut();
            if member.is_failed() || world.is_faultless || !world.random.once_in(20) {
                return true;
            }
            world.count(Fault::NoRoom);
        }
        if member.is_behind.get() {
            member.leave_behind();
            return false;
        }
        self.view_lock.is_held() || !self.leave_behind(member)
    }

    /// As `Open::receipt`.
    fn receipt(&self, open: &Open, reached: &[Rc<Member>], page: usize, value: u64, is_acknowledged: bool) {
        let has_it: Vec<_> = reached.iter().filter(|member| member.is_in_use()).collect();
        let is_missed = has_it.len() < open.members.len();
        let mut world = self.world.borrow_mut();
        if has_it.is_empty() || (is_missed && !is_acknowledged) {
            world.count(Fault::NotAcknowledged);
            return;
        }
        if is_missed {
            world.count(Fault::AcknowledgedDegraded);
        }
        for member in has_it {
            let target = &world.targets[member.target];
            let durable = target.durable[page];
            let was_put_back = member.connection.is_some_and(|connection| world.was_put_back(connection));
            if durable != [value; WORDS] && !was_put_back && world.truth.is_newest(self.number) {
                let target = member.target;
                world.truth.violate(|| format!("the receipt of {value} names target {target}, which has {durable:?}"));
            }
        }
        let writer = self.writer;
        world.note(|| format!("w{writer} page {page} = {value} is acknowledged"));
        world.truth.acknowledge(self.number, page, value);
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
        let _hold = self.hold.lock().await;
        self.flush_everything().await;
        {
            let _guard = self.view_lock.lock().await;
            if self.in_use() != self.view.borrow().current() {
                let _ = self.change().await;
            }
            self.has_ended.set(true);
        }
        let members = self.open.borrow().members.clone();
        for member in members.iter().filter(|member| !member.is_behind.get()) {
            let _ = ask(&self.world, member, Message::Tell(Request::Close { in_order: true })).await;
        }
        self.give_up();
    }

    /// Members in sync that nobody writes are equal.
    fn check_equal(&self) {
        let members = self.members.borrow().clone();
        let mut world = self.world.borrow_mut();
        let is_reached = |member: &&Rc<Member>| {
            let target = &world.targets[member.target];
            member.is_in_use() && target.open_by.is_some() && target.open_by == member.connection
        };
        let reached: Vec<_> = members.iter().filter(is_reached).collect();
        let all: Vec<_> = reached.iter().map(|member| world.targets[member.target].durable).collect();
        if all.iter().any(|pages| *pages != all[0]) {
            world.truth.violate(|| format!("members in sync differ when the pool is opened: {all:?}"));
        }
    }
}
