//! Pool sets below a target's root directory, for those who ask for them by name.

use std::{
    error::Error,
    fs::File,
    io::{self, Read as _},
    ops::Range,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::Arc,
};

use pmof_control::{OpenFor, PoolRefusal, Reply, SetFile, SetName};
use pmof_mem::{Declaration, Durability, Medium as _, Memory, causes};
use pmof_pool_set::{
    Attributes, Feature, HEADER_LEN_BYTES, LocalReplica, NewReplica, NoRemotes, PartFile, PartSpec, PoolSet,
    PoolSetError, Removal, ReplicaSpec, SET_LEN_BYTES_MAX, SetError, SetOptions, foreign_files, has_contents_behind,
    open_contents_behind,
};
use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags},
    io::Errno,
};
use uuid::Uuid;

use crate::{events, holder::holder_of};

/// Why a pool set was not made, opened or removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetStoreError {
    /// There is no such set.
    #[error("there is no pool set {name} in {}; write one there, or name another", root.display())]
    NotFound {
        /// The set.
        name: SetName,
        /// The root directory.
        root: PathBuf,
    },
    /// The set's file could not be read or removed.
    #[error("{call} of the pool set {name} in {} failed", root.display())]
    Io {
        /// The system call.
        call: &'static str,
        /// The set.
        name: SetName,
        /// The root directory.
        root: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// What the file says.
    #[error(transparent)]
    Set(#[from] SetError),
    /// A target keeps one replica of a pool.
    #[error("the pool set {name} cannot be a target's: {why}")]
    NotATargets {
        /// The set.
        name: SetName,
        /// The rule that it breaks.
        why: &'static str,
    },
    /// What is asked for contradicts the set's options.
    #[error(
        "the pool set {name} {says}, and the initiator asks for a pool {asked}: mend the set's file, or the initiator's"
    )]
    Contradicts {
        /// The set.
        name: SetName,
        /// What the set says.
        says: &'static str,
        /// What the initiator asks for.
        asked: &'static str,
    },
    /// The set's parts are smaller than the pool must be.
    #[error(
        "the pool set {name} holds {len_bytes} bytes, and {wanted_bytes} are needed: add parts, or make them larger"
    )]
    TooSmall {
        /// The set.
        name: SetName,
        /// Bytes that its parts hold.
        len_bytes: u64,
        /// Bytes asked for.
        wanted_bytes: u64,
    },
    /// The parts cannot give the durability asked for.
    #[error(
        "the parts of {name} lie on {medium}, which does not give {wanted}: keep them on a medium that does, or ask for less"
    )]
    NotDurable {
        /// The set.
        name: SetName,
        /// The level asked for.
        wanted: Durability,
        /// What the parts lie on.
        medium: String,
    },
    /// Parts that are to be removed are of another pool than that of their initiator, or of two.
    #[error("nothing of the pool set {name} is removed: its parts are not all of the initiator's pool")]
    OtherPool {
        /// The set.
        name: SetName,
        /// Which part, and whose it is.
        source: PoolSetError,
    },
    /// Somebody else has the pool open.
    #[error("the pool of {name} is in use by {holder}; close it there")]
    Busy {
        /// The set.
        name: SetName,
        /// Who.
        holder: String,
    },
    /// The headers of the parts are damaged, and something lies behind them.
    #[error("pool set {name} cannot be used")]
    HeadersDamaged {
        /// The set.
        name: SetName,
        /// What is wrong with the headers.
        source: PoolSetError,
    },
    /// What lies behind damaged headers is asked for, and there is no such thing.
    #[error(
        "nothing of the pool set {name} lies behind damaged headers: they are sound, or it is damaged otherwise; open it as usual, or make it anew"
    )]
    NothingBehind {
        /// The set.
        name: SetName,
    },
    /// The parts.
    #[error("pool set {name} cannot be used")]
    Parts {
        /// The set.
        name: SetName,
        /// What went wrong.
        source: PoolSetError,
    },
}

