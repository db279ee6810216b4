//! Targets that are connected to and say nothing: none of them is waited for where enough others have answered.

use std::time::{Duration, Instant};

use pmof_pool::{Acknowledge, MemberState, Pool, PoolOptions};

use crate::{
    slow::Relay,
    support::{LONG, Target, options, read, urls, wait_in_sync},
};

const POOL_BYTES: u64 = 64 << 10;

/// Targets of which some hang behind their relays.
struct Targets<const N: usize> {
    _targets: [Target; N],
    relays: [Relay; N],
}

impl<const N: usize> Targets<N> {
    /// With a pool on all of them, closed, in which `bytes` were written.
    fn start(bytes: &[u8]) -> Self {
        let targets: [Target; N] = std::array::from_fn(|_| Target::start());
        let relays = targets.each_ref().map(Relay::before);
        let pool = options(relays.iter().map(|relay| relay.url.clone())).create(POOL_BYTES).unwrap();
        pool.persist(0, bytes).unwrap();
        pool.close().unwrap();
        Self { _targets: targets, relays }
    }

    /// All of them, with time without an end.
    fn options(&self) -> PoolOptions {
        options(self.relays.iter().map(|relay| relay.url.clone())).connect_timeout(LONG).loss_timeout(LONG)
    }

    fn silence(&self, silent: &[usize]) {
        for at in silent {
            self.relays[*at].hang();
        }
    }
}

/// Does something that takes less than what a silent target may take.
fn in_time<T>(act: impl FnOnce() -> T) -> T {
    let began = Instant::now();
    let done = act();
    assert!(began.elapsed() < LONG / 2, "it waited for silent targets");
    done
}

fn left_out(pool: &Pool) -> Vec<String> {
    pool.left_out().iter().map(|(replica, _)| replica.to_string()).collect()
}

#[test]
fn two_of_five_that_are_silent_are_not_waited_for() {
    let five = Targets::<5>::start(b"here");
    five.silence(&[0, 3]);
    let silent = [0, 3].map(|at| five.relays[at].url.clone());
    let members = in_time(|| five.options().members()).unwrap();
    let lost = members.members.iter().filter(|member| matches!(member.state, MemberState::Lost(_)));
    assert!(lost.map(|member| member.replica.as_ref().unwrap().to_string()).eq(silent.clone()));
    let reader = in_time(|| five.options().open_read_only()).unwrap();
    assert_eq!(read(&reader, 0, 4), b"here");
    drop(reader);
    let pool = in_time(|| five.options().open()).unwrap();
    assert_eq!(left_out(&pool), silent);
    assert_eq!(pool.persist(0, b"more").unwrap().replicas.len(), 3);
    // They join later.
    five.relays.iter().for_each(|relay| relay.set_late(0));
    wait_in_sync(&pool);
    five.silence(&[0, 3]);
    let released = in_time(|| five.options().take_over(Duration::ZERO).release()).unwrap();
    assert_eq!(released.iter().map(Result::is_ok).collect::<Vec<_>>(), [false, true, true, false, true]);
    let said = released[0].as_ref().unwrap_err().to_string();
    assert!(said.contains(&silent[0]) && said.contains("no answer within"), "{said}");
    five.relays.iter().for_each(|relay| relay.set_late(0));
    assert!(pool.persist(0, b"late").unwrap_err().is_fenced());
}

/// One that was named is enough to find the others, silent ones or not.
#[test]
fn those_that_are_found_by_others_are_not_waited_for_either() {
    let targets: [Target; 5] = std::array::from_fn(|_| Target::start());
    let relays = targets.each_ref().map(Relay::before);
    // As it is made, so are its members known.
    let pool = options(relays.iter().map(|relay| relay.url.clone())).create(POOL_BYTES).unwrap();
    pool.persist(0, b"here").unwrap();
    pool.close().unwrap();
    let named = urls(&targets[1..2]);
    relays[3..].iter().for_each(Relay::hang);
    let pool = in_time(|| options(&named).connect_timeout(LONG).open()).unwrap();
    assert_eq!(pool.persist(0, b"more").unwrap().replicas.len(), 3);
}

/// Opens in another thread while some are silent, sees that it waits for them, and lets them answer.
#[track_caller]
fn waited_for<const N: usize>(targets: &Targets<N>, silent: &[usize], options: PoolOptions) -> Pool {
    targets.silence(silent);
    let opening = std::thread::spawn(move || options.open());
    // Longer than anyone is waited for without need.
    std::thread::sleep(Duration::from_secs(1));
    assert!(!opening.is_finished());
    for at in silent {
        targets.relays[*at].set_late(0);
    }
    opening.join().unwrap().unwrap()
}

/// With as few replicas as an operator asks for, one that would have answered may have more than these.
#[test]
fn where_fewer_than_are_safe_will_do_all_are_waited_for() {
    let two = Targets::<2>::start(b"here");
    let pool = waited_for(&two, &[1], two.options().min_replicas(1));
    assert!(pool.left_out().is_empty());
    assert_eq!(pool.persist(0, b"more").unwrap().replicas.len(), 2);
}

#[test]
fn as_many_as_acknowledge_are_waited_for() {
    let three = Targets::<3>::start(b"here");
    let pool = waited_for(&three, &[2], three.options().acknowledge(Acknowledge::AtLeast(3)));
    assert_eq!(pool.persist(0, b"more").unwrap().replicas.len(), 3);
}

/// The control: an opening waits for what it needs.
#[test]
fn where_too_few_answer_the_others_are_waited_for() {
    let three = Targets::<3>::start(b"here");
    three.silence(&[1, 2]);
    let opening = {
        let options = three.options();
        std::thread::spawn(move || options.open())
    };
    // Longer than anyone is waited for without need.
    std::thread::sleep(Duration::from_secs(1));
    assert!(!opening.is_finished());
    three.relays[1].set_late(0);
    let pool = opening.join().unwrap().unwrap();
    assert_eq!(read(&pool, 0, 4), b"here");
    assert_eq!(left_out(&pool), [three.relays[2].url.clone()]);
}
