//! Failure domains of targets: what receipts say of them, and pools that are to survive the loss of some.

use pmof_access::Evidence;
use pmof_pool::{Acknowledge, PoolError, PoolOptions};
use pmof_target::ServiceOptions;

use crate::support::*;

fn target(domain: &str) -> Target {
    Target::on_tmpfs(ServiceOptions::default().failure_domain(domain.parse().unwrap()))
}

fn three(domains: [&str; 3]) -> [Target; 3] {
    domains.map(target)
}

fn surviving(targets: &[Target], lost: usize) -> PoolOptions {
    options(targets.iter().map(|target| target.url("orders"))).acknowledge(Acknowledge::Survive(lost))
}

#[test]
fn plain_memory_of_three_machines_survives_the_loss_of_two() {
    let three = three(["a", "b", "c"]);
    let pool = surviving(&three, 2).create(1 << 20).unwrap();
    let receipt = pool.persist(0, b"kept thrice").unwrap();
    let survival = receipt.survives();
    assert_eq!((survival.domains, survival.evidence), (2, Evidence::Declared));
    assert_eq!((survival.process_crash, survival.power_of_one, survival.power_of_all), (true, true, false));
    assert!(receipt.to_string().contains("the loss of any 2 failure domains (declared)"), "{receipt}");
    let status = pool.status().unwrap();
    let names: Vec<_> = status.replicas.iter().map(|replica| replica.domain.clone().unwrap().1).collect();
    assert_eq!(names, ["a", "b", "c"]);
    pool.close().unwrap();
    surviving(&three, 2).open().unwrap();
}

#[test]
fn a_pool_that_cannot_survive_it_is_neither_made_nor_opened() {
    let three = three(["a", "b", "b"]);
    let error = surviving(&three, 2).create(1 << 20).unwrap_err();
    let PoolError::TooFewDomains { wanted, found, ref replicas } = error else { panic!("{error:?}") };
    assert_eq!((wanted, found, replicas.len()), (3, 2, 3));
    assert!(error.to_string().contains("in b"), "{error}");
    assert!(three.iter().all(|target| target.files().is_empty()), "what was made is gone again");
    surviving(&three, 1).create(1 << 20).unwrap().close().unwrap();
    let error = surviving(&three, 2).open().unwrap_err();
    assert!(matches!(error, PoolError::TooFewDomains { .. }), "{error:?}");
    surviving(&three, 1).open().expect("it was given back");
}

#[test]
fn two_targets_of_one_machine_are_one_domain() {
    let targets: [Target; 2] = [(); 2].map(|()| Target::on_tmpfs(ServiceOptions::default()));
    let error = surviving(&targets, 1).create(1 << 20).unwrap_err();
    assert!(matches!(error, PoolError::TooFewDomains { wanted: 2, found: 1, .. }), "{error:?}");
    let pool = surviving(&targets, 0).create(1 << 20).unwrap();
    let survival = pool.persist(0, b"here").unwrap().survives();
    assert_eq!((survival.domains, survival.process_crash, survival.power_of_one), (0, true, false));
    // Nor is a file of that machine apart from a target there.
    let here = tempfile::tempdir_in("/dev/shm").unwrap();
    let urls = [format!("file://{}/orders", here.path().display()), targets[0].url("here")];
    let error = options(urls).acknowledge(Acknowledge::Survive(1)).create(1 << 20).unwrap_err();
    assert!(matches!(error, PoolError::TooFewDomains { wanted: 2, found: 1, .. }), "{error:?}");
    // One declared name beside a machine that was asked proves nothing.
    let mixed = [target("a"), Target::on_tmpfs(ServiceOptions::default())];
    let error = surviving(&mixed, 1).create(1 << 20).unwrap_err();
    assert!(matches!(error, PoolError::TooFewDomains { found: 1, .. }), "{error:?}");
}

/// Two of three replicas are a quorum, and one domain.
#[test]
fn a_persist_fails_when_too_few_domains_have_it() {
    let mut three = three(["a", "b", "b"]);
    let pool = surviving(&three, 1).create(1 << 20).unwrap();
    assert_eq!(pool.persist(0, b"of a and b").unwrap().survives().domains, 1);
    three[0].stop();
    let error = pool.persist(0, b"of b alone").unwrap_err();
    let PoolError::Persist(failure) = error else { panic!("{error:?}") };
    assert_eq!((failure.receipt.replicas.len(), failure.receipt.survives().domains), (2, 0));
    assert!(!failure.receipt.to_string().contains("the loss of any"), "{}", failure.receipt);
}

#[test]
fn a_domain_is_left_while_one_of_its_replicas_is() {
    let mut three = three(["a", "b", "b"]);
    let pool = surviving(&three, 1).create(1 << 20).unwrap();
    pool.persist(0, b"of a and b").unwrap();
    three[1].stop();
    let receipt = pool.persist(0, b"of a and b still").unwrap();
    assert_eq!((receipt.is_degraded(), receipt.survives().domains), (true, 1));
    three[1].restart();
    drop(pool);
    // Two replicas are left, both in b.
    let urls: Vec<_> = three.iter().map(|target| target.url("orders")).collect();
    three[0].stop();
    let error = options(urls).min_replicas(1).acknowledge(Acknowledge::Survive(1)).open().unwrap_err();
    assert!(matches!(error, PoolError::TooFewDomains { wanted: 2, found: 1, .. }), "{error:?}");
}
