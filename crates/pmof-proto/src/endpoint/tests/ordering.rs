//! Operations take effect in the order posted, also where bytes are sent from memory that later ones change.

use std::sync::Arc;

use pmof_mem::{Durability, MediumKind, ShadowMedium, shadow::Event as Step};

use super::support::*;
use crate::{
    Access, LocalSlice, Operation, OperationError, Outcome, Payload, RegionKey, Signal,
    limits::{REPLY_COPY_LIMIT_BYTES, REPLY_COPY_MAX_BYTES, WHOLE_WRITE_MAX_BYTES},
};

#[test]
fn a_read_does_not_see_writes_posted_after_it() {
    let long = REPLY_COPY_MAX_BYTES * 3;
    for len_bytes in [8, REPLY_COPY_MAX_BYTES, long] {
        for has_crc in [false, true] {
            let mut pair = Pair::new(settings(has_crc));
            let before = pattern(len_bytes as usize, 1);
            assert!(pair.outcome(write(0, &before)).is_ok());
            // Replies wait in the target while it takes in the later requests.
            pair.wires[1].window_bytes = 0;
            let into = local(&vec![0; len_bytes as usize]);
            pair.post(Operation::Read { key: KEY, offset: 0, into: into.clone() });
            pair.post(write(0, &pattern(len_bytes as usize, 77)));
            pair.post(Operation::AtomicWrite { key: KEY, offset: 0, value: 1 });
            pair.post(Operation::CompareAndSwap { key: KEY, offset: 0, expected: 1, new: 2 });
            pair.post(Operation::FetchAndAdd { key: KEY, offset: 0, addend: 1 });
            pair.run();
            assert_eq!(pair.peek(0, 8), 3_u64.to_le_bytes(), "the later operations took effect");
            pair.wires[1].window_bytes = 100;
            pair.run();
            assert_eq!(pair.sides[0].completions.len(), 5);
            assert!(pair.sides[0].completions.iter().all(|done| done.outcome.is_ok()));
            assert_eq!(bytes_of(&into), before, "{len_bytes} bytes");
        }
    }
}

#[test]
fn a_read_half_sent_is_kept_too() {
    let mut pair = Pair::new(settings(true));
    let before = pattern(12_000, 1);
    assert!(pair.outcome(write(0, &before)).is_ok());
    let into = local(&vec![0; 12_000]);
    pair.wires[1].window_bytes = 5000;
    pair.post(Operation::Read { key: KEY, offset: 0, into: into.clone() });
    pair.post(Operation::Read { key: KEY, offset: 12_000, into: local(&[1; 4000]) });
    // The target sends one piece, then takes the write in.
    assert!(pair.send_some(0) && pair.receive_some(1) && pair.send_some(1));
    pair.post(write(6000, &pattern(100, 200)));
    assert!(pair.send_some(0) && pair.receive_some(1));
    assert_eq!(pair.peek(6000, 100), pattern(100, 200));
    pair.run();
    assert_eq!(bytes_of(&into), before);
    assert_eq!(pair.sides[0].completions.len(), 3);
}

#[test]
fn a_write_waits_where_the_read_before_it_is_too_long_to_copy() {
    let len_bytes = REPLY_COPY_LIMIT_BYTES as u64 + 1;
    let medium = Plain::new(len_bytes + 2 * REGION_AT, MediumKind::Anonymous);
    let mut pair = Pair::with_medium(settings(false), medium);
    let before = pattern(len_bytes as usize, 1);
    assert!(pair.outcome(write(0, &before)).is_ok());
    pair.wires[1].window_bytes = 0;
    let into = local(&vec![0; len_bytes as usize]);
    pair.post(Operation::Read { key: KEY, offset: 0, into: into.clone() });
    pair.post(write(len_bytes - 1, &[0]));
    pair.run();
    assert_eq!(pair.peek(len_bytes - 1, 1), before[before.len() - 1..], "the write has not happened");
    assert!(!pair.sides[1].endpoint.wants_input());
    pair.wires[1].window_bytes = 1 << 20;
    pair.run();
    assert_eq!(bytes_of(&into), before);
    assert_eq!(pair.peek(len_bytes - 1, 1), [0]);
    assert_eq!(pair.sides[0].completions.len(), 2);
    assert!(pair.sides[1].endpoint.wants_input());
}

