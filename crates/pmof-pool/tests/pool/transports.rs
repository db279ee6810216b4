//! Targets and pools of several transports at once.

use std::path::Path;

use pmof_access::{Address, Durability, Evidence, Mechanism, Method, PostError, SetupError};
use pmof_control::SetName;
use pmof_mem::Declaration;
use pmof_mem::causes;
use pmof_pool::{Atomicity, RemoteSetOptions, ReplicaError, TargetOptions, list_pools};
use pmof_pool_set::Attributes;
use pmof_target::{Service, ServiceError, ServiceOptions, StoreOptions};
use tempfile::TempDir;

use crate::support::{of_replica, options, pattern, read};

/// A target on TCP and on a Unix socket. Its pools lie in memory.
struct Both {
    service: Service,
    _root: TempDir,
    _socket: TempDir,
}

impl Both {
    fn start() -> Self {
        let (root, socket) =
            (tempfile::tempdir_in("/dev/shm").expect("tmpfs"), tempfile::tempdir().expect("a directory"));
        let listen = ["tcp://127.0.0.1:0".parse().expect("an address"), socket_address(socket.path())];
        let service = Service::start(root.path(), &listen, ServiceOptions::default()).expect("a target");
        Self { service, _root: root, _socket: socket }
    }

    fn tcp(&self, name: &str) -> String {
        format!("{}/{name}", self.service.addresses()[0])
    }

    fn shm(&self, name: &str) -> String {
        format!("{}?pool={name}", self.service.addresses()[1])
    }
}

fn socket_address(directory: &Path) -> Address {
    format!("shm://{}", directory.join("target.sock").display()).parse().expect("an address")
}

#[test]
fn one_pool_is_kept_over_several_transports() {
    let (one, two) = (Both::start(), Both::start());
    let urls = [one.tcp("a"), one.shm("b"), two.shm("c")];
    let bytes = pattern(5 << 20, 3);
    let pool = options(urls.clone()).create(5 << 20).expect("a pool");
    let mut batch = pool.lane();
    batch.write(0, &bytes).expect("inside");
    batch.atomic_write(64, 7).expect("aligned");
    let receipt = batch.persist().expect("durable");
    let methods: Vec<_> = receipt.replicas.iter().map(|replica| replica.method).collect();
    assert_eq!(methods, [Method::SendAfterWrite, Method::LocalWriteBack, Method::LocalWriteBack]);
    for replica in &receipt.replicas {
        assert_eq!(replica.durability, Durability::ProcessCrash);
        assert_eq!((replica.promise.mechanism, replica.promise.evidence), (Mechanism::Store, Evidence::Probed));
    }
    let text = receipt.to_string();
    assert!(text.contains("store by target") && text.contains("local-write-back, store by initiator"), "{text}");
    let mut expected = bytes;
    expected[64..72].copy_from_slice(&7_u64.to_le_bytes());
    for index in 0..urls.len() {
        let mut found = vec![0; expected.len()];
        pool.read_replica(index, 0, &mut found).expect("a read");
        assert!(found == expected, "replica {index}");
    }
    pool.close().expect("closed");
    // The same pool by the other way.
    for url in [one.shm("a"), one.tcp("b"), two.tcp("c")] {
        let pool = options([url]).min_replicas(1).open_read_only().expect("the pool");
        assert!(read(&pool, 0, expected.len()) == expected);
        pool.close().expect("closed");
    }
    let list = |address: &Address| list_pools(&address.clone().into(), &options([""; 0])).expect("a list").len();
    assert_eq!((list(&one.service.addresses()[0]), list(&one.service.addresses()[1])), (2, 2));
}

/// From five connections on the driver looks only at connections on which something happens.
#[test]
fn pools_of_many_members_are_made_and_opened_over_each_transport() {
    let all: [Both; 7] = std::array::from_fn(|_| Both::start());
    for (count, over_shm) in [(5, 1), (5, 4), (5, 5), (7, 3), (7, 7)] {
        let name = format!("of-{count}-{over_shm}");
        let url = |(at, both): (usize, &Both)| if at < over_shm { both.shm(&name) } else { both.tcp(&name) };
        let urls: Vec<_> = all[..count].iter().enumerate().map(url).collect();
        let within = || options(urls.clone()).loss_timeout(std::time::Duration::from_secs(5));
        let pool = within().create(1 << 20).expect("a pool");
        assert!(!pool.persist(0, b"many").expect("durable").is_degraded(), "{name}");
        pool.close().expect("closed");
        let pool = within().open().expect("the same pool");
        assert!(read(&pool, 0, 4) == b"many" && pool.status().expect("its status").in_sync_count() == count, "{name}");
        pool.close().expect("closed");
    }
}

/// Flushes of one opening differ, and the receipt of each says how it went.
#[test]
fn a_receipt_says_how_its_own_flush_was_done() {
    let target = Both::start();
    let pool = options([target.shm("orders")]).create(1 << 20).expect("a pool");
    let mut lane = pool.lane();
    let mut methods = |atomicities: &[Atomicity]| {
        for atomicity in atomicities {
            lane.set_atomicity(*atomicity);
            lane.write(4096, b"bytes").expect("inside");
        }
        let receipt = lane.persist().expect("durable").replicas.remove(0);
        (receipt.method, receipt.also.map(|also| also.method))
    };
    let (direct, by_message) = (Method::LocalWriteBack, Method::SendAfterWrite);
    assert_eq!(methods(&[Atomicity::Relaxed]), (direct, None));
    assert_eq!(methods(&[Atomicity::Words]), (by_message, None), "the target stores whole words, and flushes them");
    assert_eq!(methods(&[Atomicity::Words, Atomicity::Relaxed]), (direct, Some(by_message)));
    assert_eq!(methods(&[Atomicity::Relaxed]), (direct, None));
    assert_eq!(methods(&[]), (direct, None), "everything");
    pool.close().expect("closed");
}

