//! A pool is taken away from the connection that has it open for writing, and given to another one.
//!
//! The order is what makes it safe. Nothing is granted before all of it is done:
//!
//! 1. what can refuse the takeover is asked first, while the old writer is unharmed: the level, and the room for a copy where one is needed;
//! 2. the old connection ends: what it has in flight is not carried out, and no success that comes later is told;
//! 3. its region is revoked: the device's key is gone, and a process that has the memory mapped reads that it is fenced;
//! 4. where such a process lives, the pool moves to another file, since its late stores reach the old one whatever it reads.

use std::{sync::Arc, time::Duration};

use pmof_access::Region;
use pmof_control::{Claim, OpenFor, PoolName, PoolRefusal, Reply, ServiceCode};
use pmof_mem::{Durability, causes};

use super::{
    leases::{Held, Lease},
    session::{Host, Session, Stores, note_lost_file},
};
use crate::{
    OpenPool, StoreError, events,
    refused::Refused,
    store::{NotHandedOver, OpenTerms, PoolStore, Replacement},
};

/// The silence that is named by those who take the pool by an epoch only.
const NO_SILENCE: Duration = Duration::from_millis(u64::MAX);

/// How long a writer that may hang is told that it was fenced, where its connection ends with that.
const FENCED_TIMEOUT: Duration = Duration::from_millis(20);

/// What an initiator asks for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    pub(super) require: Durability,
    /// For which the old writer must have been silent.
    pub(super) silence: Duration,
    pub(super) claim: Claim,
}

impl Session {
    pub(super) fn take_over(&mut self, host: &impl Host, name: &PoolName, terms: Terms) -> Result<Reply, Refused> {
        let stores = host.stores();
        self.check_none_open()?;
        stores.pools.check_place(name)?;
        let Some(lease) = stores.leases.writer_of(name) else {
            return self.open_for_writing(stores, name, terms).map_err(not_ours);
        };
        let is_served = || busy(&lease, "a request of it is being carried out");
        // Who is waited for is not silent. One that is to go at once is waited for.
        let mut held = match lease.try_lock() {
            Some(held) => held,
            None if terms.silence.is_zero() => lease.lock(),
            None => return Err(is_served()),
        };
        let Some(Held { pool, .. }) = &*held else {
            drop(held);
            return self.open_for_writing(stores, name, terms).map_err(not_ours);
        };
        let silent_for = lease.silent_for();
        // Where another one has it open by now, the epoch is none of that one's.
        let is_claimed = terms.claim.epoch().is_some_and(|epoch| pool.is_epoch_of_writer(epoch));
        if !is_claimed && silent_for < terms.silence {
            let heard = format!("it was heard {} ms ago", silent_for.as_millis());
            let why = match terms.silence {
                NO_SILENCE => format!("{heard}, and whoever asks has named no epoch of it"),
                silence => format!("{heard}, and is taken over after {} ms", silence.as_millis()),
            };
            return Err(busy(&lease, &why));
        }
        pool.require(terms.require)?;
        let Some(of_old) = held.take() else { return Err(is_served()) };
        let (holder, old_holder) = (self.holder(), &lease.holder);
        match fence(stores, &lease, of_old, &holder) {
            Ok(pool) => {
                stores.leases.no_longer_stranded(&lease);
                drop(held);
                events::taken_over(&self.client(), name.as_str(), old_holder);
                self.grant(stores, pool.named_by(terms.claim.own()))
            }
            Err(failed) => {
                let Failed { kept, error } = *failed;
                if kept.as_ref().is_some_and(|kept| kept.region.is_none()) {
                    stores.leases.strand(&lease);
                }
                *held = kept;
                if matches!(error, StoreError::Replaced { .. }) {
                    note_lost_file(host, &lease);
                }
                events::not_taken_over(&self.client(), name.as_str(), old_holder, &causes(&error));
                Err(error.into())
            }
        }
    }

