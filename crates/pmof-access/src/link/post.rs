//! Posting: which way an operation goes, and its outcome where it goes direct.

use pmof_mem::{Durability, causes};
use pmof_proto::{
    ConnectionError, DirectAccess, Flushed, Operation, OperationError, OperationKind, Outcome, Payload, PostError,
    Refusal, Signal, Ticket,
};

use super::{BORROW_MIN_BYTES, DirectWay, Endpoint, FlushMethods, LinkCore, is_transient};
use crate::{
    Method, RemoteRegion, Traffic,
    request::{Data, Kept, Request, Verb},
    wire::{DirectOutcome, Finished, Posted, Posting, Run, Submission, Wire},
};

#[cfg(test)]
mod tests;

/// Most ranges that one flush has the device flush one by one.
const FLUSH_RANGES_MAX: usize = 8;

/// What carries operations: the fields of a connection on a standing wire with a direct way.
struct Carrier<'l> {
    endpoint: &'l mut Endpoint,
    wire: &'l mut dyn Wire,
    methods: &'l mut FlushMethods,
    traffic: &'l mut Traffic,
}

impl LinkCore {
    /// Posts an operation of checked rights and bounds; it goes out with the next [`flush_output`](Self::flush_output), but to a device at
    /// once where it is the only one. Among the operations of a batch, that call is due before the lock is given back.
    #[expect(clippy::inline_always, reason = "its callers know the kind of request: most of this falls away there")]
    #[inline(always)]
    pub(crate) fn post(
        &mut self,
        request: &Request<'_>,
        signal: Signal,
        context: u64,
        submission: Submission,
    ) -> Result<Ticket, PostError> {
        if self.direct == DirectWay::None {
            return self.post_on_stream(request, signal, context);
        }
        self.end_run();
        let ticket = self.endpoint.next_ticket();
        let is_wanted = signal == Signal::Always || request.kind() != OperationKind::Write;
        let is_signalled = is_wanted || is_signal_due(ticket, self.signalled, self.endpoint.agreed().send_queue);
        let Some(mut carrier) = self.carrier() else { return Err(self.not_connected()) };
        carrier.post(request, &Posting { ticket, is_signalled, submission }, signal, context)?;
        if is_signalled {
            self.signalled = ticket;
        }
        Ok(ticket)
    }

    /// Has one more write of a batch join the run, or begin one, where it may.
    ///
    /// Rights and bounds were checked; so many bytes are the data's.
    pub(crate) fn join_run(
        &mut self,
        to: &RemoteRegion,
        (offset, len_bytes): (u64, u64),
        data: &Data<'_>,
        (context, submission): (u64, Submission),
    ) -> Option<Ticket> {
        if !self.extend_run(to, (offset, len_bytes), context) {
            let is_reached = to.direct() != DirectAccess::None && len_bytes <= self.endpoint.agreed().payload_max_bytes;
            if !is_reached || !(self.run.takes(context) || self.begin_run(context, submission)) {
                return None;
            }
            self.note_dirty(to, offset, len_bytes);
        }
        self.append(to, (offset, len_bytes), data)
    }

    /// Whether a write joins the run where the last one ended; then it is noted, and [appended](Self::append) next.
    ///
    /// Where the transport does not take it after all it is posted by itself, and is noted once more; where that fails too, a flush names a
    /// range too many, which loses nothing.
    #[inline]
    pub(crate) fn extend_run(&mut self, to: &RemoteRegion, (offset, len_bytes): (u64, u64), context: u64) -> bool {
        self.run.takes(context)
            && len_bytes <= self.endpoint.agreed().payload_max_bytes
            && to.direct() != DirectAccess::None
            && self.endpoint.extend_dirty(to.key(), offset, len_bytes)
    }

    /// Hands over a write that joins the run.
    #[inline]
    pub(crate) fn append(&mut self, to: &RemoteRegion, range: (u64, u64), data: &Data<'_>) -> Option<Ticket> {
        let ticket = self.wire.as_mut()?.append(&mut self.run, to, range, data)?;
        self.traffic.direct_written_bytes += range.1;
        Some(ticket)
    }

    #[inline(never)]
    fn note_dirty(&mut self, to: &RemoteRegion, offset: u64, len_bytes: u64) {
        if let Some(mut carrier) = self.carrier() {
            carrier.note_changed(to, offset, len_bytes);
        }
    }

