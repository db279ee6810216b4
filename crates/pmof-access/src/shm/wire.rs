//! The stream of a connection, and the control channel beside it.
//!
//! Before anything else both sides say 8 bytes: the initiator its greeting with one end of the control channel, the target
//! whether it takes this user.

use std::{
    cell::RefCell,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    sync::Arc,
    time::Duration,
};

use pmof_mem::{Durability, Promise, forks::Uninherited};
use pmof_proto::{InputPlace, OperationKind, OutputView, PostError, RegionKey};
use rustix::{
    io::Errno,
    net::{
        AddressFamily, RecvFlags, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType, connect, recv, send,
        shutdown, socket_with, socketpair, sockopt,
    },
};

use super::{
    control::{Control, receive_with_fds, send_message, violation},
    direct::Mappings,
    process::PeerProcess,
    shares::Shares,
};
use crate::{
    Method, RemoteRegion, local_user,
    request::Request,
    wire::{DirectWay, Finished, Posted, Posting, Socket, Wire},
};

/// Longest path of a Unix socket: what `sockaddr_un` holds (unix(7)), less the final zero.
const PATH_MAX_BYTES: usize = 107;

/// Bytes that each side says first.
pub(super) const GREETING_BYTES: usize = 8;
pub(super) const GREETING: [u8; GREETING_BYTES] = *b"PMOFSHM1";
const WELCOME: [u8; GREETING_BYTES] = *b"WELCOME1";
const FOREIGN: [u8; GREETING_BYTES] = *b"FOREIGN1";

/// How often the control channel is looked at while others things keep this side awake: a system call, so not each time.
const CONTROL_EVERY: u32 = 16;

/// A side that only posts looks so often whether the other one is still there.
pub(crate) const LOOK_EVERY: u32 = 64;

#[derive(Debug)]
pub(crate) struct ShmWire {
    socket: Arc<Uninherited>,
    greeting: Greeting,
    /// `None` until the other side has handed it over.
    control: Option<Control>,
    shares: Arc<Shares>,
    /// The number of the connection.
    number: u64,
    pub(super) mappings: Mappings,
    /// Regions whose memory is to be asked for.
    pub(super) wanted: RefCell<Vec<RegionKey>>,
    turns: u32,
    submits: u32,
    /// The other side has gone, although the stream was not read to its end yet.
    pub(super) is_gone: bool,
}

/// The other side's greeting, as far as it has come.
#[derive(Debug)]
struct Greeting {
    bytes: [u8; GREETING_BYTES],
    len: usize,
    fd: Option<OwnedFd>,
    is_initiator: bool,
}

