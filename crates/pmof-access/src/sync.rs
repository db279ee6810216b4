//! The locks, atomics and threads of the modules whose interleavings `tests/shuttle` explores, which puts shuttle's in their place.

pub(crate) use std::{sync::atomic, thread};

pub(crate) use pmof_locks::{Condvar, Mutex, MutexGuard};
