//! What runs have in common.

/// Pages of the pool.
pub(super) const PAGES: usize = 6;

/// Words of each that a loss of power keeps or loses one by one.
pub(super) const WORDS: usize = 2;

/// A rule that is broken on purpose: the checker must notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Control {
    /// A persist is acknowledged before the epoch is durable that leaves out who lacks it.
    AcknowledgedEarly,
    /// A page that was written is not in the map.
    PageNotMarked,
    /// A member that is behind counts as in sync, and is the source.
    BehindAsSource,
    /// An opening takes whom it finds.
    TooFewVotes,
    /// Marks are not compared.
    MarksNotCompared,
    /// A target goes on taking what a writer sends from which another has taken the pool over.
    NotFenced,
    /// What a member lacks of which nobody knows it is not found out by comparing its contents.
    ComparisonSkipped,
    /// A persist that goes on without a slow member is acknowledged before the epoch is durable that leaves it behind.
    SlowAcknowledgedEarly,
    /// Pages are forgotten that a member may lack which was lost before all had flushed them.
    LostForgotten,
}

pub(super) const CONTROLS: [Control; 9] = [
    Control::AcknowledgedEarly,
    Control::PageNotMarked,
    Control::BehindAsSource,
    Control::TooFewVotes,
    Control::MarksNotCompared,
    Control::NotFenced,
    Control::ComparisonSkipped,
    Control::SlowAcknowledgedEarly,
    Control::LostForgotten,
];
