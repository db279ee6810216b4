//! `pmof bench`, `pmof soak` and `pmof chaos`: what pmof costs beside the floor of the same transport, and whether what it
//! acknowledged survives kills, of a whole pool and of its members.
#![forbid(unsafe_code)]
// `println!` panics where nobody reads: see `pmof_console::say`.
#![deny(clippy::print_stdout)]

pub mod bench;
pub mod chaos;
pub mod soak;
