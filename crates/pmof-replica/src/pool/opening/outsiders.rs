//! Replicas of the pool that do not count when it is opened.

use std::sync::Arc;

use pmof_control::{OpenFor, RosterMember};

use super::{Failed, Opened, Opening, place, release};
use crate::{PoolError, PoolUrl, ReplicaError, electorate::Electorate, pool::promotion::tell_roster};

impl Opening {
    /// Releases what is no member of the pool: one that was removed, or that was to come and never did. Where nothing else is there, whoever reads may
    /// ask for it by number all the same.
    pub(super) fn leave_out_non_members(&mut self, opened: &mut Vec<Opened>, electorate: &Electorate, access: OpenFor) {
        let is_asynchronous = |opened: &Opened| electorate.is_asynchronous(opened.index, opened.replica_uuid);
        // Its bytes are those of a point only once whatever is staged was applied.
        let (asynchronous, others): (Vec<_>, Vec<_>) = std::mem::take(opened).into_iter().partition(is_asynchronous);
        *opened = others;
        for Opened { position, index, site, .. } in asynchronous {
            release(&site);
            self.left_out.push((position, Arc::new(ReplicaError::Asynchronous { index })));
        }
        let is_member = |opened: &Opened| electorate.has(opened.index, opened.replica_uuid);
        let is_forced = access == OpenFor::Read && self.wanted.min_replicas.is_some();
        if is_forced && !opened.iter().any(is_member) {
            return;
        }
        let (members, others): (Vec<_>, Vec<_>) = std::mem::take(opened).into_iter().partition(is_member);
        for Opened { position, index, site, state, roster, .. } in others {
            let why = ReplicaError::of_no_member(index, &state, members.iter().map(|member| &member.state));
            // A pool that was made of an export of this one is none of its members' affair.
            let is_former = access == OpenFor::Write && !matches!(why, ReplicaError::SameIdentity { .. });
            let newest = electorate.settled().filter(|_| is_former && !members.is_empty());
            if let Some(newer) = newest.filter(|newer| roster.is_some_and(|kept| kept.age() < newer.age())) {
                // So that it leads to the members also where none of them can be reached. Who they are does not depend on it.
                let _ = tell_roster(&site, newer);
            }
            release(&site);
            self.left_out.push((position, Arc::new(why)));
        }
        *opened = members;
    }

    /// Releases a copy of one member's file at another member's address, where the member itself is open at its own: by what the members keep that is
    /// the replica, and the other's is missing.
    pub(super) fn leave_out_copies(&mut self, opened: &mut Vec<Opened>, electorate: &Electorate) {
        let Some(roster) = electorate.kept() else { return };
        let lies_at =
            |member: &RosterMember, at: usize| member.url.parse().is_ok_and(|url: PoolUrl| url == *self.urls[at]);
        let at_home =
            |opened: &&Opened| roster.member(opened.index).is_some_and(|member| lies_at(member, opened.position));
        let home: Vec<_> = opened.iter().filter(at_home).map(|opened| (opened.index, opened.position)).collect();
        let place_of = |opened: &Opened| {
            let is_twice = home.iter().any(|(index, at)| *index == opened.index && *at != opened.position);
            let other = roster.counted().find(|member| lies_at(member, opened.position))?;
            (is_twice && other.index != opened.index).then_some(other.index)
        };
        let (copies, members): (Vec<_>, Vec<_>) = std::mem::take(opened)
            .into_iter()
            .map(|opened| (place_of(&opened), opened))
            .partition(|(of, _)| of.is_some());
        *opened = members.into_iter().map(|(_, opened)| opened).collect();
        for (index, Opened { position, index: found, site, .. }) in copies {
            release(&site);
            let index = index.unwrap_or(found);
            self.left_out.push((position, Arc::new(ReplicaError::NotTheMember { index, found })));
        }
    }

    /// That asynchronous members answer and no others.
    pub(super) fn asynchronous_alone(&self, opened: &[Opened], failed: &[Failed]) -> Option<PoolError> {
        let is_asynchronous = |why: &ReplicaError| matches!(why, ReplicaError::Asynchronous { .. });
        let alone = self.left_out.iter().find(|(_, why)| opened.is_empty() && is_asynchronous(why))?;
        let busy = failed.iter().find(|failed| failed.error.is_busy());
        let (replica, source) = (place(&self.urls[alone.0]), Arc::clone(&alone.1));
        busy.is_none().then_some(PoolError::Replica { replica, source })
    }
}
