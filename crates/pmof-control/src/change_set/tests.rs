use proptest::prelude::*;

use super::*;

proptest! {
    #[test]
    fn headers_are_read_as_they_were_written_and_damage_is_noticed(
        number in 1..u64::MAX,
        body_bytes in any::<u64>(),
        body_crc in any::<u32>(),
        damaged in 0..CHANGE_SET_HEADER_BYTES,
    ) {
        let header = ChangeSetHeader { number, body_bytes, body_crc };
        let mut bytes = header.to_bytes();
        prop_assert_eq!(ChangeSetHeader::parse(&bytes), Some(header));
        bytes[damaged] ^= 1;
        prop_assert_eq!(ChangeSetHeader::parse(&bytes), None);
        let change = ChangeHeader { offset: number, len_bytes: body_bytes };
        prop_assert_eq!(ChangeHeader::parse(change.to_bytes()), change);
    }

    #[test]
    fn points_are_read_as_they_were_written_and_damage_is_noticed(
        words in any::<[u64; 4]>(),
        name in "\\PC{0,60}",
        damaged in 0..CONSISTENCY_POINT_BYTES,
    ) {
        let [number, opening, written_bytes, unix_ms] = words;
        let point = ConsistencyPoint { number, opening, written_bytes, unix_ms, name };
        let mut bytes = point.to_bytes();
        prop_assert_eq!(ConsistencyPoint::parse(&bytes), Some(point));
        bytes[damaged] ^= 1;
        prop_assert_eq!(ConsistencyPoint::parse(&bytes), None);
    }
}

#[test]
fn no_change_set_has_the_number_zero() {
    let header = ChangeSetHeader { number: 0, body_bytes: 0, body_crc: 0 };
    assert_eq!(ChangeSetHeader::parse(&header.to_bytes()), None);
}

#[test]
fn a_name_that_is_too_long_is_cut_between_characters() {
    let point = ConsistencyPoint { name: "\u{20ac}".repeat(100), ..ConsistencyPoint::default() };
    let kept = ConsistencyPoint::parse(&point.to_bytes()).unwrap();
    assert_eq!(kept.name, "\u{20ac}".repeat(85));
}

#[test]
fn a_point_keeps_its_bytes() {
    let name = "day".to_owned();
    let point = ConsistencyPoint { number: 1, opening: 2, written_bytes: 3, unix_ms: 4, name };
    let bytes = point.to_bytes();
    assert_eq!(&bytes[..8], b"pmofcpnt");
    assert_eq!(bytes[8..40].chunks(8).map(|word| word[0]).collect::<Vec<_>>(), [1, 2, 3, 4]);
    assert_eq!((&bytes[40..45], bytes[45]), (&b"\x03\0day"[..], 0));
}
