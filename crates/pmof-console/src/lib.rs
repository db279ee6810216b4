//! What the commands of pmof share: how they print, the words of their options, and targets that they start themselves.
#![forbid(unsafe_code)]
// `println!` panics where nobody reads: see `output::print`.
#![deny(clippy::print_stdout)]

pub mod children;
pub mod failure;
pub mod interrupt;
pub mod limits;
pub mod output;
pub mod ratios;
pub mod reach;
pub mod scratch;
pub mod trust;
pub mod words;
