//! Opening a pool, and making one: the engine decides, and what it found becomes the members of a pool.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use pmof_access::Durability;
use pmof_control::{MeantReplica, OpenFor, Protection, Request, USER_FLAGS_BYTES};
use pmof_pool_set::Comparison;
use pmof_replication::{
    following::LagBound,
    keeper::KeptBy,
    opening::{self as engine, Creation, FoundPool, Left, MadePool, OpenedReplica, Outcome, ShippedRules},
    posting::AckTerms,
};
use uuid::Uuid;

use super::{
    LeftOut, Open,
    acknowledge::Acknowledge,
    asking::{Driver, Sites},
    compare::{Comparable, Differing},
    follow::{Follow, Said, Seen, Unread},
    followers::{Followers, KeepPoints},
    format::Format,
    intents::ToldMaps,
    opened::{Identity, Reached, place},
    returns::{ReturnTerms, Returns},
};
use crate::{
    PoolError, PoolUrl, ReplicaError, error::told, lineage::Base, pages::PageMap, peers::Peers, reach::Reach,
    site::Site,
};

mod forced;
mod haste;
mod nearest;
mod refused;
mod replicas;

pub(super) use haste::{Haste, in_haste};
pub(super) use replicas::NativeReplicas;
use replicas::Origin;

/// What becomes of a pool that was made here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum New {
    /// It has its name.
    Published,
    /// It gets its name when it is closed.
    Unpublished,
}

/// What is asked of a pool that is made or opened, besides its replicas.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) require: Durability,
    pub(super) min_replicas: Option<usize>,
    /// Whether an opening for writing takes the pool from a writer that has been silent for so long.
    pub(super) take_over: Option<Duration>,
    pub(super) has_mirror: bool,
    pub(super) acknowledge: Acknowledge,
    pub(super) slow_after: Option<Duration>,
    /// Bytes a second that are copied to replicas that catch up, at most.
    pub(super) bytes_per_second: Option<u64>,
    /// How long a member is lost before a spare takes its place.
    pub(super) spare_after: Duration,
    /// How long after an opening, or the last scrub, the pool is scrubbed in the background.
    pub(super) scrub_every: Option<Duration>,
    /// How far asynchronous members may lag.
    pub(super) lag: LagBound,
    /// Which consistency points they are to keep.
    pub(super) keep: KeepPoints,
    pub(super) reach: Reach,
    pub(super) haste: Haste,
}

impl Wanted {
    /// The same; where fewer replicas than are safe will do, none is left out that would have answered.
    pub(super) fn with_haste(self, haste: Haste) -> Self {
        let haste = if self.min_replicas.is_some() { Haste::patient() } else { haste };
        Self { haste, ..self }
    }
}

/// A pool that is being made or opened.
#[derive(Debug)]
pub(super) struct Opening {
    wanted: Wanted,
    /// All replicas named, in their order, and those that were found by what these know.
    urls: Vec<Arc<PoolUrl>>,
    /// How many were named.
    named_count: usize,
    /// Those that are done without, by their positions, and why.
    left_out: Vec<(usize, Arc<ReplicaError>)>,
    /// Those that a reader has no use for but to be told of epochs.
    unread: Vec<Unread>,
    /// Without the number of replicas that was asked for, these would be too few to write.
    is_forced: bool,
    began: Instant,
    peers: Peers,
}

/// A replica that its target has opened.
#[derive(Debug)]
struct Opened {
    replica: OpenedReplica,
    site: Site,
    reached: Reached,
}

impl Opening {
    pub(super) fn new(wanted: Wanted, urls: Vec<Arc<PoolUrl>>) -> Self {
        let (peers, began, named_count) = (wanted.reach.peers(), Instant::now(), urls.len());
        Self { wanted, urls, named_count, left_out: Vec::new(), unread: Vec::new(), is_forced: false, began, peers }
    }

    fn terms(&self) -> AckTerms {
        let Wanted { acknowledge, slow_after, ref reach, .. } = self.wanted;
        acknowledge.terms(slow_after, reach.loss_timeout)
    }

