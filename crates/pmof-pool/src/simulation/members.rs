//! Changes of the pool's members, as the engine makes them, and the programs that want them.

use std::{cell::Cell, rc::Rc, sync::Arc};

use pmof_access::Durability;
use pmof_control::{NewPool, Reply, Request, Role, Roster, RosterMember, USER_FLAGS_BYTES, WITNESS_BYTES};
use pmof_replication::{
    changing::{self as engine, Changes, News, Why},
    member_state::Event,
    membership::Changed,
};
use uuid::Uuid;

use super::{
    faults::Fault,
    names::fresh,
    plan::Control,
    serving::{POOL_BYTES, POOL_UUID},
    session::{Member, Open, Session, ask, encoded, fail},
    site::Site,
    tasks::sleep,
};
use crate::{PoolUrl, ReplicaError, pages::PAGE_BYTES};

/// Steps between two looks at a member that catches up.
const LOOK_STEPS: usize = 10;

/// Looks after which a program that replaces a member gives up.
const LOOKS_MAX: u64 = 20;

/// A replica that is copied to while it is no member.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub(super) position: usize,
    pub(super) is_given_up: bool,
}

/// Keeps a replica a candidate.
pub(super) struct Learning(Rc<Session>);

impl Drop for Learning {
    fn drop(&mut self) {
        self.0.candidate.set(None);
    }
}

/// Why the members were not changed.
#[derive(Debug)]
pub(super) enum Unchanged {
    Undecided,
    /// Nothing could be made at an address.
    OfPlace,
    Other,
}

type Made = engine::Made<PoolUrl, Site, Rc<Member>>;

/// A program that changes the members.
struct Operator {
    session: Rc<Session>,
    /// Looks after which it gives up.
    looks: Cell<u64>,
}

impl Operator {
    fn of(session: &Rc<Session>) -> Self {
        Self { session: Rc::clone(session), looks: Cell::new(u64::MAX) }
    }

    fn count(&self, fault: Fault) {
        self.session.world.borrow_mut().count(fault);
    }

    /// A machine that is no member's, as far as is known, and mostly one with nothing on it.
    fn some_place(&self, roster: &Roster) -> Option<Arc<PoolUrl>> {
        let world = &mut *self.session.world.borrow_mut();
        let is_free = |url: &&Arc<PoolUrl>| roster.members.iter().all(|member| member.url != url.to_string());
        let free: Vec<_> = world.urls.iter().filter(is_free).cloned().collect();
        if free.is_empty() { None } else { Some(Arc::clone(&free[world.random.below(free.len())])) }
    }

    fn some_member<'r>(&self, roster: &'r Roster) -> &'r RosterMember {
        let counted: Vec<_> = roster.counted().collect();
        counted[self.session.world.borrow_mut().random.below(counted.len())]
    }

    async fn add(&self, role: Role) -> Result<(), Unchanged> {
        let Some(place) = self.some_place(&engine::roster(self).await?) else { return Ok(()) };
        engine::add(self, &place, role).await
    }

    async fn remove(&self) -> Result<(), Unchanged> {
        let roster = engine::roster(self).await?;
        engine::remove(self, &roster, self.some_member(&roster)).await
    }

    async fn replace(&self) -> Result<(), Unchanged> {
        let roster = engine::roster(self).await?;
        let (old, place) = (self.some_member(&roster), self.some_place(&roster));
        let Some(place) = place else { return Ok(()) };
        engine::add(self, &place, old.role).await?;
        self.looks.set(LOOKS_MAX);
        engine::replace(self, old.index, &place).await?;
        self.count(Fault::MemberReplaced);
        Ok(())
    }

    async fn add_spare(&self) -> Result<(), Unchanged> {
        let roster = engine::roster(self).await?;
        let Some(place) = self.some_place(&roster).filter(|_| roster.spares().next().is_none()) else { return Ok(()) };
        engine::add_spare(self, &place).await?;
        self.count(Fault::SpareNoted);
        Ok(())
    }

    async fn take_spare(&self) -> Result<bool, Unchanged> {
        let lost: Vec<_> = {
            let members = self.session.members.borrow();
            let is_out = |member: &Member| member.state().is_lost() && member.state().is_data_member();
            members.iter().enumerate().filter(|(_, member)| is_out(member)).map(|(position, _)| position).collect()
        };
        engine::take_spare(self, &lost).await
    }
}

