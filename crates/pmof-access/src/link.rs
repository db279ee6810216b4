//! One connection's endpoint and wire under one lock: everything that moves bytes.

use std::{
    collections::VecDeque,
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError},
    time::Duration,
};

use pmof_proto::{Completion as ProtoCompletion, ConnectionError, Endpoint, Event, InputPlace, OutputView};

use crate::{
    poller::{Interest, Poller},
    wire::Wire,
};

/// Receives in a row before other connections get their turn.
const RECEIVES_PER_TURN: usize = 16;

/// Bytes taken in before the replies to them go out, where more are there already: a reply of its own to each of many
/// large writes would cost the target as much as the writes, and one to all of them would let the other side run dry.
const REPLY_AFTER_BYTES: usize = 256 << 10;

/// How long the last words to the other side may take. Closing with unread input would make the kernel throw them away.
const LINGER: Duration = Duration::from_secs(1);

/// Views from this size up are joined with those after them: a packet saved is worth the two system calls.
const GATHER_MIN_BYTES: usize = 16 << 10;

/// Payloads from this size up are sent from the caller's memory instead of being copied first.
pub(crate) const BORROW_MIN_BYTES: usize = 16 << 10;

#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) id: u64,
    pub(crate) peer_address: Option<SocketAddr>,
    core: Mutex<LinkCore>,
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
    pub(crate) endpoint: Endpoint,
    wire: Option<Box<dyn Wire>>,
    phase: Phase,
    loss_timeout: Duration,
    /// The socket took no more, or a thread that sleeps is to send what waits. Else output is not watched for: it goes out
    /// when posted or driven, and changing what the kernel watches would cost two system calls an operation.
    blocked: bool,
    /// Where readiness is watched, and for what.
    watched: Option<(Arc<Poller>, u64, Interest)>,
    pub(crate) events: VecDeque<Event>,
    /// What the kernel said when the wire broke.
    pub(crate) wire_error: Option<io::Error>,
}

