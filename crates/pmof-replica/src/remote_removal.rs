//! Removal in two steps: what can fail is found out in the first, on all targets, before anything goes in the second.

use crate::{
    PoolError, ReplicaError, SetName, TargetOptions, TargetUrl,
    control::{Reply, Request},
    set_replica::SetReplica,
    target::TargetConnection,
};

/// The pool of a target's pool set that is about to be removed: its parts are found and locked there until this is carried out, or
/// dropped.
#[derive(Debug)]
pub struct RemoteRemoval {
    url: TargetUrl,
    set: SetName,
    options: TargetOptions,
    target: TargetConnection,
    force: bool,
    set_file: bool,
}

impl RemoteRemoval {
    /// Has the target find and lock the parts of `set`, and its file, which goes too with `set_file`; with `force` also where parts
    /// are missing or damaged. Nothing is changed.
    ///
    /// Errors: [`PoolError::Replica`], also of a target that is too old to be asked.
    pub fn prepare(
        url: &TargetUrl,
        set: &SetName,
        force: bool,
        set_file: bool,
        options: &TargetOptions,
    ) -> Result<Self, PoolError> {
        let replica = SetReplica { index: None, target: url, set, options };
        let target = options.reach(url).map_err(|error| replica.failed(error))?;
        match target.ask(&Request::PrepareRemoval { name: set.clone(), force, set_file }) {
            Ok(Reply::Removable) => {
                let (url, set, options) = (url.clone(), set.clone(), options.clone());
                Ok(Self { url, set, options, target, force, set_file })
            }
            Ok(_) => Err(replica.failed(ReplicaError::Unexpected)),
            Err(error) => Err(replica.failed(error)),
        }
    }

    /// Removes it, durably.
    pub fn carry_out(self) -> Result<(), PoolError> {
        let Self { url, set, options, target, force, set_file } = self;
        let replica = SetReplica { index: None, target: &url, set: &set, options: &options };
        match target.ask(&Request::RemoveSet { name: set.clone(), force, set_file }) {
            Ok(Reply::Removed) => Ok(()),
            Ok(_) => Err(replica.failed(ReplicaError::Unexpected)),
            Err(error) => Err(replica.failed(error)),
        }
    }
}
