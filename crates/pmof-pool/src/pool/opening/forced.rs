//! Openings with fewer members than are safe: what they take, and what they leave behind.

use std::time::{SystemTime, UNIX_EPOCH};

use pmof_control::{Forced, Roster};
use uuid::Uuid;

use super::{Opened, Opening};
use crate::lineage::Base;

impl Opening {
    /// The mark of an opening with fewer members than are safe.
    pub(super) fn mark(roster: &Roster, opened: &[Opened], base: &Base) -> Forced {
        let bits = |indexes: &mut dyn Iterator<Item = u16>| indexes.fold(0, |bits, index| bits | 1 << index);
        let here = bits(&mut opened.iter().map(|opened| opened.replica.index));
        let epoch = base.ancestors.first().map_or_else(Uuid::nil, |epoch| epoch.id);
        let went_on = bits(
            &mut opened.iter().filter(|opened| opened.replica.behind.is_none()).map(|opened| opened.replica.index),
        );
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let unix_ms = since.as_millis().try_into().unwrap_or(u64::MAX);
        let (opening, left_out) = (base.opening.saturating_add(1), roster.indexes() & !here);
        Forced { opening, unix_ms, epoch, went_on, left_out }
    }
}
