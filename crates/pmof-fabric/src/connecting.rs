//! How connected endpoints (`FI_EP_MSG`) come together: event queues, and passive endpoints that requests arrive at.

use std::{
    ffi::c_void,
    fmt,
    ptr::{self, NonNull},
    sync::Arc,
};

use pmof_fabric_sys as sys;

use crate::{Domain, FabricError, Info, close::close_in_time, domain::Opened, error::Failure, kind::NAME_BYTES_MAX};

/// What happened to a connection.
#[derive(Debug)]
pub(crate) enum Event {
    /// Somebody asks for one.
    Request(ConnectionRequest),
    /// It stands.
    Connected,
    /// It has ended.
    Shutdown,
}

/// Where the events of a connected or passive endpoint come.
#[derive(Debug)]
pub(crate) struct EventQueue {
    raw: NonNull<sys::fid_eq>,
    domain: Arc<Opened>,
}

// SAFETY: the fabric was opened with FI_THREAD_SAFE, and this is the only handle.
unsafe impl Send for EventQueue {}
// SAFETY: a shared reference gives out the address alone.
unsafe impl Sync for EventQueue {}

impl EventQueue {
    pub(crate) fn open(domain: &Arc<Opened>) -> Result<Self, FabricError> {
        let mut raw = ptr::null_mut();
        let mut attributes = sys::fi_eq_attr {
            size: 0,
            flags: 0,
            wait_obj: sys::FI_WAIT_NONE,
            signaling_vector: 0,
            wait_set: ptr::null_mut(),
        };
        // SAFETY: the domain keeps its fabric open, and this keeps the domain.
        let status = unsafe { sys::fi_eq_open(domain.fabric(), &mut attributes, &mut raw) };
        let raw = NonNull::new(raw).filter(|_| status == 0);
        let raw = raw.ok_or_else(|| failed(domain, "fi_eq_open", status.into()))?;
        Ok(Self { raw, domain: Arc::clone(domain) })
    }

    pub(crate) fn fid(&self) -> *mut sys::fid {
        // SAFETY: the queue is open; no reference is formed.
        unsafe { &raw mut (*self.raw.as_ptr()).fid }
    }

    /// The next event, where there is one; the provider works on connections meanwhile.
    pub(crate) fn next(&mut self) -> Result<Option<Event>, FabricError> {
        let (mut number, mut event) = (0, Box::<sys::ConnectionEvent>::default());
        // SAFETY: the queue is open.
        let status = unsafe { sys::fi_eq_read(self.raw.as_ptr(), &mut number, &mut event) };
        let Ok(len_bytes) = usize::try_from(status) else {
            return match -status as i32 {
                sys::FI_EAGAIN => Ok(None),
                sys::FI_EAVAIL => Err(self.take_error()),
                _ => Err(failed(&self.domain, "fi_eq_read", status as i64)),
            };
        };
        Ok(match number {
            sys::FI_CONNREQ => NonNull::new(event.entry.info).map(|info| {
                let data_bytes = len_bytes.saturating_sub(size_of::<sys::fi_eq_cm_entry>());
                let data = event.data[..data_bytes.min(sys::CONNECTION_DATA_BYTES)].to_vec();
                Event::Request(ConnectionRequest { info: Info::of_raw(info, self.domain.library()), data })
            }),
            sys::FI_CONNECTED => Some(Event::Connected),
            sys::FI_SHUTDOWN => Some(Event::Shutdown),
            _ => None,
        })
    }

    /// The error that waits.
    fn take_error(&mut self) -> FabricError {
        let mut error = sys::EventErrorEntry::default();
        // SAFETY: the queue is open; no room for more data is offered.
        let status = unsafe { sys::fi_eq_readerr(self.raw.as_ptr(), &mut error) };
        let errno = if status > 0 { i64::from(error.entry.err) } else { status as i64 };
        failed(&self.domain, "fi_connect", errno)
    }
}

impl Drop for EventQueue {
    fn drop(&mut self) {
        // SAFETY: whoever has the queue closes what is bound to it before. Where the call fails, the queue is left open.
        unsafe { sys::fi_close(self.fid()) };
    }
}

/// A request for a connection, which [`Endpoint::accept`](crate::Endpoint::accept) takes.
pub struct ConnectionRequest {
    info: Info,
    data: Vec<u8>,
}

impl ConnectionRequest {
    /// What the other side sent along; some providers append zeros.
    pub fn data(&self) -> &[u8] {
        &self.data
    }

    pub(crate) fn info(&self) -> &Info {
        &self.info
    }
}

