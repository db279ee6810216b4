//! Connections: posting operations, and what happens to the connection itself.

use std::{
    borrow::Cow,
    net::SocketAddr,
    ops::RangeBounds,
    sync::{Arc, MutexGuard},
    time::Duration,
};

use pmof_mem::{Durability, Promise};
use pmof_proto::{
    Access, ConnectionError, DescriptorError, Event, Operation, Payload, PostError, Refusal, Signal, Ticket,
};

use crate::{
    CompletionQueue, ConnectionId, Method, RegionSlice, RemoteRegion,
    link::{BORROW_MIN_BYTES, Link, LinkCore},
    region::resolve,
    request::{Data, Request},
};

/// Bytes that held batches may keep waiting: enough to fill system calls, little enough to keep the wire busy.
const HOLD_MAX_BYTES: usize = 256 << 10;

/// Bytes to write or send.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Source<'a> {
    /// Bytes of the caller: free again when the call returns.
    Bytes(&'a [u8]),
    /// Registered memory: sent from where it lies, and to be left unchanged until the completion.
    Region(RegionSlice),
}

impl<'a, B: AsRef<[u8]> + ?Sized> From<&'a B> for Source<'a> {
    fn from(bytes: &'a B) -> Self {
        Self::Bytes(bytes.as_ref())
    }
}

impl<'a> From<Source<'a>> for Data<'a> {
    fn from(source: Source<'a>) -> Self {
        match source {
            Source::Bytes(bytes) => Self::Borrowed(bytes),
            Source::Region(slice) => Self::Slice(slice),
        }
    }
}

impl From<RegionSlice> for Source<'_> {
    fn from(slice: RegionSlice) -> Self {
        Self::Region(slice)
    }
}

/// What happened to a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectionEvent {
    /// Operations may be posted.
    Established,
    /// One of the two sides closed in order.
    Closed,
    /// The connection ended for this reason; outcomes not yet known stay unknown.
    Lost(ConnectionError),
}

/// An ordered channel to the other side: operations take effect there in the order posted here.
///
/// Dropping it closes it in order, without waiting.
#[derive(Debug)]
pub struct Connection {
    link: Arc<Link>,
    queue: CompletionQueue,
    receive_queue: Option<CompletionQueue>,
    peer_address: Option<SocketAddr>,
    private_data: Vec<u8>,
}

impl Connection {
    pub(crate) fn new(
        link: Arc<Link>,
        queue: CompletionQueue,
        receive_queue: Option<CompletionQueue>,
        peer_address: Option<SocketAddr>,
        private_data: Vec<u8>,
    ) -> Self {
        Self { link, queue, receive_queue, peer_address, private_data }
    }

    /// The connection's name in completions.
    pub fn id(&self) -> ConnectionId {
        ConnectionId(self.link.id)
    }

    /// The other side's address, where the transport has one.
    pub fn peer_address(&self) -> Option<SocketAddr> {
        self.peer_address
    }

    /// What the other side's application sent along when connecting or accepting.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// The queue that collects this connection's outcomes, but for those of receives where these have their own.
    pub fn queue(&self) -> &CompletionQueue {
        &self.queue
    }

    /// The queue that collects the outcomes of this connection's receives.
    pub fn receive_queue(&self) -> &CompletionQueue {
        self.receive_queue.as_ref().unwrap_or(&self.queue)
    }

    /// Reads a descriptor of the other side's memory.
    pub fn remote_region(&self, descriptor: &[u8]) -> Result<RemoteRegion, DescriptorError> {
        RemoteRegion::from_descriptor(descriptor)
    }

    /// True while operations may be posted.
    pub fn is_established(&self) -> bool {
        let core = self.link.lock();
        core.endpoint.is_established() && !core.is_closing()
    }

    /// Why the connection ended, if it has.
    pub fn ended(&self) -> Option<ConnectionError> {
        let core = self.link.lock();
        core.endpoint.ended().cloned().or_else(|| core.is_closing().then_some(ConnectionError::ClosedHere))
    }

    /// Operations posted whose outcome is not known.
    pub fn outstanding(&self) -> usize {
        self.link.lock().outstanding()
    }

    /// How a flush of `region` to `level` would get there, and the promise behind it: the cheapest method that both sides
    /// can do, or the one that the options of the connection name.
    pub fn flush_method(&self, region: &RemoteRegion, level: Durability) -> Result<(Method, Promise), PostError> {
        self.link.lock().flush_method(region, level)
    }

