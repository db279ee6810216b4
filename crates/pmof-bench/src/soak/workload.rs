//! What is written: chosen by a seed, so that the writer and its judge know it without telling each other.

use super::ledger::{WORD_BYTES, Write};

/// Words of the pool: small enough to be compared whole after each kill, and to have its words overwritten often.
pub(super) const POOL_WORDS: usize = 1 << ADDRESS_BITS;

/// Bytes of the pool: 1 MiB.
pub(crate) const POOL_BYTES: u64 = (POOL_WORDS * WORD_BYTES) as u64;

/// Rounds that the stamps can tell apart.
pub(super) const ROUND_LIMIT: u64 = 1 << ROUND_BITS;

/// Batches of one round that the stamps can tell apart: hours of writing.
pub(super) const BATCH_LIMIT: u64 = 1 << BATCH_BITS;

// A word's stamp says which write put it where; its parts fill 64 bits.
const ADDRESS_BITS: u32 = 17;
const WRITE_BITS: u32 = 7;
const BATCH_BITS: u32 = 24;
const ROUND_BITS: u32 = 16;
const _: () = assert!(ADDRESS_BITS + WRITE_BITS + BATCH_BITS + ROUND_BITS == u64::BITS);

/// Writes of one batch, at most: with the longest ones more than a socket takes at once, so that kills cut them.
const WRITES_MAX: u64 = 16;
const _: () = assert!(WRITES_MAX <= 1 << WRITE_BITS);

/// Writes have 1 to 2^16 words (8 B to 512 KiB), short ones as often as long ones.
const LENGTH_BITS_MAX: u64 = 16;
const SHORT_LENGTH_BITS_MAX: u64 = 10;

/// Numbers that a seed decides (`SplitMix64`, Steele, Lea and Flood 2014).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The sequence of this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `limit`, which is far below 2^64, or 0 where that is 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.word().checked_rem(limit).unwrap_or(0)
    }
}

/// All that one seed has a writer write.
#[derive(Clone, Copy, Debug)]
pub(super) struct Workload {
    key: u64,
    length_bits_max: u64,
}

impl Workload {
    pub(super) fn new(seed: u64) -> Self {
        Self { key: mix(seed ^ 0x706d_6f66), length_bits_max: LENGTH_BITS_MAX }
    }

    /// The same with writes of at most 8 KiB: many batches in little time.
    pub(super) fn of_short_writes(seed: u64) -> Self {
        Self { length_bits_max: SHORT_LENGTH_BITS_MAX, ..Self::new(seed) }
    }

    /// The writes of a batch: half of the batches have one, the others up to 16 at places of their own.
    pub(super) fn batch(self, round: u64, batch: u64) -> Vec<Write> {
        let mut random = Random::new(mix(self.key ^ (round << BATCH_BITS | batch)));
        let count = if random.below(2) == 0 { 1 } else { 1 + random.below(WRITES_MAX) };
        let write = |number| {
            let bits = random.below(self.length_bits_max + 1);
            let length = 1 + random.below(1 << bits) as usize;
            let first = random.below((POOL_WORDS - length + 1) as u64) as usize;
            let words = (first..first + length).map(|address| self.word(round, batch, number, address)).collect();
            Write { first, words }
        };
        (0..count).map(write).collect()
    }

    /// The batch that a word comes from, if it is one that this seed has written at this place of the ring.
    pub(super) fn ring_batch_of(self, word: u64, address: usize) -> Option<u64> {
        let stamp = unmix(word) ^ self.key;
        let is_here = stamp & ((1 << ADDRESS_BITS) - 1) == address as u64;
        let (round, batch) = (stamp >> (ADDRESS_BITS + WRITE_BITS + BATCH_BITS), stamp >> (ADDRESS_BITS + WRITE_BITS));
        (is_here && round == 0).then_some(batch & (BATCH_LIMIT - 1))
    }

