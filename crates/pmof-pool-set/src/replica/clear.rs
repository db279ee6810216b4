//! Zeroes parts that existed before the pool: behind the headers at its creation, and everywhere when the creation is undone.

use pmof_mem::{Medium as _, Memory};

use super::{LocalReplica, NewParts, header_count, header_memory, is_behind_header, write_header};
use crate::{HEADER_LEN_BYTES, OpenFor, PoolSetError, SetOptions, data_ranges, format::clear, header, part::Part};

impl NewParts {
    /// Zeroes all bytes behind the first header. New files are zero already; in others only data is read, and only nonzero bytes
    /// are written.
    pub(crate) fn clear(&self) -> Result<(), PoolSetError> {
        clear_given(&self.parts, &self.memory, self.options, |_| true)
    }
}

impl NewParts {
    /// Records durably in all headers that a creation is in progress, so that the remains after a kill belong to nobody.
    pub(crate) fn mark(&self) -> Result<(), PoolSetError> {
        self.write_begins(&header::left_by_creation(), |_| true)
    }

    /// Zeroes the contents of existing files: the remains of a killed creation.
    pub(crate) fn clear_files(&self) -> Result<(), PoolSetError> {
        clear_given(&self.parts, &self.memory, self.options, is_file)
    }

    /// Zeroes existing files again, and clears the headers of devices.
    pub(crate) fn take_back(&self) -> Result<(), PoolSetError> {
        self.clear_files()?;
        self.memory.fence()?;
        self.write_begins(&[0; HEADER_LEN_BYTES], |part| !part.is_made)
    }

    fn write_begins(
        &self,
        bytes: &[u8; HEADER_LEN_BYTES],
        is_written: impl Fn(&&Part) -> bool,
    ) -> Result<(), PoolSetError> {
        let mut with_header = self.parts.iter().take(header_count(self.parts.len(), self.options)).filter(is_written);
        with_header.try_for_each(|part| write_header(&header_memory(part, OpenFor::Write)?, bytes))
    }
}

fn is_file(part: &Part) -> bool {
    part.devdax_align_bytes.is_none()
}

impl LocalReplica {
    /// Zeroes all bytes behind the first header in existing files, which then belong to nobody again and can be reused. The former
    /// contents of a device behind its header are lost.
    pub(super) fn clear_files(&self) -> Result<(), PoolSetError> {
        clear_given(&self.parts, &self.memory, self.options, is_file)?;
        Ok(self.memory.fence()?)
    }
}

fn clear_given(
    parts: &[Part],
    memory: &Memory,
    options: SetOptions,
    is_cleared: impl Fn(&Part) -> bool,
) -> Result<(), PoolSetError> {
    let mut start = 0;
    // Without headers the first bytes are contents too.
    let first = if options.no_headers { 0 } else { HEADER_LEN_BYTES as u64 };
    for (index, part) in parts.iter().enumerate() {
        let end = start + part.mapped_len_bytes(is_behind_header(index, options));
        if !part.is_made && is_cleared(part) && start.max(first) < end {
            // All of them before the first is read: what a read brings into the page cache counts as data.
            for data in data_ranges(memory, start.max(first)..end, usize::MAX)?.0 {
                clear(memory, data)?;
            }
        }
        start = end;
    }
    Ok(())
}
