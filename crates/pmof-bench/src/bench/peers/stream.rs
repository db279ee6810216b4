//! A connection to a peer's server: a stream of bytes, waited for as pmof's initiator waits.

use std::{
    io,
    net::{SocketAddr, TcpStream},
    os::{fd::OwnedFd, unix::net::UnixStream},
    path::Path,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::{RecvFlags, SendFlags, recv, send},
};

/// A server that moves nothing for this long is given up: far beyond any healthy answer, short enough for a test run.
const STALL_LIMIT: Duration = Duration::from_secs(30);

/// Read at once at most.
const READ_BYTES: usize = 64 << 10;

/// Longest line of text that a server may send: beyond any error message.
const LINE_LIMIT_BYTES: usize = 16 << 10;

/// A connected socket.
#[derive(Debug)]
pub(super) struct PeerStream {
    socket: OwnedFd,
    /// How long a wait spins before it sleeps.
    spin: Duration,
    incoming: Box<[u8]>,
    /// What has come and was not taken yet.
    start: usize,
    end: usize,
    /// Sent and received since it was connected.
    moved: [u64; 2],
}

impl PeerStream {
    /// Connects over TCP, without Nagle's delay.
    pub(super) fn tcp(address: SocketAddr, spin: Duration) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, STALL_LIMIT)?;
        stream.set_nodelay(true)?;
        Ok(Self::new(stream.into(), spin))
    }

    /// Connects to a Unix socket.
    pub(super) fn unix(path: &Path, spin: Duration) -> io::Result<Self> {
        Ok(Self::new(UnixStream::connect(path)?.into(), spin))
    }

    fn new(socket: OwnedFd, spin: Duration) -> Self {
        Self { socket, spin, incoming: vec![0; READ_BYTES].into(), start: 0, end: 0, moved: [0; 2] }
    }

    /// Bytes sent and received since it was connected.
    pub(super) fn moved(&self) -> [u64; 2] {
        self.moved
    }

    /// Sends all of it.
    pub(super) fn send_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match send(&self.socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(sent) => {
                    self.moved[0] += sent as u64;
                    bytes = &bytes[sent..];
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.wait(PollFlags::OUT)?,
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    /// Fills `into`.
    pub(super) fn receive(&mut self, into: &mut [u8]) -> io::Result<()> {
        let mut filled = 0;
        while filled < into.len() {
            if self.start == self.end {
                self.fill()?;
            }
            let part = (into.len() - filled).min(self.end - self.start);
            into[filled..filled + part].copy_from_slice(&self.incoming[self.start..self.start + part]);
            (filled, self.start) = (filled + part, self.start + part);
        }
        Ok(())
    }

    /// So many bytes, as an array.
    pub(super) fn receive_array<const LEN: usize>(&mut self) -> io::Result<[u8; LEN]> {
        let mut bytes = [0; LEN];
        self.receive(&mut bytes)?;
        Ok(bytes)
    }

    /// Reads to the end of a line, which is CR and LF and not part of what is returned.
    pub(super) fn receive_line(&mut self) -> io::Result<String> {
        let mut line = Vec::new();
        while line.len() < LINE_LIMIT_BYTES {
            let [byte] = self.receive_array()?;
            line.push(byte);
            if let Some(text) = line.strip_suffix(b"\r\n") {
                return Ok(String::from_utf8_lossy(text).into_owned());
            }
        }
        let why = format!("the server sent a line of more than {LINE_LIMIT_BYTES} bytes");
        Err(io::Error::new(io::ErrorKind::InvalidData, why))
    }

    fn fill(&mut self) -> io::Result<()> {
        let since = Instant::now();
        loop {
            match recv(&self.socket, &mut self.incoming[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => {
                    let why = "the server closed the connection: it ended, or was killed";
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, why));
                }
                Ok((received, _)) => {
                    self.moved[1] += received as u64;
                    (self.start, self.end) = (0, received);
                    return Ok(());
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if since.elapsed() < self.spin.min(STALL_LIMIT) => std::hint::spin_loop(),
                Err(Errno::AGAIN) => self.wait(PollFlags::IN)?,
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    fn wait(&self, interest: PollFlags) -> io::Result<()> {
        let limit = Timespec::try_from(STALL_LIMIT).map_err(io::Error::other)?;
        match poll(&mut [PollFd::new(&self.socket, interest)], Some(&limit)) {
            Ok(0) => {
                let why =
                    format!("the server moved nothing for {} s: see whether it still runs", STALL_LIMIT.as_secs());
                Err(io::Error::new(io::ErrorKind::TimedOut, why))
            }
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}
