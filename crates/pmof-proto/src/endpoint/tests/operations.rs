//! Every operation, however its bytes come in.

use std::sync::Arc;

use pmof_mem::{Durability, Evidence, Mechanism, Medium, MediumKind, Memory, Promise};

use super::{scenario::frames_of, support::*};
use crate::{
    Access, Flushed, LocalSlice, Method, Operation, OperationKind, Outcome, Payload, PostError, RegionKey, Settings,
    Signal,
    frame::{Frame, Opcode},
    limits,
};

#[test]
fn every_operation_works_with_every_chunk_size() {
    for chunk in CHUNKS {
        for has_crc in [false, true] {
            let mut pair = Pair::new(settings(has_crc));
            pair.chunk = chunk;
            all_operations(&mut pair);
            assert_eq!(pair.sides[0].endpoint.outstanding(), 0);
        }
    }
}

fn all_operations(pair: &mut Pair) {
    let bytes = pattern(300, 1);
    let done = |len_bytes| Ok(Outcome::Done { len_bytes });
    assert_eq!(pair.outcome(write(8, &bytes)), done(300));
    assert_eq!(pair.peek(8, 300), bytes);

    let into = local(&[0; 300]);
    assert_eq!(pair.outcome(Operation::Read { key: KEY, offset: 8, into: into.clone() }), done(300));
    assert_eq!(bytes_of(&into), bytes);

    let atomic = Operation::AtomicWrite { key: KEY, offset: 16, value: 7 };
    assert_eq!(pair.outcome(atomic), done(8));
    let swap = |expected, new| Operation::CompareAndSwap { key: KEY, offset: 16, expected, new };
    assert_eq!(pair.outcome(swap(7, 9)), Ok(Outcome::Previous(7)));
    assert_eq!(pair.outcome(swap(7, 11)), Ok(Outcome::Previous(9)), "no match, no change");
    let add = |addend| Operation::FetchAndAdd { key: KEY, offset: 16, addend };
    assert_eq!(pair.outcome(add(u64::MAX)), Ok(Outcome::Previous(9)), "additions wrap");
    assert_eq!(pair.outcome(add(0)), Ok(Outcome::Previous(8)));
    assert_eq!(pair.peek(16, 8), 8_u64.to_le_bytes());

    let promise = Promise { mechanism: Mechanism::Store, evidence: Evidence::Probed };
    let flushed = Flushed { durability: Durability::Visible, method: Method::SendAfterWrite, promise };
    assert_eq!(pair.outcome(flush(Durability::Visible)), Ok(Outcome::Flushed(flushed)));

    let (ticket, into) = pair.post_receive(1, 400);
    assert_eq!(pair.outcome(send(&bytes)), done(300));
    let received = pair.sides[1].completions.pop_front().expect("the receive completed");
    assert_eq!((received.ticket, received.kind), (ticket, OperationKind::Receive));
    assert_eq!(received.outcome, Ok(Outcome::Received { len_bytes: 300, immediate: None }));
    assert_eq!(bytes_of(&into)[..300], bytes);

    pair.post_receive(1, 0);
    let payload = Payload::Inline(&bytes[..50]);
    let noticed = Operation::Write { key: KEY, offset: 1000, payload, immediate: Some(0xFFFF_FFFF) };
    assert_eq!(pair.outcome(noticed), done(50));
    let received = pair.sides[1].completions.pop_front().expect("the receive was consumed");
    assert_eq!(received.kind, OperationKind::ReceiveWriteImmediate);
    assert_eq!(received.outcome, Ok(Outcome::Received { len_bytes: 50, immediate: Some(0xFFFF_FFFF) }));
}

#[test]
fn nothing_outside_the_region_is_touched() {
    let medium = Plain::new(MEDIUM_BYTES, MediumKind::Anonymous);
    let mut pair = Pair::with_medium(settings(false), Arc::clone(&medium) as Arc<dyn Medium>);
    assert!(pair.outcome(write(0, &pattern(REGION_BYTES as usize, 1))).is_ok());
    let mut edges = [1; REGION_AT as usize];
    for offset in [0, REGION_AT + REGION_BYTES] {
        medium.read(offset, &mut edges).unwrap();
        assert_eq!(edges, [0; REGION_AT as usize]);
    }
}

