//! Openings with fewer members than are safe: what they take, and what they leave behind.

use std::time::{SystemTime, UNIX_EPOCH};

use pmof_control::{Forced, OpenFor, PoolRefusal, Request, Roster};
use uuid::Uuid;

use super::{Failed, Opened, Opening};
use crate::{ReplicaError, lineage::Base, pool::opened::Identity};

/// The mark of whoever goes on now from an `epoch`, by opening the pool for the `opening`-th time, with some members and without others.
pub(in crate::pool) fn mark(opening: u64, epoch: Uuid, went_on: u64, left_out: u64) -> Forced {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Forced { opening, unix_ms: since.as_millis().try_into().unwrap_or(u64::MAX), epoch, went_on, left_out }
}

impl Opening {
    /// Opens replicas whose state may be an older one, where a number was asked for and there are too few without these.
    pub(super) fn open_older(
        &mut self,
        opened: &mut Vec<Opened>,
        failed: &mut Vec<Failed>,
        access: OpenFor,
        identity: &mut Option<Identity>,
    ) {
        if self.wanted.min_replicas.is_none_or(|least| opened.len() >= least) {
            return;
        }
        let is_uncertain = |failed: &Failed| {
            matches!(failed.error, ReplicaError::Refused { refusal: PoolRefusal::UncertainState, .. })
        };
        let (uncertain, others): (Vec<_>, Vec<_>) = std::mem::take(failed).into_iter().partition(is_uncertain);
        self.sites = uncertain.into_iter().map(|failed| (failed.position, failed.site)).collect();
        let require = self.wanted.require;
        let (older, still_failed) = self.ask(access, None, identity, |url, _| Request::Open {
            name: url.name.clone(),
            access,
            require,
            may_be_older: true,
        });
        self.has_older = !older.is_empty();
        opened.extend(older);
        failed.extend(others.into_iter().chain(still_failed));
    }

    /// The mark of an opening with fewer members than are safe.
    pub(super) fn mark(roster: &Roster, opened: &[Opened], base: &Base) -> Forced {
        let bits = |indexes: &mut dyn Iterator<Item = u16>| indexes.fold(0, |bits, index| bits | 1 << index);
        let here = bits(&mut opened.iter().map(|opened| opened.index));
        let epoch = base.ancestors.first().map_or_else(Uuid::nil, |epoch| epoch.id);
        let went_on = bits(&mut opened.iter().filter(|opened| !opened.is_behind).map(|opened| opened.index));
        mark(base.opening.saturating_add(1), epoch, went_on, roster.indexes() & !here)
    }
}
