//! The initiator's side: posting, and matching replies to what was posted.

use std::mem;

use pmof_mem::{Durability, Evidence};

use super::{
    Endpoint, Event, Operation, OperationKind, Outcome, Payload, Signal, State, Ticket,
    input::Sink,
    local::{check_local, outside_local},
    operations::{KeptPayload, Message, Stage, Waiting},
};
use crate::{
    ConnectionError, Flushed, LocalSlice, OperationError, PostError, Refusal, RegionKey,
    frame::{FLAG_IMMEDIATE, FLAG_PAYLOAD_CRC, FLAG_REPLY, Frame, Opcode},
    limits::{ATOMIC_BYTES, OUTPUT_LIMIT_BYTES},
};

/// Most ranges that one flush names to the target's CPU: beyond it neighbours are joined.
const WRITE_BACK_RANGES_MAX: usize = 64;

impl<D> Endpoint<D> {
    /// Operations posted whose outcome was not taken.
    #[inline]
    pub fn outstanding(&self) -> usize {
        self.operations.outstanding() + self.untaken
    }

    /// True if [`Payload::Borrowed`] is allowed now.
    pub fn may_borrow(&self) -> bool {
        self.is_established()
            && !self.operations.has_waiting()
            && self.output.is_plain()
            && self.messages.may_send(&self.agreed)
    }

