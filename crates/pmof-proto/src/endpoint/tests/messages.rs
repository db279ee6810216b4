//! Messages, receives, and the credit between them.

use super::support::*;
use crate::{
    Completion, ConnectionError, Operation, OperationError, OperationKind, Outcome, Payload, PostError, Refusal,
    Settings, Signal, limits::RECEIVE_QUEUE_LIMIT,
};

fn received(completion: &Completion) -> (u64, Option<u32>) {
    match completion.outcome {
        Ok(Outcome::Received { len_bytes, immediate }) => (len_bytes, immediate),
        ref other => panic!("a receive that succeeded expected, found {other:?}"),
    }
}

#[test]
fn messages_before_and_after_their_receives_arrive_in_order() {
    for chunk in CHUNKS {
        for receives_first in [0, 3, 6] {
            let mut pair = Pair::new(settings(true));
            pair.chunk = chunk;
            let mut places: Vec<_> = (0..receives_first).map(|_| pair.post_receive(1, 300).1).collect();
            for index in 0..6 {
                let bytes = pattern(100 + usize::from(index), index);
                let (payload, immediate) = (Payload::Inline(&bytes), Some(u32::from(index)));
                let operation = if index % 2 == 0 {
                    Operation::Send { payload, immediate }
                } else {
                    Operation::Write { key: KEY, offset: 0, payload, immediate }
                };
                pair.post(operation);
            }
            pair.run();
            places.extend((receives_first..6).map(|_| pair.post_receive(1, 300).1));
            pair.run();
            assert_eq!(pair.sides[0].completions.len(), 6);
            assert_eq!(pair.sides[1].completions.len(), 6);
            for (index, (done, place)) in pair.sides[1].completions.iter().zip(&places).enumerate() {
                assert_eq!(received(done), (100 + index as u64, Some(index as u32)));
                if index % 2 == 0 {
                    assert_eq!(done.kind, OperationKind::Receive);
                    assert_eq!(bytes_of(place)[..100 + index], pattern(100 + index, index as u8));
                } else {
                    assert_eq!(done.kind, OperationKind::ReceiveWriteImmediate);
                    assert_eq!(bytes_of(place), [0; 300], "the bytes went into the region");
                }
            }
            assert_eq!(pair.peek(0, 105), pattern(105, 5));
        }
    }
}

#[test]
fn messages_wait_for_room_and_keep_their_place_in_the_order() {
    let mut pair = Pair::new(Settings { inbox_messages: 2, ..settings(false) });
    for index in 0..5_u64 {
        pair.post_as(0, send(&[index as u8; 10]), Signal::Always, index);
    }
    let payload = Payload::Local(local(b"from memory"));
    pair.post_as(0, Operation::Send { payload, immediate: None }, Signal::Always, 5);
    pair.post_as(0, write(0, b"behind the messages"), Signal::Always, 6);
    pair.run();
    let done = |pair: &Pair| pair.sides[0].completions.iter().map(|done| done.context).collect::<Vec<_>>();
    assert_eq!(pair.sides[1].endpoint.messages.inbox_size().0, 2, "so many fit into the inbox");
    assert_eq!(done(&pair), [], "and nobody took one");
    assert_eq!(pair.peek(0, 6), [0; 6], "what was posted later does not overtake");
    assert_eq!(pair.sides[0].endpoint.outstanding(), 7);
    pair.post_receive(1, 10);
    pair.run();
    assert_eq!(done(&pair), [0]);
    assert_eq!(pair.sides[1].endpoint.messages.inbox_size().0, 2, "one taken out lets one in");
    for _ in 0..5 {
        pair.post_receive(1, 11);
    }
    pair.run();
    assert_eq!(done(&pair), [0, 1, 2, 3, 4, 5, 6]);
    assert_eq!(pair.peek(0, 6), *b"behind");
    assert_eq!(pair.sides[1].completions.len(), 6);
}

#[test]
fn posted_receives_let_messages_pass_without_the_inbox() {
    let mut pair = Pair::new(Settings { inbox_messages: 1, ..settings(false) });
    for _ in 0..50 {
        pair.post_receive(1, 10);
        pair.post(send(b"0123456789"));
    }
    pair.run();
    assert_eq!(pair.sides[0].completions.len(), 50);
    assert_eq!(pair.sides[1].completions.len(), 50);
}

