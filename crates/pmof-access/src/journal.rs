//! What the program's logger is told, if it has one. The crate's page has the list.

use std::{fmt, net::SocketAddr};

use log::{Level, debug, info, log_enabled, warn};
use pmof_mem::{Durability, MediumKind, Promise};
use pmof_proto::{ConnectionError, Event};

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

/// A connection stands or has ended.
pub(crate) fn tell_event(name: Name, event: &Event) {
    match event {
        Event::Established { .. } => info!(target: CONNECTION, "{name} stands"),
        Event::Ended(why @ (ConnectionError::Closed | ConnectionError::ClosedHere)) => {
            info!(target: CONNECTION, "{name} ended: {why}");
        }
        Event::Ended(why) => warn!(target: CONNECTION, "{name} ended: {why}"),
        // It will stand or end.
        Event::Requested { .. } => {}
    }
}

/// A connection that names a ring is not taken.
pub(crate) fn tell_ring_refused(from: Option<SocketAddr>, refusal: RingRefusal) {
    match from {
        Some(address) => warn!(target: CONNECTION, "a connection from {address} was not taken: {refusal}"),
        None => warn!(target: CONNECTION, "a connection was not taken: {refusal}"),
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
    debug!(target: FLUSH, "{name}: flushes of {kind} to {level} go by {method} ({mechanism}, {evidence})");
    for (method, why) in passed_over {
        debug!(target: FLUSH, "{name}: not by {method}: {why}");
    }
}

/// Devices do not reach a region.
pub(crate) fn tell_indirect(kind: MediumKind, len_bytes: u64, why: &dyn fmt::Display) {
    debug!(target: REGION, "a region of {len_bytes} bytes in {kind} is served by this CPU: {why}");
}
