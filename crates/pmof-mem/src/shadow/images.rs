//! The images that a crash could leave: each dirty line in one of the states it passed through, in all combinations.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
};

use super::model::{WORD_BYTES, WordStore};

/// The seed of samples unless a test sets another.
const SEED: u64 = 0x706d_6f66;

/// Whether an enumeration is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exhaustive {
    /// Every image that the crash could leave is there, once.
    Yes,
    /// There are too many; these are a sample, in which images may repeat.
    No,
}

/// The images that a crash could leave, as an iterator.
#[derive(Clone, Debug)]
pub struct CrashImages {
    durable: Vec<u8>,
    len_bytes: usize,
    lines: Vec<LineStates>,
    possible: u128,
    limit: usize,
    /// Images given so far.
    given: usize,
    /// The next choice of states when all are enumerated, lowest line first.
    choice: Vec<usize>,
    random: u64,
}

impl CrashImages {
    pub(super) fn new(durable: Vec<u8>, len_bytes: usize, lines: Vec<LineStates>, limit: usize) -> Self {
        let possible = lines.iter().fold(1_u128, |count, line| count.saturating_mul(line.prefixes.len() as u128));
        let choice = vec![0; lines.len()];
        Self { durable, len_bytes, lines, possible, limit: limit.max(2), given: 0, choice, random: SEED }
    }

    /// Draws another sample; without effect where the enumeration is complete.
    #[must_use]
    pub fn with_seed(mut self, seed: u64) -> Self {
        self.random = seed;
        self
    }

    /// Whether all possible images are given.
    pub fn exhaustive(&self) -> Exhaustive {
        if self.possible <= self.limit as u128 { Exhaustive::Yes } else { Exhaustive::No }
    }

    /// How many distinct images are possible; `u128::MAX` also means more.
    pub fn possible(&self) -> u128 {
        self.possible
    }

    /// Writes the next image over `image`, which this iterator wrote before or which is empty; `false`: there is none.
    pub(super) fn next_into(&mut self, image: &mut Vec<u8>) -> bool {
        let exhaustive = self.exhaustive() == Exhaustive::Yes;
        let end = if exhaustive { self.possible as usize } else { self.limit };
        if self.given == end {
            return false;
        }
        if image.is_empty() {
            image.clone_from(&self.durable);
        }
        if !exhaustive {
            self.choice = self.sample();
        }
        for (line, choice) in self.lines.iter().zip(&self.choice) {
            line.write(*choice, &self.durable, image);
        }
        self.given += 1;
        if exhaustive {
            self.advance();
        }
        true
    }

    pub(super) fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Counts `choice` up, as an odometer whose digits have different bases.
    fn advance(&mut self) {
        for (digit, line) in self.choice.iter_mut().zip(&self.lines) {
            *digit += 1;
            if *digit < line.prefixes.len() {
                return;
            }
            *digit = 0;
        }
    }

    /// First nothing, then everything; then mixes, by turns mostly old, mostly new, and even: a plain product of
    /// uniform choices would almost never show only one line ahead or behind.
    fn sample(&mut self) -> Vec<usize> {
        let turn = self.given;
        let lines: Vec<(usize, usize)> = self.lines.iter().map(|line| (line.newest, line.prefixes.len())).collect();
        let choose = |(newest, states): (usize, usize)| match turn {
            0 => 0,
            1 => newest,
            _ => {
                let is_mixed = self.next_random() % 8 == 0;
                match turn % 3 {
                    0 if !is_mixed => 0,
                    1 if !is_mixed => newest,
                    _ => (self.next_random() % states as u64) as usize,
                }
            }
        };
        lines.into_iter().map(choose).collect()
    }

    /// splitmix64 (Steele, Lea, Flood 2014).
    fn next_random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

impl Iterator for CrashImages {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        let mut image = Vec::new();
        self.next_into(&mut image).then(|| {
            image.truncate(self.len_bytes);
            image
        })
    }
}

/// The distinct states that one dirty line passed through.
#[derive(Clone, Debug)]
pub(super) struct LineStates {
    start: usize,
    line_bytes: usize,
    stores: Vec<WordStore>,
    /// A state is what the first so-many stores leave; ascending, the first is 0.
    prefixes: Vec<usize>,
    /// The place in `prefixes` of the state after all stores, which may also have been an earlier one.
    newest: usize,
}

impl LineStates {
    pub(super) fn new(start: usize, durable: &[u8], stores: Vec<WordStore>) -> Self {
        // A line's contents are told apart by the exclusive or of its words' hashes, kept up store by store.
        let mut words = vec![[0; WORD_BYTES]; durable.len() / WORD_BYTES];
        for (word, bytes) in words.iter_mut().zip(durable.chunks_exact(WORD_BYTES)) {
            word.copy_from_slice(bytes);
        }
        let mut fingerprint = 0;
        let mut known = HashMap::from([(fingerprint, 0)]);
        let mut prefixes = vec![0];
        for (index, store) in stores.iter().enumerate() {
            let word = &mut words[store.at / WORD_BYTES];
            fingerprint ^= hash(store.at, *word) ^ hash(store.at, store.value);
            *word = store.value;
            known.entry(fingerprint).or_insert_with(|| {
                prefixes.push(index + 1);
                prefixes.len() - 1
            });
        }
        let newest = known.get(&fingerprint).copied().unwrap_or_default();
        Self { start, line_bytes: durable.len(), stores, prefixes, newest }
    }

    fn write(&self, choice: usize, durable: &[u8], image: &mut [u8]) {
        let range = self.start..self.start + self.line_bytes;
        let line = &mut image[range.clone()];
        line.copy_from_slice(&durable[range]);
        for store in &self.stores[..self.prefixes[choice]] {
            line[store.at..store.at + WORD_BYTES].copy_from_slice(&store.value);
        }
    }
}

fn hash(at: usize, value: [u8; WORD_BYTES]) -> u64 {
    let mut hasher = DefaultHasher::new();
    (at, value).hash(&mut hasher);
    hasher.finish()
}
