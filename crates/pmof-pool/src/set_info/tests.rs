use std::{fs, fs::File, os::unix::fs::FileExt as _, path::Path};

use pmof_pool_set::{
    ContentsState, LocalSet, Misfit, NewPool, NewSet, PartSpec, PoolSet, PoolSetError, ReplicaSpec, SetOptions,
};
use tempfile::tempdir;

use super::{ReplicaFound, ReplicaInfo};
use crate::Pool;

const MIB: u64 = 1 << 20;

fn made(directory: &Path, name: &str) -> PoolSet {
    let part = |replica, part| PartSpec::new(directory.join(format!("{name}{replica}{part}")), 5 * MIB);
    let replicas = (0..2).map(|replica| ReplicaSpec::Local((0..2).map(|number| part(replica, number)).collect()));
    let set = PoolSet {
        path: directory.join(name),
        replicas: replicas.collect(),
        options: SetOptions { single_header: true, no_headers: false },
    };
    let new = NewSet::new(NewPool::Obj { layout: String::new() });
    LocalSet::create(&set, &new, &new.plan(&set).unwrap()).unwrap().close().unwrap();
    set
}

fn parts(info: &ReplicaInfo) -> Vec<Option<bool>> {
    let ReplicaFound::Here { parts, .. } = &info.found else { panic!("{info:?}") };
    parts.iter().map(|part| part.header.as_ref().map(Result::is_ok)).collect()
}

#[test]
fn a_set_is_described_by_its_headers_while_it_is_open() {
    let directory = tempdir().unwrap();
    let (mut set, other) = (made(directory.path(), "a"), made(directory.path(), "b"));
    let pool = Pool::from_set(set.clone()).open().unwrap();
    let info = Pool::from_set(set.clone()).info();
    pool.close().unwrap();
    info.files.unwrap();
    for replica in &info.replicas {
        assert_eq!(parts(replica), [Some(true), None], "the first part alone has a header");
        assert_eq!(replica.found.contents(), Some(ContentsState::Sound));
        assert!(replica.misfits.is_empty(), "{:?}", replica.misfits);
    }

    // What is wrong is part of the answer: a damaged header, a replica of another pool, a file named twice.
    let damaged = &set.replicas[0].local().unwrap()[0].path;
    File::options().write(true).open(damaged).unwrap().write_all_at(&[0xff; 64], 0).unwrap();
    set.replicas.push(set.replicas[0].clone());
    set.replicas[1] = other.replicas[1].clone();
    let info = Pool::from_set(set.clone()).info();
    assert!(matches!(info.files, Err(PoolSetError::SameFile { .. })));
    assert_eq!(parts(&info.replicas[0]), [Some(false), None]);
    assert_eq!((info.replicas[0].found.contents(), info.replicas[0].found.attributes()), (None, None));
    set.replicas = vec![other.replicas[0].clone(), made(directory.path(), "c").replicas[1].clone()];
    let info = Pool::from_set(set.clone()).info();
    let misfits = &info.replicas[1].misfits;
    assert!(misfits.iter().any(|misfit| matches!(misfit, Misfit::OtherSet { .. })), "{misfits:?}");

    fs::remove_file(&set.replicas[0].local().unwrap()[1].path).unwrap();
    let info = Pool::from_set(set).info();
    assert_eq!((parts(&info.replicas[0]), info.replicas[0].found.contents()), (vec![Some(true), None], None));
}
