//! The files and devices that are parts of a replica: found, made, locked.

use std::{
    fs, io,
    ops::Range,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::fs::{FileExt as _, MetadataExt as _},
    },
    path::{Path, PathBuf},
};

use pmof_mem::{ExistingFile, FilePart, Medium as _, MemError, Memory, NewFile, System, bad_blocks};
use rustix::{
    fs::{FlockOperation, SeekFrom},
    io::Errno,
};

use crate::{
    HEADER_LEN_BYTES, OpenFor, PartSize, PartSpec, PoolSetError, SetOptions, header::left_by_creation,
    replica::something_in,
};

#[cfg(test)]
mod tests;

/// The shortest part, as PMDK has it for every kind of pool.
pub const PART_LEN_BYTES_MIN: u64 = 2 << 20;

/// Digits of the names of files in directories.
const NAME_DIGITS: usize = 6;
const EXTENSION: &str = "pmem";

/// Bytes of a file read at a time.
const READ_LEN_BYTES: usize = 1 << 20;

/// What mappings begin and end at; headers take up as much, so that what follows can be mapped.
pub(crate) fn page_bytes() -> u64 {
    rustix::param::page_size() as u64
}

/// A part that is open and locked.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) path: PathBuf,
    pub(crate) file: OwnedFd,
    pub(crate) len_bytes: u64,
    pub(crate) devdax_align_bytes: Option<u64>,
    /// The file was made here, for this pool. Others were there before, and may hold something.
    pub(crate) is_made: bool,
}

/// What is where a new part is to be.
#[derive(Debug)]
pub(crate) enum Site {
    /// A file that can become the part.
    File(Part, ExistingFile),
    /// A device that can.
    Device(Part),
    /// Nothing: a file of this many bytes is to be created.
    Nothing { len_bytes: u64 },
}

/// A part, with directories replaced by the files in them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) path: PathBuf,
    /// How long it must be; `None` where that does not matter.
    pub(crate) size: Option<PartSize>,
}

impl Place {
    fn of(spec: &PartSpec) -> Self {
        Self { path: spec.path.clone(), size: Some(spec.size) }
    }
}

/// Where the parts of a new replica go: of directories each gets one file, with all the space that is reserved.
pub(crate) fn new_places(specs: &[PartSpec], options: SetOptions) -> Result<Vec<Place>, PoolSetError> {
    let name =
        |(index, spec): (usize, &PartSpec)| Place { path: spec.path.join(file_name(index)), size: Some(spec.size) };
    if !are_directories(specs, options)? {
        return Ok(specs.iter().map(Place::of).collect());
    }
    // What a creation that was killed leaves, all zeros, is taken.
    let reserved: Vec<_> = specs.iter().enumerate().map(name).collect();
    for (_, there) in files_in(specs)? {
        let part = Part::look_at_any(&there.path)?;
        part.check_nobodys()?;
        if !reserved.contains(&there) {
            let found =
                format!("it holds {} bytes, all zero, and is none of the files that the set reserves", part.len_bytes);
            return Err(PoolSetError::Exists { path: there.path, found });
        }
    }
    Ok(reserved)
}

/// Where the parts of a broken replica of at least `least` bytes are, or go: of directories the files that are there, where these can be all
/// of it, else those that the set reserves.
///
/// Errors: `Incomplete` where a file is missing, and what is there is not as the set reserves it, so that nothing says what the missing one
/// was; as for [`places`].
pub(crate) fn places_of_broken(
    specs: &[PartSpec],
    options: SetOptions,
    least: u64,
) -> Result<Vec<Place>, PoolSetError> {
    if !are_directories(specs, options)? {
        return Ok(specs.iter().map(Place::of).collect());
    }
    let files = files_in(specs)?;
    let reserved =
        |(index, spec): (usize, &PartSpec)| Place { path: spec.path.join(file_name(index)), size: Some(spec.size) };
    let reserved: Vec<_> = specs.iter().enumerate().map(reserved).collect();
    let len_bytes = |place: &Place| match place.size {
        Some(PartSize::Bytes(len_bytes)) => len_bytes,
        _ => 0,
    };
    let stray = files.iter().find(|(number, place)| reserved.get(*number).is_none_or(|own| own.path != place.path));
    match (places(specs, options), stray) {
        // With a stray one it may be a pool that was extended.
        (Ok(found), stray) if stray.is_some() || found.iter().map(len_bytes).sum::<u64>() >= least => Ok(found),
        (Ok(_), _) => Ok(reserved),
        (Err(PoolSetError::Missing { path }), _) => {
            let other = || files.iter().find(|(number, place)| reserved.get(*number) != Some(place));
            match stray.or_else(other) {
                Some((_, place)) => Err(PoolSetError::Incomplete { path, beside: place.path.clone() }),
                None => Ok(reserved),
            }
        }
        (Err(error), _) => Err(error),
    }
}

