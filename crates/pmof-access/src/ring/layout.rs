//! How a ring of records lies in its medium: a header, the position, and slots that a device fills. See `docs/design.md`.

use std::sync::Arc;

use pmof_mem::{Medium, check_bounds};

use super::{RingError, RingRecord};

/// Bytes of one slot, header of the record included: one receive of the message stream.
pub(crate) const SLOT_BYTES: u64 = 8 << 10;

/// Bytes before the first slot.
pub(crate) const HEADER_BYTES: u64 = 4096;

/// Bytes before those of the record.
pub(crate) const RECORD_HEADER_BYTES: usize = 64;

/// Shortest message with a record; what the record lacks is zeroes. A device may leave a shorter message in the completion
/// instead of the receive, for the target's CPU to move: mlx5 does so with up to 64 bytes.
const MESSAGE_MIN_BYTES: usize = 128;

/// Bytes of the message that brings a record of so many bytes.
pub(crate) fn message_bytes(len_bytes: usize) -> usize {
    (RECORD_HEADER_BYTES + len_bytes).max(MESSAGE_MIN_BYTES)
}

/// Longest record in bytes.
pub const RECORD_MAX_BYTES: u64 = SLOT_BYTES - RECORD_HEADER_BYTES as u64;

/// Fewest slots: as many for records as stay free for the message stream.
pub(crate) const SLOTS_MIN: u64 = 32;

/// Most slots of a ring; a longer range is not used up.
pub(crate) const SLOTS_MAX: u64 = 16 << 10;

/// Begins each message of the stream that lands in a ring, so that none can pass for a record.
pub(crate) const STREAM_MAGIC: [u8; 8] = *b"PMOFSTRM";

/// Begins each record.
pub(crate) const RECORD_MAGIC: [u8; 8] = *b"PMOFREC1";

const RING_MAGIC: [u8; 8] = *b"PMOFRING";
const VERSION: u16 = 1;
/// Bytes of the header that its checksum covers.
const CHECKED_BYTES: usize = 60;
/// Where the position lies: a line of its own.
const POSITION_AT: u64 = 64;
/// A ring begins at a page.
const ALIGNMENT_BYTES: u64 = 4096;

/// Where a record lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) sequence: u64,
    pub(crate) slot: u32,
    pub(crate) len_bytes: u32,
}

/// A ring in its medium, whatever fills its slots.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    memory: Arc<dyn Medium>,
    offset: u64,
    slots: u32,
    identity: [u8; 16],
}

impl Layout {
    /// Makes an empty ring. Its first word comes last, so that a crash leaves a ring or none.
    pub(crate) fn create(
        memory: Arc<dyn Medium>,
        offset: u64,
        len_bytes: u64,
        identity: [u8; 16],
    ) -> Result<Self, RingError> {
        let slots = check_range(memory.as_ref(), offset, len_bytes)?;
        let mut first = [0; 8];
        memory.read(offset, &mut first)?;
        if first != [0; 8] {
            return Err(RingError::Occupied { offset });
        }
        let mut header = [0; HEADER_BYTES as usize];
        header[..CHECKED_BYTES].copy_from_slice(&encode_header(slots, &identity));
        let checksum = crc32c::crc32c(&header[..CHECKED_BYTES]);
        header[CHECKED_BYTES..CHECKED_BYTES + 4].copy_from_slice(&checksum.to_le_bytes());
        memory.store(offset + 8, &header[8..])?;
        memory.write_back(offset, HEADER_BYTES)?;
        memory.fence()?;
        let layout = Self { memory, offset, slots, identity };
        layout.set_word(0, u64::from_le_bytes(RING_MAGIC))?;
        Ok(layout)
    }

