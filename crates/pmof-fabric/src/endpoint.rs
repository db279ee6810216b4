//! Endpoints: one to one peer, with a completion queue of its own.

use std::{
    ffi::{CStr, c_void},
    fmt,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    ptr::{self, NonNull},
    sync::Arc,
};

use pmof_fabric_sys as sys;

use crate::{
    Bytes, ConnectionRequest, Domain, EndpointKind, FabricError, Info, IpFamily, PostFailure,
    close::close_in_time,
    connecting::{Event, EventQueue, failed},
    domain::Opened,
    error::Failure,
    kind::NAME_BYTES_MAX,
};

/// Completions taken from the provider at once.
const COMPLETIONS_AT_ONCE: usize = 16;

/// How many peers the library makes room for, and how many where nobody says so (`fi_getinfo(3)`).
const UNIVERSE_SIZE: &str = "FI_UNIVERSE_SIZE";
const UNIVERSE_SIZE_DEFAULT: &str = "256";

/// Where an operation on a peer's memory begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteAddress {
    /// The region's [base](crate::MemoryRegion::base) and the offset in it.
    pub address: u64,
    /// The region's key.
    pub key: u64,
}

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Takes one message of the peer.
    Receive,
    /// Sends a message. Done when its bytes are the caller's again.
    Send,
    /// Sends a message. Done when the peer has it, and what was sent to it before.
    SendDelivered,
    /// Writes to the peer's memory. Done when the peer sees it.
    Write(RemoteAddress),
    /// Writes to the peer's memory. Done when the peer's provider says that it is in the persistence domain
    /// (`FI_COMMIT_COMPLETE`), which some accept and do not do.
    WriteCommitted(RemoteAddress),
    /// Reads the peer's memory.
    Read(RemoteAddress),
}

/// An operation that ended.
#[derive(Debug)]
pub struct Completion {
    /// What it was posted with.
    pub id: u64,
    /// What it did.
    pub operation: Operation,
    /// Its bytes, which belong to the caller again.
    pub bytes: Bytes,
    /// Bytes that it moved; of a receive those of the message. An error says why it did not.
    pub result: Result<usize, Failure>,
}

/// What an endpoint is opened with.
#[derive(Clone, Copy, Debug)]
pub struct EndpointOptions {
    /// Operations of this side under way at once, receives included. The completion queue has so many entries.
    pub operations: usize,
}

/// An endpoint that talks to one peer, and its completion queue. Dropping it ends what is under way.
pub struct Endpoint {
    parts: Option<Box<Parts>>,
    domain: Domain,
    peer: Option<sys::fi_addr_t>,
    /// What a connected endpoint has still to do.
    start: Option<Start>,
    descriptor: Option<OwnedFd>,
    free: Vec<usize>,
}

/// How a connected endpoint gets its connection.
enum Start {
    /// It connects to the address in this.
    Connect(Info),
    /// It accepts the request that it was opened for.
    Accept,
}

/// What is closed together, in this order.
pub(crate) struct Parts {
    endpoint: *mut sys::fid_ep,
    queue: *mut sys::fid_cq,
    /// Of a reliable datagram endpoint.
    addresses: *mut sys::fid_av,
    /// Of a connected endpoint.
    events: Option<EventQueue>,
    /// What is under way, by its number.
    flights: Vec<Option<Box<Flight>>>,
    domain: Arc<Opened>,
    number: u64,
}

/// An operation under way. The provider has the address of its context.
#[repr(C)]
struct Flight {
    context: sys::fi_context2,
    index: usize,
    id: u64,
    operation: Operation,
    bytes: Bytes,
}

// SAFETY: the objects were opened with FI_THREAD_SAFE, and these are their only handles; the contexts are used by the provider
// alone.
unsafe impl Send for Parts {}

impl Endpoint {
    /// Opens one. `info` is an offer of the same domain, which says where it is. A connected endpoint is not opened so, but by
    /// [`open_to`](Self::open_to) or [`open_for`](Self::open_for).
    pub fn open(domain: &Domain, info: &Info, options: EndpointOptions) -> Result<Self, FabricError> {
        let number = domain.0.endpoint_opened();
        let mut parts = Box::new(Parts {
            endpoint: ptr::null_mut(),
            queue: ptr::null_mut(),
            addresses: ptr::null_mut(),
            events: None,
            flights: Vec::new(),
            domain: Arc::clone(&domain.0),
            number,
        });
        // Where something fails, the drop closes what is open.
        let mut endpoint = Self {
            parts: None,
            domain: domain.clone(),
            peer: None,
            start: None,
            descriptor: None,
            free: (0..options.operations).rev().collect(),
        };
        parts.flights.resize_with(options.operations, || None);
        let descriptor = parts.open(info, options);
        endpoint.parts = Some(parts);
        endpoint.descriptor = descriptor?;
        Ok(endpoint)
    }

