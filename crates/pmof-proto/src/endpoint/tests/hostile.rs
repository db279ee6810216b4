//! Any bytes at all: no panic, no growth.

use pmof_mem::MediumKind;
use proptest::{collection::vec, prelude::*};

use super::support::*;
use crate::{
    Access, InputPlace, Settings, Signal,
    frame::Frame,
    limits::{self, HEADER_BYTES},
};

/// Small bounds, so that a few bytes reach them.
fn small(has_crc: bool) -> Settings {
    Settings {
        message_max_bytes: 200,
        inbox_messages: 4,
        payload_max_bytes: 10_000,
        send_queue: 8,
        ..settings(has_crc)
    }
}

/// All that a peer can make an endpoint keep is within the bounds that the endpoint itself set.
fn assert_bounded(pair: &Pair, side: usize) {
    let endpoint = &pair.sides[side].endpoint;
    assert!(endpoint.input.staging_bytes() <= limits::STAGING_BYTES);
    let (messages, bytes) = endpoint.messages.inbox_size();
    assert!(messages <= 4 && bytes <= 4 * 200);
    assert!(endpoint.output.replies_waiting() <= 8 + 1);
    // Each reply has a header and at most a copied page; beside them: credit, last words, what the test itself posted.
    let replies = (8 + 1) * (HEADER_BYTES + limits::REPLY_COPY_MAX_BYTES as usize);
    let copied = endpoint.output.buffered_bytes();
    assert!(copied <= replies + limits::REPLY_COPY_LIMIT_BYTES + 16 * HEADER_BYTES + 2000, "{copied} bytes wait");
}

/// Delivers bytes to `side` in pieces, as long as it takes them; the peer reads nothing.
fn deliver(pair: &mut Pair, side: usize, bytes: &[u8], piece: usize) {
    let mut rest = bytes;
    while !rest.is_empty() {
        let endpoint = &mut pair.sides[side].endpoint;
        let now = &rest[..piece.clamp(1, rest.len())];
        let count = match endpoint.input_place() {
            None => return,
            Some(InputPlace::Staging(buffer)) => {
                assert!(!buffer.is_empty(), "there is room whenever input is wanted");
                let count = buffer.len().min(now.len());
                buffer[..count].copy_from_slice(&now[..count]);
                count
            }
            Some(InputPlace::Memory { memory, offset, len_bytes, tail }) => {
                assert!(len_bytes > 0, "a place is not empty");
                let (inside, beyond) = now.split_at(now.len().min(len_bytes as usize));
                memory.store(offset, inside).expect("places lie inside their memory");
                let count = beyond.len().min(tail.len());
                tail[..count].copy_from_slice(&beyond[..count]);
                inside.len() + count
            }
        };
        endpoint.input_arrived(count);
        rest = &rest[count..];
        assert_bounded(pair, side);
    }
}

/// A pair whose both sides have regions, posted operations and a receive.
fn busy(has_crc: bool) -> Pair {
    let mut pair = Pair::new(small(has_crc));
    pair.register(0, KEY, Plain::new(MEDIUM_BYTES, MediumKind::FsDax), Access::all());
    for side in 0..2 {
        pair.post_receive(side, 100);
        pair.post_as(side, write(0, b"posted"), Signal::Always, 0);
        pair.post_as(side, send(b"posted"), Signal::OnError, 0);
        let read = crate::Operation::Read { key: KEY, offset: 0, into: local(&[0; 50]) };
        pair.post_as(side, read, Signal::Always, 0);
        pair.post_as(side, flush(pmof_mem::Durability::Visible), Signal::Always, 0);
    }
    pair
}

/// Headers that are right but for what they say: mostly small numbers, so that they get far.
fn frames() -> impl Strategy<Value = Vec<(Frame, Vec<u8>)>> {
    let opcode = proptest::sample::select(crate::frame::OPCODES.to_vec());
    let number = || prop_oneof![4 => 0..64_u64, 2 => 0..20_000_u64, 1 => any::<u64>()];
    let flags = 0..8_u8;
    let code = prop_oneof![6 => Just(0_u8), 2 => 0..16_u8, 1 => any::<u8>()];
    let sequence = prop_oneof![8 => Just(None), 2 => (0..6_u64).prop_map(Some), 1 => any::<u64>().prop_map(Some)];
    let frame = (opcode, flags, code, any::<u32>(), sequence, any::<bool>(), number(), number(), number());
    let frame = frame.prop_map(|(opcode, flags, code, immediate, sequence, is_known, offset, length, operand)| {
        let key = if is_known { KEY.0 } else { [0; 16] };
        let sequence = sequence.unwrap_or(u64::MAX);
        let payload = pattern(length.min(12_000) as usize, flags);
        let payload_crc = crc32c::crc32c(&payload);
        (Frame { opcode, flags, code, immediate, sequence, key, offset, length, operand, payload_crc }, payload)
    });
    vec(frame, 1..40)
}

