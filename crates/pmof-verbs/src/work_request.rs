//! What a queue pair is asked to do.

use crate::Sge;

/// The most bytes that a request carries in itself.
pub const INLINE_BYTES: usize = 128;

/// A place in a region of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteAddress {
    /// The virtual address in the peer's process.
    pub address: u64,
    /// The key that the peer's region was registered under.
    pub rkey: u32,
}

/// Where the bytes of a write or a send come from.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// There are none.
    Empty,
    /// A range of a registered region. It must not change before the completion.
    Sge(Sge),
    /// These bytes, copied when the request is posted: at most [`INLINE_BYTES`], and what the queue pair takes.
    Inline(&'a [u8]),
}

impl<'a> Payload<'a> {
    /// The bytes inline, or `None` where they are more than [`INLINE_BYTES`].
    #[inline]
    pub fn inline(from: &'a [u8]) -> Option<Self> {
        (from.len() <= INLINE_BYTES).then_some(Self::Inline(from))
    }
}

/// How far a flush takes the bytes that were written before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Placement {
    /// Every processor of the peer sees them (`IBV_FLUSH_GLOBAL`).
    Global = 1,
    /// They survive loss of power (`IBV_FLUSH_PERSISTENT`). The region must be registered for it.
    Persistent = 2,
    /// Both.
    GlobalAndPersistent = 3,
}

/// One request to the send queue.
#[derive(Clone, Copy, Debug)]
pub struct WorkRequest<'a> {
    /// Comes back as the completion's `wr_id`.
    pub id: u64,
    /// Asks for a completion on success. A failure always has one.
    pub signaled: bool,
    /// Waits until the reads and atomics posted before have completed.
    pub fence: bool,
    /// What to do.
    pub operation: Operation<'a>,
}

/// What a request does.
#[derive(Clone, Copy, Debug)]
pub enum Operation<'a> {
    /// Writes to the peer's memory.
    Write {
        /// Where.
        to: RemoteAddress,
        /// What.
        payload: Payload<'a>,
    },
    /// Writes to the peer's memory, then takes a receive of the peer and hands it the number.
    WriteWithImmediate {
        /// Where.
        to: RemoteAddress,
        /// What.
        payload: Payload<'a>,
        /// The number.
        immediate: u32,
    },
    /// Reads the peer's memory, as many bytes as `into` is long.
    Read {
        /// Where from.
        from: RemoteAddress,
        /// Where to.
        into: Sge,
    },
    /// Sends into a receive of the peer.
    Send {
        /// What.
        payload: Payload<'a>,
    },
    /// Sends into a receive of the peer and hands it the number.
    SendWithImmediate {
        /// What.
        payload: Payload<'a>,
        /// The number.
        immediate: u32,
    },
    /// Writes 8 bytes at once, after all requests before it. The address is a multiple of 8.
    AtomicWrite {
        /// Where.
        to: RemoteAddress,
        /// What.
        value: [u8; 8],
    },
    /// Replaces the 8 bytes at an address that is a multiple of 8, if they are what is expected.
    CompareAndSwap {
        /// Where.
        at: RemoteAddress,
        /// In the peer's byte order.
        expected: u64,
        /// In the peer's byte order.
        new: u64,
        /// 8 bytes for what was there.
        into: Sge,
    },
    /// Adds to the 8 bytes at an address that is a multiple of 8.
    FetchAndAdd {
        /// Where.
        at: RemoteAddress,
        /// What to add, wrapping.
        addend: u64,
        /// 8 bytes for what was there.
        into: Sge,
    },
    /// Flushes what was written before on this connection.
    Flush {
        /// Where the range begins; its key names the region.
        at: RemoteAddress,
        /// How long the range is.
        len_bytes: u32,
        /// How far.
        placement: Placement,
        /// Flushes all of the region, whatever the range.
        whole_region: bool,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inline_takes_what_fits() {
        for len_bytes in [0, 1, INLINE_BYTES] {
            let from: Vec<u8> = (0..len_bytes).map(|at| at as u8).collect();
            let Some(Payload::Inline(bytes)) = Payload::inline(&from) else { panic!("{len_bytes}") };
            assert_eq!(bytes, from);
        }
        assert!(Payload::inline(&[0; INLINE_BYTES + 1]).is_none());
    }
}