/// A pool over two media: each flush takes what the range takes that it names.
#[test]
fn a_receipt_says_what_the_flushed_range_lies_on() {
    let (disk, memory) = (tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")), tempfile::tempdir_in("/dev/shm"));
    let (disk, memory) = (disk.expect("a directory"), memory.expect("tmpfs"));
    let parts = [&disk, &memory].map(|directory| format!("9M {}\n", directory.path().join("part").display())).concat();
    std::fs::write(disk.path().join("x.set"), format!("PMEMPOOLSET\n{parts}")).expect("a set");
    let store = StoreOptions::default().declaration(Some(Declaration::BatteryBacked));
    let listen = ["tcp://127.0.0.1:0".parse().expect("an address")];
    let service = Service::start(disk.path(), &listen, ServiceOptions::default().store(store)).expect("a target");
    let set = SetName::new("x.set").expect("a name");
    let options = TargetOptions::default().require(Some(Durability::PowerFailure));
    let remote = RemoteSetOptions::new(service.addresses()[0].clone().into(), set).target(options);
    let attributes = Attributes { signature: *b"TESTPOOL", incompat: 2, ..Attributes::default() };
    let pool = remote.create(16 << 20, Some(&attributes)).expect("a pool");
    let mut promises = [8192, 12 << 20].map(|offset| {
        let replica = pool.persist(offset, b"bytes").expect("durable").replicas.remove(0);
        assert_eq!((replica.durability, replica.method), (Durability::PowerFailure, Method::SendAfterWrite));
        (replica.promise.mechanism, replica.promise.evidence)
    });
    assert_eq!(promises[1], (Mechanism::Store, Evidence::Declared));
    if promises[0].0 == Mechanism::FileSync {
        assert_eq!(promises[0].1, Evidence::Probed, "on a disk nothing is left to an operator's word");
    }
    let both = pool.lane().persist().expect("durable").replicas.remove(0);
    promises[0].1 = Evidence::Declared;
    assert_eq!((both.promise.mechanism, both.promise.evidence), promises[0], "all of it: what the weakest takes");
    pool.close().expect("closed");
}

#[test]
fn a_method_that_cannot_give_the_level_is_refused_when_the_pool_is_opened() {
    let target = Both::start();
    let url = target.tcp("orders");
    let forced = |url: String, method| options([url]).method(method);
    for method in [Method::NativeFlush, Method::LocalWriteBack, Method::ReadAfterWrite] {
        let error = forced(url.clone(), method).create(4096).expect_err("refused");
        let (replica, why) = of_replica(&error);
        assert_eq!(replica.to_string(), url);
        assert!(matches!(why, ReplicaError::Post(PostError::MethodRefused { .. })), "{error}");
        for word in [url.as_str(), method.name(), "process-crash"] {
            assert!(causes(&error).to_string().contains(word), "{error}");
        }
    }
    let tcp = forced(url.clone(), Method::SendAfterWrite).create(4096);
    tcp.expect("made, so nothing was left by those that were refused").close().expect("closed");
    for method in [Method::LocalWriteBack, Method::SendAfterWrite] {
        let pool = forced(target.shm("orders"), method).open().expect("the pool");
        let receipt = pool.persist(8, b"bytes").expect("durable");
        assert_eq!(receipt.replicas[0].method, method);
        pool.close().expect("closed");
    }
    // Reading needs no flush.
    forced(url, Method::NativeFlush).open_read_only().expect("the pool").close().expect("closed");
}

#[test]
fn other_machines_are_let_in_only_where_the_operator_says_so() {
    let root = tempfile::tempdir().expect("a directory");
    let everywhere = ["tcp://0.0.0.0:0".parse().expect("an address")];
    let refused = Service::start(root.path(), &everywhere, ServiceOptions::default()).expect_err("refused");
    assert!(matches!(refused, ServiceError::Setup(SetupError::NotLoopback { .. })), "{refused}");
    let options = ServiceOptions::default().trust_network(true);
    let service = Service::start(root.path(), &everywhere, options).expect("a target");
    assert!(service.addresses()[0].to_string().starts_with("tcp://0.0.0.0:"));
}

#[test]
fn a_dead_target_of_shared_memory_is_named() {
    let (one, two) = (Both::start(), Both::start());
    let urls = [one.shm("orders"), two.shm("orders")];
    let pool = options(urls.clone()).create(4096).expect("a pool");
    pool.persist(0, b"before").expect("durable");
    drop(one);
    let receipt = pool.persist(0, b"after").expect("one is enough of two");
    assert_eq!((receipt.missing[0].to_string(), receipt.replicas.len()), (urls[0].clone(), 1));
    assert_eq!(read(&pool, 0, 5), b"after");
}
