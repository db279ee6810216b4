//! How far asynchronous members lag under load, while they are slowed at random: never beyond the bound. Until enough was seen here, and for at least as long as `PMOF_LAG_SECONDS` says.
//!
//! What is compared with the bound on age are moments of one clock, in the order of what happened: a thread that gets no processor makes none of these differences longer.

use std::{
    collections::VecDeque,
    panic::AssertUnwindSafe,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use pmof_pool::{AsynchronousState, AsynchronousStatus, AtLagBound, Event, Pool};
use pmof_target::{Service, ServiceOptions};

use crate::{slow::Relay, support::*};

const POOL_BYTES: u64 = 8 << 20;
const BOUND_BYTES: u64 = 1 << 20;
const BOUND_AGE: Duration = Duration::from_millis(600);
const WRITE_BYTES: u64 = 16 << 10;

fn load_time() -> Duration {
    let seconds = std::env::var("PMOF_LAG_SECONDS").map_or(1, |seconds| seconds.parse().expect("a number of seconds"));
    Duration::from_secs(seconds)
}

fn status(pool: &Pool) -> AsynchronousStatus {
    pool.status().unwrap().asynchronous.remove(0)
}

/// What was seen under load.
#[derive(Debug, Default)]
struct Seen {
    writes: u64,
    looks: u64,
    most_bytes: u64,
    /// The most time between a write that was accepted and the oldest one that the member did not have then.
    most_time: Duration,
    fell_behind: usize,
    longest_write: Duration,
}

/// What was seen while the pool is written.
#[derive(Debug, Default)]
struct Looks {
    count: AtomicU64,
    most_bytes: AtomicU64,
    /// The member was seen to have fallen behind.
    has_fallen_behind: AtomicBool,
}

/// Writes as fast as it can while the member is slowed, and looks how far it lags all the time, until that is `enough`. At the end the member must be equal to the pool.
fn under_load(
    (then, age): (AtLagBound, Duration),
    (far, near): (&str, &str),
    slow: impl Fn(u64) + Sync,
    enough: impl Fn(&Seen, &Looks) -> bool,
) -> Seen {
    let pool = options([near]).lag_bound(BOUND_BYTES, age, then).point_interval(Some(Duration::from_millis(50)));
    let pool = pool.create(POOL_BYTES).unwrap();
    pool.add_asynchronous(far).unwrap();
    let until = Instant::now() + LONG;
    while !matches!(status(&pool).state, AsynchronousState::Following) {
        assert!(Instant::now() < until, "{:?}", status(&pool));
        thread::sleep(Duration::from_millis(2));
    }
    let (mut events, is_done, mut seen) = (pool.events(), AtomicBool::new(false), Seen::default());
    let looks = Looks::default();
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                let status = status(&pool);
                if let (AsynchronousState::Following, Some(bytes)) = (&status.state, status.lag_bytes) {
                    looks.most_bytes.fetch_max(bytes, Ordering::Relaxed);
                    looks.count.fetch_add(1, Ordering::Relaxed);
                } else {
                    looks.has_fallen_behind.store(true, Ordering::Relaxed);
                }
                thread::sleep(Duration::from_millis(1));
            }
        });
        scope.spawn(|| {
            let mut random = pattern(1 << 16, 5).into_iter().cycle();
            while !is_done.load(Ordering::Relaxed) {
                let mut next = || u64::from(random.next().unwrap());
                slow(if next() < 64 { 0 } else { next() });
                thread::sleep(Duration::from_millis(20 + 2 * next()));
            }
            slow(0);
        });
        // The others end behind a panic, too.
        let done = std::panic::catch_unwind(AssertUnwindSafe(|| write(&pool, &mut seen, |seen| enough(seen, &looks))));
        is_done.store(true, Ordering::Relaxed);
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    (seen.most_bytes, seen.looks) = (looks.most_bytes.into_inner(), looks.count.into_inner());
    pool.consistency_point("end").unwrap();
    let until = Instant::now() + 2 * LONG;
    while status(&pool).lag_bytes != Some(0) {
        assert!(Instant::now() < until, "{:?}", status(&pool));
        thread::sleep(Duration::from_millis(5));
    }
    let expected = read(&pool, 0, POOL_BYTES as usize);
    pool.close().unwrap();
    drop(pool);
    let told = std::iter::from_fn(|| events.next_for(Duration::ZERO));
    seen.fell_behind = told.filter(|event| matches!(event, Event::FellBehind { .. })).count();
    let alone = options([far]);
    alone.promote(true).unwrap();
    assert!(read(&alone.open().unwrap(), 0, POOL_BYTES as usize) == expected, "the member differs");
    println!("{then:?}: {seen:?}");
    seen
}

