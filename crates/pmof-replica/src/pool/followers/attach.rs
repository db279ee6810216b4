//! Connecting to an asynchronous member: its data and its staging area are two pools of one target.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use pmof_access::Durability;
use pmof_control::{MAX_NAME_BYTES, OpenFor, PoolName, PoolState, Reply, Request};
use uuid::Uuid;

use super::{Followers, Following, Stop};
use crate::{
    PoolError, PoolUrl, ReplicaError,
    follower::{Follower, FollowerMemory},
    lineage::{Found, of_returning},
    member::{Atomicity, Flush, FlushLevel, Member, Source, Standing, Write, Written},
    pool::{
        Lane, Pool, PoolOptions, Shared,
        epochs::Epochs,
        opened::{Checked, check_opened},
    },
    reach::Reach,
};

/// What the name of a staging area has behind that of the member.
const STAGING_SUFFIX: &str = ".changes";

/// The memory of a member that is connected.
#[derive(Debug)]
pub(in crate::pool) struct Attached {
    pub(in crate::pool) data: Arc<dyn Member>,
    written: Mutex<Written>,
    staging: Pool,
    lane: Mutex<Lane>,
}

/// The address of a member's staging area.
fn staging_url(url: &PoolUrl) -> Option<PoolUrl> {
    let name = PoolName::new(format!("{}{STAGING_SUFFIX}", url.name.as_str())).ok()?;
    Some(PoolUrl { name, ..url.clone() })
}

/// How a member's staging area is made, opened or removed.
pub(in crate::pool) fn staging_options(reach: &Reach, url: &PoolUrl, require: Durability) -> Option<PoolOptions> {
    let mut options = PoolOptions::default().require(require).replica(staging_url(url)?.to_string());
    options.reach = reach.clone();
    Some(options)
}

/// Whether the name leaves room for that of a staging area.
pub(in crate::pool) fn check_staging_name(url: &PoolUrl) -> Result<(), usize> {
    match staging_url(url) {
        Some(_) => Ok(()),
        None => Err(MAX_NAME_BYTES - STAGING_SUFFIX.len()),
    }
}

impl FollowerMemory for Attached {
    type Error = Arc<ReplicaError>;

    fn write_staging(&self, offset: u64, bytes: &[u8]) -> Result<(), Arc<ReplicaError>> {
        self.lane.lock().write(offset, bytes).map_err(of_staging)
    }

    fn set_staging(&self, offset: u64, number: u64) -> Result<(), Arc<ReplicaError>> {
        self.lane.lock().atomic_write(offset, number).map_err(of_staging)
    }

    fn flush_staging(&self) -> Result<(), Arc<ReplicaError>> {
        self.lane.lock().persist().map(drop).map_err(of_staging)
    }

    fn read_staging(&self, offset: u64, into: &mut [u8]) -> Result<(), Arc<ReplicaError>> {
        self.staging.read(offset, into).map_err(of_staging)
    }

    fn write_data(&self, offset: u64, bytes: &[u8]) -> Result<(), Arc<ReplicaError>> {
        let len_bytes = bytes.len() as u64;
        if len_bytes == 0 {
            return Ok(());
        }
        self.written.lock().add(Atomicity::Relaxed, (offset, offset + len_bytes));
        let (source, atomicity) = (Source::Bytes(bytes), Atomicity::Relaxed);
        self.data.write(&Write { offset, len_bytes, source, atomicity, is_held: true });
        self.check_data()
    }

    fn flush_data(&self) -> Result<(), Arc<ReplicaError>> {
        let written = std::mem::take(&mut *self.written.lock());
        if written.is_empty() {
            return Ok(());
        }
        let mut flushing = self.data.start_flush(Flush::Written(written), FlushLevel::OfPool);
        match self.data.finish_flush(&mut flushing) {
            Some(_) => Ok(()),
            None => self.check_data().and(Err(Arc::new(ReplicaError::Unexpected))),
        }
    }
}

impl Attached {
    pub(in crate::pool) fn new(data: Arc<dyn Member>, staging: Pool) -> Self {
        let lane = Mutex::new(staging.lane());
        Self { data, written: Mutex::default(), staging, lane }
    }

    pub(in crate::pool) fn staging_bytes(&self) -> u64 {
        self.staging.len_bytes()
    }

    fn check_data(&self) -> Result<(), Arc<ReplicaError>> {
        self.data.standing().failure().map_or(Ok(()), |why| Err(Arc::clone(why)))
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        // What cannot be closed ends with the connection.
        let _ = self.staging.close();
        if let Some(control) = self.data.control() {
            let _ = control.ask(&Request::Close { in_order: false });
        }
    }
}

