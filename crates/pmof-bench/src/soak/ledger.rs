//! What a pool must hold after a crash: acknowledged is contained in recovered, recovered in issued, word by word.

use std::collections::{HashMap, VecDeque};

use pmof_access::limits::WHOLE_WRITE_MAX_BYTES;

/// The unit in which a crash may tear a short write (see `pmof::Batch::write`); a longer one is torn at any byte.
pub const WORD_BYTES: usize = 8;

/// One write of whole words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// The first word's number in the pool; its offset in words.
    pub first: usize,
    /// The words, each little-endian in the pool.
    pub words: Vec<u64>,
}

impl Write {
    /// A write of bytes, whose offset and length are multiples of 8.
    pub fn of_bytes(offset: u64, bytes: &[u8]) -> Self {
        Self { first: offset as usize / WORD_BYTES, words: words_of(bytes).collect() }
    }

    /// Its offset in the pool in bytes.
    pub fn offset(&self) -> u64 {
        (self.first * WORD_BYTES) as u64
    }

    /// True if a crash may tear it inside a word.
    fn is_long(&self) -> bool {
        (self.words.len() * WORD_BYTES) as u64 > WHOLE_WRITE_MAX_BYTES
    }

    /// Its bytes.
    pub fn bytes(&self) -> Vec<u8> {
        self.words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }
}

/// What is known of one replica from the issued and the acknowledged batches.
#[derive(Clone, Debug)]
pub struct Ledger {
    /// The last acknowledged value of every word.
    acknowledged: Vec<u64>,
    /// Batches that were issued later and not acknowledged, in order.
    pending: VecDeque<(u64, Vec<Write>)>,
    /// What sessions that have ended issued and did not acknowledge, by the word's number, until something acknowledged covers it.
    undecided: HashMap<usize, Possible>,
}

/// A pool that held what it may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checked {
    /// Words compared: all.
    pub words: u64,
    /// Words that hold an issued value that was never acknowledged.
    pub unacknowledged_words: u64,
}

/// The first word that holds what it must not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrongWord {
    /// Its offset in the pool in bytes.
    pub offset: u64,
    /// What it holds.
    pub found: u64,
    /// Its last acknowledged value.
    pub acknowledged: u64,
    /// What was issued for it after that.
    pub pending: Vec<u64>,
    /// How many words are told of by this one, itself included.
    pub wrong_words: u64,
}

impl Ledger {
    /// The ledger of a new pool: all zero.
    pub fn new(words: usize) -> Self {
        Self { acknowledged: vec![0; words], pending: VecDeque::new(), undecided: HashMap::new() }
    }

    /// Takes note of a batch before it is posted. Its writes must lie inside the pool.
    ///
    /// # Panics
    ///
    /// If a write does not.
    pub fn issue(&mut self, batch: u64, writes: Vec<Write>) {
        assert!(writes.iter().all(|write| write.first + write.words.len() <= self.acknowledged.len()));
        self.pending.push_back((batch, writes));
    }

    /// Takes note of an acknowledgement, which covers what was issued before as well. Returns how many writes that
    /// makes; `None`: no such batch awaits one.
    #[must_use]
    pub fn acknowledge(&mut self, batch: u64) -> Option<u64> {
        let position = self.pending.iter().position(|(issued, _)| *issued == batch)?;
        let mut count = 0;
        for Write { first, words } in self.pending.drain(..=position).flat_map(|(_, writes)| writes) {
            let covered = first..first + words.len();
            self.acknowledged[covered.clone()].copy_from_slice(&words);
            if !self.undecided.is_empty() {
                covered.for_each(|address| _ = self.undecided.remove(&address));
            }
            count += 1;
        }
        Some(count)
    }

    /// The writer's session has ended, and another begins, whose batches have numbers of their own. What it issued last may be there, or not, until the next one
    /// acknowledges something else in its place.
    pub fn end_session(&mut self) {
        let pending = std::mem::take(&mut self.pending);
        enter(&mut self.undecided, pending.iter().flat_map(|(_, writes)| writes));
    }

    /// Compares a whole pool with what it may hold.
    pub fn check(&self, pool: &[u8]) -> Result<Checked, WrongWord> {
        let mut wrong: Option<WrongWord> = None;
        let checked = self.judge(pool, |word| match &mut wrong {
            Some(first) => first.wrong_words += 1,
            None => wrong = Some(word),
        });
        wrong.map_or(Ok(checked), Err)
    }

    /// Compares a whole pool with what it may hold, and hands over every word that is wrong.
    ///
    /// # Panics
    ///
    /// If `pool` has another length than the ledger is of.
    pub fn judge(&self, pool: &[u8], mut wrong: impl FnMut(WrongWord)) -> Checked {
        assert_eq!(pool.len(), self.acknowledged.len() * WORD_BYTES);
        let mut possible = self.undecided.clone();
        enter(&mut possible, self.pending.iter().flat_map(|(_, writes)| writes));
        let none = Possible::default();
        let mut checked = Checked { words: 0, unacknowledged_words: 0 };
        for (address, (found, acknowledged)) in words_of(pool).zip(&self.acknowledged).enumerate() {
            checked.words += 1;
            if found == *acknowledged {
                continue;
            }
            let Possible { words: pending, is_torn } = possible.get(&address).unwrap_or(&none);
            if pending.contains(&found) || (*is_torn && is_mixed(found, *acknowledged, pending)) {
                checked.unacknowledged_words += 1;
                continue;
            }
            let (offset, acknowledged) = ((address * WORD_BYTES) as u64, *acknowledged);
            wrong(WrongWord { offset, found, acknowledged, pending: pending.clone(), wrong_words: 1 });
        }
        checked
    }

    /// Takes a pool that was checked as what the next load starts from: what the crash left undecided is decided.
    pub fn settle(&mut self, pool: &[u8]) {
        self.acknowledged = words_of(pool).collect();
        self.pending.clear();
        self.undecided.clear();
    }
}

/// What unacknowledged writes may have left in one word.
#[derive(Clone, Debug, Default)]
struct Possible {
    words: Vec<u64>,
    /// One of them may be torn inside the word.
    is_torn: bool,
}

/// Enters what these writes may have left.
fn enter<'w>(possible: &mut HashMap<usize, Possible>, writes: impl Iterator<Item = &'w Write>) {
    for write in writes {
        for (address, word) in (write.first..).zip(&write.words) {
            let possible = possible.entry(address).or_default();
            possible.words.push(*word);
            possible.is_torn |= write.is_long();
        }
    }
}

/// True if each byte is that of the acknowledged word or of one that was issued later.
fn is_mixed(found: u64, acknowledged: u64, pending: &[u64]) -> bool {
    let same_byte = |index: usize, word: u64| word.to_le_bytes()[index] == found.to_le_bytes()[index];
    (0..WORD_BYTES).all(|index| same_byte(index, acknowledged) || pending.iter().any(|word| same_byte(index, *word)))
}

/// The words of these bytes, the last filled up with zeroes.
fn words_of(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.chunks(WORD_BYTES).map(|chunk| {
        let mut word = [0; WORD_BYTES];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    })
}

#[cfg(test)]
#[path = "ledger_tests.rs"]
mod tests;
