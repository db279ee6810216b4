//! Where the members of a pool are found, and what is to be noted of it: decided from their rosters, without input or output.

use std::sync::Arc;

use pmof_access::Transport;
use pmof_control::{Role, Roster, RosterMember};
use uuid::Uuid;

pub(crate) use pmof_replication::roster::{free_index, newest, settled_behind, with_uncounted};

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

/// The member that is meant by its address or its number.
pub(crate) fn named<'r>(roster: &'r Roster, text: &str) -> Option<&'r RosterMember> {
    let (url, index) = (text.parse::<PoolUrl>().ok(), text.parse::<u16>().ok());
    let is_url = |member: &RosterMember| url.is_some() && member.url.parse::<PoolUrl>().ok() == url;
    // A spare that became a member may be both, for a moment.
    let (spares, others): (Vec<_>, Vec<_>) = roster.members.iter().partition(|member| member.role == Role::Spare);
    others.into_iter().chain(spares).find(|member| is_url(member) || Some(member.index) == index)
}
