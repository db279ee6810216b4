//! Changes of an open pool's members: one that comes is made empty, becomes a member, and catches up as any other; one that goes is told so.
//!
//! How a change is made durable is in `epochs/change.rs`, who may open the pool after it in `electorate.rs`.

use std::{sync::Arc, time::Duration};

use parking_lot::MutexGuard;
use pmof_control::{
    Forced, MeantReplica, NewPool, OpenFor, PoolInfo, PoolRefusal, PoolState, Reply, Request, Role, Roster,
    RosterMember, WITNESS_BYTES,
};
use pmof_replication::opening::Left;
use uuid::Uuid;

use super::{
    Open, Pool, Shared,
    domains::number_domains,
    epochs::Epochs,
    events::Event,
    intents::ToldMaps,
    opened::{Checked, check_opened, place},
    opening::{opened_uuid, undo_creation},
    returns::Returns,
};
use crate::{
    PoolError, PoolUrl, ReplicaError, ReplicaPlace,
    intent::Intent,
    lineage::was_never_in_sync,
    member::{AbsentMember, Member, Standing, UNKNOWN_SUCCESSOR, replica_error},
    membership::{Changed, Planned},
    pages::PageMap,
    roster::{free_index, named},
    site::Site,
};

mod asynchronous;
mod error;
mod spares;

pub use error::ChangeError;

/// Places of members that come and go while a pool is open: a position is a bit of 64.
const PLACES_MAX: usize = 64;

/// How often it is looked whether a new member is in sync.
const LOOK: Duration = Duration::from_millis(20);

/// Looks in a row at which a new member is lost before nobody waits for it any more: 10 s, in which a target may be started again.
const LOST_LOOKS: u32 = 500;

impl Pool {
    /// Makes an empty replica of the pool at `url`, and makes it a member, durably. It catches up in the background while the pool is written, and then counts
    /// as any other: [`status`](Self::status) and [`events`](Self::events) tell. The pool must not exist there.
    ///
    /// When this returns, whoever opens the pool counts it among its members: with three of them an opening and an acknowledgement after a loss need
    /// two, with four three. Persists wait for it meanwhile no longer than for any loss of a replica.
    ///
    /// A crash in the middle leaves the pool with the members before or after, whichever is opened; and maybe a replica there that is no member, which the same call takes
    /// away.
    ///
    /// # Errors
    /// [`ChangeError`]. All but [`Undecided`](ChangeError::Undecided) leave the members as they were.
    pub fn add(&self, url: &str) -> Result<(), ChangeError> {
        let (changer, url) = (self.changer()?, Arc::new(url.parse()?));
        changer.add(&url, Role::Data)?;
        changer.forget_spare(&url)
    }

    /// Makes a witness at `url` a member, durably: it keeps the pool's epochs and its list of members, and none of its bytes. It counts where members have to know of an epoch,
    /// and for nothing else: no receipt names it, nothing is read from it. So a pool of two and a witness opens and goes on when any one of the three is lost. It takes little
    /// room on its target; that should be none of a member's, or fails with it.
    ///
    /// # Errors
    /// [`ChangeError`]. All but [`Undecided`](ChangeError::Undecided) leave the members as they were.
    pub fn add_witness(&self, url: &str) -> Result<(), ChangeError> {
        self.changer()?.add(&Arc::new(url.parse()?), Role::Witness)
    }

    /// Makes a member no member, durably: one that is lost, or one that is in sync, as long as another one is. `replica` is its URL, or its number as `pmof pool
    /// status` tells it.
    ///
    /// From then on it counts for nothing, also when it comes back from the dead or is opened alone. Its bytes stay where they are: remove them there
    /// ([`PoolOptions::remove`](crate::PoolOptions::remove)).
    ///
    /// # Errors
    /// [`ChangeError`]. All but [`Undecided`](ChangeError::Undecided) leave the members as they were.
    pub fn remove(&self, replica: &str) -> Result<(), ChangeError> {
        self.changer()?.remove(replica)
    }