    /// True while the send queue has a free place; on a connection that is not established, posting says why.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.ended().is_some() || self.has_send_room()
    }

    /// Posts an operation that goes as messages. Its frame is queued for output; nothing waits. On an error nothing was queued.
    ///
    /// Rights and bounds of the remote region are the caller's to check, from the descriptor; the target checks again.
    ///
    /// # Panics
    ///
    /// If the payload is borrowed although [`may_borrow`](Self::may_borrow) says no: its bytes would land amid others.
    pub fn post(&mut self, operation: Operation<'_>, signal: Signal, context: u64) -> Result<Ticket, PostError> {
        self.post_message(operation, signal, context, false)
    }

    /// As [`post`](Self::post). `dirties`: a direct flush of the region is to [name](Self::note_dirty) what the operation writes.
    ///
    /// # Panics
    ///
    /// As it does.
    pub fn post_message(
        &mut self,
        operation: Operation<'_>,
        signal: Signal,
        context: u64,
        dirties: bool,
    ) -> Result<Ticket, PostError> {
        self.may_post(&operation)?;
        let takes_receive = operation.takes_receive();
        let kind = operation.kind();
        let level = match operation {
            Operation::Flush { level, evidence, .. } => Some((level, evidence)),
            _ => None,
        };
        let (mut frame, payload, into) = frame_of(operation);
        let is_borrowed = matches!(payload, Some(Payload::Borrowed(_)));
        assert!(!is_borrowed || self.may_borrow(), "a payload is borrowed only while may_borrow() says so");
        let replies_always =
            matches!(kind, OperationKind::Read | OperationKind::CompareAndSwap | OperationKind::FetchAndAdd);
        // An unsignalled stream still asks for a reply now and then, so that its queue slots come back; where direct operations may
        // wait for it, always.
        let unreplied = &mut self.operations.unreplied;
        let is_replied = signal == Signal::Always
            || replies_always
            || self.operations.has_direct
            || *unreplied + 1 >= self.agreed.send_queue / 4;
        if is_replied && !replies_always {
            frame.flags |= FLAG_REPLY;
        }
        if let Some(payload) = &payload {
            if self.payload_crc_agreed() {
                frame.flags |= FLAG_PAYLOAD_CRC;
                frame.payload_crc = payload_crc(payload)?;
            }
        }
        let len_bytes = match kind {
            OperationKind::AtomicWrite => ATOMIC_BYTES,
            _ => frame.length,
        };
        self.operations.unreplied = if is_replied { 0 } else { self.operations.unreplied + 1 };
        self.operations.is_borrowing = is_borrowed;
        let mut message = Message { first: 0, is_replied, len_bytes, into, level };
        let may_go = !self.operations.has_waiting() && self.may_send_message(kind, takes_receive);
        let stage = if may_go {
            self.message_goes(frame, takes_receive, &mut message, dirties);
            match payload {
                Some(Payload::Inline(bytes)) => self.output.push_bytes(bytes),
                Some(Payload::Local(slice)) => self.output.push_posted(slice),
                Some(Payload::Borrowed(_)) | None => {}
            }
            Stage::Message(message)
        } else {
            let payload = match payload {
                Some(Payload::Inline(bytes) | Payload::Borrowed(bytes)) => KeptPayload::Bytes(bytes.to_vec()),
                Some(Payload::Local(slice)) => KeptPayload::Local(slice),
                None => KeptPayload::Bytes(Vec::new()),
            };
            Stage::Waiting(Box::new(Waiting::Message { frame, message, payload, dirties }))
        };
        Ok(self.operations.push((kind, signal, context), takes_receive, stage))
    }

    /// Bytes of a borrowed payload that the caller could not send at once; to be called after every borrowed payload,
    /// also with nothing left.
    pub fn supply(&mut self, rest: &[u8]) {
        if self.ended().is_none() {
            self.output.push_bytes(rest);
        }
        self.borrowed_done();
    }

    fn may_post(&self, operation: &Operation<'_>) -> Result<(), PostError> {
        let (len_bytes, limit_bytes) = match operation {
            Operation::Write { payload, .. } => (payload.len_bytes(), self.agreed.payload_max_bytes),
            Operation::Read { into, .. } => (into.len_bytes, self.agreed.payload_max_bytes),
            Operation::Send { payload, .. } => (payload.len_bytes(), u64::from(self.agreed.message_max_bytes)),
            _ => (0, u64::MAX),
        };
        self.may_post_bytes(len_bytes, limit_bytes)?;
        match operation {
            Operation::Write { payload: Payload::Local(local), .. }
            | Operation::Send { payload: Payload::Local(local), .. }
            | Operation::Read { into: local, .. } => check_local(local),
            _ => Ok(()),
        }
    }

    /// Whether an operation with so many bytes could be posted now, which may be so long.
    #[inline]
    pub(super) fn may_post_bytes(&self, len_bytes: u64, limit_bytes: u64) -> Result<(), PostError> {
        if self.is_established() && !self.is_closing && self.has_send_room() && len_bytes <= limit_bytes {
            return Ok(());
        }
        Err(self.why_not_posted(len_bytes, limit_bytes))
    }

    #[cold]
    fn why_not_posted(&self, len_bytes: u64, limit_bytes: u64) -> PostError {
        match &self.state {
            State::Established if self.is_closing => PostError::NotConnected(ConnectionError::ClosedHere),
            State::Established if !self.has_send_room() => PostError::QueueFull { limit: self.agreed.send_queue },
            State::Established => PostError::TooLong { len_bytes, limit_bytes },
            State::Ended(why) => PostError::NotConnected(why.clone()),
            _ => {
                let why = ConnectionError::Lost { why: "the connection is not established yet".into() };
                PostError::NotConnected(why)
            }
        }
    }

    #[inline]
    fn has_send_room(&self) -> bool {
        let queued_bytes = self.output.copied_bytes() + self.operations.kept_bytes();
        self.outstanding() < self.agreed.send_queue as usize && queued_bytes <= OUTPUT_LIMIT_BYTES
    }

    /// Whether what waits does so for room or a receive at the other side.
    pub(super) fn is_stalled(&self) -> bool {
        let is_full = match self.operations.first_waiting() {
            Some((_, kind, Waiting::Message { frame, .. })) => {
                takes_receive(kind, frame) && !self.messages.may_send(&self.agreed)
            }
            _ => false,
        };
        is_full || self.operations.awaits_receives(self.messages.taken())
    }

    fn may_send_message(&self, kind: OperationKind, takes_receive: bool) -> bool {
        (!takes_receive || self.messages.may_send(&self.agreed)) && self.operations.may_go_by_message(kind)
    }

    /// Queues the frames of a message for output, but for its payload.
    fn message_goes(&mut self, mut frame: Frame, takes_receive: bool, message: &mut Message, dirties: bool) {
        // The wait for an answer begins now.
        self.heard |= !self.operations.awaits_reply();
        self.messages.sent += u64::from(takes_receive);
        let key = RegionKey(frame.key);
        let mut first = None;
        if message.level.is_some_and(|(level, _)| level == Durability::PowerFailure) {
            for &(offset, length) in self.dirty.take(key, frame.offset, frame.length, WRITE_BACK_RANGES_MAX) {
                let sequence = self.operations.next_sequence(false);
                let part = Frame { key: key.0, offset, length, ..Frame::new(Opcode::WriteBack, sequence) };
                self.output.push_bytes(&part.encode());
                first.get_or_insert(sequence);
            }
        }
        frame.sequence = self.operations.next_sequence(message.is_replied);
        message.first = first.unwrap_or(frame.sequence);
        self.output.push_bytes(&frame.encode());
        if dirties {
            self.dirty.add(key, frame.offset, message.len_bytes);
        }
    }

    /// What waited for room, or for operations before it, goes on. Direct operations are the caller's to let go.
    fn release_waiting(&mut self) {
        while let Some((_, kind, Waiting::Message { frame, .. })) = self.operations.first_waiting() {
            let takes_receive = takes_receive(kind, frame);
            if !self.may_send_message(kind, takes_receive) {
                break;
            }
            let Some(Waiting::Message { frame, mut message, payload, dirties }) = self.operations.take_waiting() else {
                return;
            };
            self.message_goes(frame, takes_receive, &mut message, dirties);
            match payload {
                KeptPayload::Bytes(bytes) => self.output.push_bytes(&bytes),
                KeptPayload::Local(slice) => self.output.push_posted(slice),
            }
            self.operations.waiting_went(Stage::Message(message));
        }
    }

    pub(super) fn reply_arrived(&mut self, frame: &Frame) -> Option<Sink> {
        let refusal = || Refusal::from_wire(frame.code).unwrap_or(Refusal::Malformed);
        if frame.sequence == 0 && frame.code != 0 {
            self.refused(refusal());
            return None;
        }
        if frame.code != 0 && self.operations.fail_late(frame.sequence, || refusal_of(frame, refusal())) {
            self.refused(refusal());
            return None;
        }
        let at = match self.operations.place_of_reply(frame.sequence) {
            Ok(at) => at,
            Err(what) => {
                self.refuse_stream(what);
                return None;
            }
        };
        if frame.code == Refusal::Damaged as u8 && self.operations.is_read(at, frame.sequence) {
            self.operations.answered(at, Stage::Unread(Box::new(refusal_of(frame, Refusal::Damaged))));
            self.complete();
            return None;
        }
        if frame.code != 0 {
            self.operations.failed(at, refusal_of(frame, refusal()));
            self.complete();
            self.refused(refusal());
            return None;
        }
        match self.answer(at, frame) {
            Ok(Answer::Bytes(into)) => return Some(Sink::Read(into)),
            Ok(Answer::Outcome(outcome)) => {
                self.operations.answered(at, Stage::Done(outcome));
                self.complete();
            }
            Err(what) => self.refuse_stream(what),
        }
        None
    }

    /// What the reply to the operation in this place means, or what is wrong with it.
    fn answer(&self, at: usize, frame: &Frame) -> Result<Answer, &'static str> {
        const NOT_ASKED_FOR: &str = "a reply that was not asked for";
        let (message, kind, is_last) = self.operations.asked_at(at, frame.sequence).ok_or(NOT_ASKED_FOR)?;
        if !message.is_replied || !is_last {
            return Err(NOT_ASKED_FOR);
        }
        if frame.opcode == Opcode::ReadReply {
            let into = message.into.as_ref().filter(|into| into.len_bytes == frame.length);
            return into.cloned().map(Answer::Bytes).ok_or("a read reply fits no posted read");
        }
        let outcome = match (kind, message.level) {
            (OperationKind::Read, _) => return Err("a read was answered without data"),
            (OperationKind::Flush, Some(level)) => {
                let flushed = Flushed::from_wire(frame.immediate).filter(|flushed| grants(*flushed, level));
                let what = "a flush reply names another durability than asked for, or weaker evidence than promised";
                Outcome::Flushed(flushed.ok_or(what)?)
            }
            (OperationKind::CompareAndSwap | OperationKind::FetchAndAdd, _) => Outcome::Previous(frame.operand),
            _ => Outcome::Done { len_bytes: message.len_bytes },
        };
        Ok(Answer::Outcome(outcome))
    }

    pub(super) fn read_complete(&mut self, frame: &Frame) {
        if let Some(at) = self.operations.place_of(frame.sequence) {
            self.operations.answered(at, Stage::Done(Outcome::Done { len_bytes: frame.length }));
            self.complete();
        }
    }

    /// The other side refused an operation, and does nothing more.
    fn refused(&mut self, refusal: Refusal) {
        self.output.clear();
        self.end(ConnectionError::Refused { refusal, private_data: Vec::new() });
    }

    /// Completes what succeeded, in order, and lets go what waited for it.
    #[inline]
    pub(super) fn complete(&mut self) {
        let before = self.completions.len();
        self.operations.complete(self.messages.taken(), &mut self.completions);
        self.untaken += self.completions.len() - before;
        if self.operations.has_waiting() && self.is_established() {
            self.release_waiting();
        }
        if self.is_closing && (!self.operations.has_waiting() || self.is_stalled()) {
            self.close_now();
        }
    }

    /// All that has no outcome ends with the connection: at once, or when the last payload that is still sent from the
    /// poster's memory has gone and the transport has stopped, since a completion gives that memory back. Then the end is told: whoever
    /// hears of it finds every outcome.
    pub(super) fn end_posted(&mut self) {
        let State::Ended(why) = &self.state else { return };
        let is_in_use = self.operations.has_direct && !self.operations.is_stopped;
        if !self.output.has_posted_slices() && !is_in_use {
            let before = self.completions.len();
            self.operations.end(why, &mut self.completions);
            self.untaken += self.completions.len() - before;
            if !mem::replace(&mut self.is_end_told, true) {
                self.events.push_back(Event::Ended(why.clone()));
            }
        }
    }
}

/// What a reply brings.
enum Answer {
    Outcome(Outcome),
    /// Bytes that follow, which belong here.
    Bytes(LocalSlice),
}

/// Whether an operation takes a receive of the other side: a message, or a write with an immediate.
fn takes_receive(kind: OperationKind, frame: &Frame) -> bool {
    kind == OperationKind::Send || (kind == OperationKind::Write && frame.has(FLAG_IMMEDIATE))
}

fn refusal_of(frame: &Frame, refusal: Refusal) -> OperationError {
    OperationError::Refused { refusal, offset: frame.offset, len_bytes: frame.length, limit: frame.operand }
}

/// Whether the other side says of a flush what it was asked for, on no weaker evidence than it promised.
fn grants(flushed: Flushed, (level, evidence): (Durability, Evidence)) -> bool {
    flushed.durability == level && (flushed.promise.evidence == Evidence::Probed || evidence == Evidence::Declared)
}

/// The header of an operation, without its sequence; its payload, and where its reply's payload goes.
fn frame_of(operation: Operation<'_>) -> (Frame, Option<Payload<'_>>, Option<LocalSlice>) {
    let frame = |opcode| Frame::new(opcode, 0);
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
