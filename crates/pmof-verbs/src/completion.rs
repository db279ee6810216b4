//! Completion queues.

use std::{
    fmt, io, mem,
    os::fd::{AsFd, BorrowedFd},
    ptr::{self, NonNull},
    sync::Arc,
};

use pmof_verbs_sys as sys;

use crate::{Device, VerbsError, device::set_non_blocking, int::int};

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Status {
    /// Done.
    Success,
    /// A receive was too small, or a message too long.
    LocalLength,
    /// The queue pair does not do that.
    LocalOperation,
    /// A gather entry names no region of the domain, or memory outside it.
    LocalProtection,
    /// Not carried out, because the queue pair went into error before.
    Flushed,
    /// The peer's answer was not understood.
    BadResponse,
    /// A write with immediate found memory that it may not write.
    LocalAccess,
    /// The peer takes no such request: an operation not enabled on its queue pair, or an address not aligned.
    RemoteInvalidRequest,
    /// The peer's region does not allow it: a wrong key, a range outside, or a right that it was not given.
    RemoteAccess,
    /// The peer failed to carry it out.
    RemoteOperation,
    /// No answer from the peer, after all retries.
    RetriesExceeded,
    /// The peer had no receive for it, after all retries.
    ReceiverNotReady,
    /// The peer gave it up.
    RemoteAborted,
    /// The device failed.
    Fatal,
    /// No answer in time.
    ResponseTimeout,
    /// Anything else, by its number in `enum ibv_wc_status`.
    Other(u32),
}

impl Status {
    fn of(number: sys::ibv_wc_status) -> Self {
        match number {
            sys::IBV_WC_SUCCESS => Self::Success,
            sys::IBV_WC_LOC_LEN_ERR => Self::LocalLength,
            sys::IBV_WC_LOC_QP_OP_ERR => Self::LocalOperation,
            sys::IBV_WC_LOC_PROT_ERR => Self::LocalProtection,
            sys::IBV_WC_WR_FLUSH_ERR => Self::Flushed,
            sys::IBV_WC_BAD_RESP_ERR => Self::BadResponse,
            sys::IBV_WC_LOC_ACCESS_ERR => Self::LocalAccess,
            sys::IBV_WC_REM_INV_REQ_ERR => Self::RemoteInvalidRequest,
            sys::IBV_WC_REM_ACCESS_ERR => Self::RemoteAccess,
            sys::IBV_WC_REM_OP_ERR => Self::RemoteOperation,
            sys::IBV_WC_RETRY_EXC_ERR => Self::RetriesExceeded,
            sys::IBV_WC_RNR_RETRY_EXC_ERR => Self::ReceiverNotReady,
            sys::IBV_WC_REM_ABORT_ERR => Self::RemoteAborted,
            sys::IBV_WC_FATAL_ERR => Self::Fatal,
            sys::IBV_WC_RESP_TIMEOUT_ERR => Self::ResponseTimeout,
            other => Self::Other(other),
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::Success => "success",
            Self::LocalLength => "a receive was too small or a message too long (local length error)",
            Self::LocalOperation => "the queue pair does not do that (local operation error)",
            Self::LocalProtection => "local memory is not registered for it (local protection error)",
            Self::Flushed => "not carried out, the connection failed before (flushed)",
            Self::BadResponse => "the peer's answer was not understood (bad response)",
            Self::LocalAccess => "local memory may not be written (local access error)",
            Self::RemoteInvalidRequest => "the peer takes no such request (remote invalid request)",
            Self::RemoteAccess => "the peer's region does not allow it (remote access error)",
            Self::RemoteOperation => "the peer failed to carry it out (remote operation error)",
            Self::RetriesExceeded => "no answer from the peer (retries exceeded)",
            Self::ReceiverNotReady => "the peer had no receive for it (receiver not ready)",
            Self::RemoteAborted => "the peer gave it up (remote abort)",
            Self::Fatal => "the device failed (fatal error)",
            Self::ResponseTimeout => "no answer in time (response timeout)",
            Self::Other(number) => return write!(f, "completion status {number}"),
        };
        f.write_str(text)
    }
}

