//! Connections, and the operations on them.

use std::{
    ffi::{c_int, c_void},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicI32, Ordering},
    },
    thread,
    time::Duration,
};

use pmof_locks::Mutex;
use pmof_verbs::{
    CmEventKind, CmId, EventChannel, Operation, Payload, Placement, QueuePair, Receive, RemoteAddress, WorkRequest,
};

use super::{Blocking, Channel, Cq, LOOK_MS, MrLocal, MrRemote, Peer, Usage, Waited, peer::SINK_BYTES, shared::place};
use crate::{
    connection::{EVENT_CLOSED, EVENT_ESTABLISHED, EVENT_LOST, EVENT_REJECTED, EVENT_UNDEFINED, EVENT_UNREACHABLE},
    error::{Code, Failure},
    handle::Deletion,
    log::{Level, log},
    settings::settings,
};

/// A message that was posted is sent and acknowledged within this time, where nothing is wrong: the device does not tell of one
/// whose completion was not asked for.
const LAST_MESSAGE: Duration = Duration::from_millis(10);

/// What a connection is made of.
pub(super) struct Parts {
    pub(super) peer: Arc<Peer>,
    pub(super) queue_pair: QueuePair,
    pub(super) id: CmId,
    pub(super) events: EventChannel,
    pub(super) channel: Option<Arc<Channel>>,
    pub(super) cq: Cq,
    pub(super) rcq: Option<Cq>,
    /// Of the other side's request.
    pub(super) private_data: Vec<u8>,
}

/// `rpma_conn`.
#[derive(Debug)]
pub(crate) struct Conn {
    queue_pair: Mutex<QueuePair>,
    number: u32,
    has_native_flush: bool,
    /// The other side's device writes to persistent memory: its application's claim.
    claims_direct_write: AtomicBool,
    peer: Arc<Peer>,
    channel: Option<Arc<Channel>>,
    cq: Cq,
    rcq: Option<Cq>,
    private_data: OnceLock<Vec<u8>>,
    /// A message was posted.
    has_sent: AtomicBool,
    /// The event that ended it, else undefined.
    end: AtomicI32,
    /// Held by the thread that waits for an event.
    waiting: Mutex<()>,
    blocking: Blocking,
    id: CmId,
    events: EventChannel,
}

/// How an operation is posted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Posting {
    pub(crate) is_signaled: bool,
    pub(crate) context: *const c_void,
}

impl Conn {
    pub(super) fn new(parts: Parts) -> Self {
        let private_data = OnceLock::new();
        if !parts.private_data.is_empty() {
            let _ = private_data.set(parts.private_data);
        }
        Self {
            number: parts.queue_pair.number(),
            has_native_flush: parts.queue_pair.has_flush(),
            queue_pair: Mutex::new(parts.queue_pair),
            claims_direct_write: AtomicBool::new(false),
            peer: parts.peer,
            channel: parts.channel,
            cq: parts.cq,
            rcq: parts.rcq,
            private_data,
            has_sent: AtomicBool::new(false),
            end: AtomicI32::new(EVENT_UNDEFINED),
            waiting: Mutex::new(()),
            blocking: Blocking::default(),
            id: parts.id,
            events: parts.events,
        }
    }