    /// Whether writes may join a run from here on: the connection is established, nothing that was posted before waits, and the device has places,
    /// before it is to tell of a write.
    #[inline(never)]
    fn begin_run(&mut self, context: u64, submission: Submission) -> bool {
        if self.direct != DirectWay::Device || submission != Submission::Batch {
            return false;
        }
        self.end_run();
        let Some(wire) = &mut self.wire else { return false };
        if self.endpoint.may_post_direct(0).is_err() || !self.endpoint.may_go_direct(OperationKind::Write) {
            return false;
        }
        let next = self.endpoint.next_ticket().0;
        let send_queue = self.endpoint.agreed().send_queue;
        let places = send_queue.saturating_sub(self.endpoint.outstanding() as u32);
        let until_signal = (send_queue / 4).saturating_sub((next - self.signalled.0) as u32);
        let left = wire.window().min(places).min(until_signal);
        self.run = Run::new(left, next, context);
        left > 0
    }

    /// Counts what joined the run. Anything else comes after that.
    #[inline]
    pub(crate) fn end_run(&mut self) {
        if let Some((next, context)) = self.run.end() {
            self.endpoint.went_direct_in_a_row(next.0 - self.endpoint.next_ticket().0, context);
        }
    }

    /// Posts on a wire without a direct way.
    #[inline(never)]
    fn post_on_stream(&mut self, request: &Request<'_>, signal: Signal, context: u64) -> Result<Ticket, PostError> {
        if let (Verb::Write { immediate: None }, Data::Bytes(bytes), Some((to, offset))) =
            (request.verb, request.data, request.place)
        {
            if bytes.len() >= BORROW_MIN_BYTES && self.endpoint.may_borrow() {
                let payload = Payload::Borrowed(bytes);
                let operation = Operation::Write { key: to.key(), offset, payload, immediate: None };
                let ticket = self.endpoint.post(operation, signal, context)?;
                self.send_borrowed(bytes);
                return Ok(ticket);
            }
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
        let (endpoint, methods, traffic) = (&mut self.endpoint, &mut self.methods, &mut self.traffic);
        Some(Carrier { endpoint, wire: wire.as_mut(), methods, traffic })
    }
}

impl Carrier<'_> {
    /// Posts an operation.
    #[expect(clippy::inline_always, reason = "as its caller")]
    #[inline(always)]
    fn post(
        &mut self,
        request: &Request<'_>,
        posting: &Posting,
        signal: Signal,
        context: u64,
    ) -> Result<(), PostError> {
        match request.verb {
            Verb::Send { .. } | Verb::Write { immediate: Some(_) } => self.post_message(request, signal, context),
            _ if request.is_by_message => self.post_by_message(request, signal, context),
            Verb::Flush { level } => self.post_flush(request, level, posting, signal, context),
            _ => self.post_direct(request, posting, signal, context),
        }
    }

    /// Posts an operation that its caller wants the target's CPU to carry out.
    #[inline(never)]
    fn post_by_message(&mut self, request: &Request<'_>, signal: Signal, context: u64) -> Result<(), PostError> {
        if let (Verb::Flush { level }, Some((region, _))) = (request.verb, request.place) {
            self.methods.check_by_message(self.wire, region, level)?;
        }
        self.post_message(request, signal, context)
    }

    #[expect(clippy::inline_always, reason = "as its caller")]
    #[inline(always)]
    fn post_direct(
        &mut self,
        request: &Request<'_>,
        posting: &Posting,
        signal: Signal,
        context: u64,
    ) -> Result<(), PostError> {
        let (kind, len_bytes) = (request.kind(), request.len_bytes);
        // An append was checked when it was posted.
        self.endpoint.may_post_direct(if kind == OperationKind::Append { 0 } else { len_bytes })?;
        if !self.endpoint.may_go_direct(kind) {
            return self.keep_or_send(request, signal, context);
        }
        let success = Outcome::Done { len_bytes };
        match self.wire.post(posting, request)? {
            Posted::Taken => {
                self.endpoint.went_direct(kind, success, signal, context);
            }
            Posted::Finished(outcome) => self.finished_at_once(posting, outcome, (kind, success), signal, context),
            other => return self.not_taken(&other, request, signal, context),
        }
        self.count_direct(request);
        self.note_dirty(request);
        Ok(())
    }

    /// Posts a flush. What it is to make durable is named range by range: its cost grows with its range, not with what was written there.
    #[inline]
    fn post_flush(
        &mut self,
        request: &Request<'_>,
        level: Durability,
        posting: &Posting,
        signal: Signal,
        context: u64,
    ) -> Result<(), PostError> {
        let Some((region, offset)) = request.place else { return Err(PostError::NoRing) };
        // It moves nothing.
        self.endpoint.may_post_direct(0)?;
        let (method, promise) = self.methods.find(self.wire, region, level)?;
        if method == Method::SendAfterWrite {
            return self.post_message(request, signal, context);
        }
        let success = Outcome::Flushed(Flushed { durability: level, method, promise });
        if !self.wire.has_room(0) {
            return Err(self.queue_full());
        }
        if !self.endpoint.may_go_direct(OperationKind::Flush) {
            self.keep(request, Some(method), success, signal, context);
            return Ok(());
        }
        match self.flush(posting, (region, offset, request.len_bytes), level, method)? {
            Posted::Finished(outcome) => {
                self.finished_at_once(posting, outcome, (OperationKind::Flush, success), signal, context);
            }
            _ => {
                self.endpoint.went_direct(OperationKind::Flush, success, signal, context);
            }
        }
        Ok(())
    }