    /// Finds the ring that lies there.
    pub(crate) fn open(memory: Arc<dyn Medium>, offset: u64, len_bytes: u64) -> Result<Self, RingError> {
        let slots_max = check_range(memory.as_ref(), offset, len_bytes)?;
        let mut header = [0; 64];
        memory.read(offset, &mut header)?;
        if header[..8] != RING_MAGIC {
            return Err(RingError::NoRing { offset });
        }
        let version = u16::from_le_bytes([header[8], header[9]]);
        if version != VERSION {
            return Err(RingError::Version { found: version, known: VERSION });
        }
        let slots = u32::from_le_bytes([header[16], header[17], header[18], header[19]]);
        let mut identity = [0; 16];
        identity.copy_from_slice(&header[32..48]);
        let checksum = crc32c::crc32c(&header[..CHECKED_BYTES]).to_le_bytes();
        if header[..CHECKED_BYTES] != encode_header(slots, &identity) || header[CHECKED_BYTES..] != checksum {
            return Err(RingError::Damaged { offset });
        }
        let least_bytes = HEADER_BYTES + u64::from(slots) * SLOT_BYTES;
        if slots > slots_max {
            return Err(RingError::TooSmall { len_bytes, least_bytes });
        }
        Ok(Self { memory, offset, slots, identity })
    }

    /// How many slots a ring of so many bytes has.
    pub(crate) fn slots_in(len_bytes: u64) -> u32 {
        (len_bytes.saturating_sub(HEADER_BYTES) / SLOT_BYTES).min(SLOTS_MAX) as u32
    }

    pub(crate) fn slots(&self) -> u32 {
        self.slots
    }

    pub(crate) fn identity(&self) -> [u8; 16] {
        self.identity
    }

    /// Where a slot lies in the medium.
    pub(crate) fn slot_at(&self, slot: u32) -> u64 {
        self.offset + HEADER_BYTES + u64::from(slot) * SLOT_BYTES
    }

    pub(crate) fn memory(&self) -> &Arc<dyn Medium> {
        &self.memory
    }

    /// All records up to this number were consumed, or are void.
    pub(crate) fn position(&self) -> Result<u64, RingError> {
        let mut word = [0; 8];
        self.memory.read(self.offset + POSITION_AT, &mut word)?;
        Ok(u64::from_le_bytes(word))
    }

    /// Moves the position; durable on return, as far as the medium goes.
    pub(crate) fn set_position(&self, through: u64) -> Result<(), RingError> {
        self.set_word(POSITION_AT, through)
    }

    fn set_word(&self, at: u64, value: u64) -> Result<(), RingError> {
        self.memory.atomic_store(self.offset + at, value)?;
        self.memory.write_back(self.offset + at, 8)?;
        Ok(self.memory.fence()?)
    }

    /// The whole record in a slot, if there is one with a number above `through` that one life can have given.
    pub(crate) fn record(&self, slot: u32, through: u64) -> Result<Option<(Place, RingRecord)>, RingError> {
        let mut header = [0; RECORD_HEADER_BYTES];
        self.memory.read(self.slot_at(slot), &mut header)?;
        let Some((sequence, len_bytes)) = decode_record_header(&header, &self.identity) else { return Ok(None) };
        // Every record that was not consumed lies in a slot of its own.
        let is_alive = sequence > through && sequence - through <= u64::from(self.slots);
        if !is_alive || u64::from(len_bytes) > RECORD_MAX_BYTES {
            return Ok(None);
        }
        let mut bytes = vec![0; len_bytes as usize];
        self.memory.read(self.slot_at(slot) + RECORD_HEADER_BYTES as u64, &mut bytes)?;
        let is_whole = header[CHECKED_BYTES..] == record_checksum(&header, &bytes);
        Ok(is_whole.then_some((Place { sequence, slot, len_bytes }, RingRecord { sequence, bytes })))
    }

    /// The records that were appended and not consumed, in order, up to the first that is missing or torn: no flush was
    /// answered that covers a later one.
    pub(crate) fn recover(&self) -> Result<Vec<(Place, RingRecord)>, RingError> {
        let through = self.position()?;
        let mut found = Vec::new();
        for slot in 0..self.slots {
            found.extend(self.record(slot, through)?);
        }
        found.sort_by_key(|(place, _)| place.sequence);
        found.dedup_by_key(|(place, _)| place.sequence);
        let in_a_row = found.iter().zip(1..).take_while(|((place, _), at)| place.sequence == through + at).count();
        found.truncate(in_a_row);
        Ok(found)
    }

