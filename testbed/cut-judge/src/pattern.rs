//! What a load writes, as `pattern.md` says.

const G: u64 = 0x9e37_79b9_7f4a_7c15;

/// Words of the smallest area.
pub const AREA_WORDS_MIN: usize = 8192;

/// Words next to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The first one's index in the area.
    pub first: usize,
    /// How many.
    pub words: usize,
}

/// What one stream writes.
#[derive(Clone, Copy, Debug)]
pub struct Stream {
    key: u64,
    area_words: usize,
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Stream {
    /// Stream `number` of a load with this seed.
    ///
    /// # Panics
    /// Where the area has less than [`AREA_WORDS_MIN`] words.
    pub fn new(seed: u64, number: u64, area_words: usize) -> Self {
        assert!(area_words >= AREA_WORDS_MIN, "{area_words} words are less than any area has");
        let key = mix(seed.wrapping_add(number.wrapping_mul(G)).wrapping_add(1));
        Self { key, area_words }
    }

    /// The word that a batch writes at an index.
    pub fn word(&self, batch: u64, index: usize) -> u64 {
        mix(mix(self.key.wrapping_add(batch)) ^ index as u64)
    }

    /// The ranges of a batch, in ascending order.
    pub fn ranges(&self, batch: u64) -> Vec<Range> {
        let (base, area) = (mix(self.key ^ !batch), self.area_words as u64);
        let number = |k: u64| mix(base.wrapping_add(k.wrapping_mul(G)));
        if batch == 0 {
            return vec![Range { first: 0, words: self.area_words }];
        }
        let count = match number(1) % 8 {
            0 => return vec![Range { first: 0, words: 1 }],
            1..=3 => {
                let words = 1 + number(2) % (1 << (number(3) % 13));
                return vec![range(number(4) % (area - words + 1), words)];
            }
            4..=6 => 2 + number(2) % 7,
            _ if number(3) % 8 == 0 => 257 + number(2) % 64,
            _ => 9 + number(2) % 24,
        };
        let slot = area / count;
        (0..count)
            .map(|i| {
                let words = 1 + number(4 + 2 * i) % (slot / 2).min(64);
                range(i * slot + number(5 + 2 * i) % (slot - words), words)
            })
            .collect()
    }
}

fn range(first: u64, words: u64) -> Range {
    Range { first: first as usize, words: words as usize }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_lie_in_the_area_and_do_not_touch() {
        for area in [AREA_WORDS_MIN, 131_072] {
            let stream = Stream::new(5, 2, area);
            let mut shapes = [0; 4];
            for batch in 0..2_000 {
                let ranges = stream.ranges(batch);
                let ascending = ranges.windows(2).all(|pair| pair[0].first + pair[0].words < pair[1].first);
                assert!(ascending, "batch {batch}: {ranges:?}");
                assert!(ranges.iter().all(|range| range.words > 0 && range.first + range.words <= area));
                shapes[match ranges.len() {
                    1 => 0,
                    2..=8 => 1,
                    9..=256 => 2,
                    _ => 3,
                }] += 1;
            }
            assert!(shapes.iter().all(|count| *count > 10), "{shapes:?}");
        }
    }

    #[test]
    fn the_examples_of_the_page_hold() {
        let stream = Stream::new(1, 0, AREA_WORDS_MIN);
        assert_eq!(stream.word(0, 0), 0xf1c3_f4e8_bcce_6d11);
        let ranges = |batch| stream.ranges(batch).iter().map(|range| (range.first, range.words)).collect::<Vec<_>>();
        assert_eq!(ranges(1), [(742, 61), (6470, 61)]);
        assert_eq!((ranges(2), ranges(3)), (vec![(0, 1)], vec![(3335, 31)]));
    }
}
