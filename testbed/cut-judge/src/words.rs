//! Acknowledged is contained in recovered, recovered in issued: word by word.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    ledger::Progress,
    pattern::{Range, Stream},
    pool_file::number,
};

/// Bytes of a word.
pub const WORD_BYTES: usize = 8;

/// A longer range may be torn inside a word (docs/design.md, the contract).
const WHOLE_RANGE_WORDS: usize = 4096 / WORD_BYTES;

/// What was found in one stream's area.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Words compared.
    pub words: u64,
    /// Words that hold what was issued and not acknowledged.
    pub unacknowledged: u64,
    /// Words that hold what they must not.
    pub wrong: u64,
    /// Acknowledged batches of which a word is missing.
    pub lost: BTreeSet<u64>,
    /// The first wrong word: its index, and what is there.
    pub first: Option<(usize, u64)>,
}

/// What one word may hold beside what was acknowledged last.
#[derive(Debug, Default)]
struct Possible {
    words: Vec<u64>,
    is_torn: bool,
}

/// Compares an area with what was issued and acknowledged. Before the first batch was acknowledged it may hold anything.
pub fn judge(stream: &Stream, progress: Progress, area: &[u8]) -> Verdict {
    let mut verdict = Verdict::default();
    if progress.acknowledged == 0 {
        return verdict;
    }
    // The last acknowledged batch that wrote each word; batch 0 wrote all.
    let mut last = vec![0; area.len() / WORD_BYTES];
    for batch in 1..progress.acknowledged {
        for Range { first, words } in stream.ranges(batch) {
            last[first..first + words].fill(batch);
        }
    }
    let mut possible: BTreeMap<usize, Possible> = BTreeMap::new();
    for batch in progress.acknowledged..progress.issued {
        for Range { first, words } in stream.ranges(batch) {
            for index in first..first + words {
                let possible = possible.entry(index).or_default();
                possible.words.push(stream.word(batch, index));
                possible.is_torn |= words > WHOLE_RANGE_WORDS;
            }
        }
    }
    for (index, (bytes, batch)) in area.chunks_exact(WORD_BYTES).zip(&last).enumerate() {
        let found = number(bytes, 0, WORD_BYTES);
        let acknowledged = stream.word(*batch, index);
        verdict.words += 1;
        if found == acknowledged {
            continue;
        }
        if possible.get(&index).is_some_and(|possible| possible.allows(found, acknowledged)) {
            verdict.unacknowledged += 1;
            continue;
        }
        verdict.wrong += 1;
        verdict.lost.insert(*batch);
        verdict.first.get_or_insert((index, found));
    }
    verdict
}

impl Possible {
    fn allows(&self, found: u64, acknowledged: u64) -> bool {
        let same_byte = |at: usize, word: u64| word.to_le_bytes()[at] == found.to_le_bytes()[at];
        let is_mixed = || {
            (0..WORD_BYTES).all(|at| same_byte(at, acknowledged) || self.words.iter().any(|word| same_byte(at, *word)))
        };
        self.words.contains(&found) || self.is_torn && is_mixed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pattern::AREA_WORDS_MIN;

    fn stream() -> Stream {
        Stream::new(11, 1, AREA_WORDS_MIN)
    }

    fn write(area: &mut [u8], stream: &Stream, batch: u64, ranges: &[Range]) {
        for Range { first, words } in ranges {
            for index in *first..first + words {
                let word = stream.word(batch, index).to_le_bytes();
                area[index * WORD_BYTES..][..WORD_BYTES].copy_from_slice(&word);
            }
        }
    }

    fn written(batches: u64) -> Vec<u8> {
        let (stream, mut area) = (stream(), vec![0; AREA_WORDS_MIN * WORD_BYTES]);
        for batch in 0..batches {
            write(&mut area, &stream, batch, &stream.ranges(batch));
        }
        area
    }

    const PROGRESS: Progress = Progress { issued: 101, acknowledged: 100 };

    #[test]
    fn what_was_acknowledged_is_right_with_any_part_of_what_was_issued() {
        let verdict = judge(&stream(), PROGRESS, &written(100));
        assert_eq!((verdict.words, verdict.unacknowledged, verdict.wrong), (AREA_WORDS_MIN as u64, 0, 0));
        let verdict = judge(&stream(), PROGRESS, &written(101));
        assert!(verdict.unacknowledged > 0 && verdict.wrong == 0, "{verdict:?}");
        let nothing = judge(&stream(), Progress { issued: 1, acknowledged: 0 }, &written(0));
        assert_eq!(nothing, Verdict::default());
    }

    /// The control of the judge: every difference that is made on purpose is found.
    #[test]
    fn a_flipped_byte_a_dropped_batch_and_a_dropped_range_are_found() {
        for at in [0, 7, 8, 4095, AREA_WORDS_MIN * WORD_BYTES - 1] {
            let mut area = written(100);
            area[at] ^= 0x40;
            let verdict = judge(&stream(), PROGRESS, &area);
            assert_eq!((verdict.wrong, verdict.first.map(|(index, _)| index)), (1, Some(at / WORD_BYTES)), "{at}");
        }
        let verdict = judge(&stream(), PROGRESS, &written(99));
        assert_eq!(verdict.lost, BTreeSet::from([99]), "the last acknowledged batch is not there");

        // All ranges of a scattered batch but the last one, as of a flush that forgets all but one.
        let stream = stream();
        let scattered = (1..100).find(|batch| stream.ranges(*batch).len() > 8).unwrap();
        let mut area = written(scattered);
        write(&mut area, &stream, scattered, &stream.ranges(scattered)[1..]);
        let progress = Progress { issued: scattered + 1, acknowledged: scattered + 1 };
        assert_eq!(judge(&stream, progress, &area).lost, BTreeSet::from([scattered]));
        write(&mut area, &stream, scattered, &stream.ranges(scattered)[..1]);
        assert_eq!(judge(&stream, progress, &area).wrong, 0);
    }

    #[test]
    fn words_that_nobody_issued_are_found_and_old_ones_too() {
        let stream = stream();
        let mut area = written(100);
        // A word of a batch that was never issued.
        area[..8].copy_from_slice(&stream.word(500, 0).to_le_bytes());
        assert_eq!(judge(&stream, PROGRESS, &area).wrong, 1);
        // A word of an earlier batch in its own place.
        let range = stream.ranges(99)[0];
        let mut area = written(100);
        write(&mut area, &stream, 0, &[Range { first: range.first, words: 1 }]);
        assert_eq!(judge(&stream, PROGRESS, &area).lost, BTreeSet::from([99]));
        // A word of another stream.
        let mut area = written(100);
        area[..8].copy_from_slice(&Stream::new(11, 0, AREA_WORDS_MIN).word(0, 0).to_le_bytes());
        assert_eq!(judge(&stream, PROGRESS, &area).wrong, 1);
    }

    #[test]
    fn only_long_ranges_may_be_torn_inside_a_word() {
        let possible = |is_torn| Possible { words: vec![0x1111_1111_1111_1111], is_torn };
        assert!(possible(true).allows(0x1111_2222_2222_1111, 0x2222_2222_2222_2222));
        assert!(!possible(false).allows(0x1111_2222_2222_1111, 0x2222_2222_2222_2222));
        assert!(!possible(true).allows(0x1111_3322_2222_1111, 0x2222_2222_2222_2222));
    }
}
