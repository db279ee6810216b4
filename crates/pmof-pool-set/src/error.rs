//! Errors of a replica's parts.

use std::{
    io,
    ops::Range,
    path::{Path, PathBuf},
};

use pmof_mem::MemError;

use crate::{Behind, Features, FilePlace, HeaderError};

/// Advice about damage, at the end of a message.
const BRING_BACK: &str = ": bring it back, or restore the replica from another one";
const RESTORE_PART: &str = "; restore the part from another replica";
const ONE_POOL: &str = ": name the parts of one pool only";
const RESTORE_ONE: &str = ": restore one of them from a replica that is sound";
const RESTORE_OR_CLEAR: &str = "; restore the replica from another one, or check the pool and clear the shutdown state";
const SYNC_AGAIN: &str = ": synchronize the set (`pmof pool sync`)";
/// What is wrong with a replica that an interrupted sync was creating.
pub const UNFINISHED: &str = "it was being created by a sync that was interrupted, and is incomplete";
const RESTORE: &str = ": restore the replica from another one";
const RESTORE_OR_FILL: &str = "; restore the replica from another one; if there is no other and this is a sparse copy, `fallocate -l LENGTH FILE` fills them";

/// A failed operation on the parts of a replica. Each says what failed, on what, why, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolSetError {
    /// The memory or its file system failed, or has no room.
    #[error(transparent)]
    Mem(#[from] MemError),
    /// The part is open elsewhere.
    #[error("{} is in use: the pool is open in this process or another one, or a mirror of it is still held; close it there", path.display())]
    Busy {
        /// The part.
        path: PathBuf,
    },
    /// Two names of a set lead to one file.
    #[error("{} and {} are one file, which can be only one part: name another file in the pool set file", first.display(), path.display())]
    SameFile {
        /// The name that comes first.
        first: PathBuf,
        /// The other one.
        path: PathBuf,
    },
    /// Two replicas, at least one of them on another machine, have one file.
    #[error("{} and {} are one file, which can be only one part: name another file in one of the pool set files", places[0], places[1])]
    SameFileElsewhere {
        /// Where the set names it, in the order of the set.
        places: Box<[FilePlace; 2]>,
    },
    /// A file with data exists where a part is to be created.
    #[error("{} exists: {found}; remove it if it is not needed, or name another file", path.display())]
    Exists {
        /// The part.
        path: PathBuf,
        /// What it is.
        found: String,
    },
    /// A device that is to become a part is not blank.
    #[error("{} is not blank: it begins with a header or with other data; clear its first 4096 bytes if they are not needed", path.display())]
    NotBlank {
        /// The device.
        path: PathBuf,
    },
    /// A part is missing.
    #[error("the part {} is missing{}", path.display(), BRING_BACK)]
    Missing {
        /// Where it should be.
        path: PathBuf,
    },
    /// A file in a pool's directories is missing, and another file there does not match what the set reserves.
    #[error(
        "{} does not have the place or the length of a part in the pool set file, and {} is missing: move {} away if it does not belong to the pool; \
         if it does, the pool was extended, and the missing file must be restored",
        beside.display(), path.display(), beside.display()
    )]
    Incomplete {
        /// What is missing.
        path: PathBuf,
        /// What is there.
        beside: PathBuf,
    },
    /// A part is longer or shorter than the set says.
    #[error("{} has {found} bytes and should have {expected}: {}", path.display(), wrong_length_text(*found, *expected))]
    WrongLength {
        /// The part.
        path: PathBuf,
        /// Bytes by the set.
        expected: u64,
        /// Bytes there are.
        found: u64,
    },
    /// A file is too short for a header.
    #[error("{} is too short to be a pool: it has {found} bytes, the minimum is {least}", path.display())]
    TooShort {
        /// The file.
        path: PathBuf,
        /// Its bytes.
        found: u64,
        /// The minimum length of a part.
        least: u64,
    },
    /// A part would be shorter than the minimum.
    #[error("{} would have {len_bytes} bytes, the minimum is {least}: give it a larger size", path.display())]
    TooSmall {
        /// The part.
        path: PathBuf,
        /// Its bytes.
        len_bytes: u64,
        /// The least that there can be.
        least: u64,
    },
    /// The parts together are smaller than the smallest pool of this kind.
    #[error("the replica at {} holds {len_bytes} bytes, and a pool of this kind needs {least}: add parts or make them larger", path.display())]
    PoolTooSmall {
        /// Its first part.
        path: PathBuf,
        /// Bytes of all its parts, without the headers of all but the first.
        len_bytes: u64,
        /// The least that there can be.
        least: u64,
    },
    /// A part is of a kind that cannot be part of this set.
    #[error("{} cannot be part of this set: {why}; {mend}", path.display())]
    WrongKind {
        /// The part.
        path: PathBuf,
        /// The rule that it breaks.
        why: &'static str,
        /// What to do.
        mend: &'static str,
    },
    /// The set cannot be used this way.
    #[error("{why}; {mend}")]
    Unsupported {
        /// What is not possible.
        why: &'static str,
        /// What to do.
        mend: &'static str,
    },
    /// The header of a part cannot be read.
    #[error("the header of {} cannot be used: {problem}{}{}", path.display(), behind_text(*behind), RESTORE_PART)]
    Header {
        /// The part.
        path: PathBuf,
        /// What is wrong.
        problem: HeaderError,
        /// The pool behind it, if one was found.
        behind: Option<Behind>,
    },
    /// A file with the name of a part that is to be recreated does not belong to the pool.
    #[error("{} is not overwritten: {found}; {}", path.display(), not_ours_mend(*is_device))]
    NotOurs {
        /// The file or device.
        path: PathBuf,
        /// What it is.
        found: String,
        /// It is a device, which cannot be moved or removed.
        is_device: bool,
    },
    /// A file with the name of a part that is to be removed does not belong to the pool. Nothing is removed.
    #[error("{} is not removed: {found}; move it away, or remove it yourself if it is not needed", path.display())]
    NotRemoved {
        /// The file or device.
        path: PathBuf,
        /// What it is.
        found: String,
    },
    /// The kernel would refuse to remove or replace a file. Nothing is removed.
    #[error("{} cannot be removed: {} {why}; {mend}", path.display(), if of == path { "it".to_owned() } else { of.display().to_string() })]
    NotUnlinkable {
        /// The file.
        path: PathBuf,
        /// What forbids it: the file or its directory.
        of: PathBuf,
        /// The rule.
        why: &'static str,
        /// What to do.
        mend: &'static str,
    },
    /// A file with the name of a part that is to be removed is not a part.
    #[error("{} is not a part of a pool and is left in place: remove it yourself if it is not needed, move it away, or remove it from the pool set file", path.display())]
    NotAPart {
        /// The file.
        path: PathBuf,
    },
    /// The set names some of a pool's parts or replicas, not all of them.
    #[error("{} belongs to a pool of which the set does not name all parts: {found}; name the pool set file of the whole pool", path.display())]
    NotAll {
        /// The first part of a replica.
        path: PathBuf,
        /// How this is known.
        found: String,
    },
    /// A part belongs to another pool set.
    #[error("{} belongs to the pool set {found}, not to {expected}{}", path.display(), ONE_POOL)]
    OtherSet {
        /// The part.
        path: PathBuf,
        /// The UUID of its set.
        found: String,
        /// The UUID of the set of the first part.
        expected: String,
    },
    /// A part or replica is not linked to the one beside it.
    #[error("{} names {found} as its {neighbour}, but {expected} is there: the parts or replicas are swapped, or one is from another time", path.display())]
    WrongNeighbour {
        /// The part.
        path: PathBuf,
        /// Which neighbour.
        neighbour: &'static str,
        /// The UUID that the header names.
        found: String,
        /// The UUID of what is there.
        expected: String,
    },
    /// The replica was being created by a sync that was interrupted.
    #[error("{} cannot be used: {UNFINISHED}{SYNC_AGAIN}", path.display())]
    Unfinished {
        /// The first part of the replica.
        path: PathBuf,
    },
    /// A header differs from that of the first part.
    #[error("{} has another {what} than {}{}", path.display(), first.display(), RESTORE_ONE)]
    Differs {
        /// The part.
        path: PathBuf,
        /// The part that it should agree with.
        first: PathBuf,
        /// What differs.
        what: &'static str,
    },
    /// The options of the set are not those that the pool was created with.
    #[error("{}: {why}; {mend}", path.display())]
    WrongOptions {
        /// The part.
        path: PathBuf,
        /// Which option.
        why: &'static str,
        /// What to do.
        mend: &'static str,
    },
    /// The pool has features that pmof does not know.
    #[error("{} has features that pmof does not know (compat {:#x}, incompat {:#x}, ro_compat {:#x}): {mend}", path.display(), features.compat, features.incompat, features.ro_compat)]
    UnknownFeatures {
        /// The part.
        path: PathBuf,
        /// Those that are not known.
        features: Features,
        /// What to do.
        mend: &'static str,
    },
    /// The pool was made by a machine of another architecture.
    #[error("{} was made on another architecture (machine {machine}): open it there", path.display())]
    OtherMachine {
        /// The part.
        path: PathBuf,
        /// ELF's number of that machine.
        machine: u16,
    },
    /// The pool is of another kind or version than asked for.
    #[error("{} is {found}, not {expected}", path.display())]
    OtherFormat {
        /// The part.
        path: PathBuf,
        /// What it is.
        found: String,
        /// What was expected.
        expected: String,
    },
    /// The modules lost writes at a power failure while the pool was open.
    #[error("{} was open when its memory modules lost power and writes in flight: its bytes may be wrong{}", path.display(), RESTORE_OR_CLEAR)]
    UnsafeShutdown {
        /// The first part of the replica.
        path: PathBuf,
    },
    /// A part has holes, although it was created without.
    #[error("{} has holes: data that was there now reads as zeros, and a store to a hole ends the program when the disk is full{}", path.display(), RESTORE_OR_FILL)]
    Holes {
        /// The part.
        path: PathBuf,
    },
    /// Blocks of a part cannot be read.
    #[error("{} has blocks that cannot be read, at {}{}", path.display(), ranges_text(blocks), RESTORE)]
    BadBlocks {
        /// The part.
        path: PathBuf,
        /// Ranges of the part, in bytes.
        blocks: Vec<Range<u64>>,
    },
    /// A system call failed.
    #[error("{call} of {} failed{}{mend}", path.display(), if mend.is_empty() { "" } else { "; " })]
    Io {
        /// The system call.
        call: &'static str,
        /// The file.
        path: PathBuf,
        /// What the caller can do about it; may be empty.
        mend: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl PoolSetError {
    pub(crate) fn io(call: &'static str, path: &Path, mend: &'static str, source: impl Into<io::Error>) -> Self {
        Self::Io { call, path: path.into(), mend, source: source.into() }
    }

    /// The same error for a file that was to be removed instead of overwritten.
    pub(crate) fn of_removal(self) -> Self {
        match self {
            Self::NotOurs { path, found, .. } => Self::NotRemoved { path, found },
            other => other,
        }
    }

    /// Whether the replica is damaged, so that it can be restored from another one. False if the set is used
    /// wrongly, the pool is open elsewhere, or the system failed.
    pub fn is_damage(&self) -> bool {
        matches!(
            self,
            Self::Missing { .. }
                | Self::WrongLength { .. }
                | Self::Header { .. }
                | Self::OtherSet { .. }
                | Self::WrongNeighbour { .. }
                | Self::Differs { .. }
                | Self::Unfinished { .. }
                | Self::UnsafeShutdown { .. }
                | Self::Holes { .. }
                | Self::BadBlocks { .. }
        )
    }

    /// The damage, without the advice what to do about it; `None` if [`is_damage`](Self::is_damage) is false.
    pub fn damage(&self) -> Option<String> {
        self.is_damage().then(|| without_mend(&self.to_string()).to_owned())
    }
}

/// A message about damage without its advice, including messages from other machines.
pub fn without_mend(text: &str) -> &str {
    let mends =
        [BRING_BACK, RESTORE_PART, ONE_POOL, RESTORE_ONE, RESTORE_OR_CLEAR, RESTORE_OR_FILL, SYNC_AGAIN, RESTORE];
    mends.iter().find_map(|mend| text.strip_suffix(mend)).unwrap_or(text)
}

/// A program that is killed while it creates a file leaves it empty or too short.
fn wrong_length_text(found: u64, expected: u64) -> &'static str {
    if found == 0 {
        "the program that created it was killed, or it was truncated; remove it if it never held anything"
    } else if found > expected {
        "it was extended, it is another file, or the pool set file names another length than the pool was created with"
    } else {
        "it was truncated, the program that created it was killed, it is another file, or the pool set file belongs to another pool"
    }
}

fn not_ours_mend(is_device: bool) -> &'static str {
    if is_device {
        "clear its first 4096 bytes if its contents are not needed, and sync again"
    } else {
        "move it away, or remove it if it is not needed, and sync again"
    }
}

fn behind_text(behind: Option<Behind>) -> String {
    behind.map(|behind| format!(" (behind it: {behind})")).unwrap_or_default()
}

fn ranges_text(ranges: &[Range<u64>]) -> String {
    let texts: Vec<_> = ranges.iter().map(|range| format!("{}..{}", range.start, range.end)).collect();
    texts.join(", ")
}
