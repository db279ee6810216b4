//! What a load writes, as `testbed/cut-judge/pattern.md` says. The judge has its own.

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Bytes of one range: where it begins in the stream's area, and what it is to hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Write {
    pub(crate) offset: u64,
    pub(crate) bytes: Vec<u8>,
}

/// One stream of batches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batches {
    key: u64,
    area: u64,
    next: u64,
}

/// The end of `SplitMix64` (Steele, Lea and Flood 2014).
fn mix(mut number: u64) -> u64 {
    number ^= number >> 30;
    number = number.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    number ^= number >> 27;
    number = number.wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}

impl Batches {
    pub(crate) fn new(seed: u64, stream: u32, area_bytes: u64) -> Self {
        let key = mix(seed.wrapping_add(u64::from(stream).wrapping_mul(GOLDEN)).wrapping_add(1));
        Self { key, area: area_bytes / 8, next: 0 }
    }

    /// The number of the next batch, and its writes.
    pub(crate) fn next(&mut self) -> (u64, Vec<Write>) {
        let batch = self.next;
        self.next += 1;
        let number = mix(self.key.wrapping_add(batch));
        let write = |(first, count): (u64, u64)| {
            let words = (first..first + count).flat_map(|index| mix(number ^ index).to_le_bytes());
            Write { offset: first * 8, bytes: words.collect() }
        };
        (batch, self.ranges(batch).into_iter().map(write).collect())
    }

    /// First word and number of words of each range.
    fn ranges(&self, batch: u64) -> Vec<(u64, u64)> {
        if batch == 0 {
            return vec![(0, self.area)];
        }
        let base = mix(self.key ^ !batch);
        let draw = |k: u64| mix(base.wrapping_add(GOLDEN.wrapping_mul(k)));
        match draw(1) % 8 {
            0 => vec![(0, 1)],
            1..=3 => {
                let count = draw(2) % (1 << (draw(3) % 13)) + 1;
                vec![(draw(4) % (self.area - count + 1), count)]
            }
            4..=6 => self.scattered(draw(2) % 7 + 2, draw),
            _ if draw(3) % 8 == 0 => self.scattered(draw(2) % 64 + 257, draw),
            _ => self.scattered(draw(2) % 24 + 9, draw),
        }
    }

    fn scattered(&self, ranges: u64, draw: impl Fn(u64) -> u64) -> Vec<(u64, u64)> {
        let slot = self.area / ranges;
        let range = |i| {
            let count = draw(4 + 2 * i) % (slot / 2).min(64) + 1;
            (slot * i + draw(5 + 2 * i) % (slot - count), count)
        };
        (0..ranges).map(range).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_of_the_page_hold() {
        let mut batches = Batches::new(1, 0, 8192 * 8);
        assert_eq!(batches.next().1[0].bytes[..8], 0xf1c3_f4e8_bcce_6d11_u64.to_le_bytes());
        assert_eq!(batches.ranges(1), [(742, 61), (6470, 61)]);
        assert_eq!((batches.ranges(2), batches.ranges(3)), (vec![(0, 1)], vec![(3335, 31)]));
    }
}
