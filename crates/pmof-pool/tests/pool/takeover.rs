//! A pool that is taken away from its writer.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    thread,
    time::{Duration, Instant},
};

use pmof_access::{Address, Durability};
use pmof_control::{Claim, Epoch, OpenFor, PoolName, PoolRefusal, Reply, Request};
use pmof_pool::{Pool, PoolError, PoolOptions, ReplicaError};
use pmof_target::{Service, ServiceOptions, StoreOptions};
use tempfile::TempDir;
use uuid::Uuid;

use crate::support::{self, LONG, RawInitiator, assert_refused, of_replica, options, read};

const POOL_BYTES: u64 = 1 << 20;
/// So much that it takes a disk a while.
const DIRTY_BYTES: u64 = 32 << 20;
const AT_ONCE: Duration = Duration::ZERO;
const NEVER: Duration = Duration::from_secs(3600);

/// A target that listens over tcp and shm.
pub(crate) struct Target {
    pub(crate) root: TempDir,
    service: Service,
}

impl Target {
    fn start() -> Self {
        Self::with(tempfile::tempdir().unwrap(), ServiceOptions::default())
    }

    pub(crate) fn with(root: TempDir, options: ServiceOptions) -> Self {
        let socket = format!("shm://{}", root.path().join("socket").display());
        let listen: [Address; 2] = ["tcp://127.0.0.1:0".parse().unwrap(), socket.parse().unwrap()];
        let pools = root.path().join("pools");
        fs::create_dir_all(&pools).unwrap();
        let service = Service::start(&pools, &listen, options).unwrap();
        Self { root, service }
    }

    pub(crate) fn urls(&self, name: &str) -> [String; 2] {
        let [tcp, shm] = [0, 1].map(|at| &self.service.addresses()[at]);
        [format!("{tcp}/{name}"), format!("{shm}?pool={name}")]
    }

    fn inode(&self, name: &str) -> u64 {
        fs::metadata(self.root.path().join("pools").join(name)).unwrap().ino()
    }

    fn files(&self) -> usize {
        fs::read_dir(self.root.path().join("pools")).unwrap().count()
    }
}

fn taking_over(url: &str) -> PoolOptions {
    options([url]).take_over(AT_ONCE)
}

