//! The RDMA connection manager: identifiers, which are its sockets, and channels that report what happens to them.

use std::{
    fmt, io,
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd},
    ptr::{self, NonNull},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use pmof_locks::{Mutex, MutexGuard};
use pmof_verbs_sys as sys;
use pmof_verbs_sys::Verbs;

use crate::{
    CmEvent, CmEventKind, Device, VerbsError,
    address::{from_raw, to_storage},
    cm_event::parameters,
    descriptor::Descriptor,
    device::{SEARCHING, set_non_blocking},
    int::int,
};

/// The most private data of a connection request in bytes, over IP.
pub const CONNECT_PRIVATE_DATA_MAX: usize = 56;
/// The most private data of an acceptance in bytes.
pub const ACCEPT_PRIVATE_DATA_MAX: usize = 196;
/// The most private data of a rejection in bytes.
pub const REJECT_PRIVATE_DATA_MAX: usize = 148;
/// The most retries: software devices take 7 for endless.
pub const RETRY_COUNT_MAX: u8 = 6;

/// 255 stands for as many as the device has.
const DEPTH_MAX: u8 = 254;

/// Reports events of identifiers. Clones are the same channel. Lives as long as the identifiers on it.
#[derive(Clone)]
pub struct EventChannel(Arc<Channel>);

struct Channel {
    verbs: &'static Verbs,
    raw: NonNull<sys::rdma_event_channel>,
    descriptor: Descriptor,
    /// Held by every call on the channel and its identifiers: taking an event changes its identifier and queue pair.
    lock: Mutex<()>,
}

// SAFETY: the calls on a channel are made under its lock, and so is the only change of the descriptor in it.
unsafe impl Send for Channel {}
// SAFETY: the calls on a channel are made under its lock, and so is the only change of the descriptor in it.
unsafe impl Sync for Channel {}

impl EventChannel {
    /// Opens a channel.
    pub fn new() -> Result<Self, VerbsError> {
        let verbs = Verbs::load()?;
        let searching = SEARCHING.lock();
        // SAFETY: the call has no conditions.
        let raw = unsafe { (verbs.rdma_create_event_channel)() };
        let Some(raw) = NonNull::new(raw) else {
            let error = io::Error::last_os_error();
            drop(searching);
            return Err(match error.raw_os_error() {
                // The library has found no device.
                Some(libc::ENODEV | libc::ENOSYS) => sys::DeviceError::None.into(),
                _ => VerbsError::NoConnectionManager(error),
            });
        };
        drop(searching);
        // SAFETY: the library made the channel.
        let descriptor = Descriptor::of(unsafe { (*raw.as_ptr()).fd });
        let channel = Self(Arc::new(Channel { verbs, raw, descriptor, lock: Mutex::new(()) }));
        set_non_blocking(descriptor.number).map_err(VerbsError::NoConnectionManager)?;
        Ok(channel)
    }

