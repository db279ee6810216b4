//! What the program's logger is told, if it has one. The crate's page has the list.

use std::{fmt, io, net::SocketAddr};

use log::{Level, debug, info, log_enabled, warn};
use pmof_mem::{Durability, MediumKind, Promise};
use pmof_proto::{ConnectionError, Event, Refusal};
use rustix::io::Errno;

use crate::{Method, RingRefusal};

const CONNECTION: &str = "pmof::connection";
const FLUSH: &str = "pmof::flush";
const REGION: &str = "pmof::region";

/// What the log calls a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Name {
    pub(crate) id: u64,
    pub(crate) transport: &'static str,
    pub(crate) peer_address: Option<SocketAddr>,
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "connection {} over {}", self.id, self.transport)?;
        self.peer_address.map_or(Ok(()), |address| write!(f, " with {address}"))
    }
}

/// A connection is established, has ended, or was not made: one that ends and never was established. `error` is what the kernel said, if it did.
pub(crate) fn tell_event(name: Name, event: &Event, was_established: bool, error: Option<&io::Error>) {
    let Name { id: connection, transport, peer_address } = name;
    let peer = peer_address.map(|address| address.to_string()).unwrap_or_default();
    let peer = peer.as_str();
    match event {
        Event::Established { .. } => {
            info!(target: CONNECTION, event = "connection_opened", connection, transport, peer; "{name} is established");
        }
        Event::Ended(
            why @ (ConnectionError::Closed
            | ConnectionError::ClosedHere
            | ConnectionError::RefusedHere(Refusal::Stopping)),
        ) => {
            info!(target: CONNECTION, event = "connection_closed", connection, transport, peer, reason:% = why; "{name} ended: {why}");
        }
        Event::Ended(why) if was_established => {
            warn!(target: CONNECTION, event = "connection_lost", connection, transport, peer, reason:% = why; "{name} ended: {why}");
        }
        Event::Ended(why) => {
            let why = Unmade(why, error);
            warn!(target: CONNECTION, event = "connection_failed", connection, transport, peer, reason:% = why; "{name} was not made: {why}");
        }
        // It will be established or end.
        Event::Requested { .. } => {}
    }
}

/// Why a connection was not made: nothing was there yet that could be lost.
struct Unmade<'a>(&'a ConnectionError, Option<&'a io::Error>);

impl fmt::Display for Unmade<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ConnectionError::Lost { why } = self.0 else { return self.0.fmt(f) };
        // Devices say it themselves.
        if self.1.is_some_and(|error| error.raw_os_error() == Some(Errno::CONNREFUSED.raw_os_error())) {
            write!(f, "nobody listens there ({why})")
        } else {
            f.write_str(why)
        }
    }
}

/// A connection that names a ring is not taken.
pub(crate) fn tell_ring_refused(from: Option<SocketAddr>, refusal: RingRefusal) {
    match from {
        Some(address) => {
            warn!(target: CONNECTION, event = "connection_refused", peer:% = address, reason:% = refusal; "a connection from {address} was not taken: {refusal}");
        }
        None => {
            warn!(target: CONNECTION, event = "connection_refused", reason:% = refusal; "a connection was not taken: {refusal}");
        }
    }
}

/// True if somebody listens to [`tell_method`].
pub(crate) fn tells_methods() -> bool {
    log_enabled!(target: FLUSH, Level::Debug)
}

/// How flushes go, and why not more cheaply.
pub(crate) fn tell_method(
    name: Name,
    kind: MediumKind,
    level: Durability,
    (method, promise): (Method, Promise),
    passed_over: &[(Method, &'static str)],
) {
    let Promise { mechanism, evidence } = promise;
    let connection = name.id;
    debug!(target: FLUSH, event = "flush_method", connection; "{name}: flushes of {kind} to {level} go by {method} ({mechanism}, {evidence})");
    for (method, why) in passed_over {
        debug!(target: FLUSH, event = "flush_method_unavailable", connection; "{name}: not by {method}: {why}");
    }
}

/// Devices do not reach a region.
pub(crate) fn tell_indirect(kind: MediumKind, len_bytes: u64, why: &dyn fmt::Display) {
    debug!(target: REGION, event = "region_not_direct", reason:% = why; "a region of {len_bytes} bytes in {kind} is served by this CPU: {why}");
}
