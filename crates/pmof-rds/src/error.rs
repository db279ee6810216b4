//! What can fail, on what, why, and what to do.

use std::{io, net::IpAddr};

use pmof_mem::MediumKind;

/// Why there is no RDS socket.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RdsError {
    /// The kernel has no RDS. All other transports work regardless.
    #[error(
        "this kernel has no RDS: load its modules with `modprobe -a rds rds_rdma` (as root); a kernel built without \
         CONFIG_RDS and CONFIG_RDS_RDMA has none"
    )]
    NoModule {
        /// What the kernel said.
        source: io::Error,
    },
    /// No RDS transport has the address.
    #[error(
        "{address} is no address for RDS: no RDMA device of this machine has it (`rdma link`), or the module rds_rdma is not loaded \
         (`modprobe rds_rdma`)"
    )]
    NoDevice {
        /// The address.
        address: IpAddr,
        /// What the kernel said.
        source: io::Error,
    },
    /// Another socket has the port.
    #[error("the RDS port {port} of {address} is in use: choose another, or 0 for a free one")]
    PortInUse {
        /// The address.
        address: IpAddr,
        /// The port.
        port: u16,
    },
    /// An address of IPv6.
    #[error("IPv6 is not supported over RDS: use an IPv4 address instead of {address}")]
    Ipv6 {
        /// The address.
        address: IpAddr,
    },
    /// The operating system refused a resource.
    #[error("{call} failed for an RDS socket at {address}; see the limits of open files and memory (ulimit -a)")]
    System {
        /// The system call.
        call: &'static str,
        /// The address.
        address: IpAddr,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// Why a datagram did not go.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SendFailure {
    /// The send buffer is full, or the receiver is congested: try again when the socket is writable, or a moment later.
    #[error("RDS takes no more for now")]
    Again,
    /// The kernel says no.
    #[error("RDS does not take it")]
    Kernel(#[source] io::Error),
}

impl SendFailure {
    pub(crate) fn of(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM | libc::EINTR) => Self::Again,
            _ => Self::Kernel(error),
        }
    }
}

/// Why memory is not reachable by RDMA.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// The medium is not mapped memory (a simulation, or one that injects faults).
    #[error("this {kind} is not mapped memory: use messages")]
    NotMapped {
        /// What the medium is.
        kind: MediumKind,
    },
    /// The owner may take the memory back at any time.
    #[error("this {kind} is lent memory, which its owner may take back while a device writes to it: use messages")]
    Lent {
        /// What the medium is.
        kind: MediumKind,
    },
    /// The range is empty, too long or not inside the medium.
    #[error(
        "{len_bytes} bytes at {offset} are not a range of at most {limit} bytes of the medium's {size_bytes} bytes",
        limit = crate::MAP_MAX_BYTES
    )]
    OutOfBounds {
        /// Where the range begins.
        offset: u64,
        /// Its length.
        len_bytes: u64,
        /// The length of the medium.
        size_bytes: u64,
    },
    /// The memory was mapped without the right to write, which RDS asks for whatever is done with it.
    #[error("this {kind} is mapped read-only")]
    ReadOnly {
        /// What the medium is.
        kind: MediumKind,
    },
    /// The message that carries the cookie does not go now.
    #[error("RDS takes no more for now")]
    Again,
    /// The kernel does not register the memory.
    #[error("RDS does not register {len_bytes} bytes of {kind}{why}")]
    Kernel {
        /// What the medium is.
        kind: MediumKind,
        /// Its length.
        len_bytes: u64,
        /// What is known of that, behind a colon; else empty.
        why: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

impl MapError {
    pub(crate) fn kernel(kind: MediumKind, len_bytes: u64, source: io::Error) -> Self {
        Self::Kernel { kind, len_bytes, why: reason(&source), source }
    }
}

/// What is known of an error number.
fn reason(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EOPNOTSUPP) => ": it is a file with direct access (fsdax), whose pages cannot be pinned for long",
        Some(libc::EFAULT) => ": it is a file in the page cache, whose pages cannot be pinned for writing",
        Some(libc::ENOMEM) => ": there is no memory for it",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_what_to_do() {
        let source = || io::Error::from_raw_os_error(libc::EAFNOSUPPORT);
        let text = RdsError::NoModule { source: source() }.to_string();
        assert!(text.contains("modprobe -a rds rds_rdma"), "{text}");
        let address = IpAddr::from([10, 0, 0, 1]);
        let text = RdsError::NoDevice { address, source: source() }.to_string();
        assert!(text.contains("10.0.0.1") && text.contains("rdma link"), "{text}");
        for (errno, words) in
            [(libc::EOPNOTSUPP, "fsdax"), (libc::EFAULT, "page cache"), (libc::EIO, "anonymous memory")]
        {
            let source = io::Error::from_raw_os_error(errno);
            let text = MapError::kernel(MediumKind::Anonymous, 4096, source).to_string();
            assert!(text.contains(words) && text.contains("4096"), "{text}");
        }
    }

    #[test]
    fn what_passes_is_told_from_what_does_not() {
        for (errno, passes) in
            [(libc::EAGAIN, true), (libc::ENOBUFS, true), (libc::EINVAL, false), (libc::EMSGSIZE, false)]
        {
            let failure = SendFailure::of(io::Error::from_raw_os_error(errno));
            assert_eq!(matches!(failure, SendFailure::Again), passes, "{failure:?}");
        }
    }
}