#[test]
fn writes_elsewhere_leave_a_waiting_read_where_it_is() {
    let mut pair = Pair::new(settings(false));
    pair.register(1, RegionKey([1; 16]), Plain::new(MEDIUM_BYTES, MediumKind::Anonymous), Access::all());
    pair.wires[1].window_bytes = 0;
    pair.post(Operation::Read { key: KEY, offset: 0, into: local(&[0; 8000]) });
    let payload = Payload::Inline(b"another region, then beside the range");
    pair.post(Operation::Write { key: RegionKey([1; 16]), offset: 0, payload, immediate: None });
    pair.post(write(8000, b"beside"));
    pair.run();
    assert!(!pair.sides[1].endpoint.output.is_plain(), "nothing was copied");
    pair.post(write(7999, b"x"));
    pair.run();
    assert!(pair.sides[1].endpoint.output.is_plain(), "now it was");
}

#[test]
fn input_pauses_at_too_many_unread_replies_and_goes_on() {
    let mut pair = Pair::new(crate::Settings { send_queue: 4, ..settings(false) });
    pair.wires[1].window_bytes = 0;
    // A peer that ignores the queue it agreed to.
    let mut frame = crate::frame::Frame::new(crate::frame::Opcode::FetchAndAdd, 0);
    (frame.key, frame.operand) = (KEY.0, 1);
    for sequence in 1..=50 {
        pair.inject_frame(0, &crate::frame::Frame { sequence, ..frame });
    }
    pair.run();
    assert!(!pair.sides[1].endpoint.wants_input());
    assert!(pair.sides[1].endpoint.input_place().is_none());
    let served = |pair: &Pair| u64::from_le_bytes(pair.peek(0, 8).try_into().unwrap());
    assert_eq!(served(&pair), 5, "the queue, and one more to know");
    for waiting in 6..=50 {
        pair.wires[1].window_bytes += 64;
        while pair.send_some(1) {}
        assert_eq!(served(&pair), waiting);
        pair.receive_some(1);
    }
    assert_eq!(served(&pair), 50);
}

#[test]
fn memory_of_a_posted_write_is_given_back_only_when_it_was_sent() {
    let source = local(&pattern(3000, 4));
    let posted = |pair: &mut Pair| {
        let payload = Payload::Local(source.clone());
        pair.post(Operation::Write { key: KEY, offset: 0, payload, immediate: None });
        pair.wires[0].window_bytes = 500;
    };
    let endings: [fn(&mut Pair); 2] = [
        |pair| pair.sides[0].endpoint.disconnect(),
        |pair| {
            // What the other side sent breaks the rules.
            pair.inject_frame(1, &crate::frame::Frame::new(crate::frame::Opcode::Hello, 0));
        },
    ];
    for ending in endings {
        let mut pair = Pair::new(settings(false));
        // The target takes nothing in, so that output stays.
        posted(&mut pair);
        while pair.send_some(0) {}
        ending(&mut pair);
        pair.receive_some(0);
        pair.collect(0);
        assert!(pair.sides[0].endpoint.ended().is_some());
        assert!(pair.sides[0].completions.is_empty(), "the bytes are still to be sent");
        pair.run();
        let done = pair.sides[0].completions.pop_front().expect("an outcome");
        assert!(matches!(done.outcome, Err(OperationError::ConnectionEnded(_))));
        assert_eq!(pair.peek(0, 3000), pattern(3000, 4));
        assert_eq!(pair.sides[0].endpoint.outstanding(), 0);
    }
    // A lost wire sends nothing any more.
    let mut pair = Pair::new(settings(false));
    posted(&mut pair);
    pair.sides[0].endpoint.disconnect();
    pair.sides[0].endpoint.wire_lost("cut".to_owned());
    pair.collect(0);
    assert_eq!(pair.sides[0].completions.len(), 1);
}

