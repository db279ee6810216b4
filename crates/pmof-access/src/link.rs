//! One connection's endpoint and wire under one lock: everything that moves bytes.

use std::{
    fmt, io, mem,
    net::SocketAddr,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use pmof_locks::{Mutex, MutexGuard};
use pmof_mem::{
    Durability, MemError, Promise, causes,
    forks::{Own, PerProcess},
    order,
};
use pmof_proto::{
    Completion as ProtoCompletion, ConnectionError, DeferredFlush, Event, FlushTicket, InputPlace, LocalSlice,
    OutputView, PostError, RegionKey, Settings, Ticket,
};

use crate::{
    Completion, Method, RemoteRegion, Traffic,
    logging::{self, Name},
    request::Kept,
    ring::RingState,
    wire::{CompletionChannel, DirectWay, Run, Wire},
};

mod closing;
mod events;
mod list;
mod methods;
mod post;
mod watching;

use events::Events;
pub(crate) use list::LinkList;
use methods::{FlushMethods, choose_method, passed_over};
pub(crate) use watching::WatchedBy;
use watching::Watching;

/// One end of a connection, as the transports know it.
pub(crate) type Endpoint = pmof_proto::Endpoint<Kept>;

/// Receives in a row before other connections get their turn.
const RECEIVES_PER_TURN: usize = 16;

/// Bytes taken in before the replies to them go out, where more are there already: a reply of its own to each of many
/// large writes would cost the target as much as the writes, and one to all of them would let the other side run dry.
const REPLY_AFTER_BYTES: usize = 256 << 10;

/// Views from this size up are joined with those after them: a packet saved is worth the two system calls.
const GATHER_MIN_BYTES: usize = 16 << 10;

/// Most bytes of memory that one system call is offered: more than sockets take at once. A tool that looks at all that a call is offered,
/// as valgrind does, would else look at the whole rest of a long operation each time.
const OFFER_MAX_BYTES: u64 = 256 << 10;

/// Payloads from this size up are sent from the caller's memory instead of being copied first.
const BORROW_MIN_BYTES: usize = 16 << 10;

/// Where the outcomes of a connection go.
pub(crate) trait Collector: fmt::Debug + Send + Sync {
    /// `is_from_elsewhere`: those who wait there did not take it in themselves.
    fn deliver(&self, done: Completion, is_from_elsewhere: bool);

    /// Has whoever waits there look.
    fn wake(&self);
}

/// Carries out the flushes of a connection that wait for a device.
pub(crate) trait FlushService: fmt::Debug + Send {
    /// Never waits. The connection may be locked.
    fn flush(&self, flush: DeferredFlush);
}

pub(crate) struct Link {
    pub(crate) id: u64,
    pub(crate) peer_address: Option<SocketAddr>,
    /// Its descriptors show what happens only after they were asked to: it is a device's connection.
    pub(crate) notifies_on_request: bool,
    /// The one that shows finished operations.
    pub(crate) completion_channel: Option<CompletionChannel>,
    core: Own<Mutex<LinkCore>>,
    /// What a child has in its place: a connection that has ended, and no wire.
    forked: PerProcess<Mutex<LinkCore>>,
    /// The lock is held to answer a flush.
    is_answering: AtomicBool,
    /// Locked meanwhile, for threads that wait for the answer's end.
    answering: Mutex<()>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Open,
    /// Everything is said; input is read and dropped until the other side closes too.
    Draining {
        until: Duration,
    },
    Closed,
}

#[derive(Debug)]
pub(crate) struct LinkCore {
    name: Name,
    pub(crate) endpoint: Endpoint,
    wire: Option<Box<dyn Wire>>,
    direct: DirectWay,
    /// Of which flushes the log was told last how they go.
    told_method: Option<(RegionKey, Durability, Method)>,
    methods: FlushMethods,
    /// The last operation of which a device was asked to tell the completion, or an earlier one.
    signalled: Ticket,
    run: Run,
    phase: Phase,
    /// The handshake has ended well.
    has_stood: bool,
    loss_timeout: Duration,
    /// When bytes of the other side came last.
    heard_at: Duration,
    pub(crate) traffic: Traffic,
    /// The socket took no more, or a thread that sleeps is to send what waits. Else output is not watched for: it goes out
    /// when posted or driven, and changing what the kernel watches would cost two system calls an operation.
    blocked: bool,
    watching: Watching,
    /// Whose outcomes are those of operations, and those of receives, where these are two.
    collectors: Option<Box<[Weak<dyn Collector>; 2]>>,
    /// Who carries out flushes that wait for a device, if not whoever drives.
    flushes: Option<Box<dyn FlushService>>,
    pub(crate) events: Events,
    /// What the kernel said when the wire broke.
    pub(crate) wire_error: Option<io::Error>,
}

impl Link {
    pub(crate) fn new(
        id: u64,
        mut endpoint: Endpoint,
        mut wire: Box<dyn Wire>,
        loss_timeout: Duration,
        peer_address: Option<SocketAddr>,
    ) -> Arc<Self> {
        endpoint.set_number(id);
        wire.set_number(id);
        let direct = wire.direct_way();
        if direct != DirectWay::None {
            endpoint.enable_direct();
        }
        let notifies_on_request = direct == DirectWay::Device;
        let completion_channel = wire.completion_channel();
        let name = Name { id, transport: wire.name(), peer_address };
        let core = LinkCore { wire: Some(wire), direct, loss_timeout, ..LinkCore::without_wire(name, endpoint) };
        Arc::new(Self {
            id,
            peer_address,
            notifies_on_request,
            completion_channel,
            core: Own::new(Mutex::new(core)),
            forked: PerProcess::new(),
            is_answering: AtomicBool::new(false),
            answering: Mutex::default(),
        })
    }

    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, LinkCore> {
        self.mutex().lock()
    }

    /// Whether this is the process that made the connection.
    #[inline]
    pub(crate) fn is_here(&self) -> bool {
        self.core.is_here()
    }

    #[inline]
    fn mutex(&self) -> &Mutex<LinkCore> {
        // Another thread of the parent may have held the lock at the fork: in the child it is never free again.
        if self.is_here() { &self.core } else { self.in_child() }
    }

    #[cold]
    fn in_child(&self) -> &Mutex<LinkCore> {
        self.forked.get_or_make(|| Mutex::new(LinkCore::forked(self.id, self.peer_address)))
    }

    /// The core, unless someone (perhaps this very thread, in a batch) holds it.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, LinkCore>> {
        self.mutex().try_lock()
    }

    /// The core, for a thread that answers a flush and waits for nothing meanwhile.
    pub(crate) fn lock_to_answer(&self) -> Answering<'_> {
        let core = self.lock();
        let answer = self.answering.lock();
        self.is_answering.store(true, Ordering::Release);
        Answering { link: self, core, _answer: answer }
    }

    /// Whether the lock is held to answer a flush.
    #[inline]
    pub(crate) fn is_answering(&self) -> bool {
        self.is_answering.load(Ordering::Acquire)
    }

    /// Returns when no flush is being answered.
    pub(crate) fn wait_for_answer(&self) {
        while self.is_answering() {
            // Not for the core: behind the answer others may take it, for as long as they post.
            drop(self.answering.lock());
        }
    }
}

