//! Listening for connection requests.

use std::{
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
};

use pmof_verbs::{CmEventKind, CmId, EventChannel};
use rustix::io::Errno;

use super::{
    connect::Greeting,
    opened::{Opened, io_error},
    wire::VerbsWire,
};
use crate::{
    SetupError, logging,
    transport::{Incoming, LISTEN_BACKLOG, NewConnection},
    wire::Wire,
};

/// Where connection requests come in.
#[derive(Debug)]
pub(super) struct VerbsIncoming {
    opened: Arc<Opened>,
    /// Listens as long as it is there.
    _listener: CmId,
    channel: EventChannel,
}

impl VerbsIncoming {
    pub(super) fn open(opened: &Arc<Opened>, address: SocketAddr) -> Result<(Self, SocketAddr), SetupError> {
        let failed = |error| SetupError::Listen { address: address.into(), source: io_error(error) };
        let channel = EventChannel::new()?;
        let id = CmId::new(&channel)?;
        // A target that was killed must be able to come back on its port at once.
        id.set_reuse_address(true).map_err(failed)?;
        id.bind(address).map_err(failed)?;
        id.listen(LISTEN_BACKLOG).map_err(failed)?;
        let local = id.local_address().unwrap_or(address);
        Ok((Self { opened: Arc::clone(opened), _listener: id, channel }, local))
    }
}

impl Incoming for VerbsIncoming {
    /// # Errors
    /// Where the device or the system has no room for one more; the other side is told that it was rejected.
    fn accept(&self) -> Result<Option<NewConnection>, SetupError> {
        while let Some(event) = self.channel.next_event()? {
            let CmEventKind::ConnectRequest { request: id, private_data, .. } = event.kind else { continue };
            let Some(greeting) = Greeting::decode(&private_data, self.opened.answer.is_some()) else {
                // Not one of ours: it would not understand anything else either.
                let _ = id.reject(&[]);
                continue;
            };
            let ring = match greeting.ring.map(|ring| self.opened.attach(ring.name)).transpose() {
                Ok(ring) => ring,
                Err(refusal) => {
                    logging::tell_ring_refused(id.peer_address(), refusal);
                    let _ = id.reject(&refusal.encode());
                    continue;
                }
            };
            let from = id.peer_address();
            match VerbsWire::accepting(&self.opened, id, greeting, ring) {
                Ok(wire) => return Ok(Some((Box::new(wire) as Box<dyn Wire>, from))),
                Err(error) if is_shortage(&error) => return Err(error),
                // It gave up meanwhile; the next one may not.
                Err(_) => {}
            }
        }
        Ok(None)
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.channel.as_fd())
    }
}

/// True if this machine has no room for one more connection, whoever asks.
fn is_shortage(error: &SetupError) -> bool {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        let shortages = [Errno::NOMEM, Errno::MFILE, Errno::NFILE, Errno::NOSPC, Errno::NOBUFS, Errno::AGAIN];
        let errno = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::raw_os_error);
        if shortages.iter().any(|shortage| errno == Some(shortage.raw_os_error())) {
            return true;
        }
        cause = error.source();
    }
    false
}
