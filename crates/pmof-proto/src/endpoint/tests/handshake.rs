//! Making and ending a connection.

use super::support::*;
use crate::{
    Capabilities, ConnectionError, Endpoint, Event, OperationError, Refusal, RegionTable, Settings,
    frame::{FLAG_PAYLOAD_CRC, Frame, Opcode},
    handshake::encode_hello,
    limits,
};

#[test]
fn private_data_goes_both_ways_whole() {
    for chunk in CHUNKS {
        for len in [0, 1, limits::CONNECT_PRIVATE_MAX_BYTES] {
            let asked = pattern(len, 1);
            let answered = pattern(limits::ACCEPT_PRIVATE_MAX_BYTES.min(len * 4), 2);
            let mut pair = Pair::apart([settings(false); 2], &asked);
            pair.chunk = chunk;
            pair.run();
            assert_eq!(pair.sides[1].events, [Event::Requested { private_data: asked }]);
            assert!(!pair.sides[1].endpoint.wants_input(), "nothing is read before the decision");
            pair.sides[1].endpoint.accept(&answered);
            pair.run();
            assert_eq!(pair.sides[0].events, [Event::Established { private_data: answered }]);
            assert_eq!(pair.sides[1].events[1], Event::Established { private_data: Vec::new() });
            pair.sides[1].endpoint.accept(b"once more is without effect");
            pair.sides[1].endpoint.reject(Refusal::Rejected, b"so is this");
            assert!(pair.sides[1].endpoint.output_view().is_none());
        }
    }
}

#[test]
fn a_rejection_names_its_reason_and_carries_private_data() {
    for refusal in [Refusal::Rejected, Refusal::TooManyConnections] {
        for is_early in [true, false] {
            let mut pair = Pair::apart([settings(false); 2], b"please");
            if !is_early {
                pair.run();
            }
            let private_data = pattern(limits::REJECT_PRIVATE_MAX_BYTES, 7);
            pair.sides[1].endpoint.reject(refusal, &private_data);
            pair.run();
            let told = ConnectionError::Refused { refusal, private_data };
            assert_eq!(pair.sides[0].endpoint.ended(), Some(&told));
            assert_eq!(pair.sides[0].events, [Event::Ended(told)]);
            assert!(pair.sides[1].endpoint.is_finished());
        }
    }
}

#[test]
#[should_panic(expected = "checked by the caller")]
fn private_data_beyond_the_limit_is_a_bug_of_the_caller() {
    Endpoint::<()>::initiator(settings(false), std::sync::Arc::<RegionTable>::default(), &[0; 57]);
}

#[test]
fn settings_are_agreed_on() {
    let wants = Settings {
        capabilities: Capabilities::PAYLOAD_CRC,
        message_max_bytes: 1000,
        inbox_messages: 5,
        payload_max_bytes: 5000,
        send_queue: 100,
    };
    let has = Settings {
        capabilities: Capabilities::empty(),
        message_max_bytes: 2000,
        inbox_messages: 6,
        payload_max_bytes: 6000,
        send_queue: 50,
    };
    let mut pair = Pair::apart([wants, has], b"");
    pair.connect();
    let [initiator, target] = [0, 1].map(|side| pair.sides[side].endpoint.agreed());
    assert_eq!(initiator, Settings { capabilities: Capabilities::empty(), ..has });
    assert_eq!(target, Settings { capabilities: Capabilities::empty(), send_queue: 50, ..wants });
    let wild = Settings {
        capabilities: Capabilities::all(),
        message_max_bytes: u32::MAX,
        inbox_messages: u32::MAX,
        payload_max_bytes: u64::MAX,
        send_queue: u32::MAX,
    };
    let clamped = wild.clamped();
    assert_eq!(clamped.message_max_bytes, limits::MESSAGE_LIMIT_BYTES);
    assert_eq!(clamped.inbox_messages, limits::INBOX_LIMIT_MESSAGES);
    assert_eq!(clamped.payload_max_bytes, limits::PAYLOAD_MAX_BYTES);
    assert_eq!(clamped.send_queue, limits::SEND_QUEUE_LIMIT);
    assert_eq!(clamped.clamped(), clamped);
}

/// What the target does about a first frame.
fn target_after(frame: &Frame, private_data: &[u8]) -> Pair {
    let mut pair = Pair::apart([settings(false); 2], b"");
    // The initiator's own hello goes nowhere.
    let own = pair.sides[0].endpoint.output_waiting_bytes();
    pair.sides[0].endpoint.output_sent(own);
    pair.inject(0, &[&frame.encode()[..], private_data].concat());
    pair.run();
    pair
}

fn with_versions(min: u16, max: u16) -> Frame {
    Frame { sequence: u64::from(min) | u64::from(max) << 16, ..encode_hello(settings(false), b"") }
}

