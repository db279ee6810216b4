//! An asynchronous member is looked at, and promoted by what the engine decides.

use pmof_control::{ConsistencyPoint, OpenFor, Reply, Request, Role, Roster, RosterPart};
use pmof_replication::{
    following::Replica,
    promotion::{Answering, Candidate, Promoting},
};

use super::{
    areas::SIZE_BYTES,
    faults::Fault,
    names::fresh,
    plan::Control,
    random::Random,
    serving::POOL_UUID,
    target::Held,
    truth::Pages,
    world::{WALL_CLOCK_MS, World},
};
use crate::{
    Promotion,
    follower::{AtPoint, Follower, FollowerMemory, Kept, find_point, kept_points},
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

/// All members that count are lost for good, or given up: the asynchronous one is made a pool of its own, at its point or at one that it has kept.
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
    let survivors = survivors(world, target);
    for other in (0..world.targets.len()).filter(|other| *other != target) {
        world.stop(other, true);
        let is_there = survivors.contains(&other);
        (world.targets[other].is_there, world.targets[other].is_up, world.known[other]) = (is_there, true, is_there);
    }
    // Who is interrupted does it again.
    let roster = loop {
        match found_pool(world, target, &survivors) {
            Some(roster) => break roster,
            None => world.count(Fault::PromotionInterrupted),
        }
    };
    let promoted = &mut world.targets[target];
    (promoted.durable, promoted.cache) = (pages, pages);
    for survivor in survivors {
        // Where a former writer lives on, one that is not told would be its pool still.
        if world.plan.has_former_writer || !world.random.once_in(3) {
            tell_former(world, survivor, &roster);
            world.count(Fault::FormerTold);
        } else {
            world.count(Fault::FormerNotTold);
        }
    }
    world.known[target] = true;
    world.promoted = Some(target);
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
    let wanted = if world.random.once_in(2) { kept.point.name.clone() } else { number.to_string() };
    if find_point(&index, &wanted) != Some(kept) {
        world.truth.violate(|| format!("{wanted:?} is not found in {:?}", index.points));
    }
    let expected = pages_at(follower.memory(), number);
    let is_back = follower.roll_back(number).is_ok();
    let held = super::areas::pages_of(|at, into| _ = follower.memory().read_data(at, into));
    if !is_back || expected != Some(held) {
        world.truth.violate(|| format!("rolled back to {:?}, the member holds {held:?}, not {expected:?}", kept.point));
    }
    world.count(Fault::RolledBack);
}

/// Former members that are not lost, though the promotion was forced.
fn survivors(world: &mut World, target: usize) -> Vec<usize> {
    let others = (0..world.targets.len()).filter(|other| *other != target && world.plan.has_survivors);
    let there: Vec<_> = others.filter(|other| world.targets[*other].is_there).collect();
    there.into_iter().filter(|_| world.random.once_in(2)).collect()
}

/// What a former member is to the one that is to be promoted.
fn answering(world: &mut World, candidate: &Candidate, survivor: usize) -> Answering {
    let target = &world.targets[survivor];
    let info = target.info(&world.urls[survivor].name);
    let judged = candidate.judge(&info, target.roster.as_deref().cloned());
    let answering = judged.expect("it is another member of the pool");
    if !answering.is_told() || !answering.prevents(Role::Data) {
        world.truth.violate(|| format!("t{survivor} is no former member: {answering:?}"));
    }
    answering
}

/// Has a former member keep who the members are now.
fn tell_former(world: &mut World, number: usize, roster: &Roster) {
    world.targets[number].restored = None;
    let Ok(replica) = world.opened(number, OpenFor::Write) else {
        return world.truth.violate(|| format!("t{number} cannot be opened to learn of the promotion"));
    };
    world.targets[number].open = Some(Held { by: usize::MAX, replica });
    let parts = RosterPart::requests(&roster.encode().unwrap_or_default()).collect::<Vec<_>>();
    for request in parts.into_iter().chain([Request::Close { in_order: false }]) {
        let served = world.serve_open(number, &request);
        if !matches!(served, Some(Ok(Reply::RosterSet | Reply::Closed))) {
            world.truth.violate(|| format!("t{number} does not learn of the promotion: {served:?}"));
        }
    }
}

/// Makes a pool of a member. `None`: its target or the program died in the middle. Returns the roster that it keeps.
fn found_pool(world: &mut World, number: usize, survivors: &[usize]) -> Option<Roster> {
    let Ok(replica) = world.opened(number, OpenFor::Write) else {
        world.truth.violate(|| format!("t{number} cannot be opened to go on alone"));
        return Some(Roster::made(0));
    };
    let (state, roster, target) = (replica.state().clone(), replica.roster().clone(), &mut world.targets[number]);
    let found = Candidate::of((POOL_UUID, SIZE_BYTES), (target.index, target.replica_uuid), roster.clone());
    target.open = Some(Held { by: usize::MAX, replica });
    let Ok(candidate) = found else {
        // It was promoted, but for the last request.
        let _ = world.serve_open(number, &Request::Close { in_order: true });
        return Some(roster);
    };
    let answering: Vec<_> = survivors.iter().map(|survivor| answering(world, &candidate, *survivor)).collect();
    let promoting = candidate.promote(&state, candidate.newest_version(&answering), fresh(), world.unix_ms(0));
    let Promoting { mut requests, roster } = promoting.expect("a roster of one member can be encoded");
    if world.control == Some(Control::PromotedByRosterFirst) {
        requests.sort_by_key(|(request, _)| !matches!(request, Request::SetRoster { .. }));
    }
    for (request, expected) in requests {
        if world.random.once_in(8) {
            world.stop(number, true);
            (world.targets[number].open, world.targets[number].is_up) = (None, true);
            return None;
        }
        match world.serve_open(number, &request) {
            Some(Ok(reply)) if reply == expected => {}
            served => world.truth.violate(|| format!("t{number} goes not on alone: {served:?}")),
        }
    }
    Some(roster)
}
