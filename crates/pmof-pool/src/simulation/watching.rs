//! What a writer learns from the keeper of epochs without a change of its own.

use std::rc::Rc;

use pmof_replication::{epochs::Driver, keeper::Keeper};

use super::{faults::Fault, names, session::Session, tasks::sleep};

impl Session {
    /// Ends the session once the keeper has another writer's epoch in force.
    pub(super) async fn watch_keeper(self: Rc<Self>) {
        while !self.is_stopping.get() {
            let known = self.view().epoch().unwrap_or_default();
            if let Ok(kept) = self.keeper().watch(known).await {
                let by = self.epochs.borrow_mut().view.note_in_force(&kept);
                if by.is_some() {
                    self.world.borrow_mut().count(Fault::KeeperToldSuccessor);
                    return self.give_up();
                }
            }
            sleep(&self.world, 5).await;
        }
    }

    /// What the keeper has in force when no writer changes it is what this one takes for it.
    pub(super) fn check_keeper(&self) {
        let mut world = self.world.borrow_mut();
        let Some(kept) = world.keeper.as_ref().map(|keeper| keeper.kept().in_force.epoch) else { return };
        let own = self.view().epoch();
        if own != Some(kept.id) {
            world.truth.violate(|| format!("the keeper has {} in force, the writer {own:?}", names::of(&kept)));
        }
    }
}
