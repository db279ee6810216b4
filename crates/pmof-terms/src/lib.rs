//! Terms that all layers share, down to the engine that decides without an operating system: levels of durability, promises, kinds of media.
#![no_std]
#![forbid(unsafe_code)]

mod access;
mod durability;
mod kind;

pub use access::OpenFor;
pub use durability::{Declaration, Durability, Evidence, Mechanism, Promise};
pub use kind::MediumKind;

/// What the header of a native pool begins with.
pub const NATIVE_MAGIC: [u8; 8] = *b"PMOFPOOL";
