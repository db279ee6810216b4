//! What a new member is lost together with.

use pmof::{PoolStatus, ReplicaStatus};

use crate::failure;

/// How the names of failure domains begin that nobody gave: each machine is one.
const OF_MACHINE: &str = "machine-";

/// Warns of a member at `url` that fails together with another one that has the bytes: of a witness in any case; of one that has them itself where the others were apart, so that it adds less than it might.
pub(super) fn warn_of_shared(status: &PoolStatus, url: &str) {
    let is_new = |replica: &&ReplicaStatus| replica.replica.to_string() == url;
    let witness = status.witnesses.iter().find(is_new);
    let Some((domain, name)) = witness.or_else(|| status.replicas.iter().find(is_new)).and_then(of) else { return };
    let others = status.replicas.iter().filter(|replica| !is_new(replica));
    let Some(other) = others.clone().find(|other| of(other).is_some_and(|(of, _)| of == domain)) else { return };
    let mut domains: Vec<_> = others.filter_map(of).map(|(domain, _)| domain).collect();
    let count = domains.len();
    domains.sort_unstable();
    domains.dedup();
    let were_apart = domains.len() == count && (count > 1 || !name.starts_with(OF_MACHINE));
    let other = &other.replica;
    if witness.is_some() {
        failure::warn(&format!(
            "the witness is in the failure domain of {other}, {name}: where both are lost at once, the pool does not open; add one on another machine, and remove this one"
        ));
    } else if were_apart {
        failure::warn(&format!(
            "{url} is in the failure domain of {other}, {name}: both may be lost at once; replace one of them by one on another machine"
        ));
    }
}

/// The number and the name of a member's failure domain.
fn of(replica: &ReplicaStatus) -> Option<(u16, &str)> {
    replica.domain.as_ref().map(|(domain, name)| (domain.number, name.as_str()))
}
