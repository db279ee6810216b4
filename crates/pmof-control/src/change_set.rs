//! Change sets, as a stream carries them to an asynchronous member.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | `pmofchgs` |
//! | 8 | 8 | number of the change set; the first is 1 |
//! | 16 | 8 | bytes of the body |
//! | 24 | 4 | CRC32C of the body |
//! | 28 | 4 | CRC32C of the bytes before |
//! | 32 | | body: writes, each offset `u64`, length `u64`, and that many bytes |
//!
//! Numbers are little-endian.

/// Bytes of a change set before its body.
pub const CHANGE_SET_HEADER_BYTES: usize = 32;

const MAGIC: [u8; 8] = *b"pmofchgs";
const WRITE_HEADER_BYTES: usize = 16;

#[cfg(test)]
mod tests;

/// Writes that belong together: a member has all of them, or none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangeSet {
    body: Vec<u8>,
}

/// What a change set says before its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangeSetHeader {
    /// Its place in the stream; the first is 1.
    pub number: u64,
    /// Bytes of its body.
    pub body_bytes: u64,
    body_crc: u32,
}

/// One write of a change set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change<'b> {
    /// Where in the pool.
    pub offset: u64,
    /// What.
    pub bytes: &'b [u8],
}

/// What is no change set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChangeSetError {
    /// The header is no change set's, or damaged.
    #[error("no change set begins here: its header is another one, or damaged")]
    Header,
    /// The body is damaged.
    #[error("change set {number}: its body is damaged")]
    Body {
        /// The number of the change set.
        number: u64,
    },
}

impl ChangeSet {
    /// Adds a write, behind those before.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        self.body.extend(offset.to_le_bytes());
        self.body.extend((bytes.len() as u64).to_le_bytes());
        self.body.extend(bytes);
    }

    /// The change set as it is sent, as the `number`-th of its stream.
    pub fn to_bytes(&self, number: u64) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(number.to_le_bytes());
        bytes.extend((self.body.len() as u64).to_le_bytes());
        bytes.extend(crc32c::crc32c(&self.body).to_le_bytes());
        bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
        bytes.extend(&self.body);
        bytes
    }
}

impl ChangeSetHeader {
    /// Reads a header.
    ///
    /// # Errors
    /// [`ChangeSetError::Header`].
    pub fn parse(bytes: &[u8; CHANGE_SET_HEADER_BYTES]) -> Result<Self, ChangeSetError> {
        let number = |at: usize| bytes[at..at + 8].try_into().map(u64::from_le_bytes);
        let crc = |at: usize| bytes[at..at + 4].try_into().map(u32::from_le_bytes);
        let (Ok(place), Ok(body_bytes), Ok(body_crc), Ok(own_crc)) = (number(8), number(16), crc(24), crc(28)) else {
            return Err(ChangeSetError::Header);
        };
        let is_sound = bytes[..8] == MAGIC && own_crc == crc32c::crc32c(&bytes[..28]) && place != 0;
        if is_sound { Ok(Self { number: place, body_bytes, body_crc }) } else { Err(ChangeSetError::Header) }
    }

    /// Reads the body that follows this header.
    ///
    /// # Errors
    /// [`ChangeSetError::Body`].
    pub fn writes<'b>(&self, body: &'b [u8]) -> Result<Vec<Change<'b>>, ChangeSetError> {
        let damaged = ChangeSetError::Body { number: self.number };
        if body.len() as u64 != self.body_bytes || crc32c::crc32c(body) != self.body_crc {
            return Err(damaged);
        }
        let (mut writes, mut rest) = (Vec::new(), body);
        while !rest.is_empty() {
            let Some((header, tail)) = rest.split_first_chunk::<WRITE_HEADER_BYTES>() else { return Err(damaged) };
            let [offset, len_bytes] = [0, 8].map(|at| header[at..at + 8].try_into().map_or(0, u64::from_le_bytes));
            let Some((bytes, tail)) = usize::try_from(len_bytes).ok().and_then(|len| tail.split_at_checked(len)) else {
                return Err(damaged);
            };
            writes.push(Change { offset, bytes });
            rest = tail;
        }
        Ok(writes)
    }
}
