//! Bringing messages and receives together.

use std::{sync::Arc, task::Waker};

use super::{Arrival, PostedReceive, RECEIVE_TICKET};
use crate::{
    ConnectionError, LocalSlice, OperationError, PostError, Refusal,
    endpoint::{
        Completion, Endpoint, OperationKind, Outcome, SharedReceives, State, Ticket,
        input::Sink,
        local::{check_local, tell_failed},
        shared::Share,
    },
    frame::{Frame, Opcode},
    limits::{HEADER_BYTES, RECEIVE_QUEUE_LIMIT},
};

impl<D> Endpoint<D> {
    /// Bounds the receives that are posted and wait for a message: 1 to [`RECEIVE_QUEUE_LIMIT`], which holds at first.
    pub fn limit_receives(&mut self, limit: usize) {
        self.messages.receive_limit = limit.clamp(1, RECEIVE_QUEUE_LIMIT);
    }

    /// Posts a receive: the next message that has none goes into `into`.
    pub fn post_receive(&mut self, into: LocalSlice, context: u64) -> Result<Ticket, PostError> {
        if let State::Ended(why) = &self.state {
            return Err(PostError::NotConnected(why.clone()));
        }
        if self.messages.share.is_some() {
            return Err(PostError::SharedReceives);
        }
        let limit = self.messages.receive_limit;
        if self.messages.receives.len() >= limit {
            return Err(PostError::ReceiveQueueFull { limit });
        }
        check_local(&into)?;
        let receive = self.number_receive(into, context);
        let ticket = receive.ticket;
        self.messages.receives.push_back(receive);
        self.match_inbox();
        Ok(ticket)
    }

    /// As [`post_receive`](Self::post_receive), while nobody knows yet whether the connection will be established: if it has ended, the
    /// receive completes with that end.
    pub fn post_early_receive(&mut self, into: LocalSlice, context: u64) -> Result<Ticket, PostError> {
        let Some(why) = self.ended().cloned() else { return self.post_receive(into, context) };
        check_local(&into)?;
        let receive = self.number_receive(into, context);
        let ended = Err(OperationError::ConnectionEnded(why));
        self.complete_receive(&receive, OperationKind::Receive, ended);
        Ok(receive.ticket)
    }

    fn number_receive(&mut self, into: LocalSlice, context: u64) -> PostedReceive {
        self.messages.posted += 1;
        PostedReceive { ticket: Ticket(RECEIVE_TICKET | self.messages.posted), context, into }
    }

    /// Has messages take their receives from `queue`; to be called before the connection is established.
    ///
    /// `waker` is woken when a receive is there for a message of this endpoint that waited; then
    /// [`match_shared`](Self::match_shared) is due. It is called with this or another endpoint of the queue locked, so it
    /// must not wait for a lock of theirs.
    ///
    /// A receive that a message took and did not fill when the connection ended completes with that end; those that no
    /// message took stay in the queue.
    pub fn share_receives(&mut self, queue: Arc<SharedReceives>, waker: Waker) {
        if self.ended().is_none() {
            self.messages.share = Some(Share::new(queue, waker));
        }
    }

    /// True where receives come from a shared queue.
    pub fn shares_receives(&self) -> bool {
        self.messages.share.is_some()
    }

    /// Brings messages that waited and receives of the shared queue together.
    pub fn match_shared(&mut self) {
        if self.ended().is_none() {
            self.match_inbox();
        }
    }

    /// Where the payload of an arriving message goes: directly into a posted receive, else into a buffer.
    pub(in crate::endpoint) fn begin_message(&mut self, frame: &Frame) -> Result<Sink, (Refusal, u64)> {
        if frame.length > u64::from(self.own.message_max_bytes) {
            return Err((Refusal::TooLong, u64::from(self.own.message_max_bytes)));
        }
        if self.messages.inbox.is_empty() {
            if let Some(receive) = self.messages.take_receive() {
                if receive.into.len_bytes < frame.length {
                    let capacity = receive.into.len_bytes;
                    self.receive_too_small(&receive, frame.length);
                    return Err((Refusal::ReceiveTooSmall, capacity));
                }
                return Ok(Sink::Receive(receive));
            }
        }
        if self.messages.inbox.len() >= self.own.inbox_messages as usize {
            return Err((Refusal::ReceiverNotReady, u64::from(self.own.inbox_messages)));
        }
        Ok(Sink::Buffer(Vec::with_capacity(frame.length as usize)))
    }

    pub(in crate::endpoint) fn message_buffered(&mut self, frame: &Frame, data: Vec<u8>) {
        self.reply_done(frame);
        self.messages.push_arrival(Arrival::Message {
            sequence: frame.sequence,
            data,
            immediate: frame.immediate_data(),
        });
        self.match_inbox();
    }

    pub(in crate::endpoint) fn message_received(&mut self, frame: &Frame, receive: &PostedReceive) {
        self.messages.consumed += 1;
        self.reply_done(frame);
        let outcome = Outcome::Received { len_bytes: frame.length, immediate: frame.immediate_data() };
        self.complete_receive(receive, OperationKind::Receive, Ok(outcome));
        self.tell_credit();
    }

