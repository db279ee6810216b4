//! Mapping of memory and files, the judgement of what they can promise, and cache write-back.
//!
//! Everything above stands on [`Medium`]: [`Memory`] is the real one, [`ShadowMedium`] the one that tests crash.
//! [`probe`] and its siblings say what a path, the CPU and the machine's persistent memory can promise.

mod cache;
mod durability;
mod error;
pub mod faults;
mod file;
mod judge;
mod mapping;
mod medium;
mod memory;
mod probe;
pub mod shadow;
mod socket;
mod sysfs;

pub use cache::{CacheWriteBack, line_bytes};
pub use durability::{Durability, Evidence, Mechanism, Promise};
pub use error::MemError;
pub use medium::{Medium, MediumKind, check_bounds};
pub use memory::{Declaration, LEN_BYTES_MAX, Memory};
pub use probe::{CpuProbe, MediumProbe, probe, probe_cpu};
pub use shadow::ShadowMedium;
pub use sysfs::{PersistenceDomain, RegionProbe, SYSFS_ROOT, probe_regions};
