//! The RDMA devices of this machine.

use std::{ffi::CStr, io, ptr::NonNull, slice};

use crate::{Verbs, ibv_context, ibv_device};

/// Why there is no device to open.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// libibverbs cannot list the devices.
    #[error("cannot list the RDMA devices; check that the kernel modules are loaded (modprobe ib_uverbs rdma_ucm)")]
    List(#[source] io::Error),
    /// The machine has no RDMA device that libibverbs can use.
    #[error(
        "this machine has no RDMA device: load the driver of its network card, or make a software device on an Ethernet \
         interface (modprobe rdma_rxe && rdma link add rxe0 type rxe netdev eth0); a device that `rdma link` shows and \
         pmof does not needs the package ibverbs-providers"
    )]
    None,
    /// There are devices, but none with that name.
    #[error("this machine has no RDMA device {name}: it has {}", present.join(", "))]
    Unknown {
        /// The name that was asked for.
        name: String,
        /// The names of the existing devices.
        present: Vec<String>,
    },
    /// The device exists but cannot be opened.
    #[error("cannot open RDMA device {name}; check the rights on /dev/infiniband/uverbs*")]
    Open {
        /// The device.
        name: String,
        /// The error of the library.
        #[source]
        error: io::Error,
    },
}

/// The devices that libibverbs can use, at the moment of the call.
pub struct DeviceList {
    verbs: &'static Verbs,
    /// `ibv_get_device_list`'s own array, of `count` devices; none where there are no devices.
    list: Option<NonNull<*mut ibv_device>>,
    count: usize,
}

// SAFETY: the array is not changed after it was made, the devices in it are guarded by the library, whose calls on them
// may come from any thread.
unsafe impl Send for DeviceList {}
// SAFETY: a shared list is only read, and never changed after it was made.
unsafe impl Sync for DeviceList {}

impl DeviceList {
    /// Asks libibverbs. A kernel without RDMA is an empty list.
    pub fn get(verbs: &'static Verbs) -> Result<Self, DeviceError> {
        let mut count = 0;
        // SAFETY: `count` can be written.
        let list = unsafe { (verbs.ibv_get_device_list)(&raw mut count) };
        let list = NonNull::new(list);
        if list.is_none() {
            let error = io::Error::last_os_error();
            // The library's error if the kernel has no RDMA support.
            if error.raw_os_error() != Some(libc::ENOSYS) {
                return Err(DeviceError::List(error));
            }
            count = 0;
        }
        Ok(Self { verbs, list, count: usize::try_from(count).unwrap_or(0) })
    }

    /// The devices, in the order of the library.
    pub fn devices(&self) -> impl Iterator<Item = Device<'_>> {
        let devices = match self.list {
            // SAFETY: the library made an array of `count` devices, which lives and does not change until `drop`.
            Some(list) => unsafe { slice::from_raw_parts(list.as_ptr(), self.count) },
            None => &[],
        };
        devices.iter().map(|&raw| Device { list: self, raw })
    }

    /// The device with that name, or the first one.
    pub fn find(&self, name: Option<&str>) -> Result<Device<'_>, DeviceError> {
        let mut devices = self.devices().peekable();
        if devices.peek().is_none() {
            return Err(DeviceError::None);
        }
        devices.find(|device| name.is_none_or(|name| device.name() == name)).ok_or_else(|| DeviceError::Unknown {
            name: name.unwrap_or_default().to_owned(),
            present: self.devices().map(|device| device.name()).collect(),
        })
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        if let Some(list) = self.list {
            // SAFETY: the library made the array, and this is its only release. Devices that are open stay alive.
            unsafe { (self.verbs.ibv_free_device_list)(list.as_ptr()) };
        }
    }
}

/// A device of a [`DeviceList`].
#[derive(Clone, Copy)]
pub struct Device<'list> {
    list: &'list DeviceList,
    raw: *mut ibv_device,
}

impl Device<'_> {
    /// The kernel's name of the device, such as `mlx5_0` or `rxe0`.
    pub fn name(&self) -> String {
        // SAFETY: the device is in a list that is alive; its name is a C string inside it.
        unsafe { CStr::from_ptr((self.list.verbs.ibv_get_device_name)(self.raw)) }.to_string_lossy().into_owned()
    }

    /// The node's GUID, as the number that tools print in hexadecimal.
    pub fn guid(&self) -> u64 {
        // SAFETY: the device is in a list that is alive.
        u64::from_be(unsafe { (self.list.verbs.ibv_get_device_guid)(self.raw) })
    }

    /// The library's device, which lives as long as the list.
    pub fn as_raw(&self) -> *mut ibv_device {
        self.raw
    }

    /// Opens the device. The context outlives the list; `ibv_close_device` is the caller's to call.
    pub fn open(&self) -> Result<NonNull<ibv_context>, DeviceError> {
        // SAFETY: the device is in a list that is alive.
        let context = unsafe { (self.list.verbs.ibv_open_device)(self.raw) };
        NonNull::new(context).ok_or_else(|| DeviceError::Open { name: self.name(), error: io::Error::last_os_error() })
    }
}
