//! Removal in two steps: what can fail is found out in the first, on all targets, before anything goes in the second.

use super::{Question, RemotePoolError, RemotePoolOptions};
use crate::{
    ReplicaError, SetName, TargetUrl,
    control::{Reply, Request},
    replica::TargetConnection,
};

/// The pool of a target's pool set that is about to be removed: its parts are found and locked there until this is carried out, or
/// dropped.
#[derive(Debug)]
pub struct RemoteRemoval {
    url: TargetUrl,
    set: SetName,
    options: RemotePoolOptions,
    target: TargetConnection,
    force: bool,
    set_file: bool,
}

impl RemoteRemoval {
    /// Has the target find and lock the parts of `set`, and its file, which goes too with `set_file`; with `force` also where parts
    /// are missing or damaged. Nothing is changed.
    ///
    /// Errors: [`RemotePoolError::Failed`], also of a target that is too old to be asked.
    pub fn prepare(
        url: &TargetUrl,
        set: &SetName,
        force: bool,
        set_file: bool,
        options: &RemotePoolOptions,
    ) -> Result<Self, RemotePoolError> {
        let question = Question { url, set, options };
        let target = question.connect()?;
        match target.ask(&Request::PrepareRemoval { name: set.clone(), force, set_file }) {
            Ok(Reply::Removable) => {
                let (url, set, options) = (url.clone(), set.clone(), options.clone());
                Ok(Self { url, set, options, target, force, set_file })
            }
            Ok(_) => Err(question.failed(ReplicaError::Unexpected)),
            Err(error) => Err(question.failed(error)),
        }
    }

    /// Removes it, durably.
    pub fn carry_out(self) -> Result<(), RemotePoolError> {
        let Self { url, set, options, target, force, set_file } = self;
        let question = Question { url: &url, set: &set, options: &options };
        match target.ask(&Request::RemoveSet { name: set.clone(), force, set_file }) {
            Ok(Reply::Removed) => Ok(()),
            Ok(_) => Err(question.failed(ReplicaError::Unexpected)),
            Err(error) => Err(question.failed(error)),
        }
    }
}
