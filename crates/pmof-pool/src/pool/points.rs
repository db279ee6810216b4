//! The consistency points that asynchronous members keep: listed, read, and gone back to.

use std::{sync::Arc, time::Duration};

use pmof_access::Durability;
use pmof_control::{ConsistencyPoint, KeptPoint, OpenFor, PointIndex};
use pmof_locks::Mutex;
use pmof_mem::causes;
use pmof_replication::{following::Replica, posting::AckTerms};

use super::{
    Equalized, Facts, Open, Pool, PoolOptions,
    asking::open_one,
    followers::Reading,
    members::{MemberState, PoolMembers, may_be_asked, survey},
    opened::{Identity, place},
};
use crate::{
    PoolError, PoolUrl, ReplicaError, ReplicaPlace,
    follower::{AtPoint, FollowerBytes, Kept, PointNews, PointReadError, RollBackError, find_point, kept_points},
    member::{Member, Standing, never_written},
};

/// A consistency point that an asynchronous member keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptPointStatus {
    /// The point.
    pub point: ConsistencyPoint,
    /// Bytes that are kept of what was overwritten between it and the next point that is kept, or since.
    pub saved_bytes: u64,
}

/// The points that one asynchronous member keeps.
#[derive(Clone, Debug)]
pub struct MemberPoints {
    /// The member.
    pub replica: Arc<ReplicaPlace>,
    /// The points, the oldest first; or why they are not known.
    pub points: Result<Vec<KeptPointStatus>, Arc<ReplicaError>>,
}

/// What going back to a point did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rollback {
    /// The point that the member was at. `None`: it was not known.
    pub from: Option<ConsistencyPoint>,
    /// The one that it went back to.
    pub to: ConsistencyPoint,
    /// Bytes of the pages that changed in between.
    pub changed_bytes: u64,
    /// Points that are kept no more, the oldest: what going back overwrote did not fit in the [space](PoolOptions::points_space) for that.
    pub dropped_points: Vec<ConsistencyPoint>,
}

impl Rollback {
    /// Bytes that the writer had written between the two points. `None`: not known, since they are of different openings.
    pub fn dropped_bytes(&self) -> Option<u64> {
        let from = self.from.as_ref().filter(|from| from.opening == self.to.opening)?;
        Some(from.written_bytes.saturating_sub(self.to.written_bytes))
    }

    /// The time between the two points, by the writer's clock.
    pub fn dropped_time(&self) -> Option<Duration> {
        Some(Duration::from_millis(self.from.as_ref()?.unix_ms.saturating_sub(self.to.unix_ms)))
    }
}

/// Why an asynchronous member did not go back to a point. It is as it was, unless this was [interrupted](Self::Interrupted).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RollbackError {
    /// It could not be reached or opened, does not keep the point, or what it kept is damaged.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// One member goes back at a time.
    #[error("name the one asynchronous member that is to go back; {named} replicas are named")]
    NotOne {
        /// How many are named.
        named: usize,
    },
    /// It is none.
    #[error("{replica:#} is no asynchronous member of a pool, and keeps no points")]
    NotAsynchronous {
        /// The replica.
        replica: Arc<ReplicaPlace>,
    },
    /// A writer has the pool open, and would bring the member forward again.
    #[error("{writer} has the pool open for writing, and would have the member follow again: close it there first")]
    Written {
        /// Who.
        writer: String,
    },
    /// The member was lost in the middle. It is as it was, or at the point, or will be at the point when it is opened next: by a writer, a promotion or another rollback.
    #[error(
        "it is not known whether {replica:#} goes back to consistency point {}, {:?}: it may be there already, or will be when it is opened next: {}",
        .to.number, .to.name, causes(source)
    )]
    Interrupted {
        /// The member.
        replica: Arc<ReplicaPlace>,
        /// The point.
        to: Box<ConsistencyPoint>,
        /// What failed.
        r#source: Arc<ReplicaError>,
    },
}

/// The replica of a pool that is open at a point.
#[derive(Debug)]
struct PointMember {
    standing: Standing,
    reading: Reading,
    view: Mutex<AtPoint>,
}

impl Member for PointMember {
    fn standing(&self) -> &Standing {
        &self.standing
    }

    never_written!();

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Arc<ReplicaError>> {
        let mut view = self.view.lock();
        let point = view.point().name.clone();
        view.read(&self.reading, offset, into).map_err(|error| why_unread(error, &point))
    }

    fn close(&self) -> Result<(), Arc<ReplicaError>> {
        Ok(())
    }
}