#[test]
fn a_flush_comes_after_the_writes_before_it() {
    let medium = Arc::new(ShadowMedium::new(MEDIUM_BYTES, MediumKind::FsDax).unwrap());
    let mut pair = Pair::with_medium(settings(false), Arc::clone(&medium) as _);
    for index in 0..3 {
        pair.post_as(0, write(index * 64, &[index as u8 + 1; 10]), Signal::OnError, 0);
    }
    pair.post_as(0, Operation::AtomicWrite { key: KEY, offset: 512, value: 9 }, Signal::OnError, 0);
    pair.post(flush(Durability::PowerFailure));
    pair.run();
    assert!(matches!(pair.sides[0].completions[0].outcome, Ok(Outcome::Flushed(_))));
    let trace = medium.trace();
    assert_eq!(trace.last(), Some(&Step::Fence));
    for at in [0, 64, 128, 512].map(|offset| REGION_AT + offset) {
        let stored = trace.iter().position(|step| matches!(step, Step::Store { offset, .. } if *offset == at)).unwrap();
        let written = trace.iter().position(|step| matches!(step, Step::WriteBack { offset, .. } if *offset == at));
        assert!(written.unwrap() > stored, "written back after the store, before the fence");
    }
    assert_eq!(trace.iter().filter(|step| **step == Step::Fence).count(), 1);
}

#[test]
fn weaker_flushes_do_not_pay_for_a_fence_of_the_medium() {
    let medium = Arc::new(ShadowMedium::new(MEDIUM_BYTES, MediumKind::PageCache).unwrap());
    let mut pair = Pair::with_medium(settings(false), Arc::clone(&medium) as _);
    assert!(pair.outcome(write(0, b"x")).is_ok());
    assert!(pair.outcome(flush(Durability::Visible)).is_ok());
    assert!(pair.outcome(flush(Durability::ProcessCrash)).is_ok());
    assert!(!medium.trace().contains(&Step::Fence));
    assert!(pair.outcome(flush(Durability::PowerFailure)).is_ok());
    assert!(medium.trace().contains(&Step::Fence));
}

#[test]
fn a_slice_of_a_slice_is_addressed_from_its_memory() {
    let memory = local(&pattern(100, 0));
    let mut pair = Pair::new(settings(true));
    let part = LocalSlice { offset: 40, len_bytes: 20, ..memory.clone() };
    assert!(pair.outcome(write(0, b"abcdefghijklmnopqrst")).is_ok());
    assert!(pair.outcome(Operation::Read { key: KEY, offset: 0, into: part }).is_ok());
    let mut expected = pattern(100, 0);
    expected[40..60].copy_from_slice(b"abcdefghijklmnopqrst");
    assert_eq!(bytes_of(&memory), expected);
}

/// Sends one write a byte at a time and says whether the region ever held a part of it.
fn shows_a_part(len_bytes: u64) -> bool {
    let mut pair = Pair::new(settings(false));
    pair.chunk = Chunk::Bytes(1);
    let (before, after) = (vec![0; len_bytes as usize], pattern(len_bytes as usize, 3));
    pair.post(write(0, &after));
    let mut parts = false;
    while pair.send_some(0) | pair.receive_some(1) {
        let now = pair.peek(0, len_bytes);
        parts |= now != before && now != after;
    }
    pair.run();
    assert_eq!(pair.peek(0, len_bytes), after);
    parts
}

#[test]
fn a_short_write_is_stored_at_once() {
    for len_bytes in [2, 8, 100, WHOLE_WRITE_MAX_BYTES] {
        assert!(!shows_a_part(len_bytes), "{len_bytes} bytes");
    }
    // The control: a longer one goes directly to its place as it comes.
    assert!(shows_a_part(WHOLE_WRITE_MAX_BYTES + 1));
}

#[test]
fn a_short_write_that_is_corrupt_changes_nothing() {
    let changed = |len_bytes: u64| {
        let mut pair = Pair::new(settings(true));
        let payload = pattern(len_bytes as usize, 3);
        let at = pair.wires[0].log.len() + crate::limits::HEADER_BYTES + 1;
        pair.wires[0].corrupt = Some((at, 1));
        assert!(pair.outcome(write(0, &payload)).is_err());
        pair.peek(0, len_bytes).iter().any(|byte| *byte != 0)
    };
    assert!(!changed(8));
    assert!(!changed(WHOLE_WRITE_MAX_BYTES));
    // The control: of a longer one the bytes lie there already when their checksum is known to be wrong.
    assert!(changed(WHOLE_WRITE_MAX_BYTES + 1));
}