/// What parts of these lengths hold as a replica; `None` where a length is not known.
pub(crate) fn len_bytes_by_set(specs: &[PartSpec], single_header: bool) -> Option<u64> {
    let pages = |bytes: u64| bytes - bytes % page_bytes();
    let mapped = |(index, spec): (usize, &PartSpec)| match spec.size {
        PartSize::Bytes(len_bytes) if index == 0 || single_header => Some(pages(len_bytes)),
        PartSize::Bytes(len_bytes) => Some(pages(len_bytes.saturating_sub(page_bytes()))),
        PartSize::Auto => None,
    };
    specs.iter().enumerate().map(mapped).sum()
}

/// Where the parts of a replica are.
pub(crate) fn places(specs: &[PartSpec], options: SetOptions) -> Result<Vec<Place>, PoolSetError> {
    if !are_directories(specs, options)? {
        return Ok(specs.iter().map(Place::of).collect());
    }
    let files = files_in(specs)?;
    let first_directory = specs.first().map(|spec| spec.path.clone()).unwrap_or_default();
    for (expected, (index, place)) in files.iter().enumerate() {
        if *index < expected {
            return Err(PoolSetError::WrongKind {
                path: place.path.clone(),
                why: "two files in the directories have its number",
                mend: "remove the one that is not of the pool",
            });
        }
        if *index > expected {
            return Err(PoolSetError::Missing { path: first_directory.join(file_name(expected)) });
        }
    }
    // The first part is in the first directory. In another one it is another pool's, or the directories are in another order.
    let first = first_directory.join(file_name(0));
    if files.first().is_none_or(|(_, place)| place.path != first) {
        return Err(PoolSetError::Missing { path: first });
    }
    Ok(files.into_iter().map(|(_, place)| place).collect())
}

/// Where parts may be left of a replica of which some are missing: of directories, every file that is a part.
pub(crate) fn places_left(specs: &[PartSpec]) -> Result<Vec<PathBuf>, PoolSetError> {
    // Directories can be parts with this one only.
    let single = SetOptions { single_header: true, no_headers: false };
    if are_directories(specs, single)? {
        return Ok(files_in(specs)?.into_iter().map(|(_, place)| place.path).collect());
    }
    Ok(specs.iter().map(|spec| spec.path.clone()).collect())
}

pub(crate) fn file_name(index: usize) -> String {
    format!("{index:0NAME_DIGITS$}.{EXTENSION}")
}

/// Whether all parts are directories; an error if only some are, or the set has headers in its parts.
pub(crate) fn are_directories(specs: &[PartSpec], options: SetOptions) -> Result<bool, PoolSetError> {
    let Some(directory) = specs.iter().find(|spec| spec.path.is_dir()) else { return Ok(false) };
    if let Some(other) = specs.iter().find(|spec| !spec.path.is_dir()) {
        return Err(PoolSetError::WrongKind {
            path: other.path.clone(),
            why: "other parts of the replica are directories",
            mend: "name directories only, or files only",
        });
    }
    if !options.single_header {
        return Err(PoolSetError::WrongKind {
            path: directory.path.clone(),
            why: "a directory can be part of sets with the option SINGLEHDR only",
            mend: "add `OPTION SINGLEHDR` to the pool set file",
        });
    }
    Ok(true)
}

/// The files of a directory that are parts of a pool; none of what is no directory, or cannot be read.
pub(crate) fn names_in(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let mut paths: Vec<_> =
        entries.flatten().map(|entry| entry.path()).filter(|path| number_of(path).is_some()).collect();
    paths.sort();
    paths
}