impl fmt::Debug for ConnectionRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionRequest").field("data_bytes", &self.data.len()).finish_non_exhaustive()
    }
}

/// An endpoint at which requests for connections arrive.
pub struct PassiveEndpoint {
    parts: Option<Passive>,
    domain: Domain,
}

/// What is closed together, in this order.
struct Passive {
    endpoint: NonNull<sys::fid_pep>,
    events: EventQueue,
}

// SAFETY: the fabric was opened with FI_THREAD_SAFE, and these are the only handles.
unsafe impl Send for Passive {}
// SAFETY: a shared reference asks the endpoint for its name alone.
unsafe impl Sync for Passive {}

impl PassiveEndpoint {
    /// Listens at the address of an offer of the domain, at a port that the provider picks.
    pub fn open(domain: &Domain, info: &Info) -> Result<Self, FabricError> {
        let events = EventQueue::open(&domain.0)?;
        let mut raw = ptr::null_mut();
        // SAFETY: the domain keeps its fabric open; the info is whole, and read only during the call.
        let status = unsafe { sys::fi_passive_ep(domain.0.fabric(), info.raw(), &mut raw) };
        let endpoint = NonNull::new(raw).filter(|_| status == 0);
        let endpoint = endpoint.ok_or_else(|| failed(&domain.0, "fi_passive_ep", status.into()))?;
        let passive = Passive { endpoint, events };
        // SAFETY: both are open, and the queue is closed behind the endpoint.
        let status = unsafe { sys::fi_bind(&raw mut (*endpoint.as_ptr()).fid, passive.events.fid(), 0) };
        if status != 0 {
            return Err(failed(&domain.0, "fi_pep_bind", status.into()));
        }
        // SAFETY: the endpoint is open and bound.
        let status = unsafe { sys::fi_listen(endpoint.as_ptr()) };
        if status != 0 {
            return Err(failed(&domain.0, "fi_listen", status.into()));
        }
        Ok(Self { parts: Some(passive), domain: domain.clone() })
    }

    /// The address, by which the other side finds it.
    pub fn name(&self) -> Result<Vec<u8>, FabricError> {
        let mut name = vec![0; NAME_BYTES_MAX];
        let mut len = name.len();
        let status = match &self.parts {
            // SAFETY: the endpoint is open and listens, and there is room for so many bytes.
            Some(parts) => unsafe {
                sys::fi_pep_getname(parts.endpoint.as_ptr(), name.as_mut_ptr().cast::<c_void>(), &mut len)
            },
            None => -libc::EBADF,
        };
        if status != 0 || len > name.len() {
            return Err(failed(&self.domain.0, "fi_getname", status.into()));
        }
        name.truncate(len);
        Ok(name)
    }

    /// The next request, where there is one.
    pub fn next_request(&mut self) -> Result<Option<ConnectionRequest>, FabricError> {
        let Some(parts) = &mut self.parts else { return Ok(None) };
        Ok(match parts.events.next()? {
            Some(Event::Request(request)) => Some(request),
            _ => None,
        })
    }

    /// Turns a request down.
    pub fn reject(&mut self, request: ConnectionRequest) {
        if let Some(parts) = &self.parts {
            // SAFETY: the endpoint is open, and no endpoint was opened for the request. Where it fails, the other side has gone.
            unsafe { sys::fi_reject(parts.endpoint.as_ptr(), request.info.handle()) };
        }
        drop(request);
    }
}

impl fmt::Debug for PassiveEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PassiveEndpoint").field("domain", &self.domain).finish_non_exhaustive()
    }
}

impl Drop for PassiveEndpoint {
    fn drop(&mut self) {
        if let Some(parts) = self.parts.take() {
            close_in_time(parts, &self.domain.info().provider());
        }
    }
}

impl Drop for Passive {
    fn drop(&mut self) {
        // SAFETY: this is the only handle; the queue is closed behind it.
        unsafe { sys::fi_close(&raw mut (*self.endpoint.as_ptr()).fid) };
    }
}

pub(crate) fn failed(domain: &Opened, call: &'static str, status: i64) -> FabricError {
    FabricError::Call {
        call,
        on: domain.info.provider(),
        error: Failure::of(domain.library(), status),
        mend: match i32::try_from(status.abs()) {
            Ok(libc::ECONNREFUSED) => "; the other side does not listen there, or turned this side down",
            Ok(libc::ENOMEM) => "; the provider has no more room, or memlock is too low (ulimit -l)",
            Ok(libc::EMFILE | libc::ENFILE) => "; there are too many open files (ulimit -n)",
            _ => "",
        },
    }
}