fn write(pool: &Pool, seen: &mut Seen, enough: impl Fn(&Seen) -> bool) {
    let (began, bytes) = (Instant::now(), pattern(WRITE_BYTES as usize, 3));
    let (least, longest) = (began + load_time(), began + load_time() + 2 * LONG);
    // When each write that the member does not have was known to be accepted.
    let mut accepted: VecDeque<(u64, Instant)> = VecDeque::new();
    while Instant::now() < least || !enough(seen) {
        assert!(Instant::now() < longest, "{seen:?}");
        let offset = seen.writes * 7919 * 512 % (POOL_BYTES - WRITE_BYTES);
        let began = Instant::now();
        pool.persist(offset, &bytes).unwrap();
        seen.longest_write = seen.longest_write.max(began.elapsed());
        seen.writes += 1;
        accepted.push_back((seen.writes * WRITE_BYTES, Instant::now()));
        let status = status(pool);
        let has = status.point.map_or(0, |point| point.written_bytes);
        while accepted.front().is_some_and(|(written, _)| *written <= has) {
            accepted.pop_front();
        }
        // Writes count for a member that fell behind only once it follows again.
        if !matches!(status.state, AsynchronousState::Following) {
            accepted.clear();
        }
        let oldest = accepted.front().map_or(began, |(_, at)| *at);
        seen.most_time = seen.most_time.max(began.saturating_duration_since(oldest));
    }
}

/// A member whose connection is slow at random.
fn over_tcp(bound: (AtLagBound, Duration), enough: impl Fn(&Seen, &Looks) -> bool) -> Seen {
    let (near, far) = (Target::start_fixed(), Target::start_fixed());
    let relay = Relay::before(&far);
    let near = near.url("orders");
    under_load(bound, (&relay.url, &near), |random| relay.set_late(random / 2), enough)
}

/// A member on shared memory, which nothing slows but the load.
fn over_shm(bound: (AtLagBound, Duration), enough: impl Fn(&Seen, &Looks) -> bool) -> Seen {
    let near = Target::on_tmpfs(ServiceOptions::default());
    let (root, socket) = (tempfile::tempdir_in("/dev/shm").unwrap(), tempfile::tempdir().unwrap());
    let listen = format!("shm://{}", socket.path().join("target").display()).parse().unwrap();
    let service = Service::start(root.path(), &[listen], ServiceOptions::default()).unwrap();
    let far = format!("{}?pool=orders", service.addresses()[0]);
    under_load(bound, (&far, &near.url("orders")), |_| {}, enough)
}

/// So many writes and looks that one beyond the bound would show.
fn is_well_seen(seen: &Seen, looks: &Looks) -> bool {
    looks.count.load(Ordering::Relaxed) > 50 && seen.writes > 10
}

#[track_caller]
fn check_waited(seen: &Seen) {
    assert!(seen.most_bytes <= BOUND_BYTES && seen.fell_behind == 0, "{seen:?}");
    assert!(seen.most_time <= BOUND_AGE, "{seen:?}");
}

