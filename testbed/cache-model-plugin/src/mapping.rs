//! Files as memory: the live image, which the machine changes at any time, its shadow, and the counters.

use std::{
    fs::{File, OpenOptions},
    path::Path,
    ptr::NonNull,
    sync::atomic::{AtomicU64, Ordering},
};

use rustix::mm::{MapFlags, ProtFlags};

const WORD: usize = 8;

/// A shared mapping of the first bytes of a file, as eight-byte words that others may change at any time. It is never
/// unmapped: it lives as long as the machine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Words {
    first: NonNull<AtomicU64>,
    count: usize,
}

// SAFETY: every access is an atomic one of a word inside the mapping, which is never unmapped.
unsafe impl Send for Words {}
// SAFETY: every access by a shared reference is an atomic one of a word inside the mapping, which is never unmapped.
unsafe impl Sync for Words {}

impl Words {
    /// Maps `length` bytes, a multiple of 8, of a file for reading and writing.
    pub(crate) fn map(path: &Path, file: &File, length: u64) -> Result<Words, String> {
        let failed = |error: &dyn std::fmt::Display| format!("mapping {length} bytes of {}: {error}", path.display());
        let found = file.metadata().map_err(|error| failed(&error))?.len();
        if found < length {
            return Err(failed(&format!("the file has only {found}")));
        }
        // SAFETY: a new mapping at an address of the kernel's choice touches no other memory.
        let start = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                length as usize,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                file,
                0,
            )
        }
        .map_err(|error| failed(&error))?;
        let first = NonNull::new(start.cast()).ok_or_else(|| failed(&"mapped at address 0"))?;
        Ok(Words { first, count: length as usize / WORD })
    }

    /// The word at an index, which must be below the count.
    pub(crate) fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.count, "word {index} of {}", self.count);
        // SAFETY: the index is below the count, the mapping is page-aligned and never unmapped, and all access to it
        // by this process is atomic.
        unsafe { self.first.add(index).as_ref() }
    }

    /// The eight words of the line that starts at a byte.
    pub(crate) fn line(&self, byte: u64) -> [u8; 64] {
        let mut line = [0; 64];
        let first = byte as usize / WORD;
        for (index, bytes) in line.chunks_exact_mut(WORD).enumerate() {
            bytes.copy_from_slice(&self.word(first + index).load(Ordering::Relaxed).to_le_bytes());
        }
        line
    }

    /// Replaces those bytes of a line whose bits are set.
    pub(crate) fn replace(&self, byte: u64, line: &[u8; 64], mask: u64) {
        let first = byte as usize / WORD;
        for (index, bytes) in line.chunks_exact(WORD).enumerate() {
            let chosen = spread((mask >> (index * WORD)) as u8);
            if chosen == 0 {
                continue;
            }
            let bytes = bytes.try_into().expect("a chunk is a word");
            let word = self.word(first + index);
            let old = if chosen == u64::MAX { 0 } else { word.load(Ordering::Relaxed) & !chosen };
            word.store(old | u64::from_le_bytes(bytes) & chosen, Ordering::Relaxed);
        }
    }
}

/// Opens a file that exists for a mapping.
pub(crate) fn open(path: &Path) -> Result<File, String> {
    let error = |error| format!("opening {}: {error}", path.display());
    OpenOptions::new().read(true).write(true).open(path).map_err(error)
}

/// Each bit of a byte as a byte of ones.
fn spread(bits: u8) -> u64 {
    (0..8).filter(|bit| bits >> bit & 1 == 1).fold(0, |word, bit| word | 0xff << (8 * bit))
}
