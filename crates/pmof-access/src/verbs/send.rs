//! What one connection has posted to its device: work requests not handed over yet, those under way, and the memory that
//! their bytes lie in until they have gone.

use std::slice;

use pmof_proto::Ticket;
use pmof_verbs::{
    Operation as WorkOperation, Payload, PostFailure, ProtectionDomain, QueuePair, RemoteAddress, Sge, WorkRequest,
};

mod in_flight;
mod sender;
mod staging;

use super::confirm::Confirming;
use crate::{SetupError, request::Data};
use in_flight::InFlight;
pub(super) use in_flight::{Flight, Plain, ResultPlace, Retired};
pub(super) use sender::Sender;
pub(super) use staging::Staged;
use staging::Staging;

/// A work request that the device has not been handed yet.
#[derive(Debug)]
struct Queued {
    /// Number of the work request that it has to wait for, because that brings something back; 0 for none.
    after: u64,
    task: Task,
}

/// What it does. Bytes that go inline lie in a buffer beside the requests.
#[derive(Debug)]
enum Task {
    Write { to: RemoteAddress, bytes: Bytes },
    Message { bytes: Bytes, immediate: Option<u32> },
    Other(WorkOperation<'static>),
}

/// Where the bytes of a queued work request lie.
#[derive(Clone, Copy, Debug)]
enum Bytes {
    None,
    Registered(Sge),
    /// In the buffer for inline bytes.
    Inline {
        start: u32,
        len: u32,
    },
}

impl Bytes {
    #[inline]
    fn payload(self, inline: &[u8]) -> Payload<'_> {
        match self {
            Self::None => Payload::Empty,
            Self::Registered(sge) => Payload::Sge(sge),
            Self::Inline { start, len } => Payload::Inline(&inline[start as usize..][..len as usize]),
        }
    }
}

impl Queued {
    fn is_read(&self) -> bool {
        matches!(self.task, Task::Other(WorkOperation::Read { .. }))
    }

    #[expect(clippy::inline_always, reason = "as its only caller")]
    #[inline(always)]
    fn request<'r>(&self, (id, signaled): (u64, bool), may_fence: bool, inline: &'r [u8]) -> WorkRequest<'r> {
        let operation = match self.task {
            Task::Write { to, bytes } => WorkOperation::Write { to, payload: bytes.payload(inline) },
            Task::Message { bytes, immediate: Some(immediate) } => {
                WorkOperation::SendWithImmediate { payload: bytes.payload(inline), immediate }
            }
            Task::Message { bytes, immediate: None } => WorkOperation::Send { payload: bytes.payload(inline) },
            Task::Other(operation) => operation,
        };
        WorkRequest { id, signaled, fence: may_fence && self.after != 0, operation }
    }
}

/// What is handed over at once, as work requests.
struct Batch<'b> {
    queued: slice::Iter<'b, Queued>,
    /// Number of the next one, and of the one that is signalled; 0 for none.
    id: u64,
    signaled: u64,
    may_fence: bool,
    inline: &'b [u8],
}

impl<'b> Iterator for Batch<'b> {
    type Item = WorkRequest<'b>;

    // Out of line, the request would be put together in memory first: half of what handing it over costs.
    #[expect(clippy::inline_always, reason = "left to itself the compiler calls it for every request")]
    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        let queued = self.queued.next()?;
        let id = self.id;
        self.id += 1;
        Some(queued.request((id, id == self.signaled), self.may_fence, self.inline))
    }
}

#[derive(Debug)]
pub(super) struct SendQueue {
    requests: Vec<Queued>,
    /// Inline bytes of the requests.
    inline: Vec<u8>,
    in_flight: InFlight,
    depth: usize,
    pub(super) staging: Staging,
    /// Number of the last work request whose effect comes with its answer, where what follows has to wait for that; 0 for
    /// none.
    reading: u64,
    /// Whether requests that wait for another are kept here until then, instead of leaving it to the device.
    ///
    /// Soft-RoCE stops for ever, without a word, if it has to send a fenced request again.
    holds_fenced: bool,
    /// Of what is queued something is to be heard of.
    is_asked: bool,
    /// Number of the last one handed over of which something is to be heard: of those after it nothing is, unless they fail.
    heard: u64,
    /// Where the device completes requests before they have arrived.
    confirming: Option<Confirming>,
    /// Why the device did not take what it was handed last.
    failure: Option<PostFailure>,
}

