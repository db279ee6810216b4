//! Keeps the operations of one connection in order where some go straight to the other side's memory and others as
//! messages to its CPU: outcomes come in the order posted, and no operation overtakes one that it must not.

use std::{collections::VecDeque, mem};

use pmof_mem::{Durability, Promise};
use pmof_proto::{
    Completion, ConnectionError, DirectAccess, Endpoint, Flushed, Operation, OperationError, OperationKind, Outcome,
    PostError, RegionKey, Signal, Ticket,
};

use crate::{
    Method, RemoteRegion, direct::DirectOutcome, link::is_transient, method::choose_method, request::Request,
    unwritten::Unwritten, wire::Wire,
};

mod straight;

/// Most ranges that one flush names to the target's CPU: beyond it neighbours are joined.
const WRITE_BACK_RANGES_MAX: usize = 64;

/// Most ranges that one flush has the device flush one by one.
const FLUSH_RANGES_MAX: usize = 8;

/// Payload bytes that deferred operations may hold, as many as may wait for output; a single one may be longer.
const DEFERRED_LIMIT_BYTES: u64 = 64 << 20;

/// Tickets of receives have this bit; they are given by the endpoint and come back as they are.
const RECEIVE_TICKET: u64 = 1 << 63;

/// Which way an operation without an outcome went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// None yet: it must not overtake what is before it.
    Deferred,
    Direct,
    Stream,
    Done,
    /// How is among the lane's failures.
    Failed,
}

/// An operation without an outcome; or some in a row, of which none is heard unless it fails: then their way is
/// [`Way::Direct`].
#[derive(Clone, Copy, Debug)]
struct Pending {
    /// The first one's number.
    first: u64,
    count: u64,
    context: u64,
    kind: OperationKind,
    is_signalled: bool,
    way: Way,
    /// What success will be.
    outcome: Outcome,
}

/// One operation on its way as messages.
#[derive(Debug)]
struct Streamed {
    /// The endpoint's ticket.
    inner: Ticket,
    /// The caller's.
    outer: u64,
    kind: OperationKind,
}

#[derive(Debug, Default)]
pub(crate) struct Lane {
    /// Number of the last operation posted; the last of `pending` has it.
    last: u64,
    /// The last one that the device was asked to tell the completion of, or an earlier one.
    asked: u64,
    pending: VecDeque<Pending>,
    /// The last ones of `pending`, where they wait for those before them.
    deferred: VecDeque<(Route, Request<'static>)>,
    /// Bytes of their payloads that were copied.
    deferred_bytes: u64,
    streamed: VecDeque<Streamed>,
    /// Every direct operation up to this one took effect.
    direct_done: u64,
    /// What was written past the target's CPU and would have to be written back by it.
    unwritten: Unwritten,
    /// Whether flushes of the region written last name what was written there.
    names_ranges: Option<(RegionKey, bool)>,
    /// How the region flushed last by the short way is flushed to the level asked for then.
    flush_method: Option<(RegionKey, Durability, (Method, Promise))>,
    completions: VecDeque<Completion>,
    /// Of pending operations.
    failures: Vec<(u64, OperationError)>,
    /// The connection closes as soon as nothing is deferred any more.
    is_closing: bool,
    /// All that was pending when the connection ended has its outcome.
    is_ended: bool,
}

/// What a lane works with: the other fields of its connection.
pub(crate) struct Through<'l> {
    pub(crate) endpoint: &'l mut Endpoint,
    pub(crate) wire: &'l mut dyn Wire,
    pub(crate) forced: Option<Method>,
}

/// The way that an operation takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Route {
    /// Straight to the memory; a flush by this method.
    Direct(Option<Method>),
    /// As a message.
    Message,
    /// As messages that name what was written and ask for a flush.
    FlushByMessage,
}

impl Lane {
    pub(crate) fn outstanding(&self) -> usize {
        self.pending.front().map_or(0, |front| self.last + 1 - front.first) as usize
    }

    /// True while the send queue has a free place.
    pub(crate) fn has_room(&self, endpoint: &Endpoint, wire: &mut dyn Wire, len_bytes: u64) -> bool {
        let has_place = self.outstanding() < endpoint.agreed().send_queue as usize;
        let has_place = has_place && endpoint.has_room() && self.deferred_bytes <= DEFERRED_LIMIT_BYTES;
        endpoint.ended().is_some() || (has_place && wire.direct().is_none_or(|direct| direct.has_room(len_bytes)))
    }

