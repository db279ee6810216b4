//! The table of functions of both libraries.

use std::{ffi::CStr, sync::OnceLock};

pub use crate::bindings::functions::Verbs;
use crate::library::{Library, LoadError};

/// The names by which rdma-core has installed its libraries since their first releases.
const LIBIBVERBS: &CStr = c"libibverbs.so.1";
const LIBRDMACM: &CStr = c"librdmacm.so.1";

impl Verbs {
    /// The functions of libibverbs and librdmacm, which are loaded by the first call and stay loaded.
    ///
    /// Takes about a millisecond the first time. A failure is not kept: the next call tries again, so a program that
    /// runs while the packages are installed need not be restarted.
    pub fn load() -> Result<&'static Self, LoadError> {
        static LOADED: OnceLock<Verbs> = OnceLock::new();
        if let Some(verbs) = LOADED.get() {
            return Ok(verbs);
        }
        // Without a lock, which a process that forks meanwhile would never get back: threads that come at once all find the same.
        Self::open(LIBIBVERBS, LIBRDMACM).map(|verbs| LOADED.get_or_init(|| verbs))
    }

    /// The functions of two libraries by name.
    fn open(libibverbs: &CStr, librdmacm: &CStr) -> Result<Self, LoadError> {
        let libibverbs = Library::open(libibverbs)?;
        let librdmacm = Library::open(librdmacm)?;
        Self::from_libraries(&libibverbs, &librdmacm)
    }
}

/// Makes [`Verbs`] of the prototypes in `bindings/functions.rs`: a field and a look-up for each.
macro_rules! table {
    (
        libibverbs required { $(pub fn $ibverbs:ident($($ia:ident: $it:ty),* $(,)?) $(-> $ir:ty)?;)* }
        libibverbs optional { $(pub fn $option:ident($($oa:ident: $ot:ty),* $(,)?) $(-> $or:ty)?;)* }
        librdmacm required { $(pub fn $rdmacm:ident($($ra:ident: $rt:ty),* $(,)?) $(-> $rr:ty)?;)* }
    ) => {
        /// The functions of libibverbs and librdmacm, each a field by the name of its symbol.
        ///
        /// An `Option` is a function that younger versions of the library have.
        pub struct Verbs {
            $(pub $ibverbs: unsafe extern "C" fn($($ia: $it),*) $(-> $ir)?,)*
            $(pub $option: Option<unsafe extern "C" fn($($oa: $ot),*) $(-> $or)?>,)*
            $(pub $rdmacm: unsafe extern "C" fn($($ra: $rt),*) $(-> $rr)?,)*
        }

        impl Verbs {
            /// The names of the functions that each library must have: libibverbs, then librdmacm.
            #[cfg(test)]
            pub(crate) const REQUIRED: [&[&str]; 2] =
                [&[$(stringify!($ibverbs)),*], &[$(stringify!($rdmacm)),*]];

            pub(crate) fn from_libraries(
                libibverbs: &crate::library::Library,
                librdmacm: &crate::library::Library,
            ) -> Result<Self, crate::library::LoadError> {
                // SAFETY: bindgen made the type of each field from the prototype of that name in the headers.
                Ok(unsafe {
                    Self {
                        $($ibverbs: libibverbs.require(crate::table::c_name(concat!(stringify!($ibverbs), "\0")))?,)*
                        $($option: libibverbs.find(crate::table::c_name(concat!(stringify!($option), "\0"))),)*
                        $($rdmacm: librdmacm.require(crate::table::c_name(concat!(stringify!($rdmacm), "\0")))?,)*
                    }
                })
            }
        }
    };
}
pub(crate) use table;

/// A symbol's name, which the macro ends with a zero byte.
pub(crate) const fn c_name(name: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(name.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("not a symbol's name"),
    }
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
