//! Tells an initiator that its request is being worked on, so that it waits for as long as that takes.

use std::{
    thread,
    time::{Duration, Instant},
};

use pmof_control::Request;
use pmof_locks::{Condvar, Mutex};

/// Between two messages: a part of what any initiator waits for an answer.
pub(super) const INTERVAL: Duration = Duration::from_millis(250);

/// Whether carrying a request out can take longer than an initiator waits for an answer: parts are flushed, compared with their medium or read.
/// Members of native pools are not waited for so: one whose disk hangs must not hold up the others.
pub(super) fn is_long(request: &Request, has_set_open: bool) -> bool {
    use Request::{
        Close, CreateSet, KeepSet, OpenBehind, OpenSet, PrepareRemoval, PrepareReplacement, RemoveSet, SetAttributes,
        SetFiles,
    };
    match request {
        Close { .. } => has_set_open,
        CreateSet { .. }
        | OpenSet { .. }
        | OpenBehind { .. }
        | KeepSet
        | SetAttributes { .. }
        | SetFiles { .. }
        | RemoveSet { .. }
        | PrepareRemoval { .. }
        | PrepareReplacement { .. } => true,
        _ => false,
    }
}

/// Calls `tell` at once, and from then on each `interval` until `work` is done; not any more once this returns.
pub(super) fn tell_while<T>(tell: &(impl Fn() + Sync), interval: Duration, work: impl FnOnce() -> T) -> T {
    tell();
    let end = End::default();
    thread::scope(|scope| {
        // Where there is no thread for it, the work is done all the same.
        let _ = thread::Builder::new().name("pmof-working".to_owned()).spawn_scoped(scope, || end.tell(tell, interval));
        let _ended = EndOnDrop(&end);
        work()
    })
}

/// Whether the work is done.
#[derive(Default)]
struct End {
    is_done: Mutex<bool>,
    done: Condvar,
}

impl End {
    fn tell(&self, tell: &impl Fn(), interval: Duration) {
        let mut is_done = self.is_done.lock();
        while !*is_done {
            let due = Instant::now() + interval;
            while !*is_done && !self.done.wait_until(&mut is_done, due).timed_out() {}
            // Under the lock, so that nothing is told behind the end.
            if !*is_done {
                tell();
            }
        }
    }
}

/// Ends it also where the work panics: the scope waits for its thread.
struct EndOnDrop<'e>(&'e End);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        *self.0.is_done.lock() = true;
        self.0.done.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::{
        panic::{AssertUnwindSafe, catch_unwind},
        sync::mpsc,
    };

    use super::*;

    #[test]
    fn work_is_told_of_until_it_ends() {
        let (send, told) = mpsc::channel();
        let send = Mutex::new(send);
        let tell = || send.lock().send(()).unwrap();
        // It ends once it was told of so often.
        let worked = tell_while(&tell, Duration::from_millis(1), || (0..5).map(|_| told.recv().unwrap()).count());
        assert_eq!(worked, 5);
        let _ = told.try_iter().last();
        let panicked = catch_unwind(AssertUnwindSafe(|| tell_while(&tell, INTERVAL, || panic!("on purpose"))));
        assert!(panicked.is_err() && told.try_iter().count() >= 1);
    }
}