    /// The next event of the identifiers on this channel, if one is there. Does not wait.
    pub fn next_event(&self) -> Result<Option<CmEvent>, VerbsError> {
        let verbs = self.0.verbs;
        let guard = self.0.lock();
        let mut event = ptr::null_mut();
        // SAFETY: the channel is open, and the lock is held.
        if unsafe { (verbs.rdma_get_cm_event)(self.0.raw.as_ptr(), &raw mut event) } != 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
                _ => Err(VerbsError::call("rdma_get_cm_event", "an event channel", error)),
            };
        }
        // SAFETY: the library handed the event out just now.
        let typed = unsafe { self.typed(event) };
        // SAFETY: the library handed the event out just now, everything of it was copied, and this is its only acknowledgement.
        unsafe { (verbs.rdma_ack_cm_event)(event) };
        drop(guard);
        Ok(Some(typed))
    }

    /// Fails where the program has closed the descriptor: the kernel has ended what was on the channel, and no event comes.
    pub fn check_descriptor(&self) -> Result<(), VerbsError> {
        if self.0.descriptor.is_own() {
            return Ok(());
        }
        let error = io::Error::from_raw_os_error(libc::EBADF);
        Err(VerbsError::call("poll", "an event channel", error))
    }

    /// # Safety
    ///
    /// librdmacm handed the event out on this channel, it is not acknowledged yet, and the lock is held.
    unsafe fn typed(&self, event: *const sys::rdma_cm_event) -> CmEvent {
        // SAFETY: an identifier lives at least until its events are acknowledged.
        let key = |id: *mut sys::rdma_cm_id| unsafe { (*id).context }.addr() as u64;
        // SAFETY: the event is not acknowledged yet, so it and the identifiers that it names are alive; under the lock nobody else
        // reads or acknowledges it.
        unsafe {
            if (*event).event != sys::RDMA_CM_EVENT_CONNECT_REQUEST {
                return CmEvent { id: key((*event).id), kind: CmEventKind::of(event) };
            }
            let (private_data, responder_resources, initiator_depth) = parameters(event);
            let request = CmId::adopt(self, NonNull::new_unchecked((*event).id), initiator_depth);
            let kind = CmEventKind::ConnectRequest { request, private_data, responder_resources, initiator_depth };
            CmEvent { id: key((*event).listen_id), kind }
        }
    }
}

impl AsFd for EventChannel {
    /// Readable when an event is there.
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the number is that of a descriptor which the channel owns, until it is dropped.
        unsafe { BorrowedFd::borrow_raw(self.0.descriptor.number) }
    }
}

impl fmt::Debug for EventChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("EventChannel").field(&self.as_fd()).finish()
    }
}

impl Channel {
    /// For calls of librdmacm, which write commands to the channel's descriptor. Where the program has closed it and something else has
    /// its number, they find none from here on, and fail.
    fn lock(&self) -> MutexGuard<'_, ()> {
        let guard = self.lock.lock();
        if !self.descriptor.is_own() {
            // SAFETY: the channel is alive, and its lock is held.
            unsafe { (*self.raw.as_ptr()).fd = -1 };
        }
        guard
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // What has the number by now, it keeps.
        drop(self.lock());
        // SAFETY: this was the last handle, and every identifier on the channel holds one; all events that were taken
        // are acknowledged.
        unsafe { (self.verbs.rdma_destroy_event_channel)(self.raw.as_ptr()) };
    }
}

/// What both sides of a connection say when it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectParameters<'data> {
    /// Goes along to the peer, which sees it padded with zeroes.
    pub private_data: &'data [u8],
    /// How many reads, flushes and atomics of the peer are served at once: at least 1, else the peer's flushes are
    /// refused; cut to what the device has.
    pub responder_resources: u8,
    /// How many reads, flushes and atomics of this side are under way at once; cut to what the device has, and when
    /// accepting to what the peer offered.
    pub initiator_depth: u8,
    /// How often a request without an answer is sent again, at most [`RETRY_COUNT_MAX`]. Not used when accepting: both
    /// sides take the connecting side's.
    pub retry_count: u8,
    /// How often a request is sent again that found no receive, 0 to 7, where 7 is for ever.
    pub rnr_retry_count: u8,
}

impl Default for ConnectParameters<'_> {
    fn default() -> Self {
        Self {
            private_data: &[],
            responder_resources: 16,
            initiator_depth: 16,
            retry_count: RETRY_COUNT_MAX,
            rnr_retry_count: 6,
        }
    }
}

/// An identifier of the connection manager: a listener, or one end of a connection.
///
/// What a call begins, an event on the channel ends. Dropped, it ends its connection, or stops listening; a queue pair
/// made on it keeps it until it is dropped too.
pub struct CmId(Arc<Identifier>);