impl ShmWire {
    /// Connects; whether the target takes this user shows when bytes are moved. `trust_host`: whose process listens is not asked.
    pub(crate) fn connect(path: &Path, shares: Arc<Shares>, trust_host: bool) -> io::Result<Self> {
        let address = socket_address(path)?;
        let socket = new_socket()?;
        connect(&socket, &address).map_err(|errno| why_unreachable(path, errno))?;
        if !trust_host {
            local_user::check_user(sockopt::socket_peercred(&socket)?.uid.as_raw())?;
        }
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (near, far) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        if !send_message(socket.as_fd(), &GREETING, &[far.as_fd()])? {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let control = Control::new(near, Arc::clone(&shares))?;
        Ok(Self::new(socket, Some(control), shares, true))
    }

    /// Takes over a socket that was accepted. `None` if its user may not connect, which the other side is told, or if it
    /// is gone already.
    pub(crate) fn accepted(socket: Uninherited, shares: Arc<Shares>) -> Option<Self> {
        let user = sockopt::socket_peercred(&socket).ok()?.uid;
        let is_welcome = user.is_root() || user == rustix::process::geteuid();
        let said =
            send(&socket, if is_welcome { &WELCOME } else { &FOREIGN }, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        (is_welcome && said == Ok(GREETING_BYTES)).then(|| Self::new(socket, None, shares, false))
    }

    fn new(socket: Uninherited, control: Option<Control>, shares: Arc<Shares>, is_initiator: bool) -> Self {
        Self {
            socket: Arc::new(socket),
            greeting: Greeting { bytes: [0; GREETING_BYTES], len: 0, fd: None, is_initiator },
            control,
            shares,
            number: 0,
            mappings: Mappings::default(),
            wanted: RefCell::default(),
            turns: 0,
            submits: 0,
            is_gone: false,
        }
    }

    /// Reads the other side's first words. They are read by themselves, so that descriptors which come with later bytes are closed
    /// by the kernel.
    fn greet(&mut self) -> io::Result<()> {
        while self.greeting.len < GREETING_BYTES {
            let rest = &mut self.greeting.bytes[self.greeting.len..];
            let Some((count, mut fds)) = receive_with_fds(self.socket.as_fd(), rest)? else {
                return Err(io::ErrorKind::WouldBlock.into());
            };
            if count == 0 {
                return Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "the other side closed before it said a word",
                ));
            }
            self.greeting.len += count;
            if fds.len() + usize::from(self.greeting.fd.is_some()) > 1 {
                return Err(violation("more descriptors than one control channel"));
            }
            self.greeting.fd = fds.pop().or(self.greeting.fd.take());
        }
        match (self.greeting.is_initiator, self.greeting.bytes, self.greeting.fd.take()) {
            (true, WELCOME, None) => Ok(()),
            (true, FOREIGN, None) => {
                let why = "the target belongs to another user; only its own user and root may connect";
                Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
            }
            (false, GREETING, Some(socket)) => {
                self.control = Some(Control::new(socket, Arc::clone(&self.shares))?);
                Ok(())
            }
            _ => Err(violation("it greets as no pmof of this version does")),
        }
    }

    /// Serves the control channel. True if anything moved.
    fn serve(&mut self) -> io::Result<bool> {
        let Some(control) = &mut self.control else { return Ok(false) };
        let mappings = &mut self.mappings;
        for key in self.wanted.get_mut().drain(..) {
            if mappings.expect(key) {
                control.ask(key);
            }
        }
        match control.progress(self.number, |answer| mappings.settle(answer)) {
            // The end of the stream, or the words before it, say more.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset || is_broken_pipe(&error) => {
                self.control = None;
                Ok(false)
            }
            outcome => outcome,
        }
    }

    /// Whether the other side is still there; costs a system call.
    fn look(&mut self) {
        let seen = recv(&self.socket, &mut [0; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT);
        self.is_gone = matches!(seen, Ok((0, _))) || seen.is_err_and(|errno| errno != Errno::WOULDBLOCK);
    }
}

