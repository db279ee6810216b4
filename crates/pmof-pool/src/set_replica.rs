//! The replica of a pool set that lies on a target, in the parts of a set there: opened, made and removed by the set's name.

use std::sync::Arc;

use pmof_access::{Durability, RemoteRegion};
use pmof_control::{OpenFor, Reply, Request, SetFile, SetName};
use pmof_pool_set::{Attributes, HEADER_LEN_BYTES, PartFile};

use crate::{
    PoolError, ReplicaError, ReplicaPlace, TargetOptions, TargetUrl,
    member::{RemoteMember, Standing, Writing},
    target::TargetConnection,
};

/// Where the replica is, and how its target is reached.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SetReplica<'q> {
    /// Its number in the pool set that names it, if one does.
    pub(crate) index: Option<usize>,
    pub(crate) target: &'q TargetUrl,
    pub(crate) set: &'q SetName,
    pub(crate) options: &'q TargetOptions,
}

impl SetReplica<'_> {
    /// Makes the pool in the parts of the target's set, of `size_bytes` at least, header included, and opens it. The parts must not exist,
    /// or have blank headers. With attributes each part, or the first, gets a header; without, the set must say `OPTION NOHDRS`.
    ///
    /// On failure, and when this side dies before this returns, nothing is left at the target; but where only its answer to the last
    /// step is lost, the pool is there.
    pub(crate) fn create(
        &self,
        size_bytes: u64,
        attributes: Option<&Attributes>,
    ) -> Result<RemoteMember, Arc<ReplicaError>> {
        let member = self.create_unkept(size_bytes, attributes)?;
        member.control.ask_for(&Request::KeepSet, &Reply::SetKept)?;
        Ok(member)
    }

    /// The first step of that: the target takes it back when the connection ends.
    pub(crate) fn create_unkept(
        &self,
        size_bytes: u64,
        attributes: Option<&Attributes>,
    ) -> Result<RemoteMember, Arc<ReplicaError>> {
        let (member, _) = self.ask_for_pool(OpenFor::Write, size_bytes, |require| Request::CreateSet {
            name: self.set.clone(),
            size_bytes,
            attributes: attributes.map(Attributes::to_bytes),
            require,
        })?;
        Ok(member)
    }

    /// Makes it anew in the place of one of the pool set `member`, though parts of that are missing or damaged; of nothing else. Files that are
    /// there keep their owner and mode.
    pub(crate) fn replace(
        &self,
        member: &[u8; 16],
        size_bytes: u64,
        attributes: &Attributes,
    ) -> Result<RemoteMember, Arc<ReplicaError>> {
        let target = self.options.reach(self.target)?;
        match target.ask_when_free(&Request::PrepareReplacement { name: self.set.clone(), member: *member })? {
            Reply::Removable => {}
            _ => return Err(ReplicaError::Unexpected.into()),
        }
        let (member, _) = self.opened_by(target, OpenFor::Write, size_bytes, |require| Request::CreateSet {
            name: self.set.clone(),
            size_bytes,
            attributes: Some(attributes.to_bytes()),
            require,
        })?;
        member.control.ask_for(&Request::KeepSet, &Reply::SetKept)?;
        Ok(member)
    }

    /// Opens it; it must have `size_bytes` at least (0 for any). Gives the attributes in its header.
    pub(crate) fn open(
        &self,
        size_bytes: u64,
        access: OpenFor,
    ) -> Result<(RemoteMember, Option<Attributes>), Arc<ReplicaError>> {
        let name = self.set.clone();
        self.ask_for_pool(access, size_bytes, |require| Request::OpenSet { name, size_bytes, access, require })
    }

    /// Opens what lies behind its damaged headers, for reading.
    pub(crate) fn open_behind(&self) -> Result<RemoteMember, Arc<ReplicaError>> {
        let name = self.set.clone();
        let (member, _) = self.ask_for_pool(OpenFor::Read, 0, |_| Request::OpenBehind { name })?;
        Ok(member)
    }

    /// The files that the set names.
    pub(crate) fn files(&self) -> Result<Vec<PartFile>, Arc<ReplicaError>> {
        let target = self.options.reach(self.target)?;
        let mut told = Vec::new();
        let file = |SetFile { identity, path }: SetFile| PartFile { identity, path: path.into() };
        loop {
            match target.ask(&Request::SetFiles { name: self.set.clone(), first: told.len() as u64 })? {
                Reply::SetFiles { files, more: false } => {
                    told.extend(files.into_iter().map(file));
                    return Ok(told);
                }
                Reply::SetFiles { files, more: true } if !files.is_empty() => told.extend(files.into_iter().map(file)),
                _ => return Err(ReplicaError::Unexpected.into()),
            }
        }
    }

    /// Deletes its parts, and with `set_file` the set's file there; with `force` also where parts are missing or damaged.
    pub(crate) fn remove(&self, force: bool, set_file: bool) -> Result<(), Arc<ReplicaError>> {
        let target = self.options.reach(self.target)?;
        match target.ask_when_free(&Request::RemoveSet { name: self.set.clone(), force, set_file })? {
            Reply::Removed => Ok(()),
            _ => Err(Arc::new(ReplicaError::Unexpected)),
        }
    }

    pub(crate) fn place(&self) -> Arc<ReplicaPlace> {
        Arc::new(ReplicaPlace::Set { index: self.index, target: self.target.clone(), set: self.set.clone() })
    }

    /// What went wrong, with the place.
    pub(crate) fn failed(&self, source: impl Into<Arc<ReplicaError>>) -> PoolError {
        PoolError::Replica { replica: self.place(), source: source.into() }
    }

    fn ask_for_pool(
        &self,
        access: OpenFor,
        least_bytes: u64,
        request: impl FnOnce(Durability) -> Request,
    ) -> Result<(RemoteMember, Option<Attributes>), Arc<ReplicaError>> {
        self.opened_by(self.options.reach(self.target)?, access, least_bytes, request)
    }

    /// The same by a connection that there is.
    fn opened_by(
        &self,
        target: TargetConnection,
        access: OpenFor,
        least_bytes: u64,
        request: impl FnOnce(Durability) -> Request,
    ) -> Result<(RemoteMember, Option<Attributes>), Arc<ReplicaError>> {
        let reply = target.ask_when_free(&request(self.options.require.unwrap_or(Durability::Visible)))?;
        let Reply::SetOpened { size_bytes, attributes, descriptor, header_descriptor } = reply else {
            return Err(ReplicaError::Unexpected.into());
        };
        let data = RemoteRegion::from_descriptor(&descriptor).map_err(ReplicaError::from)?;
        let header = (!header_descriptor.is_empty()).then(|| RemoteRegion::from_descriptor(&header_descriptor));
        let header = header.transpose().map_err(ReplicaError::from)?;
        let header_bytes = if header.is_some() { HEADER_LEN_BYTES as u64 } else { 0 };
        let is_fitting = attributes.is_some() == header.is_some()
            && size_bytes.checked_sub(header_bytes) == Some(data.len_bytes())
            && size_bytes >= least_bytes;
        if !is_fitting {
            return Err(ReplicaError::Unexpected.into());
        }
        target.prepare(&data)?;
        let writing = match access {
            // To the level required, else to the strongest that it can give.
            OpenFor::Write => Some(Writing::to(self.options.require.unwrap_or(data.strongest()), &target, &data)?),
            OpenFor::Read => None,
        };
        let member = RemoteMember::new(Standing::new(self.place()), Arc::new(target), data, header, writing);
        Ok((member, attributes.map(|bytes| Attributes::from_bytes(&bytes))))
    }
}
