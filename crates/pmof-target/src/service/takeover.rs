//! A pool is taken away from the connection that has it open for writing, and given to another one: what the engine decides of that is performed here.

use std::{sync::Arc, time::Duration};

use pmof_access::Region;
use pmof_control::{Claim, OpenFor, PoolName, PoolRefusal, Reply, ServiceCode};
use pmof_mem::{Durability, causes};

use super::{
    leases::{Held, Lease},
    session::{Host, Session, Stores, note_lost_file},
};
use crate::{
    OpenPool, StoreError,
    engine::{Driver, Failure, Fencing, FencingOutput, Holder, Verdict, judge, run},
    events,
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
        let silent_for = lease.silent_for();
        let judge = |pool: Option<&OpenPool>| {
            judge(&Holder { replica: pool.map(OpenPool::replica), silent_for }, terms.silence, terms.claim)
        };
        let mut held = match lease.try_lock() {
            Some(held) => held,
            None if judge(None) == Verdict::Awaited => lease.lock(),
            None => return Err(is_served()),
        };
        let Some(Held { pool, .. }) = &*held else {
            drop(held);
            return self.open_for_writing(stores, name, terms).map_err(not_ours);
        };
        match judge(Some(pool)) {
            Verdict::Fenced => {}
            Verdict::Awaited | Verdict::Served => return Err(is_served()),
            Verdict::Heard => {
                let heard = format!("it was heard {} ms ago", silent_for.as_millis());
                let why = match terms.silence {
                    NO_SILENCE => format!("{heard}, and the request names no epoch of it"),
                    silence => format!("{heard}, and is taken over after {} ms", silence.as_millis()),
                };
                return Err(busy(&lease, &why));
            }
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
    let Held { region, pool } = held;
    let is_mapped = region.as_ref().is_none_or(Region::is_mapped_for_writing);
    let fencing = Fencing::new(is_mapped && lease.may_store());
    let mut driver = OnHolder { stores, lease, holder, is_fenced: false, region, pool: Some(pool), room: None };
    let ran = run(fencing, &mut driver);
    let OnHolder { is_fenced, region, pool, .. } = driver;
    match (ran, pool) {
        (Ok(()), Some(pool)) => Ok(pool),
        (Err(Failure::Failed(error)), pool) if is_fenced => Err(stays(stores, lease, holder, pool, error)),
        (Err(Failure::Failed(error)), pool) => {
            Err(Box::new(Failed { kept: pool.map(|pool| Held { region, pool }), error }))
        }
        (Ok(()) | Err(Failure::Refused(_)), _) => panic!("a holder is fenced, or something failed"),
    }
}

/// The holder of a pool that another connection takes over.
struct OnHolder<'h> {
    stores: &'h Stores,
    lease: &'h Arc<Lease>,
    /// The successor.
    holder: &'h str,
    is_fenced: bool,
    region: Option<Region>,
    pool: Option<OpenPool>,
    room: Option<Replacement>,
}

impl Driver<FencingOutput, bool> for OnHolder<'_> {
    type Error = StoreError;

    fn perform(&mut self, output: FencingOutput) -> Result<bool, StoreError> {
        let Self { lease, stores: Stores { pools, leases, .. }, .. } = *self;
        match output {
            FencingOutput::PrepareCopy => {
                self.room = self.pool.as_ref().map(|pool| room_for_a_copy(pools, lease, pool)).transpose()?;
            }
            FencingOutput::NameSuccessor => pools.set_holder(&lease.name, self.holder.to_owned()),
            FencingOutput::EndConnection => {
                self.is_fenced = true;
                lease.connection.fence();
                if self.region.as_ref().is_some_and(Region::fence_ends_connections) {
                    lease.connection.wait_closed(FENCED_TIMEOUT);
                }
            }
            FencingOutput::Revoke => return Ok(self.region.take().is_none_or(Region::fence)),
            FencingOutput::FindMapping => {
                let is_mapped = |pool: &OpenPool| pool.is_mapped_elsewhere(|| lease.may_store());
                return Ok(self.pool.as_ref().is_some_and(is_mapped));
            }
            FencingOutput::EndReaders => leases.end_readers(&lease.name),
            FencingOutput::HandOver { moves } => {
                let room = self.room.take().filter(|_| moves);
                let Some(pool) = self.pool.take() else { return Ok(false) };
                match pools.hand_over(pool, room, self.holder.to_owned()) {
                    Ok(pool) => self.pool = Some(pool),
                    Err(failed) => {
                        let NotHandedOver { kept, error } = *failed;
                        self.pool = kept;
                        return Err(error);
                    }
                }
            }
        }
        Ok(false)
    }
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