    /// Begins a life of the ring in which nothing appended before can come back. Everything was consumed. Returns the
    /// position from which the new records count.
    pub(crate) fn begin(&self) -> Result<u64, RingError> {
        // No record of the lives before can have a higher number: each not consumed had a slot of its own.
        let through = self.position()?;
        let next = through.checked_add(u64::from(self.slots)).ok_or(RingError::Damaged { offset: self.offset })?;
        // An initiator that broke the rules may have left one all the same.
        for slot in 0..self.slots {
            let mut header = [0; RECORD_HEADER_BYTES];
            self.memory.read(self.slot_at(slot), &mut header)?;
            if decode_record_header(&header, &self.identity).is_some_and(|(sequence, _)| sequence > next) {
                self.memory.atomic_store(self.slot_at(slot), 0)?;
                self.memory.write_back(self.slot_at(slot), 8)?;
            }
        }
        self.memory.fence()?;
        self.set_position(next)?;
        Ok(next)
    }
}

fn check_range(memory: &dyn Medium, offset: u64, len_bytes: u64) -> Result<u32, RingError> {
    check_bounds(offset, len_bytes, memory.len_bytes())?;
    if offset % ALIGNMENT_BYTES != 0 {
        return Err(RingError::Misaligned { offset, alignment_bytes: ALIGNMENT_BYTES });
    }
    let slots = Layout::slots_in(len_bytes);
    if u64::from(slots) < SLOTS_MIN {
        return Err(RingError::TooSmall { len_bytes, least_bytes: HEADER_BYTES + SLOTS_MIN * SLOT_BYTES });
    }
    Ok(slots)
}

fn encode_header(slots: u32, identity: &[u8; 16]) -> [u8; CHECKED_BYTES] {
    let mut header = [0; CHECKED_BYTES];
    header[..8].copy_from_slice(&RING_MAGIC);
    header[8..10].copy_from_slice(&VERSION.to_le_bytes());
    header[12..16].copy_from_slice(&(SLOT_BYTES as u32).to_le_bytes());
    header[16..20].copy_from_slice(&slots.to_le_bytes());
    header[32..48].copy_from_slice(identity);
    header
}

/// Writes the header before the bytes of a record: the message that is sent.
pub(crate) fn seal_record(message: &mut [u8], identity: &[u8; 16], sequence: u64) {
    let (header, bytes) = message.split_at_mut(RECORD_HEADER_BYTES);
    header.fill(0);
    header[..8].copy_from_slice(&RECORD_MAGIC);
    header[8..16].copy_from_slice(&sequence.to_le_bytes());
    header[16..32].copy_from_slice(identity);
    header[32..36].copy_from_slice(&(bytes.len() as u32).to_le_bytes());
    let checksum = record_checksum(header, bytes);
    header[CHECKED_BYTES..].copy_from_slice(&checksum);
}

/// Sequence number and length, if it is the header of a record of this ring.
fn decode_record_header(header: &[u8; RECORD_HEADER_BYTES], identity: &[u8; 16]) -> Option<(u64, u32)> {
    let is_ours = header[..8] == RECORD_MAGIC && header[16..32] == *identity;
    let mut sequence = [0; 8];
    sequence.copy_from_slice(&header[8..16]);
    let len_bytes = u32::from_le_bytes([header[32], header[33], header[34], header[35]]);
    is_ours.then_some((u64::from_le_bytes(sequence), len_bytes))
}

/// Of the header but for the checksum itself, and the bytes.
fn record_checksum(header: &[u8], bytes: &[u8]) -> [u8; 4] {
    crc32c::crc32c_append(crc32c::crc32c(&header[..CHECKED_BYTES]), bytes).to_le_bytes()
}

#[cfg(test)]
mod tests;
