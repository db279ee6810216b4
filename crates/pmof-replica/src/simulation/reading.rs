//! Readers: they come at any time, reach some of the targets, and read from those that they take to be in sync.

use super::{random::Random, world::World};
use crate::lineage::{Found, agree};

/// One reader. It keeps nobody from anything, so that it has numbers of its own.
pub(super) fn read_somewhere(world: &mut World, random: &mut Random) {
    let made = world.targets.len() as u16;
    // What tells an older copy from the replica is not promised to a reader, which may meet the copy alone.
    let is_reached = |index: &usize| world.targets[*index].is_up && world.targets[*index].restored.is_none();
    let reached: Vec<usize> = (0..world.targets.len()).filter(is_reached).filter(|_| random.once_in(2)).collect();
    let state = |index: &usize| Found { index: *index as u16, state: &world.targets[*index].state };
    let found: Vec<_> = reached.iter().map(state).collect();
    let Some(agreement) =
        agree(&found, made).ok().filter(|agreement| agreement.is_enough(&found, (1 << made) - 1, true))
    else {
        return;
    };
    for position in agreement.in_sync {
        let pages = world.targets[reached[position]].cache;
        world.readers += 1;
        world.truth.read(&pages);
    }
}