    pub(crate) fn post(
        &mut self,
        through: &mut Through<'_>,
        request: &Request<'_>,
        signal: Signal,
        context: u64,
    ) -> Result<Ticket, PostError> {
        let is_clear = self.is_clear(through.endpoint);
        self.check(through, request, is_clear)?;
        let (route, promise) = route(through, request)?;
        let outcome = match (request, promise) {
            (Request::Flush { level, .. }, Some(promise)) => Outcome::Flushed(Flushed { durability: *level, promise }),
            _ => Outcome::Done { len_bytes: request.len_bytes() },
        };
        let kind = request.kind();
        let ticket = self.last + 1;
        let may_go = match route {
            Route::Direct(_) if is_clear => has_slot(through, kind),
            _ => self.deferred.is_empty() && self.may_go(through, route, kind),
        };
        let way = if may_go {
            self.carry_out(through, ticket, route, request)?
        } else if self.is_closing {
            return Err(PostError::NotConnected(ConnectionError::ClosedHere));
        } else {
            let kept = request.to_kept();
            self.deferred_bytes += kept.kept_bytes();
            self.deferred.push_back((route, kept));
            Way::Deferred
        };
        let is_signalled = signal == Signal::Always;
        self.pending.push_back(Pending { first: ticket, count: 1, context, kind, is_signalled, way, outcome });
        self.last = ticket;
        Ok(Ticket(ticket))
    }

    /// Takes in what finished and lets go what waited for it. True if anything moved.
    pub(crate) fn advance(&mut self, through: &mut Through<'_>) -> bool {
        let mut moved = self.take_direct(through);
        while let Some(completion) = through.endpoint.poll_completion() {
            moved = true;
            self.take_streamed(completion);
        }
        if through.endpoint.ended().is_some() {
            return moved | self.end(through);
        }
        if self.release(through) {
            moved = true;
            // A local wire has carried out already what was let go, and nothing else tells of it.
            self.take_direct(through);
            if through.endpoint.ended().is_some() {
                return moved | self.end(through);
            }
        }
        self.complete();
        moved
    }

    /// Has the connection close when what is deferred has gone. False if there is nothing to wait for: a message for
    /// which the other side has no room, or no receive, may wait for ever, and what was posted after it with it.
    pub(crate) fn close_after_deferred(&mut self, through: &mut Through<'_>) -> bool {
        let has_ended = self.is_ended || through.endpoint.ended().is_some();
        self.is_closing = !has_ended && !self.deferred.is_empty() && !self.is_stalled(through);
        self.is_closing
    }

    /// True from then until the connection has ended.
    pub(crate) fn is_closing(&self) -> bool {
        self.is_closing
    }

    #[inline]
    pub(crate) fn next_completion(&mut self) -> Option<Completion> {
        self.completions.pop_front()
    }

    /// True if outcomes wait to be taken.
    #[inline]
    pub(crate) fn has_completions(&self) -> bool {
        !self.completions.is_empty()
    }

    /// True if only a device can bring news: nothing waits for anything else.
    pub(crate) fn is_calm(&self, endpoint: &Endpoint) -> bool {
        self.deferred.is_empty() && endpoint.is_quiet()
    }

    fn check(&self, through: &mut Through<'_>, request: &Request<'_>, is_clear: bool) -> Result<(), PostError> {
        if !is_clear && let Some(why) = through.endpoint.ended() {
            return Err(PostError::NotConnected(why.clone()));
        }
        let agreed = through.endpoint.agreed();
        let limit_bytes = match request {
            Request::Send { .. } => u64::from(agreed.message_max_bytes),
            // The one was checked when it was posted, the other moves nothing.
            Request::Append { .. } | Request::Flush { .. } => u64::MAX,
            _ => agreed.payload_max_bytes,
        };
        if !self.has_room(through.endpoint, through.wire, request.data_bytes()) {
            return Err(PostError::QueueFull { limit: agreed.send_queue });
        }
        if through.endpoint.is_established() && request.len_bytes() <= limit_bytes {
            return Ok(());
        }
        through.endpoint.may_post(&request.as_operation()?)
    }

