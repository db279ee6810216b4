//! What an open pool is at this moment.

use std::{sync::Arc, time::Duration};

use pmof_control::{Forced, Roster, RosterMember};

use super::{AsynchronousStatus, ChangeError, Event, Open, Pool, Shared, epochs::Epochs, opened::place};
use crate::{PoolError, ReplicaDomain, ReplicaError, ReplicaPlace, lineage::quorum, member::Member};

/// Events that the status has.
const LAST_EVENTS: usize = 16;

/// Where a replica of an open pool is in its life.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ReplicaState {
    /// It has all that was acknowledged, and each persist waits for it.
    InSync,
    /// It is sent all new writes, and what it lacks is copied to it.
    CatchingUp {
        /// Bytes that have yet to be copied, at most.
        missing_bytes: u64,
    },
    /// It is connected and was [too slow](crate::PoolOptions::slow_after): nothing is sent to it until it answers as promptly as the others.
    Slow,
    /// It is out of reach, or was left out; why, as it was found when it was tried last. It is connected to again and again, unless it belongs elsewhere, or the pool
    /// [must be opened again](PoolError::must_reopen).
    Lost(Arc<ReplicaError>),
}

/// One replica of an open pool.
#[derive(Clone, Debug)]
pub struct ReplicaStatus {
    /// Where it lies.
    pub replica: Arc<ReplicaPlace>,
    /// Where it is in its life.
    pub state: ReplicaState,
    /// Of a lost one: how long it has been lost, or looked for since the pool was opened without it.
    pub lost_for: Option<Duration>,
    /// The failure domain that it is in, and the name of that; `None` where it is not known.
    pub domain: Option<(ReplicaDomain, String)>,
}

/// What a spare is doing.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum SpareState {
    /// Nothing: no member has been lost for long, or this writer has yet to try it.
    Idle,
    /// A replica was made there, which is copied to. It is no member yet.
    CopiedTo {
        /// Bytes that have yet to be copied, at most.
        missing_bytes: u64,
    },
    /// It could not be taken when this writer tried last, and is tried again.
    NotTaken(Arc<ChangeError>),
}

/// A spare of an open pool.
#[derive(Clone, Debug)]
pub struct SpareStatus {
    /// Where it lies.
    pub replica: Arc<ReplicaPlace>,
    /// What it is doing.
    pub state: SpareState,
    /// Its number among the pool's members.
    pub(super) index: u16,
}

/// What [`Pool::status`] says.
#[derive(Clone, Debug)]
pub struct PoolStatus {
    /// Openings and changes of members that the pool has had; 0 where the format has none.
    pub epoch: u64,
    /// The replicas that were named, in their order, and those that were added since.
    pub replicas: Vec<ReplicaStatus>,
    /// The members that keep the pool's epochs and none of its bytes: in sync, slow or lost.
    pub witnesses: Vec<ReplicaStatus>,
    /// The asynchronous members, which are none of those, and count for nothing.
    pub asynchronous: Vec<AsynchronousStatus>,
    /// Addresses where a member is made in the place of one that is lost for long.
    pub spares: Vec<SpareStatus>,
    /// The last opening for writing with fewer members than are safe ([`min_replicas`](crate::PoolOptions::min_replicas), or `--force` of a command), which may have lost what
    /// only the others had; until that [is known](Pool::clear_forced).
    pub forced: Option<Forced>,
    /// What happened last, at most 16 events, the oldest first, and how long ago.
    pub last_events: Vec<(Event, Duration)>,
    /// Members that the pool has and that have its data: the replicas that it was made with, unless they were [changed](Pool::add).
    pub made_count: usize,
    /// Members that a promotion or another [forced](Self::forced) opening went on without, as long as the pool has fewer members for that; 0 once that
    /// [is known](Pool::clear_forced).
    pub forgone_count: usize,
    /// Members that must be connected, witnesses among them, when a replica in sync is lost or comes to be in sync: so many have to know of it before a persist is acknowledged. In
    /// between the replicas in sync suffice, also where they are fewer: nobody opens the pool without one of them.
    pub quorum: usize,
}

