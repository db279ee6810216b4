//! What an opening waits for at each target, counted by a relay and not timed.

use std::{
    net::{TcpListener, TcpStream},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use pmof_control::Request;
use pmof_locks::Mutex;
use pmof_pool::{Pool, PoolOptions};
use pmof_proto::frame::{Frame, Opcode};
use pmof_target::ServiceOptions;

use crate::{lying::pass, support::*};

const POOL_BYTES: u64 = 4 << 20;

/// An opening after a crash takes so many round trips at most.
const AFTER_CRASH_MAX: usize = 8;

/// What was waited for, in its order.
type Waits = Arc<Mutex<Vec<String>>>;

/// A relay that counts, before a target.
struct Counter {
    url: String,
    waits: Waits,
}

impl Counter {
    /// `is_of_version_4`: the announcement of versions is taken away, as a target of that release has none.
    fn before(target: &Target, is_of_version_4: bool) -> Self {
        let there = target.address().to_string().trim_start_matches("tcp://").to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("tcp://{}/orders", listener.local_addr().unwrap());
        let waits = Waits::default();
        let noted = Arc::clone(&waits);
        thread::spawn(move || {
            for near in listener.incoming() {
                noted.lock().push("TCP".to_owned());
                let near = near.unwrap();
                // A target that is stopped is tried again.
                let Ok(far) = TcpStream::connect(&there) else { continue };
                near.set_nodelay(true).unwrap();
                far.set_nodelay(true).unwrap();
                let (from, to, waits) = (near.try_clone().unwrap(), far.try_clone().unwrap(), Arc::clone(&noted));
                thread::spawn(move || pass(from, to, |frame, payload| note(&waits, frame, payload)));
                thread::spawn(move || {
                    pass(far, near, |frame, payload| {
                        if is_of_version_4 && frame.opcode == Opcode::Welcome {
                            payload.clear();
                            (frame.length, frame.payload_crc) = (0, crc32c::crc32c(payload));
                        }
                    });
                });
            }
        });
        Self { url, waits }
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.waits.lock())
    }
}

/// A frame of an initiator that has to be answered before it goes on. Neighbours that are no messages are answered together.
fn note(waits: &Waits, frame: &Frame, payload: &[u8]) {
    let mut waits = waits.lock();
    match frame.opcode {
        Opcode::Hello => waits.push("Hello".to_owned()),
        Opcode::Send => {
            let (_, request) = Request::decode(payload).unwrap();
            let request = format!("{request:?}");
            waits.push(request.split([' ', '(']).next().unwrap().to_owned());
        }
        Opcode::Flush | Opcode::Read if waits.last().is_none_or(|last| last != "Data") => waits.push("Data".to_owned()),
        _ => {}
    }
}

fn counted<const N: usize>(targets: &[Target; N], is_of_version_4: bool) -> [Counter; N] {
    targets.each_ref().map(|target| Counter::before(target, is_of_version_4))
}

fn of<const N: usize>(counters: &[Counter; N]) -> PoolOptions {
    options(counters.each_ref().map(|counter| counter.url.clone()))
}

