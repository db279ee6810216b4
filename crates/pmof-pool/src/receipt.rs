//! Receipts: what a persist reached, on which replica, by which means, and on what evidence.

use std::{fmt, sync::Arc};

use pmof_access::{Durability, Flushed, Method, Promise};
use pmof_mem::causes;

use crate::{ReplicaDomain, ReplicaError, ReplicaPlace};

#[cfg(test)]
mod tests;

/// What one replica says about a persist: how the flush was done that made it durable there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaReceipt {
    /// The replica.
    pub replica: Arc<ReplicaPlace>,
    /// The level reached there.
    pub durability: Durability,
    /// How the writes were followed by that flush.
    pub method: Method,
    /// What was done, and why that is believed to be enough.
    pub promise: Promise,
    /// The second flush, where some writes went another way, such as those of [`Atomicity::Words`](crate::Atomicity::Words) over RDMA, and were
    /// made durable by other means.
    pub also: Option<Flushed>,
    /// The failure domain that the replica is in; `None` where that is not known.
    pub domain: Option<ReplicaDomain>,
}

/// Everything written before the persist has reached [`durability`](Self::durability) on every replica listed.
///
/// Where members of the pool are missing, it is *degraded*: enough of its replicas know durably that those lack the writes, so that no opening reads
/// from them before they have caught up. That is a fact of the pool and its members, whichever addresses a program names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// The level that was asked for.
    pub durability: Durability,
    /// One receipt per replica that reached it.
    pub replicas: Vec<ReplicaReceipt>,
    /// Members that are lost or catch up, and lack the writes.
    pub missing: Vec<Arc<ReplicaPlace>>,
    /// Members that were named when the pool was opened, and members found through them.
    pub replica_count: usize,
    /// Members that the pool has and that have its data: the replicas that it was made with, unless they were [changed](crate::Pool::add).
    pub made_count: usize,
    /// Members that a [promotion](crate::PoolOptions::promote) or another forced opening went on without, as long as the pool has fewer members for that;
    /// 0 once [it is known](crate::Pool::clear_forced).
    pub forgone_count: usize,
    /// Replicas that were named when the pool was opened, and are none of its members: removed or replaced, or left by a promotion. No persist waits for them. Name the members instead: `pmof pool status` lists them.
    pub not_members: Vec<Arc<ReplicaPlace>>,
}

impl fmt::Display for ReplicaReceipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (", self.replica)?;
        write_means(f, self.method, self.promise)?;
        if let Some(Flushed { method, promise, .. }) = self.also {
            f.write_str("; ")?;
            write_means(f, method, promise)?;
        }
        f.write_str(")")
    }
}

fn write_means(f: &mut fmt::Formatter<'_>, method: Method, promise: Promise) -> fmt::Result {
    write!(f, "{method}, {} by {}, {}", promise.mechanism, done_by(method), promise.evidence)
}

fn done_by(method: Method) -> &'static str {
    match method {
        Method::NativeFlush => "the target's device",
        Method::LocalWriteBack => "initiator",
        Method::ReadAfterWrite | Method::ReadAfterSend => "the target's platform",
        _ => "target",
    }
}

impl ReplicaReceipt {
    /// Of the flushes that were done for a persist; `None` where there was none.
    pub(crate) fn of(
        replica: Arc<ReplicaPlace>,
        flushes: [Option<Flushed>; 2],
        domain: Option<ReplicaDomain>,
    ) -> Option<Self> {
        let [first, second] = flushes;
        let (first, second) = if first.is_some() { (first?, second) } else { (second?, None) };
        let Flushed { durability, method, promise } = first;
        let also = second.filter(|second| (second.method, second.promise) != (method, promise));
        let durability = second.map_or(durability, |second| durability.min(second.durability));
        Some(Self { replica, durability, method, promise, also, domain })
    }

    /// Who made the writes durable.
    pub fn done_by(&self) -> &'static str {
        done_by(self.method)
    }
}

impl Receipt {
    /// Whether the pool has members that these writes are not on, or was forced to go on with fewer than it had.
    pub fn is_degraded(&self) -> bool {
        self.replicas.len() < self.made_count || !self.missing.is_empty() || self.forgone_count > 0
    }
}

