//! The transport between processes of one host: the target hands over descriptors of its memory, the initiator maps them.
//!
//! A Unix socket carries the same stream of bytes as TCP. Beside it lies a pair of sockets, the control channel, on which
//! either side asks for the memory behind a region's key and is answered with two descriptors: the memory, and a page
//! whose first word tells whether the region is still registered. Until that answer is there operations go as messages;
//! from then on this side's CPU carries them out by itself.
//!
//! What is enforced: only processes of the target's user, or root, connect. Where a region grants neither writes nor
//! atomics the descriptor allows no writable mapping. The descriptor gives the whole file or allocation, by pages, whatever
//! part of it the region is, and a writable mapping can also be read: processes of one user are not protected from each
//! other by Linux, and this transport does not add what is not there.
//!
//! Deregistering cannot unmap memory elsewhere: an initiator looks at the page before each operation, so one that is under
//! way just then still takes effect. It looks again behind each flush, so that what it reports as flushed was flushed while the region was
//! there: a target that takes memory away from one initiator for another copies it after the word is set, and has all of that. The death of a target is seen when the queue is driven, and at the latest
//! with every [`LOOK_EVERY`](wire::LOOK_EVERY)th batch.

mod control;
mod direct;
mod incoming;
mod opening;
mod process;
pub(crate) mod shares;
mod wire;

pub(crate) use opening::Shm;
pub use process::PeerProcess;
