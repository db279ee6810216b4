//! The C interface of librpmem 1.3 on `pmof-pool`: twelve functions, each a few lines.
//!
//! `cargo xtask capi` links this crate into `librpmem.so.1`, which libpmemobj loads for pool sets with remote replicas. `docs/librpmem.md`
//! lists the differences from the original. No function panics across the boundary or aborts.

mod error;
mod log;
mod pool;
mod settings;

pub use error::rpmem_errormsg;
pub use pool::*;
