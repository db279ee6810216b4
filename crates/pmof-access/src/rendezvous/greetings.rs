//! The exchange of greetings over the TCP socket.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
    time::Duration,
};

use pmof_mem::forks::Uninherited;
use rustix::{
    io::Errno,
    net::{RecvFlags, SendFlags, Shutdown, getsockname, recv, send, shutdown},
};

use crate::{Transport, local_user::Trust, spoken};

/// One side of a connection whose sides greet each other with `BYTES` bytes over a TCP socket.
#[derive(Debug)]
pub(crate) struct Greetings<const BYTES: usize> {
    socket: Arc<Uninherited>,
    ours: Transport,
    is_initiator: bool,
    trust: Trust,
    /// It has said the magic of its greeting already.
    has_announced: bool,
    /// The other side's greeting, as far as it came.
    heard: Vec<u8>,
}

/// What came of the other side's greeting.
#[derive(Debug)]
pub(crate) enum Heard<const BYTES: usize> {
    Nothing,
    Part,
    All([u8; BYTES]),
}

impl<const BYTES: usize> Greetings<BYTES> {
    /// Starts to connect, from an address if one is given.
    pub(crate) fn connecting(
        ours: Transport,
        to: SocketAddr,
        source: Option<IpAddr>,
        trust_host: bool,
    ) -> Result<Self, Errno> {
        let socket = super::connecting(to, source)?;
        let trust = Trust::new(trust_host, &socket, to);
        Self::new(ours, socket, true, trust)
    }

    /// Of a connection that came.
    pub(crate) fn accepted(ours: Transport, socket: Uninherited) -> Result<Self, Errno> {
        Self::new(ours, socket, false, Trust::AnyUser)
    }

    fn new(ours: Transport, socket: Uninherited, is_initiator: bool, trust: Trust) -> Result<Self, Errno> {
        super::keep_alive(&socket)?;
        Ok(Self { socket: Arc::new(socket), ours, is_initiator, trust, has_announced: false, heard: Vec::new() })
    }

    pub(crate) fn is_initiator(&self) -> bool {
        self.is_initiator
    }

    /// The address of this side.
    pub(crate) fn own_address(&self) -> Option<SocketAddr> {
        SocketAddr::try_from(getsockname(&self.socket).ok()?).ok()
    }

    fn magic(&self) -> [u8; 4] {
        self.ours.descriptor().greeting_magic.unwrap_or_default()
    }

    /// Says this side's greeting, which goes into the socket's buffer as a whole.
    pub(crate) fn greet(&self, greeting: &[u8]) -> io::Result<()> {
        let rest = &greeting[if self.has_announced { self.magic().len() } else { 0 }..];
        match send(&self.socket, rest, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)? {
            count if count == rest.len() => Ok(()),
            _ => Err(io::ErrorKind::ConnectionAborted.into()),
        }
    }

    /// Reads of the other side's greeting what has come.
    ///
    /// # Errors
    /// The other side speaks another transport, is another user's process that is not trusted, or has gone.
    pub(crate) fn hear(&mut self) -> io::Result<Heard<BYTES>> {
        if self.is_initiator && !self.has_announced {
            self.has_announced = spoken::announce(&self.socket, self.magic())?;
        }
        if self.heard.is_empty() {
            if !spoken::listen_to(&self.socket, self.ours, self.is_initiator)? {
                return Ok(Heard::Nothing);
            }
            self.trust.check(&self.socket)?;
        }
        let mut bytes = [0; BYTES];
        let len = BYTES - self.heard.len();
        match recv(&self.socket, &mut bytes[..len], RecvFlags::DONTWAIT) {
            Ok((0, _)) => {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the other side closed before it greeted"));
            }
            Ok((count, _)) => self.heard.extend_from_slice(&bytes[..count]),
            Err(Errno::WOULDBLOCK | Errno::INTR) => return Ok(Heard::Nothing),
            Err(errno) => return Err(errno.into()),
        }
        Ok(self.heard.as_slice().try_into().map_or(Heard::Part, Heard::All))
    }

    /// Whether the other side's process is there, behind the greetings.
    pub(crate) fn is_other_there(&self) -> io::Result<bool> {
        super::is_there(&self.socket)
    }

    pub(crate) fn set_loss_timeout(&self, loss_timeout: Duration) {
        super::set_loss_timeout(&self.socket, loss_timeout);
    }

    /// Ends the connection. Failure means that it is gone already.
    pub(crate) fn stop(&self) {
        let _ = shutdown(&self.socket, Shutdown::Both);
    }
}

impl<const BYTES: usize> AsFd for Greetings<BYTES> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
