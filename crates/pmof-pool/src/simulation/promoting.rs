//! Whoever looks at an asynchronous member, or goes on with it alone, as `pool/promotion.rs` has it, with its own decisions.

use pmof_control::{ANCESTORS_MAX, ConsistencyPoint, Epoch, OpenFor, Request, Role, RosterMember, RosterPart};

use super::{
    areas::SIZE_BYTES,
    faults::Fault,
    names::fresh,
    random::Random,
    target::Held,
    truth::Pages,
    world::{WALL_CLOCK_MS, World},
};
use crate::{
    Promotion,
    follower::{AtPoint, Follower, FollowerMemory, Kept, kept_points},
    roster::settled_behind,
};

/// The asynchronous member is looked at as it would be after a crash now. What that does has numbers of its own.
pub(super) fn check_somewhere(world: &mut World) {
    if let Some(target) = world.plan.asynchronous {
        world.check_follower(target, "looked at");
    }
}

impl World {
    /// Whether an asynchronous member is at a point, after a crash now too.
    pub(super) fn check_follower(&mut self, target: usize, when: &str) {
        let mut random = Random::new(self.step ^ 0x5eed);
        let Some(image) = self.targets[target].areas.as_ref().map(|areas| areas.image(&mut random)) else { return };
        let follower = image.clone().open();
        let (applied, pages) = (follower.applied(), image.pages());
        let is_at_prefix = match (applied, follower.point()) {
            // At no point yet: pages are copied to it as they come.
            (Some(0), _) => true,
            (Some(_), Some(point)) => self.truth.is_at(point, &pages),
            _ => false,
        };
        if !is_at_prefix {
            let point = follower.point().cloned();
            self.truth.violate(|| {
                format!("{when}, the asynchronous member is at no prefix: change set {applied:?}, {point:?}, {pages:?}")
            });
        }
        self.count(Fault::FollowerOpenedAtPrefix);
        let Ok(Kept::Points(index)) = kept_points(follower.memory()) else { return };
        for kept in index.points {
            match pages_at(follower.memory(), kept.point.number) {
                Some(pages) if self.truth.is_at(&kept.point, &pages) => self.count(Fault::KeptPointRead),
                found => self.truth.violate(|| format!("{when}, {:?} is kept as {found:?}", kept.point)),
            }
        }
    }
}

/// What a member kept of a point.
fn pages_at<M: FollowerMemory>(memory: &M, number: u64) -> Option<Pages> {
    let mut view = AtPoint::open(memory, SIZE_BYTES, number).ok()?;
    let mut is_whole = true;
    let pages = super::areas::pages_of(|at, into| is_whole &= view.read(memory, at, into).is_ok());
    is_whole.then_some(pages)
}

/// All members that count are lost for good: the asynchronous one is made a pool of its own, at its point or at one that it has kept.
pub(super) fn promote(world: &mut World) {
    let Some(target) = world.plan.asynchronous else { return };
    let Some(areas) = world.targets[target].areas.take() else { return };
    let image = areas.image(&mut world.random);
    let mut follower = image.clone().open();
    let (at, heard) = (follower.point().cloned(), follower.heard().cloned());
    let Some(point) = at.filter(|_| follower.applied().is_some_and(|applied| applied > 0)) else {
        // It was never copied to the end: there is nothing to go on with.
        world.count(Fault::PromotionRefused);
        world.targets[target].areas = Some(areas);
        return;
    };
    if !world.truth.is_at(&point, &image.pages()) {
        world.truth.violate(|| format!("promoted at {point:?}, the member holds {:?}", image.pages()));
    }
    let promotion =
        Promotion { point: Some(point.clone()), heard, unix_ms: world.step + WALL_CLOCK_MS, former: Vec::new() };
    check_loss(world, &promotion);
    roll_back_somewhere(world, &mut follower);
    let pages = image.pages();
    world.truth.promoted(&pages);
    found_pool(world, target, &pages);
    for (other, target_of) in world.targets.iter_mut().enumerate().filter(|(other, _)| *other != target) {
        (target_of.is_there, world.known[other]) = (false, false);
    }
    world.known[target] = true;
    world.plan.made = 1;
    world.count(Fault::Promoted);
}

/// What is said to be lost is what is lost, as far as the member was told.
fn check_loss(world: &mut World, promotion: &Promotion) {
    let (Some(point), Some(heard)) = (&promotion.point, &promotion.heard) else { return };
    let is_real = world.truth.was_so_far(heard);
    let beyond = |heard: &ConsistencyPoint| heard.written_bytes.saturating_sub(point.written_bytes);
    let expected = (heard.opening == point.opening).then(|| beyond(heard));
    if !is_real || promotion.lost_bytes() != expected {
        let lost_bytes = promotion.lost_bytes();
        world.truth.violate(|| format!("{lost_bytes:?} bytes are said to be lost behind {point:?}, of {heard:?}"));
    }
    if promotion.lost_bytes().is_none_or(|lost_bytes| lost_bytes > 0) {
        world.count(Fault::PromotedWithLoss);
    }
}

fn roll_back_somewhere<M: FollowerMemory>(world: &mut World, follower: &mut Follower<M>) {
    let Ok(Kept::Points(index)) = kept_points(follower.memory()) else { return };
    let Some(kept) = index.points.first().filter(|_| !world.random.once_in(8)) else { return };
    let number = kept.point.number;
    let expected = pages_at(follower.memory(), number);
    let is_back = follower.roll_back(number).is_ok();
    let held = super::areas::pages_of(|at, into| _ = follower.memory().read_data(at, into));
    if !is_back || expected != Some(held) {
        world.truth.violate(|| format!("rolled back to {:?}, the member holds {held:?}, not {expected:?}", kept.point));
    }
    world.count(Fault::RolledBack);
}

/// As `Open::found_pool` there, by what it asks of its target.
fn found_pool(world: &mut World, number: usize, pages: &Pages) {
    let Ok(replica) = world.opened(number, OpenFor::Write) else {
        return world.truth.violate(|| format!("t{number} cannot be opened to go on alone"));
    };
    let (state, roster, index) = (replica.state().clone(), replica.roster().clone(), world.targets[number].index);
    world.targets[number].open = Some(Held { by: usize::MAX, replica });
    let (epoch, opening) = (Epoch::new(fresh(), [index]), state.opening.saturating_add(1));
    let ancestors = std::iter::once(state.epoch).chain(state.ancestors.iter().copied()).take(ANCESTORS_MAX).collect();
    let member = roster.member(index).map(|member| RosterMember { role: Role::Data, ..member.clone() });
    let settled = settled_behind(&roster, member.into_iter().collect(), opening).encode();
    let rosters = RosterPart::requests(&settled.unwrap_or_default()).collect::<Vec<_>>();
    let epochs = [Request::Begin { opening, epoch, ancestors }, Request::Confirm { epoch: epoch.id }];
    let requests = epochs.into_iter().chain(rosters).chain([Request::Close { in_order: true }]);
    for request in requests {
        let served = world.serve_open(number, &request);
        if !matches!(served, Some(Ok(_))) {
            world.truth.violate(|| format!("t{number} goes not on alone: {served:?}"));
        }
    }
    let target = &mut world.targets[number];
    (target.durable, target.cache) = (*pages, *pages);
}
