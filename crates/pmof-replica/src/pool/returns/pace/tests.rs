use std::{thread::sleep, time::Duration};

use super::{LONGEST_PAUSE, Pace, YIELDING};
use crate::{
    catch_up::{CatchUp, Limit},
    pages::PageMap,
};

const LIMIT: Limit = Limit { ranges: 256, bytes: 4 << 20 };

fn catch_up() -> CatchUp {
    CatchUp::new(PageMap::full(64 << 20))
}

#[test]
fn a_copy_of_a_pool_that_nobody_writes_never_pauses() {
    let catch_up = catch_up();
    let mut pace = Pace::new(None, &catch_up);
    for copied_bytes in [1, 4 << 20, 64 << 20] {
        assert_eq!(pace.window(LIMIT).bytes, LIMIT.bytes);
        assert_eq!(pace.pause(copied_bytes), Duration::ZERO);
        pace.go_on();
    }
}

#[test]
fn a_copy_leaves_half_of_the_time_to_those_who_write() {
    let catch_up = catch_up();
    let mut pace = Pace::new(None, &catch_up);
    catch_up.before_write();
    sleep(Duration::from_millis(5));
    let pause = pace.pause(1 << 20);
    assert!(pause >= Duration::from_millis(5) && pause <= LONGEST_PAUSE, "{pause:?}");
    assert_eq!(pace.window(LIMIT).bytes, LIMIT.bytes / YIELDING);
    pace.go_on();
    // Nobody has written since: the next window is a whole one again.
    assert_eq!(pace.pause(2 << 20), Duration::ZERO);
    assert_eq!(pace.window(LIMIT).bytes, LIMIT.bytes);
}

#[test]
fn a_window_that_took_long_is_followed_by_no_longer_pause_than_a_loss_may_go_unnoticed() {
    let catch_up = catch_up();
    let mut pace = Pace::new(None, &catch_up);
    catch_up.before_write();
    sleep(LONGEST_PAUSE + Duration::from_millis(1));
    assert_eq!(pace.pause(1), LONGEST_PAUSE);
}

#[test]
fn a_limit_of_bytes_a_second_is_all_that_counts_where_there_is_one() {
    let catch_up = catch_up();
    let mut pace = Pace::new(Some(1 << 20), &catch_up);
    catch_up.before_write();
    assert_eq!(pace.window(LIMIT).bytes, 128 << 10);
    let pause = pace.pause(10 << 20);
    assert!(pause > Duration::from_secs(5) && pause <= Duration::from_secs(10), "{pause:?}");
    let mut unbounded = Pace::new(Some(u64::MAX), &catch_up);
    catch_up.before_write();
    assert_eq!((unbounded.window(LIMIT).bytes, unbounded.pause(1 << 30)), (LIMIT.bytes, Duration::ZERO));
}
