//! The TCP socket by which two sides get acquainted whose messages travel another way, over libfabric or RDS. Its end tells that the other side's
//! process has gone.

use std::{
    fmt, io,
    net::{IpAddr, SocketAddr},
    os::fd::{AsFd, BorrowedFd},
    time::Duration,
};

use pmof_mem::forks::Uninherited;
use rustix::{
    io::Errno,
    net::{
        AddressFamily, RecvFlags, SocketFlags, SocketType, accept_with, bind, connect, getpeername, getsockname,
        ipproto, listen, recv, socket_with, sockopt,
    },
};

use crate::{
    SetupError,
    error::system,
    transport::{Incoming, LISTEN_BACKLOG, NewConnection},
    wire::Wire,
};

mod greetings;

pub(crate) use greetings::{Greetings, Heard};

/// Keepalive probes before a silent host counts as gone, and the longest time between them that Linux takes.
pub(crate) const KEEPALIVE_PROBES: u32 = 3;
const KEEPALIVE_INTERVAL_MAX: Duration = Duration::from_secs(32_767);

const FLAGS: SocketFlags = SocketFlags::NONBLOCK.union(SocketFlags::CLOEXEC);

/// A socket of the address's family.
fn open(at: SocketAddr) -> Result<Uninherited, Errno> {
    let family = if at.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    Uninherited::open(|| socket_with(family, SocketType::STREAM, FLAGS, Some(ipproto::TCP)))
}

/// Starts to connect, from an address if one is given.
fn connecting(to: SocketAddr, source: Option<IpAddr>) -> Result<Uninherited, Errno> {
    let socket = open(to)?;
    if let Some(source) = source {
        bind(&socket, &SocketAddr::new(source, 0))?;
    }
    match connect(&socket, &to) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(errno) => Err(errno),
    }
}

/// Listens; the address with its port.
fn listening(at: SocketAddr) -> io::Result<(Uninherited, SocketAddr)> {
    let socket = open(at)?;
    // A target that was killed must be able to come back on its port at once.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if !at.is_ipv4() {
        // Addresses of IPv4 within IPv6 are of no domain.
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    bind(&socket, &at)?;
    listen(&socket, LISTEN_BACKLOG)?;
    let bound = SocketAddr::try_from(getsockname(&socket)?)?;
    Ok((socket, bound))
}

/// Takes the next connection and who made it, if there is one.
fn accept(listener: &Uninherited) -> Result<Option<(Uninherited, Option<SocketAddr>)>, SetupError> {
    let socket = match Uninherited::open(|| accept_with(listener, FLAGS)) {
        Ok(socket) => socket,
        // The client gave up before it was its turn.
        Err(Errno::WOULDBLOCK | Errno::INTR | Errno::CONNABORTED) => return Ok(None),
        Err(errno) => return Err(system("accept4")(errno)),
    };
    let from = getpeername(&socket).ok().flatten().and_then(|name| SocketAddr::try_from(name).ok());
    Ok(Some((socket, from)))
}

/// Has the kernel look whether the other host is there.
fn keep_alive(socket: &Uninherited) -> Result<(), Errno> {
    sockopt::set_tcp_nodelay(socket, true)?;
    sockopt::set_tcp_keepcnt(socket, KEEPALIVE_PROBES)?;
    sockopt::set_socket_keepalive(socket, true)
}

/// How long that may take. Failure means that the connection is gone already, which the next look tells.
fn set_loss_timeout(socket: &Uninherited, loss_timeout: Duration) {
    let interval = (loss_timeout / (KEEPALIVE_PROBES + 1)).clamp(Duration::from_secs(1), KEEPALIVE_INTERVAL_MAX);
    let user_timeout_ms = u32::try_from(loss_timeout.as_millis()).unwrap_or(u32::MAX).min(i32::MAX as u32);
    let _ = sockopt::set_tcp_user_timeout(socket, user_timeout_ms);
    let _ = sockopt::set_tcp_keepidle(socket, interval);
    let _ = sockopt::set_tcp_keepintvl(socket, interval);
}

/// Whether the other side's process is there, behind the greetings; an error where it says more than those.
fn is_there(socket: &Uninherited) -> io::Result<bool> {
    match recv(socket, &mut [0; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
        Err(Errno::WOULDBLOCK | Errno::INTR) => Ok(true),
        Ok((0, _)) => Ok(false),
        Ok(_) => Err(io::Error::new(io::ErrorKind::InvalidData, "the other side sent what is not a greeting")),
        Err(errno) => Err(errno.into()),
    }
}

/// A TCP socket that is listened on, and what makes a connection of one that came, unless that is gone already.
pub(crate) struct RendezvousIncoming<F> {
    socket: Uninherited,
    accepted: F,
}

impl<F> RendezvousIncoming<F> {
    /// Listens; the address with its port.
    pub(crate) fn open(at: SocketAddr, accepted: F) -> io::Result<(Self, SocketAddr)> {
        let (socket, bound) = listening(at)?;
        Ok((Self { socket, accepted }, bound))
    }
}

impl<F> fmt::Debug for RendezvousIncoming<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RendezvousIncoming").field("socket", &self.socket).finish_non_exhaustive()
    }
}

impl<W: Wire + 'static, F> Incoming for RendezvousIncoming<F>
where
    F: Fn(Uninherited) -> Result<Option<W>, SetupError> + Send + Sync,
{
    fn accept(&self) -> Result<Option<NewConnection>, SetupError> {
        let Some((socket, from)) = accept(&self.socket)? else { return Ok(None) };
        let wire = (self.accepted)(socket)?;
        Ok(wire.map(|wire| (Box::new(wire) as Box<dyn Wire>, from)))
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }
}
