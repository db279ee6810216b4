//! One RDS socket.

use std::{
    fmt, io,
    mem::{ManuallyDrop, MaybeUninit},
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
    os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd},
    ptr,
    sync::Arc,
    thread,
};

use pmof_locks::Mutex;
use pmof_mem::{Medium, forks::Uninherited};

use crate::{
    MAP_MAX_BYTES, MapError, RdsError, SendFailure,
    abi::{
        RDS_CMSG_RDMA_ARGS, RDS_CMSG_RDMA_DEST, RDS_CMSG_RDMA_MAP, RDS_CMSG_RDMA_STATUS, RDS_FREE_MR,
        RDS_INFO_CONNECTION_FLAG_CONNECTED, RDS_INFO_CONNECTIONS, RDS_RDMA_CANCELED, RDS_RDMA_DROPPED,
        RDS_RDMA_INVALIDATE, RDS_RDMA_NOTIFY_ME, RDS_RDMA_READWRITE, RDS_RDMA_REMOTE_ERROR, RDS_RDMA_SUCCESS,
        RDS_TRANS_IB, RDS_TRANS_TCP, SO_RDS_TRANSPORT, SOL_RDS, rds_free_mr_args, rds_get_mr_args, rds_info_connection,
        rds_iovec, rds_rdma_args, rds_rdma_notify,
    },
    buffers::Buffers,
    message::{Control, bytes_of, structure_of},
};

/// What carries the datagrams of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Carrier {
    /// An RDMA device: `rds_rdma`.
    Rdma,
    /// TCP: `rds_tcp`. No RDMA.
    Tcp,
    /// Another one, such as the loopback. No RDMA.
    Other,
}

/// What the other side of a pair needs to reach a range of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cookie(pub u64);

/// Which way an RDMA operation moves bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// To the other side's memory.
    Write,
    /// From the other side's memory.
    Read,
}

/// How an RDMA operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Status {
    /// It took effect.
    Success,
    /// The other side's device refused it.
    Refused,
    /// The socket was told to forget it. Whether it took effect is unknown.
    Canceled,
    /// The connection of the hosts broke under it. Whether it took effect is unknown.
    Dropped,
    /// Something else. Whether it took effect is unknown.
    Other(i32),
}

impl Status {
    fn of(status: i32) -> Self {
        match status {
            RDS_RDMA_SUCCESS => Self::Success,
            RDS_RDMA_REMOTE_ERROR => Self::Refused,
            RDS_RDMA_CANCELED => Self::Canceled,
            RDS_RDMA_DROPPED => Self::Dropped,
            other => Self::Other(other),
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Success => f.write_str("it took effect"),
            Self::Refused => f.write_str("the other side's device refused it"),
            Self::Canceled => f.write_str("it was cancelled"),
            Self::Dropped => f.write_str("the connection of the hosts broke under it, and it is not sent again"),
            Self::Other(status) => write!(f, "it failed with RDS status {status}"),
        }
    }
}

/// An RDMA operation that is over.
#[derive(Debug)]
pub struct Done {
    /// The one it was posted under.
    pub token: u64,
    /// How it ended.
    pub status: Status,
    /// The buffer that it was posted with.
    pub buffer: Box<[u8]>,
}

/// A datagram that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Who sent it.
    pub from: SocketAddrV4,
    /// Its length in bytes, or that of the buffer where it is longer. 0: an RDMA operation of the other side, mostly.
    pub len_bytes: usize,
    /// The cookie that came with it.
    pub cookie: Option<Cookie>,
}

/// A bound socket. Calls never wait.
pub struct Socket {
    fd: ManuallyDrop<Uninherited>,
    local: SocketAddrV4,
    carrier: Carrier,
    buffers: Mutex<Buffers>,
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Socket").field("local", &self.local).field("carrier", &self.carrier).finish_non_exhaustive()
    }
}