    /// Makes a new replica at `new` a member in the place of `old`: [adds](Self::add) it, waits until it is in sync where `old` has something to lose, and
    /// [removes](Self::remove) `old`. One that is lost is removed at once.
    ///
    /// After an error or a crash the same call goes on where that ended: it does not add a member again that has yet to be in sync, nor remove one that is none.
    /// Where the new one is in sync already it is refused: then [`remove`](Self::remove) the old one.
    ///
    /// Returns whether there was anything to do. False: `new` is a member, and nobody is called `old`: an earlier call has done it all, or `old` is wrong.
    ///
    /// # Errors
    /// [`ChangeError`]: after it the new one may be a member, and the old one still is, unless it is [`Undecided`](ChangeError::Undecided).
    pub fn replace(&self, old: &str, new: &str) -> Result<bool, ChangeError> {
        let (new_url, changer): (Arc<PoolUrl>, _) = (Arc::new(new.parse()?), self.changer()?);
        let roster = changer.roster()?;
        // One that has gone already was named by an address or a number, too.
        let is_name = old.parse::<PoolUrl>().is_ok() || old.parse::<u16>().is_ok();
        match (named(&roster, old), named(&roster, new)) {
            (None, Some(_)) if is_name => return Ok(false),
            (Some(old), Some(new)) if old.index == new.index => {
                return Err(ChangeError::ItsOwnPlace { replica: place(&new_url), index: old.index });
            }
            (Some(old), Some(new)) if (old.role != new.role && new.role != Role::Spare) => {
                return Err(ChangeError::AlreadyMember { replica: place(&new_url) });
            }
            (Some(old), known) if old.role == Role::Asynchronous => {
                known.map_or_else(|| changer.add_asynchronous(&new_url), |_| Ok(()))?;
                changer.remove_asynchronous(old)?;
                return Ok(true);
            }
            (Some(old), _) if old.role == Role::Spare => {
                changer.add_spare(&new_url)?;
                changer.remove_spare(old)?;
                return Ok(true);
            }
            (_, Some(new)) if new.role != Role::Spare => {
                let old = meant(&roster, old)?;
                // An addition that was interrupted leaves one that has never been in sync.
                if changer.epochs.lock().view().line().iter().any(|epoch| epoch.has(new.index)) {
                    return Err(ChangeError::NotNew { replica: place(&new_url), old: old.index });
                }
            }
            _ => {
                let old = meant(&roster, old)?;
                changer.add(&new_url, old.role)?;
            }
        }
        // It may have been a spare, also when this was called before.
        changer.forget_spare(&new_url)?;
        let mut lost_looks = 0;
        loop {
            let (roster, open) = (changer.roster()?, changer.shared.hold()?);
            let member = |text: &str| {
                let index = named(&roster, text).map(|member| member.index)?;
                let position = changer.epochs.lock().view().position(index)?;
                Some(&open.members[position])
            };
            let is_in_use = |text: &str| member(text).is_some_and(|member| member.state().is_in_sync());
            if !is_in_use(old) || is_in_use(new) {
                changer.remove(old)?;
                return Ok(true);
            }
            let failure = member(new).and_then(|member| member.standing().failure().map(Arc::clone));
            lost_looks = if failure.is_some() { lost_looks + 1 } else { 0 };
            if let Some(source) = failure.filter(|_| lost_looks >= LOST_LOOKS) {
                return Err(ChangeError::NewMemberLost { replica: place(&new_url), source });
            }
            drop(open);
            std::thread::sleep(LOOK);
        }
    }

    /// Notes durably that whoever operates the pool knows that it [was forced](crate::PoolStatus::forced), and what may be lost by that: nothing shows it from then on. Returns what
    /// was shown, if anything was.
    ///
    /// # Errors
    /// [`ChangeError`].
    pub fn clear_forced(&self) -> Result<Option<Forced>, ChangeError> {
        let changer = self.changer()?;
        let forced = changer.roster()?.forced;
        if forced.is_some() {
            outcome(changer.epochs.clear_forced())?;
        }
        Ok(forced)
    }