    /// Whether the operation overtakes nothing that it must not.
    fn may_go(&self, through: &mut Through<'_>, route: Route, kind: OperationKind) -> bool {
        match route {
            // Devices may let a message pass a FLUSH that was posted before it.
            Route::Message if kind == OperationKind::AtomicWrite => !self.is_flushing_directly(),
            Route::Message => true,
            // Its messages are queued whole or not at all: at least one range and the flush.
            Route::FlushByMessage => {
                through.endpoint.outstanding() + 2 <= through.endpoint.agreed().send_queue as usize
            }
            Route::Direct(_) if !has_slot(through, kind) => false,
            // What waits to be sent was posted before it.
            Route::Direct(_) if through.endpoint.is_stalled() || through.endpoint.output_view().is_some() => false,
            // The target's CPU changes memory when it gets to it, later than this side's device would.
            Route::Direct(_) => self.streamed.iter().all(|streamed| match streamed.kind {
                OperationKind::Send | OperationKind::WriteBack => true,
                // As with the devices' own FLUSH, an atomic write waits for the flush before it, a plain write does not.
                OperationKind::Flush => kind != OperationKind::AtomicWrite,
                _ => false,
            }),
        }
    }

    fn is_flushing_directly(&self) -> bool {
        self.pending.iter().any(|pending| pending.kind == OperationKind::Flush && pending.way == Way::Direct)
    }

    /// Whether what is deferred waits for room or a receive at the other side, which may never come.
    fn is_stalled(&self, through: &mut Through<'_>) -> bool {
        let kind = self.deferred.front().map(|(_, request)| request.kind());
        let waits = through.endpoint.is_stalled() || through.endpoint.awaits_receives();
        waits || kind.is_some_and(|kind| !has_slot(through, kind))
    }

    fn carry_out(
        &mut self,
        through: &mut Through<'_>,
        ticket: u64,
        route: Route,
        request: &Request<'_>,
    ) -> Result<Way, PostError> {
        match (route, request) {
            (Route::Direct(Some(method)), Request::Flush { region, offset, len_bytes, level }) => {
                self.flush_directly(through, ticket, method, (region, *offset, *len_bytes, *level))
            }
            (Route::Direct(_), _) if let Some(direct) = through.wire.direct() => {
                direct.post(ticket, request)?;
                self.note_written(through, request);
                Ok(Way::Direct)
            }
            (Route::FlushByMessage, Request::Flush { region, offset, len_bytes, level }) => {
                self.stream_flush(through, ticket, (region, *offset, *len_bytes, *level))
            }
            _ => {
                let inner = through.endpoint.post(request.as_operation()?, Signal::Always, 0)?;
                self.streamed.push_back(Streamed { inner, outer: ticket, kind: request.kind() });
                self.note_streamed(request);
                pump(through);
                Ok(Way::Stream)
            }
        }
    }

    fn note_written(&mut self, through: &mut Through<'_>, request: &Request<'_>) {
        if let (Some((region, offset)), false) = (request.range(), matches!(request, Request::Read { .. })) {
            self.note_range(through, region, offset, request.len_bytes());
        }
    }

    /// Remembers what was written, where a flush that makes it durable is to name it.
    #[inline]
    fn note_range(&mut self, through: &mut Through<'_>, region: &RemoteRegion, offset: u64, len_bytes: u64) {
        let is_named = match self.names_ranges {
            Some((key, is_named)) if key == region.key() => is_named,
            _ => self.find_whether_named(through, region),
        };
        if is_named {
            self.unwritten.add(region.key(), offset, len_bytes);
        }
    }

    fn find_whether_named(&mut self, through: &mut Through<'_>, region: &RemoteRegion) -> bool {
        let level = Durability::PowerFailure;
        let method = choose_method(through.wire, through.forced, region, level);
        // Flushes to a weaker level name nothing.
        let is_named = matches!(method, Ok((Method::SendAfterWrite | Method::NativeFlush, _)));
        self.names_ranges = Some((region.key(), is_named));
        is_named
    }

    /// The target's CPU begins the write-back of what it stores and completes it when it flushes itself. Where this side
    /// may flush instead, it writes that back too: caches of one host are coherent.
    fn note_streamed(&mut self, request: &Request<'_>) {
        if let Some((region, offset)) = request.range()
            && region.direct() == DirectAccess::Mapped
            && !matches!(request, Request::Read { .. } | Request::Flush { .. })
        {
            self.unwritten.add(region.key(), offset, request.len_bytes());
        }
    }