impl Socket {
    /// Opens a socket and binds it to an address of this machine; port 0 picks a free one.
    pub fn bind(at: SocketAddr) -> Result<Self, RdsError> {
        let address = at.ip();
        let SocketAddr::V4(at) = at else { return Err(RdsError::Ipv6 { address }) };
        let failed = |call| move |source: io::Error| RdsError::System { call, address, source };
        let fd = Uninherited::open(open).map_err(|source: io::Error| match source.raw_os_error() {
            Some(libc::EAFNOSUPPORT | libc::EPROTONOSUPPORT | libc::ESOCKTNOSUPPORT) => RdsError::NoModule { source },
            _ => failed("socket")(source),
        })?;
        let name = raw_address(at);
        // SAFETY: the structure is valid, of that length, and lives through the call.
        let status = unsafe { libc::bind(raw(&fd), (&raw const name).cast(), socket_length::<libc::sockaddr_in>()) };
        check(status).map_err(|source| match source.raw_os_error() {
            Some(libc::EADDRNOTAVAIL) => RdsError::NoDevice { address, source },
            Some(libc::EADDRINUSE) => RdsError::PortInUse { address, port: at.port() },
            _ => failed("bind")(source),
        })?;
        let mut name = raw_address(at);
        let mut len = socket_length::<libc::sockaddr_in>();
        // SAFETY: the structure has room for the length that is named, and both live through the call.
        let status = unsafe { libc::getsockname(raw(&fd), (&raw mut name).cast(), &raw mut len) };
        check(status).map_err(failed("getsockname"))?;
        let carrier = carrier_of(&fd).map_err(failed("getsockopt(SO_RDS_TRANSPORT)"))?;
        Ok(Self { fd: ManuallyDrop::new(fd), local: address_of(&name), carrier, buffers: Mutex::default() })
    }

    /// Where it is bound.
    pub fn local_address(&self) -> SocketAddrV4 {
        self.local
    }

    /// What carries its datagrams.
    pub fn carrier(&self) -> Carrier {
        self.carrier
    }

    /// Sends a datagram.
    pub fn send(&self, to: SocketAddrV4, bytes: &[u8]) -> Result<(), SendFailure> {
        self.send_with(to, bytes, &mut Control::empty()).map_err(SendFailure::of)
    }

    /// Posts an RDMA operation between the buffer and the other side's memory, from `offset` bytes behind the cookie's beginning on. It is not
    /// carried out past the range of the cookie, but the attempt breaks the connection of the hosts: check the range before. The other side receives an
    /// empty datagram, and this one a [`Done`] with the token, which no other operation under way has.
    ///
    /// Where it is not taken, the buffer comes back.
    pub fn post(
        &self,
        (to, direction): (SocketAddrV4, Direction),
        (cookie, offset): (Cookie, u64),
        buffer: Box<[u8]>,
        token: u64,
    ) -> Result<(), (Box<[u8]>, SendFailure)> {
        let bytes = buffer.len() as u64;
        let mut buffers = self.buffers.lock();
        let local = rds_iovec { addr: buffers.lend(token, buffer), bytes };
        let flags = if direction == Direction::Write { RDS_RDMA_READWRITE } else { 0 } | RDS_RDMA_NOTIFY_ME;
        let arguments = rds_rdma_args {
            cookie: cookie.0,
            remote_vec: rds_iovec { addr: offset, bytes },
            local_vec_addr: (&raw const local).expose_provenance() as u64,
            nr_local: 1,
            flags,
            user_token: token,
        };
        let sent = self.send_with(to, &[], &mut Control::with(RDS_CMSG_RDMA_ARGS, bytes_of(&arguments)));
        sent.map_err(|error| {
            // SAFETY: the kernel did not take the operation.
            let buffer = unsafe { buffers.take_back(token) };
            (buffer.unwrap_or_default(), SendFailure::of(error))
        })
    }

    /// Makes `len_bytes` of a medium from `offset` on reachable for whoever has the cookie, and sends a datagram that carries it to the other side. The
    /// kernel keeps the pages until the cookie is [freed](Self::free) or the socket closed.
    ///
    /// To be called only while [the hosts are connected](Self::is_path_up): the kernel registers memory with their queue pair.
    pub fn map(
        &self,
        to: SocketAddrV4,
        memory: &Arc<dyn Medium>,
        (offset, len_bytes): (u64, u64),
        bytes: &[u8],
    ) -> Result<Cookie, MapError> {
        let kind = memory.kind();
        let mapped = memory.memory().ok_or(MapError::NotMapped { kind })?;
        if memory.lent().is_some() {
            return Err(MapError::Lent { kind });
        }
        let size_bytes = mapped.len_bytes();
        let end = offset.checked_add(len_bytes).filter(|end| *end <= size_bytes);
        if end.is_none() || !(1..=MAP_MAX_BYTES).contains(&len_bytes) {
            return Err(MapError::OutOfBounds { offset, len_bytes, size_bytes });
        }
        if !mapped.is_writable() {
            return Err(MapError::ReadOnly { kind });
        }
        let mut cookie = 0_u64;
        let arguments = rds_get_mr_args {
            vec: rds_iovec { addr: mapped.address() + offset, bytes: len_bytes },
            cookie_addr: (&raw mut cookie).expose_provenance() as u64,
            flags: RDS_RDMA_READWRITE | RDS_RDMA_INVALIDATE,
        };
        let sent = self.send_with(to, bytes, &mut Control::with(RDS_CMSG_RDMA_MAP, bytes_of(&arguments)));
        sent.map_err(|source| match SendFailure::of(source) {
            SendFailure::Again => MapError::Again,
            SendFailure::Kernel(source) => MapError::kernel(kind, len_bytes, source),
        })?;
        // SAFETY: the kernel has written it through the address that it was given, before the call returned.
        Ok(Cookie(unsafe { (&raw const cookie).read_volatile() }))
    }

