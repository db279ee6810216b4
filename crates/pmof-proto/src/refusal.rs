//! Why a target said no, why a connection ended, and why an operation failed.

use std::fmt;

use pmof_mem::{Durability, Evidence, Mechanism, Promise};

use crate::Method;

/// The rule by which a target refused an operation. Numbers are part of the wire format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum Refusal {
    /// No region has the key: it was forged, was deregistered, or belongs to an earlier life of the target.
    UnknownRegion = 1,
    /// The region does not grant the right that the operation needs.
    NoRight = 2,
    /// The range does not lie inside the region.
    OutOfBounds = 3,
    /// An atomic operation's offset is not divisible by 8.
    Misaligned = 4,
    /// The region's medium cannot give the durability asked for.
    NotDurable = 5,
    /// The medium failed: nothing after the last receipt is known to be durable.
    MediumFailed = 6,
    /// The payload is longer than the limit agreed on.
    TooLong = 7,
    /// More messages came than the inbox has room for.
    ReceiverNotReady = 8,
    /// A message is longer than the receive that was posted for it.
    ReceiveTooSmall = 9,
    /// The payload's checksum is wrong; the bytes of the range are undefined.
    CorruptPayload = 10,
    /// The stream is not what the protocol allows.
    Malformed = 11,
    /// The two sides have no protocol version in common.
    NoCommonVersion = 12,
    /// The application rejected the connection.
    Rejected = 13,
    /// The target has as many connections as it may have.
    TooManyConnections = 14,
    /// The target's device refused the key, the right or the range of a one-sided operation; it does not say which.
    DeviceRefused = 15,
    /// Another initiator took over what this connection had open.
    Fenced = 16,
    /// The target was told to stop.
    Stopping = 17,
    /// The target does not serve this user of its machine.
    ForeignUser = 18,
    /// The target has no memory left for one more connection.
    NoMemory = 19,
    /// The medium has changed the bytes that were to be read. Only the read fails; the connection goes on.
    Damaged = 20,
    /// A write to a page whose digest says what it holds: its protection has to be taken back first.
    Protected = 21,
}

pub(crate) const REFUSALS: [Refusal; 21] = [
    Refusal::UnknownRegion,
    Refusal::NoRight,
    Refusal::OutOfBounds,
    Refusal::Misaligned,
    Refusal::NotDurable,
    Refusal::MediumFailed,
    Refusal::TooLong,
    Refusal::ReceiverNotReady,
    Refusal::ReceiveTooSmall,
    Refusal::CorruptPayload,
    Refusal::Malformed,
    Refusal::NoCommonVersion,
    Refusal::Rejected,
    Refusal::TooManyConnections,
    Refusal::DeviceRefused,
    Refusal::Fenced,
    Refusal::Stopping,
    Refusal::ForeignUser,
    Refusal::NoMemory,
    Refusal::Damaged,
    Refusal::Protected,
];

impl Refusal {
    /// The refusal with this wire number, if there is one.
    pub fn from_wire(number: u8) -> Option<Self> {
        REFUSALS.into_iter().find(|refusal| *refusal as u8 == number)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UnknownRegion => "no region has this key: it is forged, deregistered or from an earlier life of the target; fetch the descriptor anew",
            Self::NoRight => "the region does not grant this right; register it with the access that is needed",
            Self::OutOfBounds => "the range lies outside the region",
            Self::Misaligned => "the offset of an atomic operation must be divisible by 8",
            Self::NotDurable => "the medium of the region cannot give this durability",
            Self::MediumFailed => "the target's medium failed; see the target's log, check its device",
            Self::TooLong => "the payload is longer than the target allows",
            Self::ReceiverNotReady => "the receiver's inbox is full",
            Self::ReceiveTooSmall => "the message is longer than the receive posted for it",
            Self::CorruptPayload => "the payload's checksum is wrong",
            Self::Malformed => "the stream is not what the protocol allows",
            Self::NoCommonVersion => "the two sides have no protocol version in common; upgrade the older one",
            Self::Rejected => "the application rejected the connection",
            Self::TooManyConnections => "the target has as many connections as it may have",
            Self::DeviceRefused => "the target's device refused the key, the right or the range: the descriptor is forged, of a region that was deregistered, or from an earlier life of the target; fetch it anew",
            Self::Fenced => "another initiator took over what is open here, and ended its use by all others; open it again",
            Self::Stopping => "the target was told to stop: what it acknowledged is kept; connect again when it is back",
            Self::NoMemory => "the target has no memory for one more connection",
            Self::Damaged => "the target's medium changed these bytes since they were written, so they are not given; check its device, and repair them from another replica",
            Self::Protected => "the page is protected by its digest, and was not raised before this write: write it through a pool",
            Self::ForeignUser => "the target serves only its own user and root on its machine",
        })
    }
}

/// Why a connection ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectionError {
    /// The other side closed in order.
    #[error("the other side closed the connection")]
    Closed,
    /// This side closed in order.
    #[error("this side closed the connection")]
    ClosedHere,
    /// The other side vanished: its process died, its host is gone, or the network is cut.
    #[error("the connection was lost: {why}")]
    Lost {
        /// What was seen.
        why: String,
    },
    /// Nothing came for the configured time although an answer was due.
    #[error("no answer within {limit_ms} ms: {awaited}")]
    TimedOut {
        /// The limit, in milliseconds.
        limit_ms: u64,
        /// What was awaited.
        awaited: &'static str,
    },
    /// The other side sent what the protocol does not allow.
    #[error("protocol violation: {what}")]
    Malformed {
        /// The rule broken.
        what: &'static str,
    },
    /// The other side refused an operation or the connection itself.
    #[error("refused by the other side: {refusal}")]
    Refused {
        /// The rule.
        refusal: Refusal,
        /// Private data of a rejection; else empty.
        private_data: Vec<u8>,
    },
    /// This side refused what the other side asked for.
    #[error("a request of the other side was refused: {0}")]
    RefusedHere(Refusal),
    /// Memory of this side could not be written: see the log of this machine, check its device.
    #[error("this side's own memory failed: {what}")]
    LocalMemoryFailed {
        /// What the memory was for.
        what: &'static str,
    },
    /// The caller's process was forked from the one that made the connection. Nothing was sent, and the connection goes on there.
    #[error(
        "the connection was made before fork(): only the process that made it may use it; connect again in the child, through a peer that it opened itself"
    )]
    Forked,
}

