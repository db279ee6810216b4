//! Replicas that a command names, and that the pool was opened without.

use anyhow::bail;
use pmof::{Pool, PoolUrl, ReplicaError, ReplicaPlace, causes};
use serde::Serialize;

/// A replica that was not compared with the others.
#[derive(Debug, Serialize)]
pub(crate) struct NotCompared {
    pub(crate) replica: String,
    pub(crate) why: String,
}

impl NotCompared {
    pub(crate) fn new(replica: &ReplicaPlace, why: &ReplicaError) -> Self {
        Self { replica: replica.to_string(), why: causes(why).to_string() }
    }
}

/// Those of `named` that the pool was opened without. A witness is none of them: it has no bytes of the pool.
pub(crate) fn left_out(pool: &Pool, named: &[&PoolUrl]) -> Vec<NotCompared> {
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
pub(crate) fn check_none(not_compared: &[NotCompared]) -> anyhow::Result<()> {
    if not_compared.is_empty() {
        return Ok(());
    }
    bail!("{}", text(not_compared))
}

/// What is added to the message of another failure.
pub(crate) fn and_not_compared(not_compared: &[NotCompared]) -> String {
    if not_compared.is_empty() { String::new() } else { format!("; {}", text(not_compared)) }
}

fn text(not_compared: &[NotCompared]) -> String {
    let told = not_compared.iter().map(|NotCompared { replica, why }| format!("{replica}: {why}"));
    format!("not compared: {}", told.collect::<Vec<_>>().join("; "))
}

fn told(pool: &Pool, named: &[&PoolUrl], is_told: impl Fn(&ReplicaError) -> bool) -> Vec<NotCompared> {
    let is_named = |replica: &ReplicaPlace| replica.url().is_some_and(|url| named.contains(&url));
    let left_out = pool.left_out().iter().filter(|(replica, why)| is_named(replica) && is_told(why));
    left_out.map(|(replica, why)| NotCompared::new(replica, why)).collect()
}
