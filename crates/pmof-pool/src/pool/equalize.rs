//! Making the replicas of a pool equal when it is opened.

use std::{ops::Range, slice, sync::Arc};

use pmof_pool_set::{BlockDigests, Comparison, Contents, DIGEST_BLOCK_LEN_BYTES, Digest, Window};
use pmof_replication::comparing::{self, Compared, Equalizing};

use super::{
    Equalized, Flushings, Open,
    compare::{Comparable, Differing, as_replicas, contents, contents_of, lost, not_compared, take_out_failed},
    epochs::done,
};
use crate::{
    PoolError, ReplicaError,
    member::{FlushLevel, Member, replica_error},
};

/// Ranges that are flushed one by one, at most, where all of a pool may be flushed as well.
const FLUSHED_RANGES_MAX: usize = 64;

/// Bytes that are flushed at once: no target takes too long for an answer.
const FLUSHED_BYTES: u64 = 64 << 20;

/// The replicas of a pool that is being opened, and what of them is compared.
struct Opened<'o> {
    open: &'o Open,
    comparable: &'o Comparable,
    members: &'o [Arc<dyn Member>],
    replicas: Vec<&'o mut dyn Contents>,
    /// The replica that the others must be equal to, by its place in these lists.
    source: usize,
    windows: &'o [Window],
    /// The windows that have yet to be compared.
    left: slice::Iter<'o, Window>,
}

impl Open {
    /// Compares the replicas in use with each other, in all that is comparable. Copies what most of them hold, or else the source, to those that differ, or refuses that. Makes all of
    /// them durable: what is the same on all may be durable on some, and the program acts on what it reads, whoever stored it.
    pub(super) fn equalize(&self, comparable: &Comparable) -> Result<Equalized, PoolError> {
        let Comparable { comparison, source, .. } = comparable;
        let members = self.members_in_use();
        let from = &self.members[*source];
        let source = members.iter().position(|member| Arc::ptr_eq(member, from)).ok_or_else(|| lost(&**from))?;
        let mut held = contents_of(&members)?;
        let mut replicas = as_replicas(&mut held);
        let windows = comparison.windows(&mut replicas, &mut |_| {});
        let windows = windows.map_err(|error| not_compared(&*members[error.replica], error.source))?;
        // One has no other to differ from.
        let left = if members.len() > 1 { windows.iter() } else { [].iter() };
        let mut opened =
            Opened { open: self, comparable, members: &members, replicas, source, windows: &windows, left };
        let copied_bytes = done(comparing::equalize(&mut opened))?;
        let equalized = Equalized { compared_bytes: comparison.len_bytes(), copied_bytes };
        self.log_equalized(&equalized);
        Ok(equalized)
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

impl Equalizing for Opened<'_> {
    type Digest = Digest;
    type Failure = PoolError;

    fn source(&self) -> usize {
        self.source
    }

    fn has_epochs(&self) -> bool {
        self.open.epochs.is_some()
    }

    async fn compare_next(&mut self) -> Result<Option<Compared<Digest>>, PoolError> {
        let Some(window) = self.left.next() else { return Ok(None) };
        let mut digests = BlockDigests::of_window(&mut self.replicas, window);
        let failed = take_out_failed(self.members, &mut digests);
        // Where no epochs say who has what, none may be left out.
        let may_lack = self.open.epochs.is_some() && self.members[self.source].state().is_in_sync();
        if let Some(error) = failed.filter(|_| !may_lack) {
            return Err(error);
        }
        Ok(Some(Compared::new(window.range.clone(), DIGEST_BLOCK_LEN_BYTES, digests.into_digests())))
    }

    async fn make_equal(&mut self, from: usize, block: &Range<u64>, to: &[usize]) -> Result<u64, PoolError> {
        let (from, Comparable { comparison, differing, .. }) = (&self.members[from], self.comparable);
        let to: Vec<_> = to.iter().map(|replica| Arc::clone(&self.members[*replica])).collect();
        if *differing == Differing::Copy && self.open.keeps_digests() {
            return self.open.equalize_pages(self.members, from, block);
        }
        if *differing == Differing::Copy {
            return self.open.copy_range(from, block, &to);
        }
        for member in &to {
            if differs(comparison, block, [&**from, &**member])? {
                return Err(replica_error(&**member, Arc::new(ReplicaError::Differs { what: "contents" })));
            }
        }
        Ok(0)
    }

    async fn make_durable(&mut self) {
        self.open.make_durable(self.windows);
    }

    async fn note_equal(&mut self) -> Result<(), PoolError> {
        match &self.open.epochs {
            Some(epochs) => {
                epochs.tell_mark();
                Ok(())
            }
            None => self.open.check_none_lost(),
        }
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
