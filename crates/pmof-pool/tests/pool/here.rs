//! Pools with a replica in a file of this machine, beside replicas on targets.

use std::{
    env, fs,
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use pmof_access::{Durability, Evidence, Mechanism, Medium as _, Method};
use pmof_control::PoolRefusal;
use pmof_pool::{Event, Pool, PoolError, ReplicaError, ReplicaState, TargetUrl, list_pools};
use pmof_target::ServiceOptions;
use tempfile::TempDir;

use crate::support::*;

const SIZE_BYTES: u64 = 4 << 20;

/// A file of this machine and two targets.
struct Three {
    here: TempDir,
    targets: [Target; 2],
}

impl Three {
    fn start() -> Self {
        let here = tempfile::tempdir_in("/dev/shm").expect("tmpfs");
        Self { here, targets: std::array::from_fn(|_| Target::start_fixed()) }
    }

    fn file(&self) -> String {
        url_in(self.here.path())
    }

    fn urls(&self) -> [String; 3] {
        [self.file(), self.targets[0].url("orders"), self.targets[1].url("orders")]
    }
}

fn url_in(directory: &Path) -> String {
    format!("file://{}/orders", directory.display())
}

#[track_caller]
fn assert_equal(pool: &Pool) {
    let contents = |replica| {
        let mut bytes = vec![0; pool.len_bytes() as usize];
        pool.read_replica(replica, 0, &mut bytes).expect("a read");
        bytes
    };
    for replica in 1..pool.replica_count() {
        assert!(contents(0) == contents(replica), "replica {replica} differs");
    }
}

#[test]
fn a_pool_is_kept_here_and_on_targets() {
    let three = Three::start();
    let urls = three.urls();
    let pool = options(urls.clone()).create(SIZE_BYTES).expect("a pool");
    let receipt = pool.persist(4096, b"everywhere").expect("durable");
    let methods: Vec<_> = receipt.replicas.iter().map(|replica| replica.method).collect();
    assert_eq!(methods, [Method::LocalWriteBack, Method::SendAfterWrite, Method::SendAfterWrite]);
    assert!(receipt.to_string().contains(&format!("{} (local-write-back, store by initiator", urls[0])), "{receipt}");
    let mut lane = pool.lane();
    lane.write(100_000, &pattern(2 << 20, 7)).expect("inside");
    lane.atomic_write(8, 7).expect("aligned");
    assert_eq!(lane.flush().wait().expect("durable").replicas.len(), 3);
    assert_equal(&pool);
    let report = pool.scrub(&mut |_| {}).expect("compared");
    assert_eq!((report.replica_count, report.repaired.len(), report.undecided.len()), (3, 0, 0));
    pool.close().expect("closed");

    let pool = options(urls.clone()).open().expect("the pool");
    assert!(pool.was_closed() && pool.copied_bytes() == 0);
    assert_eq!((read(&pool, 4096, 10), read(&pool, 100_000, 2 << 20)), (b"everywhere".to_vec(), pattern(2 << 20, 7)));
    pool.close().expect("closed");
    let infos = options(urls.clone()).info().expect("described");
    assert!(infos.iter().all(|info| info.header.pool_uuid == infos[0].header.pool_uuid && info.open_by.is_none()));
    let directory: TargetUrl = format!("file://{}", three.here.path().display()).parse().expect("a URL");
    let names = list_pools(&directory, &options([""; 0])).expect("a list");
    assert_eq!(names.iter().map(ToString::to_string).collect::<Vec<_>>(), ["orders"]);
    options(urls).remove().expect("removed");
    assert!(files(three.here.path()).is_empty());
}

/// The file is a target's: the same format, the same states.
#[test]
fn a_target_serves_what_was_kept_here() {
    let target = Target::start();
    let file = target.root.path().join("orders");
    let pool =
        Pool::options().replica_file(&file).require(Durability::ProcessCrash).create(SIZE_BYTES).expect("a pool");
    pool.persist(0, b"by this process").expect("durable");
    let busy = options([target.url("orders")]).open().expect_err("it is open");
    assert_refused(&busy, &target.url("orders"), PoolRefusal::Busy);
    pool.close().expect("closed");

    let pool = options([target.url("orders")]).open().expect("the pool");
    assert_eq!((read(&pool, 0, 15), pool.was_closed()), (b"by this process".to_vec(), true));
    let url = url_in(target.root.path());
    let busy = options([url.clone()]).open().expect_err("a target has it open");
    assert!(busy.is_busy());
    assert_refused(&busy, &url, PoolRefusal::Busy);
    let reader = options([url.clone()]).min_replicas(1).open_read_only().expect("for reading");
    assert!(matches!(reader.persist(0, b"x"), Err(PoolError::ReadOnly)));
    reader.close().expect("closed");
    pool.persist(0, b"by a target    ").expect("durable");
    pool.close().expect("closed");
    let pool = options([url]).open().expect("the pool");
    assert_eq!(read(&pool, 0, 15), b"by a target    ");
}

#[test]
fn what_cannot_be_made_here_is_named_and_nothing_is_left() {
    let three = Three::start();
    let [file, one, _] = three.urls();
    for (wrong, expected) in [
        (format!("file://{}/none/orders", three.here.path().display()), PoolRefusal::Failed),
        (one.clone(), PoolRefusal::AlreadyExists),
    ] {
        let kept = (wrong == one).then(|| options([one.clone()]).create(4096).expect("a pool"));
        let error = options([file.clone(), wrong.clone()]).create(4096).expect_err("refused");
        assert_refused(&error, &wrong, expected);
        assert!(files(three.here.path()).is_empty(), "{wrong}");
        drop(kept);
    }
    let error = options([file.clone()]).require(Durability::PowerFailure).create(4096).expect_err("tmpfs");
    assert_refused(&error, &file, PoolRefusal::NotDurable);
    let declared = Some(pmof_mem::Declaration::BatteryBacked);
    let pool = options([file]).require(Durability::PowerFailure).declaration(declared).create(4096).expect("a pool");
    let receipt = pool.persist(0, b"declared").expect("durable");
    let promise = receipt.replicas[0].promise;
    assert_eq!((receipt.replicas[0].durability, promise.evidence), (Durability::PowerFailure, Evidence::Declared));
}

/// On a disk a persist is one fdatasync of the file.
#[test]
fn a_file_on_a_disk_survives_loss_of_power_where_the_disk_does() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let made = options([url_in(directory.path())]).require(Durability::PowerFailure).create(1 << 20);
    let pool = match made {
        Ok(pool) => pool,
        Err(error) => {
            assert_refused(&error, &url_in(directory.path()), PoolRefusal::NotDurable);
            return skip_report::skipped!("the disk of the build directory is not proven to keep what it flushes");
        }
    };
    let receipt = pool.persist(0, b"durable").expect("durable");
    let replica = &receipt.replicas[0];
    assert_eq!((replica.durability, replica.promise.mechanism), (Durability::PowerFailure, Mechanism::FileSync));
    let shared = thread::scope(|scope| {
        let persist = |index: u64| pool.persist(index * 64, &index.to_le_bytes()).map(drop);
        let threads: Vec<_> =
            (0..8).map(|index| scope.spawn(move || (0..20).try_for_each(|_| persist(index)))).collect();
        threads.into_iter().all(|thread| thread.join().expect("no panic").is_ok())
    });
    assert!(shared, "threads share flushes");
    pool.close().expect("closed");
}

