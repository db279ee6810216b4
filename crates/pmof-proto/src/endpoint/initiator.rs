//! The initiator's side: posting, and matching replies to what was posted.

use std::collections::VecDeque;

use pmof_mem::{Durability, Evidence};

use super::{Completion, Endpoint, Operation, OperationKind, Outcome, Payload, Signal, State, Ticket, input::Sink};
use crate::{
    ConnectionError, Flushed, LocalSlice, OperationError, PostError, Refusal,
    frame::{FLAG_IMMEDIATE, FLAG_PAYLOAD_CRC, FLAG_REPLY, Frame, Opcode},
    limits::{ATOMIC_BYTES, OUTPUT_LIMIT_BYTES},
};

/// One operation without an outcome.
#[derive(Debug)]
struct Pending {
    sequence: u64,
    context: u64,
    kind: OperationKind,
    len_bytes: u64,
    /// The poster wants a completion even of success.
    signalled: bool,
    /// A reply comes even of success.
    replied: bool,
    /// Destination of a read.
    into: Option<LocalSlice>,
    /// What a flush is to reach, and the weakest evidence for it that counts.
    level: Option<(Durability, Evidence)>,
    message: Message,
}

/// An operation's place among this side's messages.
#[derive(Clone, Copy, Debug)]
struct Message {
    /// It takes a receive of the other side.
    takes_receive: bool,
    /// Messages posted so far, itself included.
    number: u64,
}

/// An operation that was answered, and completes when every message up to it has found its receive.
#[derive(Debug)]
struct Held {
    message: Message,
    signalled: bool,
    completion: Completion,
}

/// An operation that waits for the other side to have room for a message.
#[derive(Debug)]
struct Stalled {
    frame: Frame,
    payload: StalledPayload,
    takes_receive: bool,
    replied: bool,
}

#[derive(Debug)]
enum StalledPayload {
    Bytes(Vec<u8>),
    Local(LocalSlice),
}

#[derive(Debug, Default)]
pub(super) struct Posted {
    last: u64,
    /// Messages among them.
    messages: u64,
    /// Not answered yet, in their order.
    pending: VecDeque<Pending>,
    /// Answered, and posted before those.
    held: VecDeque<Held>,
    /// Operations posted since one that asks for a reply.
    unreplied: u32,
    /// Sequence of the last operation that went out and asks for a reply.
    last_replied: u64,
    stalled: VecDeque<Stalled>,
    stalled_bytes: usize,
    /// A borrowed payload is on its way: nothing may be queued before [`Endpoint::supply`].
    pub(super) is_borrowing: bool,
}

impl Posted {
    /// True if a reply is due. Operations that ask for none do not count, nor do those that wait for room or for a receive at
    /// the other side: how long that lasts is the application's affair.
    pub(super) fn awaits_reply(&self) -> bool {
        self.pending.front().is_some_and(|oldest| oldest.sequence <= self.last_replied)
    }
}

impl Endpoint {
    /// Operations posted and without an outcome.
    pub fn outstanding(&self) -> usize {
        self.posted.pending.len() + self.posted.held.len()
    }

    /// True if [`Payload::Borrowed`] is allowed now.
    pub fn may_borrow(&self) -> bool {
        self.is_established()
            && self.posted.stalled.is_empty()
            && self.output.is_plain()
            && self.messages.may_send(&self.agreed)
    }

    /// True while posted operations wait for the other side to have room for a message.
    #[inline]
    pub fn is_stalled(&self) -> bool {
        !self.posted.stalled.is_empty()
    }

    /// True while all that was posted was answered, and waits for the other side to post receives for its messages.
    pub fn awaits_receives(&self) -> bool {
        self.posted.pending.is_empty() && !self.posted.held.is_empty()
    }

    /// True while the send queue has a free place; on a connection that does not stand, posting says why.
    pub fn has_room(&self) -> bool {
        let queued_bytes = self.output.copied_bytes() + self.posted.stalled_bytes;
        let has_place = self.outstanding() < self.agreed.send_queue as usize;
        self.ended().is_some() || (has_place && queued_bytes <= OUTPUT_LIMIT_BYTES)
    }

