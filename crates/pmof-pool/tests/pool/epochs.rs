//! Replicas that lack acknowledged writes, or hold others than the rest, are told by their epochs: nothing is read from them.

use std::{fs, thread, time::Duration};

use pmof_access::Durability;
use pmof_control::{DATA_OFFSET, Epoch, OpenFor, PoolFormat, PoolName, PoolRefusal, Reply, Request};
use pmof_mem::causes;
use pmof_pool::{Pool, PoolError, PoolOptions, ReplicaError};
use uuid::Uuid;

use crate::support::*;

fn targets<const N: usize>() -> [Target; N] {
    std::array::from_fn(|_| Target::start())
}

/// One replica, whatever the pool was made with.
fn pool_of_one(target: &Target) -> PoolOptions {
    options([target.url("orders")]).min_replicas(1)
}

/// Opens one replica for writing, and closes it in order.
fn write_to_one(target: &Target, bytes: &[u8]) {
    let pool = pool_of_one(target).open().unwrap();
    pool.persist(0, bytes).unwrap();
    pool.close().unwrap();
}

fn persist_degraded(pool: &Pool, bytes: &[u8]) {
    assert!(pool.persist(0, bytes).unwrap().is_degraded());
}

/// Replicas that have to catch up with the others, or that the pool was opened without.
fn behind(pool: &Pool) -> Vec<usize> {
    let replicas = pool.replicas().into_iter().enumerate();
    replicas.filter(|(_, (_, why))| why.is_some()).map(|(position, _)| position).collect()
}

/// Those that do not belong to the others, and why.
#[track_caller]
fn apart(opened: Result<Pool, PoolError>) -> Vec<(String, String)> {
    match opened {
        Err(PoolError::Apart { replicas }) => {
            let named = replicas.iter().map(|(replica, why)| {
                let kind = match **why {
                    ReplicaError::LeftBehind { opening, newest } => {
                        assert!(opening < newest);
                        "left behind"
                    }
                    ReplicaError::RolledBack { opening, newest } => {
                        assert!(opening < newest);
                        "rolled back"
                    }
                    ReplicaError::Stale { mark, newest, .. } => {
                        assert!(mark + 1 < newest);
                        "stale"
                    }
                    ReplicaError::Diverged { majority: true, .. } => "diverged from the majority",
                    ReplicaError::Diverged { majority: false, .. } => "diverged",
                    ReplicaError::WithoutMajority { .. } => "without the majority",
                    ref other => panic!("{other}"),
                };
                (replica.to_string(), kind.to_owned())
            });
            named.collect()
        }
        Ok(_) => panic!("they do not belong together"),
        Err(other) => panic!("{other}"),
    }
}

fn named(target: &Target, kind: &str) -> (String, String) {
    (target.url("orders"), kind.to_owned())
}

