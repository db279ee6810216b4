//! A model of a processor's caches in front of persistent memory.
//!
//! A store reaches the *live* memory at once, which is what the machine's programs see. It reaches the *medium*, which is
//! what a power cut leaves, only when its cache line is written back: by `clwb` or `clflushopt` and a fence, by
//! `clflush`, or by a store that goes past the caches and a fence. The rules are those of the Intel 64 and IA-32
//! Architectures Software Developer's Manual, volume 2, at those instructions.
//!
//! This crate holds what needs no machine: the model, the decoder of the instructions that matter, the walk of the page
//! tables, the plugin's options and counters, and the choice of what survives a cut. `cache-model-plugin` puts them into
//! QEMU.

#![forbid(unsafe_code)]

mod counters;
mod decode;
mod model;
mod options;
mod survivors;
mod walk;

pub use counters::{COUNTERS_BYTES, Counter, Counters, CountersError};
pub use decode::{Address, Effect, Segment, decode};
pub use model::{LINE_BYTES, Memory, Model};
pub use options::{CutAfter, Domain, Inbound, Locked, Options, OptionsError, RangeOptions};
pub use survivors::{Choice, Outcome, SurvivorsError, Tear, data_extents, survivors};
pub use walk::{PageTables, translate};
