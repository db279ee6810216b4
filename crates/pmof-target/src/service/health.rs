//! How the pools of a target are, as far as it knows: from what their files say, and from what their writers have told it.

use std::{
    collections::HashMap,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use pmof_control::{MemberStanding, PoolName, PoolState, Role, Roster, WriterStatus};
use pmof_locks::Mutex;

use super::leases::Leases;
use crate::{PoolStore, StoreError, store::Surveyed};

/// Pools whose last scrub is remembered, at most.
const SCRUBS_MAX: usize = 10_000;

/// Pools by what they are like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolCounts {
    /// Being written by an initiator of this target.
    pub being_written: u64,
    /// Whole, and without a writer.
    pub idle: u64,
    /// Damaged, of another version, or unreadable.
    pub unusable: u64,
    /// A member is missing or behind.
    pub degraded: u64,
    /// Of several members at most one has everything.
    pub unprotected: u64,
}

/// How one pool is, as far as this target knows: while it is written over this target, by its writer's word of a second ago, else by what this
/// replica's file says, which may be old where this replica was away.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolHealth {
    /// Its name here.
    pub name: PoolName,
    /// Members that are to have its bytes as they are now: no witnesses, asynchronous members or spares.
    pub members: u64,
    /// Members that have all that was acknowledged.
    pub in_sync: u64,
    /// Members that are there and lack something: they catch up, or are too slow.
    pub behind: u64,
    /// Members that are lost or were left out.
    pub missing: u64,
    /// When a writer last told this target that it had scrubbed all of the pool, since this target was started.
    pub scrubbed: Option<SystemTime>,
}

impl PoolHealth {
    /// Whether a member is missing or behind.
    pub fn is_degraded(&self) -> bool {
        self.missing + self.behind > 0
    }

    /// Whether of several members at most one has everything, so that its loss is a loss of bytes.
    pub fn is_unprotected(&self) -> bool {
        self.members > 1 && self.in_sync <= 1
    }

    /// `None` where this replica does not know: it is an asynchronous member, or no member any more.
    fn of(name: PoolName, pool: &Surveyed, told: Option<&WriterStatus>) -> Option<Self> {
        let (own, roster) = (pool.header.replica_index, &pool.roster);
        roster.member(own).filter(|member| member.counts())?;
        let mut health = Self { name, members: 0, in_sync: 0, behind: 0, missing: 0, scrubbed: None };
        for index in indexes_with_data(roster) {
            health.members += 1;
            let standing = match told.filter(|told| !told.members.is_empty()) {
                Some(told) => told.members.iter().find(|member| member.index == index).map(|member| member.standing),
                None => by_state(&pool.state, own, index),
            };
            match standing {
                Some(MemberStanding::InSync) => health.in_sync += 1,
                Some(MemberStanding::CatchingUp | MemberStanding::Slow) => health.behind += 1,
                _ => health.missing += 1,
            }
        }
        Some(health)
    }
}

fn indexes_with_data(roster: &Roster) -> impl Iterator<Item = u16> {
    let counted = roster.indexes();
    let is_counted = move |index: u16| counted & (1_u64 << index) != 0;
    roster
        .members
        .iter()
        .filter(|member| member.role == Role::Data)
        .map(|member| member.index)
        .filter(move |index| is_counted(*index))
}

/// How a member is by the state of the replica `own`.
fn by_state(state: &PoolState, own: u16, index: u16) -> Option<MemberStanding> {
    // One that was announced only is not in force.
    let in_force = if state.is_confirmed { state.epoch } else { *state.ancestors.first().unwrap_or(&state.epoch) };
    match in_force.has(index) && !(index == own && state.is_behind) {
        true => Some(MemberStanding::InSync),
        false if index == own => Some(MemberStanding::CatchingUp),
        false => None,
    }
}

/// When the pools of a target were scrubbed last, as their writers told since it was started.
#[derive(Debug, Default)]
pub(super) struct Scrubs(Mutex<HashMap<PoolName, u64>>);

