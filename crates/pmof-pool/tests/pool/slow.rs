//! Replicas that answer late: the pool goes on without them where it may, and they come back when they keep up.

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use pmof_locks::Mutex;
use pmof_pool::{Acknowledge, Event, Events, Pool, PoolOptions, Receipt, ReplicaState};

use crate::support::*;

/// How much longer than others a replica may take here, and how late one is that is slow.
const SLOW_AFTER: Duration = Duration::from_millis(100);
const LATE_MS: u64 = 400;
/// As late as this, nothing comes through at all.
const NEVER_MS: u64 = u64::MAX;

/// A proxy before a target; what it passes on is late.
pub(crate) struct Relay {
    pub(crate) url: String,
    late_ms: Arc<AtomicU64>,
    connections: Arc<AtomicU64>,
    /// What the first chunk that holds it does not pass with, and whether one has come.
    held: Arc<(Mutex<Option<Vec<u8>>>, AtomicBool)>,
}

impl Relay {
    pub(crate) fn before(target: &Target) -> Self {
        let there = target.address().to_string().trim_start_matches("tcp://").to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("tcp://{}/orders", listener.local_addr().unwrap());
        let (late_ms, connections) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let held = Arc::default();
        let relay =
            Self { url, late_ms: Arc::clone(&late_ms), connections: Arc::clone(&connections), held: Arc::clone(&held) };
        thread::spawn(move || {
            for near in listener.incoming() {
                connections.fetch_add(1, Ordering::Relaxed);
                let (near, far) = (near.unwrap(), TcpStream::connect(&there).unwrap());
                for stream in [&near, &far] {
                    stream.set_nodelay(true).unwrap();
                }
                let (from, to) = (near.try_clone().unwrap(), far.try_clone().unwrap());
                let (late, held) = (Arc::clone(&late_ms), Arc::clone(&held));
                thread::spawn(move || pass(from, to, &late, Some(&held)));
                let late = Arc::clone(&late_ms);
                thread::spawn(move || pass(far, near, &late, None));
            }
        });
        relay
    }

    pub(crate) fn set_late(&self, late_ms: u64) {
        self.late_ms.store(late_ms, Ordering::Relaxed);
    }

    /// Holds back what is sent to the target from where these bytes are.
    pub(crate) fn hold(&self, bytes: &[u8]) {
        *self.held.0.lock() = Some(bytes.to_vec());
    }

    /// Waits until there was something to hold back.
    pub(crate) fn wait_held(&self) {
        while !self.held.1.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Passes it on.
    pub(crate) fn release(&self) {
        *self.held.0.lock() = None;
    }

    /// Nothing comes through any more.
    pub(crate) fn hang(&self) {
        self.set_late(NEVER_MS);
    }

    fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }
}