impl PoolOptions {
    /// Lists the consistency points that the pool's asynchronous members [keep](Self::keep_points): those of the members that are named, and of those that they name.
    ///
    /// # Errors
    /// Those of [`members`](Self::members). What one member does not tell is no error but a [result](MemberPoints::points).
    pub fn points(&self) -> Result<Vec<MemberPoints>, PoolError> {
        let named = self.urls()?;
        let found = survey(&self.reach, &named)?;
        let of = |url: &Arc<PoolUrl>| {
            let index =
                Reading::with_points(&self.reach, url, found.pool_uuid, None).and_then(|reading| index_of(&reading));
            MemberPoints { replica: place(url), points: index.map(|index| statuses(&index)) }
        };
        Ok(asynchronous(&found, &named).iter().map(of).collect())
    }

    /// Opens the pool for reading as it was at a consistency point that one of its asynchronous members [keeps](Self::keep_points): the newest of that name, or the one of that number.
    /// A writer may go on meanwhile. When the point is kept no more, reads fail ([`ReplicaError::NoSuchPoint`]).
    ///
    /// # Errors
    /// [`PoolError::NoPoint`] where no member keeps it; those of [`members`](Self::members).
    pub fn open_at_point(&self, point: &str) -> Result<Pool, PoolError> {
        let named = self.urls()?;
        let found = survey(&self.reach, &named)?;
        let mut replicas = Vec::new();
        for url in asynchronous(&found, &named) {
            let opened = self.member_at(&url, &found, |index| find_point(index, point));
            match opened.and_then(|opened| opened.ok_or_else(|| no_point(point))) {
                Ok((member, identity)) => return Ok(pool_of(member, identity)),
                Err(why) => replicas.push((place(&url), why)),
            }
        }
        Err(PoolError::NoPoint { point: point.to_owned(), replicas })
    }

    /// The same at the newest point that any of them keeps.
    ///
    /// # Errors
    /// As [`open_at_point`](Self::open_at_point).
    pub fn open_at_newest_point(&self) -> Result<Pool, PoolError> {
        let named = self.urls()?;
        let found = survey(&self.reach, &named)?;
        let (mut newest, mut replicas) = (None, Vec::new());
        for url in asynchronous(&found, &named) {
            let index = Reading::with_points(&self.reach, &url, found.pool_uuid, None);
            match index.and_then(|reading| index_of(&reading)).map(|index| index.points.last().cloned()) {
                Ok(Some(kept)) => {
                    // Numbers are each member's own.
                    let age = (kept.point.opening, kept.point.written_bytes, kept.point.unix_ms);
                    if newest.as_ref().is_none_or(|(_, _, newest)| *newest < age) {
                        newest = Some((url, kept.point.number, age));
                    }
                }
                Ok(None) => {}
                Err(why) => replicas.push((place(&url), why)),
            }
        }
        let Some((url, number, _)) = newest else { return Err(PoolError::NoPoints { replicas }) };
        let opened = self.member_at(&url, &found, |index| index.points.iter().find(|kept| kept.point.number == number));
        let opened = opened.and_then(|opened| opened.ok_or_else(|| no_point(&number.to_string())));
        let (member, identity) = opened.map_err(|source| PoolError::Replica { replica: place(&url), source })?;
        Ok(pool_of(member, identity))
    }

    /// Has the one asynchronous member that is named go back to a point that it [keeps](Self::keep_points): the newest of that name, or the one of that number. **What was written behind it is
    /// dropped there**; the result says how much. The pool's members that count are not changed: the next writer that opens the pool brings the member forward again. To go on from the
    /// point, [promote](Self::promote) the member then.
    ///
    /// It is at the point as a whole, or as it was, whatever dies in the middle: what was interrupted is done when the member is opened next. Points that are kept stay, newer ones too: it may go
    /// forward to them. Only where what this overwrites does not fit in the [space](Self::points_space) for that, the oldest are dropped, which the result says.
    ///
    /// # Errors
    /// [`RollbackError`]. Nothing is changed then, unless it is [`Interrupted`](RollbackError::Interrupted).
    pub fn roll_back(&self, point: &str) -> Result<Rollback, RollbackError> {
        let urls = self.urls()?;
        let [url] = &urls[..] else { return Err(RollbackError::NotOne { named: urls.len() }) };
        let writer = survey(&self.reach, &urls)?.writer.filter(|_| self.take_over_after().is_none());
        if let Some(writer) = writer {
            return Err(RollbackError::Written { writer });
        }
        let open = self.open_asynchronous(url)?;
        let mut open = open.map_err(|_| RollbackError::NotAsynchronous { replica: place(url) })?;
        let of = |source| PoolError::Replica { replica: place(url), source };
        let index = index_of(open.follower.memory()).map_err(of)?;
        let wanted = find_point(&index, point).ok_or_else(|| of(no_point(point)))?.point.clone();
        let from = open.follower.point().cloned();
        let changed_bytes = open.follower.roll_back(wanted.number).map_err(|error| match error {
            RollBackError::Unread(error) => of(why_unread(error, point)).into(),
            RollBackError::Interrupted(source) => {
                RollbackError::Interrupted { replica: place(url), to: Box::new(wanted.clone()), source }
            }
        })?;
        let is_dropped = |news| match news {
            PointNews::NoRoom(point) => vec![point],
            // None is kept any more.
            PointNews::Stopped(_) => index.points.iter().map(|kept| kept.point.clone()).collect(),
        };
        let dropped_points = open.follower.take_news().into_iter().flat_map(is_dropped).collect();
        Ok(Rollback { from, to: wanted, changed_bytes, dropped_points })
    }