/// A core that is locked to answer a flush.
pub(crate) struct Answering<'l> {
    link: &'l Link,
    core: MutexGuard<'l, LinkCore>,
    /// Released last.
    _answer: MutexGuard<'l, ()>,
}

impl Answering<'_> {
    pub(crate) fn core(&mut self) -> &mut LinkCore {
        &mut self.core
    }
}

impl Drop for Answering<'_> {
    fn drop(&mut self) {
        // Before the lock is free.
        self.link.is_answering.store(false, Ordering::Release);
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("id", &self.id).field("core", &self.core).finish_non_exhaustive()
    }
}

impl LinkCore {
    fn without_wire(name: Name, endpoint: Endpoint) -> Self {
        Self {
            name,
            told_method: None,
            endpoint,
            wire: None,
            direct: DirectWay::None,
            methods: FlushMethods::default(),
            signalled: Ticket(0),
            run: Run::default(),
            phase: Phase::Open,
            has_stood: false,
            loss_timeout: Duration::ZERO,
            heard_at: Duration::ZERO,
            traffic: Traffic::default(),
            blocked: false,
            watching: Watching::default(),
            collectors: None,
            flushes: None,
            events: Events::default(),
            wire_error: None,
        }
    }

    /// Of a connection that the parent of this process has.
    fn forked(id: u64, peer_address: Option<SocketAddr>) -> Self {
        let name = Name { id, transport: "its parent's", peer_address };
        let mut endpoint = Endpoint::initiator(Settings::default(), Arc::default(), &[]);
        endpoint.fail(ConnectionError::Forked);
        let mut core = Self { phase: Phase::Closed, ..Self::without_wire(name, endpoint) };
        // Without a word to the log, whose locks may be locked here for good.
        while let Some(event) = core.endpoint.poll_event() {
            core.events.push(event);
        }
        core
    }