/// Waits until no target has it open.
fn wait_released<const N: usize>(counters: &[Counter; N]) {
    let until = Instant::now() + LONG;
    while of(counters).info().unwrap().iter().any(|info| info.open_by.is_some()) {
        assert!(Instant::now() < until, "a target holds the pool");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Opens, and what was waited for at each target until it was open.
fn open<const N: usize>(counters: &[Counter; N]) -> (Pool, [Vec<String>; N]) {
    wait_released(counters);
    let _ = counters.each_ref().map(Counter::take);
    let pool = of(counters).open().unwrap();
    // The open pool's own thread begins with a question of its own, sometimes before this is looked at.
    let until_open = |counter: &Counter| counter.take().into_iter().take_while(|wait| wait != "Boot").collect();
    (pool, counters.each_ref().map(until_open))
}

/// A pool whose writer died after it wrote.
fn left<const N: usize>(counters: &[Counter; N]) {
    let pool = of(counters).create(POOL_BYTES).unwrap();
    pool.persist(5, b"written").unwrap();
    drop(pool);
}

#[test]
fn an_opening_after_a_crash_takes_at_most_eight_round_trips() {
    let targets: [Target; 3] = std::array::from_fn(|_| Target::on_tmpfs(ServiceOptions::default()));
    let counters = counted(&targets, false);
    left(&counters);
    for _ in 0..2 {
        let (pool, waits) = open(&counters);
        assert!(!pool.was_closed() && pool.compared_bytes() > 0);
        let expected = ["TCP", "Hello", "Open", "RaiseIntent", "Begin", "Confirm", "Digest", "Data"];
        for waits in waits {
            assert_eq!(waits, expected);
            assert!(waits.len() <= AFTER_CRASH_MAX);
        }
        drop(pool);
    }
}

#[test]
fn an_opening_of_a_closed_pool_takes_six_round_trips() {
    let targets: [Target; 3] = std::array::from_fn(|_| Target::on_tmpfs(ServiceOptions::default()));
    let counters = counted(&targets, false);
    of(&counters).create(POOL_BYTES).unwrap().close().unwrap();
    let (pool, waits) = open(&counters);
    for waits in waits {
        assert_eq!(waits, ["TCP", "Hello", "Open", "ClearIntent", "Begin", "Confirm"]);
    }
    pool.close().unwrap();
}

/// A target that encloses nothing is asked as the release before this one has asked.
#[test]
fn an_older_target_is_asked_for_the_rest() {
    let targets: [Target; 2] = std::array::from_fn(|_| Target::on_tmpfs(ServiceOptions::default()));
    let counters = counted(&targets, true);
    left(&counters);
    let (pool, waits) = open(&counters);
    let expected =
        ["TCP", "Hello", "Open", "Roster", "Domain", "Intent", "RaiseIntent", "Begin", "Confirm", "Digest", "Data"];
    for waits in waits {
        assert_eq!(waits, expected);
    }
    pool.close().unwrap();
}

/// What comes with the replica is not asked for once more.
#[test]
fn a_return_asks_for_no_domain() {
    let mut targets: [Target; 3] = std::array::from_fn(|_| Target::start_fixed());
    let counters = counted(&targets, false);
    let pool = of(&counters).create(POOL_BYTES).unwrap();
    targets[2].stop();
    pool.persist(5, b"without it").unwrap();
    counters[2].take();
    targets[2].restart();
    wait_in_sync(&pool);
    let waits = counters[2].take();
    let opened = waits.iter().rposition(|wait| wait == "TakeOver").unwrap();
    assert!(waits[opened..].contains(&"Begin".to_owned()) && !waits.contains(&"Domain".to_owned()), "{waits:?}");
    let domains: Vec<_> =
        pool.status().unwrap().replicas.into_iter().map(|replica| replica.domain.unwrap().1).collect();
    assert!(domains.iter().all(|domain| *domain == domains[0]), "{domains:?}");
    pool.close().unwrap();
}

/// A look at a pool does not ask again for what a reply encloses.
#[test]
fn a_look_at_a_pool_takes_five_round_trips() {
    let targets: [Target; 3] = std::array::from_fn(|_| Target::on_tmpfs(ServiceOptions::default()));
    let counters = counted(&targets, false);
    of(&counters).create(POOL_BYTES).unwrap().close().unwrap();
    wait_released(&counters);
    let _ = counters.each_ref().map(Counter::take);
    let members = of(&counters).members().unwrap();
    assert_eq!(members.in_sync_count(), 3);
    assert!(members.members.iter().all(|member| !member.domain.is_empty()), "{members:?}");
    for counter in &counters {
        assert_eq!(counter.take(), ["TCP", "Hello", "Info", "Open", "Close"]);
    }
}