impl SetStoreError {
    /// The number by which a program knows the rule, on the wire.
    pub(crate) fn code(&self) -> u16 {
        match self {
            Self::NotFound { .. } => 300,
            Self::Io { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => 301,
            // A link that leads out of the directory, or round in a ring.
            Self::Io { source, .. } if is_one_of(source, &[Errno::XDEV, Errno::LOOP]) => 303,
            Self::Io { .. } => 302,
            Self::Set(_) | Self::NotATargets { .. } | Self::Contradicts { .. } => 303,
            Self::TooSmall { .. } => 304,
            Self::NotDurable { .. } => 305,
            Self::Busy { .. } => 306,
            Self::OtherPool { .. } => 307,
            Self::NothingBehind { .. } => 309,
            Self::HeadersDamaged { .. } => 311,
            Self::Parts { source, .. } => match source {
                PoolSetError::Exists { .. } | PoolSetError::NotBlank { .. } | PoolSetError::NotOurs { .. } => 307,
                PoolSetError::NotAPart { .. } | PoolSetError::NotRemoved { .. } => 309,
                PoolSetError::PoolTooSmall { .. } => 304,
                PoolSetError::TooSmall { .. }
                | PoolSetError::WrongKind { .. }
                | PoolSetError::WrongOptions { .. }
                | PoolSetError::Unsupported { .. }
                | PoolSetError::SameFile { .. }
                | PoolSetError::Mem(pmof_mem::MemError::Unsuitable { .. }) => 303,
                PoolSetError::Mem(pmof_mem::MemError::NoSpace { .. } | pmof_mem::MemError::TooLong { .. }) => 308,
                PoolSetError::Io { source, .. } | PoolSetError::Mem(pmof_mem::MemError::Io { source, .. })
                    if source.kind() == io::ErrorKind::PermissionDenied =>
                {
                    301
                }
                PoolSetError::NotUnlinkable { .. } => 301,
                PoolSetError::Missing { .. } => 310,
                PoolSetError::Io { source, .. } | PoolSetError::Mem(pmof_mem::MemError::Io { source, .. })
                    if source.kind() == io::ErrorKind::NotFound =>
                {
                    310
                }
                source if source.is_damage() => 309,
                _ => 302,
            },
        }
    }

    /// The rule.
    pub fn refusal(&self) -> PoolRefusal {
        PoolRefusal::from_code(self.code())
    }
}

fn is_one_of(error: &io::Error, errnos: &[Errno]) -> bool {
    Errno::from_io_error(error).is_some_and(|errno| errnos.contains(&errno))
}

/// Deletes the parts of the pool set `name` below the directory `root`, and its file if `set_file`; with `force` also where parts are
/// missing or damaged.
pub fn remove_set(root: &Path, name: &SetName, force: bool, set_file: bool) -> Result<(), SetStoreError> {
    let store = SetStore::open(root, None);
    let store = store.map_err(|source| SetStoreError::Io {
        call: "open of the directory",
        name: name.clone(),
        root: root.to_owned(),
        source,
    })?;
    store.prepare_removal(name, force, set_file, None)?.carry_out(&store)
}

/// The parts of a set, found and locked, and its file, if that is to go too.
#[derive(Debug)]
pub(crate) struct SetRemoval {
    name: SetName,
    parts: Removal,
    force: bool,
    set_file: bool,
    /// Of a pool that may be made anew in its place: what its set names.
    replaced: Option<Vec<PartSpec>>,
}

impl SetRemoval {
    pub(crate) fn is_for(&self, name: &SetName, force: bool, set_file: bool) -> bool {
        (&self.name, self.force, self.set_file) == (name, force, set_file)
    }

    /// Whether a pool of the same set, for the same initiator, may be made in its place.
    pub(crate) fn is_replacement_of(&self, name: &SetName) -> bool {
        self.replaced.is_some() && self.name == *name
    }

    /// Makes room for that one: files keep their owner and mode.
    pub(crate) fn clear_out(self) -> Result<(), SetStoreError> {
        let Self { name, parts, replaced, .. } = self;
        parts.clear_out(&replaced.unwrap_or_default()).map_err(|error| failed(&name, error))
    }