    /// Takes in what a device finished, where nothing else is going on. True if anything moved. `None`: more is to be seen to, by
    /// [`drive`](Self::drive).
    #[inline]
    pub(crate) fn take_in(&mut self) -> Option<bool> {
        if !self.has_no_traffic() {
            return None;
        }
        let wire = self.wire.as_mut()?;
        let moved = match wire.progress(&mut self.endpoint) {
            Ok(moved) => moved,
            Err(error) => {
                self.wire_failed(error);
                self.advance();
                return None;
            }
        };
        // Nothing waited, so that what finished lets nothing go but what the device itself held back.
        if (moved && !self.has_no_traffic()) || self.may_have_input() {
            self.advance();
            return None;
        }
        self.submit();
        Some(moved || self.endpoint.has_completions())
    }

    fn may_have_input(&self) -> bool {
        self.wire.as_ref().is_some_and(|wire| wire.may_have_input())
    }

    #[inline]
    fn is_device(&self) -> bool {
        self.direct == DirectWay::Device
    }

    /// Nothing more is posted in this lock that goes out with what was.
    pub(crate) fn end_batch(&mut self) {
        self.end_run();
        if let Some(wire) = &mut self.wire {
            wire.end_batch();
        }
    }

    fn submit(&mut self) {
        if let Some(wire) = &mut self.wire {
            wire.submit();
        }
    }

    /// Moves what can be moved without waiting. True if anything moved.
    pub(crate) fn drive(&mut self, now: impl Fn() -> Duration) -> bool {
        let mut moved = match self.phase {
            Phase::Open => self.drive_open(&now),
            Phase::Draining { until } => self.drain(now(), until),
            Phase::Closed => false,
        };
        // Whoever waits for it may sleep.
        moved |= self.take_events();
        self.update_interest();
        moved
    }

    /// Hands over what the endpoint tells of the connection. True if there was anything.
    fn take_events(&mut self) -> bool {
        let mut any = false;
        while let Some(event) = self.endpoint.poll_event() {
            logging::tell_event(self.name, &event, self.has_stood, self.wire_error.as_ref());
            if matches!(event, Event::Established { .. }) {
                self.has_stood = true;
                if let Some(wire) = &mut self.wire {
                    wire.set_loss_timeout(self.loss_timeout);
                }
            }
            self.events.push(event);
            any = true;
        }
        any
    }

    /// True on a standing connection of a device where nothing is to be said, told or heard: all there can be is
    /// operations under way.
    #[inline]
    pub(crate) fn has_operations_only(&self) -> bool {
        self.has_no_traffic() && self.wire.is_some() && !self.may_have_input()
    }

    /// The same, but that something may be to be heard.
    #[inline]
    fn has_no_traffic(&self) -> bool {
        self.is_device() && self.phase == Phase::Open && !self.events.has_news() && self.endpoint.has_no_traffic()
    }

    /// True if outcomes wait to be taken.
    #[inline]
    pub(crate) fn has_outcomes(&self) -> bool {
        self.endpoint.has_completions() || self.wire.as_ref().is_some_and(|wire| wire.has_failed())
    }

    /// The short way of sending what waits, where that is only operations for a device. False: it is not, or outcomes wait
    /// to be taken.
    pub(crate) fn submit_operations(&mut self) -> bool {
        self.end_run();
        if !self.has_operations_only() {
            return false;
        }
        self.submit();
        // Its operations finish later, and the device tells of that.
        !self.has_outcomes()
    }

    /// Has flushes that wait for a device carried out elsewhere.
    pub(crate) fn route_flushes(&mut self, route: Box<dyn FlushService>) {
        self.endpoint.defer_flushes(true);
        self.flushes = Some(route);
    }

    /// Hands the flush that was just taken in to whoever carries it out.
    #[inline]
    fn hand_out_flush(&mut self) {
        if let (Some(route), Some(flush)) = (&self.flushes, self.endpoint.take_flush()) {
            route.flush(flush);
        }
    }

    /// Answers a flush that was carried out elsewhere. False: more is to be seen to, by whoever drives: only that thread takes requests in,
    /// since some processors order only the write-backs and fences of one thread.
    pub(crate) fn flush_done(&mut self, ticket: FlushTicket, outcome: Result<(), &MemError>) -> bool {
        self.endpoint.flush_done(ticket, outcome);
        order::publish_own();
        self.flush_output();
        self.update_interest();
        self.endpoint.ended().is_none() && !self.endpoint.has_more()
    }