    /// The queues, for handles of the application.
    pub(crate) fn queues(&self) -> (Cq, Option<Cq>) {
        (self.cq.again(), self.rcq.as_ref().map(Cq::again))
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    pub(crate) fn private_data(&self) -> &[u8] {
        self.private_data.get().map_or(&[], Vec::as_slice)
    }

    pub(crate) fn channel(&self) -> Result<&Channel, Failure> {
        self.channel.as_deref().ok_or_else(|| Code::NotSharedChannel.into())
    }

    /// Whether the next event of the shared channel is one of the receives' queue.
    pub(crate) fn wait_for_outcome(&self, deletion: Deletion<'_>) -> Result<bool, Failure> {
        let channel = self.channel()?;
        match &self.rcq {
            Some(rcq) => Ok(channel.wait(&[&self.cq, rcq], deletion)?.is_same(rcq)),
            None => channel.wait(&[&self.cq], deletion).map(|_| false),
        }
    }

    pub(crate) fn apply_claim(&self, claims_direct_write: bool) {
        self.claims_direct_write.store(claims_direct_write, Ordering::Relaxed);
    }

    pub(crate) fn events_descriptor(&self) -> c_int {
        self.blocking.give(&self.events)
    }

    /// The next event; waits for it, unless the descriptor was set not to block. The end of the connection is reported again to
    /// every later wait.
    pub(crate) fn next_event(&self, deletion: Deletion<'_>) -> Result<c_int, Failure> {
        let blocks = self.blocking.blocks(&self.events);
        // A read of a descriptor that blocks would keep the channel's lock: only one thread polls, and no thread reads without data.
        let _waiting = blocks.then(|| self.waiting.lock());
        loop {
            deletion.check()?;
            self.events.check_descriptor()?;
            if !Blocking::is_readable(&self.events) {
                let end = self.end.load(Ordering::Relaxed);
                if !blocks {
                    return Err(Code::NoEvent.into());
                }
                if end != EVENT_UNDEFINED {
                    return Ok(end);
                }
                if Blocking::wait(&self.events, LOOK_MS) == Waited::Interrupted {
                    return Err(Code::NoEvent.into());
                }
                continue;
            }
            let Some(event) = self.events.next_event()? else { continue };
            return self.number_of(event.kind);
        }
    }

    fn number_of(&self, kind: CmEventKind) -> Result<c_int, Failure> {
        let number = match kind {
            CmEventKind::Established { private_data, .. } => {
                // That of the request, where this side took one, stays.
                if !private_data.is_empty() {
                    let _ = self.private_data.set(private_data);
                }
                return Ok(EVENT_ESTABLISHED);
            }
            CmEventKind::Disconnected | CmEventKind::TimewaitExit => EVENT_CLOSED,
            CmEventKind::ConnectError { .. } | CmEventKind::DeviceRemoval => EVENT_LOST,
            CmEventKind::Rejected { .. } => EVENT_REJECTED,
            CmEventKind::Unreachable { .. } => EVENT_UNREACHABLE,
            other => return Err(Failure::new(Code::Unknown, format!("an event without a name in librpma: {other:?}"))),
        };
        self.end.store(number, Ordering::Relaxed);
        Ok(number)
    }

    /// Disconnecting flushes what the device has yet to send: the last message gets its time first.
    pub(crate) fn disconnect(&self) -> Result<(), Failure> {
        if self.end.load(Ordering::Relaxed) == EVENT_UNDEFINED && self.has_sent.swap(false, Ordering::Relaxed) {
            thread::sleep(LAST_MESSAGE);
        }
        match self.id.disconnect() {
            // The other side was faster.
            Err(_) if self.end.load(Ordering::Relaxed) != EVENT_UNDEFINED => Ok(()),
            outcome => Ok(outcome?),
        }
    }

    #[expect(
        clippy::inline_always,
        reason = "where it is called the kind of operation is known: a third of its instructions fall away there"
    )]
    #[inline(always)]
    fn post(&self, posting: Posting, fence: bool, operation: Operation<'_>) -> Result<(), Failure> {
        let request =
            WorkRequest { id: posting.context.addr() as u64, signaled: posting.is_signaled, fence, operation };
        Ok(self.queue_pair.lock().post_one(&request)?)
    }

    #[inline]
    pub(crate) fn read(
        &self,
        posting: Posting,
        (into, into_offset): (Option<&MrLocal>, usize),
        (from, from_offset): (Option<&MrRemote>, usize),
        len_bytes: usize,
    ) -> Result<(), Failure> {
        let into = place(&self.peer, into, into_offset, len_bytes)?;
        let from = remote_address(from, from_offset, len_bytes)?;
        self.post(posting, false, Operation::Read { from, into })
    }

    #[inline]
    pub(crate) fn write(
        &self,
        posting: Posting,
        (to, to_offset): (Option<&MrRemote>, usize),
        (from, from_offset): (Option<&MrLocal>, usize),
        len_bytes: usize,
        immediate: Option<u32>,
    ) -> Result<(), Failure> {
        let to = remote_address(to, to_offset, len_bytes)?;
        let payload = payload(from, from_offset, len_bytes)?;
        let operation = match immediate {
            None => Operation::Write { to, payload },
            Some(immediate) => {
                self.has_sent.store(true, Ordering::Relaxed);
                Operation::WriteWithImmediate { to, payload, immediate }
            }
        };
        self.post(posting, false, operation)
    }

    /// Where the device has no atomic write, a plain one of 8 bytes that waits for the reads before it, flushes' among them.
    pub(crate) fn atomic_write(
        &self,
        posting: Posting,
        (to, to_offset): (&MrRemote, usize),
        value: [u8; 8],
    ) -> Result<(), Failure> {
        if to_offset % value.len() != 0 {
            return Err(Failure::invalid(format!("offset {to_offset} is not a multiple of 8")));
        }
        let to = to.place(to_offset, value.len())?;
        let is_native = self.queue_pair.lock().has_atomic_write();
        if is_native {
            return self.post(posting, false, Operation::AtomicWrite { to, value });
        }
        self.post(posting, true, Operation::Write { to, payload: Payload::Inline(&value) })
    }

    #[inline]
    pub(crate) fn flush(
        &self,
        posting: Posting,
        (at, offset): (&MrRemote, usize),
        len_bytes: usize,
        is_persistent: bool,
    ) -> Result<(), Failure> {
        check_flush(at.usage(), self.claims_direct_write.load(Ordering::Relaxed), is_persistent)?;
        let range = at.place(offset, len_bytes)?;
        if self.has_native_flush {
            return self.post(posting, false, native_flush(range, len_bytes, is_persistent));
        }
        if is_persistent {
            tell_of_the_claim(at)?;
        }
        let (from, len_bytes) = at.place_to_read(offset, SINK_BYTES);
        let into = self.peer.sink(len_bytes)?;
        self.post(posting, false, Operation::Read { from, into })
    }

    pub(crate) fn send(
        &self,
        posting: Posting,
        (from, offset): (Option<&MrLocal>, usize),
        len_bytes: usize,
        immediate: Option<u32>,
    ) -> Result<(), Failure> {
        let payload = payload(from, offset, len_bytes)?;
        self.has_sent.store(true, Ordering::Relaxed);
        let operation = match immediate {
            None => Operation::Send { payload },
            Some(immediate) => Operation::SendWithImmediate { payload, immediate },
        };
        self.post(posting, false, operation)
    }

    pub(crate) fn receive(
        &self,
        (into, offset): (Option<&MrLocal>, usize),
        len_bytes: usize,
        context: *const c_void,
    ) -> Result<(), Failure> {
        let into = place(&self.peer, into, offset, len_bytes)?;
        Ok(self.queue_pair.lock().post_receives(&[Receive { id: context.addr() as u64, into }])?)
    }
}

