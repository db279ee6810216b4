//! Devices as the connection manager opens them.

use std::{
    ffi::c_void,
    fmt, io,
    os::fd::{BorrowedFd, RawFd},
    ptr::NonNull,
    slice,
    sync::{Arc, Weak},
    time::Duration,
};

use pmof_mem::forks::{Holdable, Kept};
use pmof_verbs_sys as sys;
use pmof_verbs_sys::{DeviceError, Verbs};

use crate::{
    DeviceInfo, ProtectionDomain, VerbsError,
    capabilities::{name_of, query},
};

mod search;

/// How long the search for a device waits by default: an address that nobody has answered for yet takes 2 s.
pub const RESOLVE_TIMEOUT: Duration = Duration::from_secs(5);

/// An RDMA device, opened. Clones are the same device.
///
/// It is the context that librdmacm opened for the whole process, so that protection domains and connections agree on
/// it. All handles to one device share its asynchronous events.
///
/// librdmacm opens every device of the machine with the first one. The kernel removes a soft device (`rdma link delete`)
/// only when nobody has it open: after [`CmEventKind::DeviceRemoval`](crate::CmEventKind::DeviceRemoval) drop what is on it and the device last.
#[derive(Clone)]
pub struct Device(Arc<DeviceInner>);

pub(crate) struct DeviceInner {
    pub(crate) verbs: &'static Verbs,
    context: NonNull<sys::ibv_context>,
    info: DeviceInfo,
    /// What keeps librdmacm from closing the context; dropped before the search.
    _contexts: Contexts,
    _search: SearchOnDrop,
}

// SAFETY: a context of libibverbs may be used from several threads at once.
unsafe impl Send for DeviceInner {}
// SAFETY: a context of libibverbs may be used from several threads at once.
unsafe impl Sync for DeviceInner {}

/// The devices of librdmacm's contexts that are open.
static KNOWN: Kept<Vec<Weak<DeviceInner>>> = Kept::new(Vec::new());

/// Held by whoever has librdmacm look for devices, which it does under a lock of its own that forks leave locked.
pub(crate) static SEARCHING: Kept<()> = Kept::new(());

/// The locks that have to be held over forks, in order.
pub fn kept_over_forks() -> [&'static dyn Holdable; 2] {
    [&KNOWN, &SEARCHING]
}

impl Device {
    /// The device by that name, such as `mlx5_0` or `rxe0`.
    pub fn by_name(name: &str) -> Result<Self, VerbsError> {
        let verbs = Verbs::load()?;
        let contexts = Contexts::get(verbs)?;
        match contexts.named().find(|(_, present)| present == name) {
            Some((context, _)) => Self::of_context(verbs, context),
            None => Err(DeviceError::Unknown { name: name.to_owned(), present: contexts.names() }.into()),
        }
    }

    /// The only device of this machine.
    pub fn only() -> Result<Self, VerbsError> {
        let verbs = Verbs::load()?;
        let contexts = Contexts::get(verbs)?;
        match contexts.list() {
            [context] => Self::of_context(verbs, *context),
            _ => Err(VerbsError::SeveralDevices { present: contexts.names() }),
        }
    }

    /// The kernel's name.
    pub fn name(&self) -> &str {
        &self.0.info.name
    }

    /// What it could do when it was opened; the state of its ports may have changed since.
    pub fn capabilities(&self) -> &DeviceInfo {
        &self.0.info
    }

    /// A new protection domain: regions and queue pairs of one domain reach each other.
    pub fn protection_domain(&self) -> Result<ProtectionDomain, VerbsError> {
        ProtectionDomain::new(self)
    }

    /// True if both handles are of the same opened device.
    pub fn is_same(&self, other: &Self) -> bool {
        self.context() == other.context()
    }