/// What a completion is of. Of a request that failed nobody knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Opcode {
    /// A send.
    Send,
    /// A write.
    Write,
    /// A read.
    Read,
    /// A compare-and-swap.
    CompareAndSwap,
    /// A fetch-and-add.
    FetchAndAdd,
    /// A flush.
    Flush,
    /// An atomic write.
    AtomicWrite,
    /// A receive that a send took.
    Receive,
    /// A receive that a write with immediate took.
    ReceiveWriteWithImmediate,
    /// Anything else, by its number in `enum ibv_wc_opcode`.
    Other(u32),
}

/// One completion.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct WorkCompletion(sys::ibv_wc);

impl WorkCompletion {
    /// The id of the request or receive.
    #[inline]
    pub fn wr_id(&self) -> u64 {
        self.0.wr_id
    }

    /// True if it was done.
    #[inline]
    pub fn is_success(&self) -> bool {
        self.0.status == sys::IBV_WC_SUCCESS
    }

    /// How it ended.
    #[inline]
    pub fn status(&self) -> Status {
        Status::of(self.0.status)
    }

    /// What it is of; of any meaning on success only.
    #[inline]
    pub fn opcode(&self) -> Opcode {
        match self.0.opcode {
            sys::IBV_WC_SEND => Opcode::Send,
            sys::IBV_WC_RDMA_WRITE => Opcode::Write,
            sys::IBV_WC_RDMA_READ => Opcode::Read,
            sys::IBV_WC_COMP_SWAP => Opcode::CompareAndSwap,
            sys::IBV_WC_FETCH_ADD => Opcode::FetchAndAdd,
            sys::IBV_WC_FLUSH => Opcode::Flush,
            sys::IBV_WC_ATOMIC_WRITE => Opcode::AtomicWrite,
            sys::IBV_WC_RECV => Opcode::Receive,
            sys::IBV_WC_RECV_RDMA_WITH_IMM => Opcode::ReceiveWriteWithImmediate,
            other => Opcode::Other(other),
        }
    }

    /// How many bytes a receive or a read took; of any meaning on success only.
    #[inline]
    pub fn byte_len(&self) -> u32 {
        self.0.byte_len
    }

    /// The number that came with a receive.
    #[inline]
    pub fn imm(&self) -> Option<u32> {
        if self.0.wc_flags & sys::IBV_WC_WITH_IMM == 0 {
            return None;
        }
        // SAFETY: both fields of the union are plain numbers of the same size.
        Some(u32::from_be(unsafe { self.0.__bindgen_anon_1.imm_data }))
    }

    /// The number of the queue pair.
    #[inline]
    pub fn qp_num(&self) -> u32 {
        self.0.qp_num
    }

    /// The device's own number for the failure.
    #[inline]
    pub fn vendor_err(&self) -> u32 {
        self.0.vendor_err
    }
}

impl Default for WorkCompletion {
    fn default() -> Self {
        // SAFETY: all zeroes are a valid completion.
        Self(unsafe { mem::zeroed() })
    }
}

impl fmt::Debug for WorkCompletion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkCompletion")
            .field("wr_id", &self.wr_id())
            .field("status", &self.status())
            .field("opcode", &self.opcode())
            .field("byte_len", &self.byte_len())
            .field("imm", &self.imm())
            .field("qp_num", &self.qp_num())
            .field("vendor_err", &self.vendor_err())
            .finish()
    }
}

/// A completion queue, with a completion channel of its own where that was asked for. Clones are the same queue.
///
/// More completions than entries are an overrun: the queue and the queue pairs on it then fail. Whoever posts counts.
#[derive(Clone)]
pub struct CompletionQueue(Arc<Queue>);

struct Queue {
    raw: NonNull<sys::ibv_cq>,
    channel: Option<Arc<CompletionChannel>>,
    entries: u32,
    device: Device,
}

// SAFETY: libibverbs allows calls on one completion queue from several threads at once.
unsafe impl Send for Queue {}
// SAFETY: libibverbs allows calls on one completion queue from several threads at once.
unsafe impl Sync for Queue {}

impl CompletionQueue {
    /// A queue of at least `entries` (1 to the device's `max_completion_entries`). `notified` gives it a descriptor that
    /// tells of completions.
    pub fn new(device: &Device, entries: u32, notified: bool) -> Result<Self, VerbsError> {
        let channel = if notified { Some(CompletionChannel::new(device)?) } else { None };
        Self::create(device, entries, channel)
    }

