//! Waits are bounded, and only waits.

use std::time::Duration;

use super::support::*;
use crate::{ConnectionError, Operation, Outcome, Payload, Settings, Signal};

const LIMIT: Duration = Duration::from_secs(10);

impl Pair {
    /// Tells `side` the time after `seconds` more.
    pub(super) fn later(&mut self, side: usize, seconds: u64) -> Option<Duration> {
        self.now += Duration::from_secs(seconds);
        self.sides[side].endpoint.tick(self.now, LIMIT)
    }

    fn timed_out(&self, side: usize) -> Option<&'static str> {
        match self.sides[side].endpoint.ended() {
            Some(ConnectionError::TimedOut { limit_ms: 10_000, awaited }) => Some(awaited),
            None => None,
            other => panic!("a time-out or nothing expected, found {other:?}"),
        }
    }
}

#[test]
fn a_handshake_that_does_not_come_times_out() {
    for side in 0..2 {
        let mut pair = Pair::apart([settings(false); 2], b"");
        assert_eq!(pair.later(side, 0), Some(LIMIT));
        assert_eq!(pair.later(side, 9), Some(LIMIT));
        assert_eq!(pair.timed_out(side), None);
        assert_eq!(pair.later(side, 1), None);
        assert!(pair.timed_out(side).is_some_and(|awaited| awaited.contains("connection request")));
        assert!(pair.sides[side].endpoint.is_finished());
    }
}

#[test]
fn a_handshake_cannot_be_kept_open_byte_by_byte() {
    for side in 0..2 {
        let mut pair = Pair::apart([settings(false); 2], b"private");
        if side == 0 {
            pair.run();
            pair.sides[1].endpoint.accept(b"");
        }
        pair.chunk = Chunk::Bytes(1);
        pair.later(side, 0);
        let mut seconds = 0;
        while pair.timed_out(side).is_none() {
            assert!(seconds < 10 && pair.send_some(1 - side) && pair.receive_some(side));
            pair.later(side, 1);
            seconds += 1;
        }
        assert_eq!(seconds, 10);
    }
}

#[test]
fn the_application_may_take_its_time_to_decide() {
    let mut pair = Pair::apart([settings(false); 2], b"");
    pair.run();
    assert_eq!(pair.later(1, 0), None);
    assert_eq!(pair.later(1, 1000), None);
    pair.connect();
    assert_eq!(pair.later(1, 1000), None);
    assert!(pair.sides[1].endpoint.is_established());
}

#[test]
fn an_idle_connection_lives() {
    let mut pair = Pair::new(settings(false));
    // Unsignalled operations whose success is never told owe nothing.
    pair.post_as(0, write(0, b"x"), Signal::OnError, 0);
    // Neither does what waits for room at the other side, nor a receive.
    pair.post_receive(0, 10);
    pair.run();
    assert_eq!(pair.sides[0].endpoint.outstanding(), 1);
    for side in [0, 1, 0, 1] {
        assert_eq!(pair.later(side, 1000), None);
    }
    assert!(pair.outcome(write(0, b"y")).is_ok());

    let mut pair = Pair::new(Settings { inbox_messages: 1, ..settings(false) });
    pair.post(send(b"in the inbox"));
    pair.post(send(b"waits for room"));
    pair.run();
    assert_eq!(pair.later(0, 0), None);
    assert_eq!(pair.later(0, 1000), None);
    for _ in 0..2 {
        pair.post_receive(1, 100);
    }
    pair.run();
    assert_eq!(pair.sides[0].completions.len(), 2);
}

#[test]
fn a_reply_that_is_due_times_out_from_the_post_on() {
    let mut pair = Pair::new(settings(false));
    pair.later(0, 1000);
    pair.post_as(0, write(0, b"unsignalled, and long ago"), Signal::OnError, 0);
    assert!(pair.send_some(0));
    pair.later(0, 1000);
    pair.later(0, 1000);
    pair.post(write(0, b"x"));
    assert!(pair.send_some(0));
    assert_eq!(pair.later(0, 5), Some(pair.now + LIMIT), "the wait began with the post");
    assert!(pair.later(0, 9).is_some());
    assert_eq!(pair.later(0, 1), None);
    assert_eq!(pair.timed_out(0), Some("the reply to a posted operation"));
    pair.collect(0);
    assert_eq!(pair.sides[0].completions.len(), 2, "each has its outcome");
}

#[test]
fn a_slow_but_moving_peer_is_alive() {
    let mut pair = Pair::new(settings(false));
    let bytes = pattern(10_000, 1);
    let payload = Payload::Local(local(&bytes));
    pair.post(Operation::Write { key: KEY, offset: 0, payload, immediate: None });
    pair.chunk = Chunk::Bytes(100);
    // Nothing comes back for a long time, but bytes go out.
    while pair.send_some(0) {
        assert!(pair.later(0, 9).is_some());
        pair.receive_some(1);
        assert!(pair.later(1, 0).is_some() || pair.sides[1].endpoint.output_view().is_some());
    }
    pair.run();
    assert_eq!(pair.sides[0].completions[0].outcome, Ok(Outcome::Done { len_bytes: 10_000 }));
}

#[test]
fn half_a_frame_and_a_blocked_socket_time_out() {
    let mut pair = Pair::new(settings(false));
    pair.post(write(0, &[1; 1000]));
    pair.chunk = Chunk::Bytes(500);
    assert!(pair.send_some(0) && pair.receive_some(1));
    pair.later(1, 0);
    pair.later(1, 10);
    assert_eq!(pair.timed_out(1), Some("the rest of a frame"));

    let mut pair = Pair::new(settings(false));
    pair.wires[1].window_bytes = 0;
    pair.post(write(0, b"x"));
    pair.run();
    pair.later(1, 0);
    pair.later(1, 10);
    assert_eq!(pair.timed_out(1), Some("room to send"));
}

#[test]
fn last_words_have_a_bound_too() {
    let mut pair = Pair::new(settings(false));
    pair.wires[0].window_bytes = 0;
    pair.later(0, 1000);
    let payload = Payload::Local(local(b"never sent"));
    pair.post(Operation::Write { key: KEY, offset: 0, payload, immediate: None });
    pair.sides[0].endpoint.disconnect();
    assert_eq!(pair.later(0, 5), Some(pair.now + LIMIT));
    assert!(!pair.sides[0].endpoint.is_finished());
    assert_eq!(pair.later(0, 10), None);
    assert!(pair.sides[0].endpoint.is_finished());
    pair.collect(0);
    assert_eq!(pair.sides[0].completions.len(), 1);
    assert_eq!(pair.sides[0].endpoint.ended(), Some(&ConnectionError::ClosedHere), "the first reason stays");
}

#[test]
fn no_limit_is_no_overflow() {
    let mut pair = Pair::apart([settings(false); 2], b"");
    assert_eq!(pair.sides[0].endpoint.tick(Duration::from_secs(1), Duration::MAX), Some(Duration::MAX));
    assert_eq!(pair.sides[0].endpoint.tick(Duration::from_secs(2), Duration::MAX), Some(Duration::MAX));
}
