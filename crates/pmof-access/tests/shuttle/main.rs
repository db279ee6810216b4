//! The locking of the progress code under many schedules of its threads: a wake-up that is missed is a deadlock here.
//!
//! The files under test are the library's own, with shuttle's locks, atomics and threads in the place of the real ones.

mod sync {
    pub(crate) use shuttle_locks::{Condvar, Mutex, MutexGuard, atomic, thread};
}

#[path = "../../src/progress/background.rs"]
#[allow(dead_code, unreachable_pub, reason = "not all that the library uses")]
mod background;
#[path = "../../src/progress/calls.rs"]
mod calls;
#[path = "../../src/progress/shared_fences.rs"]
mod shared_fences;
#[path = "../../src/progress/sleepers.rs"]
#[allow(dead_code, reason = "not all that the library uses")]
mod sleepers;

mod assisting;
mod devices;
mod waiting;

use pmof_access::SetupError;

/// Schedules that each test runs under.
const SCHEDULES: usize = 2_000;
/// Changes of threads at places that matter: most faults of locking need no more.
const DEPTH: usize = 4;

/// Runs a test under random schedules, and under those that change threads at few places.
fn explore(test: impl Fn() + Copy + Send + Sync + 'static) {
    shuttle_locks::check_random(test, SCHEDULES);
    shuttle_locks::check_pct(test, SCHEDULES, DEPTH);
}
