use std::thread;

use pmof_target::{Service, ServiceOptions};

use super::*;
use crate::{Pool, pages::PAGE_BYTES};

/// A pool of two on targets of its own, whose threads that bring replicas back have ended; with a witness on a third target, if it is to have one.
fn pool(has_witness: bool) -> (Pool, [(tempfile::TempDir, Service); 3]) {
    let targets = [(); 3].map(|()| {
        let root = tempfile::tempdir_in("/dev/shm").unwrap();
        let listen = ["tcp://127.0.0.1:0".parse().unwrap()];
        let service = Service::start(root.path(), &listen, ServiceOptions::default()).unwrap();
        (root, service)
    });
    let urls = targets.each_ref().map(|(_, service)| format!("{}/orders", service.addresses()[0]));
    let [one, other, witness] = urls;
    let options = Pool::options().replica(one).replica(other);
    let options = if has_witness { options.witness(witness) } else { options };
    let pool = options.require(Durability::ProcessCrash).create(1 << 20).unwrap();
    let returns = pool.0.returns.as_ref().unwrap();
    returns.stop();
    while Arc::strong_count(returns) > 1 {
        thread::yield_now();
    }
    (pool, targets)
}

/// Whether a member that comes back is sent the first page.
fn is_page_known(returns: &Returns) -> bool {
    let missing = PageMap::new(1 << 20);
    returns.older.lock().add_to(&missing);
    missing.meets(&(0..PAGE_BYTES))
}

#[test]
fn pages_that_all_replicas_have_are_forgotten() {
    for has_witness in [false, true] {
        let (pool, _targets) = pool(has_witness);
        let returns = pool.0.returns.as_ref().unwrap();
        pool.persist(0, &[1; 8]).unwrap();
        assert!(pool.0.hold().unwrap().written.as_ref().unwrap().meets(&(0..PAGE_BYTES)));
        done(forget_written(&Forget { returns, shared: &pool.0 }));
        assert!(pool.0.hold().unwrap().written.as_ref().unwrap().is_empty());
        assert!(!is_page_known(returns), "with a witness: {has_witness}");
    }
}

#[test]
fn a_place_that_is_given_back_is_the_next_ones() {
    let (pool, targets) = pool(false);
    let returns = pool.0.returns.as_ref().unwrap();
    let url = Arc::new(format!("{}/orders", targets[2].1.addresses()[0]).parse().unwrap());
    assert_eq!(returns.add_place(&url), None, "there is none yet");
    for _ in 0..200 {
        returns.give_back_place(2);
        assert_eq!(returns.add_place(&url), Some(2));
    }
    assert_eq!((returns.free_place(), returns.urls.read().len()), (None, 3));
    returns.attended.lock()[2].is_running = true;
    returns.give_back_place(2);
    assert_eq!(returns.add_place(&url), None, "a thread still looks after the one that had it");
}
