//! The memory that a pool keeps its bytes in too, where that is none of its replicas.

use std::sync::Arc;

use pmof_access::{Medium, Memory};

use super::Open;
use crate::PoolError;

/// Bytes that the mirror is filled with at a time.
const FILL_BYTES: u64 = 4 << 20;

pub(super) fn mirror(size_bytes: u64) -> Result<Arc<dyn Medium>, PoolError> {
    Ok(Arc::new(Memory::anonymous(size_bytes).map_err(PoolError::Mirror)?))
}

impl Open {
    /// Reads all of the pool into its mirror.
    pub(super) fn fill_mirror(&self) -> Result<(), PoolError> {
        let Some(mirror) = &self.mirror else { return Ok(()) };
        let size_bytes = self.facts.size_bytes;
        let mut chunk = vec![0; size_bytes.min(FILL_BYTES) as usize];
        let mut at = 0;
        while at < size_bytes {
            let part = (size_bytes - at).min(FILL_BYTES) as usize;
            self.read(at, &mut chunk[..part])?;
            mirror.store(at, &chunk[..part]).map_err(PoolError::Mirror)?;
            at += part as u64;
        }
        Ok(())
    }
}
