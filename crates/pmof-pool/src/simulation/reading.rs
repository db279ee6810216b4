//! Readers: they come at any time, reach some of the targets, and read from those that they take to be in sync.

use pmof_replication::opening::{Rules, ShippedRules};

use super::{keeper::Outside, random::Random, world::World};
use crate::{
    electorate::Word,
    lineage::{Agreement, Found},
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
    let (kept, made) = (world.keeper.as_ref().map(Outside::kept), world.plan.made as u16);
    let electorate = ShippedRules.electorate(&words, made, kept);
    let is_member = |target: &usize| electorate.has(world.targets[*target].index, world.targets[*target].replica_uuid);
    let reached: Vec<usize> = reached.iter().copied().filter(is_member).collect();
    let found: Vec<_> = reached.iter().map(|target| found(*target)).collect();
    let agreement = ShippedRules.agree(&found, electorate.count(), kept).ok();
    let is_enough = |agreement: &Agreement| ShippedRules.is_enough(&electorate, agreement, &found, kept);
    let Some(agreement) = agreement.filter(is_enough) else { return };
    for position in agreement.in_sync {
        let pages = world.targets[reached[position]].cache;
        world.readers += 1;
        world.truth.read(&pages);
    }
}