#[track_caller]
fn assert_fenced(outcome: Result<impl std::fmt::Debug, PoolError>) {
    let error = outcome.unwrap_err();
    assert!(error.is_fenced() && !error.is_busy(), "{error:?}");
    match error.replica_error() {
        Some(ReplicaError::Fenced { successor }) => assert!(successor.contains("initiator"), "{successor}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_writer_that_is_taken_over_changes_nothing_any_more() {
    let target = Target::start();
    for (round, from) in target.urls("orders").iter().enumerate() {
        for to in &target.urls("orders") {
            let old = options([from]).open_or_create(POOL_BYTES).unwrap();
            old.persist(0, b"acknowledged").unwrap();
            let writes = |pool: &Pool| pool.persist(64, b"late").map(drop);
            assert!(options([to]).open().unwrap_err().is_busy(), "without being told to it takes nothing over");
            let inode = target.inode("orders");

            let new = taking_over(to).open().unwrap();
            assert!(!new.was_closed());
            assert_eq!(read(&new, 0, 12), b"acknowledged");
            new.persist(64, b"newer").unwrap();
            let error = old.persist(64, b"late").unwrap_err();
            assert!(!error.is_replica_lost() && !error.must_reopen(), "a fenced writer does not retry: {error}");
            assert_fenced(writes(&old));
            assert_fenced(writes(&old));
            assert_eq!(read(&new, 64, 5), b"newer");
            // Only where the old one has the memory mapped, and lives, as this process does.
            assert_eq!(target.inode("orders") != inode, round == 1, "{from} {to}");
            assert_eq!(target.files(), 1, "the copy has the pool's name");

            // It was told of it before.
            old.close().unwrap();
            new.close().unwrap();
            options([to]).open().unwrap().close().unwrap();
        }
    }
}

#[test]
fn a_writer_heard_recently_keeps_the_pool() {
    let target = Target::start();
    for url in &target.urls("orders") {
        let old = options([url]).open_or_create(POOL_BYTES).unwrap();
        old.persist(0, b"here").unwrap();
        let error = options([url]).take_over(NEVER).open().unwrap_err();
        assert!(error.is_busy(), "{error}");
        let text = format!("{error:?}");
        assert!(text.contains("the initiator") || text.contains("another initiator"), "{text}");
        assert!(text.contains(" ms ago, and is taken over after 3600000 ms"), "{text}");
        old.persist(0, b"still").unwrap();
        old.close().unwrap();
        options([url]).take_over(NEVER).open().unwrap().close().unwrap();
    }
}

#[test]
fn a_standby_waits_for_silence() {
    let target = Target::start();
    for url in &target.urls("orders") {
        let old = options([url]).open_or_create(POOL_BYTES).unwrap();
        old.persist(0, b"here").unwrap();
        let waiting = options([url]).take_over(Duration::from_millis(1500));
        let new = waiting.open_waiting(LONG).unwrap();
        assert_eq!(read(&new, 0, 4), b"here");
        assert_fenced(old.persist(0, b"late"));
        let error = options([url]).open_waiting(Duration::from_millis(10)).unwrap_err();
        assert!(error.is_busy(), "{error}");
        new.close().unwrap();
    }
}

/// It asks as soon as it is fenced, while its last stores are still on their way to the disk.
#[test]
fn a_fenced_writer_is_not_told_its_own_name() {
    let root = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let target = Target::with(root, ServiceOptions::default());
    let [url, _] = target.urls("orders");
    for _ in 0..4 {
        let old = options([&url]).open_or_create(DIRTY_BYTES).unwrap();
        old.persist(0, &vec![1; DIRTY_BYTES as usize]).unwrap();
        let fenced = thread::spawn(move || {
            loop {
                if let Err(error) = old.persist(0, b"again") {
                    break error;
                }
            }
        });
        let holders = taking_over(&url).release().unwrap();
        let error = fenced.join().unwrap();
        let Some(ReplicaError::Fenced { successor }) = error.replica_error() else { panic!("{error:?}") };
        assert_ne!(Some(successor), holders[0].as_ref().unwrap().as_ref(), "the successor is another one");
    }
}

/// Of a pool of several replicas, which are reached at once.
#[test]
fn the_successor_of_a_fenced_writer_is_named() {
    let targets = [(); 2].map(|()| support::Target::start());
    let urls = support::urls(&targets);
    let old = options(&urls).create(POOL_BYTES).unwrap();
    old.close().unwrap();
    let old = options(&urls).open().unwrap();
    old.persist(0, b"old").unwrap();
    let _new = options(&urls).take_over(Duration::ZERO).open().unwrap();
    let error = old.persist(0, b"late").unwrap_err().to_string();
    assert!(error.contains("the initiator at 127.0.0.1:") && error.contains("of user "), "{error}");
}

#[test]
fn a_released_pool_is_anybodys_and_was_not_closed() {
    let target = Target::start();
    for url in &target.urls("orders") {
        let old = options([url]).open_or_create(POOL_BYTES).unwrap();
        old.persist(0, b"kept").unwrap();
        let refused = options([url]).take_over(NEVER).release().unwrap().remove(0).unwrap_err();
        assert!(refused.is_busy(), "{refused}");
        let holder = taking_over(url).release().unwrap().remove(0).unwrap();
        assert!(holder.as_ref().is_some_and(|holder| holder.contains("initiator")), "{holder:?}");
        assert_fenced(old.persist(0, b"late"));
        let new = options([url]).open().unwrap();
        assert!(!new.was_closed());
        assert_eq!(read(&new, 0, 4), b"kept");
        new.close().unwrap();
        assert_eq!(taking_over(url).release().unwrap().remove(0).unwrap(), None);
        assert!(options([url]).open().unwrap().was_closed(), "nothing was changed");
    }
}

#[test]
fn a_writer_fenced_at_one_replica_acknowledges_nothing_on_the_others() {
    let (one, other) = (Target::start(), Target::start());
    let urls = [&one, &other].map(|target| target.urls("orders")[0].clone());
    let old = options(&urls).create(POOL_BYTES).unwrap();
    old.persist(0, b"both").unwrap();
    taking_over(&urls[1]).release().unwrap().remove(0).unwrap();
    assert_fenced(old.persist(0, b"late"));
    assert_fenced(old.persist(0, b"late"));
    // Neither of them was left behind by the other.
    let new = options(&urls).open_waiting(LONG).unwrap();
    assert_eq!(read(&new, 8, 1), [0]);
}

#[test]
fn where_one_replica_refuses_the_others_are_given_back() {
    let (one, other) = (Target::start(), Target::start());
    let urls = [&one, &other].map(|target| target.urls("orders")[0].clone());
    options(&urls).create(POOL_BYTES).unwrap().close().unwrap();
    // Another process has it, which this test is for the second target.
    let path = other.root.path().join("pools/orders");
    let file = fs::File::options().read(true).write(true).open(path).unwrap();
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let error = options(&urls).take_over(AT_ONCE).open().unwrap_err();
    assert_refused(&error, &urls[1], PoolRefusal::Busy);
    assert!(format!("{error:?}").contains("ask the target that did"), "{error:?}");
    options(&urls[..1]).min_replicas(1).open().unwrap().close().unwrap();
}

#[test]
fn who_knows_the_epoch_comes_back_at_once() {
    let target = Target::start();
    for (at, url) in target.urls("orders").iter().enumerate() {
        let old = options([url]).open_or_create(POOL_BYTES).unwrap();
        old.persist(0, b"mine").unwrap();
        let again = RawInitiator::connect(&target.service.addresses()[at]);
        let epoch = options([url]).info().unwrap()[0].state.epoch.id;
        let name = PoolName::new("orders").unwrap();
        let take_over = |epoch| {
            let (name, require) = (name.clone(), Durability::ProcessCrash);
            again.ask(&Request::TakeOver { name, require, silent_ms: u64::MAX, claim: claim_of(epoch) })
        };
        for unknown in [None, Some(Uuid::nil()), Some(Uuid::from_u128(7))] {
            assert!(matches!(take_over(unknown), Reply::Refused { code: 6, .. }));
        }
        assert!(matches!(take_over(Some(epoch)), Reply::Opened { state, .. } if state.epoch.id == epoch));
        assert_fenced(old.persist(0, b"late"));
        assert_eq!(again.ask(&Request::Close { in_order: false }), Reply::Closed);
    }
}

#[test]
fn a_fenced_writer_takes_nothing_from_its_successor() {
    let target = Target::start();
    let [tcp, _] = target.urls("orders");
    let address = &target.service.addresses()[0];
    let name = PoolName::new("orders").unwrap();
    let ask = |initiator: &RawInitiator, epoch| {
        let (name, require) = (name.clone(), Durability::ProcessCrash);
        initiator.ask(&Request::TakeOver { name, require, silent_ms: epoch_silence(epoch), claim: claim_of(epoch) })
    };
    // A request of the holder's may be being carried out: then the target asks for patience.
    let opened = |initiator: &RawInitiator, epoch| {
        let began = Instant::now();
        loop {
            match ask(initiator, epoch) {
                Reply::Opened { state, .. } => break state,
                refused => assert!(began.elapsed() < LONG, "{refused:?}"),
            }
            thread::sleep(Duration::from_millis(5));
        }
    };
    let old = options([&tcp]).create(POOL_BYTES).unwrap();
    let epoch = options([&tcp]).info().unwrap()[0].state.epoch.id;
    // The old writer loses its connection, comes back, loses that one too, and comes back: all before it has begun another epoch.
    let [again, once_more] = [0, 1].map(|_| RawInitiator::connect(address));
    for initiator in [&again, &once_more] {
        opened(initiator, Some(epoch));
    }
    assert_fenced(old.persist(0, b"late"));
    // Its successor finds the epoch that the old one knows.
    let successor = RawInitiator::connect(address);
    assert_eq!(opened(&successor, None).epoch.id, epoch);
    let late = RawInitiator::connect(address);
    assert!(matches!(ask(&late, Some(epoch)), Reply::Refused { code: 6, .. }));
    let own = Epoch { id: Uuid::from_u128(7), members: 1 };
    let ancestors = vec![Epoch { id: epoch, members: 1 }];
    assert_eq!(successor.ask(&Request::Begin { opening: 2, epoch: own, ancestors }), Reply::Begun);
    assert!(matches!(ask(&late, Some(epoch)), Reply::Refused { code: 6, .. }));
    // It is the successor, come back.
    opened(&late, Some(own.id));
    assert_eq!(late.ask(&Request::Close { in_order: false }), Reply::Closed);
}

fn claim_of(epoch: Option<Uuid>) -> Claim {
    epoch.map_or(Claim::None, Claim::Own)
}

/// Who names an epoch takes nothing from anybody else.
fn epoch_silence(epoch: Option<Uuid>) -> u64 {
    if epoch.is_some() { u64::MAX } else { 0 }
}

#[test]
fn readers_of_a_replaced_file_get_an_error() {
    let target = Target::start();
    let urls = target.urls("orders");
    let old = options([&urls[1]]).create(POOL_BYTES).unwrap();
    old.persist(0, b"read me").unwrap();
    let readers = [&urls[0], &urls[1]].map(|url| options([url]).open_read_only().unwrap());
    for reader in &readers {
        assert_eq!(read(reader, 0, 7), b"read me");
    }
    let new = taking_over(&urls[0]).open().unwrap();
    for (reader, url) in readers.iter().zip(&urls) {
        let error = reader.read(0, &mut [0; 8]).unwrap_err();
        assert!(error.is_fenced(), "{error:?}");
        let again = options([url]).open_read_only().unwrap();
        assert_eq!(read(&again, 0, 7), b"read me");
    }
    // Where nothing is replaced they stay.
    let reader = options([&urls[0]]).open_read_only().unwrap();
    let newer = taking_over(&urls[0]).open().unwrap();
    assert_fenced(new.persist(0, b"late"));
    newer.persist(0, b"newer").unwrap();
    assert_eq!(read(&reader, 0, 5), b"newer");
}

#[test]
fn a_pool_on_a_device_is_not_taken_from_a_living_process() {
    let root = tempfile::tempdir().unwrap();
    let device = root.path().join("device");
    fs::File::create(&device).unwrap();
    let file = fs::File::options().write(true).open(&device).unwrap();
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, 2 * POOL_BYTES).unwrap();
    let name = PoolName::new("orders").unwrap();
    let store = StoreOptions::default().devices(vec![(name.clone(), device)]);
    let target = Target::with(root, ServiceOptions::default().store(store));
    let urls = target.urls("orders");
    let old = options([&urls[1]]).create(POOL_BYTES).unwrap();
    let error = taking_over(&urls[0]).open().unwrap_err();
    assert_refused(&error, &urls[0], PoolRefusal::NotFenceable);
    assert!(error.is_busy() && format!("{error:?}").contains("end that process"), "{error:?}");
    old.persist(0, b"unharmed").unwrap();
    old.close().unwrap();
    // Over tcp nothing is mapped.
    let old = options([&urls[0]]).open().unwrap();
    let new = taking_over(&urls[0]).open().unwrap();
    assert_fenced(old.persist(0, b"late"));
    assert_eq!(read(&new, 0, 8), b"unharmed");
}

#[test]
fn a_pool_without_a_name_cannot_be_taken_over() {
    let target = Target::start();
    let url = &target.urls("orders")[0];
    let unnamed = options([url]).publish_on_close(true).create(POOL_BYTES).unwrap();
    let error = taking_over(url).open().unwrap_err();
    assert!(matches!(of_replica(&error).1, ReplicaError::Refused { refusal: PoolRefusal::NotFound, .. }), "{error:?}");
    unnamed.close().unwrap();
    taking_over(url).open().unwrap();
}

#[test]
fn a_level_that_cannot_be_given_harms_nobody() {
    let target = Target::with(tempfile::tempdir_in("/dev/shm").unwrap(), ServiceOptions::default());
    for url in &target.urls("orders") {
        let old = options([url]).open_or_create(POOL_BYTES).unwrap();
        let wanted = Pool::options().replica(url).require(Durability::PowerFailure).take_over(AT_ONCE);
        assert_refused(&wanted.open().unwrap_err(), url, PoolRefusal::NotDurable);
        old.persist(0, b"unharmed").unwrap();
        old.close().unwrap();
    }
    let raw = RawInitiator::connect(&target.service.addresses()[0]);
    let (name, require) = (PoolName::new("orders").unwrap(), Durability::Visible);
    let open = Request::Open { name: name.clone(), require, access: OpenFor::Write, may_be_older: false };
    assert!(matches!(raw.ask(&open), Reply::Opened { .. }));
    let again = Request::TakeOver { name, require, silent_ms: 0, claim: Claim::None };
    assert!(matches!(raw.ask(&again), Reply::Refused { code: 257, .. }), "from itself");
}
