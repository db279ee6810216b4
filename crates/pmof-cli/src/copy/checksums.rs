//! The CRC32C of each window that was copied: 1 MiB of memory per TiB of file.

use super::WINDOW_BYTES;

/// The checksums of a file's windows, holes included.
#[derive(Debug)]
pub(crate) struct Checksums {
    len_bytes: u64,
    windows: Vec<u32>,
    /// Of a whole window of zeroes.
    of_zeroes: u32,
}

/// One window and what it must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExpectedWindow {
    pub(crate) offset: u64,
    pub(crate) len_bytes: usize,
    pub(crate) checksum: u32,
}

impl Checksums {
    pub(crate) fn new(len_bytes: u64) -> Self {
        let of_zeroes = crc32c::crc32c(&vec![0; WINDOW_BYTES]);
        Self { len_bytes, windows: Vec::new(), of_zeroes }
    }

    /// Adds the window that begins at `offset`; all windows skipped since the last one are zeroes.
    pub(crate) fn add(&mut self, offset: u64, bytes: &[u8]) {
        self.skip_to(offset);
        self.windows.push(crc32c::crc32c(bytes));
    }

    /// Ends the file: windows that were not added are zeroes.
    pub(crate) fn finish(&mut self) {
        self.skip_to(self.len_bytes);
        let tail_bytes = (self.len_bytes % WINDOW_BYTES as u64) as usize;
        if tail_bytes > 0 && self.windows.len() as u64 * (WINDOW_BYTES as u64) < self.len_bytes {
            self.windows.push(crc32c::crc32c(&vec![0; tail_bytes]));
        }
    }

    /// All windows in order.
    pub(crate) fn windows(&self) -> impl Iterator<Item = ExpectedWindow> {
        self.windows.iter().enumerate().map(|(index, checksum)| {
            let offset = index as u64 * WINDOW_BYTES as u64;
            let len_bytes = (self.len_bytes - offset).min(WINDOW_BYTES as u64) as usize;
            ExpectedWindow { offset, len_bytes, checksum: *checksum }
        })
    }

    fn skip_to(&mut self, offset: u64) {
        let whole = (offset / WINDOW_BYTES as u64) as usize;
        self.windows.resize(whole.max(self.windows.len()), self.of_zeroes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skipped_windows_are_zeroes() {
        let window = WINDOW_BYTES as u64;
        let mut sums = Checksums::new(4 * window + 5);
        sums.add(window, &vec![7; WINDOW_BYTES]);
        sums.finish();
        let found: Vec<_> = sums.windows().collect();
        assert_eq!(found.len(), 5);
        let zeroes = crc32c::crc32c(&vec![0; WINDOW_BYTES]);
        let at = |offset, len_bytes, checksum| ExpectedWindow { offset, len_bytes, checksum };
        assert_eq!(found[0], at(0, WINDOW_BYTES, zeroes));
        assert_eq!(found[1], at(window, WINDOW_BYTES, crc32c::crc32c(&vec![7; WINDOW_BYTES])));
        assert_eq!(found[3], at(3 * window, WINDOW_BYTES, zeroes));
        assert_eq!(found[4], at(4 * window, 5, crc32c::crc32c(&[0; 5])));
    }

    #[test]
    fn lengths_without_a_tail_and_without_anything() {
        for windows in [0, 2] {
            let mut sums = Checksums::new(windows * WINDOW_BYTES as u64);
            sums.finish();
            assert_eq!(sums.windows().count() as u64, windows);
        }
        let mut sums = Checksums::new(3);
        sums.add(0, b"abc");
        sums.finish();
        assert_eq!(sums.windows().count(), 1);
    }
}
