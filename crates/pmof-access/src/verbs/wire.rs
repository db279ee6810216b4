//! One queue pair as a wire: the message stream on SENDs, and the direct way beside it.

use std::{
    io, mem,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use pmof_mem::causes;
use pmof_proto::{ConnectionError, OperationError, Refusal, Ticket};
use pmof_verbs::{CmId, CompletionQueue, Opcode, PostFailure, QueuePair, QueuePairOptions, Status, WorkCompletion};

mod messages;
mod transport;

use messages::CREDIT_BYTES;

use super::{
    connect::{Greeting, Manager, RingGreeting, Step},
    direct::SERVICE_REQUESTS,
    opened::{Opened, io_error},
    receive::{RECEIVE_ID, RECEIVES, ReceiveRing, SharedRing},
    send::{Flight, ResultPlace, Retired, SendQueue, Sender},
};
use crate::{
    SetupError,
    ring::Attached,
    wire::{DirectOutcome, Finished, Submission, Wire as _},
};

/// Completions taken at once.
const COMPLETIONS_AT_ONCE: usize = 16;

/// How many probes fit into the time after which a silent peer counts as lost.
const PROBES_PER_LOSS: u32 = 3;

/// How many times the loss timeout, and the time that its bytes need at this rate, a device may work on what was posted
/// without completing anything.
const STUCK_LOSSES: u32 = 2;
const LEAST_BYTES_PER_SECOND: u64 = 1 << 20;

/// Code for 0.64 ms: the time after which a sender tries again that found no receive.
const RECEIVER_NOT_READY_CODE: u8 = 12;

/// Looks in which messages that came before a failure are read. No more: where nobody takes them the failure is told all the same.
const FAILURE_WAITS: u8 = 4;

/// Time for the other side to learn from its own device why this one's took the queue pair down.
const TAKEN_DOWN_GRACE: Duration = Duration::from_millis(200);

/// The queues of a connection.
#[derive(Debug)]
pub(super) struct Queues {
    pub(super) send: SendQueue,
    receive: ReceiveRing,
    queue_pair: Option<QueuePair>,
    /// The ring of this side that the receives lie in. After the queue pair, which fills it.
    ring: Option<Attached>,
    /// After the queue pair, which refers to it.
    completions: CompletionQueue,
}

/// The ring of the other side that this one appends to.
#[derive(Clone, Copy, Debug)]
struct RemoteRing {
    key: [u8; 16],
    /// Its identity and the number of the next record, once the connection is established.
    next: Option<([u8; 16], u64)>,
}

#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own; every combination of them occurs")]
pub(crate) struct VerbsWire {
    opened: Arc<Opened>,
    queues: Queues,
    manager: Manager,
    send_depth: u32,
    /// Bytes of credit in front of each message; 0 where it is the immediate number.
    credit_bytes: usize,
    /// The device completes requests before they have arrived: what it does not hear of fails late, if at all.
    completes_early: bool,
    /// The next completion makes the queue's descriptor readable.
    is_armed: bool,
    /// Something may have come from the connection manager.
    looks_at_manager: bool,
    /// The direct operation that failed, until that is told.
    failure: Option<(Ticket, OperationError)>,
    /// How many more looks it may wait for messages that came before it.
    failure_waits: u8,
    /// Where completions are taken to.
    polled: Vec<WorkCompletion>,
    /// The queue pair carries nothing any more.
    is_broken: bool,
    /// The device took it down on its own, and since when, as far as the clock was looked at.
    is_taken_down: bool,
    taken_down_at: Option<Duration>,
    /// Nothing more will be sent; what was is to arrive before the end.
    is_closing: bool,
    /// The queue pair was put into error, to learn what had arrived when the other side closed.
    is_called_in: bool,
    has_disconnected: bool,
    /// What the other side takes: messages that it has room for, and bytes of each.
    room: Greeting,
    remote_ring: Option<RemoteRing>,
    /// Messages sent, and how many of them the other side has given back; both wrap.
    sent: u32,
    credited: u32,
    /// How many of its messages the other side was told to be given back; wraps.
    told: u32,
    loss_timeout: Duration,
    /// When the other side was last known to be there, and since when a probe is under way.
    heard_at: Duration,
    heard: bool,
    /// Since when something was seen to be under way without anything being heard.
    awaited_since: Option<Duration>,
    is_probing: bool,
}

impl VerbsWire {
    /// Starts to connect; success or failure shows when the wire is driven.
    pub(crate) fn connecting(
        opened: &Arc<Opened>,
        target: SocketAddr,
        source: Option<IpAddr>,
        append_to: Option<[u8; 16]>,
        send_queue: u32,
        loss_timeout: Duration,
    ) -> Result<Self, ConnectFailure> {
        let ring = append_to.map(|name| RingGreeting { name, first_sequence: 0 });
        let greeting = Greeting { ring, ..Greeting::own(opened.answer_place()) };
        let manager = Manager::start(target, source.or(opened.source), loss_timeout, greeting)
            .map_err(ConnectFailure::Network)?;
        let made = Self::new(opened, manager, send_queue, loss_timeout, Greeting::own(None), None);
        let mut wire = made.map_err(ConnectFailure::Setup)?;
        wire.remote_ring = append_to.map(|key| RemoteRing { key, next: None });
        Ok(wire)
    }

    /// Takes a connection request, whose messages go to the ring if there is one.
    pub(super) fn accepting(
        opened: &Arc<Opened>,
        id: CmId,
        room: Greeting,
        ring: Option<Attached>,
    ) -> Result<Self, SetupError> {
        let failed = |source| SetupError::System { call: "rdma_accept", source };
        let loss_timeout = crate::DEFAULT_LOSS_TIMEOUT;
        let own = Greeting::own(opened.answer_place());
        let greeting = ring.as_ref().map_or(own, |ring| {
            let layout = ring.state().layout();
            let named = RingGreeting { name: layout.identity(), first_sequence: ring.first_sequence() };
            Greeting { receives: layout.slots() as u16, ring: Some(named), ..own }
        });
        let manager = Manager::of_request(id, loss_timeout, greeting).map_err(failed)?;
        let send_queue = pmof_proto::limits::SEND_QUEUE_DEFAULT;
        let mut wire = Self::new(opened, manager, send_queue, loss_timeout, room, ring)?;
        wire.queues.send.set_answer(room.answer);
        wire.make_queue_pair().map_err(failed)?;
        wire.manager.accept().map_err(failed)?;
        Ok(wire)
    }

    fn new(
        opened: &Arc<Opened>,
        manager: Manager,
        send_queue: u32,
        loss_timeout: Duration,
        room: Greeting,
        ring: Option<Attached>,
    ) -> Result<Self, SetupError> {
        let capabilities = opened.device.capabilities();
        // Each operation may have a read of its own behind it, to confirm it.
        let each = if capabilities.completes_early() { 2 } else { 1 };
        // Some are still counted when their operations are known to be done.
        let send_depth = (each * send_queue + 2 * SERVICE_REQUESTS as u32).min(capabilities.max_queue_pair_requests);
        let shared_receives = opened.shared.as_ref().map_or(0, SharedRing::count);
        let receives = shared_receives + ring.as_ref().map_or(RECEIVES.into(), |ring| ring.state().layout().slots());
        let completions = CompletionQueue::new(&opened.device, send_depth + receives, true)?;
        let queues = Queues {
            send: SendQueue::new(&opened.domain, send_depth as usize)?,
            receive: match &ring {
                Some(ring) => ReceiveRing::durable(ring.state())?,
                None => ReceiveRing::new(&opened.domain, opened.shared.as_ref())?,
            },
            queue_pair: None,
            ring,
            completions,
        };
        Ok(Self {
            opened: Arc::clone(opened),
            queues,
            manager,
            send_depth,
            credit_bytes: if capabilities.has_immediate() { 0 } else { CREDIT_BYTES },
            completes_early: capabilities.completes_early(),
            is_armed: false,
            looks_at_manager: true,
            failure: None,
            failure_waits: FAILURE_WAITS,
            polled: vec![WorkCompletion::default(); COMPLETIONS_AT_ONCE],
            is_broken: false,
            is_taken_down: false,
            taken_down_at: None,
            is_closing: false,
            is_called_in: false,
            has_disconnected: false,
            room,
            remote_ring: None,
            sent: 0,
            credited: 0,
            told: 0,
            loss_timeout,
            heard_at: Duration::ZERO,
            heard: true,
            awaited_since: None,
            is_probing: false,
        })
    }

    fn make_queue_pair(&mut self) -> io::Result<()> {
        let Opened { domain, options, shared, .. } = &*self.opened;
        let slots = self.queues.ring.as_ref().map(|ring| ring.state().layout().slots());
        let shared = shared.as_ref().filter(|_| slots.is_none());
        let wanted = QueuePairOptions {
            send_cq: self.queues.completions.clone(),
            receive_cq: self.queues.completions.clone(),
            srq: shared.map(|ring| ring.queue.clone()),
            send_depth: self.send_depth,
            receive_depth: slots.unwrap_or(RECEIVES.into()),
            inline_bytes: pmof_verbs::INLINE_BYTES as u32,
            max_sge: 1,
            flush: options.native_flush,
            atomic_write: options.atomic_write,
            classic: false,
        };
        let mut queue_pair = self.manager.id().create_queue_pair(domain, &wanted).map_err(io_error)?;
        self.queues.send.staging.set_inline_max(queue_pair.inline_max_bytes() as usize);
        self.queues.receive.post(&mut queue_pair)?;
        self.queues.queue_pair = Some(queue_pair);
        Ok(())
    }

    pub(super) fn queues(&self) -> Option<&Queues> {
        self.queues.queue_pair.is_some().then_some(&self.queues)
    }

    /// What hands direct operations over: into the device's ring where it is a single one or go out with their batch, and nothing is to be
    /// handed over before.
    #[inline]
    pub(super) fn sender(&mut self, submission: Submission) -> Option<Sender<'_>> {
        let may_go = match submission {
            Submission::Single => !self.has_to_hand_over(),
            Submission::Batch => true,
            Submission::Later => false,
        };
        let Queues { send, queue_pair, .. } = &mut self.queues;
        let queue_pair = queue_pair.as_mut()?;
        let rings_doorbell = submission == Submission::Single;
        let goes = may_go && !self.is_broken && send.is_free() && (rings_doorbell || queue_pair.is_extended());
        Some(Sender { send, queue_pair: goes.then_some(queue_pair), rings_doorbell })
    }

    /// The queues, where requests may be built in the device's ring.
    #[inline]
    pub(super) fn open_ring(&mut self) -> Option<(&mut SendQueue, &mut QueuePair)> {
        let Queues { send, queue_pair: Some(queue_pair), .. } = &mut self.queues else { return None };
        (!self.is_broken && queue_pair.is_extended()).then_some((send, queue_pair))
    }

    /// Something may have been handed over: what the device did not take fails.
    #[inline]
    pub(super) fn note_handed_over(&mut self) {
        if self.queues.send.has_failure() {
            if let Some(failure) = self.queues.send.take_failure() {
                self.could_not_post(&failure);
            }
        }
    }

    pub(super) fn has_flush(&self) -> bool {
        self.queues.queue_pair.as_ref().is_some_and(QueuePair::has_flush)
    }

    pub(super) fn has_atomic_write(&self) -> bool {
        self.queues.queue_pair.as_ref().is_some_and(QueuePair::has_atomic_write)
    }

    pub(super) fn has_atomics(&self) -> bool {
        self.opened.device.capabilities().atomics
    }

    pub(super) fn is_software(&self) -> bool {
        self.opened.device.capabilities().is_software
    }

    pub(super) fn has_broken(&self) -> bool {
        self.is_broken
    }

    /// Destroys the queue pair: when that returns the device has let go of everything.
    pub(super) fn stop_queues(&mut self) {
        self.is_broken = true;
        self.manager.disconnect();
        self.return_receives();
        self.queues.queue_pair = None;
        self.return_receives();
        self.queues.send.clear();
    }

    /// Takes back the receives that this connection used up and nobody will look at: others may share them.
    fn return_receives(&mut self) {
        if self.opened.shared.is_none() {
            return;
        }
        let mut done = mem::take(&mut self.polled);
        while let Ok(count @ 1..) = self.queues.completions.poll(&mut done) {
            let receives = done[..count].iter().map(WorkCompletion::wr_id).filter(|id| id & RECEIVE_ID != 0);
            receives.for_each(|id| self.queues.receive.return_unused(id));
        }
        self.polled = done;
    }

    /// Looks at the connection manager, where that may bring something.
    fn step_manager(&mut self) -> io::Result<bool> {
        if !self.looks_at_manager && !self.manager.is_connecting() {
            return Ok(false);
        }
        self.looks_at_manager = false;
        let mut moved = false;
        loop {
            match self.manager.step()? {
                Step::Nothing => return Ok(moved),
                Step::MakeQueuePair => {
                    self.make_queue_pair()?;
                    self.manager.connect()?;
                }
                Step::Standing(greeting) => {
                    if let (Some(queue_pair), true) = (&self.queues.queue_pair, self.opened.shared.is_some()) {
                        // Others may have used up the receives that they share: not for two thirds of a second, which is
                        // what connections are made with. Where it cannot be set, that is how long it takes.
                        let _ = queue_pair.set_receiver_not_ready_timer(RECEIVER_NOT_READY_CODE);
                    }
                    // The side that was asked is told of the standing connection without a greeting.
                    self.room = greeting.unwrap_or(self.room);
                    if self.completes_early && self.room.answer.is_none() {
                        let what = "the other side does not speak pmof over iWARP";
                        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
                    }
                    self.queues.send.set_answer(self.room.answer);
                    if let Some(ring) = &mut self.remote_ring {
                        let Some(named) = self.room.ring else {
                            let what = "the target took the connection without the ring that was asked for";
                            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
                        };
                        ring.next = Some((named.name, named.first_sequence));
                    }
                    self.heard = true;
                }
                Step::Disconnected => {}
            }
            moved = true;
        }
    }

    /// Whether nothing but completions is to be looked for.
    #[inline]
    fn has_completions_only(&self) -> bool {
        let is_ending = self.is_closing || self.is_taken_down;
        !self.looks_at_manager && !is_ending && self.manager.is_standing() && self.failure.is_none()
    }

    #[inline(never)]
    fn take_in(&mut self, finished: &mut dyn Finished) -> io::Result<bool> {
        // The other side's end is told there alone.
        self.looks_at_manager |= self.is_closing;
        let mut moved = self.step_manager()?;
        moved |= self.poll_completions(finished)?;
        if self.is_closing || self.is_taken_down || self.manager.is_disconnected() {
            moved |= self.wind_up(finished)?;
        }
        Ok(moved)
    }

    #[inline]
    fn poll_completions(&mut self, finished: &mut dyn Finished) -> io::Result<bool> {
        match self.queues.completions.poll(&mut self.polled).map_err(io_error)? {
            0 => Ok(false),
            count => self.take_completions(count, finished).map(|()| true),
        }
    }

    /// Takes in what was just polled, and what comes after it.
    #[inline(never)]
    fn take_completions(&mut self, mut count: usize, finished: &mut dyn Finished) -> io::Result<()> {
        loop {
            for at in 0..count {
                let completion = self.polled[at];
                self.completed(&completion, finished)?;
            }
            if count < self.polled.len() {
                return Ok(());
            }
            count = self.queues.completions.poll(&mut self.polled).map_err(io_error)?;
        }
    }

    #[inline]
    fn completed(&mut self, completion: &WorkCompletion, finished: &mut dyn Finished) -> io::Result<()> {
        let id = completion.wr_id();
        let status = completion.status();
        if id & RECEIVE_ID != 0 {
            return self.received(completion, status);
        }
        if status != Status::Success {
            return self.failed(id, completion, status, finished);
        }
        let is_read = self.completes_early && completion.opcode() == Opcode::Read;
        self.heard |= !self.completes_early || is_read;
        let through = self.queues.send.completed(id, is_read);
        loop {
            if let Some(ticket) = self.queues.send.retire_plain(through) {
                finished.finished(ticket, DirectOutcome::Done);
            }
            let Some(retired) = self.queues.send.retire(through) else { return Ok(()) };
            self.retired(retired, finished);
        }
    }

    fn retired(&mut self, retired: Retired, finished: &mut dyn Finished) {
        match retired.flight {
            Flight::Direct { ticket, result, .. } => {
                let outcome = match result {
                    ResultPlace::None => DirectOutcome::Done,
                    ResultPlace::Number(at) => DirectOutcome::Previous(self.queues.send.staging.number(at)),
                    ResultPlace::Copy(into) => {
                        match retired.scratch.as_deref().map(|from| copy(from.memory(), &into)) {
                            Some(Ok(())) => DirectOutcome::Done,
                            _ => DirectOutcome::Failed(OperationError::ConnectionEnded(
                                ConnectionError::LocalMemoryFailed { what: "the destination of a read" },
                            )),
                        }
                    }
                };
                finished.finished(ticket, outcome);
            }
            Flight::Service => self.is_probing = false,
            Flight::Stream | Flight::FlushPart { .. } => {}
        }
        if let Some(scratch) = retired.scratch {
            self.queues.send.staging.recycle(scratch);
        }
    }

    /// A work request failed: what was posted before it succeeded, and the queue pair is in error.
    #[cold]
    fn failed(
        &mut self,
        id: u64,
        completion: &WorkCompletion,
        status: Status,
        finished: &mut dyn Finished,
    ) -> io::Result<()> {
        if self.is_broken {
            return Ok(());
        }
        if self.completes_early {
            return self.failed_early(status, completion);
        }
        while let Some(retired) = self.queues.send.retire(id - 1) {
            self.retired(retired, finished);
        }
        self.is_broken = true;
        let why = why_failed(status, completion);
        let flight = self.queues.send.retire(id).map(|retired| retired.flight);
        if let Some(
            Flight::Direct { ticket, offset, len_bytes, .. } | Flight::FlushPart { ticket, offset, len_bytes },
        ) = flight
        {
            let refused = |refusal| OperationError::Refused { refusal, offset, len_bytes, limit: 0 };
            let error = match status {
                Status::RemoteAccess | Status::RemoteInvalidRequest => refused(Refusal::DeviceRefused),
                Status::RemoteOperation => refused(Refusal::MediumFailed),
                _ => OperationError::ConnectionEnded(ConnectionError::Lost { why }),
            };
            self.failure = Some((ticket, error));
            return Ok(());
        }
        if self.is_closing { Ok(()) } else { Err(io::Error::new(io::ErrorKind::ConnectionAborted, why)) }
    }

    /// A work request failed over a network where only reads tell what has arrived: of nothing that is under way it is known
    /// whether it did. A refusal, an end and a loss look alike there.
    fn failed_early(&mut self, status: Status, completion: &WorkCompletion) -> io::Result<()> {
        self.is_broken = true;
        let why = match status {
            Status::Flushed | Status::LocalOperation => {
                "the queue pair went down: the other side closed or was lost, or its device refused an operation (key, \
                 right or range)"
                    .to_owned()
            }
            status => why_failed(status, completion),
        };
        self.fail_oldest(&why);
        self.looks_at_manager = true;
        self.step_manager()?;
        // Whether the other side has closed is told by the connection manager, soon if not yet.
        self.is_taken_down = !self.is_closing && !self.manager.is_disconnected();
        Ok(())
    }

    /// Fails the oldest direct operation, if there is one: its outcome, and that of what was posted after it, is unknown.
    fn fail_oldest(&mut self, why: &str) -> bool {
        while let Some(retired) = self.queues.send.give_up_oldest() {
            if let Flight::Direct { ticket, .. } = retired.flight {
                let error = OperationError::ConnectionEnded(ConnectionError::Lost { why: why.to_owned() });
                self.failure = Some((ticket, error));
                return true;
            }
        }
        false
    }

    fn received(&mut self, completion: &WorkCompletion, status: Status) -> io::Result<()> {
        if status == Status::Success {
            self.heard = true;
            self.manager.heard_from_peer();
            let credited = self.credit_in(completion);
            let start = self.credit_bytes as u32;
            let arrived = self.queues.receive.arrive(completion.wr_id(), start, completion.byte_len());
            let credited = arrived.and(credited).inspect_err(|_| self.is_broken = true)?;
            // A number that was never sent would make this side send without end.
            if credited.wrapping_sub(self.credited) > self.sent.wrapping_sub(self.credited) {
                self.is_broken = true;
                let what = "the other side gave back messages that were not sent";
                return Err(io::Error::new(io::ErrorKind::InvalidData, what));
            }
            self.credited = credited;
            return Ok(());
        }
        self.queues.receive.return_unused(completion.wr_id());
        if self.is_broken || self.is_closing || self.manager.is_disconnected() {
            return Ok(());
        }
        // The other side's end is told by the connection manager and leaves the queue pair as it is: look there first.
        self.looks_at_manager = true;
        self.step_manager()?;
        if self.manager.is_disconnected() {
            return Ok(());
        }
        // The other side has yet to hear of it from its own device: closing now would leave it guessing.
        self.is_broken = true;
        self.is_taken_down = true;
        Ok(())
    }

    /// The device took the queue pair down, and the other side has had the time to learn why.
    fn taken_down(&mut self) -> io::Error {
        self.is_taken_down = false;
        let why = "this side's device took the queue pair down: it refused an operation of the other side (key, right or \
                   range), or it failed";
        io::Error::new(io::ErrorKind::ConnectionAborted, why)
    }

    /// A device fails what it cannot carry out, within the loss timeout. One that does neither has stopped.
    fn check_stuck(&mut self, silent: Duration) -> io::Result<()> {
        let send = &self.queues.send;
        let time_for_bytes = Duration::from_secs(send.under_way_bytes() / LEAST_BYTES_PER_SECOND);
        if send.is_idle() || silent <= self.stuck_after() + time_for_bytes {
            return Ok(());
        }
        self.is_broken = true;
        let why = if self.completes_early {
            format!(
                "the other side's device answers nothing, silent for {silent:.1?}: its host lost power or was reset, or \
                     the network is cut"
            )
        } else {
            format!("this side's device completes nothing: {} posted, silent for {silent:.1?}", send.under_way())
        };
        Err(io::Error::new(io::ErrorKind::TimedOut, why))
    }

    /// How long a silence means that something stopped.
    fn stuck_after(&self) -> Duration {
        // TCP goes on trying for many minutes, so that the device does not fail what it cannot carry out.
        let after_probe = self.loss_timeout / PROBES_PER_LOSS * (PROBES_PER_LOSS - 1);
        if self.completes_early { after_probe } else { STUCK_LOSSES * self.loss_timeout }
    }

    /// Hands over to the device what was queued and the receives that are free.
    #[inline(never)]
    fn hand_over(&mut self) {
        self.queues.receive.collect_freed();
        self.tell_credit();
        let Queues { send, receive, queue_pair: Some(queue_pair), .. } = &mut self.queues else { return };
        // A failure here means that the queue pair is in error, which its completions tell with the reason.
        let _ = receive.post(queue_pair);
        if let Err(failure) = send.submit(queue_pair) {
            self.could_not_post(&failure);
        }
    }

    #[inline]
    fn has_to_hand_over(&self) -> bool {
        self.queues.send.has_queued() || self.queues.receive.may_have_free() || self.has_untold()
    }

    /// Whether none of a batch was posted or some of it: everything under way is given up.
    #[cold]
    pub(super) fn could_not_post(&mut self, failure: &PostFailure) {
        self.is_broken = true;
        let told = self.fail_oldest(&format!("the device takes no more work requests: {}", causes(failure)));
        // Nobody else would tell of messages that were not sent.
        self.is_taken_down |= !told;
    }

    /// Sees to a connection that comes to its end. True if anything moved.
    #[cold]
    fn wind_up(&mut self, finished: &mut dyn Finished) -> io::Result<bool> {
        let mut moved = false;
        if self.manager.is_disconnected() {
            // All that the other side sent before it closed came before the news.
            moved |= self.poll_completions(finished)?;
        }
        if self.is_taken_down && self.manager.is_disconnected() {
            if !self.completes_early {
                return Err(self.taken_down());
            }
            // Over iWARP a device that takes the queue pair down ends the connection in the same breath.
            self.is_taken_down = false;
        }
        if self.is_closing && !self.is_broken && self.queues.send.has_unconfirmed() {
            // Nothing else would tell of the end of what is under way; and TCP may drop at its end what it has taken.
            self.queues.send.push_probe();
            self.submit();
        }
        if self.is_closing && !self.is_broken && self.has_silent_end() {
            self.call_in();
            moved |= self.poll_completions(finished)?;
        }
        if self.is_closing && !self.has_disconnected && (self.is_broken || self.has_nothing_under_way()) {
            self.has_disconnected = true;
            self.looks_at_manager = true;
            self.manager.disconnect();
            moved = true;
        }
        Ok(moved)
    }

    /// Whether the other side has closed while something is under way of whose end it will not tell any more.
    fn has_silent_end(&self) -> bool {
        self.manager.is_disconnected() && !self.completes_early && !self.has_nothing_under_way()
    }

    /// Has the device give back what is under way: what comes back first was not done, and all before it was.
    fn call_in(&mut self) {
        if let (Some(queue_pair), false) = (&self.queues.queue_pair, mem::replace(&mut self.is_called_in, true)) {
            // Where that fails, the end of the time for closing ends it.
            let _ = queue_pair.put_into_error();
        }
    }

    fn probe(&mut self) {
        self.is_probing = true;
        self.queues.send.push_probe();
    }

    /// Over iWARP the side that connected sends first (RFC 5044), so the other one does not ask before it has heard.
    fn may_probe(&self) -> bool {
        !self.completes_early || self.sent > 0 || self.queues.receive.consumed > 0
    }
}

/// Why a connection could not even be asked for.
#[derive(Debug)]
pub(crate) enum ConnectFailure {
    Network(io::Error),
    Setup(SetupError),
}

fn copy(from: &Arc<dyn pmof_mem::Medium>, into: &pmof_proto::LocalSlice) -> Result<(), pmof_mem::MemError> {
    let mut chunk = [0; 4096];
    let mut done = 0;
    while done < into.len_bytes {
        let part = &mut chunk[..(into.len_bytes - done).min(4096) as usize];
        from.read(done, part)?;
        into.memory.store(into.offset + done, part)?;
        done += part.len() as u64;
    }
    Ok(())
}

fn why_failed(status: Status, completion: &WorkCompletion) -> String {
    match status {
        Status::RetriesExceeded => "the other side's device acknowledges nothing any more: its host lost power or was \
                                  reset, its process died, or the network is cut"
            .to_owned(),
        Status::ReceiverNotReady => "the other side posted no receive in time".to_owned(),
        status => format!("the device says: {status} (vendor error {:#x})", completion.vendor_err()),
    }
}
