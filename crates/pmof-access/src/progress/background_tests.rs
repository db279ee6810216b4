use std::{
    sync::mpsc::{Receiver, Sender, channel},
    time::Duration,
};

use super::background::{BackgroundThreads, SHARE_MAX};

/// Longer than any work here takes.
const LIMIT: Duration = Duration::from_secs(20);
/// Work that is not to begin has begun by then.
const MOMENT: Duration = Duration::from_millis(50);

/// Work that tells when it begins and ends when it is told to.
fn held(background: &BackgroundThreads, share: u64, begun: &Sender<u64>) -> Sender<()> {
    let (end, told) = channel();
    let begun = begun.clone();
    background.run(share, move || {
        let _ = begun.send(share);
        let _ = told.recv_timeout(LIMIT);
    });
    end
}

fn next(begun: &Receiver<u64>) -> u64 {
    begun.recv_timeout(LIMIT).expect("work begins")
}

#[test]
fn a_share_that_hangs_keeps_no_other_from_its_threads() {
    let background = BackgroundThreads::start().unwrap();
    let (notify, begun) = channel();
    let hanging: Vec<_> = (0..SHARE_MAX + 5).map(|_| held(&background, 1, &notify)).collect();
    for _ in 0..SHARE_MAX {
        assert_eq!(next(&begun), 1);
    }
    assert!(begun.recv_timeout(MOMENT).is_err(), "no more of it at once");
    for share in 2..6 {
        drop(held(&background, share, &notify));
        assert_eq!(next(&begun), share);
    }
    drop(hanging);
    for _ in 0..5 {
        assert_eq!(next(&begun), 1, "the rest of it, once there is room");
    }
}

#[test]
fn threads_are_used_again() {
    let background = BackgroundThreads::start().unwrap();
    let (notify, begun) = channel();
    for _ in 0..100 {
        while background.threads().1 == 0 {
            std::thread::yield_now();
        }
        drop(held(&background, 1, &notify));
        next(&begun);
    }
    assert_eq!(background.threads().0, 1, "one piece after the other needs no more");
}

#[test]
fn a_piece_that_follows_another_is_carried_out_with_no_thread_to_spare() {
    let background = BackgroundThreads::start().unwrap();
    let (notify, begun) = channel();
    let here = background.clone();
    background.run(1, move || here.run_next(1, move || notify.send(1).unwrap()));
    assert_eq!(next(&begun), 1);
}

#[test]
fn the_last_drop_waits_for_what_was_handed_over() {
    let background = BackgroundThreads::start().unwrap();
    let (notify, begun) = channel();
    for share in 0..40 {
        let notify = notify.clone();
        background.run(share % 2, move || {
            std::thread::sleep(Duration::from_millis(1));
            notify.send(share).unwrap();
        });
    }
    drop(background.clone());
    drop(background);
    assert_eq!(begun.try_iter().count(), 40);
}

#[test]
fn work_may_hold_the_last_handle() {
    let (notify, begun) = channel();
    let background = BackgroundThreads::start().unwrap();
    let here = background.clone();
    background.run(1, move || {
        let (_here, _) = (here, notify.send(1));
    });
    drop(background);
    assert_eq!(next(&begun), 1);
}

#[test]
fn a_panic_takes_no_thread_and_finish_waits_for_the_rest() {
    let background = BackgroundThreads::start().unwrap();
    for _ in 0..2 * SHARE_MAX {
        background.run(1, || std::panic::resume_unwind(Box::new("of a test")));
    }
    let (notify, begun) = channel();
    background.run(1, move || {
        std::thread::sleep(MOMENT);
        notify.send(1).unwrap();
    });
    background.finish();
    assert_eq!(begun.try_recv(), Ok(1));
}
