//! Opening a pool: asking all targets at once, and judging by their answers which replicas belong together.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use pmof_access::Durability;
use pmof_control::{
    Claim, FailureDomain, MeantReplica, NewPool, OpenFor, PoolState, Reply, Request, Roster, USER_FLAGS_BYTES,
};
use pmof_pool::Comparison;
use uuid::Uuid;

use super::{
    LeftOut, Open,
    acknowledge::{AckTerms, Acknowledge},
    compare::{Comparable, Differing},
    follow::{Follow, Said, Seen, Unread},
    followers::{Followers, KeepPoints},
    format::Format,
    intents,
    opened::{Checked, Identity, Reached, check_distinct, check_opened, none_opened, place},
    returns::{ReturnTerms, Returns},
    rosters::read_rosters,
};
use crate::{
    PoolError, PoolUrl, ReplicaError,
    domain::{distinct, numbered},
    electorate::{Electorate, Word},
    lineage::{Agreement, Apart, Base, Found, agree, quorum, votes_needed},
    outbox::LagBound,
    pages::PageMap,
    peers::Peers,
    reach::{Reach, grace},
    roster::{FoundMember, elsewhere},
    site::Site,
    view::Positions,
};

pub(super) mod contention;
pub(super) mod forced;
mod haste;
mod heard;
mod nearest;
mod others;
mod outsiders;
mod reachable;
mod replicas;
mod witnesses;

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

    /// Replicas that must have what is acknowledged.
    fn least(&self) -> usize {
        AckTerms::new(self.acknowledge, self.slow_after, self.reach.loss_timeout).least()
    }
}

/// Connections to the targets of a pool that is being made or opened.
#[derive(Debug)]
pub(super) struct Opening {
    wanted: Wanted,
    /// All replicas named, in their order, and those that were found by what these know.
    urls: Vec<Arc<PoolUrl>>,
    /// How many were named.
    named_count: usize,
    /// Those that are reached, by their positions.
    sites: Vec<(usize, Site)>,
    /// Those that are done without, by their positions, and why.
    left_out: Vec<(usize, Arc<ReplicaError>)>,
    /// Those that a reader has no use for but to be told of epochs.
    unread: Vec<Unread>,
    /// Without the number of replicas that was asked for, these would be too few to write.
    is_unsafe: bool,
    /// Some were opened whose state may be an older one.
    has_older: bool,
    began: Instant,
    peers: Peers,
}

/// A replica that its target has opened.
#[derive(Debug)]
struct Opened {
    position: usize,
    site: Site,
    index: u16,
    replica_uuid: Uuid,
    state: PoolState,
    /// The pool's members as it keeps them, if it does.
    roster: Option<Roster>,
    reached: Reached,
    size_bytes: u64,
    /// It has to catch up.
    is_behind: bool,
    /// It has no data.
    is_witness: bool,
    domain: Option<FailureDomain>,
}

/// A replica that could not be opened, and its connection where there still is one.
struct Failed {
    position: usize,
    site: Site,
    /// It is open there, and this replica.
    open: Option<Uuid>,
    error: ReplicaError,
}

impl Opening {
    /// Connects to the targets of `urls`. One that may be lost is left out, where a pool is opened.
    pub(super) fn connect(wanted: Wanted, urls: Vec<Arc<PoolUrl>>, is_new: bool) -> Result<Self, PoolError> {
        let (peers, began) = (wanted.reach.peers(), Instant::now());
        let (mut sites, mut left_out) = (Vec::with_capacity(urls.len()), Vec::new());
        // One that is made is made everywhere, or not at all.
        let enough =
            if is_new { urls.len() } else { wanted.haste.enough(votes_of_named(urls.len()).max(wanted.least())) };
        for (position, site) in wanted.reach.sites(&peers, &urls, (enough, grace(&urls))).into_iter().enumerate() {
            let url = &urls[position];
            wanted.haste.note(&site);
            match site {
                Ok(site) => sites.push((position, site)),
                Err(error) if !is_new && error.may_be_lost() => left_out.push((position, Arc::new(error))),
                Err(error) => return Err(failed(url, error)),
            }
        }
        let (unread, is_unsafe, has_older, named_count) = (Vec::new(), false, false, urls.len());
        Ok(Self { wanted, urls, named_count, sites, left_out, unread, is_unsafe, has_older, began, peers })
    }

