//! Openings with fewer members than are safe: what they take, and what they leave behind.

use std::time::{SystemTime, UNIX_EPOCH};

use pmof_control::{Forced, Roster};
use uuid::Uuid;

use super::{Opened, Opening};
use crate::lineage::Base;

/// The mark of whoever goes on now from an `epoch`, by opening the pool for the `opening`-th time, with some members and without others.
pub(in crate::pool) fn mark(opening: u64, epoch: Uuid, went_on: u64, left_out: u64) -> Forced {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Forced { opening, unix_ms: since.as_millis().try_into().unwrap_or(u64::MAX), epoch, went_on, left_out }
}

impl Opening {
    /// The mark of an opening with fewer members than are safe.
    pub(super) fn mark(roster: &Roster, opened: &[Opened], base: &Base) -> Forced {
        let bits = |indexes: &mut dyn Iterator<Item = u16>| indexes.fold(0, |bits, index| bits | 1 << index);
        let here = bits(&mut opened.iter().map(|opened| opened.replica.index));
        let epoch = base.ancestors.first().map_or_else(Uuid::nil, |epoch| epoch.id);
        let went_on = bits(
            &mut opened.iter().filter(|opened| opened.replica.behind.is_none()).map(|opened| opened.replica.index),
        );
        mark(base.opening.saturating_add(1), epoch, went_on, roster.indexes() & !here)
    }
}