    /// Has the device flush. What it is to make durable is named range by range: the cost of a flush grows with its range,
    /// not with what was written there.
    fn flush_directly(
        &mut self,
        through: &mut Through<'_>,
        ticket: u64,
        method: Method,
        (region, offset, len_bytes, level): (&RemoteRegion, u64, u64, Durability),
    ) -> Result<Way, PostError> {
        let Some(direct) = through.wire.direct() else { return Ok(Way::Deferred) };
        self.unwritten.forget_taken();
        let by_range = matches!(method, Method::NativeFlush | Method::LocalWriteBack);
        let named = if by_range && level == Durability::PowerFailure {
            self.unwritten.take(region.key(), offset, len_bytes, FLUSH_RANGES_MAX)
        } else {
            &[]
        };
        if !named.is_empty() || method == Method::LocalWriteBack {
            let posted = direct.flush(ticket, region, named, level, method);
            if posted.is_err() {
                self.unwritten.put_back(region.key());
            }
            return posted.map(|()| Way::Direct);
        }
        direct.flush(ticket, region, &[unnamed(region, offset, len_bytes, level)], level, method)?;
        Ok(Way::Direct)
    }

    /// Names what was written to the target's CPU and asks it to flush.
    fn stream_flush(
        &mut self,
        through: &mut Through<'_>,
        ticket: u64,
        (region, offset, len_bytes, level): (&RemoteRegion, u64, u64, Durability),
    ) -> Result<Way, PostError> {
        let key = region.key();
        let posted = self.stream_parts(through, ticket, (region, offset, len_bytes, level));
        if posted.is_err() {
            // What was queued already is written back once too often, and nobody waits for it.
            self.streamed.retain(|streamed| streamed.outer != ticket);
            self.unwritten.put_back(key);
        }
        pump(through);
        posted.map(|()| Way::Stream)
    }

    fn stream_parts(
        &mut self,
        through: &mut Through<'_>,
        ticket: u64,
        (region, offset, len_bytes, level): (&RemoteRegion, u64, u64, Durability),
    ) -> Result<(), PostError> {
        let (key, evidence) = (region.key(), region.evidence(level));
        self.unwritten.forget_taken();
        if level == Durability::PowerFailure {
            let free = (through.endpoint.agreed().send_queue as usize).saturating_sub(through.endpoint.outstanding());
            let limit = free.saturating_sub(1).clamp(1, WRITE_BACK_RANGES_MAX);
            for &(offset, len_bytes) in self.unwritten.take(key, offset, len_bytes, limit) {
                let operation = Operation::WriteBack { key, offset, len_bytes };
                let inner = through.endpoint.post(operation, Signal::OnError, 0)?;
                self.streamed.push_back(Streamed { inner, outer: ticket, kind: OperationKind::WriteBack });
            }
        }
        let inner =
            through.endpoint.post(Operation::Flush { key, offset, len_bytes, level, evidence }, Signal::Always, 0)?;
        self.streamed.push_back(Streamed { inner, outer: ticket, kind: OperationKind::Flush });
        Ok(())
    }

    fn release(&mut self, through: &mut Through<'_>) -> bool {
        if self.deferred.is_empty() {
            return false;
        }
        let mut moved = false;
        while let Some((route, request)) = self.deferred.pop_front() {
            // It is the first of the deferred ones, which are the last of all.
            let ticket = self.last - self.deferred.len() as u64;
            let has_room = has_room(through, route, request.data_bytes());
            let outcome = if has_room && self.may_go(through, route, request.kind()) {
                self.carry_out(through, ticket, route, &request)
            } else {
                Err(PostError::QueueFull { limit: 0 })
            };
            match outcome {
                Ok(way) => {
                    self.deferred_bytes -= request.kept_bytes();
                    if let Some(pending) = self.pending_mut(ticket) {
                        pending.way = way;
                    }
                    moved = true;
                }
                Err(PostError::QueueFull { .. }) => {
                    self.deferred.push_front((route, request));
                    break;
                }
                Err(error) => {
                    through.endpoint.fail(ConnectionError::Lost { why: error.to_string() });
                    return true;
                }
            }
        }
        if self.is_closing && (self.deferred.is_empty() || self.is_stalled(through)) {
            through.endpoint.disconnect();
            return true;
        }
        moved
    }

