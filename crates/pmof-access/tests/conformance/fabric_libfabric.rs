//! libfabric, on the loopback interface.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::Arc,
    time::{Duration, Instant},
};

use pmof_access::{
    Access, ConnectError, ConnectionError, Durability, FabricProvider, Location, Method, OperationError, Peer,
    QueueOptions, Refusal, Region, RemoteRegion, SetupError, Transport,
};
use pmof_mem::Memory;
use pmof_proto::{Descriptor, DirectAccess, RegionKey};

use crate::{
    fabric::Fabric,
    pair::{LONG, Pair, Setup, join, listen_options, pair, region, threaded},
};

/// Whether this machine's library has the provider.
fn has(provider: FabricProvider) -> bool {
    is_opened(provider, Peer::open(Transport::Fabric(provider)))
}

fn is_opened(provider: FabricProvider, opened: Result<Peer, SetupError>) -> bool {
    match opened {
        Ok(_) => true,
        Err(error @ SetupError::Fabric(_)) => {
            skip_report::skipped!("{}: {error}", provider.scheme());
            false
        }
        Err(error) => panic!("{error}"),
    }
}

/// What an initiator is told where the target's provider does not do it: not which of its checks failed.
fn by_provider(expected: Refusal) -> Refusal {
    match expected {
        Refusal::UnknownRegion | Refusal::NoRight | Refusal::OutOfBounds => Refusal::DeviceRefused,
        other => other,
    }
}

/// A key that there is not.
fn forge(descriptor: &mut Descriptor) {
    descriptor.key = RegionKey([7; 16]);
    if let DirectAccess::Rdma { remote_key, .. } = &mut descriptor.direct {
        *remote_key ^= 0x7FFF_FF00;
    }
}

/// One end of the test bed's wire.
fn end(name: &str) -> std::net::IpAddr {
    let text = std::env::var(name)
        .unwrap_or_else(|_| panic!("{name} names no end of a wire; run this in the test bed's machine"));
    text.parse().unwrap_or_else(|error| panic!("{name} is no address: {error}"))
}

/// Endpoints of the loopback interface.
macro_rules! loopback {
    ($provider:ident) => {
        fn peer(&self) -> Peer {
            Peer::open(Transport::Fabric(FabricProvider::$provider)).unwrap()
        }

        fn is_there() -> bool {
            has(FabricProvider::$provider)
        }
    };
}

/// Endpoints of devices at the two ends of a wire.
macro_rules! wire {
    ($provider:ident) => {
        fn peer(&self) -> Peer {
            Peer::open_at(Transport::Fabric(FabricProvider::$provider), end("PMOF_WIRE_A")).unwrap()
        }

        fn target(&self) -> Peer {
            Peer::open_at(Transport::Fabric(FabricProvider::$provider), end("PMOF_WIRE_B")).unwrap()
        }

        fn listen_address(&self) -> Location {
            SocketAddr::new(end("PMOF_WIRE_B"), 0).into()
        }

        fn is_there() -> bool {
            let provider = FabricProvider::$provider;
            is_opened(provider, Peer::open_at(Transport::Fabric(provider), end("PMOF_WIRE_A")))
        }
    };
}

macro_rules! provider {
    ($($fabric:ident: $provider:ident at $place:ident $connections:literal),+) => {
        $(pub(crate) struct $fabric {
            start: Instant,
        }

        impl Fabric for $fabric {
            const IS_VIRTUAL: bool = false;
            const SERVED_BY_CPU: bool = false;
            const BINDS_DIRECT_WAY: bool = false;
            const ACKNOWLEDGES_EACH: bool = true;
            const CONNECTIONS: u64 = $connections;

            $place! { $provider }

            fn new() -> Self {
                Self { start: Instant::now() }
            }

            fn forge_key(descriptor: &mut Descriptor) {
                forge(descriptor);
            }

            fn refusal(expected: Refusal) -> Refusal {
                by_provider(expected)
            }

            fn is_refused_there(error: &OperationError, expected: Refusal) -> bool {
                let refusals = [expected, by_provider(expected)];
                match error {
                    OperationError::Refused { refusal, .. } => refusals.contains(refusal),
                    // A provider that refuses breaks the connection, or says nothing at all.
                    OperationError::ConnectionEnded(ConnectionError::Lost { .. }) => true,
                    _ => false,
                }
            }

            fn is_refused_here(why: &ConnectionError, expected: Refusal) -> bool {
                match why {
                    // The provider tells the target nothing: the initiator ends the connection.
                    ConnectionError::Lost { .. } => by_provider(expected) == Refusal::DeviceRefused,
                    why => [expected, by_provider(expected)]
                        .iter()
                        .any(|refusal| *why == ConnectionError::RefusedHere(*refusal)),
                }
            }

            fn now(&self) -> Duration {
                self.start.elapsed()
            }

            fn breakable(&self, target: &Location) -> (Location, Box<dyn FnOnce() + '_>) {
                // The connection by which the sides get acquainted: its end is how a dead process shows.
                crate::relay::relay(target)
            }
        })+
    };
}

