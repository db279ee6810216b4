//! The work requests that a device has: what each was posted for, and the memory that it needs until it is done.

use std::{collections::VecDeque, sync::Arc};

use pmof_proto::{LocalSlice, Ticket};

use crate::{region::DeviceReach, verbs::memory::DeviceMemory};

#[cfg(test)]
mod tests;

/// What a work request under way was posted for.
#[derive(Debug)]
pub(in crate::verbs) enum Flight {
    /// Bytes of the message stream.
    Stream,
    /// Asks whether the other side is still there or has all so far, or tells it that there is room.
    Service,
    /// One range of a flush that names more.
    FlushPart { ticket: Ticket, offset: u64, len_bytes: u64 },
    /// An operation of the caller, or the last part of it.
    Direct { ticket: Ticket, offset: u64, len_bytes: u64, result: ResultPlace },
}

/// An operation of the caller that brings nothing back, and its range.
#[derive(Clone, Copy, Debug)]
pub(in crate::verbs) struct Plain {
    pub(in crate::verbs) ticket: Ticket,
    pub(in crate::verbs) offset: u64,
    pub(in crate::verbs) len_bytes: u64,
}

impl From<Plain> for Flight {
    fn from(Plain { ticket, offset, len_bytes }: Plain) -> Self {
        Self::Direct { ticket, offset, len_bytes, result: ResultPlace::None }
    }
}

/// Where the device leaves what a direct operation brings back.
#[derive(Debug)]
pub(in crate::verbs) enum ResultPlace {
    /// Nothing comes back, or it lies where it belongs.
    None,
    /// A number, at this place of the staging memory.
    Number(u64),
    /// Bytes in the flight's own memory, to be copied.
    Copy(Box<LocalSlice>),
}

/// A finished work request, or the last of several writes in a row.
#[derive(Debug)]
pub(in crate::verbs) struct Retired {
    pub(in crate::verbs) flight: Flight,
    pub(in crate::verbs) scratch: Option<Arc<DeviceMemory>>,
}

/// A work request under way; or writes in a row, to consecutive places and of the same length, and perhaps one more operation right behind
/// them.
#[derive(Debug)]
struct Entry {
    /// Requests in a row.
    count: u64,
    /// Of the first one.
    flight: Flight,
    /// Offset and length of the operation behind them.
    then: Option<(u64, u64)>,
    /// Staged bytes up to here are free when it is done.
    staged_end: u64,
    /// Registered memory of the caller, until the device has let go of it.
    #[expect(dead_code, reason = "it is held, not used")]
    keep: Option<Arc<dyn DeviceReach>>,
    scratch: Option<Arc<DeviceMemory>>,
}

/// The write that would go on where the last one ended, and how many did: their entry does not count them yet.
#[derive(Debug, Default)]
struct Row {
    /// 0 where none goes on.
    ticket: u64,
    offset: u64,
    len_bytes: u64,
    staged_end: u64,
    /// The address of the memory that the entry keeps; 0 for none.
    keep: usize,
    count: u64,
}

/// In the order in which they were counted, numbered from 1 on.
#[derive(Debug)]
pub(super) struct InFlight {
    entries: VecDeque<Entry>,
    /// What goes on from the last of them.
    row: Row,
    /// Number of the first one, and of the next one: those between are under way.
    first: u64,
    next: u64,
}

impl Entry {
    fn len(&self) -> u64 {
        self.count + u64::from(self.then.is_some())
    }

    /// The operation in this place, where it leaves nothing behind.
    #[inline]
    fn plain(&self, place: u64) -> Option<Plain> {
        let Flight::Direct { ticket, offset, len_bytes, result: ResultPlace::None } = self.flight else { return None };
        let ticket = Ticket(ticket.0 + place);
        match self.then {
            Some((offset, len_bytes)) if place == self.count => Some(Plain { ticket, offset, len_bytes }),
            _ => Some(Plain { ticket, offset: offset + len_bytes * place, len_bytes }),
        }
    }

    /// So many are done, but not all.
    fn advance(&mut self, done: u64) {
        let Some(next) = self.plain(done) else { return };
        self.flight = next.into();
        self.count -= done;
        if self.count == 0 {
            (self.count, self.then) = (1, None);
        }
    }
}

impl Row {
    /// Counts one more here, if it is the one that goes on.
    #[inline]
    fn join(&mut self, new: Plain, staged_end: u64, keep: Option<&Arc<dyn DeviceReach>>) -> bool {
        let is_next = self.ticket == new.ticket.0
            && self.offset == new.offset
            && self.len_bytes == new.len_bytes
            && self.staged_end == staged_end
            && self.keep == address_of(keep);
        if is_next {
            self.ticket += 1;
            self.offset += new.len_bytes;
            self.count += 1;
        }
        is_next
    }
}

fn address_of(memory: Option<&Arc<dyn DeviceReach>>) -> usize {
    memory.map_or(0, |memory| Arc::as_ptr(memory).cast::<()>().addr())
}

impl Default for InFlight {
    fn default() -> Self {
        Self { entries: VecDeque::new(), row: Row::default(), first: 1, next: 1 }
    }
}

