//! How a target behaves.

use std::time::Duration;

use pmof_access::{DEFAULT_LOSS_TIMEOUT, ListenOptions, QueueOptions, Settings, VerbsOptions, Waiting};
use pmof_control::{DomainName, MAX_MESSAGE_BYTES};
use uuid::Uuid;

use super::authentication::Admission;
use crate::StoreOptions;

/// Default for the connections that a target takes.
pub const DEFAULT_MAX_CONNECTIONS: usize = 10_000;

/// Default number of worker threads, at most: each connection belongs to one. What takes a while is done on other threads, so more than a
/// few of these would only take the CPU from each other.
const WORKERS_MAX: usize = 4;

/// Default for what all connections of a target together may make it hold, in bytes: room for
/// [`DEFAULT_MAX_CONNECTIONS`] over tcp and shm.
pub const DEFAULT_MEMORY_BUDGET_BYTES: u64 = 512 << 20;

/// Messages kept for a connection between two looks: an initiator asks one thing at a time.
const INBOX_MESSAGES: u32 = 1;

/// How a target behaves.
#[derive(Clone, Debug)]
pub struct ServiceOptions {
    pub(crate) waiting: Waiting,
    pub(crate) workers: usize,
    pub(crate) max_connections: usize,
    pub(crate) memory_budget_bytes: u64,
    pub(crate) loss_timeout: Duration,
    pub(crate) trust_network: bool,
    pub(crate) trust_host: bool,
    pub(crate) admission: Admission,
    pub(crate) verbs: VerbsOptions,
    pub(crate) store: StoreOptions,
    pub(crate) boot: Option<Uuid>,
    pub(crate) failure_domain: Option<DomainName>,
}

impl Default for ServiceOptions {
    fn default() -> Self {
        Self {
            waiting: QueueOptions::default().waiting,
            workers: 0,
            max_connections: DEFAULT_MAX_CONNECTIONS,
            memory_budget_bytes: DEFAULT_MEMORY_BUDGET_BYTES,
            loss_timeout: DEFAULT_LOSS_TIMEOUT,
            trust_network: false,
            trust_host: false,
            admission: Admission::default(),
            verbs: VerbsOptions::default(),
            store: StoreOptions::default(),
            boot: None,
            failure_domain: None,
        }
    }
}

impl ServiceOptions {
    /// A name of the time since this machine was started, for machines that are put back to a snapshot without being started; the kernel's unless
    /// given. Where it is another one than before, initiators take what was not durable for lost.
    #[must_use]
    pub fn boot(mut self, boot: Uuid) -> Self {
        self.boot = Some(boot);
        self
    }

    /// How worker threads wait.
    #[must_use]
    pub fn waiting(mut self, waiting: Waiting) -> Self {
        self.waiting = waiting;
        self
    }

    /// Worker threads; 0 chooses: one for busy polling, else as many as CPUs, at most 4.
    #[must_use]
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = workers;
        self
    }

    /// Connections taken; more are refused.
    #[must_use]
    pub fn max_connections(mut self, max_connections: usize) -> Self {
        self.max_connections = max_connections;
        self
    }

    /// Bytes that all connections together may make the target hold: for each 48 KiB (over verbs 512 KiB, over libfabric up to 96 MiB), without which it is
    /// refused like one too many, and of the rest half for answers that initiators do not take. While that is short, the
    /// connections that hold most are not served until they take their answers.
    #[must_use]
    pub fn memory_budget_bytes(mut self, memory_budget_bytes: u64) -> Self {
        self.memory_budget_bytes = memory_budget_bytes;
        self
    }

    /// Time without an answer that is due, after which a connection counts as lost and its pool is closed.
    #[must_use]
    pub fn loss_timeout(mut self, loss_timeout: Duration) -> Self {
        self.loss_timeout = loss_timeout;
        self
    }

    /// Listen also on addresses that other machines reach, although nobody is authenticated: whoever reaches one may use
    /// and remove all pools.
    #[must_use]
    pub fn trust_network(mut self, trust_network: bool) -> Self {
        self.trust_network = trust_network;
        self
    }

    /// Serve every user of this machine who connects over TCP or libfabric, not only the user of this process and root. Over shared memory the mode of
    /// the socket says who may connect. Said anyway by [`trust_network`](Self::trust_network), and not asked where [`admission`](Self::admission) asks
    /// for a secret.
    #[must_use]
    pub fn trust_host(mut self, trust_host: bool) -> Self {
        self.trust_host = trust_host;
        self
    }

    /// Who may ask for pools.
    #[must_use]
    pub fn admission(mut self, admission: Admission) -> Self {
        self.admission = admission;
        self
    }

    /// How `verbs://` addresses are served. Each takes the device that its address belongs to; only the wildcard address
    /// takes the one named here.
    #[must_use]
    pub fn verbs(mut self, verbs: VerbsOptions) -> Self {
        self.verbs = verbs;
        self
    }

    /// What fails together with this target, by a name that is the same for all such targets: a machine, a rack, a site. This machine, unless told
    /// otherwise. Pools count how many of them may be lost; your word is believed even of targets on one machine.
    #[must_use]
    pub fn failure_domain(mut self, name: DomainName) -> Self {
        self.failure_domain = Some(name);
        self
    }

    /// How pools are kept.
    #[must_use]
    pub fn store(mut self, store: StoreOptions) -> Self {
        self.store = store;
        self
    }

    /// How it listens.
    pub(super) fn listening(&self) -> ListenOptions {
        let settings = Settings {
            message_max_bytes: MAX_MESSAGE_BYTES as u32,
            inbox_messages: INBOX_MESSAGES,
            send_queue: pmof_access::limits::SEND_QUEUE_LIMIT,
            capabilities: pmof_access::Capabilities::all(),
            ..Settings::default()
        };
        ListenOptions::default().settings(settings).trust_network(self.trust_network)
    }

    /// How many worker threads it has.
    pub(super) fn worker_count(&self) -> usize {
        match (self.workers, self.waiting) {
            (0, Waiting::BusyPoll) => 1,
            (0, Waiting::Adaptive { .. }) => {
                std::thread::available_parallelism().map_or(1, |cpus| cpus.get().min(WORKERS_MAX))
            }
            (workers, _) => workers,
        }
    }
}
