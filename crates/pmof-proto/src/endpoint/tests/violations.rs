//! What a peer that breaks the rules gets: an end with the rule's name, and never a success.

use pmof_mem::{Durability, MediumKind};

use super::support::*;
use crate::{
    Completion, ConnectionError, Flushed, Operation, Outcome, Payload, Refusal, Settings, Signal,
    frame::{FLAG_PAYLOAD_CRC, Frame, Opcode},
};

/// Posts on side 0 without letting anything out, injects an answer, and says why the connection ended.
fn answered(
    operations: Vec<(Operation<'_>, Signal)>,
    answer: &Frame,
    payload: &[u8],
) -> (Vec<Completion>, &'static str) {
    let medium = Plain::new(MEDIUM_BYTES, MediumKind::FsDax);
    let mut pair = Pair::with_medium(Settings { inbox_messages: 1, ..settings(false) }, medium);
    pair.wires[0].window_bytes = 0;
    for (index, (operation, signal)) in operations.into_iter().enumerate() {
        pair.post_as(0, operation, signal, index as u64);
    }
    pair.inject(1, &[&answer.encode()[..], payload].concat());
    pair.receive_some(0);
    pair.collect(0);
    let Some(ConnectionError::Malformed { what }) = pair.sides[0].endpoint.ended().cloned() else {
        panic!("a violation expected, found {:?}", pair.sides[0].endpoint.ended());
    };
    pair.wires[0].window_bytes = usize::MAX;
    pair.run();
    let told = ConnectionError::Refused { refusal: Refusal::Malformed, private_data: Vec::new() };
    assert_eq!(pair.sides[1].endpoint.ended(), Some(&told), "the other side learns of it");
    (pair.sides[0].completions.drain(..).collect(), what)
}

fn all_failed(completions: &[Completion], count: usize) {
    assert_eq!(completions.len(), count);
    assert!(completions.iter().all(|done| done.outcome.is_err()), "{completions:?}");
}

fn reply(sequence: u64) -> Frame {
    Frame::new(Opcode::Reply, sequence)
}

fn read(len: usize) -> (Operation<'static>, Signal) {
    (Operation::Read { key: KEY, offset: 0, into: local(&vec![0; len]) }, Signal::Always)
}

#[test]
fn a_reply_to_nothing() {
    for sequence in [0, 1, u64::MAX] {
        for opcode in [Opcode::Reply, Opcode::ReadReply] {
            let (completions, what) = answered(vec![], &Frame::new(opcode, sequence), b"");
            assert_eq!((completions.len(), what), (0, "a reply to what was not posted"));
        }
    }
    for sequence in [0, 3] {
        let posted = vec![(write(0, b"a"), Signal::Always), (write(0, b"b"), Signal::OnError)];
        let (completions, what) = answered(posted, &reply(sequence), b"");
        all_failed(&completions, 2);
        assert_eq!(what, "a reply to what was not posted");
    }
}

#[test]
fn a_reply_to_what_still_waits_for_room() {
    let posted = vec![(send(b"fills the inbox"), Signal::OnError), (send(b"waits"), Signal::Always)];
    let (completions, what) = answered(posted, &reply(2), b"");
    all_failed(&completions, 2);
    assert_eq!(what, "a reply to what was not posted");
}

#[test]
fn a_reply_left_out_or_not_asked_for() {
    let posted = || vec![(write(0, b"a"), Signal::Always), (write(0, b"b"), Signal::Always)];
    let (completions, what) = answered(posted(), &reply(2), b"");
    all_failed(&completions, 2);
    assert_eq!(what, "a reply was left out");
    let (completions, what) = answered(vec![(write(0, b"a"), Signal::OnError)], &reply(1), b"");
    all_failed(&completions, 1);
    assert_eq!(what, "a reply that was not asked for");
}

#[test]
fn a_read_reply_of_another_length() {
    for length in [0, 7, 9, u64::MAX] {
        let answer = Frame { length, ..Frame::new(Opcode::ReadReply, 1) };
        let (completions, what) = answered(vec![read(8)], &answer, b"");
        all_failed(&completions, 1);
        assert_eq!(what, "a read reply fits no posted read");
    }
    let answer = Frame { length: 8, ..Frame::new(Opcode::ReadReply, 1) };
    let (completions, what) = answered(vec![(write(0, b"12345678"), Signal::Always)], &answer, b"12345678");
    all_failed(&completions, 1);
    assert_eq!(what, "a read reply fits no posted read");
}

#[test]
fn a_read_answered_without_data() {
    let (completions, what) = answered(vec![read(8)], &reply(1), b"");
    all_failed(&completions, 1);
    assert_eq!(what, "a read was answered without data");
}

#[test]
fn a_flush_answered_with_less_or_nothing() {
    let wire = |number: u32| Flushed::from_wire(number).map(|flushed| flushed.durability);
    assert_eq!(wire(0x01_01_02), Some(Durability::ProcessCrash));
    for immediate in
        [0, 0x01_01_02, 0x01_01_01, 0x01_00_03, 0x00_01_03, 0x03_01_03, 0x01_05_03, 0x01_01_04, 0x01_01_01_03]
    {
        let posted = vec![(flush(Durability::PowerFailure), Signal::Always)];
        let (completions, what) = answered(posted, &Frame { immediate, ..reply(1) }, b"");
        all_failed(&completions, 1);
        assert_eq!(what, "a flush reply names another durability than asked for, or weaker evidence than promised");
    }
}

#[test]
fn a_refusal_of_what_was_not_posted() {
    let posted = vec![(write(0, b"a"), Signal::Always)];
    let (completions, what) = answered(posted, &Frame { code: 3, ..reply(9) }, b"");
    all_failed(&completions, 1);
    assert_eq!(what, "a reply to what was not posted");
}

#[test]
fn credit_for_nothing() {
    for operand in [0, 1, 5, u64::MAX] {
        let (_, what) = answered(vec![], &Frame { operand, ..Frame::new(Opcode::Credit, 0) }, b"");
        assert_eq!(what, "credit for messages that were not sent");
    }
    let posted = vec![(send(b"sent"), Signal::Always), (send(b"waits"), Signal::Always)];
    let (completions, what) = answered(posted, &Frame { operand: 2, ..Frame::new(Opcode::Credit, 0) }, b"");
    all_failed(&completions, 2);
    assert_eq!(what, "credit for messages that were not sent");
}

#[test]
fn requests_out_of_sequence() {
    for sequence in [0, 2, u64::MAX] {
        for opcode in [Opcode::Write, Opcode::Flush, Opcode::Send] {
            let (_, what) = answered(vec![], &Frame::new(opcode, sequence), b"");
            assert_eq!(what, "a request is out of sequence");
        }
    }
}

#[test]
fn payloads_without_the_checksum_agreed_on() {
    for side in 0..2 {
        let mut pair = Pair::new(settings(true));
        pair.wires[0].window_bytes = 64;
        pair.post(read(8).0);
        pair.send_some(0);
        let frame = if side == 0 {
            Frame { length: 8, ..Frame::new(Opcode::ReadReply, 1) }
        } else {
            pair.receive_some(1);
            pair.wires[0].window_bytes = usize::MAX;
            Frame { key: KEY.0, length: 8, ..Frame::new(Opcode::Write, 2) }
        };
        assert_eq!(frame.flags & FLAG_PAYLOAD_CRC, 0);
        pair.inject(1 - side, &[&frame.encode()[..], b"12345678"].concat());
        pair.receive_some(side);
        let why = ConnectionError::Malformed { what: "a payload lacks its checksum" };
        assert_eq!(pair.sides[side].endpoint.ended(), Some(&why));
        assert_eq!(pair.peek(0, 8), [0; 8]);
    }
}

#[test]
fn headers_that_no_peer_makes() {
    let good = Frame { length: 1, ..Frame::new(Opcode::Write, 1) }.encode();
    let sealed = |change: &dyn Fn(&mut [u8; 64])| {
        let mut header = good;
        change(&mut header);
        let crc = crc32c::crc32c(&header[..60]);
        header[60..].copy_from_slice(&crc.to_le_bytes());
        header
    };
    let mut wrong = vec![
        (sealed(&|header| header[1] |= 8), "reserved"),
        (sealed(&|header| header[1] |= 0x80), "reserved"),
        (sealed(&|header| header[3] = 1), "reserved"),
    ];
    let known = [1, 2, 3, 4, 5, 6, 7, 8, 0x40, 0x41, 0x80, 0x81, 0xF0, 0xF1];
    wrong.extend(
        (0..=255)
            .filter(|opcode| !known.contains(opcode))
            .map(|opcode| (sealed(&|header: &mut [u8; 64]| header[0] = opcode), "opcode is unknown")),
    );
    wrong.extend((0..512).map(|bit| {
        let mut header = good;
        header[bit / 8] ^= 1 << (bit % 8);
        (header, "checksum is wrong")
    }));
    for (header, rule) in wrong {
        let mut pair = Pair::new(settings(false));
        pair.inject(0, &header);
        pair.run();
        let Some(ConnectionError::Malformed { what }) = pair.sides[1].endpoint.ended() else {
            panic!("{header:?} must end the connection");
        };
        assert!(what.contains(rule), "{what:?} must speak of {rule:?}");
        let told = ConnectionError::Refused { refusal: Refusal::Malformed, private_data: Vec::new() };
        assert_eq!(pair.sides[0].endpoint.ended(), Some(&told));
    }
}

#[test]
fn a_refusal_with_an_unknown_number_is_still_a_refusal() {
    for sequence in [0, 1] {
        let mut pair = Pair::new(settings(false));
        pair.wires[0].window_bytes = 0;
        let payload = Payload::Local(local(b"not sent"));
        pair.post(Operation::Write { key: KEY, offset: 0, payload, immediate: None });
        pair.inject_frame(1, &Frame { code: 200, ..reply(sequence) });
        pair.run();
        let told = ConnectionError::Refused { refusal: Refusal::Malformed, private_data: Vec::new() };
        assert_eq!(pair.sides[0].endpoint.ended(), Some(&told));
        assert_eq!(pair.sides[0].completions.len(), 1);
        assert!(pair.sides[0].endpoint.is_finished(), "nobody reads there");
    }
}

#[test]
fn an_honest_answer_is_taken() {
    // The positive control of this page: the same way of answering, and no violation.
    let mut pair = Pair::new(settings(false));
    pair.wires[0].window_bytes = 0;
    pair.post(write(0, b"a"));
    pair.post(flush(Durability::PowerFailure));
    pair.post(read(8).0);
    pair.inject_frame(1, &reply(1));
    pair.inject_frame(1, &Frame { immediate: 0x01_04_03, ..reply(2) });
    pair.inject_frame(1, &Frame { length: 8, ..Frame::new(Opcode::ReadReply, 3) });
    pair.inject(1, b"12345678");
    pair.run();
    assert!(pair.sides[0].endpoint.is_established());
    assert_eq!(pair.sides[0].completions.len(), 3);
    assert_eq!(pair.sides[0].completions[2].outcome, Ok(Outcome::Done { len_bytes: 8 }));
}