    /// Opens a connected endpoint for a connection to the passive endpoint of this [name](crate::PassiveEndpoint::name): post receives, then
    /// [`connect`](Self::connect). `info` is an offer of the same domain, which says where it is.
    pub fn open_to(domain: &Domain, info: &Info, name: &[u8], options: EndpointOptions) -> Result<Self, FabricError> {
        let invalid = || failed(&domain.0, "fi_endpoint", (-libc::EINVAL).into());
        // What is of another family the provider would read as one of its own.
        let family = name.first_chunk().map(|family| libc::c_int::from(u16::from_le_bytes(*family)));
        let expected = info.ip_family().map(|own| if own == IpFamily::V4 { libc::AF_INET } else { libc::AF_INET6 });
        if expected.is_some() && family != expected {
            return Err(invalid());
        }
        let info = info.towards(name).ok_or_else(invalid)?;
        let mut endpoint = Self::open(domain, &info, options)?;
        endpoint.start = Some(Start::Connect(info));
        endpoint.peer = Some(sys::FI_ADDR_UNSPEC);
        Ok(endpoint)
    }

    /// Opens a connected endpoint for a request: post receives, then [`accept`](Self::accept).
    pub fn open_for(
        domain: &Domain,
        request: &ConnectionRequest,
        options: EndpointOptions,
    ) -> Result<Self, FabricError> {
        let mut endpoint = Self::open(domain, request.info(), options)?;
        endpoint.start = Some(Start::Accept);
        endpoint.peer = Some(sys::FI_ADDR_UNSPEC);
        Ok(endpoint)
    }

    /// Starts to connect, once. The other side gets `data`, at most 56 bytes, with the request.
    pub fn connect(&mut self, data: &[u8]) -> Result<(), FabricError> {
        let status = match (&self.parts, self.start.take()) {
            // SAFETY: the endpoint is open, bound to its event queue; the address is that of the info, in its format and followed by zeros
            // up to the longest one that is known.
            (Some(parts), Some(Start::Connect(info))) => unsafe {
                sys::fi_connect(parts.endpoint, (*info.raw()).dest_addr, data)
            },
            _ => -libc::EINVAL,
        };
        if status == 0 { Ok(()) } else { Err(self.failed("fi_connect", status.into())) }
    }

    /// Accepts the request that it was opened for, once.
    pub fn accept(&mut self) -> Result<(), FabricError> {
        let status = match (&self.parts, self.start.take()) {
            // SAFETY: the endpoint is open, of a request, and bound to its event queue.
            (Some(parts), Some(Start::Accept)) => unsafe { sys::fi_accept(parts.endpoint) },
            _ => -libc::EINVAL,
        };
        if status == 0 { Ok(()) } else { Err(self.failed("fi_accept", status.into())) }
    }

    /// Whether a connected endpoint was connected since the last call. It has to be asked until it is: some providers work on connections
    /// meanwhile alone.
    ///
    /// # Errors
    /// The other side rejects, does not listen, or has ended the connection.
    pub fn has_connected(&mut self) -> Result<bool, FabricError> {
        let events = self.parts.as_mut().and_then(|parts| parts.events.as_mut());
        Ok(match events.map(EventQueue::next).transpose()?.flatten() {
            Some(Event::Connected) => true,
            Some(Event::Shutdown) => return Err(self.failed("fi_connect", (-libc::ECONNRESET).into())),
            Some(Event::Request(_)) | None => false,
        })
    }

    /// The endpoint's address, by which peers find it.
    pub fn name(&self) -> Result<Vec<u8>, FabricError> {
        let mut name = vec![0; NAME_BYTES_MAX];
        let mut len = name.len();
        let status = match &self.parts {
            // SAFETY: the endpoint is open and enabled, and there is room for so many bytes.
            Some(parts) => unsafe { sys::fi_getname(parts.endpoint, name.as_mut_ptr().cast(), &mut len) },
            None => -libc::EBADF,
        };
        if status != 0 || len > name.len() {
            return Err(self.failed("fi_getname", status.into()));
        }
        name.truncate(len);
        Ok(name)
    }

