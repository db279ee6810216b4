//! What is written: records that name their place and their version, and the judge of what a replica holds.

use std::ops::Range;

use crate::soak::Random;

/// Bytes of a pool.
pub(super) const POOL_BYTES: u64 = 64 << 20;

/// Its last part is written once and never again: nobody but a wrong copy changes it.
pub(super) const COLD: Range<u64> = POOL_BYTES * 3 / 4..POOL_BYTES;

/// Bytes of the records of each writer, in turn: within pages, of their size, and across several.
const RECORD_BYTES: [u64; 4] = [200, 512, 4096, 9000];

/// Bytes of the records of the cold part.
const COLD_RECORD_BYTES: u64 = 64 << 10;

const WORD_BYTES: usize = 8;

/// A part of the pool that one thread writes, record by record.
#[derive(Debug)]
pub(super) struct Region {
    seed: u64,
    begin: u64,
    record_bytes: u64,
    /// The version of each record that was acknowledged last.
    acknowledged: Vec<u64>,
}

impl Region {
    /// The part of the `index`-th of `count` writers.
    pub(super) fn of_writer(seed: u64, index: u64, count: u64) -> Self {
        // On page boundaries, so that the records of two writers do not share a page more often than those of one.
        let len_bytes = COLD.start / count / 4096 * 4096;
        Self::new(seed, index * len_bytes, len_bytes, RECORD_BYTES[index as usize % RECORD_BYTES.len()])
    }

    pub(super) fn cold(seed: u64) -> Self {
        Self::new(seed, COLD.start, COLD.end - COLD.start, COLD_RECORD_BYTES)
    }

    fn new(seed: u64, begin: u64, len_bytes: u64, record_bytes: u64) -> Self {
        Self { seed, begin, record_bytes, acknowledged: vec![0; (len_bytes / record_bytes) as usize] }
    }

    pub(super) fn record_count(&self) -> u64 {
        self.acknowledged.len() as u64
    }

    /// Fills `bytes` with a version of a record, and returns its offset.
    pub(super) fn write(&self, record: u64, version: u64, bytes: &mut Vec<u8>) -> u64 {
        let offset = self.begin + record * self.record_bytes;
        let mut words = Random::new(self.seed ^ Random::new(offset).word() ^ version.rotate_left(32));
        bytes.clear();
        bytes.extend_from_slice(&version.to_le_bytes());
        while (bytes.len() as u64) < self.record_bytes {
            bytes.extend_from_slice(&words.word().to_le_bytes());
        }
        offset
    }

    pub(super) fn acknowledge(&mut self, record: u64, version: u64) {
        self.acknowledged[record as usize] = version;
    }

    /// Compares what a replica holds with what was acknowledged last: the first record that is wrong, in words for people, and how many are.
    pub(super) fn judge(&self, pool: &[u8]) -> Option<Wrong> {
        let mut wrong: Option<Wrong> = None;
        let mut expected = Vec::new();
        let written = self.acknowledged.iter().enumerate().filter(|(_, version)| **version != 0);
        for (record, version) in written {
            let offset = self.write(record as u64, *version, &mut expected);
            let found = &pool[offset as usize..][..expected.len()];
            if found == expected {
                continue;
            }
            let wrong = wrong.get_or_insert_with(|| {
                let at = found.iter().zip(&expected).position(|(found, expected)| found != expected).unwrap_or(0);
                let named = found.first_chunk::<WORD_BYTES>().map_or(0, |word| u64::from_le_bytes(*word));
                Wrong { records: 0, offset: offset + at as u64, expected_version: *version, named_version: named }
            });
            wrong.records += 1;
        }
        wrong
    }
}

/// Records that are not what was acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wrong {
    pub(super) records: u64,
    /// Of the first byte of the first one.
    pub(super) offset: u64,
    pub(super) expected_version: u64,
    /// What its first word says.
    pub(super) named_version: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_version_and_a_torn_one_are_found() {
        let mut pool = vec![0; POOL_BYTES as usize];
        for index in 0..4 {
            let mut region = Region::of_writer(7, index, 4);
            let mut bytes = Vec::new();
            let last = region.record_count() - 1;
            for (record, version) in [(0, 1), (last, 2), (0, 3)] {
                let offset = region.write(record, version, &mut bytes) as usize;
                assert!((offset + bytes.len()) as u64 <= COLD.start);
                pool[offset..][..bytes.len()].copy_from_slice(&bytes);
                region.acknowledge(record, version);
            }
            assert_eq!(region.judge(&pool), None);
            let offset = region.write(0, 1, &mut bytes) as usize;
            pool[offset..][..bytes.len()].copy_from_slice(&bytes);
            let wrong = region.judge(&pool).expect("an older version");
            assert_eq!((wrong.records, wrong.offset), (1, offset as u64));
            assert_eq!((wrong.expected_version, wrong.named_version), (3, 1));
            region.acknowledge(0, 1);
            pool[offset + bytes.len() - 1] ^= 1;
            let wrong = region.judge(&pool).expect("a torn one");
            assert_eq!(wrong.offset, (offset + bytes.len() - 1) as u64);
        }
    }

    #[test]
    fn writers_do_not_meet() {
        for count in 1..=8 {
            let mut end = 0;
            for index in 0..count {
                let region = Region::of_writer(1, index, count);
                assert!(region.begin >= end && region.record_count() > 0);
                end = region.begin + region.record_count() * region.record_bytes;
            }
            assert!(end <= COLD.start);
        }
    }
}
