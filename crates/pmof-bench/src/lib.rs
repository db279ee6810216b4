//! `pmof bench`, `pmof soak`, `pmof chaos` and `pmof damage`: what pmof costs beside the floor of the same transport, and whether what it
//! acknowledged survives kills, of a whole pool and of its members, and damage to their files.
#![forbid(unsafe_code)]
// `println!` panics where nobody reads: see `pmof_console::say`.
#![deny(clippy::print_stdout)]

pub mod bench;
pub mod chaos;
pub mod damage;
pub mod soak;
