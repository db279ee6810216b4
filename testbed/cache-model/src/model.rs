//! Which bytes have reached the medium.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
};

use crate::Counter;

/// Bytes of a cache line, aligned to their length.
pub const LINE_BYTES: u64 = 64;

const LINE: usize = LINE_BYTES as usize;

/// All bytes of a line.
const WHOLE: u64 = u64::MAX;

/// Live memory, medium and counters behind a model. Addresses are physical and those of lines are multiples of
/// [`LINE_BYTES`].
pub trait Memory {
    /// Whether the line is of the modelled memory.
    fn contains(&self, line: u64) -> bool;
    /// The line as the machine's programs see it now.
    fn live(&self, line: u64) -> [u8; LINE];
    /// Puts those bytes of the line onto the medium whose bits are set in `mask`, bit 0 for the first.
    fn persist(&mut self, line: u64, bytes: &[u8; LINE], mask: u64);
    /// Every line of the modelled memory that may differ between the live memory and the medium.
    fn lines(&self) -> Vec<u64>;
    /// Adds one to a counter.
    fn count(&mut self, counter: Counter);
}

/// The caches of a machine in front of a [`Memory`].
///
/// A write-back takes the line's bytes at that moment and holds them back until its processor's next fence: hardware may
/// write them sooner or later than that moment, and a program may count on no more. What a processor holds back never
/// replaces bytes of the medium that were taken later, by whichever processor.
#[derive(Debug)]
pub struct Model<M> {
    memory: M,
    /// Order in which bytes were taken.
    clock: u64,
    /// What each processor holds back, in the order in which it was taken.
    held: Vec<Vec<Held>>,
    /// The lines that some processor holds back.
    in_flight: HashMap<u64, InFlight, BuildHasherDefault<LineHasher>>,
}

#[derive(Clone, Debug)]
struct Held {
    line: u64,
    taken: u64,
    mask: u64,
    bytes: [u8; LINE],
}

#[derive(Debug)]
struct InFlight {
    /// How many entries of `held` are of this line.
    holders: usize,
    /// When each byte of the medium was taken.
    taken: [u64; LINE],
}

/// Spreads line addresses, whose low bits are zero.
#[derive(Debug, Default)]
struct LineHasher(u64);

impl Hasher for LineHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        // The multiplier is 2^64 divided by the golden ratio; the top half is well spread, the table uses both ends.
        let spread = (self.0 ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = spread ^ spread >> 32;
    }
}

impl<M: Memory> Model<M> {
    /// A machine without anything held back.
    pub fn new(memory: M) -> Model<M> {
        Model { memory, clock: 0, held: Vec::new(), in_flight: HashMap::default() }
    }

    /// The memory behind the model.
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// The memory behind the model, to count in it.
    pub fn memory_mut(&mut self) -> &mut M {
        &mut self.memory
    }

    /// `clwb` or `clflushopt` of the line that holds the address. Returns whether it is of the modelled memory.
    pub fn write_back(&mut self, processor: usize, address: u64) -> bool {
        let Some(line) = self.line_to_write_back(address) else { return false };
        self.hold(processor, line, WHOLE);
        true
    }

    /// `clflush` of the line that holds the address. Returns whether it is of the modelled memory.
    pub fn write_back_now(&mut self, address: u64) -> bool {
        let Some(line) = self.line_to_write_back(address) else { return false };
        self.persist_now(line, WHOLE);
        true
    }

    /// A store past the caches of a processor to `length` bytes from the address, already done in live memory. Returns
    /// whether any of it is of the modelled memory.
    pub fn store_past_cache(&mut self, processor: usize, address: u64, length: u64) -> bool {
        let mut any = false;
        for (line, mask) in pieces(address, length) {
            if self.memory.contains(line) {
                self.hold(processor, line, mask);
                any = true;
            }
        }
        if any {
            self.memory.count(Counter::StoresPastCache);
        }
        any
    }

    /// A store that goes to the medium at once, already done in live memory. Returns whether any of it is of the modelled
    /// memory.
    pub fn store_to_medium(&mut self, address: u64, length: u64) -> bool {
        let mut any = false;
        for (line, mask) in pieces(address, length) {
            if self.memory.contains(line) {
                self.persist_now(line, mask);
                any = true;
            }
        }
        if any {
            self.memory.count(Counter::StoresInbound);
        }
        any
    }

