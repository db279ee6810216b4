//! Reliable connected queue pairs.

use std::{borrow::Borrow, collections::HashSet, fmt, io, mem, ptr::NonNull, sync::Arc};

use pmof_verbs_sys as sys;

use crate::{
    CmId, CompletionQueue, DeviceInfo, Operation, Payload, PostFailure, ProtectionDomain, Receive, ReceiveFailure,
    SharedReceiveQueue, VerbsError, WorkRequest,
    classic::{Chain, Limits},
    cm::Identifier,
    int::int,
    receive::post_chained,
};

/// What every queue pair does.
const BASE: u64 =
    sys::IBV_QP_EX_WITH_RDMA_WRITE as u64 | sys::IBV_QP_EX_WITH_SEND as u64 | sys::IBV_QP_EX_WITH_RDMA_READ as u64;
/// What it does besides on all networks but iWARP.
const IMMEDIATE: u64 = sys::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM as u64 | sys::IBV_QP_EX_WITH_SEND_WITH_IMM as u64;
const ATOMICS: u64 = sys::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP as u64 | sys::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD as u64;
const FLUSH: u64 = sys::IBV_QP_EX_WITH_FLUSH as u64;
const ATOMIC_WRITE: u64 = sys::IBV_QP_EX_WITH_ATOMIC_WRITE as u64;

/// How a queue pair is made.
#[derive(Clone, Debug)]
pub struct QueuePairOptions {
    /// Where requests complete.
    pub send_cq: CompletionQueue,
    /// Where receives complete; may be the same.
    pub receive_cq: CompletionQueue,
    /// Where receives come from, if not from a queue of its own.
    pub srq: Option<SharedReceiveQueue>,
    /// How many requests may be posted and not completed, at least 1.
    pub send_depth: u32,
    /// The same of receives; not used with a shared queue.
    pub receive_depth: u32,
    /// How many inline bytes are wanted; a device that has fewer gives none.
    pub inline_bytes: u32,
    /// The most ranges of one request or receive, at least 1.
    pub max_sge: u32,
    /// Native flush is wanted.
    pub flush: bool,
    /// Atomic write is wanted.
    pub atomic_write: bool,
    /// Post with `ibv_post_send` also where the provider has extended queue pairs, to compare the two. There is no flush and
    /// no atomic write then.
    pub classic: bool,
}

/// The state of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum QueuePairState {
    /// Made.
    Reset,
    /// Takes receives.
    Initialized,
    /// Receives.
    ReadyToReceive,
    /// Connected.
    ReadyToSend,
    /// Failed or disconnected: everything posted completes as flushed.
    Error,
    /// Anything else.
    Other,
}

/// How requests reach the provider; decided when the queue pair is made.
enum Posting {
    /// Request by request with `ibv_wr_*`.
    Extended(NonNull<sys::ibv_qp_ex>),
    /// As a list, with `ibv_post_send`.
    Classic(Chain),
}

/// A reliable connected queue pair on a [`CmId`]. Keeps everything that it uses.
pub struct QueuePair {
    posting: Posting,
    /// Requests were appended that were not posted.
    is_begun: bool,
    raw: NonNull<sys::ibv_qp>,
    available: u64,
    inline_max: u32,
    /// Of a request: at most [`crate::INLINE_BYTES`].
    inline_max_len: usize,
    send_depth: u32,
    number: u32,
    id: Arc<Identifier>,
    options: QueuePairOptions,
    domain: ProtectionDomain,
}

// SAFETY: a queue pair may be used from any thread; posting, which is for one thread at a time, takes `&mut`.
unsafe impl Send for QueuePair {}
// SAFETY: what takes `&` are calls that libibverbs allows from several threads at once.
unsafe impl Sync for QueuePair {}