    fn open_for_writing(&mut self, stores: &Stores, name: &PoolName, terms: Terms) -> Result<Reply, Refused> {
        let Terms { require, claim, .. } = terms;
        self.open(stores, |holder| {
            let terms = OpenTerms { access: OpenFor::Write, require, may_be_older: false };
            let end_readers = || stores.leases.end_readers(name);
            stores.pools.open_pool_before(name, terms, holder, &end_readers).map(|pool| pool.named_by(claim.own()))
        })
    }
}

/// A takeover that failed, and what the old holder keeps.
struct Failed {
    kept: Option<Held>,
    error: StoreError,
}

/// Takes the pool from its holder. On return nothing that this one does reaches it.
fn fence(stores: &Stores, lease: &Arc<Lease>, held: Held, holder: &str) -> Result<OpenPool, Box<Failed>> {
    let Stores { pools, leases, .. } = stores;
    let is_mapped = |held: &Held| held.region.as_ref().is_none_or(Region::is_mapped_for_writing);
    let prepare = |pool: &OpenPool| room_for_a_copy(pools, lease, pool);
    let mut replacement = None;
    if is_mapped(&held) && lease.may_store() {
        match prepare(&held.pool) {
            Ok(room) => replacement = Some(room),
            Err(error) => return Err(Box::new(Failed { kept: Some(held), error })),
        }
    }
    // Who is fenced asks at once who has the pool now, over another connection.
    pools.set_holder(&lease.name, holder.to_owned());
    lease.connection.fence();
    let Held { region, pool } = held;
    if region.as_ref().is_some_and(Region::fence_ends_connections) {
        lease.connection.wait_closed(FENCED_TIMEOUT);
    }
    // It may have been mapped just before, and unmapped since; or handed on, as a fork does, by a process that has ended.
    let was_mapped = region.is_none_or(Region::fence);
    if !(was_mapped && pool.is_mapped_elsewhere(|| lease.may_store())) {
        replacement = None;
    } else if replacement.is_none() {
        match prepare(&pool) {
            Ok(room) => replacement = Some(room),
            Err(error) => return Err(stays(stores, lease, holder, Some(pool), error)),
        }
    }
    if replacement.is_some() {
        // Their file is about to be cut. One that is in the middle of a read meets the end of it, which is an error there.
        leases.end_readers(&lease.name);
    }
    pools.hand_over(pool, replacement, holder.to_owned()).map_err(|failed| {
        let NotHandedOver { kept, error } = *failed;
        stays(stores, lease, holder, kept, error)
    })
}

/// The old holder is fenced, and the new one has not got the pool.
fn stays(stores: &Stores, lease: &Lease, holder: &str, kept: Option<OpenPool>, error: StoreError) -> Box<Failed> {
    // The old one, which asks who took its place, is not told that it was itself.
    let waits = format!("{holder}, which waits for the end of {}", lease.holder);
    stores.pools.set_holder(&lease.name, waits);
    Box::new(Failed { kept: kept.map(|pool| Held { region: None, pool }), error })
}

fn room_for_a_copy(pools: &PoolStore, lease: &Lease, pool: &OpenPool) -> Result<Replacement, StoreError> {
    if pools.can_replace(pool) {
        return pools.prepare_replacement(pool);
    }
    Err(StoreError::NotFenceable { name: lease.name.clone(), holder: lease.holder.clone() })
}

fn busy(lease: &Lease, why: &str) -> Refused {
    let busy = StoreError::Busy { name: lease.name.clone(), holder: lease.holder.clone() };
    Refused { text: format!("{busy}: {why}"), ..Refused::from(busy) }
}

/// What another process has is not this target's to take away.
fn not_ours(refused: Refused) -> Refused {
    match PoolRefusal::from_code(refused.code) {
        PoolRefusal::Busy => {
            let why =
                "this target did not open it for that one, and cannot take it away: ask the target that did, or end it";
            Refused { text: format!("{}; {why}", refused.text), ..refused }
        }
        _ => refused,
    }
}

/// What becomes of a request on a pool that was taken over meanwhile. Its connection has ended, so nobody hears of it.
pub(super) fn was_taken_over() -> Refused {
    Refused::new(ServiceCode::NotOpen, "another initiator took the pool over")
}