/// Whether the flush is allowed.
#[inline]
fn check_flush(usage: Usage, claims_direct_write: bool, is_persistent: bool) -> Result<(), Failure> {
    let (bit, kind) =
        if is_persistent { (Usage::FLUSH_PERSISTENT, "persistent") } else { (Usage::FLUSH_VISIBILITY, "visibility") };
    if !usage.contains(bit) {
        let why = format!("the memory was not registered for flushes of type {kind}");
        return Err(Failure::new(Code::NotSupported, why));
    }
    if is_persistent && !claims_direct_write {
        let why = "the other side does not claim direct write to pmem: apply its peer configuration first";
        return Err(Failure::new(Code::NotSupported, why));
    }
    Ok(())
}

/// A range too long for one flush has all of its memory flushed.
#[inline]
fn native_flush(at: RemoteAddress, len_bytes: usize, is_persistent: bool) -> Operation<'static> {
    let placement = if is_persistent { Placement::Persistent } else { Placement::Global };
    match u32::try_from(len_bytes) {
        Ok(len_bytes) => Operation::Flush { at, len_bytes, placement, whole_region: false },
        Err(_) => Operation::Flush { at, len_bytes: 0, placement, whole_region: true },
    }
}

/// A read does not prove persistence: that relies on the application's claim.
fn tell_of_the_claim(at: &MrRemote) -> Result<(), Failure> {
    if settings().is_strict {
        let why = "this device has no native flush, so that a persistent flush rests on the other side's claim of direct write \
                   only to pmem";
        return Err(Failure::new(Code::NotSupported, why));
    }
    if at.warns() {
        log(
            Level::Warning,
            c"rpma_flush",
            "PERSISTENT FLUSHES REST ON A CLAIM: this device has no native flush, so that they read behind the writes and \
             survive loss of power only if the other side's direct write to pmem is true (its platform keeps what devices \
             write: no DDIO, or eADR). PMOF_STRICT=1 refuses them instead",
        );
    }
    Ok(())
}

