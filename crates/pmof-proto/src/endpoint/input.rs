//! Bytes on their way in: staged, cut into frames, payloads led to where they belong.

use std::sync::Arc;

use super::messages::PostedReceive;
use crate::{
    LocalSlice, RegisteredRegion,
    frame::Frame,
    limits::{STAGING_BYTES, WHOLE_WRITE_MAX_BYTES},
};

mod taking_in;

/// A checked range of a region that a write's payload goes to.
#[derive(Debug)]
pub(super) struct WriteTarget {
    pub(super) region: Arc<RegisteredRegion>,
    /// First byte in the region's medium.
    pub(super) at: u64,
}

/// Where the payload of the current frame goes.
#[derive(Debug)]
pub(super) enum Sink {
    /// A registered region, for a write.
    Region(WriteTarget),
    /// Memory of a posted read, whose reply this is.
    Read(LocalSlice),
    /// A posted receive, taken off the queue.
    Receive(PostedReceive),
    /// A buffer: handshake private data, or a message that no receive awaits.
    Buffer(Vec<u8>),
}

#[derive(Debug)]
pub(super) struct Incoming {
    pub(super) frame: Frame,
    pub(super) sink: Sink,
    arrived: u64,
}

#[derive(Debug, Default)]
pub(super) struct Input {
    staging: Vec<u8>,
    start: usize,
    end: usize,
    current: Option<Incoming>,
    /// Requests wait in the staging buffer until the other side reads its replies.
    pub(super) paused: bool,
}

impl Input {
    pub(super) fn is_inside_frame(&self) -> bool {
        self.current.is_some() || self.start != self.end
    }

    /// The receive whose message is half there.
    pub(super) fn take_receive(&mut self) -> Option<PostedReceive> {
        match self.current.take()?.sink {
            Sink::Receive(receive) => Some(receive),
            _ => None,
        }
    }

    #[cfg(test)]
    pub(super) fn staging_bytes(&self) -> usize {
        self.staging.len()
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// True if nothing more can be staged.
    fn is_full(&self) -> bool {
        self.end - self.start == STAGING_BYTES
    }

    fn staged(&self) -> &[u8] {
        &self.staging[self.start..self.end]
    }

    fn consume(&mut self, count: usize) {
        self.start += count;
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
        }
    }
}

impl Incoming {
    /// True if the payload is stored only when all of it has come, so that a short write is not torn.
    fn is_gathered(&self) -> bool {
        matches!(self.sink, Sink::Region(_)) && self.frame.length <= WHOLE_WRITE_MAX_BYTES
    }

    /// True if the next bytes go from the wire directly to where they belong.
    fn goes_in_place(&self) -> bool {
        !matches!(self.sink, Sink::Buffer(_)) && !self.is_gathered()
    }

    /// The memory range that the rest of the payload belongs to, or `None` for a buffer.
    fn rest_in_memory(&self) -> Option<LocalSlice> {
        let rest = self.frame.length - self.arrived;
        let place = |memory: &Arc<_>, offset| {
            Some(LocalSlice { memory: Arc::clone(memory), offset: offset + self.arrived, len_bytes: rest })
        };
        match &self.sink {
            Sink::Region(target) => place(target.region.memory(), target.at),
            Sink::Read(slice) => place(&slice.memory, slice.offset),
            Sink::Receive(receive) => place(&receive.into.memory, receive.into.offset),
            Sink::Buffer(_) => None,
        }
    }
}
