//! Listening on a TCP socket.

use std::{
    io,
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
};

use pmof_mem::forks::Uninherited;

use super::{opened::Opened, wire::FabricWire};
use crate::{
    SetupError, rendezvous,
    transport::{Incoming, NewConnection},
    wire::Wire,
};

/// A socket that is listened on.
#[derive(Debug)]
pub(super) struct FabricIncoming {
    opened: Arc<Opened>,
    socket: Uninherited,
}

impl FabricIncoming {
    pub(super) fn open(opened: &Arc<Opened>, at: SocketAddr) -> io::Result<(Self, SocketAddr)> {
        let (socket, bound) = rendezvous::listening(at)?;
        Ok((Self { opened: Arc::clone(opened), socket }, bound))
    }
}

impl Incoming for FabricIncoming {
    fn accept(&self) -> Result<Option<NewConnection>, SetupError> {
        let Some((socket, from)) = rendezvous::accept(&self.socket)? else { return Ok(None) };
        let wire = FabricWire::accepted(&self.opened, socket)?;
        Ok(wire.map(|wire| (Box::new(wire) as Box<dyn Wire>, from)))
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }
}