    /// Posts an operation. Its frame is queued for output; nothing waits. On an error nothing was queued.
    ///
    /// Rights and bounds of the remote region are the caller's to check, from the descriptor; the target checks again.
    ///
    /// # Panics
    ///
    /// If the payload is borrowed although [`may_borrow`](Self::may_borrow) says no: its bytes would land amid others.
    pub fn post(&mut self, operation: Operation<'_>, signal: Signal, context: u64) -> Result<Ticket, PostError> {
        self.may_post(&operation)?;
        let takes_receive = operation.takes_receive();
        let sequence = self.posted.last + 1;
        let kind = operation.kind();
        let level = match operation {
            Operation::Flush { level, evidence, .. } => Some((level, evidence)),
            _ => None,
        };
        let (mut frame, payload, into) = frame_of(operation, sequence);
        let is_borrowed = matches!(payload, Some(Payload::Borrowed(_)));
        assert!(!is_borrowed || self.may_borrow(), "a payload is borrowed only while may_borrow() says so");
        let replies_always =
            matches!(kind, OperationKind::Read | OperationKind::CompareAndSwap | OperationKind::FetchAndAdd);
        let signalled = signal == Signal::Always;
        // An unsignalled stream still asks for a reply now and then, so that its queue slots come back.
        let replied = signalled || replies_always || self.posted.unreplied + 1 >= self.agreed.send_queue / 4;
        if replied && !replies_always {
            frame.flags |= FLAG_REPLY;
        }
        if let Some(payload) = &payload
            && self.payload_crc_agreed()
        {
            frame.flags |= FLAG_PAYLOAD_CRC;
            frame.payload_crc = payload_crc(payload)?;
        }
        let len_bytes = match kind {
            OperationKind::AtomicWrite => ATOMIC_BYTES,
            _ => frame.length,
        };
        self.posted.last = sequence;
        self.posted.messages += u64::from(takes_receive);
        let message = Message { takes_receive, number: self.posted.messages };
        self.posted.unreplied = if replied { 0 } else { self.posted.unreplied + 1 };
        self.posted.is_borrowing = is_borrowed;
        let pending = Pending { sequence, context, kind, len_bytes, signalled, replied, into, level, message };
        self.dispatch(pending, frame, payload);
        Ok(Ticket(sequence))
    }

    /// Bytes of a borrowed payload that the caller could not send at once; to be called after every borrowed payload,
    /// also with nothing left.
    pub fn supply(&mut self, rest: &[u8]) {
        if self.ended().is_none() {
            self.output.push_bytes(rest);
        }
        self.borrowed_done();
    }

    /// Whether an operation could be posted now; for those that the caller carries out past this endpoint, too.
    pub fn may_post(&self, operation: &Operation<'_>) -> Result<(), PostError> {
        match &self.state {
            State::Established => {}
            State::Ended(why) => return Err(PostError::NotConnected(why.clone())),
            _ => {
                let why = ConnectionError::Lost { why: "the connection is not established yet".into() };
                return Err(PostError::NotConnected(why));
            }
        }
        if !self.has_room() {
            return Err(PostError::QueueFull { limit: self.agreed.send_queue });
        }
        let (len_bytes, limit_bytes) = match operation {
            Operation::Write { payload, .. } => (payload.len_bytes(), self.agreed.payload_max_bytes),
            Operation::Read { into, .. } => (into.len_bytes, self.agreed.payload_max_bytes),
            Operation::Send { payload, .. } => (payload.len_bytes(), u64::from(self.agreed.message_max_bytes)),
            _ => return Ok(()),
        };
        if len_bytes > limit_bytes {
            return Err(PostError::TooLong { len_bytes, limit_bytes });
        }
        match operation {
            Operation::Write { payload: Payload::Local(local), .. }
            | Operation::Send { payload: Payload::Local(local), .. }
            | Operation::Read { into: local, .. } => check_local(local),
            _ => Ok(()),
        }
    }

