//! Several programs that open one pool at the same moment.

use std::{
    sync::{
        Arc, Barrier,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use pmof_pool::PoolOptions;

use crate::{
    interrupted::Ways,
    slow::Relay,
    support::{LONG, Target, options, read, urls},
};

/// Opens the pool, writes it and closes it. False: another one has it.
fn try_to_write(options: &PoolOptions) -> bool {
    match options.open() {
        Ok(pool) => {
            pool.persist(0, b"mine").unwrap();
            pool.close().unwrap();
            true
        }
        Err(error) => {
            assert!(error.is_busy(), "{error:?}");
            false
        }
    }
}

#[test]
fn of_those_that_open_a_pool_at_once_one_gets_it() {
    const PROGRAMS: usize = 4;
    let three: [Target; 3] = std::array::from_fn(|_| Target::start());
    options(urls(&three)).create(1 << 20).unwrap().close().unwrap();
    for round in 0..15 {
        let (at_once, is_written) = (Barrier::new(PROGRAMS), AtomicBool::new(false));
        thread::scope(|scope| {
            for _ in 0..PROGRAMS {
                scope.spawn(|| {
                    let all = options(urls(&three));
                    at_once.wait();
                    let until = Instant::now() + LONG;
                    // An opening gives up after a second, which may be too short on a machine that is busy.
                    while !is_written.load(Ordering::SeqCst) {
                        is_written.fetch_or(try_to_write(&all), Ordering::SeqCst);
                        assert!(Instant::now() < until, "all were refused in round {round}");
                    }
                });
            }
        });
    }
}

/// A second program takes the pool while the first one's opening hangs at any of its messages, writes, and is closed or dies. What the first one does when it goes on loses nothing, and leaves a pool that can be
/// opened.
#[test]
fn an_opening_that_hangs_at_any_message_while_another_one_writes() {
    let run = |(at, is_closed): (u64, bool)| {
        let three: [Target; 3] = std::array::from_fn(|_| Target::start());
        let first = options(urls(&three)).create(64 << 10).unwrap();
        first.persist(0, b"first").unwrap();
        // Not closed in order: the next opening compares the members.
        drop(first);
        let ways = Arc::<Ways>::default();
        let late = options(three.iter().map(|target| ways.to(target)));
        ways.hangs.store(true, Ordering::Release);
        ways.left.store(at, Ordering::Release);
        thread::scope(|scope| {
            let late = scope.spawn(move || late.open());
            while !ways.are_over() && !late.is_finished() {
                thread::sleep(Duration::from_millis(1));
            }
            let second = options(urls(&three)).take_over(Duration::ZERO).open().unwrap();
            assert_eq!(read(&second, 0, 5), b"first", "{at}");
            second.persist(0, b"other").unwrap();
            let second = if is_closed { second.close().map(|()| None).unwrap() } else { Some(second) };
            ways.go_on();
            if let Ok(late) = late.join().unwrap() {
                // It may have opened the pool before or behind the other one, and is fenced unless that one is gone.
                let is_last = late.persist(8, b"late").is_ok();
                assert!(!is_last || read(&late, 0, 5) == b"other", "{at}");
            }
            drop(second);
        });
        let last = options(urls(&three)).open_waiting(LONG).unwrap();
        assert_eq!(read(&last, 0, 5), b"other", "{at}");
        last.close().unwrap();
    };
    let run = &run;
    thread::scope(|scope| {
        let all = (1..=24).flat_map(|at| [(at, false), (at, true)]);
        all.for_each(|which| _ = scope.spawn(move || run(which)));
    });
}

/// Each is the first at a replica of its own, again and again, and names that one first.
#[test]
fn one_gets_a_pool_whose_replicas_are_near_to_one_each() {
    const FAR_MS: u64 = 300;
    const TRIES: usize = 2;
    let three: [Target; 3] = std::array::from_fn(|_| Target::start());
    options(urls(&three)).create(1 << 20).unwrap().close().unwrap();
    let programs: [[Relay; 3]; 3] = std::array::from_fn(|_| three.each_ref().map(Relay::before));
    for (program, relays) in programs.iter().enumerate() {
        let far = relays.iter().enumerate().filter(|(replica, _)| *replica != program);
        far.for_each(|(_, relay)| relay.set_late(FAR_MS));
    }
    for _ in 0..TRIES {
        let at_once = Barrier::new(programs.len());
        let open = &|program: usize, relays: &[Relay; 3]| {
            let mut urls = relays.each_ref().map(|relay| relay.url.clone());
            urls.rotate_left(program);
            let all = options(urls);
            at_once.wait();
            try_to_write(&all)
        };
        let have_written = thread::scope(|scope| {
            let programs = programs.iter().enumerate();
            let programs: Vec<_> = programs.map(|(at, relays)| scope.spawn(move || open(at, relays))).collect();
            programs.into_iter().map(|program| program.join().unwrap()).filter(|has| *has).count()
        });
        if have_written > 0 {
            return;
        }
    }
    panic!("all were refused, {TRIES} times");
}
