//! How the targets of pool sets are reached.

use std::time::Duration;

use pmof_access::{DEFAULT_CONNECT_TIMEOUT, DEFAULT_LOSS_TIMEOUT, Durability, QueueOptions, Waiting};
use pmof_bootstrap::SshOptions;

use crate::{PoolOptions, ReplicaError, TargetUrl, target::TargetConnection};

/// How the targets that keep replicas of a pool set are reached.
#[derive(Clone, Debug)]
pub struct TargetOptions {
    pub(crate) ssh: SshOptions,
    pub(crate) require: Option<Durability>,
    pub(crate) waiting: Waiting,
    pub(crate) connect_timeout: Duration,
    pub(crate) loss_timeout: Duration,
}

impl Default for TargetOptions {
    fn default() -> Self {
        Self {
            ssh: SshOptions::from_env(),
            require: None,
            waiting: QueueOptions::default().waiting,
            connect_timeout: DEFAULT_CONNECT_TIMEOUT,
            loss_timeout: DEFAULT_LOSS_TIMEOUT,
        }
    }
}

impl TargetOptions {
    /// How they are started, for `ssh://`.
    #[must_use]
    pub fn ssh(mut self, ssh: SshOptions) -> Self {
        self.ssh = ssh;
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
        self.waiting = waiting;
        self
    }

    /// Time for each data connection to stand.
    #[must_use]
    pub fn connect_timeout(mut self, connect_timeout: Duration) -> Self {
        self.connect_timeout = connect_timeout;
        self
    }

    /// Time without an answer that is due, after which a target counts as dead.
    #[must_use]
    pub fn loss_timeout(mut self, loss_timeout: Duration) -> Self {
        self.loss_timeout = loss_timeout;
        self
    }
}

impl TargetOptions {
    /// A connection to a target, which ssh starts if it is to.
    pub(crate) fn reach(&self, target: &TargetUrl) -> Result<TargetConnection, ReplicaError> {
        let options = PoolOptions::default()
            .ssh(self.ssh.clone())
            .waiting(self.waiting)
            .connect_timeout(self.connect_timeout)
            .loss_timeout(self.loss_timeout);
        options.reach(&mut options.peers(), target, None)
    }
}