    fn take_direct(&mut self, through: &mut Through<'_>) -> bool {
        let mut moved = false;
        let Some(direct) = through.wire.direct() else { return moved };
        while let Some((ticket, outcome)) = direct.poll() {
            moved = true;
            match outcome {
                DirectOutcome::Done => self.direct_done = ticket,
                DirectOutcome::Previous(number) => {
                    self.direct_done = ticket;
                    if let Some(pending) = self.pending_mut(ticket) {
                        pending.outcome = Outcome::Previous(number);
                    }
                }
                DirectOutcome::Failed(error) => {
                    let why = match &error {
                        OperationError::Refused { refusal, .. } => {
                            ConnectionError::Refused { refusal: *refusal, private_data: Vec::new() }
                        }
                        OperationError::ConnectionEnded(why) => why.clone(),
                        other => ConnectionError::Lost { why: other.to_string() },
                    };
                    self.fail(ticket, error);
                    through.endpoint.fail(why);
                }
            }
        }
        moved
    }

    fn take_streamed(&mut self, completion: Completion) {
        if completion.ticket.0 & RECEIVE_TICKET != 0 {
            // An answer does not come before the outcome of the question.
            self.complete();
            self.completions.push_back(completion);
            return;
        }
        while let Some(streamed) = self.streamed.pop_front() {
            let is_it = streamed.inner == completion.ticket;
            if is_it {
                if let Some(pending) = self.pending_mut(streamed.outer)
                    && pending.way == Way::Stream
                {
                    match completion.outcome {
                        Ok(outcome) => {
                            pending.way = Way::Done;
                            pending.outcome = outcome;
                        }
                        Err(error) => {
                            pending.way = Way::Failed;
                            self.failures.push((streamed.outer, error));
                        }
                    }
                }
                return;
            }
        }
    }

    /// Gives outcomes to the oldest operations that have one.
    #[inline]
    fn complete(&mut self) {
        while let Some(front) = self.pending.front_mut() {
            if !front.is_whole(self.direct_done) {
                if front.way == Way::Direct {
                    let done = (self.direct_done + 1).saturating_sub(front.first);
                    front.first += done;
                    front.count -= done;
                }
                return;
            }
            if front.is_signalled {
                let Pending { first, context, kind, outcome, .. } = *front;
                self.completions.push_back(Completion { ticket: Ticket(first), context, kind, outcome: Ok(outcome) });
            }
            self.pending.pop_front();
        }
    }

    /// The connection has ended: everything pending gets an outcome, as soon as nothing reaches this side's memory.
    fn end(&mut self, through: &mut Through<'_>) -> bool {
        if self.is_ended {
            return false;
        }
        let Some(why) = through.endpoint.ended().cloned() else { return false };
        if let Some(direct) = through.wire.direct() {
            // The last words are still on their way, and whatever was posted before them.
            if !direct.is_idle() && ends_in_order(&why) {
                return false;
            }
            if !direct.is_idle() || direct.is_broken() {
                direct.stop();
            }
        }
        self.end_now(&why);
        true
    }

    /// Gives every pending operation its last outcome. The wire carries nothing any more.
    pub(crate) fn end_now(&mut self, why: &ConnectionError) {
        if !self.is_ended {
            self.complete();
        }
        self.is_ended = true;
        self.deferred.clear();
        self.deferred_bytes = 0;
        self.streamed.clear();
        for pending in mem::take(&mut self.pending) {
            let Pending { first, count, context, kind, way, .. } = pending;
            let ended = || OperationError::ConnectionEnded(why.clone());
            let failure = (way == Way::Failed).then(|| self.take_failure(first)).flatten();
            let mut error = failure.unwrap_or_else(ended);
            for ticket in first..first + count {
                let outcome = Err(mem::replace(&mut error, ended()));
                self.completions.push_back(Completion { ticket: Ticket(ticket), context, kind, outcome });
            }
        }
    }

    fn take_failure(&mut self, ticket: u64) -> Option<OperationError> {
        let at = self.failures.iter().position(|(of, _)| *of == ticket)?;
        Some(self.failures.swap_remove(at).1)
    }

    fn pending_mut(&mut self, ticket: u64) -> Option<&mut Pending> {
        let after = self.pending.partition_point(|pending| pending.first <= ticket);
        self.pending.get_mut(after.checked_sub(1)?)
    }

