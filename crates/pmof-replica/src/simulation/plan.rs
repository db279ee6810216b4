//! What runs have in common.

/// Pages of the pool; each holds one value.
pub(super) const PAGES: usize = 6;

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
}

pub(super) const CONTROLS: [Control; 5] = [
    Control::AcknowledgedEarly,
    Control::PageNotMarked,
    Control::BehindAsSource,
    Control::TooFewVotes,
    Control::MarksNotCompared,
];
