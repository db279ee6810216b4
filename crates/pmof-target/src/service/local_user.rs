//! Whose a connection within this machine is.
//!
//! The kernel tells the user of a TCP socket by its two addresses (`NETLINK_SOCK_DIAG`, `sock_diag(7)`; structures in
//! `linux/inet_diag.h`). Asked for the client's end, it needs no word of the client.

#![expect(clippy::host_endian_bytes, reason = "netlink is spoken within a machine, in its byte order")]

use std::{
    io,
    net::{IpAddr, SocketAddr},
};

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, connect, netlink, recv, send, socket_with,
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
/// In the answer: `idiag_state` of `struct inet_diag_msg`, its `id`, and `idiag_uid`, which follows `id` and three words.
const STATE_AT: usize = HEADER_BYTES + 1;
const SOCKET_AT: usize = HEADER_BYTES + 4;
const USER_AT: usize = SOCKET_AT + SOCKET_BYTES + 12;
const ANSWER_BYTES: usize = USER_AT + 4;
/// `TCP_ESTABLISHED`.
const ESTABLISHED: u8 = 1;
/// Both ports, both addresses, no interface and, for a request, `INET_DIAG_NOCOOKIE`.
const COOKIE_AT: usize = 40;
const INTERFACE_AT: usize = 36;
/// `IPPROTO_TCP`.
const TCP: u8 = 6;

/// The user whose socket at `client` is connected to `target`, both on this machine.
///
/// # Errors
/// The kernel does not tell (it lacks `tcp_diag`, or a sandbox forbids the question: any errno), or that socket is not connected any
/// more (`ENOENT` of the kernel, or [`io::ErrorKind::NotConnected`]).
pub(super) fn user_of(client: SocketAddr, target: SocketAddr) -> io::Result<u32> {
    let socket = socket_with(
        AddressFamily::NETLINK,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        Some(netlink::SOCK_DIAG),
    )?;
    // Of a socket that is connected to the kernel nobody else is heard.
    connect(&socket, &netlink::SocketAddrNetlink::new(0, 0))?;
    let request = request(client, target);
    send(&socket, &request, SendFlags::empty())?;
    // The kernel answers before `send` returns.
    let mut answer = [0; 1024];
    let (len_bytes, _) = recv(&socket, &mut answer[..], RecvFlags::empty())?;
    user_in(&answer[..len_bytes], socket_bytes(client, target))
}

fn request(client: SocketAddr, target: SocketAddr) -> [u8; REQUEST_BYTES] {
    let mut request = [0; REQUEST_BYTES];
    request[..4].copy_from_slice(&(REQUEST_BYTES as u32).to_ne_bytes());
    request[4..6].copy_from_slice(&BY_FAMILY.to_ne_bytes());
    request[6..8].copy_from_slice(&REQUEST.to_ne_bytes());
    let family = if client.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    request[HEADER_BYTES] = family.as_raw() as u8;
    request[HEADER_BYTES + 1] = TCP;
    // All states.
    request[HEADER_BYTES + 4..HEADER_BYTES + 8].fill(0xff);
    let socket = &mut request[HEADER_BYTES + 8..];
    socket.copy_from_slice(&socket_bytes(client, target));
    socket[COOKIE_AT..].fill(0xff);
    request
}

/// `struct inet_diag_sockid` of the socket at `from` that is connected to `to`, without interface and cookie.
fn socket_bytes(from: SocketAddr, to: SocketAddr) -> [u8; SOCKET_BYTES] {
    let mut socket = [0; SOCKET_BYTES];
    let port = |address: SocketAddr| [(address.port() >> 8) as u8, address.port() as u8];
    socket[..2].copy_from_slice(&port(from));
    socket[2..4].copy_from_slice(&port(to));
    for (at, address) in [(4, from), (20, to)] {
        match address.ip() {
            IpAddr::V4(ip) => socket[at..at + 4].copy_from_slice(&ip.octets()),
            IpAddr::V6(ip) => socket[at..at + 16].copy_from_slice(&ip.octets()),
        }
    }
    socket
}

/// The user in an answer about this socket. An answer about a listening socket of the same port is none: the kernel gives one where the
/// connected socket is gone.
fn user_in(answer: &[u8], asked: [u8; SOCKET_BYTES]) -> io::Result<u32> {
    let malformed = || io::Error::new(io::ErrorKind::InvalidData, "an answer of sock_diag that is none");
    let word = |at: usize| -> Option<[u8; 4]> { answer.get(at..at + 4)?.try_into().ok() };
    let kind = answer.get(4..6).and_then(|kind| kind.try_into().ok()).map(u16::from_ne_bytes);
    match kind {
        Some(ERROR) => {
            let errno = word(HEADER_BYTES).map(i32::from_ne_bytes).ok_or_else(malformed)?;
            Err(io::Error::from_raw_os_error(errno.saturating_neg()))
        }
        Some(BY_FAMILY) if answer.len() >= ANSWER_BYTES => {
            let is_connected = answer[STATE_AT] == ESTABLISHED;
            if !is_connected || answer[SOCKET_AT..][..INTERFACE_AT] != asked[..INTERFACE_AT] {
                return Err(io::ErrorKind::NotConnected.into());
            }
            word(USER_AT).map(u32::from_ne_bytes).ok_or_else(malformed)
        }
        _ => Err(malformed()),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn own_user() -> u32 {
        rustix::process::geteuid().as_raw()
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
        let asked = socket_bytes(addresses.0, addresses.1);
        let mut answer = vec![0; ANSWER_BYTES];
        answer[4..6].copy_from_slice(&BY_FAMILY.to_ne_bytes());
        answer[STATE_AT] = ESTABLISHED;
        answer[SOCKET_AT..][..SOCKET_BYTES].copy_from_slice(&asked);
        answer[USER_AT..].copy_from_slice(&1000_u32.to_ne_bytes());
        assert_eq!(user_in(&answer, asked).unwrap(), 1000);
        for len_bytes in 0..ANSWER_BYTES {
            assert_eq!(user_in(&answer[..len_bytes], asked).unwrap_err().kind(), io::ErrorKind::InvalidData);
        }
        let of_another = socket_bytes(addresses.1, addresses.0);
        assert_eq!(user_in(&answer, of_another).unwrap_err().kind(), io::ErrorKind::NotConnected);
        let mut refused = vec![0; HEADER_BYTES + 4];
        refused[4..6].copy_from_slice(&ERROR.to_ne_bytes());
        refused[HEADER_BYTES..].copy_from_slice(&(-13_i32).to_ne_bytes());
        assert_eq!(user_in(&refused, asked).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    }
}
