//! The shutdown state: was the pool open when the machine's persistent memory lost its last writes?

use super::{Checksummed, array, checksum};

/// Length in the header, in bytes.
pub const SHUTDOWN_STATE_LEN_BYTES: usize = 64;

const DIRTY: usize = 16;
const RESERVED: usize = 17;
const CHECKSUM: usize = 56;

/// The shutdown state of a replica, 64 bytes in the header of its first part.
///
/// | offset | length | field |
/// |---|---|---|
/// | 0 | 8 | unsafe shutdowns of the modules below all parts, summed |
/// | 8 | 8 | checksums of the modules' identities, summed |
/// | 16 | 1 | 1 while the pool is open for writing |
/// | 17 | 39 | zero |
/// | 56 | 8 | checksum of the 56 bytes before |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShutdownState {
    /// Unsafe shutdowns of the modules below all parts, summed; 0 where there are no such modules.
    pub unsafe_shutdowns: u64,
    /// Checksums of the modules' identities, summed; 0 where there are no such modules.
    pub modules: u64,
    /// Not 0 while the pool is open for writing.
    pub dirty: u8,
    reserved: [u8; 39],
    checksum: u64,
}

/// All zeros: never open, on no module.
impl Default for ShutdownState {
    fn default() -> Self {
        Self::new(0, 0, false)
    }
}

impl ShutdownState {
    /// That of a pool which lies on these modules.
    pub fn new(unsafe_shutdowns: u64, modules: u64, is_dirty: bool) -> Self {
        let state = Self { unsafe_shutdowns, modules, dirty: u8::from(is_dirty), reserved: [0; 39], checksum: 0 };
        Self { checksum: state.computed(), ..state }
    }

    /// Whether the checksum is right and what must be zero is. One that was being written when its program died is not.
    pub fn is_intact(&self) -> bool {
        self.checksum == self.computed() && self.reserved == [0; 39] && self.dirty <= 1
    }

    /// Whether the pool was not closed.
    pub fn is_dirty(&self) -> bool {
        self.dirty != 0
    }

    /// As it is stored.
    pub fn to_bytes(&self) -> [u8; SHUTDOWN_STATE_LEN_BYTES] {
        let mut bytes = [0; SHUTDOWN_STATE_LEN_BYTES];
        bytes[..8].copy_from_slice(&self.unsafe_shutdowns.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.modules.to_le_bytes());
        bytes[DIRTY] = self.dirty;
        bytes[RESERVED..CHECKSUM].copy_from_slice(&self.reserved);
        bytes[CHECKSUM..].copy_from_slice(&self.checksum.to_le_bytes());
        bytes
    }

    /// From the stored bytes, whatever they are.
    pub fn from_bytes(bytes: [u8; SHUTDOWN_STATE_LEN_BYTES]) -> Self {
        Self {
            unsafe_shutdowns: u64::from_le_bytes(array(&bytes, 0)),
            modules: u64::from_le_bytes(array(&bytes, 8)),
            dirty: bytes[DIRTY],
            reserved: array(&bytes, RESERVED),
            checksum: u64::from_le_bytes(array(&bytes, CHECKSUM)),
        }
    }

    fn computed(&self) -> u64 {
        checksum(&self.to_bytes(), &Checksummed { field: CHECKSUM, end: SHUTDOWN_STATE_LEN_BYTES })
    }
}
