use std::{
    net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, getsockname, listen, socket_with};

use super::*;
use crate::{AcceptOptions, Address, ConnectOptions, ListenOptions, QueueOptions, Transport};

/// Longer than any busy machine takes for what answers, and short enough to wait for what does not.
const TIMEOUT: Duration = Duration::from_secs(20);

/// An address that never answers: a listener whose queue of connections is full drops what more comes.
struct Silent {
    address: SocketAddr,
    _sockets: Vec<std::os::fd::OwnedFd>,
}

impl Silent {
    fn new() -> Self {
        let open = || socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::NONBLOCK, None).unwrap();
        let listener = open();
        bind(&listener, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        listen(&listener, 0).unwrap();
        let address = SocketAddr::try_from(getsockname(&listener).unwrap()).unwrap();
        let mut sockets = vec![listener];
        for _ in 0..8 {
            let socket = open();
            let _ = connect(&socket, &address);
            sockets.push(socket);
        }
        Self { address, _sockets: sockets }
    }
}

/// An address without a listener.
fn closed() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

fn connect_to(addresses: &[SocketAddr], timeout: Duration) -> Result<Connection, ConnectError> {
    let peer = Peer::open(Transport::Tcp).unwrap();
    let queue = peer.completion_queue(QueueOptions::default()).unwrap();
    let options = ConnectOptions::default().timeout(timeout).loss_timeout(timeout);
    let addresses = addresses.iter().copied().map(Location::Ip).collect();
    Attempts::new(&peer, &queue, &options).first_of("some-host", addresses)
}

/// Runs `act` while a target answers at the address that it is given.
fn with_target(act: impl FnOnce(SocketAddr)) {
    let peer = Peer::open(Transport::Tcp).unwrap();
    let queue = peer.completion_queue(QueueOptions::default()).unwrap();
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let listener = peer.listen(any, ListenOptions::default()).unwrap();
    let address = listener.local_address().socket_address().unwrap();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut accepted = Vec::new();
            while !is_over.load(Ordering::Acquire) {
                if let Ok(Some(request)) = listener.next_request(Duration::from_millis(10)) {
                    accepted.push(request.accept(&queue, &AcceptOptions::default()).unwrap());
                }
                let _ = queue.poll();
            }
        });
        act(address);
        is_over.store(true, Ordering::Release);
    });
}

#[test]
fn a_silent_address_does_not_hold_up_the_next() {
    let silent = Silent::new();
    with_target(|live| {
        for addresses in
            [&[silent.address, live][..], &[live, silent.address], &[silent.address, silent.address, closed(), live]]
        {
            let connection = connect_to(addresses, TIMEOUT).unwrap();
            assert_eq!(connection.peer_address(), Some(live));
        }
    });
}

#[test]
fn each_address_is_named_with_its_reason() {
    let (silent, closed) = (Silent::new(), closed());
    let error = connect_to(&[silent.address, closed], Duration::from_millis(600)).unwrap_err();
    let ConnectError::NoneReached { host, errors } = &error else { panic!("{error}") };
    assert_eq!(host, "some-host");
    let [ConnectError::TimedOut { address, timeout_ms }, ConnectError::Unreachable { .. }] = &errors[..] else {
        panic!("{error}");
    };
    assert_eq!((address, *timeout_ms), (&silent.address.to_string(), 600), "{error}");
    let text = error.to_string();
    for part in ["no address of some-host was reached", &closed.to_string(), "refused", &silent.address.to_string()] {
        assert!(text.contains(part), "{text}");
    }
}

/// What became of one address is said of that alone.
#[test]
fn the_error_of_one_address_is_its_own() {
    let closed = closed();
    let error = connect_to(&[closed], TIMEOUT).unwrap_err();
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{error}");
    let silent = Silent::new();
    let error = connect_to(&[silent.address], Duration::from_millis(300)).unwrap_err();
    assert!(matches!(error, ConnectError::TimedOut { timeout_ms: 300, .. }), "{error}");
}

#[test]
fn families_take_turns() {
    let four = |port| Location::Ip(SocketAddr::from(([127, 0, 0, 1], port)));
    let six = |port| Location::Ip(SocketAddr::from((Ipv6Addr::LOCALHOST, port)));
    let found = alternating(vec![six(1), six(2), six(3), four(4), four(5)]);
    assert_eq!(found, [six(1), four(4), six(2), four(5), six(3)]);
    assert_eq!(alternating(vec![four(1), six(2), four(3)]), [four(1), six(2), four(3)]);
    assert_eq!(alternating(Vec::new()), []);
}

#[test]
fn mapped_addresses_are_those_of_ipv4() {
    let address: Address = "tcp://[::ffff:127.0.0.1]:7204".parse().unwrap();
    assert_eq!(address.resolve().unwrap(), [Location::Ip(SocketAddr::from(([127, 0, 0, 1], 7204)))]);
    let mapped: SocketAddr = "[::ffff:127.0.0.1]:0".parse().unwrap();
    let peer = Peer::open(Transport::Tcp).unwrap();
    match peer.listen(mapped, ListenOptions::default()) {
        Ok(listener) => {
            let at = listener.local_address().socket_address().unwrap();
            // The queue of the kernel takes it.
            TcpStream::connect(("127.0.0.1", at.port())).unwrap();
        }
        Err(crate::SetupError::Listen { source, .. }) => skip_report::skipped!("no IPv6: {source}"),
        Err(error) => panic!("{error}"),
    }
}
