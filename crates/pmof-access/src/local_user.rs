//! Whose a connection within this machine is.
//!
//! The kernel tells the user of a TCP socket by its two addresses (`NETLINK_SOCK_DIAG`, `sock_diag(7)`; structures in
//! `linux/inet_diag.h`). Asked for the other side's end, it needs no word of that side. Addresses of IPv4 within IPv6 are those of IPv4: that
//! is what goes over the wire, and either side may have a socket of the other family.

#![expect(clippy::host_endian_bytes, reason = "netlink is spoken within a machine, in its byte order")]

use std::{
    fmt, fs, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::AsFd,
};

use pmof_mem::forks::Uninherited;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::{
        AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, connect, getpeername, getsockname, netlink, recv,
        send, socket_with,
    },
    process::geteuid,
};

/// `SOCK_DIAG_BY_FAMILY`, of `linux/sock_diag.h`; both the request's type and the answer's.
const BY_FAMILY: u16 = 20;
/// `NLMSG_ERROR`: an answer that carries a negative errno.
const ERROR: u16 = 2;
/// `NLM_F_REQUEST`.
const REQUEST: u16 = 1;
/// `struct nlmsghdr`.
const HEADER_BYTES: usize = 16;
/// `struct inet_diag_sockid`.
const SOCKET_BYTES: usize = 48;
/// `struct inet_diag_req_v2`, behind the header: family, protocol, two bytes, states, socket.
const REQUEST_BYTES: usize = HEADER_BYTES + 8 + SOCKET_BYTES;
/// In the answer: `idiag_family` and `idiag_state` of `struct inet_diag_msg`, its `id`, and `idiag_uid`, which follows `id` and three words.
const FAMILY_AT: usize = HEADER_BYTES;
const STATE_AT: usize = HEADER_BYTES + 1;
const SOCKET_AT: usize = HEADER_BYTES + 4;
const USER_AT: usize = SOCKET_AT + SOCKET_BYTES + 12;
const ANSWER_BYTES: usize = USER_AT + 4;
/// `TCP_ESTABLISHED` and `TCP_LISTEN`.
const ESTABLISHED: u8 = 1;
const LISTEN: u8 = 10;
/// Both ports, both addresses, no interface and, for a request, `INET_DIAG_NOCOOKIE`.
const COOKIE_AT: usize = 40;
const ADDRESSES_AT: [usize; 2] = [4, 20];
/// `IPPROTO_TCP`.
const TCP: u8 = 6;

/// The user whose socket at `from` is connected to `to`, both on this machine. The kernel calls a socket that nobody has accepted yet root's: ask
/// for a target's end once it has said something.
///
/// # Errors
/// The kernel does not tell (it lacks `tcp_diag`, or a sandbox forbids the question: any errno), or that socket is not connected any
/// more (`ENOENT` of the kernel, or [`io::ErrorKind::NotConnected`]).
pub fn user_of(from: SocketAddr, to: SocketAddr) -> io::Result<u32> {
    let asked = (canonical(from), canonical(to));
    user_in(&ask(asked)?, asked)
}

/// The user whose socket listens at an address of this machine, if one does and the kernel tells.
fn listener_at(address: SocketAddr) -> Option<u32> {
    let address = canonical(address);
    let unspecified: IpAddr =
        if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    // No connection comes from port 0, and so the kernel finds who listens.
    let answer = ask((address, SocketAddr::new(unspecified, 0))).ok()?;
    (is_about_a_socket(&answer) && answer[STATE_AT] == LISTEN).then(|| user_at(&answer))
}

/// What the kernel answers about the socket at the first address that is connected to the second.
fn ask((from, to): (SocketAddr, SocketAddr)) -> io::Result<Vec<u8>> {
    let socket = socket_with(
        AddressFamily::NETLINK,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        Some(netlink::SOCK_DIAG),
    )?;
    // A socket connected to the kernel receives from the kernel only.
    connect(&socket, &netlink::SocketAddrNetlink::new(0, 0))?;
    let request = request(from, to);
    send(&socket, &request, SendFlags::empty())?;
    // The kernel answers before `send` returns.
    let mut answer = vec![0; 1024];
    let (len_bytes, _) = recv(&socket, &mut answer[..], RecvFlags::empty())?;
    answer.truncate(len_bytes);
    Ok(answer)
}

/// An address of IPv4 within IPv6 as one of IPv4, and every other without what the wire does not carry.
pub fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

