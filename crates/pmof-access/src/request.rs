//! Operations as their caller posts them, before it is known which way they go.

use std::borrow::Cow;

use pmof_mem::Durability;
use pmof_proto::{Operation, OperationKind, Payload, PostError};

use crate::{Method, RegionPart, RegionSlice, RemoteRegion};

/// Bytes to write or send.
#[derive(Debug)]
pub(crate) enum Data<'a> {
    Borrowed(&'a [u8]),
    Owned(Vec<u8>),
    Slice(RegionSlice),
    Part(RegionPart<'a>),
}

/// An operation that goes direct and has to wait, as it is kept until then.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) request: Request<'static>,
    /// Of a flush.
    pub(crate) method: Option<Method>,
}

impl Data<'_> {
    pub(crate) fn len_bytes(&self) -> u64 {
        match self {
            Self::Borrowed(bytes) => bytes.len() as u64,
            Self::Owned(bytes) => bytes.len() as u64,
            Self::Slice(slice) => slice.local.len_bytes,
            Self::Part(part) => part.len_bytes(),
        }
    }

    fn to_kept(&self) -> Data<'static> {
        match self {
            Self::Borrowed(bytes) => Data::Owned(bytes.to_vec()),
            Self::Owned(bytes) => Data::Owned(bytes.clone()),
            Self::Slice(slice) => Data::Slice(slice.clone()),
            Self::Part(part) => Data::Slice((*part).into()),
        }
    }

    fn as_payload(&self) -> Payload<'_> {
        match self {
            Self::Borrowed(bytes) => Payload::Inline(bytes),
            Self::Owned(bytes) => Payload::Inline(bytes),
            Self::Slice(slice) => Payload::Local(slice.local.clone()),
            Self::Part(part) => Payload::Local(part.local()),
        }
    }
}

/// A posted operation. Rights and bounds of the remote region were checked.
#[derive(Debug)]
pub(crate) enum Request<'a> {
    Write {
        to: Cow<'a, RemoteRegion>,
        offset: u64,
        data: Data<'a>,
        immediate: Option<u32>,
    },
    Read {
        from: Cow<'a, RemoteRegion>,
        offset: u64,
        into: RegionSlice,
    },
    Flush {
        region: Cow<'a, RemoteRegion>,
        offset: u64,
        len_bytes: u64,
        level: Durability,
    },
    AtomicWrite {
        to: Cow<'a, RemoteRegion>,
        offset: u64,
        value: u64,
    },
    CompareAndSwap {
        at: Cow<'a, RemoteRegion>,
        offset: u64,
        expected: u64,
        new: u64,
    },
    FetchAndAdd {
        at: Cow<'a, RemoteRegion>,
        offset: u64,
        addend: u64,
    },
    Send {
        data: Data<'a>,
        immediate: Option<u32>,
    },
    /// A record for the ring that the connection appends to.
    Append {
        data: Data<'a>,
    },
}

