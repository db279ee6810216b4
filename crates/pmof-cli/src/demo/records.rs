//! The demo's records, and the ledger of each replica.

use std::collections::BTreeMap;

use anyhow::{Context, bail, ensure};
use pmof_bench::soak::{
    Random,
    ledger::{Ledger, WORD_BYTES, Write},
};

/// Bytes of the pool: 16 MiB, compared whole on every replica in well under a second.
pub(super) const POOL_BYTES: u64 = 16 << 20;

/// Records of one batch, at most.
const BATCH_RECORDS_MAX: u64 = 16;

/// Payloads have 1 B to 16 KiB; short ones are as likely as long ones.
const PAYLOAD_BITS_MAX: u64 = 14;

/// The payload follows its sequence number, its length in bytes, and the CRC32C of both and the payload, each a
/// little-endian word.
const HEADER_BYTES: usize = 3 * WORD_BYTES;

/// One record in flight.
#[derive(Clone, Debug)]
pub(super) struct Record {
    sequence: u64,
    pub(super) offset: u64,
    pub(super) bytes: Vec<u8>,
}

/// Generates records, one behind the other, wrapping at the end of the pool.
#[derive(Debug)]
pub(super) struct Source {
    random: Random,
    sequence: u64,
    tail: u64,
}

impl Source {
    pub(super) fn new(seed: u64) -> Self {
        Self { random: Random::new(seed), sequence: 0, tail: 0 }
    }

    pub(super) fn batch(&mut self) -> Vec<Record> {
        let count = 1 + self.random.below(BATCH_RECORDS_MAX);
        (0..count).map(|_| self.record()).collect()
    }

    fn record(&mut self) -> Record {
        self.sequence += 1;
        let bits = self.random.below(PAYLOAD_BITS_MAX + 1);
        let len_bytes = 1 + self.random.below(1 << bits) as usize;
        let payload: Vec<u8> =
            (0..len_bytes.div_ceil(WORD_BYTES)).flat_map(|_| self.random.word().to_le_bytes()).collect();
        let bytes = encode(self.sequence, &payload[..len_bytes]);
        if self.tail + bytes.len() as u64 > POOL_BYTES {
            self.tail = 0;
        }
        let offset = self.tail;
        self.tail += bytes.len() as u64;
        Record { sequence: self.sequence, offset, bytes }
    }
}

/// What is known of one replica.
#[derive(Debug)]
pub(super) struct Book {
    ledger: Ledger,
    /// Acknowledged records that were not overwritten, by offset: length in bytes and sequence number.
    records: BTreeMap<u64, (u64, u64)>,
    pub(super) batches_acknowledged: u64,
    pub(super) records_acknowledged: u64,
}

/// What a replica was found to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Verified {
    /// Acknowledged records found intact, of those that later ones had not overwritten.
    pub(super) records: u64,
    /// Bytes compared: all of the pool.
    pub(super) bytes: u64,
    /// Bytes that were issued and never acknowledged.
    pub(super) unacknowledged_bytes: u64,
}

impl Book {
    pub(super) fn new() -> Self {
        let ledger = Ledger::new(POOL_BYTES as usize / WORD_BYTES);
        Self { ledger, records: BTreeMap::new(), batches_acknowledged: 0, records_acknowledged: 0 }
    }

    /// Records a batch before it is posted.
    pub(super) fn issue(&mut self, batch: u64, records: &[Record]) {
        for record in records {
            let end = record.offset + record.bytes.len() as u64;
            while let Some((&offset, &(len_bytes, _))) = self.records.range(..end).next_back() {
                if offset + len_bytes <= record.offset {
                    break;
                }
                self.records.remove(&offset);
            }
        }
        let writes = records.iter().map(|record| Write::of_bytes(record.offset, &record.bytes)).collect();
        self.ledger.issue(batch, writes);
    }

    /// Records the receipt of a batch.
    pub(super) fn acknowledge(&mut self, batch: u64, records: &[Record]) -> anyhow::Result<()> {
        self.ledger.acknowledge(batch).context("a receipt for a batch that was not issued")?;
        self.batches_acknowledged += 1;
        self.records_acknowledged += records.len() as u64;
        for record in records {
            self.records.insert(record.offset, (record.bytes.len() as u64, record.sequence));
        }
        Ok(())
    }

    /// Records that the lost replica has caught up and acknowledges again, beginning with this batch: it must hold everything that the one of
    /// the other ledger must.
    pub(super) fn catch_up_with(&mut self, other: &Self, records: &[Record]) {
        self.ledger = other.ledger.clone();
        self.records = other.records.clone();
        self.batches_acknowledged += 1;
        self.records_acknowledged += records.len() as u64;
    }