    pub(crate) fn carry_out(self, store: &SetStore) -> Result<(), SetStoreError> {
        let Self { name, parts, set_file, .. } = self;
        parts.carry_out().map_err(|error| failed(&name, error))?;
        if set_file { store.remove_file(&name) } else { Ok(()) }
    }
}

/// The pool sets below a root directory.
#[derive(Debug)]
pub(crate) struct SetStore {
    directory: OwnedFd,
    path: PathBuf,
    declaration: Option<Declaration>,
}

/// The pool of a set, open.
#[derive(Debug)]
pub(crate) struct OpenSet {
    name: SetName,
    /// `None` once it is closed.
    open: Option<Opened>,
    len_bytes: u64,
    pub(crate) has_header: bool,
    pub(crate) access: OpenFor,
    /// It goes with this value.
    is_new: bool,
}

/// Both hold the locks of the parts.
#[derive(Debug)]
struct Opened {
    /// `None` of what lies behind damaged headers.
    replica: Option<LocalReplica>,
    memory: Arc<Memory>,
}

impl SetStore {
    pub(crate) fn open(root: &Path, declaration: Option<Declaration>) -> io::Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC;
        let directory = rustix::fs::openat(CWD, root, flags, Mode::empty())?;
        Ok(Self { directory, path: root.to_owned(), declaration })
    }

    /// Makes the parts of a set, or takes those that are there and blank. It is undone unless the pool is [kept](OpenSet::keep); if this process
    /// is killed before, the next creation takes what it left.
    pub(crate) fn create(
        &self,
        name: &SetName,
        size_bytes: u64,
        attributes: Option<&Attributes>,
        require: Durability,
    ) -> Result<OpenSet, SetStoreError> {
        let (parts, options) = self.read(name)?;
        check_options(name, options, attributes)?;
        let new = NewReplica { attributes: attributes.copied(), options, declaration: self.declaration };
        let made = LocalReplica::begin(&parts, &new).map_err(|error| failed(name, error))?;
        let mut set = OpenSet::new(name, made, OpenFor::Write);
        set.is_new = true;
        set.check(size_bytes, require)?;
        Ok(set)
    }

    pub(crate) fn open_set(
        &self,
        name: &SetName,
        size_bytes: u64,
        access: OpenFor,
        require: Durability,
    ) -> Result<OpenSet, SetStoreError> {
        let (parts, options) = self.read(name)?;
        let replica = LocalReplica::open_for_client(&parts, options, access, self.declaration);
        let replica = replica.map_err(|source| match has_contents_behind(&parts, options) {
            Ok(true) => SetStoreError::HeadersDamaged { name: name.clone(), source },
            // What is wrong is told already.
            Ok(false) | Err(_) => failed(name, source),
        })?;
        let set = OpenSet::new(name, replica, access);
        set.check(size_bytes, require)?;
        Ok(set)
    }

    /// The files that a set names, from the one of the number `first` on; nothing is opened. `boot`: the time since this machine was started.
    pub(crate) fn files(&self, name: &SetName, first: u64, boot: Option<Uuid>) -> Result<Reply, SetStoreError> {
        let (parts, _) = self.read(name)?;
        let files = PartFile::of_parts(&parts, boot);
        let first = usize::try_from(first).unwrap_or(usize::MAX).min(files.len());
        let told =
            |file: &PartFile| SetFile { identity: file.identity, path: file.path.to_string_lossy().into_owned() };
        Ok(Reply::files_page(&files[first..].iter().map(told).collect::<Vec<_>>()))
    }

    /// What lies behind the damaged headers of a set's pool, for reading: it is compared with another replica before the pool is made anew.
    pub(crate) fn open_behind(&self, name: &SetName) -> Result<OpenSet, SetStoreError> {
        let (parts, options) = self.read(name)?;
        let behind = open_contents_behind(&parts, options, self.declaration).map_err(|source| {
            let error = source.downcast().map_or_else(|source| no_look(&parts, source), |error| *error);
            failed(name, error)
        })?;
        let memory = behind.ok_or_else(|| SetStoreError::NothingBehind { name: name.clone() })?;
        Ok(OpenSet {
            name: name.clone(),
            len_bytes: memory.len_bytes(),
            open: Some(Opened { replica: None, memory }),
            has_header: false,
            access: OpenFor::Read,
            is_new: false,
        })
    }

