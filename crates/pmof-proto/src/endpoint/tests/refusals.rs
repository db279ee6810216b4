//! Each refusal, and that nothing after one is done.

use std::sync::Arc;

use pmof_mem::{
    Durability, Evidence, Mechanism, Medium, MediumKind, Promise,
    faults::{FailNth, FaultPoint},
};

use super::support::*;
use crate::{
    Access, ConnectionError, Flushed, Method, Operation, OperationError, Outcome, Payload, Refusal, RegionKey,
    Settings, Signal,
    frame::{FLAG_REPLY, Frame, Opcode},
};

/// Posts a write that succeeds, the operation, and a flush; the operation must be refused, the flush know nothing.
fn expect_refusal(pair: &mut Pair, operation: Operation<'_>, expected: Refusal) -> OperationError {
    pair.post_as(0, write(0, b"good"), Signal::Always, 1);
    pair.post_as(0, operation, Signal::OnError, 2);
    pair.post_as(0, flush(Durability::Visible), Signal::Always, 3);
    pair.run();
    let outcomes: Vec<_> = pair.sides[0].completions.drain(..).map(|done| (done.context, done.outcome)).collect();
    let [(1, Ok(_)), (2, Err(error)), (3, Err(OperationError::ConnectionEnded(why)))] = &outcomes[..] else {
        panic!("{expected:?} expected, found {outcomes:?}");
    };
    assert!(matches!(error, OperationError::Refused { refusal, .. } if *refusal == expected), "{error:?}");
    assert_eq!(*why, ConnectionError::Refused { refusal: expected, private_data: Vec::new() });
    assert_eq!(pair.sides[1].endpoint.ended(), Some(&ConnectionError::RefusedHere(expected)));
    error.clone()
}

fn refused(medium: Arc<dyn Medium>, access: Access, operation: Operation<'_>, expected: Refusal) -> OperationError {
    let mut pair = Pair::apart([settings(false); 2], b"");
    pair.register(1, KEY, medium, access | Access::WRITE | Access::FLUSH_VISIBLE);
    pair.connect();
    expect_refusal(&mut pair, operation, expected)
}

fn anonymous() -> Arc<dyn Medium> {
    Plain::new(MEDIUM_BYTES, MediumKind::Anonymous)
}

#[test]
fn ranges_outside_the_region_are_refused_with_what_was_asked_and_the_limit() {
    let read = |offset, len: usize| Operation::Read { key: KEY, offset, into: local(&vec![0; len]) };
    let level = Durability::Visible;
    let ranges =
        [(REGION_BYTES, 1), (REGION_BYTES - 7, 8), (u64::MAX, 1), (u64::MAX - 3, 8), (u64::MAX - REGION_AT, 8)];
    for (offset, len) in ranges {
        let bytes = vec![0; len];
        let len_bytes = len as u64;
        for operation in [
            write(offset, &bytes),
            read(offset, len),
            Operation::Flush { key: KEY, offset, len_bytes, level, evidence: Evidence::Declared },
            Operation::WriteBack { key: KEY, offset, len_bytes },
        ] {
            let error = refused(anonymous(), Access::READ, operation, Refusal::OutOfBounds);
            let refusal = Refusal::OutOfBounds;
            assert_eq!(error, OperationError::Refused { refusal, offset, len_bytes, limit: REGION_BYTES });
        }
    }
    let level = Durability::Visible;
    let flush = Operation::Flush { key: KEY, offset: 1, len_bytes: u64::MAX, level, evidence: Evidence::Declared };
    refused(anonymous(), Access::all(), flush, Refusal::OutOfBounds);
}

#[test]
fn atomic_operations_are_bound_and_aligned() {
    let atomics = |offset| {
        [
            Operation::AtomicWrite { key: KEY, offset, value: 1 },
            Operation::CompareAndSwap { key: KEY, offset, expected: 0, new: 1 },
            Operation::FetchAndAdd { key: KEY, offset, addend: 1 },
        ]
    };
    for offset in [REGION_BYTES, REGION_BYTES - 4, u64::MAX, u64::MAX - 7] {
        for operation in atomics(offset) {
            let error = refused(anonymous(), Access::ATOMIC, operation, Refusal::OutOfBounds);
            let refusal = Refusal::OutOfBounds;
            assert_eq!(error, OperationError::Refused { refusal, offset, len_bytes: 8, limit: REGION_BYTES });
        }
    }
    for offset in [1, 4, 7, REGION_BYTES - 9] {
        for operation in atomics(offset) {
            refused(anonymous(), Access::ATOMIC, operation, Refusal::Misaligned);
        }
    }
}

