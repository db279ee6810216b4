//! Who flushes a file: one thread at a time. A thread whose writes a flush of another one covered does not flush, and does not wait for the
//! next flush either.

use pmof_locks::{Condvar, Mutex};

#[derive(Debug, Default)]
pub(crate) struct FlushTurns {
    progress: Mutex<Progress>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct Progress {
    /// The count of writes that the last successful flush covered.
    covered: u64,
    is_flushing: bool,
}

/// The right to flush. No other thread has it until this is dropped.
#[derive(Debug)]
pub(crate) struct Turn<'t>(&'t FlushTurns);

impl FlushTurns {
    /// A turn for a thread whose writes are among the first `wanted`; `None` as soon as a flush has covered those.
    pub(crate) fn join(&self, wanted: u64) -> Option<Turn<'_>> {
        let mut progress = self.progress.lock();
        self.ended.wait_while(&mut progress, |progress| progress.is_flushing && progress.covered < wanted);
        if progress.covered >= wanted {
            return None;
        }
        progress.is_flushing = true;
        Some(Turn(self))
    }

    /// A turn for work that no flush of another thread does.
    pub(crate) fn take(&self) -> Turn<'_> {
        let mut progress = self.progress.lock();
        self.ended.wait_while(&mut progress, |progress| progress.is_flushing);
        progress.is_flushing = true;
        Turn(self)
    }

    /// Whether a flush is in progress.
    pub(crate) fn is_flushing(&self) -> bool {
        self.progress.lock().is_flushing
    }

    #[cfg(test)]
    pub(crate) fn covered(&self) -> u64 {
        self.progress.lock().covered
    }
}

impl Turn<'_> {
    /// The flush has covered the first `covered` writes.
    pub(crate) fn covers(&self, covered: u64) {
        self.0.progress.lock().covered = covered;
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.progress.lock().is_flushing = false;
        self.0.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicU64, Ordering},
        thread,
        time::Duration,
    };

    use super::*;

    #[test]
    fn a_thread_that_was_covered_goes_on_during_the_next_flush() {
        let turns = FlushTurns::default();
        let first = turns.join(1).unwrap();
        thread::scope(|scope| {
            let covered = scope.spawn(|| turns.join(2).is_none());
            let late = scope.spawn(|| turns.join(3).is_some());
            thread::sleep(Duration::from_millis(20));
            assert!(!covered.is_finished() && !late.is_finished(), "the flush is in progress");
            first.covers(2);
            // Nothing has ended yet, so a third one flushes only once this is dropped.
            drop(first);
            assert!(covered.join().unwrap() && late.join().unwrap());
        });
        assert_eq!(turns.covered(), 2);
        assert!(turns.join(2).is_none());
    }

    #[test]
    fn one_thread_at_a_time_has_the_turn() {
        let (turns, inside, counted) = (FlushTurns::default(), AtomicU64::new(0), AtomicU64::new(0));
        thread::scope(|scope| {
            for thread in 0..8 {
                let (turns, inside, counted) = (&turns, &inside, &counted);
                scope.spawn(move || {
                    for _ in 0..200 {
                        let wanted = counted.fetch_add(1, Ordering::SeqCst) + 1;
                        let turn = if thread == 0 { Some(turns.take()) } else { turns.join(wanted) };
                        let Some(turn) = turn else { continue };
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        turn.covers(counted.load(Ordering::SeqCst));
                        inside.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
        assert!(turns.join(1600).is_none() || turns.covered() < 1600);
    }
}
