//! What pools keep, and within which bounds.

use std::time::Duration;

use pmof_access::{Declaration, Durability, Evidence, MediumKind, Method, limits};
use pmof_control::{PoolRefusal, Reply, Request};
use pmof_pool::{PoolError, list_pools};
use pmof_target::{ServiceOptions, StoreOptions};

use crate::support::{RawInitiator, Target, assert_refused, files, options, pattern, read};

#[test]
fn pools_keep_their_bytes_on_one_to_three_replicas() {
    for count in 1..=3_usize {
        let targets: Vec<_> = (0..count).map(|_| Target::start()).collect();
        let pools = options(targets.iter().map(|target| target.url("orders")));
        let pool = pools.clone().user_flags(*b"sixteen bytes of").create(100_000).expect("a pool");
        assert_eq!((pool.len_bytes(), pool.replica_count()), (100_000, count));
        assert!(read(&pool, 0, 100_000).iter().all(|byte| *byte == 0));

        let mut batch = pool.lane();
        batch.write(99_990, b"the end...").expect("inside");
        batch.atomic_write(8, 0x0807_0605_0403_0201).expect("inside");
        let receipt = batch.persist().expect("a receipt");
        assert_eq!((receipt.replicas.len(), receipt.replica_count), (count, count));
        assert!(receipt.replicas.iter().all(|replica| replica.durability == Durability::ProcessCrash));
        assert!(receipt.replicas.iter().all(|replica| replica.method == Method::SendAfterWrite));
        assert!(receipt.to_string().starts_with(&format!("process-crash on {count}/{count}: tcp://")), "{receipt}");
        let uuid = pool.uuid();
        pool.close().expect("closed");

        let infos = pools.info().expect("info");
        for (index, info) in infos.iter().enumerate() {
            assert_eq!(usize::from(info.header.replica_index), index);
            assert_eq!(usize::from(info.header.replica_count), count);
            assert_eq!((info.header.pool_uuid, info.header.size_bytes), (uuid, 100_000));
            assert_eq!((&info.header.user_flags, &info.open_by), (b"sixteen bytes of", &None));
        }
        let again = pools.open().expect("the pool");
        assert_eq!((again.uuid(), &again.user_flags()), (uuid, b"sixteen bytes of"));
        for index in 0..count {
            let mut bytes = [0; 8];
            again.read_replica(index, 8, &mut bytes).expect("a read");
            assert_eq!(bytes, [1, 2, 3, 4, 5, 6, 7, 8]);
            again.read_replica(index, 99_990, &mut bytes).expect("a read");
            assert_eq!(&bytes, b"the end.");
        }
        again.close().expect("closed");
        pools.remove().expect("removed");
        assert!(targets.iter().all(|target| target.files().is_empty()));
        assert_refused(&pools.open().expect_err("gone"), &targets[0].url("orders"), PoolRefusal::NotFound);
    }
}

#[test]
fn ranges_are_checked_up_to_the_largest_numbers() {
    let target = Target::start();
    let pool = options([target.url("orders")]).create(4096).expect("a pool");
    for (offset, len_bytes) in
        [(4096, 1), (4095, 2), (0, 4097), (u64::MAX, 1), (u64::MAX - 7, 8), (u64::MAX, 0), (1 << 63, 8)]
    {
        let mut bytes = vec![7; len_bytes];
        let outside = |result: Result<(), PoolError>| assert!(matches!(result, Err(PoolError::OutOfBounds { .. })));
        outside(pool.read(offset, &mut bytes));
        outside(pool.read_replica(0, offset, &mut bytes));
        outside(pool.lane().write(offset, &bytes));
        outside(pool.lane().atomic_write(offset.max(4089), 1));
        outside(pool.persist(offset, &bytes).map(drop));
    }
    let error = pool.read_replica(1, 0, &mut [0]).expect_err("one replica only");
    assert!(matches!(error, PoolError::NoSuchReplica { index: 1, replica_count: 1 }), "{error}");
    // The edge itself is inside, and nothing of the rest was written.
    pool.persist(4095, b"x").expect("inside");
    pool.persist(4096, b"").expect("nothing, at the end");
    pool.read(4096, &mut []).expect("nothing, at the end");
    assert!(read(&pool, 0, 4095).iter().all(|byte| *byte == 0));
    assert_eq!(read(&pool, 4095, 1), b"x");
}