    /// Waits, at most `timeout`, until it is known how operations on `region` go. False when the time is up.
    ///
    /// Over shm a region is mapped when it is first used; until then operations are messages to the target's CPU, and
    /// [`Method::LocalWriteBack`] is not to be had. Nothing needs this but a caller who wants to be one-sided from the first
    /// operation on, or who forces that method. Other transports know at once.
    pub fn prepare(&self, region: &RemoteRegion, timeout: Duration) -> bool {
        self.queue.wait_until(timeout, || self.link.lock().is_settled(region).then_some(())).is_some()
    }

    /// Drives the queue until an operation can be posted again, at most `timeout`. False when the time is up; true also
    /// when the connection has ended, which posting then tells.
    pub fn wait_send_room(&self, timeout: Duration) -> bool {
        self.queue.wait_until(timeout, || self.link.lock().has_room().then_some(())).is_some()
    }

    /// Starts a batch: what is posted in it goes out together when it is submitted or dropped.
    ///
    /// The connection is locked meanwhile; polling its queue does not move it on.
    pub fn batch(&self) -> Batch<'_> {
        let core = self.link.lock();
        Batch { connection: self, core, signal: Signal::Always, context: 0, held: false, is_clear: false }
    }

    /// Posts one write of at most 1 GiB at `offset` (bytes) of the region.
    pub fn write<'a>(&self, to: &RemoteRegion, offset: u64, from: impl Into<Source<'a>>) -> Result<Ticket, PostError> {
        self.batch().write(to, offset, from)
    }

    /// Posts a read of the slice's length, from `offset` (bytes) of the region.
    pub fn read(&self, from: &RemoteRegion, offset: u64, into: RegionSlice) -> Result<Ticket, PostError> {
        self.batch().read(from, offset, into)
    }

    /// Posts a flush: brings all earlier writes of this connection in the range to `level`.
    pub fn flush(
        &self,
        region: &RemoteRegion,
        range: impl RangeBounds<u64>,
        level: Durability,
    ) -> Result<Ticket, PostError> {
        self.batch().flush(region, range, level)
    }

    /// Posts a message.
    pub fn send<'a>(&self, from: impl Into<Source<'a>>) -> Result<Ticket, PostError> {
        self.batch().send(from)
    }

    /// Appends a record to the ring that [`ConnectOptions::append_to`](crate::ConnectOptions::append_to) named, at most
    /// [`RECORD_MAX_BYTES`](crate::RECORD_MAX_BYTES). See [`Batch::append`].
    pub fn append<'a>(&self, from: impl Into<Source<'a>>) -> Result<Ticket, PostError> {
        self.batch().append(from)
    }

    /// Posts a receive for the next message that has none; `context` comes back with its completion.
    ///
    /// # Errors
    /// [`PostError::SharedReceives`] where the connection takes its receives from a shared queue.
    pub fn receive(&self, into: RegionSlice, context: u64) -> Result<Ticket, PostError> {
        let mut batch = self.batch();
        if batch.core.is_closing() {
            return Err(PostError::NotConnected(ConnectionError::ClosedHere));
        }
        let posted = batch.core.endpoint.post_receive(into.local, context);
        // A message that is there already takes it now, and no event of the wire follows.
        batch.core.take_finished_here();
        posted
    }

    /// The next event, waiting for it at most `timeout`.
    pub fn next_event(&self, timeout: Duration) -> Option<ConnectionEvent> {
        self.queue.wait_until(timeout, || self.link.lock().events.pop_front().map(event_of))
    }

    /// Closes in order: what was posted is still sent, but for messages for which the other side has no room and what was
    /// posted after them; outcomes not yet known stay unknown. Does not wait.
    pub fn disconnect(&self) {
        let mut core = self.link.lock();
        core.disconnect();
        self.settle(&mut core);
    }

    /// Waits for the end of the handshake.
    pub(crate) fn wait_established(&mut self, timeout: Duration) -> Option<Result<(), ConnectionError>> {
        let event = self.queue.wait_until(timeout, || self.link.lock().events.pop_front())?;
        Some(match event {
            Event::Established { private_data } => {
                self.private_data = private_data;
                self.link.lock().events.push_front(Event::Established { private_data: Vec::new() });
                Ok(())
            }
            Event::Ended(why) => Err(why),
            Event::Requested { .. } => Err(ConnectionError::Malformed { what: "a request where an answer was due" }),
        })
    }

    pub(crate) fn take_wire_error(&self) -> Option<std::io::Error> {
        self.link.lock().wire_error.take()
    }

    /// Hands over what finished while posting, and has the wire watched for what is left to send.
    fn settle(&self, core: &mut LinkCore) {
        if core.is_quiet_device() && !core.has_outcomes() {
            // Its operations finish later, and the device tells of that.
            return;
        }
        let driver = &self.queue.shared.driver;
        let ended = core.endpoint.ended().is_some();
        if ended {
            core.drive(|| driver.now());
        }
        let has_finished = core.has_finished_here();
        // A thread of its own may be asleep. Without one the caller takes outcomes one at a time: what it leaves counts
        // against its send queue.
        if has_finished && (driver.signal().is_some() || !driver.has_ready()) {
            core.take_finished_here();
        }
        if driver.collect(self.link.id, core) || has_finished || ended {
            driver.tell();
        }
        core.update_interest();
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.disconnect();
    }
}