/// What an identifier and its queue pair share.
pub(crate) struct Identifier {
    verbs: &'static Verbs,
    raw: NonNull<sys::rdma_cm_id>,
    key: u64,
    /// Locked before the channel's own lock.
    channel: Mutex<EventChannel>,
    /// The most that the peer of a connection request serves at once.
    offered_depth: u8,
}

// SAFETY: the calls on an identifier are made under its channel's lock.
unsafe impl Send for Identifier {}
// SAFETY: the calls on an identifier are made under its channel's lock.
unsafe impl Sync for Identifier {}

impl CmId {
    /// A new identifier that reports to `channel`.
    pub fn new(channel: &EventChannel) -> Result<Self, VerbsError> {
        let verbs = channel.0.verbs;
        let key = next_key();
        let mut raw = ptr::null_mut();
        let guard = channel.0.lock();
        // SAFETY: the channel is open; the identifier can be written; the context is a number, which nobody follows.
        let result = unsafe {
            let context = ptr::without_provenance_mut(key as usize);
            (verbs.rdma_create_id)(channel.0.raw.as_ptr(), &raw mut raw, context, sys::RDMA_PS_TCP)
        };
        drop(guard);
        match NonNull::new(raw) {
            Some(raw) if result == 0 => Ok(Self(Arc::new(Identifier {
                verbs,
                raw,
                key,
                channel: Mutex::new(channel.clone()),
                offered_depth: DEPTH_MAX,
            }))),
            _ => Err(VerbsError::last("rdma_create_id", "an event channel")),
        }
    }

    /// Takes over the identifier of a connection request.
    ///
    /// # Safety
    ///
    /// librdmacm handed the identifier out just now, in a request on `channel`, whose lock is held.
    unsafe fn adopt(channel: &EventChannel, raw: NonNull<sys::rdma_cm_id>, offered_depth: u8) -> Self {
        let key = next_key();
        // SAFETY: the identifier was handed out just now, and nobody else has it: the kernel reports nothing of it before it is accepted.
        unsafe { (*raw.as_ptr()).context = ptr::without_provenance_mut(key as usize) };
        let channel_of_id = Mutex::new(channel.clone());
        Self(Arc::new(Identifier { verbs: channel.0.verbs, raw, key, channel: channel_of_id, offered_depth }))
    }

    /// The number by which events name this identifier; never used twice in a process.
    pub fn key(&self) -> u64 {
        self.0.key
    }

    /// Gives the identifier a local address; port 0 for any. An address that is not a wildcard also gives it a device.
    pub fn bind(&self, address: SocketAddr) -> Result<(), VerbsError> {
        let mut storage = to_storage(address);
        self.call(
            "rdma_bind_addr",
            || address.to_string(),
            |verbs, id| {
                // SAFETY: the identifier is alive, the address is a whole storage.
                unsafe { (verbs.rdma_bind_addr)(id, (&raw mut storage).cast()) }
            },
        )
    }

    /// Reports connection requests from now on; `backlog` of them wait in the kernel, the rest are refused.
    pub fn listen(&self, backlog: i32) -> Result<(), VerbsError> {
        self.call(
            "rdma_listen",
            || self.address_text(),
            |verbs, id| {
                // SAFETY: the identifier is alive.
                unsafe { (verbs.rdma_listen)(id, backlog) }
            },
        )
    }

    /// Looks for the way to a remote address, coming from `source` (of any port where that is 0) if given. Ends with
    /// `AddressResolved` or `AddressError`, the latter after `timeout` at the latest.
    pub fn resolve_address(
        &self,
        source: Option<SocketAddr>,
        to: SocketAddr,
        timeout: Duration,
    ) -> Result<(), VerbsError> {
        let mut target = to_storage(to);
        let mut source_storage = source.map(to_storage);
        let source = source_storage.as_mut().map_or(ptr::null_mut(), ptr::from_mut);
        self.call(
            "rdma_resolve_addr",
            || to.to_string(),
            |verbs, id| {
                // SAFETY: the identifier is alive, the addresses are whole storages, or null where there is no source.
                unsafe { (verbs.rdma_resolve_addr)(id, source.cast(), (&raw mut target).cast(), milliseconds(timeout)) }
            },
        )
    }