    fn read_data(
        &self,
        url: &Arc<PoolUrl>,
        found: &PoolMembers,
    ) -> Result<(Arc<dyn Member>, Identity), Arc<ReplicaError>> {
        let terms = (OpenFor::Read, Durability::Visible);
        let (identity, _, site, reached) = open_one(&self.reach, url, terms, None)?;
        if identity.uuid != found.pool_uuid {
            return Err(Arc::new(ReplicaError::Unexpected));
        }
        Ok((reached.member(Standing::new(place(url)), site, identity.size_bytes, None)?, identity))
    }

    /// A member at the point that is chosen of those that it keeps. `None`: at none.
    fn member_at(
        &self,
        url: &Arc<PoolUrl>,
        found: &PoolMembers,
        choose: impl Fn(&PointIndex) -> Option<&KeptPoint>,
    ) -> Result<Option<(PointMember, Identity)>, Arc<ReplicaError>> {
        let (data, identity) = self.read_data(url, found)?;
        let reading = Reading::with_points(&self.reach, url, found.pool_uuid, Some(data))?;
        let index = index_of(&reading)?;
        let Some(point) = choose(&index).map(|kept| &kept.point) else { return Ok(None) };
        let view = AtPoint::open(&reading, identity.size_bytes, point.number);
        let view = Mutex::new(view.map_err(|error| why_unread(error, &point.name))?);
        Ok(Some((PointMember { standing: Standing::new(place(url)), reading, view }, identity)))
    }
}

/// The asynchronous members of a pool that may be asked.
fn asynchronous(found: &PoolMembers, named: &[Arc<PoolUrl>]) -> Vec<Arc<PoolUrl>> {
    let members = found.members.iter().filter(|member| matches!(member.state, MemberState::Asynchronous { .. }));
    let urls = members.filter_map(|member| member.replica.as_ref()?.url());
    urls.filter(|url| may_be_asked(url, named)).map(|url| Arc::new(url.clone())).collect()
}

fn index_of<M>(member: &M) -> Result<PointIndex, Arc<ReplicaError>>
where
    M: FollowerBytes<Error = Arc<ReplicaError>>,
{
    match kept_points(member)? {
        Kept::None => Ok(PointIndex::default()),
        Kept::Points(index) => Ok(index),
        Kept::Damaged => Err(Arc::new(ReplicaError::PointsDamaged)),
    }
}

fn statuses(index: &PointIndex) -> Vec<KeptPointStatus> {
    let ends = index.points.iter().skip(1).map(|next| next.start).chain([index.head.end]);
    let status =
        |(kept, end): (&KeptPoint, u64)| KeptPointStatus { point: kept.point.clone(), saved_bytes: end - kept.start };
    index.points.iter().zip(ends).map(status).collect()
}

fn no_point(point: &str) -> Arc<ReplicaError> {
    Arc::new(ReplicaError::NoSuchPoint { point: point.to_owned() })
}

fn why_unread(error: PointReadError<Arc<ReplicaError>>, point: &str) -> Arc<ReplicaError> {
    match error {
        PointReadError::Memory(why) => why,
        PointReadError::Gone => no_point(point),
        PointReadError::Damaged => Arc::new(ReplicaError::PointsDamaged),
    }
}

/// A pool whose only replica is one at a point.
fn pool_of(member: PointMember, identity: Identity) -> Pool {
    let point = Some(member.view.lock().point().clone());
    let facts = Facts {
        uuid: identity.uuid,
        size_bytes: identity.size_bytes,
        header_bytes: 0,
        user_flags: identity.user_flags,
        attributes: None,
        made_count: 1,
        replica_count: 1,
        named_count: 1,
        durability: Durability::Visible,
        access: OpenFor::Read,
        left_out: Vec::new(),
        equalized: Equalized::default(),
        was_closed: true,
        first_read: 0,
        point,
    };
    Open::new((facts, AckTerms::ALL), vec![Arc::new(member)], None, None).into_pool(None, None)
}