provider! {
    FabricTcp: Tcp at loopback 64, FabricNet: Net at loopback 64, FabricTcpMsg: TcpConnected at loopback 64
}

// The layer `ofi_rxm` takes many MiB of each endpoint.
provider! { FabricVerbs: Verbs at wire 8, FabricVerbsMsg: VerbsConnected at wire 64 }

/// Other errors than those that a missing library or provider gives.
#[test]
fn what_is_not_used_says_why() {
    let error = Peer::open(Transport::Fabric(FabricProvider::Sockets)).expect_err("it is refused").to_string();
    assert!(error.contains("10 ms") || error.contains("apt install libfabric1"), "{error}");
    let error = Peer::open(Transport::Fabric(FabricProvider::Shm)).expect_err("it is refused").to_string();
    assert!(error.contains("use shm://"), "{error}");
    if has(FabricProvider::Tcp) {
        let error = Peer::open(Transport::Fabric(FabricProvider::Cxi)).expect_err("there is none").to_string();
        assert!(error.contains("has no cxi with"), "{error}");
        let peer = Peer::open(Transport::Fabric(FabricProvider::Tcp)).unwrap();
        let queue = peer.completion_queue(QueueOptions::default()).unwrap();
        let nowhere = "fabric+tcp://127.0.0.1:1".parse().unwrap();
        let error = peer.connect(&nowhere, &queue, &pmof_access::ConnectOptions::default()).err();
        assert!(matches!(error, Some(ConnectError::Unreachable { .. })), "{error:?}");
    }
}

/// The control of the suite: what it writes and reads goes past the target's protocol engine, and flushes are messages to it.
#[test]
fn regions_are_reached_directly_and_flushed_by_message() {
    if !has(FabricProvider::Tcp) {
        return;
    }
    let pair = FabricTcp::new().pair();
    let (memory, remote) = region(&pair.target.peer, 4096, Access::all());
    assert_eq!(memory.why_not_direct(), None);
    let descriptor = Descriptor::decode(&memory.descriptor()).unwrap();
    assert!(matches!(descriptor.direct, DirectAccess::Rdma { .. }), "{descriptor:?}");
    let (method, _) = pair.initiator.connection.flush_method(&remote, Durability::Visible).unwrap();
    assert_eq!(method, Method::SendAfterWrite);
}

/// A domain has addresses of one family.
#[test]
fn the_other_family_is_refused_with_the_reason() {
    if !has(FabricProvider::Tcp) {
        return;
    }
    let peer = FabricTcp::new().peer();
    let here = SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], 0));
    let error = peer.listen(here, listen_options()).expect_err("it is refused");
    assert!(
        matches!(&error, SetupError::Listen { source, .. } if source.to_string().contains("for IPv4")),
        "{error:?}"
    );
    let queue = peer.completion_queue(threaded()).unwrap();
    let to = "fabric+tcp://[::1]:1".parse().unwrap();
    let error = peer.connect(&to, &queue, &pmof_access::ConnectOptions::default()).expect_err("it is refused");
    assert!(matches!(&error, ConnectError::Unreachable { why, .. } if why.contains("for IPv4")), "{error:?}");
}

