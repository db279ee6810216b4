//! A disk with a volatile write cache, for power-cut tests: an NBD server on a Unix socket that keeps writes in memory
//! until they are flushed and forgets the rest when its client is gone.
//!
//! A killed QEMU leaves all its writes in the host's page cache, so that a missing flush in the guest is not seen. Behind
//! this disk it is.

#![forbid(unsafe_code)]
#![expect(clippy::big_endian_bytes, reason = "NBD is big-endian on the wire")]

mod disk;
mod protocol;
mod server;

pub use disk::{Choice, Cut, CutBefore, Disk, SECTOR_BYTES};
pub use server::{Server, ServerError};
