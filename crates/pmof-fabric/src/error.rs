//! What can fail, on what, why, and what to do.

use std::{ffi::CStr, fmt, net::IpAddr};

use pmof_fabric_sys as sys;
use pmof_fabric_sys::{Fabric, LoadError};
use pmof_mem::MediumKind;

use crate::kind::EndpointKind;

/// Why a provider, an endpoint or one of their objects cannot be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FabricError {
    /// libfabric is missing or too old. All other transports work regardless.
    #[error(transparent)]
    Library(#[from] LoadError),
    /// No provider of this machine has what pmof needs.
    #[error(
        "libfabric {major}.{minor} has no {provider} with {kind} endpoints, messages, RMA and ordered delivery \
         {}; `pmof doctor` lists what it has",
        place(*address)
    )]
    NoProvider {
        /// Which provider was asked for.
        provider: String,
        /// What kind of endpoints.
        kind: EndpointKind,
        /// At which address of this machine, if at one.
        address: Option<IpAddr>,
        /// The library's version.
        major: u16,
        /// The library's version.
        minor: u16,
    },
    /// The provider is there, without something that pmof needs.
    #[error(
        "libfabric {major}.{minor}'s {provider} lacks {lacks}: pmof needs {kind} endpoints with messages, RMA and ordered delivery; \
         use another provider (`pmof doctor` lists them)"
    )]
    Lacking {
        /// The provider.
        provider: String,
        /// What it lacks, with the names of libfabric's constants.
        lacks: String,
        /// What kind of endpoints were asked for.
        kind: EndpointKind,
        /// The library's version.
        major: u16,
        /// The library's version.
        minor: u16,
    },
    /// The provider exists and is not used.
    #[error("the provider {provider} is not supported: {why}")]
    Unsupported {
        /// The provider.
        provider: String,
        /// Why not.
        why: &'static str,
    },
    /// The provider keeps memory registered that is registered no more, with all rights, for the next one who registers it.
    #[error(
        "{provider} keeps what was registered within reach of peers, and gives them all rights: set FI_MR_CACHE_MAX_COUNT=0 before the \
         program starts"
    )]
    CachesRegistrations {
        /// The provider.
        provider: String,
    },
    /// An address of this machine belongs to another device than the one that is open.
    #[error("{address} belongs to {theirs} over {provider}, and {ours} is open: open the peer at that address")]
    OtherDevice {
        /// The address.
        address: IpAddr,
        /// The provider.
        provider: String,
        /// The device that is open.
        ours: String,
        /// The device of the address.
        theirs: String,
    },
    /// The provider makes completion queues for as many peers as `FI_UNIVERSE_SIZE` says, of more entries than the device has.
    #[error(
        "{provider} makes a completion queue for FI_UNIVERSE_SIZE={universe_size} peers, which {device} has no room for: set \
         FI_UNIVERSE_SIZE=32 before the program starts (a connection has one peer; soft-RoCE has 32,767 entries a queue)"
    )]
    QueueTooLong {
        /// The provider.
        provider: String,
        /// The device.
        device: String,
        /// The variable's value, else the library's default.
        universe_size: String,
        /// What it said.
        #[source]
        error: Failure,
    },
    /// A call failed.
    #[error("{call} failed on {on}{mend}")]
    Call {
        /// The function of libfabric.
        call: &'static str,
        /// The provider or address.
        on: String,
        /// What it said.
        #[source]
        error: Failure,
        /// What to do, after a semicolon; empty where nothing is known to help.
        mend: &'static str,
    },
}

fn place(address: Option<IpAddr>) -> String {
    address.map_or_else(|| "here".to_owned(), |address| format!("at {address}"))
}

impl FabricError {
    pub(crate) fn call(fabric: &Fabric, call: &'static str, on: impl Into<String>, status: i64) -> Self {
        let error = Failure::of(fabric, status);
        let mend = match error.errno {
            libc::EADDRINUSE => "; another endpoint has the address",
            libc::EADDRNOTAVAIL => "; no interface of this machine has the address (`ip addr`)",
            libc::ENOMEM => "; the provider has no more room, or memlock is too low (ulimit -l)",
            libc::EMFILE | libc::ENFILE => "; there are too many open files (ulimit -n)",
            _ => "",
        };
        Self::Call { call, on: on.into(), error, mend }
    }
}

/// What libfabric says of a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The number in `fi_errno.h`, positive.
    pub errno: i32,
    /// The library's or provider's words.
    pub text: String,
}

impl Failure {
    pub(crate) fn of(fabric: &Fabric, status: i64) -> Self {
        let errno = i32::try_from(status.abs()).unwrap_or(i32::MAX);
        // SAFETY: the function takes any number and returns a string that lasts until this thread's next call, or null.
        let text = unsafe {
            let text = (fabric.fi_strerror)(errno);
            if text.is_null() { String::new() } else { CStr::from_ptr(text).to_string_lossy().into_owned() }
        };
        Self { errno, text }
    }

    /// Whether the peer's provider said that it does not carry the operation out: a wrong key, right or range. Some providers
    /// break the connection instead.
    pub fn is_refusal(&self) -> bool {
        matches!(self.errno, libc::EACCES | libc::EPERM | libc::EREMOTEIO | sys::FI_ENOKEY)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (error {})", self.text, self.errno)
    }
}

impl std::error::Error for Failure {}

/// Why memory cannot be registered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// The medium is not mapped memory (a simulation, or one that injects faults).
    #[error("this {kind} is not mapped memory: use messages")]
    NotMapped {
        /// What the medium is.
        kind: MediumKind,
    },
    /// The owner may take the memory back at any time.
    #[error(
        "this {kind} is lent memory, which its owner may take back while a provider receives into it: use messages"
    )]
    Lent {
        /// What the medium is.
        kind: MediumKind,
    },
    /// The range is empty or not inside the medium.
    #[error("{len_bytes} bytes at {offset} are not a range of the medium's {size_bytes} bytes")]
    OutOfBounds {
        /// Where the range begins.
        offset: u64,
        /// Its length.
        len_bytes: u64,
        /// The length of the medium.
        size_bytes: u64,
    },
    /// The memory was mapped without the right to write.
    #[error("this {kind} is mapped read-only")]
    ReadOnly {
        /// What the medium is.
        kind: MediumKind,
    },
    /// Another region has the key.
    #[error("the key {key:#x} is in use")]
    KeyInUse {
        /// The key.
        key: u64,
    },
    /// A limit is reached: of the provider's or device's regions, or of the memory that this process may lock.
    #[error(
        "{provider} has no room to register {len_bytes} bytes of {kind}: allow more locked memory (ulimit -l unlimited, LimitMEMLOCK= of the \
         systemd unit), or register fewer regions"
    )]
    NoRoom {
        /// The provider.
        provider: String,
        /// What the medium is.
        kind: MediumKind,
        /// Its length.
        len_bytes: u64,
        /// What it said.
        #[source]
        error: Failure,
    },
    /// The provider says no.
    #[error("the provider {provider} does not register {len_bytes} bytes of {kind}")]
    Provider {
        /// The provider.
        provider: String,
        /// What the medium is.
        kind: MediumKind,
        /// Its length.
        len_bytes: u64,
        /// What it said.
        #[source]
        error: Failure,
    },
}

/// Why an operation was not posted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PostFailure {
    /// The provider has no room now, or still connects: try again after the next completions were taken.
    #[error("the provider has no room for it now")]
    Again,
    /// No peer was named yet.
    #[error("the endpoint has no peer")]
    NoPeer,
    /// The provider says no.
    #[error("the provider does not take it")]
    Provider(#[source] Failure),
}