    /// Queues a frame for output, or behind messages that wait for room.
    fn dispatch(&mut self, pending: Pending, frame: Frame, payload: Option<Payload<'_>>) {
        let Pending { replied, message: Message { takes_receive, .. }, .. } = pending;
        let awaited = self.posted.awaits_reply();
        self.posted.pending.push_back(pending);
        let may_go = self.posted.stalled.is_empty() && (!takes_receive || self.messages.may_send(&self.agreed));
        if may_go {
            self.frame_goes(&frame, takes_receive, replied);
            match payload {
                Some(Payload::Inline(bytes)) => self.output.push_bytes(bytes),
                Some(Payload::Local(slice)) => self.output.push_posted(slice),
                Some(Payload::Borrowed(_)) | None => {}
            }
            // The wait for an answer begins now.
            self.heard |= !awaited;
            return;
        }
        let payload = match payload {
            Some(Payload::Inline(bytes) | Payload::Borrowed(bytes)) => StalledPayload::Bytes(bytes.to_vec()),
            Some(Payload::Local(slice)) => StalledPayload::Local(slice),
            None => StalledPayload::Bytes(Vec::new()),
        };
        if let StalledPayload::Bytes(bytes) = &payload {
            self.posted.stalled_bytes += bytes.len();
        }
        self.posted.stalled.push_back(Stalled { frame, payload, takes_receive, replied });
    }

    fn frame_goes(&mut self, frame: &Frame, takes_receive: bool, replied: bool) {
        if takes_receive {
            self.messages.sent += 1;
        }
        if replied {
            self.posted.last_replied = frame.sequence;
        }
        self.output.push_bytes(&frame.encode());
    }

    /// The other side took messages out of its inbox.
    pub(super) fn release_stalled(&mut self) {
        while let Some(next) = self.posted.stalled.front() {
            if next.takes_receive && !self.messages.may_send(&self.agreed) {
                return;
            }
            let Some(next) = self.posted.stalled.pop_front() else { return };
            self.frame_goes(&next.frame, next.takes_receive, next.replied);
            match next.payload {
                StalledPayload::Bytes(bytes) => {
                    self.posted.stalled_bytes -= bytes.len();
                    self.output.push_bytes(&bytes);
                }
                StalledPayload::Local(slice) => self.output.push_posted(slice),
            }
        }
    }

    pub(super) fn reply_arrived(&mut self, frame: &Frame) -> Option<Sink> {
        if frame.sequence == 0 && frame.code != 0 {
            let refusal = Refusal::from_wire(frame.code).unwrap_or(Refusal::Malformed);
            self.output.clear();
            self.end(ConnectionError::Refused { refusal, private_data: Vec::new() });
            return None;
        }
        if frame.code != 0 && self.late_refusal_arrived(frame) {
            return None;
        }
        if let Err(what) = self.complete_before(frame.sequence) {
            self.refuse_stream(what);
            return None;
        }
        if frame.code != 0 {
            self.refusal_arrived(frame);
            return None;
        }
        let pending = self.posted.pending.front()?;
        if !pending.replied {
            self.refuse_stream("a reply that was not asked for");
            return None;
        }
        if frame.opcode == Opcode::ReadReply {
            return match &pending.into {
                Some(into) if into.len_bytes == frame.length => Some(Sink::Read(into.clone())),
                _ => {
                    self.refuse_stream("a read reply fits no posted read");
                    None
                }
            };
        }
        let outcome = match pending.kind {
            OperationKind::Read => {
                self.refuse_stream("a read was answered without data");
                return None;
            }
            OperationKind::Flush => Flushed::from_wire(frame.immediate)
                .filter(|flushed| pending.level.is_some_and(|level| grants(*flushed, level)))
                .map(Outcome::Flushed),
            OperationKind::CompareAndSwap | OperationKind::FetchAndAdd => Some(Outcome::Previous(frame.operand)),
            _ => Some(Outcome::Done { len_bytes: pending.len_bytes }),
        };
        match outcome {
            Some(outcome) => self.complete_front(Ok(outcome)),
            None => self.refuse_stream(
                "a flush reply names another durability than asked for, or weaker evidence than promised",
            ),
        }
        None
    }

