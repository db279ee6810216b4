//! The library opened at run time, and its errors.

use std::{
    ffi::{CStr, OsStr, c_char, c_int, c_void},
    mem::{ManuallyDrop, MaybeUninit},
    os::unix::ffi::OsStrExt as _,
    ptr,
    sync::OnceLock,
};

use crate::structures::{fi_fabric_attr, fi_info, fid_fabric};

/// The name by which libfabric has installed itself since its first release.
const LIBFABRIC: &CStr = c"libfabric.so.1";

/// The oldest version that pmof uses: 1.17 (2022), the oldest that was seen to keep peers to their rights. The tcp of 1.11 carries out
/// operations for which a peer has no right.
pub const MINIMUM_VERSION: (u16, u16) = (1, 17);

/// The version of the interface that pmof asks the library for, 1.11, as `FI_VERSION` makes it.
pub const API_VERSION: u32 = fi_version_of((1, 11));

const fn fi_version_of((major, minor): (u16, u16)) -> u32 {
    (major as u32) << 16 | minor as u32
}

/// Why libfabric cannot be used. All other transports work regardless.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The dynamic loader does not find the library, or rejects it.
    #[error(
        "cannot load {library}: {reason}; install libfabric (Debian, Ubuntu: apt install libfabric1; Fedora, RHEL: dnf \
         install libfabric)"
    )]
    Library {
        /// The name that was asked for.
        library: String,
        /// The error of the dynamic loader.
        reason: String,
    },
    /// The library lacks a function.
    #[error("{library} has no function {symbol}, so it is not libfabric: reinstall libfabric")]
    Symbol {
        /// The library that was loaded.
        library: String,
        /// The function that it does not export.
        symbol: &'static str,
    },
    /// The library is too old.
    #[error(
        "{library} is version {major}.{minor}: pmof needs libfabric 1.17 or later; upgrade libfabric (Debian, Ubuntu: apt install \
         libfabric1; Fedora, RHEL: dnf upgrade libfabric)"
    )]
    TooOld {
        /// The library that was loaded.
        library: String,
        /// Its major version.
        major: u16,
        /// Its minor version.
        minor: u16,
    },
}

/// The functions of libfabric, each a field by the name of its symbol. All other calls go through the tables of the objects
/// that these return.
#[allow(missing_docs, reason = "documented by the manual pages of libfabric")]
pub struct Fabric {
    pub fi_getinfo:
        unsafe extern "C" fn(u32, *const c_char, *const c_char, u64, *const fi_info, *mut *mut fi_info) -> c_int,
    pub fi_freeinfo: unsafe extern "C" fn(*mut fi_info),
    pub fi_dupinfo: unsafe extern "C" fn(*const fi_info) -> *mut fi_info,
    pub fi_fabric: unsafe extern "C" fn(*mut fi_fabric_attr, *mut *mut fid_fabric, *mut c_void) -> c_int,
    pub fi_strerror: unsafe extern "C" fn(c_int) -> *const c_char,
    pub fi_version: unsafe extern "C" fn() -> u32,
}

impl Fabric {
    /// The functions of libfabric, which the first call loads, for the life of the process.
    ///
    /// A failure is not kept: the next call tries again, so a program that runs while the package is installed need not be
    /// restarted.
    pub fn load() -> Result<&'static Self, LoadError> {
        static LOADED: OnceLock<Fabric> = OnceLock::new();
        if let Some(fabric) = LOADED.get() {
            return Ok(fabric);
        }
        // Without a lock, which a process that forks meanwhile would never get back: threads that come at once all find the same.
        Self::open(LIBFABRIC).map(|fabric| LOADED.get_or_init(|| fabric))
    }

    /// The version of the library: major and minor.
    pub fn version(&self) -> (u16, u16) {
        // SAFETY: the function has no conditions.
        let version = unsafe { (self.fi_version)() };
        ((version >> 16) as u16, version as u16)
    }

    /// The functions of a library by name.
    ///
    /// All are taken in the library's default symbol version, so that one version allocates and reads every structure:
    /// versions append fields, and what is read here lies before them.
    fn open(name: &CStr) -> Result<Self, LoadError> {
        let library = Library::open(name)?;
        // SAFETY: the type of each field is the prototype of that name in the headers, which the layout test compares.
        let fabric = unsafe {
            Self {
                fi_getinfo: library.require(c"fi_getinfo")?,
                fi_freeinfo: library.require(c"fi_freeinfo")?,
                fi_dupinfo: library.require(c"fi_dupinfo")?,
                fi_fabric: library.require(c"fi_fabric")?,
                fi_strerror: library.require(c"fi_strerror")?,
                fi_version: library.require(c"fi_version")?,
            }
        };
        let (major, minor) = fabric.version();
        if (major, minor) < MINIMUM_VERSION {
            return Err(LoadError::TooOld { library: library.name, major, minor });
        }
        Ok(fabric)
    }
}

