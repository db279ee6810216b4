//! Keeps an engine busy and times its operations.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;

use super::{
    engine::Engine,
    pattern::{Kind, Pattern, Post},
    statistics::LatencyHistogram,
};

/// An open loop spins for the last part of a wait: sleeping threads wake some 50 us late.
const SPIN_WINDOW: Duration = Duration::from_micros(200);

/// When the next operation starts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Pace {
    /// As soon as one before it is done: a slow answer delays all that follows, and hides what would have waited meanwhile.
    Closed,
    /// At a fixed rate a second, whatever happened to those before it. A latency begins when the operation was due, so that one
    /// that could not start in time counts its wait too (free of coordinated omission).
    Open(f64),
}

/// How long a turn lasts: until either limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Extent {
    pub(super) operations: u64,
    pub(super) time: Duration,
}

impl Extent {
    fn is_over(&self, posted: u64, elapsed: Duration) -> bool {
        posted >= self.operations || elapsed >= self.time
    }
}

/// What a turn gave.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) reads: LatencyHistogram,
    pub(super) writes: LatencyHistogram,
    pub(super) bytes: u64,
    /// To the end of the last operation, and of the flush that makes all of them durable.
    pub(super) elapsed: Duration,
}

impl Tally {
    pub(super) fn operations(&self) -> u64 {
        self.reads.len() + self.writes.len()
    }

    /// Reads and writes together.
    pub(super) fn all(&self) -> LatencyHistogram {
        let mut all = LatencyHistogram::default();
        all.add(&self.reads);
        all.add(&self.writes);
        all
    }

    /// Adds what another thread did in the same time.
    pub(super) fn beside(&mut self, other: &Self) {
        self.reads.add(&other.reads);
        self.writes.add(&other.writes);
        self.bytes += other.bytes;
        self.elapsed = self.elapsed.max(other.elapsed);
    }
}

/// Makes operations for so long, and waits for all of them. An operation takes one look at the clock.
pub(super) fn drive(engine: &mut dyn Engine, pattern: &mut Pattern, extent: Extent, pace: Pace) -> Result<Tally> {
    let depth = engine.depth();
    let mut tally = Tally::default();
    let mut free: Vec<usize> = (0..depth).rev().collect();
    let mut posts: Vec<Post> = (0..depth).map(Post::in_slot).collect();
    let mut flights = vec![(Instant::now(), Kind::Write); depth];
    let (mut done, mut posted) = (Vec::with_capacity(depth), 0);
    let start = Instant::now();
    let mut now = start;
    loop {
        let mut count = 0;
        let mut next_due = None;
        while let Some(slot) = free.last().copied() {
            let due = due(pace, start, posted, now);
            if extent.is_over(posted, due - start) {
                break;
            }
            if due > now {
                next_due = Some(due);
                break;
            }
            free.pop();
            posts[count].slot = slot;
            pattern.fill(&mut posts[count]);
            flights[slot] = (due, posts[count].kind);
            count += 1;
            posted += 1;
        }
        if count > 0 {
            engine.post(&posts[..count])?;
        }
        match (free.len() == depth, next_due) {
            (true, None) => break,
            (true, Some(due)) => wait_until(due),
            (false, next_due) => engine.collect(next_due, &mut done)?,
        }
        now = Instant::now();
        for slot in done.drain(..) {
            let (since, kind) = flights[slot];
            let histogram = if kind == Kind::Read { &mut tally.reads } else { &mut tally.writes };
            histogram.record(now - since);
            tally.bytes += pattern.shape().operation_bytes(kind);
            free.push(slot);
        }
    }
    engine.settle()?;
    tally.elapsed = start.elapsed();
    Ok(tally)
}

/// When the operation of this number starts.
fn due(pace: Pace, start: Instant, number: u64, now: Instant) -> Instant {
    match pace {
        Pace::Closed => now,
        Pace::Open(rate) => start + Duration::from_secs_f64(number as f64 / rate),
    }
}

fn wait_until(due: Instant) {
    let sleep = due.saturating_duration_since(Instant::now()).saturating_sub(SPIN_WINDOW);
    if !sleep.is_zero() {
        thread::sleep(sleep);
    }
    while Instant::now() < due {
        std::hint::spin_loop();
    }
}

/// What measuring itself takes of each operation, in nanoseconds: the least of several runs over operations that are done at once.
pub(super) fn own_cost_ns(shape: super::pattern::Shape) -> Result<f64> {
    const OPERATIONS: u64 = 20_000;
    let mut least = f64::INFINITY;
    let extent = Extent { operations: OPERATIONS, time: Duration::from_secs(1) };
    for _ in 0..10 {
        let mut pattern = Pattern::new(shape, 1);
        let tally = drive(&mut Nothing::default(), &mut pattern, extent, Pace::Closed)?;
        least = least.min(tally.elapsed.as_secs_f64() * 1e9 / tally.operations().max(1) as f64);
    }
    Ok(least)
}

/// An engine whose operations are done at once.
#[derive(Debug, Default)]
struct Nothing {
    over: Vec<usize>,
}

impl Engine for Nothing {
    fn depth(&self) -> usize {
        1
    }

    fn post(&mut self, posts: &[Post]) -> Result<()> {
        self.over.extend(posts.iter().map(|post| post.slot));
        Ok(())
    }

    fn collect(&mut self, _: Option<Instant>, done: &mut Vec<usize>) -> Result<()> {
        done.append(&mut self.over);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