/// A peer that is opened at, or towards, an address of IPv6 has such addresses.
#[test]
fn ipv6_connects() {
    let here = SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], 0));
    if TcpListener::bind(here).is_err() {
        skip_report::skipped!("this machine has no IPv6");
        return;
    }
    for provider in [FabricProvider::Tcp, FabricProvider::TcpConnected] {
        if !has(provider) {
            continue;
        }
        let target = Peer::open_at(Transport::Fabric(provider), here.ip()).unwrap();
        assert_eq!(target.local_address(), Some(here.ip()));
        let serving = target.completion_queue(threaded()).unwrap();
        let listener = target.listen(here, listen_options()).unwrap();
        let address = format!("{}://{}", provider.scheme(), listener.local_address()).parse().unwrap();
        let initiator = Peer::towards(&address, None).unwrap();
        assert_eq!(initiator.local_address(), Some(here.ip()));
        let queue = initiator.completion_queue(threaded()).unwrap();
        let (connection, _there) = join(&initiator, &queue, &listener, &serving, &Setup::default());
        let (memory, remote) = region(&target, 4096, Access::all());
        let ticket = connection.write(&remote, 8, b"six").unwrap();
        queue.wait_for(connection.id(), ticket, LONG).unwrap().outcome.unwrap();
        let mut seen = [0; 3];
        memory.read(8, &mut seen).unwrap();
        assert_eq!(&seen, b"six");
    }
}

/// A host's name that stands for nothing.
#[test]
fn a_name_without_addresses_is_named() {
    let address = "fabric+tcp://nowhere.invalid:7000".parse().unwrap();
    let error = Peer::towards(&address, None).expect_err("there is no such host");
    assert!(matches!(&error, ConnectError::Resolve { host, .. } if host.contains("nowhere.invalid")), "{error:?}");
}

