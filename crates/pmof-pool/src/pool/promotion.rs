//! Making a pool of an asynchronous member, where those that have everything are lost for good.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use pmof_access::Durability;
use pmof_control::{
    ANCESTORS_MAX, Claim, ConsistencyPoint, Epoch, OpenFor, PoolState, Reply, Request, Role, Roster, RosterMember,
    RosterPart,
};
use pmof_replication::{
    asking::is_promoted,
    opening::OpenedReplica,
    survey::{Look, looks},
};
use uuid::Uuid;

use super::{
    PoolOptions,
    asking::{Driver, ask, open_one},
    epochs::give_roster,
    followers::{Attached, fresh_area, is_definite, open_points, open_staging, points_options, staging_options},
    opened::{Identity, place},
    opening::forced,
};
use crate::{
    PoolError, PoolUrl, ReplicaError, ReplicaPlace,
    error::told,
    follower::{Follower, Keep},
    member::{Control, Standing},
    roster::settled_behind,
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

/// A replica that is no asynchronous member.
pub(super) struct NotAsynchronous {
    is_witness: bool,
}

/// The pool that an asynchronous member follows, as that keeps it.
struct Followed {
    uuid: Uuid,
    size_bytes: u64,
    roster: Roster,
    /// The asynchronous member.
    member: RosterMember,
}

/// A member that is open.
pub(super) struct Open {
    url: Arc<PoolUrl>,
    followed: Followed,
    state: PoolState,
    pub(super) follower: Follower<Attached>,
}

impl Followed {
    /// A replica of the pool at this address, which is not the one that is to be promoted.
    fn answering(&self, url: Arc<PoolUrl>, site: Site, look: Look) -> Result<Answering, ReplicaError> {
        let Look { info, roster, .. } = look;
        let header = &info.header;
        if header.pool_uuid != self.uuid {
            let (uuid, found_uuid, found_bytes) = (self.uuid, header.pool_uuid, header.size_bytes);
            return Err(ReplicaError::Mismatch { uuid, found_uuid, size_bytes: self.size_bytes, found_bytes });
        }
        let (index, found) = (self.member.index, header.replica_index);
        if self.member.is(found, header.replica_uuid) {
            return Err(ReplicaError::NotTheMember { index, found });
        }
        let is_known = self.roster.members.iter().any(|member| member.is(found, header.replica_uuid));
        let counts = |roster: &&Roster| roster.counted().any(|member| member.is(found, header.replica_uuid));
        let has_promoted = |roster: &Roster| roster.members.iter().any(|member| is_own(member, &self.member));
        let is_promoted = self.roster.member(found).is_some_and(|member| !member.counts()) && is_promoted(&info);
        let is_newer = roster.as_ref().filter(counts).is_some_and(|roster| !has_promoted(roster));
        Ok(Answering {
            url,
            site,
            roster,
            writer: info.open_by,
            is_promoted,
            goes_on: is_newer && !is_promoted,
            is_known,
        })
    }
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
        // Before it is taken from anybody.
        let known = self.known(url);
        let former = known.as_ref().map(|known| self.former(known)).unwrap_or_default();
        if let Some(answering) = former.iter().find_map(Former::standing).filter(|_| !is_forced) {
            let (member, writer) = (place(&answering.url), answering.writer.clone());
            return Err(PromotionError::MemberAnswers { member, writer });
        }
        let open = self.open_asynchronous(url)?;
        let open = open.map_err(|NotAsynchronous { is_witness }| {
            let replica = place(url);
            if is_witness { PromotionError::Witness { replica } } else { PromotionError::NotAsynchronous { replica } }
        })?;
        // Who was asked is who its roster names still.
        if known.is_none_or(|known| known.roster != open.followed.roster) {
            return Err(PromotionError::Changed { replica: place(url) });
        }
        if !open.follower.is_at_point() {
            return Err(PromotionError::NoPoint { replica: place(url) });
        }
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let (point, heard) = (open.follower.point().cloned(), open.follower.heard().cloned());
        // Newer than what any of them keeps: whoever meets several goes by the newest.
        let version = former.iter().filter_map(Former::version).fold(open.followed.roster.version, u64::max);
        let roster = open.found_pool(version)?;
        drop(open);
        // It is of no use any more; a later addition there takes it away.
        let require = self.durability()?;
        let areas = [staging_options(&self.reach, url, require), points_options(&self.reach, url, require)];
        areas.into_iter().flatten().for_each(|area| drop(area.remove()));
        let unix_ms = since.as_millis().try_into().unwrap_or(u64::MAX);
        let former = former.into_iter().map(|former| former.told(&roster)).collect();
        Ok(Promotion { point, heard, unix_ms, former })
    }

    /// What an asynchronous member says of its pool, which it is not taken from anybody for. `None`: its opening says why.
    fn known(&self, url: &Arc<PoolUrl>) -> Option<Followed> {
        let Look { info, roster, .. } = ask(&self.reach, vec![Arc::clone(url)], looks).pop()?.ok()?;
        let (header, roster) = (&info.header, roster?);
        let own = |member: &&RosterMember| {
            member.role == Role::Asynchronous && member.is(header.replica_index, header.replica_uuid)
        };
        let member = roster.members.iter().find(own)?.clone();
        Some(Followed { uuid: header.pool_uuid, size_bytes: header.size_bytes, roster, member })
    }

    /// What is found of the members that counted, and of those that were promoted before.
    fn former(&self, of: &Followed) -> Vec<Former> {
        let is_other = |member: &&RosterMember| member.role != Role::Spare && member.index != of.member.index;
        let others: Vec<_> = of.roster.members.iter().filter(is_other).collect();
        let urls: Vec<_> = others.iter().map(|member| member.url.parse().ok().map(Arc::new)).collect();
        let (reach, peers, is_alone) = (&self.reach, &self.reach.peers(), false);
        let driver = Driver { reach, peers, require: Durability::Visible, is_alone };
        let (looked, mut sites) = driver.drive(looks(urls.iter().flatten().cloned().collect()));
        let mut looked = looked.into_iter();
        let former = others.into_iter().zip(urls).filter_map(|(member, url)| {
            let found = url.and_then(|url| Some((url, looked.next()?))).map(|(url, look)| {
                let look = look.map_err(told)?;
                let (site, _) = sites.take(look.site).ok_or_else(|| Arc::new(ReplicaError::Unexpected))?;
                of.answering(url, site, look).map_err(Arc::new)
            });
            let is_pool = member.counts() || matches!(&found, Some(Ok(answering)) if answering.is_promoted);
            is_pool.then(|| Former { index: member.index, role: member.role, url: member.url.clone(), found })
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
        let is_found = |member: &&RosterMember| member.is(index, replica_uuid) && member.role == Role::Asynchronous;
        let Some(member) = roster.members.iter().find(is_found).cloned() else {
            // As it was found.
            let _ = site.ask(&Request::Close { in_order: false });
            let is_witness = |member: &RosterMember| member.role == Role::Witness && member.is(index, replica_uuid);
            return Ok(Err(NotAsynchronous { is_witness: roster.members.iter().any(is_witness) }));
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
        let Identity { uuid, size_bytes, .. } = identity;
        let of_pool = Followed { uuid, size_bytes, roster, member };
        Ok(Ok(Open { url: Arc::clone(url), followed: of_pool, state, follower }))
    }
}

/// One that is about to be a former member.
struct Former {
    index: u16,
    role: Role,
    url: String,
    /// `None`: nobody knows where it is.
    found: Option<Result<Answering, Arc<ReplicaError>>>,
}

/// A replica that answers.
struct Answering {
    url: Arc<PoolUrl>,
    site: Site,
    roster: Option<Roster>,
    writer: Option<String>,
    /// It was an asynchronous member itself.
    is_promoted: bool,
    /// It is a member of its pool, which has removed the one that is to be promoted.
    goes_on: bool,
    /// It is one of the members that the one that is to be promoted knows.
    is_known: bool,
}

fn is_own(member: &RosterMember, own: &RosterMember) -> bool {
    member.role == Role::Asynchronous && member.is(own.index, own.replica_uuid)
}

impl Former {
    /// One that keeps the pool from being given up: it has what the promoted one may lack, or is a witness of somebody who writes that.
    fn standing(&self) -> Option<&Answering> {
        self.answering().filter(|answering| self.role != Role::Witness || answering.writer.is_some())
    }

    fn answering(&self) -> Option<&Answering> {
        self.found.as_ref()?.as_ref().ok()
    }

    fn version(&self) -> Option<u64> {
        let answering = self.answering().filter(|answering| !answering.goes_on && answering.is_known)?;
        answering.roster.as_ref().map(|roster| roster.version)
    }

    /// Has it keep who the members are now.
    fn told(self, roster: &Roster) -> FormerMember {
        let state = match self.found {
            None => FormerState::Unknown,
            Some(Ok(answering)) if answering.goes_on || !answering.is_known => FormerState::GoesOn,
            Some(found) => match found.and_then(|answering| answering.supersede(roster).map_err(Arc::new)) {
                Ok(()) => FormerState::Told,
                Err(why) => FormerState::NotTold(why),
            },
        };
        FormerMember { index: self.index, url: self.url, state }
    }
}

impl Answering {
    /// Takes it from a writer, if it has one.
    fn supersede(&self, roster: &Roster) -> Result<(), ReplicaError> {
        let (name, require) = (self.url.name.clone(), Durability::Visible);
        self.site.ask_when_free(&Request::TakeOver { name, require, silent_ms: 0, claim: Claim::None })?;
        tell_roster(&self.site, roster)?;
        // As it was found.
        self.site.ask(&Request::Close { in_order: false }).map(drop)
    }
}

/// Has a replica that is open for writing keep a roster.
pub(super) fn tell_roster(site: &Site, roster: &Roster) -> Result<(), ReplicaError> {
    let encoded = roster.encode().map_err(|_| ReplicaError::Unexpected)?;
    RosterPart::requests(&encoded).try_for_each(|request| match site.ask(&request)? {
        Reply::RosterSet => Ok(()),
        _ => Err(ReplicaError::Unexpected),
    })
}

impl Open {
    /// Has the member be the only one of its pool, and in sync. Until the last step it is an asynchronous member for whoever opens it. Returns the roster that it keeps, which is newer than `version`.
    fn found_pool(&self, version: u64) -> Result<Roster, PromotionError> {
        let control = self.follower.memory().data.control();
        let lost = |source| PoolError::Replica { replica: place(&self.url), source };
        let control: &Control = control.ok_or_else(|| lost(Arc::new(ReplicaError::Unexpected)))?;
        let (state, index) = (&self.state, self.followed.member.index);
        let (epoch, opening) = (Epoch::new(Uuid::new_v4(), [index]), state.opening.saturating_add(1));
        let ancestors = std::iter::once(state.epoch).chain(state.ancestors.iter().copied());
        let begin = Request::Begin { opening, epoch, ancestors: ancestors.take(ANCESTORS_MAX).collect() };
        let tell = |request: &Request, expected: &Reply| control.ask_for(request, expected).map_err(lost);
        tell(&begin, &Reply::Begun)?;
        tell(&Request::Confirm { epoch: epoch.id }, &Reply::Confirmed)?;
        let member = RosterMember { role: Role::Data, ..self.followed.member.clone() };
        // Whoever opens former members that know nothing of this one goes on apart from it.
        let mark = forced::mark(opening, state.epoch.id, 1 << index, self.followed.roster.indexes());
        let former = Roster { version, ..self.followed.roster.clone() };
        let roster = settled_behind(&former, vec![member], opening).forced_by(mark);
        if !give_roster(control, &roster) {
            let why = control.check_in_use().err().unwrap_or_else(|| Arc::new(ReplicaError::Unexpected));
            return Err(lost(why).into());
        }
        tell(&Request::Close { in_order: true }, &Reply::Closed)?;
        Ok(roster)
    }
}
