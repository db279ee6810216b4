//! Shared receive queues.

use std::{
    ffi::{c_int, c_void},
    ptr,
    sync::{
        Arc,
        atomic::{AtomicPtr, Ordering::Relaxed},
    },
};

use pmof_access::{CompletionQueue, SharedReceives};

use crate::{
    call::{call, need},
    cm::RECEIVES,
    configuration::SrqCfg,
    context::{Peer, PeerShared},
    error::{Failure, put},
    handle::{Handle, kind},
    memory::{MrLocal, slice},
    on::On,
    queue::Cq,
    verbs,
};

/// `rpma_srq`.
#[derive(Debug)]
pub struct Srq {
    pub(crate) on: On<AccessSrq, verbs::Srq>,
    rcq: AtomicPtr<Handle<Cq>>,
}
kind!(Srq, 8, "rpma_srq");

/// One for connections of pmof.
#[derive(Debug)]
pub(crate) struct AccessSrq {
    pub(crate) receives: SharedReceives,
    /// Where outcomes of receives go, if the connections do not decide that.
    pub(crate) queue: Option<CompletionQueue>,
    peer: Arc<PeerShared>,
}

impl Srq {
    /// Whether outcomes of its receives have a queue of their own.
    pub(crate) fn has_queue(&self) -> bool {
        !self.rcq().is_null()
    }

    /// The application's handle of that queue; null where there is none.
    pub(crate) fn rcq(&self) -> *mut Handle<Cq> {
        self.rcq.load(Relaxed)
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        // SAFETY: the handle is this one's own, and whoever deletes this deletes that.
        let _ = unsafe { Handle::delete(self.rcq.as_ptr()) };
    }
}

/// Makes a queue of receives that connections share.
///
/// # Safety
///
/// `peer` is null or a peer; `cfg` is null or a configuration; `made` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpma_srq_new(
    peer: *mut Handle<Peer>,
    cfg: *mut Handle<SrqCfg>,
    made: *mut *mut Handle<Srq>,
) -> c_int {
    call(c"rpma_srq_new", || {
        // SAFETY: the same contract.
        let peer = unsafe { Handle::get(peer) }?;
        need(made, "srq_ptr")?;
        let defaults = SrqCfg::default();
        // SAFETY: the same contract.
        let cfg = unsafe { Handle::get_if_any(cfg) }?;
        let cfg = cfg.as_deref().unwrap_or(&defaults);
        if cfg.rq_size() == 0 {
            return Err(Failure::invalid("a shared receive queue of size 0"));
        }
        let (on, rcq) = match &peer.0 {
            On::Access(peer) => {
                let receives = peer.peer.shared_receive_queue(cfg.rq_size() as usize);
                let queue = (cfg.rcq_size() > 0).then(|| peer.peer.completion_queue(RECEIVES)).transpose()?;
                let rcq = queue.clone().map(Cq::own);
                (On::Access(AccessSrq { receives, queue, peer: Arc::clone(peer) }), rcq)
            }
            On::Verbs(peer) => {
                let srq = verbs::Srq::create(peer, cfg.rq_size(), cfg.rcq_size())?;
                let rcq = srq.rcq().map(Cq::of_verbs);
                (On::Verbs(srq), rcq)
            }
        };
        let srq = Srq { on, rcq: AtomicPtr::new(rcq.map_or(ptr::null_mut(), Handle::create)) };
        // SAFETY: not null, so valid by the contract of this function.
        unsafe { put(made, Handle::create(srq)) };
        Ok(())
    })
}

/// Deletes a queue of shared receives, and the completion queue that belongs to it.
///
/// # Safety
///
/// `srq` is null or points at null or at a queue that nobody else uses now.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpma_srq_delete(srq: *mut *mut Handle<Srq>) -> c_int {
    // SAFETY: the same contract.
    call(c"rpma_srq_delete", || unsafe { Handle::delete(srq) })
}

/// Posts a receive for a message of any of the connections.
///
/// # Safety
///
/// `srq` is null or a queue; `dst` is null or a registration.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpma_srq_recv(
    srq: *mut Handle<Srq>,
    dst: *mut Handle<MrLocal>,
    offset: usize,
    len: usize,
    op_context: *const c_void,
) -> c_int {
    call(c"rpma_srq_recv", || {
        // SAFETY: the same contract.
        let srq = unsafe { Handle::get(srq) }?;
        let srq = match &srq.on {
            On::Access(srq) => srq,
            On::Verbs(srq) => {
                // SAFETY: the same contract.
                let into = unsafe { Handle::get_uncounted_if_any(dst) }?.map(MrLocal::verbs).transpose()?;
                return srq.receive(into, offset, len, op_context);
            }
        };
        // SAFETY: the same contract.
        let into = unsafe { slice(&srq.peer, dst, offset, len) }?;
        srq.receives.post(into, op_context.addr() as u64)?;
        Ok(())
    })
}

/// Tells where outcomes of the receives go; null where the connections decide that.
///
/// # Safety
///
/// `srq` is null or a queue; `rcq` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpma_srq_get_rcq(srq: *const Handle<Srq>, rcq: *mut *mut Handle<Cq>) -> c_int {
    call(c"rpma_srq_get_rcq", || {
        // SAFETY: the same contract.
        let srq = unsafe { Handle::get(srq) }?;
        need(rcq, "rcq_ptr")?;
        // SAFETY: not null, so valid by the contract of this function.
        unsafe { put(rcq, srq.rcq()) };
        Ok(())
    })
}
