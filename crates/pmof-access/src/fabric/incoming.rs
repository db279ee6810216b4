//! Listening on a TCP socket.

use std::{
    io,
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
};

use pmof_mem::forks::Uninherited;
use rustix::{
    io::Errno,
    net::{
        AddressFamily, SocketFlags, SocketType, accept_with, bind, getpeername, getsockname, ipproto, listen,
        socket_with, sockopt,
    },
};

use super::{opened::Opened, wire::FabricWire};
use crate::{
    SetupError,
    error::system,
    transport::{Incoming, LISTEN_BACKLOG, NewConnection},
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
        let family = if at.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = Uninherited::open(|| socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP)))?;
        // A target that was killed must be able to come back on its port at once.
        sockopt::set_socket_reuseaddr(&socket, true)?;
        if !at.is_ipv4() {
            // Addresses of IPv4 within IPv6 are of no domain.
            sockopt::set_ipv6_v6only(&socket, true)?;
        }
        bind(&socket, &at)?;
        listen(&socket, LISTEN_BACKLOG)?;
        let bound = SocketAddr::try_from(getsockname(&socket)?)?;
        Ok((Self { opened: Arc::clone(opened), socket }, bound))
    }
}

impl Incoming for FabricIncoming {
    fn accept(&self) -> Result<Option<NewConnection>, SetupError> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = match Uninherited::open(|| accept_with(&self.socket, flags)) {
            Ok(socket) => socket,
            // The client gave up before it was its turn.
            Err(Errno::WOULDBLOCK | Errno::INTR | Errno::CONNABORTED) => return Ok(None),
            Err(errno) => return Err(system("accept4")(errno)),
        };
        let from = getpeername(&socket).ok().flatten().and_then(|name| SocketAddr::try_from(name).ok());
        let wire = FabricWire::accepted(&self.opened, socket)?;
        Ok(wire.map(|wire| (Box::new(wire) as Box<dyn Wire>, from)))
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }
}