    /// Finds the parts of a set and locks them. `member`: the UUID of the pool's set at its initiator, if that knows it.
    pub(crate) fn prepare_removal(
        &self,
        name: &SetName,
        force: bool,
        set_file: bool,
        member: Option<&[u8; 16]>,
    ) -> Result<SetRemoval, SetStoreError> {
        let (parts, options) = self.read(name)?;
        // Before they are locked.
        let foreign = foreign_files(&alone(name, &parts, options), &mut NoRemotes);
        let foreign = foreign.map_or_else(|_| Vec::new(), |found| found.unlike);
        let mut parts = Removal::prepare(&parts, options, force, member).map_err(|error| match error {
            // No damage, which force would help with.
            source @ PoolSetError::OtherSet { .. } => SetStoreError::OtherPool { name: name.clone(), source },
            error => failed(name, error),
        })?;
        for (_, path) in foreign {
            if !force {
                return Err(failed(name, PoolSetError::NotRemoved { path, found: FOREIGN.to_owned() }));
            }
            parts.leave(&path);
        }
        if let Some(path) = parts.left().first() {
            return Err(failed(name, PoolSetError::NotAPart { path: path.clone() }));
        }
        Ok(SetRemoval { name: name.clone(), parts, force, set_file, replaced: None })
    }

    /// The same of what is left of a pool of `member`, which is made anew: of nothing else.
    pub(crate) fn prepare_replacement(&self, name: &SetName, member: &[u8; 16]) -> Result<SetRemoval, SetStoreError> {
        let (specs, options) = self.read(name)?;
        let parts = Removal::prepare_member(&specs, options, member).map_err(|error| failed(name, error))?;
        Ok(SetRemoval { name: name.clone(), parts, force: true, set_file: false, replaced: Some(specs) })
    }

    fn remove_file(&self, name: &SetName) -> Result<(), SetStoreError> {
        let (directory, file) = name.as_str().rsplit_once('/').unwrap_or((".", name.as_str()));
        let directory = self.beneath(directory, OFlags::DIRECTORY | OFlags::RDONLY);
        let removed = directory.and_then(|directory| {
            rustix::fs::unlinkat(&directory, file, AtFlags::empty())?;
            rustix::fs::fsync(&directory)
        });
        removed.map_err(|errno| self.io("unlink", name, errno))
    }

    /// The parts that the set names, and its options.
    fn read(&self, name: &SetName) -> Result<(Vec<PartSpec>, SetOptions), SetStoreError> {
        let file = self.beneath(name.as_str(), OFlags::RDONLY | OFlags::NONBLOCK).map_err(|errno| match errno {
            Errno::NOENT => SetStoreError::NotFound { name: name.clone(), root: self.path.clone() },
            errno => self.io("open", name, errno),
        })?;
        let mut bytes = Vec::new();
        let read = File::from(file).take(SET_LEN_BYTES_MAX + 1).read_to_end(&mut bytes);
        read.map_err(|source| SetStoreError::Io { call: "read", name: name.clone(), root: self.path.clone(), source })?;
        let set = PoolSet::parse(&self.path.join(name.as_str()), &bytes)?;
        let not = |why| SetStoreError::NotATargets { name: name.clone(), why };
        match set.replicas.into_iter().collect::<Vec<_>>().as_mut_slice() {
            [ReplicaSpec::Local(parts)] => Ok((std::mem::take(parts), set.options)),
            [_] => Err(not("its replica lies on another machine; a target keeps its own parts")),
            _ => Err(not("it has more than one replica; the initiator's set names the replicas")),
        }
    }

    /// What lies below the root under a relative path; no link leads out.
    fn beneath(&self, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        rustix::fs::openat2(&self.directory, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve)
    }

    fn io(&self, call: &'static str, name: &SetName, errno: Errno) -> SetStoreError {
        SetStoreError::Io { call, name: name.clone(), root: self.path.clone(), source: errno.into() }
    }
}

impl OpenSet {
    fn new(name: &SetName, replica: LocalReplica, access: OpenFor) -> Self {
        let (memory, has_header) = (replica.memory(), replica.attributes().is_some());
        let len_bytes = memory.len_bytes();
        let open = Some(Opened { replica: Some(replica), memory });
        Self { name: name.clone(), open, len_bytes, has_header, access, is_new: false }
    }

    fn check(&self, size_bytes: u64, require: Durability) -> Result<(), SetStoreError> {
        let (name, len_bytes) = (self.name.clone(), self.len_bytes());
        if len_bytes < size_bytes {
            return Err(SetStoreError::TooSmall { name, len_bytes, wanted_bytes: size_bytes });
        }
        match &self.open {
            Some(open) if open.memory.promise(require).is_none() => {
                let medium = open.memory.kind().to_string();
                Err(SetStoreError::NotDurable { name, wanted: require, medium })
            }
            _ => Ok(()),
        }
    }