    /// Which write a word comes from, in words.
    pub(super) fn origin(self, word: u64) -> String {
        if word == 0 {
            return "zero, as before the first write".to_owned();
        }
        let stamp = unmix(word) ^ self.key;
        let address = (stamp & ((1 << ADDRESS_BITS) - 1)) as usize;
        let number = stamp >> ADDRESS_BITS & ((1 << WRITE_BITS) - 1);
        let batch = stamp >> (ADDRESS_BITS + WRITE_BITS) & (BATCH_LIMIT - 1);
        let round = stamp >> (ADDRESS_BITS + WRITE_BITS + BATCH_BITS);
        let known = self
            .batch(round, batch)
            .get(number as usize)
            .is_some_and(|write| (write.first..write.first + write.words.len()).contains(&address));
        if known {
            format!("write {number} of batch {batch} of round {round}, to offset {}", address * WORD_BYTES)
        } else {
            "no write of this run: torn within 8 bytes, or foreign".to_owned()
        }
    }

    fn word(self, round: u64, batch: u64, number: u64, address: usize) -> u64 {
        let stamp = ((round << BATCH_BITS | batch) << WRITE_BITS | number) << ADDRESS_BITS | address as u64;
        mix(stamp ^ self.key)
    }
}

/// What a writer appends to a log that goes round in a part of a pool, batch after batch:
///
/// - batch 0 writes the whole part, so that whatever the pool held before is of no matter;
/// - odd batches append records, each a write of its own, behind the last one or from the first record's place on again;
/// - even batches change the tail, the part's first word, by one atomic write.
///
/// A tail is issued only when the records before it were acknowledged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ring {
    workload: Workload,
    words: usize,
    batch: u64,
    /// Where the next record goes, in words.
    at: usize,
}

/// One batch of a ring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RingBatch {
    Records(Vec<Write>),
    /// One word, to be written atomically.
    Tail(Write),
}

impl RingBatch {
    /// Its writes as the ledger knows them.
    pub(super) fn into_writes(self) -> Vec<Write> {
        match self {
            Self::Records(writes) => writes,
            Self::Tail(write) => vec![write],
        }
    }
}

/// The tail has a cache line of its own.
const RING_FIRST_WORD: usize = 8;

/// Records of one batch, at most.
const RECORDS_MAX: u64 = 8;

/// Records have 1 to 2^12 words (8 B to 32 KiB), short ones as often as long ones.
const RECORD_BITS_MAX: u64 = 12;

/// The smallest pool that a ring fits into: room for a few of the longest records.
pub(super) const RING_MIN_BYTES: u64 = 128 << 10;

impl Ring {
    /// The ring of this seed in the first part, at most 1 MiB, of a pool of at least [`RING_MIN_BYTES`].
    pub(super) fn new(seed: u64, pool_bytes: u64) -> Self {
        let words = POOL_BYTES.min(pool_bytes) as usize / WORD_BYTES;
        Self { workload: Workload::new(seed), words, batch: 0, at: RING_FIRST_WORD }
    }

    /// Words of the part.
    pub(super) fn words(&self) -> usize {
        self.words
    }

    /// The number of the next batch and its writes; `None` when the stamps are used up.
    pub(super) fn next(&mut self) -> Option<(u64, RingBatch)> {
        let number = self.batch;
        if number >= BATCH_LIMIT {
            return None;
        }
        self.batch += 1;
        let batch = match number {
            0 => RingBatch::Records(vec![self.write(0, 0, 0, self.words)]),
            number if number % 2 == 1 => RingBatch::Records(self.records(number)),
            number => RingBatch::Tail(self.write(number, 0, 0, 1)),
        };
        Some((number, batch))
    }

    fn records(&mut self, batch: u64) -> Vec<Write> {
        let mut random = Random::new(mix(self.workload.key ^ batch));
        let count = 1 + random.below(RECORDS_MAX);
        (0..count)
            .map(|number| {
                let bits = random.below(RECORD_BITS_MAX + 1);
                let length = 1 + random.below(1 << bits) as usize;
                if self.at + length > self.words {
                    self.at = RING_FIRST_WORD;
                }
                self.at += length;
                self.write(batch, number, self.at - length, length)
            })
            .collect()
    }

