//! The decisions of a keeper that has one value, which is compared and swapped.

use super::{EpochRecord, KeeperError, Kept};

/// The value of such a keeper, without what stores it. Each call is one swap: an implementation reads the value, decides here, and writes the result if no other has written since.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Register {
    kept: Kept,
}

impl Register {
    /// Of a pool whose epoch in force is this one.
    pub fn new(in_force: EpochRecord) -> Self {
        Self { kept: Kept { in_force, announced: None } }
    }

    /// What it has.
    pub fn kept(&self) -> &Kept {
        &self.kept
    }

    /// As [`Keeper::begin`](super::Keeper::begin).
    ///
    /// # Errors
    /// [`KeeperError::Overruled`].
    pub fn begin(&mut self, announced: &EpochRecord) -> Result<(), KeeperError> {
        self.check_parent(announced)?;
        self.kept.announced = Some(announced.clone());
        Ok(())
    }

    /// As [`Keeper::confirm`](super::Keeper::confirm).
    ///
    /// # Errors
    /// [`KeeperError::Overruled`], [`KeeperError::Displaced`].
    pub fn confirm(&mut self, announced: &EpochRecord) -> Result<(), KeeperError> {
        if self.kept.in_force.epoch.id == announced.epoch.id {
            return Ok(());
        }
        self.check_parent(announced)?;
        match self.kept.announced.take_if(|last| last.epoch.id == announced.epoch.id) {
            Some(last) => {
                self.kept.in_force = last;
                Ok(())
            }
            None => Err(KeeperError::Displaced { by: self.kept.announced.as_ref().map(|other| other.epoch.id) }),
        }
    }

    fn check_parent(&self, announced: &EpochRecord) -> Result<(), KeeperError> {
        let by = self.kept.in_force.epoch.id;
        if announced.parent() == Some(by) { Ok(()) } else { Err(KeeperError::Overruled { by }) }
    }
}