impl CmId {
    /// Makes the queue pair of this connection, once it has a device. Where the device lacks the flush, the atomic write
    /// or the inline bytes that are wanted, it is made without; ask the queue pair. Where its provider lacks extended queue
    /// pairs, requests are posted with `ibv_post_send`.
    ///
    /// # Errors
    /// What the device says where it is asked for least.
    pub fn create_queue_pair(
        &self,
        domain: &ProtectionDomain,
        options: &QueuePairOptions,
    ) -> Result<QueuePair, VerbsError> {
        let device = self.device()?;
        let of_others = [
            (domain.device(), "the protection domain"),
            (options.send_cq.device(), "the send completion queue"),
            (options.receive_cq.device(), "the receive completion queue"),
        ];
        let of_srq = options.srq.as_ref().map(|srq| (srq.device(), "the shared receive queue"));
        if let Some((_, what)) = of_others.into_iter().chain(of_srq).find(|(other, _)| !device.is_same(other)) {
            return Err(VerbsError::OtherDevice { what });
        }
        let mut last_error = VerbsError::NotBound;
        for (operations, inline_bytes) in attempts(options, device.capabilities()) {
            match self.try_create(domain, options, operations, inline_bytes) {
                Ok(queue_pair) => return Ok(queue_pair),
                Err(error) => last_error = error,
            }
        }
        Err(last_error)
    }

    /// `operations`: those of an extended queue pair, or none for a classic one.
    fn try_create(
        &self,
        domain: &ProtectionDomain,
        options: &QueuePairOptions,
        operations: Option<u64>,
        inline_bytes: u32,
    ) -> Result<QueuePair, VerbsError> {
        let id = self.identifier();
        // SAFETY: all zeroes are attributes that ask for nothing.
        let mut attributes: sys::ibv_qp_init_attr_ex = unsafe { mem::zeroed() };
        attributes.send_cq = options.send_cq.raw();
        attributes.recv_cq = options.receive_cq.raw();
        if let Some(srq) = &options.srq {
            attributes.srq = srq.raw();
        }
        attributes.cap = sys::ibv_qp_cap {
            max_send_wr: options.send_depth,
            max_recv_wr: if options.srq.is_some() { 0 } else { options.receive_depth },
            max_send_sge: options.max_sge,
            max_recv_sge: options.max_sge,
            max_inline_data: inline_bytes,
        };
        attributes.qp_type = sys::IBV_QPT_RC;
        attributes.comp_mask = sys::IBV_QP_INIT_ATTR_PD;
        attributes.pd = domain.raw();
        if let Some(operations) = operations {
            attributes.comp_mask |= sys::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
            attributes.send_ops_flags = operations;
        }
        let made = id.locked(|raw| {
            // SAFETY: the identifier is alive, and so is what the attributes name, all of the identifier's device.
            let result = unsafe { (id.verbs().rdma_create_qp_ex)(raw, &raw mut attributes) };
            // SAFETY: the identifier is alive; on success it has a queue pair.
            (result == 0).then(|| unsafe { NonNull::new((*raw).qp) }).flatten().ok_or_else(io::Error::last_os_error)
        });
        let raw = made.map_err(|error| VerbsError::call("rdma_create_qp_ex", domain.device().name(), error))?;
        // SAFETY: the queue pair is alive and was made with these operations.
        let found = unsafe { posting(id.verbs(), raw, operations, domain.device().capabilities()) };
        let Some((posting, available)) = found else {
            // SAFETY: the identifier has the queue pair that was made above, of which there is no other handle.
            id.locked(|raw| unsafe { (id.verbs().rdma_destroy_qp)(raw) });
            let error = io::Error::from_raw_os_error(libc::EOPNOTSUPP);
            return Err(VerbsError::call("ibv_qp_to_qp_ex", domain.device().name(), error));
        };
        Ok(QueuePair {
            posting,
            is_begun: false,
            raw,
            available,
            inline_max: attributes.cap.max_inline_data,
            inline_max_len: (attributes.cap.max_inline_data as usize).min(crate::INLINE_BYTES),
            send_depth: attributes.cap.max_send_wr,
            // SAFETY: the queue pair is alive.
            number: unsafe { (*raw.as_ptr()).qp_num },
            id: Arc::clone(id),
            options: options.clone(),
            domain: domain.clone(),
        })
    }
}

