use pmof_control::ConsistencyPoint;
use uuid::Uuid;

use super::*;

#[test]
fn a_member_is_where_it_was_left_by_its_point_and_boot() {
    let point = |number, written_bytes| ConsistencyPoint { number, written_bytes, ..ConsistencyPoint::default() };
    let (boot, other) = (Some(Uuid::from_u128(1)), Some(Uuid::from_u128(2)));
    let left = LeftAt { point: point(7, 100), next: Some(point(8, 150)), boot };
    assert!(left.is_left_at(Some(&point(7, 100)), boot));
    assert!(left.is_left_at(Some(&point(8, 150)), boot), "staged, and applied when it came back");
    // Of another writer, or gone back.
    assert!(!left.is_left_at(Some(&point(8, 50)), boot));
    assert!(!left.is_left_at(Some(&point(6, 90)), boot));
    assert!(!left.is_left_at(None, boot));
    assert!(!left.is_left_at(Some(&point(7, 100)), other));
    let unknown = LeftAt { boot: None, ..left.clone() };
    assert!(!unknown.is_left_at(Some(&point(7, 100)), None));
    assert!(!LeftAt { next: None, ..left }.is_left_at(Some(&point(8, 150)), boot));
}

/// Pauses double up to the longest, and stay long once another member was found there.
#[test]
fn pauses_grow_up_to_the_longest() {
    let limits = Limits::SHIPPED;
    let mut tries = Tries { pause: limits.first_pause, is_noted: false };
    let mut pauses = |stop: Stop<()>| tries.next_pause(&limits, &stop).as_millis();
    let lost: Vec<_> = (0..9).map(|_| pauses(Stop::Lost(()))).collect();
    assert_eq!(lost, [20, 40, 80, 160, 320, 640, 1280, 2000, 2000]);
    assert_eq!(pauses(Stop::Rejected(())), 30_000);
    assert_eq!(pauses(Stop::Later), 30_000);
}
