//! What the two sides tell each other before anything else, and what they agree on.
//!
//! The first frame of each direction has the layout of [`Frame`](crate::frame::Frame), with these meanings:
//!
//! | offset | bytes | hello (initiator) | welcome (target) |
//! |---|---|---|---|
//! | 2 | 1 | zero | 0 accepted, else [`Refusal`] |
//! | 4 | 4 | magic `PMOF` | magic `PMOF` |
//! | 8 | 2, 2, 4 | oldest, newest version; zero | version chosen, twice; zero |
//! | 16 | 8 | capabilities | capabilities both have |
//! | 24 | 4 | longest message taken, in bytes | the same |
//! | 28 | 4 | inbox, in messages | the same |
//! | 32 | 8 | longest payload taken, in bytes | the same |
//! | 40 | 8 | bytes of private data that follow | the same |
//! | 48 | 4, 4 | send queue wanted, in operations; zero | send queue granted; zero |
//!
//! The layout of the header, its checksum and the fields of this table never change between versions.

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout,
    little_endian::{U16, U32, U64},
};

use crate::{
    ConnectionError, Refusal,
    frame::{FLAG_PAYLOAD_CRC, Frame, Opcode},
    limits,
};

bitflags::bitflags! {
    /// What a side can do beyond the required minimum; the connection has what both have.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Capabilities: u64 {
        /// Payloads carry a CRC32C, computed where the bytes lie: if others change them meanwhile, it is wrong and the
        /// connection ends.
        const PAYLOAD_CRC = 1;
    }
}

/// What one side offers and what it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Capabilities offered.
    pub capabilities: Capabilities,
    /// Longest message taken, in bytes.
    pub message_max_bytes: u32,
    /// Messages kept while no receive is posted.
    pub inbox_messages: u32,
    /// Longest payload of a write or read taken, in bytes.
    pub payload_max_bytes: u64,
    /// Operations posted and not completed.
    pub send_queue: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            capabilities: Capabilities::empty(),
            message_max_bytes: limits::MESSAGE_DEFAULT_MAX_BYTES,
            inbox_messages: limits::INBOX_DEFAULT_MESSAGES,
            payload_max_bytes: limits::PAYLOAD_MAX_BYTES,
            send_queue: limits::SEND_QUEUE_DEFAULT,
        }
    }
}

impl Settings {
    /// The settings with every number brought into its bounds.
    #[must_use]
    pub fn clamped(self) -> Self {
        Self {
            capabilities: self.capabilities,
            message_max_bytes: self.message_max_bytes.min(limits::MESSAGE_LIMIT_BYTES),
            inbox_messages: self.inbox_messages.clamp(1, limits::INBOX_LIMIT_MESSAGES),
            payload_max_bytes: self.payload_max_bytes.clamp(8, limits::PAYLOAD_MAX_BYTES),
            send_queue: self.send_queue.clamp(4, limits::SEND_QUEUE_LIMIT),
        }
    }
}

/// The magic number: `PMOF` read as little-endian.
pub(crate) const MAGIC: u32 = u32::from_le_bytes(*b"PMOF");

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct RawOffer {
    capabilities: U64,
    message_max_bytes: U32,
    inbox_messages: U32,
}

/// A hello or welcome as received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    pub(crate) version_min: u16,
    pub(crate) version_max: u16,
    pub(crate) settings: Settings,
}

pub(crate) fn encode_hello(settings: Settings, private_data: &[u8]) -> Frame {
    encode_offer(Opcode::Hello, [limits::VERSION_MIN, limits::VERSION_MAX], settings, private_data)
}

/// The answer to a hello: an acceptance, or a refusal.
pub(crate) fn encode_welcome(version: u16, settings: Settings, refusal: Option<Refusal>, private_data: &[u8]) -> Frame {
    let code = refusal.map_or(0, |refusal| refusal as u8);
    Frame { code, ..encode_offer(Opcode::Welcome, [version, version], settings, private_data) }
}

fn encode_offer(opcode: Opcode, versions: [u16; 2], settings: Settings, private_data: &[u8]) -> Frame {
    let mut frame = Frame::new(opcode, u64::from(versions[0]) | u64::from(versions[1]) << 16);
    frame.flags = FLAG_PAYLOAD_CRC;
    frame.immediate = MAGIC;
    frame.key = zerocopy::transmute!(RawOffer {
        capabilities: settings.capabilities.bits().into(),
        message_max_bytes: settings.message_max_bytes.into(),
        inbox_messages: settings.inbox_messages.into(),
    });
    frame.offset = settings.payload_max_bytes;
    frame.length = private_data.len() as u64;
    frame.operand = u64::from(settings.send_queue);
    frame.payload_crc = crc32c::crc32c(private_data);
    frame
}

/// Reads a hello or welcome, whose opcode the caller has checked.
pub(crate) fn decode_offer(frame: &Frame, private_max_bytes: usize) -> Result<Offer, ConnectionError> {
    let malformed = |what| ConnectionError::Malformed { what };
    if frame.immediate != MAGIC {
        return Err(malformed("the handshake lacks the magic number"));
    }
    if frame.length > private_max_bytes as u64 {
        return Err(malformed("the handshake carries too much private data"));
    }
    if frame.sequence >> 32 != 0 || frame.operand >> 32 != 0 {
        return Err(malformed("a reserved field of the handshake is not zero"));
    }
    let versions: [U16; 2] = zerocopy::transmute!(U32::new(frame.sequence as u32));
    let raw: RawOffer = zerocopy::transmute!(frame.key);
    let settings = Settings {
        capabilities: Capabilities::from_bits_truncate(raw.capabilities.get()),
        message_max_bytes: raw.message_max_bytes.get(),
        inbox_messages: raw.inbox_messages.get(),
        payload_max_bytes: frame.offset,
        send_queue: frame.operand as u32,
    };
    Ok(Offer { version_min: versions[0].get(), version_max: versions[1].get(), settings: settings.clamped() })
}

impl Offer {
    /// The newest version that both sides speak.
    pub(crate) fn common_version(&self) -> Result<u16, Refusal> {
        let newest = self.version_max.min(limits::VERSION_MAX);
        let oldest = self.version_min.max(limits::VERSION_MIN);
        if newest < oldest { Err(Refusal::NoCommonVersion) } else { Ok(newest) }
    }
}
