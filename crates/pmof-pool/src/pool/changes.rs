//! Changes of an open pool's members: one that comes is made empty, becomes a member, and catches up as any other; one that goes is told so.
//!
//! How a change is made durable is in `epochs/change.rs`, who may open the pool after it in `electorate.rs`.

use std::sync::Arc;

use pmof_control::{Forced, OpenFor, Request, Role, Roster, RosterMember};
use pmof_locks::MutexGuard;
use pmof_replication::{changing as engine, opening::Left};

use super::{
    Open, Pool, Shared,
    domains::number_domains,
    epochs::{Epochs, done},
    intents::ToldMaps,
    opened::place,
    returns::Returns,
};
use crate::{
    PoolError, PoolUrl, ReplicaError, ReplicaPlace,
    intent::Intent,
    member::{AbsentMember, Member, replica_error},
    pages::PageMap,
    roster::named,
    site::Site,
};

mod asynchronous;
mod driver;
mod error;
mod spares;

use driver::outcome;

pub use error::ChangeError;

/// Places of members that come and go while a pool is open: a position is a bit of 64.
const PLACES_MAX: usize = 64;

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
        done(engine::add(&changer, &url, Role::Data))?;
        done(engine::forget_spare(&changer, &url))
    }

    /// Makes a witness at `url` a member, durably: it keeps the pool's epochs and its list of members, and none of its bytes. It counts where members have to know of an epoch,
    /// and for nothing else: no receipt names it, nothing is read from it. So a pool of two and a witness opens and goes on when any one of the three is lost. It takes little
    /// room on its target; that should be none of a member's, or fails with it.
    ///
    /// # Errors
    /// [`ChangeError`]. All but [`Undecided`](ChangeError::Undecided) leave the members as they were.
    pub fn add_witness(&self, url: &str) -> Result<(), ChangeError> {
        let (changer, url) = (self.changer()?, Arc::new(url.parse()?));
        done(engine::add(&changer, &url, Role::Witness))
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
                done(engine::add_spare(&changer, &new_url))?;
                done(engine::remove_spare(&changer, old))?;
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
                done(engine::add(&changer, &new_url, old.role))?;
            }
        }
        // It may have been a spare, also when this was called before.
        done(engine::forget_spare(&changer, &new_url))?;
        let old = meant(&changer.roster()?, old)?.index;
        done(engine::replace(&changer, old, &new_url))?;
        Ok(true)
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
type Made = engine::Made<PoolUrl, Site, Arc<dyn Member>>;

impl Changer<'_> {
    /// The members, which all targets that are connected can keep.
    fn roster(&self) -> Result<Roster, ChangeError> {
        done(engine::roster(self))
    }

    fn make(&self, roster: &Roster, url: &Arc<PoolUrl>, role: Role) -> Result<Made, ChangeError> {
        done(engine::make(self, roster, url, role))
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

    /// Gives a new replica its place, in which it is no member yet, so that the watcher leaves it alone. Where its address was named and nothing was
    /// found there, it is not looked for at that place any more.
    fn admit(&self, made: &Made) -> Result<usize, ChangeError> {
        let free = self.returns.add_place(&made.place);
        let mut held = self.returns.hold_all(self.shared).map_err(|_| PoolError::Closed)?;
        held.unprotect_raised_on(&*made.member);
        let mut members = held.members.clone();
        for (at, absent) in self.never_found(&held, made) {
            self.epochs.remove_place(at, &absent);
            members[at] = absent;
        }
        let position = self.epochs.add_place(free, made.of_roster.index, &made.member);
        match members.get_mut(position) {
            Some(place) => *place = Arc::clone(&made.member),
            None => members.push(Arc::clone(&made.member)),
        }
        number_domains(&members);
        let mut fresh = held.with_members(members, held.catching_up.clone());
        if fresh.written.is_none() {
            // Of a pool of one nobody has kept what a second may lack.
            fresh.written = Some(Arc::new(PageMap::new(fresh.facts.size_bytes)));
            // One that keeps digests has a map, whose pages are raised.
            fresh.intent.get_or_insert_with(|| Arc::new(Intent::new(fresh.facts.size_bytes)));
            fresh.keep_intent(Left::Unlike, &ToldMaps::new());
        }
        held.replace(fresh);
        drop(held);
        Returns::start(&self.pool.0);
        Ok(position)
    }

    /// The places of replicas that are looked for at the address of a new one, and what takes them.
    fn never_found(&self, open: &Open, made: &Made) -> Vec<(usize, Arc<dyn Member>)> {
        let epochs = self.epochs.lock();
        let is_there = |at: usize, member: &dyn Member| {
            let was_never_found = engine::was_never_found(epochs.view(), at, member.state());
            was_never_found && member.standing().place.url() == Some(&*made.place)
        };
        let found = open.members.iter().enumerate().filter(|(at, member)| is_there(*at, &***member));
        found.map(|(at, member)| (at, vacant_place(&member.standing().place, made.of_roster.index))).collect()
    }

    fn remove(&self, wanted: &str) -> Result<(), ChangeError> {
        let roster = self.roster()?;
        let of_roster = meant(&roster, wanted)?;
        match of_roster.role {
            Role::Asynchronous => self.remove_asynchronous(of_roster),
            Role::Spare => done(engine::remove_spare(self, of_roster)),
            Role::Data | Role::Witness => done(engine::remove(self, &roster, of_roster)),
        }
    }

    /// Nothing is asked of this replica any more, and its target may open it for others.
    fn part_with(&self, position: usize, index: u16) {
        let Ok(mut held) = self.returns.hold_all(self.shared) else { return };
        let (members, catching_up) = held.without(position, index);
        let gone = Arc::clone(&held.members[position]);
        held.change(members, catching_up);
        // Its target may hang: nobody who writes waits for it any more.
        drop(held);
        part_with(&*gone, index);
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
