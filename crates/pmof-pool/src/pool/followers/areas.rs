//! The memory of an asynchronous member: its data, its staging area, and the points area of one that keeps points, are pools of one target.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use pmof_access::Durability;
use pmof_control::{MAX_NAME_BYTES, PoolInfo, PoolName, PoolRefusal, Reply, Request};
use pmof_locks::Mutex;
use uuid::Uuid;

use crate::{
    PoolError, PoolUrl, ReplicaError,
    follower::{FollowerBytes, FollowerMemory, points_area_bytes},
    member::{Atomicity, Flush, FlushLevel, Member, Source, Write, Written},
    pool::{Lane, Pool, PoolOptions},
    reach::Reach,
    site::Site,
};

/// What the names of a staging area and of a points area have behind that of the member.
const STAGING_SUFFIX: &str = ".changes";
const POINTS_SUFFIX: &str = ".points";

/// The memory of a member that is connected.
#[derive(Debug)]
pub(in crate::pool) struct Attached {
    pub(in crate::pool) data: Arc<dyn Member>,
    /// The mark that its file was told.
    mark: AtomicU64,
    written: Mutex<Written>,
    staging: Area,
    points: Option<Area>,
}

/// A pool beside a member's data.
#[derive(Debug)]
struct Area {
    pool: Pool,
    lane: Mutex<Lane>,
}