#[track_caller]
fn assert_degraded(opened: Result<Pool, PoolError>, expected: (usize, usize)) {
    match opened {
        Err(error @ PoolError::Degraded { opened, made, .. }) => {
            assert_eq!((opened, made), expected);
            assert!(causes(&error).to_string().contains("only a majority is safe"), "{error}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn split_brain_is_refused_by_name() {
    let two: [Target; 2] = targets();
    options(urls(&two)).create(4096).unwrap().close().unwrap();
    write_to_one(&two[1], b"of the second");
    write_to_one(&two[0], b"of the first");
    let both = [named(&two[0], "diverged"), named(&two[1], "diverged")];
    assert_eq!(apart(options(urls(&two)).open()), both);
    assert_eq!(apart(options(urls(&two)).open_read_only()), both);
    // Nor does asking for fewer help: nothing says which of them counts.
    assert_eq!(apart(options(urls(&two)).min_replicas(1).open()), both);
    // Each is whole and can be read by itself.
    assert_eq!(read(&pool_of_one(&two[0]).open_read_only().unwrap(), 0, 12), b"of the first");
    assert_eq!(read(&pool_of_one(&two[1]).open_read_only().unwrap(), 0, 13), b"of the second");
}

#[test]
fn an_old_copy_of_a_replica_is_refused_by_name() {
    let mut two: [Target; 2] = targets();
    let pools = |two: &[Target]| options(urls(two));
    pools(&two).create(4096).unwrap().close().unwrap();
    let path = two[1].root.path().join("orders");
    let old = fs::read(&path).unwrap();
    let pool = pools(&two).open().unwrap();
    pool.persist(0, b"new").unwrap();
    pool.close().unwrap();
    let new = fs::read(&path).unwrap();

    two[1].stop();
    fs::write(&path, old).unwrap();
    two[1].restart();
    assert_eq!(apart(pools(&two).open()), [named(&two[1], "rolled back")]);
    assert_eq!(apart(pools(&two).open_read_only()), [named(&two[1], "rolled back")]);
    // The control: with the newest file again, they belong together.
    two[1].stop();
    fs::write(&path, new).unwrap();
    two[1].restart();
    assert_eq!(read(&pools(&two).open().unwrap(), 0, 3), b"new");
}

/// A pool whose writer persists, has the file of its first replica copied, persists as many times more, so far apart that the mark is raised,
/// and dies. Then the copy is put back.
fn copied_while_open(two: &mut [Target; 2], times: u32) {
    let pool = options(urls(&*two)).create(4096).unwrap();
    pool.persist(0, b"old").unwrap();
    let path = two[0].root.path().join("orders");
    let copy = fs::read(&path).unwrap();
    for time in 0..times {
        thread::sleep(Duration::from_millis(1050));
        pool.persist(0, format!("new{time}").as_bytes()).unwrap();
    }
    drop(pool);
    two[0].stop();
    fs::write(&path, copy).unwrap();
    two[0].restart();
}

#[test]
fn a_copy_made_while_the_pool_was_open_never_becomes_the_source() {
    let mut two: [Target; 2] = targets();
    copied_while_open(&mut two, 1);
    // It is named first.
    let reader = options(urls(&two)).open_read_only().unwrap();
    assert_eq!(read(&reader, 0, 4), b"new0");
    reader.close().unwrap();
    let pool = options(urls(&two)).open().unwrap();
    assert_eq!((read(&pool, 0, 4), behind(&pool)), (b"new0".to_vec(), vec![0]), "it catches up");
    wait_in_sync(&pool);
    let mut bytes = [0; 4];
    pool.read_replica(0, 0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"new0");
    // At whichever of them the next mark arrives before the writer dies, the other is no older copy.
    let marks = options(urls(&two)).info().unwrap().into_iter().map(|info| info.state.mark);
    assert_eq!(marks.collect::<Vec<_>>(), [2, 2]);
    pool.persist(0, b"more").unwrap();
    drop(pool);
    assert_eq!(read(&options(urls(&two)).open().unwrap(), 0, 4), b"more");
}

#[test]
fn a_copy_made_long_before_the_writer_died_is_refused_by_name() {
    let mut two: [Target; 2] = targets();
    copied_while_open(&mut two, 2);
    assert_eq!(apart(options(urls(&two)).open()), [named(&two[0], "stale")]);
    let reader = options(urls(&two)).open_read_only().unwrap();
    assert_eq!(read(&reader, 0, 4), b"new1");
    reader.close().unwrap();
    // Whoever decides that the other is enough has the older copy made equal to it.
    let pool = options(urls(&two)).min_replicas(1).open().unwrap();
    assert_eq!((read(&pool, 0, 4), pool.was_closed(), behind(&pool)), (b"new1".to_vec(), false, vec![0]));
    wait_in_sync(&pool);
    let mut bytes = [0; 4];
    pool.read_replica(0, 0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"new1");
    pool.close().unwrap();
}

#[test]
fn a_reader_reads_a_replica_that_was_closed() {
    let mut two: [Target; 2] = targets();
    let pool = options(urls(&two)).create(4096).unwrap();
    pool.persist(0, b"old").unwrap();
    let path = two[0].root.path().join("orders");
    // Of the same opening, and of a time when it was not closed.
    let copy = fs::read(&path).unwrap();
    pool.persist(0, b"new").unwrap();
    pool.close().unwrap();
    two[0].stop();
    fs::write(&path, copy).unwrap();
    two[0].restart();
    let reader = options(urls(&two)).open_read_only().unwrap();
    assert_eq!(read(&reader, 0, 3), b"new");
    reader.close().unwrap();
    let writer = options(urls(&two)).open().unwrap();
    assert_eq!((read(&writer, 0, 3), writer.copied_bytes()), (b"new".to_vec(), 4096));
}

#[test]
fn a_copy_of_a_replica_is_no_second_replica() {
    let target = Target::start();
    let two = options([target.url("orders"), target.url("other")]);
    two.create(4096).unwrap().close().unwrap();
    fs::copy(target.root.path().join("orders"), target.root.path().join("copy")).unwrap();
    let error = options([target.url("orders"), target.url("copy")]).open().unwrap_err();
    assert!(matches!(error, PoolError::SameReplica { index: 0, .. }), "{error}");
    two.open().unwrap().close().unwrap();
}

/// The members keep who lies where: the pool goes on without the one that is gone.
#[test]
fn a_copy_at_another_members_address_is_left_out() {
    let mut three: [Target; 3] = std::array::from_fn(|_| Target::start_fixed());
    let pool = options(urls(&three)).create(4096).unwrap();
    pool.persist(0, b"kept").unwrap();
    pool.close().unwrap();
    three[1].stop();
    fs::copy(three[0].root.path().join("orders"), three[1].root.path().join("orders")).unwrap();
    three[1].restart();
    for access in ["reading", "writing"] {
        let pool = match access {
            "reading" => options(urls(&three)).open_read_only().unwrap(),
            _ => options(urls(&three)).open().unwrap(),
        };
        let [(replica, why)] = pool.left_out() else { panic!("{access}: {:?}", pool.left_out()) };
        assert_eq!(replica.to_string(), three[1].url("orders"), "{access}");
        assert!(matches!(**why, ReplicaError::NotTheMember { index: 1, found: 0 }), "{access}: {why}");
        assert_eq!(read(&pool, 0, 4), b"kept");
        pool.close().unwrap();
    }
    // One of them alone is no member's address: nothing tells which is the copy.
    let target = Target::start();
    fs::copy(three[0].root.path().join("orders"), target.root.path().join("orders")).unwrap();
    let error = options([three[0].url("orders"), target.url("orders"), three[2].url("orders")]).open().unwrap_err();
    assert!(matches!(error, PoolError::SameReplica { index: 0, .. }), "{error}");
}

#[test]
fn a_minority_is_opened_only_when_asked_for() {
    let mut three: [Target; 3] = targets();
    options(urls(&three)).create(4096).unwrap().close().unwrap();
    assert_degraded(options(urls(&three[..1])).min_replicas(2).open_read_only(), (1, 3));
    assert_degraded(options(urls(&three[..1])).min_replicas(2).open(), (1, 3));
    assert_degraded(options(urls(&three)).min_replicas(4).open(), (3, 3));
    // What was refused left nothing open, and no epoch.
    options(urls(&three)).open().unwrap().close().unwrap();

    let pool = options(urls(&three[..2])).min_replicas(2).open().unwrap();
    assert_eq!((pool.replica_count(), pool.made_count()), (2, 3));
    let receipt = pool.persist(0, b"new").unwrap();
    assert!(receipt.to_string().contains("on 2/2, of 3 that the pool has: "), "{receipt}");
    pool.close().unwrap();

    // Named, and left out because it cannot be reached; to a reader, because it lacks writes.
    let reader = options(urls(&three)).open_read_only().unwrap();
    assert!(matches!(*reader.left_out()[0].1, ReplicaError::LeftBehind { .. }), "{:?}", reader.left_out());
    assert_eq!(read(&reader, 0, 3), b"new");
    let all = urls(&three);
    three[2].stop();
    let pool = options(&all).open().unwrap();
    assert!(matches!(*pool.left_out()[0].1, ReplicaError::Connect(_)), "{:?}", pool.left_out());
    assert_eq!(pool.left_out()[0].0.to_string(), all[2]);
    assert_eq!((read(&pool, 0, 3), behind(&pool)), (b"new".to_vec(), vec![2]));
    pool.close().unwrap();
    assert!(matches!(options(&all).min_replicas(3).open(), Err(PoolError::Degraded { opened: 2, needed: 3, .. })));
    three[1].stop();
    let error = options(&all).open().unwrap_err();
    assert!(matches!(error, PoolError::TooFew { here: 1, made: 3, needed: 2, .. }), "{error:?}");
    assert!(
        error.is_replica_lost() && error.to_string().contains("1 of the pool's 3 members can be opened"),
        "{error}"
    );
}

#[test]
fn a_minority_never_outranks_a_majority() {
    let three: [Target; 3] = targets();
    options(urls(&three)).create(4096).unwrap().close().unwrap();
    // Left behind, then opened alone again and again.
    let pool = options(urls(&three[..2])).min_replicas(2).open().unwrap();
    pool.persist(0, b"of the majority").unwrap();
    pool.close().unwrap();
    for _ in 0..4 {
        write_to_one(&three[2], b"of the minority");
    }
    let pool = options(urls(&three)).open().unwrap();
    assert_eq!(read(&pool, 0, 15), b"of the majority");
    let [(replica, why)] = pool.left_out() else { panic!("{:?}", pool.left_out()) };
    assert_eq!(replica.to_string(), three[2].url("orders"));
    assert!(matches!(**why, ReplicaError::Diverged { majority: true, .. }), "{why}");
    pool.close().unwrap();
    // What it may have acknowledged alone is not overwritten.
    assert_eq!(read(&pool_of_one(&three[2]).open_read_only().unwrap(), 0, 15), b"of the minority");
}

#[test]
fn what_a_minority_wrote_after_the_majority_stopped_is_reported() {
    let three: [Target; 3] = targets();
    options(urls(&three)).create(4096).unwrap().close().unwrap();
    write_to_one(&three[2], b"new");
    let minority = [named(&three[2], "without the majority")];
    assert_eq!(apart(options(urls(&three)).open()), minority);
    assert_eq!(apart(options(urls(&three)).min_replicas(2).open()), minority);
    options(urls(&three[..2])).min_replicas(2).open().unwrap().close().unwrap();
}

#[test]
fn nothing_is_read_from_a_replica_that_was_lost() {
    let mut three: [Target; 3] = targets();
    let pool = options(urls(&three)).create(4096).unwrap();
    pool.persist(0, b"old").unwrap();
    three[0].stop();
    persist_degraded(&pool, b"new");
    pool.close().unwrap();
    three[0].restart();

    // The positive control: each replica is sound, and without the check its old bytes would be read.
    let old = pool_of_one(&three[0]).open_read_only().unwrap();
    assert_eq!(read(&old, 0, 3), b"old");
    old.close().unwrap();
    let reader = options(urls(&three)).open_read_only().unwrap();
    assert_eq!((read(&reader, 0, 3), behind(&reader)), (b"new".to_vec(), vec![0]));

    let pool = options(urls(&three)).open().unwrap();
    assert_eq!(read(&pool, 0, 3), b"new");
    pool.persist(0, b"newer").unwrap();
    wait_in_sync(&pool);
}

#[test]
fn a_loss_counts_when_enough_know_of_it() {
    let mut three: [Target; 3] = std::array::from_fn(|_| Target::start_fixed());
    let pool = options(urls(&three)).create(4096).unwrap();
    three[2].stop();
    persist_degraded(&pool, b"one");
    three[1].stop();
    assert!(matches!(pool.persist(0, b"two"), Err(PoolError::Persist(_))));
    drop(pool);
    // A thread of the pool may still have it, and would have the second one back.
    let first = options([three[0].url("orders")]);
    while first.info().unwrap()[0].open_by.is_some() {
        thread::sleep(Duration::from_millis(1));
    }
    three[1].restart();
    three[2].restart();
    let openings: Vec<_> = urls(&three).iter().map(|url| options([url]).info().unwrap()[0].state.opening).collect();
    assert_eq!(openings, [2, 2, 1]);
    // The second loss was none: what was acknowledged is on that replica too.
    three[0].stop();
    let pool = options(urls(&three)).open().unwrap();
    assert_eq!(read(&pool, 0, 3), b"one");
    three[0].restart();
    wait_in_sync(&pool);
    assert_eq!(behind(&pool), [0; 0]);
}

#[test]
fn epochs_survive_the_target() {
    let mut two: [Target; 2] = targets();
    let pool = options(urls(&two)).create(4096).unwrap();
    two[1].stop();
    persist_degraded(&pool, b"new");
    drop(pool);
    two[0].restart();
    two[1].restart();
    let reader = options(urls(&two)).open_read_only().unwrap();
    assert_eq!((read(&reader, 0, 3), behind(&reader)), (b"new".to_vec(), vec![1]));
}

#[test]
fn after_a_writer_died_replicas_are_equal_before_the_first_read() {
    // The last block is not a whole one.
    const SIZE_BYTES: usize = (20 << 20) + 100;
    let mut two: [Target; 2] = targets();
    let pool = options(urls(&two)).create(SIZE_BYTES as u64).unwrap();
    pool.persist(100, b"acknowledged").unwrap();
    // Where it was about to write more.
    for offset in [9 << 20, SIZE_BYTES as u64 - 1] {
        pool.persist(offset, b"\0").unwrap();
    }
    drop(pool);
    // What a writer leaves that dies between its two sends: an entry that one replica has, and nobody acknowledged.
    for target in &mut two {
        target.stop();
    }
    let path = two[0].root.path().join("orders");
    let mut bytes = fs::read(&path).unwrap();
    for at in [0, 9 << 20, SIZE_BYTES - 1].map(|offset| DATA_OFFSET as usize + offset) {
        bytes[at] = b'!';
    }
    fs::write(&path, bytes).unwrap();
    for target in &mut two {
        target.restart();
    }

    let pool = options(urls(&two)).open().unwrap();
    assert_eq!((pool.copied_bytes(), pool.was_closed()), (2 * 65536 + 100, false));
    for (at, expected) in [(0, b"!"), (9 << 20, b"!"), (SIZE_BYTES as u64 - 1, b"!"), (1, b"\0")] {
        for replica in 0..2 {
            let mut byte = [0];
            pool.read_replica(replica, at, &mut byte).unwrap();
            assert_eq!(&byte, expected, "{at} of {replica}");
        }
    }
    assert_eq!(read(&pool, 100, 12), b"acknowledged");
    pool.close().unwrap();
    let contents: Vec<_> = two.iter().map(|target| fs::read(target.root.path().join("orders")).unwrap()).collect();
    assert!(contents[0][DATA_OFFSET as usize..] == contents[1][DATA_OFFSET as usize..]);
    // A pool that was closed is not compared, even where a replica differs.
    two[1].stop();
    let path = two[1].root.path().join("orders");
    let mut bytes = fs::read(&path).unwrap();
    bytes[DATA_OFFSET as usize] = b'?';
    fs::write(&path, bytes).unwrap();
    two[1].restart();
    let pool = options(urls(&two)).open().unwrap();
    assert_eq!((pool.copied_bytes(), pool.was_closed()), (0, true));
    let mut byte = [0];
    pool.read_replica(1, 0, &mut byte).unwrap();
    assert_eq!(&byte, b"?");
    pool.close().unwrap();
}

#[test]
fn a_clean_close_is_remembered_and_nothing_else_counts_as_one() {
    let two: [Target; 2] = targets();
    let is_open = || two.each_ref().map(|target| options([target.url("orders")]).info().unwrap()[0].state.is_open);
    let pool = options(urls(&two)).create(4096).unwrap();
    assert_eq!(is_open(), [true; 2]);
    pool.persist(0, b"x").unwrap();
    drop(pool);
    let pool = options(urls(&two)).open().unwrap();
    assert_eq!(is_open(), [true; 2]);
    pool.close().unwrap();
    assert_eq!(is_open(), [false; 2]);
    // An opening that fails changes nothing.
    drop(options(urls(&two)).open().unwrap());
    options(urls(&two)).open().unwrap().close().unwrap();
    options([two[0].url("orders")]).min_replicas(2).open().unwrap_err();
    assert_eq!(is_open(), [false; 2]);
    drop(options(urls(&two)).open().unwrap());
    options([two[0].url("orders")]).min_replicas(2).open().unwrap_err();
    assert_eq!(is_open(), [true; 2]);
}

#[test]
fn close_flushes_what_was_posted() {
    let two: [Target; 2] = targets();
    let pool = options(urls(&two)).create(4096).unwrap();
    pool.lane().write(0, b"posted").unwrap();
    pool.close().unwrap();
    let pool = options(urls(&two)).open().unwrap();
    for replica in 0..2 {
        let mut bytes = [0; 6];
        pool.read_replica(replica, 0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"posted");
    }
}

#[test]
fn pools_of_older_formats_are_read_and_not_written() {
    let target = Target::start();
    let one = include_bytes!("../../../pmof-control/tests/golden/pool_header_v1.bin");
    let two = include_bytes!("../../../pmof-control/tests/golden/pool_header_v2.bin");
    let state = include_bytes!("../../../pmof-control/tests/golden/pool_state_v2.bin");
    for (header, state, format) in
        [(one, &[][..], PoolFormat::One { generation: 7 }), (two, &state[..], PoolFormat::Two)]
    {
        // With one page of data, and alone.
        let mut file = header.to_vec();
        file[64..72].copy_from_slice(&4096_u64.to_le_bytes());
        file[96..100].copy_from_slice(&[1, 0, 0, 0]);
        let checksum = crc32c::crc32c(&[&file[..88], &[0; 8], &file[96..4092]].concat());
        file[4092..].copy_from_slice(&checksum.to_le_bytes());
        file.extend(state);
        file.extend([b'1'; 4096]);
        fs::write(target.root.path().join("orders"), file).unwrap();

        let pools = options([target.url("orders")]);
        let pool = pools.open_read_only().unwrap();
        assert_eq!((pool.len_bytes(), read(&pool, 4000, 96)), (4096, vec![b'1'; 96]));
        drop(pool);
        let error = pools.open().unwrap_err();
        assert_refused(&error, &target.url("orders"), PoolRefusal::OldFormat);
        assert!(causes(&error).to_string().contains("pmof cp"), "{error}");
        assert_eq!(pools.info().unwrap().remove(0).header.format, format);
        pools.remove().unwrap();
    }
}

#[test]
fn a_pool_has_at_most_64_replicas() {
    let target = Target::start();
    let urls = |count: usize| (0..count).map(|number| target.url(&format!("r{number}"))).collect::<Vec<_>>();
    assert!(matches!(options(urls(65)).create(1), Err(PoolError::TooMany { named: 65 })));
    let pool = options(urls(64)).create(1).unwrap();
    pool.persist(0, b"x").unwrap();
    pool.close().unwrap();
    options(urls(64)).open().unwrap().close().unwrap();
}

#[test]
fn a_misaligned_atomic_write_is_refused_and_the_pool_goes_on() {
    let target = Target::start();
    let pool = options([target.url("orders")]).create(4096).unwrap();
    let mut batch = pool.lane();
    assert!(matches!(batch.atomic_write(4, 1), Err(PoolError::Misaligned { offset: 4 })));
    batch.atomic_write(8, 1).unwrap();
    batch.persist().unwrap();
    assert_eq!(read(&pool, 8, 8), 1_u64.to_le_bytes());
}

/// A replica that is gone can be done without. One that another writes is not gone: without it, each would go on alone.
#[test]
fn a_replica_that_another_writes_is_not_done_without() {
    let two: [Target; 2] = targets();
    options(urls(&two)).create(4096).unwrap().close().unwrap();
    let without = options(urls(&two)).min_replicas(1);
    let other = pool_of_one(&two[1]).open().unwrap();
    assert_refused(&without.open().unwrap_err(), &two[1].url("orders"), PoolRefusal::Busy);
    other.close().unwrap();

    let two: [Target; 2] = targets();
    options(urls(&two)).create(4096).unwrap().close().unwrap();
    fs::remove_file(two[0].root.path().join("orders")).unwrap();
    assert_refused(&options(urls(&two)).open().unwrap_err(), &two[0].url("orders"), PoolRefusal::NotFound);
    let pool = options(urls(&two)).min_replicas(1).open().unwrap();
    let [(replica, why)] = pool.left_out() else { panic!("{:?}", pool.left_out()) };
    assert_eq!(replica.to_string(), two[0].url("orders"));
    assert!(matches!(**why, ReplicaError::Refused { refusal: PoolRefusal::NotFound, .. }), "{why}");
    pool.close().unwrap();
}

/// A writer of the epoch {0, 2} loses the first replica and announces the epoch {2} to the other two. The third confirms it, and the writer dies. The first two
/// do not know of that, and go on: the third holds older bytes, and says of itself that it is the only member of the newest epoch.
#[test]
fn the_only_member_of_an_epoch_is_not_read_alone() {
    let mut three: [Target; 3] = targets();
    options(urls(&three)).create(4096).unwrap().close().unwrap();
    let pool = options(urls(&three[..1]).into_iter().chain(urls(&three[2..]))).open().unwrap();
    pool.persist(0, b"older").unwrap();
    pool.close().unwrap();

    // The writer's own state of the pool, without its library: the last two replicas, and an epoch of the last.
    let state = options(urls(&three[2..])).min_replicas(1).info().unwrap()[0].state.clone();
    let ancestors: Vec<_> = std::iter::once(state.epoch).chain(state.ancestors).collect();
    let (epoch, opening) = (Epoch::new(Uuid::new_v4(), [2]), state.opening + 1);
    let writers = [1, 2].map(|index: usize| RawInitiator::connect(&three[index].address()));
    for writer in &writers {
        let (name, require) = (PoolName::new("orders").unwrap(), Durability::ProcessCrash);
        let opened = writer.ask(&Request::Open { name, access: OpenFor::Write, require, may_be_older: false });
        assert!(matches!(opened, Reply::Opened { .. }), "{opened:?}");
        let begin = Request::Begin { opening, epoch, ancestors: ancestors.clone() };
        assert_eq!(writer.ask(&begin), Reply::Begun);
    }
    assert_eq!(writers[1].ask(&Request::Confirm { epoch: epoch.id }), Reply::Confirmed);
    drop(writers);

    three[2].stop();
    let pool = options(urls(&three[..2])).open().unwrap();
    pool.persist(0, b"newer").unwrap();
    pool.close().unwrap();
    three[0].stop();
    three[1].stop();
    three[2].restart();
    let alone = options([three[2].url("orders")]);
    assert!(alone.open_read_only().is_err() && alone.open().is_err());
    // The control: whoever says that one is enough reads the older bytes.
    let reader = alone.min_replicas(1).open_read_only().unwrap();
    assert_eq!(read(&reader, 0, 5), b"older");
    reader.close().unwrap();
    // Two of three are enough to know that it is behind.
    three[0].restart();
    let reader = options([three[2].url("orders"), three[0].url("orders")]).open_read_only().unwrap();
    assert_eq!((read(&reader, 0, 5), behind(&reader)[0]), (b"newer".to_vec(), 0));
}
