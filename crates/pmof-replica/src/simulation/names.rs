//! Epochs and replicas have random names: a trace gives them numbers, in the order in which it meets them, so that a seed repeats it to the byte.

use std::{
    cell::RefCell,
    fmt::{self, Debug, Formatter},
};

use pmof_control::Epoch;
use uuid::Uuid;

thread_local! {
    static MET: RefCell<Vec<Uuid>> = const { RefCell::new(Vec::new()) };
}

/// A run begins.
pub(super) fn forget() {
    MET.with_borrow_mut(Vec::clear);
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

/// A replica's UUID, in what a trace prints.
#[derive(Clone, Copy)]
pub(super) struct ReplicaId(pub(super) Uuid);

impl Debug for ReplicaId {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        write!(formatter, "r{}", number(self.0))
    }
}

/// The epoch with its members.
pub(super) fn of(epoch: &Epoch) -> String {
    format!("{}{{{:b}}}", of_id(epoch.id), epoch.members)
}