impl Area {
    fn new(pool: Pool) -> Self {
        let lane = Mutex::new(pool.lane());
        Self { pool, lane }
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Arc<ReplicaError>> {
        self.lane.lock().write(offset, bytes).map_err(of_staging)
    }

    fn flush(&self) -> Result<(), Arc<ReplicaError>> {
        self.lane.lock().persist().map(drop).map_err(of_staging)
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Arc<ReplicaError>> {
        self.pool.read(offset, into).map_err(of_staging)
    }
}

/// The address of an area of a member.
fn area_url(url: &PoolUrl, suffix: &str) -> Option<PoolUrl> {
    let name = PoolName::new(format!("{}{suffix}", url.name.as_str())).ok()?;
    Some(PoolUrl { name, ..url.clone() })
}

/// How an area of a member is made, opened or removed.
fn area_options(reach: &Reach, url: &PoolUrl, suffix: &str, require: Durability) -> Option<PoolOptions> {
    let mut options = PoolOptions::default().require(require).replica(area_url(url, suffix)?.to_string());
    options.reach = reach.clone();
    Some(options)
}

/// How a member's staging area is made, opened or removed.
pub(in crate::pool) fn staging_options(reach: &Reach, url: &PoolUrl, require: Durability) -> Option<PoolOptions> {
    area_options(reach, url, STAGING_SUFFIX, require)
}

/// How a member's points area is made, opened or removed.
pub(in crate::pool) fn points_options(reach: &Reach, url: &PoolUrl, require: Durability) -> Option<PoolOptions> {
    area_options(reach, url, POINTS_SUFFIX, require)
}

/// Whether the name leaves room for that of a staging area.
pub(in crate::pool) fn check_staging_name(url: &PoolUrl) -> Result<(), usize> {
    match area_url(url, STAGING_SUFFIX) {
        Some(_) => Ok(()),
        None => Err(MAX_NAME_BYTES - STAGING_SUFFIX.len()),
    }
}

impl FollowerBytes for Attached {
    type Error = Arc<ReplicaError>;

    fn read_data(&self, offset: u64, into: &mut [u8]) -> Result<(), Arc<ReplicaError>> {
        self.data.read(offset, into)
    }

    fn read_staging(&self, offset: u64, into: &mut [u8]) -> Result<(), Arc<ReplicaError>> {
        self.staging.read(offset, into)
    }

    fn data_mark(&self) -> Result<u64, Arc<ReplicaError>> {
        Ok(self.mark.load(Ordering::Relaxed))
    }

    fn points_bytes(&self) -> Option<u64> {
        self.points.as_ref().map(|points| points.pool.len_bytes())
    }

    fn read_points(&self, offset: u64, into: &mut [u8]) -> Result<(), Arc<ReplicaError>> {
        self.points()?.read(offset, into)
    }
}

impl FollowerMemory for Attached {
    fn write_staging(&self, offset: u64, bytes: &[u8]) -> Result<(), Arc<ReplicaError>> {
        self.staging.write(offset, bytes)
    }

    fn set_staging(&self, offset: u64, number: u64) -> Result<(), Arc<ReplicaError>> {
        self.staging.lane.lock().atomic_write(offset, number).map_err(of_staging)
    }

    fn flush_staging(&self) -> Result<(), Arc<ReplicaError>> {
        self.staging.flush()
    }

    fn write_points(&self, offset: u64, bytes: &[u8]) -> Result<(), Arc<ReplicaError>> {
        self.points()?.write(offset, bytes)
    }

    fn flush_points(&self) -> Result<(), Arc<ReplicaError>> {
        self.points()?.flush()
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

    fn mark_data(&self, mark: u64) -> Result<(), Arc<ReplicaError>> {
        let control = self.data.control().ok_or_else(|| Arc::new(ReplicaError::Unexpected))?;
        control.ask_for(&Request::Mark { mark }, &Reply::Marked)?;
        self.mark.store(mark, Ordering::Relaxed);
        Ok(())
    }
}

impl Attached {
    /// `mark`: that of the data's file.
    pub(in crate::pool) fn new((data, mark): (Arc<dyn Member>, u64), staging: Pool, points: Option<Pool>) -> Self {
        let (mark, points) = (AtomicU64::new(mark), points.map(Area::new));
        Self { data, mark, written: Mutex::default(), staging: Area::new(staging), points }
    }

    pub(in crate::pool) fn staging_bytes(&self) -> u64 {
        self.staging.pool.len_bytes()
    }

    fn points(&self) -> Result<&Area, Arc<ReplicaError>> {
        self.points.as_ref().ok_or_else(|| Arc::new(ReplicaError::Unexpected))
    }

    fn check_data(&self) -> Result<(), Arc<ReplicaError>> {
        self.data.standing().failure().map_or(Ok(()), |why| Err(Arc::clone(why)))
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        // What cannot be closed ends with the connection.
        let _ = self.staging.pool.close();
        if let Some(points) = &self.points {
            let _ = points.pool.close();
        }
        if let Some(control) = self.data.control() {
            let _ = control.ask(&Request::Close { in_order: false });
        }
    }
}

/// A member that is read beside whoever writes it.
#[derive(Debug)]
pub(in crate::pool) struct Reading {
    data: Option<Arc<dyn Member>>,
    /// Where the data's mark is asked for.
    site: Site,
    name: PoolName,
    staging: Pool,
    points: Option<Pool>,
}

impl Reading {
    /// What its staging area says.
    pub(in crate::pool) fn without_points(reach: &Reach, url: &PoolUrl) -> Result<Self, Arc<ReplicaError>> {
        let staging = staging_options(reach, url, Durability::Visible).ok_or(ReplicaError::Unexpected)?;
        let staging = staging.open_read_only().map_err(of_staging)?;
        let site = reach.site(&reach.peers(), url)?;
        Ok(Self { data: None, site, name: url.name.clone(), staging, points: None })
    }

    /// The same of a member of this pool with its points, where it keeps some, and with its data, where that is given.
    pub(in crate::pool) fn with_points(
        reach: &Reach,
        url: &PoolUrl,
        pool_uuid: Uuid,
        data: Option<Arc<dyn Member>>,
    ) -> Result<Self, Arc<ReplicaError>> {
        let reading = Self::without_points(reach, url)?;
        let staging = checked_area(reading.staging, pool_uuid)?;
        let points = points_options(reach, url, Durability::Visible).ok_or(ReplicaError::Unexpected)?;
        let points = match points.open_read_only() {
            Err(error) if is_absent(&error) => None,
            points => Some(checked_area(points.map_err(of_staging)?, pool_uuid)?),
        };
        Ok(Self { data, staging, points, ..reading })
    }
}

impl FollowerBytes for Reading {
    type Error = Arc<ReplicaError>;

    fn read_data(&self, offset: u64, into: &mut [u8]) -> Result<(), Arc<ReplicaError>> {
        let data = self.data.as_ref().ok_or_else(|| Arc::new(ReplicaError::Unexpected))?;
        data.read(offset, into)
    }

    fn read_staging(&self, offset: u64, into: &mut [u8]) -> Result<(), Arc<ReplicaError>> {
        self.staging.read(offset, into).map_err(of_staging)
    }

    fn data_mark(&self) -> Result<u64, Arc<ReplicaError>> {
        match self.site.ask_when_free(&Request::Info { name: self.name.clone() })? {
            Reply::Info(info) => Ok(info.state.mark),
            _ => Err(ReplicaError::Unexpected.into()),
        }
    }

    fn points_bytes(&self) -> Option<u64> {
        self.points.as_ref().map(Pool::len_bytes)
    }

    fn read_points(&self, offset: u64, into: &mut [u8]) -> Result<(), Arc<ReplicaError>> {
        let points = self.points.as_ref().ok_or_else(|| Arc::new(ReplicaError::Unexpected))?;
        points.read(offset, into).map_err(of_staging)
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
    checked_area(options.take_over(Duration::ZERO).open().map_err(of_staging)?, pool_uuid)
}

/// An area, if it is of this pool.
pub(in crate::pool) fn checked_area(area: Pool, pool_uuid: Uuid) -> Result<Pool, Arc<ReplicaError>> {
    let found_uuid = Uuid::from_bytes(area.user_flags());
    if found_uuid != pool_uuid {
        let (size_bytes, found_bytes) = (0, area.len_bytes());
        return Err(Arc::new(ReplicaError::Mismatch { uuid: pool_uuid, found_uuid, size_bytes, found_bytes }));
    }
    Ok(area)
}

/// Opens the points area of a member whose data is open here, if it has one; makes it of `space_bytes` where it has none and is to keep points.
pub(in crate::pool) fn open_points(
    reach: &Reach,
    url: &PoolUrl,
    require: Durability,
    pool_uuid: Uuid,
    (keep, space_bytes): (Option<u16>, u64),
) -> Result<Option<Pool>, Arc<ReplicaError>> {
    let options = points_options(reach, url, require).ok_or_else(|| Arc::new(ReplicaError::Unexpected))?;
    let options = options.user_flags(*pool_uuid.as_bytes());
    if keep == Some(0) {
        return Ok(None);
    }
    match options.clone().take_over(Duration::ZERO).open() {
        Ok(area) => checked_area(area, pool_uuid).map(Some),
        Err(error) if is_absent(&error) && keep.is_none() => Ok(None),
        Err(error) if is_absent(&error) => options.create(points_area_bytes(space_bytes)).map(Some).map_err(of_staging),
        Err(error) => Err(of_staging(error)),
    }
}

/// Removes the points area of a member that is to keep no points, if it is there and of this pool.
pub(super) fn remove_points(reach: &Reach, url: &PoolUrl, require: Durability, pool_uuid: Uuid) {
    let Some(options) = points_options(reach, url, require) else { return };
    let is_own = |infos: Vec<PoolInfo>| infos.iter().all(|info| info.header.user_flags == *pool_uuid.as_bytes());
    if options.info().is_ok_and(is_own) {
        if let Err(error) = options.remove() {
            log::warn!("the points area of an asynchronous member stays there: {}", pmof_mem::causes(&error));
        }
    }
}

/// Whether a points area cannot be had, whoever asks again: the member goes on without.
pub(in crate::pool) fn is_definite(why: &ReplicaError) -> bool {
    use PoolRefusal::{BadSize, HeadersDamaged, NoSpace, NotAUsablePool, NotFound, OldFormat, UncertainState};
    match why {
        ReplicaError::Mismatch { .. } | ReplicaError::NotDurable { .. } => true,
        // Any other may be over the next time: the target stops, or its disk failed to read.
        ReplicaError::Refused { refusal, .. } => matches!(
            refusal,
            BadSize
                | HeadersDamaged
                | NoSpace
                | NotAUsablePool
                | NotFound
                | OldFormat
                | UncertainState
                | PoolRefusal::NotDurable
        ),
        _ => false,
    }
}

pub(in crate::pool) fn is_absent(error: &PoolError) -> bool {
    matches!(error.replica_error(), Some(ReplicaError::Refused { refusal: PoolRefusal::NotFound, .. }))
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

/// The identity of a points area that begins anew.
pub(in crate::pool) fn fresh_area() -> u64 {
    Uuid::new_v4().as_u64_pair().0 | 1
}
