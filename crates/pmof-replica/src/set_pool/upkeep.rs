//! Sets as a whole, with their remote replicas: checked, brought in order, changed.

use pmof_pool::{
    CheckReport, PoolSet, Step, SyncError, SyncOptions, SyncReport, TransformOptions, TransformReport, check, sync,
    transform,
};

use super::{SetPool, SetPoolOptions};
use crate::SshReplicas;

impl SetPool {
    /// Reads every replica of `set` in full and compares it with the first sound one, as [`check`] does; targets are started on the
    /// other machines, and compute digests there. Nothing is changed. `progress` is told how far it is.
    ///
    /// Errors: [`SyncError`], where no replica could be looked at; hosts that are away are in the report.
    pub fn check(
        set: &PoolSet,
        options: &SetPoolOptions,
        progress: &mut dyn FnMut(Step),
    ) -> Result<CheckReport, SyncError> {
        check(set, options.declaration, &mut SshReplicas::new(&options.remote), progress)
    }

    /// Makes all replicas of `set` equal and whole again, as [`sync`] does, those on other machines too.
    ///
    /// Errors: [`SyncError`].
    pub fn sync(
        set: &PoolSet,
        options: &SetPoolOptions,
        how: &SyncOptions,
        progress: &mut dyn FnMut(Step),
    ) -> Result<SyncReport, SyncError> {
        let how = SyncOptions { declaration: how.declaration.or(options.declaration), ..*how };
        sync(set, &how, &mut SshReplicas::new(&options.remote), progress)
    }

    /// Gives the pool of the set `from` the replicas of `to`, as [`transform`] does, those on other machines too.
    ///
    /// Errors: [`SyncError`].
    pub fn transform(
        from: &PoolSet,
        to: &PoolSet,
        options: &SetPoolOptions,
        how: &TransformOptions,
        progress: &mut dyn FnMut(Step),
    ) -> Result<TransformReport, SyncError> {
        let how = TransformOptions { declaration: how.declaration.or(options.declaration), ..how.clone() };
        transform(from, to, &how, &mut SshReplicas::new(&options.remote), progress)
    }
}