    /// Names the peer, by the [name](Self::name) of its endpoint. Whether it can be reached shows when something is sent.
    pub fn set_peer(&mut self, name: &[u8]) -> Result<(), FabricError> {
        let mut number = sys::FI_ADDR_UNSPEC;
        // A provider reads as many bytes as its format has: what is short is continued with zeros.
        let mut whole = [0_u8; NAME_BYTES_MAX + 1];
        let status = match (&self.parts, whole[..NAME_BYTES_MAX].get_mut(..name.len())) {
            (Some(parts), Some(place)) => {
                place.copy_from_slice(name);
                // SAFETY: the vector is open, and the address is in the format of the domain or rejected by it: it is followed by
                // zeros up to the longest one that is known.
                unsafe { sys::fi_av_insert(parts.addresses, whole.as_ptr().cast(), &mut number) }
            }
            _ => -libc::EINVAL,
        };
        if status != 1 {
            return Err(self.failed("fi_av_insert", status.into()));
        }
        self.peer = Some(number);
        Ok(())
    }

    /// Posts an operation on the first `len_bytes` of the bytes. Where it is not posted, they come back.
    ///
    /// # Panics
    /// Where `len_bytes` is more than there are.
    pub fn post(
        &mut self,
        operation: Operation,
        bytes: impl Into<Bytes>,
        len_bytes: usize,
        id: u64,
    ) -> Result<(), (Bytes, PostFailure)> {
        let bytes = bytes.into();
        assert!(len_bytes <= bytes.len_bytes(), "an operation moves no more than its bytes");
        let peer = match (self.peer, operation) {
            (Some(peer), _) => peer,
            (None, Operation::Receive) => sys::FI_ADDR_UNSPEC,
            (None, _) => return Err((bytes, PostFailure::NoPeer)),
        };
        let (Some(parts), Some(index)) = (&mut self.parts, self.free.pop()) else {
            return Err((bytes, PostFailure::Again));
        };
        let context = sys::fi_context2 { internal: [ptr::null_mut(); 8] };
        let flight = parts.flights[index].insert(Box::new(Flight { context, index, id, operation, bytes }));
        let status = post(parts.endpoint, flight, len_bytes, peer);
        if status == 0 {
            return Ok(());
        }
        self.free.push(index);
        let again = status == -(sys::FI_EAGAIN as isize) || status == -(libc::ENOMEM as isize);
        let failure = if again {
            PostFailure::Again
        } else {
            PostFailure::Provider(Failure::of(self.domain.0.library(), status as i64))
        };
        match parts.flights[index].take() {
            Some(flight) => Err((flight.bytes, failure)),
            None => unreachable!("it was inserted above"),
        }
    }

    /// Takes what ended, and so has the provider make progress. How many there were.
    pub fn poll(&mut self, mut take: impl FnMut(Completion)) -> Result<usize, FabricError> {
        let mut taken = 0;
        loop {
            let Some(parts) = &mut self.parts else { return Ok(taken) };
            let null = ptr::null_mut();
            let mut entries =
                [sys::fi_cq_data_entry { op_context: null, flags: 0, len: 0, buf: null, data: 0 }; COMPLETIONS_AT_ONCE];
            // SAFETY: the queue is open, with entries of this format.
            let status = unsafe { sys::fi_cq_read(parts.queue, &mut entries) };
            if let Ok(count) = usize::try_from(status) {
                for entry in &entries[..count.min(COMPLETIONS_AT_ONCE)] {
                    if let Some(flight) = parts.completed(entry.op_context) {
                        self.free.push(flight.index);
                        taken += 1;
                        take(flight.completed(Ok(entry.len)));
                    }
                }
                if count < COMPLETIONS_AT_ONCE {
                    return Ok(taken);
                }
                continue;
            }
            match -status as i32 {
                sys::FI_EAGAIN => return Ok(taken),
                sys::FI_EAVAIL => {
                    let Some((flight, failure)) = parts.take_error() else { return Ok(taken) };
                    if let Some(flight) = flight {
                        self.free.push(flight.index);
                        taken += 1;
                        take(flight.completed(Err(failure)));
                    }
                }
                _ => return Err(self.failed("fi_cq_read", status as i64)),
            }
        }
    }

    /// The descriptor that becomes readable when there is something to [poll](Self::poll) for, after
    /// [`may_sleep`](Self::may_sleep) said yes. None where the provider has none: it has to be polled.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.descriptor.as_ref().map(AsFd::as_fd)
    }

    /// Whether the descriptor tells of what happens from now on. Where not, there is something to poll for.
    pub fn may_sleep(&self) -> bool {
        let (Some(parts), true) = (&self.parts, self.descriptor.is_some()) else { return false };
        // SAFETY: the queue is open, and so is its fabric.
        unsafe { sys::fi_trywait(self.domain.0.fabric(), &mut [&raw mut (*parts.queue).fid]) == 0 }
    }

    /// Operations that may be posted now.
    pub fn room(&self) -> usize {
        self.free.len()
    }

    /// Ends what is under way, as dropping it does.
    pub fn close(&mut self) {
        self.descriptor = None;
        if let Some(parts) = self.parts.take() {
            close_in_time(parts, &self.domain.info().provider());
        }
    }

    fn failed(&self, call: &'static str, status: i64) -> FabricError {
        FabricError::call(self.domain.0.library(), call, self.domain.info().provider(), status)
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint").field("domain", &self.domain).field("room", &self.free.len()).finish_non_exhaustive()
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.close();
    }
}