/// The bytes of the frames; a sequence of `u64::MAX` stands for the next one that is right.
fn stream(frames: Vec<(Frame, Vec<u8>)>) -> Vec<u8> {
    let mut next = 0;
    let mut bytes = Vec::new();
    for (mut frame, payload) in frames {
        let is_request = (frame.opcode as u8) < 0x40;
        if frame.sequence == u64::MAX {
            next += u64::from(is_request);
            frame.sequence = next;
        }
        bytes.extend(frame.encode());
        bytes.extend(&payload[..frame.payload_bytes().min(payload.len() as u64) as usize]);
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn noise_before_the_handshake_ends_it(bytes in vec(any::<u8>(), 64..2000), piece in 1..3000_usize) {
        for side in 0..2 {
            let mut pair = Pair::apart([small(false); 2], b"");
            deliver(&mut pair, side, &bytes, piece);
            prop_assert!(pair.sides[side].endpoint.ended().is_some());
        }
    }

    #[test]
    fn noise_after_the_handshake_ends_the_connection(bytes in vec(any::<u8>(), 64..2000), piece in 1..3000_usize) {
        for side in 0..2 {
            let mut pair = busy(true);
            deliver(&mut pair, side, &bytes, piece);
            prop_assert!(pair.sides[side].endpoint.ended().is_some());
            pair.sides[side].endpoint.wire_lost("end of the test".to_owned());
            pair.collect(side);
            prop_assert_eq!(pair.sides[side].endpoint.outstanding(), 0);
        }
    }

    #[test]
    fn well_formed_frames_with_any_content_do_no_harm(
        frames in frames(), piece in 1..3000_usize, has_crc: bool, side in 0..2_usize, reads: bool,
    ) {
        let mut pair = busy(has_crc);
        if reads {
            // The peer has taken what was posted, so replies may be honest ones.
            while pair.send_some(side) {}
        }
        deliver(&mut pair, side, &stream(frames), piece);
        pair.sides[side].endpoint.wire_lost("end of the test".to_owned());
        pair.collect(side);
        prop_assert_eq!(pair.sides[side].endpoint.outstanding(), 0);
        // Three operations and a receive want a completion, one more may fail.
        prop_assert!((4..=5).contains(&pair.sides[side].completions.len()));
        let region = pair.tables[side].find(KEY).unwrap();
        let mut edge = [0; REGION_AT as usize];
        for offset in [0, REGION_AT + REGION_BYTES] {
            region.memory().read(offset, &mut edge).unwrap();
            prop_assert!(edge == [0; REGION_AT as usize], "nothing outside the region is touched");
        }
    }

    #[test]
    fn any_64_bytes_are_a_frame_or_an_error(bytes: [u8; 32], more: [u8; 32]) {
        let mut header = [0; 64];
        header[..32].copy_from_slice(&bytes);
        header[32..].copy_from_slice(&more);
        if let Ok(frame) = Frame::decode(&header) {
            prop_assert_eq!(frame.encode(), header);
        }
        // With the checksum right, far more get through.
        let crc = crc32c::crc32c(&header[..60]);
        header[60..].copy_from_slice(&crc.to_le_bytes());
        header[0] = [1, 2, 3, 4, 5, 6, 7, 0x40, 0x41, 0x80, 0x81, 0xF0, 0xF1][usize::from(bytes[0]) % 13];
        (header[1], header[3]) = (header[1] & 7, 0);
        let crc = crc32c::crc32c(&header[..60]);
        header[60..].copy_from_slice(&crc.to_le_bytes());
        let frame = Frame::decode(&header);
        prop_assert!(frame.is_ok_and(|frame| frame.encode() == header));
    }
}

#[test]
fn a_peer_that_reads_nothing_is_bounded_for_every_request() {
    use crate::frame::Opcode;
    for opcode in [Opcode::Read, Opcode::FetchAndAdd, Opcode::AtomicWrite, Opcode::Flush, Opcode::Write] {
        let mut pair = Pair::new(small(false));
        pair.wires[1].window_bytes = 0;
        let mut bytes = Vec::new();
        for sequence in 1..=2000 {
            let length = if opcode == Opcode::Read { 4096 } else { 0 };
            let frame = Frame {
                flags: 1,
                code: u8::from(opcode == Opcode::Flush),
                key: KEY.0,
                length,
                ..Frame::new(opcode, sequence)
            };
            bytes.extend(frame.encode());
        }
        deliver(&mut pair, 1, &bytes, 1000);
        assert!(!pair.sides[1].endpoint.wants_input(), "{opcode:?}: input is paused");
        assert!(pair.sides[1].endpoint.ended().is_none());
    }
}

#[test]
fn a_stream_cut_inside_a_frame_waits_for_the_rest() {
    for cut in [1, 63, 64, 65, 1063] {
        let mut pair = Pair::new(settings(true));
        pair.post(write(0, &pattern(1000, 1)));
        pair.wires[0].window_bytes = cut;
        assert!(pair.send_some(0) && pair.receive_some(1));
        assert!(pair.sides[1].endpoint.is_established());
        assert!(pair.sides[1].endpoint.output_view().is_none(), "{cut} bytes are not answered");
        pair.wires[0].window_bytes = usize::MAX;
        pair.run();
        assert_eq!(pair.sides[0].completions.len(), 1);
    }
}