impl Wire for ShmWire {
    fn name(&self) -> &'static str {
        "shm"
    }

    fn set_number(&mut self, number: u64) {
        self.number = number;
    }

    fn receive(&mut self, place: InputPlace<'_>) -> io::Result<usize> {
        if self.greeting.len < GREETING_BYTES {
            self.greet()?;
        }
        match place {
            InputPlace::Staging(buffer) => Ok(recv(&self.socket, buffer, RecvFlags::DONTWAIT)?.0),
            InputPlace::Memory { memory, offset, len_bytes, tail } => {
                memory.receive(self.socket.as_fd(), offset, len_bytes, tail)
            }
        }
    }

    fn send(&mut self, view: &OutputView<'_>, _borrowed: &[u8]) -> io::Result<usize> {
        match view.body {
            Some(body) => body.memory.send(self.socket.as_fd(), view.head, body.offset, body.len_bytes, view.tail),
            None => Ok(send(&self.socket, view.head, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?),
        }
    }

    fn set_loss_timeout(&mut self, _loss_timeout: Duration) {
        // The kernel of the one host tells of the other side's end at once.
    }

    fn shutdown_output(&mut self) {
        // Failure means that the connection is gone already, which the next receive tells.
        let _ = shutdown(&self.socket, Shutdown::Write);
    }

    fn peer_process(&self) -> Option<PeerProcess> {
        PeerProcess::of(self.socket.as_fd())
    }

    fn as_fds(&self) -> [Option<BorrowedFd<'_>>; 2] {
        [Some(self.socket.as_fd()), self.control.as_ref().map(Control::as_fd)]
    }

    fn sockets(&self) -> [Option<Socket>; 2] {
        [Some(Arc::<Uninherited>::clone(&self.socket)), self.control.as_ref().map(Control::socket)]
    }

    fn progress(&mut self, _finished: &mut dyn Finished) -> io::Result<bool> {
        self.turns = self.turns.wrapping_add(1);
        let is_due = self.turns % CONTROL_EVERY == 0 || self.control.as_ref().is_some_and(Control::waits);
        if is_due || !self.wanted.get_mut().is_empty() { self.serve() } else { Ok(false) }
    }

    fn submit(&mut self) {
        self.submits = self.submits.wrapping_add(1);
        if self.submits % LOOK_EVERY == 0 {
            self.look();
        }
        if !self.wanted.get_mut().is_empty() {
            // What goes wrong here goes wrong again when the connection is driven, and is told there.
            let _ = self.serve();
        }
    }

    fn direct_way(&self) -> DirectWay {
        DirectWay::Local
    }

    fn post(&mut self, _posting: &Posting, request: &Request<'_>) -> Result<Posted, PostError> {
        self.carry_out(request)
    }

    fn flush(
        &mut self,
        _posting: &Posting,
        region: &RemoteRegion,
        ranges: &[(u64, u64)],
        level: Durability,
        _method: Method,
    ) -> Result<Posted, PostError> {
        self.flush_mapped(region, ranges, level)
    }

    fn reaches(&self, region: &RemoteRegion, kind: OperationKind, offset: u64) -> bool {
        self.reaches_directly(region, kind, offset)
    }

    fn offers(&self, method: Method, region: &RemoteRegion, level: Durability) -> Result<Promise, &'static str> {
        self.promise_of(method, region, level)
    }

    fn is_reach_known(&self, region: &RemoteRegion) -> bool {
        self.knows(region)
    }
}

fn new_socket() -> Result<Uninherited, Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    Uninherited::open(|| socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None))
}

pub(super) fn socket_address(path: &Path) -> io::Result<SocketAddrUnix> {
    let len_bytes = path.as_os_str().len();
    if len_bytes > PATH_MAX_BYTES {
        let why = format!("the path has {len_bytes} bytes, a Unix socket's has at most {PATH_MAX_BYTES}: shorten it");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    Ok(SocketAddrUnix::new(path)?)
}

/// Whether a process listens on the socket at this path.
pub(super) fn is_listened_on(path: &Path) -> io::Result<bool> {
    match connect(&new_socket()?, &socket_address(path)?) {
        Ok(()) | Err(Errno::WOULDBLOCK) => Ok(true),
        Err(Errno::CONNREFUSED) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// Also where it cannot be looked at.
fn is_socket(path: &Path) -> bool {
    std::fs::metadata(path).map_or(true, |metadata| std::os::unix::fs::FileTypeExt::is_socket(&metadata.file_type()))
}

fn why_unreachable(path: &Path, errno: Errno) -> io::Error {
    let has_directory = || path.parent().is_none_or(Path::is_dir);
    let why = match errno {
        Errno::NOENT if has_directory() => "there is no such socket",
        Errno::NOENT => "there is no such directory",
        Errno::CONNREFUSED if path.is_dir() => "it is a directory: name the target's socket in it",
        Errno::CONNREFUSED if !is_socket(path) => "what lies there is no socket",
        Errno::CONNREFUSED => "the socket is there, but the process that listened on it has died",
        Errno::ACCESS => "permission denied: only the user of the target and root may connect",
        Errno::WOULDBLOCK => "more connections wait there already than the target takes; try again",
        Errno::NOTSOCK | Errno::PROTOTYPE => "what lies there is no stream socket",
        errno => return errno.into(),
    };
    io::Error::new(io::Error::from(errno).kind(), why)
}

fn is_broken_pipe(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::BrokenPipe
}