    /// The same with a channel that other queues of the device have too.
    pub fn on_channel(channel: &Arc<CompletionChannel>, entries: u32) -> Result<Self, VerbsError> {
        Self::create(&channel.device, entries, Some(Arc::clone(channel)))
    }

    fn create(device: &Device, entries: u32, channel: Option<Arc<CompletionChannel>>) -> Result<Self, VerbsError> {
        let most = device.capabilities().max_completion_entries;
        if !(1..=most).contains(&entries) {
            let (what, value) = ("the number of completion queue entries", u64::from(entries));
            return Err(VerbsError::OutOfRange { what, value, least: 1, most: u64::from(most) });
        }
        let raw_channel = channel.as_ref().map_or(ptr::null_mut(), |channel| channel.raw.as_ptr());
        // SAFETY: the device keeps its context open; the channel is alive and of that context.
        let raw =
            unsafe { (device.verbs().ibv_create_cq)(device.context(), int(entries), ptr::null_mut(), raw_channel, 0) };
        let raw = NonNull::new(raw).ok_or_else(|| VerbsError::last("ibv_create_cq", device.name()))?;
        // SAFETY: the library made the queue.
        let entries = unsafe { (*raw.as_ptr()).cqe }.unsigned_abs();
        Ok(Self(Arc::new(Queue { raw, channel, entries, device: device.clone() })))
    }

    /// Takes completions that are there, and returns how many: at most as many as `into` has room for.
    #[inline]
    pub fn poll(&self, into: &mut [WorkCompletion]) -> Result<usize, VerbsError> {
        let count = i32::try_from(into.len()).unwrap_or(i32::MAX);
        // SAFETY: the queue is alive; `WorkCompletion` is an `ibv_wc`, and there is room for `count` of them.
        let taken = unsafe { sys::ibv_poll_cq(self.raw(), count, into.as_mut_ptr().cast()) };
        usize::try_from(taken).map_err(|_| self.poll_failed(taken))
    }

    /// Asks for one event on the descriptor at the next completion. Completions that came before do not count: poll
    /// again after this call.
    pub fn request_notify(&self) -> Result<(), VerbsError> {
        // SAFETY: the queue is alive.
        match unsafe { sys::ibv_req_notify_cq(self.raw(), 0) } {
            0 => Ok(()),
            errno => Err(self.failed("ibv_req_notify_cq", errno)),
        }
    }

    /// Takes one event of the channel, also where it is of another queue on it; false if there is none. Does not wait,
    /// unless the descriptor was set to block.
    pub fn take_event(&self) -> Result<bool, VerbsError> {
        let Some(channel) = &self.0.channel else { return Ok(false) };
        Ok(channel.take_event()?.is_some())
    }

    /// What events of the channel name this queue by.
    pub fn key(&self) -> QueueKey {
        QueueKey(self.raw().addr())
    }

    /// Where events show; `None` for a queue that is not notified.
    pub fn channel(&self) -> Option<&Arc<CompletionChannel>> {
        self.0.channel.as_ref()
    }

    /// How many completions fit.
    pub fn entries(&self) -> u32 {
        self.0.entries
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    #[inline]
    pub(crate) fn raw(&self) -> *mut sys::ibv_cq {
        self.0.raw.as_ptr()
    }

    #[cold]
    fn poll_failed(&self, number: i32) -> VerbsError {
        // Providers answer -1 as often as the number of an error.
        self.failed("ibv_poll_cq", if number == -1 { libc::EIO } else { number.saturating_neg() })
    }

    fn failed(&self, call: &'static str, errno: i32) -> VerbsError {
        VerbsError::call(call, self.0.device.name(), io::Error::from_raw_os_error(errno))
    }
}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionQueue")
            .field("device", self.device())
            .field("entries", &self.entries())
            .finish_non_exhaustive()
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: this was the last handle; queue pairs on the queue keep one. Every event taken was acknowledged, so
        // the call does not wait.
        unsafe { (self.device.verbs().ibv_destroy_cq)(self.raw.as_ptr()) };
    }
}

/// Names a queue among those of one channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueKey(usize);

/// The completion channel of queues, which it may outlive. Its descriptor is readable after a completion that
/// [`CompletionQueue::request_notify`] asked to be told of.
pub struct CompletionChannel {
    raw: NonNull<sys::ibv_comp_channel>,
    /// Keeps the context.
    device: Device,
}