#[test]
fn each_right_is_needed() {
    let flush = |level| Operation::Flush { key: KEY, offset: 0, len_bytes: 8, level, evidence: Evidence::Declared };
    let operations = [
        (Operation::Read { key: KEY, offset: 0, into: local(b"x") }, Access::READ),
        (Operation::CompareAndSwap { key: KEY, offset: 0, expected: 0, new: 1 }, Access::ATOMIC),
        (Operation::FetchAndAdd { key: KEY, offset: 0, addend: 1 }, Access::ATOMIC),
        (flush(Durability::ProcessCrash), Access::FLUSH_PERSISTENT),
        (flush(Durability::PowerFailure), Access::FLUSH_PERSISTENT),
    ];
    for (operation, right) in operations {
        let medium = Plain::new(MEDIUM_BYTES, MediumKind::FsDax);
        refused(medium, Access::all() - right, operation, Refusal::NoRight);
    }
    let operations = [
        (write(0, b"12345678"), Access::WRITE),
        (Operation::AtomicWrite { key: KEY, offset: 0, value: 1 }, Access::WRITE),
        (flush(Durability::Visible), Access::FLUSH_VISIBLE | Access::FLUSH_PERSISTENT),
    ];
    for (operation, right) in operations {
        let mut pair = Pair::apart([settings(false); 2], b"");
        pair.register(1, KEY, anonymous(), Access::all() - right);
        pair.connect();
        let outcome = pair.outcome(operation);
        assert!(matches!(outcome, Err(OperationError::Refused { refusal: Refusal::NoRight, .. })), "{outcome:?}");
        assert_eq!(pair.peek(0, 8), [0; 8]);
    }
}

#[test]
fn either_flush_right_allows_visibility() {
    for access in [Access::FLUSH_VISIBLE, Access::FLUSH_PERSISTENT] {
        let mut pair = Pair::apart([settings(false); 2], b"");
        pair.register(1, KEY, anonymous(), access);
        pair.connect();
        assert!(pair.outcome(flush(Durability::Visible)).is_ok());
    }
}

#[test]
fn forged_keys_are_unknown() {
    for bit in 0..128 {
        let mut key = KEY.0;
        key[bit / 8] ^= 1 << (bit % 8);
        let payload = Payload::Inline(b"forged");
        let operation = Operation::Write { key: RegionKey(key), offset: 0, payload, immediate: None };
        let mut pair = Pair::new(settings(false));
        expect_refusal(&mut pair, operation, Refusal::UnknownRegion);
        assert_eq!(pair.peek(0, 6), b"good\0\0");
    }
}

#[test]
fn a_key_is_stale_as_soon_as_its_region_is_removed() {
    let mut pair = Pair::new(settings(false));
    assert!(pair.outcome(write(0, b"known")).is_ok());
    let region = pair.tables[1].find(KEY).unwrap();
    pair.tables[1].remove(KEY);
    let outcome = pair.outcome(write(0, b"stale"));
    assert!(matches!(outcome, Err(OperationError::Refused { refusal: Refusal::UnknownRegion, .. })), "{outcome:?}");
    pair.tables[1].insert(region);
    assert_eq!(pair.peek(0, 5), b"known");
}

#[test]
fn a_region_removed_amid_a_write_takes_no_more_bytes() {
    for is_staged in [false, true] {
        let mut pair = Pair::new(settings(false));
        pair.post(write(0, &[9; 10_000]));
        pair.chunk = Chunk::Bytes(1000);
        assert!(pair.send_some(0) && pair.receive_some(1));
        let region = pair.tables[1].find(KEY).unwrap();
        if is_staged {
            // The transport has asked for the place already.
            assert!(pair.send_some(0));
            pair.sides[1].endpoint.input_place();
        }
        pair.tables[1].remove(KEY);
        if is_staged {
            pair.sides[1].endpoint.input_arrived(1000);
        }
        pair.run();
        let mut bytes = [0; 2000];
        region.memory().read(REGION_AT, &mut bytes).unwrap();
        assert_eq!(bytes[936..], [0; 1064], "only the first piece was stored");
        let outcome = &pair.sides[0].completions[0].outcome;
        assert!(matches!(outcome, Err(OperationError::Refused { refusal: Refusal::UnknownRegion, .. })), "{outcome:?}");
    }
}

