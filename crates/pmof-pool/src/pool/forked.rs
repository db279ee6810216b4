//! What a child of `fork()` has of its parent's pool: handles that refuse, and that do nothing when they are dropped.

use std::{fmt, mem, sync::Arc};

use super::{Pool, Shared};
use crate::PoolError;

impl Shared {
    /// Before any lock is taken: in a child another thread of the parent may have left it locked for good.
    #[inline]
    pub(super) fn check_process(&self) -> Result<(), PoolError> {
        if self.process.is_current() { Ok(()) } else { Err(PoolError::Forked) }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if !self.0.process.is_current() {
            // What the pool holds is never dropped in a child: it is of threads that are not there, and of connections that are the parent's.
            mem::forget(Arc::clone(&self.0));
        }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Shared");
        shown.field("facts", &self.facts);
        if self.process.is_current() {
            shown.field("open", &self.open);
        }
        shown.finish_non_exhaustive()
    }
}