    pub(super) fn read_complete(&mut self, frame: &Frame) {
        self.complete_front(Ok(Outcome::Done { len_bytes: frame.length }));
    }

    fn refusal_arrived(&mut self, frame: &Frame) {
        let refusal = Refusal::from_wire(frame.code).unwrap_or(Refusal::Malformed);
        self.complete_front(Err(refused(frame, refusal)));
        self.output.clear();
        self.end(ConnectionError::Refused { refusal, private_data: Vec::new() });
    }

    /// A reply to `sequence` implies the success of all that was posted before it without wanting a reply.
    fn complete_before(&mut self, sequence: u64) -> Result<(), &'static str> {
        let is_unsent = self.posted.stalled.front().is_some_and(|next| next.frame.sequence <= sequence);
        if is_unsent || self.posted.pending.back().is_none_or(|last| last.sequence < sequence) {
            return Err("a reply to what was not posted");
        }
        while let Some(pending) = self.posted.pending.front() {
            if pending.sequence == sequence {
                return Ok(());
            }
            if pending.sequence > sequence {
                break;
            }
            if pending.replied {
                return Err("a reply was left out");
            }
            let done = Outcome::Done { len_bytes: pending.len_bytes };
            self.complete_front(Ok(done));
        }
        Err("a reply to what was not posted")
    }

    /// The oldest operation without an answer has one. It completes in its order, and with success not before every message
    /// up to it has found its receive.
    fn complete_front(&mut self, outcome: Result<Outcome, OperationError>) {
        let Some(pending) = self.posted.pending.pop_front() else { return };
        let Pending { message, signalled, .. } = pending;
        let is_told = signalled || outcome.is_err();
        let is_held = match outcome {
            Ok(_) => !self.messages.were_taken(message.number),
            Err(_) => !self.posted.held.is_empty(),
        };
        let completion = pending.into_completion(outcome);
        if is_held && (is_told || message.takes_receive) {
            self.posted.held.push_back(Held { message, signalled, completion });
        } else if is_told && !is_held {
            self.completions.push_back(completion);
        }
    }

    /// The other side took messages.
    pub(super) fn release_held(&mut self) {
        while let Some(held) = self.posted.held.front()
            && self.messages.were_taken(held.message.number)
        {
            let Some(held) = self.posted.held.pop_front() else { return };
            if held.signalled {
                self.completions.push_back(held.completion);
            }
        }
    }

    /// A message that was answered met a receive that is too small for it. False if the refusal is not of such a message.
    fn late_refusal_arrived(&mut self, frame: &Frame) -> bool {
        let is_it = |held: &&mut Held| held.message.takes_receive && held.completion.ticket == Ticket(frame.sequence);
        let Some(held) = self.posted.held.iter_mut().find(is_it) else { return false };
        let refusal = Refusal::from_wire(frame.code).unwrap_or(Refusal::Malformed);
        held.completion.outcome = Err(refused(frame, refusal));
        self.output.clear();
        self.end(ConnectionError::Refused { refusal, private_data: Vec::new() });
        true
    }

    /// All that has no outcome ends with the connection: at once, or when the last payload that is still sent from the
    /// poster's memory has gone, since a completion gives that memory back.
    pub(super) fn end_posted(&mut self) {
        let State::Ended(why) = &self.state else { return };
        if self.output.has_posted_slices() || self.outstanding() == 0 {
            return;
        }
        self.posted.stalled.clear();
        self.posted.stalled_bytes = 0;
        let ended = || OperationError::ConnectionEnded(why.clone());
        let held = std::mem::take(&mut self.posted.held).into_iter().map(|Held { mut completion, .. }| {
            completion.outcome = completion.outcome.and_then(|_| Err(ended()));
            completion
        });
        self.completions.extend(held);
        let pending = std::mem::take(&mut self.posted.pending).into_iter();
        self.completions.extend(pending.map(|pending| pending.into_completion(Err(ended()))));
    }
}

