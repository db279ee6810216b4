//! A persist of an open pool, as the engine has it.

use std::sync::Arc;

use pmof_replication::posting::{AckTerms, Judge, Persist};

use super::{Flushings, Open, Persisted, slow::FlushesOf};
use crate::{PersistFailure, ReplicaError, ReplicaReceipt};

impl Persist for Open {
    type Flushing = Flushings;
    type Waiting<'w> = FlushesOf<'w>;
    type Reached = Vec<ReplicaReceipt>;
    type Outcome = Persisted;

    fn terms(&self) -> &AckTerms {
        &self.terms
    }

    fn waiting<'w>(&'w self, flushing: &'w mut Flushings) -> FlushesOf<'w> {
        FlushesOf { open: self, flushing }
    }

    async fn finish_all(&self, flushing: &mut Flushings) -> Vec<ReplicaReceipt> {
        let all = self.members.iter().zip(flushing);
        all.filter_map(|(member, flushing)| member.finish_flush(flushing)).collect()
    }

    /// A writer that was fenced at one replica acknowledges nothing on the others either: its successor may have those next.
    fn stop_where_fenced(&self) {
        let failures = self.members.iter().filter_map(|member| member.standing().failure());
        let successor = failures.filter_map(|why| match &**why {
            ReplicaError::Fenced { successor } => Some(successor.clone()),
            _ => None,
        });
        if let Some(successor) = { successor }.next() {
            self.fence(&successor);
        }
    }

    async fn acknowledge(&self) -> bool {
        self.epochs.as_ref().is_some_and(|epochs| epochs.acknowledge(&self.members))
    }

    fn receipt(&self, mut replicas: Vec<ReplicaReceipt>, judge: &Judge<'_>) -> Persisted {
        let mut failed = Vec::new();
        for member in &self.members {
            let (standing, state) = (member.standing(), member.state());
            if state.is_prompt() || !state.is_data_member() {
                continue;
            }
            if let Some(why) = standing.report_failure() {
                replicas.retain(|receipt| !Arc::ptr_eq(&receipt.replica, &standing.place));
                failed.push((Arc::clone(&standing.place), Arc::clone(why)));
            }
            if standing.is_news_to_watcher() {
                self.losses.raise();
            }
        }
        let (receipt, lacks_any) = self.receipt_of(replicas);
        let is_enough = judge.are_enough(receipt.replicas.iter().map(|replica| replica.domain), |is_acknowledged| {
            self.epochs.as_ref().map_or(!lacks_any, |epochs| epochs.is_enough(lacks_any, is_acknowledged))
        });
        if is_enough {
            return Ok(receipt);
        }
        let is_final = self.epochs.is_none() || self.in_use().next().is_none();
        Err(Box::new(PersistFailure { receipt, failed, is_final }))
    }
}
