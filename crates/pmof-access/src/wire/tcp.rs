//! TCP.

use std::{
    io::{self, IoSlice},
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
    time::Duration,
};

use pmof_mem::forks::Uninherited;
use pmof_proto::{InputPlace, OutputView};
use rustix::{
    io::Errno,
    net::{
        AddressFamily, RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, SocketFlags, SocketType, connect,
        getsockname, ipproto, recv, send, sendmsg, shutdown, socket_with, sockopt,
    },
};

use super::{Socket, Wire};
use crate::{Transport, local_user::Trust, spoken};

mod opening;

pub(crate) use opening::Tcp;

/// Keepalive probes before a silent peer counts as gone: enough that one lost probe does not end a connection.
const KEEPALIVE_PROBES: u32 = 3;

/// Longest time between keepalive probes that Linux takes (`MAX_TCP_KEEPIDLE`).
const KEEPALIVE_INTERVAL_MAX: Duration = Duration::from_secs(32_767);

/// Longest `TCP_USER_TIMEOUT` that Linux takes, in milliseconds: it is a signed number there.
const USER_TIMEOUT_MAX_MS: u32 = i32::MAX as u32;

/// Congestion control within one machine, where nothing is congested: BBR, the default of some, paces what it sends by
/// timers, which costs loopback half its bandwidth and makes it waver tenfold. This one is part of every Linux.
const LOOPBACK_CONGESTION_CONTROL: &str = "reno";

#[derive(Debug)]
pub(crate) struct TcpWire {
    socket: Arc<Uninherited>,
    is_initiator: bool,
    /// The other side has said nothing yet.
    is_unheard: bool,
    trust: Trust,
}

impl TcpWire {
    /// Starts to connect; success or failure shows when bytes are moved.
    pub(crate) fn connect(address: SocketAddr, loss_timeout: Duration, trust_host: bool) -> Result<Self, Errno> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = Uninherited::open(|| socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP)))?;
        match connect(&socket, &address) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(errno) => return Err(errno),
        }
        let trust = Trust::new(trust_host, &socket, address);
        Ok(Self { trust, ..Self::new(socket, true, loss_timeout)? })
    }

    /// Takes a non-blocking socket over and lets the kernel watch the other host.
    pub(crate) fn new(socket: Uninherited, is_initiator: bool, loss_timeout: Duration) -> Result<Self, Errno> {
        sockopt::set_tcp_nodelay(&socket, true)?;
        sockopt::set_tcp_keepcnt(&socket, KEEPALIVE_PROBES)?;
        sockopt::set_socket_keepalive(&socket, true)?;
        if is_loopback(&socket) {
            // Where it is not allowed, the system's choice serves too.
            let _ = sockopt::set_tcp_congestion(&socket, LOOPBACK_CONGESTION_CONTROL);
        }
        let wire = Self { socket: Arc::new(socket), is_initiator, is_unheard: true, trust: Trust::AnyUser };
        wire.watch_host(loss_timeout)?;
        Ok(wire)
    }

    /// The kernel's probes tell a vanished host or a cut cable even while neither side's application does anything.
    fn watch_host(&self, loss_timeout: Duration) -> Result<(), Errno> {
        let user_timeout_ms = loss_timeout.as_millis().min(USER_TIMEOUT_MAX_MS.into()) as u32;
        let interval = (loss_timeout / (KEEPALIVE_PROBES + 1)).clamp(Duration::from_secs(1), KEEPALIVE_INTERVAL_MAX);
        sockopt::set_tcp_user_timeout(&self.socket, user_timeout_ms)?;
        sockopt::set_tcp_keepidle(&self.socket, interval)?;
        sockopt::set_tcp_keepintvl(&self.socket, interval)
    }
}

/// True if both ends are on this machine: only then is the own address a loopback one.
fn is_loopback(socket: &Uninherited) -> bool {
    let own = getsockname(socket).ok().and_then(|name| SocketAddr::try_from(name).ok());
    own.is_some_and(|own| own.ip().to_canonical().is_loopback())
}

impl Wire for TcpWire {
    fn name(&self) -> &'static str {
        "tcp"
    }

    fn receive(&mut self, place: InputPlace<'_>) -> io::Result<usize> {
        if self.is_unheard {
            if !spoken::listen_to(&self.socket, Transport::Tcp, self.is_initiator)? {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            match self.trust.check(&self.socket) {
                // One that refuses closes at once. Its reason is heard, and no connection comes of it.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted && spoken::refuses(&self.socket) => {}
                checked => checked?,
            }
            self.is_unheard = false;
        }
        match place {
            InputPlace::Staging(buffer) => Ok(recv(&self.socket, buffer, RecvFlags::DONTWAIT)?.0),
            InputPlace::Memory { memory, offset, len_bytes, tail } => {
                memory.receive(self.socket.as_fd(), offset, len_bytes, tail)
            }
        }
    }

    fn send(&mut self, view: &OutputView<'_>, borrowed: &[u8]) -> io::Result<usize> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        if let Some(body) = view.body {
            return body.memory.send(self.socket.as_fd(), view.head, body.offset, body.len_bytes, view.tail);
        }
        if borrowed.is_empty() {
            return Ok(send(&self.socket, view.head, flags)?);
        }
        let parts = [IoSlice::new(view.head), IoSlice::new(borrowed)];
        Ok(sendmsg(&self.socket, &parts, &mut SendAncillaryBuffer::default(), flags)?)
    }

    fn gather(&mut self, on: bool) {
        // Failure costs packets, or means that the connection is gone already, which the next call tells.
        let _ = sockopt::set_tcp_cork(&self.socket, on);
    }

    fn set_loss_timeout(&mut self, loss_timeout: Duration) {
        // Failure means that the connection is gone already, which the next receive tells.
        let _ = self.watch_host(loss_timeout);
    }

    fn shutdown_output(&mut self) {
        // Failure means that the connection is gone already, which the next receive tells.
        let _ = shutdown(&self.socket, Shutdown::Write);
    }

    fn as_fds(&self) -> [Option<BorrowedFd<'_>>; 2] {
        [Some(self.socket.as_fd()), None]
    }

    fn sockets(&self) -> [Option<Socket>; 2] {
        [Some(Arc::<Uninherited>::clone(&self.socket)), None]
    }
}