// SAFETY: the channel is used for its descriptor, which does not change, and to take events, which any thread may.
unsafe impl Send for CompletionChannel {}
// SAFETY: the channel is used for its descriptor, which does not change, and to take events, which any thread may.
unsafe impl Sync for CompletionChannel {}

impl CompletionChannel {
    /// A channel for queues of the device. Its descriptor does not block.
    pub fn new(device: &Device) -> Result<Arc<Self>, VerbsError> {
        // SAFETY: the device keeps its context open.
        let raw = unsafe { (device.verbs().ibv_create_comp_channel)(device.context()) };
        let raw = NonNull::new(raw).ok_or_else(|| VerbsError::last("ibv_create_comp_channel", device.name()))?;
        let channel = Self { raw, device: device.clone() };
        // SAFETY: the library made the channel.
        set_non_blocking(unsafe { (*raw.as_ptr()).fd })
            .map_err(|error| VerbsError::call("fcntl", device.name(), error))?;
        Ok(Arc::new(channel))
    }

    /// Takes one event, and tells whose; `None` if there is none. Does not wait, unless the descriptor was set to block.
    pub fn take_event(&self) -> Result<Option<QueueKey>, VerbsError> {
        let (mut queue, mut context) = (ptr::null_mut(), ptr::null_mut());
        let verbs = self.device.verbs();
        // SAFETY: the channel is alive, both places can be written.
        let errno = unsafe { (verbs.ibv_get_cq_event)(self.raw.as_ptr(), &raw mut queue, &raw mut context) };
        if errno != 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
                _ => Err(VerbsError::call("ibv_get_cq_event", self.device.name(), error)),
            };
        }
        // SAFETY: a queue lives until all its events that were taken are acknowledged, each once; this one is now.
        unsafe { (verbs.ibv_ack_cq_events)(queue, 1) };
        Ok(Some(QueueKey(queue.addr())))
    }
}

impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel owns the descriptor and closes it when it is dropped.
        unsafe { BorrowedFd::borrow_raw((*self.raw.as_ptr()).fd) }
    }
}

impl fmt::Debug for CompletionChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionChannel").field("device", &self.device).finish_non_exhaustive()
    }
}

impl Drop for CompletionChannel {
    fn drop(&mut self) {
        // SAFETY: the queues on the channel are gone: each keeps its channel until after itself.
        unsafe { (self.device.verbs().ibv_destroy_comp_channel)(self.raw.as_ptr()) };
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::HashSet, ffi::CStr};

    use super::*;

    #[test]
    fn every_status_of_a_connection_has_its_own_words() {
        let of_connections = (sys::IBV_WC_SUCCESS..=sys::IBV_WC_GENERAL_ERR).map(Status::of);
        let words: HashSet<_> = of_connections.clone().map(|status| status.to_string()).collect();
        assert_eq!(words.len(), of_connections.count());
        assert_eq!(Status::of(99), Status::Other(99));
    }

    #[test]
    fn the_words_are_those_of_the_library() {
        let Ok(verbs) = sys::Verbs::load() else {
            skip_report::skipped!("libibverbs is not installed");
            return;
        };
        for (number, of_ours) in [
            (sys::IBV_WC_LOC_PROT_ERR, "local protection error"),
            (sys::IBV_WC_REM_ACCESS_ERR, "remote access error"),
            (sys::IBV_WC_REM_INV_REQ_ERR, "remote invalid request"),
            (sys::IBV_WC_REM_OP_ERR, "remote operation error"),
            (sys::IBV_WC_WR_FLUSH_ERR, "flushed"),
        ] {
            // SAFETY: the library answers any number with a C string of its own.
            let text = unsafe { CStr::from_ptr((verbs.ibv_wc_status_str)(number)) }.to_str().unwrap();
            assert!(Status::of(number).to_string().contains(of_ours), "{of_ours}");
            assert!(text.to_lowercase().contains(of_ours), "{text}");
        }
    }

    #[test]
    fn an_immediate_is_there_only_if_it_came() {
        let mut completion = WorkCompletion::default();
        completion.0.__bindgen_anon_1.imm_data = 0x0102_0304_u32.to_be();
        assert_eq!(completion.imm(), None);
        completion.0.wc_flags = sys::IBV_WC_WITH_IMM;
        assert_eq!(completion.imm(), Some(0x0102_0304));
    }
}
