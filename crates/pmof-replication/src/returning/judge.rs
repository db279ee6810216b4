//! What a replica that returns is to the pool, and who may hold it: decided only from its state and the writer's epochs.

use crate::{
    epochs::Epochs,
    lineage::{Apart, Found, of_returning},
};

/// The writer that has a replica open which is to return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// This writer is about to close the pool.
    Ended,
    /// It has superseded this writer.
    Successor,
    /// This writer has superseded it: the replica is taken from it.
    Superseded,
    /// It may be either: the replica is left to it.
    Unknown,
}

impl Holder {
    /// What the writer is that has a replica open in this state.
    pub fn of(epochs: &Epochs, found: &Found<'_>) -> Self {
        let view = &epochs.view;
        if epochs.has_ended {
            return Self::Ended;
        }
        if view.is_superseded_by(found.state) {
            return Self::Successor;
        }
        let apart = of_returning(found, view.line(), view.opening());
        let is_older = apart.as_ref().is_some_and(Apart::may_catch_up);
        if view.has_superseded() && is_older { Self::Superseded } else { Self::Unknown }
    }
}

/// A replica that was opened to return to a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The writer is about to close the pool.
    Ended,
    /// It is another replica than the one that belongs there, or another member is this replica.
    OtherReplica,
    /// Another writer that has superseded this one has told it of an epoch. Its connections to the others may be cut, so that none of them has told this writer.
    Successor,
    /// It holds what the pool never acknowledged.
    Apart(Apart),
    /// It may catch up.
    Returns {
        /// It remembers what it was told, so that its own word counts.
        is_own: bool,
    },
}

pub(super) fn judge(epochs: &Epochs, position: usize, found: &Found<'_>) -> Verdict {
    let view = &epochs.view;
    let known = view.index(position);
    if epochs.has_ended {
        return Verdict::Ended;
    }
    if view.has_other(found.index, position) || known.is_some_and(|known| known != found.index) {
        return Verdict::OtherReplica;
    }
    if view.is_superseded_by(found.state) {
        return Verdict::Successor;
    }
    match of_returning(found, view.line(), view.opening()) {
        Some(apart) if !apart.may_catch_up() => Verdict::Apart(apart),
        apart => Verdict::Returns { is_own: apart.as_ref().is_none_or(Apart::votes) },
    }
}
