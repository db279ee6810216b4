//! Placeholder while the crate is written.
#![forbid(unsafe_code)]
