//! What takes a target long keeps it from nothing else.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use pmof_replica::ServiceOptions;

use crate::support::{Target, options};

/// A pool that is made in some tenths of a second.
const LARGE_BYTES: u64 = 1 << 30;

/// Persists that others get done meanwhile, at least: thousands are, where nobody waits.
const PERSISTS_MIN: u64 = 30;

#[test]
fn a_pool_that_is_made_keeps_nobody_waiting_who_shares_the_thread() {
    // In memory, where only the processor is waited for.
    let target = Target::on_tmpfs(ServiceOptions { workers: 1, ..Default::default() });
    let options = |name: &str| options([target.url(name)]);
    let mut small = options("small").create(1 << 20).unwrap();
    let (is_made, begun) = (AtomicBool::new(false), Instant::now());
    let (made_in, persists) = thread::scope(|scope| {
        let maker = scope.spawn(|| {
            let made = options("large").create(LARGE_BYTES);
            is_made.store(true, Ordering::Release);
            made.unwrap().close().unwrap();
            begun.elapsed()
        });
        let mut persists = 0;
        while !is_made.load(Ordering::Acquire) {
            small.persist(8 * (persists % 64), &persists.to_le_bytes()).unwrap();
            persists += 1;
        }
        (maker.join().unwrap(), persists)
    });
    assert!(made_in > Duration::from_millis(20), "the premise: it takes a while ({made_in:?})");
    assert!(persists >= PERSISTS_MIN, "{persists} persists while a pool was made in {made_in:?}");
    options("large").remove().unwrap();
}
