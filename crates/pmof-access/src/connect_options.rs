//! What goes with a connection request.

use std::{
    net::IpAddr,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use pmof_proto::{Settings, limits};

use crate::{CompletionQueue, Method, RemoteRegion, SharedReceives};

/// Default time without an answer that is due, after which a connection counts as lost: longer than a slow disk's flush.
pub const DEFAULT_LOSS_TIMEOUT: Duration = Duration::from_secs(10);

/// Default connect timeout.
pub const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// What goes with a connection request.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ConnectOptions {
    /// For the other side's application, at most [`limits::CONNECT_PRIVATE_MAX_BYTES`].
    pub private_data: Vec<u8>,
    /// Connect timeout.
    pub timeout: Duration,
    /// Time without an answer that is due, after which the connection counts as lost.
    pub loss_timeout: Duration,
    /// What this side wants and takes.
    pub settings: Settings,
    /// The only method of flush to use; else the cheapest that reaches the level asked for.
    pub method: Option<Method>,
    /// The local address to come from, where routing does not decide it. Verbs and RDS only.
    pub source: Option<IpAddr>,
    /// The target's ring that [`Connection::append`](crate::Connection::append) appends to: what [`AppendRing::descriptor`](crate::AppendRing::descriptor)
    /// says. Verbs only.
    pub append_to: Option<RemoteRegion>,
    /// Where outcomes of receives go, if not to the queue of the connection. Whoever polls or waits on either of the two
    /// drives the connection.
    pub receive_queue: Option<CompletionQueue>,
    /// Where messages find their receives, if the connection has none of its own.
    pub shared_receives: Option<SharedReceives>,
    /// Take a target of any user of this machine. Otherwise, over shared memory, and on a loopback address over TCP, libfabric and RDS, only a process of this user or of root
    /// is one: any user can listen on a free port. Not needed where the target proves who it is, as those that ssh starts do.
    pub trust_host: bool,
    /// Where it is set, connecting ends as if its time were over.
    pub give_up: Option<Arc<AtomicBool>>,
    /// Receives that may be posted and wait for a message, where they are the connection's own: 1 to
    /// [`limits::RECEIVE_QUEUE_LIMIT`].
    pub receive_limit: usize,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self {
            private_data: Vec::new(),
            timeout: DEFAULT_CONNECT_TIMEOUT,
            loss_timeout: DEFAULT_LOSS_TIMEOUT,
            settings: Settings::default(),
            method: None,
            source: None,
            append_to: None,
            receive_queue: None,
            shared_receives: None,
            trust_host: false,
            give_up: None,
            receive_limit: limits::RECEIVE_QUEUE_LIMIT,
        }
    }
}

pmof_mem::setters!(ConnectOptions {
    private_data: Vec<u8>,
    timeout: Duration,
    loss_timeout: Duration,
    settings: Settings,
    method: impl Into<Option<Method>>,
    source: impl Into<Option<IpAddr>>,
    append_to: impl Into<Option<RemoteRegion>>,
    receive_queue: impl Into<Option<CompletionQueue>>,
    shared_receives: impl Into<Option<SharedReceives>>,
    trust_host: bool,
    give_up: impl Into<Option<Arc<AtomicBool>>>,
    receive_limit: usize,
});
