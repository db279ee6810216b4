//! What can fail, on what, why, and what to do.

use std::io;

use pmof_mem::MediumKind;
use pmof_verbs_sys::{DeviceError, LoadError};

/// Why a device, a connection or one of their objects cannot be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// libibverbs or librdmacm is missing or too old. Everything but RDMA works all the same.
    #[error(transparent)]
    Library(#[from] LoadError),
    /// There is no device, or not the one that was asked for.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// There are several devices, and none was named.
    #[error("this machine has several RDMA devices, name one: {}", present.join(", "))]
    SeveralDevices {
        /// The names.
        present: Vec<String>,
    },
    /// The kernel's connection manager cannot be opened.
    #[error(
        "cannot open the RDMA connection manager; load it (modprobe rdma_ucm) and check the rights on \
         /dev/infiniband/rdma_cm"
    )]
    NoConnectionManager(#[source] io::Error),
    /// No RDMA device carries the local address, or leads to the remote one.
    #[error("no RDMA device for {address}; `rdma link` shows the devices, `ip addr` their addresses")]
    NoDeviceFor {
        /// The address.
        address: String,
        /// What the kernel says.
        #[source]
        error: io::Error,
    },
    /// The identifier belongs to no device yet.
    #[error(
        "the connection identifier belongs to no device yet: bind it to a local address or resolve a remote one first"
    )]
    NotBound,
    /// The connection has no queue pair, and it needs one by now.
    #[error("the connection identifier has no queue pair: create one before connecting or accepting")]
    NoQueuePair,
    /// Two objects of different devices were put together.
    #[error("{what} belongs to another RDMA device than the rest: make all of them on one device")]
    OtherDevice {
        /// What does not fit.
        what: &'static str,
    },
    /// A number is out of range.
    #[error("{what} is {value}, allowed is {least} to {most}")]
    OutOfRange {
        /// What the number is.
        what: &'static str,
        /// What was given.
        value: u64,
        /// The least that is allowed.
        least: u64,
        /// The most that is allowed.
        most: u64,
    },
    /// A call failed.
    #[error("{call} failed on {on}{mend}")]
    Call {
        /// The function of libibverbs or librdmacm.
        call: &'static str,
        /// The device or address.
        on: String,
        /// What it said.
        #[source]
        error: io::Error,
        /// What to do, after a semicolon; empty where nothing is known to help.
        mend: &'static str,
    },
}

impl VerbsError {
    /// True where this machine has no RDMA at all, as far as this process can see.
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::Library(_) | Self::Device(DeviceError::None) | Self::NoConnectionManager(_))
    }

    /// The error of a call, with what is known to help.
    pub(crate) fn call(call: &'static str, on: impl Into<String>, error: io::Error) -> Self {
        let mend = match error.raw_os_error() {
            Some(libc::EADDRINUSE) => "; another listener has the port: choose another one, or port 0 for any",
            Some(libc::EADDRNOTAVAIL) => "; no interface of this machine has the address (`ip addr`)",
            Some(libc::ENETUNREACH | libc::EHOSTUNREACH) => "; check the route (`ip route get`)",
            Some(libc::ENODEV) => "; no RDMA device carries the address (`rdma link`), or the device was removed",
            Some(libc::ENOMEM) => "; the device has no more room for such an object, or memlock is too low (ulimit -l)",
            Some(libc::EACCES | libc::EPERM) => "; check the rights on /dev/infiniband/*",
            Some(libc::EBADF) => "; the program has closed the descriptor, which is the library's to close",
            _ => "",
        };
        Self::Call { call, on: on.into(), error, mend }
    }

    /// The error of a call that set `errno`.
    pub(crate) fn last(call: &'static str, on: impl Into<String>) -> Self {
        Self::call(call, on, io::Error::last_os_error())
    }
}

