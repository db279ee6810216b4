use std::{sync::mpsc, thread};

use pmof_replication::opening::limits::GRACE;

use super::*;

const LONG: Duration = Duration::from_secs(60);

#[test]
fn one_that_is_silent_is_waited_for_no_longer_than_the_grace() {
    let (open, closed) = mpsc::channel::<()>();
    let closed = Mutex::new(closed);
    let began = Instant::now();
    let answers = together(vec![0, 1, 2, 3, 4], (3, &mut Tempo::new(GRACE)), move |place, given_up| {
        if place == 2 {
            // Until the test has ended.
            let _ = closed.lock().recv();
            assert!(given_up.load(Ordering::Relaxed));
        }
        Ok(place)
    });
    assert!(began.elapsed() < LONG, "it is never waited for");
    let silent = |answer: &Result<i32, ReplicaError>| matches!(answer, Err(ReplicaError::Silent { waited_ms }) if *waited_ms >= 300);
    assert_eq!(answers.iter().map(silent).collect::<Vec<_>>(), [false, false, true, false, false]);
    drop(open);
}

#[test]
fn all_are_waited_for_where_too_few_have_answered() {
    let (open, closed) = mpsc::channel::<()>();
    let closed = Mutex::new(closed);
    let later = thread::spawn(move || {
        thread::sleep(GRACE * 2);
        drop(open);
    });
    let answers = together(vec![0, 1, 2], (2, &mut Tempo::new(GRACE)), move |place, _| match place {
        0 => Ok(0),
        1 => Err(ReplicaError::Unexpected),
        _ => {
            let _ = closed.lock().recv();
            Ok(2)
        }
    });
    later.join().unwrap();
    assert!(matches!(answers[..], [Ok(0), Err(ReplicaError::Unexpected), Ok(2)]), "{answers:?}");
}

#[test]
fn all_are_asked_at_once() {
    let all = Arc::new(std::sync::Barrier::new(8));
    let answers = together((0..8).collect(), (8, &mut Tempo::new(GRACE)), move |place, _| {
        all.wait();
        Ok(place)
    });
    assert!(answers.into_iter().map(Result::unwrap).eq(0..8));
    assert!(together(Vec::<u8>::new(), (0, &mut Tempo::new(GRACE)), |place, _| Ok(place)).is_empty());
}
