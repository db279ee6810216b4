//! What is believed of a replica whose flush failed: the kernel keeps its pages as if they were on the disk, and after the
//! program's end nobody remembers. Needs root and loop devices; a machine of the test bed has both.

use std::{fs, path::PathBuf, time::Duration};

use pmof_access::{Address, Durability, Medium as _, Memory};
use pmof_control::SetName;
use pmof_mem::{Declaration, causes};
use pmof_pool::{
    Differing, Pool, PoolError, RemoteSetOptions, ReplicaError, SetOptions as PoolOfSet, SshReplicas, TargetOptions,
    TargetUrl,
};
use pmof_pool_set::{
    Attributes, DIGEST_BLOCK_LEN_BYTES, NewPool, NewSet, NoRemotes, OpenFor, PartSpec, PoolSet, Reached, ReplicaSpec,
    SetOptions, SyncOptions, check, digests_of, part_header, sync,
};
use pmof_target::{Service, ServiceOptions, StoreOptions};
use tempfile::TempDir;
use thin_disk::{Cached, ThinDisk};

const MIB: u64 = 1 << 20;
const PART_BYTES: u64 = 10 * MIB;
/// What was flushed, and what was to be when it failed.
const FLUSHED: u64 = 5 * MIB;
const LOST: u64 = 7 * MIB;

/// A pool on two replicas, one of which lies on a disk that ran full under it.
struct Broken {
    _disk: ThinDisk,
    _other: TempDir,
    set: PoolSet,
    on_thin_disk: PathBuf,
}

impl Broken {
    /// `index`: of the replica whose flush failed.
    fn new(index: usize) -> Option<Self> {
        let disk = ThinDisk::of_test()?;
        let other = TempDir::new().unwrap();
        let mut places = [other.path().join("part"), other.path().join("part")];
        places[index] = disk.files().join("part");
        let replica = |path: &PathBuf| ReplicaSpec::Local(vec![PartSpec::new(path.clone(), PART_BYTES)]);
        let options = SetOptions::default();
        let set = PoolSet { path: other.path().join("set"), replicas: places.iter().map(replica).collect(), options };
        let declaration = DECLARED;
        let new = NewSet { declaration, ..NewSet::new(NewPool::Obj { layout: "test".into() }) };
        let pool = by_copying(&set).create(&new).unwrap();
        assert_eq!(pool.durability(), Durability::PowerFailure);
        let memory = pool.mirror().unwrap();
        memory.store(FLUSHED, &vec![1; MIB as usize]).unwrap();
        pool.persist_range(FLUSHED..FLUSHED + MIB).unwrap();
        let cached = Cached::new(&places[index], LOST, MIB as usize).unwrap();
        disk.fill().unwrap();
        memory.store(LOST, &vec![2; MIB as usize]).unwrap();
        let error = pool.persist_range(LOST..LOST + MIB).unwrap_err();
        let PoolError::Persist(failure) = &error else { panic!("{error}") };
        let [(replica, why)] = &failure.failed[..] else { panic!("{error}") };
        assert!(replica.index() == Some(index) && matches!(**why, ReplicaError::Memory(_)), "{error}");
        pool.close().unwrap_err();
        disk.free().unwrap();
        let broken = Self { _disk: disk, _other: other, set, on_thin_disk: places[index].clone() };
        assert!(broken.looks_whole() && !broken.is_whole(), "the premise: the page cache has what the disk lacks");
        assert!(part_header(&broken.on_thin_disk).unwrap().shutdown_state.is_dirty(), "it was never closed");
        drop(cached);
        Some(broken)
    }

    fn looks_whole(&self) -> bool {
        has_all(&fs::read(&self.on_thin_disk).unwrap())
    }

    fn is_whole(&self) -> bool {
        has_all(&ThinDisk::on_disk(&self.on_thin_disk).unwrap())
    }

    fn mismatches(&self) -> u64 {
        let report = check(&self.set, None, &mut NoRemotes, &mut |_| {}).unwrap();
        report.replicas.iter().map(|replica| replica.mismatch_count).sum()
    }

    fn sync(&self, dry_run: bool) -> u64 {
        let options = SyncOptions::default().dry_run(dry_run);
        let report = sync(&self.set, &options, &mut NoRemotes, &mut |_| {}).unwrap();
        report.replicas.iter().map(|replica| replica.copied.bytes).sum()
    }
}

/// Declared, since below the disk there is a tmpfs.
const DECLARED: Option<Declaration> = Some(Declaration::BatteryBacked);

fn by_copying(set: &PoolSet) -> PoolOfSet {
    Pool::from_set(set.clone()).differing(Differing::Copy).declaration(DECLARED)
}

fn is_other(error: &PoolError, index: usize) -> bool {
    matches!(error, PoolError::Replica { replica, source }
        if replica.index() == Some(index) && matches!(**source, ReplicaError::Differs { .. }))
}

fn has_all(bytes: &[u8]) -> bool {
    let has = |offset: u64, value: u8| bytes[offset as usize..][..MIB as usize].iter().all(|byte| *byte == value);
    assert!(has(FLUSHED, 1), "what was acknowledged is there");
    has(LOST, 2)
}