    /// A fence of a processor: what it holds back reaches the medium. Returns whether there was anything.
    pub fn fence(&mut self, processor: usize) -> bool {
        let Some(held) = self.held.get_mut(processor).filter(|held| !held.is_empty()) else { return false };
        let mut held = std::mem::take(held);
        for entry in held.drain(..) {
            self.release(&entry);
        }
        // The allocation is kept for the next round.
        self.held[processor] = held;
        self.memory.count(Counter::Fences);
        true
    }

    /// `wbinvd`: every line reaches the medium as it is.
    pub fn write_back_all(&mut self) {
        for line in self.memory.lines() {
            self.persist_now(line, WHOLE);
        }
        self.memory.count(Counter::WriteBacksOfAll);
    }

    /// Whether the processor holds anything back.
    pub fn holds_back(&self, processor: usize) -> bool {
        self.held.get(processor).is_some_and(|held| !held.is_empty())
    }

    fn line_to_write_back(&mut self, address: u64) -> Option<u64> {
        let line = address & !(LINE_BYTES - 1);
        let inside = self.memory.contains(line);
        self.memory.count(if inside { Counter::WriteBacks } else { Counter::WriteBacksElsewhere });
        inside.then_some(line)
    }

    /// Takes the bytes of a line for a processor's next fence.
    fn hold(&mut self, processor: usize, line: u64, mask: u64) {
        let bytes = self.memory.live(line);
        if self.held.len() <= processor {
            self.held.resize_with(processor + 1, Vec::new);
        }
        let held = &mut self.held[processor];
        // Nothing was taken between the two: they are one. A stream of small stores thus costs one entry a line.
        if let Some(last) = held.last_mut().filter(|last| last.line == line && last.taken == self.clock) {
            merge(&mut last.bytes, &bytes, mask);
            last.mask |= mask;
            return;
        }
        self.clock += 1;
        held.push(Held { line, taken: self.clock, mask, bytes });
        self.in_flight.entry(line).or_insert(InFlight { holders: 0, taken: [0; LINE] }).holders += 1;
    }

    fn release(&mut self, entry: &Held) {
        let Some(line) = self.in_flight.get_mut(&entry.line) else { return };
        let mut newer = 0;
        for (byte, taken) in line.taken.iter_mut().enumerate() {
            if entry.mask >> byte & 1 == 1 && *taken < entry.taken {
                *taken = entry.taken;
                newer |= 1 << byte;
            }
        }
        line.holders -= 1;
        if line.holders == 0 {
            self.in_flight.remove(&entry.line);
        }
        if newer != 0 {
            self.memory.persist(entry.line, &entry.bytes, newer);
            self.memory.count(Counter::LinesPersisted);
        }
    }

    fn persist_now(&mut self, line: u64, mask: u64) {
        let bytes = self.memory.live(line);
        self.clock += 1;
        if let Some(in_flight) = self.in_flight.get_mut(&line) {
            for (byte, taken) in in_flight.taken.iter_mut().enumerate() {
                if mask >> byte & 1 == 1 {
                    *taken = self.clock;
                }
            }
        }
        self.memory.persist(line, &bytes, mask);
        self.memory.count(Counter::LinesPersisted);
    }
}

fn merge(into: &mut [u8; LINE], from: &[u8; LINE], mask: u64) {
    for byte in (0..LINE).filter(|byte| mask >> byte & 1 == 1) {
        into[byte] = from[byte];
    }
}

/// The lines that a store touches, with the bytes in each.
fn pieces(address: u64, length: u64) -> impl Iterator<Item = (u64, u64)> {
    let end = address.saturating_add(length);
    let mut at = address;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let line = at & !(LINE_BYTES - 1);
        let stop = end.min(line.saturating_add(LINE_BYTES));
        let (first, count) = (at - line, stop - at);
        at = stop;
        Some((line, if count == LINE_BYTES { WHOLE } else { ((1 << count) - 1) << first }))
    })
}

#[cfg(test)]
#[path = "model_tests.rs"]
mod tests;
