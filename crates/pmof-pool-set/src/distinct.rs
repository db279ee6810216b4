//! Whether the parts of a set are distinct files: two names can lead to one file, on this machine and on others.

use std::{
    collections::HashMap,
    ffi::OsString,
    fs, io,
    os::unix::{
        ffi::OsStrExt as _,
        fs::{FileTypeExt as _, MetadataExt as _},
    },
    path::{Path, PathBuf},
};

use uuid::Uuid;

use crate::{
    AccessError, FILE_IDENTITY_BYTES, FilePlace, PartFile, PartSpec, PoolSet, PoolSetError, RemoteReplicas, RemoteSpec,
    ReplicaSpec, part::names_in,
};

impl PartFile {
    /// The files that `parts` name on the machine that was started at `boot`. Those that cannot be resolved are left out: opening or making
    /// them fails.
    pub fn of_parts(parts: &[PartSpec], boot: Option<Uuid>) -> Vec<Self> {
        let paths = parts.iter().flat_map(|part| std::iter::once(part.path.clone()).chain(names_in(&part.path)));
        let file = |path: PathBuf| Some(Self { identity: Identity::of(&path)?.digest(boot), path });
        paths.filter_map(file).collect()
    }
}

/// The time since this machine was started, as its kernel names it.
pub fn boot_of_this_machine() -> Option<Uuid> {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?.trim().parse().ok()
}

/// What a name resolves to, through all links and directories.
#[derive(Debug, PartialEq, Eq, Hash)]
enum Identity {
    /// Device and inode of a file or directory.
    File(u64, u64),
    /// The number of a device.
    Device(u64),
    /// Nothing yet: device and inode of the directory that it would be in, and its name there.
    New(u64, u64, OsString),
}

impl Identity {
    /// `None` if the path leads nowhere or cannot be resolved; opening it gives the reason.
    fn of(path: &Path) -> Option<Self> {
        match fs::metadata(path) {
            Ok(found) if found.file_type().is_char_device() || found.file_type().is_block_device() => {
                Some(Self::Device(found.rdev()))
            }
            Ok(found) => Some(Self::File(found.dev(), found.ino())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let directory = fs::metadata(path.parent()?).ok()?;
                Some(Self::New(directory.dev(), directory.ino(), path.file_name()?.to_owned()))
            }
            Err(_) => None,
        }
    }

    /// See [`PartFile::identity`].
    fn digest(&self, boot: Option<Uuid>) -> [u8; FILE_IDENTITY_BYTES] {
        let mut hasher = blake3::Hasher::new();
        let (kind, numbers, name): (u8, &[u64], &[u8]) = match self {
            Self::File(device, inode) => (0, &[*device, *inode], &[]),
            Self::Device(number) => (1, &[*number], &[]),
            Self::New(device, inode, name) => (2, &[*device, *inode], name.as_bytes()),
        };
        hasher.update(boot.unwrap_or_default().as_bytes()).update(&[kind]);
        let numbers: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        *hasher.update(&numbers).update(name).finalize().as_bytes()
    }
}

/// The names seen so far.
#[derive(Debug, Default)]
struct Seen {
    names: HashMap<Identity, PathBuf>,
}

impl Seen {
    fn add(&mut self, parts: &[PartSpec]) -> Result<(), PoolSetError> {
        for part in parts {
            self.add_path(&part.path)?;
            // Everything that appears in a directory becomes a part.
            for path in names_in(&part.path) {
                self.add_path(&path)?;
            }
        }
        Ok(())
    }

    fn add_path(&mut self, path: &Path) -> Result<(), PoolSetError> {
        let Some(identity) = Identity::of(path) else { return Ok(()) };
        match self.names.insert(identity, path.to_owned()) {
            Some(first) => Err(PoolSetError::SameFile { path: path.into(), first }),
            None => Ok(()),
        }
    }
}

/// Fails with `SameFile` if two of the parts are one file.
pub(crate) fn check_parts(parts: &[PartSpec]) -> Result<(), PoolSetError> {
    Seen::default().add(parts)
}

/// Fails if two parts of the set are one file, also of different replicas; gives the place of the replica that names it again.
pub(crate) fn check_set(set: &PoolSet) -> Result<(), (usize, PoolSetError)> {
    let mut seen = Seen::default();
    for (index, replica) in set.replicas.iter().enumerate() {
        seen.add(replica.local().unwrap_or_default()).map_err(|error| (index, error))?;
    }
    Ok(())
}

/// Fails if a replica of `to` at one of the places `added` has a file of the set `from`.
pub(crate) fn check_added(from: &PoolSet, to: &PoolSet, added: &[usize]) -> Result<(), (usize, PoolSetError)> {
    for index in added {
        let mut seen = Seen::default();
        let parts = from.replicas.iter().filter_map(ReplicaSpec::local);
        // A set that names a file twice fails in its own check.
        parts.for_each(|parts| drop(seen.add(parts)));
        seen.add(to.replicas[*index].local().unwrap_or_default()).map_err(|error| (*index, error))?;
    }
    Ok(())
}

