//! Connections: posting operations, and what happens to the connection itself.

use std::{
    io,
    net::SocketAddr,
    ops::RangeBounds,
    os::fd::{AsFd as _, BorrowedFd},
    sync::{Arc, OnceLock},
    time::Duration,
};

use pmof_locks::MutexGuard;
use pmof_mem::{Durability, Promise};
use pmof_proto::{Access, ConnectionError, DescriptorError, Event, PostError, Refusal, Signal, Ticket};

use crate::{
    CompletionQueue, ConnectError, ConnectionId, Location, Method, PeerProcess, RegionPart, RegionSlice, RemoteRegion,
    ResolveError, SetupError, ShortDescriptor, Traffic,
    link::{Link, LinkCore},
    progress::{ReadyFlag, ReadySignal},
    region::resolve,
    request::{Data, Request, Verb},
    short::{answer_slice, read_answer},
    wire::Submission,
};

mod unmade;

/// Bytes that held batches may keep waiting: enough to fill system calls, little enough to keep the wire busy.
const HOLD_MAX_BYTES: usize = 256 << 10;

/// Bytes to write or send.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Source<'a> {
    /// Bytes of the caller: free again when the call returns.
    Bytes(&'a [u8]),
    /// Registered memory: sent from where it lies, and to be left unchanged until the completion; where that comes only on error,
    /// until the completion of something posted later.
    Region(RegionSlice),
    /// The same, without a handle of its own.
    Part(RegionPart<'a>),
}

impl<'a> From<RegionPart<'a>> for Source<'a> {
    fn from(part: RegionPart<'a>) -> Self {
        Self::Part(part)
    }
}

impl<'a, B: AsRef<[u8]> + ?Sized> From<&'a B> for Source<'a> {
    fn from(bytes: &'a B) -> Self {
        Self::Bytes(bytes.as_ref())
    }
}

impl Source<'_> {
    #[inline]
    fn as_data(&self) -> Data<'_> {
        match self {
            Self::Bytes(bytes) => Data::Bytes(bytes),
            Self::Region(slice) => Data::Slice(slice),
            Self::Part(part) => Data::Part(*part),
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
    /// One of the two sides closed in order, and the connection [is drained](Connection::is_drained).
    Closed,
    /// The connection ended for this reason, and is drained; outcomes not yet known stay unknown.
    Lost(ConnectionError),
}

/// An ordered channel to the other side: operations take effect there in the order posted here.
///
/// A child of `fork()` cannot use it: there it has ended with [`ConnectionError::Forked`], and dropping it does nothing.
///
/// Dropping it closes it in order, without waiting.
#[derive(Debug)]
pub struct Connection {
    link: Arc<Link>,
    queue: CompletionQueue,
    receive_queue: Option<CompletionQueue>,
    peer_address: Option<SocketAddr>,
    /// Where this side asked for it.
    requested: Option<Location>,
    /// Known once an event has told that the connection is established.
    private_data: OnceLock<Vec<u8>>,
    events_signal: OnceLock<Arc<ReadySignal>>,
}

impl Connection {
    /// One that the other side asked for.
    pub(crate) fn accepted(
        link: Arc<Link>,
        queue: CompletionQueue,
        receive_queue: Option<CompletionQueue>,
        peer_address: Option<SocketAddr>,
        private_data: Vec<u8>,
    ) -> Self {
        Self {
            link,
            queue,
            receive_queue,
            peer_address,
            requested: None,
            private_data: private_data.into(),
            events_signal: OnceLock::new(),
        }
    }

    /// One that this side asks for.
    pub(crate) fn requested(
        link: Arc<Link>,
        queue: CompletionQueue,
        receive_queue: Option<CompletionQueue>,
        address: Location,
    ) -> Self {
        let peer_address = address.socket_address();
        Self {
            link,
            queue,
            receive_queue,
            peer_address,
            requested: Some(address),
            private_data: OnceLock::new(),
            events_signal: OnceLock::new(),
        }
    }

    /// The connection's name in completions.
    pub fn id(&self) -> ConnectionId {
        ConnectionId(self.link.id)
    }