#[test]
fn the_replica_here_goes_on_without_those_elsewhere_and_they_catch_up() {
    let mut three = Three::start();
    let pool = options(three.urls()).create(SIZE_BYTES).expect("a pool");
    pool.persist(0, b"whole").expect("durable");
    three.targets[0].stop();
    let receipt = pool.persist(100_000, b"fewer").expect("two are a majority");
    assert_eq!((receipt.replicas.len(), receipt.missing.len()), (2, 1));
    three.targets[0].restart();
    wait_in_sync(&pool);
    pool.persist(200_000, b"whole again").expect("durable");
    assert_equal(&pool);
    pool.close().expect("closed");
}

/// The one here is the first, which others catch up from and are compared with.
#[test]
fn what_caught_up_from_the_replica_here_is_compared_with_it() {
    let mut three = Three::start();
    let pool = options(three.urls()).create(SIZE_BYTES).expect("a pool");
    let mut events = pool.events();
    let mut next = |is: fn(&Event) -> bool| loop {
        let event = events.next_for(LONG).expect("an event in time");
        if is(&event) {
            return event;
        }
    };
    // The first time it may not be known yet when the target's machine was started.
    for is_known in [false, true] {
        three.targets[0].stop();
        pool.persist(100_000, b"while it was away").expect("two are a majority");
        three.targets[0].restart();
        let back = next(|event| matches!(event, Event::InSync { .. }));
        let Event::InSync { is_verified, .. } = back else { unreachable!("it is in sync") };
        assert!(!(is_known && is_verified), "{back}");
    }
    let done = next(|event| matches!(event, Event::Verified { .. } | Event::Differs { .. }));
    assert!(matches!(done, Event::Verified { .. }), "{done}");
    assert_equal(&pool);
    pool.close().expect("closed");
}

