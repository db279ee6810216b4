//! What the lock for many readers is made of, which `tests/shuttle` puts shuttle's in the place of.

pub(crate) use std::sync::atomic;

pub(crate) use crate::{Condvar, Mutex, MutexGuard};