/// Why memory cannot be registered with a device.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// The medium is no mapped memory (a simulation, or one that injects faults).
    #[error("this {kind} is not mapped memory, so no device can reach it: use a transport of messages")]
    NotMapped {
        /// What the medium is.
        kind: MediumKind,
    },
    /// The range is empty or not inside the medium.
    #[error("{len_bytes} bytes at {offset} are not a range of the medium's {size_bytes} bytes")]
    OutOfBounds {
        /// Where the range begins.
        offset: u64,
        /// How long it is.
        len_bytes: u64,
        /// How long the medium is.
        size_bytes: u64,
    },
    /// The memory was mapped for reading and the access includes writes.
    #[error("the {kind} was opened for reading, so the device may not write it: open it for writing")]
    ReadOnly {
        /// What the medium is.
        kind: MediumKind,
    },
    /// The process may not lock that much memory.
    #[error(
        "registering {len_bytes} bytes exceeds what this process may lock ({limit}): raise it with `ulimit -l`, \
         LimitMEMLOCK= of the systemd unit or /etc/security/limits.conf, or grant CAP_IPC_LOCK"
    )]
    LockLimit {
        /// The length of the range.
        len_bytes: u64,
        /// The limit, in words.
        limit: String,
    },
    /// The kernel has no memory for the registration, though the limit allows it.
    #[error("the kernel has no memory to register {len_bytes} bytes with {device}: free some, or register less")]
    NoMemory {
        /// The length of the range.
        len_bytes: u64,
        /// The device.
        device: String,
    },
    /// The medium cannot be pinned for long, which a device without on-demand paging needs.
    #[error(
        "a {kind} cannot be registered with {device}: the file system must be able to move its blocks, so the kernel \
         does not pin them, and the device pages nothing in on demand; use a devdax namespace (ndctl create-namespace -m \
         devdax), or send-after-write, which needs no registration of the pool"
    )]
    CannotPin {
        /// What the medium is.
        kind: MediumKind,
        /// The device.
        device: String,
    },
    /// The kernel does not let a device write pages of a cached file.
    #[error(
        "a {kind} cannot be registered with {device} for writing: the kernel does not pin pages that a file system \
         writes back; use a devdax namespace or tmpfs, or send-after-write, which needs no registration of the pool"
    )]
    PageCached {
        /// What the medium is.
        kind: MediumKind,
        /// The device.
        device: String,
    },
    /// The kernel does not know the memory as persistent.
    #[error(
        "{device} refuses to flush this {kind} to persistence: the kernel does not list it as persistent memory (an \
         NVDIMM's or CXL device's devdax); register it without FLUSH_PERSISTENT and flush by messages"
    )]
    NotPersistent {
        /// What the medium is.
        kind: MediumKind,
        /// The device.
        device: String,
    },
    /// The device has no native flush, or no on-demand paging.
    #[error("{device} does not have {what}: register without it")]
    Unsupported {
        /// The device.
        device: String,
        /// What it lacks.
        what: &'static str,
    },
    /// Anything else that the kernel says.
    #[error("ibv_reg_mr of {len_bytes} bytes of a {kind} failed on {device}")]
    Other {
        /// The length of the range.
        len_bytes: u64,
        /// What the medium is.
        kind: MediumKind,
        /// The device.
        device: String,
        /// What the kernel says.
        #[source]
        error: io::Error,
    },
}

impl RegisterError {
    /// True where the medium is the reason, whatever the device: the CPU can still reach it.
    pub fn is_of_the_memory(&self) -> bool {
        matches!(
            self,
            Self::NotMapped { .. } | Self::CannotPin { .. } | Self::PageCached { .. } | Self::NotPersistent { .. }
        )
    }

    /// True where only the persistent flush is refused: without `FLUSH_PERSISTENT` the same range may be registered.
    pub fn is_of_persistence(&self) -> bool {
        matches!(self, Self::NotPersistent { .. })
    }
}

/// Why a batch of work requests was not posted. Nothing of the batch was, except where [`PostFailure::Partial`] says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PostFailure {
    /// The send queue has no room for the batch. Take completions, then post again.
    #[error("the send queue is full: take completions first")]
    QueueFull,
    /// The queue pair was made without this operation; its `has_flush` and `has_atomic_write` say so.
    #[error("the queue pair has no {operation}")]
    Unsupported {
        /// The operation.
        operation: &'static str,
    },
    /// More inline bytes than the queue pair takes.
    #[error("{len_bytes} inline bytes, the queue pair takes {max_bytes}: send them from a region")]
    InlineTooLong {
        /// What the request has.
        len_bytes: u32,
        /// What the queue pair takes.
        max_bytes: u32,
    },
    /// What the provider says otherwise: an `errno` value.
    #[error("posting failed: {}", io::Error::from_raw_os_error(*errno))]
    Provider {
        /// The number.
        errno: i32,
    },
    /// `ibv_post_send` stopped inside the batch. The rest was not posted; of the first ones nobody knows unless they
    /// complete: give the queue pair up.
    #[error(
        "posting stopped after {posted} requests of a batch: {}; close the connection, their outcome is unknown",
        io::Error::from_raw_os_error(*errno)
    )]
    Partial {
        /// How many requests may have been posted, at least 1.
        posted: usize,
        /// What the provider says of the next one: an `errno` value.
        errno: i32,
    },
}

impl PostFailure {
    /// What the provider says of a batch of which nothing was posted.
    #[cold]
    pub(crate) fn of(errno: i32) -> Self {
        match errno {
            // Providers differ in which they say.
            libc::ENOMEM | libc::ENOSPC => Self::QueueFull,
            errno => Self::Provider { errno },
        }
    }

    #[cold]
    pub(crate) fn inline_too_long(len: usize, max_len: usize) -> Self {
        let len_bytes = u32::try_from(len).unwrap_or(u32::MAX);
        Self::InlineTooLong { len_bytes, max_bytes: max_len as u32 }
    }
}

/// Why receives were not posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{posted} receives were posted, the next one failed: {}", io::Error::from_raw_os_error(*errno))]
#[non_exhaustive]
pub struct ReceiveFailure {
    /// How many of the list were posted.
    pub posted: usize,
    /// What the provider says of the next one: an `errno` value, `ENOMEM` where the queue is full.
    pub errno: i32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_is_distinguished_from_other_failures() {
        assert_eq!(PostFailure::of(libc::ENOMEM), PostFailure::QueueFull);
        assert_eq!(PostFailure::of(libc::ENOSPC), PostFailure::QueueFull);
        assert_eq!(PostFailure::of(libc::EINVAL), PostFailure::Provider { errno: libc::EINVAL });
    }
}
