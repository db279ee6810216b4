//! The transports that every machine has.

use std::{
    io::{IoSlice, IoSliceMut},
    mem::MaybeUninit,
    net::Shutdown,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::{UnixListener, UnixStream},
    },
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use pmof_access::{Location, Peer, Transport, sim::SimNetwork};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};

use crate::{fabric::Fabric, relay::relay};

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
        Peer::open(Transport::Tcp).unwrap()
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn breakable(&self, target: &Location) -> (Location, Box<dyn FnOnce() + '_>) {
        relay(target)
    }
}

/// Memory shared by processes of one host, found through a Unix socket in a directory of its own.
pub(crate) struct Shm {
    start: Instant,
    directory: tempfile::TempDir,
    sockets: AtomicU32,
}

impl Shm {
    fn new_path(&self) -> PathBuf {
        self.directory.path().join(format!("{}.sock", self.sockets.fetch_add(1, Ordering::Relaxed)))
    }
}

impl Fabric for Shm {
    const IS_VIRTUAL: bool = false;

    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        Self { start: Instant::now(), directory, sockets: AtomicU32::new(0) }
    }

    fn peer(&self) -> Peer {
        Peer::open(Transport::Shm).unwrap()
    }

    fn listen_address(&self) -> Location {
        self.new_path().as_path().into()
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn breakable(&self, target: &Location) -> (Location, Box<dyn FnOnce() + '_>) {
        let Location::Path(target) = target.clone() else { panic!("shm has paths") };
        let path = self.new_path();
        let relay = UnixListener::bind(&path).expect("a socket");
        let streams = std::thread::spawn(move || {
            let (near, _) = relay.accept().expect("the initiator comes");
            let far = UnixStream::connect(target).expect("the target listens");
            pass_greeting(&near, &far);
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
        (path.as_path().into(), Box::new(cut))
    }
}

/// Passes on the initiator's first bytes, and the descriptor that comes with them.
fn pass_greeting(from: &UnixStream, to: &UnixStream) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = [0; 8];
    let received = recvmsg(from, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC);
    assert_eq!(received.expect("a greeting").bytes, bytes.len());
    let fds: Vec<OwnedFd> = control
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds),
            _ => None,
        })
        .flatten()
        .collect();
    let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    sendmsg(to, &[IoSlice::new(&bytes)], &mut control, SendFlags::empty()).expect("the target listens");
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

    fn breakable(&self, target: &Location) -> (Location, Box<dyn FnOnce() + '_>) {
        (target.clone(), Box::new(|| self.0.cut_all()))
    }
}
