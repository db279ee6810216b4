use std::sync::Arc;

use pmof_access::{Mechanism, Method, Promise};

use super::*;
use crate::{ReplicaDomain, ReplicaPlace};

fn receipt(replicas: &[(Durability, Option<u16>)]) -> Receipt {
    let promise = Promise { mechanism: Mechanism::Store, evidence: Evidence::Probed };
    let place = Arc::new(ReplicaPlace::Pool("tcp://127.0.0.1:1/pool".parse().unwrap()));
    let replica = |(durability, number): &(Durability, Option<u16>)| ReplicaReceipt {
        replica: Arc::clone(&place),
        durability: *durability,
        method: Method::SendAfterWrite,
        promise,
        also: None,
        domain: number.map(|number| ReplicaDomain { number, evidence: Evidence::Probed }),
    };
    let (replica_count, made_count) = (replicas.len(), replicas.len());
    let replicas = replicas.iter().map(replica).collect();
    let (missing, not_members, forgone_count) = (Vec::new(), Vec::new(), 0);
    Receipt {
        durability: Durability::Visible,
        replicas,
        missing,
        replica_count,
        made_count,
        forgone_count,
        not_members,
    }
}

#[test]
fn a_receipt_says_no_more_than_its_replicas_give() {
    use Durability::{PowerFailure, ProcessCrash, Visible};
    let of = |replicas: &[(Durability, Option<u16>)]| {
        let Survival { process_crash, power_of_one, power_of_all, domains, .. } = receipt(replicas).survives();
        (process_crash, power_of_one, power_of_all, domains)
    };
    assert_eq!(of(&[]), (false, false, false, 0));
    assert_eq!(of(&[(Visible, Some(0))]), (false, false, false, 0));
    assert_eq!(of(&[(ProcessCrash, Some(0)), (ProcessCrash, Some(0))]), (true, false, false, 0));
    assert_eq!(of(&[(PowerFailure, Some(0)), (PowerFailure, Some(0))]), (true, true, true, 0));
    // Three machines' plain memory: any two of them may be lost, and not all at once.
    let three = [(ProcessCrash, Some(0)), (ProcessCrash, Some(1)), (ProcessCrash, Some(2))];
    assert_eq!(of(&three), (true, true, false, 2));
    assert_eq!(of(&[(Visible, Some(0)), (Visible, Some(4))]), (true, true, false, 1));
    // What is not known may be anywhere.
    assert_eq!(of(&[(ProcessCrash, None), (ProcessCrash, None)]), (true, false, false, 0));
    assert_eq!(of(&[(ProcessCrash, Some(1)), (ProcessCrash, None)]), (true, false, false, 0));
    let text = receipt(&three).survives().to_string();
    assert_eq!(
        text,
        "loss of power in one failure domain, not in all at once; the loss of any 2 failure domains (probed)"
    );
}
