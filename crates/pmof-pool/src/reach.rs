//! How targets are reached: started where they are to be, connected to, and asked for a proof of who they are.

use std::{
    net::IpAddr,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use pmof_access::{
    Address, Capabilities, ConnectOptions, DEFAULT_CONNECT_TIMEOUT, DEFAULT_LOSS_TIMEOUT, Method, QueueOptions,
    Settings, Waiting, limits,
};
use pmof_bootstrap::{SshOptions, SshSession, Started};
use pmof_control::{InitiatorProcess, PoolName, PoolRefusal};
use pmof_mem::{Declaration, causes};
use pmof_target::{LocalTarget, StoreOptions};
use rustix::process::geteuid;

use crate::{PoolUrl, ReplicaError, TargetUrl, peers::Peers, site::Site, target::TargetConnection};

/// How targets are reached, and waited for: what the options of all pools have in common.
#[derive(Clone, Debug)]
pub(crate) struct Reach {
    /// How those of `ssh://` are started.
    pub(crate) ssh: SshOptions,
    pub(crate) waiting: Waiting,
    pub(crate) connect_timeout: Duration,
    pub(crate) loss_timeout: Duration,
    /// The only method of flush to use, if one is asked for.
    pub(crate) method: Option<Method>,
    /// The local address to come from where no URL names one; verbs only.
    pub(crate) source: Option<IpAddr>,
    pub(crate) payload_checksums: bool,
    /// Take a target of any user of this machine.
    pub(crate) trust_host: bool,
    /// Once it is set, attempts to connect end.
    pub(crate) given_up: Option<Arc<AtomicBool>>,
    /// What the operator vouches for of this machine's memory.
    pub(crate) declaration: Option<Declaration>,
}

impl Default for Reach {
    fn default() -> Self {
        Self {
            ssh: SshOptions::from_env(),
            waiting: QueueOptions::default().waiting,
            connect_timeout: DEFAULT_CONNECT_TIMEOUT,
            loss_timeout: DEFAULT_LOSS_TIMEOUT,
            method: None,
            source: None,
            payload_checksums: false,
            trust_host: false,
            given_up: None,
            declaration: None,
        }
    }
}

impl Reach {
    /// Through which connections to one pool's targets go.
    pub(crate) fn peers(&self) -> Peers {
        Peers::new(QueueOptions::default().waiting(self.waiting))
    }

    /// The same, but attempts to connect end once the flag is set.
    pub(crate) fn until(&self, given_up: &Arc<AtomicBool>) -> Self {
        Self { given_up: Some(Arc::clone(given_up)), ..self.clone() }
    }

    /// Where a pool is asked for.
    pub(crate) fn site(&self, peers: &Peers, url: &PoolUrl) -> Result<Site, ReplicaError> {
        self.site_at(peers, &url.target, Some(&url.name), url.source)
    }

    /// The same, for one pool there or for any.
    pub(crate) fn site_at(
        &self,
        peers: &Peers,
        target: &TargetUrl,
        name: Option<&PoolName>,
        source: Option<IpAddr>,
    ) -> Result<Site, ReplicaError> {
        let TargetUrl::Directory(directory) = target else {
            return Ok(Site::Target(Arc::new(self.connect(peers, target, source)?)));
        };
        let options = StoreOptions::default().declaration(self.declaration);
        let opened = LocalTarget::open(directory, name, options).map_err(|error| ReplicaError::Refused {
            refusal: PoolRefusal::from_code(error.code()),
            text: causes(&error).to_string(),
        })?;
        Ok(Site::Here(Arc::new(opened)))
    }

    /// A connection to a target, which ssh starts if it is to.
    pub(crate) fn connect(
        &self,
        peers: &Peers,
        target: &TargetUrl,
        source: Option<IpAddr>,
    ) -> Result<TargetConnection, ReplicaError> {
        let host = match target {
            TargetUrl::Address(address) => return self.connect_to(peers, address, source, self.trust_host),
            TargetUrl::Ssh(host) => host,
            TargetUrl::Directory(directory) => return Err(ReplicaError::NoTarget { directory: directory.clone() }),
        };
        let Started { session, addresses, secret } = SshSession::start(host, &self.ssh).map_err(Box::new)?;
        let mut tried = Vec::with_capacity(addresses.len());
        for address in &addresses {
            // The target authenticates itself, whichever user runs it there.
            let proven = self.connect_to(peers, address, source, true).and_then(|connection| {
                connection.prove(&secret)?;
                Ok(connection)
            });
            match proven {
                Ok(connection) => return Ok(connection.with_session(session)),
                // Another way leads to the same target.
                Err(error @ (ReplicaError::Refused { .. } | ReplicaError::Impostor)) => return Err(error),
                Err(error) => tried.push(format!("{address}: {}", causes(&error))),
            }
        }
        Err(ReplicaError::NoDataPath { why: tried.join("; ") })
    }

    fn connect_to(
        &self,
        peers: &Peers,
        address: &Address,
        source: Option<IpAddr>,
        trust_host: bool,
    ) -> Result<TargetConnection, ReplicaError> {
        let source = source.or(self.source);
        let (peer, queue) = peers.towards(address, source)?;
        let mut settings = Settings { send_queue: limits::SEND_QUEUE_LIMIT, ..Default::default() };
        settings.capabilities.set(Capabilities::PAYLOAD_CRC, self.payload_checksums);
        let options = ConnectOptions::default()
            .timeout(self.connect_timeout)
            .loss_timeout(self.loss_timeout)
            .settings(settings)
            .method(self.method)
            .source(source)
            .trust_host(trust_host)
            .give_up(self.given_up.clone())
            .private_data(this_process().encode());
        // Twice the time after which the connection itself ends, so that its reason is the one reported.
        TargetConnection::open(&peer, &queue, address, &options, self.loss_timeout.saturating_mul(2))
    }
}

/// This process, for people who look at a target for who writes.
fn this_process() -> InitiatorProcess {
    // Named anew for each connection: a process may become another program, or another user's.
    let program = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
    InitiatorProcess {
        process_id: std::process::id(),
        user_id: geteuid().as_raw(),
        program: program.trim_end().to_owned(),
    }
}
