//! Pools as files: what is durable, and in which order, when they are made, published and removed.

use std::{fs, path::Path};

use pmof_access::Durability;
use pmof_control::{NewPool, PoolName, USER_FLAGS_BYTES};
use pmof_target::{PoolStore, StoreOptions};
use syscall_recorder::{Call, Verdict, observe, record};
use uuid::Uuid;

use crate::support::{EIO, available, mark, on_disk, stretches, syncs_of};

fn new_pool() -> NewPool {
    NewPool {
        pool_uuid: Uuid::new_v4(),
        size_bytes: 1 << 20,
        epoch: Uuid::new_v4(),
        replica_index: 0,
        replica_count: 1,
        require: Durability::PowerFailure,
        user_flags: [0; USER_FLAGS_BYTES],
        protection: None,
    }
}

fn name() -> PoolName {
    PoolName::new("orders").unwrap()
}

fn store(root: &Path) -> PoolStore {
    PoolStore::open(root, StoreOptions::default()).unwrap()
}

/// Where in the calls a file under the root got its name, and what it was called before.
fn published<'c>(calls: &'c [Call], root: &Path) -> (usize, &'c Path) {
    let named = calls.iter().enumerate().filter_map(|(at, call)| match call {
        Call::Rename(from, to) if *to == root.join("orders") => Some((at, from.as_path())),
        _ => None,
    });
    let [(at, from)] = named.collect::<Vec<_>>()[..] else { panic!("not published once: {calls:?}") };
    (at, from)
}

#[test]
fn a_pool_is_whole_before_it_has_its_name_and_its_name_before_anybody_hears_of_it() {
    let Some(directory) = on_disk() else { return };
    let root = directory.path();
    let act = || {
        let store = store(root);
        let mut pool = store.create_unpublished(&name(), &new_pool()).unwrap();
        mark();
        store.publish(&mut pool, "a test".to_owned()).unwrap();
        mark();
        drop(pool);
        store.remove(&name()).unwrap();
    };
    let Some(((), calls)) = available(observe(act)) else { return };
    let [made, named, removed] = stretches(&calls)[..] else { panic!("{calls:?}") };
    let (at, working_file) = published(named, root);
    // The file with its length and space, then its own name, then what the header says.
    let synced: Vec<_> = made.iter().map(|call| call.is_sync_of(working_file)).collect();
    assert!(syncs_of(made, working_file) >= 2, "the file, then its header: {made:?}");
    assert_eq!(synced.last(), Some(&true), "nothing but the header comes last: {made:?}");
    assert_eq!(syncs_of(&named[at..], root), 1, "the name is durable: {named:?}");
    assert_eq!(syncs_of(removed, root), 1, "so is its end: {removed:?}");
}

#[test]
fn whatever_of_a_new_pool_is_not_durable_it_is_not_there() {
    let Some(directory) = on_disk() else { return };
    let root = directory.path();
    let create = || store(root).create(&name(), &new_pool(), "a test".to_owned()).map(drop);
    // As many as there are, each failed once.
    for failing in 1.. {
        let mut seen = 0;
        let judge = |call: &Call| {
            seen += usize::from(matches!(call, Call::Fsync(_) | Call::Fdatasync(_)));
            if seen == failing { Verdict::Fail(EIO) } else { Verdict::Pass }
        };
        let Some((made, calls)) = available(record(judge, create)) else { return };
        if calls.iter().filter(|call| matches!(call, Call::Fsync(_) | Call::Fdatasync(_))).count() < failing {
            made.unwrap();
            assert!(failing > 4, "file, directory, header, name: {calls:?}");
            break;
        }
        assert!(made.is_err(), "{failing}: {calls:?}");
        let left: Vec<_> = fs::read_dir(root).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert!(left.is_empty(), "{failing}: {left:?}");
    }
}
