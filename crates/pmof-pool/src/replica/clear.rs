//! Zeros where the contents of a new pool go, in parts that were there before it.

use super::{NewParts, is_behind_header};
use crate::{HEADER_LEN_BYTES, PoolSetError, format::clear};

impl NewParts {
    /// Makes all bytes behind the first header zero. New files are; of others only what is no hole is looked at, and only what is
    /// not zero is written.
    pub(crate) fn clear(&self) -> Result<(), PoolSetError> {
        let mut start = 0;
        for (index, part) in self.parts.iter().enumerate() {
            let end = start + part.mapped_len_bytes(is_behind_header(index, self.options));
            let mut at = start.max(HEADER_LEN_BYTES as u64);
            while !part.is_made && at < end {
                let Some(data) = self.memory.next_data(at)?.filter(|data| data.start < end) else { break };
                clear(&self.memory, data.start..data.end.min(end))?;
                at = data.end;
            }
            start = end;
        }
        Ok(())
    }
}