#[test]
fn lag_stays_within_the_bound_where_those_who_write_wait() {
    // Until it was slow enough to come near the bound.
    let is_near = |looks: &Looks| looks.most_bytes.load(Ordering::Relaxed) > BOUND_BYTES / 2;
    let bound = (AtLagBound::Wait, BOUND_AGE);
    check_waited(&over_tcp(bound, |seen, looks| is_well_seen(seen, looks) && is_near(looks)));
}

#[test]
fn lag_stays_within_the_bound_where_the_member_falls_behind() {
    let has_fallen = |looks: &Looks| looks.has_fallen_behind.load(Ordering::Relaxed);
    let bound = (AtLagBound::FallBehind, Duration::MAX);
    let seen = over_tcp(bound, |_, looks| looks.count.load(Ordering::Relaxed) > 5 && has_fallen(looks));
    assert!(seen.most_bytes <= BOUND_BYTES && seen.fell_behind > 0, "{seen:?}");
}

#[test]
fn lag_stays_within_the_bound_over_shared_memory() {
    check_waited(&over_shm((AtLagBound::Wait, BOUND_AGE), is_well_seen));
    // One that fell behind is not looked at, and may be so most of the time.
    let is_seen = |seen: &Seen, looks: &Looks| looks.count.load(Ordering::Relaxed) > 5 && seen.writes > 10;
    let seen = over_shm((AtLagBound::FallBehind, Duration::MAX), is_seen);
    assert!(seen.most_bytes <= BOUND_BYTES, "{seen:?}");
}

#[test]
fn a_member_that_hangs_does_not_follow_beyond_the_bound() {
    let [near, far] = [0, 1].map(|_| Target::start());
    let relay = Relay::before(&far);
    let pool = options([near.url("orders")]).lag_bound(BOUND_BYTES, Duration::MAX, AtLagBound::Wait);
    let pool = pool.point_interval(Some(Duration::from_millis(50))).loss_timeout(Duration::from_millis(500));
    let pool = pool.create(POOL_BYTES).unwrap();
    let mut events = pool.events();
    pool.add_asynchronous(&relay.url).unwrap();
    wait_for(&mut events, |event| matches!(event, Event::Following { .. }));
    relay.set_late(u64::MAX);
    // Those who write wait at the bound, and are let go when the member is lost.
    let bytes = pattern(WRITE_BYTES as usize, 3);
    for write in 0..4 * BOUND_BYTES / WRITE_BYTES {
        pool.persist(write * WRITE_BYTES % (POOL_BYTES - WRITE_BYTES), &bytes).unwrap();
        let status = status(&pool);
        let is_beyond = status.lag_bytes.is_some_and(|bytes| bytes > BOUND_BYTES);
        assert!(!is_beyond || matches!(status.state, AsynchronousState::Lost(_)), "{status:?}");
    }
    let status = status(&pool);
    assert!(matches!(status.state, AsynchronousState::Lost(_)) && status.lost_for.is_some(), "{status:?}");
    relay.set_late(0);
}

/// Closing waits for it as long as the pool says, not once for what it lacks and once more for its end.
#[test]
fn a_member_that_hangs_holds_up_a_close_for_the_loss_timeout() {
    const LOSS_TIMEOUT: Duration = Duration::from_secs(4);
    let [near, far] = [0, 1].map(|_| Target::start());
    let relay = Relay::before(&far);
    let pool = options([near.url("orders")]).loss_timeout(LOSS_TIMEOUT).create(POOL_BYTES).unwrap();
    let mut events = pool.events();
    pool.add_asynchronous(&relay.url).unwrap();
    wait_for(&mut events, |event| matches!(event, Event::Following { .. }));
    relay.hang();
    pool.persist(0, b"not sent").unwrap();
    let began = Instant::now();
    pool.close().unwrap();
    assert!(began.elapsed() < LOSS_TIMEOUT * 15 / 8, "{:?}", began.elapsed());
    relay.set_late(0);
}
