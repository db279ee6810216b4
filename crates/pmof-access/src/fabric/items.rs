//! What a connection has to do in order: what waits to be posted, what is under way, and what is done and not yet told.

use std::collections::VecDeque;

use pmof_fabric::{Bytes, Failure, Operation};
use pmof_proto::{LocalSlice, Ticket};

/// What an item is of.
#[derive(Debug)]
pub(super) enum Kind {
    /// An operation of the caller, at this offset of the region and of so many bytes. What it reads goes there.
    Direct { ticket: Ticket, offset: u64, len_bytes: u64, into: Option<LocalSlice> },
    /// A message: bytes of the stream, word of credit, or the end.
    Message,
}

#[derive(Debug)]
enum State {
    Waiting(Bytes, usize),
    UnderWay,
    Done(Bytes, Result<(), Failure>),
}

#[derive(Debug)]
struct Item {
    kind: Kind,
    operation: Operation,
    state: State,
}

/// What came out of the oldest item.
#[derive(Debug)]
pub(super) struct Retired {
    pub(super) kind: Kind,
    pub(super) bytes: Bytes,
    pub(super) result: Result<(), Failure>,
}

#[derive(Debug, Default)]
pub(super) struct Items {
    list: VecDeque<Item>,
    /// The number of the first one.
    first: u64,
    /// How many of the list were posted.
    posted: usize,
    /// Reads under way: what follows one waits for it.
    reads: usize,
}

impl Items {
    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(super) fn has_waiting(&self) -> bool {
        self.posted < self.list.len()
    }

    pub(super) fn push(&mut self, kind: Kind, operation: Operation, bytes: Bytes, len_bytes: usize) {
        self.list.push_back(Item { kind, operation, state: State::Waiting(bytes, len_bytes) });
    }

    /// Posts what may go: `post` gives the bytes back where there is no room.
    pub(super) fn post<E>(
        &mut self,
        mut post: impl FnMut(Operation, Bytes, usize, u64) -> Result<(), (Bytes, Option<E>)>,
    ) -> Result<bool, E> {
        let mut moved = false;
        while let Some(item) = self.list.get_mut(self.posted) {
            let is_read = matches!(item.operation, Operation::Read(_));
            if self.reads > 0 && !is_read {
                break;
            }
            let State::Waiting(bytes, len_bytes) = std::mem::replace(&mut item.state, State::UnderWay) else { break };
            if len_bytes == 0 {
                // There is nothing to move, and providers differ in what they make of that.
                item.state = State::Done(bytes, Ok(()));
                self.posted += 1;
                moved = true;
                continue;
            }
            match post(item.operation, bytes, len_bytes, self.first + self.posted as u64) {
                Ok(()) => {
                    self.posted += 1;
                    self.reads += usize::from(is_read);
                    moved = true;
                }
                Err((bytes, failure)) => {
                    item.state = State::Waiting(bytes, len_bytes);
                    return failure.map_or(Ok(moved), Err);
                }
            }
        }
        Ok(moved)
    }

    /// An item ended.
    pub(super) fn done(&mut self, number: u64, bytes: Bytes, result: Result<(), Failure>) {
        let Some(item) = self.list.get_mut(number.wrapping_sub(self.first) as usize) else { return };
        self.reads -= usize::from(matches!(item.operation, Operation::Read(_)));
        item.state = State::Done(bytes, result);
    }

    /// Takes the oldest item, where it is done.
    pub(super) fn retire(&mut self) -> Option<Retired> {
        if !matches!(self.list.front()?.state, State::Done(..)) {
            return None;
        }
        let Item { kind, state: State::Done(bytes, result), .. } = self.list.pop_front()? else { return None };
        self.first += 1;
        self.posted -= 1;
        Some(Retired { kind, bytes, result })
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}
