//! Rosters in messages: in parts, since a long one does not fit into one message.

use super::{limits::ROSTER_PART_BYTES, request::Request};
use alloc::vec::Vec;

/// A part of a [roster](crate::Roster), as it is encoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RosterPart {
    /// Bytes of the whole.
    pub len_bytes: u16,
    /// This part of them, at most [`ROSTER_PART_BYTES`].
    pub bytes: Vec<u8>,
}

impl RosterPart {
    /// The part of an encoded roster that begins at `offset`, as long as one message holds.
    pub fn of(roster: &[u8], offset: u16) -> Self {
        let rest = roster.get(usize::from(offset)..).unwrap_or_default();
        let bytes = rest[..rest.len().min(ROSTER_PART_BYTES)].to_vec();
        Self { len_bytes: roster.len() as u16, bytes }
    }

    /// All requests that set a roster, in their order.
    pub fn requests(roster: &[u8]) -> impl Iterator<Item = Request> {
        let offsets = (0..roster.len()).step_by(ROSTER_PART_BYTES);
        offsets.map(|offset| Request::SetRoster { offset: offset as u16, part: Self::of(roster, offset as u16) })
    }
}
