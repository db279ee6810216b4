//! Access to other machines where there is none.

use crate::{
    AccessError, Attributes, OpenFor, PartFile, Reached, RemoteReplicas, RemoteSpec, ReplicaAccess, Unreached,
};

/// For sets without remote replicas, and for callers that cannot reach other machines.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoRemotes;

impl NoRemotes {
    fn refused(remote: &RemoteSpec) -> AccessError {
        let source = format!("the replica {} on {} cannot be reached from here", remote.set.display(), remote.node);
        Unreached { node: remote.node.clone(), source: source.into() }.into()
    }
}

impl RemoteReplicas for NoRemotes {
    fn files(&mut self, remote: &RemoteSpec) -> Result<Vec<PartFile>, AccessError> {
        Err(Self::refused(remote))
    }

    fn open(&mut self, remote: &RemoteSpec, _len_bytes: u64, _access: OpenFor) -> Result<Reached, AccessError> {
        Err(Self::refused(remote))
    }

    fn open_behind(&mut self, remote: &RemoteSpec) -> Result<Option<Box<dyn ReplicaAccess>>, AccessError> {
        Err(Self::refused(remote))
    }

    fn create(
        &mut self,
        remote: &RemoteSpec,
        _len_bytes: u64,
        _attributes: &Attributes,
    ) -> Result<Box<dyn ReplicaAccess>, AccessError> {
        Err(Self::refused(remote))
    }

    fn check_removable(&mut self, remote: &RemoteSpec, _member: &[u8; 16]) -> Result<(), AccessError> {
        Err(Self::refused(remote))
    }

    fn remove(&mut self, remote: &RemoteSpec, _member: &[u8; 16]) -> Result<(), AccessError> {
        Err(Self::refused(remote))
    }
}
