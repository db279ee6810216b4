//! Messages: posted receives, the bounded inbox of what came before a receive was posted, and the credit that keeps a
//! sender from overrunning it.

use std::collections::VecDeque;

use super::{Ticket, shared::Share};
use crate::{LocalSlice, Settings, limits::RECEIVE_QUEUE_LIMIT};

mod delivery;

/// Tickets of receives have this bit, those of operations do not.
pub(super) const RECEIVE_TICKET: u64 = 1 << 63;

/// A receive that awaits its message.
#[derive(Debug)]
pub(super) struct PostedReceive {
    pub(super) ticket: Ticket,
    pub(super) context: u64,
    pub(super) into: LocalSlice,
}

/// What came before a receive was posted for it.
#[derive(Debug)]
enum Arrival {
    Message { sequence: u64, data: Vec<u8>, immediate: Option<u32> },
    Written { len_bytes: u64, immediate: Option<u32> },
}

#[derive(Debug)]
pub(super) struct Messages {
    posted: u64,
    receives: VecDeque<PostedReceive>,
    /// How many of them may wait.
    receive_limit: usize,
    /// Where receives come from, if they are not this endpoint's own.
    share: Option<Share>,
    inbox: VecDeque<Arrival>,
    /// Messages of the other side that were matched with a receive.
    consumed: u64,
    /// How many of them the other side was told of, and where in the output that notice ends.
    pub(super) told: u64,
    told_at: u64,
    /// Messages of this side sent, and how many of them the other side has matched with a receive.
    pub(super) sent: u64,
    consumed_there: u64,
}

impl Default for Messages {
    fn default() -> Self {
        Self {
            posted: 0,
            receives: VecDeque::new(),
            receive_limit: RECEIVE_QUEUE_LIMIT,
            share: None,
            inbox: VecDeque::new(),
            consumed: 0,
            told: 0,
            told_at: 0,
            sent: 0,
            consumed_there: 0,
        }
    }
}

impl Messages {
    /// Messages in the inbox, and their bytes.
    #[cfg(test)]
    pub(super) fn inbox_size(&self) -> (usize, usize) {
        let bytes = |arrival: &Arrival| match arrival {
            Arrival::Message { data, .. } => data.capacity(),
            Arrival::Written { .. } => 0,
        };
        (self.inbox.len(), self.inbox.iter().map(bytes).sum())
    }

    /// The receive for a message before which no other waits.
    fn take_receive(&mut self) -> Option<PostedReceive> {
        self.receives.pop_front().or_else(|| self.share.as_ref()?.take())
    }

    /// The receive for the first message of the inbox.
    fn take_receive_for_first(&mut self) -> Option<PostedReceive> {
        self.receives.pop_front().or_else(|| self.share.as_mut()?.take_for_first())
    }

    fn push_arrival(&mut self, arrival: Arrival) {
        self.inbox.push_back(arrival);
        if let Some(share) = &mut self.share {
            share.wait();
        }
    }

    /// Messages that the other side has matched with receives.
    #[inline]
    pub(super) fn taken(&self) -> u64 {
        self.consumed_there
    }

    /// True if the other side has room for one more message.
    pub(super) fn may_send(&self, agreed: &Settings) -> bool {
        self.sent - self.consumed_there < u64::from(agreed.inbox_messages)
    }
}
