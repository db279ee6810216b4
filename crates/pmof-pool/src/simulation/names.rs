//! Names of epochs and replicas. They look random and are the same in each run of a seed; a trace gives them numbers, in the order in which it meets them.

use std::cell::RefCell;

use pmof_control::Epoch;
use uuid::Uuid;

use super::random::Random;

thread_local! {
    static MET: RefCell<Vec<Uuid>> = const { RefCell::new(Vec::new()) };
    static GIVEN: RefCell<Random> = RefCell::new(Random::new(0));
}

/// The run of a seed begins.
pub(super) fn begin(seed: u64) {
    MET.with_borrow_mut(Vec::clear);
    GIVEN.set(Random::new(seed.rotate_left(48)));
}

/// A name that nothing has yet.
pub(super) fn fresh() -> Uuid {
    GIVEN.with_borrow_mut(|given| Uuid::from_u64_pair(given.next(), given.next()))
}

fn number(id: Uuid) -> usize {
    MET.with_borrow_mut(|met| {
        let number = met.iter().position(|known| *known == id).unwrap_or(met.len());
        if number == met.len() {
            met.push(id);
        }
        number
    })
}

pub(super) fn of_id(id: Uuid) -> String {
    format!("e{}", number(id))
}

/// The epoch with its members.
pub(super) fn of(epoch: &Epoch) -> String {
    format!("{}{{{:b}}}", of_id(epoch.id), epoch.members)
}
