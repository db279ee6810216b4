//! The replicas that a pool set names on other machines, reached through ssh.

use std::{ops::Range, os::unix::ffi::OsStrExt as _};

use pmof_control::{NameError, OpenFor, PoolRefusal, SetName};
use pmof_mem::causes;
use pmof_pool_set::{
    AccessError, Attributes, Contents, ContentsState, PartFile, PendingDigests, PoolKind, Reached, RemoteReplicas,
    RemoteSpec, ReplicaAccess, UNFINISHED, Unreached, contents_state, without_mend,
};

use crate::{
    PlaceError, PoolError, RemoteRemoval, ReplicaError, TargetOptions, TargetUrl,
    member::{Member, MemberContents, RemoteMember, replica_error},
    set_replica::SetReplica,
};

/// Where a remote replica is.
pub fn remote_place(spec: &RemoteSpec) -> Result<(TargetUrl, SetName), PlaceError> {
    let host = spec.node.parse()?;
    let name = std::str::from_utf8(spec.set.as_os_str().as_bytes());
    let name = name.map_err(|error| NameError::NotUtf8 { at: error.valid_up_to() })?;
    Ok((TargetUrl::Ssh(host), SetName::new(name)?))
}

/// The way to remote replicas for [`check`](pmof_pool_set::check), [`sync`](pmof_pool_set::sync) and
/// [`transform`](pmof_pool_set::transform): a target is started on each host through ssh.
#[derive(Debug)]
pub struct SshReplicas {
    options: TargetOptions,
}

impl Default for SshReplicas {
    fn default() -> Self {
        Self::new(&TargetOptions::default())
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
    /// `options`: how they are reached.
    pub fn new(options: &TargetOptions) -> Self {
        Self { options: options.clone() }
    }

    /// Opens the replica in the parts of a target's pool set, as [`RemoteReplicas::open`] does where the set's file names it.
    ///
    /// # Errors
    /// [`PoolError`]; [`Unreached`] where nothing is known of what is there.
    pub fn open_at(
        &self,
        target: &TargetUrl,
        set: &SetName,
        len_bytes: u64,
        access: OpenFor,
    ) -> Result<Reached, AccessError> {
        let replica = SetReplica { index: None, target, set, options: &self.options };
        let name = format!("{set} on {}", node(target));
        match replica.open(len_bytes, access) {
            Ok((member, attributes @ Some(_))) => Ok(Reached::Whole(Box::new(Remote { name, member, attributes }))),
            Ok((_, None)) => Err(format!("the pool set {set} on {target} has no headers (NOHDRS)").into()),
            Err(error) => match damage(target, set, &error) {
                Some(damage) => Ok(damage),
                None if matches!(*error, ReplicaError::Refused { .. }) => Err(replica.failed(error).into()),
                None => Err(Unreached { node: node(target), source: replica.failed(error).into() }.into()),
            },
        }
    }

    /// Asks a host for the state of its replica, which is opened for reading and closed again.
    pub fn state(&mut self, remote: &RemoteSpec) -> RemoteState {
        let mut replica = match self.open(remote, 0, OpenFor::Read) {
            Ok(Reached::Whole(replica)) => replica,
            Ok(Reached::Damaged(damage) | Reached::HeadersDamaged(damage)) => return RemoteState::Unsound(damage),
            Err(error) => {
                let refused = error.downcast_ref::<PoolError>().and_then(PoolError::replica_error);
                return match refused {
                    Some(ReplicaError::Refused { refusal: PoolRefusal::Busy, text }) => RemoteState::Busy(text.clone()),
                    _ => RemoteState::Unreached(causes(&*error).to_string()),
                };
            }
        };
        let len_bytes = replica.len_bytes();
        let attributes = match replica.attributes() {
            Ok(attributes) if attributes.is_unfinished() => return RemoteState::Unsound(UNFINISHED.to_owned()),
            Ok(attributes) => attributes,
            Err(error) => return RemoteState::Unreached(causes(&*error).to_string()),
        };
        match contents_state(PoolKind::of_signature(&attributes.signature), &mut *replica) {
            Ok(contents) => RemoteState::Sound { attributes, len_bytes, contents },
            Err(error) => RemoteState::Unreached(causes(&*error).to_string()),
        }
    }
}

impl RemoteReplicas for SshReplicas {
    fn files(&mut self, remote: &RemoteSpec) -> Result<Vec<PartFile>, AccessError> {
        let (target, set) = remote_place(remote)?;
        let replica = SetReplica { index: None, target: &target, set: &set, options: &self.options };
        replica.files().map_err(|error| match *error {
            ReplicaError::Refused { .. } => replica.failed(error).into(),
            _ => Unreached { node: node(&target), source: replica.failed(error).into() }.into(),
        })
    }

    fn open(&mut self, remote: &RemoteSpec, len_bytes: u64, access: OpenFor) -> Result<Reached, AccessError> {
        let (target, set) = remote_place(remote)?;
        self.open_at(&target, &set, len_bytes, access)
    }

