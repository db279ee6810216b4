//! The pool in the parts of a target's pool set, as librpmem has it: one replica, and the program's memory as its mirror.

use std::sync::Arc;

use pmof_access::Medium;
use pmof_control::{OpenFor, SetName};
use pmof_pool_set::Attributes;

use super::{
    Pool,
    format::{self, Format, Terms},
    set::PmdkReplicas,
};
use crate::{
    PoolError, TargetOptions, TargetUrl,
    member::{Member as _, RemoteMember},
    set_replica::SetReplica,
};

/// How the pool in the parts of a target's pool set is reached.
#[derive(Clone, Debug)]
pub struct RemoteSetOptions {
    target: TargetUrl,
    set: SetName,
    options: TargetOptions,
    mirror: Option<Arc<dyn Medium>>,
}

impl RemoteSetOptions {
    /// The pool set `set` of `target`.
    pub fn new(target: TargetUrl, set: SetName) -> Self {
        Self { target, set, options: TargetOptions::default(), mirror: None }
    }

    /// How the target is reached, and the level that persisted bytes must reach.
    #[must_use]
    pub fn target(mut self, options: TargetOptions) -> Self {
        self.options = options;
        self
    }

    /// The memory that ranges are persisted from: what lies at an offset there goes to the same offset of the pool. Memory that is lent
    /// ([`Lent`](pmof_access::Lent)) is not touched any more once all handles of the pool are dropped.
    #[must_use]
    pub fn mirror(mut self, memory: Arc<dyn Medium>) -> Self {
        self.mirror = Some(memory);
        self
    }

    /// Makes the pool, of `size_bytes` at least, header included, and opens it. The parts must not exist, or have blank headers. With
    /// attributes each part, or the first, gets a header; without, the set must say `OPTION NOHDRS`.
    ///
    /// # Errors
    /// [`PoolError::Replica`]. Nothing is left at the target then, nor when this side dies before this returns; but where only the answer
    /// to the last step is lost, the pool is there.
    pub fn create(&self, size_bytes: u64, attributes: Option<&Attributes>) -> Result<Pool, PoolError> {
        format::create(self, (size_bytes, attributes))
    }

    /// Opens the pool, which must have `size_bytes` at least (0 for any), for writing or for reading.
    ///
    /// # Errors
    /// [`PoolError::Replica`].
    pub fn open(&self, size_bytes: u64, access: OpenFor) -> Result<Pool, PoolError> {
        format::open(self, (size_bytes, access))
    }

    /// Deletes the parts, and with `set_file` the set's file; with `force` also where parts are missing or damaged.
    ///
    /// # Errors
    /// [`PoolError::Replica`].
    pub fn remove(&self, force: bool, set_file: bool) -> Result<(), PoolError> {
        let replica = self.replica();
        replica.remove(force, set_file).map_err(|error| replica.failed(error))
    }

    fn replica(&self) -> SetReplica<'_> {
        SetReplica { index: None, target: &self.target, set: &self.set, options: &self.options }
    }

    fn replicas(
        &self,
        mut member: RemoteMember,
        attributes: Option<Attributes>,
        access: OpenFor,
    ) -> Result<PmdkReplicas<'_>, PoolError> {
        if let Some(mirror) = &self.mirror {
            member.use_mirror(Arc::clone(mirror)).map_err(|error| self.replica().failed(error))?;
        }
        Ok(PmdkReplicas {
            attributes,
            size_bytes: member.len_bytes(),
            header_bytes: member.header_bytes(),
            replica_count: 1,
            terms: Terms::whole(member.strongest(), access, self.mirror.clone()),
            members: vec![Arc::new(member)],
            set: None,
        })
    }
}

impl<'o> Format for &'o RemoteSetOptions {
    /// The size, and what the header is to say.
    type New = (u64, Option<&'o Attributes>);
    /// The least size, and what the pool is opened for.
    type Existing = (u64, OpenFor);
    type Replicas = PmdkReplicas<'o>;

    fn create(self, (size_bytes, attributes): (u64, Option<&'o Attributes>)) -> Result<PmdkReplicas<'o>, PoolError> {
        let replica = self.replica();
        let member = replica.create(size_bytes, attributes).map_err(|error| replica.failed(error))?;
        self.replicas(member, attributes.copied(), OpenFor::Write)
    }

    fn open(self, (size_bytes, access): (u64, OpenFor)) -> Result<PmdkReplicas<'o>, PoolError> {
        let replica = self.replica();
        let (member, attributes) = replica.open(size_bytes, access).map_err(|error| replica.failed(error))?;
        self.replicas(member, attributes, access)
    }
}
