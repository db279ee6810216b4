//! What was written back since the last fence: one range around all of it, for fences that flush a range.

use std::ops::Range;

use pmof_locks::Mutex;

/// Writes that the next fence has to cover.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pending {
    /// Offsets in the mapping. `None` where the whole file counts, or nothing was written.
    pub(crate) range: Option<Range<u64>>,
    pub(crate) write_count: u64,
    pub(crate) len_bytes: u64,
}

#[derive(Debug)]
pub(crate) struct PendingWrites(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    pending: Pending,
    /// Bytes that are not known by their range wait too.
    is_all: bool,
}

impl PendingWrites {
    /// Those of a file that another process may have left dirty.
    pub(crate) fn all() -> Self {
        Self(Mutex::new(State { is_all: true, ..State::default() }))
    }

    /// A range was written back. Called before it is counted: a fence reads the count before it takes the ranges, so it takes every
    /// range that it counts.
    pub(crate) fn add(&self, offset: u64, len_bytes: u64) {
        let mut state = self.0.lock();
        let pending = &mut state.pending;
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
        let mut state = self.0.lock();
        let is_all = std::mem::take(&mut state.is_all);
        let pending = std::mem::take(&mut state.pending);
        if is_all { Pending { range: None, ..pending } } else { pending }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_range_surrounds_all_writes() {
        let writes = PendingWrites::all();
        writes.add(100, 10);
        assert_eq!(writes.take(), Pending { range: None, write_count: 1, len_bytes: 10 }, "the file may be dirty");
        assert_eq!(writes.take(), Pending::default());
        writes.add(100, 10);
        writes.add(8, 8);
        writes.add(50, 8);
        assert_eq!(writes.take(), Pending { range: Some(8..110), write_count: 3, len_bytes: 26 });
    }
}