#[test]
fn sizes_are_the_targets_to_judge() {
    let target = Target::start();
    let pools = options([target.url("orders")]);
    for size_bytes in [0, u64::MAX, 1 << 60] {
        let error = pools.create(size_bytes).expect_err("a bad size");
        assert_refused(&error, &target.url("orders"), PoolRefusal::BadSize);
    }
    let error = pools.create(15 << 40).expect_err("more than the disk has");
    assert_refused(&error, &target.url("orders"), PoolRefusal::NoSpace);
    assert!(target.files().is_empty());
    assert_eq!(pools.create(1).expect("a pool").len_bytes(), 1);
}

#[test]
fn a_pool_open_for_reading_is_not_written() {
    let target = Target::start();
    let pools = options([target.url("orders")]);
    let writer = pools.create(4096).expect("a pool");
    let reader = pools.open_read_only().expect("beside the writer");
    writer.persist(0, b"new").expect("a receipt");
    assert_eq!(read(&reader, 0, 3), b"new");
    assert!(matches!(reader.lane().write(0, b"x"), Err(PoolError::ReadOnly)));
    assert!(matches!(reader.lane().atomic_write(0, 1), Err(PoolError::ReadOnly)));
    assert!(matches!(reader.lane().persist(), Err(PoolError::ReadOnly)));
    assert_eq!(read(&writer, 0, 3), b"new");
    reader.close().expect("closed");
}

#[test]
fn many_writes_take_one_flush() {
    let target = Target::start();
    let pool = options([target.url("orders")]).create(16 << 20).expect("a pool");
    // More than the send queue holds, so its places come back meanwhile.
    for count in [10_000_u64, 40_000] {
        let mut batch = pool.lane();
        for number in 0..count {
            batch.write(number * 64, &(number + count).to_le_bytes()).expect("inside");
        }
        batch.persist().expect("a receipt");
        for number in [0, 1, count / 2, count - 1] {
            assert_eq!(read(&pool, number * 64, 8), (number + count).to_le_bytes(), "{number} of {count}");
        }
    }
}

#[test]
fn a_read_finds_room_behind_a_full_queue() {
    let target = Target::start();
    // As many as the send queue holds, which nobody empties before the read; and a few less and more.
    let limit = u64::from(limits::SEND_QUEUE_LIMIT);
    for count in [limit - 1, limit, limit + 1, 3 * limit] {
        let pools = options([target.url(&count.to_string())]);
        let pool = pools.create(4 << 20).expect("a pool");
        let mut batch = pool.lane();
        for number in 0..count {
            batch.write(number * 64, &number.to_le_bytes()).expect("inside");
        }
        assert_eq!(read(&pool, (count - 1) * 64, 8), (count - 1).to_le_bytes());
        pool.lane().persist().expect("the replica is in use still");
    }
}

#[test]
fn a_pool_closes_behind_a_full_queue() {
    let target = Target::start();
    let limit = u64::from(limits::SEND_QUEUE_LIMIT);
    // What opening posted may count or not.
    for count in limit - 3..=limit + 1 {
        let pool = options([target.url(&count.to_string())]).create(4096).expect("a pool");
        let mut batch = pool.lane();
        for _ in 0..count {
            batch.write(0, b"x").expect("inside");
        }
        pool.close().expect("the queue empties");
    }
}

#[test]
fn a_long_write_reaches_all_replicas_whole() {
    let (a, b) = (Target::start(), Target::start());
    let bytes = pattern(100 << 20, 7);
    let pool = options([a.url("orders"), b.url("orders")]).create(bytes.len() as u64).expect("a pool");
    pool.persist(0, &bytes).expect("a receipt");
    for index in 0..2 {
        let mut found = vec![0; bytes.len()];
        pool.read_replica(index, 0, &mut found).expect("a read");
        assert!(found == bytes, "replica {index}");
    }
}

