//! What takes a target long keeps it from nothing else.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use pmof_target::ServiceOptions;

use crate::support::{Target, options};

/// A pool that is made in some tenths of a second.
const LARGE_BYTES: u64 = 1 << 30;

#[test]
fn a_pool_that_is_made_keeps_nobody_waiting_who_shares_the_thread() {
    // In memory, where only the processor is waited for.
    let target = Target::on_tmpfs(ServiceOptions::default().workers(1));
    let options = |name: &str| options([target.url(name)]);
    let small = options("small").create(1 << 20).unwrap();
    let is_made = AtomicBool::new(false);
    let (made_in, longest) = thread::scope(|scope| {
        let maker = scope.spawn(|| {
            let begun = Instant::now();
            let made = options("large").create(LARGE_BYTES);
            let made_in = begun.elapsed();
            is_made.store(true, Ordering::Release);
            made.unwrap().close().unwrap();
            made_in
        });
        let mut longest = Duration::ZERO;
        while !is_made.load(Ordering::Acquire) {
            let begun = Instant::now();
            small.persist(64, b"meanwhile").unwrap();
            longest = longest.max(begun.elapsed());
        }
        (maker.join().unwrap(), longest)
    });
    assert!(longest < made_in / 2, "a persist took {longest:?} while a pool was made in {made_in:?}");
    options("large").remove().unwrap();
}
