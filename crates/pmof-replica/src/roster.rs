//! Where the members of a pool are found, and what is to be noted of it: decided from their rosters, without input or output.

use std::sync::Arc;

use pmof_access::Transport;
use pmof_control::{Epoch, REPLICAS_MAX, Role, Roster, RosterMember, members_of};
use uuid::Uuid;

use crate::{PoolUrl, TargetUrl};

#[cfg(test)]
mod tests;

/// A member that was found.
#[derive(Clone, Debug)]
pub(crate) struct FoundMember {
    pub(crate) index: u16,
    pub(crate) replica_uuid: Uuid,
    pub(crate) url: Arc<PoolUrl>,
}

/// The roster that counts, of those that members keep.
pub(crate) fn newest<'r>(rosters: impl IntoIterator<Item = &'r Roster>) -> Option<&'r Roster> {
    rosters.into_iter().max_by_key(|roster| roster.age())
}

/// Members that count and were not found, and where they were found last: neither under an address that was named nor where this process would have to
/// start a program or open a file, whatever a roster says.
pub(crate) fn elsewhere(roster: &Roster, found: &[FoundMember], named: &[Arc<PoolUrl>]) -> Vec<FoundMember> {
    let is_found = |member: &&RosterMember| found.iter().any(|found| member.is(found.index, found.replica_uuid));
    let missing = roster.counted().filter(|member| !is_found(member));
    let place = |member: &RosterMember| {
        let url: PoolUrl = member.url.parse().ok()?;
        let may_be_followed = matches!(url.target, TargetUrl::Address(_)) && named.iter().all(|named| **named != url);
        let RosterMember { index, replica_uuid, .. } = *member;
        may_be_followed.then(|| FoundMember { index, replica_uuid, url: Arc::new(url) })
    };
    missing.filter_map(place).collect()
}

/// Where spares are, which may have become members while the one was away that keeps this roster: under the same rule as [`elsewhere`].
pub(crate) fn spares_elsewhere(roster: &Roster, named: &[Arc<PoolUrl>]) -> Vec<Arc<PoolUrl>> {
    let urls = roster.spares().filter_map(|spare| spare.url.parse::<PoolUrl>().ok());
    let may_be_followed =
        |url: &PoolUrl| matches!(url.target, TargetUrl::Address(_)) && named.iter().all(|named| **named != *url);
    urls.filter(may_be_followed).map(Arc::new).collect()
}

/// Whether members that count were not found.
pub(crate) fn lacks(roster: &Roster, found: &[FoundMember]) -> bool {
    let is_found = |member: &RosterMember| found.iter().any(|found| member.is(found.index, found.replica_uuid));
    !roster.counted().all(is_found)
}

/// The roster as it is to be, by what an opening has found. It is newer where it says something else.
pub(crate) fn noted(roster: &Roster, found: &[FoundMember]) -> Roster {
    let mut noted = roster.clone();
    for FoundMember { index, replica_uuid, url } in found {
        let Some(member) = noted.members.iter_mut().find(|member| member.index == *index) else { continue };
        member.replica_uuid = *replica_uuid;
        if is_better(&member.url, url) {
            member.url = url.to_string();
        }
    }
    if noted != *roster {
        noted.notes = noted.notes.saturating_add(1);
    }
    noted
}

/// Whether an address that leads to a member is to be noted in the place of another one. The last one is, unless it leads there from the member's own
/// machine only and the other does not.
fn is_better(noted: &str, found: &PoolUrl) -> bool {
    let is_local = |url: &PoolUrl| match &url.target {
        TargetUrl::Address(address) => address.transport == Transport::Shm,
        TargetUrl::Ssh(_) => false,
        TargetUrl::Directory(_) => true,
    };
    match noted.parse::<PoolUrl>() {
        Ok(noted) => noted != *found && (is_local(&noted) || !is_local(found)),
        Err(_) => true,
    }
}

/// A roster of members that are known by their places in the pool only.
pub(crate) fn made(members: &[FoundMember]) -> Roster {
    let of = |found: &FoundMember| RosterMember {
        index: found.index,
        role: Role::Data,
        replica_uuid: found.replica_uuid,
        url: found.url.to_string(),
        domain: String::new(),
    };
    let mut members: Vec<_> = members.iter().map(of).collect();
    members.sort_unstable_by_key(|member| member.index);
    Roster { version: 0, notes: 1, members, change: None, forced: None, is_uncertain: false }
}

/// The roster behind a change that an epoch has made which is in force. `opening`: the number of that epoch, or of one behind it.
pub(crate) fn settled(roster: &Roster, opening: u64) -> Roster {
    let settled = roster.settled(|_| true);
    Roster { notes: settled.notes.max(opening << NOTES_BITS), ..settled }
}

/// The roster of these members from an epoch on that makes them so by itself. `opening`: the number of that epoch.
pub(crate) fn settled_behind(roster: &Roster, members: Vec<RosterMember>, opening: u64) -> Roster {
    let (version, notes) = (roster.version.saturating_add(1), roster.notes.max(opening << NOTES_BITS));
    Roster { version, notes, members, change: None, forced: roster.forced, is_uncertain: false }
}

/// Whether a replica is a member that counts, behind the change under way, if there is one.
pub(crate) fn has_after(roster: &Roster, index: u16, replica_uuid: Uuid) -> bool {
    roster.settled(|_| true).counted().any(|member| member.is(index, replica_uuid))
}

/// The number of an epoch that this roster is not older than; 0 of the members that the pool was made with.
pub(crate) fn settled_at(roster: &Roster) -> u64 {
    roster.notes >> NOTES_BITS
}

/// Bits of the notes that count them: more than a note each millisecond for a month would use. Those above are the number of the opening which the
/// last change of the members was settled at.
const NOTES_BITS: u32 = 32;

/// The member that is meant by its address or its number.
pub(crate) fn named<'r>(roster: &'r Roster, text: &str) -> Option<&'r RosterMember> {
    let (url, index) = (text.parse::<PoolUrl>().ok(), text.parse::<u16>().ok());
    let is_url = |member: &RosterMember| url.is_some() && member.url.parse::<PoolUrl>().ok() == url;
    // A spare that became a member may be both, for a moment.
    let (spares, others): (Vec<_>, Vec<_>) = roster.members.iter().partition(|member| member.role == Role::Spare);
    others.into_iter().chain(spares).find(|member| is_url(member) || Some(member.index) == index)
}

/// An index for a new member: one that no member had that is remembered, if there is one. `None`: the pool has as many members as can be.
pub(crate) fn free_index(roster: &Roster, line: &[Epoch]) -> Option<u16> {
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
pub(crate) fn with_uncounted(roster: &Roster, index: u16, member: Option<RosterMember>) -> Roster {
    let mut members: Vec<_> = roster.members.iter().filter(|other| other.index != index).cloned().collect();
    members.extend(member);
    members.sort_unstable_by_key(|member| member.index);
    Roster { notes: roster.notes.saturating_add(1), members, ..*roster }
}