    /// Looks for the route to the address that was resolved. Ends with `RouteResolved` or `RouteError`, the latter after
    /// `timeout` at the latest.
    pub fn resolve_route(&self, timeout: Duration) -> Result<(), VerbsError> {
        self.check_bound()?;
        self.call(
            "rdma_resolve_route",
            || self.peer_text(),
            |verbs, id| {
                // SAFETY: the identifier is alive and has a device.
                unsafe { (verbs.rdma_resolve_route)(id, milliseconds(timeout)) }
            },
        )
    }

    /// Asks the peer for a connection, with at most [`CONNECT_PRIVATE_DATA_MAX`] bytes of private data. Ends with
    /// `Established`, `Rejected`, `Unreachable` or `ConnectError`; the kernel waits 78 s for a host without RDMA and 17
    /// minutes for a listener that never answers, so bound it yourself by dropping the identifier.
    pub fn connect(&self, parameters: &ConnectParameters<'_>) -> Result<(), VerbsError> {
        let mut raw = self.parameters(parameters, CONNECT_PRIVATE_DATA_MAX)?;
        self.call(
            "rdma_connect",
            || self.peer_text(),
            |verbs, id| {
                // SAFETY: the identifier is alive and has a device and a queue pair; the private data are copied.
                unsafe { (verbs.rdma_connect)(id, &raw mut raw) }
            },
        )
    }

    /// Accepts a connection request, with at most [`ACCEPT_PRIVATE_DATA_MAX`] bytes of private data. Ends with
    /// `Established` or `ConnectError`.
    pub fn accept(&self, parameters: &ConnectParameters<'_>) -> Result<(), VerbsError> {
        let mut raw = self.parameters(parameters, ACCEPT_PRIVATE_DATA_MAX)?;
        self.call(
            "rdma_accept",
            || self.peer_text(),
            |verbs, id| {
                // SAFETY: the identifier is alive and has a device and a queue pair; the private data are copied.
                unsafe { (verbs.rdma_accept)(id, &raw mut raw) }
            },
        )
    }

    /// Rejects a connection request, with at most [`REJECT_PRIVATE_DATA_MAX`] bytes of private data.
    pub fn reject(&self, private_data: &[u8]) -> Result<(), VerbsError> {
        check("the length of the private data", private_data.len() as u64, 0, REJECT_PRIVATE_DATA_MAX as u64)?;
        self.call(
            "rdma_reject",
            || self.peer_text(),
            |verbs, id| {
                // SAFETY: the identifier is alive; the private data are copied.
                unsafe { (verbs.rdma_reject)(id, private_data.as_ptr().cast(), private_data.len() as u8) }
            },
        )
    }

    /// Ends the connection: the queue pair goes into error, what it had under way completes as flushed, and the peer is
    /// told.
    pub fn disconnect(&self) -> Result<(), VerbsError> {
        self.check_bound()?;
        self.call(
            "rdma_disconnect",
            || self.peer_text(),
            |verbs, id| {
                // SAFETY: the identifier is alive and has a device.
                unsafe { (verbs.rdma_disconnect)(id) }
            },
        )
    }

    /// How long the device waits for an answer before it tries again: 4.096 µs times two to the power of `exponent` (0 to
    /// 31, where 0 is for ever). To be called before the connection is made.
    pub fn set_ack_timeout(&self, exponent: u8) -> Result<(), VerbsError> {
        check("the exponent of the acknowledge timeout", exponent.into(), 0, 31)?;
        self.set_option(sys::RDMA_OPTION_ID_ACK_TIMEOUT, &mut [exponent])
    }

