//! How a set is synchronized.

use pmof_mem::Declaration;

/// Options of a synchronization.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct SyncOptions {
    /// What the operator vouches for of the local ones.
    pub declaration: Option<Declaration>,
    /// A dry run: reports what would be changed.
    pub dry_run: bool,
    /// The replica to copy from, by its place in the set, from 0, whatever the others say. `None`: the lowest-numbered sound one, unless
    /// most of the others agree against it.
    pub from: Option<usize>,
}

pmof_mem::setters!(SyncOptions { declaration: impl Into<Option<Declaration>>, dry_run: bool, from: impl Into<Option<usize>> });