/// Operations that go out together.
#[derive(Debug)]
pub struct Batch<'c> {
    connection: &'c Connection,
    core: MutexGuard<'c, LinkCore>,
    signal: Signal,
    context: u64,
    /// What was posted may wait for the next batch.
    held: bool,
    /// The last operation was a write that waited for nothing, so the next one need not either.
    is_clear: bool,
}

impl Batch<'_> {
    /// When the operations posted from now on complete; [`Signal::Always`] at first.
    pub fn signal(&mut self, signal: Signal) -> &mut Self {
        self.signal = signal;
        self
    }

    /// The number that comes back with the completions of the operations posted from now on; 0 at first.
    pub fn context(&mut self, context: u64) -> &mut Self {
        self.context = context;
        self
    }

    /// Posts a write at `offset` (bytes) of the region.
    pub fn write<'a>(
        &mut self,
        to: &RemoteRegion,
        offset: u64,
        from: impl Into<Source<'a>>,
    ) -> Result<Ticket, PostError> {
        self.write_maybe_immediate(to, offset, from.into(), None)
    }

    /// Posts a write that also consumes a receive at the other side and hands it `immediate`.
    pub fn write_with_immediate<'a>(
        &mut self,
        to: &RemoteRegion,
        offset: u64,
        from: impl Into<Source<'a>>,
        immediate: u32,
    ) -> Result<Ticket, PostError> {
        self.write_maybe_immediate(to, offset, from.into(), Some(immediate))
    }

    /// Posts a read of the slice's length, from `offset` (bytes) of the region.
    pub fn read(&mut self, from: &RemoteRegion, offset: u64, into: RegionSlice) -> Result<Ticket, PostError> {
        from.check(Access::READ, "remote reads", offset, into.local.len_bytes)?;
        self.post(Request::Read { from: Cow::Borrowed(from), offset, into })
    }

    /// Posts a flush: brings all earlier writes of this connection in the range to `level`.
    pub fn flush(
        &mut self,
        region: &RemoteRegion,
        range: impl RangeBounds<u64>,
        level: Durability,
    ) -> Result<Ticket, PostError> {
        let (offset, len_bytes) = resolve(range, region.len_bytes())?;
        region.check_flush(level)?;
        self.post(Request::Flush { region: Cow::Borrowed(region), offset, len_bytes, level })
    }

    /// Posts an atomic write of 8 bytes (`value` as little-endian) at an offset divisible by 8: whole or not at all, also
    /// in a crash.
    pub fn atomic_write(&mut self, to: &RemoteRegion, offset: u64, value: u64) -> Result<Ticket, PostError> {
        check_atomic(to, Access::WRITE, "remote writes", offset)?;
        self.post(Request::AtomicWrite { to: Cow::Borrowed(to), offset, value })
    }

    /// Posts a compare-and-swap of 8 bytes; completes with the number that was there.
    pub fn compare_and_swap(
        &mut self,
        at: &RemoteRegion,
        offset: u64,
        expected: u64,
        new: u64,
    ) -> Result<Ticket, PostError> {
        check_atomic(at, Access::ATOMIC, "remote atomic operations", offset)?;
        self.post(Request::CompareAndSwap { at: Cow::Borrowed(at), offset, expected, new })
    }

    /// Posts a wrapping addition to 8 bytes; completes with the number that was there.
    pub fn fetch_and_add(&mut self, at: &RemoteRegion, offset: u64, addend: u64) -> Result<Ticket, PostError> {
        check_atomic(at, Access::ATOMIC, "remote atomic operations", offset)?;
        self.post(Request::FetchAndAdd { at: Cow::Borrowed(at), offset, addend })
    }

    /// Posts a message.
    pub fn send<'a>(&mut self, from: impl Into<Source<'a>>) -> Result<Ticket, PostError> {
        self.post(Request::Send { data: from.into().into(), immediate: None })
    }

    /// Posts a message that hands `immediate` to its receive.
    pub fn send_with_immediate<'a>(
        &mut self,
        from: impl Into<Source<'a>>,
        immediate: u32,
    ) -> Result<Ticket, PostError> {
        self.post(Request::Send { data: from.into().into(), immediate: Some(immediate) })
    }

    /// Appends a record to the ring that [`ConnectOptions::append_to`](crate::ConnectOptions::append_to) named, at most
    /// [`RECORD_MAX_BYTES`](crate::RECORD_MAX_BYTES).
    ///
    /// It completes when the target's device has taken the record. A flush of the ring, whatever the range, makes all records
    /// durable that were appended before. While the ring has no free slot the record waits, and so does everything posted
    /// after it.
    ///
    /// # Errors
    /// [`PostError::NoRing`] where no ring was named; [`PostError::TooLong`].
    pub fn append<'a>(&mut self, from: impl Into<Source<'a>>) -> Result<Ticket, PostError> {
        let data = Data::from(from.into());
        let limit_bytes = self.core.append_max_bytes()?;
        if data.len_bytes() > limit_bytes {
            return Err(PostError::TooLong { len_bytes: data.len_bytes(), limit_bytes });
        }
        self.post(Request::Append { data })
    }

    /// Sends what was posted. Dropping the batch does the same.
    pub fn submit(self) {}

    /// Lets what was posted wait, to go out with the next batch or when the queue is next polled; beyond 256 KiB it goes
    /// out now.
    pub fn hold(mut self) {
        self.held = self.core.endpoint.output_waiting_bytes() < HOLD_MAX_BYTES;
    }

    fn write_maybe_immediate(
        &mut self,
        to: &RemoteRegion,
        offset: u64,
        from: Source<'_>,
        immediate: Option<u32>,
    ) -> Result<Ticket, PostError> {
        let data = Data::from(from);
        to.check(Access::WRITE, "remote writes", offset, data.len_bytes())?;
        if immediate.is_none()
            && let Some(ticket) =
                self.core.write_straight((to, offset), &data, (self.signal, self.context), &mut self.is_clear)
        {
            return Ok(ticket);
        }
        self.post(Request::Write { to: Cow::Borrowed(to), offset, data, immediate })
    }

    #[expect(clippy::needless_pass_by_value, reason = "every caller makes the request for this call")]
    fn post(&mut self, request: Request<'_>) -> Result<Ticket, PostError> {
        self.is_clear = false;
        if self.core.has_lane() {
            return self.core.post_to_lane(&request, self.signal, self.context);
        }
        if let Request::Write { to, offset, data: Data::Borrowed(bytes), immediate: None } = &request
            && bytes.len() >= BORROW_MIN_BYTES
            && self.core.endpoint.may_borrow()
        {
            let payload = Payload::Borrowed(bytes);
            let operation = Operation::Write { key: to.key(), offset: *offset, payload, immediate: None };
            let ticket = self.core.endpoint.post(operation, self.signal, self.context)?;
            self.core.send_borrowed(bytes);
            return Ok(ticket);
        }
        self.core.endpoint.post(request.as_operation()?, self.signal, self.context)
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        let driver = &self.connection.queue.shared.driver;
        if !self.held {
            self.core.flush_output();
        } else if self.core.has_output() && (driver.signal().is_some() || driver.asks_epoll()) {
            // Nobody polls a queue that has a thread, and one with many connections polls those that are ready.
            self.core.watch_output();
        }
        self.connection.settle(&mut self.core);
    }
}

fn check_atomic(region: &RemoteRegion, right: Access, name: &'static str, offset: u64) -> Result<(), PostError> {
    region.check(right, name, offset, 8)?;
    if offset.is_multiple_of(8) { Ok(()) } else { Err(PostError::Misaligned { offset }) }
}

fn event_of(event: Event) -> ConnectionEvent {
    match event {
        Event::Established { .. } => ConnectionEvent::Established,
        Event::Ended(ConnectionError::Closed | ConnectionError::ClosedHere) => ConnectionEvent::Closed,
        Event::Ended(why) => ConnectionEvent::Lost(why),
        Event::Requested { .. } => ConnectionEvent::Lost(ConnectionError::RefusedHere(Refusal::Malformed)),
    }
}