/// The files of replicas on other machines, each of which is asked once.
#[derive(Debug, Default)]
pub(crate) struct FilesElsewhere {
    asked: Vec<(RemoteSpec, Vec<PartFile>)>,
}

impl FilesElsewhere {
    /// Asks for those of a set, but for the replicas at the places `skipped`.
    ///
    /// Errors: the place of a replica that could not be asked, and why.
    pub(crate) fn ask(
        &mut self,
        set: &PoolSet,
        skipped: &[usize],
        remotes: &mut dyn RemoteReplicas,
    ) -> Result<(), (usize, AccessError)> {
        for (index, spec) in set.replicas.iter().enumerate().filter(|(index, _)| !skipped.contains(index)) {
            if let Some(remote) = spec.remote().filter(|remote| self.of(remote).is_none()) {
                let files = remotes.files(remote).map_err(|error| (index, error))?;
                self.asked.push((remote.clone(), files));
            }
        }
        Ok(())
    }

    fn of(&self, remote: &RemoteSpec) -> Option<&[PartFile]> {
        let is_it = |asked: &&(RemoteSpec, Vec<PartFile>)| (&asked.0.node, &asked.0.set) == (&remote.node, &remote.set);
        self.asked.iter().find(is_it).map(|(_, files)| files.as_slice())
    }

    /// Fails with `SameFileElsewhere` if two replicas of the set have one file, at least one of them on another machine that was asked; gives the
    /// place of the one that names it again.
    pub(crate) fn check_set(&self, set: &PoolSet) -> Result<(), (usize, PoolSetError)> {
        let mut seen = SeenElsewhere::new(self);
        set.replicas.iter().enumerate().try_for_each(|(index, spec)| seen.add(spec).map_err(|error| (index, error)))
    }

    /// The same of a replica of `to` at one of the places `added`, and one of the set `from`.
    pub(crate) fn check_added(
        &self,
        from: &PoolSet,
        to: &PoolSet,
        added: &[usize],
    ) -> Result<(), (usize, PoolSetError)> {
        for index in added {
            let mut seen = SeenElsewhere::new(self);
            // A set that names a file twice fails in its own check.
            from.replicas.iter().for_each(|spec| drop(seen.add(spec)));
            seen.add(&to.replicas[*index]).map_err(|error| (*index, error))?;
        }
        Ok(())
    }
}

/// The files seen so far, of all machines.
struct SeenElsewhere<'f> {
    files: &'f FilesElsewhere,
    boot: Option<Uuid>,
    places: HashMap<[u8; FILE_IDENTITY_BYTES], FilePlace>,
}

impl<'f> SeenElsewhere<'f> {
    fn new(files: &'f FilesElsewhere) -> Self {
        Self { files, boot: boot_of_this_machine(), places: HashMap::new() }
    }

    fn add(&mut self, spec: &ReplicaSpec) -> Result<(), PoolSetError> {
        let files = match spec {
            ReplicaSpec::Local(parts) => PartFile::of_parts(parts, self.boot),
            ReplicaSpec::Remote(remote) => self.files.of(remote).unwrap_or_default().to_vec(),
        };
        for PartFile { identity, path } in files {
            let place = FilePlace { path, remote: spec.remote().cloned() };
            if let Some(first) = self.places.insert(identity, place.clone()) {
                return Err(PoolSetError::SameFileElsewhere { places: Box::new([first, place]) });
            }
        }
        Ok(())
    }
}

impl PoolSet {
    /// Checks that all local parts are distinct files: two names may lead to one file, through links, directories or mounts.
    /// Files that do not exist yet are distinguished by their directories. Nothing is opened.
    ///
    /// Every operation that creates, opens or changes a set does this first.
    ///
    /// Errors: `SameFile`.
    pub fn check_files(&self) -> Result<(), PoolSetError> {
        check_set(self).map_err(|(_, error)| error)
    }

    /// The same with replicas on other machines, whose files these machines have told: of each its place in the set, and the files.
    ///
    /// Errors: `SameFile`, `SameFileElsewhere`.
    pub fn check_files_with(&self, elsewhere: Vec<(usize, Vec<PartFile>)>) -> Result<(), PoolSetError> {
        self.check_files()?;
        let of = |(index, files): (usize, Vec<PartFile>)| Some((self.replicas.get(index)?.remote()?.clone(), files));
        let files = FilesElsewhere { asked: elsewhere.into_iter().filter_map(of).collect() };
        files.check_set(self).map_err(|(_, error)| error)
    }
}