    /// The device of a context that librdmacm gave out.
    pub(crate) fn of_context(verbs: &'static Verbs, context: NonNull<sys::ibv_context>) -> Result<Self, VerbsError> {
        let mut known = KNOWN.lock();
        known.retain(|device| device.strong_count() != 0);
        if let Some(device) = known.iter().filter_map(Weak::upgrade).find(|device| device.context == context) {
            return Ok(Self(device));
        }
        let contexts = Contexts::get(verbs)?;
        if !contexts.list().contains(&context) {
            return Err(DeviceError::None.into());
        }
        // SAFETY: the list keeps the context open.
        let info = unsafe { query(verbs, context.as_ptr()) }?;
        set_non_blocking(
            // SAFETY: the list keeps the context open; the field is set when it is opened.
            unsafe { (*context.as_ptr()).async_fd },
        )
        .map_err(|error| VerbsError::call("fcntl", &info.name, error))?;
        let device = Arc::new(DeviceInner { verbs, context, info, _contexts: contexts, _search: SearchOnDrop(verbs) });
        known.push(Arc::downgrade(&device));
        Ok(Self(device))
    }

    pub(crate) fn verbs(&self) -> &'static Verbs {
        self.0.verbs
    }

    /// The `ibv_context` of libibverbs, for callers who ask it themselves; valid as long as the device is open.
    pub fn raw_context(&self) -> *mut c_void {
        self.context().cast()
    }

    pub(crate) fn context(&self) -> *mut sys::ibv_context {
        self.0.context.as_ptr()
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Device").field(&self.name()).finish()
    }
}

/// All contexts of librdmacm, none of which it closes before this list is dropped.
struct Contexts {
    verbs: &'static Verbs,
    list: NonNull<*mut sys::ibv_context>,
    count: usize,
}

impl Contexts {
    fn get(verbs: &'static Verbs) -> Result<Self, VerbsError> {
        let mut count = 0;
        let _searching = SEARCHING.lock();
        // SAFETY: `count` can be written.
        let list = unsafe { (verbs.rdma_get_devices)(&raw mut count) };
        match (NonNull::new(list), usize::try_from(count)) {
            (Some(list), Ok(count)) if count > 0 => Ok(Self { verbs, list, count }),
            (Some(list), _) => {
                drop(Self { verbs, list, count: 0 });
                Err(DeviceError::None.into())
            }
            (None, _) => Err(match io::Error::last_os_error() {
                error if matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ENOSYS)) => DeviceError::None.into(),
                error if error.raw_os_error() == Some(libc::EPERM) => VerbsError::NoConnectionManager(error),
                error => VerbsError::call("rdma_get_devices", "this machine", error),
            }),
        }
    }

    fn list(&self) -> &[NonNull<sys::ibv_context>] {
        // SAFETY: librdmacm made an array of `count` contexts, none of them null, that does not change; `NonNull` has the
        // layout of a pointer.
        unsafe { slice::from_raw_parts(self.list.as_ptr().cast(), self.count) }
    }

    fn named(&self) -> impl Iterator<Item = (NonNull<sys::ibv_context>, String)> {
        // SAFETY: the list keeps its contexts open.
        self.list().iter().map(|&context| (context, unsafe { name_of(self.verbs, context.as_ptr()) }))
    }

    fn names(&self) -> Vec<String> {
        self.named().map(|(_, name)| name).collect()
    }
}

impl Drop for Contexts {
    fn drop(&mut self) {
        // SAFETY: librdmacm made the list, and this is its only release. It takes no address of the array's contents
        // beyond the contexts, which it opened itself.
        unsafe { (self.verbs.rdma_free_devices)(self.list.as_ptr()) };
    }
}

/// Has librdmacm look for devices when dropped. Only then does it notice that one was removed and close its context, for
/// which the kernel may be waiting: `rdma link delete` of a soft device does.
struct SearchOnDrop(&'static Verbs);

impl Drop for SearchOnDrop {
    fn drop(&mut self) {
        drop(Contexts::get(self.0));
    }
}

/// Makes reads of a descriptor that a library owns return at once.
pub(crate) fn set_non_blocking(fd: RawFd) -> io::Result<()> {
    // SAFETY: the descriptor belongs to a channel or context that is alive for the call, and stays open as long as that is.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let flags = rustix::fs::fcntl_getfl(fd)?;
    rustix::fs::fcntl_setfl(fd, flags | rustix::fs::OFlags::NONBLOCK)?;
    Ok(())
}
