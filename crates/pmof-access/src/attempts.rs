//! Connecting to a name that stands for several addresses (RFC 8305).

use std::{collections::VecDeque, sync::atomic::Ordering, time::Duration};

use crate::{CompletionQueue, ConnectError, ConnectOptions, Connection, Location, Peer, PendingConnection};

/// Time for an address to answer before the next is tried beside it: the RFC's recommendation.
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// How often concurrent attempts are polled: waiting for one drives them all.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Attempts to connect to one target.
#[derive(Debug)]
pub(crate) struct Attempts<'a> {
    peer: &'a Peer,
    queue: &'a CompletionQueue,
    options: &'a ConnectOptions,
    /// With the time at which each began, and its number.
    under_way: Vec<(PendingConnection, Duration, usize)>,
    /// With the number of the attempt.
    errors: Vec<(usize, ConnectError)>,
}

impl<'a> Attempts<'a> {
    pub(crate) fn new(peer: &'a Peer, queue: &'a CompletionQueue, options: &'a ConnectOptions) -> Self {
        Self { peer, queue, options, under_way: Vec::new(), errors: Vec::new() }
    }

    /// Returns the first connection established to any address of `host`, and drops the other attempts.
    pub(crate) fn first_of(mut self, host: &str, addresses: Vec<Location>) -> Result<Connection, ConnectError> {
        let began = self.queue.shared.driver.now();
        let deadline = began.saturating_add(self.options.timeout);
        let mut addresses: VecDeque<_> = alternating(addresses).into_iter().enumerate().collect();
        let (mut now, mut next_at, mut failed) = (began, began, 0);
        while now < deadline && !self.is_given_up() {
            // The next begins at once where one has failed.
            if self.errors.len() > failed || self.under_way.is_empty() || now >= next_at {
                failed = self.errors.len();
                match addresses.pop_front() {
                    Some((number, address)) => self.start(number, address, deadline, now),
                    None if self.under_way.is_empty() => break,
                    None => {}
                }
                next_at = now.saturating_add(ATTEMPT_DELAY);
            }
            let until = if addresses.is_empty() { deadline } else { next_at.min(deadline) };
            if let Some(connection) = self.look(until.saturating_sub(now)) {
                return Ok(connection);
            }
            now = self.queue.shared.driver.now();
        }
        self.give_up(deadline);
        Err(self.error(host))
    }

    fn is_given_up(&self) -> bool {
        self.options.give_up.as_ref().is_some_and(|given_up| given_up.load(Ordering::Relaxed))
    }

    fn start(&mut self, number: usize, address: Location, deadline: Duration, now: Duration) {
        let options = ConnectOptions { timeout: deadline.saturating_sub(now), ..self.options.clone() };
        match self.peer.start_connect(address, self.queue, &options) {
            Ok(pending) => self.under_way.push((pending, now, number)),
            Err(error) => self.errors.push((number, error)),
        }
    }

    /// Waits at most `time`, and less where one of them fails.
    fn look(&mut self, time: Duration) -> Option<Connection> {
        let is_only = self.under_way.len() == 1 && self.options.give_up.is_none();
        let mut wait = if is_only { time } else { time.min(LOOK_EVERY) };
        let mut at = 0;
        while let Some((pending, _, number)) = self.under_way.get(at) {
            match pending.poll(wait) {
                Some(Ok(())) => return Some(self.under_way.swap_remove(at).0.without_waiting()),
                Some(Err(error)) => {
                    self.errors.push((*number, error));
                    self.under_way.swap_remove(at);
                }
                None => at += 1,
            }
            wait = Duration::ZERO;
        }
        None
    }

    /// Each had the time from its beginning to the deadline.
    fn give_up(&mut self, deadline: Duration) {
        let silent = self.under_way.drain(..);
        let silent = silent.map(|(pending, began, number)| (number, pending.timed_out(deadline.saturating_sub(began))));
        self.errors.extend(silent);
    }

    /// That of the only address, or of all.
    fn error(mut self, host: &str) -> ConnectError {
        self.errors.sort_by_key(|(number, _)| *number);
        let mut errors: Vec<_> = self.errors.into_iter().map(|(_, error)| error).collect();
        match errors.pop() {
            Some(only) if errors.is_empty() => only,
            Some(last) => {
                errors.push(last);
                // Where one answered and the others are silent or closed, its answer says more.
                let answers: Vec<_> = (0..errors.len()).filter(|at| is_answer(&errors[*at])).collect();
                if let [at] = answers[..] {
                    return errors.swap_remove(at);
                }
                ConnectError::NoneReached { host: host.to_owned(), errors }
            }
            None => {
                ConnectError::TimedOut { address: host.to_owned(), timeout_ms: self.options.timeout.as_millis() as u64 }
            }
        }
    }
}

/// Whether a target, or whatever is there instead of one, has said something.
fn is_answer(error: &ConnectError) -> bool {
    use ConnectError::{Ended, NotTrusted, OtherTransport, Refused, RingRefused};
    matches!(error, Ended { .. } | NotTrusted { .. } | OtherTransport { .. } | Refused { .. } | RingRefused { .. })
}

/// The addresses with the families by turns, beginning with that of the first: a family that leads nowhere holds up one attempt.
fn alternating(addresses: Vec<Location>) -> Vec<Location> {
    let is_ipv6 = |address: &Location| address.socket_address().is_some_and(|address| address.is_ipv6());
    let first = addresses.first().is_some_and(is_ipv6);
    let (ours, theirs): (Vec<_>, Vec<_>) = addresses.into_iter().partition(|address| is_ipv6(address) == first);
    let (mut ours, mut theirs) = (ours.into_iter(), theirs.into_iter());
    let mut sorted = Vec::new();
    loop {
        let (one, other) = (ours.next(), theirs.next());
        if one.is_none() && other.is_none() {
            return sorted;
        }
        sorted.extend(one);
        sorted.extend(other);
    }
}

#[cfg(test)]
mod tests;