    /// Gives a direct operation its failure. What succeeded before it is known to have.
    fn fail(&mut self, ticket: u64, error: OperationError) {
        self.direct_done = self.direct_done.max(ticket - 1);
        self.complete();
        let at = self.pending.partition_point(|pending| pending.first <= ticket);
        let Some(run) = at.checked_sub(1).and_then(|at| self.pending.get_mut(at)) else { return };
        let after = run.first + run.count - (ticket + 1);
        run.count -= after;
        let Pending { context, kind, is_signalled, outcome, .. } = *run;
        let part = |first, count, way| Pending { first, count, context, kind, is_signalled, way, outcome };
        let mut at = at;
        if run.count == 1 {
            run.way = Way::Failed;
        } else {
            run.count -= 1;
            self.pending.insert(at, part(ticket, 1, Way::Failed));
            at += 1;
        }
        self.failures.push((ticket, error));
        if after > 0 {
            self.pending.insert(at, part(ticket + 1, after, Way::Direct));
        }
    }
}

/// The range that a device flushes where there is nothing to be made durable, or the level asks for the range itself. A device
/// takes no empty one.
#[inline]
fn unnamed(region: &RemoteRegion, offset: u64, len_bytes: u64, level: Durability) -> (u64, u64) {
    let offset = offset.min(region.len_bytes().saturating_sub(1));
    (offset, if level == Durability::PowerFailure { 1 } else { len_bytes.max(1) })
}

impl Pending {
    /// Whether all of it succeeded.
    #[inline]
    fn is_whole(&self, direct_done: u64) -> bool {
        match self.way {
            Way::Direct => direct_done + 1 >= self.first + self.count,
            way => way == Way::Done,
        }
    }

    /// Whether one more operation of this kind, with this context and not to be heard of, may be counted here.
    fn may_be_joined(&self, kind: OperationKind, context: u64) -> bool {
        !self.is_signalled && matches!(self.way, Way::Direct) && self.kind == kind && self.context == context
    }
}

/// Whether the two sides still speak when a connection ends for this reason.
pub(crate) fn ends_in_order(why: &ConnectionError) -> bool {
    !matches!(why, ConnectionError::Lost { .. } | ConnectionError::TimedOut { .. })
}

/// Whether the device can take an operation that was deferred: its bytes were copied then, and lie nowhere that it reaches.
fn has_room(through: &mut Through<'_>, route: Route, data_bytes: u64) -> bool {
    let is_direct = matches!(route, Route::Direct(_));
    !is_direct || through.wire.direct().is_none_or(|direct| direct.has_room(data_bytes))
}

/// Whether an operation of this kind has the room that it needs at the other side beside that of the send queue.
fn has_slot(through: &mut Through<'_>, kind: OperationKind) -> bool {
    kind != OperationKind::Append || through.wire.direct().is_some_and(|direct| direct.has_slot())
}

/// The way of an operation, and the promise behind a flush.
fn route(through: &mut Through<'_>, request: &Request<'_>) -> Result<(Route, Option<Promise>), PostError> {
    let is_direct = match request {
        Request::Flush { region, level, .. } => {
            let (method, promise) = choose_method(through.wire, through.forced, region, *level)?;
            let route = match method {
                Method::SendAfterWrite => Route::FlushByMessage,
                method => Route::Direct(Some(method)),
            };
            return Ok((route, Some(promise)));
        }
        Request::Append { .. } => true,
        Request::Send { .. } | Request::Write { immediate: Some(_), .. } => false,
        _ => match (request.range(), through.wire.direct()) {
            (Some((region, offset)), Some(direct)) => direct.reaches(region, request.kind(), offset),
            _ => false,
        },
    };
    Ok((if is_direct { Route::Direct(None) } else { Route::Message }, None))
}

/// Hands the messages that wait to the wire, so that what is posted next comes after them.
pub(crate) fn pump(through: &mut Through<'_>) -> bool {
    // Direct operations of a local wire are no messages: they wait until these have gone with the batch.
    if through.wire.is_local() {
        return false;
    }
    let mut moved = false;
    while let Some(view) = through.endpoint.output_view() {
        match through.wire.send(&view, &[]) {
            Ok(0) => break,
            Ok(count) => {
                moved = true;
                through.endpoint.output_sent(count);
            }
            Err(error) if is_transient(&error) => break,
            Err(error) => {
                through.endpoint.wire_lost(error.to_string());
                return true;
            }
        }
    }
    moved
}

#[cfg(test)]
mod tests;
