use super::*;

fn domain(name: &str, is_declared: bool, kernel: u8) -> FailureDomain {
    FailureDomain { name: name.parse().unwrap(), is_declared, kernel: Some([kernel; 16]) }
}

fn numbers(domains: &[Option<FailureDomain>]) -> Vec<Option<u16>> {
    let known: Vec<_> = domains.iter().map(Option::as_ref).collect();
    numbered(&known).into_iter().map(|domain| domain.map(|domain| domain.number)).collect()
}

#[test]
fn replicas_that_may_fail_together_have_one_number() {
    let machines = [1, 2, 3].map(|kernel| Some(domain(&format!("machine {kernel}"), false, kernel)));
    assert_eq!(numbers(&machines), [Some(0), Some(1), Some(2)]);
    // One that was not declared runs beside two that were declared to be apart: it may fail with either, and so they with it.
    let beside = [Some(domain("a", true, 1)), Some(domain("b", true, 1)), Some(domain("machine", false, 1)), None];
    let numbers = numbers(&beside);
    assert!(numbers[0] == numbers[1] && numbers[1] == numbers[2] && numbers[3].is_none(), "{numbers:?}");
}

#[test]
fn a_replica_whose_domain_is_unknown_adds_none() {
    let of = |number| Some(ReplicaDomain { number, evidence: Evidence::Probed });
    assert_eq!(distinct([]), 0);
    assert_eq!(distinct([None, None]), 1, "it is somewhere");
    assert_eq!(distinct([of(0), None]), 1);
    assert_eq!(distinct([of(0), of(1), None, of(0)]), 2);
}