fn request(from: SocketAddr, to: SocketAddr) -> [u8; REQUEST_BYTES] {
    let mut request = [0; REQUEST_BYTES];
    request[..4].copy_from_slice(&(REQUEST_BYTES as u32).to_ne_bytes());
    request[4..6].copy_from_slice(&BY_FAMILY.to_ne_bytes());
    request[6..8].copy_from_slice(&REQUEST.to_ne_bytes());
    let family = if from.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    request[HEADER_BYTES] = family.as_raw() as u8;
    request[HEADER_BYTES + 1] = TCP;
    // All states.
    request[HEADER_BYTES + 4..HEADER_BYTES + 8].fill(0xff);
    let socket = &mut request[HEADER_BYTES + 8..];
    socket.copy_from_slice(&socket_bytes(from, to));
    socket[COOKIE_AT..].fill(0xff);
    request
}

/// `struct inet_diag_sockid` of the socket at `from` that is connected to `to`, without interface and cookie.
fn socket_bytes(from: SocketAddr, to: SocketAddr) -> [u8; SOCKET_BYTES] {
    let mut socket = [0; SOCKET_BYTES];
    let port = |address: SocketAddr| [(address.port() >> 8) as u8, address.port() as u8];
    socket[..2].copy_from_slice(&port(from));
    socket[2..4].copy_from_slice(&port(to));
    for (at, address) in ADDRESSES_AT.into_iter().zip([from, to]) {
        match address.ip() {
            IpAddr::V4(ip) => socket[at..at + 4].copy_from_slice(&ip.octets()),
            IpAddr::V6(ip) => socket[at..at + 16].copy_from_slice(&ip.octets()),
        }
    }
    socket
}

/// The type of an answer.
fn kind_of(answer: &[u8]) -> Option<u16> {
    Some(u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?))
}

fn is_about_a_socket(answer: &[u8]) -> bool {
    kind_of(answer) == Some(BY_FAMILY) && answer.len() >= ANSWER_BYTES
}

/// The user in a whole answer.
fn user_at(answer: &[u8]) -> u32 {
    u32::from_ne_bytes(std::array::from_fn(|at| answer[USER_AT + at]))
}

/// The user in an answer about this socket. An answer about a listening socket of the same port is none: the kernel gives one where the
/// connected socket is gone.
fn user_in(answer: &[u8], asked: (SocketAddr, SocketAddr)) -> io::Result<u32> {
    let malformed = || io::Error::new(io::ErrorKind::InvalidData, "an answer of sock_diag that is none");
    if is_about_a_socket(answer) {
        let is_connected = answer[STATE_AT] == ESTABLISHED && addresses_in(answer) == asked;
        return if is_connected { Ok(user_at(answer)) } else { Err(io::ErrorKind::NotConnected.into()) };
    }
    let errno = answer.get(HEADER_BYTES..).and_then(<[u8]>::first_chunk).copied().map(i32::from_ne_bytes);
    match (kind_of(answer), errno) {
        (Some(ERROR), Some(errno)) => Err(io::Error::from_raw_os_error(errno.saturating_neg())),
        _ => Err(malformed()),
    }
}

/// The addresses in a whole answer, which may be of a socket of the other family than the one that was asked for.
fn addresses_in(answer: &[u8]) -> (SocketAddr, SocketAddr) {
    let is_ipv4 = answer[FAMILY_AT] == AddressFamily::INET.as_raw() as u8;
    let socket = &answer[SOCKET_AT..][..SOCKET_BYTES];
    let [from, to] = [0, 1].map(|end| {
        let port = u16::from(socket[2 * end]) << 8 | u16::from(socket[2 * end + 1]);
        let bytes: [u8; 16] = std::array::from_fn(|at| socket[ADDRESSES_AT[end] + at]);
        let [a, b, c, d, ..] = bytes;
        let ip = if is_ipv4 { IpAddr::V4(Ipv4Addr::new(a, b, c, d)) } else { IpAddr::V6(Ipv6Addr::from(bytes)) };
        canonical(SocketAddr::new(ip, port))
    });
    (from, to)
}

/// What people call a user: the name, where `/etc/passwd` has one, and the number.
pub fn user_name(user: u32) -> String {
    let has_number = |line: &&str| line.split(':').nth(2).is_some_and(|number| number.parse() == Ok(user));
    let name = fs::read_to_string("/etc/passwd").ok().and_then(|users| {
        let line = users.lines().find(has_number)?;
        line.split(':').next().map(str::to_owned)
    });
    name.map_or_else(|| format!("user {user}"), |name| format!("user {name} ({user})"))
}

/// Why the process that answers on a loopback address of this machine is not trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NotTrusted {
    /// It is another user's.
    OtherUser(u32),
    /// The kernel does not say whose it is.
    Unknown(String),
}

impl fmt::Display for NotTrusted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OtherUser(user) => {
                write!(f, "a process of {} answers there, which is neither this user nor root", user_name(*user))
            }
            Self::Unknown(why) => write!(f, "the kernel does not say whose process answers there (sock_diag: {why})"),
        }
    }
}

