//! Posting: which way an operation goes, and its outcome where it goes direct.

use pmof_mem::Durability;
use pmof_proto::{
    ConnectionError, DirectAccess, Flushed, Operation, OperationError, OperationKind, Outcome, Payload, PostError,
    Signal, Ticket,
};

use super::{BORROW_MIN_BYTES, DirectWay, Endpoint, LinkCore, is_transient};
use crate::{
    Method, RemoteRegion,
    direct::{DirectOutcome, Finished, Posting},
    method::FlushMethods,
    request::{Data, Kept, Request},
    wire::Wire,
};

#[cfg(test)]
mod tests;

/// Most ranges that one flush has the device flush one by one.
const FLUSH_RANGES_MAX: usize = 8;

/// The way that an operation takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Past the target's CPU, a flush by this method; and what its success will be.
    Direct(Option<Method>, Outcome),
    Message,
}

/// What carries operations: the fields of a connection on a standing wire with a direct way.
struct Carrier<'l> {
    endpoint: &'l mut Endpoint,
    wire: &'l mut dyn Wire,
    methods: &'l mut FlushMethods,
}

impl LinkCore {
    /// Posts an operation of checked rights and bounds; it goes out with the next [`flush_output`](Self::flush_output), but to a device at
    /// once where it `is_alone`: nothing is posted with it.
    #[inline]
    pub(crate) fn post(
        &mut self,
        request: &Request<'_>,
        signal: Signal,
        context: u64,
        is_alone: bool,
    ) -> Result<Ticket, PostError> {
        if self.direct == DirectWay::None {
            return self.post_on_stream(request, signal, context);
        }
        let ticket = self.endpoint.next_ticket();
        let is_wanted = signal == Signal::Always || request.kind() != OperationKind::Write;
        let is_signalled = is_wanted || is_signal_due(ticket, self.signalled, self.endpoint.agreed().send_queue);
        let Some(mut carrier) = self.carrier() else { return Err(self.not_connected()) };
        carrier.post(request, Posting { ticket, is_signalled, is_alone }, signal, context)?;
        if is_signalled {
            self.signalled = ticket;
        }
        Ok(ticket)
    }

    /// Posts on a wire without a direct way.
    fn post_on_stream(&mut self, request: &Request<'_>, signal: Signal, context: u64) -> Result<Ticket, PostError> {
        if let Request::Write { to, offset, data: Data::Borrowed(bytes), immediate: None } = request
            && bytes.len() >= BORROW_MIN_BYTES
            && self.endpoint.may_borrow()
        {
            let payload = Payload::Borrowed(bytes);
            let operation = Operation::Write { key: to.key(), offset: *offset, payload, immediate: None };
            let ticket = self.endpoint.post(operation, signal, context)?;
            self.send_borrowed(bytes);
            return Ok(ticket);
        }
        self.endpoint.post(request.as_operation()?, signal, context)
    }

    /// Lets go the direct operations that waited and may go now, and ends what is left where the connection has ended. True if anything
    /// moved.
    pub(super) fn advance(&mut self) -> bool {
        match self.carrier() {
            Some(mut carrier) => carrier.advance(),
            None => false,
        }
    }

    /// Closes in order, after what was posted.
    pub(crate) fn disconnect(&mut self) {
        self.endpoint.disconnect();
        if let Some(mut carrier) = self.carrier() {
            carrier.close_if_stuck();
        }
    }

    #[inline]
    fn carrier(&mut self) -> Option<Carrier<'_>> {
        let wire = self.wire.as_mut().filter(|_| self.direct != DirectWay::None)?;
        Some(Carrier { endpoint: &mut self.endpoint, wire: wire.as_mut(), methods: &mut self.methods })
    }
}