    /// The right to change the members, which one has at a time. A spare that is being made by itself gives way.
    fn changer(&self) -> Result<Changer<'_>, ChangeError> {
        self.changer_by(Returns::right_to_change)
    }

    fn changer_by<'p>(
        &'p self,
        right: impl FnOnce(&'p Returns) -> Option<MutexGuard<'p, ()>>,
    ) -> Result<Changer<'p>, ChangeError> {
        let shared = &*self.0;
        if shared.facts.access == OpenFor::Read {
            return Err(PoolError::ReadOnly.into());
        }
        let open = shared.hold()?;
        let epochs = open.epochs.clone().ok_or(ChangeError::PoolSet)?;
        let returns = shared.returns.as_ref().ok_or(ChangeError::Unpublished)?;
        if returns.is_forced {
            return Err(ChangeError::Forced);
        }
        let guard = right(returns).ok_or(ChangeError::UnderWay)?;
        let mut failures = open.members.iter().filter_map(|member| Some((member, member.standing().failure()?)));
        if let Some((member, why)) = failures.find(|(_, why)| why.is_fenced()) {
            return Err(replica_error(&**member, Arc::clone(why)).into());
        }
        Ok(Changer { pool: self, shared, epochs, returns, _guard: guard })
    }
}

/// Whoever changes the members.
struct Changer<'p> {
    pool: &'p Pool,
    shared: &'p Shared,
    epochs: Arc<Epochs>,
    returns: &'p Arc<Returns>,
    _guard: MutexGuard<'p, ()>,
}

/// A replica that was made to become a member.
struct Made {
    url: Arc<PoolUrl>,
    site: Site,
    /// As it was made.
    state: PoolState,
    member: Arc<dyn Member>,
    of_roster: RosterMember,
}

impl Made {
    /// For its removal. It knows that it is behind, so no program opens it alone.
    fn meant(&self) -> MeantReplica {
        MeantReplica::at_any_epoch(self.of_roster.replica_uuid)
    }
}

