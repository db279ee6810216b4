//! Making a pool of an asynchronous member, where those that have everything are lost for good.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use pmof_control::{
    ANCESTORS_MAX, Claim, ConsistencyPoint, Epoch, OpenFor, PoolState, Reply, Request, Role, Roster, RosterMember,
};
use uuid::Uuid;

use super::{
    PoolOptions,
    epochs::give_roster,
    followers::{Attached, fresh_area, is_definite, open_points, open_staging, points_options, staging_options},
    opened::{Checked, Identity, check_opened, place},
    opening::{failed, forced, millis},
    rosters::read_roster,
};
use crate::{
    PoolError, PoolUrl, ReplicaError, ReplicaPlace,
    follower::{Follower, Keep},
    member::{Control, Standing},
    roster::settled_behind,
    site::Site,
};

/// What a pool is that was made of an asynchronous member, and what is lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Promotion {
    /// The point that it is at. `None`: a medium has lost which one.
    pub point: Option<ConsistencyPoint>,
    /// How far its writer was when the member heard of it last.
    pub heard: Option<ConsistencyPoint>,
    /// When it was promoted, in milliseconds since 1970.
    pub unix_ms: u64,
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
    /// It has none of the pool's bytes.
    #[error("{replica:#} is a witness, which has none of the pool's bytes: there is nothing to make a pool of")]
    Witness {
        /// The witness.
        replica: Arc<ReplicaPlace>,
    },
    /// A member that counts answers.
    #[error(
        "{member:#} answers, and has what the asynchronous member may lack: open the pool there; or give up what was written since the point (--force)"
    )]
    MemberAnswers {
        /// The member.
        member: Arc<ReplicaPlace>,
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

/// A member that is open.
pub(super) struct Open {
    url: Arc<PoolUrl>,
    uuid: Uuid,
    roster: Roster,
    member: RosterMember,
    state: PoolState,
    pub(super) follower: Follower<Attached>,
}

impl PoolOptions {
    /// Makes a pool of its own of the one asynchronous member that is named, at the consistency point that it is at: for a site that has lost all members that count. It has that one
    /// member, is closed, and is [opened](Self::open) and [extended](super::Pool::add) as any other. What was written behind the point is lost: the result says how much that is, as far as is known.
    ///
    /// **The former members must not be used any more**, should they come back: they are another line of the same pool. Their writer does not follow this one up again.
    /// `is_forced`: also where one of them answers. A writer that still has the member open keeps it from being promoted, unless this is to
    /// [take it over](Self::take_over).
    ///
    /// It is marked as a pool that [was forced](super::PoolStatus::forced), until that [is known](super::Pool::clear_forced).
    ///
    /// A crash in the middle leaves an asynchronous member, of which the same call makes a pool.
    ///
    /// # Errors
    /// [`PromotionError`].
    pub fn promote(&self, is_forced: bool) -> Result<Promotion, PromotionError> {
        let urls = self.urls()?;
        let [url] = &urls[..] else { return Err(PromotionError::NotOne { named: urls.len() }) };
        let open = self.open_asynchronous(url)?;
        let open = open.map_err(|NotAsynchronous { is_witness }| {
            let replica = place(url);
            if is_witness { PromotionError::Witness { replica } } else { PromotionError::NotAsynchronous { replica } }
        })?;
        let answers = |member| self.answers(member, open.uuid);
        if let Some(member) = open.roster.counted().find_map(answers).filter(|_| !is_forced) {
            return Err(PromotionError::MemberAnswers { member });
        }
        if !open.follower.is_at_point() {
            return Err(PromotionError::NoPoint { replica: place(url) });
        }
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let promotion = Promotion {
            point: open.follower.point().cloned(),
            heard: open.follower.heard().cloned(),
            unix_ms: since.as_millis().try_into().unwrap_or(u64::MAX),
        };
        open.found_pool()?;
        drop(open);
        // It is of no use any more; a later addition there takes it away.
        let require = self.durability()?;
        let areas = [staging_options(&self.reach, url, require), points_options(&self.reach, url, require)];
        areas.into_iter().flatten().for_each(|area| drop(area.remove()));
        Ok(promotion)
    }

    /// Opens an asynchronous member, and nobody else has it then; applies what is staged. The inner error: it is none.
    pub(super) fn open_asynchronous(&self, url: &Arc<PoolUrl>) -> Result<Result<Open, NotAsynchronous>, PoolError> {
        let of = |error: ReplicaError| failed(url, error);
        let require = self.durability()?;
        let mut peers = self.reach.peers();
        let site = self.reach.site(&mut peers, url).map_err(of)?;
        let name = url.name.clone();
        let request = match self.take_over_after() {
            None => Request::Open { name, access: OpenFor::Write, require },
            Some(silent_for) => Request::TakeOver { name, require, silent_ms: millis(silent_for), claim: Claim::None },
        };
        let reply = site.ask_when_free(&request).map_err(of)?;
        let mut identity: Option<Identity> = None;
        let Checked { index, replica_uuid, state, reached, .. } =
            check_opened(reply, &site, require, OpenFor::Write, &mut identity).map_err(of)?;
        let identity = identity.ok_or_else(|| of(ReplicaError::Unexpected))?;
        let asked = site.send(&Request::Roster { offset: 0 }).map_err(of)?;
        let roster = read_roster(&site, asked).map_err(of)?.unwrap_or_else(|| Roster::made(identity.replica_count));
        let is_own = |member: &&RosterMember| member.is(index, replica_uuid) && member.role == Role::Asynchronous;
        let Some(member) = roster.members.iter().find(is_own).cloned() else {
            // As it was found.
            let _ = site.ask(&Request::Close { in_order: false });
            let is_witness = |member: &RosterMember| member.role == Role::Witness && member.is(index, replica_uuid);
            return Ok(Err(NotAsynchronous { is_witness: roster.members.iter().any(is_witness) }));
        };
        let data = reached.member(Standing::new(place(url)), site, identity.size_bytes, None).map_err(of)?;
        let lost = |source| PoolError::Replica { replica: place(url), source };
        let staging = open_staging(&self.reach, url, require, identity.uuid).map_err(lost)?;
        // What they need is saved before what is staged is applied; where they cannot be opened, none is kept any more.
        let points = match open_points(&self.reach, url, require, identity.uuid, (None, 0)) {
            Err(why) if is_definite(&why) => None,
            points => points.map_err(lost)?,
        };
        let attached = Attached::new((data, state.mark), staging, points);
        let (staging_bytes, keep) = (attached.staging_bytes(), Keep { count: None, fresh: fresh_area() });
        let follower = Follower::open(attached, staging_bytes, identity.size_bytes, keep).map_err(lost)?;
        Ok(Ok(Open { url: Arc::clone(url), uuid: identity.uuid, roster, member, state, follower }))
    }

    /// Where a member that counts is, if it answers there.
    fn answers(&self, member: &RosterMember, uuid: Uuid) -> Option<Arc<ReplicaPlace>> {
        let url = Arc::new(member.url.parse::<PoolUrl>().ok()?);
        let site: Site = self.reach.site(&mut self.reach.peers(), &url).ok()?;
        match site.ask_when_free(&Request::Info { name: url.name.clone() }) {
            Ok(Reply::Info(info)) if info.header.pool_uuid == uuid => Some(place(&url)),
            _ => None,
        }
    }
}

impl Open {
    /// Has the member be the only one of its pool, and in sync. Until the last step it is an asynchronous member for whoever opens it.
    fn found_pool(&self) -> Result<(), PromotionError> {
        let control = self.follower.memory().data.control();
        let lost = |source| PoolError::Replica { replica: place(&self.url), source };
        let control: &Control = control.ok_or_else(|| lost(Arc::new(ReplicaError::Unexpected)))?;
        let (state, index) = (&self.state, self.member.index);
        let (epoch, opening) = (Epoch::new([index]), state.opening.saturating_add(1));
        let ancestors = std::iter::once(state.epoch).chain(state.ancestors.iter().copied());
        let begin = Request::Begin { opening, epoch, ancestors: ancestors.take(ANCESTORS_MAX).collect() };
        let tell = |request: &Request, expected: &Reply| control.ask_for(request, expected).map_err(lost);
        tell(&begin, &Reply::Begun)?;
        tell(&Request::Confirm { epoch: epoch.id }, &Reply::Confirmed)?;
        let member = RosterMember { role: Role::Data, ..self.member.clone() };
        // Whoever opens the former members goes on apart from this one, and nobody keeps them from that.
        let mark = forced::mark(opening, state.epoch.id, 1 << index, self.roster.indexes());
        let roster = settled_behind(&self.roster, vec![member], opening).forced_by(mark);
        if !give_roster(control, &roster) {
            let why = control.check_in_use().err().unwrap_or_else(|| Arc::new(ReplicaError::Unexpected));
            return Err(lost(why).into());
        }
        tell(&Request::Close { in_order: true }, &Reply::Closed)?;
        Ok(())
    }
}
