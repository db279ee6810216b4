//! Receives that many endpoints take: whose message comes first takes the oldest one.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    task::Waker,
};

use pmof_locks::{Mutex, MutexGuard};

use super::{
    Ticket,
    local::check_local,
    messages::{PostedReceive, RECEIVE_TICKET},
};
use crate::{LocalSlice, PostError};

/// A queue of receives for the messages of many endpoints, which take them in the order in which the messages arrive.
#[derive(Debug)]
pub struct SharedReceives {
    limit: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    posted: u64,
    /// None, while a message waits.
    receives: VecDeque<PostedReceive>,
    /// Messages that found none.
    arrived: u64,
    /// Those of them that wait, by arrival, and whom to tell.
    waiting: BTreeMap<u64, Waker>,
    /// Receives for those that waited, until their endpoint looks.
    granted: BTreeMap<u64, PostedReceive>,
}

impl State {
    /// Gives receives to messages that wait; returns whom to tell, once the lock is released.
    fn grant(&mut self) -> Vec<Waker> {
        let mut told = Vec::new();
        while !self.receives.is_empty() {
            let Some((arrival, waker)) = self.waiting.pop_first() else { break };
            self.granted.extend(self.receives.pop_front().map(|receive| (arrival, receive)));
            told.push(waker);
        }
        told
    }
}

impl SharedReceives {
    /// A queue of at most `limit` receives that no message took yet.
    pub fn new(limit: usize) -> Self {
        Self { limit, state: Mutex::default() }
    }

    /// Posts a receive. Where a message waits, its endpoint is woken and [`Endpoint::match_shared`] is due.
    ///
    /// [`Endpoint::match_shared`]: super::Endpoint::match_shared
    pub fn post(&self, into: LocalSlice, context: u64) -> Result<Ticket, PostError> {
        check_local(&into)?;
        let mut state = self.lock();
        if state.receives.len() >= self.limit {
            return Err(PostError::ReceiveQueueFull { limit: self.limit });
        }
        state.posted += 1;
        let ticket = Ticket(RECEIVE_TICKET | state.posted);
        state.receives.push_back(PostedReceive { ticket, context, into });
        let told = state.grant();
        drop(state);
        told.into_iter().for_each(Waker::wake);
        Ok(ticket)
    }

    /// Receives that no message took yet.
    pub fn waiting_receives(&self) -> usize {
        self.lock().receives.len()
    }

    /// Messages that arrived and wait for a receive.
    pub fn waiting_messages(&self) -> usize {
        self.lock().waiting.len()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

/// An endpoint's share of a queue. When it is dropped its messages wait no more, and receives for them go to others.
#[derive(Debug)]
pub(super) struct Share {
    queue: Arc<SharedReceives>,
    waker: Waker,
    /// The arrivals of the messages in the endpoint's inbox, in their order.
    waits: VecDeque<u64>,
}

impl Share {
    pub(super) fn new(queue: Arc<SharedReceives>, waker: Waker) -> Self {
        Self { queue, waker, waits: VecDeque::new() }
    }

    /// A receive for a message before which none of this endpoint waits.
    pub(super) fn take(&self) -> Option<PostedReceive> {
        self.queue.lock().receives.pop_front()
    }

    /// One more message lies in the inbox.
    pub(super) fn wait(&mut self) {
        let mut state = self.queue.lock();
        state.arrived += 1;
        let arrival = state.arrived;
        match state.receives.pop_front() {
            Some(receive) => drop(state.granted.insert(arrival, receive)),
            None => drop(state.waiting.insert(arrival, self.waker.clone())),
        }
        self.waits.push_back(arrival);
    }

    /// The receive for the first message of the inbox, if it was given one.
    pub(super) fn take_for_first(&mut self) -> Option<PostedReceive> {
        let receive = self.queue.lock().granted.remove(self.waits.front()?)?;
        self.waits.pop_front();
        Some(receive)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut state = self.queue.lock();
        for arrival in self.waits.iter().rev() {
            state.waiting.remove(arrival);
            if let Some(receive) = state.granted.remove(arrival) {
                state.receives.push_front(receive);
            }
        }
        let told = state.grant();
        drop(state);
        told.into_iter().for_each(Waker::wake);
    }
}
