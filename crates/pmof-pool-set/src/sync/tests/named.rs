//! Sets that name some of a pool's parts and replicas, not all of them.

use super::*;
use crate::{PartSpec, Removal, check_named_whole};

fn not_all(result: &Result<SyncReport, SyncError>, place: usize) {
    assert!(matches!(result, Err(SyncError::NotAll { index, .. }) if *index == place), "{result:?}");
}

#[test]
fn some_of_the_replicas_are_not_synced_or_transformed() {
    let (directory, all) = filled(SetOptions::default(), &[0, 1, 2]);
    check_named_whole(&all, &mut NoRemotes).unwrap();
    let before = contents(directory.path());
    for some in [&[0][..], &[1, 2], &[2, 0], &[0, 1]] {
        let some = set(directory.path(), SetOptions::default(), some);
        for dry_run in [true, false] {
            let options = SyncOptions { dry_run, ..SyncOptions::default() };
            not_all(&sync(&some, &options, &mut NoRemotes, &mut |_| {}), 0);
        }
        let report = checked(&some);
        assert!(!report.is_sound() && report.sync_refusal.is_some_and(|refusal| refusal.contains("does not name")));
        let refused = check_named_whole(&some, &mut NoRemotes).unwrap_err();
        assert!(
            matches!(&refused, PoolSetError::NotAll { path, .. } if path.ends_with(some.replicas[0].local().unwrap()[0].path.file_name().unwrap())),
            "{refused}"
        );
        let mut to = some.clone();
        to.replicas.push(set(directory.path(), SetOptions::default(), &[7]).replicas[0].clone());
        for dry_run in [true, false] {
            let refused = turned(&some, &to, dry_run).unwrap_err();
            assert!(matches!(&refused, SyncError::NotAll { index: 0, .. }), "{refused}");
        }
        assert!(contents(directory.path()) == before);
    }
    // One that is lost is another thing: its place is there.
    fs::remove_file(directory.path().join("r1p0")).unwrap();
    check_named_whole(&all, &mut NoRemotes).unwrap();
    synced(&all);
    assert_sound(&all);
    // The operator may declare that the other one is gone for good.
    let some = set(directory.path(), SetOptions::default(), &[1, 2]);
    let from = SyncOptions { from: Some(0), ..SyncOptions::default() };
    sync(&some, &from, &mut NoRemotes, &mut |_| {}).unwrap();
    check_named_whole(&some, &mut NoRemotes).unwrap();
    assert!(checked(&some).is_sound() && !checked(&all).is_sound());
}

#[test]
fn fewer_parts_than_the_pool_has_are_not_all_of_it() {
    let (directory, all) = filled(SINGLE, &[0, 1]);
    check_named_whole(&all, &mut NoRemotes).unwrap();
    let (alone, _) = filled(SINGLE, &[0]);
    for directory in [directory.path(), alone.path()] {
        let mut first = set(directory, SINGLE, &[0]);
        if let ReplicaSpec::Local(parts) = &mut first.replicas[0] {
            parts.truncate(1);
        }
        let refused = check_named_whole(&first, &mut NoRemotes).unwrap_err();
        assert!(matches!(&refused, PoolSetError::NotAll { path, .. } if path.ends_with("r0p0")), "{refused}");
        assert!(refused.to_string().contains("the parts that are named hold 5242880"), "{refused}");
        assert!(!checked(&first).is_sound());
    }
}

/// The first file of a pool is in the first of its directories. In another one it is another pool's.
#[test]
fn a_pools_first_file_is_not_taken_from_another_directory() {
    let directory = tempdir_in(DISK).unwrap();
    let part = |name: &str| {
        let path = directory.path().join(name);
        let _ = fs::create_dir(&path);
        PartSpec::new(path, 9 * MIB)
    };
    let of = |names: &[&str]| {
        let parts = names.iter().map(|name| part(name)).collect();
        PoolSet { path: directory.path().join("set"), replicas: vec![ReplicaSpec::Local(parts)], options: SINGLE }
    };
    let own = of(&["x"]);
    let new = NewSet::new(NewPool::Obj { layout: "test".into() });
    LocalSet::create(&own, &new, &new.plan(&own).unwrap()).unwrap().close().unwrap();
    let other = of(&["z", "x"]);
    let specs = other.replicas[0].local().unwrap();
    assert!(!checked(&other).is_sound());
    for result in [
        LocalReplica::open(specs, SINGLE, OpenFor::Read, None).map(drop),
        Removal::prepare(specs, SINGLE, false, None).map(drop),
    ] {
        let refused = result.unwrap_err();
        assert!(matches!(&refused, PoolSetError::Missing { path } if path.ends_with("z/000000.pmem")), "{refused}");
    }
    let file = directory.path().join("x/000000.pmem");
    assert_eq!(Removal::prepare(specs, SINGLE, true, None).unwrap().left(), std::slice::from_ref(&file));
    let refused = LocalSet::create(&other, &new, &new.plan(&other).unwrap()).unwrap_err();
    assert!(matches!(&refused, PoolSetError::Exists { path, .. } if *path == file), "{refused}");
    assert!(checked(&own).is_sound());
}