    /// Takes memory away from the other side. On return the device refuses the cookie. Nothing happens where it was freed already.
    pub fn free(&self, cookie: Cookie) {
        let arguments = rds_free_mr_args { cookie: cookie.0, flags: RDS_RDMA_INVALIDATE };
        let bytes = bytes_of(&arguments);
        // SAFETY: the structure is valid, of that length, and lives through the call.
        unsafe {
            libc::setsockopt(
                raw(&self.fd),
                SOL_RDS,
                RDS_FREE_MR,
                bytes.as_ptr().cast(),
                bytes.len() as libc::socklen_t,
            );
        }
    }

    /// Takes in the next thing that happened: operations that are over go to `done`; a datagram is returned, with its bytes in `into`.
    /// `WouldBlock` where nothing happened; `None` where operations ended.
    pub fn receive(&self, into: &mut [u8], done: &mut Vec<Done>) -> io::Result<Option<Received>> {
        let mut control = Control::empty();
        let mut name = raw_address(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0));
        let mut part = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
        // SAFETY: of zeros it is a valid structure.
        let mut head: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
        head.msg_name = (&raw mut name).cast();
        head.msg_namelen = socket_length::<libc::sockaddr_in>();
        head.msg_iov = &raw mut part;
        head.msg_iovlen = 1;
        let space = control.space();
        head.msg_control = space.as_mut_ptr().cast();
        head.msg_controllen = space.len() as _;
        // SAFETY: all that the head points to is there, of the lengths that it names, writable, and lives through the call.
        let len = unsafe { libc::recvmsg(raw(&self.fd), &raw mut head, libc::MSG_DONTWAIT) };
        let len_bytes = usize::try_from(len).map_err(|_| io::Error::last_os_error())?;
        #[allow(clippy::unnecessary_cast, reason = "its type depends on the C library")]
        control.set_len(head.msg_controllen as usize);
        let mut cookie = None;
        for (kind, data) in control.messages() {
            match kind {
                RDS_CMSG_RDMA_DEST => cookie = structure_of(data).map(Cookie),
                RDS_CMSG_RDMA_STATUS => {
                    let Some(rds_rdma_notify { user_token, status }) = structure_of(data) else { continue };
                    // SAFETY: the kernel says that the operation is over.
                    if let Some(buffer) = unsafe { self.buffers.lock().take_back(user_token) } {
                        done.push(Done { token: user_token, status: Status::of(status), buffer });
                    }
                }
                _ => {}
            }
        }
        // What brings statuses brings no datagram, and names no sender.
        let from = address_of(&name);
        Ok((head.msg_namelen > 0 && from.port() != 0).then_some(Received { from, len_bytes, cookie }))
    }

    /// Whether the kernel's connection between this address and the other one is up. Where it broke, it is not made anew as long as either
    /// side has memory registered for it.
    pub fn is_path_up(&self, other: Ipv4Addr) -> bool {
        let wanted = (self.local.ip().octets(), other.octets());
        let is_up = |connection: rds_info_connection| {
            (connection.laddr, connection.faddr) == wanted && connection.flags & RDS_INFO_CONNECTION_FLAG_CONNECTED != 0
        };
        self.connections().is_some_and(|connections| connections.into_iter().any(is_up))
    }

    /// Those of all sockets of this machine.
    fn connections(&self) -> Option<Vec<rds_info_connection>> {
        const FIRST_BYTES: usize = 4096;
        let mut bytes = vec![0_u8; FIRST_BYTES];
        loop {
            let mut len = bytes.len() as libc::socklen_t;
            // SAFETY: the buffer has room for the length that is named, and both live through the call.
            let status = unsafe {
                libc::getsockopt(raw(&self.fd), SOL_RDS, RDS_INFO_CONNECTIONS, bytes.as_mut_ptr().cast(), &raw mut len)
            };
            if status >= 0 {
                let used = &bytes[..bytes.len().min(len as usize)];
                return Some(used.chunks_exact(size_of::<rds_info_connection>()).filter_map(structure_of).collect());
            }
            // There are more than fit: the kernel says how many bytes.
            if io::Error::last_os_error().raw_os_error() != Some(libc::ENOSPC) || len as usize <= bytes.len() {
                return None;
            }
            bytes.resize(len as usize, 0);
        }
    }

    fn send_with(&self, to: SocketAddrV4, bytes: &[u8], control: &mut Control) -> io::Result<()> {
        let mut name = raw_address(to);
        let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        // SAFETY: of zeros it is a valid structure.
        let mut head: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
        head.msg_name = (&raw mut name).cast();
        head.msg_namelen = socket_length::<libc::sockaddr_in>();
        head.msg_iov = &raw mut part;
        head.msg_iovlen = usize::from(!bytes.is_empty()) as _;
        let written = control.written();
        if !written.is_empty() {
            head.msg_control = written.as_mut_ptr().cast();
            head.msg_controllen = written.len() as _;
        }
        // RDS refuses every other flag, and raises no signals.
        // SAFETY: all that the head points to is there, of the lengths that it names, and lives through the call; the kernel only reads it. What
        // control messages point to is the callers'.
        let sent = unsafe { libc::sendmsg(raw(&self.fd), &raw const head, libc::MSG_DONTWAIT) };
        match usize::try_from(sent) {
            Ok(count) if count == bytes.len() => Ok(()),
            Ok(_) => Err(io::ErrorKind::WriteZero.into()),
            Err(_) => Err(io::Error::last_os_error()),
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The kernel closes a socket when its device is done with what was posted, and that takes as long as a broken wire takes to be noticed. A
/// thread waits for it, and for its buffers, which is not to be interrupted: the kernel would return early.
impl Drop for Socket {
    fn drop(&mut self) {
        // SAFETY: nobody uses it from here on.
        let fd = unsafe { ManuallyDrop::take(&mut self.fd) };
        let mut buffers = std::mem::take(self.buffers.get_mut());
        if buffers.is_empty() {
            return;
        }
        let close = move || {
            block_signals();
            drop(fd);
            // SAFETY: the kernel has closed the socket uninterrupted: its operations are over.
            unsafe { buffers.free() };
        };
        // Where there is no thread to be had the socket is closed here, and the buffers leak.
        let _ = thread::Builder::new().name("pmof-rds-close".to_owned()).spawn(close);
    }
}

fn block_signals() {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the first call fills the set that the second one reads; the thread is this one.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), ptr::null_mut());
    }
}

