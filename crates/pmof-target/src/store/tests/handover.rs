//! A pool that changes hands while it is open.

use std::{
    os::unix::fs::MetadataExt as _,
    sync::atomic::{AtomicBool, Ordering},
};

use syscall_recorder::{Call, Verdict, record};

use super::*;

fn opened(store: &PoolStore) -> OpenPool {
    drop(create(store, "orders"));
    let mut pool = open(store, "orders", OpenFor::Write).expect("the pool");
    pool.begin(Epoch { id: Uuid::from_u128(7), members: 1 }, 2, &[]).expect("begun");
    pool.medium().store(DATA_OFFSET, b"stored").expect("a store");
    pool
}

fn bytes_of(pool: &OpenPool) -> [u8; 6] {
    let mut bytes = [0; 6];
    pool.medium().read(DATA_OFFSET, &mut bytes).expect("a read");
    bytes
}

#[test]
fn the_memory_stays_where_nobody_else_has_it() {
    let (_root, store) = fresh();
    let pool = opened(&store);
    let (memory, state) = (pool.medium(), pool.state().clone());
    let pool = store.hand_over(pool, None, "the next".to_owned()).expect("handed over");
    assert!(Arc::ptr_eq(&memory, &pool.medium()));
    assert_eq!((pool.state(), pool.has_begun, bytes_of(&pool)), (&state, false, *b"stored"));
    assert_busy(open(&store, "orders", OpenFor::Write), "the next");
}

#[test]
fn a_copy_takes_the_place_of_a_file_that_others_have_mapped() {
    let (root, store) = fresh();
    let path = root.path().join("orders");
    let pool = opened(&store);
    let (old, inode, state) = (pool.medium(), fs::metadata(&path).unwrap().ino(), pool.state().clone());
    // As another process would have it.
    let mapped = Memory::open(&path, None).expect("mapped");
    let space = store.prepare_replacement(&pool).expect("space");
    assert_busy(open(&store, "orders", OpenFor::Write), "an opener");
    let pool = store.hand_over(pool, Some(space), "the next".to_owned()).expect("handed over");

    assert_eq!((pool.state(), pool.has_begun, bytes_of(&pool)), (&state, false, *b"stored"));
    assert_ne!(fs::metadata(&path).unwrap().ino(), inode);
    assert_eq!(entries(root.path()), ["orders"]);
    for late in [&mapped, &*old] {
        assert!(late.store(DATA_OFFSET, b"late").is_err(), "a store meets the end of the file");
    }
    assert_eq!(bytes_of(&pool), *b"stored");
    assert_eq!(fs::read(&path).unwrap()[DATA_OFFSET as usize..][..6], *b"stored");
    drop((mapped, old));
    assert_busy(open(&store, "orders", OpenFor::Write), "the next");
    let other = store_at(root.path());
    assert!(matches!(open(&other, "orders", OpenFor::Write), Err(StoreError::Busy { .. })), "the copy is locked");
    assert!(store.info(&name("orders")).expect("described").state.is_open);
    drop(pool);
    open(&other, "orders", OpenFor::Write).expect("free again");
}

#[test]
fn the_old_file_is_cut_behind_the_durable_rename() {
    for fails in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        let path = root.join("orders");
        let old: Mutex<Option<File>> = Mutex::default();
        let len_bytes = || old.lock().as_ref().map(|old| old.metadata().expect("it is open").len());
        let (is_renamed, is_looked_at) = (AtomicBool::new(false), AtomicBool::new(false));
        let judge = |call: &Call| {
            let is_old = len_bytes() == Some(DATA_OFFSET + 12_288);
            match call {
                Call::Rename(_, to) if is_old && *to == path => is_renamed.store(true, Ordering::SeqCst),
                Call::Fsync(synced) if is_renamed.load(Ordering::SeqCst) && *synced == root => {
                    is_looked_at.store(is_old, Ordering::SeqCst);
                    return if fails { Verdict::Fail(5) } else { Verdict::Pass };
                }
                _ => {}
            }
            Verdict::Pass
        };
        let act = || {
            let store = store_at(&root);
            let pool = opened(&store);
            let space = store.prepare_replacement(&pool).expect("space");
            *old.lock() = Some(File::open(&path).unwrap());
            store.hand_over(pool, Some(space), String::new())
        };
        let (outcome, calls) = match record(judge, act) {
            Ok(recorded) => recorded,
            Err(error) => {
                skip_report::skipped!("{error}");
                return;
            }
        };
        assert!(is_looked_at.load(Ordering::SeqCst), "the directory is flushed, and before the cut: {calls:?}");
        let renamed = calls.iter().rposition(|call| matches!(call, Call::Rename(..))).expect("renamed");
        let is_durable = |call: &Call| matches!(call, Call::Fdatasync(_) | Call::Fsync(_));
        assert!(calls[..renamed].iter().rev().take(2).any(is_durable), "the copy is durable first: {calls:?}");
        match outcome {
            Ok(pool) => assert!(!fails && len_bytes() == Some(0) && bytes_of(&pool) == *b"stored"),
            Err(failed) => {
                assert!(fails && failed.kept.is_none() && len_bytes() == Some(DATA_OFFSET + 12_288), "{failed:?}");
            }
        }
    }
}

#[test]
fn without_its_name_nothing_is_handed_over() {
    let (root, store) = fresh();
    let path = root.path().join("orders");
    for has_room in [false, true] {
        let pool = opened(&store);
        let space = has_room.then(|| store.prepare_replacement(&pool).expect("space"));
        fs::rename(&path, root.path().join("away")).unwrap();
        let failed = store.hand_over(pool, space, String::new()).expect_err("it has lost its name");
        assert!(matches!(failed.error, StoreError::Replaced { .. }), "{failed:?}");
        assert_eq!(failed.kept.is_some(), has_room, "who may store to it keeps it");
        assert_eq!(entries(root.path()), ["away"]);
        fs::remove_file(root.path().join("away")).unwrap();
    }
}