/// A library that stays loaded for the life of the process.
struct Library {
    library: ManuallyDrop<libloading::os::unix::Library>,
    name: String,
}

impl Library {
    /// Loads the library, or finds it loaded.
    fn open(name: &CStr) -> Result<Self, LoadError> {
        let file = OsStr::from_bytes(name.to_bytes());
        let handlers = SignalHandlers::now();
        // SAFETY: opening runs the library's constructors; the callers name libraries whose constructors have no conditions.
        let opened = unsafe { libloading::os::unix::Library::open(Some(file), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        handlers.restore();
        let name = name.to_string_lossy().into_owned();
        match opened {
            Ok(library) => Ok(Self { library: ManuallyDrop::new(library), name }),
            Err(error) => Err(LoadError::Library { library: name, reason: error.to_string() }),
        }
    }

    /// A function that must be there.
    ///
    /// # Safety
    ///
    /// `F` is the type of a pointer to the function of that name.
    unsafe fn require<F: Copy>(&self, symbol: &'static CStr) -> Result<F, LoadError> {
        // SAFETY: the type is the function's, by the contract of this one; the library is never unloaded, so that the pointer may outlive `self`.
        let function = unsafe { self.library.get::<F>(symbol.to_bytes_with_nul()) };
        function.map(|function| *function).map_err(|_| LoadError::Symbol {
            library: self.name.clone(),
            symbol: symbol.to_str().unwrap_or("(a name that is not UTF-8)"),
        })
    }
}

/// What this process does on each signal, by the signal's number.
///
/// Constructors of libfabric (of its providers psm3 and opx) take SIGILL, SIGABRT, SIGBUS, SIGSEGV and SIGTERM over, which belong to the
/// program: their handlers write files and end the process otherwise than the program would.
struct SignalHandlers(Vec<Option<libc::sigaction>>);

impl SignalHandlers {
    /// The standard signals; real-time signals have no meaning of their own that a library could take over.
    const COUNT: c_int = 32;

    fn now() -> Self {
        Self((0..Self::COUNT).map(Self::of).collect())
    }

    fn of(signal: c_int) -> Option<libc::sigaction> {
        let mut action = MaybeUninit::<libc::sigaction>::uninit();
        // SAFETY: there is room for what is asked, and nothing is changed.
        let status = unsafe { libc::sigaction(signal, ptr::null(), action.as_mut_ptr()) };
        // SAFETY: the call has filled it in.
        (status == 0).then(|| unsafe { action.assume_init() })
    }

    /// Undoes what was changed since.
    fn restore(&self) {
        for (signal, before) in (0..).zip(&self.0) {
            let is_changed =
                |before: &&libc::sigaction| Self::of(signal).is_some_and(|now| now.sa_sigaction != before.sa_sigaction);
            if let Some(before) = before.as_ref().filter(is_changed) {
                // SAFETY: the action was in force, set by whoever answers for its handler.
                unsafe { libc::sigaction(signal, before, ptr::null_mut()) };
            }
        }
    }
}

#[cfg(test)]
#[path = "library_tests.rs"]
mod tests;
