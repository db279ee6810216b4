//! Waiting for what is appended to a ring.

use std::time::Duration;

use super::AppendRing;
use crate::CompletionQueue;

impl AppendRing {
    /// Waits until there is a record that was not consumed, driving `queue`, which is that of the connection; at most
    /// `timeout`. False when the time is up.
    pub fn wait(&self, queue: &CompletionQueue, timeout: Duration) -> bool {
        queue.wait_until(timeout, || (!self.is_empty()).then_some(())).is_some()
    }
}