#[test]
fn both_sides_operate_at_once() {
    for chunk in CHUNKS {
        let mut pair = Pair::new(settings(true));
        pair.chunk = chunk;
        pair.register(0, KEY, Plain::new(MEDIUM_BYTES, MediumKind::Anonymous), Access::all());
        let bytes = pattern(5000, 3);
        for index in 0..20 {
            let into = [local(&bytes), local(&bytes)];
            for (side, into) in into.into_iter().enumerate() {
                pair.post_as(side, write(0, &bytes), Signal::OnError, index);
                pair.post_as(side, Operation::Read { key: KEY, offset: 0, into }, Signal::Always, index);
            }
        }
        pair.run();
        for side in &pair.sides {
            assert_eq!(
                side.completions.iter().map(|done| done.context).collect::<Vec<_>>(),
                (0..20).collect::<Vec<_>>()
            );
            assert!(side.completions.iter().all(|done| done.outcome == Ok(Outcome::Done { len_bytes: 5000 })));
        }
    }
}

#[test]
fn payloads_come_from_wherever_they_lie() {
    let bytes = pattern(12_000, 5);
    for chunk in CHUNKS {
        let mut pair = Pair::new(settings(true));
        pair.chunk = chunk;
        let first = &bytes[..5000];
        let from = local(&bytes);
        let payload = Payload::Local(LocalSlice { offset: 5000, len_bytes: 7000, ..from });
        pair.post(write(0, first));
        pair.post(Operation::Write { key: KEY, offset: 5000, payload, immediate: None });
        pair.run();
        assert_eq!(pair.sides[0].completions.len(), 2);
        assert_eq!(pair.peek(0, 12_000), bytes);
    }
}

/// A caller that sends a borrowed payload itself, to a socket that takes `socket_bytes`.
fn write_borrowed(pair: &mut Pair, offset: u64, bytes: &[u8], socket_bytes: usize) {
    assert!(pair.sides[0].endpoint.may_borrow());
    pair.post(Operation::Write { key: KEY, offset, payload: Payload::Borrowed(bytes), immediate: None });
    let endpoint = &mut pair.sides[0].endpoint;
    let head = endpoint.output_view().expect("a header waits").head.to_vec();
    let all = [&head[..], bytes].concat();
    let count = socket_bytes.min(all.len());
    endpoint.output_sent(count.min(head.len()));
    endpoint.supply(&bytes[count.saturating_sub(head.len())..]);
    pair.inject(0, &all[..count]);
}

#[test]
fn borrowed_payloads_go_whole_whatever_the_socket_takes() {
    let bytes = pattern(3000, 9);
    for socket_bytes in [0, 1, 63, 64, 65, 1000, 3063, 3064] {
        let mut pair = Pair::new(settings(true));
        write_borrowed(&mut pair, 100, &bytes, socket_bytes);
        pair.run();
        assert_eq!(pair.sides[0].completions.len(), 1, "socket takes {socket_bytes}");
        assert_eq!(pair.peek(100, 3000), bytes);
    }
}

#[test]
fn borrowing_is_refused_where_other_bytes_would_come_first() {
    let mut pair = Pair::new(Settings { inbox_messages: 1, ..settings(false) });
    assert!(pair.sides[0].endpoint.may_borrow());
    let payload = Payload::Local(local(b"12345678"));
    pair.post(Operation::Write { key: KEY, offset: 0, payload, immediate: None });
    assert!(!pair.sides[0].endpoint.may_borrow(), "a slice waits");
    pair.run();
    assert!(pair.sides[0].endpoint.may_borrow());
    pair.post(send(b"fills the inbox"));
    assert!(!pair.sides[0].endpoint.may_borrow(), "a message would wait for room");
}