impl Parts {
    /// Opens the objects; the descriptor of the queue, where there is one.
    fn open(&mut self, info: &Info, options: EndpointOptions) -> Result<Option<OwnedFd>, FabricError> {
        let library = self.domain.library();
        let provider = self.domain.info.provider();
        let check = |call, status: i32| match status {
            0 => Ok(()),
            status => Err(FabricError::call(library, call, provider.as_str(), status.into())),
        };
        let domain = self.domain.raw();
        let mut queue = sys::fi_cq_attr {
            size: options.operations,
            flags: 0,
            format: sys::FI_CQ_FORMAT_DATA,
            wait_obj: sys::FI_WAIT_FD,
            signaling_vector: 0,
            wait_cond: 0,
            wait_set: ptr::null_mut(),
        };
        // SAFETY: the domain is open, and this keeps it so.
        let mut status = unsafe { sys::fi_cq_open(domain, &mut queue, &mut self.queue) };
        let mut has_descriptor = status == 0;
        if !has_descriptor {
            queue.wait_obj = sys::FI_WAIT_NONE;
            self.queue = ptr::null_mut();
            // SAFETY: `self.domain` keeps the domain open; the failed call has left no queue behind.
            status = unsafe { sys::fi_cq_open(domain, &mut queue, &mut self.queue) };
        }
        check("fi_cq_open", status)?;
        let mut fd = -1;
        // SAFETY: the queue is open, with a descriptor if it could be.
        has_descriptor = has_descriptor && unsafe { sys::fi_getwait(self.queue, &mut fd) } == 0 && fd >= 0;
        let of_peer = match info.kind() {
            EndpointKind::Datagram => {
                let mut addresses = sys::fi_av_attr {
                    type_: sys::FI_AV_UNSPEC,
                    rx_ctx_bits: 0,
                    count: 1,
                    ep_per_node: 0,
                    name: ptr::null(),
                    map_addr: ptr::null_mut(),
                    flags: 0,
                };
                // SAFETY: the domain is open, and this keeps it so.
                check("fi_av_open", unsafe { sys::fi_av_open(domain, &mut addresses, &mut self.addresses) })?;
                // SAFETY: the vector is open; no reference is formed.
                unsafe { &raw mut (*self.addresses).fid }
            }
            EndpointKind::Connected => self.events.insert(EventQueue::open(&self.domain)?).fid(),
        };
        // SAFETY: `self.domain` keeps the domain open; the info is whole, and read only during the call.
        check("fi_endpoint", unsafe { sys::fi_endpoint(domain, info.raw(), &mut self.endpoint) })?;
        // SAFETY: all are open, and closed behind the endpoint.
        unsafe {
            let fid = &raw mut (*self.endpoint).fid;
            check("fi_ep_bind", sys::fi_bind(fid, of_peer, 0))?;
            let ways = sys::FI_SEND | sys::FI_RECV;
            check("fi_ep_bind", sys::fi_bind(fid, &raw mut (*self.queue).fid, ways))?;
            match sys::fi_enable(fid) {
                status if -status == libc::EINVAL && makes_queues_of_device(info) => {
                    return Err(queue_too_long(info, Failure::of(library, status.into())));
                }
                status => check("fi_enable", status)?,
            }
        }
        if !has_descriptor {
            return Ok(None);
        }
        // SAFETY: the queue's descriptor is open for as long as the queue.
        let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
        Ok(borrowed.try_clone_to_owned().ok())
    }

    /// The operation whose context the provider gave back.
    fn completed(&mut self, context: *mut c_void) -> Option<Box<Flight>> {
        let flight = NonNull::new(context.cast::<Flight>())?;
        // SAFETY: the provider gives back the context of an operation under way, which is the beginning of its flight.
        let index = unsafe { (*flight.as_ptr()).index };
        self.flights.get_mut(index)?.take()
    }

