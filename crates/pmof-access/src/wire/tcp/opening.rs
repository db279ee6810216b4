//! TCP as a transport that is opened.

use std::{
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

use super::TcpWire;
use crate::{
    ConnectError, ConnectOptions, DEFAULT_LOSS_TIMEOUT, Location, SetupError, Transport,
    error::{system, unreachable},
    transport::{Incoming, LISTEN_BACKLOG, Listening, NewConnection, Opening},
    wire::Wire,
};

/// There is nothing to open.
#[derive(Debug)]
pub(crate) struct Tcp;

impl Opening for Tcp {
    fn transport(&self) -> Option<Transport> {
        Some(Transport::Tcp)
    }

    fn is_networked(&self) -> bool {
        true
    }

    fn listen(&self, address: &Location) -> Result<Listening, SetupError> {
        let Location::Ip(at) = address else { return Err(self.wrong_address(address)) };
        let failed = |errno: Errno| SetupError::Listen { address: address.clone(), source: errno.into() };
        let family = if at.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let open = || socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP));
        let socket = Uninherited::open(open).map_err(failed)?;
        // A target that was killed must be able to come back on its port at once.
        sockopt::set_socket_reuseaddr(&socket, true).map_err(failed)?;
        bind(&socket, at).map_err(failed)?;
        listen(&socket, LISTEN_BACKLOG).map_err(failed)?;
        let bound = getsockname(&socket)
            .ok()
            .and_then(|name| SocketAddr::try_from(name).ok())
            .ok_or_else(|| failed(Errno::INVAL))?;
        Ok(Listening { incoming: Box::new(TcpIncoming(socket)), address: bound.into() })
    }

    fn connect(&self, address: &Location, options: &ConnectOptions) -> Result<Box<dyn Wire>, ConnectError> {
        let Location::Ip(at) = address else { return Err(self.wrong_address(address).into()) };
        // A host that does not answer at all is given up in time; once the connection is established the other limit holds.
        let wire = TcpWire::connect(*at, options.timeout.min(options.loss_timeout), options.trust_host);
        Ok(Box::new(wire.map_err(|errno| unreachable(address, &errno.into()))?))
    }
}

/// A socket that is listened on.
#[derive(Debug)]
struct TcpIncoming(Uninherited);

impl Incoming for TcpIncoming {
    fn accept(&self) -> Result<Option<NewConnection>, SetupError> {
        let socket = match Uninherited::open(|| accept_with(&self.0, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC)) {
            Ok(socket) => socket,
            // The client gave up before it was its turn.
            Err(Errno::WOULDBLOCK | Errno::INTR | Errno::CONNABORTED) => return Ok(None),
            Err(errno) => return Err(system("accept4")(errno)),
        };
        let peer_address = getpeername(&socket).ok().flatten().and_then(|name| SocketAddr::try_from(name).ok());
        // A connection that broke already fails here; the next one may not.
        Ok(TcpWire::new(socket, false, DEFAULT_LOSS_TIMEOUT)
            .ok()
            .map(|wire| (Box::new(wire) as Box<dyn Wire>, peer_address)))
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.as_fd())
    }
}