#[test]
#[should_panic(expected = "may_borrow")]
fn borrowing_against_the_rule_is_a_bug_of_the_caller() {
    let mut pair = Pair::new(Settings { inbox_messages: 1, ..settings(false) });
    pair.post(send(b"fills the inbox"));
    pair.post(Operation::Send { payload: Payload::Borrowed(b"amid others"), immediate: None });
}

#[test]
fn credit_does_not_land_inside_a_borrowed_payload() {
    let mut pair = Pair::new(settings(false));
    pair.post_as(1, send(b"waits for a receive"), Signal::Always, 0);
    pair.run();
    let bytes = pattern(2000, 2);
    pair.post(Operation::Write { key: KEY, offset: 0, payload: Payload::Borrowed(&bytes), immediate: None });
    pair.post_receive(0, 100);
    assert_eq!(finish_borrowed(&mut pair, &bytes), limits::HEADER_BYTES, "nothing but the header came first");
    pair.run();
    assert_eq!(pair.peek(0, 2000), bytes);
    assert_eq!(pair.sides[0].completions.len(), 2, "the receive and the write");
    assert_eq!(pair.sides[0].endpoint.messages.told, 1, "credit followed");
}

#[test]
fn replies_do_not_land_inside_a_borrowed_payload() {
    let mut pair = Pair::new(Settings { send_queue: 4, ..settings(false) });
    pair.register(0, KEY, Plain::new(MEDIUM_BYTES, MediumKind::Anonymous), Access::all());
    // Input of side 0 pauses, since its replies are not read.
    pair.wires[0].window_bytes = 0;
    for sequence in 1..=10 {
        pair.inject_frame(1, &Frame { key: KEY.0, ..Frame::new(Opcode::FetchAndAdd, sequence) });
    }
    pair.run();
    assert!(!pair.sides[0].endpoint.wants_input());
    pair.wires[0].window_bytes = usize::MAX;
    let bytes = pattern(2000, 2);
    pair.post(Operation::Write { key: KEY, offset: 0, payload: Payload::Borrowed(&bytes), immediate: None });
    assert_eq!(finish_borrowed(&mut pair, &bytes), (5 + 1) * limits::HEADER_BYTES, "five replies and the header");
    assert!(pair.sides[0].endpoint.wants_input(), "the rest is taken in now");
    while pair.send_some(0) {}
    let opcodes: Vec<_> = frames_of(&pair.wires[0].log).iter().map(|(_, frame)| frame.opcode).collect();
    let replies = [Opcode::Reply; 5];
    assert_eq!(opcodes[1..], [&replies[..], &[Opcode::Write], &replies[..]].concat());
}

/// Sends what waits, and half of the borrowed payload; returns how many bytes came before it.
fn finish_borrowed(pair: &mut Pair, bytes: &[u8]) -> usize {
    let endpoint = &mut pair.sides[0].endpoint;
    let head = endpoint.output_view().expect("a header waits").head.to_vec();
    endpoint.output_sent(head.len());
    assert!(endpoint.output_view().is_none(), "nothing comes between");
    let (sent, rest) = bytes.split_at(bytes.len() / 2);
    endpoint.supply(rest);
    pair.inject(0, &[&head[..], sent].concat());
    head.len()
}

#[test]
fn empty_ranges_are_fine() {
    let mut pair = Pair::new(settings(true));
    let empty = local(&[]);
    assert_eq!(pair.outcome(write(REGION_BYTES, b"")), Ok(Outcome::Done { len_bytes: 0 }));
    let read = Operation::Read { key: KEY, offset: REGION_BYTES, into: empty.clone() };
    assert_eq!(pair.outcome(read), Ok(Outcome::Done { len_bytes: 0 }));
    pair.sides[1].endpoint.post_receive(empty, 0).unwrap();
    assert_eq!(pair.outcome(send(b"")), Ok(Outcome::Done { len_bytes: 0 }));
    assert_eq!(pair.sides[1].completions.len(), 1);
}

