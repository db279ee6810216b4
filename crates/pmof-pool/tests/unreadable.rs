//! One pool whose bytes cannot be loaded, and the other pools of its target.

use std::{fs::File, path::Path, process::Command};

use pmof_access::Durability;
use pmof_mem::causes;
use pmof_pool::{Pool, PoolOptions};
use pmof_target::{Service, ServiceOptions};
use thin_disk::ThinDisk;

const LEN_BYTES: u64 = 8 << 20;

/// More than a target copies before it answers: such bytes go out from where they lie.
const LONG: usize = 1 << 20;

struct Pools {
    service: Service,
    broken: Pool,
    healthy: Pool,
}

impl Pools {
    /// Two pools of one target, with bytes in them.
    fn new(root: &Path) -> Self {
        let service = Service::start(root, &["tcp://127.0.0.1:0".parse().unwrap()], ServiceOptions::default()).unwrap();
        let [broken, healthy] = ["broken", "healthy"].map(|name| {
            let pool = options(&service, name).create(LEN_BYTES).unwrap();
            pool.persist(0, &vec![7; LEN_BYTES as usize]).unwrap();
            pool
        });
        Self { service, broken, healthy }
    }

    /// Whether the pool that is whole goes on, and the target takes new initiators.
    fn assert_others_go_on(&mut self) {
        let mut bytes = [0; 64];
        self.healthy.read(LEN_BYTES - 64, &mut bytes).unwrap();
        assert_eq!(bytes, [7; 64]);
        self.healthy.persist(0, &[8; 64]).unwrap();
        let another = options(&self.service, "another").create(4096).unwrap();
        another.persist(0, &[9; 64]).unwrap();
        another.close().unwrap();
        options(&self.service, "another").remove().unwrap();
    }
}

fn options(service: &Service, name: &str) -> PoolOptions {
    Pool::options().replica(format!("{}/{name}", service.addresses()[0])).require(Durability::ProcessCrash)
}

#[track_caller]
fn assert_medium_failed(outcome: Result<impl Sized, pmof_pool::PoolError>) {
    let error = causes(&outcome.map(drop).unwrap_err()).to_string();
    assert!(error.contains("medium failed"), "{error}");
}

fn cut_short(root: &Path) {
    File::options().write(true).open(root.join("broken")).unwrap().set_len(1 << 20).unwrap();
}

#[test]
fn a_short_read_of_a_page_that_is_gone_is_refused_and_other_pools_go_on() {
    let root = tempfile::tempdir().unwrap();
    let mut pools = Pools::new(root.path());
    cut_short(root.path());
    assert_medium_failed(pools.broken.read(LEN_BYTES / 2, &mut [0; 64]));
    pools.assert_others_go_on();
}

#[test]
fn a_long_read_of_a_page_that_is_gone_is_refused_and_other_pools_go_on() {
    let root = tempfile::tempdir().unwrap();
    let mut pools = Pools::new(root.path());
    cut_short(root.path());
    assert_medium_failed(pools.broken.read(LEN_BYTES / 2, &mut vec![0; LONG]));
    pools.assert_others_go_on();
}

#[test]
fn a_write_to_a_page_that_is_gone_is_refused_and_other_pools_go_on() {
    for len in [64, LONG] {
        let root = tempfile::tempdir().unwrap();
        let mut pools = Pools::new(root.path());
        cut_short(root.path());
        pools.broken.persist(LEN_BYTES / 2, &vec![1; len]).unwrap_err();
        pools.assert_others_go_on();
    }
}

#[test]
fn an_initiator_that_maps_the_pool_itself_gets_an_error_and_lives() {
    let root = tempfile::tempdir().unwrap();
    let socket = root.path().join("socket");
    let listen = format!("shm://{}", socket.display()).parse().unwrap();
    let pools = root.path().join("pools");
    std::fs::create_dir(&pools).unwrap();
    let _service = Service::start(&pools, &[listen], ServiceOptions::default()).unwrap();
    let url = format!("shm://{}?pool=broken", socket.display());
    let options = Pool::options().replica(url).require(Durability::ProcessCrash);
    let pool = options.create(LEN_BYTES).unwrap();
    pool.persist(0, &vec![7; LEN_BYTES as usize]).unwrap();
    cut_short(&pools);
    pool.read(LEN_BYTES / 2, &mut [0; 64]).unwrap_err();
    pool.persist(0, &[1; 64]).unwrap_err();
}

/// A file that is mounted over another one.
struct Mounted<'p>(&'p Path);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.0).output();
    }
}

#[test]
fn a_sector_that_cannot_be_read_is_refused_and_other_pools_go_on() {
    let Some(disk) = ThinDisk::of_test() else { return };
    let root = tempfile::tempdir().unwrap();
    let (on_disk, in_root) = (disk.files().join("broken"), root.path().join("broken"));
    let pools = Pools::new(&disk.files());
    pools.broken.close().unwrap();
    drop((pools.healthy, pools.service));
    // One root, two disks.
    File::create(&in_root).unwrap();
    assert!(Command::new("mount").arg("--bind").args([&on_disk, &in_root]).status().unwrap().success());
    let _mounted = Mounted(&in_root);
    let service =
        Service::start(root.path(), &["tcp://127.0.0.1:0".parse().unwrap()], ServiceOptions::default()).unwrap();
    let healthy = options(&service, "healthy").create(LEN_BYTES).unwrap();
    healthy.persist(0, &vec![7; LEN_BYTES as usize]).unwrap();
    let broken = options(&service, "broken").open().unwrap();
    disk.truncate(4096).unwrap();
    // Only what is not in memory has to be read.
    let file = File::open(&on_disk).unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let mut pools = Pools { service, broken, healthy };
    assert_medium_failed(pools.broken.read(LEN_BYTES / 2, &mut [0; 64]));
    pools.assert_others_go_on();
    // Nor is it shown to the next one as if nothing had been.
    drop(pools.broken);
    let opened = options(&pools.service, "broken").open();
    opened.and_then(|pool| pool.read(LEN_BYTES / 2, &mut [0; 64])).unwrap_err();
}
