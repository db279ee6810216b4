//! Methods of remote flush.

use std::fmt;

/// How earlier writes of a connection are brought to the target's persistence domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Method {
    /// A message follows the writes; the target's CPU flushes and answers (GPSPM).
    SendAfterWrite,
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::SendAfterWrite => "send-after-write",
        })
    }
}
