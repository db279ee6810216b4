//! Memory that consists of several files: one range of addresses, each part of it flushed as its file needs.

use std::{
    os::fd::{AsFd as _, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};

use crate::{
    Declaration, MemError, Memory, System,
    file::{
        Opened, Unfinished, create_empty, fill_holes, inspect, io_error, make_whole, map_error, open_existing,
        open_unmapped, room_at,
    },
    flush::Flush,
    judge::{Judgement, judge_devdax, judge_file},
    mapping::{Mapping, Piece, Reservation},
    memory::{check_len, refuses_map_sync},
    part_flush::PartFlush,
    sysfs::devdax_align_bytes,
};

/// Huge pages of the CPU: a mapping that begins at a multiple can have them.
const HUGE_PAGE_BYTES: u64 = 2 << 20;

/// A range of an open file or devdax device that becomes a part of a [`Memory`].
#[derive(Debug)]
pub struct FilePart {
    /// The file. Locks on it last as long as the memory.
    pub file: OwnedFd,
    /// Its path, for messages.
    pub path: PathBuf,
    /// Where the range begins in the file, in bytes; a multiple of the page size, for devdax of the device's alignment.
    pub file_offset: u64,
    /// Its length in bytes; as the offset, a multiple.
    pub len_bytes: u64,
}

/// A file that was created with all its space allocated, and locked by its creator (flock(2), exclusive). It is removed on drop
/// unless it is [kept](Self::keep).
#[derive(Debug)]
pub struct NewFile {
    // Dropped before the lock: the next owner of the lock may keep the file.
    unfinished: Unfinished,
    file: OwnedFd,
}

impl NewFile {
    /// Creates `path` as [`Memory::create`] does: never an existing one, name and space durable. It is locked while it is still
    /// empty: a process that finds it longer and gets the lock has it after its creator. The lock lasts until the last duplicate of
    /// [`file`](Self::file) and the last mapping of it are gone.
    ///
    /// `len_bytes`: 1 to [`LEN_BYTES_MAX`](crate::LEN_BYTES_MAX). Errors: `BadLength`, `NoSpace`, `Io` (`EEXIST` if there
    /// is a file; `EWOULDBLOCK` of `flock` if another process locked it first, which the file is left to).
    pub fn create(path: &Path, len_bytes: u64) -> Result<Self, MemError> {
        check_len(len_bytes)?;
        let (file, unfinished) = create_empty(path)?;
        let new = Self { unfinished, file };
        loop {
            match flock(&new.file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(Errno::INTR) => {}
                Err(errno) => {
                    if errno == Errno::WOULDBLOCK {
                        new.keep();
                    }
                    return Err(io_error("flock", path, "", errno));
                }
            }
        }
        make_whole(&new.file, &new.unfinished, path, len_bytes)?;
        Ok(new)
    }

    /// What [`create`](Self::create) needs, without making anything: the device of the directory, and the bytes that are free there, if the
    /// file system counts them. Whether there is a file of that name is not looked at.
    ///
    /// Errors: `BadLength`, `TooLong`, `Io`.
    pub fn room_at(path: &Path, len_bytes: u64) -> Result<(u64, Option<u64>), MemError> {
        check_len(len_bytes)?;
        room_at(path, len_bytes)
    }

    /// The file.
    pub fn file(&self) -> &OwnedFd {
        &self.file
    }

    /// Keeps the file when the value is dropped.
    pub fn keep(self) {
        self.unfinished.keep();
    }
}

/// A file or devdax device that was opened to become part of a memory.
#[derive(Debug)]
pub struct ExistingFile {
    /// The file.
    pub file: OwnedFd,
    /// How long it is, in bytes.
    pub len_bytes: u64,
    /// For devdax the alignment of mappings in bytes; `None` for files.
    pub devdax_align_bytes: Option<u64>,
}

impl ExistingFile {
    /// Opens what [`Memory::open`] would. Errors as there.
    pub fn open(path: &Path, writable: bool) -> Result<Self, MemError> {
        open_existing(&System::real(), path, writable).map(Self::of)
    }

    /// The same for a file that may be empty or have holes: for callers that inspect or delete it, and do not map it.
    pub fn open_unmapped(path: &Path, writable: bool) -> Result<Self, MemError> {
        open_unmapped(&System::real(), path, writable).map(Self::of)
    }

    /// Allocates space for the holes of a file that was opened for writing, durably; its bytes do not change. Devices have
    /// no holes.
    ///
    /// Errors: `NoSpace`; `Unsuitable` where there are holes and the file system cannot fill them; `Io`.
    pub fn fill_holes(&self, path: &Path) -> Result<(), MemError> {
        if self.devdax_align_bytes.is_some() {
            return Ok(());
        }
        fill_holes(self.file.as_fd(), path, self.len_bytes)
    }

    fn of(Opened { fd, len_bytes, devdax }: Opened) -> Self {
        let devdax_align_bytes = devdax.map(|directory| devdax_align_bytes(&directory));
        Self { file: fd, len_bytes, devdax_align_bytes }
    }
}

impl Memory {
    /// Maps parts of files one behind the other, as one memory; each is judged and flushed by itself, and the memory
    /// promises what the weakest of them does. With one part this is [`open`](Self::open) of a part of a file.
    ///
    /// `parts`: at least one. Errors: `BadLength` where lengths or offsets are no multiples of the page size or are too
    /// large together; `Unsuitable` for files shorter than the range, with holes, or of a kind that is not mapped; `Io`. Each
    /// names its file.
    pub fn concatenate(
        parts: Vec<FilePart>,
        writable: bool,
        declaration: Option<Declaration>,
    ) -> Result<Self, MemError> {
        concatenate_on(&System::real(), parts, writable, declaration)
    }
}

fn concatenate_on(
    system: &System,
    parts: Vec<FilePart>,
    writable: bool,
    declaration: Option<Declaration>,
) -> Result<Memory, MemError> {
    let page_bytes = rustix::param::page_size() as u64;
    let mut align_bytes = HUGE_PAGE_BYTES;
    let mut len_bytes = 0_u64;
    for part in &parts {
        check_len(part.len_bytes)?;
        if part.len_bytes % page_bytes != 0 || part.file_offset % page_bytes != 0 {
            let why = "a part of a file begins and ends at a page";
            return Err(MemError::BadLength { len_bytes: part.len_bytes, why });
        }
        len_bytes = len_bytes.saturating_add(part.len_bytes);
    }
    check_len(len_bytes)?;
    let mut opened = Vec::with_capacity(parts.len());
    for part in parts {
        let FilePart { file, path, file_offset, len_bytes } = part;
        let (Opened { fd, len_bytes: file_len_bytes, devdax }, is_named) = inspect(system, &path, file)?;
        if file_offset.saturating_add(len_bytes) > file_len_bytes {
            return Err(MemError::Unsuitable {
                path,
                why: "it is shorter than the part that is to be mapped",
                mend: "restore the file from a copy",
            });
        }
        if let Some(directory) = &devdax {
            align_bytes = align_bytes.max(devdax_align_bytes(directory));
        }
        opened.push((FilePart { file: fd, path, file_offset, len_bytes }, devdax, is_named));
    }
    let first_path = opened.first().map(|(part, ..)| part.path.clone()).unwrap_or_default();
    let failed = |error| io_error("mmap", &first_path, "free address space (ulimit -v)", error);
    let mut reservation = Reservation::new(len_bytes as usize, align_bytes as usize).map_err(failed)?;
    let mut judged = Vec::with_capacity(opened.len());
    for (part, devdax, is_named) in opened {
        let judgement = map_part(system, &mut reservation, &part, devdax.as_deref(), is_named, writable)?;
        judged.push((part, judgement));
    }
    Ok(assemble(reservation.into_mapping(writable), judged, first_path, declaration))
}

/// Maps the next part into the reservation.
fn map_part(
    system: &System,
    reservation: &mut Reservation,
    part: &FilePart,
    devdax: Option<&Path>,
    is_named: bool,
    writable: bool,
) -> Result<Judgement, MemError> {
    let failed = |error| map_error(&part.path, error);
    let piece = |sync| Piece {
        file: part.file.as_fd(),
        file_offset: part.file_offset,
        len_bytes: part.len_bytes as usize,
        writable,
        sync,
    };
    // Asked elsewhere first: a mapping that is refused may already have undone a piece of the reservation.
    let sync = match (devdax, Mapping::of_piece(&piece(true))) {
        (Some(_), _) => false,
        (None, Ok(_)) => true,
        (None, Err(error)) if refuses_map_sync(&error) => false,
        (None, Err(error)) => return Err(failed(error)),
    };
    reservation.fill(&piece(sync)).map_err(failed)?;
    match devdax {
        Some(directory) => Ok(judge_devdax(system, directory)),
        // One without a name dies with the process, as anonymous memory does.
        None if !is_named => Ok(Judgement::anonymous()),
        None => judge_file(system, &part.path, part.file.as_fd(), sync)
            .map_err(|error| io_error("statfs", &part.path, "", error)),
    }
}

fn assemble(
    mapping: Mapping,
    mut judged: Vec<(FilePart, Judgement)>,
    path: PathBuf,
    declaration: Option<Declaration>,
) -> Memory {
    if judged.len() == 1 {
        if let Some((part, judgement)) = judged.pop() {
            let memory = Memory::assemble(path, Some(part.file), mapping, judgement, declaration);
            return memory.at_file_offset(part.file_offset);
        }
    }
    let whole = Judgement::of_parts(judged.iter().map(|(part, judgement)| (part.path.as_path(), judgement)));
    let mut end = 0;
    let parts = judged.into_iter().map(|(part, judgement)| {
        let start = end;
        end += part.len_bytes;
        let flush = Flush::of(&judgement, declaration);
        PartFlush { start, end, path: part.path, file: part.file, file_offset: part.file_offset, judgement, flush }
    });
    let flush = Flush::Parts(parts.collect());
    Memory::assemble_with(path, None, mapping, whole, declaration, flush)
}

#[cfg(test)]
mod tests;
