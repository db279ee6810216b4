//! The rules by which members are followed up, each in a method of its own, so that the simulation can break one and show that it is needed.

use pmof_control::{ConsistencyPoint, PoolState};
use uuid::Uuid;

use super::known::LeftAt;
use crate::{
    lineage::{Apart, Found, of_returning},
    view::View,
};

/// How asynchronous members are followed up.
pub trait Rules {
    /// Whether a member that is connected, at this point, lacks no more than what is remembered. `left_at`: where it was when it was lost, of one that this writer has had.
    fn is_left_at(&self, left_at: Option<&LeftAt>, point: Option<&ConsistencyPoint>, boot: Option<Uuid>) -> bool {
        left_at.is_some_and(|left| left.is_left_at(point, boot))
    }

    /// Why the state of a member is not one that this writer or one before it has left, as that of one is which a later writer has, or which was promoted.
    fn apart(&self, view: &View, index: u16, state: &PoolState) -> Option<Apart> {
        let apart = of_returning(&Found { index, state }, view.line(), view.opening());
        apart.filter(|apart| state.opening > view.opening() || !apart.may_catch_up())
    }

    /// Whether what was dropped, and what is written during a copy, is copied too.
    fn is_dropped_copied(&self) -> bool {
        true
    }

    /// Whether a point is sent only when what is before it is durable on the members in sync.
    fn is_durable_before_sent(&self) -> bool {
        true
    }

    /// Whether a change set is durable in the staging area before it is applied.
    fn is_staged_durably(&self) -> bool {
        true
    }
}

/// The rules as they are.
#[derive(Clone, Copy, Debug, Default)]
pub struct ShippedRules;

impl Rules for ShippedRules {}
