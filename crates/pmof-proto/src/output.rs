//! Bytes on their way out: a queue of copied bytes and of ranges that are sent from where they lie.

use std::{collections::VecDeque, mem, sync::Arc};

use pmof_mem::{Medium, MemError, check_bounds};

use crate::{
    MemoryAccount,
    budget::GUARANTEED_BYTES,
    limits::{HEADER_BYTES, OUTPUT_KEEP_BYTES, REPLY_COPY_LIMIT_BYTES, REPLY_COPY_MAX_BYTES},
};

/// Parts and ends of replies that an emptied output keeps room for: as a rule, and where memory is scarce.
const KEPT_PARTS: usize = 1024;
const KEPT_PARTS_LEAST: usize = 16;

/// What one answer may need: the longest that is copied, in two parts, and where it ends.
const ANSWER_MAX_BYTES: usize = HEADER_BYTES + REPLY_COPY_MAX_BYTES as usize;
const ANSWER_PARTS: usize = 2;

/// What an emptied output keeps, and one answer more, is guaranteed: so every connection gets on.
const _: () = {
    let parts = (KEPT_PARTS_LEAST + ANSWER_PARTS) * (size_of::<Part>() + size_of::<u64>());
    assert!(ANSWER_MAX_BYTES + parts + HEADER_BYTES <= GUARANTEED_BYTES as usize);
};

/// A range of memory of this side: the source of a write or send, the destination of a read or receive.
#[derive(Clone, Debug)]
pub struct LocalSlice {
    /// The memory; kept alive as long as the operation.
    pub memory: Arc<dyn Medium>,
    /// First byte in it.
    pub offset: u64,
    /// Bytes.
    pub len_bytes: u64,
}

impl LocalSlice {
    /// True if the slice lies inside its memory.
    pub(crate) fn is_inside(&self) -> bool {
        check_bounds(self.offset, self.len_bytes, self.memory.len_bytes()).is_ok()
    }

    fn overlaps(&self, memory: &Arc<dyn Medium>, offset: u64, len_bytes: u64) -> bool {
        Arc::ptr_eq(&self.memory, memory)
            && self.offset < offset.saturating_add(len_bytes)
            && offset < self.offset.saturating_add(self.len_bytes)
    }
}

/// What to send next, in this order, with one system call.
#[derive(Debug)]
pub struct OutputView<'a> {
    /// Bytes before the body.
    pub head: &'a [u8],
    /// A range to send from where it lies.
    pub body: Option<&'a LocalSlice>,
    /// Bytes after the body.
    pub tail: &'a [u8],
}

#[derive(Debug)]
enum Part {
    /// Copied bytes.
    Bytes(usize),
    /// Copied bytes of a region, for a read reply; they count against `REPLY_COPY_LIMIT_BYTES`.
    ReplyBytes(usize),
    /// A range of a region, for a read reply.
    Reply(LocalSlice),
    /// A range that an operation of this side is sent from.
    Posted(LocalSlice),
}

impl Part {
    fn slice(&self) -> Option<&LocalSlice> {
        match self {
            Self::Reply(slice) | Self::Posted(slice) => Some(slice),
            Self::Bytes(_) | Self::ReplyBytes(_) => None,
        }
    }

    fn copied_bytes(&self) -> usize {
        match self {
            Self::Bytes(len) | Self::ReplyBytes(len) => *len,
            Self::Reply(_) | Self::Posted(_) => 0,
        }
    }

