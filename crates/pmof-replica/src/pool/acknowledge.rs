//! When a persist is acknowledged.

/// When a persist is acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Acknowledge {
    /// When all replicas in sync have the bytes. One that is lost is in sync no more as soon as enough others know that durably.
    #[default]
    InSync,
    /// The same, and at least so many replicas have them; else the persist fails.
    AtLeast(usize),
}

impl Acknowledge {
    /// Replicas that must have the bytes.
    pub(super) fn least(self) -> usize {
        match self {
            Self::InSync => 1,
            Self::AtLeast(least) => least.max(1),
        }
    }
}
