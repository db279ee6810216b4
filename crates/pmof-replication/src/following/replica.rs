//! What an asynchronous member keeps, as its writer changes it.

use pmof_control::ConsistencyPoint;

use super::{outbox::Entry, rules::Rules};

/// A member that is open for writing: its data, and the staging area beside it. Whatever dies between two calls, it is at a point, or will be when it is opened next.
pub trait Replica {
    /// Why its memory failed.
    type Failure;
    /// A change set that is being written to the staging area.
    type ChangeSet: Default;
    /// A change set that lies in the staging area, and the point that it leads to.
    type Staged;

    /// The point that its data is at, if it is known.
    fn point(&self) -> Option<&ConsistencyPoint>;

    /// How far its writer was when it was heard last.
    fn heard(&self) -> Option<&ConsistencyPoint>;

    /// Whether the data is that of a point, known or not. Else it is of no use yet, and may be written as it comes.
    fn is_at_point(&self) -> bool;

    /// Whether it keeps points that have names.
    fn keeps_points(&self) -> bool;

    /// A point with the number of the next change set.
    fn numbered(&self, point: &ConsistencyPoint) -> ConsistencyPoint;

    /// Writes to the data of a member that is at no point: what the first change set finds there.
    ///
    /// # Errors
    /// The memory failed.
    ///
    /// # Panics
    /// The member is at a point.
    fn write_unstaged(&self, offset: u64, bytes: &[u8]) -> Result<(), Self::Failure>;

    /// Has what was written to the data be durable.
    ///
    /// # Errors
    /// The memory failed.
    fn flush_unstaged(&self) -> Result<(), Self::Failure>;

    /// Puts pages into a change set to which no write was added yet, in the place of pages that are in it already. False: they do not fit.
    ///
    /// # Errors
    /// The memory failed.
    fn put(&self, set: &mut Self::ChangeSet, offset: u64, bytes: &[u8]) -> Result<bool, Self::Failure>;

    /// Adds writes to a change set, in their order. False: they do not fit, and none was added.
    ///
    /// # Errors
    /// The memory failed.
    fn add_all(&self, set: &mut Self::ChangeSet, entries: &[Entry]) -> Result<bool, Self::Failure>;

    /// Has the data and the staging area both know the pool's mark, which only grows: an older copy of either, from before what is done from now on, is recognized by it.
    ///
    /// # Errors
    /// The memory failed.
    fn date_copies(&mut self, mark: u64) -> Result<(), Self::Failure>;

    /// Writes a change set and its point to the staging area. It does not count yet. The number of `point` is that of the change set, whatever it was.
    ///
    /// # Errors
    /// The memory failed.
    fn stage(&mut self, set: &mut Self::ChangeSet, point: &ConsistencyPoint) -> Result<Self::Staged, Self::Failure>;

    /// Has all that was written to the staging area be durable.
    ///
    /// # Errors
    /// The memory failed.
    fn flush_staged(&self) -> Result<(), Self::Failure>;

    /// Has the member be at the point of what was staged, durably. From its first step on an opening of the member does that, if this does not.
    ///
    /// # Errors
    /// The memory failed.
    fn apply(&mut self, set: &Self::ChangeSet, staged: Self::Staged) -> Result<(), Self::Failure>;

    /// Notes how far the writer is, for a promotion.
    ///
    /// # Errors
    /// The memory failed.
    fn hear(&mut self, far: &ConsistencyPoint) -> Result<(), Self::Failure>;
}

/// Has the member be at the point that a change set leads to: stages it durably, and then applies it.
///
/// # Errors
/// The memory failed. The member is at the point before, or at this one, or will be when it is opened next.
pub fn commit<R: Replica>(
    rules: &impl Rules,
    replica: &mut R,
    mut set: R::ChangeSet,
    point: &ConsistencyPoint,
) -> Result<(), R::Failure> {
    let staged = replica.stage(&mut set, point)?;
    if rules.is_staged_durably() {
        replica.flush_staged()?;
    }
    replica.apply(&set, staged)
}
