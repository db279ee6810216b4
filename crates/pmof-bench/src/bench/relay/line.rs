//! One direction of a relayed connection: bytes that become ready a fixed time after they came. No clock, no socket.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use super::LINE_LIMIT_BYTES;

#[derive(Debug)]
pub(super) struct DelayLine {
    delay: Duration,
    bytes: VecDeque<u8>,
    /// When the bytes after the matured ones become ready, and how many at a time.
    batches: VecDeque<(Instant, usize)>,
    matured_bytes: usize,
    end_due: Option<Instant>,
}

impl DelayLine {
    pub(super) fn new(delay: Duration) -> Self {
        Self { delay, bytes: VecDeque::new(), batches: VecDeque::new(), matured_bytes: 0, end_due: None }
    }

    /// How many more bytes the line takes; none after its end.
    pub(super) fn room_bytes(&self) -> usize {
        if self.end_due.is_some() { 0 } else { LINE_LIMIT_BYTES - self.bytes.len() }
    }

    /// Takes bytes that came `now`; no more than there is room.
    pub(super) fn push(&mut self, bytes: &[u8], now: Instant) {
        assert!(bytes.len() <= self.room_bytes(), "a delay line was pushed past its limit");
        self.bytes.extend(bytes);
        self.batches.push_back((now + self.delay, bytes.len()));
    }

    /// The stream ended `now`.
    pub(super) fn finish(&mut self, now: Instant) {
        self.end_due = Some(now + self.delay);
    }

    /// Makes the bytes ready that are due.
    pub(super) fn mature(&mut self, now: Instant) {
        while let Some(&(due, len_bytes)) = self.batches.front() {
            if due > now {
                break;
            }
            self.batches.pop_front();
            self.matured_bytes += len_bytes;
        }
    }

    /// Ready bytes in order; not necessarily all of them, but empty only where there are none.
    pub(super) fn ready(&self) -> &[u8] {
        let (first, _) = self.bytes.as_slices();
        &first[..first.len().min(self.matured_bytes)]
    }

    /// Drops the first of the ready bytes, which were passed on.
    pub(super) fn consume(&mut self, len_bytes: usize) {
        assert!(len_bytes <= self.matured_bytes, "bytes left a delay line before they were due");
        self.bytes.drain(..len_bytes);
        self.matured_bytes -= len_bytes;
    }

    /// Whether all bytes were passed on and the end is due.
    pub(super) fn is_finished(&self, now: Instant) -> bool {
        self.bytes.is_empty() && self.end_due.is_some_and(|due| due <= now)
    }

    /// When the next thing becomes ready, if anything is under way; the past where something is ready.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.batches.front().map(|(due, _)| *due).or(self.end_due)
    }
}
