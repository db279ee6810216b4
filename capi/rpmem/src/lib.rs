//! The C interface of librpmem 1.3 on `pmof-replica`: twelve functions, each a few lines.
//!
//! `cargo xtask capi` links this crate into `librpmem.so.1`, which libpmemobj loads for pool sets with remote replicas. What
//! differs from the original is told in `docs/librpmem.md`. No function panics across the boundary, none aborts.

mod error;
mod fork;
mod log;
mod pool;
mod settings;

pub use error::rpmem_errormsg;
pub use pool::*;
