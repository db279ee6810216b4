//! The conformance suite of the access layer: written once, run on every transport.
//!
//! A new transport is an implementation of [`fabric::Fabric`] and one more entry in the list at the end; those that need a
//! device have a list of their own in `verbs`. What needs a virtual clock or real threads and sockets is in `simulated` and
//! `sockets`.

mod completions;
mod connecting;
mod ending;
mod fabric;
mod fabrics;
mod flushing;
mod media;
mod messages;
mod pair;
mod regions;
mod relay;
mod simulated;
mod sockets;
mod suite;
#[path = "../support/mod.rs"]
mod support;
mod transfers;

suite::suite!([tcp: Tcp, shm: Shm, sim: Sim]);
