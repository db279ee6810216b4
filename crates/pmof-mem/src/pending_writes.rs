//! What was written back since the last fence: one range around all of it, for fences that flush a range.

use std::ops::Range;

use pmof_locks::Mutex;

/// Writes that the next fence has to cover.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pending {
    /// Offsets in the mapping. `None` where nothing was written.
    pub(crate) range: Option<Range<u64>>,
    pub(crate) write_count: u64,
    pub(crate) len_bytes: u64,
}

#[derive(Debug, Default)]
pub(crate) struct PendingWrites(Mutex<Pending>);

impl PendingWrites {
    /// A range was written back. Called before it is counted: a fence reads the count before it takes the ranges, so it takes every
    /// range that it counts.
    pub(crate) fn add(&self, offset: u64, len_bytes: u64) {
        let mut pending = self.0.lock();
        let own = offset..offset + len_bytes;
        pending.range = Some(match pending.range.take() {
            Some(range) => range.start.min(own.start)..range.end.max(own.end),
            None => own,
        });
        pending.write_count += 1;
        pending.len_bytes += len_bytes;
    }

    /// What the fence that begins has to cover; the next one starts with nothing.
    pub(crate) fn take(&self) -> Pending {
        std::mem::take(&mut self.0.lock())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_range_surrounds_all_writes() {
        let writes = PendingWrites::default();
        writes.add(100, 10);
        writes.add(8, 8);
        writes.add(50, 8);
        assert_eq!(writes.take(), Pending { range: Some(8..110), write_count: 3, len_bytes: 26 });
        assert_eq!(writes.take(), Pending::default());
    }
}