fn pass(
    mut from: TcpStream,
    mut to: TcpStream,
    late_ms: &AtomicU64,
    held: Option<&(Mutex<Option<Vec<u8>>>, AtomicBool)>,
) {
    let mut bytes = vec![0; 1 << 20];
    loop {
        let len_bytes = match from.read(&mut bytes) {
            Ok(len_bytes) if len_bytes > 0 => len_bytes,
            _ => break,
        };
        while late_ms.load(Ordering::Relaxed) == NEVER_MS {
            thread::sleep(Duration::from_millis(1));
        }
        thread::sleep(Duration::from_millis(late_ms.load(Ordering::Relaxed)));
        while let Some((sought, has_come)) = held {
            let sought = sought.lock().clone();
            if !sought.is_some_and(|sought| bytes[..len_bytes].windows(sought.len()).any(|window| window == sought)) {
                break;
            }
            has_come.store(true, Ordering::Relaxed);
            thread::sleep(Duration::from_millis(1));
        }
        if to.write_all(&bytes[..len_bytes]).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

/// Three targets, and the proxy before the last one.
struct Three {
    targets: [Target; 3],
    relay: Relay,
}

impl Three {
    fn start() -> Self {
        let targets: [Target; 3] = std::array::from_fn(|_| Target::on_tmpfs(pmof_target::ServiceOptions::default()));
        let relay = Relay::before(&targets[2]);
        Self { targets, relay }
    }

    fn options(&self) -> PoolOptions {
        let [first, second, _] = &self.targets;
        options([first.url("orders"), second.url("orders"), self.relay.url.clone()])
            .loss_timeout(LONG)
            .acknowledge(Acknowledge::AtLeast(2))
            .slow_after(SLOW_AFTER)
    }
}

/// The next event that is of the kind looked for; no replica is lost meanwhile.
#[track_caller]
fn next_event(events: &mut Events, is: impl Fn(&Event) -> bool) -> Event {
    wait_for(events, |event| {
        assert!(is(event) || !matches!(event, Event::Lost { .. }), "{event}");
        is(event)
    })
}

#[track_caller]
fn assert_without_third(receipt: &Receipt, three: &Three) {
    let missing: Vec<_> = receipt.missing.iter().map(ToString::to_string).collect();
    assert_eq!((missing, receipt.replicas.len()), (vec![three.relay.url.clone()], 2), "{receipt}");
}

#[track_caller]
fn assert_equal(pool: &Pool) {
    let contents = |replica: usize| {
        let mut bytes = vec![0; pool.len_bytes() as usize];
        pool.read_replica(replica, 0, &mut bytes).unwrap();
        bytes
    };
    assert!((1..3).all(|replica| contents(replica) == contents(0)), "replicas differ");
}

#[test]
fn a_slow_replica_is_left_behind_and_catches_up_over_the_same_connection() {
    let three = Three::start();
    let pool = three.options().create(16 << 20).unwrap();
    let mut events = pool.events();
    pool.persist(0, &pattern(4 << 20, 1)).unwrap();
    three.relay.set_late(LATE_MS);
    for at in 0..20 {
        assert_without_third(&pool.persist(at * 4096, b"without the third").unwrap(), &three);
    }
    assert!(matches!(pool.status().unwrap().replicas[2].state, ReplicaState::Slow));
    let event = next_event(&mut events, |event| matches!(event, Event::Slow { .. }));
    assert!(event.to_string().contains(&three.relay.url), "{event}");
    three.relay.set_late(0);
    let event = next_event(&mut events, |event| matches!(event, Event::InSync { .. }));
    let Event::InSync { copied_bytes, .. } = event else { panic!("{event}") };
    // What was written before it was slow may be copied too, until it is known that all have it; the other pages are not.
    assert!((20 * 4096..=(4 << 20)).contains(&copied_bytes), "{copied_bytes}");
    assert!(!pool.persist(0, b"of three").unwrap().is_degraded());
    assert_equal(&pool);
    assert_eq!(three.relay.connections(), 1);
    pool.close().unwrap();
    assert!(three.options().open().unwrap().was_closed());
}

#[test]
fn a_replica_that_goes_on_being_slow_is_not_sent_anything() {
    let three = Three::start();
    let pool = three.options().create(1 << 20).unwrap();
    three.relay.set_late(LATE_MS);
    let mut events = pool.events();
    assert_without_third(&pool.persist(0, b"one").unwrap(), &three);
    next_event(&mut events, |event| matches!(event, Event::Slow { .. }));
    // Longer than it takes to try it: it answers, and too late.
    assert!(events.next_for(Duration::from_millis(4 * LATE_MS)).is_none());
    assert_without_third(&pool.persist(0, b"two").unwrap(), &three);
    pool.close().unwrap();
    // It knows nothing of the epoch that left it behind, the others do; that it is closed it hears late.
    let pool = three.options().open_waiting(HOUR).unwrap();
    assert_eq!(read(&pool, 0, 3), b"two");
}

#[test]
fn a_replica_that_hangs_keeps_nobody_waiting() {
    let three = Three::start();
    let pool = three.options().loss_timeout(HOUR).create(1 << 20).unwrap();
    let mut events = pool.events();
    three.relay.hang();
    for value in 0..50_u64 {
        assert_without_third(&pool.persist(8 * value, &value.to_le_bytes()).unwrap(), &three);
    }
    // Not lost: that takes longer.
    assert!(matches!(pool.status().unwrap().replicas[2].state, ReplicaState::Slow));
    // A close does not wait for it either.
    next_event(&mut events, |event| matches!(event, Event::Slow { .. }));
    in_time("it is closed", move || pool.close().unwrap());
}

/// Each write is the first one to its page, whose protection all members take back before it.
#[test]
fn a_replica_that_hangs_keeps_nobody_waiting_who_unprotects_pages() {
    let three = Three::start();
    let pool = three.options().digests(true).loss_timeout(HOUR).create(1 << 20).unwrap();
    let mut events = pool.events();
    three.relay.hang();
    for value in 0..50_u64 {
        assert_without_third(&pool.persist(5 * 4096 * value, &value.to_le_bytes()).unwrap(), &three);
    }
    next_event(&mut events, |event| matches!(event, Event::Slow { .. }));
    three.relay.set_late(0);
    next_event(&mut events, |event| matches!(event, Event::InSync { .. }));
    assert_equal(&pool);
    three.relay.hang();
    pool.persist(4096, b"it hangs again").unwrap();
    in_time("it is closed", move || pool.close().unwrap());
}

#[test]
fn nobody_who_writes_waits_for_a_replica_that_hangs_and_is_removed() {
    let three = Three::start();
    let pool = Arc::new(three.options().loss_timeout(HOUR).create(1 << 20).unwrap());
    three.relay.hang();
    assert_without_third(&pool.persist(0, b"slow").unwrap(), &three);
    let remover = Arc::clone(&pool);
    let removing = thread::spawn(move || remover.remove("2"));
    in_time("it is removed, and the pool is written", move || {
        for value in 0..50_u64 {
            assert_eq!(pool.persist(8 * value, &value.to_le_bytes()).unwrap().replicas.len(), 2);
        }
        removing.join().unwrap().unwrap();
        assert!(!pool.persist(0, b"two").unwrap().is_degraded());
        assert_eq!(pool.made_count(), 2);
    });
}

#[test]
fn writes_do_not_wait_for_room_at_a_replica_that_hangs() {
    let three = Three::start();
    let pool = three.options().create(256 << 20).unwrap();
    three.relay.set_late(NEVER_MS);
    let (mut lane, bytes) = (pool.lane(), pattern(1 << 20, 3));
    for at in 0..256 {
        lane.write(at << 20, &bytes).unwrap();
    }
    assert_without_third(&lane.persist().unwrap(), &three);
    three.relay.set_late(0);
    wait_in_sync(&pool);
    assert_equal(&pool);
}

#[test]
fn a_flush_that_is_polled_or_awaited_goes_on_without_it_too() {
    let three = Three::start();
    let pool = three.options().create(1 << 20).unwrap();
    three.relay.set_late(NEVER_MS);
    let mut lane = pool.lane();
    lane.write(0, b"polled").unwrap();
    let mut pending = lane.flush();
    let receipt = loop {
        if let Some(receipt) = pending.poll() {
            break receipt.unwrap();
        }
        thread::sleep(Duration::from_millis(1));
    };
    assert_without_third(&receipt, &three);
    lane.write(0, b"awaited").unwrap();
    let waiting = thread::spawn(move || lane.flush().wait());
    assert_without_third(&waiting.join().unwrap().unwrap(), &three);
}

#[test]
fn a_replica_that_is_needed_is_waited_for_however_slow_it_is() {
    let three = Three::start();
    let pool = three.options().acknowledge(Acknowledge::AtLeast(3)).create(1 << 20).unwrap();
    three.relay.set_late(LATE_MS);
    assert!(!pool.persist(0, b"all three").unwrap().is_degraded());
    assert_eq!(pool.status().unwrap().in_sync_count(), 3);
}

#[test]
fn a_slow_replica_is_taken_back_when_another_is_lost() {
    let mut three = Three::start();
    let pool = three.options().create(1 << 20).unwrap();
    three.relay.set_late(LATE_MS / 4);
    assert_without_third(&pool.persist(0, b"without the third").unwrap(), &three);
    three.targets[1].stop();
    // Too few have it, until the slow one has caught up.
    let receipt = loop {
        if let Ok(receipt) = pool.persist(0, b"slow but there") {
            break receipt;
        }
        thread::sleep(Duration::from_millis(1));
    };
    assert!(receipt.replicas.iter().any(|replica| replica.replica.to_string() == three.relay.url), "{receipt}");
}

#[test]
fn without_the_setting_a_slow_replica_is_waited_for() {
    let three = Three::start();
    let [first, second, _] = &three.targets;
    let pool = options([first.url("orders"), second.url("orders"), three.relay.url.clone()]).create(1 << 20).unwrap();
    three.relay.set_late(LATE_MS);
    assert!(!pool.persist(0, b"all three").unwrap().is_degraded());
}
