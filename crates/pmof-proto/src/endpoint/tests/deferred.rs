//! Flushes that are handed out: what waits behind them, how they are answered, and what ends meanwhile.

use std::{sync::Arc, time::Duration};

use pmof_mem::{
    Durability, Medium, MediumKind,
    faults::{FailNth, FaultPoint, HoldFence},
};

use super::support::*;
use crate::{ConnectionError, DeferredFlush, Operation, OperationError, OperationKind, Outcome, Refusal, limits};

const DEVICE: u64 = 7;

/// A connection to a medium whose fences wait for a device; they are kept under way.
fn pair() -> Pair {
    pair_over(Plain::new(MEDIUM_BYTES, MediumKind::PageCache))
}

fn pair_over(medium: impl Medium + 'static) -> Pair {
    let held = HoldFence::new(medium, DEVICE);
    held.let_pass(u64::MAX);
    let mut pair = Pair::with_medium(settings(true), Arc::new(held));
    pair.sides[1].endpoint.defer_flushes(true);
    pair.keeps_flushes = true;
    pair
}

fn take(pair: &mut Pair) -> DeferredFlush {
    pair.sides[1].endpoint.take_flush().expect("a flush was handed out")
}

/// Its fence returns.
fn finish(pair: &mut Pair, flush: &DeferredFlush) {
    let outcome = flush.memory.fence();
    pair.sides[1].endpoint.flush_done(flush.ticket, outcome.as_ref().copied());
}

fn durable() -> Operation<'static> {
    flush(Durability::PowerFailure)
}

#[test]
fn what_is_behind_a_flush_waits_and_is_answered_after_it() {
    let mut pair = pair();
    pair.post(write(0, b"before"));
    pair.post(durable());
    pair.post(write(64, b"behind"));
    let read = local(&[0; 6]);
    pair.post(Operation::Read { key: KEY, offset: 64, into: read.clone() });
    pair.run();
    assert!(!pair.sides[1].endpoint.has_no_traffic(), "whoever drives is to look");
    let flush = take(&mut pair);
    assert_eq!(flush.device, DEVICE);
    assert_eq!(pair.sides[0].completions.len(), 1, "the write before it alone: {:?}", pair.sides[0].completions);
    assert_eq!(pair.peek(64, 6), [0; 6], "no later write may reach the device first");
    assert!(pair.sides[1].endpoint.take_flush().is_none(), "it is handed out once");

    finish(&mut pair, &flush);
    assert!(pair.sides[1].endpoint.has_more());
    assert_eq!(pair.peek(64, 6), [0; 6], "only whoever drives takes requests in");
    assert!(pair.sides[1].endpoint.resume() && !pair.sides[1].endpoint.has_more());
    pair.run();
    assert_eq!(pair.peek(64, 6), b"behind");
    assert_eq!(bytes_of(&read), b"behind");
    let kinds: Vec<_> = pair.sides[0].completions.iter().map(|done| (done.kind, done.outcome.is_ok())).collect();
    let expected = [OperationKind::Write, OperationKind::Flush, OperationKind::Write, OperationKind::Read];
    assert_eq!(kinds, expected.map(|kind| (kind, true)));
}

#[test]
fn nothing_behind_it_needs_no_turn_of_the_driver() {
    let mut pair = pair();
    pair.post(durable());
    pair.run();
    let flush = take(&mut pair);
    finish(&mut pair, &flush);
    assert!(!pair.sides[1].endpoint.has_more());
    pair.run();
    assert!(matches!(pair.sides[0].completions[0].outcome, Ok(Outcome::Flushed(_))));
    // And what comes next is taken in as ever.
    pair.sides[1].endpoint.resume();
    pair.keeps_flushes = false;
    pair.sides[0].completions.clear();
    assert!(matches!(pair.outcome(durable()), Ok(Outcome::Flushed(_))));
}

#[test]
fn requests_arrive_behind_it_in_any_pieces() {
    for chunk in CHUNKS {
        let mut pair = pair();
        (pair.chunk, pair.keeps_flushes) = (chunk, false);
        for round in 0..20_u64 {
            pair.post(write(round * 300, &pattern(300, round as u8)));
            pair.post(durable());
        }
        pair.run();
        let tickets: Vec<_> =
            pair.sides[0].completions.iter().map(|done| (done.ticket, done.outcome.is_ok())).collect();
        assert_eq!(tickets.len(), 40);
        assert!(tickets.is_sorted() && tickets.iter().all(|(_, is_ok)| *is_ok), "{tickets:?}");
        for round in 0..20_u64 {
            assert_eq!(pair.peek(round * 300, 300), pattern(300, round as u8));
        }
    }
}

#[test]
fn more_than_can_be_staged_waits_in_the_wire() {
    let mut pair = pair();
    pair.post(durable());
    let bytes = pattern(1000, 3);
    let count = 3 * limits::STAGING_BYTES as u64 / 1000;
    for index in 0..count {
        pair.post(write(index % 16 * 1000, &bytes));
    }
    pair.run();
    let flush = take(&mut pair);
    let endpoint = &mut pair.sides[1].endpoint;
    assert!(!endpoint.wants_input() && endpoint.input_place().is_none(), "there is no room");
    finish(&mut pair, &flush);
    assert!(!pair.sides[1].endpoint.wants_input(), "nor is there before it was resumed");
    pair.sides[1].endpoint.resume();
    pair.run();
    assert_eq!(pair.sides[0].completions.len() as u64, count + 1);
    assert_eq!(pair.peek(15_000, 1000), bytes);
}