impl std::error::Error for NotTrusted {}

impl From<NotTrusted> for io::Error {
    fn from(why: NotTrusted) -> Self {
        Self::new(io::ErrorKind::PermissionDenied, why)
    }
}

/// Whose targets are believed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Trust {
    /// Any user's.
    AnyUser,
    /// This user's and root's, where both ends are at loopback addresses of this machine.
    OwnUser {
        /// The address that was connected to: the kernel forgets it with a connection that the other end has reset.
        to: SocketAddr,
        /// Whose socket listened at the address when the connection had been made, if the kernel told: who has answered and closed the
        /// connection since has no socket that could be asked about.
        listener: Option<u32>,
    },
}

impl Trust {
    /// For a connection to that address that was just begun.
    pub(crate) fn new(trust_host: bool, socket: &Uninherited, to: SocketAddr) -> Self {
        if trust_host {
            return Self::AnyUser;
        }
        // On loopback the connection stands when `connect` returns; where it does not, someone else might listen before it does.
        let peer = getpeername(socket).ok().flatten().and_then(|peer| SocketAddr::try_from(peer).ok());
        let on_loopback = peer.filter(|peer| peer.ip().to_canonical().is_loopback());
        Self::OwnUser { to: peer.unwrap_or(to), listener: on_loopback.and_then(listener_at) }
    }

    /// Whether the other end of the socket is believed. It must have said something: only then a process has accepted the connection.
    ///
    /// # Errors
    /// Of [`NotTrusted`]; `ConnectionAborted` if the other end is already closed and its user is not known.
    pub(crate) fn check(self, socket: &Uninherited) -> io::Result<()> {
        let Self::OwnUser { to, listener } = self else { return Ok(()) };
        let unknown = |error: io::Error| NotTrusted::Unknown(error.to_string());
        let own = getsockname(socket).map_err(|errno| unknown(errno.into()))?;
        let Ok(own) = SocketAddr::try_from(own) else { return Ok(()) };
        let peer = getpeername(socket).ok().flatten().and_then(|peer| SocketAddr::try_from(peer).ok()).unwrap_or(to);
        if ![own, peer].iter().any(|end| end.ip().to_canonical().is_loopback()) {
            return Ok(());
        }
        match user_of(peer, own) {
            Ok(user) => Ok(check_user(user)?),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotConnected | io::ErrorKind::NotFound) => {
                if is_open(socket) {
                    let why =
                        "no process of this network namespace has the other end: is the port forwarded to another one?";
                    return Err(NotTrusted::Unknown(why.to_owned()).into());
                }
                if let Some(listener) = listener {
                    return Ok(check_user(listener)?);
                }
                let why = "it closed the connection before the kernel was asked whose it is";
                Err(io::Error::new(io::ErrorKind::ConnectionAborted, why))
            }
            Err(error) => Err(unknown(error).into()),
        }
    }
}

/// Whether the other end has not closed the connection.
pub(crate) fn is_open(socket: &impl AsFd) -> bool {
    let closed = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
    let mut polled = [PollFd::new(socket, PollFlags::RDHUP)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut polled, Some(&now)).is_ok() && !polled[0].revents().intersects(closed)
}

/// Whether a process of that user is trusted: one of this user's or of root.
pub(crate) fn check_user(user: u32) -> Result<(), NotTrusted> {
    if user == 0 || user == geteuid().as_raw() { Ok(()) } else { Err(NotTrusted::OtherUser(user)) }
}

#[cfg(test)]
mod tests {
    use std::{
        io::Write,
        net::{TcpListener, TcpStream},
    };

    use rustix::io::Errno;

    use super::*;

    fn own_user() -> u32 {
        geteuid().as_raw()
    }

