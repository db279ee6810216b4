//! The file that a file sync writes to.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use rustix::fs::{FallocateFlags, fallocate};

/// Four times the largest request, so that consecutive requests of any size lie in different places.
pub(crate) const FILE_BYTES: u64 = 16 << 20;

/// What is written at once while the file is made.
const FILL_BYTES: usize = 1 << 20;

/// A file all of whose blocks are allocated, written and synced, so that a later sync writes data only.
///
/// Removed when dropped.
#[derive(Debug)]
pub(crate) struct FloorFile {
    file: File,
    path: PathBuf,
    len_bytes: u64,
    offset: u64,
}

impl FloorFile {
    /// Makes the file; fails where the path exists.
    pub(crate) fn create(path: &Path, len_bytes: u64) -> io::Result<Self> {
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        // From here on dropping removes what was made, also after a failure.
        let made = Self { file, path: path.to_path_buf(), len_bytes, offset: 0 };
        fallocate(&made.file, FallocateFlags::empty(), 0, len_bytes)?;
        let zeros = vec![0; FILL_BYTES];
        for offset in (0..len_bytes).step_by(FILL_BYTES) {
            made.file.write_all_at(&zeros[..FILL_BYTES.min((len_bytes - offset) as usize)], offset)?;
        }
        made.file.sync_all()?;
        Ok(made)
    }

    /// Writes at the next place and waits until the device has it. At most a fourth of the file.
    pub(crate) fn write_durably(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.offset + bytes.len() as u64 > self.len_bytes {
            self.offset = 0;
        }
        self.file.write_all_at(bytes, self.offset)?;
        self.file.sync_data()?;
        self.offset += bytes.len() as u64;
        Ok(())
    }
}

impl Drop for FloorFile {
    fn drop(&mut self) {
        // A drop has nobody to tell; a file that stays is refused by name at the next create.
        let _ = fs::remove_file(&self.path);
    }
}