impl Receipt {
    /// The replicas that have the writes.
    fn write_reached(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {}/{}", self.durability, self.replicas.len(), self.replica_count)?;
        if self.made_count != self.replica_count {
            write!(f, ", of {} that the pool has", self.made_count)?;
        }
        for (index, replica) in self.replicas.iter().enumerate() {
            let separator = if index == 0 { ":" } else { "," };
            write!(f, "{separator} {replica}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_reached(f)?;
        let survival = self.survives();
        if survival.domains > 0 {
            write!(f, "; survives {survival}")?;
        }
        for (index, replica) in self.missing.iter().enumerate() {
            let separator = if index == 0 { "; degraded, without" } else { "," };
            write!(f, "{separator} {replica}")?;
        }
        if self.forgone_count > 0 {
            let members = if self.forgone_count == 1 { "member" } else { "members" };
            write!(f, "; degraded, forced to go on with {} {members} fewer", self.forgone_count)?;
        }
        for (index, replica) in self.not_members.iter().enumerate() {
            let separator = if index == 0 { "; named, and no member of the pool (see pmof pool status):" } else { "," };
            write!(f, "{separator} {replica}")?;
        }
        Ok(())
    }
}

/// A persist that too few replicas are left to acknowledge: of a native pool fewer than must know which ones lack it (a majority; one of
/// two) or than [asked for](crate::Acknowledge), of a pool set fewer than all. Those that have it keep the data; `receipt` says which.
#[derive(Clone, Debug)]
pub struct PersistFailure {
    /// The replicas that reached the level.
    pub receipt: Receipt,
    /// The replicas that did not, and why. Whether the writes are there is unknown.
    pub failed: Vec<(Arc<ReplicaPlace>, Arc<ReplicaError>)>,
    /// Nothing that this handle of the pool does can be acknowledged any more.
    pub(crate) is_final: bool,
}

impl PersistFailure {
    /// Whether no replica has reached the level. If false, the write is durable where [`receipt`](Self::receipt) says, and only there.
    pub fn is_total(&self) -> bool {
        self.receipt.replicas.is_empty()
    }

    /// Whether another initiator took the pool over.
    pub fn is_fenced(&self) -> bool {
        self.failed.iter().any(|(_, why)| why.is_fenced())
    }

    /// Whether no later persist of this pool can succeed: all replicas that were in sync are lost, and with their connections what was written and
    /// not acknowledged; or one of a pool set. See [`PoolError::must_reopen`](crate::PoolError::must_reopen).
    pub fn must_reopen(&self) -> bool {
        self.is_final && !self.is_fenced()
    }
}

impl fmt::Display for PersistFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut left = self.failed.iter().peekable();
        while let Some((replica, why)) = left.next() {
            let (is_fenced, why) = (why.is_fenced(), causes(why).to_string());
            write!(f, "replica {replica}")?;
            // Each target names the successor by a connection of its own.
            let is_same = |next: &ReplicaError| (is_fenced && next.is_fenced()) || causes(next).to_string() == why;
            while let Some((other, _)) = left.next_if(|(_, next)| is_same(next)) {
                write!(f, ", {other}")?;
            }
            write!(f, " failed: {why}; ")?;
        }
        f.write_str("the writes are ")?;
        self.receipt.write_reached(f)?;
        // Those that have failed in this persist are named above.
        if self.failed.is_empty() {
            for (index, replica) in self.receipt.missing.iter().enumerate() {
                let separator = if index == 0 { ", without" } else { "," };
                write!(f, "{separator} {replica}")?;
            }
            f.write_str(
                ": too few replicas, or in too few failure domains, for what a persist is to be acknowledged by (PoolOptions::acknowledge); write again and persist when those that are lost are back and those that catch up are in sync (Pool::status)",
            )?;
        }
        if self.must_reopen() {
            f.write_str(
                "; close the pool, open it again when its replicas are back, and write again what was not acknowledged",
            )?;
        }
        Ok(())
    }
}
