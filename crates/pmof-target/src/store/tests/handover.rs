//! A pool that changes hands while it is open.

use std::{
    os::unix::fs::{FileExt as _, MetadataExt as _},
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
    assert_eq!((pool.state(), pool.replica.has_begun(), bytes_of(&pool)), (&state, false, *b"stored"));
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

    assert_eq!((pool.state(), pool.replica.has_begun(), bytes_of(&pool)), (&state, false, *b"stored"));
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
        let [is_renamed, is_looked_at, is_whole] = [false; 3].map(AtomicBool::new);
        let judge = |call: &Call| {
            let is_old = len_bytes() == Some(DATA_OFFSET + 12_288);
            match call {
                Call::Fdatasync(synced) if *synced != path && !is_renamed.load(Ordering::SeqCst) => {
                    let copied = fs::read(synced).unwrap_or_default();
                    let is_copied = copied.get(DATA_OFFSET as usize..).is_some_and(|data| data.starts_with(b"stored"));
                    is_whole.fetch_or(is_copied, Ordering::SeqCst);
                }
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
        assert!(
            is_whole.load(Ordering::SeqCst),
            "the copy is flushed once it has all, and before the rename: {calls:?}"
        );
        match outcome {
            Ok(pool) => assert!(!fails && len_bytes() == Some(0) && bytes_of(&pool) == *b"stored"),
            Err(failed) => {
                assert!(fails && failed.kept.is_none() && len_bytes() == Some(DATA_OFFSET + 12_288), "{failed:?}");
            }
        }
    }
}

#[test]
fn what_the_old_writer_stored_is_flushed_before_another_has_it() {
    for fails in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        let path = root.join("orders");
        let is_flushed = AtomicBool::new(false);
        let judge = |call: &Call| {
            let bytes = fs::read(&path).unwrap_or_default();
            let is_stored = bytes.get(DATA_OFFSET as usize..).is_some_and(|data| data.starts_with(b"stored"));
            match call {
                Call::Fdatasync(synced) if *synced == path && is_stored => {
                    is_flushed.store(true, Ordering::SeqCst);
                    if fails { Verdict::Fail(5) } else { Verdict::Pass }
                }
                _ => Verdict::Pass,
            }
        };
        let act = || {
            let store = store_at(&root);
            let pool = opened(&store);
            store.hand_over(pool, None, "the next".to_owned())
        };
        let outcome = match record(judge, act) {
            Ok((outcome, _)) => outcome,
            Err(error) => {
                skip_report::skipped!("{error}");
                return;
            }
        };
        assert!(is_flushed.load(Ordering::SeqCst));
        match outcome {
            Ok(pool) => assert!(!fails && bytes_of(&pool) == *b"stored"),
            Err(failed) => assert!(fails && failed.kept.is_none(), "{failed:?}"),
        }
    }
}

/// A writer that a target which is gone let map the file: as its process would have it.
fn orphan(path: &Path) -> Memory {
    let memory = Memory::open(path, None).expect("mapped");
    memory.hand_out(HandOut::Marked);
    let handed = memory.file_for_writers().expect("handed out");
    Memory::from_file(handed, path, true, None).expect("mapped")
}

#[test]
fn a_file_that_a_former_writer_maps_is_left_to_it() {
    let (root, store) = fresh();
    let path = root.path().join("orders");
    let mut pool = opened(&store);
    pool.medium().write_back(DATA_OFFSET, 6).expect("written back");
    pool.raise_mark(9).expect("raised");
    let state = pool.state().clone();
    drop(pool);
    let inode = || fs::metadata(&path).unwrap().ino();
    let (late, before) = (orphan(&path), inode());
    drop(open(&store, "orders", OpenFor::Read).expect("a reader"));
    assert_eq!(inode(), before, "who only reads moves nothing");

    let ended = AtomicBool::new(false);
    let end_readers = || ended.store(true, Ordering::SeqCst);
    let terms = OpenTerms { access: OpenFor::Write, require: Durability::Visible, may_be_older: false };
    let open_it = || store.open_pool_before(&name("orders"), terms, "the next".to_owned(), &end_readers);
    let (file, mut page) = (File::options().read(true).write(true).open(&path).unwrap(), [0; STATE_BYTES]);
    file.read_exact_at(&mut page, STATE_OFFSET).unwrap();
    file.write_all_at(&[0xee; STATE_BYTES], STATE_OFFSET).unwrap();
    let refused = open_it().expect_err("its state is damaged");
    assert!(matches!(refused, StoreError::Header { source: HeaderError::BadState, .. }), "{refused:?}");
    assert!(!ended.load(Ordering::SeqCst) && inode() == before, "nothing is moved for one who is refused");
    file.write_all_at(&page, STATE_OFFSET).unwrap();
    let pool = open_it().expect("the pool");
    assert!(ended.load(Ordering::SeqCst) && inode() != before);
    assert_eq!((pool.state(), bytes_of(&pool)), (&state, *b"stored"));
    assert!(late.store(DATA_OFFSET, b"late").is_err(), "a store meets the end of the file");
    assert_eq!(bytes_of(&pool), *b"stored");
    assert_busy(open(&store, "orders", OpenFor::Write), "the next");
    let other = store_at(root.path());
    assert!(matches!(open(&other, "orders", OpenFor::Write), Err(StoreError::Busy { .. })), "the copy is locked");
    assert_eq!(entries(root.path()), ["orders"]);
    drop(pool);
    let before = inode();
    open(&store, "orders", OpenFor::Write).expect("once more");
    assert_eq!(inode(), before, "nothing maps the copy");
}

#[test]
fn a_writer_that_closed_keeps_nothing_from_moving_on() {
    let (root, store) = fresh();
    let path = root.path().join("orders");
    let mut pool = opened(&store);
    let map = || Memory::from_file(pool.medium().file_for_writers().expect("handed out"), &path, true, None);
    let mapped = map().expect("mapped");
    assert!(pool.is_mapped_elsewhere(|| panic!("the kernel says it")));
    drop(mapped);
    assert!(!pool.is_mapped_elsewhere(|| panic!("the kernel says it")));
    let mapped = map().expect("mapped again");
    pool.end_writers();
    pool.close().expect("closed");
    drop(pool);
    let inode = fs::metadata(&path).unwrap().ino();
    open(&store, "orders", OpenFor::Write).expect("the pool");
    assert_eq!(fs::metadata(&path).unwrap().ino(), inode);
    drop(mapped);
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