    /// Posts an operation that has to wait for those before it, where it goes direct.
    #[inline(never)]
    fn keep_or_send(&mut self, request: &Request<'_>, signal: Signal, context: u64) -> Result<(), PostError> {
        let is_direct = match request.place {
            Some((region, offset)) => self.wire.reaches(region, request.kind(), offset),
            None => true,
        };
        if !is_direct {
            return self.post_message(request, signal, context);
        }
        if !self.wire.has_room(request.data_bytes()) {
            return Err(self.queue_full());
        }
        self.keep(request, None, Outcome::Done { len_bytes: request.len_bytes }, signal, context);
        Ok(())
    }

    fn keep(&mut self, request: &Request<'_>, method: Option<Method>, success: Outcome, signal: Signal, context: u64) {
        let kept = Kept::new(request, method);
        let copied_bytes = kept.copied_bytes();
        self.endpoint.keep_direct(kept, copied_bytes, (request.kind(), success), signal, context);
    }

    #[inline(never)]
    fn not_taken(
        &mut self,
        posted: &Posted,
        request: &Request<'_>,
        signal: Signal,
        context: u64,
    ) -> Result<(), PostError> {
        match posted {
            Posted::ByMessage => self.post_message(request, signal, context),
            Posted::NoSlot => {
                self.keep(request, None, Outcome::Done { len_bytes: request.len_bytes }, signal, context);
                Ok(())
            }
            _ => Err(self.queue_full()),
        }
    }

    #[inline]
    fn finished_at_once(
        &mut self,
        posting: &Posting,
        outcome: DirectOutcome,
        (kind, success): (OperationKind, Outcome),
        signal: Signal,
        context: u64,
    ) {
        match outcome {
            DirectOutcome::Done => {
                self.endpoint.done_direct(kind, success, signal, context);
            }
            DirectOutcome::Previous(number) => {
                self.endpoint.done_direct(kind, Outcome::Previous(number), signal, context);
            }
            failed @ DirectOutcome::Failed(_) => {
                self.endpoint.went_direct(kind, success, signal, context);
                self.endpoint.finished(posting.ticket, failed);
            }
        }
    }

    fn queue_full(&self) -> PostError {
        PostError::QueueFull { limit: self.endpoint.agreed().send_queue }
    }

    #[inline(never)]
    fn post_message(&mut self, request: &Request<'_>, signal: Signal, context: u64) -> Result<(), PostError> {
        // The target's CPU begins the write-back of what it stores and completes it when it flushes itself. Where this side may
        // flush instead, it writes that back too: caches of one host are coherent. What was to go by message is flushed by message.
        let writes = !matches!(request.verb, Verb::Read | Verb::Flush { .. }) && !request.is_by_message;
        let is_mapped = request.place.is_some_and(|(region, _)| region.direct() == DirectAccess::Mapped);
        self.endpoint.post_message(request.as_operation()?, signal, context, writes && is_mapped)?;
        self.pump();
        Ok(())
    }

    #[inline]
    fn count_direct(&mut self, request: &Request<'_>) {
        let is_read = matches!(request.verb, Verb::Read);
        let traffic = &mut *self.traffic;
        let bytes = if is_read { &mut traffic.direct_read_bytes } else { &mut traffic.direct_written_bytes };
        *bytes += request.len_bytes;
    }

    /// Notes what a direct operation changes, where flushes name that.
    #[inline]
    fn note_dirty(&mut self, request: &Request<'_>) {
        let (Some((region, offset)), false) = (request.place, matches!(request.verb, Verb::Read)) else { return };
        self.note_changed(region, offset, request.len_bytes);
    }

    #[inline]
    fn note_changed(&mut self, region: &RemoteRegion, offset: u64, len_bytes: u64) {
        let key = region.key();
        if !self.endpoint.extend_dirty(key, offset, len_bytes) && self.methods.names_ranges(self.wire, region) {
            self.endpoint.note_dirty(key, offset, len_bytes);
        }
    }