/// Opens the staging area of a member whose data is open here: whoever has that has this, and a writer before is fenced there already.
pub(in crate::pool) fn open_staging(
    reach: &Reach,
    url: &PoolUrl,
    require: Durability,
    pool_uuid: Uuid,
) -> Result<Pool, Arc<ReplicaError>> {
    let options = staging_options(reach, url, require).ok_or_else(|| Arc::new(ReplicaError::Unexpected))?;
    let staging = options.take_over(Duration::ZERO).open().map_err(of_staging)?;
    let found_uuid = Uuid::from_bytes(staging.user_flags());
    if found_uuid != pool_uuid {
        let (size_bytes, found_bytes) = (0, staging.len_bytes());
        return Err(Arc::new(ReplicaError::Mismatch { uuid: pool_uuid, found_uuid, size_bytes, found_bytes }));
    }
    Ok(staging)
}

/// What failed of the staging area.
pub(in crate::pool) fn of_staging(error: PoolError) -> Arc<ReplicaError> {
    match error {
        PoolError::Replica { source, .. } | PoolError::NoneLeft { source, .. } => source,
        PoolError::Persist(failure) => {
            let first = failure.failed.into_iter().next();
            first.map_or_else(|| Arc::new(ReplicaError::Unexpected), |(_, why)| why)
        }
        error => {
            log::warn!("the staging area of an asynchronous member: {}", pmof_mem::causes(&error));
            Arc::new(ReplicaError::Unexpected)
        }
    }
}

impl Followers {
    /// Connects to a member, takes it from a writer before this one, and finishes the change set that was interrupted.
    pub(super) fn attach(&self, pool: &Weak<Shared>, following: &Following) -> Result<Follower<Attached>, Stop> {
        let lost = |error: ReplicaError| Stop::Lost(Arc::new(error));
        let shared = pool.upgrade().ok_or(Stop::Ended)?;
        let open = shared.hold().map_err(|_| Stop::Ended)?;
        let epochs = open.epochs.clone().ok_or(Stop::Ended)?;
        drop((open, shared));
        let url = &following.url;
        let mut peers = self.peers.lock().clone();
        let site = self.reach.site(&mut peers, url).map_err(lost)?;
        let name = url.name.clone();
        let Reply::Info(info) = site.ask(&Request::Info { name: name.clone() }).map_err(lost)? else {
            return Err(lost(ReplicaError::Unexpected));
        };
        let (index, found) = (following.index, info.header.replica_index);
        if info.header.pool_uuid != self.identity.uuid || !following.of_roster.is(found, info.header.replica_uuid) {
            return Err(Stop::Rejected(ReplicaError::NotTheMember { index, found }));
        }
        // One that was promoted, or that a later writer has, is not touched.
        self.check_own(&epochs, index, &info.state)?;
        let own = following.told.lock().epoch.filter(|epoch| *epoch == info.state.epoch.id);
        let current = epochs.lock().view().epoch();
        // From this writer's own connection, or from a writer before it, which may hang. That one is not granted it again: it does not know the epoch.
        let (silent_ms, epoch) = if own.is_some() { (u64::MAX, own) } else { (0, current) };
        let request = Request::TakeOver { name, require: self.require, silent_ms, epoch };
        let reply = site.ask_when_free(&request).map_err(lost)?;
        let checked = check_opened(reply, &site, self.require, OpenFor::Write, &mut Some(self.identity));
        let Checked { reached, state, .. } = checked.map_err(lost)?;
        // Somebody else may have had it in between.
        if let Err(stop) = self.check_own(&epochs, index, &state) {
            let _ = site.ask(&Request::Close { in_order: false });
            return Err(stop);
        }
        let standing = Standing::new(Arc::clone(&following.place));
        let data = reached.member(standing, site, self.identity.size_bytes, None).map_err(lost)?;
        let control = data.control().ok_or_else(|| lost(ReplicaError::Unexpected))?;
        let Some(epoch) = epochs.tell_asynchronous(control, index) else {
            let why = data.standing().failure().map_or_else(|| Arc::new(ReplicaError::Unexpected), Arc::clone);
            return Err(Stop::Lost(why));
        };
        following.told.lock().epoch = Some(epoch);
        let attached = Attached::new(data, open_staging(&self.reach, url, self.require, self.identity.uuid)?);
        let staging_bytes = attached.staging_bytes();
        Ok(Follower::open(attached, staging_bytes, self.identity.size_bytes)?)
    }

    /// Whether the state of a member is one that this writer or one before it has left.
    fn check_own(&self, epochs: &Epochs, index: u16, state: &PoolState) -> Result<(), Stop> {
        let known = epochs.lock();
        let (line, opening) = (known.view().line(), known.view().opening());
        let apart = of_returning(&Found { index, state }, line, opening);
        match apart.filter(|apart| state.opening > opening || !apart.may_catch_up()) {
            Some(apart) => Err(Stop::Rejected(ReplicaError::of(apart, self.identity.replica_count))),
            None => Ok(()),
        }
    }
}