#[test]
fn unsignalled_operations_complete_by_implication_and_give_their_slots_back() {
    let mut pair = Pair::new(Settings { send_queue: 8, ..settings(false) });
    for index in 0..1000 {
        let value = index;
        while !pair.sides[0].endpoint.has_room() {
            let before = pair.sides[0].endpoint.outstanding();
            pair.run();
            assert!(pair.sides[0].endpoint.outstanding() < before, "slots come back without a signalled operation");
        }
        pair.post_as(0, Operation::AtomicWrite { key: KEY, offset: 8, value }, Signal::OnError, index);
    }
    assert!(pair.sides[0].completions.is_empty());
    let add = Operation::FetchAndAdd { key: KEY, offset: 8, addend: 1 };
    pair.run();
    pair.post_as(0, add, Signal::OnError, 0);
    assert_eq!(pair.outcome(flush(Durability::Visible)).map(|_| ()), Ok(()));
    assert_eq!(pair.sides[0].endpoint.outstanding(), 0);
    assert_eq!(pair.peek(8, 8), 1000_u64.to_le_bytes());
}

#[test]
fn a_full_queue_says_so_and_nothing_is_lost() {
    let mut pair = Pair::new(Settings { send_queue: 8, ..settings(false) });
    for index in 0..8 {
        assert!(pair.sides[0].endpoint.has_room());
        pair.post_as(0, write(index * 8, b"12345678"), Signal::Always, index);
    }
    assert!(!pair.sides[0].endpoint.has_room());
    let waiting = pair.sides[0].endpoint.output_waiting_bytes();
    let refused = pair.sides[0].endpoint.post(write(0, b"x"), Signal::Always, 99);
    assert_eq!(refused, Err(PostError::QueueFull { limit: 8 }));
    assert_eq!(pair.sides[0].endpoint.output_waiting_bytes(), waiting, "nothing was queued");
    pair.run();
    assert_eq!(pair.sides[0].completions.len(), 8);
    pair.sides[0].completions.clear();
    assert!(pair.outcome(write(0, b"x")).is_ok());
}

#[test]
fn payloads_that_wait_are_bounded_in_bytes() {
    let mut pair = Pair::new(settings(false));
    let medium = Plain::new((4 << 20) + 2 * REGION_AT, MediumKind::Anonymous);
    pair.register(1, KEY, medium, Access::all());
    pair.wires[0].window_bytes = 0;
    let bytes = vec![7; 4 << 20];
    let mut posted = 0;
    while pair.sides[0].endpoint.post(write(0, &bytes), Signal::Always, 0).is_ok() {
        posted += 1;
    }
    assert_eq!(posted, limits::OUTPUT_LIMIT_BYTES / bytes.len(), "the headers make the last one the last");
    assert!(!pair.sides[0].endpoint.has_room());
    assert!(pair.sides[0].endpoint.post_receive(local(b""), 0).is_ok(), "receives take no room");
    pair.wires[0].window_bytes = 1 << 20;
    pair.run();
    assert_eq!(pair.sides[0].completions.len(), posted);
    assert!(pair.sides[0].endpoint.output.buffered_bytes() == 0 && pair.sides[0].endpoint.has_room());
}

