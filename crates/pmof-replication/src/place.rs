//! Addresses of replicas, and where the members of a pool are found by what a roster says.

use alloc::{
    string::{String, ToString},
    sync::Arc,
    vec::Vec,
};
use core::fmt::{Debug, Display};

use pmof_control::{PoolName, Role, Roster, RosterMember};
use uuid::Uuid;

/// An address of a replica, as programs name it and rosters keep it: [`Display`] gives the text that [`parse`](Self::parse) reads.
pub trait Place: Clone + Debug + Display + PartialEq {
    /// The address that a text is. `None`: it is none.
    fn parse(text: &str) -> Option<Self>;

    /// The name of the pool there.
    fn pool_name(&self) -> &PoolName;

    /// Whether an opening may connect there because a roster says so. No roster can make a process start a program or open a file.
    fn may_be_followed(&self) -> bool;

    /// Whether the address leads there from that machine only.
    fn is_local(&self) -> bool;

    /// Whether connecting starts a target there, which takes seconds.
    fn starts_target(&self) -> bool;
}

/// A member that was found.
#[derive(Clone, Debug)]
pub struct FoundMember<P> {
    /// Its index among the members.
    pub index: u16,
    /// Its identity; nil where a roster does not know it.
    pub replica_uuid: Uuid,
    /// Where it is.
    pub url: Arc<P>,
}

/// Counted members that are not among `found`, at the addresses that the roster has for them, except addresses in `named` and addresses
/// that [may not be followed](Place::may_be_followed).
pub fn elsewhere<P: Place>(roster: &Roster, found: &[FoundMember<P>], named: &[Arc<P>]) -> Vec<FoundMember<P>> {
    let is_found = |member: &&RosterMember| found.iter().any(|found| member.is(found.index, found.replica_uuid));
    let missing = roster.counted().filter(|member| !is_found(member));
    let place = |member: &RosterMember| {
        let url = followed(&member.url, named)?;
        let RosterMember { index, replica_uuid, .. } = *member;
        Some(FoundMember { index, replica_uuid, url })
    };
    missing.filter_map(place).collect()
}

/// Addresses of spares, which may have become members since this roster was kept: under the same rule as [`elsewhere`].
pub fn spares_elsewhere<P: Place>(roster: &Roster, named: &[Arc<P>]) -> Vec<Arc<P>> {
    roster.spares().filter_map(|spare| followed(&spare.url, named)).collect()
}

/// Addresses of asynchronous members, any of which may have been promoted since this roster was kept: under the same rule as [`elsewhere`].
pub fn asynchronous_elsewhere<P: Place>(roster: &Roster, named: &[Arc<P>]) -> Vec<(RosterMember, Arc<P>)> {
    let members = roster.members.iter().filter(|member| member.role == Role::Asynchronous);
    members.filter_map(|member| Some((member.clone(), followed(&member.url, named)?))).collect()
}

/// The member or spare at an address. A spare that became a member may be both, for a moment, and is the member.
pub fn at<'r, P: Place>(roster: &'r Roster, place: &P) -> Option<&'r RosterMember> {
    let is_there = |member: &&RosterMember| P::parse(&member.url).is_some_and(|url| url == *place);
    let is_spare = |member: &&RosterMember| member.role == Role::Spare;
    let mut members = roster.members.iter().filter(|member| !is_spare(member));
    members.find(is_there).or_else(|| roster.spares().find(is_there))
}

fn followed<P: Place>(url: &str, named: &[Arc<P>]) -> Option<Arc<P>> {
    let place = P::parse(url)?;
    (place.may_be_followed() && named.iter().all(|named| **named != place)).then(|| Arc::new(place))
}

/// Whether a counted member of the roster was not found.
pub fn lacks<P>(roster: &Roster, found: &[FoundMember<P>]) -> bool {
    let is_found = |member: &RosterMember| found.iter().any(|found| member.is(found.index, found.replica_uuid));
    !roster.counted().all(is_found)
}

/// The roster with the identities and addresses that an opening found. It is newer if any of them changed.
pub fn noted<P: Place>(roster: &Roster, found: &[FoundMember<P>]) -> Roster {
    let mut noted = roster.clone();
    for FoundMember { index, replica_uuid, url } in found {
        let Some(member) = noted.members.iter_mut().find(|member| member.index == *index) else { continue };
        member.replica_uuid = *replica_uuid;
        if is_better(&member.url, &**url) {
            member.url = url.to_string();
        }
    }
    if noted != *roster {
        noted.notes = noted.notes.saturating_add(1);
    }
    noted
}

/// Whether `found` replaces the address in a roster: the latest one does, unless it is local and the one before is not.
fn is_better<P: Place>(noted: &str, found: &P) -> bool {
    P::parse(noted).is_none_or(|noted| noted != *found && (noted.is_local() || !found.is_local()))
}

/// The first roster of a pool that was made of these members.
pub fn made<P: Place>(members: &[FoundMember<P>]) -> Roster {
    let of = |found: &FoundMember<P>| RosterMember {
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