    /// The error that waits, and the operation that it ended, if it is one of this side.
    fn take_error(&mut self) -> Option<(Option<Box<Flight>>, Failure)> {
        let mut error = sys::ErrorEntry::default();
        // SAFETY: the queue is open; no room for more data is offered.
        if unsafe { sys::fi_cq_readerr(self.queue, &mut error) } != 1 {
            return None;
        }
        let entry = error.entry;
        let mut failure = Failure::of(self.domain.library(), entry.err.into());
        let mut words = [0; 128];
        // SAFETY: the queue is open, and the data is that of the entry.
        let text = unsafe { sys::fi_cq_strerror(self.queue, entry.prov_errno, entry.err_data, &mut words) };
        if !text.is_null() {
            // SAFETY: the provider returns a C string, in `words` or its own.
            let text = unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned();
            if text != failure.text && !text.is_empty() {
                failure.text = format!("{}: {text}", failure.text);
            }
        }
        Some((self.completed(entry.op_context), failure))
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        // SAFETY: each is open or null, and these are the only handles; the endpoint is closed first, since it refers to the others.
        unsafe {
            let is_closed = self.endpoint.is_null() || sys::fi_close(&raw mut (*self.endpoint).fid) == 0;
            if !is_closed {
                // The provider may still use the memory of what is under way: it stays, and so do the objects.
                std::mem::forget(std::mem::take(&mut self.flights));
                std::mem::forget(self.events.take());
                std::mem::forget(Arc::clone(&self.domain));
                return;
            }
            if !self.queue.is_null() {
                sys::fi_close(&raw mut (*self.queue).fid);
            }
            if !self.addresses.is_null() {
                sys::fi_close(&raw mut (*self.addresses).fid);
            }
        }
        self.flights.clear();
        self.domain.endpoint_closed(self.number);
    }
}

impl Flight {
    fn completed(self, result: Result<usize, Failure>) -> Completion {
        let Self { id, operation, bytes, .. } = self;
        Completion { id, operation, bytes, result }
    }
}

/// Whether the layer `ofi_rxm` makes completion queues of a device.
fn makes_queues_of_device(info: &Info) -> bool {
    info.is_of_device() && info.provider().ends_with(";ofi_rxm")
}

fn queue_too_long(info: &Info, error: Failure) -> FabricError {
    let universe_size = std::env::var(UNIVERSE_SIZE).unwrap_or_else(|_| UNIVERSE_SIZE_DEFAULT.to_owned());
    FabricError::QueueTooLong { provider: info.provider(), device: info.domain(), universe_size, error }
}

/// Hands an operation to the provider.
fn post(endpoint: *mut sys::fid_ep, flight: &mut Flight, len: usize, peer: sys::fi_addr_t) -> isize {
    let (start, mut descriptor) = (flight.bytes.start(), flight.bytes.descriptor());
    let context = ptr::from_mut(flight).cast();
    let range = libc::iovec { iov_base: start, iov_len: len };
    let (to, flags) = match flight.operation {
        Operation::Receive => {
            // SAFETY: the endpoint is open and enabled. The flight owns the bytes and the context until it lands, which is when the
            // provider is done with both, or the endpoint is closed.
            return unsafe { sys::fi_recv(endpoint, (start, len), descriptor, context) };
        }
        Operation::Send | Operation::SendDelivered => {
            let message = sys::fi_msg {
                msg_iov: &raw const range,
                desc: &raw mut descriptor,
                iov_count: 1,
                addr: peer,
                context,
                data: 0,
            };
            let delivered = if flight.operation == Operation::Send { 0 } else { sys::FI_DELIVERY_COMPLETE };
            // SAFETY: as of the receive.
            return unsafe { sys::fi_sendmsg(endpoint, &message, sys::FI_COMPLETION | delivered) };
        }
        Operation::Write(to) => (to, sys::FI_COMPLETION | sys::FI_DELIVERY_COMPLETE),
        Operation::WriteCommitted(to) => (to, sys::FI_COMPLETION | sys::FI_COMMIT_COMPLETE),
        Operation::Read(from) => (from, sys::FI_COMPLETION),
    };
    let remote = sys::fi_rma_iov { addr: to.address, len, key: to.key };
    let message = sys::fi_msg_rma {
        msg_iov: &raw const range,
        desc: &raw mut descriptor,
        iov_count: 1,
        addr: peer,
        rma_iov: &raw const remote,
        rma_iov_count: 1,
        context,
        data: 0,
    };
    // SAFETY: as of the receive.
    unsafe {
        if matches!(flight.operation, Operation::Read(_)) {
            sys::fi_readmsg(endpoint, &message, flags)
        } else {
            sys::fi_writemsg(endpoint, &message, flags)
        }
    }
}
