//! Whether the replicas of a set belong together according to their headers. Both opening and check use this comparison.

use std::fmt;

use crate::{Attributes, uuid_text};

/// A mismatch between a replica's header and the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Misfit {
    /// It belongs to another pool set.
    OtherSet {
        /// Its own.
        found: [u8; 16],
        /// That of the first replica.
        expected: [u8; 16],
    },
    /// Its kind or version.
    OtherKind,
    /// Its features.
    OtherFeatures,
    /// The architecture that it was made on.
    OtherArchitecture,
    /// The replica beside it is not the one that it names.
    Neighbour {
        /// `previous` or `next`.
        side: &'static str,
        /// The UUID that it names.
        found: [u8; 16],
        /// The UUID of the one that is there.
        expected: [u8; 16],
    },
}

impl Misfit {
    /// What is not as it should be, in a word or two.
    pub fn what(&self) -> &'static str {
        match self {
            Self::OtherSet { .. } => "pool set UUID",
            Self::OtherKind => "kind of pool or version",
            Self::OtherFeatures => "set of features",
            Self::OtherArchitecture => "architecture",
            Self::Neighbour { .. } => "neighbour",
        }
    }
}

/// A sentence about the replica.
impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OtherSet { found, expected } => {
                write!(f, "it belongs to the pool set {}, not to {}", uuid_text(found), uuid_text(expected))
            }
            Self::OtherKind => f.write_str("it is of another kind or version"),
            Self::OtherFeatures => f.write_str("it has other features"),
            Self::OtherArchitecture => f.write_str("it was made on another architecture"),
            Self::Neighbour { side, found, expected } => {
                let (found, expected) = (uuid_text(found), uuid_text(expected));
                write!(f, "its {side} replica should be {found}, but {expected} is there")
            }
        }
    }
}

/// What in the replica at a place of the set does not fit the others. `headers`: of each replica what its header says, as far as it is
/// known; nothing is said of those that are not, nor against them.
pub fn misfits(headers: &[Option<Attributes>], index: usize) -> Vec<Misfit> {
    let count = headers.len();
    let first = headers.iter().flatten().next();
    let (Some(own), Some(first)) = (&headers[index], first) else { return Vec::new() };
    if own.poolset_uuid != first.poolset_uuid {
        return vec![Misfit::OtherSet { found: own.poolset_uuid, expected: first.poolset_uuid }];
    }
    let mut misfits = Vec::new();
    misfits.extend(((own.signature, own.major) != (first.signature, first.major)).then_some(Misfit::OtherKind));
    misfits.extend((own.features() != first.features()).then_some(Misfit::OtherFeatures));
    misfits.extend((own.user_flags != first.user_flags).then_some(Misfit::OtherArchitecture));
    for (side, found, beside) in
        [("previous", own.prev_uuid, (index + count - 1) % count), ("next", own.next_uuid, (index + 1) % count)]
    {
        if let Some(other) = headers[beside].filter(|other| other.uuid != found) {
            misfits.push(Misfit::Neighbour { side, found, expected: other.uuid });
        }
    }
    misfits
}

/// The replica of a set that does not fit, by its place, and why: one that is itself another rather than one that is beside it.
pub fn first_misfit(headers: &[Option<Attributes>]) -> Option<(usize, Misfit)> {
    let all =
        || (0..headers.len()).flat_map(|index| misfits(headers, index).into_iter().map(move |misfit| (index, misfit)));
    all().find(|(_, misfit)| !matches!(misfit, Misfit::Neighbour { .. })).or_else(|| all().next())
}