#[test]
fn every_kind_of_medium_gives_what_the_design_says_and_refuses_the_rest() {
    let probed = |mechanism| Some(Promise { mechanism, evidence: Evidence::Probed });
    let store = probed(Mechanism::Store);
    let battery = Some(Promise { mechanism: Mechanism::Fence, evidence: Evidence::Declared });
    let plain = |kind| Plain::new(MEDIUM_BYTES, kind);
    let media = [
        (plain(MediumKind::Anonymous), [None, None]),
        (plain(MediumKind::Tmpfs), [store, None]),
        (Plain::battery_backed(MEDIUM_BYTES), [store, battery]),
        (plain(MediumKind::PageCache), [store, probed(Mechanism::FileSync)]),
        (plain(MediumKind::FsDax), [store, probed(Mechanism::CacheLineWriteBack)]),
        (plain(MediumKind::DevDax), [store, probed(Mechanism::CacheLineWriteBack)]),
        (plain(MediumKind::VirtioPmem), [store, probed(Mechanism::FileSync)]),
    ];
    for (medium, [process_crash, power_failure]) in media {
        for (durability, promise) in Durability::ALL.into_iter().zip([store, process_crash, power_failure]) {
            let mut pair = Pair::with_medium(settings(false), Arc::clone(&medium) as _);
            let Some(promise) = promise else {
                expect_refusal(&mut pair, flush(durability), Refusal::NotDurable);
                continue;
            };
            let descriptor = pair.tables[1].find(KEY).unwrap().descriptor();
            assert_eq!(descriptor.promise(durability), Some(promise));
            assert_eq!(
                pair.outcome(flush(durability)),
                Ok(Outcome::Flushed(Flushed { durability, method: Method::SendAfterWrite, promise }))
            );
        }
    }
}

#[test]
fn a_failing_medium_is_never_vouched_for() {
    let atomics = [
        Operation::AtomicWrite { key: KEY, offset: 0, value: 1 },
        Operation::CompareAndSwap { key: KEY, offset: 0, expected: 0, new: 1 },
        Operation::FetchAndAdd { key: KEY, offset: 0, addend: 1 },
    ];
    for point in [FaultPoint::Store, FaultPoint::WriteBack, FaultPoint::Fence] {
        let changes = [write(8, b"lost")].into_iter().chain(atomics.clone());
        let operations: Vec<_> = match point {
            FaultPoint::Fence => vec![flush(Durability::PowerFailure)],
            _ => changes.collect(),
        };
        for operation in operations {
            // The write before the operation succeeds; flushes to Visible fence nothing.
            let nth = if point == FaultPoint::Fence { 1 } else { 2 };
            let medium = Arc::new(FailNth::new(Plain::new(MEDIUM_BYTES, MediumKind::FsDax), point, nth));
            let mut pair = Pair::with_medium(settings(false), Arc::clone(&medium) as _);
            expect_refusal(&mut pair, operation, Refusal::MediumFailed);
            assert!(medium.has_failed());
        }
    }
}

#[test]
fn payloads_beyond_the_limit_are_refused_before_a_byte_is_taken() {
    for opcode in [Opcode::Write, Opcode::Read, Opcode::Send] {
        for length in [101, 1 << 40, u64::MAX] {
            let own = Settings { payload_max_bytes: 100, message_max_bytes: 100, ..settings(false) };
            let mut pair = Pair::new(own);
            let mut frame = Frame::new(opcode, 1);
            (frame.key, frame.length, frame.flags) = (KEY.0, length, FLAG_REPLY);
            pair.inject_frame(0, &frame);
            pair.run();
            assert_eq!(pair.sides[1].endpoint.ended(), Some(&ConnectionError::RefusedHere(Refusal::TooLong)));
            let reply = last_frame(&pair);
            assert_eq!((reply.sequence, reply.code), (1, Refusal::TooLong as u8));
            assert_eq!((reply.length, reply.operand), (length, 100));
        }
    }
}

#[test]
fn payloads_as_long_as_the_limit_are_served() {
    let limits = Settings { payload_max_bytes: 100, message_max_bytes: 100, ..settings(false) };
    let mut pair = Pair::new(limits);
    let done = Ok(Outcome::Done { len_bytes: 100 });
    assert_eq!(pair.outcome(write(0, &[7; 100])), done);
    let into = local(&[0; 100]);
    assert_eq!(pair.outcome(Operation::Read { key: KEY, offset: 0, into: into.clone() }), done);
    assert_eq!(bytes_of(&into), [7; 100]);
    pair.post_receive(1, 100);
    assert_eq!(pair.outcome(send(&[8; 100])), done);
}

#[test]
fn an_unknown_level_is_refused() {
    for code in [0, 4, 255] {
        let mut pair = Pair::new(settings(false));
        pair.inject_frame(0, &Frame { code, key: KEY.0, ..Frame::new(Opcode::Flush, 1) });
        pair.run();
        assert_eq!(last_frame(&pair).code, Refusal::Malformed as u8);
    }
}