/// What the lost replica had mapped is let go of before its file is opened again, which is locked until then.
#[test]
fn the_replica_here_returns_at_the_first_try() {
    let three = Three::start();
    let pool = options(three.urls()).create(SIZE_BYTES).expect("a pool");
    let state = || pool.status().expect("open").replicas[0].state.clone();
    let [path, aside] = ["orders", "aside"].map(|name| three.here.path().join(name));
    fs::rename(&path, &aside).expect("a rename");
    let until = Instant::now() + LONG;
    while !matches!(state(), ReplicaState::Lost(_)) {
        assert!(Instant::now() < until, "it has its name no more");
        pool.persist(0, b"without it").expect("two are a majority");
    }
    fs::rename(&aside, &path).expect("a rename");
    loop {
        match state() {
            ReplicaState::InSync => break,
            ReplicaState::Lost(why) => {
                assert!(!matches!(*why, ReplicaError::Refused { refusal: PoolRefusal::Busy, .. }), "{why}");
            }
            _ => {}
        }
        assert!(Instant::now() < until, "{:?}", state());
        thread::sleep(Duration::from_millis(5));
    }
    assert_equal(&pool);
    pool.close().expect("closed");
}

/// A program that ran elsewhere meanwhile left the file of this machine behind.
#[test]
fn the_replica_here_is_left_behind_and_catches_up() {
    let three = Three::start();
    let urls = three.urls();
    options(urls.clone()).create(SIZE_BYTES).expect("a pool").close().expect("closed");
    let elsewhere = options(urls[1..].to_vec()).open().expect("a majority");
    elsewhere.persist(1 << 20, &pattern(1 << 20, 3)).expect("durable");
    elsewhere.close().expect("closed");
    let error = options([urls[0].clone()]).min_replicas(2).open().expect_err("it may lack what was acknowledged");
    assert!(matches!(error, PoolError::Degraded { .. } | PoolError::Apart { .. }), "{error}");

    let pool = options(urls.clone()).open().expect("the pool");
    let mut bytes = vec![0; 1 << 20];
    if pool.status().expect("open").is_degraded() {
        let behind = pool.read_replica(0, 1 << 20, &mut bytes);
        assert!(behind.is_err() || bytes == pattern(1 << 20, 3), "nothing old is read");
    }
    let mut lane = pool.lane();
    for index in 0..50_u64 {
        lane.write(index * 8192, &index.to_le_bytes()).expect("inside");
        lane.persist().expect("durable");
    }
    wait_in_sync(&pool);
    assert_equal(&pool);
    assert_eq!(pool.persist(0, b"on all").expect("durable").replicas.len(), 3);
    pool.close().expect("closed");
    let pool = options([urls[0].clone()]).min_replicas(1).open().expect("it has all of it");
    assert_eq!(read(&pool, 1 << 20, 1 << 20), pattern(1 << 20, 3));
}

