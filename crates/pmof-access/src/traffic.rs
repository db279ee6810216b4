//! What a connection has moved.

/// Bytes that this side of a connection has moved since it was opened. What networks add, their own headers and acknowledgements, is
/// not in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Traffic {
    /// Messages given to the transport: their headers, and what they carry.
    pub sent_bytes: u64,
    /// Messages taken from it.
    pub received_bytes: u64,
    /// Written past the target's CPU, by a device or into shared memory: what the caller asked for, without what devices put around it.
    pub direct_written_bytes: u64,
    /// Read so.
    pub direct_read_bytes: u64,
}

impl Traffic {
    /// Everything that left this side.
    pub fn out_bytes(&self) -> u64 {
        self.sent_bytes + self.direct_written_bytes
    }

    /// Everything that came to it.
    pub fn in_bytes(&self) -> u64 {
        self.received_bytes + self.direct_read_bytes
    }

    /// Adds what another connection has moved.
    pub fn add(&mut self, other: &Self) {
        self.sent_bytes += other.sent_bytes;
        self.received_bytes += other.received_bytes;
        self.direct_written_bytes += other.direct_written_bytes;
        self.direct_read_bytes += other.direct_read_bytes;
    }
}
