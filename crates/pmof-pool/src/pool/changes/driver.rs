//! Changes of the members as the engine drives them: with connections, memory and threads that block.

use std::{slice, sync::Arc, thread, time::Duration};

use pmof_control::{NewPool, OpenFor, PoolInfo, Protection, Reply, Request, Role, Roster, RosterMember, WITNESS_BYTES};
use pmof_mem::causes;
use pmof_replication::{
    changing::{Changes, News, Why},
    membership::Changed,
};
use uuid::Uuid;

use super::{ChangeError, Changer, Made, PLACES_MAX, is_known};
use crate::{
    PoolError, PoolUrl, ReplicaError,
    member::{Member, Standing, UNKNOWN_SUCCESSOR},
    pool::{
        epochs::Epochs,
        events::Event,
        opened::{Checked, check_opened, place},
        returns::{LAST_BYTES, Learning},
    },
    site::Site,
};

/// Between two looks at a member that catches up.
const LOOK: Duration = Duration::from_millis(20);

/// What has become of a change.
pub(super) fn outcome(changed: Changed) -> Result<(), ChangeError> {
    match changed {
        Changed::Done => Ok(()),
        Changed::TooFew => Err(ChangeError::TooFew),
        Changed::Disturbed => Err(ChangeError::Disturbed),
        Changed::Undecided => Err(ChangeError::Undecided),
        Changed::Ended => Err(PoolError::Closed.into()),
    }
}

fn not_made(url: &Arc<PoolUrl>, source: ReplicaError) -> ChangeError {
    ChangeError::NotMade { replica: place(url), source: Arc::new(source) }
}

/// Why a replica is lost.
fn failure(member: &dyn Member) -> Arc<ReplicaError> {
    member.standing().failure().map_or_else(|| Arc::new(ReplicaError::Behind), Arc::clone)
}

impl Changer<'_> {
    /// Whether a new member keeps digests of its pages, as the others do. What is sent to an asynchronous one has checksums of its own until it is applied.
    fn protection(&self, role: Role) -> Option<Protection> {
        let size_bytes = if role == Role::Witness { WITNESS_BYTES } else { self.shared.facts.size_bytes };
        let is_kept = role != Role::Asynchronous && self.shared.hold().is_ok_and(|open| open.keeps_digests());
        is_kept.then_some(Protection { max_size_bytes: size_bytes })
    }
}

impl<'p> Changes for Changer<'p> {
    type Place = PoolUrl;
    type Site = Site;
    type Member = Arc<dyn Member>;
    type Failure = ReplicaError;
    type Error = ChangeError;
    type Epochs = Epochs;
    type EpochsRef = Arc<Epochs>;
    type Learning = Learning<'p>;

    fn error(&self, why: Why<'_, PoolUrl, Arc<dyn Member>, ReplicaError>) -> ChangeError {
        match why {
            Why::NotChanged(changed) => outcome(changed).err().unwrap_or(ChangeError::Undecided),
            Why::TooMany { count } => ChangeError::TooMany { count },
            Why::Roster(error) => error.into(),
            Why::Known { place, known, wanted } => is_known(place, known, wanted),
            Why::NotMade { place, why } => not_made(place, why),
            Why::Lost { place: url, member } => {
                ChangeError::NotMade { replica: place(url), source: failure(&**member) }
            }
            Why::OtherPool { place: url, found } => ChangeError::OtherPool { replica: place(url), found_uuid: found },
            Why::AlreadyMember { place: url } => ChangeError::AlreadyMember { replica: place(url) },
            Why::InTheWay { place: url, info, line: (line, opening) } => {
                let PoolInfo { header, state, .. } = info;
                match ReplicaError::outside(header.replica_index, state, (slice::from_ref(line), *opening)) {
                    ReplicaError::NotAMember { .. } => ChangeError::Leftover { replica: place(url) },
                    why => ChangeError::OtherHistory { replica: place(url), source: Arc::new(why) },
                }
            }
            Why::Superseded { place } => {
                not_made(place, ReplicaError::Fenced { successor: UNKNOWN_SUCCESSOR.to_owned() })
            }
            Why::LastInSync { of_roster, position } => {
                let of_position = || {
                    let open = self.shared.hold().ok()?;
                    position.map(|at| Arc::clone(&open.members[at].standing().place))
                };
                let of_url = || of_roster.url.parse().ok().map(|url| place(&Arc::new(url)));
                let replica = of_position().or_else(of_url);
                replica.map_or(ChangeError::TooFew, |replica| ChangeError::LastInSync { replica })
            }
            Why::NewMemberLost { place: url, member } => {
                ChangeError::NewMemberLost { replica: place(url), source: failure(&**member) }
            }
            Why::NoAddress { spare } => match spare.url.parse::<PoolUrl>() {
                Err(error) => error.into(),
                Ok(url) => not_made(&Arc::new(url), ReplicaError::Unexpected),
            },
            Why::GivesWay => ChangeError::UnderWay,
        }
    }