    fn replica(&self) -> Option<&LocalReplica> {
        self.open.as_ref()?.replica.as_ref()
    }

    pub(crate) fn name(&self) -> &SetName {
        &self.name
    }

    /// Bytes of the pool, its header included.
    pub(crate) fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// The pool's memory; `None` once it is closed.
    pub(crate) fn memory(&self) -> Option<Arc<Memory>> {
        self.open.as_ref().map(|open| Arc::clone(&open.memory))
    }

    /// Bytes of its header.
    pub(crate) fn header_bytes(&self) -> u64 {
        if self.has_header { HEADER_LEN_BYTES as u64 } else { 0 }
    }

    /// What each part without a header has of the memory, in order.
    pub(crate) fn headerless_ranges(&self) -> Vec<Range<u64>> {
        self.replica().map_or_else(Vec::new, LocalReplica::headerless_ranges)
    }

    pub(crate) fn attributes(&self) -> Option<Attributes> {
        self.replica().and_then(LocalReplica::attributes)
    }

    pub(crate) fn set_attributes(&self, attributes: &Attributes) -> Result<(), SetStoreError> {
        let Some(replica) = self.replica() else {
            let name = self.name.clone();
            return Err(SetStoreError::NotATargets { name, why: "it is open for a comparison only: make it anew" });
        };
        replica.set_attributes(attributes).map_err(|error| failed(&self.name, error))
    }

    /// A new pool stays from now on.
    pub(crate) fn keep(&mut self) -> Result<(), SetStoreError> {
        if let Some(replica) = self.replica().filter(|_| self.is_new) {
            replica.write_out().map_err(|error| failed(&self.name, error))?;
        }
        self.is_new = false;
        Ok(())
    }

    /// Closes it in order.
    pub(crate) fn close(mut self) -> Result<(), SetStoreError> {
        self.end()
    }

    fn end(&mut self) -> Result<(), SetStoreError> {
        let Some(Opened { replica: Some(replica), memory }) = self.open.take() else { return Ok(()) };
        if !self.is_new {
            return replica.close().map_err(|error| failed(&self.name, error));
        }
        drop(memory);
        replica.discard().map_err(|error| failed(&self.name, error))
    }
}

impl Drop for OpenSet {
    fn drop(&mut self) {
        // The initiator is gone; the target is not, so the pool was closed in order all the same.
        if let Err(error) = self.end() {
            events::failed("close_failed", self.name.as_str(), &causes(&error));
        }
    }
}

/// A header is to be there, in all parts or in one, as both sides say.
fn check_options(name: &SetName, options: SetOptions, attributes: Option<&Attributes>) -> Result<(), SetStoreError> {
    let contradicts = |says, asked| Err(SetStoreError::Contradicts { name: name.clone(), says, asked });
    let Some(attributes) = attributes else {
        return if options.no_headers { Ok(()) } else { contradicts("lacks OPTION NOHDRS", "without a header") };
    };
    if options.no_headers {
        return contradicts("has OPTION NOHDRS", "with a header");
    }
    match (options.single_header, attributes.features().has(Feature::SingleHeader)) {
        (true, false) => contradicts("has OPTION SINGLEHDR", "with a header in each part"),
        (false, true) => contradicts("lacks OPTION SINGLEHDR", "with a header in the first part only"),
        _ => Ok(()),
    }
}

/// What is said of a part without a header that lacks what the pool's heap has in use there.
const FOREIGN: &str = "a part of its number has no header, and nothing in it is what the pool holds there";

/// The replica as a set of its own.
fn alone(name: &SetName, parts: &[PartSpec], options: SetOptions) -> PoolSet {
    PoolSet { path: name.as_str().into(), replicas: vec![ReplicaSpec::Local(parts.to_vec())], options }
}

/// A failure of reading that no file is named for.
fn no_look(parts: &[PartSpec], source: Box<dyn Error + Send + Sync>) -> PoolSetError {
    let path = parts.first().map(|part| part.path.clone()).unwrap_or_default();
    PoolSetError::Io { call: "a look behind the headers", path, mend: "", source: io::Error::other(source) }
}

fn failed(name: &SetName, error: PoolSetError) -> SetStoreError {
    match error {
        PoolSetError::Busy { path } => SetStoreError::Busy { name: name.clone(), holder: holder_of(&path) },
        source => SetStoreError::Parts { name: name.clone(), source },
    }
}
