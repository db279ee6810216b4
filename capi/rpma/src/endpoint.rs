//! Endpoints of connections of pmof: a thread accepts handshakes, and the application sees only complete requests.

use std::{
    ffi::c_int,
    io,
    os::fd::{AsFd as _, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use pmof_access::{ConnectionRequest, ListenOptions, Listener, SetupError, Transport};
use pmof_locks::{Mutex, MutexGuard};
use pmof_mem::causes;
use rustix::{
    event::{EventfdFlags, eventfd},
    io::Errno,
};

use crate::{
    cm::{location, own_settings, without_signals},
    context::PeerShared,
    error::{Code, Failure},
    given::Given,
    handle::Deletion,
    settings::settings,
};

/// Requests that wait for the application; the handshakes of further clients wait.
const BACKLOG: usize = 128;

/// How long the thread waits before it listens again after a failure: a resource may be available again by then.
const PAUSE: Duration = Duration::from_millis(100);

/// How long the thread waits for a request at a time; the end of the endpoint interrupts it.
const WAIT: Duration = Duration::from_secs(3600);

type Arrival = Result<ConnectionRequest, SetupError>;

/// An endpoint on a listener of pmof.
///
/// A handshake takes several packets, and a client may never send the rest. So the descriptor is not the listener's: it is
/// readable only for complete requests, once for each, and the following call does not wait.
#[derive(Debug)]
pub(crate) struct AccessEp {
    given: Given,
    shared: Arc<Shared>,
    /// None when the endpoint is being dropped.
    arrivals: Mutex<Option<Receiver<Arrival>>>,
    thread: Option<JoinHandle<()>>,
    peer: Arc<PeerShared>,
}

#[derive(Debug)]
struct Shared {
    listener: Listener,
    /// Counts arrivals that were not taken yet; each read takes one off.
    count: OwnedFd,
    /// A failure waits to be taken: further ones would be the same.
    has_failure: AtomicBool,
    is_ending: AtomicBool,
}

impl AccessEp {
    pub(crate) fn listen(peer: &Arc<PeerShared>, host: &str, port: &str) -> Result<Self, Failure> {
        // Listening on an RDMA device trusts the network behind it, as with librpma.
        let trust_network = peer.transport == Transport::Verbs || settings().trusts_network;
        let options = ListenOptions::default().trust_network(trust_network).settings(own_settings(0));
        let place = location(peer, host, port)?;
        let listener = peer.peer.listen(place, options).map_err(|error| {
            let is_public = matches!(error, SetupError::NotLoopback { .. });
            let hint = if is_public { " (PMOF_TRUST_NETWORK=1)" } else { "" };
            Failure::provider(format!("{}{hint}", causes(&error)))
        })?;
        let count = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::SEMAPHORE);
        let count = count.map_err(|errno| Failure::provider(format!("no descriptor to announce requests: {errno}")))?;
        let (has_failure, is_ending) = (AtomicBool::new(false), AtomicBool::new(false));
        let shared = Arc::new(Shared { listener, count, has_failure, is_ending });
        let (sender, arrivals) = sync_channel(BACKLOG);
        let take_in = {
            let shared = Arc::clone(&shared);
            move || shared.take_in(&sender)
        };
        let thread = without_signals(|| thread::Builder::new().name("pmof-endpoint".into()).spawn(take_in));
        let thread = thread.map_err(|error| Failure::provider(format!("no thread for the endpoint: {error}")))?;
        let arrivals = Mutex::new(Some(arrivals));
        Ok(Self { given: Given::default(), shared, arrivals, thread: Some(thread), peer: Arc::clone(peer) })
    }

    pub(crate) fn peer(&self) -> &Arc<PeerShared> {
        &self.peer
    }

    pub(crate) fn descriptor(&self) -> Result<c_int, Failure> {
        self.given.give(self.shared.count.as_fd())
    }

    /// The next request; waits for it, unless the application set its descriptor not to block.
    pub(crate) fn next_request(&self, deletion: Deletion<'_>) -> Result<ConnectionRequest, Failure> {
        loop {
            match rustix::io::read(&self.shared.count, &mut [0; 8]) {
                Ok(_) => break,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Err(Code::NoEvent.into()),
                Err(errno) => return Err(Failure::provider(io::Error::from(errno).to_string())),
            }
        }
        deletion.check()?;
        // It was sent before it was counted.
        let arrival = self.arrivals().as_ref().and_then(|arrivals| arrivals.try_recv().ok());
        let arrival = arrival.ok_or_else(|| Failure::provider("the endpoint no longer accepts requests"))?;
        arrival.map_err(|error| {
            self.shared.has_failure.store(false, Ordering::Release);
            error.into()
        })
    }

    /// Ends the waits of calls, which find the endpoint deleted.
    #[expect(clippy::host_endian_bytes, reason = "the kernel counts in the host's own order")]
    pub(crate) fn end_waits(&self) {
        /// More than there are threads in such calls.
        const MANY: u64 = 1 << 20;
        let _ = rustix::io::write(&self.shared.count, &MANY.to_ne_bytes());
    }

    fn arrivals(&self) -> MutexGuard<'_, Option<Receiver<Arrival>>> {
        self.arrivals.lock()
    }
}

impl Shared {
    /// Takes requests in until the endpoint ends.
    #[expect(clippy::host_endian_bytes, reason = "the kernel counts in the host's own order")]
    fn take_in(&self, sender: &SyncSender<Arrival>) {
        while !self.is_ending.load(Ordering::Acquire) {
            let arrival = match self.listener.next_request(WAIT) {
                Ok(None) => continue,
                Ok(Some(request)) => Ok(request),
                Err(error) => Err(error),
            };
            let has_failed = arrival.is_err();
            let is_known = has_failed && self.has_failure.swap(true, Ordering::AcqRel);
            if !is_known {
                // No receiver is left when the endpoint ends.
                if sender.send(arrival).is_err() || rustix::io::write(&self.count, &1_u64.to_ne_bytes()).is_err() {
                    return;
                }
            }
            if has_failed {
                thread::sleep(PAUSE);
            }
        }
    }
}

impl Drop for AccessEp {
    fn drop(&mut self) {
        self.shared.is_ending.store(true, Ordering::Release);
        // Pending requests are rejected, and the thread does not wait for room.
        drop(self.arrivals().take());
        self.shared.listener.interrupt();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
