//! What keeps a replicated pool whole: which replicas belong together, who may go on, what is in force, and what one that comes back still lacks.
//!
//! All of it is decided here without an operating system: no thread, lock, clock, socket or random number is this crate's own. What it needs of these is
//! given to it, so that the same input gives the same decisions in a program and in the simulation.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod asking;
pub mod catch_up;
pub mod changing;
pub mod comparing;
pub mod domain;
pub mod electorate;
pub mod epochs;
pub mod following;
pub mod keeper;
pub mod lineage;
pub mod member_state;
#[cfg(test)]
mod member_state_tests;
pub mod membership;
pub mod older_pages;
pub mod opening;
pub mod pages;
pub mod place;
pub mod posting;
pub mod promotion;
pub mod returning;
pub mod roster;
pub mod survey;
pub mod view;
pub mod written;

/// The atomics of the modules whose interleavings `tests/shuttle` explores, which puts shuttle's in their place.
mod sync {
    pub(crate) use core::sync::atomic;
}