#[test]
fn stalled_messages_end_with_the_connection_once_each() {
    let mut pair = Pair::new(Settings { inbox_messages: 1, ..settings(false) });
    for index in 0..4 {
        pair.post_as(0, send(b"m"), Signal::OnError, index);
    }
    pair.run();
    pair.sides[1].endpoint.disconnect();
    pair.run();
    let contexts: Vec<_> = pair.sides[0].completions.iter().map(|done| done.context).collect();
    assert_eq!(contexts, [0, 1, 2, 3], "none was answered, so none is known to have succeeded");
    assert_eq!(pair.sides[0].endpoint.outstanding(), 0);
}

#[test]
fn all_behind_a_message_that_nobody_took_fails_with_it_answered_or_not() {
    let mut pair = Pair::new(settings(false));
    pair.post_as(0, write(0, b"done"), Signal::OnError, 0);
    pair.post_as(0, send(b"waits"), Signal::OnError, 1);
    for (context, signal) in [Signal::OnError, Signal::Always, Signal::OnError].into_iter().enumerate() {
        pair.post_as(0, write(8, b"answered"), signal, 2 + context as u64);
    }
    pair.run();
    assert!(pair.sides[0].completions.is_empty(), "the message has found no receive");
    pair.sides[1].endpoint.disconnect();
    pair.run();
    let told: Vec<_> = pair.sides[0].completions.iter().map(|done| (done.context, done.outcome.is_ok())).collect();
    assert_eq!(told, [(1, false), (2, false), (3, false), (4, false)], "as with a queue pair in error");
}

#[test]
fn a_receive_too_small_ends_the_connection_and_both_sides_know_why() {
    for posted_first in [true, false] {
        let mut pair = Pair::new(settings(false));
        if posted_first {
            pair.post_receive(1, 9);
            pair.post_receive(1, 100);
        }
        pair.post(send(b"0123456789"));
        pair.run();
        if !posted_first {
            pair.post_receive(1, 9);
            pair.run();
        }
        let too_small = OperationError::ReceiveTooSmall { message_bytes: 10, capacity_bytes: 9 };
        assert_eq!(pair.sides[1].completions[0].outcome, Err(too_small));
        assert_eq!(pair.sides[1].completions.len(), 1 + usize::from(posted_first), "another receive ended too");
        let refusal = Refusal::ReceiveTooSmall;
        assert_eq!(pair.sides[1].endpoint.ended(), Some(&ConnectionError::RefusedHere(refusal)));
        let told = ConnectionError::Refused { refusal, private_data: Vec::new() };
        assert_eq!(pair.sides[0].endpoint.ended(), Some(&told));
        let outcome = &pair.sides[0].completions[0].outcome;
        assert_eq!(*outcome, Err(OperationError::Refused { refusal, offset: 0, len_bytes: 10, limit: 9 }));
    }
}

#[test]
fn a_send_completes_when_its_message_has_found_a_receive() {
    let mut pair = Pair::new(settings(false));
    pair.post_as(0, send(b"first"), Signal::Always, 0);
    pair.post_as(0, write(0, b"behind it"), Signal::Always, 1);
    let payload = Payload::Inline(b"noticed");
    pair.post_as(0, Operation::Write { key: KEY, offset: 0, payload, immediate: Some(7) }, Signal::OnError, 2);
    pair.post_as(0, write(16, b"last"), Signal::Always, 3);
    pair.run();
    let done = |pair: &Pair| pair.sides[0].completions.iter().map(|done| done.context).collect::<Vec<_>>();
    assert_eq!(done(&pair), [], "all was answered, no message was taken");
    assert_eq!(pair.sides[0].endpoint.outstanding(), 4);
    assert_eq!(pair.later(0, 1000), None, "nothing is due");
    assert_eq!(pair.later(0, 1000), None);
    pair.post_receive(1, 10);
    pair.run();
    assert_eq!(done(&pair), [0, 1]);
    pair.post_receive(1, 10);
    pair.run();
    assert_eq!(done(&pair), [0, 1, 3]);
    assert!(pair.sides[0].completions.iter().all(|done| done.outcome.is_ok()));
    assert_eq!(pair.sides[0].endpoint.outstanding(), 0);
}

#[test]
fn messages_that_nobody_took_hold_the_send_queue() {
    let mut pair = Pair::new(Settings { send_queue: 4, ..settings(false) });
    for _ in 0..4 {
        pair.post(send(b"m"));
        pair.run();
    }
    let full = pair.sides[0].endpoint.post(write(0, b"x"), Signal::Always, 0);
    assert_eq!(full, Err(PostError::QueueFull { limit: 4 }));
    pair.post_receive(1, 10);
    pair.run();
    pair.post(write(0, b"x"));
}