impl Changer<'_> {
    /// The members, which all targets that are connected can keep. One that is too slow is not waited for.
    fn roster(&self) -> Result<Roster, ChangeError> {
        let open = self.shared.hold()?;
        for member in open.places().filter(|member| member.state().is_prompt()) {
            let asked = member.control().map(|control| control.ask(&Request::Roster { offset: 0 }));
            if let Some(Err(why)) = asked {
                if matches!(*why, ReplicaError::Refused { .. }) {
                    return Err(ChangeError::TooOld { replica: Arc::clone(&member.standing().place) });
                }
            }
        }
        if !self.epochs.is_decided() {
            return Err(ChangeError::Undecided);
        }
        self.epochs.roster().ok_or(ChangeError::TooFew)
    }

    fn add(&self, url: &Arc<PoolUrl>, role: Role) -> Result<(), ChangeError> {
        let (made, position) = self.prepare(url, role)?;
        self.complete(&made, position, role)
    }

    /// Makes an empty replica, and gives it a place in which it is no member yet.
    fn prepare(&self, url: &Arc<PoolUrl>, role: Role) -> Result<(Made, usize), ChangeError> {
        let roster = self.roster()?;
        let known = named(&roster, &url.to_string()).map(|member| member.role);
        // A spare may become a member that has the bytes, and nothing else.
        if let Some(known) = known.filter(|known| (*known, role) != (Role::Spare, Role::Data)) {
            return Err(is_known(url, known, role));
        }
        let made = self.make(&roster, url, role)?;
        if let Err(error) = roster.adding(made.of_roster.clone(), Uuid::new_v4()).check() {
            undo_creation(url, made.meant(), &made.site);
            return Err(error.into());
        }
        let position = self.admit(&made).inspect_err(|_| undo_creation(url, made.meant(), &made.site))?;
        let index = made.of_roster.index;
        // It knows that it is behind before it is a member: what it was made with would pass for another line of the pool.
        if !self.epochs.introduce(position, index, &made.state, &made.member) {
            let lost = made.member.standing().failure().map(Arc::clone);
            let source = lost.unwrap_or_else(|| Arc::new(ReplicaError::Behind));
            undo_creation(url, made.meant(), &made.site);
            self.give_up(position, index);
            return Err(ChangeError::NotMade { replica: place(url), source });
        }
        Ok((made, position))
    }

    /// Makes it a member, durably, or takes it away.
    fn complete(&self, made: &Made, position: usize, role: Role) -> Result<(), ChangeError> {
        let url = &made.url;
        let changed = self.epochs.change(&Planned::Add(made.of_roster.clone()));
        if matches!(changed, Changed::TooFew | Changed::Disturbed | Changed::Ended) {
            undo_creation(url, made.meant(), &made.site);
            self.give_up(position, made.of_roster.index);
        } else {
            made.member.standing().is_made_a_member();
            if !self.returns.is_candidate(position) {
                self.returns.bring_in(position);
            }
            self.shared.events.add(match role {
                Role::Witness => Event::WitnessAdded { replica: place(url) },
                _ => Event::Added { replica: place(url) },
            });
            self.warn_of_shared_domain(made);
        }
        outcome(changed)
    }

    /// A witness that fails with a member that has data is no help where that one is lost.
    fn warn_of_shared_domain(&self, made: &Made) {
        let (witness, Ok(open)) = (made.member.standing(), self.shared.hold()) else { return };
        let Some(own) = witness.failure_domain().filter(|_| witness.state().is_witness()) else { return };
        let is_shared =
            |member: &&Arc<dyn Member>| member.standing().failure_domain().is_some_and(|domain| domain.is_shared(own));
        if let Some(member) = open.places().find(is_shared) {
            let (witness, replica) = (&witness.place, &member.standing().place);
            log::warn!(
                "the witness {witness:#} is in the failure domain of {replica:#}, {}: both may be lost at once",
                own.name
            );
        }
    }

    /// The request for an empty replica, the `count`-th.
    fn creation(&self, url: &PoolUrl, (index, role): (u16, Role), count: u16) -> Request {
        let facts = &self.shared.facts;
        let new = NewPool {
            pool_uuid: facts.uuid,
            size_bytes: if role == Role::Witness { WITNESS_BYTES } else { facts.size_bytes },
            epoch: Uuid::new_v4(),
            replica_index: index,
            replica_count: count.max(index + 1),
            require: facts.durability,
            user_flags: facts.user_flags,
        };
        Request::Create { name: url.name.clone(), new, publish_on_close: false }
    }

    /// Makes an empty replica.
    fn make(&self, roster: &Roster, url: &Arc<PoolUrl>, role: Role) -> Result<Made, ChangeError> {
        let not_made = |source: ReplicaError| ChangeError::NotMade { replica: place(url), source: Arc::new(source) };
        let open = self.shared.hold()?;
        let too_many = || ChangeError::TooMany { count: roster.members.len() };
        let index = free_index(roster, self.epochs.lock().view().line()).ok_or_else(too_many)?;
        if open.members.len() >= PLACES_MAX && self.returns.free_place().is_none() {
            return Err(too_many());
        }
        let facts = &self.shared.facts;
        let create = self.creation(url, (index, role), roster.counted().count() as u16 + 1);
        let site = self.returns.site(url).map_err(not_made)?;
        let reply = match site.ask(&create) {
            Err(ReplicaError::Refused { refusal: PoolRefusal::AlreadyExists, text }) => {
                self.take_away(roster, url, &site, text)?;
                site.ask(&create)
            }
            reply => reply,
        };
        let made_uuid = opened_uuid(&reply);
        let undo = || made_uuid.iter().for_each(|uuid| undo_creation(url, MeantReplica::at_any_epoch(*uuid), &site));
        let checked = check_opened(
            reply.map_err(not_made)?,
            &site,
            facts.durability,
            OpenFor::Write,
            &mut Some(self.returns.identity()),
        );
        let made = checked.and_then(|Checked { replica_uuid, size_bytes, state, reached, .. }| {
            self.returns.identity().check_size(size_bytes, role == Role::Witness)?;
            let domain = site.failure_domain(site.send(&Request::Domain));
            let name = domain.as_ref().map_or_else(String::new, |domain| domain.name.to_string());
            let standing = Standing::candidate(place(url)).of_witness(role == Role::Witness);
            let standing = standing.with_failure_domain(domain);
            let member = reached.member(standing, site.clone(), facts.size_bytes, open.mirror.as_ref())?;
            let url_text = url.to_string();
            let of_roster = RosterMember { index, role, replica_uuid, url: url_text, domain: name };
            Ok((state, member, of_roster))
        });
        let keeps_members = site.ask(&Request::Roster { offset: 0 });
        if matches!(keeps_members, Err(ReplicaError::Refused { .. })) {
            undo();
            return Err(ChangeError::TooOld { replica: place(url) });
        }
        match made {
            Ok((state, member, of_roster)) => Ok(Made { url: Arc::clone(url), site, state, member, of_roster }),
            Err(error) => {
                undo();
                Err(not_made(error))
            }
        }
    }

    /// What a replica with the pool's identity is that is no member.
    fn in_the_way(&self, replica: Arc<ReplicaPlace>, info: &PoolInfo) -> ChangeError {
        let (index, epochs) = (info.header.replica_index, self.epochs.lock());
        let view = epochs.view();
        match ReplicaError::outside(index, &info.state, (&[view.line().to_vec()], view.opening())) {
            ReplicaError::NotAMember { .. } => ChangeError::Leftover { replica },
            why => ChangeError::OtherHistory { replica, source: Arc::new(why) },
        }
    }

    /// Removes what an addition left there that was never in sync; anything else of that name stays.
    fn take_away(&self, roster: &Roster, url: &Arc<PoolUrl>, site: &Site, text: String) -> Result<(), ChangeError> {
        let refused = ReplicaError::Refused { refusal: PoolRefusal::AlreadyExists, text };
        let not_made = |source: ReplicaError| ChangeError::NotMade { replica: place(url), source: Arc::new(source) };
        let name = url.name.clone();
        let Ok(Reply::Info(info)) = site.ask(&Request::Info { name: name.clone() }) else {
            return Err(not_made(refused));
        };
        let (header, replica) = (&info.header, place(url));
        if header.pool_uuid != self.shared.facts.uuid {
            return Err(ChangeError::OtherPool { replica, found_uuid: header.pool_uuid });
        }
        if roster.members.iter().any(|member| member.is(header.replica_index, header.replica_uuid)) {
            return Err(ChangeError::AlreadyMember { replica });
        }
        if info.open_by.is_some() || !was_never_in_sync(header.replica_index, &info.state) {
            return Err(self.in_the_way(replica, &info));
        }
        // A writer after this one may have made a member of it, which nobody has open now.
        if self.epochs.lock().view().is_superseded_by(&info.state) {
            self.shared.hold()?.fence(UNKNOWN_SUCCESSOR);
            return Err(not_made(ReplicaError::Fenced { successor: UNKNOWN_SUCCESSOR.to_owned() }));
        }
        let meant = MeantReplica { uuid: header.replica_uuid, epoch: Some(info.state.epoch.id) };
        site.ask(&Request::Remove { name, meant: Some(meant) }).map(drop).map_err(not_made)
    }

    /// Gives a new replica its place, in which it is no member yet, so that the watcher leaves it alone. Where its address was named and nothing was
    /// found there, it is not looked for at that place any more.
    fn admit(&self, made: &Made) -> Result<usize, ChangeError> {
        let free = self.returns.add_place(&made.url);
        let mut guard = self.returns.hold_all(self.shared).map_err(|_| PoolError::Closed)?;
        let open = guard.as_ref().ok_or(PoolError::Closed)?;
        let mut members = open.members.clone();
        for (at, absent) in self.never_found(open, made) {
            self.epochs.remove_place(at, &absent);
            members[at] = absent;
        }
        let position = self.epochs.add_place(free, made.of_roster.index, &made.member);
        match members.get_mut(position) {
            Some(place) => *place = Arc::clone(&made.member),
            None => members.push(Arc::clone(&made.member)),
        }
        number_domains(&members);
        let mut fresh = open.with_members(members, open.catching_up.clone());
        if fresh.written.is_none() {
            // Of a pool of one nobody has kept what a second may lack.
            fresh.written = Some(Arc::new(PageMap::new(fresh.facts.size_bytes)));
            fresh.intent = Some(Arc::new(Intent::new(fresh.facts.size_bytes)));
            fresh.keep_intent(Left::Unlike, &ToldMaps::new());
        }
        *guard = Some(Arc::new(fresh));
        drop(guard);
        Returns::start(&self.pool.0);
        Ok(position)
    }

    /// The places of replicas that are looked for at the address of a new one, and what takes them.
    fn never_found(&self, open: &Open, made: &Made) -> Vec<(usize, Arc<dyn Member>)> {
        let epochs = self.epochs.lock();
        let is_there = |at: usize, member: &dyn Member| {
            let is_lost = member.state().is_lost() && epochs.view().index(at).is_none();
            is_lost && member.standing().place.url() == Some(&*made.url)
        };
        let found = open.members.iter().enumerate().filter(|(at, member)| is_there(*at, &***member));
        found.map(|(at, member)| (at, vacant_place(&member.standing().place, made.of_roster.index))).collect()
    }

    fn remove(&self, wanted: &str) -> Result<(), ChangeError> {
        let roster = self.roster()?;
        let of_roster = meant(&roster, wanted)?;
        let index = of_roster.index;
        match of_roster.role {
            Role::Asynchronous => return self.remove_asynchronous(of_roster),
            Role::Spare => return self.remove_spare(of_roster),
            Role::Data | Role::Witness => {}
        }
        let position = self.position(of_roster)?;
        self.check_may_go(&roster, index, position)?;
        let changed = self.epochs.change(&Planned::Remove(index));
        if matches!(changed, Changed::Done | Changed::Undecided) {
            let url = roster.member(index).and_then(|member| member.url.parse().ok()).map(Arc::new);
            if let Some(position) = position {
                self.let_go(position, index);
            }
            let replica = url.map(|url| place(&url));
            self.shared.events.add(Event::Removed { replica, index });
        }
        outcome(changed)
    }

    /// Where a member lies, or is looked for since the pool was opened without it. `None`: it is not looked for.
    fn position(&self, of_roster: &RosterMember) -> Result<Option<usize>, ChangeError> {
        let (open, url) = (self.shared.hold()?, of_roster.url.parse::<PoolUrl>().ok());
        let state = self.epochs.lock();
        let is_looked_for = |position: &usize| {
            let place = &open.members[*position].standing().place;
            state.view().index(*position).is_none() && url.is_some() && place.url() == url.as_ref()
        };
        Ok(state.view().position(of_roster.index).or_else(|| (0..open.members.len()).find(is_looked_for)))
    }

    /// Whether the pool is one without this member.
    fn check_may_go(&self, roster: &Roster, index: u16, position: Option<usize>) -> Result<(), ChangeError> {
        let open = self.shared.hold()?;
        let goes = |at: usize| Some(at) == position;
        let is_other = |at: usize, standing: &Standing| !goes(at) && !standing.state().is_witness();
        let standings = || open.members.iter().enumerate().map(|(at, member)| (at, member.standing()));
        let others = || standings().filter(|(at, standing)| is_other(*at, standing)).map(|(_, standing)| standing);
        if !others().any(|standing| standing.state().is_in_sync()) {
            let url = roster.member(index).and_then(|member| member.url.parse::<PoolUrl>().ok()).map(Arc::new);
            let of_position = || position.map(|at| Arc::clone(&open.members[at].standing().place));
            let replica = of_position().or_else(|| url.map(|url| place(&url)));
            return Err(replica.map_or(ChangeError::TooFew, |replica| ChangeError::LastInSync { replica }));
        }
        let left = roster.with_data().filter(|member| member.index != index).count();
        // One whose domain is not known now may be in one of its own.
        let data = || others().filter(|standing| standing.state().is_data_member());
        let unknown = data().filter(|standing| standing.domain().is_none()).count();
        let known = crate::domain::distinct(data().map(Standing::domain));
        open.terms.check_can_be_met(left, known + unknown).map_err(|(what, wanted, left)| ChangeError::PromiseBroken {
            what,
            wanted,
            left,
        })
    }

    /// Nothing is asked of this replica any more, and its target may open it for others.
    fn let_go(&self, position: usize, index: u16) {
        let Ok(mut guard) = self.returns.hold_all(self.shared) else { return };
        let Some(open) = guard.as_ref() else { return };
        let (members, catching_up) = open.without(position, index);
        let gone = Arc::clone(&open.members[position]);
        *guard = Some(Arc::new(open.with_members(members, catching_up)));
        // Its target may hang: nobody who writes waits for it any more.
        drop(guard);
        part_with(&*gone, index);
    }

    /// The same of one that has never been a member: another may have its place.
    fn give_up(&self, position: usize, index: u16) {
        self.let_go(position, index);
        self.returns.give_back_place(position);
    }
}

