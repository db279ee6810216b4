//! What an opening leaves behind that went on with too few members.

use std::time::{SystemTime, UNIX_EPOCH};

use pmof_control::{Forced, Roster};
use uuid::Uuid;

use super::{Opened, Opening};
use crate::lineage::Base;

impl Opening {
    /// The mark of an opening with fewer members than are safe.
    pub(super) fn mark(roster: &Roster, opened: &[Opened], base: &Base) -> Forced {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let bits = |indexes: &mut dyn Iterator<Item = u16>| indexes.fold(0, |bits, index| bits | 1 << index);
        let here = bits(&mut opened.iter().map(|opened| opened.index));
        Forced {
            opening: base.opening.saturating_add(1),
            unix_ms: since.as_millis().try_into().unwrap_or(u64::MAX),
            epoch: base.ancestors.first().map_or_else(Uuid::nil, |epoch| epoch.id),
            went_on: bits(&mut opened.iter().filter(|opened| !opened.is_behind).map(|opened| opened.index)),
            left_out: roster.indexes() & !here,
        }
    }
}