impl Pending {
    fn into_completion(self, outcome: Result<Outcome, OperationError>) -> Completion {
        Completion { ticket: Ticket(self.sequence), context: self.context, kind: self.kind, outcome }
    }
}

fn refused(frame: &Frame, refusal: Refusal) -> OperationError {
    OperationError::Refused { refusal, offset: frame.offset, len_bytes: frame.length, limit: frame.operand }
}

/// Whether the other side says of a flush what it was asked for, on no weaker evidence than it promised.
fn grants(flushed: Flushed, (level, evidence): (Durability, Evidence)) -> bool {
    flushed.durability == level && (flushed.promise.evidence == Evidence::Probed || evidence == Evidence::Declared)
}

/// The header of an operation, its payload, and where its reply's payload goes.
fn frame_of(operation: Operation<'_>, sequence: u64) -> (Frame, Option<Payload<'_>>, Option<LocalSlice>) {
    let frame = |opcode| Frame::new(opcode, sequence);
    match operation {
        Operation::Write { key, offset, payload, immediate } => {
            let length = payload.len_bytes();
            let frame = Frame { key: key.0, offset, length, ..frame(Opcode::Write) };
            (with_immediate(frame, immediate), Some(payload), None)
        }
        Operation::Read { key, offset, into } => {
            (Frame { key: key.0, offset, length: into.len_bytes, ..frame(Opcode::Read) }, None, Some(into))
        }
        Operation::Flush { key, offset, len_bytes, level, .. } => {
            let frame = Frame { key: key.0, offset, length: len_bytes, code: level as u8, ..frame(Opcode::Flush) };
            (frame, None, None)
        }
        Operation::AtomicWrite { key, offset, value } => {
            (Frame { key: key.0, offset, operand: value, ..frame(Opcode::AtomicWrite) }, None, None)
        }
        Operation::CompareAndSwap { key, offset, expected, new } => {
            let frame = Frame { key: key.0, offset, length: expected, operand: new, ..frame(Opcode::CompareAndSwap) };
            (frame, None, None)
        }
        Operation::FetchAndAdd { key, offset, addend } => {
            (Frame { key: key.0, offset, operand: addend, ..frame(Opcode::FetchAndAdd) }, None, None)
        }
        Operation::Send { payload, immediate } => {
            let frame = Frame { length: payload.len_bytes(), ..frame(Opcode::Send) };
            (with_immediate(frame, immediate), Some(payload), None)
        }
        Operation::WriteBack { key, offset, len_bytes } => {
            (Frame { key: key.0, offset, length: len_bytes, ..frame(Opcode::WriteBack) }, None, None)
        }
    }
}

fn with_immediate(mut frame: Frame, immediate: Option<u32>) -> Frame {
    if let Some(immediate) = immediate {
        frame.flags |= FLAG_IMMEDIATE;
        frame.immediate = immediate;
    }
    frame
}

fn payload_crc(payload: &Payload<'_>) -> Result<u32, PostError> {
    match payload {
        Payload::Inline(bytes) | Payload::Borrowed(bytes) => Ok(crc32c::crc32c(bytes)),
        Payload::Local(slice) => slice.memory.crc32c(slice.offset, slice.len_bytes).map_err(|_| outside_local(slice)),
    }
}

/// Checks that a slice of this side's memory lies inside it.
pub(super) fn check_local(slice: &LocalSlice) -> Result<(), PostError> {
    if slice.is_inside() { Ok(()) } else { Err(outside_local(slice)) }
}

fn outside_local(slice: &LocalSlice) -> PostError {
    let LocalSlice { memory, offset, len_bytes } = slice;
    PostError::OutOfBounds { offset: *offset, len_bytes: *len_bytes, size_bytes: memory.len_bytes() }
}
