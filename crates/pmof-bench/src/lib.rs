//! `pmof bench` and `pmof soak`: what pmof costs beside the floor of the same transport, and whether what it acknowledged
//! survives kills.
#![forbid(unsafe_code)]
// `println!` panics where nobody reads: see `pmof_console::say`.
#![deny(clippy::print_stdout)]

pub mod bench;
pub mod soak;
