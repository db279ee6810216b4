//! A pool set that PMDK's own libpmemobj has used, where it is installed (`libpmemobj-dev` and the other libraries of
//! Debian 12 that the program beside pmof-pool-set's tests asks, and a C compiler).

use std::{
    fs,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use pmof_pool::{Pool, PoolError, ReplicaError};
use pmof_pool_set::{LocalSet, NewPool, NewSet, PartSpec, PoolSet, ReplicaSpec, SetOptions};

const MIB: u64 = 1 << 20;

/// The program that has PMDK use a pool.
fn program(directory: &Path) -> Result<PathBuf, String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../pmof-pool-set/tests/pmdk/pmdk.c");
    let program = directory.join("pmdk");
    let libraries = ["-lpmemobj", "-lpmempool", "-lpmemlog", "-lpmemblk", "-lpthread"];
    let built = Command::new("cc").args(["-O1", "-o"]).arg(&program).arg(source).args(libraries).output();
    match built {
        Ok(output) if output.status.success() => Ok(program),
        Ok(output) => Err(String::from_utf8_lossy(&output.stderr).lines().next().unwrap_or("").to_owned()),
        Err(error) => Err(format!("cc: {error}")),
    }
}

#[test]
fn a_set_that_libpmemobj_has_used_is_opened() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let program = match program(directory.path()) {
        Ok(program) => program,
        Err(why) => return skip_report::skipped!("PMDK's libraries cannot be asked ({why})"),
    };
    let part = |name: &str| vec![PartSpec::new(directory.path().join(name), 16 * MIB)];
    let replicas = ["one", "two"].map(|name| ReplicaSpec::Local(part(name))).to_vec();
    let path = directory.path().join("pool.set");
    let set = PoolSet { path, replicas, options: SetOptions::default() };
    fs::write(&set.path, set.to_bytes()).unwrap();
    let new = NewSet::new(NewPool::Obj { layout: "test".into() });
    LocalSet::create(&set, &new, &new.plan(&set).unwrap()).unwrap().close().unwrap();
    for round in 0..3 {
        let used = Command::new(&program).arg("obj-use").arg(&set.path).arg("test").status().unwrap();
        assert!(used.success());
        let pool = Pool::from_set(set.clone()).open();
        pool.unwrap_or_else(|error| panic!("round {round}: {error}")).close().unwrap();
    }
    // What libpmemobj keeps for itself differs, and nothing else may.
    let bytes = |name: &str| fs::read(directory.path().join(name)).unwrap();
    assert_ne!(bytes("one")[6688..8192], bytes("two")[6688..8192]);
    for at in [6144, 8192] {
        let file = fs::File::options().read(true).write(true).open(directory.path().join("two")).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[!byte[0]], at).unwrap();
        let opened = Pool::from_set(set.clone()).open();
        let is_second = |error: &PoolError| {
            matches!(error, PoolError::Replica { replica, source }
                if replica.index() == Some(1) && matches!(**source, ReplicaError::Differs { .. }))
        };
        assert!(opened.as_ref().is_err_and(is_second), "at {at}: {opened:?}");
        file.write_all_at(&byte, at).unwrap();
    }
}