impl Carrier<'_> {
    #[inline]
    fn post(&mut self, request: &Request<'_>, posting: Posting, signal: Signal, context: u64) -> Result<(), PostError> {
        match self.way(request)? {
            Way::Direct(method, success) => {
                self.post_direct((request, method), posting, (request.kind(), success), signal, context)
            }
            Way::Message => self.post_message(request, signal, context),
        }
    }

    #[inline]
    fn way(&mut self, request: &Request<'_>) -> Result<Way, PostError> {
        let is_direct = match request {
            Request::Flush { region, level, .. } => {
                self.endpoint.may_post_direct(0)?;
                return match self.methods.find(self.wire, region, *level)? {
                    (Method::SendAfterWrite, _) => Ok(Way::Message),
                    (method, promise) => {
                        Ok(Way::Direct(Some(method), Outcome::Flushed(Flushed { durability: *level, promise })))
                    }
                };
            }
            Request::Append { .. } => true,
            Request::Send { .. } | Request::Write { immediate: Some(_), .. } => false,
            _ => match (request.range(), self.wire.direct()) {
                (Some((region, offset)), Some(direct)) => direct.reaches(region, request.kind(), offset),
                _ => false,
            },
        };
        let success = Outcome::Done { len_bytes: request.len_bytes() };
        Ok(if is_direct { Way::Direct(None, success) } else { Way::Message })
    }

    #[inline]
    fn post_direct(
        &mut self,
        (request, method): (&Request<'_>, Option<Method>),
        posting: Posting,
        (kind, success): (OperationKind, Outcome),
        signal: Signal,
        context: u64,
    ) -> Result<(), PostError> {
        // An append was checked when it was posted, and a flush moves nothing.
        let moves = !matches!(kind, OperationKind::Append | OperationKind::Flush);
        self.endpoint.may_post_direct(if moves { request.len_bytes() } else { 0 })?;
        if !self.has_room(request) {
            return Err(PostError::QueueFull { limit: self.endpoint.agreed().send_queue });
        }
        if self.endpoint.may_go_direct(kind) && self.has_slot(kind) {
            match self.hand_over((request, method), posting)? {
                None => {
                    self.endpoint.went_direct(kind, success, signal, context);
                }
                Some(DirectOutcome::Done) => {
                    self.endpoint.done_direct(kind, success, signal, context);
                }
                Some(DirectOutcome::Previous(number)) => {
                    self.endpoint.done_direct(kind, Outcome::Previous(number), signal, context);
                }
                Some(failed @ DirectOutcome::Failed(_)) => {
                    self.endpoint.went_direct(kind, success, signal, context);
                    self.endpoint.finished(posting.ticket, failed);
                }
            }
        } else {
            let request = request.to_kept();
            let kept_bytes = request.kept_bytes() as usize;
            self.endpoint.keep_direct(Kept { request, method }, kept_bytes, (kind, success), signal, context);
        }
        Ok(())
    }

    fn post_message(&mut self, request: &Request<'_>, signal: Signal, context: u64) -> Result<(), PostError> {
        // The target's CPU begins the write-back of what it stores and completes it when it flushes itself. Where this side may
        // flush instead, it writes that back too: caches of one host are coherent.
        let writes = !matches!(request, Request::Read { .. } | Request::Flush { .. });
        let is_mapped = request.range().is_some_and(|(region, _)| region.direct() == DirectAccess::Mapped);
        self.endpoint.post_message(request.as_operation()?, signal, context, writes && is_mapped)?;
        self.pump();
        Ok(())
    }

    /// Hands a direct operation to the transport.
    #[inline]
    fn hand_over(
        &mut self,
        (request, method): (&Request<'_>, Option<Method>),
        posting: Posting,
    ) -> Result<Option<DirectOutcome>, PostError> {
        if let (Request::Flush { region, offset, len_bytes, level }, Some(method)) = (request, method) {
            return self.flush(posting, (region, *offset, *len_bytes), *level, method);
        }
        let Some(direct) = self.wire.direct() else { return Err(PostError::NoRing) };
        let outcome = direct.post(posting, request)?;
        if let (Some((region, offset)), false) = (request.range(), matches!(request, Request::Read { .. }))
            && self.methods.names_ranges(self.wire, region)
        {
            self.endpoint.note_dirty(region.key(), offset, request.len_bytes());
        }
        Ok(outcome)
    }

    /// Has the transport flush. What it is to make durable is named range by range: the cost of a flush grows with its range, not with
    /// what was written there.
    fn flush(
        &mut self,
        posting: Posting,
        (region, offset, len_bytes): (&RemoteRegion, u64, u64),
        level: Durability,
        method: Method,
    ) -> Result<Option<DirectOutcome>, PostError> {
        let Some(direct) = self.wire.direct() else { return Err(PostError::NoRing) };
        let by_range = matches!(method, Method::NativeFlush | Method::LocalWriteBack);
        if !by_range || level != Durability::PowerFailure {
            let range = [unnamed(region, offset, len_bytes, level)];
            let ranges = if method == Method::LocalWriteBack { &[][..] } else { &range };
            return direct.flush(posting, region, ranges, level, method);
        }
        let named = self.endpoint.take_dirty(region.key(), (offset, len_bytes), FLUSH_RANGES_MAX);
        let posted = if named.is_empty() && method == Method::NativeFlush {
            direct.flush(posting, region, &[unnamed(region, offset, len_bytes, level)], level, method)
        } else {
            direct.flush(posting, region, named, level, method)
        };
        // No later flush would name what was taken for this one.
        posted.inspect_err(|error| self.endpoint.fail(ConnectionError::Lost { why: error.to_string() }))
    }

    fn advance(&mut self) -> bool {
        let mut moved = self.pump();
        while let Some(kept) = self.endpoint.due_direct() {
            let (kind, data_bytes) = (kept.request.kind(), kept.request.data_bytes());
            let has_room = self.wire.direct().is_some_and(|direct| direct.has_room(data_bytes));
            if !has_room || !self.has_slot(kind) {
                break;
            }
            let Some((ticket, Kept { request, method })) = self.endpoint.take_due() else { break };
            moved = true;
            match self.hand_over((&request, method), Posting { ticket, is_signalled: true, is_alone: false }) {
                Ok(None) => self.endpoint.due_went(),
                Ok(Some(outcome)) => self.endpoint.finished(ticket, outcome),
                Err(error) => self.endpoint.fail(ConnectionError::Lost { why: error.to_string() }),
            }
            moved |= self.pump();
        }
        self.close_if_stuck();
        moved | self.end()
    }

    /// An append that waits for a slot may do so for ever.
    fn close_if_stuck(&mut self) {
        let waiting = self.endpoint.waiting_direct().map(|(_, kind)| kind);
        if self.endpoint.is_closing() && waiting.is_some_and(|kind| !self.has_slot(kind)) {
            self.endpoint.close_now();
        }
    }

    /// The connection has ended: all that is left gets an outcome, as soon as nothing reaches this side's memory.
    fn end(&mut self) -> bool {
        let Some(why) = self.endpoint.ended().filter(|_| self.endpoint.awaits_stop()) else { return false };
        if let Some(direct) = self.wire.direct() {
            // The last words are still on their way, and whatever was posted before them.
            if !direct.is_idle() && ends_in_order(why) {
                return false;
            }
            if !direct.is_idle() || direct.is_broken() {
                direct.stop();
            }
        }
        self.endpoint.direct_stopped();
        true
    }

    /// Whether the device can take an operation: bytes that are not registered are copied to where it finds them.
    #[inline]
    fn has_room(&mut self, request: &Request<'_>) -> bool {
        self.wire.direct().is_some_and(|direct| direct.has_room(request.data_bytes()))
    }

    /// Whether an operation of this kind has the room that it needs at the other side beside that of the send queue.
    #[inline]
    fn has_slot(&mut self, kind: OperationKind) -> bool {
        kind != OperationKind::Append || self.wire.direct().is_some_and(|direct| direct.has_slot())
    }

    /// Hands the messages that wait to a device, so that what is posted next comes after them. True if any went.
    fn pump(&mut self) -> bool {
        // Direct operations of a local wire are no messages: they wait until these have gone with the batch.
        if self.wire.is_local() {
            return false;
        }
        let mut moved = false;
        while let Some(view) = self.endpoint.output_view() {
            match self.wire.send(&view, &[]) {
                Ok(0) => break,
                Ok(count) => {
                    moved = true;
                    self.endpoint.output_sent(count);
                }
                Err(error) if is_transient(&error) => break,
                Err(error) => {
                    self.endpoint.wire_lost(error.to_string());
                    return true;
                }
            }
        }
        moved
    }
}

/// Whether a device is to tell of this operation although nobody else wants to know, where it was asked to of `last`: places in the send
/// queue are to be known free again before it is full.
#[inline]
fn is_signal_due(ticket: Ticket, last: Ticket, send_queue: u32) -> bool {
    ticket.0 - last.0 >= u64::from(send_queue / 4)
}

/// The range that a device flushes where there is nothing to be made durable, or the level asks for the range itself. A device
/// takes no empty one.
#[inline]
fn unnamed(region: &RemoteRegion, offset: u64, len_bytes: u64, level: Durability) -> (u64, u64) {
    let offset = offset.min(region.len_bytes().saturating_sub(1));
    (offset, if level == Durability::PowerFailure { 1 } else { len_bytes.max(1) })
}

/// Whether the two sides still speak when a connection ends for this reason.
pub(super) fn ends_in_order(why: &ConnectionError) -> bool {
    !matches!(why, ConnectionError::Lost { .. } | ConnectionError::TimedOut { .. })
}

impl Finished for Endpoint {
    #[inline]
    fn finished(&mut self, ticket: Ticket, outcome: DirectOutcome) {
        match outcome {
            DirectOutcome::Done => self.direct_done(ticket),
            DirectOutcome::Previous(number) => self.direct_brought(ticket, Outcome::Previous(number)),
            DirectOutcome::Failed(error) => {
                let why = match &error {
                    OperationError::Refused { refusal, .. } => {
                        ConnectionError::Refused { refusal: *refusal, private_data: Vec::new() }
                    }
                    OperationError::ConnectionEnded(why) => why.clone(),
                    other => ConnectionError::Lost { why: other.to_string() },
                };
                self.direct_failed(ticket, error);
                self.fail(why);
            }
        }
    }
}
