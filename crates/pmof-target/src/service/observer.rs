//! Observes a running target.

use std::sync::Arc;

use super::Shared;

/// Observes a target from any thread; it does not keep the target running.
#[derive(Clone, Debug)]
pub struct Observer {
    pub(super) shared: Arc<Shared>,
}

impl Observer {
    /// The number of connections. Waits for a thread that is changing them.
    pub fn connections(&self) -> u64 {
        self.shared.connections()
    }
}