#[test]
fn what_cannot_be_posted_is_reported_at_once() {
    let small = Settings { payload_max_bytes: 100, message_max_bytes: 50, ..settings(false) };
    let mut pair = Pair::new(small);
    let long = [0; 101];
    let endpoint = &mut pair.sides[0].endpoint;
    let too_long = |len_bytes, limit_bytes| Err(PostError::TooLong { len_bytes, limit_bytes });
    assert_eq!(endpoint.post(write(0, &long), Signal::Always, 0), too_long(101, 100));
    assert_eq!(endpoint.post(send(&long[..51]), Signal::Always, 0), too_long(51, 50));
    let read = |into| Operation::Read { key: KEY, offset: 0, into };
    assert_eq!(endpoint.post(read(local(&long)), Signal::Always, 0), too_long(101, 100));

    let outside = LocalSlice { offset: u64::MAX, len_bytes: 8, ..local(&long) };
    let out_of_bounds = Err(PostError::OutOfBounds { offset: u64::MAX, len_bytes: 8, size_bytes: 101 });
    assert_eq!(endpoint.post(read(outside.clone()), Signal::Always, 0), out_of_bounds);
    let payload = Payload::Local(outside.clone());
    assert_eq!(endpoint.post(Operation::Send { payload, immediate: None }, Signal::Always, 0), out_of_bounds);
    assert_eq!(endpoint.post_receive(outside, 0), out_of_bounds);
    assert_eq!(endpoint.output_waiting_bytes(), 0, "nothing was queued");
    assert!(pair.outcome(write(0, b"and the connection is as before")).is_ok());
}

#[test]
fn nothing_is_posted_before_or_after_the_connection() {
    let mut pair = Pair::apart([settings(false); 2], b"");
    let post = |pair: &mut Pair| pair.sides[0].endpoint.post(write(0, b"x"), Signal::Always, 0);
    assert!(matches!(post(&mut pair), Err(PostError::NotConnected(_))));
    pair.connect();
    pair.sides[0].endpoint.disconnect();
    let closed = PostError::NotConnected(crate::ConnectionError::ClosedHere);
    assert_eq!(post(&mut pair), Err(closed.clone()));
    assert_eq!(pair.sides[0].endpoint.post_receive(local(b""), 0), Err(closed));
}

#[test]
fn a_flush_to_a_real_file_carries_the_promise_of_its_medium() {
    let directory = tempfile::tempdir().unwrap();
    let memory = Arc::new(Memory::create(&directory.path().join("memory"), MEDIUM_BYTES, None).unwrap());
    let level = Durability::ALL.into_iter().rev().find(|level| memory.promise(*level).is_some()).unwrap();
    let promise = memory.promise(level).unwrap();
    let mut pair = Pair::with_medium(settings(true), memory);
    assert!(pair.outcome(write(0, &pattern(5000, 1))).is_ok());
    assert_eq!(
        pair.outcome(flush(level)),
        Ok(Outcome::Flushed(Flushed { durability: level, method: Method::SendAfterWrite, promise }))
    );
}

#[test]
fn anonymous_memory_serves_too() {
    let memory = Arc::new(Memory::anonymous(MEDIUM_BYTES).unwrap());
    let mut pair = Pair::with_medium(settings(true), memory);
    pair.chunk = Chunk::Random(5);
    all_operations(&mut pair);
}

#[test]
fn an_idle_connection_does_not_keep_a_deregistered_medium() {
    let medium: Arc<dyn Medium> = Plain::new(MEDIUM_BYTES, MediumKind::Anonymous);
    let alive = Arc::downgrade(&medium);
    let mut pair = Pair::with_medium(settings(false), medium);
    assert!(pair.outcome(write(0, b"x")).is_ok());
    assert!(alive.upgrade().is_some());
    pair.tables[1].remove(KEY);
    assert!(alive.upgrade().is_none());
}

#[test]
fn a_key_that_is_registered_anew_names_the_new_region_only() {
    let mut pair = Pair::new(settings(false));
    assert!(pair.outcome(write(0, b"old")).is_ok());
    let old = pair.tables[1].find(KEY).unwrap();
    pair.register(1, KEY, Plain::new(MEDIUM_BYTES, MediumKind::Anonymous), Access::all());
    assert!(pair.outcome(write(0, b"new")).is_ok());
    assert_eq!(pair.peek(0, 3), b"new");
    let mut bytes = [0; 3];
    old.memory().read(REGION_AT, &mut bytes).unwrap();
    assert_eq!(&bytes, b"old");
    assert_ne!(format!("{:?}", RegionKey([7; 16])), format!("{:?}", [7; 16]), "keys are not logged");
}