/// The number of a file in a directory that is part of a pool.
pub(crate) fn number_of(path: &Path) -> Option<usize> {
    let number = path.file_stem()?.to_str()?.parse().ok()?;
    (path.extension()? == EXTENSION).then_some(number)
}

/// The files in the directories that are parts, sorted by number.
fn files_in(specs: &[PartSpec]) -> Result<Vec<(usize, Place)>, PoolSetError> {
    let mut files = Vec::new();
    for spec in specs {
        let failed = |error: io::Error| PoolSetError::io("readdir", &spec.path, "", error);
        for entry in fs::read_dir(&spec.path).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let path = entry.path();
            if let Some(number) = number_of(&path) {
                let len_bytes = entry.metadata().map_err(failed)?.len();
                files.push((number, Place { path, size: Some(PartSize::Bytes(len_bytes)) }));
            }
        }
    }
    files.sort_by(|one, other| (one.0, &one.1.path).cmp(&(other.0, &other.1.path)));
    Ok(files)
}

impl Part {
    /// Opens and locks an existing part, exclusively for writing and shared for reading.
    pub(crate) fn open(place: &Place, access: OpenFor) -> Result<Self, PoolSetError> {
        let Place { path, size } = place;
        let part = Self::of(path, existing(path, access, *size)?);
        part.lock(access)?;
        part.check_size(*size)?;
        Ok(part)
    }

    /// The same of a part that is not mapped, only looked at or removed: it may have holes, or be empty.
    pub(crate) fn find(place: &Place) -> Result<Self, PoolSetError> {
        let part = Self::of(&place.path, found(&place.path, ExistingFile::open_unmapped(&place.path, true))?);
        part.lock(OpenFor::Write)?;
        part.check_size(place.size)?;
        Ok(part)
    }

    /// Opens a part that is to be overwritten, whose holes are filled.
    pub(crate) fn open_filled(place: &Place) -> Result<Self, PoolSetError> {
        match Self::open(place, OpenFor::Write) {
            Err(PoolSetError::Holes { path }) => {
                found(&path, ExistingFile::open_unmapped(&path, true))?.fill_holes(&path)?;
                Self::open(place, OpenFor::Write)
            }
            opened => opened,
        }
    }

    /// What is there, not locked, for a look at its header.
    pub(crate) fn look(path: &Path) -> Result<Self, PoolSetError> {
        let part = Self::look_at_any(path)?;
        match part.len_bytes {
            0 => Err(PoolSetError::WrongLength { path: path.into(), expected: PART_LEN_BYTES_MIN, found: 0 }),
            found if found < HEADER_LEN_BYTES as u64 => {
                Err(PoolSetError::TooShort { path: path.into(), found, least: PART_LEN_BYTES_MIN })
            }
            _ => Ok(part),
        }
    }

    /// The same of a file of any length.
    pub(crate) fn look_at_any(path: &Path) -> Result<Self, PoolSetError> {
        Ok(Self::of(path, found(path, ExistingFile::open_unmapped(path, false))?))
    }

    fn of(path: &Path, existing: ExistingFile) -> Self {
        let ExistingFile { file, len_bytes, devdax_align_bytes } = existing;
        Self { path: path.into(), file, len_bytes, devdax_align_bytes, is_made: false }
    }

    fn check_size(&self, size: Option<PartSize>) -> Result<(), PoolSetError> {
        let (path, found) = (&self.path, self.len_bytes);
        match (size, self.devdax_align_bytes) {
            (Some(PartSize::Auto), None) => Err(not_devdax(path)),
            (Some(PartSize::Bytes(expected)), _) if expected != found => {
                Err(PoolSetError::WrongLength { path: path.clone(), expected, found })
            }
            _ => Ok(()),
        }
    }

    /// An existing file with the length from the set that belongs to nobody, locked. It may have holes.
    fn given(place: &Place) -> Result<(Self, ExistingFile), PoolSetError> {
        let path = &place.path;
        let existing = found(path, ExistingFile::open_unmapped(path, true))?;
        let part = Self {
            path: path.clone(),
            file: cloned(&existing.file, path)?,
            len_bytes: existing.len_bytes,
            devdax_align_bytes: existing.devdax_align_bytes,
            is_made: false,
        };
        if part.len_bytes == 0 {
            // It may be another process's that has yet to lock it.
            part.check_size(place.size)?;
        }
        part.lock(OpenFor::Write)?;
        part.check_size(place.size)?;
        check_least(path, part.len_bytes)?;
        part.check_nobodys()?;
        Ok((part, existing))
    }