impl Scrubs {
    pub(super) fn note(&self, name: &PoolName, unix_ms: u64) {
        if unix_ms == 0 {
            return;
        }
        let mut scrubs = self.0.lock();
        if scrubs.len() >= SCRUBS_MAX && !scrubs.contains_key(name) {
            let oldest = scrubs.iter().min_by_key(|(_, at)| **at).map(|(name, _)| name.clone());
            oldest.map(|name| scrubs.remove(&name));
        }
        scrubs.insert(name.clone(), unix_ms);
    }

    fn of(&self, name: &PoolName) -> Option<SystemTime> {
        let unix_ms = self.0.lock().get(name).copied()?;
        UNIX_EPOCH.checked_add(Duration::from_millis(unix_ms))
    }
}

/// Looks at all pools: how many there are of each kind, and how each is, the worst first. Where the root cannot be read there are none: the
/// target's status says so.
pub(super) fn look_at_pools(pools: &PoolStore, leases: &Leases, scrubs: &Scrubs) -> (PoolCounts, Vec<PoolHealth>) {
    let told = leases.told();
    let (mut counts, mut all) = (PoolCounts::default(), Vec::new());
    let looked = pools.survey(|name, seen| {
        let pool = match seen {
            Ok(pool) => pool,
            Err(StoreError::NotFound { .. }) => return,
            Err(_) => return counts.unusable += 1,
        };
        if pool.is_written {
            counts.being_written += 1;
        } else {
            counts.idle += 1;
        }
        let told = told.get(&name).filter(|_| pool.is_written);
        let Some(mut health) = PoolHealth::of(name, &pool, told) else { return };
        health.scrubbed = scrubs.of(&health.name);
        counts.degraded += u64::from(health.is_degraded());
        counts.unprotected += u64::from(health.is_unprotected());
        all.push((pool.is_written, health));
    });
    if looked.is_err() {
        return Default::default();
    }
    all.sort_by_key(|(is_written, health)| (!health.is_unprotected(), !health.is_degraded(), !is_written));
    (counts, all.into_iter().map(|(_, health)| health).collect())
}

#[cfg(test)]
mod tests {
    use pmof_control::Epoch;
    use uuid::Uuid;

    use super::*;

    fn state(members: u64, is_behind: bool) -> PoolState {
        PoolState {
            epoch: Epoch { id: Uuid::from_u128(7), members },
            is_behind,
            ..PoolState::new(Uuid::from_u128(7), 3)
        }
    }

    #[test]
    fn a_state_tells_who_is_missing() {
        let of = |state: &PoolState| [0, 1, 2].map(|index| by_state(state, 0, index));
        let (in_sync, behind) = (Some(MemberStanding::InSync), Some(MemberStanding::CatchingUp));
        assert_eq!(of(&state(0b111, false)), [in_sync; 3]);
        assert_eq!(of(&state(0b011, false)), [in_sync, in_sync, None]);
        assert_eq!(of(&state(0b110, true)), [behind, in_sync, in_sync]);
        // What was only announced is not in force.
        let announced =
            state(0b111, false).begun(0, Epoch::new(Uuid::new_v4(), [0, 1]), 2, &[state(0b111, false).epoch]);
        assert_eq!(of(&announced), [in_sync; 3]);
        assert_eq!(of(&announced.confirmed(0, announced.epoch.id).unwrap()), [in_sync, in_sync, None]);
    }

    #[test]
    fn as_many_scrubs_are_remembered_as_there_is_room_for() {
        let scrubs = Scrubs::default();
        let name = |at: usize| PoolName::new(format!("p{at}")).unwrap();
        for at in 0..=SCRUBS_MAX {
            scrubs.note(&name(at), at as u64 + 1);
        }
        assert_eq!((scrubs.of(&name(0)), scrubs.of(&name(1))), (None, Some(UNIX_EPOCH + Duration::from_millis(2))));
        assert_eq!(scrubs.0.lock().len(), SCRUBS_MAX);
    }
}
