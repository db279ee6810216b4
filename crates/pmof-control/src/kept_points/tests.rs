use proptest::prelude::*;

use super::*;

fn index(words: [u64; 3], gaps: Vec<u64>) -> PointIndex {
    let [sequence, last, begin] = words;
    let (mut start, mut number) = (begin, 0);
    let points = gaps.into_iter().map(|gap| {
        (start, number) = (start + gap, number + gap + 1);
        let point = ConsistencyPoint { number, name: format!("point {number}"), ..ConsistencyPoint::default() };
        KeptPoint { start, point }
    });
    let points: Vec<_> = points.collect();
    let head = PointIndexHead { sequence, area: 5, last, begin, end: start, keep: 7, ..PointIndexHead::default() };
    PointIndex { head, points }
}

fn parse(bytes: &[u8]) -> Option<PointIndex> {
    let head = PointIndexHead::parse(bytes.first_chunk()?)?;
    PointIndex::parse(head, bytes.get(POINT_INDEX_HEAD_BYTES..POINT_INDEX_HEAD_BYTES + head.entries_bytes())?)
}

proptest! {
    #[test]
    fn an_index_is_read_as_it_was_written_and_damage_is_noticed(
        words in any::<[u32; 3]>(),
        gaps in proptest::collection::vec(0..1000_u64, 0..8),
        damaged in any::<proptest::sample::Index>(),
    ) {
        let index = index(words.map(u64::from), gaps);
        let mut bytes = index.to_bytes();
        let read = parse(&bytes).expect("an index");
        prop_assert_eq!(&read.points, &index.points);
        prop_assert_eq!((read.head.sequence, read.head.last), (index.head.sequence, index.head.last));
        prop_assert_eq!((read.head.begin, read.head.end, read.head.keep), (index.head.begin, index.head.end, 7));
        let damaged = damaged.index(bytes.len());
        // Behind the checksum of the head are zeros that nobody looks at.
        prop_assume!(!(68..72).contains(&damaged));
        bytes[damaged] ^= 1;
        prop_assert_eq!(parse(&bytes), None);
    }
}

#[test]
fn an_index_holds_as_many_points_as_there_may_be() {
    let full = index([1, 2, 3], vec![1; KEPT_POINTS_MAX]);
    let bytes = full.to_bytes();
    assert_eq!(bytes.len(), POINT_INDEX_MAX_BYTES);
    assert_eq!(parse(&bytes).map(|index| index.points), Some(full.points));
}

#[test]
fn an_index_keeps_its_bytes() {
    let bytes = index([1, 2, 3], vec![4]).to_bytes();
    assert_eq!(&bytes[..8], b"pmofpnts");
    assert_eq!(bytes[8..48].chunks(8).map(|word| word[0]).collect::<Vec<_>>(), [1, 5, 2, 3, 7]);
    assert_eq!(bytes[48..52], [7, 0, 1, 0]);
    assert_eq!((bytes[72], &bytes[80..88]), (7, &b"pmofcpnt"[..]));
}

#[test]
fn points_out_of_order_are_none() {
    let mut index = index([1, 2, 3], vec![4, 5]);
    index.points.swap(0, 1);
    assert_eq!(parse(&index.to_bytes()), None);
    index.points.truncate(1);
    index.points[0].start = index.head.end + 1;
    assert_eq!(parse(&index.to_bytes()), None);
}

/// Each point ends with a checksum of its own, behind which a CRC32C is the same whatever the point is.
#[test]
fn a_point_in_the_place_of_another_is_noticed() {
    let (one, other) = (index([1, 2, 3], vec![4]), index([1, 2, 3], vec![9]));
    let (mut bytes, other) = (one.to_bytes(), other.to_bytes());
    bytes[POINT_INDEX_HEAD_BYTES + 8..].copy_from_slice(&other[POINT_INDEX_HEAD_BYTES + 8..]);
    assert_eq!(parse(&bytes), None);
}