impl Open {
    /// The members with nobody in one's place, and what the others still lack.
    fn without(&self, position: usize, index: u16) -> (Vec<Arc<dyn Member>>, CatchingUp) {
        let absent = vacant_place(&self.members[position].standing().place, index);
        if let Some(epochs) = &self.epochs {
            epochs.remove_place(position, &absent);
        }
        let mut members = self.members.clone();
        members[position] = absent;
        number_domains(&members);
        (members, self.catching_up.iter().filter(|(of, _)| *of != position).cloned().collect())
    }

    /// The same of one that was removed before the pool was opened, and may not know.
    pub(super) fn let_member_go(&mut self, position: usize, index: u16) {
        part_with(&*self.members[position], index);
        (self.members, self.catching_up) = self.without(position, index);
    }
}

/// What has the place of one that is no member.
fn vacant_place(place: &Arc<ReplicaPlace>, index: u16) -> Arc<dyn Member> {
    Arc::new(AbsentMember::new(Arc::clone(place), Arc::new(ReplicaError::NotAMember { index })))
}

/// Has the target of a replica that is no member close it.
fn part_with(gone: &dyn Member, index: u16) {
    if let Some(control) = gone.control() {
        // What cannot be closed ends with the connection; so does one that would be waited for.
        if !gone.state().is_slow() {
            let _ = control.ask(&Request::Close { in_order: false });
        }
        control.fail(ReplicaError::NotAMember { index });
    }
}

