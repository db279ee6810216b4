//! A program dies while it makes a pool.

use std::{
    env,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use pmof_control::{HEADER_BYTES, Header};

use crate::{
    slow::Relay,
    support::{LONG, Target, options, read, urls, wait_in_sync},
};

const POOL_BYTES: u64 = 64 << 10;
const URLS: &str = "PMOF_UNFINISHED_TEST_URLS";

/// Makes a pool where this is the other process, which is killed meanwhile.
#[test]
fn maker_that_is_killed() {
    let Ok(urls) = env::var(URLS) else { return };
    let _ = options(urls.split(',').map(str::to_owned)).open_or_create(POOL_BYTES);
}

/// Has a program killed when it has made the first replica and has yet to hear so: the other one is asked for after that. Returns which is the first.
fn killed_between(two: &[Target; 2]) -> usize {
    // Each of its answers comes this late, so that it is killed in time.
    const LATE_MS: u64 = 1000;
    let relays = two.each_ref().map(Relay::before);
    let first = usize::from(relays[1].url < relays[0].url);
    relays[first].set_late(LATE_MS);
    let mut maker = Command::new(env::current_exe().unwrap())
        .args(["--exact", "unfinished::maker_that_is_killed", "--nocapture"])
        .env(URLS, relays.each_ref().map(|relay| relay.url.clone()).join(","))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let until = Instant::now() + LONG;
    while !two[first].files().contains(&"orders".to_owned()) {
        assert!(maker.try_wait().unwrap().is_none() && Instant::now() < until, "it makes none");
        thread::sleep(Duration::from_millis(1));
    }
    // SIGKILL.
    maker.kill().unwrap();
    maker.wait().unwrap();
    assert_eq!(two[1 - first].files(), [""; 0], "it came further");
    first
}

#[test]
fn a_pool_that_was_half_made_is_made() {
    let two: [Target; 2] = std::array::from_fn(|_| Target::start());
    killed_between(&two);
    options(urls(&two)).open().unwrap_err();
    let until = Instant::now() + LONG;
    // Until its target notices that the program is gone.
    let pool = loop {
        match options(urls(&two)).open_or_create(POOL_BYTES) {
            Ok(pool) => break pool,
            Err(error) => assert!(error.is_busy() && Instant::now() < until, "{}", pmof_mem::causes(&error)),
        }
    };
    assert_eq!(pool.persist(0, b"made").unwrap().replicas.len(), 2);
    pool.close().unwrap();
    let pool = options(urls(&two)).open_or_create(POOL_BYTES).unwrap();
    assert_eq!(read(&pool, 0, 4), b"made");
}

/// Two programs died, each with another first replica: two pools are there, neither of them whole.
#[test]
fn two_pools_that_were_half_made_are_one_then() {
    let two: [Target; 2] = std::array::from_fn(|_| Target::start());
    for target in &two {
        let (other, name) = (Target::start(), "orders");
        let relays = [target, &other];
        options(urls(relays)).create(POOL_BYTES).unwrap();
        // As it was made: not closed, and before it was told of its members.
        unmake(target, name);
    }
    options(urls(&two)).open().unwrap_err();
    let pool = options(urls(&two)).open_or_create(POOL_BYTES).unwrap();
    assert_eq!(pool.persist(0, b"made").unwrap().replicas.len(), 2);
}

/// Takes what a replica was told of its pool's members.
fn unmake(target: &Target, name: &str) {
    use std::os::unix::fs::FileExt as _;
    let file = std::fs::File::options().write(true).open(target.root.path().join(name)).unwrap();
    file.write_all_at(&vec![0; pmof_control::ROSTER_BYTES], pmof_control::ROSTER_OFFSET).unwrap();
}

/// A program that was to make the pool is late, and what it saw half made is the only replica of another one then.
#[test]
fn what_was_written_meanwhile_is_not_removed() {
    let two: [Target; 2] = std::array::from_fn(|_| Target::start());
    options(urls(&two)).create(POOL_BYTES).unwrap();
    unmake(&two[0], "orders");
    std::fs::remove_file(two[1].root.path().join("orders")).unwrap();
    let head = std::fs::read(two[0].root.path().join("orders")).unwrap();
    let header = Header::decode(head.first_chunk::<HEADER_BYTES>().unwrap()).unwrap();
    let relay = Relay::before(&two[0]);
    // Only to remove it is it named.
    relay.hold(header.replica_uuid.as_bytes());
    let of_both = options([relay.url.clone(), two[1].url("orders")]);
    let late = thread::spawn(move || of_both.open_or_create(POOL_BYTES).map(drop));
    relay.wait_held();
    let pool = options([two[0].url("orders")]).min_replicas(1).open().unwrap();
    pool.persist(0, b"written meanwhile").unwrap();
    drop(pool);
    relay.release();
    // It may open the pool as it is now, whose only replica that is.
    let _ = late.join().unwrap();
    let pool = options([two[0].url("orders")]).min_replicas(1).open().unwrap();
    assert_eq!(read(&pool, 0, 17), b"written meanwhile");
}

/// The control: what may have been acknowledged is never removed.
#[test]
fn a_pool_that_was_there_is_not_made_anew() {
    for is_written in [true, false] {
        let mut two: [Target; 2] = std::array::from_fn(|_| Target::start());
        let pool = options(urls(&two)).create(POOL_BYTES).unwrap();
        if is_written {
            pool.persist(0, b"there").unwrap();
            drop(pool);
            unmake(&two[0], "orders");
        } else {
            drop(pool);
        }
        two[1].restart();
        std::fs::remove_file(two[1].root.path().join("orders")).unwrap();
        options(urls(&two)).open_or_create(POOL_BYTES).unwrap_err();
        assert_eq!(two[0].files(), ["orders"]);
        assert_eq!(two[1].files(), [""; 0]);
    }
    let two: [Target; 2] = std::array::from_fn(|_| Target::start());
    let pool = options(urls(&two)).open_or_create(POOL_BYTES).unwrap();
    wait_in_sync(&pool);
}