impl SendQueue {
    pub(super) fn new(domain: &ProtectionDomain, depth: usize) -> Result<Self, SetupError> {
        Ok(Self {
            requests: Vec::new(),
            inline: Vec::new(),
            in_flight: InFlight::default(),
            depth,
            staging: Staging::new(domain)?,
            reading: 0,
            holds_fenced: domain.device().capabilities().is_software,
            is_asked: false,
            heard: 0,
            confirming: domain.device().capabilities().completes_early().then(Confirming::default),
            failure: None,
        })
    }

    /// True if something was not handed over yet.
    #[inline]
    pub(super) fn has_queued(&self) -> bool {
        !self.requests.is_empty()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// Work requests posted and not done.
    #[inline]
    pub(super) fn under_way(&self) -> usize {
        self.in_flight.len()
    }

    /// How many were handed over last of which nothing is to be heard, unless they fail.
    #[inline]
    fn silent(&self) -> usize {
        (self.last() - self.heard) as usize - self.requests.len()
    }

    /// Bytes that they move; messages are not counted.
    pub(super) fn under_way_bytes(&self) -> u64 {
        self.in_flight.bytes()
    }

    /// Whether there is room for one more work request with so many bytes, and for `reserve` requests after it.
    pub(super) fn has_room(&self, len_bytes: u64, reserve: usize) -> bool {
        self.under_way() + reserve < self.depth && self.staging.has_room(len_bytes)
    }

    /// Queues a write; it goes out with the next [`submit`](Self::submit).
    fn push_write(&mut self, to: RemoteAddress, flight: Flight, staged: Staged<'_>) {
        let after = std::mem::take(&mut self.reading);
        let bytes = self.bytes_of(staged.payload);
        self.push(Task::Write { to, bytes }, after, flight, staged);
    }

    /// Queues a message.
    pub(super) fn push_message(&mut self, immediate: Option<u32>, flight: Flight, staged: Staged<'_>) {
        let after = std::mem::take(&mut self.reading);
        let bytes = self.bytes_of(staged.payload);
        self.push(Task::Message { bytes, immediate }, after, flight, staged);
    }

    /// A read whose bytes nobody looks at: nothing waits for it.
    pub(super) fn push_read_back(&mut self, from: RemoteAddress, into: Sge, flight: Flight) {
        self.push(Task::Other(WorkOperation::Read { from, into }), 0, flight, Staged::nothing());
    }

    /// Queues what the other side's device answers: a write of no bytes to nowhere, or a read where writes complete early.
    pub(super) fn push_probe(&mut self) {
        match self.confirming.as_ref().map(|confirming| confirming.place) {
            None => self.push_write(RemoteAddress { address: 0, rkey: 0 }, Flight::Service, Staged::nothing()),
            Some(Some(place)) => self.push_confirming_read(place),
            // Not connected yet.
            Some(None) => {}
        }
    }

    fn push_confirming_read(&mut self, from: RemoteAddress) {
        let Some(into) = self.staging.answer() else { return };
        self.push(Task::Other(WorkOperation::Read { from, into }), 0, Flight::Service, Staged::nothing());
    }

    /// The other side is to be asked by reading here, where the device completes requests early.
    pub(super) fn set_answer(&mut self, place: Option<RemoteAddress>) {
        if let Some(confirming) = &mut self.confirming {
            confirming.place = place;
        }
    }

    /// Something was posted of which nothing tells whether it arrived: a probe would.
    pub(super) fn has_unconfirmed(&self) -> bool {
        match &self.confirming {
            Some(confirming) => self.is_idle() && confirming.has_unconfirmed,
            None => self.silent() > 0,
        }
    }

    /// Number of the work request that was queued last.
    #[inline]
    fn last(&self) -> u64 {
        self.in_flight.last()
    }

    fn push(&mut self, task: Task, after: u64, flight: Flight, staged: Staged<'_>) {
        self.queue(after, task, true);
        self.in_flight.push(flight, self.staging.end(), staged.keep, staged.scratch);
    }

    fn queue(&mut self, after: u64, task: Task, is_asked: bool) {
        self.is_asked |= is_asked;
        self.requests.push(Queued { after, task });
    }

    /// True if a request may be handed over at once, without a [`submit`](Self::submit): none is queued, and it waits for none.
    #[inline]
    pub(super) fn is_free(&mut self) -> bool {
        if self.reading < self.in_flight.first() {
            self.reading = 0;
        }
        self.requests.is_empty() && self.reading == 0 && self.confirming.is_none()
    }

    /// Whether the device is to tell of the next one, whatever its caller wants: its own queue may be shorter than the one that
    /// callers know.
    #[inline]
    fn is_silent_for_long(&self) -> bool {
        self.silent() + self.requests.len() >= self.depth / 4
    }

    /// Hands over the request that was counted last, where it [may be](Self::is_free): at once, or with what follows it.
    #[expect(clippy::inline_always, reason = "its callers know the operation: most of this falls away there")]
    #[inline(always)]
    fn hand_over(
        &mut self,
        queue_pair: &mut QueuePair,
        operation: WorkOperation<'_>,
        is_signalled: bool,
        rings_doorbell: bool,
    ) {
        if is_signalled {
            self.heard = self.last();
        }
        let request = WorkRequest { id: self.last(), signaled: is_signalled, fence: false, operation };
        let posted = if rings_doorbell { queue_pair.post_one(&request) } else { queue_pair.append(&request) };
        if let Err(failure) = posted {
            self.failure = Some(failure);
        }
    }

    /// How many more requests may go into the ring of which nothing is to be heard, `reserve` being kept free.
    #[inline]
    pub(super) fn window(&self, reserve: usize) -> u32 {
        let places = self.depth.saturating_sub(self.under_way() + reserve);
        places.min((self.depth / 4).saturating_sub(self.silent())) as u32
    }

    /// Writes bytes into the ring behind others, within the [window](Self::window). False where they do not go inline.
    #[inline]
    pub(super) fn append_bytes(
        &mut self,
        queue_pair: &mut QueuePair,
        to: RemoteAddress,
        bytes: &[u8],
        plain: Plain,
    ) -> Result<bool, PostFailure> {
        if bytes.is_empty() || bytes.len() > self.staging.inline_max_bytes() {
            return Ok(false);
        }
        self.in_flight.push_plain(plain, self.staging.end(), None, None);
        self.append(queue_pair, WorkOperation::Write { to, payload: Payload::Inline(bytes) })
    }

    /// The same of registered memory. False where the device does not reach it there.
    #[inline]
    pub(super) fn append_registered(
        &mut self,
        queue_pair: &mut QueuePair,
        to: RemoteAddress,
        data: Data<'_>,
        plain: Plain,
    ) -> Result<bool, PostFailure> {
        let Some((sge, keep)) = self.staging.reach(data, plain.len_bytes) else { return Ok(false) };
        let payload = Payload::Sge(sge);
        self.in_flight.push_plain(plain, self.staging.end(), Some(keep), None);
        self.append(queue_pair, WorkOperation::Write { to, payload })
    }

    #[expect(clippy::inline_always, reason = "as of `hand_over`")]
    #[inline(always)]
    fn append(&mut self, queue_pair: &mut QueuePair, operation: WorkOperation<'_>) -> Result<bool, PostFailure> {
        let request = WorkRequest { id: self.last(), signaled: false, fence: false, operation };
        queue_pair.append(&request).map(|()| true)
    }

    /// Whether the device did not take what it was handed last.
    #[inline]
    pub(super) fn has_failure(&self) -> bool {
        self.failure.is_some()
    }

    /// Why it did not.
    pub(super) fn take_failure(&mut self) -> Option<PostFailure> {
        self.failure.take()
    }

    /// Hands over all that was queued, with one doorbell; the completion of the last one vouches for all, and for those before
    /// of which nothing was to be heard.
    pub(super) fn submit(&mut self, queue_pair: &mut QueuePair) -> Result<(), PostFailure> {
        if self.confirming.is_some() {
            self.confirm();
        }
        let ready = self.ready();
        if ready == 0 {
            return queue_pair.ring();
        }
        let first = self.last() + 1 - self.requests.len() as u64;
        let last = first + ready as u64 - 1;
        let queued = self.requests[..ready].iter();
        let is_heard = self.is_asked || self.confirming.is_some();
        let signaled = if is_heard { last } else { 0 };
        let batch = Batch { queued, id: first, signaled, may_fence: !self.holds_fenced, inline: &self.inline };
        let posted = queue_pair.post(batch);
        if is_heard {
            self.heard = last;
        }
        if let Some(confirming) = &mut self.confirming {
            confirming.posted(last, self.requests[ready - 1].is_read());
        }
        self.requests.drain(..ready);
        if self.requests.is_empty() {
            self.inline.clear();
            self.is_asked = false;
        }
        posted
    }

    /// Has what is queued end in a read, where it reaches the other side's memory. What has to wait does so for a read, so
    /// that what goes out before it ends in one already.
    fn confirm(&mut self) {
        let reaches_memory = |queued: &Queued| !matches!(queued.task, Task::Message { .. });
        if self.ready() == self.requests.len()
            && self.requests.last().is_some_and(|last| !last.is_read())
            && self.requests.iter().any(reaches_memory)
        {
            self.push_probe();
        }
    }

    /// A work request is complete: the one through which all are done, 0 for none.
    #[inline]
    pub(super) fn completed(&mut self, id: u64, is_read: bool) -> u64 {
        match &mut self.confirming {
            None => id,
            Some(confirming) => confirming.completed(id, is_read),
        }
    }

    /// How many of the queued requests the device may be handed.
    #[inline]
    fn ready(&self) -> usize {
        let waits = |queued: &Queued| queued.after >= self.in_flight.first();
        let held = self.holds_fenced.then(|| self.requests.iter().position(waits)).flatten();
        held.unwrap_or(self.requests.len())
    }

    /// As [`retire`](Self::retire), for direct operations that leave nothing behind: the last one of them.
    #[inline]
    pub(super) fn retire_plain(&mut self, through: u64) -> Option<Ticket> {
        let (last, staged_end) = self.in_flight.retire_plain(through)?;
        self.staging.free_up_to(staged_end);
        Some(last)
    }

    /// A work request is done, and so are all before it: gives the oldest one that was not given yet, or the last of those
    /// in a row with it.
    #[inline]
    pub(super) fn retire(&mut self, through: u64) -> Option<Retired> {
        let (retired, staged_end) = self.in_flight.retire(through)?;
        self.staging.free_up_to(staged_end);
        Some(retired)
    }

    /// The oldest work request, which nothing is known of.
    pub(super) fn give_up_oldest(&mut self) -> Option<Retired> {
        self.retire(self.in_flight.first())
    }

    /// Forgets everything: the device has stopped.
    pub(super) fn clear(&mut self) {
        self.reading = 0;
        self.requests.clear();
        self.inline.clear();
        self.in_flight.clear();
        self.heard = self.last();
        if let Some(confirming) = &mut self.confirming {
            confirming.clear();
        }
    }

    /// What a request is queued with.
    fn bytes_of(&mut self, payload: Payload<'_>) -> Bytes {
        match payload {
            Payload::Empty => Bytes::None,
            Payload::Sge(sge) => Bytes::Registered(sge),
            Payload::Inline(bytes) => {
                let start = self.inline.len() as u32;
                self.inline.extend_from_slice(bytes);
                Bytes::Inline { start, len: bytes.len() as u32 }
            }
        }
    }
}