#[test]
fn more_messages_than_the_inbox_holds_are_refused() {
    for opcode in [Opcode::Send, Opcode::Write] {
        let mut pair = Pair::new(Settings { inbox_messages: 3, ..settings(false) });
        for sequence in 1..=4 {
            let frame = Frame { key: KEY.0, flags: 4, ..Frame::new(opcode, sequence) };
            pair.inject_frame(0, &frame);
        }
        pair.run();
        let reply = last_frame(&pair);
        assert_eq!((reply.sequence, reply.code, reply.operand), (4, Refusal::ReceiverNotReady as u8, 3));
    }
}

#[test]
fn a_corrupt_payload_is_refused_with_its_operation() {
    for operation in [write(8, b"payload"), send(b"payload")] {
        let mut pair = Pair::new(settings(true));
        // The write before it has a header and 4 bytes.
        pair.wires[0].corrupt = Some((pair.wires[0].log.len() + 64 + 4 + 64 + 3, 0x10));
        expect_refusal(&mut pair, operation, Refusal::CorruptPayload);
    }
}

#[test]
fn every_refusal_and_flush_outcome_survives_the_wire() {
    let known: Vec<Refusal> = (0..=255).filter_map(Refusal::from_wire).collect();
    assert_eq!(known.len(), 21);
    assert!(known.iter().enumerate().all(|(index, refusal)| *refusal as usize == index + 1));
    assert!(known.iter().all(|refusal| !refusal.to_string().is_empty()));
    let valid = (0..1_u32 << 26).step_by(1).filter(|number| number & 0xF8_F8_F8 == 0);
    let outcomes: Vec<_> = valid.filter_map(|number| Some((number, Flushed::from_wire(number)?))).collect();
    assert_eq!(outcomes.len(), 3 * 4 * 2);
    assert!(outcomes.iter().all(|(number, flushed)| flushed.to_wire() == *number));
}

#[test]
fn after_an_end_for_a_reason_nothing_more_is_carried_out() {
    // In pieces: gathered ones are stored whole, long ones as they come.
    for len_bytes in [100, 12_000] {
        let mut pair = Pair::new(settings(false));
        assert!(pair.outcome(write(0, &pattern(12_000, 1))).is_ok());
        pair.post(write(0, &pattern(len_bytes, 77)));
        pair.post(write(6000, &pattern(8, 78)));
        pair.post(Operation::Flush {
            key: KEY,
            offset: 0,
            len_bytes: 8,
            level: Durability::Visible,
            evidence: Evidence::Probed,
        });
        pair.wires[0].window_bytes = 64 + 50;
        assert!(pair.send_some(0) && pair.receive_some(1));
        let then = pair.peek(0, 12_000);

        pair.sides[1].endpoint.end_for(Refusal::Fenced);
        pair.wires[0].window_bytes = usize::MAX;
        pair.run();

        assert_eq!(pair.peek(0, 12_000), then, "what came later");
        let why = ConnectionError::Refused { refusal: Refusal::Fenced, private_data: Vec::new() };
        assert_eq!(pair.sides[0].endpoint.ended(), Some(&why));
        let completions = &pair.sides[0].completions;
        assert_eq!(completions.len(), 3);
        assert!(completions.iter().all(|done| done.outcome == Err(OperationError::ConnectionEnded(why.clone()))));
        assert_eq!(pair.sides[1].endpoint.ended(), Some(&ConnectionError::RefusedHere(Refusal::Fenced)));
    }
}

#[test]
fn a_reply_that_waits_goes_before_the_reason_of_the_end() {
    let mut pair = Pair::new(settings(false));
    pair.wires[1].window_bytes = 0;
    pair.post(write(0, b"done"));
    pair.run();
    pair.sides[1].endpoint.end_for(Refusal::Fenced);
    pair.sides[1].endpoint.end_for(Refusal::Malformed);
    pair.wires[1].window_bytes = usize::MAX;
    pair.run();
    assert!(pair.sides[0].completions[0].outcome.is_ok());
    let why = ConnectionError::Refused { refusal: Refusal::Fenced, private_data: Vec::new() };
    assert_eq!(pair.sides[0].endpoint.ended(), Some(&why), "the first reason counts");
}

/// The last frame that the target sent.
fn last_frame(pair: &Pair) -> Frame {
    let log = &pair.wires[1].log;
    let mut header = [0; 64];
    header.copy_from_slice(&log[log.len() - 64..]);
    Frame::decode(&header).expect("a header")
}
