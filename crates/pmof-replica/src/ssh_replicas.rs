//! The replicas that a pool set names on other machines, reached through ssh.

use std::{ops::Range, os::unix::ffi::OsStrExt as _};

use pmof_pool::{
    Access, AccessError, Attributes, Contents, ContentsState, DIGEST_BLOCK_LEN_BYTES, DIGEST_BYTES, PoolKind, Reached,
    RemoteReplicas, RemoteSpec, ReplicaAccess, UNFINISHED, Unreached, contents_state, without_mend,
};

use crate::{
    Atomicity, NameError, OpenFor, PoolRefusal, RemotePool, RemotePoolError, RemotePoolOptions, ReplicaError, SetName,
    SshHostError, TargetUrl,
};

/// The lane that compares and copies: one thing at a time is done, and nobody else uses the pool yet.
const LANE: u32 = 0;

/// What a pool set says of a replica's place cannot be.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlaceError {
    /// The host that the set's file names.
    #[error(transparent)]
    Host(#[from] SshHostError),
    /// The set that the set's file names.
    #[error(transparent)]
    Name(#[from] NameError),
}

/// Where a remote replica is.
pub fn remote_place(spec: &RemoteSpec) -> Result<(TargetUrl, SetName), PlaceError> {
    let host = spec.node.parse()?;
    let name = std::str::from_utf8(spec.set.as_os_str().as_bytes());
    let name = name.map_err(|error| NameError::NotUtf8 { at: error.valid_up_to() })?;
    Ok((TargetUrl::Ssh(host), SetName::new(name)?))
}

/// The way to remote replicas for [`check`](pmof_pool::check), [`sync`](pmof_pool::sync) and
/// [`transform`](pmof_pool::transform): a target is started on each host through ssh.
#[derive(Debug)]
pub struct SshReplicas {
    options: RemotePoolOptions,
}

impl Default for SshReplicas {
    fn default() -> Self {
        Self::new(&RemotePoolOptions::default())
    }
}

/// What a host says of a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RemoteState {
    /// Its headers are whole.
    Sound {
        /// What its header says.
        attributes: Attributes,
        /// Usable bytes.
        len_bytes: u64,
        /// What it holds, by what it begins with.
        contents: ContentsState,
    },
    /// Somebody has it open for writing: who, in words.
    Busy(String),
    /// It is not there, or is broken: why, in words.
    Unsound(String),
    /// The host was not reached, or could not look at it: why, in words.
    Unreached(String),
}

impl SshReplicas {
    /// `options`: how they are reached. One lane is used, whatever these say of lanes.
    pub fn new(options: &RemotePoolOptions) -> Self {
        Self { options: RemotePoolOptions { lanes: 1, ..options.clone() } }
    }

    /// Asks a host for the state of its replica, which is opened for reading and closed again.
    pub fn state(&mut self, remote: &RemoteSpec) -> RemoteState {
        let mut replica = match self.open(remote, 0, Access::ReadOnly) {
            Ok(Reached::Whole(replica)) => replica,
            Ok(Reached::Damaged(damage)) => return RemoteState::Unsound(damage),
            Err(error) => {
                let refused = error.downcast_ref::<RemotePoolError>().and_then(RemotePoolError::replica_error);
                return match refused {
                    Some(ReplicaError::Refused { refusal: PoolRefusal::Busy, text }) => RemoteState::Busy(text.clone()),
                    _ => RemoteState::Unreached(error.to_string()),
                };
            }
        };
        let len_bytes = replica.len_bytes();
        let attributes = match replica.attributes() {
            Ok(attributes) if attributes.is_unfinished() => return RemoteState::Unsound(UNFINISHED.to_owned()),
            Ok(attributes) => attributes,
            Err(error) => return RemoteState::Unreached(error.to_string()),
        };
        match contents_state(PoolKind::of_signature(&attributes.signature), &mut *replica) {
            Ok(contents) => RemoteState::Sound { attributes, len_bytes, contents },
            Err(error) => RemoteState::Unreached(error.to_string()),
        }
    }
}

impl RemoteReplicas for SshReplicas {
    fn open(&mut self, remote: &RemoteSpec, len_bytes: u64, access: Access) -> Result<Reached, AccessError> {
        let (url, set) = remote_place(remote)?;
        let open_for = match access {
            Access::ReadOnly => OpenFor::Read,
            Access::ReadWrite => OpenFor::Write,
        };
        match RemotePool::open(&url, &set, len_bytes, open_for, &self.options) {
            Ok((pool, Some(attributes))) => Ok(Reached::Whole(Box::new(Remote::new(remote, pool, attributes)))),
            Ok((_, None)) => Err(format!("the pool set {set} on {url} has no headers (NOHDRS)").into()),
            Err(error) => match damage(remote, &set, &error) {
                Some(damage) => Ok(Reached::Damaged(damage)),
                None if matches!(error.replica_error(), Some(ReplicaError::Refused { .. })) => Err(error.into()),
                None => Err(Unreached { node: remote.node.clone(), source: error.into() }.into()),
            },
        }
    }

    fn create(
        &mut self,
        remote: &RemoteSpec,
        len_bytes: u64,
        attributes: &Attributes,
    ) -> Result<Box<dyn ReplicaAccess>, AccessError> {
        let (url, set) = remote_place(remote)?;
        let pool = RemotePool::create(&url, &set, len_bytes, Some(attributes), &self.options)?;
        Ok(Box::new(Remote::new(remote, pool, *attributes)))
    }

    fn remove(&mut self, remote: &RemoteSpec, force: bool) -> Result<(), AccessError> {
        let (url, set) = remote_place(remote)?;
        Ok(RemotePool::remove(&url, &set, force, false, &self.options)?)
    }
}

/// What the target found to be missing or broken: in the words that its parts would have here, and on which host; `None` where
/// that is not what failed.
fn damage(remote: &RemoteSpec, set: &SetName, error: &RemotePoolError) -> Option<String> {
    let refusals = [PoolRefusal::NotAUsablePool, PoolRefusal::PartMissing];
    match error.replica_error() {
        Some(ReplicaError::Refused { refusal, text }) if refusals.contains(refusal) => {
            let text = text.strip_prefix(&format!("pool set {set}: ")).unwrap_or(text);
            Some(format!("on {}: {}", remote.node, without_mend(text)))
        }
        _ => None,
    }
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

    fn contents(&mut self) -> &mut dyn Contents {
        &mut self.pool
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

    fn locate(&self, _offset: u64) -> Option<(usize, u64)> {
        None
    }

    fn close(self: Box<Self>) -> Result<(), AccessError> {
        Ok(self.pool.close()?)
    }
}

impl Contents for RemotePool {
    fn data_ranges(&mut self, range: Range<u64>) -> Result<Vec<Range<u64>>, AccessError> {
        Ok(Self::data_ranges(self, range)?)
    }

    fn digests(&mut self, range: Range<u64>) -> Result<Vec<[u8; DIGEST_BYTES]>, AccessError> {
        let len_bytes = range.end.saturating_sub(range.start);
        Ok(Self::digests(self, range.start, len_bytes, DIGEST_BLOCK_LEN_BYTES)?)
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), AccessError> {
        Ok(Self::read(self, LANE, offset, into)?)
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), AccessError> {
        Ok(Self::flush_bytes(self, LANE, offset, bytes, Atomicity::Relaxed)?)
    }

    fn persist(&mut self, range: Range<u64>) -> Result<(), AccessError> {
        Self::drain(self, LANE)?;
        Ok(Self::make_durable(self, LANE, range.start, range.end.saturating_sub(range.start))?)
    }
}