#[test]
fn a_refused_message_that_was_answered_is_reported_by_its_name() {
    // Whether success of the refused one would have been heard of.
    for signal in [Signal::Always, Signal::OnError] {
        let mut pair = Pair::new(settings(false));
        pair.post_as(0, send(b"fits"), Signal::Always, 0);
        pair.post_as(0, send(b"0123456789"), signal, 1);
        pair.post_as(0, write(0, b"x"), Signal::Always, 2);
        pair.run();
        pair.wires[1].window_bytes = 0;
        pair.post_receive(1, 9);
        pair.post_receive(1, 9);
        pair.wires[1].window_bytes = usize::MAX;
        pair.run();
        let outcomes: Vec<_> = pair.sides[0].completions.iter().map(|done| (done.context, &done.outcome)).collect();
        let refusal = Refusal::ReceiveTooSmall;
        let why = ConnectionError::Refused { refusal, private_data: Vec::new() };
        assert_eq!(outcomes[0], (0, &Ok(Outcome::Done { len_bytes: 4 })));
        assert_eq!(outcomes[1], (1, &Err(OperationError::Refused { refusal, offset: 0, len_bytes: 10, limit: 9 })));
        assert_eq!(outcomes[2], (2, &Err(OperationError::ConnectionEnded(why))));
        assert_eq!(outcomes.len(), 3);
    }
}

#[test]
fn an_operation_refused_behind_messages_that_wait_ends_them_first() {
    let mut pair = Pair::new(settings(false));
    pair.post_as(0, send(b"waits"), Signal::Always, 0);
    pair.post_as(0, write(u64::MAX, b"outside"), Signal::Always, 1);
    pair.run();
    let outcomes: Vec<_> = pair.sides[0].completions.iter().map(|done| (done.context, &done.outcome)).collect();
    assert!(matches!(outcomes[0], (0, Err(OperationError::ConnectionEnded(_)))), "{outcomes:?}");
    assert!(matches!(outcomes[1], (1, Err(OperationError::Refused { .. }))), "{outcomes:?}");
    assert_eq!(outcomes.len(), 2);
}

#[test]
fn who_closes_tells_what_was_taken_before() {
    let mut pair = Pair::new(settings(false));
    for context in 0..3 {
        pair.post_as(0, send(b"m"), Signal::Always, context);
    }
    pair.run();
    // The notice of the first one is not sent yet when the second is taken.
    pair.wires[1].window_bytes = 0;
    pair.post_receive(1, 10);
    pair.post_receive(1, 10);
    pair.sides[1].endpoint.disconnect();
    pair.wires[1].window_bytes = usize::MAX;
    pair.run();
    let is_ok: Vec<_> = pair.sides[0].completions.iter().map(|done| done.outcome.is_ok()).collect();
    assert_eq!(is_ok, [true, true, false]);
}

#[test]
fn a_write_with_immediate_needs_no_bytes_of_the_receive() {
    let mut pair = Pair::new(settings(false));
    pair.post_receive(1, 0);
    let payload = Payload::Inline(&[5; 1000]);
    assert!(pair.outcome(Operation::Write { key: KEY, offset: 0, payload, immediate: Some(7) }).is_ok());
    assert_eq!(received(&pair.sides[1].completions[0]), (1000, Some(7)));
}

#[test]
fn a_receive_whose_message_broke_off_or_is_corrupt_still_has_one_outcome() {
    // Bytes of the message that arrive.
    for arrived in [0, 1, 499, 500] {
        let mut pair = Pair::new(settings(true));
        let from = pair.wires[0].log.len();
        if arrived == 500 {
            pair.wires[0].corrupt = Some((from + 64 + 250, 1));
        } else {
            pair.wires[0].cut_after = Some(from + 64 + arrived);
        }
        let (first, second) = (pair.post_receive(1, 500).0, pair.post_receive(1, 500).0);
        pair.chunk = Chunk::Bytes(100);
        pair.post(send(&[1; 500]));
        pair.run();
        let tickets: Vec<_> = pair.sides[1].completions.iter().map(|done| done.ticket).collect();
        assert_eq!(tickets, [first, second], "{arrived} bytes");
        assert!(pair.sides[1].completions.iter().all(|done| done.outcome.is_err()));
        assert!(pair.sides[0].completions[0].outcome.is_err());
    }
}