    fn write(&self, batch: u64, number: u64, first: usize, length: usize) -> Write {
        Write { first, words: (first..first + length).map(|at| self.workload.word(0, batch, number, at)).collect() }
    }
}

/// A bijection under which every bit of the input changes about half of the output's.
fn mix(mut z: u64) -> u64 {
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// The inverse of [`mix`]: each step undone, with the factors' inverses modulo 2^64.
fn unmix(mut z: u64) -> u64 {
    z = (z ^ z >> 31 ^ z >> 62).wrapping_mul(0x3196_42b2_d24d_8ec3);
    z = (z ^ z >> 27 ^ z >> 54).wrapping_mul(0x96de_1b17_3f11_9089);
    z ^ z >> 30 ^ z >> 60
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_tell_where_they_come_from() {
        let workload = Workload::new(7);
        let writes = workload.batch(3, 12);
        let last = writes.last().unwrap();
        let text = workload.origin(*last.words.last().unwrap());
        let offset = (last.first + last.words.len() - 1) * WORD_BYTES;
        assert_eq!(text, format!("write {} of batch 12 of round 3, to offset {offset}", writes.len() - 1));
        // The controls: another seed's words, and half a word, are nobody's.
        assert!(Workload::new(8).origin(last.words[0]).contains("no write"));
        assert!(workload.origin(last.words[0] & 0xffff_ffff).contains("no write"));
    }

    #[test]
    fn writes_lie_inside_the_pool_and_differ_between_batches() {
        let workload = Workload::new(1);
        for batch in 0..2_000 {
            let writes = workload.batch(batch % 5, batch);
            assert!((1..=WRITES_MAX as usize).contains(&writes.len()));
            assert!(
                writes.iter().all(|write| !write.words.is_empty() && write.first + write.words.len() <= POOL_WORDS)
            );
        }
        assert_eq!(workload.batch(1, 2), workload.batch(1, 2));
        assert_ne!(workload.batch(1, 2), workload.batch(2, 1));
    }

    #[test]
    fn a_ring_goes_round_inside_its_part() {
        for pool_bytes in [RING_MIN_BYTES, POOL_BYTES, 1 << 30] {
            let mut ring = Ring::new(5, pool_bytes);
            let (words, workload) = (ring.words(), Workload::new(5));
            assert_eq!(words as u64 * 8, pool_bytes.min(POOL_BYTES));
            let mut wraps = 0;
            let mut last = 0;
            for expected in 0..1_000 {
                let (number, batch) = ring.next().unwrap();
                assert_eq!(number, expected);
                let is_tail = matches!(batch, RingBatch::Tail(_));
                assert_eq!(is_tail, number > 0 && number % 2 == 0);
                for write in batch.into_writes() {
                    assert!(write.first + write.words.len() <= words);
                    assert!(is_tail || number == 0 || write.first >= RING_FIRST_WORD);
                    assert!(!is_tail || (write.first, write.words.len()) == (0, 1));
                    wraps += u32::from(!is_tail && write.first < last);
                    last = if is_tail { last } else { write.first };
                    assert_eq!(workload.ring_batch_of(write.words[0], write.first), Some(number));
                    // The controls: the word of another place, or of another seed.
                    assert_eq!(workload.ring_batch_of(write.words[0], write.first + 1), None);
                    assert_ne!(Workload::new(6).ring_batch_of(write.words[0], write.first), Some(number));
                }
            }
            assert!(wraps > 3, "{wraps}");
        }
    }

    #[test]
    fn mixing_can_be_undone() {
        let mut random = Random::new(42);
        for _ in 0..1_000 {
            let z = random.word();
            assert_eq!(unmix(mix(z)), z);
        }
    }
}