#[test]
fn a_pool_here_has_a_mirror_and_its_name_when_it_is_closed() {
    let three = Three::start();
    let options = || options(three.urls()).mirror(true);
    let pool = options().publish_on_close(true).create(1 << 20).expect("a pool");
    let mirror = pool.mirror().expect("a mirror");
    mirror.store(8192, b"persisted").expect("inside");
    assert_eq!(pool.persist_range(8192..8201).expect("durable").replicas.len(), 3);
    assert!(!files(three.here.path()).contains(&"orders".to_owned()));
    pool.close().expect("closed");
    drop(mirror);
    let pool = options().open().expect("the pool");
    let mut found = [0; 9];
    pool.mirror().expect("a mirror").read(8192, &mut found).expect("inside");
    assert_eq!(&found, b"persisted");
    assert_equal(&pool);
    pool.close().expect("closed");
    // What was never closed is gone.
    let [file, ..] = three.urls();
    crate::support::options([file.replace("orders", "other")]).publish_on_close(true).create(4096).expect("a pool");
    assert_eq!(files(three.here.path()), ["orders"]);
}

#[test]
fn a_file_whose_name_was_taken_away_is_found_at_the_next_mark() {
    let three = Three::start();
    let pool = options(three.urls()).create(4096).expect("a pool");
    let mut events = pool.events();
    pool.persist(0, b"there").expect("durable");
    fs::remove_file(three.here.path().join("orders")).expect("removed");
    let lost = loop {
        pool.persist(0, b"there").expect("two are a majority");
        if let Some(Event::Lost { replica, why }) = events.next_for(Duration::from_millis(50)) {
            break (replica, why);
        }
    };
    assert_eq!(lost.0.to_string(), three.file());
    assert!(matches!(*lost.1, ReplicaError::Refused { refusal: PoolRefusal::Failed, .. }), "{}", lost.1);
    pool.close().expect("the others have all of it");
}

const URLS: &str = "PMOF_HERE_TEST_URLS";

/// Writes numbers where this is the other process, until it is killed.
#[test]
fn writer_that_is_killed() {
    let Ok(urls) = env::var(URLS) else { return };
    let pool = options(urls.split(',').map(str::to_owned)).open().expect("the pool");
    for number in 1..=u64::MAX {
        let place = number % 100 * 4096;
        pool.persist(place, &number.to_le_bytes()).expect("durable");
        println!("\nsaid {number}");
        std::io::stdout().flush().expect("somebody listens");
    }
}

#[test]
fn what_was_acknowledged_to_a_killed_writer_is_there() {
    let three = Three::start();
    let urls = three.urls();
    options(urls.clone()).create(SIZE_BYTES).expect("a pool").close().expect("closed");
    let mut last = 0;
    for round in 0..3 {
        let mut writer = Command::new(env::current_exe().expect("this program"))
            .args(["--exact", "here::writer_that_is_killed", "--nocapture"])
            .env(URLS, urls.join(","))
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let output = BufReader::new(writer.stdout.take().expect("a pipe"));
        let told = output.lines().map_while(Result::ok).filter_map(|line| line.strip_prefix("said ")?.parse().ok());
        last = { told }.nth(150 + round * 37).unwrap_or(last);
        writer.kill().expect("it runs");
        writer.wait().expect("it ends");
        assert!(last > 150, "it wrote");

        let pool = options(urls.clone()).open_waiting(LONG).expect("the pool");
        assert!(!pool.was_closed());
        for place in 0..100_u64 {
            let newest_told = last - (last - place) % 100;
            let found = u64::from_le_bytes(read(&pool, place * 4096, 8).try_into().expect("8 bytes"));
            // The one that was under way may be there or not.
            assert!(found >= newest_told && found % 100 == place, "{found} at {place}, told of {last}");
        }
        assert_equal(&pool);
        pool.close().expect("closed");
    }
}

#[test]
fn two_files_here_are_two_replicas() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("tmpfs");
    let urls = ["a", "b"].map(|name| format!("file://{}/{name}", directory.path().display()));
    let pool = options(urls.clone()).create(1 << 20).expect("a pool");
    assert_eq!(pool.persist(0, b"twice").expect("durable").replicas.len(), 2);
    assert!(options(urls.clone()).open().expect_err("it is open").is_busy());
    pool.close().expect("closed");
    let error = options([urls[0].clone(), urls[0].replace("/a", "//a")]).open().expect_err("named twice");
    assert!(matches!(error, PoolError::Twice { .. }), "{error}");
    let target = Target::start_with(directory, ServiceOptions::default());
    let [a, b] = ["a", "b"].map(|name| target.url(name));
    let pool = options([a, b]).open().expect("the pool");
    assert!(read(&pool, 0, 5) == b"twice" && pool.was_closed());
}