    /// The other side's address, where the transport has one.
    pub fn peer_address(&self) -> Option<SocketAddr> {
        self.peer_address
    }

    /// What the other side's application sent along when connecting or accepting; empty until it is told that the connection
    /// is established.
    pub fn private_data(&self) -> &[u8] {
        self.private_data.get().map_or(&[], Vec::as_slice)
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

    /// The region behind a short descriptor, with the rights that the application knows of. Where the descriptor does not [say
    /// all](ShortDescriptor::region), the other side is asked for it, at most `timeout`. The outcome is nobody else's to collect.
    ///
    /// A name that the other side does not know ends the connection, as every refused operation does.
    pub fn resolve(
        &self,
        short: &ShortDescriptor,
        access: Access,
        timeout: Duration,
    ) -> Result<RemoteRegion, ResolveError> {
        if let Some(region) = short.region(access) {
            return Ok(region);
        }
        self.check_process()?;
        let answer = answer_slice()?;
        let driver = &self.queue.shared.driver;
        let mut batch = self.batch();
        let ticket = batch.read(&short.place(), 0, answer.clone())?;
        driver.reserve(self.id(), ticket);
        drop(batch);
        let done = self.queue.wait_for(self.id(), ticket, timeout);
        // An answer that comes too late is one that somebody may collect.
        driver.release(self.id(), ticket);
        let done = done.ok_or(ResolveError::TimedOut { timeout_ms: timeout.as_millis() as u64 })?;
        done.outcome?;
        read_answer(short, &answer)
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

    /// True once the connection has ended and all that was posted on it, receives too, has its outcome in its queue: nothing more will
    /// come there. Until then memory of operations may still be in use, also when [`ended`](Self::ended) tells why it ended.
    pub fn is_drained(&self) -> bool {
        self.link.lock().is_drained()
    }

    /// Operations posted whose outcome is not known. Writes that complete only on error are counted until something posted
    /// after them is known to be done; where nothing is, over verbs, until the queue has asked after them: every 20 ms while
    /// somebody drives it, within a second where a thread of its own sleeps.
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
        self.queue.wait_until(timeout, || self.link.lock().asks_reach(region).then_some(())).is_some()
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
        self.single().in_batch()
    }

    /// One operation that is posted on its own: it takes a little less than a batch of one.
    #[inline]
    pub fn single(&self) -> Single<'_> {
        Single { connection: self, signal: Signal::Always, context: 0 }
    }

