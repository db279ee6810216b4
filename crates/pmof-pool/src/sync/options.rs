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

impl SyncOptions {
    /// Sets [`declaration`](Self#structfield.declaration).
    #[must_use]
    pub fn declaration(mut self, declaration: impl Into<Option<Declaration>>) -> Self {
        self.declaration = declaration.into();
        self
    }

    /// Sets [`dry_run`](Self#structfield.dry_run).
    #[must_use]
    pub fn dry_run(mut self, dry_run: bool) -> Self {
        self.dry_run = dry_run;
        self
    }

    /// Sets [`from`](Self#structfield.from).
    #[must_use]
    pub fn from(mut self, from: impl Into<Option<usize>>) -> Self {
        self.from = from.into();
        self
    }
}