#[test]
fn a_fence_that_fails_refuses_the_flush_and_all_behind_it() {
    let medium = Plain::new(MEDIUM_BYTES, MediumKind::PageCache);
    let mut pair = pair_over(FailNth::new(medium, FaultPoint::Fence, 1));
    pair.post(durable());
    pair.post(write(0, b"behind"));
    pair.run();
    let flush = take(&mut pair);
    finish(&mut pair, &flush);
    pair.sides[1].endpoint.resume();
    pair.run();
    assert_eq!(pair.peek(0, 6), [0; 6]);
    let outcomes: Vec<_> = pair.sides[0].completions.iter().map(|done| &done.outcome).collect();
    assert!(
        matches!(outcomes[0], Err(OperationError::Refused { refusal: Refusal::MediumFailed, .. })),
        "the flush learns why: {outcomes:?}"
    );
    assert!(outcomes.len() == 2 && outcomes[1].is_err(), "{outcomes:?}");
    assert_eq!(pair.sides[1].endpoint.ended(), Some(&ConnectionError::RefusedHere(Refusal::MediumFailed)));
}

#[test]
fn a_connection_that_ends_meanwhile_gets_no_answer() {
    for is_orderly in [true, false] {
        let mut pair = pair();
        pair.post(durable());
        pair.run();
        let flush = take(&mut pair);
        if is_orderly {
            pair.sides[1].endpoint.disconnect();
        } else {
            pair.sides[1].endpoint.wire_lost("it broke".to_owned());
        }
        let waiting = pair.sides[1].endpoint.output_waiting_bytes();
        finish(&mut pair, &flush);
        let endpoint = &mut pair.sides[1].endpoint;
        assert_eq!(endpoint.output_waiting_bytes(), waiting, "nothing is said any more");
        assert!(!endpoint.resume() && endpoint.take_flush().is_none());
        pair.run();
        let done = pair.sides[0].completions.pop_front().expect("an outcome");
        assert!(done.outcome.is_err(), "{done:?}");
    }
}

#[test]
fn one_that_was_not_begun_goes_with_its_connection() {
    let mut pair = pair();
    pair.post(durable());
    pair.run();
    pair.sides[1].endpoint.wire_lost("it broke".to_owned());
    assert!(pair.sides[1].endpoint.take_flush().is_none());
}

#[test]
fn a_region_that_goes_meanwhile_has_its_flush_answered_and_nothing_more() {
    let mut pair = pair();
    pair.post(durable());
    pair.post(write(0, b"behind"));
    pair.run();
    let flush = take(&mut pair);
    pair.tables[1].remove(KEY);
    finish(&mut pair, &flush);
    pair.sides[1].endpoint.resume();
    pair.run();
    let outcomes: Vec<_> = pair.sides[0].completions.iter().map(|done| &done.outcome).collect();
    assert!(
        matches!(outcomes[0], Ok(Outcome::Flushed(_))),
        "it was asked for while the region was there: {outcomes:?}"
    );
    assert!(
        matches!(outcomes[1], Err(OperationError::Refused { refusal: Refusal::UnknownRegion, .. })),
        "{outcomes:?}"
    );
}

#[test]
fn a_slow_device_is_no_silence_of_the_other_side() {
    let limit = Duration::from_secs(1);
    let mut pair = pair();
    pair.post(durable());
    pair.run();
    let flush = take(&mut pair);
    // The next request came in part only: its rest is not due before anybody looks at it.
    pair.post(write(0, &pattern(200, 1)));
    pair.chunk = Chunk::Bytes(100);
    pair.send_some(0);
    pair.receive_some(1);
    for second in 0..100 {
        pair.sides[1].endpoint.tick(Duration::from_secs(second), limit);
    }
    assert_eq!(pair.sides[1].endpoint.ended(), None);
    finish(&mut pair, &flush);
    pair.sides[1].endpoint.resume();
    pair.sides[1].endpoint.tick(Duration::from_secs(100), limit);
    pair.sides[1].endpoint.tick(Duration::from_secs(102), limit);
    assert!(pair.sides[1].endpoint.ended().is_some(), "from then on it is");
}

#[test]
fn what_waits_for_no_device_is_carried_out_at_once() {
    let mut pair = pair();
    let outcome = pair.outcome(flush(Durability::ProcessCrash));
    assert!(matches!(outcome, Ok(Outcome::Flushed(_))), "{outcome:?}");
    let mut pair = Pair::with_medium(settings(true), Plain::new(MEDIUM_BYTES, MediumKind::FsDax));
    pair.sides[1].endpoint.defer_flushes(true);
    pair.keeps_flushes = true;
    assert!(matches!(pair.outcome(durable()), Ok(Outcome::Flushed(_))));
    // Nor is anything handed out to whoever did not ask for it.
    let held = HoldFence::new(Plain::new(MEDIUM_BYTES, MediumKind::PageCache), DEVICE);
    held.let_pass(1);
    let mut pair = Pair::with_medium(settings(true), Arc::new(held));
    pair.keeps_flushes = true;
    assert!(matches!(pair.outcome(durable()), Ok(Outcome::Flushed(_))));
}
