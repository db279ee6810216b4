//! Clients that do what no well-behaved client does, on real sockets. Each test ends with a well-behaved one being served.

mod support;

use std::{
    io::{self, ErrorKind, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use pmof_access::{
    AcceptOptions, Access, Address, ConnectOptions, DESCRIPTOR_BYTES, Durability, ListenOptions, Listener, Location,
    Outcome, Peer, Place, Progress, QueueOptions, Region, SetupError, Transport, limits::HEADER_BYTES,
};
use pmof_proto::{
    Descriptor,
    frame::{Frame, Opcode},
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use support::{content, pattern};

/// Longer than anything takes that works.
const LONG: Duration = Duration::from_secs(60);

/// What the region of the server holds.
const REGION_BYTES: u64 = 1 << 20;

/// Descriptors that the largest tests need together, both ends being in this process.
const FILES: u64 = 6000;

/// A target that accepts everybody.
struct Server {
    address: SocketAddr,
    listener: Arc<Listener>,
    region: Region,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    fn start(handshake_timeout: Duration) -> Self {
        let peer = Peer::open(Transport::Tcp).unwrap();
        let options = QueueOptions::default().progress(Progress::Thread);
        let queue = peer.completion_queue(options).expect("a queue");
        let region = peer.allocate(REGION_BYTES, Access::all()).expect("memory");
        let options = ListenOptions::default().handshake_timeout(handshake_timeout);
        let listener = Arc::new(peer.listen(SocketAddr::from(([127, 0, 0, 1], 0)), options).expect("a port"));
        let (accepting, stop) = (Arc::clone(&listener), Arc::new(AtomicBool::new(false)));
        let (stopping, answer) = (Arc::clone(&stop), region.descriptor().to_vec());
        let thread = std::thread::spawn(move || {
            let options = AcceptOptions::default().private_data(answer);
            let mut connections = Vec::new();
            while !stopping.load(Ordering::SeqCst) {
                if let Some(request) = accepting.next_request(LONG).expect("there are descriptors left") {
                    connections.push(request.accept(&queue, &options).expect("accepted"));
                    connections.retain(|connection| connection.ended().is_none());
                }
            }
        });
        Self {
            address: listener.local_address().socket_address().unwrap(),
            listener,
            region,
            stop,
            thread: Some(thread),
        }
    }

    /// Does what clients are there for, and checks the result.
    #[track_caller]
    fn serves(&self) {
        let start = Instant::now();
        let peer = Peer::open(Transport::Tcp).unwrap();
        let queue = peer.completion_queue(QueueOptions::default()).expect("a queue");
        let SocketAddr::V4(address) = self.address else { panic!("bound to IPv4") };
        let to = Address {
            transport: Transport::Tcp,
            place: Place::Host { host: address.ip().to_string(), port: address.port() },
        };
        let connection = peer.connect(&to, &queue, &ConnectOptions::default()).expect("connected");
        let remote = connection.remote_region(connection.private_data()).expect("a descriptor");
        let bytes = pattern(5000, u64::from(start.elapsed().subsec_nanos()));
        connection.write(&remote, 100, &bytes).expect("posted");
        let ticket = connection.flush(&remote, .., Durability::Visible).expect("posted");
        let done = queue.wait_for(connection.id(), ticket, LONG).expect("an outcome in time");
        assert!(matches!(done.outcome, Ok(Outcome::Flushed(_))), "{:?}", done.outcome);
        assert!(content(&self.region, 100, bytes.len()) == bytes);
        assert!(start.elapsed() < LONG);
    }

    fn raw(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("it listens");
        stream.set_read_timeout(Some(LONG)).expect("a time limit");
        stream
    }

    /// An established connection, made by hand, and the region's descriptor.
    fn established(&self) -> (TcpStream, Descriptor) {
        let mut stream = self.raw();
        stream.write_all(&hello().encode()).expect("sent");
        let mut answer = [0; HEADER_BYTES + DESCRIPTOR_BYTES];
        stream.read_exact(&mut answer).expect("an answer");
        let frame = Frame::decode(answer.first_chunk().expect("long enough")).expect("a frame");
        assert_eq!((frame.opcode, frame.code), (Opcode::Welcome, 0));
        (stream, Descriptor::decode(&answer[HEADER_BYTES..]).expect("a descriptor"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        self.listener.interrupt();
        if let Some(thread) = self.thread.take() {
            assert!(thread.join().is_ok() || std::thread::panicking(), "the server panicked");
        }
    }
}

/// The request of a well-behaved client, from the protocol's tables.
fn hello() -> Frame {
    let mut frame = Frame::new(Opcode::Hello, 1 | 1 << 16);
    // A payload checksum is there; that of no bytes is 0.
    frame.flags = 2;
    frame.immediate = u32::from_le_bytes(*b"PMOF");
    frame.key[8..12].copy_from_slice(&65536_u32.to_le_bytes());
    frame.key[12..].copy_from_slice(&64_u32.to_le_bytes());
    frame.offset = 1 << 30;
    frame.operand = 1024;
    frame
}

/// Reads until the stream ends; what came.
#[track_caller]
fn until_closed(stream: &mut TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        match stream.read(&mut chunk) {
            Ok(0) => return all,
            Ok(count) => all.extend_from_slice(&chunk[..count]),
            Err(error) if is_timeout(&error) => panic!("the connection was left open"),
            Err(_) => return all,
        }
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// Memory of this process, in bytes.
fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages: usize = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("a number");
    pages * rustix::param::page_size()
}

/// Raises the limit of open files; false, with a word, where this is not allowed.
fn many_files() -> bool {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_none_or(|current| current >= FILES) {
        return true;
    }
    let wanted = maximum.map_or(FILES, |maximum| maximum.min(FILES));
    let raised = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum }).is_ok();
    if !raised || wanted < FILES {
        skip_report::skipped!("this needs {FILES} open files, the limit is {wanted} (ulimit -Hn)");
    }
    raised && wanted >= FILES
}

#[test]
fn what_is_no_request_is_dropped() {
    let server = Server::start(LONG);
    let good = hello();
    let encoded = good.encode();
    let changed = |change: &dyn Fn(&mut Frame)| {
        let mut frame = good;
        change(&mut frame);
        frame.encode().to_vec()
    };
    let mut bad_checksum = encoded;
    bad_checksum[20] ^= 4;
    let cases = [
        ("garbage", pattern(4096, 1)),
        ("zeros", vec![0; 64]),
        ("a web browser", b"GET / HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\nUser-Agent: someone\r\n\r\n".to_vec()),
        ("a wrong checksum", bad_checksum.to_vec()),
        ("no magic number", changed(&|frame| frame.immediate = 0)),
        ("an answer", changed(&|frame| frame.opcode = Opcode::Welcome)),
        ("an operation", Frame::new(Opcode::Read, 1).encode().to_vec()),
        ("too much private data", changed(&|frame| frame.length = 57)),
        ("endless private data", changed(&|frame| frame.length = u64::MAX)),
        ("no checksum of the private data", changed(&|frame| frame.flags = 0)),
        ("reserved bits", changed(&|frame| frame.flags |= 0x80)),
        ("a wrong checksum of the private data", changed(&|frame| frame.payload_crc = 1)),
    ];
    for (name, bytes) in cases {
        let mut stream = server.raw();
        stream.write_all(&bytes).expect("sent");
        let answer = until_closed(&mut stream);
        assert!(
            answer.is_empty(),
            "{name}: nothing is sent before authentication, but there came {} bytes",
            answer.len()
        );
        server.serves();
    }
}

#[test]
fn versions_that_nobody_speaks_are_refused_by_name() {
    let server = Server::start(LONG);
    for (oldest, newest) in [(2, 9), (999, 1000), (0, 0), (5, 1)] {
        let mut stream = server.raw();
        let mut frame = hello();
        frame.sequence = oldest | newest << 16;
        stream.write_all(&frame.encode()).expect("sent");
        let answer = until_closed(&mut stream);
        let frame = Frame::decode(answer.first_chunk().expect("a frame")).expect("a frame");
        assert_eq!((frame.opcode, frame.code), (Opcode::Welcome, 12), "{oldest} to {newest}");
        assert_eq!(answer.len(), HEADER_BYTES, "no descriptor for {oldest} to {newest}");
        server.serves();
    }
}

/// Makes the offending frame, knowing the region.
type MakeFrame<'a> = &'a dyn Fn(&Descriptor) -> Frame;

#[test]
fn violations_after_the_handshake_end_the_connection() {
    let server = Server::start(LONG);
    let new = |opcode, sequence| Frame::new(opcode, sequence);
    let cases: [(&str, MakeFrame<'_>); 12] = [
        ("an endless write", &|region| Frame { key: region.key.0, length: u64::MAX, ..new(Opcode::Write, 1) }),
        ("a write beyond the region", &|region| Frame {
            key: region.key.0,
            offset: REGION_BYTES,
            length: 1,
            ..new(Opcode::Write, 1)
        }),
        ("an endless read", &|region| Frame { key: region.key.0, length: u64::MAX, ..new(Opcode::Read, 1) }),
        ("an endless message", &|_| Frame { length: u64::MAX, ..new(Opcode::Send, 1) }),
        ("a forged key", &|_| Frame { key: [9; 16], length: 8, ..new(Opcode::Read, 1) }),
        ("a sequence number left out", &|region| Frame { key: region.key.0, ..new(Opcode::Read, 2) }),
        ("an unknown level", &|region| Frame { key: region.key.0, code: 9, ..new(Opcode::Flush, 1) }),
        ("a misaligned number", &|region| Frame { key: region.key.0, offset: 4, ..new(Opcode::FetchAndAdd, 1) }),
        ("a reply to nothing", &|_| new(Opcode::Reply, 1)),
        ("a read reply to nothing", &|_| Frame { length: 1 << 40, ..new(Opcode::ReadReply, 1) }),
        ("credit for nothing", &|_| Frame { operand: 1, ..new(Opcode::Credit, 0) }),
        ("a second handshake", &|_| hello()),
    ];
    for (name, make) in cases {
        let (mut stream, region) = server.established();
        stream.write_all(&make(&region).encode()).expect("sent");
        let answer = until_closed(&mut stream);
        let frame = Frame::decode(answer.first_chunk().expect("last words")).expect("a frame");
        assert!(frame.opcode == Opcode::Reply && frame.code != 0, "{name}: {frame:?}");
        server.serves();
    }
}

/// Brings a connection to some point of its life.
type Reach = fn(&Server) -> TcpStream;

const STAGES: [(&str, Reach); 6] = [
    ("at once", Server::raw),
    ("within the request", |server| {
        let mut stream = server.raw();
        stream.write_all(&hello().encode()[..40]).expect("sent");
        stream
    }),
    ("after the request", |server| {
        let mut stream = server.raw();
        stream.write_all(&hello().encode()).expect("sent");
        stream
    }),
    ("when it is established", |server| server.established().0),
    ("within a header", |server| {
        let (mut stream, region) = server.established();
        let frame = Frame { key: region.key.0, length: 8, ..Frame::new(Opcode::Read, 1) };
        stream.write_all(&frame.encode()[..63]).expect("sent");
        stream
    }),
    ("within a payload", |server| {
        let (mut stream, region) = server.established();
        let frame = Frame { key: region.key.0, offset: 90_000, length: 50_000, ..Frame::new(Opcode::Write, 1) };
        stream.write_all(&frame.encode()).expect("sent");
        stream.write_all(&[0xAA; 20_000]).expect("sent");
        stream
    }),
];

#[test]
fn a_client_may_leave_at_any_point() {
    let server = Server::start(LONG);
    for (name, reach) in STAGES {
        // Half-closed: the server closes its half as well.
        let mut stream = reach(&server);
        stream.shutdown(Shutdown::Write).expect("half closed");
        until_closed(&mut stream);
        server.serves();

        // Closed.
        drop(reach(&server));
        server.serves();

        // Reset.
        let stream = reach(&server);
        rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).expect(name);
        drop(stream);
        server.serves();
    }
}

#[test]
fn a_client_that_never_gets_to_the_point_is_dropped() {
    const LIMIT: Duration = Duration::from_millis(400);
    const PACE: Duration = Duration::from_millis(40);
    let server = Server::start(LIMIT);
    let mut silent = server.raw();
    let mut slow = server.raw();
    slow.set_read_timeout(Some(PACE)).expect("a time limit");
    let start = Instant::now();
    // One byte of a good request after the other, in a time that would last for all of it.
    let is_dropped = hello().encode().into_iter().any(|byte| {
        let is_sent = slow.write_all(&[byte]).is_ok();
        server.serves();
        !is_sent
            || match slow.read(&mut [0; 64]) {
                Err(error) if is_timeout(&error) => false,
                Ok(0) | Err(_) => true,
                Ok(count) => panic!("{count} bytes of an answer to a request that took so long"),
            }
    });
    let took = start.elapsed();
    assert!(is_dropped && took + PACE >= LIMIT, "{is_dropped} after {took:?}");
    until_closed(&mut silent);
    server.serves();
}

#[test]
fn a_thousand_idle_connections_cost_little() {
    const CONNECTIONS: usize = 1000;
    if !many_files() {
        return;
    }
    let server = Server::start(LONG);
    let before = resident_bytes();
    let idle: Vec<_> = (0..CONNECTIONS).map(|_| server.established().0).collect();
    let each = resident_bytes().saturating_sub(before) / CONNECTIONS;
    eprintln!("{CONNECTIONS} idle connections: {} KiB of memory each (other tests run at the same time)", each >> 10);
    assert!(each < 256 << 10, "{each} bytes per idle connection");
    for _ in 0..20 {
        server.serves();
    }
    drop(idle);
    server.serves();
}

#[test]
fn silent_clients_shut_nobody_out() {
    /// As many handshakes as a listener keeps under way, and some.
    const CONNECTIONS: usize = 1024 + 50;
    if !many_files() {
        return;
    }
    let server = Server::start(Duration::from_secs(600));
    let mut silent: Vec<_> = (0..CONNECTIONS).map(|_| server.raw()).collect();
    server.serves();
    // The oldest made room; the newest is still there.
    until_closed(&mut silent[0]);
    let newest = silent.last_mut().expect("there are some");
    newest.set_read_timeout(Some(Duration::from_millis(50))).expect("a time limit");
    let error = newest.read(&mut [0]).expect_err("nothing is said to it");
    assert!(is_timeout(&error), "{error}");
    newest.write_all(&hello().encode()).expect("sent");
    newest.set_read_timeout(Some(LONG)).expect("a time limit");
    newest.read_exact(&mut [0; HEADER_BYTES]).expect("served in the end");
    server.serves();
}

#[test]
fn a_client_that_never_reads_its_replies_is_not_listened_to() {
    /// More than the sockets of both sides hold.
    const TAKEN_MAX_BYTES: usize = 64 << 20;
    let server = Server::start(LONG);
    for len_bytes in [8, 4096, REGION_BYTES] {
        let (mut stream, region) = server.established();
        stream.set_write_timeout(Some(Duration::from_millis(300))).expect("a time limit");
        let before = resident_bytes();
        let (mut sequence, mut taken) = (0, 0);
        let error = loop {
            let requests: Vec<u8> = (0..256)
                .flat_map(|_| {
                    sequence += 1;
                    Frame { key: region.key.0, length: len_bytes, ..Frame::new(Opcode::Read, sequence) }.encode()
                })
                .collect();
            match stream.write(&requests) {
                Ok(count) => taken += count,
                Err(error) => break error,
            }
            assert!(taken < TAKEN_MAX_BYTES, "the server takes in more and more requests");
        };
        assert!(is_timeout(&error), "the server stops reading, it does not hang up: {error}");
        let grown = resident_bytes().saturating_sub(before);
        assert!(grown < TAKEN_MAX_BYTES, "{grown} bytes more are in use");
        server.serves();
    }
}

#[test]
fn listening_is_refused_where_it_must_be() {
    let server = Server::start(LONG);
    let peer = Peer::open(Transport::Tcp).unwrap();
    let taken = peer.listen(server.address, ListenOptions::default()).expect_err("the port is taken");
    assert!(
        matches!(&taken, SetupError::Listen { address, .. } if *address == Location::from(server.address)),
        "{taken}"
    );
    for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:7204", "[2001:db8::1]:7204", "255.255.255.255:0"] {
        let address: SocketAddr = address.parse().expect("an address");
        let refused = peer.listen(address, ListenOptions::default()).expect_err("others could reach it");
        assert!(matches!(refused, SetupError::NotLoopback { address: found } if found == address), "{refused}");
    }
    server.serves();
}