    fn engine_terms(&self) -> engine::Terms {
        let Wanted { require, min_replicas, take_over, ref haste, .. } = self.wanted;
        let terms = self.terms();
        engine::Terms {
            require,
            min_replicas,
            take_over,
            least_replicas: terms.least,
            least_domains: terms.domains,
            is_patient: haste.is_patient(),
            keeper: KeptBy::Members,
        }
    }

    /// Runs the engine, and keeps what it has found. Returns its pool, and the connections to the replicas of it.
    fn drive<T>(&mut self, opening: engine::Opening<PoolUrl, ReplicaError, T>) -> Result<(T, Sites), PoolError> {
        let Wanted { reach, require, .. } = &self.wanted;
        let driver = Driver { reach, peers: &self.peers, require: *require, is_alone: self.urls.len() == 1 };
        let (Outcome { places, left_out, was_hasty, pool }, sites) = driver.drive(opening);
        self.wanted.haste.note(was_hasty);
        self.urls = places;
        self.left_out = left_out.into_iter().map(|(position, cause)| (position, told(cause))).collect();
        match pool {
            Ok(pool) => Ok((pool, sites)),
            Err(refusal) => Err(self.refused(refusal)),
        }
    }

    /// Replicas with their connections, and the memory that is mapped.
    fn opened(replicas: Vec<OpenedReplica>, sites: &mut Sites) -> Result<Vec<Opened>, PoolError> {
        let opened = replicas.into_iter().map(|replica| match sites.take(replica.site) {
            Some((site, Some(reached))) => Ok(Opened { replica, site, reached }),
            // The engine names none that it has not had mapped.
            _ => Err(PoolError::NoReplicas),
        });
        opened.collect()
    }

    /// Replicas that are done without, for the program.
    fn told_left_out(&self) -> LeftOut {
        let told = |(position, why): &(usize, Arc<ReplicaError>)| (place(&self.urls[*position]), Arc::clone(why));
        let is_replica = |(_, why): &&(usize, Arc<ReplicaError>)| !matches!(**why, ReplicaError::Witness { .. });
        self.left_out.iter().filter(is_replica).map(told).collect()
    }

    /// What brings the pool's replicas back when they are lost; of one replica there is none to copy from, until there are more.
    fn returns(self, identity: Identity, pool: &mut Open) -> Returns {
        if let Some(epochs) = &pool.epochs {
            epochs.note_equal();
        }
        if identity.replica_count > 1 {
            pool.written = Some(Arc::new(PageMap::new(identity.size_bytes)));
        }
        let Wanted { require, bytes_per_second, spare_after, scrub_every, lag, keep, reach, min_replicas, .. } =
            self.wanted;
        let is_forced = min_replicas.is_some();
        if let Some(epochs) = pool.epochs.as_ref().filter(|_| !is_forced) {
            let opening = epochs.lock().view().opening();
            pool.followers = Some(Arc::new(Followers::new(
                (lag, keep, bytes_per_second),
                reach.clone(),
                identity,
                require,
                opening,
            )));
        }
        Returns::new(
            (reach, self.peers),
            self.urls,
            identity,
            ReturnTerms { require, bytes_per_second, spare_after, scrub_every, is_forced },
            pool,
        )
    }

    /// What has a reader follow the pool's epochs.
    fn follow(self, said: Vec<(usize, Said)>) -> Follow {
        let is_none = |why: &ReplicaError| {
            use ReplicaError::{Asynchronous, NotTheMember};
            why.is_of_no_member() || matches!(why, NotTheMember { .. } | Asynchronous { .. })
        };
        let is_out = |at: usize| self.left_out.iter().any(|(of, why)| *of == at && is_none(why));
        let urls = (0..self.urls.len()).filter(|at| !is_out(*at)).map(|at| Arc::clone(&self.urls[at])).collect();
        Follow::new(self.wanted, Seen { urls, said, unread: self.unread, asked: self.began })
    }
}

/// A native pool to be made.
#[derive(Clone, Copy, Debug)]
pub(super) struct NewNative {
    pub(super) uuid: Uuid,
    pub(super) size_bytes: u64,
    pub(super) user_flags: [u8; USER_FLAGS_BYTES],
    pub(super) new: New,
    pub(super) protection: Option<Protection>,
}

/// The native format, whose replicas record which of them have what.
impl Format for Opening {
    type New = NewNative;
    type Existing = OpenFor;
    type Replicas = NativeReplicas;