    /// Posts one write of at most 1 GiB at `offset` (bytes) of the region.
    pub fn write<'a>(&self, to: &RemoteRegion, offset: u64, from: impl Into<Source<'a>>) -> Result<Ticket, PostError> {
        self.single().write(to, offset, from)
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
        self.single().flush(region, range, level)
    }

    /// Posts a message. It completes when it has found a receive at the other side, however long that takes, and so does what
    /// is posted behind it.
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
        // A message that is there already takes it now, and no event of the wire follows.
        batch.core.endpoint.post_receive(into.local, context)
    }

    /// As [`receive`](Self::receive), for a connection that was just asked for or accepted. If it has ended meanwhile, the receive
    /// completes with that end, as those do that were posted before.
    pub fn early_receive(&self, into: RegionSlice, context: u64) -> Result<Ticket, PostError> {
        self.check_process()?;
        let posted = self.batch().core.endpoint.post_early_receive(into.local, context)?;
        let (mut core, driver) = (self.link.lock(), &self.queue.shared.driver);
        // Of a connection that has ended nothing comes that would have it looked at again.
        if core.endpoint.ended().is_some() && driver.collect(&self.link, &mut core) {
            driver.wake();
        }
        Ok(posted)
    }

    /// The next event, waiting for it at most `timeout`. That of the end comes when everything that was posted has its outcome.
    pub fn next_event(&self, timeout: Duration) -> Option<ConnectionEvent> {
        let event = self.queue.wait_until(timeout, || self.link.lock().events.take())?;
        Some(match event {
            Event::Established { private_data } => {
                // Whoever waited for it in connecting, or was asked for it, knows it already.
                let _ = self.private_data.set(private_data);
                ConnectionEvent::Established
            }
            Event::Ended(ConnectionError::Closed | ConnectionError::ClosedHere) => ConnectionEvent::Closed,
            Event::Ended(why) => ConnectionEvent::Lost(why),
            Event::Requested { .. } => ConnectionEvent::Lost(ConnectionError::RefusedHere(Refusal::Malformed)),
        })
    }

    /// A descriptor that is readable while [`next_event`](Self::next_event) has an event, as long as someone drives the queue; own
    /// it no longer than the connection. Whether it blocks makes no difference here.
    ///
    /// # Errors
    /// [`SetupError::System`] when the process is out of file descriptors; [`SetupError::Forked`].
    pub fn events_fd(&self) -> Result<BorrowedFd<'_>, SetupError> {
        if !self.link.is_here() {
            return Err(SetupError::Forked);
        }
        let signal = if let Some(signal) = self.events_signal.get() {
            signal
        } else {
            let made = Arc::new(ReadySignal::new()?);
            self.events_signal.get_or_init(|| made)
        };
        self.show_events_on(Arc::<ReadySignal>::clone(signal));
        Ok(signal.as_fd())
    }

    /// Has this show whether [`next_event`](Self::next_event) has an event, in the place of the [descriptor](Self::events_fd), until
    /// the connection is dropped.
    pub fn show_events_on(&self, flag: Arc<dyn ReadyFlag>) {
        if !self.link.is_here() {
            return;
        }
        self.link.lock().events.show(flag);
        self.queue.shared.driver.note_watched();
    }

    /// Of what kind the kernel's error was that broke the connection, if it was one: the end of the other side's process is
    /// none, or a reset.
    pub fn wire_error_kind(&self) -> Option<io::ErrorKind> {
        self.link.lock().wire_error.as_ref().map(io::Error::kind)
    }

    /// Why a connection that this side asked for was never established, after an event has told that it was lost. `None` for one that
    /// was established, or still may be.
    pub fn connect_error(&self) -> Option<ConnectError> {
        let never_stood = self.requested.is_some() && self.private_data.get().is_none();
        let why = self.link.lock().endpoint.ended().cloned();
        why.filter(|_| never_stood).map(|why| self.why_not_established(why))
    }

    /// Closes in order: what was posted is still sent, but for messages for which the other side has no room and what was
    /// posted after them; outcomes not yet known stay unknown. Does not wait.
    ///
    /// A message that waits for a receive when the other side hears of the end is lost, also one whose send has completed:
    /// where that matters, the other side's program answers before.
    pub fn disconnect(&self) {
        let mut core = self.link.lock();
        core.disconnect();
        self.settle(&mut core);
    }

    /// Ends the connection and tells the other side that another one took its place ([`Refusal::Fenced`]). On return nothing that came over it is
    /// carried out any more: what is being carried out was waited for, what is still on its way or was received in part is dropped. What the other
    /// side does past this CPU ends with its regions: see [`Region::fence`](crate::Region::fence). Does not wait for the other side, and must not
    /// be called while this thread has a [`Batch`] open.
    pub fn fence(&self) {
        let mut core = self.link.lock();
        core.end_for(Refusal::Fenced);
        self.settle(&mut core);
    }

    /// Ends the connection and tells the other side that this one was told to stop ([`Refusal::Stopping`]). On return nothing that came over it is
    /// carried out any more, as after [`fence`](Self::fence). Does not wait for the other side.
    pub fn stop(&self) {
        let mut core = self.link.lock();
        core.end_for(Refusal::Stopping);
        self.settle(&mut core);
    }

    /// How long nothing has come from the other side. What its device or CPU does to memory of this side by itself is not seen.
    pub fn silent_for(&self) -> Duration {
        self.link.lock().silent_for(self.queue.shared.driver.now())
    }

    /// What this side has moved on it.
    pub fn traffic(&self) -> Traffic {
        self.link.lock().traffic
    }

    /// The process that connected. `None` where it is not to be known: over the network, from another namespace of processes, and of a
    /// connection whose wire is gone.
    pub fn peer_process(&self) -> Option<PeerProcess> {
        self.link.lock().peer_process()
    }

    /// Closes in order and drives the queue, at most `timeout`, until what was posted has gone and the other side has closed
    /// too; one that says nothing is waited for a second. False when the time is up first.
    ///
    /// For programs that end next: what [`disconnect`](Self::disconnect) leaves to be sent goes out only while somebody
    /// drives the queue.
    pub fn close(self, timeout: Duration) -> bool {
        self.disconnect();
        self.wait_closed(timeout)
    }

    /// For a connection that has ended: drives the queue, at most `timeout`, until the other side has heard why, and nothing is sent or taken in any
    /// more. False when the time is up first.
    pub fn wait_closed(&self, timeout: Duration) -> bool {
        self.queue.wait_until(timeout, || self.link.lock().is_closed().then_some(())).is_some()
    }

    /// Waits for the end of the handshake, which the next event still tells of if it went well.
    pub(crate) fn wait_established(&self, timeout: Duration) -> Option<Result<(), ConnectionError>> {
        self.queue.wait_until(timeout, || {
            let mut core = self.link.lock();
            match core.events.next()? {
                Event::Established { private_data } => {
                    let _ = self.private_data.set(std::mem::take(private_data));
                    Some(Ok(()))
                }
                Event::Ended(why) => Some(Err(why.clone())),
                Event::Requested { .. } => {
                    Some(Err(ConnectionError::Malformed { what: "a request where an answer was due" }))
                }
            }
        })
    }

    /// Nothing is posted in a child.
    #[inline]
    fn check_process(&self) -> Result<(), PostError> {
        if self.link.is_here() { Ok(()) } else { Err(PostError::NotConnected(ConnectionError::Forked)) }
    }

    /// Hands over what finished while posting, and has the wire watched for what is left to send.
    fn settle(&self, core: &mut LinkCore) {
        if !self.link.is_here() {
            return;
        }
        if core.has_operations_only() && !core.has_outcomes() {
            // Its operations finish later, and the device tells of that.
            return;
        }
        let driver = &self.queue.shared.driver;
        let ended = core.endpoint.ended().is_some();
        if ended {
            core.drive(|| driver.now());
        }
        let has_outcomes = core.has_outcomes();
        // A thread of its own may be asleep. Without one the caller takes outcomes one at a time: what it leaves counts
        // against its send queue.
        let takes = !has_outcomes || driver.announces() || !driver.has_ready();
        if (takes && driver.collect(&self.link, core)) || has_outcomes || ended {
            driver.wake();
        }
        core.update_interest();
        driver.tell_interest(core);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if !self.link.is_here() {
            // It is its parent's, which goes on with it.
            return;
        }
        // Its descriptor is to close, whoever still drives the rest.
        self.link.lock().events.hide();
        self.disconnect();
    }
}

