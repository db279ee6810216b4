//! Persists of many threads on one pool: few flushes, and each receipt its own.

use std::thread;

use pmof_access::{Durability, Mechanism};
use pmof_pool::Pool;
use pmof_target::{Service, ServiceOptions};
use syscall_recorder::observe;

use crate::support::{available, on_disk, syncs_of};

#[test]
fn persists_that_meet_share_an_fdatasync() {
    let Some(directory) = on_disk() else { return };
    let act = || {
        let address = "tcp://127.0.0.1:0".parse().unwrap();
        let service = Service::start(directory.path(), &[address], ServiceOptions::default()).unwrap();
        let url = format!("{}/orders", service.addresses()[0]);
        let pool = Pool::options().replica(url).require(Durability::PowerFailure).create(1 << 20).unwrap();
        thread::scope(|scope| {
            for index in 0..16_u8 {
                let pool = pool.clone();
                scope.spawn(move || {
                    for round in 0..20_u8 {
                        let offset = u64::from(index) * 4096 + u64::from(round) * 64;
                        let receipt = pool.persist(offset, &[index; 64]).unwrap();
                        assert_eq!(receipt.durability, Durability::PowerFailure);
                        assert_eq!(receipt.replicas[0].promise.mechanism, Mechanism::FileSync, "{receipt}");
                    }
                });
            }
        });
        let mut bytes = vec![0; 16 << 12];
        pool.read(0, &mut bytes).unwrap();
        for (index, part) in bytes.chunks(4096).enumerate() {
            assert!(part[..20 * 64].iter().all(|byte| usize::from(*byte) == index), "thread {index}");
        }
        pool.close().unwrap();
    };
    let Some(((), calls)) = available(observe(act)) else { return };
    let syncs = syncs_of(&calls, &directory.path().join("orders"));
    assert!((20..160).contains(&syncs), "{syncs} fdatasyncs for 320 persists");
}
