//! Replicas that a command names, and that the pool was opened without.

use anyhow::bail;
use pmof::{Pool, PoolUrl, ReplicaError, ReplicaPlace, causes};
use serde::Serialize;

/// A replica that was not used with the others.
#[derive(Debug, Serialize)]
pub(crate) struct LeftOut {
    pub(crate) url: String,
    pub(crate) reason: String,
}

impl LeftOut {
    pub(crate) fn new(replica: &ReplicaPlace, why: &ReplicaError) -> Self {
        Self { url: replica.to_string(), reason: causes(why).to_string() }
    }
}

/// Those of `named` that the pool was opened without. A witness is none of them: it has no bytes of the pool.
pub(crate) fn left_out(pool: &Pool, named: &[&PoolUrl]) -> Vec<LeftOut> {
    told(pool, named, |_| true)
}

/// Refuses names of what is no member of the pool that has its bytes: another pool, a former member, or an asynchronous one. A member that is lost or behind is
/// none of these.
pub(crate) fn check_members(pool: &Pool, named: &[&PoolUrl]) -> anyhow::Result<()> {
    let is_none = |why: &ReplicaError| {
        use ReplicaError::{Asynchronous, Mismatch, NotTheMember};
        why.is_of_no_member() || matches!(why, Asynchronous { .. } | Mismatch { .. } | NotTheMember { .. })
    };
    check_none(&told(pool, named, is_none))
}

/// Fails where one was not compared.
pub(crate) fn check_none(not_compared: &[LeftOut]) -> anyhow::Result<()> {
    if not_compared.is_empty() {
        return Ok(());
    }
    bail!("not compared: {}", text(not_compared))
}

/// What is added to the message of another failure.
pub(crate) fn and_not_compared(not_compared: &[LeftOut]) -> String {
    if not_compared.is_empty() { String::new() } else { format!("; not compared: {}", text(not_compared)) }
}

/// Each of them, with its reason.
pub(crate) fn text(left_out: &[LeftOut]) -> String {
    let told = left_out.iter().map(|LeftOut { url, reason }| format!("{url}: {reason}"));
    told.collect::<Vec<_>>().join("; ")
}

fn told(pool: &Pool, named: &[&PoolUrl], is_told: impl Fn(&ReplicaError) -> bool) -> Vec<LeftOut> {
    let is_named = |replica: &ReplicaPlace| replica.url().is_some_and(|url| named.contains(&url));
    let left_out = pool.left_out().iter().filter(|(replica, why)| is_named(replica) && is_told(why));
    left_out.map(|(replica, why)| LeftOut::new(replica, why)).collect()
}
