//! Several programs that open one pool at the same moment.

use std::{sync::Barrier, thread};

use crate::support::{Target, options, urls};

#[test]
fn of_those_that_open_a_pool_at_once_one_gets_it() {
    const PROGRAMS: usize = 4;
    let three: [Target; 3] = std::array::from_fn(|_| Target::start());
    options(urls(&three)).create(1 << 20).unwrap().close().unwrap();
    for round in 0..15 {
        let at_once = Barrier::new(PROGRAMS);
        let try_to_open = || {
            let all = options(urls(&three));
            at_once.wait();
            match all.open() {
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
        };
        let have_opened = thread::scope(|scope| {
            let programs: Vec<_> = (0..PROGRAMS).map(|_| scope.spawn(try_to_open)).collect();
            programs.into_iter().map(|program| program.join().unwrap()).filter(|has| *has).count()
        });
        assert!(have_opened > 0, "all were refused in round {round}");
    }
}
