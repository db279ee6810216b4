//! Making a pool of an asynchronous member, where those that have everything are lost for good.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use pmof_access::Durability;
use pmof_control::{Claim, ConsistencyPoint, OpenFor, PoolState, Reply, Request, Roster, RosterMember, RosterPart};
use pmof_replication::{
    following::Replica,
    opening::OpenedReplica,
    promotion::{Answering, Candidate, NotAsynchronous, Promoting},
    survey::{Look, looks},
};
use uuid::Uuid;

use super::{
    PoolOptions,
    asking::{Driver, ask, open_one},
    followers::{Attached, fresh_area, is_definite, open_points, open_staging, points_options, staging_options},
    opened::place,
};
use crate::{
    PoolError, PoolUrl, ReplicaError, ReplicaPlace,
    error::told,
    follower::{Follower, Keep},
    member::Standing,
    site::Site,
};

/// What a pool is that was made of an asynchronous member, and what is lost.
#[derive(Clone, Debug)]
pub struct Promotion {
    /// The point that it is at. `None`: a medium has lost which one.
    pub point: Option<ConsistencyPoint>,
    /// How far its writer was when the member heard of it last.
    pub heard: Option<ConsistencyPoint>,
    /// When it was promoted, in milliseconds since 1970.
    pub unix_ms: u64,
    /// The members that counted until then, and those that were promoted before.
    pub former: Vec<FormerMember>,
}

/// A member of a pool until another one was promoted.
#[derive(Clone, Debug)]
pub struct FormerMember {
    /// Its number among the members.
    pub index: u16,
    /// Where it was found last, as a pool URL; empty where that is not known.
    pub url: String,
    /// Whether it knows.
    pub state: FormerState,
}

/// Whether a former member knows that it is none any more.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum FormerState {
    /// It keeps that durably: opened alone it leads to the promoted one.
    Told,
    /// It does not: it could not be reached or opened, or is not there any more. It is told when it is opened for writing while the promoted one can be reached; until then it takes itself for the pool.
    NotTold(Arc<ReplicaError>),
    /// It does not, and nobody knows where it is.
    Unknown,
    /// It is left as it is, since it is of another pool of the same identity: one that had removed the promoted member before, or was made of an export.
    GoesOn,
}

impl Promotion {
    /// Bytes that the writer had written beyond the point when the member heard of it last. `None`: that is not known, since another opening of the pool wrote the point.
    pub fn lost_bytes(&self) -> Option<u64> {
        let (point, heard) = (self.point.as_ref()?, self.heard.as_ref()?);
        (point.opening == heard.opening).then(|| heard.written_bytes.saturating_sub(point.written_bytes))
    }

    /// The time between the point and when the member heard of its writer last, by the writer's clock.
    pub fn lost_time(&self) -> Option<Duration> {
        let (point, heard) = (self.point.as_ref()?, self.heard.as_ref()?);
        Some(Duration::from_millis(heard.unix_ms.saturating_sub(point.unix_ms)))
    }

    /// How long the writer had not been heard of. What it wrote in that time is lost, too, and nobody here knows how much that is. By two machines' clocks.
    pub fn silent_time(&self) -> Option<Duration> {
        Some(Duration::from_millis(self.unix_ms.saturating_sub(self.heard.as_ref()?.unix_ms)))
    }
}

/// Why an asynchronous member was not promoted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PromotionError {
    /// It could not be reached or opened; or a writer has it open, and was not silent for [long enough](PoolOptions::take_over).
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// One replica is promoted at a time.
    #[error("name the one asynchronous member that is to be promoted; {named} replicas are named")]
    NotOne {
        /// How many are named.
        named: usize,
    },
    /// It is none.
    #[error("{replica:#} is no asynchronous member of a pool")]
    NotAsynchronous {
        /// The replica.
        replica: Arc<ReplicaPlace>,
    },
    /// Somebody has changed it meanwhile.
    #[error(
        "{replica:#} was told of other members while it was to be promoted: somebody writes the pool; see who does, and do the same again"
    )]
    Changed {
        /// The member.
        replica: Arc<ReplicaPlace>,
    },
    /// It has none of the pool's bytes.
    #[error("{replica:#} is a witness, which has none of the pool's bytes: there is nothing to make a pool of")]
    Witness {
        /// The witness.
        replica: Arc<ReplicaPlace>,
    },
    /// A member that has the pool's bytes answers, or a witness that a writer has open.
    #[error(
        "{member:#} answers{}, and has what the asynchronous member may lack: open the pool there; or give up what was written since the point (--force)",
        writer.as_ref().map_or_else(String::new, |writer| format!(", is open for writing by {writer}"))
    )]
    MemberAnswers {
        /// The member.
        member: Arc<ReplicaPlace>,
        /// Who has it open for writing.
        writer: Option<String>,
    },
    /// The member never was at any point, or a medium has damaged what it keeps.
    #[error(
        "{replica:#} is at no consistency point: it was not copied to the end once, what it keeps is damaged, or one of its files was put back to an older copy"
    )]
    NoPoint {
        /// The member.
        replica: Arc<ReplicaPlace>,
    },
}

