use pmof_access::{Evidence, Mechanism};

use super::*;

fn of(replica: &str, method: Method, mechanism: Mechanism, evidence: Evidence) -> ReplicaReceipt {
    let replica = Arc::new(ReplicaPlace::Pool(replica.parse().expect("a pool's address")));
    let durability = Durability::PowerFailure;
    ReplicaReceipt { replica, durability, method, promise: Promise { mechanism, evidence }, also: None, domain: None }
}

#[test]
fn a_receipt_names_what_each_replica_did_and_why_that_is_believed() {
    let (one, two) = ("tcp://192.0.2.1:7410/orders", "tcp://192.0.2.2:7410/orders");
    let replicas = vec![
        of(one, Method::SendAfterWrite, Mechanism::FileSync, Evidence::Probed),
        of(two, Method::NativeFlush, Mechanism::Fence, Evidence::Declared),
    ];
    let receipt = Receipt { replicas, replica_count: 2, made_count: 2, ..none(Durability::PowerFailure) };
    let (sync, fence) = (Mechanism::FileSync, Mechanism::Fence);
    let of_both = format!(
        "{one} (send-after-write, {sync} by target, {}), {two} (native-flush, {fence} by the target's device, {})",
        Evidence::Probed,
        Evidence::Declared
    );
    assert_eq!(receipt.to_string(), format!("power-failure on 2/2: {of_both}"));
    assert!(!receipt.is_degraded());
    let fewer = Receipt { made_count: 3, ..receipt };
    assert_eq!(fewer.to_string(), format!("power-failure on 2/2, of 3 that the pool has: {of_both}"));
    assert!(fewer.is_degraded());
    let three = "tcp://192.0.2.3:7410/orders";
    let missing = vec![Arc::new(ReplicaPlace::Pool(three.parse().expect("a pool's address")))];
    let degraded = Receipt { missing: missing.clone(), replica_count: 3, ..fewer };
    assert!(degraded.is_degraded());
    assert_eq!(degraded.to_string(), format!("power-failure on 2/3: {of_both}; degraded, without {three}"));

    // A name that is none of the members' says nothing of the pool.
    let whole = Receipt { missing: vec![], replica_count: 2, made_count: 2, not_members: missing, ..degraded };
    assert!(!whole.is_degraded());
    let hint = format!("; named, and no member of the pool (see pmof pool status): {three}");
    assert_eq!(whole.to_string(), format!("power-failure on 2/2: {of_both}{hint}"));
    let promoted = Receipt { forgone_count: 2, ..whole };
    assert!(promoted.is_degraded());
    let forced = "; degraded, forced to go on with 2 members fewer";
    assert_eq!(promoted.to_string(), format!("power-failure on 2/2: {of_both}{forced}{hint}"));
}

/// Of a pool without members.
fn none(durability: Durability) -> Receipt {
    let (replicas, missing, not_members) = (Vec::new(), Vec::new(), Vec::new());
    Receipt { durability, replicas, missing, replica_count: 0, made_count: 0, forgone_count: 0, not_members }
}

/// What went two ways was flushed twice, by different means.
#[test]
fn a_receipt_tells_of_both_flushes_where_they_differ() {
    let place = Arc::new(ReplicaPlace::Pool("tcp://192.0.2.1:7410/orders".parse().expect("a pool's address")));
    let (fence, sync) = (Mechanism::Fence, Mechanism::FileSync);
    let of = |durability, method, mechanism, evidence| {
        Some(Flushed { durability, method, promise: Promise { mechanism, evidence } })
    };
    let direct = of(Durability::PowerFailure, Method::NativeFlush, fence, Evidence::Declared);
    let by_message = of(Durability::ProcessCrash, Method::SendAfterWrite, sync, Evidence::Probed);
    let receipt = |flushes| ReplicaReceipt::of(Arc::clone(&place), flushes, None);
    let both = receipt([direct, by_message]).expect("two flushes");
    assert_eq!(both.durability, Durability::ProcessCrash, "the least of both");
    assert_eq!((both.method, both.also), (Method::NativeFlush, by_message));
    let (declared, probed) = (Evidence::Declared, Evidence::Probed);
    let means = format!(
        "native-flush, {fence} by the target's device, {declared}; send-after-write, {sync} by target, {probed}"
    );
    assert_eq!(both.to_string(), format!("{place} ({means})"));
    for alone in [[direct, None], [None, direct], [direct, direct]] {
        let receipt = receipt(alone).expect("a flush");
        assert_eq!((receipt.method, receipt.also), (Method::NativeFlush, None));
    }
    assert_eq!(receipt([None, None]), None);
}

#[test]
fn a_failure_names_the_replicas_that_failed_and_those_that_did_not() {
    let receipt = Receipt { replica_count: 1, made_count: 1, ..none(Durability::ProcessCrash) };
    let replica = Arc::new(ReplicaPlace::Pool("tcp://192.0.2.1:7410/orders".parse().expect("a pool's address")));
    let failure =
        PersistFailure { receipt, failed: vec![(replica, Arc::new(ReplicaError::Impostor))], is_final: false };
    let why = ReplicaError::Impostor;
    assert_eq!(
        failure.to_string(),
        format!("replica tcp://192.0.2.1:7410/orders failed: {why}; the writes are process-crash on 0/1")
    );

    let other = Arc::new(ReplicaPlace::Pool("tcp://192.0.2.2:7410/orders".parse().expect("a pool's address")));
    let mut several = failure;
    several.failed.push((other, Arc::new(ReplicaError::Impostor)));
    several.is_final = true;
    let text = several.to_string();
    assert!(text.starts_with("replica tcp://192.0.2.1:7410/orders, tcp://192.0.2.2:7410/orders failed: "), "{text}");
    assert!(text.matches(&why.to_string()).count() == 1 && text.contains("open it again"), "{text}");
}

/// Where those that have it are too few, and none failed just now.
#[test]
fn a_failure_without_a_failed_replica_says_why_and_what_to_do() {
    let place = |text: &str| Arc::new(ReplicaPlace::Pool(text.parse().expect("a pool's address")));
    let missing = vec![place("tcp://192.0.2.1:7410/orders"), place("tcp://192.0.2.2:7410/orders")];
    let receipt = Receipt { missing, replica_count: 3, made_count: 3, ..none(Durability::ProcessCrash) };
    let text = PersistFailure { receipt, failed: Vec::new(), is_final: false }.to_string();
    let words = "the writes are process-crash on 0/3, without tcp://192.0.2.1:7410/orders, tcp://192.0.2.2:7410/orders: too few replicas";
    assert!(text.starts_with(words) && text.contains("acknowledge") && text.contains("in sync"), "{text}");
}

#[test]
fn whoever_made_the_writes_durable_is_named() {
    let by = Method::ALL.map(|method| of("tcp://h:1/p", method, Mechanism::Fence, Evidence::Probed).done_by());
    let platform = "the target's platform";
    assert_eq!(by, ["the target's device", "initiator", platform, platform, "target"]);
}
