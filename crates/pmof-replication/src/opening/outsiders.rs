//! Replicas of the pool that do not count when it is opened.

use alloc::vec::Vec;

use pmof_control::{OpenFor, Roster, RosterMember, RosterPart};

use super::{
    Refusal, Rules,
    ask::{Failed, RELEASE_WAIT, Run},
    outcome::{Identity, OpenedReplica},
};
use crate::{
    asking::{Cause, Failure, Patience, Reason},
    electorate::Electorate,
    lineage::{Apart, Outsider, line},
    place::Place,
};

impl OpenedReplica {
    /// Why it is not in sync with the others.
    pub(super) fn why_apart(&self, apart: Apart, made: u16) -> Reason {
        if self.is_witness { self.as_witness() } else { Reason::Apart { apart, made } }
    }

    /// That it is a witness, and where those are that have the pool's bytes.
    fn as_witness(&self) -> Reason {
        let with_data = self.roster.iter().flat_map(Roster::with_data);
        let members = with_data.filter(|member| !member.url.is_empty()).map(|member| member.url.clone()).collect();
        Reason::Witness { index: self.index, members }
    }
}

impl<P: Place, F: Failure, R: Rules> Run<P, F, R> {
    /// Releases what is no member of the pool: one that was removed, or that was to come and never did. Where nothing else is there, a reader may
    /// ask for it by number all the same.
    pub(super) async fn leave_out_non_members(&mut self, opened: &mut Vec<OpenedReplica>, electorate: &Electorate) {
        let is_asynchronous = |opened: &OpenedReplica| electorate.is_asynchronous(opened.index, opened.replica_uuid);
        // Its bytes are those of a point only once whatever is staged was applied.
        let (asynchronous, others): (Vec<_>, Vec<_>) = core::mem::take(opened).into_iter().partition(is_asynchronous);
        *opened = others;
        self.release(asynchronous.iter().map(|opened| opened.site)).await;
        for OpenedReplica { position, index, .. } in asynchronous {
            self.left_out.push((position, Reason::Asynchronous { index }.into()));
        }
        let is_member = |opened: &OpenedReplica| self.rules.is_member(electorate, opened.index, opened.replica_uuid);
        let is_forced = self.access == OpenFor::Read && self.terms.min_replicas.is_some();
        if is_forced && !opened.iter().any(is_member) {
            return;
        }
        let (members, others): (Vec<_>, Vec<_>) = core::mem::take(opened).into_iter().partition(is_member);
        *opened = members;
        let (lines, last) = (opened.iter().map(|member| line(&member.state)), opened.iter());
        let (lines, last): (Vec<_>, _) = (lines.collect(), last.map(|member| member.state.opening).max().unwrap_or(0));
        let mut requests = Vec::with_capacity(others.len());
        for OpenedReplica { position, index, site, state, roster, .. } in others {
            let outsider = Outsider::of(index, &state, &lines);
            // A pool that was made of an export of this one is none of its members' affair.
            let is_former = self.access == OpenFor::Write && outsider != Outsider::Unrelated;
            let newest = electorate.settled().filter(|_| is_former && !opened.is_empty());
            let newer = newest.filter(|newer| roster.is_some_and(|kept| kept.age() < newer.age()));
            // So that it leads to the members also where none of them can be reached. Who they are does not depend on it.
            let encoded = newer.and_then(|newer| newer.encode().ok()).unwrap_or_default();
            let mut to_it: Vec<_> = RosterPart::requests(&encoded).collect();
            to_it.push(pmof_control::Request::Close { in_order: false });
            requests.push((site, to_it));
            let why = Reason::Outside { outsider, index, opening: state.opening, others: last };
            self.left_out.push((position, why.into()));
        }
        self.ask_each(requests, Patience::within(RELEASE_WAIT)).await;
    }

    /// Releases a copy of one member's file at another member's address, where the member itself is open at its own: by what the members keep that is
    /// the replica, and the other's is missing.
    pub(super) async fn leave_out_copies(&mut self, opened: &mut Vec<OpenedReplica>, electorate: &Electorate) {
        let Some(roster) = electorate.kept() else { return };
        let lies_at =
            |member: &RosterMember, at: usize| P::parse(&member.url).is_some_and(|url| url == *self.places[at]);
        let at_home = |opened: &&OpenedReplica| {
            roster.member(opened.index).is_some_and(|member| lies_at(member, opened.position))
        };
        let home: Vec<_> = opened.iter().filter(at_home).map(|opened| (opened.index, opened.position)).collect();
        let place_of = |opened: &OpenedReplica| {
            let is_twice = home.iter().any(|(index, at)| *index == opened.index && *at != opened.position);
            let other = roster.counted().find(|member| lies_at(member, opened.position))?;
            (is_twice && other.index != opened.index).then_some(other.index)
        };
        let (copies, members): (Vec<_>, Vec<_>) = core::mem::take(opened)
            .into_iter()
            .map(|opened| (place_of(&opened), opened))
            .partition(|(of, _)| of.is_some());
        *opened = members.into_iter().map(|(_, opened)| opened).collect();
        self.release(copies.iter().map(|(_, copy)| copy.site)).await;
        for (index, OpenedReplica { position, index: found, .. }) in copies {
            let index = index.unwrap_or(found);
            self.left_out.push((position, Reason::NotTheMember { index, found }.into()));
        }
    }

    /// Marks the witnesses, by the pool's roster. Returns replicas that have neither a witness's nor the pool's size.
    pub(super) fn find_witnesses(
        opened: &mut Vec<OpenedReplica>,
        electorate: &Electorate,
        identity: &Identity,
    ) -> Vec<Failed<F>> {
        let mut failed = Vec::new();
        for mut replica in core::mem::take(opened) {
            replica.is_witness = electorate.is_witness(replica.index, replica.replica_uuid);
            match identity.check_size(replica.size_bytes, replica.is_witness) {
                Ok(()) => opened.push(replica),
                Err(reason) => {
                    let OpenedReplica { position, site, replica_uuid, .. } = replica;
                    failed.push(Failed { position, site, open: Some(replica_uuid), cause: reason.into() });
                }
            }
        }
        failed
    }

    /// That asynchronous members answer and no others.
    pub(super) fn asynchronous_alone(&self, opened: &[OpenedReplica], failed: &[Failed<F>]) -> Option<Refusal<F>> {
        let is_asynchronous = |(_, why): &&(usize, Cause<F>)| matches!(why, Cause::Reason(Reason::Asynchronous { .. }));
        let (position, cause) = self.left_out.iter().filter(|_| opened.is_empty()).find(is_asynchronous)?;
        let is_busy = failed.iter().any(|failed| failed.cause.is_busy());
        (!is_busy).then(|| Refusal::Replica { position: *position, cause: cause.clone() })
    }

    /// That witnesses answer and no member that has data.
    pub(super) fn witnesses_alone(&self, opened: &[OpenedReplica], failed: &[Failed<F>]) -> Option<Refusal<F>> {
        let are_alone = !opened.is_empty() && opened.iter().all(|opened| opened.is_witness);
        // A wrong answer is an error of its own.
        if !are_alone || !failed.is_empty() {
            return None;
        }
        let witnesses = opened.iter().map(|opened| (opened.position, opened.as_witness().into()));
        Some(Refusal::none_opened(witnesses.chain(self.told_left_out()).collect()))
    }
}