    /// Sends what waits, as far as the socket takes it.
    pub(crate) fn flush_output(&mut self) -> bool {
        if self.has_operations_only() {
            self.submit();
            return false;
        }
        let mut gathers = false;
        let moved = self.send_views(&mut gathers);
        // Requests that waited for their turn were taken in when it went.
        self.hand_out_flush();
        if let Some(wire) = &mut self.wire {
            if gathers {
                wire.gather(false);
            }
            wire.submit();
        }
        moved
    }

    /// Outcomes of receives go elsewhere than those of operations.
    pub(crate) fn set_collectors(&mut self, operations: Weak<dyn Collector>, receives: Weak<dyn Collector>) {
        self.collectors = Some(Box::new([operations, receives]));
    }

    pub(crate) fn has_receive_collector(&self) -> bool {
        self.collectors.is_some()
    }

    /// The collector of operations and that of receives, where these are two, as far as they are there.
    pub(crate) fn collectors(&self) -> Option<[Option<Arc<dyn Collector>>; 2]> {
        self.collectors.as_deref().map(|both| both.each_ref().map(Weak::upgrade))
    }

    /// Where there are two collectors: whatever moved, those who wait on the other one look for themselves.
    pub(crate) fn tell_both(&self) {
        if self.collectors.is_none() {
            return;
        }
        for collector in self.collectors().into_iter().flatten().flatten() {
            collector.wake();
        }
    }

    /// Brings messages that waited and receives of a shared queue together.
    pub(crate) fn match_shared(&mut self, now: impl Fn() -> Duration) {
        self.endpoint.match_shared();
        self.drive(now);
    }

    /// True once this side closed, although what was posted before may still have to go.
    pub(crate) fn is_closing(&self) -> bool {
        self.endpoint.is_closing()
    }

    /// True if bytes wait to be sent, or a device has yet to be handed what was posted.
    pub(crate) fn has_output(&self) -> bool {
        self.endpoint.output_view().is_some() || self.is_device()
    }

    /// Operations posted whose outcome is not known.
    pub(crate) fn outstanding(&self) -> usize {
        self.endpoint.outstanding()
    }

    /// True once the connection has ended and every outcome was taken out.
    pub(crate) fn is_drained(&self) -> bool {
        self.endpoint.ended().is_some() && self.endpoint.outstanding() == 0 && !self.endpoint.has_completions()
    }

    /// True while the send queue has a free place.
    pub(crate) fn has_room(&self) -> bool {
        let has_place = || self.wire.as_ref().is_none_or(|wire| wire.has_room(0));
        self.endpoint.ended().is_some() || (self.endpoint.has_room() && has_place())
    }

    /// The method of a flush of `region` to `level`, and the promise behind it.
    pub(crate) fn flush_method(
        &self,
        region: &RemoteRegion,
        level: Durability,
    ) -> Result<(Method, Promise), PostError> {
        if let Some(wire) = &self.wire {
            return choose_method(wire.as_ref(), self.methods.forced, region, level);
        }
        Err(self.not_connected())
    }

    /// Tells the log how a flush goes, unless it was told last.
    pub(crate) fn tell_method(&mut self, region: &RemoteRegion, level: Durability) {
        let Some(wire) = self.wire.as_ref().filter(|_| logging::tells_methods()) else { return };
        let Ok((method, promise)) = choose_method(wire.as_ref(), self.methods.forced, region, level) else { return };
        let known = Some((region.key(), level, method));
        if mem::replace(&mut self.told_method, known) == known {
            return;
        }
        let passed_over = match self.methods.forced {
            Some(_) => Vec::new(),
            None => passed_over(wire.as_ref(), method, region, level),
        };
        logging::tell_method(self.name, region.kind(), level, (method, promise), &passed_over);
    }

    /// Longest record that the connection appends.
    pub(crate) fn append_max_bytes(&self) -> Result<u64, PostError> {
        let Some(wire) = &self.wire else { return Err(self.not_connected()) };
        wire.append_max_bytes().ok_or(PostError::NoRing)
    }

    /// The ring of this side that the other one appends to.
    pub(crate) fn ring(&self) -> Option<&Arc<RingState>> {
        self.wire.as_ref()?.ring()
    }