#[test]
fn credit_for_a_peer_that_reads_nothing_does_not_pile_up() {
    let mut pair = Pair::new(settings(false));
    pair.wires[1].window_bytes = 0;
    // A peer that needs no credit, since receives are posted, and asks for no replies.
    for sequence in 1..=1000 {
        pair.post_receive(1, 1);
        pair.inject_frame(0, &crate::frame::Frame::new(crate::frame::Opcode::Send, sequence));
    }
    pair.run();
    assert_eq!(pair.sides[1].completions.len(), 1000);
    assert_eq!(pair.sides[1].endpoint.output_waiting_bytes(), 64, "one notice waits");
    // When the peer reads again, one more notice tells of all the rest.
    pair.sides[0].endpoint.messages.sent = 1000;
    pair.wires[1].window_bytes = usize::MAX;
    pair.run();
    assert!(pair.sides[0].endpoint.is_established());
    assert!(pair.sides[0].endpoint.messages.may_send(&pair.sides[0].endpoint.agreed));
    assert_eq!(pair.sides[1].endpoint.messages.told, 1000);
}

#[test]
fn receives_are_bounded() {
    let mut pair = Pair::new(settings(false));
    let into = local(b"");
    let endpoint = &mut pair.sides[0].endpoint;
    for index in 0..RECEIVE_QUEUE_LIMIT {
        endpoint.post_receive(into.clone(), index as u64).unwrap();
    }
    let full = PostError::ReceiveQueueFull { limit: RECEIVE_QUEUE_LIMIT };
    assert_eq!(endpoint.post_receive(into, 0), Err(full));
    endpoint.disconnect();
    pair.run();
    assert_eq!(pair.sides[0].completions.len(), RECEIVE_QUEUE_LIMIT);
}

#[test]
fn receives_may_be_posted_before_the_connection_is_established() {
    let mut pair = Pair::apart([settings(false); 2], b"");
    pair.post_receive(1, 10);
    pair.post_receive(0, 10);
    pair.connect();
    for side in 0..2 {
        pair.post_as(side, send(b"early"), Signal::Always, 0);
    }
    pair.run();
    for side in &pair.sides {
        assert!(side.completions.iter().any(|done| done.kind == OperationKind::Receive && done.outcome.is_ok()));
    }
}

#[test]
fn an_early_receive_completes_with_the_end_whenever_it_was_posted() {
    let mut pair = Pair::apart([settings(false); 2], b"");
    let endpoint = &mut pair.sides[0].endpoint;
    let (into, own) = (local(&[0; 10]), Err(OperationError::ConnectionEnded(ConnectionError::ClosedHere)));
    let before = endpoint.post_early_receive(into.clone(), 1).unwrap();
    endpoint.disconnect();
    let after = endpoint.post_early_receive(into.clone(), 2).unwrap();
    for (ticket, context) in [(before, 1), (after, 2)] {
        let done = Completion { ticket, context, kind: OperationKind::Receive, outcome: own.clone() };
        assert_eq!(endpoint.poll_completion(), Some(done));
    }
    assert_eq!(endpoint.poll_completion(), None);
    assert_eq!(endpoint.post_receive(into, 3), Err(PostError::NotConnected(ConnectionError::ClosedHere)));
}

#[test]
fn this_sides_own_memory_failing_is_not_blamed_on_the_peer() {
    use pmof_mem::{
        MediumKind,
        faults::{FailNth, FaultPoint},
    };
    let failing = || {
        let memory = FailNth::new(Plain::new(100, MediumKind::Anonymous), FaultPoint::Store, 1);
        crate::LocalSlice { memory: std::sync::Arc::new(memory), offset: 0, len_bytes: 100 }
    };
    // A message that waited, and the destination of a read.
    let mut pair = Pair::new(settings(false));
    pair.post(send(b"waits"));
    pair.run();
    pair.sides[1].endpoint.post_receive(failing(), 0).unwrap();
    pair.run();
    assert_eq!(pair.sides[0].endpoint.ended(), Some(&ConnectionError::Closed));
    let own = pair.sides[1].endpoint.ended().cloned();
    assert!(matches!(own, Some(ConnectionError::LocalMemoryFailed { .. })), "{own:?}");
    assert_eq!(pair.sides[1].completions.len(), 1);

    let mut pair = Pair::new(settings(false));
    assert!(pair.outcome(Operation::Read { key: KEY, offset: 0, into: failing() }).is_err());
    let own = pair.sides[0].endpoint.ended().cloned();
    assert!(matches!(own, Some(ConnectionError::LocalMemoryFailed { .. })), "{own:?}");
    assert_eq!(pair.sides[1].endpoint.ended(), Some(&ConnectionError::Closed));
}