/// How a queue pair that was made with these operations is posted to, and which it has; `None` where the provider lacks one
/// that was accepted.
///
/// # Safety
///
/// The queue pair is alive and was made with `operations`.
unsafe fn posting(
    verbs: &sys::Verbs,
    raw: NonNull<sys::ibv_qp>,
    operations: Option<u64>,
    has: &DeviceInfo,
) -> Option<(Posting, u64)> {
    let Some(operations) = operations else {
        return Some((Posting::Classic(Chain::default()), base(has) | if has.atomics { ATOMICS } else { 0 }));
    };
    // SAFETY: the queue pair is alive; the call gives another view of it.
    let extended = NonNull::new(unsafe { (verbs.ibv_qp_to_qp_ex)(raw.as_ptr()) })?;
    // SAFETY: the queue pair is alive and was made with `operations`.
    let available = unsafe { sys::available_send_ops(extended.as_ptr(), operations) }.ok()?;
    (available & base(has) == base(has)).then_some((Posting::Extended(extended), available))
}

/// What every queue pair of a device does.
fn base(has: &DeviceInfo) -> u64 {
    if has.has_immediate() { BASE | IMMEDIATE } else { BASE }
}

/// What to ask the device for, the best first: operations of an extended queue pair or none for a classic one, and inline
/// bytes.
fn attempts(options: &QueuePairOptions, has: &DeviceInfo) -> Vec<(Option<u64>, u32)> {
    attempts_of((options.flush, options.atomic_write, options.classic), options.inline_bytes, has)
}

/// `wanted` is flush, atomic write, and classic posting alone.
fn attempts_of(wanted: (bool, bool, bool), inline_bytes: u32, has: &DeviceInfo) -> Vec<(Option<u64>, u32)> {
    let base = base(has);
    let more = if has.atomics { base | ATOMICS } else { base };
    let has_flush = has.native_flush_global || has.native_flush_persistent;
    let flush = if wanted.0 && has_flush { FLUSH } else { 0 };
    let atomic_write = if wanted.1 && has.atomic_write { ATOMIC_WRITE } else { 0 };
    let mut attempts: Vec<_> = [more | flush | atomic_write, more, base]
        .into_iter()
        .filter(|_| !wanted.2)
        .flat_map(|operations| [(Some(operations), inline_bytes), (Some(operations), 0)])
        // Providers of this kind have less room: soft-iWARP 80 bytes.
        .chain([(None, inline_bytes), (None, inline_bytes / 2), (None, 0)])
        .collect();
    let mut tried = HashSet::new();
    attempts.retain(|attempt| tried.insert(*attempt));
    attempts
}