impl Link {
    pub(crate) fn new(
        id: u64,
        endpoint: Endpoint,
        wire: Box<dyn Wire>,
        loss_timeout: Duration,
        peer_address: Option<SocketAddr>,
    ) -> Arc<Self> {
        let core = LinkCore {
            endpoint,
            wire: Some(wire),
            phase: Phase::Open,
            loss_timeout,
            blocked: false,
            watched: None,
            events: VecDeque::new(),
            wire_error: None,
        };
        Arc::new(Self { id, peer_address, core: Mutex::new(core) })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, LinkCore> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The core, unless someone (perhaps this very thread, in a batch) holds it.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, LinkCore>> {
        match self.core.try_lock() {
            Ok(core) => Some(core),
            Err(TryLockError::Poisoned(core)) => Some(core.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Watches the wire with this poller from now on, and with no other.
    pub(crate) fn watch(&self, poller: Option<&Arc<Poller>>) -> Result<(), rustix::io::Errno> {
        let mut core = self.lock();
        core.unwatch();
        let interest = core.wanted_interest();
        if let (Some(poller), Some(wire)) = (poller, &core.wire)
            && let Some(fd) = wire.as_fd()
        {
            poller.add(fd, self.id, interest)?;
            core.watched = Some((Arc::clone(poller), self.id, interest));
        }
        Ok(())
    }
}

impl LinkCore {
    /// Moves what can be moved without waiting. True if anything moved.
    pub(crate) fn drive(&mut self, now: impl Fn() -> Duration) -> bool {
        let moved = match self.phase {
            Phase::Open => self.drive_open(&now),
            Phase::Draining { until } => self.drain(now(), until),
            Phase::Closed => false,
        };
        while let Some(event) = self.endpoint.poll_event() {
            self.events.push_back(event);
        }
        self.update_interest();
        moved
    }

    /// Sends what waits, as far as the socket takes it.
    pub(crate) fn flush_output(&mut self) -> bool {
        let mut gathers = false;
        let moved = self.send_views(&mut gathers);
        if gathers && let Some(wire) = &mut self.wire {
            wire.gather(false);
        }
        moved
    }

    /// Has whoever sleeps on the wire wake up and send what waits.
    pub(crate) fn watch_output(&mut self) {
        self.blocked = self.endpoint.output_view().is_some();
    }

    fn send_views(&mut self, gathers: &mut bool) -> bool {
        let mut moved = false;
        self.blocked = false;
        loop {
            let Some(wire) = &mut self.wire else { return moved };
            let Some(view) = self.endpoint.output_view() else { return moved };
            let len = view.head.len() + view.tail.len() + view.body.map_or(0, |body| body.len_bytes as usize);
            // A large write never fills whole packets: the small rest would cost as much as the packets before it.
            if !*gathers && len >= GATHER_MIN_BYTES && self.endpoint.output_waiting_bytes() > len {
                *gathers = true;
                wire.gather(true);
            }
            match wire.send(&view, &[]) {
                Ok(count) => {
                    moved = true;
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
    pub(crate) fn send_borrowed(&mut self, payload: &[u8]) {
        let Some(wire) = &mut self.wire else { return };
        let view = self.endpoint.output_view().unwrap_or(OutputView { head: &[], body: None, tail: &[] });
        let head_len = view.head.len();
        match wire.send(&view, payload) {
            Ok(count) => {
                self.endpoint.output_sent(count.min(head_len));
                self.endpoint.supply(&payload[count.saturating_sub(head_len)..]);
            }
            Err(error) if is_transient(&error) => self.endpoint.supply(payload),
            Err(error) => self.wire_failed(error),
        }
        self.watch_output();
    }

    /// Takes the finished operations out.
    pub(crate) fn next_completion(&mut self) -> Option<ProtoCompletion> {
        self.endpoint.poll_completion()
    }

    /// The private data of a connection request that came and was not taken yet.
    pub(crate) fn take_request(&mut self) -> Option<Vec<u8>> {
        match self.events.front() {
            Some(Event::Requested { .. }) => match self.events.pop_front() {
                Some(Event::Requested { private_data }) => Some(private_data),
                _ => None,
            },
            _ => None,
        }
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
                let next = self.endpoint.tick(now, self.loss_timeout);
                let has_ended = self.endpoint.ended().is_some();
                let moved = has_ended && self.drive(|| now);
                return (next, moved || has_ended != is_over_already || self.phase != before);
            }
            Phase::Draining { until } => {
                self.drain(now, until);
                Some(until)
            }
            Phase::Closed => None,
        };
        (next, self.phase != before)
    }

    /// True when nothing will happen any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.phase == Phase::Closed
    }

    /// Changes what the wire is watched for, after output was queued or sent.
    pub(crate) fn update_interest(&mut self) {
        let wanted = self.wanted_interest();
        if let Some((poller, id, interest)) = &mut self.watched
            && *interest != wanted
            && let Some(fd) = self.wire.as_ref().and_then(|wire| wire.as_fd())
            && poller.modify(fd, *id, wanted).is_ok()
        {
            *interest = wanted;
        }
    }

    pub(crate) fn unwatch(&mut self) {
        if let Some((poller, ..)) = self.watched.take()
            && let Some(fd) = self.wire.as_ref().and_then(|wire| wire.as_fd())
        {
            poller.remove(fd);
        }
    }

    fn wanted_interest(&self) -> Interest {
        match self.phase {
            Phase::Open => Interest { input: self.endpoint.wants_input(), output: self.blocked },
            Phase::Draining { .. } => Interest { input: true, output: false },
            Phase::Closed => Interest { input: false, output: false },
        }
    }

    fn drive_open(&mut self, now: &impl Fn() -> Duration) -> bool {
        let mut moved = self.flush_output();
        let mut unanswered_bytes = 0;
        for _ in 0..RECEIVES_PER_TURN {
            let Some(wire) = &mut self.wire else { break };
            let Some(place) = self.endpoint.input_place() else { break };
            let room = room_of(&place);
            match wire.receive(place) {
                Ok(0) => {
                    let why = "the stream ended without a goodbye; the other process died or was killed";
                    self.endpoint.wire_lost(why.to_owned());
                    moved = true;
                }
                Ok(count) => {
                    moved = true;
                    self.endpoint.input_arrived(count);
                    if (count as u64) < room {
                        break;
                    }
                    unanswered_bytes += count;
                    if unanswered_bytes >= REPLY_AFTER_BYTES {
                        unanswered_bytes = 0;
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
        if moved {
            self.flush_output();
        }
        if let Some(why) = self.endpoint.ended() {
            let orderly = !matches!(why, ConnectionError::Lost { .. } | ConnectionError::TimedOut { .. });
            if self.endpoint.is_finished() {
                self.start_closing(orderly, now());
            }
        }
        moved
    }

    fn start_closing(&mut self, orderly: bool, now: Duration) {
        match &mut self.wire {
            Some(wire) if orderly => {
                wire.shutdown_output();
                self.phase = Phase::Draining { until: now + LINGER };
            }
            _ => self.close(),
        }
    }

    fn drain(&mut self, now: Duration, until: Duration) -> bool {
        let mut scratch = [0; 4096];
        let mut moved = false;
        for _ in 0..RECEIVES_PER_TURN {
            let Some(wire) = &mut self.wire else { break };
            match wire.receive(InputPlace::Staging(&mut scratch)) {
                Ok(0) => {
                    self.close();
                    return true;
                }
                Ok(_) => moved = true,
                Err(error) if is_transient(&error) => break,
                Err(_) => {
                    self.close();
                    return true;
                }
            }
        }
        if now >= until {
            self.close();
        }
        moved
    }

    fn close(&mut self) {
        self.unwatch();
        self.wire = None;
        self.phase = Phase::Closed;
    }

    fn wire_failed(&mut self, error: io::Error) {
        self.endpoint.wire_lost(error.to_string());
        self.wire_error = Some(error);
    }
}

fn room_of(place: &InputPlace<'_>) -> u64 {
    match place {
        InputPlace::Staging(buffer) => buffer.len() as u64,
        InputPlace::Memory { len_bytes, tail, .. } => len_bytes + tail.len() as u64,
    }
}

fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