    /// Has flushes use this method or fail; `None` chooses the cheapest one.
    pub(crate) fn force_method(&mut self, method: Option<Method>) {
        self.methods = FlushMethods::forcing(method);
    }

    /// Makes sure that whatever happens next ends a sleep on the poller. True: something happened already.
    pub(crate) fn arm(&mut self) -> bool {
        // What was held back goes out before a sleep.
        let moved = self.flush_output();
        self.request_notification();
        let endpoint = &mut self.endpoint;
        match self.wire.as_mut().map(|wire| Ok(wire.progress(endpoint)? || wire.may_have_input())) {
            Some(Ok(has_news)) => moved | has_news,
            Some(Err(error)) => {
                self.wire_failed(error);
                true
            }
            None => moved,
        }
    }

    /// Makes sure that what happens from here on ends a sleep; what happened before does not show.
    pub(crate) fn request_notification(&mut self) {
        if let Some(wire) = &mut self.wire {
            wire.request_notification();
        }
    }

    fn not_connected(&self) -> PostError {
        PostError::NotConnected(self.endpoint.ended().cloned().unwrap_or(ConnectionError::ClosedHere))
    }

    /// Has whoever sleeps on the wire wake up and send what waits.
    pub(crate) fn watch_output(&mut self) {
        if self.is_device() {
            // Its descriptors tell nothing of room to send.
            self.flush_output();
            return;
        }
        self.blocked = self.endpoint.output_view().is_some();
    }

    fn send_views(&mut self, gathers: &mut bool) -> bool {
        let mut moved = false;
        self.blocked = false;
        loop {
            let Some(wire) = &mut self.wire else { return moved };
            let Some(view) = self.endpoint.output_view() else { return moved };
            let mut part = None;
            let view = first_of(view, &mut part);
            let len = len_of(&view);
            // A large write never fills whole packets: the small rest would cost as much as the packets before it.
            if !*gathers && len >= GATHER_MIN_BYTES && self.endpoint.output_waiting_bytes() > len {
                *gathers = true;
                wire.gather(true);
            }
            match wire.send(&view, &[]) {
                Ok(count) => {
                    moved = true;
                    self.traffic.sent_bytes += count as u64;
                    self.endpoint.output_sent(count);
                    if count < len {
                        self.blocked = true;
                        return moved;
                    }
                }
                Err(error) if is_transient(&error) => {
                    self.blocked = true;
                    return moved;
                }
                Err(error) => {
                    self.wire_failed(error);
                    return true;
                }
            }
        }
    }

    /// Sends what waits and then `payload`; what the socket does not take is copied.
    fn send_borrowed(&mut self, payload: &[u8]) {
        let Some(wire) = &mut self.wire else { return };
        let view = self.endpoint.output_view().unwrap_or(OutputView { head: &[], body: None, tail: &[] });
        let head_len = view.head.len();
        match wire.send(&view, payload) {
            Ok(count) => {
                self.traffic.sent_bytes += count as u64;
                self.endpoint.output_sent(count.min(head_len));
                self.endpoint.supply(&payload[count.saturating_sub(head_len)..]);
            }
            Err(error) if is_transient(&error) => self.endpoint.supply(payload),
            Err(error) => self.wire_failed(error),
        }
        self.hand_out_flush();
        self.watch_output();
    }

    /// Takes the finished operations out.
    #[inline]
    pub(crate) fn next_completion(&mut self) -> Option<ProtoCompletion> {
        self.endpoint.poll_completion()
    }

    /// The private data of a connection request that came and was not taken yet.
    pub(crate) fn take_request(&mut self) -> Option<Vec<u8>> {
        self.events.take_request()
    }

    pub(crate) fn set_loss_timeout(&mut self, loss_timeout: Duration) {
        self.loss_timeout = loss_timeout;
        if let Some(wire) = &mut self.wire {
            wire.set_loss_timeout(loss_timeout);
        }
    }

    /// Tells the time. Returns when to do it again, and whether it changed anything.
    pub(crate) fn tick(&mut self, now: Duration) -> (Option<Duration>, bool) {
        let before = self.phase;
        let next = match self.phase {
            Phase::Open => {
                let is_over_already = self.endpoint.ended().is_some();
                let (wire_next, wire_moved) = self.tick_wire(now);
                let next = [self.endpoint.tick(now, self.loss_timeout), wire_next].into_iter().flatten().min();
                let has_ended = self.endpoint.ended().is_some();
                let moved = (has_ended || wire_moved) && self.drive(|| now);
                return (next, moved || has_ended != is_over_already || self.phase != before);
            }
            Phase::Draining { until } => {
                self.drain(now, until);
                Some(until)
            }
            Phase::Closed => None,
        };
        let moved = self.take_events();
        (next, moved || self.phase != before)
    }