#[inline]
fn payload(from: Option<&MrLocal>, offset: usize, len_bytes: usize) -> Result<Payload<'static>, Failure> {
    match from {
        Some(from) => Ok(Payload::Sge(from.sge(offset, len_bytes)?)),
        None if offset == 0 && len_bytes == 0 => Ok(Payload::Empty),
        None => Err(Failure::invalid("without a memory registration, offset and length must be 0")),
    }
}

/// Nowhere, where there is no memory, for which offset and length must be 0.
#[inline]
fn remote_address(memory: Option<&MrRemote>, offset: usize, len_bytes: usize) -> Result<RemoteAddress, Failure> {
    match memory {
        Some(memory) => memory.place(offset, len_bytes),
        None if offset == 0 && len_bytes == 0 => Ok(RemoteAddress { address: 0, rkey: 0 }),
        None => Err(Failure::invalid("without the other side's memory, offset and length must be 0")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_goes_as_far_as_was_asked_for() {
        let at = RemoteAddress { address: 4096, rkey: 7 };
        for (is_persistent, expected) in [(true, Placement::Persistent), (false, Placement::Global)] {
            let Operation::Flush { at: place, len_bytes, placement, whole_region } =
                native_flush(at, 64, is_persistent)
            else {
                panic!("no flush")
            };
            assert_eq!((place, len_bytes, placement, whole_region), (at, 64, expected, false));
            let Operation::Flush { placement, whole_region, .. } = native_flush(at, 1 << 33, is_persistent) else {
                panic!("no flush")
            };
            assert_eq!((placement, whole_region), (expected, true));
        }
    }

    #[test]
    fn a_persistent_flush_needs_the_usage_and_the_claim() {
        let (visible, persistent) = (Usage::FLUSH_VISIBILITY, Usage::FLUSH_PERSISTENT);
        for (usage, claims, is_persistent, is_allowed) in [
            (visible, false, false, true),
            (visible, true, true, false),
            (persistent, true, true, true),
            (persistent, false, true, false),
            (persistent, true, false, false),
            (visible | persistent, true, true, true),
        ] {
            let refused = check_flush(usage, claims, is_persistent).map_err(|failure| failure.code());
            let expected = if is_allowed { Ok(()) } else { Err(Code::NotSupported) };
            assert_eq!(refused, expected, "{usage:?}, claim {claims}, persistent {is_persistent}");
        }
    }
}
