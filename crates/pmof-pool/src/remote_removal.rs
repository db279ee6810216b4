//! Removal in two steps: what can fail is found out in the first, on all targets, before anything goes in the second.

use crate::{PoolError, ReplicaError, TargetOptions, TargetUrl, set_replica::SetReplica, target::TargetConnection};
use pmof_control::{Reply, Request, SetName};

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
    /// are missing or damaged. `member`: the UUID of the pool's set, if it is known; parts of another one are refused, `force` or not. Nothing
    /// is changed.
    ///
    /// Errors: [`PoolError::Replica`], also of a target that is too old to be asked.
    pub fn prepare(
        url: &TargetUrl,
        set: &SetName,
        [force, set_file]: [bool; 2],
        member: Option<&[u8; 16]>,
        options: &TargetOptions,
    ) -> Result<Self, PoolError> {
        let request = Request::PrepareRemoval { name: set.clone(), force, set_file, member: member.copied() };
        Self::prepared(url, set, [force, set_file], options, &request)
    }

    /// The same of what is left of a replica of the pool set `member`, which is to be made anew: of nothing else. What is another pool's,
    /// or no pool's, is refused.
    ///
    /// Errors: [`PoolError::Replica`], also of a target that is too old to be asked.
    pub fn prepare_replacement(
        url: &TargetUrl,
        set: &SetName,
        member: &[u8; 16],
        options: &TargetOptions,
    ) -> Result<Self, PoolError> {
        let request = Request::PrepareReplacement { name: set.clone(), member: *member };
        Self::prepared(url, set, [true, false], options, &request)
    }

    fn prepared(
        url: &TargetUrl,
        set: &SetName,
        [force, set_file]: [bool; 2],
        options: &TargetOptions,
        request: &Request,
    ) -> Result<Self, PoolError> {
        let replica = SetReplica { index: None, target: url, set, options };
        let target = options.reach(url).map_err(|error| replica.failed(error))?;
        match target.ask_when_free(request) {
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
