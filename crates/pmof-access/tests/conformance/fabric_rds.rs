//! RDS, from an address of this machine to itself.

use std::{
    env,
    io::{Read as _, Write as _},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    time::{Duration, Instant},
};

use pmof_access::{Access, ConnectError, ConnectOptions, Location, Peer, QueueOptions, SetupError, Transport};
use pmof_rds::{RdsError, Socket};

use crate::{
    fabric::Fabric,
    pair::{LONG, Setup, join, listen_options, region, threaded},
};

/// The address that both sides have.
fn address() -> IpAddr {
    match env::var("PMOF_RDS_ADDRESS") {
        Ok(text) => text.parse().unwrap_or_else(|error| panic!("PMOF_RDS_ADDRESS is no address: {error}")),
        Err(_) => Ipv4Addr::LOCALHOST.into(),
    }
}

/// Reliable datagrams of the kernel.
pub(crate) struct Rds {
    start: Instant,
}

impl Fabric for Rds {
    const IS_VIRTUAL: bool = false;
    // Credit and answers of the transport show too.
    const SHOWS_OUTCOMES_ALONE: bool = false;

    fn is_there() -> bool {
        match Peer::open(Transport::Rds) {
            Ok(_) => true,
            Err(error @ SetupError::Rds(RdsError::NoModule { .. })) => {
                let error = pmof_mem::causes(&error).to_string();
                assert!(env::var_os("PMOF_RDS_ADDRESS").is_none(), "{error}");
                skip_report::skipped!("rds: {error}");
                false
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn new() -> Self {
        Self { start: Instant::now() }
    }

    fn peer(&self) -> Peer {
        Peer::open(Transport::Rds).unwrap()
    }

    fn listen_address(&self) -> Location {
        SocketAddr::new(address(), 0).into()
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn breakable(&self, target: &Location) -> (Location, Box<dyn FnOnce() + '_>) {
        // The connection by which the sides get acquainted: its end is how a dead process shows.
        crate::relay::relay(target)
    }
}

/// Bytes of a greeting, and where its port is.
const GREETING_BYTES: usize = 20;

#[test]
fn addresses_that_have_no_rds_are_refused_by_name() {
    if !Rds::is_there() {
        return;
    }
    let peer = Peer::open(Transport::Rds).unwrap();
    let refused = |address: &str| {
        let at: SocketAddr = address.parse().unwrap();
        peer.listen(at, listen_options()).map(drop).expect_err("it is refused")
    };
    // Of a network for documentation.
    let error = refused("192.0.2.1:0");
    assert!(matches!(error, SetupError::Rds(RdsError::NoDevice { .. })), "{error}");
    let error = refused("[::1]:0");
    assert!(matches!(error, SetupError::Rds(RdsError::Ipv6 { .. })), "{error}");
    let queue = peer.completion_queue(QueueOptions::default()).unwrap();
    let error = peer.connect(&"rds://[::1]:1".parse().unwrap(), &queue, &ConnectOptions::default()).err();
    assert!(matches!(error, Some(ConnectError::Setup(SetupError::Rds(RdsError::Ipv6 { .. })))), "{error:?}");
    let nowhere = format!("rds://{}:1", address()).parse().unwrap();
    let error = peer.connect(&nowhere, &queue, &ConnectOptions::default()).err();
    assert!(matches!(error, Some(ConnectError::Unreachable { .. })), "{error:?}");
}

/// What connects and does not greet as pmof does is dropped; others are served on.
#[test]
fn strangers_are_dropped() {
    if !Rds::is_there() {
        return;
    }
    let (target, initiator) = (Rds::new().peer(), Rds::new().peer());
    let (queue, serving) =
        (initiator.completion_queue(threaded()).unwrap(), target.completion_queue(threaded()).unwrap());
    let listener = target.listen(SocketAddr::new(address(), 0), listen_options()).unwrap();
    let to = listener.local_address().socket_address().unwrap();
    let mut own = TcpStream::connect(to).unwrap();
    let mut greeting = [0; GREETING_BYTES];
    assert!(listener.next_request(Duration::from_millis(20)).unwrap().is_none(), "nobody has greeted");
    own.read_exact(&mut greeting).unwrap();
    // Of the magic, the version, and what is zero.
    for at in [0, 4, 19] {
        let mut client = TcpStream::connect(to).unwrap();
        assert!(listener.next_request(Duration::from_millis(20)).unwrap().is_none(), "nobody has greeted");
        let mut wrong = greeting;
        wrong[at] ^= 0x7F;
        client.write_all(&wrong).unwrap();
        let start = Instant::now();
        while !matches!(client.read(&mut [0; 64]), Ok(0) | Err(_)) {
            assert!(listener.next_request(Duration::from_millis(1)).unwrap().is_none(), "byte {at}");
            assert!(start.elapsed() < LONG, "byte {at}");
        }
    }
    let (here, _there) = join(&initiator, &queue, &listener, &serving, &Setup::default());
    assert!(here.is_established());
}

/// Datagrams of those who are not the other side change nothing, whatever they say and however long they are.
#[test]
fn datagrams_of_others_change_nothing() {
    if !Rds::is_there() {
        return;
    }
    let fabric = Rds::new();
    let (target, initiator) = (fabric.peer(), fabric.peer());
    let (queue, serving) =
        (initiator.completion_queue(threaded()).unwrap(), target.completion_queue(threaded()).unwrap());
    let listener = target.listen(SocketAddr::new(address(), 0), listen_options()).unwrap();
    let (here, _there) = join(&initiator, &queue, &listener, &serving, &Setup::default());
    let (memory, remote) = region(&target, 4096, Access::all());
    let stray = Socket::bind(SocketAddr::new(address(), 0)).unwrap();
    // Every port of this machine gets an end of the stream, nonsense, and more than a datagram may have.
    let ports = sockets_of_rds();
    assert!(ports.len() >= 3, "both sides and this one: {ports:?}");
    for round in 0..50_u8 {
        for port in &ports {
            let SocketAddr::V4(to) = SocketAddr::new(address(), *port) else { panic!("RDS is IPv4 here") };
            for message in [&[0, 0, 0, 0, 2, 0, 0, 0][..], &[7; 9], &[0; 9000]] {
                // A full buffer is none of this test's business.
                let _ = stray.send(to, message);
            }
        }
        let ticket = here.write(&remote, u64::from(round) * 8, &[round; 8]).unwrap();
        queue.wait_for(here.id(), ticket, LONG).expect("in time").outcome.unwrap();
    }
    let mut bytes = [0; 400];
    memory.read(0, &mut bytes).unwrap();
    assert!(bytes.chunks(8).zip(0_u8..).all(|(chunk, round)| chunk == [round; 8]));
}

/// Ports of the RDS sockets of this machine: those that cannot be bound.
fn sockets_of_rds() -> Vec<u16> {
    let taken = |port: &u16| matches!(Socket::bind(SocketAddr::new(address(), *port)), Err(RdsError::PortInUse { .. }));
    (1..=u16::MAX).filter(taken).collect()
}

/// A server that is no pmof is told apart.
#[test]
fn a_server_that_is_no_pmof_is_named() {
    if !Rds::is_there() {
        return;
    }
    let server = TcpListener::bind((address(), 0)).unwrap();
    let to = format!("rds://{}", server.local_addr().unwrap()).parse().unwrap();
    let speaking = std::thread::spawn(move || {
        let (mut stream, _) = server.accept().unwrap();
        stream.write_all(&[b'x'; GREETING_BYTES]).unwrap();
        // Until the initiator has gone: one that closes before it has read all that came resets the connection, and what it said may be lost.
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let peer = Rds::new().peer();
    let queue = peer.completion_queue(threaded()).unwrap();
    let error = peer.connect(&to, &queue, &ConnectOptions::default()).expect_err("it is no pmof");
    let text = format!("{error} {:?}", std::error::Error::source(&error).map(ToString::to_string));
    assert!(text.contains("does not greet as pmof over RDS does"), "{text}");
    speaking.join().unwrap();
}