/// Why a posted operation failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OperationError {
    /// The target refused it. The connection ends: later operations complete as [`ConnectionEnded`](Self::ConnectionEnded). Only a read of [damaged](Refusal::Damaged) bytes leaves
    /// the connection as it is; then the limit is the offset of the first damaged page.
    #[error("refused by the target: {refusal} (offset {offset}, {len_bytes} bytes, limit {limit})")]
    Refused {
        /// The rule.
        refusal: Refusal,
        /// Offset asked for.
        offset: u64,
        /// Bytes asked for.
        len_bytes: u64,
        /// The limit that was broken, where there is one.
        limit: u64,
    },
    /// The connection ended before the outcome was known: the operation may or may not have happened.
    #[error("outcome unknown, the connection ended")]
    ConnectionEnded(#[source] ConnectionError),
    /// The message that arrived is longer than this receive.
    #[error("a message of {message_bytes} bytes does not fit into a receive of {capacity_bytes}")]
    ReceiveTooSmall {
        /// Bytes of the message.
        message_bytes: u64,
        /// Bytes of the receive.
        capacity_bytes: u64,
    },
}

/// Why an operation could not be posted. Nothing was sent; the connection is as before.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PostError {
    /// As many operations as the send queue holds are posted and not completed.
    #[error("the send queue is full ({limit} operations): collect completions, or connect with a longer queue")]
    QueueFull {
        /// Operations that the queue holds.
        limit: u32,
    },
    /// As many receives as allowed are posted.
    #[error("{limit} receives are posted already")]
    ReceiveQueueFull {
        /// Receives that the queue holds.
        limit: usize,
    },
    /// The connection takes its receives from a shared queue.
    #[error("this connection takes its receives from a shared receive queue: post the receive there")]
    SharedReceives,
    /// The payload is longer than the agreed limit.
    #[error("{len_bytes} bytes are more than one operation may carry ({limit_bytes}): split it")]
    TooLong {
        /// Bytes asked for.
        len_bytes: u64,
        /// Bytes allowed.
        limit_bytes: u64,
    },
    /// The range does not lie inside the region.
    #[error("range of {len_bytes} bytes at offset {offset} lies outside the region of {size_bytes} bytes")]
    OutOfBounds {
        /// First byte.
        offset: u64,
        /// Bytes.
        len_bytes: u64,
        /// Size of the region.
        size_bytes: u64,
    },
    /// An atomic operation's offset is not divisible by 8.
    #[error("offset {offset} is not divisible by 8, as an 8-byte atomic operation needs")]
    Misaligned {
        /// The offset.
        offset: u64,
    },
    /// The region's descriptor does not grant the right.
    #[error("the region does not grant {right}: its owner must register it with that access")]
    NoRight {
        /// The right missing.
        right: &'static str,
    },
    /// The region's medium cannot give the level.
    #[error("the remote {medium} cannot give {wanted}; the most it gives is {strongest}")]
    NotDurable {
        /// The level asked for.
        wanted: Durability,
        /// The strongest level there is.
        strongest: Durability,
        /// What the medium is.
        medium: String,
    },
    /// The method of flush that this connection was told to use cannot give the level there.
    #[error("{method} cannot give {wanted} here: {why}")]
    MethodRefused {
        /// The method.
        method: &'static str,
        /// The level asked for.
        wanted: Durability,
        /// What is missing.
        why: &'static str,
    },
    /// The connection appends to no ring.
    #[error("this connection appends to no ring: name its descriptor when connecting, over verbs")]
    NoRing,
    /// The transport could not make this side's memory reachable for the operation.
    #[error("this side's memory cannot be used for the operation: {why}")]
    LocalMemory {
        /// What failed, and what would mend it.
        why: String,
    },
    /// The connection is not established, or has ended.
    #[error("the connection cannot take operations")]
    NotConnected(#[source] ConnectionError),
}

/// What a flush reached, by which means, and on what evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flushed {
    /// The level reached.
    pub durability: Durability,
    /// How this flush followed the writes.
    pub method: Method,
    /// What the owner of the memory did, and why it is believed.
    pub promise: Promise,
}

impl Flushed {
    pub(crate) fn to_wire(self) -> u32 {
        u32::from(self.durability as u8)
            | u32::from(self.promise.mechanism as u8) << 8
            | u32::from(self.promise.evidence as u8) << 16
    }

    /// What the reply to a flush by message says: the target's CPU carried it out.
    pub(crate) fn from_wire(number: u32) -> Option<Self> {
        if number >> 24 != 0 {
            return None;
        }
        Some(Self {
            durability: Durability::from_wire((number & 0xFF) as u8)?,
            method: Method::SendAfterWrite,
            promise: Promise {
                mechanism: Mechanism::from_wire((number >> 8 & 0xFF) as u8)?,
                evidence: Evidence::from_wire((number >> 16 & 0xFF) as u8)?,
            },
        })
    }
}
