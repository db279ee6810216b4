//! Mapping of memory and files, the judgement of what they can promise, and cache write-back.

mod durability;
mod error;
mod medium;

pub use durability::{Durability, Evidence, Mechanism, Promise};
pub use error::MemError;
pub use medium::{Medium, MediumKind, check_bounds};