    fn is_undecided(&self, error: &ChangeError) -> bool {
        matches!(error, ChangeError::Undecided)
    }

    fn epochs(&self) -> Result<Arc<Epochs>, ChangeError> {
        Ok(Arc::clone(&self.epochs))
    }

    fn pool_uuid(&self) -> Uuid {
        self.shared.facts.uuid
    }

    fn fresh_name(&self) -> Uuid {
        Uuid::new_v4()
    }

    /// One that is too slow is not waited for.
    async fn check_members(&self) -> Result<(), ChangeError> {
        let open = self.shared.hold()?;
        let prompt = open.places().filter(|member| member.state().is_prompt());
        // All at once: those that are silent are waited for together.
        let asked: Vec<_> = prompt
            .filter_map(|member| {
                let control = member.control()?;
                Some((member, control, control.start_asking(&Request::Roster { offset: 0 })))
            })
            .collect();
        let answers = asked.into_iter().map(|(member, control, asking)| (member, control.answer(asking)));
        let is_too_old = |answer: &Result<Reply, Arc<ReplicaError>>| {
            answer.as_ref().is_err_and(|why| matches!(**why, ReplicaError::Refused { .. }))
        };
        // Each answer is taken: one that is left would be owed to the next question.
        let answers: Vec<_> = answers.collect();
        let too_old = answers.iter().find(|(_, answer)| is_too_old(answer));
        too_old.map_or(Ok(()), |(member, _)| Err(ChangeError::TooOld { replica: Arc::clone(&member.standing().place) }))
    }

    fn check_promise(&self, roster: &Roster, index: u16, position: Option<usize>) -> Result<(), ChangeError> {
        let open = self.shared.hold()?;
        let left = roster.with_data().filter(|member| member.index != index).count();
        // One whose domain is not known now may be in one of its own.
        let standings = || open.members.iter().enumerate().map(|(at, member)| (at, member.standing()));
        let is_other = |(at, standing): &(usize, &Standing)| {
            Some(*at) != position && !standing.state().is_witness() && standing.state().is_data_member()
        };
        let data = || standings().filter(is_other).map(|(_, standing)| standing);
        let unknown = data().filter(|standing| standing.domain().is_none()).count();
        let known = crate::domain::distinct(data().map(Standing::domain));
        open.terms.check_can_be_met(left, known + unknown).map_err(|(what, wanted, left)| ChangeError::PromiseBroken {
            what,
            wanted,
            left,
        })
    }

    fn has_room(&self) -> bool {
        let count = self.shared.hold().map_or(0, |open| open.members.len());
        count < PLACES_MAX || self.returns.free_place().is_some()
    }

    fn creation(&self, url: &Arc<PoolUrl>, (replica_index, role): (u16, Role), replica_count: u16) -> Request {
        let facts = &self.shared.facts;
        let new = NewPool {
            pool_uuid: facts.uuid,
            size_bytes: if role == Role::Witness { WITNESS_BYTES } else { facts.size_bytes },
            epoch: Uuid::new_v4(),
            replica_index,
            replica_count,
            require: facts.durability,
            user_flags: facts.user_flags,
            protection: self.protection(role),
        };
        Request::Create { name: url.name.clone(), new, publish_on_close: false }
    }

    async fn connect(&self, url: &Arc<PoolUrl>) -> Result<Site, ChangeError> {
        self.returns.site(url).map_err(|source| not_made(url, source))
    }

    async fn ask(&self, site: &Site, request: &Request) -> Result<Reply, ReplicaError> {
        site.ask(request)
    }

    async fn adopt(
        &self,
        url: &Arc<PoolUrl>,
        site: Site,
        (index, role): (u16, Role),
        reply: Reply,
    ) -> Result<Made, (Site, ChangeError)> {
        let facts = &self.shared.facts;
        let open = match self.shared.hold() {
            Ok(open) => open,
            Err(error) => return Err((site, error.into())),
        };
        let identity = &mut Some(self.returns.identity());
        let checked = check_opened(reply, &site, facts.durability, OpenFor::Write, identity);
        let made = checked.and_then(|Checked { replica_uuid, size_bytes, state, reached, .. }| {
            self.returns.identity().check_size(size_bytes, role == Role::Witness)?;
            let domain = site.failure_domain(site.send(&Request::Domain));
            let name = domain.as_ref().map_or_else(String::new, |domain| domain.name.to_string());
            let standing = Standing::candidate(place(url)).of_witness(role == Role::Witness);
            let standing = standing.with_failure_domain(domain);
            let member = reached.member(standing, site.clone(), facts.size_bytes, open.mirror.as_ref())?;
            Ok((state, member, RosterMember { index, role, replica_uuid, url: url.to_string(), domain: name }))
        });
        if matches!(site.ask(&Request::Roster { offset: 0 }), Err(ReplicaError::Refused { .. })) {
            return Err((site, ChangeError::TooOld { replica: place(url) }));
        }
        match made {
            Ok((state, member, of_roster)) => Ok(Made { place: Arc::clone(url), site, state, member, of_roster }),
            Err(error) => Err((site, not_made(url, error))),
        }
    }

