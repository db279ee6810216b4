//! Flushes that wait for a device: handed out, so that whoever drives the connection need not wait with them.
//!
//! Operations take effect in the order posted, so nothing behind such a flush is taken in until it is done: a write that
//! followed it could reach the device before what the flush is for. What arrives meanwhile is staged.

use std::sync::Arc;

use pmof_mem::Medium;

use crate::{Flushed, frame::Frame};

mod flushes;

/// Names a flush that was handed out. One of a connection at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlushTicket(u64);

/// A fence that is to be waited for: everything of this connection that it covers was written back before.
#[derive(Debug)]
pub struct DeferredFlush {
    /// To be given back with the outcome.
    pub ticket: FlushTicket,
    /// Whose [fence](Medium::fence) it is. Kept alive until then, whatever becomes of its region.
    pub memory: Arc<dyn Medium>,
    /// The [device](Medium::fence_device) that it waits for.
    pub device: u64,
}

/// The stage of the flush in flight.
#[derive(Debug, Default)]
pub(super) struct Deferred {
    /// Whether flushes are handed out.
    is_on: bool,
    /// The request, and the answer if it succeeds.
    under_way: Option<(Frame, Flushed)>,
    to_hand_out: Option<DeferredFlush>,
    /// It is done, and what was staged meanwhile was not looked at yet.
    resumes: bool,
}

impl Deferred {
    /// True while requests stay in the staging buffer.
    pub(super) fn holds_input(&self) -> bool {
        self.under_way.is_some() || self.resumes
    }

    /// Forgets the flush: nobody is left to be answered.
    pub(super) fn clear(&mut self) {
        *self = Self { is_on: self.is_on, ..Self::default() };
    }
}