    /// A write with immediate consumes a receive. False: there is no room to remember it.
    pub(in crate::endpoint) fn notice_written(&mut self, frame: &Frame) -> bool {
        if self.messages.receives.is_empty() && self.messages.inbox.len() >= self.own.inbox_messages as usize {
            return false;
        }
        let arrival = Arrival::Written { len_bytes: frame.length, immediate: frame.immediate_data() };
        self.messages.push_arrival(arrival);
        self.match_inbox();
        true
    }

    pub(in crate::endpoint) fn credit_arrived(&mut self, frame: &Frame) {
        // Every notice tells of more than the one before.
        if frame.operand <= self.messages.consumed_there || frame.operand > self.messages.sent {
            return self.refuse_stream("credit for messages that were not sent");
        }
        self.messages.consumed_there = frame.operand;
        self.complete();
    }

    /// Puts a receive back whose message did not arrive whole.
    pub(in crate::endpoint) fn return_receive(&mut self, receive: PostedReceive) {
        self.messages.receives.push_front(receive);
    }

    pub(in crate::endpoint) fn end_receives(&mut self, why: &ConnectionError) {
        for receive in std::mem::take(&mut self.messages.receives) {
            let ended = Err(OperationError::ConnectionEnded(why.clone()));
            self.complete_receive(&receive, OperationKind::Receive, ended);
        }
        self.messages.share = None;
    }

    /// Brings messages that waited and receives together.
    fn match_inbox(&mut self) {
        while !self.messages.inbox.is_empty() {
            let Some(receive) = self.messages.take_receive_for_first() else { break };
            let Some(arrival) = self.messages.inbox.pop_front() else { break };
            if !self.deliver(&receive, &arrival) {
                return;
            }
            self.messages.consumed += 1;
        }
        self.tell_credit();
    }

    /// False: it could not be, and the connection has ended.
    fn deliver(&mut self, receive: &PostedReceive, arrival: &Arrival) -> bool {
        match arrival {
            Arrival::Written { len_bytes, immediate } => {
                let outcome = Outcome::Received { len_bytes: *len_bytes, immediate: *immediate };
                self.complete_receive(receive, OperationKind::ReceiveWriteImmediate, Ok(outcome));
                true
            }
            Arrival::Message { sequence, data, immediate } => {
                let message_bytes = data.len() as u64;
                if message_bytes > receive.into.len_bytes {
                    self.receive_too_small(receive, message_bytes);
                    let message = Frame { length: message_bytes, ..Frame::new(Opcode::Send, *sequence) };
                    self.refuse(&message, Refusal::ReceiveTooSmall, receive.into.len_bytes);
                    return false;
                }
                if let Err(error) = receive.into.memory.store(receive.into.offset, data) {
                    tell_failed(&error);
                    self.local_memory_failed("the memory of a receive");
                    let State::Ended(why) = &self.state else { return false };
                    let ended = Err(OperationError::ConnectionEnded(why.clone()));
                    self.complete_receive(receive, OperationKind::Receive, ended);
                    return false;
                }
                let outcome = Outcome::Received { len_bytes: message_bytes, immediate: *immediate };
                self.complete_receive(receive, OperationKind::Receive, Ok(outcome));
                true
            }
        }
    }

    fn receive_too_small(&mut self, receive: &PostedReceive, message_bytes: u64) {
        let error = OperationError::ReceiveTooSmall { message_bytes, capacity_bytes: receive.into.len_bytes };
        self.complete_receive(receive, OperationKind::Receive, Err(error));
    }

    fn complete_receive(
        &mut self,
        receive: &PostedReceive,
        kind: OperationKind,
        outcome: Result<Outcome, OperationError>,
    ) {
        let PostedReceive { ticket, context, .. } = *receive;
        self.completions.push_back(Completion { ticket, context, kind, outcome });
    }

    /// This side's own memory failed, which is no fault of the other side: the connection closes in order.
    pub(in crate::endpoint) fn local_memory_failed(&mut self, what: &'static str) {
        if self.is_established() {
            self.say_disconnect();
        }
        self.end(ConnectionError::LocalMemoryFailed { what });
    }

    /// Tells the sender which of its messages found a receive; at most one such notice waits for the socket, so that a peer
    /// that reads nothing makes no output grow.
    pub(in crate::endpoint) fn tell_credit(&mut self) {
        let (_, sent) = self.output.totals();
        if sent >= self.messages.told_at && !self.operations.is_borrowing {
            self.tell_all_credit();
        }
    }

    /// The same, whatever waits: before replies, so that one to a message says whether it found a receive at once, and
    /// before this side's last words.
    pub(in crate::endpoint) fn tell_all_credit(&mut self) {
        let consumed = self.messages.consumed;
        if consumed == self.messages.told || !self.is_established() {
            return;
        }
        let (pushed, _) = self.output.totals();
        let credit = Frame { operand: consumed, ..Frame::new(Opcode::Credit, 0) };
        self.output.push_bytes(&credit.encode());
        self.messages.told = consumed;
        self.messages.told_at = pushed + HEADER_BYTES as u64;
    }
}
