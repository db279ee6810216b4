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
