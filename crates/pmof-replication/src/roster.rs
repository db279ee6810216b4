//! How the members of a pool change: decided from their rosters.

use alloc::vec::Vec;

use pmof_control::{Epoch, REPLICAS_MAX, Roster, RosterMember, members_of};
use uuid::Uuid;

#[cfg(test)]
mod tests;

/// Bits of the notes that count them: more than a note each millisecond for a month would use. Those above are the number of the opening which the
/// last change of the members was settled at.
const NOTES_BITS: u32 = 32;

/// The roster behind a change that an epoch has made which is in force. `opening`: the number of that epoch, or of one behind it.
pub fn settled(roster: &Roster, opening: u64) -> Roster {
    let settled = roster.settled(|_| true);
    Roster { notes: settled.notes.max(opening << NOTES_BITS), ..settled }
}

/// The roster of these members from an epoch on that makes them so by itself. `opening`: the number of that epoch.
pub fn settled_behind(roster: &Roster, members: Vec<RosterMember>, opening: u64) -> Roster {
    let (version, notes) = (roster.version.saturating_add(1), roster.notes.max(opening << NOTES_BITS));
    Roster { version, notes, members, change: None, forced: roster.forced, is_uncertain: false }
}

/// Whether a replica is a member that counts, behind the change under way, if there is one.
pub fn has_after(roster: &Roster, index: u16, replica_uuid: Uuid) -> bool {
    roster.settled(|_| true).counted().any(|member| member.is(index, replica_uuid))
}

/// The number of an epoch that this roster is not older than; 0 of the members that the pool was made with.
pub fn settled_at(roster: &Roster) -> u64 {
    roster.notes >> NOTES_BITS
}

/// An index for a new member: one that no member had that is remembered, if there is one. `None`: the pool has as many members as can be.
pub fn free_index(roster: &Roster, line: &[Epoch]) -> Option<u16> {
    let members = members_of(roster.members.iter().map(|member| member.index));
    let known = line.iter().fold(members, |known, epoch| known | epoch.members);
    let behind = (u64::BITS - known.leading_zeros()) as u16;
    let is_free = |taken: u64| move |index: &u16| taken & (1 << index) == 0;
    let all = 0..REPLICAS_MAX;
    all.clone()
        .filter(|index| *index >= behind)
        .chain(all.clone().filter(is_free(known)))
        .chain(all.filter(is_free(members)))
        .next()
}

/// The roster with an asynchronous member or a spare, or without that of its index.
pub fn with_uncounted(roster: &Roster, index: u16, member: Option<RosterMember>) -> Roster {
    let mut members: Vec<_> = roster.members.iter().filter(|other| other.index != index).cloned().collect();
    members.extend(member);
    members.sort_unstable_by_key(|member| member.index);
    Roster { notes: roster.notes.saturating_add(1), members, ..*roster }
}

/// The roster that counts, of those that members keep.
pub fn newest<'r>(rosters: impl IntoIterator<Item = &'r Roster>) -> Option<&'r Roster> {
    rosters.into_iter().max_by_key(|roster| roster.age())
}
