use super::*;

const AFTER: Duration = Duration::from_secs(10);

#[test]
fn the_one_that_is_lost_for_longest_is_due_when_its_time_is_over() {
    let (mut all, began) = (Lost::default(), Instant::now());
    let at = |seconds: u64| began + Duration::from_secs(seconds);
    assert_eq!(all.look(&[], at(0), AFTER), [0; 0]);
    assert_eq!(all.look(&[2], at(1), AFTER), [0; 0]);
    assert_eq!(all.look(&[0, 2], at(5), AFTER), [0; 0]);
    assert_eq!(all.look(&[0, 2], at(11), AFTER), [2]);
    assert_eq!(all.look(&[0, 2], at(16), AFTER), [2, 0], "again, until it is lost no more");
    assert_eq!(all.look(&[0], at(17), AFTER), [0]);
}

#[test]
fn one_that_comes_back_in_time_begins_anew() {
    let (mut all, began) = (Lost::default(), Instant::now());
    let at = |seconds: u64| began + Duration::from_secs(seconds);
    assert_eq!(all.look(&[1], at(0), AFTER), [0; 0]);
    assert_eq!(all.look(&[], at(9), AFTER), [0; 0]);
    assert_eq!(all.look(&[1], at(11), AFTER), [0; 0]);
    assert_eq!(all.look(&[1], at(20), AFTER), [0; 0]);
    assert_eq!(all.look(&[1], at(21), AFTER), [1]);
}

#[test]
fn a_spare_that_cannot_be_taken_is_tried_less_and_less_often() {
    let spares = Spares::new(Duration::ZERO);
    let mut now = Instant::now();
    assert!(spares.may_try(now));
    let mut pauses = Vec::new();
    for _ in 0..12 {
        spares.tried(false, now);
        let began = now;
        while !spares.may_try(now) {
            now += Duration::from_secs(1);
        }
        pauses.push((now - began).as_secs());
    }
    assert_eq!(pauses, [2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600, 600]);
    spares.tried(true, now);
    assert!(spares.may_try(now));
}
