//! How errors of pools are printed, and errors that become ones of pools: those are in their texts, and `#[from]` would make them sources as well.

use std::fmt;

use pmof_access::SetupError;
use pmof_pool_set::PoolSetError;

use super::PoolError;
use crate::PoolUrlError;

impl From<PoolUrlError> for PoolError {
    fn from(error: PoolUrlError) -> Self {
        Self::Url(error)
    }
}

impl From<SetupError> for PoolError {
    fn from(error: SetupError) -> Self {
        Self::Setup(error)
    }
}

impl From<PoolSetError> for PoolError {
    fn from(error: PoolSetError) -> Self {
        Self::Set(error)
    }
}

/// As it is displayed: a program that returns it from `main` shows that.
impl fmt::Debug for PoolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
