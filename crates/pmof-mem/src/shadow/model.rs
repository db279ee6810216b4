//! What is current, what is durable, and what lies between: the state that events change.

use std::collections::BTreeMap;

use super::{CrashImages, Event, images::LineStates, unsuitable};
use crate::{MediumKind, MemError};

/// What the CPU stores whole.
pub(super) const WORD_BYTES: usize = 8;
/// A cache line of x86-64 and of most aarch64.
const LINE_BYTES: usize = 64;
/// What the page cache writes whole.
const PAGE_BYTES: usize = 4096;

/// Whether cache lines, not pages, reach the medium.
pub(super) fn is_dax(kind: MediumKind) -> bool {
    matches!(kind, MediumKind::FsDax | MediumKind::DevDax)
}

/// One 8-byte store: the word's offset in its line, and the word after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WordStore {
    pub(super) at: usize,
    pub(super) value: [u8; WORD_BYTES],
}

/// The stores to one line that are not yet durable, in order.
#[derive(Debug, Default)]
struct Line {
    stores: Vec<WordStore>,
    /// How many of them a write-back covers; the next fence makes these durable.
    written_back: usize,
}

#[derive(Debug)]
pub(super) struct Model {
    /// Bytes that there are; the two copies below are longer, by zeros up to a whole line.
    len_bytes: usize,
    line_bytes: usize,
    is_dax: bool,
    current: Vec<u8>,
    durable: Vec<u8>,
    /// By offset of the line's first byte. Invariant: each has at least one store.
    lines: BTreeMap<usize, Line>,
    /// Page cache: something was written back since the last fence.
    is_sync_due: bool,
}

impl Model {
    pub(super) fn new(kind: MediumKind, mut image: Vec<u8>) -> Result<Self, MemError> {
        let line_bytes = match kind {
            MediumKind::FsDax | MediumKind::DevDax => LINE_BYTES,
            MediumKind::PageCache | MediumKind::VirtioPmem => PAGE_BYTES,
            MediumKind::Anonymous | MediumKind::Tmpfs => return Err(unsuitable()),
        };
        let len_bytes = image.len();
        image.resize(len_bytes.next_multiple_of(line_bytes), 0);
        Ok(Self {
            len_bytes,
            line_bytes,
            is_dax: is_dax(kind),
            durable: image.clone(),
            current: image,
            lines: BTreeMap::new(),
            is_sync_due: false,
        })
    }

    /// What a program reads; the caller has checked the bounds.
    pub(super) fn current(&self, offset: u64, len: usize) -> &[u8] {
        &self.current[offset as usize..offset as usize + len]
    }

    /// Whether an event of these bounds can be applied.
    pub(super) fn has(&self, event: &Event) -> Result<(), MemError> {
        let (offset, len_bytes) = match event {
            Event::Store { offset, bytes } => (*offset, bytes.len() as u64),
            Event::WriteBack { offset, len_bytes } => (*offset, *len_bytes),
            Event::Fence | Event::Mark(_) => return Ok(()),
        };
        crate::check_bounds(offset, len_bytes, self.len_bytes as u64)
    }

    /// Lets `event` happen; its bounds have been checked.
    pub(super) fn apply(&mut self, event: &Event) {
        match event {
            Event::Store { offset, bytes } => self.store(*offset as usize, bytes),
            Event::WriteBack { offset, len_bytes } => self.write_back(*offset as usize, *len_bytes as usize),
            Event::Fence => self.fence(),
            Event::Mark(_) => {}
        }
    }

    pub(super) fn crash_images(&self, limit: usize) -> CrashImages {
        let states = self.lines.iter().map(|(start, line)| {
            LineStates::new(*start, &self.durable[*start..*start + self.line_bytes], line.stores.clone())
        });
        CrashImages::new(self.durable.clone(), self.len_bytes, states.collect(), limit)
    }

    fn store(&mut self, offset: usize, bytes: &[u8]) {
        self.current[offset..offset + bytes.len()].copy_from_slice(bytes);
        let end = offset + bytes.len();
        if bytes.is_empty() {
            return;
        }
        for word in (offset / WORD_BYTES)..end.div_ceil(WORD_BYTES) {
            let start = word * WORD_BYTES;
            let mut value = [0; WORD_BYTES];
            value.copy_from_slice(&self.current[start..start + WORD_BYTES]);
            let at = start % self.line_bytes;
            self.lines.entry(start - at).or_default().stores.push(WordStore { at, value });
        }
    }

    fn write_back(&mut self, offset: usize, len: usize) {
        if len == 0 {
            return;
        }
        self.is_sync_due = true;
        let first = offset - offset % self.line_bytes;
        for line in self.lines.range_mut(first..offset + len).map(|(_, line)| line) {
            line.written_back = line.stores.len();
        }
    }

    fn fence(&mut self) {
        let is_sync = !self.is_dax && std::mem::take(&mut self.is_sync_due);
        for (start, line) in &mut self.lines {
            let reached = match (self.is_dax, is_sync) {
                (true, _) => std::mem::take(&mut line.written_back),
                (false, true) => line.stores.len(),
                (false, false) => 0,
            };
            for store in line.stores.drain(..reached) {
                self.durable[start + store.at..start + store.at + WORD_BYTES].copy_from_slice(&store.value);
            }
        }
        self.lines.retain(|_, line| !line.stores.is_empty());
    }
}