/// A member that is open.
pub(super) struct Open {
    url: Arc<PoolUrl>,
    candidate: Candidate,
    state: PoolState,
    pub(super) follower: Follower<Attached>,
}

impl PoolOptions {
    /// Makes a pool of its own of the one asynchronous member that is named, at the consistency point that it is at: for a site that has lost all members that count. It has that one
    /// member, is closed, and is [opened](Self::open) and [extended](super::Pool::add) as any other. What was written behind the point is lost: the result says how much that is, as far as is known.
    ///
    /// The former members are none of it. Those that answer are told so durably, and are taken from a writer that has them open: what it goes on to acknowledge would be another history of the same pool. One that does not answer is told when it is
    /// opened for writing while this one can be reached, and takes itself for the pool until then; a writer that has it open all the time is fenced when it reaches this one. [`Promotion::former`] says which know.
    ///
    /// `is_forced`: also where one of them answers. A writer that still has the promoted member open keeps it from being promoted, unless this is to
    /// [take it over](Self::take_over).
    ///
    /// It is marked as a pool that [was forced](super::PoolStatus::forced), until that [is known](super::Pool::clear_forced).
    ///
    /// A crash in the middle leaves an asynchronous member, of which the same call makes a pool; or a pool that not all former members know of.
    ///
    /// # Errors
    /// [`PromotionError`].
    pub fn promote(&self, is_forced: bool) -> Result<Promotion, PromotionError> {
        let urls = self.urls()?;
        let [url] = &urls[..] else { return Err(PromotionError::NotOne { named: urls.len() }) };
        // Before it is taken from a writer.
        let known = self.known(url);
        let former = known.as_ref().map(|known| self.former(known)).unwrap_or_default();
        let preventing = former.iter().filter_map(|former| Some((former, former.found.as_ref()?.as_ref().ok()?)));
        let mut preventing = preventing.filter(|(former, found)| found.answering.prevents(former.member.role));
        if let Some((_, found)) = preventing.next().filter(|_| !is_forced) {
            let (member, writer) = (place(&found.url), found.answering.writer.clone());
            return Err(PromotionError::MemberAnswers { member, writer });
        }
        let open = self.open_asynchronous(url)?;
        let open = open.map_err(|NotAsynchronous { is_witness }| {
            let replica = place(url);
            if is_witness { PromotionError::Witness { replica } } else { PromotionError::NotAsynchronous { replica } }
        })?;
        // Who was asked is who its roster names still.
        if known.is_none_or(|known| known.roster != open.candidate.roster) {
            return Err(PromotionError::Changed { replica: place(url) });
        }
        if !open.follower.is_at_point() {
            return Err(PromotionError::NoPoint { replica: place(url) });
        }
        let (point, heard) = (open.follower.point().cloned(), open.follower.heard().cloned());
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let unix_ms = since.as_millis().try_into().unwrap_or(u64::MAX);
        let answering = former.iter().filter_map(|former| former.found.as_ref()?.as_ref().ok());
        let version = open.candidate.newest_version(answering.map(|found| &found.answering));
        let roster = open.found_pool(version, unix_ms)?;
        drop(open);
        // It is of no use any more; a later addition there takes it away.
        let require = self.durability()?;
        let areas = [staging_options(&self.reach, url, require), points_options(&self.reach, url, require)];
        areas.into_iter().flatten().for_each(|area| drop(area.remove()));
        let former = former.into_iter().map(|former| former.told(&roster)).collect();
        Ok(Promotion { point, heard, unix_ms, former })
    }

    /// What an asynchronous member says of its pool, which it is not taken from anybody for. `None`: its opening says why.
    fn known(&self, url: &Arc<PoolUrl>) -> Option<Candidate> {
        let Look { info, roster, .. } = ask(&self.reach, vec![Arc::clone(url)], looks).pop()?.ok()?;
        let header = &info.header;
        let pool = (header.pool_uuid, header.size_bytes);
        Candidate::of(pool, (header.replica_index, header.replica_uuid), roster?).ok()
    }

    /// What is found of the members that counted, and of those that were promoted before.
    fn former(&self, of: &Candidate) -> Vec<Former> {
        let others: Vec<_> = of.others().collect();
        let urls: Vec<_> = others.iter().map(|member| member.url.parse().ok().map(Arc::new)).collect();
        let (reach, peers, is_alone) = (&self.reach, &self.reach.peers(), false);
        let driver = Driver { reach, peers, require: Durability::Visible, is_alone };
        let (looked, mut sites) = driver.drive(looks(urls.iter().flatten().cloned().collect()));
        let mut looked = looked.into_iter();
        let former = others.into_iter().zip(urls).filter_map(|(member, url)| {
            let found = url.and_then(|url| Some((url, looked.next()?))).map(|(url, look)| {
                let Look { site, info, roster } = look.map_err(told)?;
                let (site, _) = sites.take(site).ok_or_else(|| Arc::new(ReplicaError::Unexpected))?;
                let answering = of.judge(&info, roster).map_err(|why| Arc::new(why.into()))?;
                Ok(Found { url, site, answering })
            });
            let is_former = match &found {
                Some(Ok(found)) => found.answering.is_former(member),
                _ => member.counts(),
            };
            is_former.then(|| Former { member: member.clone(), found })
        });
        former.collect()
    }