impl PoolStatus {
    /// Replicas that have all that was acknowledged.
    pub fn in_sync_count(&self) -> usize {
        self.replicas.iter().filter(|replica| matches!(replica.state, ReplicaState::InSync)).count()
    }

    /// Whether the pool has members that lack what was acknowledged, or was forced to go on with fewer than it had.
    pub fn is_degraded(&self) -> bool {
        self.in_sync_count() < self.made_count || self.forgone_count > 0
    }
}

impl Open {
    /// Bytes that have yet to be copied to the replica at a position, if any are being copied.
    pub(super) fn missing_bytes(&self, position: usize) -> Option<u64> {
        let own = self.catching_up.iter().find(|(of, _)| *of == position);
        own.map(|(_, catch_up)| catch_up.missing_bytes())
    }

    pub(super) fn state_of(&self, position: usize, member: &dyn Member) -> ReplicaState {
        let state = member.state();
        if state.is_well() {
            ReplicaState::InSync
        } else if state.is_slow() {
            ReplicaState::Slow
        } else if let Some(why) = member.standing().latest_failure() {
            ReplicaState::Lost(why)
        } else {
            let missing_bytes = self.missing_bytes(position).unwrap_or(self.facts.size_bytes);
            ReplicaState::CatchingUp { missing_bytes }
        }
    }
}

impl Shared {
    pub(super) fn spares(&self, open: &Open, roster: Option<&Roster>) -> Vec<SpareStatus> {
        let state = |index: u16| match &self.returns {
            Some(returns) => returns.spare_state(open, index),
            None => SpareState::Idle,
        };
        let status = |spare: &RosterMember| {
            let replica = place(&spare.url.parse().ok()?);
            Some(SpareStatus { replica, state: state(spare.index), index: spare.index })
        };
        roster.into_iter().flat_map(Roster::spares).filter_map(status).collect()
    }
}

impl Pool {
    /// The replicas and their states, as they are at this moment.
    ///
    /// # Errors
    /// [`PoolError::Closed`].
    pub fn status(&self) -> Result<PoolStatus, PoolError> {
        let open = self.0.hold()?;
        let is_member = |member: &dyn Member| !member.state().is_removed() && !member.state().is_candidate();
        let members = open.members.iter().enumerate().filter(|(_, member)| is_member(&***member));
        let (witnesses, replicas): (Vec<_>, Vec<_>) = members.partition(|(_, member)| member.state().is_witness());
        let status = |(position, member): (usize, &Arc<dyn Member>)| {
            let (standing, state) = (member.standing(), open.state_of(position, &**member));
            let name = standing.failure_domain().map(|domain| domain.name.to_string());
            let (replica, lost_for) = (Arc::clone(&standing.place), standing.failed_for());
            ReplicaStatus { replica, state, lost_for, domain: standing.domain().zip(name) }
        };
        let (replicas, witnesses) =
            (replicas.into_iter().map(status).collect(), witnesses.into_iter().map(status).collect());
        let made_count = open.member_count();
        let of_epochs = |epochs: &Arc<Epochs>| {
            let state = epochs.lock();
            (state.view().opening(), quorum(state.view().counts().0))
        };
        let (epoch, quorum) = open.epochs.as_ref().map_or((0, made_count), of_epochs);
        let asynchronous = self.0.followers.as_ref().map_or_else(Vec::new, |followers| followers.status());
        let roster = open.epochs.as_ref().and_then(|epochs| epochs.roster());
        let spares = self.0.spares(&open, roster.as_ref());
        let forced = roster.as_ref().and_then(|roster| roster.forced);
        let last_events = self.0.events.last(LAST_EVENTS);
        let forgone_count = open.epochs.as_ref().map_or(0, |epochs| epochs.forgone_count());
        Ok(PoolStatus {
            epoch,
            replicas,
            witnesses,
            asynchronous,
            spares,
            forced,
            last_events,
            made_count,
            forgone_count,
            quorum,
        })
    }
}
