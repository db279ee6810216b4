//! The wire cut at every byte, and every byte of the stream changed.

use super::{
    scenario::{Scenario, frames_of},
    support::*,
};
use crate::limits::HEADER_BYTES;

/// The streams of both directions where nothing goes wrong.
fn logs(has_crc: bool) -> [Vec<u8>; 2] {
    let mut scenario = Scenario::new(has_crc);
    scenario.play();
    assert_eq!(scenario.failures(), 0);
    scenario.pair.wires.map(|wire| wire.log)
}

#[test]
fn a_wire_cut_at_any_byte_leaves_one_outcome_for_each_operation() {
    for (direction, log) in logs(false).iter().enumerate() {
        let mut failures = 0;
        for cut in 0..log.len() {
            let mut scenario = Scenario::new(false);
            scenario.pair.wires[direction].cut_after = Some(cut);
            scenario.play();
            scenario.check(&format!("direction {direction} cut after {cut} bytes"));
            failures += scenario.failures();
        }
        assert!(failures > log.len(), "cuts make operations fail");
    }
}

#[test]
fn a_changed_byte_never_makes_a_wrong_success_where_payloads_have_checksums() {
    for (direction, log) in logs(true).iter().enumerate() {
        for at in 0..log.len() {
            let mask = [0x01, 0x80, 0xFF, 0x24][at % 4];
            let mut scenario = Scenario::new(true);
            scenario.pair.wires[direction].corrupt = Some((at, mask));
            scenario.play();
            settle(&mut scenario.pair);
            scenario.check(&format!("direction {direction}, byte {at} changed by {mask:#x}"));
            let seen_by = scenario.pair.sides[1 - direction].endpoint.ended().map(ToString::to_string);
            assert!(
                seen_by.as_ref().is_some_and(|why| why.contains("checksum")),
                "direction {direction}, byte {at}: {seen_by:?}"
            );
        }
    }
}

#[test]
fn a_changed_header_is_seen_where_payloads_have_no_checksums() {
    for (direction, log) in logs(false).iter().enumerate() {
        for (start, frame) in frames_of(log) {
            for at in start..start + HEADER_BYTES {
                let mut scenario = Scenario::new(false);
                scenario.pair.wires[direction].corrupt = Some((at, 1 << (at % 8)));
                scenario.play();
                settle(&mut scenario.pair);
                let what = format!("direction {direction}, byte {} of {:?} changed", at - start, frame.opcode);
                scenario.check(&what);
                let seen_by = scenario.pair.sides[1 - direction].endpoint.ended().map(ToString::to_string);
                assert!(seen_by.is_some_and(|why| why.contains("checksum")), "{what}: seen by the receiver");
            }
        }
    }
}

#[test]
#[should_panic(expected = "left == right")]
fn without_checksums_a_changed_payload_does_make_a_wrong_success() {
    // The positive control: with the checksum off the same check goes red.
    let log = &logs(false)[0];
    for (start, frame) in frames_of(log).into_iter().filter(|(_, frame)| frame.payload_bytes() > 90) {
        let mut scenario = Scenario::new(false);
        scenario.pair.wires[0].corrupt = Some((start + HEADER_BYTES + 80, 1));
        scenario.play();
        settle(&mut scenario.pair);
        scenario.check(&format!("{:?}", frame.opcode));
    }
}

/// A changed byte may leave both waiting for each other, which time ends.
fn settle(pair: &mut Pair) {
    for seconds in [0, 100] {
        for side in 0..2 {
            pair.sides[side].endpoint.tick(std::time::Duration::from_secs(seconds), std::time::Duration::from_secs(10));
        }
        pair.run();
    }
    // What is idle and unharmed closes in order.
    pair.sides[0].endpoint.disconnect();
    pair.run();
    assert!(pair.sides.iter().all(|side| side.endpoint.ended().is_some()), "both ends come to an end");
}