/// One operation that goes out on its own.
#[derive(Clone, Copy, Debug)]
pub struct Single<'c> {
    connection: &'c Connection,
    signal: Signal,
    context: u64,
}

impl<'c> Single<'c> {
    /// When it completes; [`Signal::Always`] at first.
    #[inline]
    #[must_use]
    pub fn signal(self, signal: Signal) -> Self {
        Self { signal, ..self }
    }

    /// The number that comes back with its completion; 0 at first.
    #[inline]
    #[must_use]
    pub fn context(self, context: u64) -> Self {
        Self { context, ..self }
    }

    /// Posts a write at `offset` (bytes) of the region.
    #[inline]
    pub fn write<'a>(self, to: &RemoteRegion, offset: u64, from: impl Into<Source<'a>>) -> Result<Ticket, PostError> {
        self.batch_of_one().write(to, offset, from)
    }

    /// Posts a flush: brings all earlier writes of this connection in the range to `level`.
    #[inline]
    pub fn flush(
        self,
        region: &RemoteRegion,
        range: impl RangeBounds<u64>,
        level: Durability,
    ) -> Result<Ticket, PostError> {
        self.batch_of_one().flush(region, range, level)
    }

    /// A batch in which nothing else is posted.
    #[inline]
    fn batch_of_one(self) -> Batch<'c> {
        let mut batch = self.in_batch();
        batch.submission = Submission::Single;
        batch
    }

    /// A batch that begins with it, for all other operations.
    #[inline]
    pub fn in_batch(self) -> Batch<'c> {
        let Self { connection, signal, context } = self;
        let (core, submission) = (connection.link.lock(), Submission::Batch);
        Batch { connection, core, signal, context, held: false, is_by_message: false, submission }
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
    is_by_message: bool,
    submission: Submission,
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

    /// Whether the operations posted from now on are messages that the target's CPU carries out, whatever the transport; at first they take
    /// the shortest way. A write of at most 4096 bytes that goes by message is torn by a crash between its aligned words of 8 bytes only. A
    /// flush by message makes durable what was written either way, one that goes direct what was written direct.
    pub fn by_message(&mut self, is_by_message: bool) -> &mut Self {
        self.is_by_message = is_by_message;
        self
    }

    /// Posts a write at `offset` (bytes) of the region.
    #[inline]
    pub fn write<'a>(
        &mut self,
        to: &RemoteRegion,
        offset: u64,
        from: impl Into<Source<'a>>,
    ) -> Result<Ticket, PostError> {
        self.connection.check_process()?;
        let from = from.into();
        let data = from.as_data();
        match self.join_run(to, offset, &data, data.len_bytes()) {
            Some(ticket) => Ok(ticket),
            None => self.write_first(to, offset, &data),
        }
    }

    /// Posts a write that also consumes a receive at the other side and hands it `immediate`.
    pub fn write_with_immediate<'a>(
        &mut self,
        to: &RemoteRegion,
        offset: u64,
        from: impl Into<Source<'a>>,
        immediate: u32,
    ) -> Result<Ticket, PostError> {
        let from = from.into();
        let data = from.as_data();
        let len_bytes = data.len_bytes();
        to.check(Access::WRITE, "remote writes", offset, len_bytes)?;
        self.post(Request {
            verb: Verb::Write { immediate: Some(immediate) },
            place: Some((to, offset)),
            len_bytes,
            data,
            is_by_message: false,
        })
    }

    /// Posts a read of the slice's length, from `offset` (bytes) of the region.
    #[expect(clippy::needless_pass_by_value, reason = "the slice belongs to the operation until it is complete")]
    pub fn read(&mut self, from: &RemoteRegion, offset: u64, into: RegionSlice) -> Result<Ticket, PostError> {
        from.check(Access::READ, "remote reads", offset, into.local.len_bytes)?;
        let (len_bytes, data) = (into.local.len_bytes, Data::Slice(&into));
        self.post(Request { verb: Verb::Read, place: Some((from, offset)), len_bytes, data, is_by_message: false })
    }

    /// Posts a flush: brings all earlier writes of this connection in the range to `level`.
    pub fn flush(
        &mut self,
        region: &RemoteRegion,
        range: impl RangeBounds<u64>,
        level: Durability,
    ) -> Result<Ticket, PostError> {
        self.connection.check_process()?;
        let (offset, len_bytes) = resolve(range, region.len_bytes())?;
        region.check_flush(level)?;
        if !self.is_by_message {
            self.core.tell_method(region, level);
        }
        let request = Request {
            is_by_message: self.is_by_message,
            ..Request::bare(Verb::Flush { level }, region, offset, len_bytes)
        };
        self.core.post(&request, self.signal, self.context, self.submission)
    }

    /// Posts an atomic write of 8 bytes (`value` as little-endian) at an offset divisible by 8: whole or not at all, also
    /// in a crash.
    pub fn atomic_write(&mut self, to: &RemoteRegion, offset: u64, value: u64) -> Result<Ticket, PostError> {
        check_atomic(to, Access::WRITE, "remote writes", offset)?;
        self.post(Request::bare(Verb::AtomicWrite { value }, to, offset, 8))
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
        self.post(Request::bare(Verb::CompareAndSwap { expected, new }, at, offset, 8))
    }

    /// Posts a wrapping addition to 8 bytes; completes with the number that was there.
    pub fn fetch_and_add(&mut self, at: &RemoteRegion, offset: u64, addend: u64) -> Result<Ticket, PostError> {
        check_atomic(at, Access::ATOMIC, "remote atomic operations", offset)?;
        self.post(Request::bare(Verb::FetchAndAdd { addend }, at, offset, 8))
    }

    /// Posts a message. See [`Connection::send`].
    pub fn send<'a>(&mut self, from: impl Into<Source<'a>>) -> Result<Ticket, PostError> {
        self.post(Request::message(Verb::Send { immediate: None }, from.into().as_data()))
    }

    /// Posts a message that hands `immediate` to its receive.
    pub fn send_with_immediate<'a>(
        &mut self,
        from: impl Into<Source<'a>>,
        immediate: u32,
    ) -> Result<Ticket, PostError> {
        self.post(Request::message(Verb::Send { immediate: Some(immediate) }, from.into().as_data()))
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
        let from = from.into();
        let data = from.as_data();
        let limit_bytes = self.core.append_max_bytes()?;
        if data.len_bytes() > limit_bytes {
            return Err(PostError::TooLong { len_bytes: data.len_bytes(), limit_bytes });
        }
        self.post(Request::message(Verb::Append, data))
    }

    /// Sends what was posted. Dropping the batch does the same.
    pub fn submit(self) {}

    /// Lets what was posted wait, to go out with the next batch or when the queue is next polled; beyond 256 KiB it goes
    /// out now.
    pub fn hold(mut self) {
        self.held = self.core.endpoint.output_waiting_bytes() < HOLD_MAX_BYTES;
    }

    /// Has a write join those before it, where it may and they may be joined.
    ///
    /// What is seldom needed is elsewhere, so that this, which every write of a run passes, has no registers to save.
    #[inline(never)]
    fn join_run(&mut self, to: &RemoteRegion, offset: u64, data: &Data<'_>, len_bytes: u64) -> Option<Ticket> {
        let may_join =
            self.signal == Signal::OnError && !self.is_by_message && to.allows(Access::WRITE, offset, len_bytes);
        if may_join && self.core.extend_run(to, (offset, len_bytes), self.context) {
            return self.core.append(to, (offset, len_bytes), data);
        }
        if may_join { self.begin_run(to, offset, data, len_bytes) } else { None }
    }

    /// The same where it does not go on where they end, or there are none.
    #[inline(never)]
    fn begin_run(&mut self, to: &RemoteRegion, offset: u64, data: &Data<'_>, len_bytes: u64) -> Option<Ticket> {
        self.core.join_run(to, (offset, len_bytes), data, (self.context, self.submission))
    }

    #[inline(never)]
    fn write_first(&mut self, to: &RemoteRegion, offset: u64, data: &Data<'_>) -> Result<Ticket, PostError> {
        let len_bytes = data.len_bytes();
        to.check(Access::WRITE, "remote writes", offset, len_bytes)?;
        let (verb, place) = (Verb::Write { immediate: None }, Some((to, offset)));
        let request = Request { verb, place, len_bytes, data: *data, is_by_message: self.is_by_message };
        self.core.post(&request, self.signal, self.context, self.submission)
    }

    /// Posts an operation of a kind for which it does not pay to have this once more.
    #[inline(never)]
    fn post(&mut self, request: Request<'_>) -> Result<Ticket, PostError> {
        self.connection.check_process()?;
        let request = Request { is_by_message: self.is_by_message, ..request };
        self.core.post(&request, self.signal, self.context, self.submission)
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        if !self.connection.link.is_here() {
            // Of a batch that was open at the fork the parent sends what was posted.
            return;
        }
        if !self.held && self.core.submit_operations() {
            return;
        }
        let driver = &self.connection.queue.shared.driver;
        if self.held {
            self.core.end_batch();
        }
        if !self.held {
            self.core.flush_output();
        } else if self.core.has_output() && (driver.announces() || driver.asks_epoll()) {
            // Nobody polls a queue that has a thread, and one with many connections polls those that are ready.
            self.core.watch_output();
        }
        self.connection.settle(&mut self.core);
    }
}

fn check_atomic(region: &RemoteRegion, right: Access, name: &'static str, offset: u64) -> Result<(), PostError> {
    region.check(right, name, offset, 8)?;
    if offset % 8 == 0 { Ok(()) } else { Err(PostError::Misaligned { offset }) }
}