    /// Whether nothing is in it: a file has no bytes, or zeros all through, or it is what a creation that was killed leaves. Of a device only
    /// the header is looked at.
    pub(crate) fn is_nobodys(&self) -> Result<bool, PoolSetError> {
        if self.check_bad_blocks(&System::real(), false).is_err() {
            return Ok(false);
        }
        let head = self.head_bytes()?;
        let is_blank = head == [0; HEADER_LEN_BYTES];
        Ok(head == left_by_creation() || is_blank && (self.devdax_align_bytes.is_some() || self.is_zero()?))
    }

    /// Fails where it cannot become a part since something is in it.
    pub(crate) fn check_nobodys(&self) -> Result<(), PoolSetError> {
        match something_in(self)? {
            Some(_) if self.devdax_align_bytes.is_some() => Err(PoolSetError::NotBlank { path: self.path.clone() }),
            Some(found) => Err(PoolSetError::Exists { path: self.path.clone(), found }),
            None => Ok(()),
        }
    }

    /// What it begins with. The file may have holes.
    pub(crate) fn header_bytes(&self) -> Result<[u8; HEADER_LEN_BYTES], PoolSetError> {
        let mut bytes = [0; HEADER_LEN_BYTES];
        if self.devdax_align_bytes.is_some() {
            Memory::concatenate(vec![self.header_range()?], false, None)?.read(0, &mut bytes)?;
        } else {
            let read = fs::File::from(cloned(&self.file, &self.path)?).read_exact_at(&mut bytes, 0);
            read.map_err(|error| PoolSetError::io("pread", &self.path, "", error))?;
        }
        Ok(bytes)
    }

    /// The same of a file of any length: zeros behind its end.
    pub(crate) fn head_bytes(&self) -> Result<[u8; HEADER_LEN_BYTES], PoolSetError> {
        if self.devdax_align_bytes.is_some() || self.len_bytes >= HEADER_LEN_BYTES as u64 {
            return self.header_bytes();
        }
        let mut bytes = [0; HEADER_LEN_BYTES];
        let read =
            fs::File::from(cloned(&self.file, &self.path)?).read_exact_at(&mut bytes[..self.len_bytes as usize], 0);
        read.map_err(|error| PoolSetError::io("pread", &self.path, "", error))?;
        Ok(bytes)
    }

    /// Whether a file holds nothing but zeros, whatever its length. What cannot be read may be anything.
    pub(crate) fn is_zero(&self) -> Result<bool, PoolSetError> {
        if self.check_bad_blocks(&System::real(), true).is_err() {
            return Ok(false);
        }
        Ok(self.first_data()?.is_none())
    }

    /// The offset of the first nonzero byte of a file.
    pub(crate) fn first_data(&self) -> Result<Option<u64>, PoolSetError> {
        let file = fs::File::from(self.cloned()?);
        let mut bytes = Vec::new();
        for Range { start: mut at, end } in data_of(&file, self.len_bytes) {
            while at < end {
                bytes.resize((end - at).min(READ_LEN_BYTES as u64) as usize, 0);
                let read =
                    file.read_at(&mut bytes, at).map_err(|error| PoolSetError::io("pread", &self.path, "", error))?;
                if let Some(place) = bytes[..read].iter().position(|byte| *byte != 0) {
                    return Ok(Some(at + place as u64));
                }
                if read == 0 {
                    return Ok(None);
                }
                at += read as u64;
            }
        }
        Ok(None)
    }

    /// Another descriptor of the file.
    pub(crate) fn cloned(&self) -> Result<OwnedFd, PoolSetError> {
        cloned(&self.file, &self.path)
    }

