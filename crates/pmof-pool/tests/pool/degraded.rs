//! Whether a pool is degraded is a fact of its members, whichever addresses a program names.

use std::sync::Arc;

use pmof_pool::{Pool, Receipt, ReplicaPlace};

use crate::{asynchronous::wait_following, support::*};

const POOL_BYTES: u64 = 1 << 20;

fn names(places: &[Arc<ReplicaPlace>]) -> Vec<String> {
    places.iter().map(ToString::to_string).collect()
}

/// A receipt and the status say the same.
#[track_caller]
fn persisted(pool: &Pool) -> Receipt {
    let receipt = pool.persist(0, b"new").unwrap();
    assert_eq!(receipt.is_degraded(), pool.status().unwrap().is_degraded(), "{receipt}");
    assert_eq!(receipt.is_degraded(), receipt.to_string().contains("; degraded"), "{receipt}");
    receipt
}

#[test]
fn the_name_of_a_member_that_was_replaced_does_not_degrade_the_pool() {
    let mut four: [Target; 4] = std::array::from_fn(|_| Target::start_fixed());
    let (old, new) = (four[1].url("orders"), four[3].url("orders"));
    let named = urls(&four[..3]);
    let pool = options(&named).create(POOL_BYTES).unwrap();
    pool.persist(0, b"old").unwrap();
    pool.replace(&old, &new).unwrap();
    wait_in_sync(&pool);
    pool.close().unwrap();
    for answers in [true, false] {
        if !answers {
            four[1].stop();
        }
        let pool = options(&named).open().unwrap();
        let receipt = persisted(&pool);
        let counts = (receipt.replicas.len(), receipt.replica_count, receipt.made_count, receipt.missing.len());
        assert_eq!((counts, receipt.is_degraded()), ((3, 3, 3, 0), false), "{answers}: {receipt}");
        assert_eq!(names(&receipt.not_members), [&*old], "{answers}: {receipt}");
        assert!(receipt.to_string().contains(&format!("no member of the pool (see pmof pool status): {old}")));
        // A member that is lost is told from it.
        four[2].stop();
        let lost = four[2].url("orders");
        let receipt = persisted(&pool);
        assert_eq!(
            (names(&receipt.missing), names(&receipt.not_members)),
            (vec![lost], vec![old.clone()]),
            "{receipt}"
        );
        assert!(receipt.is_degraded() && receipt.to_string().contains(" on 2/3: "), "{receipt}");
        four[2].restart();
        wait_in_sync(&pool);
        pool.close().unwrap();
    }
}

/// The members are looked for where a roster says, so that those that have their names are lost and no others.
#[test]
fn a_lost_member_is_told_from_a_name_that_does_not_answer_either() {
    let mut four: [Target; 4] = std::array::from_fn(|_| Target::start_fixed());
    let named = urls(&four[..3]);
    let (old, lost) = (four[1].url("orders"), four[2].url("orders"));
    let pool = options(&named).create(POOL_BYTES).unwrap();
    pool.replace(&old, &four[3].url("orders")).unwrap();
    wait_in_sync(&pool);
    pool.close().unwrap();
    four[1].stop();
    four[2].stop();
    let pool = options(&named).open().unwrap();
    let receipt = persisted(&pool);
    assert_eq!((names(&receipt.missing), names(&receipt.not_members)), (vec![lost], vec![old]), "{receipt}");
    assert!(receipt.is_degraded(), "{receipt}");
}

/// Three copies were one after it: that it has no other members is no reason to call it whole.
#[test]
fn a_promoted_pool_is_degraded_until_it_is_known_or_has_as_many_members() {
    for is_added in [false, true] {
        let [a, b, far, new] = std::array::from_fn(|_| Target::start_fixed());
        let named = vec![a.url("orders"), b.url("orders")];
        let pool = options(&named).asynchronous(far.url("orders")).create(POOL_BYTES).unwrap();
        pool.persist(0, b"former").unwrap();
        wait_following(&pool);
        pool.close().unwrap();
        options([far.url("orders")]).promote(true).unwrap();
        let pool = options(&named).open().unwrap();
        let receipt = persisted(&pool);
        assert_eq!((receipt.replicas.len(), receipt.made_count, receipt.forgone_count), (1, 1, 1), "{receipt}");
        assert!(receipt.is_degraded(), "{receipt}");
        assert_eq!(names(&receipt.not_members), named, "{receipt}");
        if is_added {
            pool.add(&new.url("orders")).unwrap();
            wait_in_sync(&pool);
        } else {
            assert!(pool.clear_forced().unwrap().is_some());
        }
        let receipt = persisted(&pool);
        assert!(!receipt.is_degraded(), "{receipt}");
        assert_eq!((receipt.forgone_count, names(&receipt.not_members)), (0, named), "{receipt}");
        pool.close().unwrap();
    }
}

/// A member is replaced while its target is away, and that comes back: by the file that is left there the pool lacks members, until it is told that it is none.
#[test]
fn the_file_of_a_replaced_member_is_degraded_until_it_is_named_or_removed() {
    for is_named in [true, false] {
        let mut six: [Target; 6] = std::array::from_fn(|_| Target::start_fixed());
        let (old, new) = (six[1].url("orders"), six[5].url("orders"));
        let pool = options(urls(&six[..5])).create(POOL_BYTES).unwrap();
        for lost in [4, 1] {
            six[lost].stop();
            assert!(persisted(&pool).is_degraded());
        }
        pool.replace(&old, &new).unwrap();
        six[4].restart();
        wait_in_sync(&pool);
        pool.close().unwrap();
        six[1].restart();
        assert_eq!(six[1].degraded(), 1);
        if is_named {
            options([six[0].url("orders"), old.clone()]).open().unwrap().close().unwrap();
        } else {
            options([old.clone()]).remove().unwrap();
        }
        assert_eq!(six.each_ref().map(Target::degraded), [0; 6], "named: {is_named}");
    }
}