    fn create(mut self, new: NewNative) -> Result<NativeReplicas, PoolError> {
        let NewNative { uuid, size_bytes, user_flags, new, protection } = new;
        let (epoch, publish_on_close) = (Uuid::new_v4(), new == New::Unpublished);
        let creation = Creation { uuid, epoch, size_bytes, user_flags, publish_on_close, protection };
        let engine = engine::Opening::create(self.engine_terms(), creation, self.urls.clone());
        let (MadePool { identity, opened }, mut sites) = self.drive(engine)?;
        let opened = Self::opened(opened, &mut sites)?;
        let state = opened.first().map(|opened| &opened.replica.state).ok_or(PoolError::NoReplicas)?;
        let base = Base::after(state.epoch, state.opening, &state.ancestors);
        if new == New::Unpublished {
            // A replica that is left behind would not be there any more to catch up.
            self.wanted.slow_after = None;
        }
        Ok(NativeReplicas::new(self, opened, identity, (base, 0), Origin::Made(new)))
    }

    /// Opens the replicas that belong together, or releases all of them.
    fn open(mut self, access: OpenFor) -> Result<NativeReplicas, PoolError> {
        let engine = engine::Opening::open(self.engine_terms(), access, self.urls.clone(), ShippedRules);
        let (found, mut sites) = self.drive(engine)?;
        let FoundPool { identity, electorate, opened, unread, base, mark, source, left, is_forced } = found;
        for replica in unread {
            let Some((site, _)) = sites.take(replica.site) else { continue };
            self.unread.push(Unread {
                url: Arc::clone(&self.urls[replica.position]),
                site,
                said: Said::by(&replica.state),
            });
        }
        self.is_forced = is_forced;
        let opened = Self::opened(opened, &mut sites)?;
        for Opened { replica, .. } in opened.iter().filter(|opened| !opened.replica.is_witness) {
            if let Some(why) = replica.behind.clone().map(ReplicaError::from) {
                log::info!("{:#}: {}", place(&self.urls[replica.position]), pmof_mem::causes(&why));
            }
        }
        let electorate = Box::new(electorate);
        let origin = Origin::Found { access, electorate, source, left };
        Ok(NativeReplicas::new(self, opened, identity, (base, mark), origin))
    }
}

impl Open {
    /// Begins the opening's epoch. Returns in what the replicas may differ, if they may.
    fn begin(&self, left: Left, source: usize, told: &ToldMaps) -> Result<Option<Comparable>, PoolError> {
        let Some(epochs) = &self.epochs else { return Ok(None) };
        let ranges = self.keep_intent(left, told);
        let ranges = if left == Left::Alike { self.unprotected_in(ranges) } else { ranges };
        if !epochs.begin() {
            self.check_none_lost()?;
        }
        if left == Left::Closed {
            return Ok(None);
        }
        if self.in_use().count() == 1 {
            // One that is behind may know a higher one.
            epochs.tell_mark();
            self.settle()?;
            return Ok(None);
        }
        Ok(Some(Comparable { comparison: Comparison::of_ranges(ranges), source, differing: Differing::Copy }))
    }

    /// Has enough members know which of them are in sync. A member that was lost since the epoch began may differ, and must not be the
    /// next opening's source: what is read here would be gone.
    pub(super) fn settle(&self) -> Result<(), PoolError> {
        if self.epochs.as_ref().is_none_or(|epochs| epochs.settle()) { Ok(()) } else { self.check_none_lost() }
    }
}

/// Removes a replica whose pool was not made, if it is still that one: as soon as it is closed another writer may make one in its place, or open it.
pub(super) fn undo_creation(url: &PoolUrl, meant: MeantReplica, site: &Site) {
    // What cannot be undone ends with the connection; the caller reports the first failure.
    let _ = site.ask(&Request::Close { in_order: false });
    let _ = site.ask(&Request::Remove { name: url.name.clone(), meant: Some(meant) });
}

pub(super) fn failed(url: &Arc<PoolUrl>, error: ReplicaError) -> PoolError {
    PoolError::Replica { replica: place(url), source: Arc::new(error) }
}

pub(super) fn millis(duration: Duration) -> u64 {
    duration.as_millis().try_into().unwrap_or(u64::MAX)
}