#[test]
fn a_pool_opened_after_a_failed_flush_is_compared_by_what_the_disks_have() {
    let Some(broken) = Broken::new(1) else { return };
    let opened = Pool::from_set(broken.set.clone()).open();
    assert!(opened.as_ref().is_err_and(|error| is_other(error, 1)), "{opened:?}");
    let pool = by_copying(&broken.set).open().unwrap();
    assert!(pool.copied_bytes() >= 64 << 10);
    pool.close().unwrap();
    assert!(broken.is_whole());
    Pool::from_set(broken.set.clone()).open().unwrap().close().unwrap();
}

#[test]
fn a_first_replica_after_a_failed_flush_is_not_taken_for_what_the_cache_has() {
    let Some(broken) = Broken::new(0) else { return };
    let opened = Pool::from_set(broken.set.clone()).open();
    assert!(opened.as_ref().is_err_and(|error| is_other(error, 1)), "{opened:?}");
    assert!(!broken.looks_whole(), "the cache has what the disk has");
}

#[test]
fn a_check_after_a_failed_flush_finds_what_the_disk_lacks() {
    let Some(broken) = Broken::new(1) else { return };
    assert!(broken.mismatches() > 0);
}

#[test]
fn a_sync_after_a_failed_flush_copies_what_the_disk_lacks() {
    let Some(broken) = Broken::new(1) else { return };
    assert!(broken.sync(true) > 0, "and says so before");
    assert!(!broken.is_whole());
    assert!(broken.sync(false) > 0);
    assert!(broken.is_whole());
    assert_eq!(broken.mismatches(), 0);
}

#[test]
fn a_write_back_that_failed_before_the_close_is_not_closed_in_order() {
    let Some(disk) = ThinDisk::of_test() else { return };
    let path = disk.files().join("part");
    let replicas = vec![ReplicaSpec::Local(vec![PartSpec::new(path.clone(), PART_BYTES)])];
    let set = PoolSet { path: disk.files().join("set"), replicas, options: SetOptions::default() };
    let new = NewSet::new(NewPool::Obj { layout: "test".into() });
    let pool = by_copying(&set).create(&new).unwrap();
    disk.fill().unwrap();
    // Never flushed by the program: nobody but the kernel knows.
    pool.mirror().unwrap().store(LOST, &vec![2; MIB as usize]).unwrap();
    assert!(matches!(pool.close(), Err(PoolError::Set(_))));
    assert!(part_header(&path).unwrap().shutdown_state.is_dirty());
    drop(disk);
}

#[test]
fn a_target_digests_what_its_disk_has() {
    let Some(disk) = ThinDisk::of_test() else { return };
    let address: Address = "tcp://127.0.0.1:0".parse().unwrap();
    let store = StoreOptions::default().declaration(DECLARED);
    let service = Service::start(&disk.files(), &[address], ServiceOptions::default().store(store)).unwrap();
    let url: TargetUrl = service.addresses()[0].clone().into();
    let (name, part) = (SetName::new("orders.set").unwrap(), disk.files().join("part"));
    fs::write(disk.files().join("orders.set"), format!("PMEMPOOLSET\n10M {}\n", part.display())).unwrap();
    let options =
        TargetOptions::default().require(Some(Durability::PowerFailure)).loss_timeout(Duration::from_secs(10));
    let attributes = Attributes { signature: *b"TESTPOOL", incompat: 2, ..Default::default() };
    let memory = Memory::anonymous(PART_BYTES).unwrap();
    memory.store(FLUSHED, &vec![1; MIB as usize]).unwrap();
    memory.store(LOST, &vec![2; MIB as usize]).unwrap();
    let remote = RemoteSetOptions::new(url.clone(), name.clone()).target(options.clone());
    let pool = remote.clone().mirror(std::sync::Arc::new(memory)).create(PART_BYTES, Some(&attributes)).unwrap();
    pool.persist_range(FLUSHED..FLUSHED + MIB).unwrap();
    let cached = Cached::new(&part, LOST, MIB as usize).unwrap();
    disk.fill().unwrap();
    pool.persist_range(LOST..LOST + MIB).unwrap_err();
    drop(pool);
    disk.free().unwrap();
    assert!(has_all(&fs::read(&part).unwrap()));
    let on_disk = ThinDisk::on_disk(&part).unwrap();
    assert!(!has_all(&on_disk));
    drop(cached);
    let replicas = SshReplicas::new(&options);
    let mut replica = loop {
        match replicas.open_at(&url, &name, 0, OpenFor::Write) {
            Ok(Reached::Whole(replica)) => break replica,
            Ok(Reached::Damaged(why) | Reached::HeadersDamaged(why)) => panic!("{why}"),
            // The target has yet to notice that the first connection is gone.
            Err(error) if causes(&*error).to_string().contains("in use") => {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(error) => panic!("{error}"),
        }
    };
    // The header says since that the pool is open.
    let behind = DIGEST_BLOCK_LEN_BYTES..PART_BYTES;
    let told = replica.contents().digests(behind.clone()).unwrap();
    let expected = Memory::anonymous(PART_BYTES).unwrap();
    expected.store(0, &on_disk).unwrap();
    let len_bytes = behind.end - behind.start;
    assert!(told == digests_of(&expected, behind.start, len_bytes, DIGEST_BLOCK_LEN_BYTES).unwrap());
    replica.close().unwrap();
}
