//! The outcome of an operation, as applications see it.

use std::fmt;

use pmof_proto::{Completion as ProtoCompletion, OperationError, OperationKind, Outcome, Ticket};

/// Names a connection of this process; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub(crate) u64);

impl ConnectionId {
    /// The number, from 1 on.
    pub fn number(self) -> u64 {
        self.0
    }
}

/// The number, as the log has it.
impl fmt::Display for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The outcome of an operation or receive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The connection that it was posted on.
    pub connection: ConnectionId,
    /// What posting returned.
    pub ticket: Ticket,
    /// The number given when posting.
    pub context: u64,
    /// What was posted.
    pub kind: OperationKind,
    /// How it ended.
    pub outcome: Result<Outcome, OperationError>,
}

impl Completion {
    pub(crate) fn new(connection: ConnectionId, inner: ProtoCompletion) -> Self {
        let ProtoCompletion { ticket, context, kind, outcome } = inner;
        Self { connection, ticket, context, kind, outcome }
    }
}