    /// Goes on without a replica whose loss may be why.
    fn leave_out(&mut self, position: usize, error: ReplicaError) -> Result<(), PoolError> {
        if !error.may_be_lost() {
            return Err(failed(&self.urls[position], error));
        }
        self.left_out.push((position, Arc::new(error)));
        Ok(())
    }

    /// Replicas that are done without, for the program.
    fn told_left_out(&self) -> LeftOut {
        let told = |(position, why): &(usize, Arc<ReplicaError>)| (place(&self.urls[*position]), Arc::clone(why));
        let is_replica = |(_, why): &&(usize, Arc<ReplicaError>)| !matches!(**why, ReplicaError::Witness { .. });
        self.left_out.iter().filter(is_replica).map(told).collect()
    }

    fn made(mut self, opened: Vec<Opened>, identity: Option<Identity>, new: New) -> Result<NativeReplicas, PoolError> {
        let identity = identity.ok_or(PoolError::NoReplicas)?;
        let state = opened.first().map(|opened| opened.state.clone()).ok_or(PoolError::NoReplicas)?;
        let base = Base::after(state.epoch, state.opening, &state.ancestors);
        if new == New::Unpublished {
            // Nobody would bring it back.
            self.wanted.slow_after = None;
        }
        Ok(NativeReplicas::new(self, opened, identity, (base, 0), Origin::Made(new)))
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

    /// Asks all targets at once, or the `first` before the others, which are asked only where it has opened.
    fn ask(
        &mut self,
        access: OpenFor,
        first: Option<usize>,
        identity: &mut Option<Identity>,
        question: impl Fn(&PoolUrl, u16) -> Request,
    ) -> (Vec<Opened>, Vec<Failed>) {
        let sites = std::mem::take(&mut self.sites);
        let request = |index: usize| {
            let (position, _) = sites[index];
            question(&self.urls[position], position as u16)
        };
        let replies = match first {
            Some(first) => contention::of_one_first(&sites, first, request),
            None => contention::of_all(&sites, |index| self.urls[sites[index].0].name.clone(), request),
        };
        let (mut opened, mut failed) = (Vec::with_capacity(sites.len()), Vec::new());
        for ((position, site), reply) in sites.into_iter().zip(replies) {
            let Some(reply) = reply else { continue };
            let open = opened_uuid(&reply);
            let checked = reply.and_then(|reply| check_opened(reply, &site, self.wanted.require, access, identity));
            match checked {
                Ok(Checked { index, replica_uuid, size_bytes, state, reached }) => opened.push(Opened {
                    position,
                    site,
                    index,
                    replica_uuid,
                    state,
                    roster: None,
                    reached,
                    size_bytes,
                    is_behind: false,
                    is_witness: false,
                    domain: None,
                }),
                Err(error) => failed.push(Failed { position, site, open, error }),
            }
        }
        let rosters = read_rosters(opened.iter().map(|opened: &Opened| &opened.site));
        opened.iter_mut().zip(rosters).for_each(|(opened, roster)| opened.roster = roster);
        if access == OpenFor::Write {
            let asked: Vec<_> = opened.iter().map(|opened| opened.site.send(&Request::Domain)).collect();
            for (opened, asked) in opened.iter_mut().zip(asked) {
                opened.domain = opened.site.failure_domain(asked);
            }
        }
        (opened, failed)
    }

    /// Those that keep this roster, or never will, by their positions.
    fn keepers(opened: &[Opened], roster: &Roster) -> Positions {
        let keeps = |opened: &&Opened| opened.roster.as_ref().is_none_or(|kept| kept == roster);
        opened.iter().filter(keeps).fold(0, |all, opened| all | 1 << opened.position)
    }

    /// Which replicas were found where.
    fn found(&self, opened: &[Opened]) -> Vec<FoundMember> {
        let found = |opened: &Opened| {
            let Opened { position, index, replica_uuid, .. } = *opened;
            FoundMember { index, replica_uuid, url: Arc::clone(&self.urls[position]) }
        };
        opened.iter().map(found).collect()
    }

    fn terms(&self) -> AckTerms {
        let Wanted { acknowledge, slow_after, ref reach, .. } = self.wanted;
        AckTerms::new(acknowledge, slow_after, reach.loss_timeout)
    }

    /// Whether a persist of a pool with so many replicas can ever be acknowledged.
    fn check_acknowledge(&self, made: usize) -> Result<(), PoolError> {
        let wanted = self.terms().least();
        if wanted <= made { Ok(()) } else { Err(PoolError::NeverAcknowledged { wanted, made }) }
    }

    /// Whether the replicas that are open are in as many failure domains as a persist is to be in.
    fn check_domains(&self, opened: &[Opened]) -> Result<(), PoolError> {
        let opened: Vec<_> = opened.iter().filter(|opened| !opened.is_witness).collect();
        let domains: Vec<_> = opened.iter().map(|opened| opened.domain.as_ref()).collect();
        let (wanted, found) = (self.terms().domains(), distinct(numbered(&domains)));
        if wanted <= found.max(1) {
            return Ok(());
        }
        let named = |opened: &&Opened| {
            let domain = opened.domain.as_ref().map(|domain| domain.name.to_string());
            (place(&self.urls[opened.position]), domain)
        };
        Err(PoolError::TooFewDomains { wanted, found, replicas: opened.iter().map(named).collect() })
    }

    /// Whether those that are open make the pool, and who has to catch up. Those that are left out are released.
    fn judge(
        &mut self,
        opened: &mut Vec<Opened>,
        failed: Vec<Failed>,
        identity: Option<Identity>,
        electorate: &Electorate,
        access: OpenFor,
    ) -> Result<(Identity, Agreement), PoolError> {
        for Failed { position, site, open, error } in failed {
            if open.is_some() {
                release(&site);
            }
            self.leave_out(position, error)?;
        }
        let identity = identity.ok_or_else(|| match (&self.told_left_out()[..], self.wanted.min_replicas) {
            // All failed, and the first is the one that whoever opens would expect to be told of.
            ([(replica, source), ..], None) => {
                PoolError::Replica { replica: Arc::clone(replica), source: Arc::clone(source) }
            }
            (left_out, _) => none_opened(left_out),
        })?;
        let made = identity.replica_count;
        if opened.is_empty() {
            return Err(none_opened(&self.told_left_out()));
        }
        check_distinct(opened.iter().map(|opened| (&self.urls[opened.position], opened.index)))?;
        let found: Vec<_> = opened.iter().map(|opened| Found { index: opened.index, state: &opened.state }).collect();
        let mut agreement = agree(&found, made).map_err(|apart| self.apart(opened, &apart, made))?;
        if access == OpenFor::Write {
            agreement.put_stale_behind(&found);
            agreement.put_late_behind();
        }
        if let Err(error) = self.check_enough(&found, &agreement, electorate) {
            let others = [&agreement.behind[..], &agreement.foreign, &agreement.stale].concat();
            return Err(if others.is_empty() { error } else { self.apart(opened, &others, made) });
        }
        let is_enough = electorate.is_enough(&agreement, &found);
        let source = opened[agreement.source].position;
        self.sort_out(opened, &agreement, made, access);
        // With as many as an opening needs, and fewer than are to know of an epoch, the others may be opened in the same way.
        let is_quorum = electorate.is_quorum(opened.iter().map(|opened| opened.index));
        self.is_unsafe = self.wanted.min_replicas.is_some() && !(is_enough && is_quorum && !self.has_older);
        agreement.source = opened.iter().position(|opened| opened.position == source).unwrap_or(0);
        Ok((identity, agreement))
    }

    /// Whether those in sync have all that was ever acknowledged, and nobody else can go on without them.
    fn check_enough(
        &self,
        found: &[Found<'_>],
        agreement: &Agreement,
        electorate: &Electorate,
    ) -> Result<(), PoolError> {
        let made = electorate.count();
        let in_sync = agreement.in_sync.len();
        let (is_enough, needed) = match self.wanted.min_replicas {
            Some(least) => (in_sync >= least.max(1), least.max(1)),
            None => (electorate.is_enough(agreement, found), votes_needed(made.into())),
        };
        let made = usize::from(made);
        if is_enough {
            return Ok(());
        }
        if self.wanted.min_replicas.is_none() && !electorate.is_certain(agreement, found) {
            return Err(PoolError::UncertainRoster { replicas: self.told_left_out() });
        }
        let is_lost = |(_, why): &&(usize, Arc<ReplicaError>)| {
            !why.is_of_no_member() && !matches!(**why, ReplicaError::Asynchronous { .. })
        };
        let lost = self.left_out.iter().find(is_lost).or(self.left_out.first());
        if let (None, Some((position, why))) = (self.wanted.min_replicas, lost) {
            let (here, replica, source) = (found.len(), place(&self.urls[*position]), Arc::clone(why));
            return Err(PoolError::TooFew { here, made, needed, replica, source });
        }
        Err(PoolError::Degraded { opened: in_sync, made, needed, left_out: self.told_left_out() })
    }

    /// Marks those that have to catch up, and lets those go that are no part of the pool, or that a reader has no use for.
    fn sort_out(&mut self, opened: &mut Vec<Opened>, agreement: &Agreement, made: u16, access: OpenFor) {
        let behind = agreement.behind.iter().map(|(position, apart)| (*position, *apart, true));
        let foreign = agreement.foreign.iter().map(|(position, apart)| (*position, *apart, false));
        let mut others: Vec<_> = behind.chain(foreign).collect();
        others.sort_unstable_by_key(|(position, ..)| std::cmp::Reverse(*position));
        for (position, apart, may_catch_up) in others {
            let why = Arc::new(opened[position].why_apart(apart, made));
            if may_catch_up && access == OpenFor::Write {
                opened[position].is_behind = true;
                if !opened[position].is_witness {
                    log::info!("{:#}: {}", place(&self.urls[opened[position].position]), pmof_mem::causes(&*why));
                }
                continue;
            }
            let Opened { position, site, state, .. } = opened.remove(position);
            release(&site);
            if may_catch_up {
                let (url, said) = (Arc::clone(&self.urls[position]), Said::by(&state));
                self.unread.push(Unread { url, site, said });
            }
            self.left_out.push((position, why));
        }
        self.left_out.sort_unstable_by_key(|(position, _)| *position);
    }

    fn apart(&self, opened: &[Opened], apart: &[(usize, Apart)], made: u16) -> PoolError {
        let mut apart: Vec<_> = apart.to_vec();
        apart.sort_unstable_by_key(|(position, _)| *position);
        let named = |(position, apart): &(usize, Apart)| {
            (place(&self.urls[opened[*position].position]), Arc::new(opened[*position].why_apart(*apart, made)))
        };
        PoolError::Apart { replicas: apart.iter().map(named).collect() }
    }
}

/// A native pool to be made.
#[derive(Clone, Copy, Debug)]
pub(super) struct NewNative {
    pub(super) uuid: Uuid,
    pub(super) size_bytes: u64,
    pub(super) user_flags: [u8; USER_FLAGS_BYTES],
    pub(super) new: New,
}

impl NewNative {
    /// Asks a target to make one of the replicas.
    fn request(self, epoch: Uuid, of: (&PoolUrl, u16), count: u16, require: Durability) -> Request {
        let Self { uuid: pool_uuid, size_bytes, user_flags, new } = self;
        let (PoolUrl { name, .. }, replica_index) = of;
        let pool = NewPool { pool_uuid, size_bytes, epoch, replica_index, replica_count: count, require, user_flags };
        Request::Create { name: name.clone(), new: pool, publish_on_close: new == New::Unpublished }
    }
}

/// The native format, whose replicas record which of them have what.
impl Format for Opening {
    type New = NewNative;
    type Existing = OpenFor;
    type Replicas = NativeReplicas;

    fn create(mut self, new: NewNative) -> Result<NativeReplicas, PoolError> {
        self.check_acknowledge(self.urls.len())?;
        let (epoch, count, require) = (Uuid::new_v4(), self.urls.len() as u16, self.wanted.require);
        // Of several programs that make the same pool at once, one gets that replica, and the others make none.
        let first = (0..self.sites.len()).min_by_key(|index| self.urls[self.sites[*index].0].to_string());
        let mut identity = None;
        let question = |url: &PoolUrl, index| new.request(epoch, (url, index), count, require);
        let (opened, failed) = self.ask(OpenFor::Write, first, &mut identity, question);
        let too_few = self.check_domains(&opened);
        if failed.is_empty() && too_few.is_ok() {
            return self.made(opened, identity, new.new);
        }
        let opened =
            opened.into_iter().map(|Opened { position, site, replica_uuid, .. }| (position, site, replica_uuid));
        let failed_open = failed.iter().filter_map(|failed| Some((failed.position, failed.site.clone(), failed.open?)));
        // Without its memory: what is mapped cannot be removed.
        for (position, site, replica) in opened.chain(failed_open) {
            // What has no name yet goes with its connection.
            if new.new == New::Published {
                undo_creation(&self.urls[position], MeantReplica { uuid: replica, epoch: Some(epoch) }, &site);
            }
        }
        match failed.into_iter().next() {
            Some(Failed { position, error, .. }) => Err(self::failed(&self.urls[position], error)),
            None => Err(too_few.err().unwrap_or(PoolError::NoReplicas)),
        }
    }

    /// Opens the replicas that belong together, or releases all of them.
    fn open(mut self, access: OpenFor) -> Result<NativeReplicas, PoolError> {
        let require = self.wanted.require;
        let take_over = self.wanted.take_over.filter(|_| access == OpenFor::Write);
        let question = |url: &PoolUrl, _| match (take_over, url.name.clone()) {
            (None, name) => Request::Open { name, access, require, may_be_older: false },
            (Some(silent_for), name) => {
                Request::TakeOver { name, require, silent_ms: millis(silent_for), claim: Claim::None }
            }
        };
        let mut identity = None;
        let (mut opened, mut failed) = self.ask(access, None, &mut identity, question);
        self.open_older(&mut opened, &mut failed, access, &mut identity);
        let (uuid, mut followed) = (identity.map_or(Uuid::nil(), |identity| identity.uuid), None);
        let mut heard = self.hear_all(&opened, access, uuid);
        // Those that are found may know of later members.
        while let Some(roster) = self.newer_roster(&opened, &heard, followed.as_ref()) {
            let here = self.found(&opened);
            let is_member =
                |found: &&FoundMember| roster.counted().any(|member| member.is(found.index, found.replica_uuid));
            let count = roster.counted().count() + here.iter().filter(|found| !is_member(found)).count();
            let found = elsewhere(&roster, &here, &self.urls);
            let (others, failed_others) =
                self.open_others((&found, count, here.len()), access, &mut identity, question);
            opened.extend(others);
            failed.extend(failed_others);
            heard.extend(self.hear_spares(&roster, &opened, uuid));
            heard.extend(self.hear_promoted(&roster, uuid));
            followed = Some(roster);
        }
        let made = identity.map_or(0, |identity| identity.replica_count);
        let electorate = heard::electorate(&opened, &heard, made);
        let identity = identity.map(|identity| Identity { replica_count: electorate.count(), ..identity });
        self.leave_out_non_members(&mut opened, &electorate, access);
        self.leave_out_copies(&mut opened, &electorate);
        if let Some(identity) = &identity {
            failed.append(&mut Self::find_witnesses(&mut opened, &electorate, identity));
        }
        let alone = self.asynchronous_alone(&opened, &failed).or_else(|| self.witnesses_alone(&opened, &failed));
        let judged = match alone {
            Some(error) => Err(error),
            None => self.judge(&mut opened, failed, identity, &electorate, access),
        };
        let judged = match judged {
            Ok((identity, agreement)) if access == OpenFor::Write => self
                .check_acknowledge(electorate.data_count())
                .and_then(|()| self.check_domains(&opened))
                .map(|()| (identity, agreement)),
            judged => judged,
        };
        let (identity, agreement) = match judged {
            Ok(judged) => judged,
            Err(error) => {
                for Opened { site, .. } in &opened {
                    release(site);
                }
                return Err(error);
            }
        };
        let Agreement { base, is_clean, source, mark, .. } = agreement;
        let (source, in_sync) = (opened[source].position, found(&opened, is_clean));
        let electorate = Box::new(electorate);
        let origin = Origin::Found { access, electorate, source, is_clean, in_sync };
        Ok(NativeReplicas::new(self, opened, identity, (base, mark), origin))
    }
}

impl Open {
    /// Begins the opening's epoch. Returns in what the replicas may differ, if they may.
    fn begin(&self, found: intents::Found, source: usize) -> Result<Option<Comparable>, PoolError> {
        let Some(epochs) = &self.epochs else { return Ok(None) };
        let ranges = self.keep_intent(found);
        if !epochs.begin() {
            self.check_none_lost()?;
        }
        if found == intents::Found::Equal {
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

/// How many that were named are enough to go on with, which may be of a pool that has more: they open it, and confirm an epoch.
fn votes_of_named(named: usize) -> usize {
    votes_needed(named.max(1)).max(quorum(named)).min(named.saturating_sub(1)).max(1)
}

/// How those in sync were found. `is_clean`: all of them were closed in order.
fn found(opened: &[Opened], is_clean: bool) -> intents::Found {
    let mut of =
        opened.iter().filter(|opened| !opened.is_behind).map(|opened| (opened.state.is_open, opened.state.mark));
    let first = of.next();
    match (is_clean, of.all(|next| Some(next) == first)) {
        (true, _) => intents::Found::Equal,
        (false, true) => intents::Found::Alike,
        (false, false) => intents::Found::Unlike,
    }
}

/// What those that are open say of the pool's members.
fn words(opened: &[Opened]) -> Vec<Word<'_>> {
    let words = opened.iter().map(|opened| Word {
        found: Found { index: opened.index, state: &opened.state },
        replica_uuid: opened.replica_uuid,
        roster: opened.roster.as_ref(),
    });
    words.collect()
}

/// Lets others open a replica whose pool was not opened, before the caller may try again. It stays as it was found.
fn release(site: &Site) {
    // What cannot be undone ends with the connection; the caller reports the first failure.
    let _ = site.ask(&Request::Close { in_order: false });
}

/// The replica that was opened there, or made.
pub(super) fn opened_uuid(reply: &Result<Reply, ReplicaError>) -> Option<Uuid> {
    match reply {
        Ok(Reply::Opened { replica_uuid, .. }) => Some(*replica_uuid),
        _ => None,
    }
}

/// Removes a replica whose pool was not made, if it is still that one: as soon as it is closed another writer may make one in its place, or open it.
pub(super) fn undo_creation(url: &PoolUrl, meant: MeantReplica, site: &Site) {
    release(site);
    let _ = site.ask(&Request::Remove { name: url.name.clone(), meant: Some(meant) });
}

pub(super) fn failed(url: &Arc<PoolUrl>, error: ReplicaError) -> PoolError {
    PoolError::Replica { replica: place(url), source: Arc::new(error) }
}

pub(super) fn millis(duration: Duration) -> u64 {
    duration.as_millis().try_into().unwrap_or(u64::MAX)
}
