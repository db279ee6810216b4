use std::{
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use super::*;

const LONG: Duration = Duration::from_secs(30);
const MOMENT: Duration = Duration::from_millis(20);

#[test]
fn a_panic_does_not_poison() {
    let (mutex, lock) = (Mutex::new(1), RwLock::new(1));
    let panicked = thread::scope(|scope| {
        scope
            .spawn(|| {
                let (mut value, mut other) = (mutex.lock(), lock.write());
                *value += 1;
                *other += 1;
                panic!("as it should");
            })
            .join()
    });
    assert!(panicked.is_err());
    assert_eq!(*mutex.lock(), 2);
    assert_eq!(mutex.try_lock().map(|value| *value), Some(2));
    assert_eq!(*lock.read(), 2);
    assert_eq!((mutex.into_inner(), lock.into_inner()), (2, 2));
}

#[test]
fn a_locked_mutex_is_not_locked_again() {
    let mutex = Mutex::new(());
    let guard = mutex.lock();
    thread::scope(|scope| {
        scope.spawn(|| {
            assert!(mutex.try_lock().is_none());
            let began = Instant::now();
            assert!(mutex.try_lock_for(MOMENT).is_none() && began.elapsed() >= MOMENT);
        });
    });
    thread::scope(|scope| {
        scope.spawn(|| assert!(mutex.try_lock_for(LONG).is_some()));
        thread::sleep(MOMENT);
        drop(guard);
    });
}

#[test]
fn a_read_write_lock_has_readers_or_a_writer() {
    let lock = RwLock::new(0);
    let reader = lock.read();
    assert!(lock.try_read().is_some() && lock.try_write().is_none());
    drop(reader);
    let mut writer = lock.write();
    *writer = 1;
    assert!(lock.try_read().is_none() && lock.try_write().is_none());
    thread::scope(|scope| {
        scope.spawn(|| {
            assert!(lock.try_read_for(MOMENT).is_none() && lock.try_write_for(MOMENT).is_none());
        });
    });
    drop(writer);
    assert_eq!(*lock.try_read_for(LONG).unwrap(), 1);
}

/// A pool that is never idle is held still: readers that come one behind the other leave no moment without one.
#[test]
fn a_writer_comes_to_its_turn_among_readers_and_lets_them_in_when_it_gives_up() {
    let lock = RwLock::new(0_u64);
    let reader = lock.read();
    thread::scope(|scope| {
        scope.spawn(|| {
            assert!(lock.try_write_for(MOMENT).is_none(), "a reader has it");
            let further = lock.try_read();
            assert!(further.is_some(), "it waits no more");
        });
    });
    thread::scope(|scope| {
        scope.spawn(|| assert!(lock.try_write_for(2 * MOMENT).is_none()));
        while lock.try_read().is_some() {
            thread::yield_now();
        }
        // On a thread of its own, since this one reads.
        scope.spawn(|| {
            let began = Instant::now();
            assert!(
                lock.try_read_for(LONG).is_some() && began.elapsed() < LONG,
                "it was let in when the writer gave up"
            );
        });
    });
    thread::scope(|scope| {
        let writer = scope.spawn(|| *lock.try_write_for(LONG).unwrap() += 1);
        while lock.try_read().is_some() {
            thread::yield_now();
        }
        drop(reader);
        writer.join().unwrap();
    });
    assert_eq!(lock.into_inner(), 1);
}

#[test]
fn a_wait_ends_with_its_notification_or_its_time() {
    let shared = Arc::new((Mutex::new(0), Condvar::new()));
    let (tell, told) = mpsc::channel();
    let waiters = [false, true].map(|is_limited| {
        let (shared, tell) = (Arc::clone(&shared), tell.clone());
        thread::spawn(move || {
            let mut value = shared.0.lock();
            tell.send(()).unwrap();
            if is_limited {
                let result = shared.1.wait_while_for(&mut value, |value| *value == 0, LONG);
                assert!(!result.timed_out());
            } else {
                shared.1.wait_while(&mut value, |value| *value == 0);
            }
            *value += 1;
        })
    });
    for _ in &waiters {
        told.recv().unwrap();
    }
    // A thread that has told waits, or has the lock.
    *shared.0.lock() = 1;
    shared.1.notify_all();
    for waiter in waiters {
        waiter.join().unwrap();
    }
    let mut value = shared.0.lock();
    assert_eq!(*value, 3);
    assert!(shared.1.wait_until(&mut value, Instant::now() + MOMENT).timed_out());
    assert!(shared.1.wait_for(&mut value, Duration::ZERO).timed_out());
    assert!(shared.1.wait_while_for(&mut value, |value| *value == 3, MOMENT).timed_out());
}

#[test]
fn each_notification_of_one_wakes_one() {
    let shared = (Mutex::new((0, 0)), Condvar::new());
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut counts = shared.0.lock();
                shared.1.wait_while(&mut counts, |(tokens, _)| *tokens == 0);
                counts.0 -= 1;
                counts.1 += 1;
            });
        }
        for _ in 0..4 {
            shared.0.lock().0 += 1;
            shared.1.notify_one();
        }
    });
    assert_eq!(*shared.0.lock(), (0, 4));
}
