//! The judge of power cuts: decides from a ledger, and from the files and devices that a cut left, whether
//! *acknowledged ⊆ recovered ⊆ issued*.
//!
//! It shares no code with pmof. What the loads write is written down in `pattern.md`; the formats of pools are those of
//! docs/design.md, the headers of parts those of PMDK.

#![forbid(unsafe_code)]

pub mod ledger;
pub mod parts;
pub mod pattern;
pub mod pool_file;
pub mod sets;
pub mod states;
pub mod words;
