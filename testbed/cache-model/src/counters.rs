//! What the model counts, in a file that outlives a killed machine.

use std::{fs, io, path::Path};

/// One number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Counter {
    /// `clwb`, `clflushopt` and `clflush` of a line of the modelled memory.
    WriteBacks,
    /// The same of any other memory.
    WriteBacksElsewhere,
    /// Stores to the modelled memory that went past the caches.
    StoresPastCache,
    /// Stores of the kernel that went directly to the medium, under `inbound=memory`.
    StoresInbound,
    /// All stores to the modelled memory; counted only under `cut_after=stores:`.
    Stores,
    /// Fences that ordered something, locked instructions included.
    Fences,
    /// Those that were locked instructions.
    LockedFences,
    /// Lines, whole or in part, that reached the medium.
    LinesPersisted,
    /// `wbinvd` and `wbnoinvd`.
    WriteBacksOfAll,
    /// Instructions that the model cannot follow: what they wrote back is taken as lost. A test that relies on the model
    /// must find 0.
    Unsupported,
    /// Write-backs whose address no present page maps: hardware would raise a page fault.
    NotMapped,
    /// Write-backs and stores past the caches that came before the model found the kernel's direct map and so could not be
    /// translated. A test that relies on the model must find 0.
    Untranslated,
    /// Marks executed, with any id.
    Marks,
}

impl Counter {
    /// All, in the order of the file.
    pub const ALL: [Counter; 13] = [
        Counter::WriteBacks,
        Counter::WriteBacksElsewhere,
        Counter::StoresPastCache,
        Counter::StoresInbound,
        Counter::Stores,
        Counter::Fences,
        Counter::LockedFences,
        Counter::LinesPersisted,
        Counter::WriteBacksOfAll,
        Counter::Unsupported,
        Counter::NotMapped,
        Counter::Untranslated,
        Counter::Marks,
    ];

    /// Its name in text.
    pub fn name(self) -> &'static str {
        match self {
            Counter::WriteBacks => "write_backs",
            Counter::WriteBacksElsewhere => "write_backs_elsewhere",
            Counter::StoresPastCache => "stores_past_cache",
            Counter::StoresInbound => "stores_inbound",
            Counter::Stores => "stores",
            Counter::Fences => "fences",
            Counter::LockedFences => "locked_fences",
            Counter::LinesPersisted => "lines_persisted",
            Counter::WriteBacksOfAll => "write_backs_of_all",
            Counter::Unsupported => "unsupported",
            Counter::NotMapped => "not_mapped",
            Counter::Untranslated => "untranslated",
            Counter::Marks => "marks",
        }
    }
}

/// Length of a file of counters: eight bytes each, little-endian, in the order of [`Counter::ALL`].
pub const COUNTERS_BYTES: usize = Counter::ALL.len() * 8;

/// What the plugin had counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    values: [u64; Counter::ALL.len()],
}

/// Why counters cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CountersError {
    /// The file cannot be read.
    #[error("reading the cache model's counters {path}: {source}; did the machine start with counters=?")]
    Read {
        /// The file.
        path: String,
        /// Why not.
        source: io::Error,
    },
    /// The file has another length.
    #[error("{path} has {found} bytes, counters have {COUNTERS_BYTES}; was it written by another build of the plugin?")]
    Length {
        /// The file.
        path: String,
        /// Its length, bytes.
        found: usize,
    },
}

impl Counters {
    /// Reads the file of counters, of a machine that runs or of one that is dead.
    pub fn read(path: &Path) -> Result<Counters, CountersError> {
        let name = path.display().to_string();
        let bytes = fs::read(path).map_err(|source| CountersError::Read { path: name.clone(), source })?;
        if bytes.len() != COUNTERS_BYTES {
            return Err(CountersError::Length { path: name, found: bytes.len() });
        }
        let mut counters = Counters::default();
        for (value, bytes) in counters.values.iter_mut().zip(bytes.chunks_exact(8)) {
            let mut number = [0; 8];
            number.copy_from_slice(bytes);
            *value = u64::from_le_bytes(number);
        }
        Ok(counters)
    }

    /// One number.
    pub fn get(&self, counter: Counter) -> u64 {
        self.values[counter as usize]
    }

    /// Adds one.
    pub fn count(&mut self, counter: Counter) {
        self.values[counter as usize] += 1;
    }

    /// How many write-backs the model could not follow: a verdict that rests on the model needs 0.
    pub fn blind(&self) -> u64 {
        self.get(Counter::Unsupported) + self.get(Counter::Untranslated)
    }
}

impl std::fmt::Display for Counters {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (index, counter) in Counter::ALL.into_iter().enumerate() {
            let space = if index == 0 { "" } else { " " };
            write!(formatter, "{space}{}={}", counter.name(), self.get(counter))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_is_that_of_the_file() {
        for (index, counter) in Counter::ALL.into_iter().enumerate() {
            assert_eq!(counter as usize, index, "{}", counter.name());
        }
    }

    #[test]
    fn a_file_is_read_and_a_wrong_one_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("counters");
        let mut bytes = [0; COUNTERS_BYTES];
        bytes[Counter::Fences as usize * 8] = 7;
        bytes[Counter::Unsupported as usize * 8] = 1;
        fs::write(&path, bytes).unwrap();
        let counters = Counters::read(&path).unwrap();
        assert_eq!((counters.get(Counter::Fences), counters.blind()), (7, 1));
        assert!(counters.to_string().contains(" fences=7 "));
        fs::write(&path, [0; 8]).unwrap();
        assert!(matches!(Counters::read(&path), Err(CountersError::Length { found: 8, .. })));
    }
}