    /// What is at the place of a new part, if it can become one. Nothing is made or changed; what is there is locked.
    pub(crate) fn site(place: &Place) -> Result<Site, PoolSetError> {
        let Place { path, size } = place;
        let is_file = match fs::symlink_metadata(path) {
            Ok(metadata) => Some(metadata.is_file()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(PoolSetError::io("stat", path, "", error)),
        };
        match (is_file, size) {
            (Some(true), Some(PartSize::Bytes(_))) => {
                let (part, existing) = Self::given(place)?;
                Ok(Site::File(part, existing))
            }
            (Some(false), _) => {
                let part = Self::open(place, OpenFor::Write)?;
                check_least(path, part.len_bytes)?;
                part.check_nobodys()?;
                Ok(Site::Device(part))
            }
            (None, Some(PartSize::Bytes(len_bytes))) => {
                check_least(path, *len_bytes)?;
                Ok(Site::Nothing { len_bytes: *len_bytes })
            }
            _ => Err(not_devdax(path)),
        }
    }

    /// Makes and locks the file, which goes again unless it is kept. One that is there is taken if it is nobody's, and its holes are
    /// filled; a devdax device must be there.
    pub(crate) fn create(place: &Place) -> Result<(Self, Option<NewFile>), PoolSetError> {
        let path = &place.path;
        let len_bytes = match Self::site(place)? {
            Site::File(part, existing) => {
                existing.fill_holes(path)?;
                return Ok((part, None));
            }
            Site::Device(part) => return Ok((part, None)),
            Site::Nothing { len_bytes } => len_bytes,
        };
        let file = NewFile::create(path, len_bytes).map_err(|error| match error {
            MemError::Io { source, .. } if source.kind() == io::ErrorKind::AlreadyExists => {
                PoolSetError::Exists { path: path.clone(), found: "somebody made it just now".to_owned() }
            }
            MemError::Io { call: "flock", source, .. } if source.kind() == io::ErrorKind::WouldBlock => {
                PoolSetError::Busy { path: path.clone() }
            }
            other => other.into(),
        })?;
        let cloned = cloned(file.file(), path)?;
        let part = Self { path: path.clone(), file: cloned, len_bytes, devdax_align_bytes: None, is_made: true };
        part.lock(OpenFor::Write)?;
        Ok((part, Some(file)))
    }

    /// Where it is, and how its mappings must be aligned if it is a devdax device.
    pub(crate) fn device(&self) -> (&Path, Option<u64>) {
        (&self.path, self.devdax_align_bytes)
    }

    /// When the file's inode changed last, in seconds since 1970: for new parts, when they were made.
    pub(crate) fn changed_at_unix_s(&self) -> Result<u64, PoolSetError> {
        let stat = rustix::fs::fstat(&self.file).map_err(|errno| PoolSetError::io("fstat", &self.path, "", errno))?;
        Ok(stat.st_ctime.max(0).unsigned_abs())
    }

    /// The range of the file that is mapped: all whole pages, without a header.
    pub(crate) fn mapped(&self, has_header: bool) -> Result<FilePart, PoolSetError> {
        let file_offset = if has_header { page_bytes() } else { 0 };
        let len_bytes = self.mapped_len_bytes(has_header);
        Ok(FilePart { file: cloned(&self.file, &self.path)?, path: self.path.clone(), file_offset, len_bytes })
    }

    pub(crate) fn mapped_len_bytes(&self, has_header: bool) -> u64 {
        let align_bytes = self.devdax_align_bytes.unwrap_or_else(page_bytes);
        let behind_bytes = if has_header { self.len_bytes.saturating_sub(page_bytes()) } else { self.len_bytes };
        behind_bytes - behind_bytes % align_bytes
    }

    /// The range of the file that begins with its header, as short as it can be mapped.
    pub(crate) fn header_range(&self) -> Result<FilePart, PoolSetError> {
        let len_bytes = self.devdax_align_bytes.unwrap_or_else(page_bytes).max(HEADER_LEN_BYTES as u64);
        Ok(FilePart { file: cloned(&self.file, &self.path)?, path: self.path.clone(), file_offset: 0, len_bytes })
    }

    /// Fails if blocks of the part cannot be read. Those of the header always count, others if `all` do.
    pub(crate) fn check_bad_blocks(&self, system: &System, all: bool) -> Result<(), PoolSetError> {
        let mut blocks = bad_blocks(system, self.file.as_fd(), &self.path)?;
        if !all {
            blocks.retain(|range| range.start < HEADER_LEN_BYTES as u64);
        }
        if blocks.is_empty() { Ok(()) } else { Err(PoolSetError::BadBlocks { path: self.path.clone(), blocks }) }
    }

    /// Whether its name still leads to it.
    fn is_at_path(&self) -> Result<bool, PoolSetError> {
        let own = rustix::fs::fstat(&self.file).map_err(|errno| PoolSetError::io("fstat", &self.path, "", errno))?;
        match fs::symlink_metadata(&self.path) {
            Ok(found) => Ok((found.dev(), found.ino()) == (own.st_dev, own.st_ino)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(PoolSetError::io("stat", &self.path, "", error)),
        }
    }

    /// Makes a file shorter or longer, durably; what is new is a hole.
    pub(crate) fn resize(&self, len_bytes: u64) -> Result<(), PoolSetError> {
        if self.len_bytes == len_bytes {
            return Ok(());
        }
        let resized = rustix::fs::ftruncate(&self.file, len_bytes).and_then(|()| rustix::fs::fsync(&self.file));
        resized.map_err(|errno| PoolSetError::io("ftruncate", &self.path, "", errno))
    }

    /// Makes all of a file a hole of this many bytes, durably. An interrupted call leaves no bytes, or zeros.
    pub(crate) fn make_zero(&self, len_bytes: u64) -> Result<(), PoolSetError> {
        let zero = rustix::fs::ftruncate(&self.file, 0).and_then(|()| rustix::fs::ftruncate(&self.file, len_bytes));
        let zero = zero.and_then(|()| rustix::fs::fsync(&self.file));
        zero.map_err(|errno| PoolSetError::io("ftruncate", &self.path, "", errno))
    }

    /// Makes the file's name durable.
    pub(crate) fn sync_name(&self) -> Result<(), PoolSetError> {
        let directory = self.path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let synced = fs::File::open(directory).and_then(|directory| directory.sync_all());
        synced.map_err(|error| PoolSetError::io("fsync", directory, "", error))
    }

    /// Removes the file, which is locked, unless another one has its name by now. `mend`: what to do where that fails.
    pub(crate) fn unlink(&self, mend: &'static str) -> Result<(), PoolSetError> {
        if !self.is_at_path()? {
            return Ok(());
        }
        fs::remove_file(&self.path).map_err(|error| PoolSetError::io("unlink", &self.path, mend, error))
    }

    /// Whether the file has no bytes now.
    pub(crate) fn is_empty(&self) -> Result<bool, PoolSetError> {
        let stat = rustix::fs::fstat(&self.file).map_err(|errno| PoolSetError::io("fstat", &self.path, "", errno))?;
        Ok(stat.st_size == 0)
    }

    /// As PMDK does: flock(2) of the file, which lasts until all descriptors and mappings of this opening are gone. The previous holder of the
    /// lock may have removed the file.
    fn lock(&self, access: OpenFor) -> Result<(), PoolSetError> {
        let operation = match access {
            OpenFor::Read => FlockOperation::NonBlockingLockShared,
            OpenFor::Write => FlockOperation::NonBlockingLockExclusive,
        };
        loop {
            match rustix::fs::flock(&self.file, operation) {
                Ok(()) if self.is_at_path()? => return Ok(()),
                Ok(()) => return Err(PoolSetError::Missing { path: self.path.clone() }),
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) => return Err(PoolSetError::Busy { path: self.path.clone() }),
                Err(errno) => return Err(PoolSetError::io("flock", &self.path, "", errno)),
            }
        }
    }
}

/// Devdax devices must be all of a replica's parts or none, and their alignment must allow headers to be mapped separately.
pub(crate) fn check_devices<'a>(
    parts: impl Iterator<Item = (&'a Path, Option<u64>)> + Clone,
    options: SetOptions,
) -> Result<(), PoolSetError> {
    let has_device = parts.clone().any(|(_, align_bytes)| align_bytes.is_some());
    let count = parts.clone().count();
    for (path, align_bytes) in parts {
        let (why, mend) = match align_bytes {
            None if has_device => ("other parts of the replica are devdax devices", "name devices only, or files only"),
            Some(align_bytes)
                if count > 1 && align_bytes != page_bytes() && !(options.single_header || options.no_headers) =>
            {
                (
                    "its mappings are aligned to more than a page, so that its header cannot be mapped alone",
                    "add `OPTION SINGLEHDR`",
                )
            }
            _ => continue,
        };
        return Err(PoolSetError::WrongKind { path: path.into(), why, mend });
    }
    Ok(())
}

/// The bytes of the file system that a file takes.
pub(crate) fn allocated_len_bytes(metadata: &fs::Metadata) -> u64 {
    /// Unit of `st_blocks` (stat(3type)).
    const STAT_BLOCK_BYTES: u64 = 512;
    metadata.blocks().saturating_mul(STAT_BLOCK_BYTES)
}

/// Opens what is there. Of a file that has holes, or no bytes, and is not as long as it should be, the length is what is wrong. Parts are made in
/// full, so that holes are damage.
fn existing(path: &Path, access: OpenFor, size: Option<PartSize>) -> Result<ExistingFile, PoolSetError> {
    let expected = match size {
        Some(PartSize::Bytes(len_bytes)) => Some(len_bytes),
        _ => None,
    };
    let wrong_len = || {
        let metadata = fs::symlink_metadata(path).ok().filter(fs::Metadata::is_file)?;
        let is_wrong = metadata.len() == 0 || expected.is_some_and(|expected| expected != metadata.len());
        is_wrong.then_some(metadata.len())
    };
    let has_holes = || {
        let metadata = fs::symlink_metadata(path).ok().filter(fs::Metadata::is_file);
        metadata.is_some_and(|metadata| allocated_len_bytes(&metadata) < metadata.len())
    };
    match ExistingFile::open(path, access == OpenFor::Write) {
        Err(error @ MemError::Unsuitable { .. }) => match wrong_len() {
            Some(found) => {
                let expected = expected.unwrap_or(PART_LEN_BYTES_MIN);
                Err(PoolSetError::WrongLength { path: path.into(), expected, found })
            }
            None if has_holes() => Err(PoolSetError::Holes { path: path.into() }),
            None => Err(error.into()),
        },
        opened => found(path, opened),
    }
}

fn found(path: &Path, opened: Result<ExistingFile, MemError>) -> Result<ExistingFile, PoolSetError> {
    opened.map_err(|error| match error {
        MemError::Io { call: "stat", source, .. } if source.kind() == io::ErrorKind::NotFound => {
            PoolSetError::Missing { path: path.into() }
        }
        other => other.into(),
    })
}

fn check_least(path: &Path, len_bytes: u64) -> Result<(), PoolSetError> {
    if len_bytes >= PART_LEN_BYTES_MIN {
        return Ok(());
    }
    Err(PoolSetError::TooSmall { path: path.into(), len_bytes, least: PART_LEN_BYTES_MIN })
}

fn not_devdax(path: &Path) -> PoolSetError {
    PoolSetError::WrongKind {
        path: path.into(),
        why: "its size is AUTO, and it is no devdax device",
        mend: "write its size in the pool set file",
    }
}

/// The ranges of a file that may hold other bytes than zeros, all of them looked for before the first is read: a page that a read brings into the
/// cache, and those that the kernel reads ahead, count as data from then on, so that a look after each read would lead through all
/// of a preallocated file.
fn data_of(file: &fs::File, len_bytes: u64) -> Vec<Range<u64>> {
    let (mut ranges, mut at) = (Vec::new(), next_data(file, 0));
    while at < len_bytes {
        let end = match rustix::fs::seek(file, SeekFrom::Hole(at)) {
            Ok(end) if end > at => end.min(len_bytes),
            _ => len_bytes,
        };
        ranges.push(at..end);
        at = next_data(file, end);
    }
    ranges
}

/// Where the next data of a file are: `at` itself where the file system does not tell, the end of all files where there are none.
pub(crate) fn next_data(file: &fs::File, at: u64) -> u64 {
    match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(data) => data,
        Err(Errno::NXIO) => u64::MAX,
        Err(_) => at,
    }
}

fn cloned(file: &OwnedFd, path: &Path) -> Result<OwnedFd, PoolSetError> {
    file.try_clone()
        .map_err(|error| PoolSetError::io("fcntl(F_DUPFD)", path, "see the limit of open files (ulimit -n)", error))
}
