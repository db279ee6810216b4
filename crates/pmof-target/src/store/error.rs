//! What can go wrong in a store of pools.

use std::{io, path::PathBuf};

use pmof_control::{HeaderError, PoolName, REPLICAS_MAX, RosterError};
use pmof_mem::{Durability, MediumKind, MemError};

use uuid::Uuid;

/// A failed operation of a [`PoolStore`](crate::PoolStore). Each says what failed, on what, why, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The root cannot be opened as a directory.
    #[error("{} cannot be the root of a store; name an existing directory", path.display())]
    Root {
        /// The root asked for.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The store names files through `/proc/self/fd`, and it is not there.
    #[error("/proc/self/fd is needed to keep pools under {}; mount /proc", root.display())]
    NoProc {
        /// The root asked for.
        root: PathBuf,
    },
    /// The root takes no new files.
    #[error("no pool can be made in {}; make the directory writable for this user or name another root", root.display())]
    NotWritable {
        /// The root.
        root: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The root's path leads to another directory than the one that was opened.
    #[error(
        "{} is no longer the directory that this target opened: it was unmounted, mounted over, renamed or removed; put it back, or start the target again on what is there now",
        root.display()
    )]
    Detached {
        /// The root.
        root: PathBuf,
    },
    /// There is no such pool.
    #[error("there is no pool {name} in {}; list the pools for their names", root.display())]
    NotFound {
        /// Its name.
        name: PoolName,
        /// The root.
        root: PathBuf,
    },
    /// There is a pool of this name, and another replica than the one meant.
    #[error("pool {name} is replica {found} now, and not {meant}: another was made there since; it was not touched")]
    OtherReplica {
        /// Its name.
        name: PoolName,
        /// The replica that is there.
        found: Uuid,
        /// The replica meant.
        meant: Uuid,
    },
    /// Another program has opened the replica for writing since it was looked at.
    #[error("pool {name} was opened for writing since it was looked at; it was not touched")]
    OpenedSince {
        /// Its name.
        name: PoolName,
    },
    /// There is a pool or another file of this name already.
    #[error("{name} exists already in {}; open it, remove it, or choose another name", root.display())]
    AlreadyExists {
        /// Its name.
        name: PoolName,
        /// The root.
        root: PathBuf,
    },
    /// Somebody has the pool open for writing.
    #[error(
        "pool {name} is open for writing by {holder}; wait until it is closed there; if that program hangs, end it, or take the pool over (`pmof pool release`, `PoolOptions::take_over`)"
    )]
    Busy {
        /// Its name.
        name: PoolName,
        /// Who has it.
        holder: String,
    },
    /// The pool cannot be taken away from who has it open for writing.
    #[error(
        "pool {name} cannot be taken away from {holder}: its process has the memory of the pool's device mapped, and could change it as long as it lives; end that process"
    )]
    NotFenceable {
        /// Its name.
        name: PoolName,
        /// Who has it.
        holder: String,
    },
    /// The name belongs to something that cannot hold a pool.
    #[error("{name} is {what}, not a pool's file; it was not touched")]
    NotAFile {
        /// Its name.
        name: PoolName,
        /// What it is.
        what: &'static str,
    },
    /// The file does not begin with a header that this program can use.
    #[error("{name} was not touched")]
    Header {
        /// Its name.
        name: PoolName,
        /// What is wrong with the header.
        source: HeaderError,
    },
    /// The pool was made in an older format, which has no room for what a writer keeps beside the data.
    #[error(
        "pool {name} has format {found}, which can be read and not written: copy it to a new pool (pmof cp POOL FILE, then pmof cp FILE NEW) and remove the old one"
    )]
    OldFormat {
        /// Its name.
        name: PoolName,
        /// The major version of its format.
        found: u16,
    },
    /// The pool was opened for reading.
    #[error("pool {name} is open for reading only")]
    ReadOnly {
        /// Its name.
        name: PoolName,
    },
    /// The file has format 3, and something was asked about digests of its pages.
    #[error("pool {name} keeps no digests of its pages: its format is older than 4")]
    NoDigests {
        /// Its name.
        name: PoolName,
    },
    /// The pool has fewer pages.
    #[error("pool {name} has no page {page}: it has {count}")]
    NoSuchPage {
        /// Its name.
        name: PoolName,
        /// The page that was asked for.
        page: u64,
        /// How many there are.
        count: u64,
    },
    /// The bytes that were sent for a damaged page have another digest than the page had.
    #[error("page {page} of pool {name} was left as it is: what came to repair it does not have the page's digest")]
    NotItsDigest {
        /// Its name.
        name: PoolName,
        /// The page.
        page: u64,
    },
    /// An initiator that does not unprotect pages before it writes to them asked to write a pool that keeps digests.
    #[error(
        "pool {name} keeps digests of its pages, and the program that asked to write it is too old for that: upgrade that program"
    )]
    DigestsNotMinded {
        /// Its name.
        name: PoolName,
    },
    /// Somebody confirms an epoch that was not announced last.
    #[error("pool {name} cannot confirm epoch {epoch}: it is at {found}")]
    NotTheEpoch {
        /// Its name.
        name: PoolName,
        /// The epoch to confirm.
        epoch: Uuid,
        /// The epoch that it is at.
        found: Uuid,
    },
    /// The file is shorter or longer than its header says.
    #[error(
        "the file of pool {name} has {found_bytes} bytes where its header says {expected_bytes}; restore it from \
         another replica"
    )]
    SizeMismatch {
        /// Its name.
        name: PoolName,
        /// Length by the header, in bytes.
        expected_bytes: u64,
        /// Length of the file, in bytes.
        found_bytes: u64,
    },
    /// A pool without bytes.
    #[error("pool {name} cannot be made with 0 bytes; ask for at least 1")]
    Empty {
        /// Its name.
        name: PoolName,
    },
    /// More than the store or a file can hold.
    #[error(
        "pool {name} cannot be made with {size_bytes} bytes: {limit_bytes} are allowed; ask for less, or raise the target's limit (pmof serve --max-pool-size)"
    )]
    TooLarge {
        /// Its name.
        name: PoolName,
        /// Bytes asked for.
        size_bytes: u64,
        /// Bytes allowed.
        limit_bytes: u64,
    },
    /// The replica's index is not below the number of replicas, or there are too many.
    #[error(
        "replica {index} of {count} cannot be made: the index begins at 0 and stays below the count, which is at most {REPLICAS_MAX}"
    )]
    BadReplica {
        /// The index asked for.
        index: u16,
        /// The count asked for.
        count: u16,
    },
    /// The file system has no room for the pool; nothing was left behind.
    #[error("no room for pool {name} of {size_bytes} bytes in {}: free space there, or ask for less", root.display())]
    NoSpace {
        /// Its name.
        name: PoolName,
        /// Bytes asked for.
        size_bytes: u64,
        /// The root.
        root: PathBuf,
    },
    /// The pool's medium cannot give the level that the caller needs.
    #[error("pool {name} cannot have {wanted} on its {medium}: {mend}")]
    NotDurable {
        /// Its name.
        name: PoolName,
        /// The level asked for.
        wanted: Durability,
        /// What its bytes lie on.
        medium: MediumKind,
        /// What would give the level.
        mend: String,
    },
    /// The device was given to two names, or the name two devices.
    #[error("pool {name} cannot have {}: the name or the device was given before; name each once", path.display())]
    DeviceTwice {
        /// The name.
        name: PoolName,
        /// The device.
        path: PathBuf,
    },
    /// The device holds something else.
    #[error(
        "{} was not touched: it holds something that is not a pool; if nobody needs that, zero its first 4096 bytes (daxio -z -l 4096 -o {}, or dd for a file) and make pool {name} again",
        path.display(),
        path.display()
    )]
    DeviceInUse {
        /// The pool's name.
        name: PoolName,
        /// The device.
        path: PathBuf,
    },
    /// Somebody else replaced or removed the file while it was being opened, or while it was open.
    #[error(
        "the file of {name} was replaced or removed by another process, so that what was written to it is lost when it is closed: open the pool again, and leave a target's files to the target"
    )]
    Replaced {
        /// Its name.
        name: PoolName,
    },
    /// The list of the pool's members cannot be kept.
    #[error("the members of pool {name} cannot be kept in its file")]
    Roster {
        /// The pool's name.
        name: PoolName,
        /// Why, and what to do.
        source: RosterError,
    },
    /// The pool's memory failed.
    #[error("the memory of pool {name} failed")]
    Memory {
        /// Its name.
        name: PoolName,
        /// What failed, and what to do.
        source: MemError,
    },
    /// A system call failed.
    #[error("{call} of {} failed; check the file system and its permissions", path.display())]
    Io {
        /// The system call.
        call: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl StoreError {
    /// The error's number in control messages: 1 to 255, the same in every version. Codes from 256 on are the service's.
    pub fn code(&self) -> u16 {
        match self {
            Self::Root { .. } => 1,
            Self::NoProc { .. } => 2,
            Self::NotWritable { .. } => 3,
            Self::NotFound { .. } => 4,
            Self::AlreadyExists { .. } => 5,
            Self::Busy { .. } => 6,
            Self::NotAFile { .. } => 7,
            Self::Header { source: HeaderError::UncertainState, .. } => 27,
            Self::Header { .. } => 8,
            Self::SizeMismatch { .. } => 9,
            Self::Empty { .. } => 10,
            Self::TooLarge { .. } => 11,
            Self::BadReplica { .. } => 12,
            Self::NoSpace { .. } | Self::Memory { source: MemError::TooLong { .. }, .. } => 13,
            Self::NotDurable { .. } => 14,
            Self::Replaced { .. } => 15,
            Self::Memory { .. } => 16,
            Self::Io { .. } => 17,
            Self::DeviceTwice { .. } => 18,
            Self::DeviceInUse { .. } => 19,
            Self::OldFormat { .. } => 20,
            Self::ReadOnly { .. } => 21,
            Self::NotTheEpoch { .. } => 22,
            Self::NotFenceable { .. } => 23,
            Self::Roster { .. } => 24,
            Self::OtherReplica { .. } => 25,
            Self::Detached { .. } => 26,
            Self::OpenedSince { .. } => 28,
            Self::NoDigests { .. } => 29,
            Self::NoSuchPage { .. } => 30,
            Self::NotItsDigest { .. } => 31,
            Self::DigestsNotMinded { .. } => 32,
        }
    }
}
