//! What failures the bytes of a receipt survive.

use std::fmt;

use pmof_access::{Durability, Evidence};

use crate::{Receipt, ReplicaReceipt, domain::distinct};

#[cfg(test)]
mod tests;

/// What failures the bytes of a [`Receipt`] survive, each on its own, by what is known.
///
/// They are then on some replica. An opening finds them without being told how where that leaves enough replicas to vote; else by
/// [`min_replicas`](crate::PoolOptions::min_replicas), which is for its caller to answer for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Survival {
    /// The end of any one target's process.
    pub process_crash: bool,
    /// Loss of power in any one failure domain.
    pub power_of_one: bool,
    /// Loss of power in all of them at once.
    pub power_of_all: bool,
    /// The loss of any so many failure domains, with all that is in them, for good.
    pub domains: usize,
    /// Why domains are believed to be apart.
    pub evidence: Evidence,
}

impl Receipt {
    /// What failures these bytes survive. Replicas whose failure domain is not known count as if they were in that of another.
    pub fn survives(&self) -> Survival {
        let domains = distinct(self.replicas.iter().map(|replica| replica.domain)).saturating_sub(1);
        let has = |level: Durability| self.replicas.iter().any(|replica| replica.durability >= level);
        let is_declared =
            |replica: &ReplicaReceipt| replica.domain.is_some_and(|domain| domain.evidence == Evidence::Declared);
        let evidence = if self.replicas.iter().any(is_declared) { Evidence::Declared } else { Evidence::Probed };
        let power_of_all = has(Durability::PowerFailure);
        Survival {
            process_crash: domains > 0 || has(Durability::ProcessCrash),
            power_of_one: domains > 0 || power_of_all,
            power_of_all,
            domains,
            evidence,
        }
    }
}

impl fmt::Display for Survival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { process_crash, power_of_one, power_of_all, domains, evidence } = self;
        match (power_of_all, power_of_one, process_crash) {
            (true, ..) => f.write_str("loss of power everywhere")?,
            (false, true, _) => f.write_str("loss of power in one failure domain, not in all at once")?,
            (false, false, true) => f.write_str("the end of a process, not loss of power")?,
            (false, false, false) => f.write_str("no failure")?,
        }
        match domains {
            0 => Ok(()),
            1 => write!(f, "; the loss of any one failure domain ({evidence})"),
            _ => write!(f, "; the loss of any {domains} failure domains ({evidence})"),
        }
    }
}