    async fn admit(&self, made: &Made) -> Result<usize, ChangeError> {
        Changer::admit(self, made)
    }

    async fn let_go(&self, position: usize, index: u16) {
        self.part_with(position, index);
    }

    async fn give_up(&self, position: usize, index: u16) {
        self.part_with(position, index);
        self.returns.give_back_place(position);
    }

    fn member(&self, position: usize) -> Result<Arc<dyn Member>, ChangeError> {
        Ok(Arc::clone(&self.shared.hold()?.members[position]))
    }

    fn positions_at(&self, url: &str) -> Result<Vec<usize>, ChangeError> {
        let (open, url) = (self.shared.hold()?, url.parse::<PoolUrl>().ok());
        let is_there =
            |(_, member): &(usize, &Arc<dyn Member>)| url.is_some() && member.standing().place.url() == url.as_ref();
        Ok(open.members.iter().enumerate().filter(is_there).map(|(position, _)| position).collect())
    }

    fn has_other_in_sync(&self, position: Option<usize>) -> Result<bool, ChangeError> {
        let open = self.shared.hold()?;
        let mut others = open.members.iter().enumerate().filter(|(at, _)| Some(*at) != position);
        Ok(others.any(|(_, member)| !member.state().is_witness() && member.state().is_in_sync()))
    }

    fn learn(&self, position: usize, spare: u16) -> Learning<'p> {
        self.returns.note_tried(spare, None);
        self.returns.learn(position, spare)
    }

    fn gives_way(&self, learning: &Learning<'p>) -> bool {
        // Or the program has let go of the pool.
        learning.has_to_give_way() || Arc::strong_count(&self.pool.0) == 1
    }

    fn lacks_little(&self, position: usize) -> Result<bool, ChangeError> {
        Ok(self.shared.hold()?.missing_bytes(position).is_some_and(|bytes| bytes <= LAST_BYTES))
    }

    fn end(&self, learning: Learning<'p>) -> bool {
        learning.end()
    }

    fn bring_in(&self, position: usize) {
        self.returns.bring_in(position);
    }

    fn note_not_taken(&self, spare: &RosterMember, why: ChangeError) -> bool {
        // It is tried again after a pause, as long as the member is lost.
        log::warn!("no spare was taken: {}", causes(&why));
        let why = Arc::new(why);
        // That one has to give way says nothing of it.
        if !matches!(*why, ChangeError::UnderWay) && self.returns.note_tried(spare.index, Some(&why)) {
            if let Ok(url) = spare.url.parse() {
                let replica = place(&Arc::new(url));
                self.shared.events.add(Event::SpareNotTaken { replica, why: Arc::clone(&why) });
            }
        }
        matches!(
            *why,
            ChangeError::NotMade { .. }
                | ChangeError::OtherPool { .. }
                | ChangeError::OtherHistory { .. }
                | ChangeError::Leftover { .. }
        )
    }

    fn fence(&self) {
        if let Ok(open) = self.shared.hold() {
            open.fence(UNKNOWN_SUCCESSOR);
        }
    }

    fn note(&self, news: News<'_, PoolUrl, Site, Arc<dyn Member>>) {
        let place_of = |text: &str| text.parse().ok().map(|url| place(&Arc::new(url)));
        match news {
            News::Added { made, position } => {
                made.member.standing().is_made_a_member();
                if !self.returns.is_candidate(position) {
                    self.returns.bring_in(position);
                }
                let replica = place(&made.place);
                self.shared.events.add(match made.of_roster.role {
                    Role::Witness => Event::WitnessAdded { replica },
                    _ => Event::Added { replica },
                });
                self.warn_of_shared_domain(made);
            }
            News::Removed { of_roster } => {
                let (replica, index) = (place_of(&of_roster.url), of_roster.index);
                self.shared.events.add(Event::Removed { replica, index });
            }
            News::InForce { .. } | News::LeftoverRemoved => {}
            News::SpareTaken { spare, lost } => {
                if let Some(replica) = place_of(&spare.url) {
                    let (lost, index) = (place_of(&lost.url), lost.index);
                    self.shared.events.add(Event::SpareTaken { replica, lost, index });
                }
            }
            News::SpareNotNeeded { place, lost } => {
                log::info!("{} is in sync again, and the spare {place} is left as it was", lost.url);
            }
        }
    }

    async fn pause(&self) -> Result<(), ChangeError> {
        thread::sleep(LOOK);
        self.shared.hold()?;
        Ok(())
    }
}
