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
    argument::{Object, Out, Slot},
    call::call,
    configuration::SrqCfg,
    context::{Peer, PeerShared},
    error::Failure,
    handle::{Handle, kind},
    limits,
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

/// A queue for connections of pmof.
#[derive(Debug)]
pub(crate) struct AccessSrq {
    pub(crate) receives: SharedReceives,
    /// Where outcomes of receives go, if the connections do not decide that.
    pub(crate) queue: Option<CompletionQueue>,
    peer: Arc<PeerShared>,
}

impl Srq {
    /// Whether outcomes of its receives have a separate queue.
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
        // SAFETY: the queue owns the handle, and only its deletion deletes the handle.
        let _ = unsafe { Handle::delete(self.rcq.as_ptr()) };
    }
}

/// Creates a queue of receives that connections share.
#[unsafe(no_mangle)]
pub extern "C" fn rpma_srq_new(peer: Object<Peer>, cfg: Object<SrqCfg>, made: Out<*mut Handle<Srq>>) -> c_int {
    call(c"rpma_srq_new", || {
        let peer = peer.get()?;
        made.need("srq_ptr")?;
        let defaults = SrqCfg::default();
        let cfg = cfg.get_if_any()?;
        let cfg = cfg.as_deref().unwrap_or(&defaults);
        if cfg.rq_size() == 0 {
            return Err(Failure::invalid("a shared receive queue of size 0"));
        }
        let (on, rcq) = match &peer.0 {
            On::Access(peer) => {
                let receives = peer.peer.shared_receive_queue(cfg.rq_size() as usize);
                let queue = (cfg.rcq_size() > 0).then(|| peer.peer.completion_queue(limits::receives())).transpose()?;
                let rcq = queue.clone().map(|queue| Cq::own(queue, &peer.beacons));
                (On::Access(AccessSrq { receives, queue, peer: Arc::clone(peer) }), rcq)
            }
            On::Verbs(peer) => {
                let srq = verbs::Srq::create(peer, cfg.rq_size(), cfg.rcq_size())?;
                let rcq = srq.rcq().map(Cq::of_verbs);
                (On::Verbs(srq), rcq)
            }
        };
        let srq = Srq { on, rcq: AtomicPtr::new(rcq.map_or(ptr::null_mut(), Handle::create)) };
        made.put(Handle::create(srq));
        Ok(())
    })
}

/// Deletes a queue of shared receives, and the completion queue that belongs to it.
#[unsafe(no_mangle)]
pub extern "C" fn rpma_srq_delete(srq: Slot<Srq>) -> c_int {
    call(c"rpma_srq_delete", || srq.delete())
}

/// Posts a receive for a message of any of the connections.
#[unsafe(no_mangle)]
pub extern "C" fn rpma_srq_recv(
    srq: Object<Srq>,
    dst: Object<MrLocal>,
    offset: usize,
    len: usize,
    op_context: *const c_void,
) -> c_int {
    call(c"rpma_srq_recv", || {
        let srq = srq.get()?;
        let srq = match &srq.on {
            On::Access(srq) => srq,
            On::Verbs(srq) => {
                let into = dst.uncounted_if_any()?.map(MrLocal::verbs).transpose()?;
                return srq.receive(into, offset, len, op_context);
            }
        };
        let into = slice(&srq.peer, dst, offset, len)?;
        srq.receives.post(into, op_context.addr() as u64)?;
        Ok(())
    })
}

/// Tells where outcomes of the receives go; null where the connections decide that.
#[unsafe(no_mangle)]
pub extern "C" fn rpma_srq_get_rcq(srq: Object<Srq>, rcq: Out<*mut Handle<Cq>>) -> c_int {
    call(c"rpma_srq_get_rcq", || {
        let srq = srq.get()?;
        rcq.need("rcq_ptr")?;
        rcq.put(srq.rcq());
        Ok(())
    })
}
