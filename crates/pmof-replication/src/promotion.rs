//! Making a pool of an asynchronous member, where the members that count are lost for good: what the member and the former members say decides, and the requests, in their order.

use alloc::{string::String, vec::Vec};

use pmof_control::{
    ANCESTORS_MAX, Epoch, Forced, PoolInfo, PoolState, Reply, Request, Role, Roster, RosterError, RosterMember,
    RosterPart,
};
use uuid::Uuid;

use crate::{
    asking::{Reason, is_promoted},
    roster::settled_behind,
};

#[cfg(test)]
mod tests;

/// An asynchronous member, and the pool that it follows, as it keeps that.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The pool.
    pub pool_uuid: Uuid,
    /// Bytes of the pool's data.
    pub size_bytes: u64,
    /// The pool's members.
    pub roster: Roster,
    /// The asynchronous member.
    pub member: RosterMember,
}

/// A replica that is no asynchronous member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAsynchronous {
    /// It is a witness of a pool.
    pub is_witness: bool,
}

/// What a replica that lies at the address of another member says.
#[derive(Clone, Debug)]
pub struct Answering {
    roster: Option<Roster>,
    /// Who has it open for writing.
    pub writer: Option<String>,
    /// It was an asynchronous member itself.
    is_promoted: bool,
    /// It is a member of its pool, which has removed the candidate.
    goes_on: bool,
    /// It is one of the members that the candidate knows.
    is_known: bool,
}

/// What makes a pool of a candidate.
#[derive(Debug)]
pub struct Promoting {
    /// The requests to it, one after the other, and its replies. Until the last part of the roster it is an asynchronous member for an opening, and may be promoted again; the pool is
    /// closed in order by the last request.
    pub requests: Vec<(Request, Reply)>,
    /// What former members are to keep then.
    pub roster: Roster,
}

impl Candidate {
    /// The asynchronous member that a replica is.
    ///
    /// # Errors
    /// It is none.
    pub fn of(
        (pool_uuid, size_bytes): (Uuid, u64),
        (index, replica_uuid): (u16, Uuid),
        roster: Roster,
    ) -> Result<Self, NotAsynchronous> {
        let has_role = |role: Role| move |member: &&RosterMember| member.role == role && member.is(index, replica_uuid);
        match roster.members.iter().find(has_role(Role::Asynchronous)).cloned() {
            Some(member) => Ok(Self { pool_uuid, size_bytes, roster, member }),
            None => Err(NotAsynchronous {
                is_witness: roster.members.iter().any(|member| has_role(Role::Witness)(&member)),
            }),
        }
    }

    /// The other members, which are asked: counted ones, and asynchronous ones, which may have been promoted.
    pub fn others(&self) -> impl Iterator<Item = &RosterMember> {
        self.roster.members.iter().filter(|member| member.role != Role::Spare && member.index != self.member.index)
    }

    /// What a replica is to the candidate that was found at the address of another member.
    ///
    /// # Errors
    /// [`Reason::Mismatch`], [`Reason::NotTheMember`].
    pub fn judge(&self, info: &PoolInfo, roster: Option<Roster>) -> Result<Answering, Reason> {
        let header = &info.header;
        if header.pool_uuid != self.pool_uuid {
            let (uuid, found_uuid, found_bytes) = (self.pool_uuid, header.pool_uuid, header.size_bytes);
            return Err(Reason::Mismatch { uuid, found_uuid, size_bytes: self.size_bytes, found_bytes });
        }
        let (index, found, replica_uuid) = (self.member.index, header.replica_index, header.replica_uuid);
        if self.member.is(found, replica_uuid) {
            return Err(Reason::NotTheMember { index, found });
        }
        let is_known = self.roster.members.iter().any(|member| member.is(found, replica_uuid));
        let is_own = |member: &RosterMember| member.role == Role::Asynchronous && self.is_same(member);
        let is_promoted = self.roster.member(found).is_some_and(|member| !member.counts()) && is_promoted(info);
        let goes_on = !is_promoted
            && roster.as_ref().is_some_and(|roster| {
                let counts = roster.counted().any(|member| member.is(found, replica_uuid));
                counts && !roster.members.iter().any(is_own)
            });
        Ok(Answering { roster, writer: info.open_by.clone(), is_promoted, goes_on, is_known })
    }

    fn is_same(&self, member: &RosterMember) -> bool {
        member.is(self.member.index, self.member.replica_uuid)
    }

    /// A version that no former member keeps: of several rosters an opening goes by the newest.
    pub fn newest_version<'a>(&self, former: impl IntoIterator<Item = &'a Answering>) -> u64 {
        let told = former.into_iter().filter(|answering| answering.is_told());
        let versions = told.filter_map(|answering| answering.roster.as_ref()).map(|roster| roster.version);
        versions.fold(self.roster.version, u64::max)
    }

    /// Has the candidate, in this state, be the only one of its pool, and in sync. Its roster is newer than `version`. `name`: of its epoch, which nothing has yet. `unix_ms`: now.
    ///
    /// # Errors
    /// The roster cannot be encoded.
    pub fn promote(&self, state: &PoolState, version: u64, name: Uuid, unix_ms: u64) -> Result<Promoting, RosterError> {
        let index = self.member.index;
        let (epoch, opening) = (Epoch::new(name, [index]), state.opening.saturating_add(1));
        let ancestors = core::iter::once(state.epoch).chain(state.ancestors.iter().copied()).take(ANCESTORS_MAX);
        let begin = Request::Begin { opening, epoch, ancestors: ancestors.collect() };
        let member = RosterMember { role: Role::Data, ..self.member.clone() };
        // An opening of former members that know nothing of this one goes on apart from it.
        let (went_on, left_out) = (1 << index, self.roster.indexes());
        let mark = Forced { opening, unix_ms, epoch: state.epoch.id, went_on, left_out };
        let former = Roster { version, ..self.roster.clone() };
        let roster = settled_behind(&former, [member].into(), opening).forced_by(mark);
        let epochs = [(begin, Reply::Begun), (Request::Confirm { epoch: epoch.id }, Reply::Confirmed)];
        let encoded = roster.encode()?;
        let parts = RosterPart::requests(&encoded).map(|request| (request, Reply::RosterSet));
        let close = (Request::Close { in_order: true }, Reply::Closed);
        Ok(Promoting { requests: epochs.into_iter().chain(parts).chain([close]).collect(), roster })
    }
}

impl Answering {
    /// Whether this former member of the role keeps the candidate from being promoted: it has what that may lack, or is a witness that a writer of such members has open.
    pub fn prevents(&self, role: Role) -> bool {
        role != Role::Witness || self.writer.is_some()
    }

    /// Whether it is a former member: it counted, or was promoted before.
    pub fn is_former(&self, member: &RosterMember) -> bool {
        member.counts() || self.is_promoted
    }

    /// Whether it is to know who the members are now. Else it is left as it is: it is of another pool of the same identity.
    pub fn is_told(&self) -> bool {
        !self.goes_on && self.is_known
    }
}
