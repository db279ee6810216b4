//! What a writer knows of an asynchronous member that is not connected.

use pmof_control::ConsistencyPoint;
use uuid::Uuid;

/// Where a member was when it was lost.
#[derive(Clone, Debug)]
pub struct LeftAt {
    /// The change set that it had applied, and the point.
    pub point: ConsistencyPoint,
    /// The point of the next one, if that was being sent: it may have been staged, and is applied then.
    pub next: Option<ConsistencyPoint>,
    /// Its machine's boot: with another one it may have lost more than a writer knows.
    pub boot: Option<Uuid>,
}

impl LeftAt {
    /// Whether a member that is back, at this point, has what it had, and more only of what is remembered.
    pub fn is_left_at(&self, point: Option<&ConsistencyPoint>, boot: Option<Uuid>) -> bool {
        let is_there = |left: &ConsistencyPoint| point == Some(left);
        boot.is_some() && boot == self.boot && (is_there(&self.point) || self.next.as_ref().is_some_and(is_there))
    }
}

/// What a writer knows of a member between two connections to it.
#[derive(Debug, Default)]
pub struct Known {
    /// The epoch that this writer has told it of.
    pub(super) epoch: Option<Uuid>,
    /// Where it was when it was lost, if what it lacks since is remembered.
    pub(super) left_at: Option<LeftAt>,
}

impl Known {
    /// Where it was when it was lost, if what it lacks since is remembered.
    pub fn left_at(&self) -> Option<&LeftAt> {
        self.left_at.as_ref()
    }
}
