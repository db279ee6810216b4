//! Listening on a TCP socket.

use std::{
    io,
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd},
};

use pmof_mem::forks::Uninherited;
use rustix::{
    io::Errno,
    net::{
        AddressFamily, SocketFlags, SocketType, accept_with, bind, getpeername, getsockname, ipproto, listen,
        socket_with, sockopt,
    },
};

use super::wire::RdsWire;
use crate::{
    SetupError,
    error::system,
    transport::{Incoming, LISTEN_BACKLOG, NewConnection},
    wire::Wire,
};

/// A socket that is listened on.
#[derive(Debug)]
pub(super) struct RdsIncoming {
    socket: Uninherited,
}

impl RdsIncoming {
    pub(super) fn open(at: SocketAddr) -> io::Result<(Self, SocketAddr)> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let open = || socket_with(AddressFamily::INET, SocketType::STREAM, flags, Some(ipproto::TCP));
        let socket = Uninherited::open(open)?;
        // A target that was killed must be able to come back on its port at once.
        sockopt::set_socket_reuseaddr(&socket, true)?;
        bind(&socket, &at)?;
        listen(&socket, LISTEN_BACKLOG)?;
        let bound = SocketAddr::try_from(getsockname(&socket)?)?;
        Ok((Self { socket }, bound))
    }
}

impl Incoming for RdsIncoming {
    fn accept(&self) -> Result<Option<NewConnection>, SetupError> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = match Uninherited::open(|| accept_with(&self.socket, flags)) {
            Ok(socket) => socket,
            // The client gave up before it was its turn.
            Err(Errno::WOULDBLOCK | Errno::INTR | Errno::CONNABORTED) => return Ok(None),
            Err(errno) => return Err(system("accept4")(errno)),
        };
        let from = getpeername(&socket).ok().flatten().and_then(|name| SocketAddr::try_from(name).ok());
        let wire = RdsWire::accepted(socket)?;
        Ok(wire.map(|wire| (Box::new(wire) as Box<dyn Wire>, from)))
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }
}
