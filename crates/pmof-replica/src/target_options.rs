//! How the targets of pool sets are reached.

use std::time::Duration;

use pmof_access::{DEFAULT_CONNECT_TIMEOUT, DEFAULT_LOSS_TIMEOUT, Durability, QueueOptions, Waiting};

use crate::{PoolOptions, ReplicaError, SshOptions, TargetUrl, target::TargetConnection};

/// How the targets that keep replicas of a pool set are reached.
#[derive(Clone, Debug)]
pub struct TargetOptions {
    /// How they are started, for `ssh://`.
    pub ssh: SshOptions,
    /// The level that persisted bytes must reach; `None` for the strongest that the target's parts can give.
    pub require: Option<Durability>,
    /// How to wait for them.
    pub waiting: Waiting,
    /// Time for each data connection to stand.
    pub connect_timeout: Duration,
    /// Time without an answer that is due, after which a target counts as dead.
    pub loss_timeout: Duration,
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
