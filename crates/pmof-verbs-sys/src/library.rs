//! A shared library opened at run time, and its errors.

use std::{
    ffi::{CStr, OsStr},
    mem::ManuallyDrop,
    os::unix::ffi::OsStrExt as _,
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
    library: ManuallyDrop<libloading::os::unix::Library>,
    name: String,
}

impl Library {
    /// Loads the library, or finds it loaded.
    pub(crate) fn open(name: &CStr) -> Result<Self, LoadError> {
        let file = OsStr::from_bytes(name.to_bytes());
        // SAFETY: opening runs the library's constructors; the callers name libraries whose constructors have no conditions.
        let opened = unsafe { libloading::os::unix::Library::open(Some(file), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        let name = name.to_string_lossy().into_owned();
        match opened {
            Ok(library) => Ok(Self { library: ManuallyDrop::new(library), name }),
            Err(error) => Err(LoadError::Library { library: name, reason: error.to_string() }),
        }
    }

    /// A function, if the library has it.
    ///
    /// # Safety
    ///
    /// `F` is the type of a pointer to the function of that name.
    pub(crate) unsafe fn find<F: Copy>(&self, symbol: &CStr) -> Option<F> {
        // SAFETY: the type is the function's, by the contract of this one; the library is never unloaded, so that the pointer may outlive `self`.
        unsafe { self.library.get::<F>(symbol.to_bytes_with_nul()) }.ok().map(|function| *function)
    }

    /// A function that must be there.
    ///
    /// # Safety
    ///
    /// `F` is the type of a pointer to the function of that name.
    pub(crate) unsafe fn require<F: Copy>(&self, symbol: &'static CStr) -> Result<F, LoadError> {
        // SAFETY: the type is the function's, by the contract of this one.
        unsafe { self.find(symbol) }.ok_or_else(|| LoadError::Symbol {
            library: self.name.clone(),
            symbol: symbol.to_str().unwrap_or("(a name that is not UTF-8)"),
        })
    }
}
