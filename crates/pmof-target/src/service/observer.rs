//! How a target does.

use std::sync::Arc;

use super::Shared;

/// Sees how a target does, from any thread; it does not keep the target running.
#[derive(Clone, Debug)]
pub struct Observer {
    pub(super) shared: Arc<Shared>,
}

impl Observer {
    /// Connections that there are. It waits for whoever changes them.
    pub fn connections(&self) -> u64 {
        self.shared.connections()
    }
}