/// Who finds the target's endpoint without having greeted is turned down; and who greeted for datagram endpoints is told.
#[test]
fn kinds_of_endpoints_do_not_mix() {
    if !has(FabricProvider::TcpConnected) || !has(FabricProvider::Tcp) {
        return;
    }
    let target = FabricTcpMsg::new().peer();
    let initiator = Peer::open_at(Transport::Fabric(FabricProvider::Tcp), [127, 0, 0, 1].into()).unwrap();
    let queue = initiator.completion_queue(threaded()).unwrap();
    let listener = target.listen(FabricTcpMsg::new().listen_address(), listen_options()).unwrap();
    let to = format!("fabric+tcp://{}", listener.local_address()).parse().unwrap();
    let error = std::thread::scope(|scope| {
        let connecting = scope.spawn(|| initiator.connect(&to, &queue, &pmof_access::ConnectOptions::default()));
        while !connecting.is_finished() {
            assert!(listener.next_request(Duration::from_millis(5)).unwrap().is_none());
        }
        connecting.join().unwrap().expect_err("they do not understand each other")
    });
    assert!(matches!(&error, ConnectError::OtherTransport { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("over fabric+tcp-msg, not fabric+tcp: use fabric+tcp-msg://127.0.0.1:"), "{text}");
}

/// A side that has closed in order may drive no more: the other one does not wait until its provider has taken the last message, and
/// lets go of memory.
#[test]
fn a_side_that_has_closed_is_not_waited_for() {
    for provider in [FabricProvider::Tcp, FabricProvider::TcpConnected, FabricProvider::Net] {
        if !has(provider) {
            continue;
        }
        let peer = || Peer::open_at(Transport::Fabric(provider), [127, 0, 0, 1].into()).unwrap();
        let (initiator, target) = (peer(), peer());
        let queue = initiator.completion_queue(QueueOptions::default()).unwrap();
        let serving = target.completion_queue(threaded()).unwrap();
        let listener = target.listen(SocketAddr::from(([127, 0, 0, 1], 0)), listen_options()).unwrap();
        let (here, there) = join(&initiator, &queue, &listener, &serving, &Setup::default());
        here.disconnect();
        let start = Instant::now();
        assert!(there.close(LONG), "{provider:?}");
        assert!(start.elapsed() < Duration::from_millis(700), "{provider:?}: {:?}", start.elapsed());
    }
}

/// Who greets otherwise is dropped; the listener serves the next one.
#[test]
fn strange_greetings_harm_nobody() {
    if !has(FabricProvider::Tcp) {
        return;
    }
    let fabric = FabricTcp::new();
    let (initiator, target) = (fabric.peer(), fabric.peer());
    let (queue, serving) =
        (initiator.completion_queue(threaded()).unwrap(), target.completion_queue(threaded()).unwrap());
    let listener = target.listen(fabric.listen_address(), listen_options()).unwrap();
    let address = listener.local_address().socket_address().unwrap();
    let mut own = TcpStream::connect(address).unwrap();
    // What the listener says itself, but for one byte: of the magic, of the name's length, of the name's family.
    let mut greeting = [0; 304];
    assert!(listener.next_request(Duration::from_millis(20)).unwrap().is_none(), "nobody has greeted");
    own.read_exact(&mut greeting).unwrap();
    for at in [0, 13, 48] {
        let mut client = TcpStream::connect(address).unwrap();
        assert!(listener.next_request(Duration::from_millis(20)).unwrap().is_none(), "nobody has greeted");
        let mut wrong = greeting;
        wrong[at] ^= 0x7F;
        client.write_all(&wrong).unwrap();
        let start = Instant::now();
        while !matches!(client.read(&mut [0; 512]), Ok(0) | Err(_)) {
            assert!(listener.next_request(Duration::from_millis(1)).unwrap().is_none(), "byte {at}");
            assert!(start.elapsed() < LONG, "byte {at}");
        }
    }
    let (here, _there) = join(&initiator, &queue, &listener, &serving, &Setup::default());
    assert!(here.is_established());
}

/// A server that is no pmof is told apart.
#[test]
fn a_server_that_is_no_pmof_is_named() {
    if !has(FabricProvider::Tcp) {
        return;
    }
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("fabric+tcp://{}", server.local_addr().unwrap()).parse().unwrap();
    let speaking = std::thread::spawn(move || {
        let (mut stream, _) = server.accept().unwrap();
        stream.write_all(&[b'x'; 304]).unwrap();
        // Until the initiator has gone: one that closes before it has read all that came resets the connection, and what it said may be lost.
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let peer = FabricTcp::new().peer();
    let queue = peer.completion_queue(threaded()).unwrap();
    let error = peer.connect(&address, &queue, &pmof_access::ConnectOptions::default()).expect_err("it is no pmof");
    let text = format!("{error} {:?}", std::error::Error::source(&error).map(ToString::to_string));
    assert!(text.contains("does not greet as pmof over libfabric does"), "{text}");
    speaking.join().unwrap();
}

/// Bytes of a write that takes many turns of the target's: far more than the sockets' buffers hold.
const LONG_WRITE_BYTES: u64 = 64 << 20;

/// A write of which the target has received a part, and whose rest is on its way; the initiator is driven by a thread of its own.
struct UnderWay {
    pair: Pair,
    memory: Region,
}

impl UnderWay {
    fn begin() -> Self {
        Self::begin_with(|pair| region(&pair.target.peer, LONG_WRITE_BYTES, Access::all()).0)
    }

    fn begin_with(register: impl FnOnce(&Pair) -> Region) -> Self {
        let fabric = FabricTcp::new();
        // The target receives when it is polled, and not otherwise.
        let setup = Setup { initiator_queue: threaded(), target_queue: QueueOptions::default(), ..Setup::default() };
        let pair = pair((fabric.peer(), fabric.peer()), fabric.listen_address(), &setup);
        let memory = register(&pair);
        let remote = RemoteRegion::from_descriptor(&memory.descriptor()).unwrap();
        pair.initiator.connection.write(&remote, 0, &vec![7; LONG_WRITE_BYTES as usize]).unwrap();
        let under_way = Self { pair, memory };
        let start = Instant::now();
        while under_way.last_that_came().is_none() {
            under_way.pair.target.queue.poll();
            assert!(start.elapsed() < LONG, "nothing came");
        }
        assert_eq!(under_way.byte(LONG_WRITE_BYTES - 1), 0, "the rest is on its way");
        under_way
    }

    fn byte(&self, offset: u64) -> u8 {
        let mut byte = [0];
        self.memory.read(offset, &mut byte).unwrap();
        byte[0]
    }

    /// What came comes from the front.
    fn last_that_came(&self) -> Option<u64> {
        (0..LONG_WRITE_BYTES).step_by(4096).take_while(|offset| self.byte(*offset) == 7).last()
    }
}

/// A provider that is software goes on with a write that it has begun, whatever happens to the key: a fence ends it.
#[test]
fn a_fence_ends_a_write_that_is_under_way() {
    if !has(FabricProvider::Tcp) {
        return;
    }
    fence(UnderWay::begin());
}

/// A region of one connection is fenced from that one: the others go on.
#[test]
fn a_fence_ends_only_the_connection_that_has_the_region() {
    if !has(FabricProvider::Tcp) {
        return;
    }
    let mut other = None;
    let under_way = UnderWay::begin_with(|pair| {
        let Pair { initiator, target, listener } = pair;
        other = Some(join(&initiator.peer, &initiator.queue, listener, &target.queue, &Setup::default()));
        let memory = Arc::new(Memory::anonymous(LONG_WRITE_BYTES).unwrap());
        target.peer.register_for(&target.connection, memory, 0, LONG_WRITE_BYTES, Access::all()).unwrap()
    });
    let (here, _there) = other.unwrap();
    let pair = fence(under_way);
    let (memory, remote) = region(&pair.target.peer, 64, Access::all());
    here.write(&remote, 0, b"goes on").unwrap();
    let start = Instant::now();
    let mut came = [0; 7];
    while came != *b"goes on" {
        memory.read(0, &mut came).unwrap();
        pair.target.queue.poll();
        assert!(start.elapsed() < LONG, "{:?}", here.ended());
    }
    assert_eq!(here.ended(), None);
}

fn fence(UnderWay { pair, memory }: UnderWay) -> Pair {
    let witness = memory.clone();
    memory.fence();
    let under_way = UnderWay { pair, memory: witness };
    let fenced = under_way.last_that_came();
    let start = Instant::now();
    while under_way.pair.initiator.connection.ended().is_none() {
        under_way.pair.target.queue.poll();
        assert_eq!(under_way.last_that_came(), fenced, "nothing comes behind the fence");
        assert!(start.elapsed() < LONG, "the initiator is told");
    }
    assert_eq!(under_way.byte(LONG_WRITE_BYTES - 1), 0);
    under_way.pair
}

/// The control of the one above: without a fence the rest comes, although the region is gone.
#[test]
fn a_write_that_is_under_way_outlives_its_region() {
    if !has(FabricProvider::Tcp) {
        return;
    }
    let UnderWay { pair, memory } = UnderWay::begin();
    let witness = memory.clone();
    memory.deregister();
    let under_way = UnderWay { pair, memory: witness };
    let before = under_way.last_that_came();
    let start = Instant::now();
    while under_way.last_that_came() == before {
        under_way.pair.target.queue.poll();
        assert!(start.elapsed() < LONG, "it goes on");
    }
}

/// Runs without `FI_MR_CACHE_MAX_COUNT=0`: what the provider keeps registered nobody could take away from a peer.
#[test]
fn with_a_cache_verbs_is_refused() {
    let error = Peer::open_at(Transport::Fabric(FabricProvider::VerbsConnected), end("PMOF_WIRE_A"));
    let error = error.expect_err("the provider caches registrations").to_string();
    assert!(error.contains("FI_MR_CACHE_MAX_COUNT=0"), "{error}");
}

/// Runs without `FI_UNIVERSE_SIZE=32`: soft-RoCE has no queue for 256 peers.
#[test]
fn with_many_peers_a_queue_is_too_long() {
    let fabric = FabricVerbs::new();
    let (initiator, target) = (fabric.peer(), fabric.target());
    let queue = initiator.completion_queue(threaded()).unwrap();
    let listener = target.listen(fabric.listen_address(), listen_options()).unwrap();
    let to = format!("fabric+verbs://{}", listener.local_address()).parse().unwrap();
    let _connecting = std::thread::spawn(move || {
        let _ = initiator.connect(&to, &queue, &pmof_access::ConnectOptions::default());
    });
    let error = listener.next_request(LONG).expect_err("there is no such queue");
    let text = pmof_mem::causes(&error).to_string();
    assert!(text.contains("FI_UNIVERSE_SIZE=256") && text.contains("set FI_UNIVERSE_SIZE=32"), "{text}");
}

/// Runs without `FI_OFI_RXM_USE_SRX=1`.
#[test]
fn with_receives_of_its_own_rxm_is_refused() {
    let error = Peer::open_at(Transport::Fabric(FabricProvider::Verbs), end("PMOF_WIRE_A"));
    let error = error.expect_err("it would use what was freed").to_string();
    assert!(error.contains("FI_OFI_RXM_USE_SRX=1") && error.contains("fabric+verbs-msg"), "{error}");
}

/// A device serves its own addresses: a peer of another one says so.
#[test]
fn on_the_wire_another_device_is_named() {
    let target = Peer::open(Transport::Fabric(FabricProvider::VerbsConnected)).unwrap();
    let listener = target.listen(SocketAddr::new(end("PMOF_WIRE_B"), 0), listen_options()).unwrap();
    let _client = TcpStream::connect(listener.local_address().socket_address().unwrap()).unwrap();
    let error = listener.next_request(LONG).expect_err("the first device is another one").to_string();
    assert!(
        error.contains("belongs to rxe1") && error.contains("rxe0 is open: open the peer at that address"),
        "{error}"
    );
}
