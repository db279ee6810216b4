//! Several programs that open one pool at the same moment.

use std::{
    sync::{
        Barrier,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Instant,
};

use pmof_pool::PoolOptions;

use crate::{
    slow::Relay,
    support::{LONG, Target, options, urls},
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