    /// True when nothing will happen any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.phase == Phase::Closed
    }

    fn drive_open(&mut self, now: &impl Fn() -> Duration) -> bool {
        let has_progressed = self.direct != DirectWay::None && self.progress();
        if self.has_operations_only() {
            self.flush_output();
            return has_progressed;
        }
        // Progress was taken in already: only what is sent and received from here on leaves more to do.
        let mut moved = self.endpoint.resume() | self.flush_output();
        let (mut unanswered_bytes, mut has_heard) = (0, false);
        for _ in 0..RECEIVES_PER_TURN {
            let Some(wire) = self.wire.as_mut().filter(|wire| wire.may_have_input()) else { break };
            let Some(place) = self.endpoint.input_place().map(start_of) else { break };
            let room = room_of(&place);
            match wire.receive(place) {
                Ok(0) => {
                    self.lose_stream();
                    moved = true;
                }
                Ok(count) => {
                    (moved, has_heard) = (true, true);
                    self.traffic.received_bytes += count as u64;
                    self.endpoint.input_arrived(count);
                    self.hand_out_flush();
                    if (count as u64) < room {
                        break;
                    }
                    unanswered_bytes += count;
                    if unanswered_bytes >= REPLY_AFTER_BYTES {
                        unanswered_bytes = 0;
                        order::publish_own();
                        self.flush_output();
                    }
                }
                Err(error) if is_transient(&error) => break,
                Err(error) => {
                    self.wire_failed(error);
                    moved = true;
                }
            }
        }
        if has_heard {
            self.heard_at = now();
        }
        if moved {
            self.advance();
            // Before the other side can learn of it.
            order::publish_own();
            self.flush_output();
        }
        if self.endpoint.ended().is_some() {
            moved |= self.finish(now());
        }
        moved | has_progressed
    }

    /// Takes in what finished, and lets go what waited for it.
    pub(crate) fn progress(&mut self) -> bool {
        let Some(wire) = &mut self.wire else { return false };
        let moved = wire.progress(&mut self.endpoint).unwrap_or_else(|error| {
            self.wire_failed(error);
            true
        });
        moved | self.advance()
    }

    fn tick_wire(&mut self, now: Duration) -> (Option<Duration>, bool) {
        let Some(wire) = &mut self.wire else { return (None, false) };
        match wire.tick(now, &mut self.endpoint) {
            Ok(ticked) => ticked,
            Err(error) => {
                self.wire_failed(error);
                (None, true)
            }
        }
    }

    fn wire_failed(&mut self, error: io::Error) {
        self.hear_last_words();
        self.endpoint.wire_lost(causes(&error).to_string());
        self.wire_error = Some(error);
    }
}

fn len_of(view: &OutputView<'_>) -> usize {
    view.head.len() + view.tail.len() + view.body.map_or(0, |body| body.len_bytes as usize)
}

/// As much of the view as one call is offered; `part` holds the memory of it.
fn first_of<'v>(view: OutputView<'v>, part: &'v mut Option<LocalSlice>) -> OutputView<'v> {
    match view.body {
        _ if view.head.len() as u64 > OFFER_MAX_BYTES => {
            OutputView { head: &view.head[..OFFER_MAX_BYTES as usize], body: None, tail: &[] }
        }
        Some(body) if body.len_bytes > OFFER_MAX_BYTES => {
            let body = part.insert(LocalSlice { len_bytes: OFFER_MAX_BYTES, ..body.clone() });
            OutputView { body: Some(body), tail: &[], ..view }
        }
        _ => view,
    }
}

/// As much of the place as one call is offered.
fn start_of(place: InputPlace<'_>) -> InputPlace<'_> {
    match place {
        InputPlace::Memory { memory, offset, len_bytes, .. } if len_bytes > OFFER_MAX_BYTES => {
            InputPlace::Memory { memory, offset, len_bytes: OFFER_MAX_BYTES, tail: &mut [] }
        }
        place => place,
    }
}

fn room_of(place: &InputPlace<'_>) -> u64 {
    match place {
        InputPlace::Staging(buffer) => buffer.len() as u64,
        InputPlace::Memory { len_bytes, tail, .. } => len_bytes + tail.len() as u64,
    }
}

pub(crate) fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