    /// Allows a listener on a port that earlier connections still hold. To be called before `bind`.
    pub fn set_reuse_address(&self, reuse: bool) -> Result<(), VerbsError> {
        self.set_option(sys::RDMA_OPTION_ID_REUSEADDR, &mut [i32::from(reuse)])
    }

    /// Keeps a listener on an IPv6 address from taking IPv4 requests too. To be called before `bind`.
    pub fn set_af_only(&self, only: bool) -> Result<(), VerbsError> {
        self.set_option(sys::RDMA_OPTION_ID_AFONLY, &mut [i32::from(only)])
    }

    /// Reports to another channel from now on. Events that were not taken yet move along.
    pub fn migrate(&self, to: &EventChannel) -> Result<(), VerbsError> {
        let mut channel = self.0.channel.lock();
        if Arc::ptr_eq(&channel.0, &to.0) {
            return Ok(());
        }
        let from = Arc::clone(&channel.0);
        // In the same order by every thread.
        let (first, second) = if Arc::as_ptr(&from) < Arc::as_ptr(&to.0) { (&from, &to.0) } else { (&to.0, &from) };
        let guards = (first.lock(), second.lock());
        // SAFETY: identifier and channel are alive and both locks are held, so that all events taken are acknowledged
        // and the call does not wait.
        let result = unsafe { (from.verbs.rdma_migrate_id)(self.0.raw.as_ptr(), to.0.raw.as_ptr()) };
        if result != 0 {
            return Err(VerbsError::last("rdma_migrate_id", "a connection identifier"));
        }
        drop(guards);
        *channel = to.clone();
        Ok(())
    }

    /// The local address, as soon as it has one.
    pub fn local_address(&self) -> Option<SocketAddr> {
        // SAFETY: the identifier is alive, and its lock is held; the addresses in it are whole storages.
        self.0.locked(|id| unsafe { from_raw(sys::rdma_get_local_addr(id)) })
    }

    /// The peer's address, as soon as it has one.
    pub fn peer_address(&self) -> Option<SocketAddr> {
        // SAFETY: the identifier is alive, and its lock is held; the addresses in it are whole storages.
        self.0.locked(|id| unsafe { from_raw(sys::rdma_get_peer_addr(id)) })
    }

    /// The device, as soon as it is bound to one; `NotBound` before.
    pub fn device(&self) -> Result<Device, VerbsError> {
        // SAFETY: the identifier is alive, and its lock is held.
        let context = self.0.locked(|id| unsafe { (*id).verbs });
        Device::of_context(self.0.verbs, NonNull::new(context).ok_or(VerbsError::NotBound)?)
    }

    pub(crate) fn identifier(&self) -> &Arc<Identifier> {
        &self.0
    }

    fn check_bound(&self) -> Result<(), VerbsError> {
        // SAFETY: the identifier is alive, and its lock is held. A device, once there, stays.
        if self.0.locked(|id| unsafe { (*id).verbs }).is_null() { Err(VerbsError::NotBound) } else { Ok(()) }
    }

    fn parameters(&self, from: &ConnectParameters<'_>, data_max: usize) -> Result<sys::rdma_conn_param, VerbsError> {
        let device = self.device()?;
        // SAFETY: the identifier is alive, and its lock is held.
        if self.0.locked(|id| unsafe { (*id).qp }).is_null() {
            return Err(VerbsError::NoQueuePair);
        }
        check("the length of the private data", from.private_data.len() as u64, 0, data_max as u64)?;
        check("responder_resources", from.responder_resources.into(), 1, 255)?;
        check("retry_count", from.retry_count.into(), 0, RETRY_COUNT_MAX.into())?;
        check("rnr_retry_count", from.rnr_retry_count.into(), 0, 7)?;
        let capabilities = device.capabilities();
        let cut = |wanted: u8, has: u32| wanted.min(u8::try_from(has).unwrap_or(DEPTH_MAX)).min(DEPTH_MAX);
        Ok(sys::rdma_conn_param {
            private_data: from.private_data.as_ptr().cast(),
            private_data_len: from.private_data.len() as u8,
            responder_resources: cut(from.responder_resources, capabilities.max_responder_resources),
            initiator_depth: cut(from.initiator_depth, capabilities.max_initiator_depth).min(self.0.offered_depth),
            flow_control: 0,
            retry_count: from.retry_count,
            rnr_retry_count: from.rnr_retry_count,
            srq: 0,
            qp_num: 0,
        })
    }