    /// Has the transport flush.
    #[inline]
    fn flush(
        &mut self,
        posting: &Posting,
        (region, offset, len_bytes): (&RemoteRegion, u64, u64),
        level: Durability,
        method: Method,
    ) -> Result<Posted, PostError> {
        let by_range = matches!(method, Method::NativeFlush | Method::LocalWriteBack);
        if !by_range || level != Durability::PowerFailure {
            let range = [unnamed(region, offset, len_bytes, level)];
            let ranges = if method == Method::LocalWriteBack { &[][..] } else { &range };
            return self.wire.flush(posting, region, ranges, level, method);
        }
        let named = self.endpoint.take_dirty(region.key(), (offset, len_bytes), FLUSH_RANGES_MAX);
        let posted = if named.is_empty() && method == Method::NativeFlush {
            self.wire.flush(posting, region, &[unnamed(region, offset, len_bytes, level)], level, method)
        } else {
            self.wire.flush(posting, region, named, level, method)
        };
        // No later flush would name what was taken for this one.
        posted.inspect_err(|error| self.endpoint.fail(ended_by(error.clone())))
    }

    /// Hands a direct operation that waited to the transport.
    fn hand_over(&mut self, posting: &Posting, kept: &Kept) -> Result<Posted, PostError> {
        let request = kept.request();
        if let (Verb::Flush { level }, Some((region, offset)), Some(method)) =
            (request.verb, request.place, kept.method)
        {
            return self.flush(posting, (region, offset, request.len_bytes), level, method);
        }
        let posted = self.wire.post(posting, &request)?;
        if matches!(posted, Posted::Taken | Posted::Finished(_)) {
            self.count_direct(&request);
            self.note_dirty(&request);
        }
        Ok(posted)
    }

    fn advance(&mut self) -> bool {
        let mut moved = self.pump();
        while let Some(kept) = self.endpoint.due_direct() {
            let (kind, data_bytes) = (kept.request().kind(), kept.request().data_bytes());
            if !self.wire.has_room(data_bytes) || !self.has_slot(kind) {
                break;
            }
            let Some((ticket, kept)) = self.endpoint.take_due() else { break };
            moved = true;
            match self.hand_over(&Posting { ticket, is_signalled: true, submission: Submission::Later }, &kept) {
                Ok(Posted::Taken) => self.endpoint.due_went(),
                Ok(Posted::Finished(outcome)) => self.endpoint.finished(ticket, outcome),
                // Its way was chosen when it was posted.
                Ok(_) => self.endpoint.finished(ticket, gone(&kept.request())),
                Err(error) => self.endpoint.fail(ended_by(error)),
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
        // The last words are still on their way, and whatever was posted before them.
        if !self.wire.is_idle() && ends_in_order(why) {
            return false;
        }
        if !self.wire.is_idle() || self.wire.is_broken() {
            self.wire.stop();
        }
        self.endpoint.direct_stopped();
        true
    }

    /// Whether an operation of this kind has the room that it needs at the other side beside that of the send queue.
    fn has_slot(&self, kind: OperationKind) -> bool {
        kind != OperationKind::Append || self.wire.has_slot()
    }

    /// Hands the messages that wait to a device, so that what is posted next comes after them. True if any went.
    fn pump(&mut self) -> bool {
        // Direct operations of a local wire are no messages: they wait until these have gone with the batch.
        if self.wire.direct_way() == DirectWay::Local {
            return false;
        }
        let mut moved = false;
        while let Some(view) = self.endpoint.output_view() {
            match self.wire.send(&view, &[]) {
                Ok(0) => break,
                Ok(count) => {
                    moved = true;
                    self.traffic.sent_bytes += count as u64;
                    self.endpoint.output_sent(count);
                }
                Err(error) if is_transient(&error) => break,
                Err(error) => {
                    self.endpoint.wire_lost(causes(&error).to_string());
                    return true;
                }
            }
        }
        moved
    }
}

/// The region was taken away since an operation on it was posted.
fn gone(request: &Request<'_>) -> DirectOutcome {
    let (offset, len_bytes) = (request.place.map_or(0, |(_, offset)| offset), request.len_bytes);
    DirectOutcome::Failed(OperationError::Refused { refusal: Refusal::UnknownRegion, offset, len_bytes, limit: 0 })
}

/// Whether a device is to tell of this operation although nobody else wants to know, where it was asked to of `last`: places in the send
/// queue are to be known free again before it is full.
#[inline]
fn is_signal_due(ticket: Ticket, last: Ticket, send_queue: u32) -> bool {
    ticket.0 - last.0 >= u64::from(send_queue / 4)
}

/// Why a connection ends on which nothing can be posted any more. Of one that has ended, its own reason stays.
fn ended_by(error: PostError) -> ConnectionError {
    match error {
        PostError::NotConnected(why) => why,
        error => ConnectionError::Lost { why: causes(&error).to_string() },
    }
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
            DirectOutcome::Previous(number) => self.direct_returned(ticket, Outcome::Previous(number)),
            DirectOutcome::Failed(error) => {
                // What was under way when the connection ended has ended with it, for that reason.
                let error = match (self.ended(), error) {
                    (Some(why), OperationError::ConnectionEnded(_)) => OperationError::ConnectionEnded(why.clone()),
                    (_, error) => error,
                };
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
