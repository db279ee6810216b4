//! What the suite needs of a transport, and the transports.

use std::{
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::Arc,
    time::{Duration, Instant},
};

use pmof_access::{Peer, Transport, sim::SimNetwork};

use crate::pair::{Pair, Setup, pair};

/// One transport under test.
pub(crate) trait Fabric {
    /// The clock is virtual: time limits are kept exactly.
    const IS_VIRTUAL: bool;

    /// A fresh one, shared with no other test.
    fn new() -> Self;

    /// A new opening.
    fn peer(&self) -> Peer;

    /// Time since a fixed origin.
    fn now(&self) -> Duration;

    /// An address that leads to this target, and what breaks the connection made to it without a goodbye, as if the
    /// target had been killed.
    fn breakable(&self, target: SocketAddr) -> (SocketAddr, Box<dyn FnOnce() + '_>);

    /// Two sides joined by a connection.
    #[track_caller]
    fn pair(&self) -> Pair {
        self.pair_with(&Setup::default())
    }

    /// The same, with these settings.
    #[track_caller]
    fn pair_with(&self, setup: &Setup) -> Pair {
        pair(|| self.peer(), setup)
    }

    /// Runs `wait` and checks that it took `expected`: exactly, or at least where the clock is real.
    #[track_caller]
    fn takes<T>(&self, expected: Duration, wait: impl FnOnce() -> T) -> T {
        /// What a loaded machine may add.
        const SLACK: Duration = Duration::from_secs(30);
        let start = self.now();
        let result = wait();
        let took = self.now().saturating_sub(start);
        if Self::IS_VIRTUAL {
            assert_eq!(took, expected);
        } else {
            assert!(took >= expected && took < expected + SLACK, "took {took:?} instead of {expected:?}");
        }
        result
    }
}

/// Sockets on the loopback interface.
pub(crate) struct Tcp {
    start: Instant,
}

impl Fabric for Tcp {
    const IS_VIRTUAL: bool = false;

    fn new() -> Self {
        Self { start: Instant::now() }
    }

    fn peer(&self) -> Peer {
        Peer::open(Transport::Tcp)
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn breakable(&self, target: SocketAddr) -> (SocketAddr, Box<dyn FnOnce() + '_>) {
        let relay = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = relay.local_addr().expect("its address");
        let streams = std::thread::spawn(move || {
            let (near, _) = relay.accept().expect("the initiator comes");
            let far = TcpStream::connect(target).expect("the target listens");
            for (from, to) in [(&near, &far), (&far, &near)] {
                let (mut from, mut to) = (from.try_clone().expect("a copy"), to.try_clone().expect("a copy"));
                std::thread::spawn(move || std::io::copy(&mut from, &mut to));
            }
            [near, far]
        });
        let cut = move || {
            for stream in streams.join().expect("the relay works") {
                // One of the sides may have gone already.
                let _ = stream.shutdown(Shutdown::Both);
            }
        };
        (address, Box::new(cut))
    }
}

/// The simulated network.
pub(crate) struct Sim(Arc<SimNetwork>);

impl Fabric for Sim {
    const IS_VIRTUAL: bool = true;

    fn new() -> Self {
        Self(SimNetwork::new())
    }

    fn peer(&self) -> Peer {
        Peer::simulated(&self.0)
    }

    fn now(&self) -> Duration {
        self.0.now()
    }

    fn breakable(&self, target: SocketAddr) -> (SocketAddr, Box<dyn FnOnce() + '_>) {
        (target, Box::new(|| self.0.cut_all()))
    }
}
