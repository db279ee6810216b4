//! The 64-byte frame header, the same for requests, replies and the handshake.
//!
//! | offset | bytes | field | requests | replies |
//! |---|---|---|---|---|
//! | 0 | 1 | opcode | [`Opcode`] | `Reply` or `ReadReply` |
//! | 1 | 1 | flags | bit 0 reply on success, bit 1 payload has a CRC, bit 2 immediate is valid | bit 1 |
//! | 2 | 1 | code | flush: durability level | 0 done, else [`Refusal`](crate::Refusal) |
//! | 3 | 1 | zero | | |
//! | 4 | 4 | immediate | write / send with immediate | byte 0 level reached, 1 mechanism, 2 evidence (flush) |
//! | 8 | 8 | sequence | 1, 2, 3 … per direction | of the request answered |
//! | 16 | 16 | key | of the region | zero |
//! | 32 | 8 | offset | in the region | refusal: offset asked for |
//! | 40 | 8 | length | bytes of the range or payload; compare-and-swap: expected value | payload bytes; refusal: bytes asked for |
//! | 48 | 8 | operand | atomic operations: the new value or the addend | atomics: the old value; refusal: the limit |
//! | 56 | 4 | payload CRC32C | over the payload, if flag bit 1 | the same |
//! | 60 | 4 | header CRC32C | over bytes 0..60 | the same |
//!
//! All numbers are little-endian. The payload of a write, send, read reply, hello or welcome follows its header at once.

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout,
    little_endian::{U32, U64},
};

use crate::{ConnectionError, limits::HEADER_BYTES};

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[expect(missing_docs, reason = "the names are the operations")]
pub enum Opcode {
    Write = 1,
    Read = 2,
    Flush = 3,
    AtomicWrite = 4,
    CompareAndSwap = 5,
    FetchAndAdd = 6,
    Send = 7,
    /// The range was written past the target's CPU (by its device, say): its write-back is to begin. Flushes follow.
    WriteBack = 8,
    /// `operand` messages have been taken out of the sender's inbox so far.
    Credit = 0x40,
    /// The sender will post nothing more and closes in order.
    Disconnect = 0x41,
    Reply = 0x80,
    ReadReply = 0x81,
    Hello = 0xF0,
    Welcome = 0xF1,
}

impl Opcode {
    /// True for what the other side's application posted and this side carries out.
    pub(crate) fn is_request(self) -> bool {
        (self as u8) <= Self::WriteBack as u8
    }
}

pub(crate) const OPCODES: [Opcode; 14] = [
    Opcode::Write,
    Opcode::Read,
    Opcode::Flush,
    Opcode::AtomicWrite,
    Opcode::CompareAndSwap,
    Opcode::FetchAndAdd,
    Opcode::Send,
    Opcode::WriteBack,
    Opcode::Credit,
    Opcode::Disconnect,
    Opcode::Reply,
    Opcode::ReadReply,
    Opcode::Hello,
    Opcode::Welcome,
];

/// Reply even if the operation succeeds.
pub(crate) const FLAG_REPLY: u8 = 1;
/// The payload CRC is valid.
pub(crate) const FLAG_PAYLOAD_CRC: u8 = 2;
/// The immediate is valid.
pub(crate) const FLAG_IMMEDIATE: u8 = 4;
const FLAGS_KNOWN: u8 = FLAG_REPLY | FLAG_PAYLOAD_CRC | FLAG_IMMEDIATE;

/// A decoded header. Fields as in the module's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the module's table states them")]
pub struct Frame {
    pub opcode: Opcode,
    pub flags: u8,
    pub code: u8,
    pub immediate: u32,
    pub sequence: u64,
    pub key: [u8; 16],
    pub offset: u64,
    pub length: u64,
    pub operand: u64,
    pub payload_crc: u32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct Raw {
    opcode: u8,
    flags: u8,
    code: u8,
    zero: u8,
    immediate: U32,
    sequence: U64,
    key: [u8; 16],
    offset: U64,
    length: U64,
    operand: U64,
    payload_crc: U32,
    header_crc: U32,
}

const _: () = assert!(size_of::<Raw>() == HEADER_BYTES);
const CRC_AT: usize = HEADER_BYTES - 4;

impl Frame {
    /// A header of this kind with every other field zero.
    pub fn new(opcode: Opcode, sequence: u64) -> Self {
        Self {
            opcode,
            flags: 0,
            code: 0,
            immediate: 0,
            sequence,
            key: [0; 16],
            offset: 0,
            length: 0,
            operand: 0,
            payload_crc: 0,
        }
    }

    /// The bytes on the wire, checksum included.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let raw = Raw {
            opcode: self.opcode as u8,
            flags: self.flags,
            code: self.code,
            zero: 0,
            immediate: self.immediate.into(),
            sequence: self.sequence.into(),
            key: self.key,
            offset: self.offset.into(),
            length: self.length.into(),
            operand: self.operand.into(),
            payload_crc: self.payload_crc.into(),
            header_crc: 0.into(),
        };
        let mut bytes: [u8; HEADER_BYTES] = zerocopy::transmute!(raw);
        let crc = crc32c::crc32c(&bytes[..CRC_AT]);
        bytes[CRC_AT..].copy_from_slice(U32::new(crc).as_bytes());
        bytes
    }

    /// Reads a header; any 64 bytes give a frame or a typed error.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, ConnectionError> {
        let crc = crc32c::crc32c(&bytes[..CRC_AT]);
        let raw: Raw = zerocopy::transmute!(*bytes);
        if raw.header_crc.get() != crc {
            return Err(ConnectionError::Malformed {
                what: "a header's checksum is wrong: not a pmof peer, or corrupted on the way",
            });
        }
        let opcode = OPCODES
            .into_iter()
            .find(|opcode| *opcode as u8 == raw.opcode)
            .ok_or(ConnectionError::Malformed { what: "an opcode is unknown" })?;
        if raw.zero != 0 || raw.flags & !FLAGS_KNOWN != 0 {
            return Err(ConnectionError::Malformed { what: "a reserved bit is set" });
        }
        Ok(Self {
            opcode,
            flags: raw.flags,
            code: raw.code,
            immediate: raw.immediate.get(),
            sequence: raw.sequence.get(),
            key: raw.key,
            offset: raw.offset.get(),
            length: raw.length.get(),
            operand: raw.operand.get(),
            payload_crc: raw.payload_crc.get(),
        })
    }

    /// Bytes of payload that follow this header.
    pub fn payload_bytes(&self) -> u64 {
        match self.opcode {
            Opcode::Write | Opcode::Send | Opcode::ReadReply | Opcode::Hello | Opcode::Welcome => self.length,
            _ => 0,
        }
    }

    pub(crate) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    pub(crate) fn immediate_data(&self) -> Option<u32> {
        self.has(FLAG_IMMEDIATE).then_some(self.immediate)
    }
}
