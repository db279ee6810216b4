use std::{
    future::Future,
    panic::{self, AssertUnwindSafe},
    pin::pin,
    sync::{
        Arc, Barrier,
        atomic::{AtomicUsize, Ordering::SeqCst},
        mpsc,
    },
    task::{Context, Poll, Wake, Waker},
    thread,
    time::Duration,
};

use super::{Background, Workers};

/// Threads that end at once when they have nothing to do.
static HASTY: Workers = Workers::new(4, Duration::ZERO);
static TWO: Workers = Workers::new(2, Duration::from_secs(1));

struct Unpark(thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<T>(future: Background<T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(outcome) => return outcome,
            Poll::Pending => thread::park(),
        }
    }
}

#[test]
fn everything_is_done_though_threads_come_and_go() {
    static DONE: AtomicUsize = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for round in 0..200 {
                    let act = move || {
                        DONE.fetch_add(1, SeqCst);
                        round
                    };
                    assert_eq!(block_on(Background::on(&HASTY, act)), round);
                }
            });
        }
    });
    assert_eq!(DONE.load(SeqCst), 1600);
}

#[test]
fn no_more_threads_are_started_than_there_may_be() {
    let (both, blocked) = (Arc::new(Barrier::new(3)), Arc::new(Barrier::new(3)));
    let held = [(); 2].map(|()| {
        let (both, blocked) = (Arc::clone(&both), Arc::clone(&blocked));
        Background::on(&TWO, move || {
            both.wait();
            blocked.wait();
        })
    });
    both.wait();
    let third = Background::on(&TWO, || thread::current().name().map(str::to_owned));
    assert_eq!(TWO.queue.lock().jobs.len(), 1, "it waits for one of the two");
    assert_eq!(TWO.queue.lock().threads, 2);
    blocked.wait();
    assert_eq!(block_on(third).as_deref(), Some("pmof-background"));
    held.into_iter().for_each(block_on);
}

#[test]
fn what_is_dropped_is_done_all_the_same_and_its_outcome_goes() {
    struct Told(mpsc::Sender<()>);
    impl Drop for Told {
        fn drop(&mut self) {
            let _ = self.0.send(());
        }
    }
    let (sender, dropped) = mpsc::channel();
    let (go, wait) = mpsc::channel::<()>();
    let future = Background::run(move || {
        wait.recv().unwrap();
        Told(sender)
    });
    drop(future);
    go.send(()).unwrap();
    dropped.recv().unwrap();
}

#[test]
fn a_panic_is_that_of_whoever_awaits() {
    let future = Background::run(|| panic!("in the operation"));
    let panicked = panic::catch_unwind(AssertUnwindSafe(|| block_on(future))).unwrap_err();
    assert_eq!(panicked.downcast_ref::<&str>(), Some(&"in the operation"));
    assert_eq!(block_on(Background::run(|| 5)), 5, "and the threads go on");
}
