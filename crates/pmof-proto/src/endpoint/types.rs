//! What goes into an endpoint and what comes out.

use std::sync::Arc;

use pmof_mem::{Durability, Evidence, Medium};

use crate::{ConnectionError, Flushed, LocalSlice, OperationError, RegionKey};

/// Names a posted operation or receive of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// When an operation completes towards its poster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// Always.
    Always,
    /// Only if it failed. A later operation's success implies its success.
    OnError,
}

/// Bytes to be written or sent.
#[derive(Clone, Debug)]
pub enum Payload<'a> {
    /// Copied when posted.
    Inline(&'a [u8]),
    /// Sent from registered memory; it must stay unchanged until the completion.
    Local(LocalSlice),
    /// Not copied: the caller sends the waiting output and then these bytes itself at once, and hands what did not go
    /// to [`Endpoint::supply`](super::Endpoint::supply), even if nothing is left. Allowed only while
    /// [`Endpoint::may_borrow`](super::Endpoint::may_borrow).
    Borrowed(&'a [u8]),
}

impl Payload<'_> {
    pub(crate) fn len_bytes(&self) -> u64 {
        match self {
            Self::Inline(bytes) | Self::Borrowed(bytes) => bytes.len() as u64,
            Self::Local(slice) => slice.len_bytes,
        }
    }
}

/// An operation on the other side's memory, or a message. Offsets and lengths are in bytes.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "the fields are those of the frame")]
pub enum Operation<'a> {
    /// Copies bytes into a region; with an immediate it also consumes a receive there.
    Write { key: RegionKey, offset: u64, payload: Payload<'a>, immediate: Option<u32> },
    /// Copies bytes of a region into local memory.
    Read { key: RegionKey, offset: u64, into: LocalSlice },
    /// Brings all earlier writes of this connection to the range to a level. An answer on weaker evidence than `evidence`, what
    /// the region's descriptor promised, ends the connection.
    Flush { key: RegionKey, offset: u64, len_bytes: u64, level: Durability, evidence: Evidence },
    /// Stores 8 bytes whole or not at all.
    AtomicWrite { key: RegionKey, offset: u64, value: u64 },
    /// Replaces a number if it is the expected one; completes with what was there.
    CompareAndSwap { key: RegionKey, offset: u64, expected: u64, new: u64 },
    /// Adds to a number; completes with what was there.
    FetchAndAdd { key: RegionKey, offset: u64, addend: u64 },
    /// A message, delivered into a receive.
    Send { payload: Payload<'a>, immediate: Option<u32> },
    /// Begins the write-back of a range that was written past the target's CPU, so that a flush after it covers it.
    WriteBack { key: RegionKey, offset: u64, len_bytes: u64 },
}

impl Operation<'_> {
    pub(crate) fn kind(&self) -> OperationKind {
        match self {
            Self::Write { .. } => OperationKind::Write,
            Self::Read { .. } => OperationKind::Read,
            Self::Flush { .. } => OperationKind::Flush,
            Self::AtomicWrite { .. } => OperationKind::AtomicWrite,
            Self::CompareAndSwap { .. } => OperationKind::CompareAndSwap,
            Self::FetchAndAdd { .. } => OperationKind::FetchAndAdd,
            Self::Send { .. } => OperationKind::Send,
            Self::WriteBack { .. } => OperationKind::WriteBack,
        }
    }

    /// True if the operation consumes a receive at the other side.
    pub(crate) fn takes_receive(&self) -> bool {
        matches!(self, Self::Send { .. } | Self::Write { immediate: Some(_), .. })
    }
}

/// What completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names are the operations")]
pub enum OperationKind {
    Write,
    Read,
    Flush,
    AtomicWrite,
    CompareAndSwap,
    FetchAndAdd,
    Send,
    WriteBack,
    /// A record for a ring of the other side; a device's work, never a message.
    Append,
    /// A posted receive took a message.
    Receive,
    /// A posted receive was consumed by a write with immediate; the bytes are in the region.
    ReceiveWriteImmediate,
}

impl OperationKind {
    /// True for what a posted receive completes with.
    pub fn is_receive(self) -> bool {
        matches!(self, Self::Receive | Self::ReceiveWriteImmediate)
    }
}

/// How an operation succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The bytes were moved.
    Done {
        /// How many.
        len_bytes: u64,
    },
    /// A flush reached its level.
    Flushed(Flushed),
    /// An atomic operation; the number that was there before.
    Previous(u64),
    /// A receive was consumed.
    Received {
        /// Bytes of the message, or of the write.
        len_bytes: u64,
        /// The immediate, if the sender gave one.
        immediate: Option<u32>,
    },
}

/// The outcome of a posted operation or receive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// What was posted.
    pub ticket: Ticket,
    /// The poster's own number.
    pub context: u64,
    /// What it was.
    pub kind: OperationKind,
    /// How it ended.
    pub outcome: Result<Outcome, OperationError>,
}

/// What happened to the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Target only: an initiator asks for a connection; [`accept`](super::Endpoint::accept) or
    /// [`reject`](super::Endpoint::reject) it.
    Requested {
        /// Its private data.
        private_data: Vec<u8>,
    },
    /// Operations may be posted.
    Established {
        /// Initiator: the private data of the acceptance. Target: empty.
        private_data: Vec<u8>,
    },
    /// The connection ended, and all that was posted has its outcome. So it comes later than the end itself, where payload is
    /// still being sent from the poster's memory.
    Ended(ConnectionError),
}

/// Where the next bytes from the wire belong.
#[derive(Debug)]
pub enum InputPlace<'a> {
    /// Into this buffer.
    Staging(&'a mut [u8]),
    /// Into memory first, what is beyond it into the buffer.
    Memory {
        /// The memory.
        memory: Arc<dyn Medium>,
        /// First byte.
        offset: u64,
        /// Bytes.
        len_bytes: u64,
        /// For what comes after them.
        tail: &'a mut [u8],
    },
}
