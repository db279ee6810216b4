//! Which errors say that there is no way to a replica.

use pmof_access::{ConnectError, ConnectionError, OperationError, PostError};
use pmof_control::PoolRefusal;

use super::ReplicaError;

impl ReplicaError {
    /// Whether the replica is out of reach, and may be back without anybody's mending an address: its target is dead, was never there, or fell silent. What it holds is
    /// unknown. A name that does not resolve and something there that is no target are [out of reach](Self::is_out_of_reach), and not lost.
    pub fn is_lost(&self) -> bool {
        self.is_out_of_reach() && !self.is_wrong_address()
    }

    /// Whether the address is wrong, as far as can be told: its host name has no address, or what answers there does not speak pmof's protocol.
    fn is_wrong_address(&self) -> bool {
        matches!(
            self,
            Self::Connect(
                ConnectError::Resolve { .. } | ConnectError::Ended { why: ConnectionError::Malformed { .. }, .. }
            )
        )
    }

    /// Whether there is no way to the replica now: it is [lost](Self::is_lost), or its address is wrong. A pool goes on without it either way, and tries again: the resolver may be
    /// down for a moment, or another program has the port for a while.
    pub fn is_out_of_reach(&self) -> bool {
        matches!(
            self,
            Self::Connect(_)
                | Self::Ssh(_)
                | Self::NoDataPath { .. }
                | Self::Ended(_)
                | Self::TimedOut { .. }
                | Self::Silent { .. }
                | Self::Post(PostError::NotConnected(_))
                | Self::Operation(OperationError::ConnectionEnded(_))
        )
    }

    /// Whether the replica may be lost for this reason, rather than in use or unfit: a pool is opened without it, if the others are enough.
    pub(crate) fn may_be_lost(&self) -> bool {
        use PoolRefusal::{Failed, HeadersDamaged as Headers, NotAUsablePool, NotFound, UncertainState};
        match self {
            Self::Refused { refusal: NotFound | NotAUsablePool | Headers | UncertainState | Failed, .. } => true,
            error => error.is_out_of_reach(),
        }
    }
}
