//! Replicas on other machines, reached through ssh.

use std::ops::Range;

use pmof_pool::{
    Access, AccessError, Attributes, DIGEST_BLOCK_LEN_BYTES, DIGEST_BYTES, Reached, RemoteReplicas, RemoteSpec,
    ReplicaAccess,
};
use pmof_replica::{
    Atomicity, OpenFor, PoolRefusal, RemotePool, RemotePoolError, RemotePoolOptions, ReplicaError, SetName, TargetUrl,
};

/// The lane that everything goes through: one thing at a time is done.
const LANE: u32 = 0;

/// The way there.
#[derive(Debug)]
pub(crate) struct OverSsh {
    options: RemotePoolOptions,
}

impl OverSsh {
    pub(crate) fn new() -> Self {
        Self { options: RemotePoolOptions { lanes: 1, ..RemotePoolOptions::default() } }
    }

    fn place(remote: &RemoteSpec) -> Result<(TargetUrl, SetName), AccessError> {
        let host = remote.node.parse()?;
        Ok((TargetUrl::Ssh(host), SetName::new(remote.set.to_string_lossy())?))
    }
}

impl RemoteReplicas for OverSsh {
    fn open(&mut self, remote: &RemoteSpec, len_bytes: u64, access: Access) -> Result<Reached, AccessError> {
        let (url, set) = Self::place(remote)?;
        let open_for = match access {
            Access::ReadOnly => OpenFor::Read,
            Access::ReadWrite => OpenFor::Write,
        };
        match RemotePool::open(&url, &set, len_bytes, open_for, &self.options) {
            Ok((pool, Some(attributes))) => Ok(Reached::Whole(Box::new(Remote::new(remote, pool, attributes)))),
            Ok((_, None)) => Err(format!("the pool set {set} on {url} has no headers (NOHDRS)").into()),
            Err(error) if is_damage(&error) => Ok(Reached::Damaged(error.to_string())),
            Err(error) => Err(error.into()),
        }
    }

    fn create(
        &mut self,
        remote: &RemoteSpec,
        len_bytes: u64,
        attributes: &Attributes,
    ) -> Result<Box<dyn ReplicaAccess>, AccessError> {
        let (url, set) = Self::place(remote)?;
        let pool = RemotePool::create(&url, &set, len_bytes, Some(attributes), &self.options)?;
        Ok(Box::new(Remote::new(remote, pool, *attributes)))
    }

    fn remove(&mut self, remote: &RemoteSpec, force: bool) -> Result<(), AccessError> {
        let (url, set) = Self::place(remote)?;
        Ok(RemotePool::remove(&url, &set, force, false, &self.options)?)
    }
}

/// Whether the target was reached and found that its parts are missing or broken.
fn is_damage(error: &RemotePoolError) -> bool {
    let refusals = [PoolRefusal::NotAUsablePool, PoolRefusal::PartMissing];
    matches!(error.replica_error(), Some(ReplicaError::Refused { refusal, .. }) if refusals.contains(refusal))
}

#[derive(Debug)]
struct Remote {
    name: String,
    pool: RemotePool,
    attributes: Attributes,
}

impl Remote {
    fn new(remote: &RemoteSpec, pool: RemotePool, attributes: Attributes) -> Self {
        Self { name: format!("{} on {}", remote.set.display(), remote.node), pool, attributes }
    }
}

impl ReplicaAccess for Remote {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn len_bytes(&self) -> u64 {
        self.pool.len_bytes()
    }

    fn attributes(&mut self) -> Result<Attributes, AccessError> {
        Ok(self.attributes)
    }

    fn set_attributes(&mut self, attributes: &Attributes) -> Result<(), AccessError> {
        self.pool.set_attributes(attributes)?;
        self.attributes = *attributes;
        Ok(())
    }

    fn data_ranges(&mut self, range: Range<u64>) -> Result<Vec<Range<u64>>, AccessError> {
        Ok(self.pool.data_ranges(range)?)
    }

    fn digests(&mut self, range: Range<u64>) -> Result<Vec<[u8; DIGEST_BYTES]>, AccessError> {
        let len_bytes = range.end.saturating_sub(range.start);
        Ok(self.pool.digests(range.start, len_bytes, DIGEST_BLOCK_LEN_BYTES)?)
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), AccessError> {
        Ok(self.pool.read(LANE, offset, into)?)
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), AccessError> {
        Ok(self.pool.flush_bytes(LANE, offset, bytes, Atomicity::Relaxed)?)
    }

    fn persist(&mut self, range: Range<u64>) -> Result<(), AccessError> {
        self.pool.drain(LANE)?;
        Ok(self.pool.make_durable(LANE, range.start, range.end.saturating_sub(range.start))?)
    }

    fn locate(&self, _offset: u64) -> Option<(usize, u64)> {
        None
    }

    fn close(self: Box<Self>) -> Result<(), AccessError> {
        Ok(self.pool.close()?)
    }
}