    #[test]
    fn the_user_of_a_connection_is_told() {
        for listen in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(listen) else {
                skip_report::skipped!("{listen} is no address here");
                continue;
            };
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (accepted, from) = listener.accept().unwrap();
            let at = accepted.local_addr().unwrap();
            assert_eq!(user_of(from, at).unwrap(), own_user(), "{listen}");
            // The listener's port has another socket than the one that was asked for.
            assert!(user_of(at, from).is_ok());
            drop(accepted);
            drop(client);
        }
    }

    /// Each side may have a socket of the other family than the other one.
    #[test]
    fn addresses_of_ipv4_within_ipv6_are_those_of_ipv4() {
        let (plain, dual) = (TcpListener::bind("127.0.0.1:0").unwrap(), TcpListener::bind("[::]:0"));
        let mapped = |listener: &TcpListener| format!("[::ffff:127.0.0.1]:{}", listener.local_addr().unwrap().port());
        let mut pairs = vec![(mapped(&plain), &plain)];
        match &dual {
            Ok(dual) => {
                pairs.push((mapped(dual), dual));
                pairs.push((format!("127.0.0.1:{}", dual.local_addr().unwrap().port()), dual));
            }
            Err(error) => skip_report::skipped!("no IPv6: {error}"),
        }
        for (to, listener) in pairs {
            let client = TcpStream::connect(&to).unwrap();
            let (accepted, from) = listener.accept().unwrap();
            let ends = [client.local_addr(), client.peer_addr(), accepted.local_addr(), Ok(from)].map(Result::unwrap);
            for (one, other) in [(0, 1), (1, 0), (2, 3), (3, 2)] {
                assert_eq!(user_of(ends[one], ends[other]).unwrap(), own_user(), "{to}: {ends:?}");
            }
        }
    }

    #[test]
    fn users_are_called_by_their_names() {
        assert_eq!(user_name(0), "user root (0)");
        assert_eq!(user_name(4_000_000_000), "user 4000000000");
    }

    /// A target may answer and close before its client looks.
    #[test]
    fn the_other_end_of_a_closed_connection_is_the_listeners() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let client = Uninherited::open(|| TcpStream::connect(at).map(Into::into)).unwrap();
        let trust = Trust::new(false, &client, at);
        assert!(matches!(trust, Trust::OwnUser { listener: Some(user), .. } if user == own_user()), "{trust:?}");
        drop(listener.accept().unwrap());
        drop(listener);
        trust.check(&client).unwrap();
        let foreign = Trust::OwnUser { to: at, listener: Some(own_user() + 1) };
        let error = foreign.check(&client).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
        let error = Trust::OwnUser { to: at, listener: None }.check(&client).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted, "{error}");
        Trust::AnyUser.check(&client).unwrap();
        assert_eq!(listener_at(at), None);
    }

    /// One that closes with something unread resets the connection, and what it had said is there still.
    #[test]
    fn the_other_end_of_a_reset_connection_is_the_listeners() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let client = Uninherited::open(|| TcpStream::connect(at).map(Into::into)).unwrap();
        let trust = Trust::new(false, &client, at);
        send(&client, b"unread", SendFlags::empty()).unwrap();
        let (mut accepted, _) = listener.accept().unwrap();
        accepted.write_all(b"said").unwrap();
        accepted.peek(&mut [0]).unwrap();
        drop(accepted);
        assert_eq!(getpeername(&client).unwrap_err(), Errno::NOTCONN);
        trust.check(&client).unwrap();
        let mut said = [0; 4];
        recv(&client, &mut said, RecvFlags::empty()).unwrap();
        assert_eq!(&said, b"said");
        let error = Trust::OwnUser { to: at, listener: Some(own_user() + 1) }.check(&client).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
    }

    /// The kernel finds a listener where no connection is.
    #[test]
    fn a_listener_at_the_clients_port_is_not_taken_for_the_client() {
        let (one, other) = (TcpListener::bind("127.0.0.1:0").unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
        let error = user_of(one.local_addr().unwrap(), other.local_addr().unwrap()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotConnected, "{error}");
        let gone = one.local_addr().unwrap();
        drop(one);
        let error = user_of(gone, other.local_addr().unwrap()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound, "{error}");
    }

    #[test]
    fn answers_that_are_none_are_errors() {
        let addresses = (SocketAddr::from(([127, 0, 0, 1], 1)), SocketAddr::from(([127, 0, 0, 1], 2)));
        let asked = addresses;
        let mut answer = vec![0; ANSWER_BYTES];
        answer[FAMILY_AT] = AddressFamily::INET.as_raw() as u8;
        answer[4..6].copy_from_slice(&BY_FAMILY.to_ne_bytes());
        answer[STATE_AT] = ESTABLISHED;
        answer[SOCKET_AT..][..SOCKET_BYTES].copy_from_slice(&socket_bytes(asked.0, asked.1));
        answer[USER_AT..].copy_from_slice(&1000_u32.to_ne_bytes());
        assert_eq!(user_in(&answer, asked).unwrap(), 1000);
        for len_bytes in 0..ANSWER_BYTES {
            assert_eq!(user_in(&answer[..len_bytes], asked).unwrap_err().kind(), io::ErrorKind::InvalidData);
        }
        let of_another = (addresses.1, addresses.0);
        assert_eq!(user_in(&answer, of_another).unwrap_err().kind(), io::ErrorKind::NotConnected);
        let mut refused = vec![0; HEADER_BYTES + 4];
        refused[4..6].copy_from_slice(&ERROR.to_ne_bytes());
        refused[HEADER_BYTES..].copy_from_slice(&(-13_i32).to_ne_bytes());
        assert_eq!(user_in(&refused, asked).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    }
}
