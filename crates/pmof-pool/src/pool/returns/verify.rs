//! What caught up by the map is compared as a whole, behind the backs of those who write: a map that missed a page would go unnoticed else.

use std::{
    ops::Range,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use super::{Halt, Returns, hold};
use crate::{
    ReplicaError, ScrubReport,
    member::Member,
    pool::{
        Open, Shared,
        events::{Event, Log},
    },
};

/// Bytes that are compared at once: those who write wait so long behind it.
const STEP_BYTES: u64 = 1 << 20;

/// Pause before a comparison that was interrupted begins again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Looks at what differed, which may have been on its way to one of both, before those who write are held for one more.
const LOOKS: usize = 3;

impl Returns {
    /// Compares a member that has caught up with one that was in sync. One that differs is left behind, and compared as a whole when it comes back.
    pub(super) fn verify(&self, pool: &Weak<Shared>, events: &Log, position: usize, member: &Arc<dyn Member>) {
        let began = Instant::now();
        let Some(control) = member.control() else { return };
        let replica = Arc::clone(&member.standing().place);
        let found = loop {
            match self.find_difference(pool, events, &**member) {
                Ok(found) => break found,
                // The one that it was compared with was lost: with another one, or when that is back.
                Err(_) if member.state().is_in_sync() && self.pause(AGAIN_AFTER) => {}
                // It was lost itself, or the pool was closed: the next catch-up compares it as much as is needed.
                Err(_) => return,
            }
        };
        match found {
            Compared::Same { bytes } => {
                events.add(Event::Verified { replica, compared_bytes: bytes, took: began.elapsed() });
            }
            Compared::Differs(range) => {
                self.trust.lock()[position].note_difference();
                events.add(Event::Differs { replica, range });
                control.fail(ReplicaError::Behind);
                if let Some(epochs) = hold(pool).ok().and_then(|open| open.epochs.clone()) {
                    epochs.settle();
                }
                self.losses.raise();
            }
        }
    }

    fn find_difference(&self, pool: &Weak<Shared>, events: &Log, member: &dyn Member) -> Result<Compared, Halt> {
        // Held no longer than that: members that are lost meanwhile are let go of.
        let all = {
            let open = hold(pool)?;
            data_of_both(&open, member)?
        };
        let mut bytes = 0;
        for data in all {
            let mut at = data.start;
            while at < data.end {
                let step = at..data.end.min(at + STEP_BYTES);
                let began = Instant::now();
                if let Some(range) = self.difference_in(pool, events, member, &step)? {
                    return Ok(Compared::Differs(range));
                }
                bytes += step.end - step.start;
                at = step.end;
                // No more than half of the time, so that those who write have theirs.
                if !self.pause(began.elapsed()) {
                    return Err(Halt::Ended);
                }
            }
        }
        Ok(Compared::Same { bytes })
    }

    fn difference_in(
        &self,
        pool: &Weak<Shared>,
        events: &Log,
        member: &dyn Member,
        step: &Range<u64>,
    ) -> Result<Option<Range<u64>>, Halt> {
        let mut suspects = vec![step.clone()];
        for _ in 0..LOOKS {
            let open = hold(pool)?;
            suspects = differing_in(&open, member, &suspects)?;
            if suspects.is_empty() {
                return Ok(None);
            }
        }
        let shared = pool.upgrade().ok_or(Halt::Ended)?;
        for suspect in suspects {
            // All that was posted before is before the digests on both.
            let guard = self.hold_all(&shared)?;
            let open = guard.as_ref().ok_or(Halt::Ended)?;
            let differing = open.differing(member, &suspect)?;
            if let Some(range) = open.lacking(member, differing.clone())?.first() {
                return Ok(Some(range.clone()));
            }
            drop(guard);
            // Others hold what it does: the one that it was compared with has rotted.
            for range in &differing {
                repair(&shared, events, range);
            }
        }
        Ok(None)
    }
}

/// Repairs what most replicas hold otherwise. What fails here is found by the next scrub.
fn repair(shared: &Shared, events: &Log, range: &Range<u64>) {
    let began = Instant::now();
    let mut report = ScrubReport { compared_bytes: range.end - range.start, ..ScrubReport::default() };
    report.replica_count = shared.hold().map_or(0, |open| open.members_in_use().len());
    if shared.settle(range, &mut report).is_ok() {
        events.add(Event::Scrubbed { report: Arc::new(report), took: began.elapsed() });
    }
}

/// What a comparison found.
enum Compared {
    Same { bytes: u64 },
    Differs(Range<u64>),
}

fn differing_in(open: &Open, member: &dyn Member, ranges: &[Range<u64>]) -> Result<Vec<Range<u64>>, Halt> {
    let mut all = Vec::new();
    for range in ranges {
        all.append(&mut open.differing(member, range)?);
    }
    Ok(all)
}

/// The ranges outside of which both have zeros, in whole steps.
fn data_of_both(open: &Open, member: &dyn Member) -> Result<Vec<Range<u64>>, Halt> {
    let size_bytes = open.facts.size_bytes;
    let source = open.source_for(member)?;
    let mut steps = vec![false; size_bytes.div_ceil(STEP_BYTES) as usize];
    for replica in [source, member] {
        let control = replica.control().ok_or(Halt::Later)?;
        for data in control.data_ranges(0..size_bytes).map_err(|_| Halt::Later)? {
            steps[(data.start / STEP_BYTES) as usize..data.end.div_ceil(STEP_BYTES) as usize].fill(true);
        }
    }
    let steps = steps.iter().enumerate().filter(|(_, is_data)| **is_data);
    Ok(steps.map(|(step, _)| step as u64 * STEP_BYTES..size_bytes.min((step as u64 + 1) * STEP_BYTES)).collect())
}
