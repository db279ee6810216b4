//! The failure domains of a pool's replicas.

use alloc::vec::Vec;

use pmof_control::FailureDomain;
use pmof_terms::Evidence;

#[cfg(test)]
mod tests;

/// Which of a pool's failure domains a replica is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaDomain {
    /// The same for all replicas of the pool that may fail together.
    pub number: u16,
    /// Why replicas with other numbers are believed to be apart: their machines were asked, or an operator said so.
    pub evidence: Evidence,
}

/// So many of them are apart at least. One that is not known may be any other.
pub fn distinct(domains: impl IntoIterator<Item = Option<ReplicaDomain>>) -> usize {
    let (mut seen, mut is_any) = (Vec::<u16>::new(), false);
    for domain in domains {
        is_any = true;
        if let Some(ReplicaDomain { number, .. }) = domain {
            if !seen.contains(&number) {
                seen.push(number);
            }
        }
    }
    seen.len().max(usize::from(is_any))
}

/// The domain of each of a pool's replicas: those have one number that may fail together, with each other or with a third.
pub fn numbered(domains: &[Option<&FailureDomain>]) -> Vec<Option<ReplicaDomain>> {
    let mut numbers: Vec<usize> = (0..domains.len()).collect();
    for (at, domain) in domains.iter().enumerate() {
        for (other, before) in domains[..at].iter().enumerate() {
            if let (Some(domain), Some(before)) = (domain, before) {
                let (from, to) = (numbers[at], numbers[other]);
                if domain.is_shared(before) {
                    numbers.iter_mut().filter(|number| **number == from).for_each(|number| *number = to);
                }
            }
        }
    }
    let evidence = |domain: &FailureDomain| if domain.is_declared { Evidence::Declared } else { Evidence::Probed };
    let all = domains.iter().zip(&numbers);
    all.map(|(domain, number)| {
        domain.map(|domain| ReplicaDomain { number: *number as u16, evidence: evidence(domain) })
    })
    .collect()
}