    fn open_behind(&mut self, remote: &RemoteSpec) -> Result<Option<Box<dyn ReplicaAccess>>, AccessError> {
        let (target, set) = remote_place(remote)?;
        let replica = SetReplica { index: None, target: &target, set: &set, options: &self.options };
        let name = format!("{set} on {}", remote.node);
        match replica.open_behind() {
            Ok(member) => Ok(Some(Box::new(Remote { name, member, attributes: None }))),
            Err(error) => match *error {
                ReplicaError::Refused { refusal: PoolRefusal::NotAUsablePool, .. } => Ok(None),
                ReplicaError::Refused { .. } => Err(replica.failed(error).into()),
                _ => Err(Unreached { node: remote.node.clone(), source: replica.failed(error).into() }.into()),
            },
        }
    }

    fn create(
        &mut self,
        remote: &RemoteSpec,
        len_bytes: u64,
        attributes: &Attributes,
    ) -> Result<Box<dyn ReplicaAccess>, AccessError> {
        let (target, set) = remote_place(remote)?;
        let replica = SetReplica { index: None, target: &target, set: &set, options: &self.options };
        let member = replica.create(len_bytes, Some(attributes)).map_err(|error| replica.failed(error))?;
        let name = format!("{set} on {}", remote.node);
        Ok(Box::new(Remote { name, member, attributes: Some(*attributes) }))
    }

    fn check_removable(&mut self, remote: &RemoteSpec, member: &[u8; 16]) -> Result<(), AccessError> {
        let (target, set) = remote_place(remote)?;
        RemoteRemoval::prepare_replacement(&target, &set, member, &self.options)?;
        Ok(())
    }

    fn remove(&mut self, remote: &RemoteSpec, member: &[u8; 16]) -> Result<(), AccessError> {
        let (target, set) = remote_place(remote)?;
        Ok(RemoteRemoval::prepare_replacement(&target, &set, member, &self.options)?.carry_out()?)
    }

    fn replace(
        &mut self,
        remote: &RemoteSpec,
        len_bytes: u64,
        attributes: &Attributes,
    ) -> Result<Box<dyn ReplicaAccess>, AccessError> {
        let (target, set) = remote_place(remote)?;
        let replica = SetReplica { index: None, target: &target, set: &set, options: &self.options };
        let made = replica.replace(&attributes.poolset_uuid, len_bytes, attributes);
        let member = made.map_err(|error| replica.failed(error))?;
        let name = format!("{set} on {}", remote.node);
        Ok(Box::new(Remote { name, member, attributes: Some(*attributes) }))
    }
}

/// The host of a target, as a set's file names it.
fn node(target: &TargetUrl) -> String {
    let url = target.to_string();
    url.strip_prefix("ssh://").unwrap_or(&url).to_owned()
}

/// What the target found to be missing or broken: in the words that its parts would have here, and on which host; `None` where
/// that is not what failed.
fn damage(target: &TargetUrl, set: &SetName, error: &ReplicaError) -> Option<Reached> {
    let ReplicaError::Refused { refusal, text } = error else { return None };
    let text = text.strip_prefix(&format!("pool set {set} cannot be used: ")).unwrap_or(text);
    let damage = || format!("on {}: {}", node(target), without_mend(text));
    match refusal {
        PoolRefusal::NotAUsablePool | PoolRefusal::PartMissing => Some(Reached::Damaged(damage())),
        PoolRefusal::HeadersDamaged => Some(Reached::HeadersDamaged(damage())),
        _ => None,
    }
}

#[derive(Debug)]
struct Remote {
    name: String,
    member: RemoteMember,
    /// `None` of what lies behind damaged headers.
    attributes: Option<Attributes>,
}

impl ReplicaAccess for Remote {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn contents(&mut self) -> &mut dyn Contents {
        self
    }

    fn len_bytes(&self) -> u64 {
        self.member.len_bytes()
    }

    fn attributes(&mut self) -> Result<Attributes, AccessError> {
        self.attributes.ok_or_else(|| format!("the headers of {} are damaged", self.name).into())
    }

    fn set_attributes(&mut self, attributes: &Attributes) -> Result<(), AccessError> {
        self.member.set_attributes(attributes).map_err(|source| replica_error(&self.member, source))?;
        self.attributes = Some(*attributes);
        Ok(())
    }

    fn locate(&self, _offset: u64) -> Option<(usize, u64)> {
        None
    }

    fn close(self: Box<Self>) -> Result<(), AccessError> {
        Ok(self.member.close().map_err(|source| replica_error(&self.member, source))?)
    }
}

impl Contents for Remote {
    fn data_ranges(&mut self, range: Range<u64>) -> Result<Vec<Range<u64>>, AccessError> {
        Contents::data_ranges(&mut MemberContents::of_remote(&self.member), range)
    }

    fn start_digests(&mut self, range: Range<u64>, block_bytes: u64) -> PendingDigests<'_> {
        MemberContents::of_remote(&self.member).digests_of(range, block_bytes)
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), AccessError> {
        Contents::read(&mut MemberContents::of_remote(&self.member), offset, into)
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), AccessError> {
        Contents::write(&mut MemberContents::of_remote(&self.member), offset, bytes)
    }

    fn persist(&mut self, range: Range<u64>) -> Result<(), AccessError> {
        Contents::persist(&mut MemberContents::of_remote(&self.member), range)
    }

    fn headerless_ranges(&mut self) -> Result<Vec<Range<u64>>, AccessError> {
        Contents::headerless_ranges(&mut MemberContents::of_remote(&self.member))
    }
}
