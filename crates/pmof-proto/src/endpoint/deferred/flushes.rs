//! Handing out flushes that wait for a device, and answering them.

use std::sync::Arc;

use pmof_mem::{Medium, MemError};

use super::{DeferredFlush, FlushTicket};
use crate::{
    Flushed, Refusal,
    endpoint::{Endpoint, local::tell_failed},
    frame::{FLAG_REPLY, Frame, Opcode},
};

impl<D> Endpoint<D> {
    /// Has flushes that wait for a device handed out by [`take_flush`](Self::take_flush) from now on, or not. Off at first: they are
    /// carried out when they arrive.
    pub fn defer_flushes(&mut self, on: bool) {
        self.deferred.is_on = on;
    }

    /// The flush that is to be carried out, once. Until [`flush_done`](Self::flush_done) no request behind it is taken in.
    #[inline]
    pub fn take_flush(&mut self) -> Option<DeferredFlush> {
        self.deferred.to_hand_out.take()
    }

    /// The fence of a flush that was handed out has returned: it is answered. Without effect where the connection has ended meanwhile.
    ///
    /// Requests behind it wait for [`resume`](Self::resume).
    pub fn flush_done(&mut self, ticket: FlushTicket, outcome: Result<(), &MemError>) {
        let Some((frame, flushed)) = self.deferred.under_way.take_if(|(frame, _)| frame.sequence == ticket.0) else {
            return;
        };
        self.deferred.resumes = true;
        match outcome {
            Ok(()) => self.reply_flushed(&frame, flushed),
            Err(error) => {
                tell_failed(error);
                self.refuse(&frame, Refusal::MediumFailed, 0);
            }
        }
    }

    /// True if requests came behind a flush that is done: [`resume`](Self::resume) takes them in.
    pub fn has_more(&self) -> bool {
        self.deferred.resumes && self.input.is_inside_frame()
    }

    /// Takes in what came behind a flush that is done. True if there was anything.
    pub fn resume(&mut self) -> bool {
        let had_more = self.has_more();
        if std::mem::take(&mut self.deferred.resumes) {
            self.process();
        }
        had_more
    }

    /// Hands the fence of a flush out, if it is to be. `false`: it is to be carried out now.
    pub(in crate::endpoint) fn defer(&mut self, frame: &Frame, memory: &Arc<dyn Medium>, flushed: Flushed) -> bool {
        if !self.deferred.is_on {
            return false;
        }
        let Some(device) = memory.fence_device() else { return false };
        self.deferred.under_way = Some((*frame, flushed));
        let ticket = FlushTicket(frame.sequence);
        self.deferred.to_hand_out = Some(DeferredFlush { ticket, memory: Arc::clone(memory), device });
        true
    }

    pub(in crate::endpoint) fn reply_flushed(&mut self, frame: &Frame, flushed: Flushed) {
        self.count(|counters| counters.add_flush(flushed.durability));
        if frame.has(FLAG_REPLY) {
            let mut reply = Frame::new(Opcode::Reply, frame.sequence);
            reply.immediate = flushed.to_wire();
            self.reply(&reply);
        }
    }
}
