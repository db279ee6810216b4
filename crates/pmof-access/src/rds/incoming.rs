//! Listening on a TCP socket.

use std::{
    io,
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd},
};

use pmof_mem::forks::Uninherited;

use super::wire::RdsWire;
use crate::{
    SetupError, rendezvous,
    transport::{Incoming, NewConnection},
    wire::Wire,
};

/// A socket that is listened on.
#[derive(Debug)]
pub(super) struct RdsIncoming {
    socket: Uninherited,
}

impl RdsIncoming {
    pub(super) fn open(at: SocketAddr) -> io::Result<(Self, SocketAddr)> {
        let (socket, bound) = rendezvous::listening(at)?;
        Ok((Self { socket }, bound))
    }
}

impl Incoming for RdsIncoming {
    fn accept(&self) -> Result<Option<NewConnection>, SetupError> {
        let Some((socket, from)) = rendezvous::accept(&self.socket)? else { return Ok(None) };
        let wire = RdsWire::accepted(socket)?;
        Ok(wire.map(|wire| (Box::new(wire) as Box<dyn Wire>, from)))
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }
}
