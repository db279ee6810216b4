//! Readers: they come at any time, reach some of the targets, and read from those that they take to be in sync.

use super::{random::Random, world::World};
use crate::{
    electorate::{Electorate, Word},
    lineage::{Found, agree},
};

/// One reader. It keeps nobody from anything, so that it has numbers of its own.
pub(super) fn read_somewhere(world: &mut World, random: &mut Random) {
    // What tells an older copy from the replica is not promised to a reader, which may meet the copy alone.
    let is_reached = |index: &usize| {
        let target = &world.targets[*index];
        target.is_there && target.is_up && target.restored.is_none()
    };
    let reached: Vec<usize> = (0..world.targets.len()).filter(is_reached).filter(|_| random.once_in(2)).collect();
    let found = |target: usize| Found { index: world.targets[target].index, state: &world.targets[target].state };
    let said = |target: &usize| Word {
        found: found(*target),
        replica_uuid: world.targets[*target].replica_uuid,
        roster: world.targets[*target].roster.as_deref(),
    };
    let words: Vec<_> = reached.iter().map(said).collect();
    let electorate = Electorate::of(&words, world.plan.made as u16);
    let is_member = |target: &usize| electorate.has(world.targets[*target].index, world.targets[*target].replica_uuid);
    let reached: Vec<usize> = reached.iter().copied().filter(is_member).collect();
    let found: Vec<_> = reached.iter().map(|target| found(*target)).collect();
    let agreement = agree(&found, electorate.count()).ok();
    let Some(agreement) = agreement.filter(|agreement| electorate.is_enough(agreement, &found)) else { return };
    for position in agreement.in_sync {
        let pages = world.targets[reached[position]].cache;
        world.readers += 1;
        world.truth.read(&pages);
    }
}
