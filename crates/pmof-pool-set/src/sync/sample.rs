//! Files that may be what is left of a replica, held against the one to copy from.

use crate::{AccessError, ReplicaAccess, replica::resembles};

/// The replica to copy from, as files that may be what is left of another are held against it.
pub(super) struct Sample<'r> {
    source: &'r mut dyn ReplicaAccess,
    len_bytes: u64,
    failed: Option<AccessError>,
}

impl<'r> Sample<'r> {
    pub(super) fn of(source: &'r mut dyn ReplicaAccess, len_bytes: u64) -> Self {
        Self { source, len_bytes, failed: None }
    }

    /// Whether the pool has something like these bytes there.
    pub(super) fn holds(&mut self, at: u64, bytes: &[u8]) -> bool {
        if at + bytes.len() as u64 > self.len_bytes {
            return false;
        }
        let mut own = vec![0; bytes.len()];
        match self.source.contents().read(at, &mut own) {
            Ok(()) => resembles(&own, bytes),
            Err(error) => {
                self.failed = Some(error);
                false
            }
        }
    }

    /// Errors: that of a reading that failed.
    pub(super) fn end(self) -> Result<(), AccessError> {
        self.failed.map_or(Ok(()), Err)
    }
}