#[test]
fn versions_are_negotiated() {
    for (min, max) in [(1, 1), (0, 1), (1, 2), (0, u16::MAX)] {
        let pair = target_after(&with_versions(min, max), b"");
        assert_eq!(pair.sides[1].events, [Event::Requested { private_data: Vec::new() }], "{min} to {max}");
    }
    for (min, max) in [(2, 3), (0, 0), (2, 1), (u16::MAX, u16::MAX)] {
        let pair = target_after(&with_versions(min, max), b"");
        let refusal = Refusal::NoCommonVersion;
        assert_eq!(pair.sides[1].endpoint.ended(), Some(&ConnectionError::RefusedHere(refusal)), "{min} to {max}");
        let told = ConnectionError::Refused { refusal, private_data: Vec::new() };
        assert_eq!(pair.sides[0].endpoint.ended(), Some(&told), "the initiator learns why");
    }
}

#[test]
fn an_acceptance_names_one_version_that_was_offered() {
    for (min, max) in [(2, 2), (1, 2), (0, 1), (0, 0)] {
        let mut pair = Pair::apart([settings(false); 2], b"");
        let frame = Frame { opcode: Opcode::Welcome, ..with_versions(min, max) };
        pair.inject_frame(1, &frame);
        pair.run();
        let why = ConnectionError::RefusedHere(Refusal::NoCommonVersion);
        assert_eq!(pair.sides[0].endpoint.ended(), Some(&why), "{min} to {max}");
    }
}

#[test]
fn a_first_frame_that_is_no_hello_ends_the_connection() {
    let hello = encode_hello(settings(false), b"");
    let too_long = vec![0; limits::CONNECT_PRIVATE_MAX_BYTES + 1];
    let wrong = [
        (Frame { immediate: hello.immediate ^ 1, ..hello }, "magic"),
        (Frame { sequence: hello.sequence | 1 << 32, ..hello }, "reserved"),
        (Frame { operand: hello.operand | 1 << 32, ..hello }, "reserved"),
        (Frame { payload_crc: 1, ..hello }, "checksum"),
        (Frame { flags: hello.flags & !FLAG_PAYLOAD_CRC, ..hello }, "checksum"),
        (encode_hello(settings(false), &too_long), "too much private data"),
        (Frame { length: u64::MAX, ..hello }, "too much private data"),
        (Frame { opcode: Opcode::Welcome, ..hello }, "no handshake"),
        (Frame::new(Opcode::Write, 1), "no handshake"),
        (Frame::new(Opcode::Disconnect, 0), "no handshake"),
    ];
    for (frame, rule) in wrong {
        let pair = target_after(&frame, b"");
        let Some(ConnectionError::Malformed { what }) = pair.sides[1].endpoint.ended() else {
            panic!("{frame:?} must end the connection");
        };
        assert!(what.contains(rule), "{what:?} must speak of {rule:?}");
        assert!(pair.wires[1].log.is_empty(), "nothing is said to who is no pmof peer");
    }
}

#[test]
fn a_second_handshake_ends_the_connection() {
    for opcode in [Opcode::Hello, Opcode::Welcome] {
        let mut pair = Pair::new(settings(false));
        pair.inject_frame(0, &Frame { opcode, ..encode_hello(settings(false), b"") });
        pair.run();
        let why = ConnectionError::Malformed { what: "a second handshake" };
        assert_eq!(pair.sides[1].endpoint.ended(), Some(&why));
        let told = ConnectionError::Refused { refusal: Refusal::Malformed, private_data: Vec::new() };
        assert_eq!(pair.sides[0].endpoint.ended(), Some(&told));
    }
}

#[test]
fn a_disconnect_comes_after_what_was_posted() {
    for side in 0..2 {
        for chunk in CHUNKS {
            let mut pair = Pair::new(settings(true));
            pair.chunk = chunk;
            pair.post(write(0, &pattern(1000, 1)));
            if side == 1 {
                // The write arrives; its reply goes out before the farewell.
                while pair.send_some(0) {}
                while pair.receive_some(1) {}
            }
            pair.sides[side].endpoint.disconnect();
            pair.run();
            assert_eq!(pair.sides[side].endpoint.ended(), Some(&ConnectionError::ClosedHere));
            assert_eq!(pair.sides[1 - side].endpoint.ended(), Some(&ConnectionError::Closed));
            assert_eq!(pair.peek(0, 1000), pattern(1000, 1), "what was posted was done");
            assert_eq!(pair.sides[0].completions.len(), 1);
            let outcome = &pair.sides[0].completions[0].outcome;
            let expected = OperationError::ConnectionEnded(ConnectionError::ClosedHere);
            assert!(if side == 0 { *outcome == Err(expected) } else { outcome.is_ok() }, "{outcome:?}");
            assert!(pair.sides.iter().all(|side| side.endpoint.is_finished()));
            assert_eq!(pair.sides.each_ref().map(|side| side.events.len()), [1, 1], "ended once");
        }
    }
}

#[test]
fn both_sides_may_disconnect_at_once() {
    let mut pair = Pair::new(settings(false));
    pair.sides[0].endpoint.disconnect();
    pair.sides[1].endpoint.disconnect();
    pair.sides[1].endpoint.disconnect();
    pair.run();
    for side in &pair.sides {
        assert_eq!(side.endpoint.ended(), Some(&ConnectionError::ClosedHere));
        assert_eq!(side.events, [Event::Ended(ConnectionError::ClosedHere)]);
    }
}
