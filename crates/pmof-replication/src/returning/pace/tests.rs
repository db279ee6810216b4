use core::time::Duration;

use super::{LONGEST_PAUSE, Pace, YIELDING};
use crate::{
    catch_up::{CatchUp, Limit},
    pages::PageMap,
};

const LIMIT: Limit = Limit { ranges: 256, bytes: 4 << 20 };
const BEGAN: Duration = Duration::from_secs(100);

fn catch_up() -> CatchUp {
    CatchUp::new(PageMap::full(64 << 20))
}

#[test]
fn a_copy_of_a_pool_that_nobody_writes_never_pauses() {
    let catch_up = catch_up();
    let mut pace = Pace::new(None, &catch_up, BEGAN);
    for copied_bytes in [1, 4 << 20, 64 << 20] {
        assert_eq!(pace.window(LIMIT).bytes, LIMIT.bytes);
        assert_eq!(pace.pause(copied_bytes, BEGAN + LONGEST_PAUSE), Duration::ZERO);
        pace.go_on(BEGAN + LONGEST_PAUSE);
    }
}

#[test]
fn a_copy_leaves_half_of_the_time_to_those_who_write() {
    let catch_up = catch_up();
    let mut pace = Pace::new(None, &catch_up, BEGAN);
    catch_up.before_write();
    let took = Duration::from_millis(5);
    assert_eq!(pace.pause(1 << 20, BEGAN + took), took);
    assert_eq!(pace.window(LIMIT).bytes, LIMIT.bytes / YIELDING);
    pace.go_on(BEGAN + 2 * took);
    // Nobody has written since: the next window is a whole one again.
    assert_eq!(pace.pause(2 << 20, BEGAN + 3 * took), Duration::ZERO);
    assert_eq!(pace.window(LIMIT).bytes, LIMIT.bytes);
    pace.go_on(BEGAN + 3 * took);
    catch_up.before_write();
    assert_eq!(pace.pause(3 << 20, BEGAN + 4 * took), took, "since the last pause");
}

#[test]
fn a_window_that_took_long_is_followed_by_no_longer_pause_than_a_loss_may_go_unnoticed() {
    let catch_up = catch_up();
    let mut pace = Pace::new(None, &catch_up, BEGAN);
    catch_up.before_write();
    assert_eq!(pace.pause(1, BEGAN + 2 * LONGEST_PAUSE), LONGEST_PAUSE);
}

#[test]
fn a_limit_of_bytes_a_second_is_all_that_counts_where_there_is_one() {
    let catch_up = catch_up();
    let mut pace = Pace::new(Some(1 << 20), &catch_up, BEGAN);
    catch_up.before_write();
    assert_eq!(pace.window(LIMIT).bytes, 128 << 10);
    assert_eq!(pace.pause(10 << 20, BEGAN + Duration::from_secs(3)), Duration::from_secs(7));
    let mut unbounded = Pace::new(Some(u64::MAX), &catch_up, BEGAN);
    catch_up.before_write();
    assert_eq!((unbounded.window(LIMIT).bytes, unbounded.pause(1 << 30, BEGAN)), (LIMIT.bytes, Duration::ZERO));
}
