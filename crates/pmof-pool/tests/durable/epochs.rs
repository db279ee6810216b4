//! Openings for writing: announced durably on every replica before the first write, and closed after the last one is durable.

use std::{
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use pmof_access::Durability;
use pmof_control::{OpenFor, PoolName};
use pmof_pool::{Pool, PoolOptions};
use pmof_target::{PoolStore, Service, ServiceOptions, StoreOptions};
use syscall_recorder::{Call, Verdict, observe, record};
use tempfile::TempDir;

use crate::support::{EIO, available, mark, on_disk, stretches, syncs_of};

/// Two targets: what is written goes by messages to the one, and by this side's own CPU to the other's memory.
struct Targets {
    files: [PathBuf; 2],
    urls: [String; 2],
    _services: [Service; 2],
}

impl Targets {
    fn start(directory: &TempDir) -> Self {
        let roots = ["a", "b"].map(|name| directory.path().join(name));
        for root in &roots {
            std::fs::create_dir(root).unwrap();
        }
        let socket = directory.path().join("s");
        let addresses = ["tcp://127.0.0.1:0".to_owned(), format!("shm://{}", socket.display())];
        let start = |index: usize| {
            let address = addresses[index].parse().unwrap();
            Service::start(&roots[index], &[address], ServiceOptions::default()).unwrap()
        };
        let services = [0, 1].map(start);
        let urls =
            [format!("{}/orders", services[0].addresses()[0]), format!("shm://{}?pool=orders", socket.display())];
        Self { files: roots.map(|root| root.join("orders")), urls, _services: services }
    }

    fn options(&self) -> PoolOptions {
        let [one, two] = &self.urls;
        Pool::options().replica(one).replica(two).require(Durability::PowerFailure)
    }

    fn syncs(&self, calls: &[Call]) -> [usize; 2] {
        self.files.each_ref().map(|file| syncs_of(calls, file))
    }
}

fn is_open(file: &Path) -> bool {
    let store = PoolStore::open(file.parent().unwrap(), StoreOptions::default()).unwrap();
    let pool = store.open_pool(&PoolName::new("orders").unwrap(), OpenFor::Read, "a test".to_owned()).unwrap();
    pool.state().is_open
}

#[test]
fn an_opening_and_its_end_are_durable_on_every_replica() {
    let Some(directory) = on_disk() else { return };
    let act = || {
        let targets = Targets::start(&directory);
        let pool = targets.options().create(1 << 20).unwrap();
        pool.persist(0, b"first").unwrap();
        pool.close().unwrap();
        mark();
        let pool = targets.options().open().unwrap();
        mark();
        // The first raises the pool's mark too, which is a sync of its own.
        pool.persist(4096, b"second").unwrap();
        mark();
        pool.persist(4096, b"third").unwrap();
        mark();
        pool.lane().write(8192, b"persisted by nobody").unwrap();
        pool.close().unwrap();
        mark();
        targets
    };
    let Some((targets, calls)) = available(observe(act)) else { return };
    let [_, opened, marked, persisted, closed, _] = stretches(&calls)[..] else { panic!("{calls:?}") };
    // Announced, then confirmed; what was written, then that it is closed.
    assert!(targets.syncs(opened).iter().all(|syncs| *syncs >= 2), "{opened:?}");
    assert!(targets.syncs(marked).iter().all(|syncs| *syncs >= 1), "{marked:?}");
    assert!(targets.syncs(persisted).iter().all(|syncs| *syncs >= 1), "{persisted:?}");
    assert!(targets.syncs(closed).iter().all(|syncs| *syncs >= 2), "{closed:?}");
    assert!(targets.files.iter().all(|file| !is_open(file)));
}

/// What is the same in the caches of all may be on the disk of none.
#[test]
fn replicas_found_equal_after_an_unclean_end_are_flushed() {
    let Some(directory) = on_disk() else { return };
    let act = || {
        let targets = Targets::start(&directory);
        let pool = targets.options().create(1 << 20).unwrap();
        pool.persist(0, b"first").unwrap();
        drop(pool);
        mark();
        let pool = targets.options().open().unwrap();
        mark();
        assert!(!pool.was_closed() && pool.copied_bytes() == 0);
        pool.close().unwrap();
        targets
    };
    let Some((targets, calls)) = available(observe(act)) else { return };
    let [_, opened, _] = stretches(&calls)[..] else { panic!("{calls:?}") };
    // Settled, announced, confirmed, flushed, and given one mark.
    assert!(targets.syncs(opened).iter().all(|syncs| *syncs >= 5), "{:?}: {opened:?}", targets.syncs(opened));
}

#[test]
fn a_replica_whose_medium_fails_at_the_close_is_left_behind() {
    for failing in [0, 1] {
        let Some(directory) = on_disk() else { return };
        let is_armed = AtomicBool::new(false);
        let file = directory.path().join(["a", "b"][failing]).join("orders");
        let judge = |call: &Call| {
            let fails = is_armed.load(Ordering::SeqCst) && call.is_sync_of(&file);
            if fails { Verdict::Fail(EIO) } else { Verdict::Pass }
        };
        let act = || {
            let targets = Targets::start(&directory);
            let pool = targets.options().create(1 << 20).unwrap();
            pool.persist(0, b"first").unwrap();
            pool.lane().write(8192, b"persisted by nobody").unwrap();
            is_armed.store(true, Ordering::SeqCst);
            pool.close().unwrap();
            let members = targets.options().info().unwrap().into_iter().map(|info| info.state.epoch.members);
            members.collect::<Vec<_>>()
        };
        let Some((members, calls)) = available(record(judge, act)) else { return };
        // The other has everything, and says that it alone does.
        assert_eq!((members[1 - failing], members[failing]), (1 << (1 - failing), 0b11), "{calls:?}");
        let other = directory.path().join(["b", "a"][failing]).join("orders");
        assert!(is_open(&file) && !is_open(&other));
    }
}

#[test]
fn nothing_is_opened_whose_epoch_is_not_durable_everywhere() {
    for failing in [0, 1] {
        let Some(directory) = on_disk() else { return };
        let is_armed = AtomicBool::new(false);
        let file = directory.path().join(["a", "b"][failing]).join("orders");
        let judge = |call: &Call| {
            let fails = is_armed.load(Ordering::SeqCst) && call.is_sync_of(&file);
            if fails { Verdict::Fail(EIO) } else { Verdict::Pass }
        };
        let act = || {
            let targets = Targets::start(&directory);
            targets.options().create(1 << 20).unwrap().close().unwrap();
            is_armed.store(true, Ordering::SeqCst);
            targets.options().open().is_err()
        };
        let Some((is_refused, calls)) = available(record(judge, act)) else { return };
        assert!(is_refused, "{calls:?}");
    }
}