impl Changes for Operator {
    type Place = PoolUrl;
    type Site = Site;
    type Member = Rc<Member>;
    type Failure = ReplicaError;
    type Error = Unchanged;
    type Epochs = Session;
    type EpochsRef = Rc<Session>;
    type Learning = Learning;

    fn error(&self, why: Why<'_, PoolUrl, Rc<Member>, ReplicaError>) -> Unchanged {
        match why {
            Why::NotChanged(Changed::Undecided) => {
                self.count(Fault::ChangeUndecided);
                Unchanged::Undecided
            }
            Why::NotChanged(_) => {
                self.count(Fault::ChangeNotMade);
                Unchanged::Other
            }
            Why::NotMade { .. } | Why::Lost { .. } | Why::InTheWay { .. } => Unchanged::OfPlace,
            Why::OtherPool { place, .. } => {
                self.session.world.borrow_mut().truth.violate(|| format!("another pool is at {place}"));
                Unchanged::Other
            }
            _ => Unchanged::Other,
        }
    }

    fn is_undecided(&self, error: &Unchanged) -> bool {
        matches!(error, Unchanged::Undecided)
    }

    fn epochs(&self) -> Result<Rc<Session>, Unchanged> {
        Ok(Rc::clone(&self.session))
    }

    fn pool_uuid(&self) -> Uuid {
        POOL_UUID
    }

    fn fresh_name(&self) -> Uuid {
        fresh()
    }

    async fn check_members(&self) -> Result<(), Unchanged> {
        Ok(())
    }

    fn check_promise(&self, _: &Roster, _: u16, _: Option<usize>) -> Result<(), Unchanged> {
        Ok(())
    }

    fn has_room(&self) -> bool {
        self.session.members.borrow().len() < 64
    }

    fn creation(&self, place: &Arc<PoolUrl>, (replica_index, role): (u16, Role), replica_count: u16) -> Request {
        let new = NewPool {
            pool_uuid: POOL_UUID,
            size_bytes: if role == Role::Witness { WITNESS_BYTES } else { POOL_BYTES },
            epoch: fresh(),
            replica_index,
            replica_count,
            require: Durability::PowerFailure,
            user_flags: [0; USER_FLAGS_BYTES],
            protection: None,
        };
        Request::Create { name: place.name.clone(), new, publish_on_close: false }
    }

    async fn connect(&self, place: &Arc<PoolUrl>) -> Result<Site, Unchanged> {
        let target = self.session.world.borrow().urls.iter().position(|url| url == place).ok_or(Unchanged::Other)?;
        Site::connect(&self.session.world, self.session.writer, target).ok_or(Unchanged::OfPlace)
    }

    async fn ask(&self, site: &Site, request: &Request) -> Result<Reply, ReplicaError> {
        site.ask(request).await
    }

    async fn adopt(
        &self,
        place: &Arc<PoolUrl>,
        mut site: Site,
        (index, role): (u16, Role),
        reply: Reply,
    ) -> Result<Made, (Site, Unchanged)> {
        let Reply::Opened { replica_uuid, state, .. } = reply else { return Err((site, Unchanged::OfPlace)) };
        let member = Member::candidate(site.target, site.for_member()).of_witness(role == Role::Witness);
        self.session.world.borrow_mut().known[site.target] = true;
        let of_roster = RosterMember { index, role, replica_uuid, url: place.to_string(), domain: String::new() };
        Ok(Made { place: Arc::clone(place), site, state, member: Rc::new(member), of_roster })
    }