    /// Opens an asynchronous member, and nobody else has it then; applies what is staged. The inner error: it is none.
    pub(super) fn open_asynchronous(&self, url: &Arc<PoolUrl>) -> Result<Result<Open, NotAsynchronous>, PoolError> {
        let (require, lost) = (self.durability()?, |source| PoolError::Replica { replica: place(url), source });
        let opened = open_one(&self.reach, url, (OpenFor::Write, require), self.take_over_after());
        let (identity, OpenedReplica { index, replica_uuid, state, roster, .. }, site, reached) =
            opened.map_err(lost)?;
        let roster = roster.unwrap_or_else(|| Roster::made(identity.replica_count));
        let candidate = match Candidate::of((identity.uuid, identity.size_bytes), (index, replica_uuid), roster) {
            Ok(candidate) => candidate,
            Err(not_asynchronous) => {
                // As it was found.
                let _ = site.ask(&Request::Close { in_order: false });
                return Ok(Err(not_asynchronous));
            }
        };
        let data = reached.member(Standing::new(place(url)), site, identity.size_bytes, None);
        let data = data.map_err(Arc::new).map_err(lost)?;
        let staging = open_staging(&self.reach, url, require, identity.uuid).map_err(lost)?;
        // What they need is saved before what is staged is applied; where they cannot be opened, none is kept any more.
        let points = match open_points(&self.reach, url, require, identity.uuid, (None, 0)) {
            Err(why) if is_definite(&why) => None,
            points => points.map_err(lost)?,
        };
        let attached = Attached::new((data, state.mark), staging, points);
        let (staging_bytes, keep) = (attached.staging_bytes(), Keep { count: None, fresh: fresh_area() });
        let follower = Follower::open(attached, staging_bytes, identity.size_bytes, keep).map_err(lost)?;
        Ok(Ok(Open { url: Arc::clone(url), candidate, state, follower }))
    }
}

/// One that is about to be a former member.
struct Former {
    member: RosterMember,
    /// `None`: its address is not known.
    found: Option<Result<Found, Arc<ReplicaError>>>,
}

/// A replica that answers.
struct Found {
    url: Arc<PoolUrl>,
    site: Site,
    answering: Answering,
}

impl Former {
    /// Has it keep who the members are now.
    fn told(self, roster: &Roster) -> FormerMember {
        let state = match self.found {
            None => FormerState::Unknown,
            Some(Ok(found)) if !found.answering.is_told() => FormerState::GoesOn,
            Some(found) => match found.and_then(|found| found.supersede(roster).map_err(Arc::new)) {
                Ok(()) => FormerState::Told,
                Err(why) => FormerState::NotTold(why),
            },
        };
        FormerMember { index: self.member.index, url: self.member.url, state }
    }
}

impl Found {
    /// Takes it from a writer, if it has one.
    fn supersede(&self, roster: &Roster) -> Result<(), ReplicaError> {
        let (name, require) = (self.url.name.clone(), Durability::Visible);
        self.site.ask_when_free(&Request::TakeOver { name, require, silent_ms: 0, claim: Claim::None })?;
        let encoded = roster.encode().map_err(|_| ReplicaError::Unexpected)?;
        RosterPart::requests(&encoded).try_for_each(|request| match self.site.ask(&request)? {
            Reply::RosterSet => Ok(()),
            _ => Err(ReplicaError::Unexpected),
        })?;
        // As it was found.
        self.site.ask(&Request::Close { in_order: false }).map(drop)
    }
}

impl Open {
    /// Has the member be the only one of its pool, and in sync. Until the last steps it is an asynchronous member for an opening. Returns the roster that it keeps, which is newer than `version`.
    fn found_pool(&self, version: u64, unix_ms: u64) -> Result<Roster, PromotionError> {
        let lost = |source| PoolError::Replica { replica: place(&self.url), source };
        let unexpected = || lost(Arc::new(ReplicaError::Unexpected));
        let control = self.follower.memory().data.control().ok_or_else(unexpected)?;
        let promoting = self.candidate.promote(&self.state, version, Uuid::new_v4(), unix_ms);
        let Promoting { requests, roster } = promoting.map_err(|_| unexpected())?;
        for (request, expected) in &requests {
            control.ask_for(request, expected).map_err(lost)?;
        }
        Ok(roster)
    }
}
