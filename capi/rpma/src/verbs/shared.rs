//! Shared receive queues.

use std::{ffi::c_void, sync::Arc};

use pmof_verbs::{Receive, SharedReceiveQueue};

use super::{Cq, MrLocal, Peer};
use crate::error::Failure;

/// `rpma_srq`.
#[derive(Debug)]
pub(crate) struct Srq {
    receives: SharedReceiveQueue,
    /// Where outcomes of receives go, if the connections do not decide that.
    rcq: Option<Cq>,
    peer: Arc<Peer>,
}

impl Srq {
    pub(crate) fn create(peer: &Arc<Peer>, size: u32, rcq_size: u32) -> Result<Self, Failure> {
        let receives = SharedReceiveQueue::new(&peer.domain, size, 1)?;
        let rcq = (rcq_size > 0).then(|| Cq::create(peer, rcq_size, None)).transpose()?;
        Ok(Self { receives, rcq, peer: Arc::clone(peer) })
    }

    /// What a connection takes its receives from, and where they complete, if this decides that.
    pub(crate) fn receives(&self) -> (SharedReceiveQueue, Option<Cq>) {
        (self.receives.clone(), self.rcq())
    }

    /// The queue of outcomes, for a handle of the application.
    pub(crate) fn rcq(&self) -> Option<Cq> {
        self.rcq.as_ref().map(Cq::again)
    }

    pub(crate) fn receive(
        &self,
        into: Option<&MrLocal>,
        offset: usize,
        len_bytes: usize,
        context: *const c_void,
    ) -> Result<(), Failure> {
        let into = place(&self.peer, into, offset, len_bytes)?;
        Ok(self.receives.post_receives(&[Receive { id: context.addr() as u64, into }])?)
    }
}

/// A part of a registration of this side; no bytes where there is none, for which offset and length must be 0.
pub(super) fn place(
    peer: &Peer,
    memory: Option<&MrLocal>,
    offset: usize,
    len_bytes: usize,
) -> Result<pmof_verbs::Sge, Failure> {
    match memory {
        Some(memory) => memory.sge(offset, len_bytes),
        None if offset == 0 && len_bytes == 0 => peer.sink(0),
        None => Err(Failure::invalid("without a memory registration, offset and length must be 0")),
    }
}