    /// As `Changer::admit`.
    async fn admit(&self, made: &Made) -> Result<usize, Unchanged> {
        let session = &self.session;
        let _hold = session.hold_all().await.ok_or(Unchanged::Other)?;
        session.attended.borrow_mut().push(true);
        let position = {
            let _guard = session.view_lock.lock().await;
            session.forget_never_found(made.member.target);
            session.members.borrow_mut().push(Rc::clone(&made.member));
            session.epochs.borrow_mut().note_change();
            session.epochs.borrow_mut().view.add_place(made.of_roster.index);
            session.members.borrow().len() - 1
        };
        let open = Rc::clone(&session.open.borrow());
        let members = open.members.iter().chain([&made.member]).cloned().collect();
        *session.open.borrow_mut() = Rc::new(Open { members, ..Open::clone(&open) });
        Ok(position)
    }

    async fn let_go(&self, position: usize, _: u16) {
        let Some(_hold) = self.session.hold_all().await else { return };
        self.session.take_out(position).await;
    }

    async fn give_up(&self, position: usize, index: u16) {
        self.let_go(position, index).await;
    }

    fn member(&self, position: usize) -> Result<Rc<Member>, Unchanged> {
        Ok(Rc::clone(&self.session.members.borrow()[position]))
    }

    fn positions_at(&self, url: &str) -> Result<Vec<usize>, Unchanged> {
        let (world, members) = (self.session.world.borrow(), self.session.members.borrow());
        let is_there = |at: &usize| world.urls[members[*at].target].to_string() == url;
        Ok((0..members.len()).filter(is_there).collect())
    }

    fn has_other_in_sync(&self, position: Option<usize>) -> Result<bool, Unchanged> {
        let open = self.session.open.borrow();
        let mut others = open.members.iter().enumerate().filter(|(at, _)| Some(*at) != position);
        Ok(others.any(|(_, member)| !member.state().is_witness() && member.state().is_in_sync()))
    }

    fn learn(&self, position: usize, _: u16) -> Learning {
        self.session.candidate.set(Some(Candidate { position, is_given_up: false }));
        self.bring_in(position);
        Learning(Rc::clone(&self.session))
    }

    fn gives_way(&self, _: &Learning) -> bool {
        let is_wanted = {
            let world = &mut *self.session.world.borrow_mut();
            !world.is_faultless && world.random.once_in(6)
        };
        if is_wanted {
            self.count(Fault::SpareGaveWay);
        }
        is_wanted || self.session.is_stopping.get()
    }

    fn lacks_little(&self, position: usize) -> Result<bool, Unchanged> {
        let open = self.session.open.borrow();
        let own = open.catching_up.iter().find(|(of, _)| *of == position);
        Ok(own.is_some_and(|(_, catch_up)| catch_up.missing_bytes() <= PAGE_BYTES))
    }

    fn end(&self, _: Learning) -> bool {
        self.session.candidate.get().is_some_and(|candidate| candidate.is_given_up)
    }

    fn bring_in(&self, position: usize) {
        self.session.attended.borrow_mut()[position] = false;
    }

    fn note_not_taken(&self, _: &RosterMember, why: Unchanged) -> bool {
        matches!(why, Unchanged::OfPlace)
    }

    fn fence(&self) {
        self.count(Fault::SuccessorMet);
        self.session.give_up();
    }

    fn note(&self, news: News<'_, PoolUrl, Site, Rc<Member>>) {
        match news {
            News::InForce { age } => self.session.world.borrow_mut().truth.confirm_roster(age),
            News::Added { made, position } => {
                made.member.take(Event::MadeMember);
                if !self.session.is_candidate(position) {
                    self.bring_in(position);
                }
                let is_witness = made.of_roster.role == Role::Witness;
                self.count(if is_witness { Fault::WitnessAdded } else { Fault::MemberAdded });
            }
            News::Removed { .. } => self.count(Fault::MemberRemoved),
            News::LeftoverRemoved => self.count(Fault::LeftoverTakenAway),
            News::SpareTaken { .. } => self.count(Fault::SpareTaken),
            News::SpareNotNeeded { .. } => self.count(Fault::SpareNotNeeded),
        }
    }

    async fn pause(&self) -> Result<(), Unchanged> {
        sleep(&self.session.world, LOOK_STEPS).await;
        let left = self.looks.get();
        self.looks.set(left.saturating_sub(1));
        if left == 0 || self.session.is_stopping.get() { Err(Unchanged::Other) } else { Ok(()) }
    }
}

