//! Ranges that were written past the target's CPU and not flushed yet: a flush names them, to the target's CPU or to its device.

use crate::RegionKey;

/// Ranges kept for one region; beyond it the nearest neighbours are joined, which costs the target needless write-back and
/// loses nothing.
const RANGES_MAX: usize = 256;

/// Offset and end, in bytes.
type Range = (u64, u64);

#[derive(Debug, Default)]
pub(super) struct DirtyRanges {
    /// The range that was added last, while writes go on where it ends.
    recent: Recent,
    /// Those before it. Few: one for each region in use, and some without ranges to be used again.
    regions: Vec<(RegionKey, Vec<Range>)>,
    /// Where the region is that a range was kept for last.
    last: usize,
    /// Ranges in `regions`, of all of them.
    count: usize,
    /// What was taken last.
    taken: Vec<Range>,
}

/// A range of a region; an empty one stands for none.
#[derive(Clone, Copy, Debug)]
struct Recent {
    key: RegionKey,
    from: u64,
    to: u64,
}

impl Default for Recent {
    fn default() -> Self {
        Self { key: RegionKey([0; 16]), from: 0, to: 0 }
    }
}

impl Recent {
    #[inline]
    fn is_none(&self) -> bool {
        self.to == 0
    }
}

impl DirtyRanges {
    #[inline]
    pub(super) fn add(&mut self, key: RegionKey, offset: u64, len_bytes: u64) {
        if !self.extend(key, offset, len_bytes) && len_bytes > 0 {
            if self.recent.is_none() {
                self.recent = Recent { key, from: offset, to: offset + len_bytes };
            } else {
                self.replace_recent(key, (offset, offset + len_bytes));
            }
        }
    }

    /// Adds a range that goes on where the last one ended, as most do. False where it does not.
    #[inline]
    pub(super) fn extend(&mut self, key: RegionKey, offset: u64, len_bytes: u64) -> bool {
        let recent = &mut self.recent;
        let goes_on = recent.to == offset && recent.key == key && !recent.is_none();
        if goes_on {
            recent.to += len_bytes;
        }
        goes_on
    }

    /// The new range is the recent one, joined with that before where they touch.
    #[inline(never)]
    fn replace_recent(&mut self, key: RegionKey, new: Range) {
        let Recent { key: before, from, to } = self.recent;
        if before == key && new.0 <= to && from <= new.1 {
            self.recent = Recent { key, from: from.min(new.0), to: to.max(new.1) };
            return;
        }
        self.keep_recent();
        self.recent = Recent { key, from: new.0, to: new.1 };
    }

    /// Puts the recent range to those before it.
    fn keep_recent(&mut self) {
        let Recent { key, from, to } = std::mem::take(&mut self.recent);
        if to == 0 {
            return;
        }
        let ranges = self.ranges_of(key);
        let before = ranges.len();
        ranges.push((from, to));
        if ranges.len() > RANGES_MAX {
            join(ranges, RANGES_MAX / 2);
        }
        let after = ranges.len();
        self.count = self.count + after - before;
    }

    fn ranges_of(&mut self, key: RegionKey) -> &mut Vec<Range> {
        let is_last = self.regions.get(self.last).is_some_and(|(found, _)| *found == key);
        if !is_last {
            self.last = self.place_of(key);
        }
        &mut self.regions[self.last].1
    }

    fn place_of(&mut self, key: RegionKey) -> usize {
        let found = self.regions.iter().position(|(found, _)| *found == key);
        found.unwrap_or_else(|| {
            let unused = self.regions.iter().position(|(_, ranges)| ranges.is_empty());
            let at = unused.unwrap_or(self.regions.len());
            match self.regions.get_mut(at) {
                Some(entry) => entry.0 = key,
                None => self.regions.push((key, Vec::new())),
            }
            at
        })
    }

    /// Takes out what lies in a range, as at most `limit` pieces of (offset, length).
    #[inline]
    pub(super) fn take(&mut self, key: RegionKey, offset: u64, len_bytes: u64, limit: usize) -> &[(u64, u64)] {
        let end = offset.saturating_add(len_bytes);
        let Recent { key: of, from, to } = self.recent;
        // Most often there is but one, from after the last flush.
        if self.count == 0 && of == key && offset <= from && from < to && to <= end {
            self.recent = Recent::default();
            self.taken.clear();
            self.taken.push((from, to - from));
            return &self.taken;
        }
        self.take_any(key, (offset, end), limit)
    }

    #[inline(never)]
    fn take_any(&mut self, key: RegionKey, (offset, end): Range, limit: usize) -> &[(u64, u64)] {
        self.taken.clear();
        self.keep_recent();
        let Some((_, ranges)) = self.regions.iter_mut().find(|(found, _)| *found == key) else { return &[] };
        let before = ranges.len();
        take_some(ranges, (offset, end), &mut self.taken, limit);
        self.count = self.count + ranges.len() - before;
        for (from, to) in &mut self.taken {
            *to -= *from;
        }
        &self.taken
    }
}

