//! How the targets of pool sets are reached.

use std::time::Duration;

use pmof_access::{Durability, Waiting};
use pmof_bootstrap::SshOptions;

use crate::{ReplicaError, TargetUrl, reach::Reach, target::TargetConnection};

/// How the targets that keep replicas of a pool set are reached.
#[derive(Clone, Debug, Default)]
pub struct TargetOptions {
    reach: Reach,
    pub(crate) require: Option<Durability>,
}

impl TargetOptions {
    /// How they are started, for `ssh://`.
    #[must_use]
    pub fn ssh(mut self, ssh: SshOptions) -> Self {
        self.reach.ssh = ssh;
        self
    }

    /// The level that persisted bytes must reach; `None` for the strongest that the target's parts can give.
    #[must_use]
    pub fn require(mut self, require: Option<Durability>) -> Self {
        self.require = require;
        self
    }

    /// How to wait for them.
    #[must_use]
    pub fn waiting(mut self, waiting: Waiting) -> Self {
        self.reach.waiting = waiting;
        self
    }

    /// The connect timeout of each data connection.
    #[must_use]
    pub fn connect_timeout(mut self, connect_timeout: Duration) -> Self {
        self.reach.connect_timeout = connect_timeout;
        self
    }

    /// Take a target of any user of this machine on a loopback address; otherwise one of this user or of root only
    /// ([`ConnectOptions::trust_host`](pmof_access::ConnectOptions::trust_host)).
    #[must_use]
    pub fn trust_host(mut self, trust_host: bool) -> Self {
        self.reach.trust_host = trust_host;
        self
    }

    /// Time without an answer that is due, after which a target counts as dead.
    #[must_use]
    pub fn loss_timeout(mut self, loss_timeout: Duration) -> Self {
        self.reach.loss_timeout = loss_timeout;
        self
    }

    /// A connection to a target, which ssh starts if it is to.
    pub(crate) fn reach(&self, target: &TargetUrl) -> Result<TargetConnection, ReplicaError> {
        self.reach.connect(&self.reach.peers(), target, None)
    }
}