impl Session {
    /// An operator's program: it changes the members now and then.
    pub(super) async fn operate(self: Rc<Self>) {
        while !self.is_stopping.get() {
            let (pause, kind) = {
                let random = &mut self.world.borrow_mut().random;
                (5 + random.below(80), random.below(10))
            };
            sleep(&self.world, pause).await;
            if self.is_stopping.get() {
                return;
            }
            if self.changing.is_held() {
                self.world.borrow_mut().count(Fault::SecondOperatorRefused);
                continue;
            }
            let _changing = self.changing.lock().await;
            self.world.borrow_mut().is_changing[self.writer] = true;
            let control = self.world.borrow().control;
            let is_about_witnesses = matches!(control, Some(Control::WitnessJoins | Control::WitnessCaughtUp));
            let operator = Operator::of(&self);
            // What comes of it is counted.
            let _ = match kind {
                _ if is_about_witnesses && kind % 2 == 0 => operator.add(Role::Witness).await,
                0..=2 => operator.add(Role::Data).await,
                3 | 4 => operator.add(Role::Witness).await,
                5 | 6 => operator.remove().await,
                7 | 8 => operator.replace().await,
                _ => operator.add_spare().await,
            };
            self.world.borrow_mut().is_changing[self.writer] = false;
        }
    }

    /// As `Returns::look_for_spares`.
    pub(super) async fn look_for_spares(self: Rc<Self>) {
        while !self.is_stopping.get() {
            let (is_begun, is_any) = {
                let membership = self.membership();
                let mut spares = membership.roster().into_iter().flat_map(Roster::spares);
                (spares.clone().any(|spare| !spare.replica_uuid.is_nil()), spares.next().is_some())
            };
            let is_out = |member: &Rc<Member>| member.state().is_lost() && member.state().is_data_member();
            let is_wanted = is_begun || (is_any && self.members.borrow().iter().any(is_out));
            if is_wanted && !self.changing.is_held() {
                let _changing = self.changing.lock().await;
                if is_begun {
                    self.world.borrow_mut().count(Fault::SpareGoneOnWith);
                }
                let _ = Operator::of(&self).take_spare().await;
            }
            sleep(&self.world, 30).await;
        }
    }

    pub(super) fn is_candidate(&self, position: usize) -> bool {
        self.candidate.get().is_some_and(|candidate| candidate.position == position)
    }

    /// Replicas that are awaited at the address of a new one.
    fn forget_never_found(&self, target: usize) {
        let open = Rc::clone(&self.open.borrow());
        let mut members = open.members.clone();
        for (at, member) in open.members.iter().enumerate() {
            if engine::was_never_found(&self.view(), at, member.state()) && member.target == target {
                members[at] = Rc::new(Member::none(target));
                self.members.borrow_mut()[at] = Rc::clone(&members[at]);
                let mut epochs = self.epochs.borrow_mut();
                epochs.membership.remove_place(at);
                epochs.view.remove_place(at);
                drop(epochs);
                self.world.borrow_mut().count(Fault::NeverFoundForgotten);
            }
        }
        *self.open.borrow_mut() = Rc::new(Open { members, ..Open::clone(&open) });
    }

    /// As `Open::without`.
    pub(super) async fn take_out(&self, position: usize) {
        let member = Rc::clone(&self.open.borrow().members[position]);
        let _ = ask(&self.world, &member, encoded(&self.world, &member, &Request::Close { in_order: false })).await;
        fail(&self.world, &member);
        let none = Rc::new(Member::none(member.target));
        {
            let _guard = self.view_lock.lock().await;
            self.members.borrow_mut()[position] = Rc::clone(&none);
            self.epochs.borrow_mut().membership.remove_place(position);
            self.epochs.borrow_mut().note_change();
            self.epochs.borrow_mut().view.remove_place(position);
        }
        let open = Rc::clone(&self.open.borrow());
        let mut members = open.members.clone();
        members[position] = none;
        let catching_up = open.catching_up.iter().filter(|(of, _)| *of != position).cloned().collect();
        *self.open.borrow_mut() = Rc::new(Open { members, catching_up, ..Open::clone(&open) });
    }
}
