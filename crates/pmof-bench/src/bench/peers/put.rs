//! What a client of a peer does.

use std::fmt;

use anyhow::Result;

/// Makes bytes durable, one piece at a time.
pub(super) trait Put: fmt::Debug + Send {
    /// Writes the next bytes to a place, and waits until they are durable.
    fn put(&mut self, place: u64) -> Result<()>;

    /// Bytes sent and received; `None` where there is no connection.
    fn moved(&self) -> Option<[u64; 2]>;
}
