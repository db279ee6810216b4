//! A shared library opened at run time, and its errors.

use std::{
    ffi::{CStr, c_void},
    ptr::NonNull,
};

/// The oldest version of rdma-core that has every function that [`crate::Verbs`] requires (2020).
pub const MINIMUM_VERSION: u32 = 28;

/// Why libibverbs and librdmacm cannot be used. Everything except RDMA works regardless.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The dynamic loader does not find the library, or refuses it.
    #[error(
        "cannot load {library}: {reason}; install the RDMA libraries (Debian, Ubuntu: apt install libibverbs1 \
         librdmacm1 ibverbs-providers, where librdmacm1 is librdmacm1t64 from Debian 13 and Ubuntu 24.04 on; Fedora, \
         RHEL: dnf install libibverbs librdmacm)"
    )]
    Library {
        /// The name that was asked for.
        library: String,
        /// The error of the dynamic loader.
        reason: String,
    },
    /// The library lacks a function because it is too old.
    #[error("{library} has no function {symbol}: pmof needs rdma-core {MINIMUM_VERSION} or later; upgrade {library}")]
    Symbol {
        /// The library that was loaded.
        library: String,
        /// The function that it does not export.
        symbol: &'static str,
    },
}

/// A library that stays loaded for the life of the process.
pub(crate) struct Library {
    handle: NonNull<c_void>,
    name: String,
}

impl Library {
    /// Loads the library, or finds it loaded.
    pub(crate) fn open(name: &CStr) -> Result<Self, LoadError> {
        // SAFETY: `name` is a C string. Opening runs the library's constructors; the callers name libraries whose
        // constructors have no conditions.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        let name = name.to_string_lossy().into_owned();
        match NonNull::new(handle) {
            Some(handle) => Ok(Self { handle, name }),
            None => Err(LoadError::Library { library: name, reason: last_error() }),
        }
    }

    /// The address of a function, if the library has it.
    pub(crate) fn find(&self, symbol: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: the handle is one of dlopen's that is never closed, and `symbol` is a C string.
        NonNull::new(unsafe { libc::dlsym(self.handle.as_ptr(), symbol.as_ptr()) })
    }

    /// The address of a function that must be there.
    pub(crate) fn require(&self, symbol: &'static CStr) -> Result<NonNull<c_void>, LoadError> {
        self.find(symbol).ok_or_else(|| LoadError::Symbol {
            library: self.name.clone(),
            symbol: symbol.to_str().unwrap_or("(a name that is not UTF-8)"),
        })
    }
}

/// The dynamic loader's message about this thread's last failure.
fn last_error() -> String {
    // SAFETY: glibc and musl keep the message per thread; it is copied before this thread calls the loader again.
    let message = unsafe { libc::dlerror() };
    if message.is_null() {
        return "the dynamic loader gives no reason".to_owned();
    }
    // SAFETY: a message that is not null is a C string.
    unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned()
}