/// The member that is meant by an address or a number.
fn meant<'r>(roster: &'r Roster, wanted: &str) -> Result<&'r RosterMember, ChangeError> {
    let not_found = || {
        let member = |member: &RosterMember| format!("{} ({})", member.index, member.url);
        ChangeError::NotAMember { wanted: wanted.to_owned(), members: roster.members.iter().map(member).collect() }
    };
    named(roster, wanted).ok_or_else(not_found)
}

/// What has this address is not to be made there.
fn is_known(url: &Arc<PoolUrl>, known: Role, wanted: Role) -> ChangeError {
    let replica = place(url);
    match known {
        Role::Spare if wanted != known => ChangeError::IsSpare { replica },
        Role::Witness if wanted != known => ChangeError::IsWitness { replica },
        _ => ChangeError::AlreadyMember { replica },
    }
}

type CatchingUp = Vec<(usize, Arc<crate::catch_up::CatchUp>)>;

fn outcome(changed: Changed) -> Result<(), ChangeError> {
    match changed {
        Changed::Done => Ok(()),
        Changed::TooFew => Err(ChangeError::TooFew),
        Changed::Disturbed => Err(ChangeError::Disturbed),
        Changed::Undecided => Err(ChangeError::Undecided),
        Changed::Ended => Err(PoolError::Closed.into()),
    }
}