fn take_some(ranges: &mut Vec<Range>, (start, end): Range, taken: &mut Vec<Range>, limit: usize) {
    let mut left = Vec::new();
    for (from, to) in ranges.drain(..) {
        let (inner_from, inner_to) = (from.max(start), to.min(end));
        if inner_from >= inner_to {
            left.push((from, to));
            continue;
        }
        taken.push((inner_from, inner_to));
        left.extend([(from, inner_from), (inner_to, to)].into_iter().filter(|(from, to)| from < to));
    }
    *ranges = left;
    join(taken, limit);
}

/// Sorts the ranges, joins those that touch, and then those with the smallest gaps until at most `limit` are left.
fn join(ranges: &mut Vec<Range>, limit: usize) {
    ranges.sort_unstable();
    merge(ranges, 0);
    if ranges.len() <= limit {
        return;
    }
    let mut gaps: Vec<u64> = ranges.windows(2).map(|pair| pair[1].0 - pair[0].1).collect();
    let surplus = ranges.len() - limit;
    // The gaps that are closed are the smallest ones: those up to the one in this place.
    let (_, widest_closed, _) = gaps.select_nth_unstable(surplus - 1);
    let widest_closed = *widest_closed;
    merge(ranges, widest_closed);
}

fn merge(ranges: &mut Vec<Range>, gap_bytes: u64) {
    ranges.dedup_by(|next, last| {
        let touches = next.0 <= last.1.saturating_add(gap_bytes);
        if touches {
            last.1 = last.1.max(next.1);
        }
        touches
    });
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KEY: RegionKey = RegionKey([1; 16]);

    #[test]
    fn a_stream_of_writes_is_one_range() {
        let mut dirty = DirtyRanges::default();
        for index in 0..10_000 {
            dirty.add(KEY, index * 64, 64);
        }
        assert_eq!(dirty.take(KEY, 0, u64::MAX, 64), [(0, 640_000)]);
        assert_eq!(dirty.take(KEY, 0, u64::MAX, 64), []);
    }

    #[test]
    fn other_regions_and_other_ranges_stay() {
        let mut dirty = DirtyRanges::default();
        let other = RegionKey([2; 16]);
        dirty.add(KEY, 0, 100);
        dirty.add(other, 0, 7);
        assert_eq!(dirty.take(KEY, 40, 20, 64), [(40, 20)]);
        assert_eq!(dirty.take(KEY, 0, 1000, 64), [(0, 40), (60, 40)]);
        assert_eq!(dirty.take(other, 0, 1000, 64), [(0, 7)]);
    }

    #[test]
    fn regions_without_ranges_make_room_for_others() {
        let mut dirty = DirtyRanges::default();
        for number in 0..100 {
            let key = RegionKey([number; 16]);
            dirty.add(key, 0, 8);
            assert_eq!(dirty.take(key, 0, 8, 64), [(0, 8)]);
        }
        assert_eq!(dirty.regions.len(), 0, "one range needs no list");
        for number in 0..100 {
            let key = RegionKey([number; 16]);
            dirty.add(key, 0, 8);
            dirty.add(key, 100, 8);
            assert_eq!(dirty.take(key, 0, 200, 64), [(0, 8), (100, 8)]);
        }
        assert_eq!((dirty.regions.len(), dirty.count), (1, 0));
    }

    proptest! {
        #[test]
        fn nothing_written_is_ever_left_out(
            writes in prop::collection::vec((0..4000_u64, 1..50_u64), 0..400),
            (offset, len_bytes) in (0..4000_u64, 0..4000_u64),
            limit in 1..80_usize,
        ) {
            let mut dirty = DirtyRanges::default();
            let mut expected = vec![false; 8192];
            for (at, len) in &writes {
                dirty.add(KEY, *at, *len);
                expected[*at as usize..(at + len) as usize].fill(true);
            }
            let named = dirty.take(KEY, offset, len_bytes, limit).to_vec();
            prop_assert!(named.len() <= limit);
            prop_assert!(named.iter().all(|(at, len)| *at >= offset && at + len <= offset + len_bytes));
            let rest = dirty.take(KEY, 0, u64::MAX, 10_000);
            let covers = |ranges: &[(u64, u64)], byte: u64| ranges.iter().any(|(at, len)| (*at..at + len).contains(&byte));
            for (byte, is_written) in (0..).zip(expected) {
                let inside = (offset..offset + len_bytes).contains(&byte);
                if is_written {
                    prop_assert!(covers(if inside { &named } else { rest }, byte), "byte {byte}");
                }
            }
        }
    }
}
