//! Completion queues.

use std::{
    collections::VecDeque,
    ffi::c_int,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use pmof_access::{
    Completion, CompletionQueue, Connection, ConnectionError, ConnectionId, OperationError, OperationKind, Outcome,
    Refusal,
};
use pmof_locks::Mutex;
use pmof_verbs::WorkCompletion;
use pmof_verbs_sys as sys;

use crate::{
    argument::{Object, Out},
    call::{call, call_for, need},
    error::{Code, Failure},
    handle::{Deletion, kind},
    long,
    on::On,
    shown::{Beacons, Showing},
    verbs,
};

/// How long an unbounded wait sleeps before it checks whether anything can still arrive.
pub(crate) const TURN: Duration = Duration::from_millis(500);

/// `rpma_cq`.
#[derive(Debug)]
pub struct Cq(On<AccessCq, verbs::Cq>);
kind!(Cq, 7, "rpma_cq", Cq::end_waits);

/// One of connections of pmof.
#[derive(Debug)]
struct AccessCq {
    outcomes: Outcomes,
    /// The only connection whose outcomes come here, if there is just one.
    connection: OnceLock<Weak<Connection>>,
}

#[derive(Debug)]
enum Outcomes {
    /// From a separate queue; outcomes that a wait already found come first.
    Own { shown: Showing, queue: CompletionQueue, found: Mutex<VecDeque<Completion>>, has_found: AtomicBool },
    /// Those of one kind that come to a channel.
    Of { channel: Arc<Channel>, is_receive: bool },
}

/// A completion channel that the two queues of a connection share.
#[derive(Debug)]
pub(crate) struct Channel {
    shown: Showing,
    queue: CompletionQueue,
    /// Receives have a separate queue.
    separates: bool,
}

impl Channel {
    pub(crate) fn new(queue: CompletionQueue, separates: bool, beacons: &Arc<Beacons>) -> Arc<Self> {
        Arc::new(Self { shown: Showing::new(beacons), queue, separates })
    }

    pub(crate) fn descriptor(&self) -> Result<c_int, Failure> {
        self.shown.give(|flag| self.queue.show_on(flag))
    }

    /// Whether waits block.
    pub(crate) fn blocks(&self) -> bool {
        self.shown.blocks()
    }

    /// Which of the two queues has the next outcome, after waiting for one at most `timeout`.
    /// Does not wait if no outcome can arrive any more.
    pub(crate) fn wait(&self, timeout: Duration, has_ended: impl Fn() -> bool) -> Option<bool> {
        self.queue.wait_next_is_receive_unless(timeout, has_ended).map(|is_receive| is_receive && self.separates)
    }
}

impl Cq {
    pub(crate) fn own(queue: CompletionQueue, beacons: &Arc<Beacons>) -> Self {
        let shown = Showing::new(beacons);
        let outcomes = Outcomes::Own { shown, queue, found: Mutex::default(), has_found: AtomicBool::new(false) };
        Self(On::Access(AccessCq::of(outcomes)))
    }

    pub(crate) fn of_channel(channel: &Arc<Channel>, is_receive: bool) -> Self {
        Self(On::Access(AccessCq::of(Outcomes::Of { channel: Arc::clone(channel), is_receive })))
    }

    pub(crate) fn of_verbs(queue: verbs::Cq) -> Self {
        Self(On::Verbs(queue))
    }

    fn end_waits(&self) {
        if let On::Access(AccessCq { outcomes: Outcomes::Own { queue, .. }, .. }) = &self.0 {
            queue.interrupt();
        }
    }

    /// Names the only connection whose outcomes come here.
    pub(crate) fn set_connection(&self, connection: Weak<Connection>) {
        if let On::Access(queue) = &self.0 {
            let _ = queue.connection.set(connection);
        }
    }
}

impl AccessCq {
    fn descriptor(&self) -> Result<c_int, Failure> {
        match &self.outcomes {
            Outcomes::Own { shown, queue, .. } => shown.give(|flag| queue.show_on(flag)),
            Outcomes::Of { channel, .. } => channel.descriptor(),
        }
    }

    fn of(outcomes: Outcomes) -> Self {
        Self { outcomes, connection: OnceLock::new() }
    }

    /// Takes up to `count` available outcomes; returns how many.
    ///
    /// # Safety
    ///
    /// `into` is valid for `count` writes.
    #[inline(never)]
    unsafe fn take_into(&self, into: *mut sys::ibv_wc, count: c_int) -> c_int {
        let mut taken = 0;
        while taken < count {
            let Some(done) = self.take() else { break };
            // SAFETY: valid for `count` writes, and less than that many were made.
            unsafe { into.add(taken.unsigned_abs() as usize).write(work_completion(&done)) };
            taken += 1;
        }
        taken
    }

    /// The next outcome that is there now.
    fn take(&self) -> Option<Completion> {
        match &self.outcomes {
            Outcomes::Own { queue, found, has_found, .. } => {
                if has_found.load(Ordering::Acquire) {
                    let mut found = found.lock();
                    let done = found.pop_front();
                    has_found.store(!found.is_empty(), Ordering::Release);
                    if done.is_some() {
                        return done;
                    }
                }
                queue.poll()
            }
            Outcomes::Of { channel, .. } if !channel.separates => channel.queue.poll(),
            Outcomes::Of { channel, is_receive } => channel.queue.poll_receives(*is_receive),
        }
    }

    /// Waits until there is an outcome.
    fn wait(&self, deletion: Deletion<'_>) -> Result<(), Failure> {
        let Outcomes::Own { shown, queue, found, has_found } = &self.outcomes else {
            return Err(Code::SharedChannel.into());
        };
        if has_found.load(Ordering::Acquire) {
            return Ok(());
        }
        let blocks = shown.blocks();
        // Only after the last outcome: the program reuses its memory then.
        let has_ended = || self.connection.get().is_some_and(|it| it.upgrade().is_none_or(|it| it.is_drained()));
        loop {
            if let Some(done) = queue.wait_unless(if blocks { TURN } else { Duration::ZERO }, has_ended) {
                found.lock().push_back(done);
                has_found.store(true, Ordering::Release);
                return Ok(());
            }
            deletion.check()?;
            if !blocks || has_ended() {
                return Err(Code::NoCompletion.into());
            }
        }
    }
}

/// The number of a connection in completions.
pub(crate) fn queue_pair_number(connection: ConnectionId) -> u32 {
    // As wide as the numbers of verbs; never 0 or 1, which are taken there.
    (connection.number() % 0x00FF_FFF0 + 16) as u32
}

fn opcode(kind: OperationKind) -> sys::ibv_wc_opcode {
    match kind {
        OperationKind::Send | OperationKind::Append => sys::IBV_WC_SEND,
        // The operation that librpma's flush uses on devices without native flush.
        OperationKind::Read | OperationKind::Flush => sys::IBV_WC_RDMA_READ,
        OperationKind::CompareAndSwap => sys::IBV_WC_COMP_SWAP,
        OperationKind::FetchAndAdd => sys::IBV_WC_FETCH_ADD,
        OperationKind::Receive => sys::IBV_WC_RECV,
        OperationKind::ReceiveWriteImmediate => sys::IBV_WC_RECV_RDMA_WITH_IMM,
        OperationKind::Write | OperationKind::AtomicWrite | OperationKind::WriteBack => sys::IBV_WC_RDMA_WRITE,
    }
}

fn status(error: &OperationError) -> sys::ibv_wc_status {
    match error {
        OperationError::ReceiveTooSmall { .. } => sys::IBV_WC_LOC_LEN_ERR,
        OperationError::Refused { refusal, .. } => match refusal {
            Refusal::MediumFailed | Refusal::NotDurable => sys::IBV_WC_REM_OP_ERR,
            Refusal::TooLong | Refusal::ReceiveTooSmall | Refusal::Malformed => sys::IBV_WC_REM_INV_REQ_ERR,
            _ => sys::IBV_WC_REM_ACCESS_ERR,
        },
        OperationError::ConnectionEnded(ConnectionError::Lost { .. } | ConnectionError::TimedOut { .. }) => {
            sys::IBV_WC_RETRY_EXC_ERR
        }
        OperationError::ConnectionEnded(_) => sys::IBV_WC_WR_FLUSH_ERR,
        _ => sys::IBV_WC_GENERAL_ERR,
    }
}

fn work_completion(done: &Completion) -> sys::ibv_wc {
    let (status, byte_len, immediate) = match &done.outcome {
        Ok(Outcome::Received { len_bytes, immediate }) => (sys::IBV_WC_SUCCESS, *len_bytes, *immediate),
        Ok(Outcome::Done { len_bytes }) => {
            let whole = long::take_len_bytes(done.connection.number(), done.ticket.0);
            (sys::IBV_WC_SUCCESS, whole.unwrap_or(*len_bytes), None)
        }
        Ok(_) => (sys::IBV_WC_SUCCESS, 0, None),
        // A receive without a message.
        Err(OperationError::ConnectionEnded(_)) if done.kind.is_receive() => (sys::IBV_WC_WR_FLUSH_ERR, 0, None),
        Err(error) => (status(error), 0, None),
    };
    sys::ibv_wc {
        wr_id: done.context,
        status,
        opcode: opcode(done.kind),
        vendor_err: 0,
        byte_len: u32::try_from(byte_len).unwrap_or(u32::MAX),
        // In network order, as devices give it.
        __bindgen_anon_1: sys::ibv_wc__bindgen_ty_1 { imm_data: immediate.unwrap_or(0).to_be() },
        qp_num: queue_pair_number(done.connection),
        src_qp: 0,
        wc_flags: if immediate.is_some() { sys::IBV_WC_WITH_IMM } else { 0 },
        pkey_index: 0,
        slid: 0,
        sl: 0,
        dlid_path_bits: 0,
    }
}

/// Returns a descriptor that is readable when there may be an outcome. Setting it not to block has waits not block.
#[unsafe(no_mangle)]
pub extern "C" fn rpma_cq_get_fd(cq: Object<Cq>, fd: Out<c_int>) -> c_int {
    call(c"rpma_cq_get_fd", || {
        let cq = cq.get()?;
        fd.need("fd")?;
        let number = match &cq.0 {
            On::Access(cq) => cq.descriptor()?,
            On::Verbs(cq) => cq.descriptor()?,
        };
        fd.put(number);
        Ok(())
    })
}

/// Waits until there is an outcome to get; forever, unless the descriptor was set not to block or the connection has ended.
#[unsafe(no_mangle)]
pub extern "C" fn rpma_cq_wait(cq: Object<Cq>) -> c_int {
    call(c"rpma_cq_wait", || {
        let cq = cq.get()?;
        match &cq.0 {
            On::Access(on) => on.wait(cq.deletion()),
            On::Verbs(on) => on.wait(cq.deletion()),
        }
    })
}

/// Gets up to `count` outcomes that are there.
///
/// # Safety
///
/// `cq` is null or a queue; `completions` is null or valid for `count` writes; `got` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpma_cq_get_wc(
    cq: Object<Cq>,
    count: c_int,
    completions: *mut sys::ibv_wc,
    got: Out<c_int>,
) -> c_int {
    call_for(c"rpma_cq_get_wc", || {
        let cq = cq.get()?;
        need(completions, "wc")?;
        if count < 1 || (count > 1 && got.is_null()) {
            return Err(Failure::invalid("num_entries is less than 1, or more than 1 without num_entries_got"));
        }
        let taken = match &cq.0 {
            // SAFETY: not null, so valid for `count` writes by the contract of this function.
            On::Access(cq) => unsafe { cq.take_into(completions, count) },
            On::Verbs(cq) => {
                let room = count.unsigned_abs() as usize;
                // SAFETY: valid for `count` writes; a `WorkCompletion` is an `ibv_wc`, any bytes of which are a valid one.
                let into = unsafe { std::slice::from_raw_parts_mut(completions.cast::<WorkCompletion>(), room) };
                c_int::try_from(cq.poll(into)?).unwrap_or(count)
            }
        };
        if taken == 0 {
            return Ok(Code::NoCompletion as c_int);
        }
        got.put(taken);
        Ok(0)
    })
}