impl QueuePair {
    /// Posts the requests, in order, with one doorbell: behind those that were [appended](Self::append), if there are any.
    ///
    /// The connection is established. At most as many requests may be under way as the queue pair was made for.
    ///
    /// # Errors
    /// None of the requests was posted, nor what was appended; but with [`PostFailure::Partial`], which only queue pairs give that are not
    /// [extended](Self::is_extended), the first ones may have been.
    #[inline]
    pub fn post<'r>(
        &mut self,
        requests: impl IntoIterator<Item = impl Borrow<WorkRequest<'r>>>,
    ) -> Result<(), PostFailure> {
        if !self.is_extended() {
            return self.post_classic(requests);
        }
        for request in requests {
            self.append(request.borrow())?;
        }
        self.ring()
    }

    /// Posts one request: [`post`](Self::post) with less around it.
    #[expect(
        clippy::inline_always,
        reason = "where it is called the kind of request is known: most of this falls away there"
    )]
    #[inline(always)]
    pub fn post_one(&mut self, request: &WorkRequest<'_>) -> Result<(), PostFailure> {
        if !self.is_extended() {
            return self.post_classic([request]);
        }
        self.append(request)?;
        self.ring()
    }

    /// Writes a request into the device's own ring: it is posted with what is appended or posted next, or by [`ring`](Self::ring). Its
    /// inline bytes are copied. Some providers hold a lock until then, so the same thread rings, before the queue pair is used in another
    /// way.
    ///
    /// # Errors
    /// Nothing is posted of what was appended. [`PostFailure::Unsupported`] where the queue pair is not [extended](Self::is_extended).
    #[expect(clippy::inline_always, reason = "as its callers")]
    #[inline(always)]
    pub fn append(&mut self, request: &WorkRequest<'_>) -> Result<(), PostFailure> {
        let &Posting::Extended(extended) = &self.posting else {
            return Err(PostFailure::Unsupported { operation: "appending" });
        };
        let qp = extended.as_ptr();
        if !self.is_begun {
            // SAFETY: the queue pair is alive, its operations were asked for, and no batch is begun, which the flag says.
            unsafe { sys::ibv_wr_start(qp) };
            self.is_begun = true;
        }
        // SAFETY: a batch is begun.
        unsafe { self.build(qp, request) }.inspect_err(|_| self.abort())
    }

    /// Posts what was [appended](Self::append), with one doorbell. Does nothing where that is nothing.
    ///
    /// # Errors
    /// As of [`post`](Self::post).
    #[inline]
    pub fn ring(&mut self) -> Result<(), PostFailure> {
        let (&Posting::Extended(extended), true) = (&self.posting, self.is_begun) else { return Ok(()) };
        self.is_begun = false;
        // SAFETY: a batch was begun. Memory that is registered is a medium's, which outlives its registration, and of which no references
        // are formed.
        match unsafe { sys::ibv_wr_complete(extended.as_ptr()) } {
            0 => Ok(()),
            errno => Err(PostFailure::of(errno)),
        }
    }

    /// True if requests were [appended](Self::append) that were not posted.
    #[inline]
    pub fn has_appended(&self) -> bool {
        self.is_begun
    }

    /// Drops what was appended.
    #[cold]
    fn abort(&mut self) {
        if let (&Posting::Extended(extended), true) = (&self.posting, self.is_begun) {
            self.is_begun = false;
            // SAFETY: a batch was begun.
            unsafe { sys::ibv_wr_abort(extended.as_ptr()) };
        }
    }

    #[inline(never)]
    fn post_classic<'r>(
        &mut self,
        requests: impl IntoIterator<Item = impl Borrow<WorkRequest<'r>>>,
    ) -> Result<(), PostFailure> {
        let limits = Limits {
            has_immediate: self.has_immediate(),
            has_atomics: self.has_atomics(),
            inline_max_len: self.inline_max_len,
        };
        let Posting::Classic(chain) = &mut self.posting else { return Ok(()) };
        chain.clear();
        for request in requests {
            chain.add(request.borrow(), limits)?;
        }
        // SAFETY: the queue pair is alive; the list and its ranges can be read during the call, and so can inline bytes, which
        // are borrowed for longer. Memory that is registered is a medium's, which outlives its registration, and of which no
        // references are formed.
        chain.post(|first, bad| unsafe { sys::ibv_post_send(self.raw.as_ptr(), first, bad) })
    }

    /// Posts receives, in order. `EINVAL` where the queue pair has a shared receive queue.
    #[inline]
    pub fn post_receives(&mut self, receives: &[Receive]) -> Result<(), ReceiveFailure> {
        if self.options.srq.is_some() {
            return Err(ReceiveFailure { posted: 0, errno: libc::EINVAL });
        }
        // SAFETY: the queue pair is alive and has no shared receive queue; the chain and its lists can be read during
        // the call. Memory that is registered is a medium's, which outlives its registration.
        post_chained(receives, |first, bad| unsafe { sys::ibv_post_recv(self.raw.as_ptr(), first, bad) })
    }

    /// The number by which completions and asynchronous events name it.
    #[inline]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// True if requests are posted with `ibv_wr_*`, false if with `ibv_post_send`.
    #[inline]
    pub fn is_extended(&self) -> bool {
        matches!(self.posting, Posting::Extended(_))
    }

    /// True if it posts [`Operation::SendWithImmediate`] and [`Operation::WriteWithImmediate`].
    #[inline]
    pub fn has_immediate(&self) -> bool {
        self.available & IMMEDIATE == IMMEDIATE
    }

    /// True if it posts [`Operation::Flush`].
    #[inline]
    pub fn has_flush(&self) -> bool {
        self.available & FLUSH != 0
    }

    /// True if it posts [`Operation::AtomicWrite`].
    #[inline]
    pub fn has_atomic_write(&self) -> bool {
        self.available & ATOMIC_WRITE != 0
    }

    /// True if it posts [`Operation::CompareAndSwap`] and [`Operation::FetchAndAdd`].
    #[inline]
    pub fn has_atomics(&self) -> bool {
        self.available & ATOMICS == ATOMICS
    }

    /// How many inline bytes it takes; a request carries at most [`crate::INLINE_BYTES`].
    #[inline]
    pub fn inline_max_bytes(&self) -> u32 {
        self.inline_max
    }

    /// How many requests fit, at least as many as were asked for.
    pub fn send_depth(&self) -> u32 {
        self.send_depth
    }

    /// The protection domain.
    pub fn domain(&self) -> &ProtectionDomain {
        &self.domain
    }

    /// How it was made.
    pub fn options(&self) -> &QueuePairOptions {
        &self.options
    }

    /// Its state; asks the kernel.
    pub fn state(&self) -> Result<QueuePairState, VerbsError> {
        // SAFETY: all zeroes are valid attributes.
        let (mut attributes, mut init) = unsafe { mem::zeroed::<(sys::ibv_qp_attr, sys::ibv_qp_init_attr)>() };
        let (verbs, mask) = (self.id.verbs(), int(sys::IBV_QP_STATE));
        // SAFETY: the queue pair is alive; the attributes can be written.
        let errno = unsafe { (verbs.ibv_query_qp)(self.raw.as_ptr(), &raw mut attributes, mask, &raw mut init) };
        if errno != 0 {
            return Err(self.failed("ibv_query_qp", errno));
        }
        Ok(match attributes.qp_state {
            sys::IBV_QPS_RESET => QueuePairState::Reset,
            sys::IBV_QPS_INIT => QueuePairState::Initialized,
            sys::IBV_QPS_RTR => QueuePairState::ReadyToReceive,
            sys::IBV_QPS_RTS => QueuePairState::ReadyToSend,
            sys::IBV_QPS_ERR => QueuePairState::Error,
            _ => QueuePairState::Other,
        })
    }

    /// Ends everything under way here, which then completes as flushed. The peer is not told.
    pub fn modify_to_error(&self) -> Result<(), VerbsError> {
        self.modify(sys::IBV_QP_STATE, |attributes| attributes.qp_state = sys::IBV_QPS_ERR)
    }

    /// How long a peer waits before it sends a request again that found no receive here, as a code of the specification:
    /// 1 is 0.01 ms, 12 is 0.64 ms, 31 is 491 ms; 0, with which connections are made, is 655 ms. For an established
    /// connection.
    pub fn set_receiver_not_ready_timer(&self, code: u8) -> Result<(), VerbsError> {
        if code > 31 {
            let (what, value) = ("the code of the receiver-not-ready timer", u64::from(code));
            return Err(VerbsError::OutOfRange { what, value, least: 0, most: 31 });
        }
        self.modify(sys::IBV_QP_MIN_RNR_TIMER, |attributes| attributes.min_rnr_timer = code)
    }

    /// Ends all that is under way: what the other side has not acknowledged completes as flushed, signalled or not.
    ///
    /// # Errors
    /// What the device says.
    pub fn put_into_error(&self) -> Result<(), VerbsError> {
        self.modify(sys::IBV_QP_STATE, |attributes| attributes.qp_state = sys::IBV_QPS_ERR)
    }

    fn modify(&self, mask: u32, set: impl FnOnce(&mut sys::ibv_qp_attr)) -> Result<(), VerbsError> {
        // SAFETY: all zeroes are valid attributes.
        let mut attributes: sys::ibv_qp_attr = unsafe { mem::zeroed() };
        set(&mut attributes);
        // SAFETY: the queue pair is alive. The lock keeps events from changing it at the same time.
        let errno = self
            .id
            .locked(|_| unsafe { (self.id.verbs().ibv_modify_qp)(self.raw.as_ptr(), &raw mut attributes, int(mask)) });
        match errno {
            0 => Ok(()),
            errno => Err(self.failed("ibv_modify_qp", errno)),
        }
    }

    /// Adds a request to the batch.
    ///
    /// # Safety
    ///
    /// A batch is begun on `qp`, the extended part of this queue pair.
    #[expect(clippy::inline_always, reason = "as its callers")]
    #[inline(always)]
    unsafe fn build(&self, qp: *mut sys::ibv_qp_ex, request: &WorkRequest<'_>) -> Result<(), PostFailure> {
        let fence = if request.fence { sys::IBV_SEND_FENCE } else { 0 };
        let signaled = if request.signaled { sys::IBV_SEND_SIGNALED } else { 0 };
        // SAFETY: a batch is begun on the queue pair, which has the operations of `BASE`; the others are looked up.
        unsafe {
            (*qp).wr_id = request.id;
            (*qp).wr_flags = fence | signaled;
            match &request.operation {
                Operation::Write { to, payload } => {
                    (*qp).wr_flags |= payload_flags(payload);
                    sys::ibv_wr_rdma_write(qp, to.rkey, to.address);
                    self.set_payload(qp, payload)
                }
                Operation::WriteWithImmediate { to, payload, immediate } => {
                    self.check_has(IMMEDIATE, "write with immediate")?;
                    (*qp).wr_flags |= payload_flags(payload);
                    sys::ibv_wr_rdma_write_imm(qp, to.rkey, to.address, immediate.to_be());
                    self.set_payload(qp, payload)
                }
                Operation::Read { from, into } => {
                    sys::ibv_wr_rdma_read(qp, from.rkey, from.address);
                    sys::ibv_wr_set_sge(qp, into.lkey, into.address, into.len_bytes);
                    Ok(())
                }
                Operation::Send { payload } => {
                    (*qp).wr_flags |= payload_flags(payload);
                    sys::ibv_wr_send(qp);
                    self.set_payload(qp, payload)
                }
                Operation::SendWithImmediate { payload, immediate } => {
                    self.check_has(IMMEDIATE, "send with immediate")?;
                    (*qp).wr_flags |= payload_flags(payload);
                    sys::ibv_wr_send_imm(qp, immediate.to_be());
                    self.set_payload(qp, payload)
                }
                Operation::AtomicWrite { to, value } => {
                    self.check_has(ATOMIC_WRITE, "atomic write")?;
                    sys::ibv_wr_atomic_write(qp, to.rkey, to.address, value.as_ptr().cast());
                    Ok(())
                }
                Operation::CompareAndSwap { at, expected, new, into } => {
                    self.check_has(ATOMICS, "compare-and-swap")?;
                    sys::ibv_wr_atomic_cmp_swp(qp, at.rkey, at.address, *expected, *new);
                    sys::ibv_wr_set_sge(qp, into.lkey, into.address, into.len_bytes);
                    Ok(())
                }
                Operation::FetchAndAdd { at, addend, into } => {
                    self.check_has(ATOMICS, "fetch-and-add")?;
                    sys::ibv_wr_atomic_fetch_add(qp, at.rkey, at.address, *addend);
                    sys::ibv_wr_set_sge(qp, into.lkey, into.address, into.len_bytes);
                    Ok(())
                }
                Operation::Flush { at, len_bytes, placement, whole_region } => {
                    self.check_has(FLUSH, "flush")?;
                    let (address, len_bytes, selectivity) = if *whole_region {
                        (0, 0, sys::IBV_FLUSH_MR)
                    } else {
                        (at.address, *len_bytes as usize, sys::IBV_FLUSH_RANGE)
                    };
                    sys::ibv_wr_flush(qp, at.rkey, address, len_bytes, *placement as u8, selectivity as u8);
                    Ok(())
                }
            }
        }
    }

    /// # Safety
    ///
    /// A request that takes data was just begun on `qp`.
    #[inline]
    unsafe fn set_payload(&self, qp: *mut sys::ibv_qp_ex, payload: &Payload<'_>) -> Result<(), PostFailure> {
        // SAFETY: a request that takes data was begun on `qp`, so that the provider expects them now; inline bytes are copied by the call,
        // and the request keeps what its entries name.
        unsafe {
            match payload {
                // Some providers finish a request in the setter, so even no data are set.
                Payload::Empty => sys::ibv_wr_set_sge_list(qp, &[]),
                Payload::Sge(sge) => sys::ibv_wr_set_sge(qp, sge.lkey, sge.address, sge.len_bytes),
                Payload::Inline(bytes) if bytes.len() <= self.inline_max_len => {
                    sys::ibv_wr_set_inline_data(qp, bytes.as_ptr().cast(), bytes.len());
                }
                Payload::Inline(bytes) => return Err(PostFailure::inline_too_long(bytes.len(), self.inline_max_len)),
            }
        }
        Ok(())
    }

    #[inline]
    fn check_has(&self, flags: u64, operation: &'static str) -> Result<(), PostFailure> {
        if self.available & flags == flags { Ok(()) } else { Err(PostFailure::Unsupported { operation }) }
    }

    fn failed(&self, call: &'static str, errno: i32) -> VerbsError {
        VerbsError::call(call, self.domain.device().name(), io::Error::from_raw_os_error(errno))
    }
}

