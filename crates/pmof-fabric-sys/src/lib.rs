//! libfabric for pmof: loaded when first asked for, never linked, so that a machine without it runs everything else.
//!
//! - [`Fabric::load`] finds the library and yields a table of the few functions that it exports, under their own names. What a
//!   call does, takes and returns is in libfabric's manual pages (`man 3 fi_getinfo`), whose names are kept here.
//! - The calls that the headers define inline, as jumps through the tables of an object, are re-made in Rust: [`fi_domain`],
//!   [`fi_cq_read`] and the other free functions. They report as the C calls do, and an operation that a provider does not
//!   have is `-FI_ENOSYS`.
//!
//! Supported are libfabric 1.17 and later, on 64-bit Linux. The structures are written by hand after the headers of libfabric,
//! as far as 1.11, whose interface is asked for, and later ones agree; the test `layout` compares every size, offset, prototype and constant with a C compiler's view of the headers at
//! hand. Structures that the library allocates may be longer than they are here.
//!
//! There are reliable datagram and connected endpoints with messages, and RMA. Atomic operations, tagged messages and counters are not
//! here.

mod calls;
mod constants;
mod library;
mod operations;
mod structures;

pub use calls::*;
pub use constants::*;
pub use library::{API_VERSION, Fabric, LoadError, MINIMUM_VERSION};
pub use operations::*;
pub use structures::*;
