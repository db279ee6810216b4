//! Making the replicas of a pool equal when it is opened.

use std::{ops::Range, sync::Arc};

use pmof_pool_set::{Compared, Comparison, Window};

use super::{
    Equalized, Flushings, Open,
    compare::{Comparable, Differing, InUse, as_replicas, contents, contents_of, lost, not_compared, take_out_failed},
};
use crate::{
    PoolError, ReplicaError,
    member::{FlushLevel, Member, replica_error},
    scrub::most_hold,
};

/// Ranges that are flushed one by one, at most, where all of a pool may be flushed as well.
const FLUSHED_RANGES_MAX: usize = 64;

/// Bytes that are flushed at once: no target takes too long for an answer.
const FLUSHED_BYTES: u64 = 64 << 20;

impl Open {
    /// Compares the replicas in use with each other, in all that is comparable. Copies what most of them hold, or else the source, to those that differ, or refuses that. Makes all of
    /// them durable: what is the same on all may be durable on some, and the program acts on what it reads, whoever stored it.
    pub(super) fn equalize(&self, comparable: &Comparable) -> Result<Equalized, PoolError> {
        let Comparable { comparison, source, .. } = comparable;
        let members = self.members_in_use();
        let from = &self.members[*source];
        let source = members.iter().position(|(position, _)| position == source).ok_or_else(|| lost(&**from))?;
        let mut held = contents_of(&members)?;
        let mut replicas = as_replicas(&mut held);
        let windows = comparison.windows(&mut replicas, &mut |_| {});
        let windows = windows.map_err(|error| not_compared(members[error.replica].1, error.source))?;
        let mut copied_bytes = 0;
        // One has no other to differ from.
        for window in windows.iter().filter(|_| members.len() > 1) {
            let mut compared = Compared::of_window(&mut replicas, window);
            let failed = take_out_failed(&members, &mut compared);
            // Where no epochs say who has what, none may be left out.
            let may_lack = self.epochs.is_some() && from.state().is_in_sync();
            if let Some(error) = failed.filter(|_| !may_lack) {
                return Err(error);
            }
            for block in compared.differing() {
                // Without epochs the source has what was written last, and nobody else.
                let right = if self.epochs.is_some() { most_hold(&compared, source, block) } else { source };
                let (range, unlike) = (compared.block(block), compared.unlike(right, block));
                let unlike: Vec<_> = unlike.map(|replica| members[replica]).collect();
                copied_bytes += self.make_equal(comparable, members[right], &range, &unlike)?;
            }
        }
        self.make_durable(&windows);
        match &self.epochs {
            // Not before: which one was the source must be known as long as they differ.
            Some(epochs) => epochs.tell_mark(),
            None => self.check_none_lost()?,
        }
        let equalized = Equalized { compared_bytes: comparison.len_bytes(), copied_bytes };
        self.log_equalized(&equalized);
        Ok(equalized)
    }

    /// Copies a block to those that hold other bytes than the source there, or refuses that. Returns the bytes copied.
    fn make_equal(
        &self,
        Comparable { comparison, differing, .. }: &Comparable,
        (_, from): InUse<'_>,
        block: &Range<u64>,
        unlike: &[InUse<'_>],
    ) -> Result<u64, PoolError> {
        if *differing == Differing::Copy {
            let to: Vec<_> = unlike.iter().map(|(_, member)| *member).collect();
            return self.copy_range(from, block, &to);
        }
        for (_, member) in unlike {
            if differs(comparison, block, [from, *member])? {
                return Err(replica_error(*member, Arc::new(ReplicaError::Differs { what: "contents" })));
            }
        }
        Ok(0)
    }

    /// Makes these windows as durable as each replica can, whoever wrote them.
    fn make_durable(&self, windows: &[Window]) {
        let ranges = joined(windows);
        if self.epochs.is_some() && ranges.len() > FLUSHED_RANGES_MAX {
            return self.flush_everything(false);
        }
        let in_use: Vec<_> = self.in_use().collect();
        for range in &ranges {
            let start = |member: &&Arc<dyn Member>| member.start_persist(range, FlushLevel::Strongest);
            let mut flushing: Flushings = in_use.iter().map(start).collect();
            for (member, flushing) in in_use.iter().zip(&mut flushing) {
                // A failure is kept by the member.
                let _ = member.finish_flush(flushing);
            }
        }
    }

    fn log_equalized(&self, Equalized { compared_bytes, copied_bytes }: &Equalized) {
        let (uuid, replicas) = (self.facts.uuid, self.in_use().count());
        log::info!(
            "pool {uuid}: its {replicas} replicas are equal after comparing {compared_bytes} and copying {copied_bytes} bytes"
        );
    }
}

/// Whether a block differs on two members in what counts.
fn differs(comparison: &Comparison, block: &Range<u64>, pair: [&dyn Member; 2]) -> Result<bool, PoolError> {
    let [mut first, mut other] = [contents(pair[0])?, contents(pair[1])?];
    let found = comparison.differs(block, &mut *first, &mut *other);
    found.map_err(|error| not_compared(pair[error.replica], error.source))
}

/// Windows that are next to each other as one range, up to what is flushed at once.
fn joined(windows: &[Window]) -> Vec<Range<u64>> {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for Window { range, .. } in windows {
        match ranges.last_mut() {
            Some(last) if last.end == range.start && range.end - last.start <= FLUSHED_BYTES => last.end = range.end,
            _ => ranges.push(range.clone()),
        }
    }
    ranges
}