fn open() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: no pointers.
    let fd = unsafe { libc::socket(libc::AF_RDS, kind, 0) };
    check(fd)?;
    // SAFETY: just opened, and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn carrier_of(fd: &Uninherited) -> io::Result<Carrier> {
    let mut number = 0_i32;
    let mut len = socket_length::<i32>();
    // SAFETY: the number has the room that is named, and both live through the call.
    let status =
        unsafe { libc::getsockopt(raw(fd), SOL_RDS, SO_RDS_TRANSPORT, (&raw mut number).cast(), &raw mut len) };
    check(status)?;
    Ok(match number {
        RDS_TRANS_IB => Carrier::Rdma,
        RDS_TRANS_TCP => Carrier::Tcp,
        _ => Carrier::Other,
    })
}

/// Whether a call of the kernel's went well.
fn check(status: i32) -> io::Result<()> {
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn raw(fd: &Uninherited) -> i32 {
    fd.as_fd().as_raw_fd()
}

fn socket_length<T>() -> libc::socklen_t {
    size_of::<T>() as libc::socklen_t
}

fn raw_address(address: SocketAddrV4) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: address.port().to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from(*address.ip()).to_be() },
        sin_zero: [0; 8],
    }
}

fn address_of(name: &libc::sockaddr_in) -> SocketAddrV4 {
    SocketAddrV4::new(u32::from_be(name.sin_addr.s_addr).into(), u16::from_be(name.sin_port))
}
