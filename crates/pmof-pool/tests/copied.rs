//! Pool sets whose first replica a program asks to be copied to the others, and must not be.

use std::{fs, os::unix::fs::FileExt as _, path::Path};

use pmof_pool::{Differing, Pool, PoolError};
use pmof_pool_set::{
    LocalSet, NewPool, NewSet, NoRemotes, PartSpec, PoolSet, ReplicaSpec, SetOptions, SyncOptions, sync,
};

const MIB: u64 = 1 << 20;

/// Two replicas of two parts, of which the first alone has a header, with the same in both.
fn filled(directory: &Path) -> PoolSet {
    let part = |name: &str| PartSpec::new(directory.join(name), 5 * MIB);
    let replica = |first: &str, second: &str| ReplicaSpec::Local(vec![part(first), part(second)]);
    let options = SetOptions { single_header: true, no_headers: false };
    let set =
        PoolSet { path: directory.join("set"), replicas: vec![replica("a0", "a1"), replica("b0", "b1")], options };
    let new = NewSet::new(NewPool::Obj { layout: "test".into() });
    LocalSet::create(&set, &new, &new.plan(&set).unwrap()).unwrap().close().unwrap();
    let pool = Pool::from_set(set.clone()).differing(Differing::Copy).open().unwrap();
    for offset in (6 * MIB..9 * MIB).step_by(4096) {
        pool.persist(offset, &(offset ^ 0x5555).to_le_bytes()).unwrap();
    }
    pool.close().unwrap();
    set
}

type IsRight = fn(&PoolError) -> bool;

#[test]
fn a_file_that_is_not_the_pools_is_neither_copied_nor_overwritten() {
    let text = b"dear all, ".repeat(MIB as usize / 2);
    let zeros = vec![0; 5 * MIB as usize];
    let cases: [(&str, &[u8], IsRight); 3] = [
        ("a1", &zeros, |error| matches!(error, PoolError::UnlikePart { index: 1, .. })),
        ("a1", &text, |error| matches!(error, PoolError::UnlikePart { .. })),
        ("b1", &text, |error| matches!(error, PoolError::UnlikePart { .. })),
    ];
    for (name, bytes, is_right) in cases {
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let set = filled(directory.path());
        let good = fs::read(directory.path().join(if name == "a1" { "b1" } else { "a1" })).unwrap();
        let path = directory.path().join(name);
        fs::write(&path, &bytes[..5 * MIB as usize]).unwrap();
        let open = || Pool::from_set(set.clone()).differing(Differing::Copy).open();
        match open() {
            Err(error) => assert!(is_right(&error), "{name}: {error}"),
            Ok(_) => panic!("{name}"),
        }
        assert!(fs::read(&path).unwrap() == bytes[..5 * MIB as usize], "{name}");
        // What is advised.
        fs::remove_file(&path).unwrap();
        sync(&set, &SyncOptions::default(), &mut NoRemotes, &mut |_| {}).unwrap();
        assert!(fs::read(&path).unwrap() == good, "{name}");
        open().unwrap().close().unwrap();
    }
}

#[test]
fn an_old_copy_is_not_copied_over_a_newer_replica() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let set = filled(directory.path());
    // libpmemobj counts 2 for an opening.
    let file = fs::File::options().write(true).open(directory.path().join("b0")).unwrap();
    file.write_all_at(&4_u64.to_le_bytes(), 6152).unwrap();
    let before = fs::read(directory.path().join("b0")).unwrap();
    match Pool::from_set(set).differing(Differing::Copy).open() {
        Err(PoolError::OldSource { count: 0, newer_count: 2, newer }) => {
            assert!(newer.to_string().contains("b0"), "{newer}");
        }
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("it was copied"),
    }
    assert!(fs::read(directory.path().join("b0")).unwrap() == before);
}