/// What a request of this payload has among its flags before it is begun: soft-RoCE looks there, other providers at which
/// setter is called.
#[inline]
fn payload_flags(payload: &Payload<'_>) -> u32 {
    if matches!(payload, Payload::Inline(_)) { sys::IBV_SEND_INLINE } else { 0 }
}

impl fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuePair")
            .field("number", &self.number)
            .field("is_extended", &self.is_extended())
            .field("has_flush", &self.has_flush())
            .field("has_atomic_write", &self.has_atomic_write())
            .field("inline_max_bytes", &self.inline_max)
            .field("send_depth", &self.send_depth)
            .finish_non_exhaustive()
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        self.abort();
        // SAFETY: the identifier has this queue pair and no other; what it uses is dropped after it. Asynchronous events
        // that were taken are acknowledged before anybody sees them, so the call waits for no one.
        self.id.locked(|id| unsafe { (self.id.verbs().rdma_destroy_qp)(id) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn less_is_asked_for_step_by_step() {
        let mut has = DeviceInfo::nothing();
        let both = (true, true, false);
        let base = BASE | IMMEDIATE;
        let classic = [(None, 64), (None, 32), (None, 0)];
        let expected = |extended: &[(u64, u32)]| -> Vec<_> {
            extended.iter().map(|&(operations, inline)| (Some(operations), inline)).chain(classic).collect()
        };
        assert_eq!(attempts_of(both, 64, &has), expected(&[(base, 64), (base, 0)]));
        assert_eq!(attempts_of(both, 0, &has), [(Some(base), 0), (None, 0)]);
        assert_eq!(attempts_of((true, true, true), 64, &has), classic);
        has.atomics = true;
        has.native_flush_global = true;
        let more = base | ATOMICS;
        let flush = more | FLUSH;
        let all = [(flush, 64), (flush, 0), (more, 64), (more, 0), (base, 64), (base, 0)];
        assert_eq!(attempts_of(both, 64, &has), expected(&all));
        assert_eq!(attempts_of((false, true, false), 64, &has), expected(&all[2..]));
        has.atomic_write = true;
        assert_eq!(attempts_of(both, 64, &has)[0].0, Some(flush | ATOMIC_WRITE));
        assert_eq!(attempts_of((false, true, false), 64, &has)[0].0, Some(more | ATOMIC_WRITE));
    }

    #[test]
    fn iwarp_is_asked_for_no_immediate() {
        let mut has = DeviceInfo::nothing();
        has.transport = crate::Transport::IWarp;
        assert!(attempts_of((true, true, false), 64, &has).iter().all(|(of, _)| of.is_none_or(|of| of == BASE)));
    }
}