impl Request<'_> {
    pub(crate) fn kind(&self) -> OperationKind {
        match self {
            Self::Write { .. } => OperationKind::Write,
            Self::Read { .. } => OperationKind::Read,
            Self::Flush { .. } => OperationKind::Flush,
            Self::AtomicWrite { .. } => OperationKind::AtomicWrite,
            Self::CompareAndSwap { .. } => OperationKind::CompareAndSwap,
            Self::FetchAndAdd { .. } => OperationKind::FetchAndAdd,
            Self::Send { .. } => OperationKind::Send,
            Self::Append { .. } => OperationKind::Append,
        }
    }

    /// Bytes that the operation moves.
    pub(crate) fn len_bytes(&self) -> u64 {
        match self {
            Self::Write { data, .. } | Self::Send { data, .. } | Self::Append { data } => data.len_bytes(),
            Self::Read { into, .. } => into.local.len_bytes,
            Self::Flush { len_bytes, .. } => *len_bytes,
            Self::AtomicWrite { .. } | Self::CompareAndSwap { .. } | Self::FetchAndAdd { .. } => 8,
        }
    }

    /// Bytes of this side that it takes along.
    pub(crate) fn data_bytes(&self) -> u64 {
        match self {
            Self::Write { data, .. } | Self::Send { data, .. } | Self::Append { data } => data.len_bytes(),
            _ => 0,
        }
    }

    /// Bytes that a copy made by [`to_kept`](Self::to_kept) holds beside the request.
    pub(crate) fn kept_bytes(&self) -> u64 {
        match self {
            Self::Write { data: Data::Owned(bytes), .. }
            | Self::Send { data: Data::Owned(bytes), .. }
            | Self::Append { data: Data::Owned(bytes) } => bytes.len() as u64,
            _ => 0,
        }
    }

    /// The remote range; `None` for messages and records.
    pub(crate) fn range(&self) -> Option<(&RemoteRegion, u64)> {
        match self {
            Self::Write { to: region, offset, .. }
            | Self::Read { from: region, offset, .. }
            | Self::Flush { region, offset, .. }
            | Self::AtomicWrite { to: region, offset, .. }
            | Self::CompareAndSwap { at: region, offset, .. }
            | Self::FetchAndAdd { at: region, offset, .. } => Some((region, *offset)),
            Self::Send { .. } | Self::Append { .. } => None,
        }
    }

    /// A copy to be kept for later.
    pub(crate) fn to_kept(&self) -> Request<'static> {
        fn kept<'r>(region: &RemoteRegion) -> Cow<'r, RemoteRegion> {
            Cow::Owned(*region)
        }
        match self {
            Self::Write { to, offset, data, immediate } => {
                Request::Write { to: kept(to), offset: *offset, data: data.to_kept(), immediate: *immediate }
            }
            Self::Read { from, offset, into } => {
                Request::Read { from: kept(from), offset: *offset, into: into.clone() }
            }
            Self::Flush { region, offset, len_bytes, level } => {
                Request::Flush { region: kept(region), offset: *offset, len_bytes: *len_bytes, level: *level }
            }
            Self::AtomicWrite { to, offset, value } => {
                Request::AtomicWrite { to: kept(to), offset: *offset, value: *value }
            }
            Self::CompareAndSwap { at, offset, expected, new } => {
                Request::CompareAndSwap { at: kept(at), offset: *offset, expected: *expected, new: *new }
            }
            Self::FetchAndAdd { at, offset, addend } => {
                Request::FetchAndAdd { at: kept(at), offset: *offset, addend: *addend }
            }
            Self::Send { data, immediate } => Request::Send { data: data.to_kept(), immediate: *immediate },
            Self::Append { data } => Request::Append { data: data.to_kept() },
        }
    }

    /// The same as a message to the target's CPU. An append is never one: only a device puts it where it belongs.
    pub(crate) fn as_operation(&self) -> Result<Operation<'_>, PostError> {
        Ok(match self {
            Self::Write { to, offset, data, immediate } => {
                Operation::Write { key: to.key(), offset: *offset, payload: data.as_payload(), immediate: *immediate }
            }
            Self::Read { from, offset, into } => {
                Operation::Read { key: from.key(), offset: *offset, into: into.local.clone() }
            }
            Self::Flush { region, offset, len_bytes, level } => {
                let (key, level, evidence) = (region.key(), *level, region.evidence(*level));
                Operation::Flush { key, offset: *offset, len_bytes: *len_bytes, level, evidence }
            }
            Self::AtomicWrite { to, offset, value } => {
                Operation::AtomicWrite { key: to.key(), offset: *offset, value: *value }
            }
            Self::CompareAndSwap { at, offset, expected, new } => {
                Operation::CompareAndSwap { key: at.key(), offset: *offset, expected: *expected, new: *new }
            }
            Self::FetchAndAdd { at, offset, addend } => {
                Operation::FetchAndAdd { key: at.key(), offset: *offset, addend: *addend }
            }
            Self::Send { data, immediate } => Operation::Send { payload: data.as_payload(), immediate: *immediate },
            Self::Append { .. } => return Err(PostError::NoRing),
        })
    }
}