#[test]
fn pools_of_one_target_are_apart_and_may_be_replicas_of_one() {
    let target = Target::start();
    let first = options([target.url("first")]).create(4096).expect("a pool");
    let second = options([target.url("second")]).create(4096).expect("a pool");
    first.persist(0, b"first").expect("a receipt");
    second.persist(0, b"second").expect("a receipt");
    assert_eq!(read(&first, 0, 6), b"first\0");
    assert_eq!(read(&second, 0, 6), b"second");

    let both = options([target.url("copy1"), target.url("copy2")]).create(4096).expect("a pool");
    both.persist(0, b"twice").expect("a receipt");
    let mut bytes = [0; 5];
    both.read_replica(1, 0, &mut bytes).expect("a read");
    assert_eq!(&bytes, b"twice");
    let twice = options([target.url("first"), target.url("first")]).open();
    assert!(matches!(twice, Err(PoolError::Twice { .. })));
    assert!(matches!(options([""; 0]).open(), Err(PoolError::NoReplicas)));
    assert_eq!(target.files(), ["copy1", "copy2", "first", "second"]);
}

#[test]
fn pools_outlive_their_target() {
    let mut target = Target::start();
    let pool = options([target.url("orders")]).create(4096).expect("a pool");
    pool.persist(10, b"kept").expect("a receipt");
    target.restart();
    assert!(pool.persist(10, b"lost").is_err());
    let again = options([target.url("orders")]).open().expect("the pool");
    assert_eq!(read(&again, 10, 4), b"kept");
}

#[test]
fn receipts_tell_what_was_declared_from_what_was_probed() {
    let store = StoreOptions::default().declaration(Some(Declaration::BatteryBacked));
    let declared = Target::on_tmpfs(ServiceOptions::default().store(store));
    let probed = Target::start();
    let pools = options([declared.url("orders"), probed.url("orders")]).require(Durability::PowerFailure);
    let pool = pools.create(4096).expect("as declared");
    let receipt = pool.persist(0, b"x").expect("a receipt");
    let evidence: Vec<_> = receipt.replicas.iter().map(|replica| replica.promise.evidence).collect();
    assert_eq!(evidence, [Evidence::Declared, Evidence::Probed], "{receipt}");
    assert!(receipt.to_string().contains("declared"), "{receipt}");
    let infos = pools.info().expect("info");
    assert_eq!(infos[0].medium, MediumKind::Tmpfs);
    assert_eq!(infos[0].promises[2].map(|promise| promise.evidence), Some(Evidence::Declared));
    // What a writer gets, a reader may ask for too.
    pools.open_read_only().expect("as declared");
}

#[test]
fn lists_of_many_pages_come_whole() {
    let target = Target::start();
    assert!(list_pools(&target.address().into(), &options([""; 0])).expect("a list").is_empty());
    let names: Vec<_> = (0..40).map(|number| format!("{number:0>200}")).collect();
    for name in &names {
        options([target.url(name)]).create(1).expect("a pool").close().expect("closed");
    }
    // A page holds fewer: one question is not enough.
    let Reply::List { names: page, more } =
        RawInitiator::connect(&target.address()).ask(&Request::List { after: None })
    else {
        panic!("no list")
    };
    assert!(more && page.len() < names.len());
    let found = list_pools(&target.address().into(), &options([""; 0])).expect("a list");
    assert_eq!(found.iter().map(ToString::to_string).collect::<Vec<_>>(), names);
    assert_eq!(files(target.root.path()), names);
}

#[test]
fn the_longest_times_are_taken() {
    let target = Target::start();
    let pools = options([target.url("orders")]).loss_timeout(Duration::MAX).connect_timeout(Duration::MAX);
    pools.create(4096).expect("a pool").close().expect("closed");
    pools.open().expect("the pool").persist(0, b"kept").expect("a receipt");
}