    fn set_option<T, const N: usize>(&self, option: u32, value: &mut [T; N]) -> Result<(), VerbsError> {
        self.call(
            "rdma_set_option",
            || self.address_text(),
            |verbs, id| {
                let level = int(sys::RDMA_OPTION_ID);
                // SAFETY: the identifier is alive; the value is as long as is said.
                unsafe {
                    (verbs.rdma_set_option)(id, level, int(option), value.as_mut_ptr().cast(), size_of_val(value))
                }
            },
        )
    }

    fn call(
        &self,
        name: &'static str,
        on: impl FnOnce() -> String,
        call: impl FnOnce(&Verbs, *mut sys::rdma_cm_id) -> i32,
    ) -> Result<(), VerbsError> {
        let error = self.0.locked(|id| (call(self.0.verbs, id) != 0).then(io::Error::last_os_error));
        error.map_or(Ok(()), |error| Err(VerbsError::call(name, on(), error)))
    }

    fn address_text(&self) -> String {
        self.local_address().map_or_else(|| "a connection identifier".into(), |address| address.to_string())
    }

    fn peer_text(&self) -> String {
        self.peer_address().map_or_else(|| "a connection identifier".into(), |address| address.to_string())
    }
}

impl fmt::Debug for CmId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CmId")
            .field("key", &self.key())
            .field("local_address", &self.local_address())
            .field("peer_address", &self.peer_address())
            .finish()
    }
}

impl Identifier {
    pub(crate) fn verbs(&self) -> &'static Verbs {
        self.verbs
    }

    /// Calls on the identifier while no event of it is being taken.
    pub(crate) fn locked<R>(&self, call: impl FnOnce(*mut sys::rdma_cm_id) -> R) -> R {
        let channel = self.channel.lock();
        let _guard = channel.0.lock();
        call(self.raw.as_ptr())
    }
}

impl Drop for Identifier {
    fn drop(&mut self) {
        // SAFETY: this was the last handle, the queue pair's included. All events taken are acknowledged under the lock,
        // so the call does not wait for any. Where the channel has lost its descriptor it leaves the identifier's memory.
        self.locked(|id| unsafe { (self.verbs.rdma_destroy_id)(id) });
    }
}

fn next_key() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

fn check(what: &'static str, value: u64, least: u64, most: u64) -> Result<(), VerbsError> {
    if (least..=most).contains(&value) { Ok(()) } else { Err(VerbsError::OutOfRange { what, value, least, most }) }
}

fn milliseconds(timeout: Duration) -> i32 {
    // No less than asked for; 0 would mean no time at all.
    i32::try_from(timeout.as_micros().div_ceil(1000)).unwrap_or(i32::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_is_never_shorter_than_asked_for() {
        for (timeout, expected) in [
            (Duration::ZERO, 1),
            (Duration::from_nanos(1), 1),
            (Duration::from_micros(1001), 2),
            (Duration::from_secs(5), 5000),
            (Duration::MAX, i32::MAX),
        ] {
            assert_eq!(milliseconds(timeout), expected, "{timeout:?}");
        }
    }

    #[test]
    fn numbers_out_of_range_are_named() {
        check("it", 3, 3, 3).unwrap();
        let message = check("the number", 4, 1, 3).unwrap_err().to_string();
        assert_eq!(message, "the number is 4, allowed is 1 to 3");
    }
}