    /// Compares a whole replica with the ledger, byte by byte, and reads every acknowledged record.
    pub(super) fn verify(&self, pool: &[u8]) -> anyhow::Result<Verified> {
        let checked = match self.ledger.check(pool) {
            Ok(checked) => checked,
            Err(wrong) => bail!(
                "{} words of 8 bytes are wrong; the first at offset {}: {:#018x} was acknowledged, {:#018x} is there",
                wrong.wrong_words,
                wrong.offset,
                wrong.acknowledged,
                wrong.found
            ),
        };
        for (offset, (_, sequence)) in &self.records {
            let found = decode(&pool[*offset as usize..]).with_context(|| format!("no record at offset {offset}"))?;
            ensure!(found == *sequence, "record {found} instead of {sequence} at offset {offset}");
        }
        let word_bytes = WORD_BYTES as u64;
        Ok(Verified {
            records: self.records.len() as u64,
            bytes: checked.words * word_bytes,
            unacknowledged_bytes: checked.unacknowledged_words * word_bytes,
        })
    }
}

/// A record, filled up with zeroes to whole words.
fn encode(sequence: u64, payload: &[u8]) -> Vec<u8> {
    let checksum = u64::from(checksum(sequence, payload));
    let mut bytes = Vec::with_capacity((HEADER_BYTES + payload.len()).next_multiple_of(WORD_BYTES));
    for word in [sequence, payload.len() as u64, checksum] {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    bytes.extend_from_slice(payload);
    bytes.resize(bytes.len().next_multiple_of(WORD_BYTES), 0);
    bytes
}

/// The sequence number of the record that `bytes` begin with, if it is whole.
fn decode(bytes: &[u8]) -> Option<u64> {
    let word = |index: usize| {
        let bytes = bytes.get(index * WORD_BYTES..)?.first_chunk::<WORD_BYTES>()?;
        Some(u64::from_le_bytes(*bytes))
    };
    let (sequence, len_bytes, expected) = (word(0)?, word(1)?, word(2)?);
    let end = HEADER_BYTES.checked_add(usize::try_from(len_bytes).ok()?)?;
    let payload = bytes.get(HEADER_BYTES..end)?;
    (u64::from(checksum(sequence, payload)) == expected).then_some(sequence)
}

fn checksum(sequence: u64, payload: &[u8]) -> u32 {
    let header = crc32c::crc32c_append(crc32c::crc32c(&sequence.to_le_bytes()), &payload.len().to_le_bytes());
    crc32c::crc32c_append(header, payload)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(pool: &mut [u8], records: &[Record]) {
        for record in records {
            pool[record.offset as usize..][..record.bytes.len()].copy_from_slice(&record.bytes);
        }
    }

    #[test]
    fn a_replica_with_all_that_was_acknowledged_is_right_and_any_other_is_not() {
        let (mut source, mut book) = (Source::new(1), Book::new());
        let mut pool = vec![0; POOL_BYTES as usize];
        // Several times around the pool.
        for batch in 0..4_000 {
            let records = source.batch();
            book.issue(batch, &records);
            store(&mut pool, &records);
            book.acknowledge(batch, &records).unwrap();
        }
        let lost = source.batch();
        book.issue(4_000, &lost);
        assert!(source.sequence > 30_000);
        let verified = book.verify(&pool).unwrap();
        assert!(verified.records > 1_000 && verified.records < book.records_acknowledged);
        assert_eq!((verified.bytes, verified.unacknowledged_bytes), (POOL_BYTES, 0));

        store(&mut pool, &lost);
        assert!(book.verify(&pool).unwrap().unacknowledged_bytes > 0);
        let (offset, _) = book.records.first_key_value().unwrap();
        pool[*offset as usize] ^= 1;
        assert!(book.verify(&pool).is_err());
    }

    #[test]
    fn a_replica_that_caught_up_must_hold_what_the_others_do() {
        let (mut source, [mut other, mut away]) = (Source::new(2), [Book::new(), Book::new()]);
        let mut pool = vec![0; POOL_BYTES as usize];
        let before = pool.clone();
        for batch in 0..100 {
            let records = source.batch();
            other.issue(batch, &records);
            store(&mut pool, &records);
            other.acknowledge(batch, &records).unwrap();
            if batch == 99 {
                away.catch_up_with(&other, &records);
            }
        }
        assert_eq!(away.batches_acknowledged, 1);
        assert!(away.verify(&pool).unwrap().records > away.records_acknowledged);
        assert!(away.verify(&before).is_err(), "the control");
    }

    #[test]
    fn torn_records_are_none() {
        let bytes = encode(9, b"a payload of some length");
        assert_eq!(decode(&bytes), Some(9));
        for index in 0..HEADER_BYTES + 24 {
            let mut torn = bytes.clone();
            torn[index] ^= 0x40;
            assert_eq!(decode(&torn), None, "byte {index}");
        }
        assert_eq!(decode(&bytes[..30]), None);
        assert_eq!(decode(&[]), None);
    }
}
