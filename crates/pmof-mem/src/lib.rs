//! Mapping of memory and files, the judgement of what they can promise, and cache write-back.
//!
//! All layers above use [`Medium`]: [`Memory`] is the real one, [`ShadowMedium`] is for crash tests.
//! [`probe`] and its siblings say what a path, the CPU and the machine's persistent memory can promise.

mod answers;
mod borrowed;
mod bounds;
mod bus_error;
mod cache;
mod causes;
mod cycles;
mod dirty_pages;
mod error;
mod extents;
pub mod faults;
mod file;
mod flush;
pub mod forks;
mod handout;
mod health;
mod holes;
mod judge;
mod lent;
mod limits;
mod mapper;
mod mapping;
mod medium;
mod members;
mod memory;
mod mounts;
mod named;
pub mod order;
mod overlay;
mod part_flush;
mod parts;
mod probe;
mod region;
mod setters;
mod settle;
pub mod shadow;
mod socket;
mod stack;
mod survey;
mod sync_calls;
mod sysfs;
mod system;

pub use bounds::check_bounds;
pub use cache::{CacheWriteBack, line_bytes};
pub use causes::{Causes, causes};
pub use cycles::cycles;
pub use error::MemError;
pub use handout::{HandOut, is_mapped_for_writing, open_again};
pub use health::{BadBlocks, Modules, bad_blocks, modules_below};
pub use lent::Lent;
pub use limits::survive_file_size_limit;
pub use medium::Medium;
pub use memory::{HeldAddresses, LEN_BYTES_MAX, Memory};
pub use named::{open_to_append, open_to_read};
pub use parts::{ExistingFile, FilePart, NewFile};
pub use pmof_terms::{Declaration, Durability, Evidence, Mechanism, MediumKind, Promise};
pub use probe::{CpuProbe, MediumProbe, probe, probe_cpu};
pub use region::{NdBus, PersistenceDomain, RegionPower, RegionProbe};
pub use settle::Settled;
pub use shadow::ShadowMedium;
pub use survey::{DaxProbe, MountProbe, probe_anonymous, probe_dax_devices, probe_mounts};
pub use sysfs::{SYSFS_ROOT, probe_regions};
pub use system::System;
