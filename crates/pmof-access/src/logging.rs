//! What the program's logger is told, if it has one. The crate's page has the list.

use std::{fmt, io, net::SocketAddr};

use log::{Level, debug, info, log_enabled, warn};
use pmof_mem::{Durability, MediumKind, Promise};
use pmof_proto::{ConnectionError, Event};
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

/// A connection stands, has ended, or was not made: one that ends and has never `stood`. `error` is what the kernel said, if it did.
pub(crate) fn tell_event(name: Name, event: &Event, has_stood: bool, error: Option<&io::Error>) {
    match event {
        Event::Established { .. } => info!(target: CONNECTION, "{name} stands"),
        Event::Ended(why @ (ConnectionError::Closed | ConnectionError::ClosedHere)) => {
            info!(target: CONNECTION, "{name} ended: {why}");
        }
        Event::Ended(why) if has_stood => warn!(target: CONNECTION, "{name} ended: {why}"),
        Event::Ended(why) => warn!(target: CONNECTION, "{name} was not made: {}", Unmade(why, error)),
        // It will stand or end.
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
