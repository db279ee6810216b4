//! Operations as their caller posts them, before it is known which way they go.

use pmof_mem::Durability;
use pmof_proto::{LocalSlice, Operation, OperationKind, Payload, PostError};

use crate::{Method, RegionPart, RegionSlice, RemoteRegion};

/// This side's bytes of an operation: what it writes or sends, or where what it reads goes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Data<'a> {
    None,
    Bytes(&'a [u8]),
    Slice(&'a RegionSlice),
    Part(RegionPart<'a>),
}

impl<'a> Data<'a> {
    #[inline]
    pub(crate) fn len_bytes(self) -> u64 {
        match self {
            Self::None => 0,
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Slice(slice) => slice.local.len_bytes,
            Self::Part(part) => part.len_bytes(),
        }
    }

    /// Registered memory.
    pub(crate) fn local(self) -> Option<LocalSlice> {
        match self {
            Self::Slice(slice) => Some(slice.local.clone()),
            Self::Part(part) => Some(part.local()),
            Self::None | Self::Bytes(_) => None,
        }
    }

    fn as_payload(self) -> Payload<'a> {
        match self {
            Self::None => Payload::Inline(&[]),
            Self::Bytes(bytes) => Payload::Inline(bytes),
            Self::Slice(slice) => Payload::Local(slice.local.clone()),
            Self::Part(part) => Payload::Local(part.local()),
        }
    }
}

/// What an operation does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Verb {
    Write {
        immediate: Option<u32>,
    },
    Read,
    Flush {
        level: Durability,
    },
    AtomicWrite {
        value: u64,
    },
    CompareAndSwap {
        expected: u64,
        new: u64,
    },
    FetchAndAdd {
        addend: u64,
    },
    Send {
        immediate: Option<u32>,
    },
    /// Adds a record to the ring that the connection appends to.
    Append,
}

/// A posted operation. Rights and bounds of the remote region were checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request<'a> {
    pub(crate) verb: Verb,
    /// Where the remote range begins; `None` for messages and records.
    pub(crate) place: Option<(&'a RemoteRegion, u64)>,
    /// Bytes that the operation moves, or flushes.
    pub(crate) len_bytes: u64,
    pub(crate) data: Data<'a>,
    /// The target's CPU is to carry it out, whatever the transport.
    pub(crate) is_by_message: bool,
}

/// An operation that goes direct and has to wait, as it is kept until then.
#[derive(Debug)]
pub(crate) struct Kept {
    verb: Verb,
    place: Option<(RemoteRegion, u64)>,
    len_bytes: u64,
    data: KeptData,
    /// Of a flush.
    pub(crate) method: Option<Method>,
}

#[derive(Debug)]
enum KeptData {
    None,
    Bytes(Vec<u8>),
    Slice(RegionSlice),
}

impl Kept {
    pub(crate) fn new(request: &Request<'_>, method: Option<Method>) -> Self {
        let data = match request.data {
            Data::None => KeptData::None,
            Data::Bytes(bytes) => KeptData::Bytes(bytes.to_vec()),
            Data::Slice(slice) => KeptData::Slice(slice.clone()),
            Data::Part(part) => KeptData::Slice(part.into()),
        };
        let place = request.place.map(|(region, offset)| (*region, offset));
        Self { verb: request.verb, place, len_bytes: request.len_bytes, data, method }
    }

    pub(crate) fn request(&self) -> Request<'_> {
        let data = match &self.data {
            KeptData::None => Data::None,
            KeptData::Bytes(bytes) => Data::Bytes(bytes),
            KeptData::Slice(slice) => Data::Slice(slice),
        };
        let place = self.place.as_ref().map(|(region, offset)| (region, *offset));
        Request { verb: self.verb, place, len_bytes: self.len_bytes, data, is_by_message: false }
    }

    /// Bytes that were copied for it.
    pub(crate) fn copied_bytes(&self) -> usize {
        if let KeptData::Bytes(bytes) = &self.data { bytes.len() } else { 0 }
    }
}

impl<'a> Request<'a> {
    /// One of a remote range that takes no bytes of this side along.
    #[inline]
    pub(crate) fn bare(verb: Verb, region: &'a RemoteRegion, offset: u64, len_bytes: u64) -> Self {
        Self { verb, place: Some((region, offset)), len_bytes, data: Data::None, is_by_message: false }
    }

    /// A message or a record.
    pub(crate) fn message(verb: Verb, data: Data<'a>) -> Self {
        Self { verb, place: None, len_bytes: data.len_bytes(), data, is_by_message: false }
    }

    #[inline]
    pub(crate) fn kind(&self) -> OperationKind {
        match self.verb {
            Verb::Write { .. } => OperationKind::Write,
            Verb::Read => OperationKind::Read,
            Verb::Flush { .. } => OperationKind::Flush,
            Verb::AtomicWrite { .. } => OperationKind::AtomicWrite,
            Verb::CompareAndSwap { .. } => OperationKind::CompareAndSwap,
            Verb::FetchAndAdd { .. } => OperationKind::FetchAndAdd,
            Verb::Send { .. } => OperationKind::Send,
            Verb::Append => OperationKind::Append,
        }
    }

    /// Bytes of this side that it takes along.
    pub(crate) fn data_bytes(&self) -> u64 {
        if matches!(self.verb, Verb::Read) { 0 } else { self.data.len_bytes() }
    }

    /// The same as a message to the target's CPU. An append is never one: only a device puts it where it belongs.
    pub(crate) fn as_operation(&self) -> Result<Operation<'_>, PostError> {
        let Some((region, offset)) = self.place else {
            return match self.verb {
                Verb::Send { immediate } => Ok(Operation::Send { payload: self.data.as_payload(), immediate }),
                _ => Err(PostError::NoRing),
            };
        };
        let (key, len_bytes) = (region.key(), self.len_bytes);
        Ok(match self.verb {
            Verb::Write { immediate } => Operation::Write { key, offset, payload: self.data.as_payload(), immediate },
            Verb::Read => Operation::Read { key, offset, into: self.data.local().ok_or(PostError::NoRing)? },
            Verb::Flush { level } => {
                Operation::Flush { key, offset, len_bytes, level, evidence: region.evidence(level) }
            }
            Verb::AtomicWrite { value } => Operation::AtomicWrite { key, offset, value },
            Verb::CompareAndSwap { expected, new } => Operation::CompareAndSwap { key, offset, expected, new },
            Verb::FetchAndAdd { addend } => Operation::FetchAndAdd { key, offset, addend },
            Verb::Send { .. } | Verb::Append => return Err(PostError::NoRing),
        })
    }
}