    /// Takes up to `left` bytes off; returns how many, and whether none remain.
    fn advance(&mut self, left: usize) -> (usize, bool) {
        match self {
            Self::Bytes(len) | Self::ReplyBytes(len) => {
                let step = left.min(*len);
                *len -= step;
                (step, *len == 0)
            }
            Self::Reply(slice) | Self::Posted(slice) => {
                let step = (left as u64).min(slice.len_bytes);
                slice.offset += step;
                slice.len_bytes -= step;
                (step as usize, slice.len_bytes == 0)
            }
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Output {
    bytes: Vec<u8>,
    /// Bytes of `bytes` that were sent already.
    start: usize,
    parts: VecDeque<Part>,
    pushed_total: u64,
    sent_total: u64,
    /// Where each waiting reply ends, counted in `pushed_total`.
    reply_ends: VecDeque<u64>,
    /// Bytes in `ReplyBytes` parts.
    reply_bytes: usize,
    reply_slices: usize,
    posted_slices: usize,
    /// Against which budget the memory counts, if there is one.
    account: Option<MemoryAccount>,
    /// What was charged there last.
    charged_bytes: usize,
}

impl Output {
    /// Has the memory count against a budget.
    pub(crate) fn count_against(&mut self, account: MemoryAccount) {
        self.account = Some(account);
        self.settle();
    }

    /// Makes room for an answer of `more_bytes`, at most [`ANSWER_MAX_BYTES`]. False: the budget has none now.
    pub(crate) fn make_room(&mut self, more_bytes: usize) -> bool {
        debug_assert!(more_bytes <= ANSWER_MAX_BYTES, "the guarantee is for no more");
        if self.account.is_none() || self.has_room_for(more_bytes) {
            return true;
        }
        let (bytes, parts, ends) =
            (self.bytes.len() + more_bytes, self.parts.len() + ANSWER_PARTS, self.reply_ends.len() + 1);
        // Generously, so that little is moved; else, where memory is short, no more than is needed.
        let doubled = |needed: usize, there: usize| if needed > there { needed.max(2 * there) } else { there };
        let generous = [
            doubled(bytes, self.bytes.capacity()),
            doubled(parts, self.parts.capacity()),
            doubled(ends, self.reply_ends.capacity()),
        ];
        let least =
            [bytes.max(self.bytes.capacity()), parts.max(self.parts.capacity()), ends.max(self.reply_ends.capacity())];
        if self.grow(generous) || self.grow(least) {
            return true;
        }
        // An empty queue takes one answer, whatever it kept room for: nothing that goes out would come back to this.
        self.is_empty() && {
            self.shrink_to_least();
            self.grow([more_bytes, KEPT_PARTS_LEAST + ANSWER_PARTS, KEPT_PARTS_LEAST + 1])
        }
    }

    fn has_room_for(&self, more_bytes: usize) -> bool {
        self.bytes.len() + more_bytes <= self.bytes.capacity()
            && self.parts.len() + ANSWER_PARTS <= self.parts.capacity()
            && self.reply_ends.len() < self.reply_ends.capacity()
    }

    /// Grows to these capacities, if the budget allows it.
    fn grow(&mut self, [bytes, parts, ends]: [usize; 3]) -> bool {
        let held = held_bytes(bytes, parts, ends);
        if !self.account.as_mut().is_none_or(|account| account.may_hold(held as u64)) {
            return false;
        }
        self.bytes.reserve_exact(bytes - self.bytes.len());
        self.parts.reserve_exact(parts - self.parts.len());
        self.reply_ends.reserve_exact(ends - self.reply_ends.len());
        self.settle();
        true
    }

    /// Charges what is held now.
    #[inline]
    fn settle(&mut self) {
        if let Some(account) = &mut self.account {
            let held = held_bytes(self.bytes.capacity(), self.parts.capacity(), self.reply_ends.capacity());
            if held != self.charged_bytes {
                self.charged_bytes = held;
                account.charge(held as u64);
            }
        }
    }

    pub(crate) fn push_bytes(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.bytes.extend_from_slice(bytes);
        self.pushed_total += bytes.len() as u64;
        match self.parts.back_mut() {
            Some(Part::Bytes(len)) => *len += bytes.len(),
            _ => self.parts.push_back(Part::Bytes(bytes.len())),
        }
        self.settle();
    }

    /// Payload of an operation of this side, sent from where it lies.
    pub(crate) fn push_posted(&mut self, slice: LocalSlice) {
        if slice.len_bytes > 0 {
            self.pushed_total += slice.len_bytes;
            self.posted_slices += 1;
            self.parts.push_back(Part::Posted(slice));
            self.settle();
        }
    }

    /// Payload of a read reply, already copied out of its region.
    pub(crate) fn push_reply_bytes(&mut self, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.bytes.extend_from_slice(bytes);
            self.pushed_total += bytes.len() as u64;
            self.reply_bytes += bytes.len();
            self.parts.push_back(Part::ReplyBytes(bytes.len()));
            self.settle();
        }
    }

    /// Payload of a read reply, sent from its region.
    pub(crate) fn push_reply_slice(&mut self, slice: LocalSlice) {
        if slice.len_bytes > 0 {
            self.pushed_total += slice.len_bytes;
            self.reply_slices += 1;
            self.parts.push_back(Part::Reply(slice));
            self.settle();
        }
    }

    /// Notes that all that was pushed so far ends a reply.
    pub(crate) fn end_reply(&mut self) {
        self.reply_ends.push_back(self.pushed_total);
        self.settle();
    }

    /// Replies not yet handed to the socket whole.
    pub(crate) fn replies_waiting(&self) -> usize {
        self.reply_ends.len()
    }

    /// Bytes pushed and bytes sent since the beginning.
    pub(crate) fn totals(&self) -> (u64, u64) {
        (self.pushed_total, self.sent_total)
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Copied bytes that wait, without those of read replies.
    #[inline]
    pub(crate) fn copied_bytes(&self) -> usize {
        self.bytes.len() - self.start - self.reply_bytes
    }

    /// Memory that the queue takes.
    #[cfg(test)]
    pub(crate) fn held_bytes(&self) -> u64 {
        held_bytes(self.bytes.capacity(), self.parts.capacity(), self.reply_ends.capacity()) as u64
    }

    #[cfg(test)]
    pub(crate) fn buffered_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// True if a read reply of so many bytes may still be copied.
    pub(crate) fn has_reply_room(&self, len_bytes: u64) -> bool {
        len_bytes <= (REPLY_COPY_LIMIT_BYTES.saturating_sub(self.reply_bytes)) as u64
    }

    /// True if all that waits is copied bytes.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        self.reply_slices == 0 && self.posted_slices == 0
    }

    /// True while memory of posted operations is still to be sent.
    pub(crate) fn has_posted_slices(&self) -> bool {
        self.posted_slices > 0
    }

    /// True if the range is to be sent as part of a read reply and has not gone yet.
    pub(crate) fn shares(&self, memory: &Arc<dyn Medium>, offset: u64, len_bytes: u64) -> bool {
        self.reply_slices > 0 && self.shared(memory, offset, len_bytes).next().is_some()
    }

    /// Copies what [`shares`](Self::shares) the range, so that the range may change. `Ok(false)`: there is no room.
    pub(crate) fn unshare(&mut self, memory: &Arc<dyn Medium>, offset: u64, len_bytes: u64) -> Result<bool, MemError> {
        let wanted: u64 = self.shared(memory, offset, len_bytes).map(|slice| slice.len_bytes).sum();
        if !self.has_reply_room(wanted) {
            return Ok(false);
        }
        let capacity = self.bytes.len() - self.start + wanted as usize;
        let held = held_bytes(capacity, self.parts.capacity(), self.reply_ends.capacity());
        if !self.account.as_mut().is_none_or(|account| account.may_hold(held as u64)) {
            return Ok(false);
        }
        let mut bytes = Vec::with_capacity(capacity);
        let mut from = self.start;
        for part in &mut self.parts {
            match part {
                Part::Reply(slice) if slice.overlaps(memory, offset, len_bytes) => {
                    let (start, len) = (bytes.len(), slice.len_bytes as usize);
                    bytes.resize(start + len, 0);
                    slice.memory.read(slice.offset, &mut bytes[start..])?;
                    *part = Part::ReplyBytes(len);
                    self.reply_bytes += len;
                    self.reply_slices -= 1;
                }
                _ => {
                    let end = from + part.copied_bytes();
                    bytes.extend_from_slice(&self.bytes[from..end]);
                    from = end;
                }
            }
        }
        self.bytes = bytes;
        self.start = 0;
        self.settle();
        Ok(true)
    }

    #[inline]
    pub(crate) fn view(&self) -> Option<OutputView<'_>> {
        let waiting = &self.bytes[self.start..];
        if self.is_plain() {
            return (!self.is_empty()).then_some(OutputView { head: waiting, body: None, tail: &[] });
        }
        let mut parts = self.parts.iter();
        let (mut head_len, mut body) = (0, None);
        for part in parts.by_ref() {
            head_len += part.copied_bytes();
            body = part.slice();
            if body.is_some() {
                break;
            }
        }
        let tail_len: usize = parts.take_while(|part| part.slice().is_none()).map(Part::copied_bytes).sum();
        Some(OutputView { head: &waiting[..head_len], body, tail: &waiting[head_len..head_len + tail_len] })
    }

    /// # Panics
    ///
    /// If more is said to be sent than there was.
    pub(crate) fn sent(&mut self, count: usize) {
        self.sent_total += count as u64;
        while self.reply_ends.front().is_some_and(|end| *end <= self.sent_total) {
            self.reply_ends.pop_front();
        }
        let mut left = count;
        while left > 0 {
            let part = self.parts.front_mut().expect("more was sent than the view held");
            let (step, is_done) = part.advance(left);
            left -= step;
            match part {
                Part::Bytes(_) => self.start += step,
                Part::ReplyBytes(_) => {
                    self.start += step;
                    self.reply_bytes -= step;
                }
                Part::Reply(_) => self.reply_slices -= usize::from(is_done),
                Part::Posted(_) => self.posted_slices -= usize::from(is_done),
            }
            if is_done {
                self.parts.pop_front();
            }
        }
        self.compact();
    }

    pub(crate) fn clear(&mut self) {
        let account = self.account.take();
        *self = Self { account, charged_bytes: mem::take(&mut self.charged_bytes), ..Self::default() };
        self.settle();
    }

    fn shared(&self, memory: &Arc<dyn Medium>, offset: u64, len_bytes: u64) -> impl Iterator<Item = &LocalSlice> {
        self.parts.iter().filter_map(move |part| match part {
            Part::Reply(slice) if slice.overlaps(memory, offset, len_bytes) => Some(slice),
            _ => None,
        })
    }

    fn compact(&mut self) {
        if self.start == self.bytes.len() {
            self.bytes.clear();
            self.start = 0;
            self.give_back();
        } else if self.start > OUTPUT_KEEP_BYTES && self.start > self.bytes.len() / 2 {
            // Each byte is moved at most once for each byte sent.
            self.bytes.drain(..self.start);
            self.start = 0;
        }
    }

    /// Gives back what an empty buffer has no use for.
    fn give_back(&mut self) {
        let is_small = self.charged_bytes as u64 <= GUARANTEED_BYTES;
        if !is_small && self.account.as_ref().is_some_and(MemoryAccount::is_scarce) {
            return self.shrink_to_least();
        }
        self.bytes.shrink_to(OUTPUT_KEEP_BYTES);
        self.parts.shrink_to(KEPT_PARTS);
        self.reply_ends.shrink_to(KEPT_PARTS);
        self.settle();
    }

    fn shrink_to_least(&mut self) {
        self.bytes.shrink_to(0);
        self.parts.shrink_to(KEPT_PARTS_LEAST);
        self.reply_ends.shrink_to(KEPT_PARTS_LEAST);
        self.settle();
    }
}

/// Memory that a queue of these capacities takes.
fn held_bytes(bytes: usize, parts: usize, ends: usize) -> usize {
    bytes + parts * size_of::<Part>() + ends * size_of::<u64>()
}