impl InFlight {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.first == self.next
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        (self.next - self.first) as usize
    }

    /// Number of the oldest.
    #[inline]
    pub(super) fn first(&self) -> u64 {
        self.first
    }

    /// Number of the one that was counted last.
    #[inline]
    pub(super) fn last(&self) -> u64 {
        self.next - 1
    }

    /// Bytes that they move; messages are not counted.
    pub(super) fn bytes(&self) -> u64 {
        let bytes = |entry: &Entry| match entry.flight {
            Flight::Direct { len_bytes, .. } | Flight::FlushPart { len_bytes, .. } => {
                entry.count * len_bytes + entry.then.map_or(0, |(_, len_bytes)| len_bytes)
            }
            Flight::Stream | Flight::Service => 0,
        };
        self.entries.iter().map(bytes).sum::<u64>() + self.row.count * self.row.len_bytes
    }

    /// Counts one more. Staged bytes up to `staged_end` are free when it is done.
    pub(super) fn push(
        &mut self,
        flight: Flight,
        staged_end: u64,
        keep: Option<&Arc<dyn DeviceReach>>,
        scratch: Option<Arc<DeviceMemory>>,
    ) {
        self.end_row();
        self.next += 1;
        self.entries.push_back(Entry { count: 1, flight, then: None, staged_end, keep: keep.cloned(), scratch });
    }

    /// Counts one for an operation that leaves nothing behind but memory that it may need till then.
    #[expect(clippy::inline_always, reason = "its callers know what there is to keep: most of this falls away there")]
    #[inline(always)]
    pub(super) fn push_plain(
        &mut self,
        plain: Plain,
        staged_end: u64,
        keep: Option<&Arc<dyn DeviceReach>>,
        scratch: Option<Arc<DeviceMemory>>,
    ) {
        if scratch.is_none() && self.row.join(plain, staged_end, keep) {
            self.next += 1;
        } else {
            self.push_first(plain, staged_end, keep, scratch);
        }
    }

    /// Counts one for an operation without bytes of this side: with the row that it comes right behind, if there is one.
    #[inline]
    pub(super) fn push_bare(&mut self, plain: Plain, staged_end: u64) {
        if self.row.join(plain, staged_end, None) {
            self.next += 1;
            return;
        }
        let is_behind = self.row.ticket == plain.ticket.0 && self.row.staged_end == staged_end;
        self.end_row();
        match self.entries.back_mut().filter(|_| is_behind) {
            Some(row) => {
                row.then = Some((plain.offset, plain.len_bytes));
                self.next += 1;
            }
            None => self.push_first(plain, staged_end, None, None),
        }
    }

    #[inline(never)]
    fn push_first(
        &mut self,
        plain: Plain,
        staged_end: u64,
        keep: Option<&Arc<dyn DeviceReach>>,
        scratch: Option<Arc<DeviceMemory>>,
    ) {
        let has_own = scratch.is_some();
        self.push(plain.into(), staged_end, keep, scratch);
        if !has_own {
            let Plain { ticket, offset, len_bytes } = plain;
            let (offset, ticket) = (offset + len_bytes, ticket.0 + 1);
            self.row = Row { ticket, offset, len_bytes, staged_end, keep: address_of(keep), count: 0 };
        }
    }

    /// Nothing goes on from the last entry any more; it counts what did.
    #[inline]
    fn end_row(&mut self) {
        if self.row.count > 0 {
            if let Some(back) = self.entries.back_mut() {
                back.count += self.row.count;
                self.row.count = 0;
            }
        }
        self.row.ticket = 0;
    }

    /// As [`retire`](Self::retire), for direct operations that leave nothing behind: the ticket of the last one of them, and the end of
    /// staged bytes that are free now.
    #[inline]
    pub(super) fn retire_plain(&mut self, through: u64) -> Option<(Ticket, u64)> {
        self.end_row();
        let mut last = None;
        while self.first <= through {
            let Some(front) = self.entries.front_mut().filter(|front| front.scratch.is_none()) else { break };
            let len = front.len();
            let done = len.min(through + 1 - self.first);
            let Some(plain) = front.plain(done - 1) else { break };
            self.first += done;
            last = Some((plain.ticket, front.staged_end));
            if done == len {
                self.entries.pop_front();
            } else {
                front.advance(done);
            }
        }
        last
    }

    /// All up to this one are done: gives the oldest that was not given yet, or the last of those in a row with it, and the end of staged
    /// bytes that are free now.
    #[inline]
    pub(super) fn retire(&mut self, through: u64) -> Option<(Retired, u64)> {
        if self.first > through {
            return None;
        }
        self.end_row();
        let front = self.entries.front_mut()?;
        let (len, staged_end) = (front.len(), front.staged_end);
        let done = len.min(through + 1 - self.first);
        let last = front.plain(done - 1);
        self.first += done;
        if done < len {
            front.advance(done);
            return last.map(|last| (Retired { flight: last.into(), scratch: None }, staged_end));
        }
        let Entry { flight, scratch, .. } = self.entries.pop_front()?;
        Some((Retired { flight: last.map_or(flight, Flight::from), scratch }, staged_end))
    }

    /// Forgets all.
    pub(super) fn clear(&mut self) {
        self.entries.clear();
        self.row = Row::default();
        self.first = self.next;
    }
}
