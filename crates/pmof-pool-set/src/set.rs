//! Pool set files: which files and devices make a pool, and which copies it has.
//!
//! The grammar is that of poolset(5) of PMDK 1.12.1, as its parser has it: what it reads is read here, with the same meaning, but
//! for the rows that are refused; what it refuses is refused here too, but for the rows that are read. `tests/pmdk/spelling.rs`
//! compares the two, spelling by spelling.
//!
//! | case | PMDK's parser | here | why |
//! |---|---|---|---|
//! | a line of only blanks and tabs, or of those and a comment | refused | skipped | nothing is on it, and it looks like an empty line |
//! | blanks, or blanks and a comment, behind `REPLICA` | refused | a local replica | `REPLICA#` is one for PMDK too; no node is named |
//! | both `SINGLEHDR` and `NOHDRS` | read; nothing can be made of it | refused | they exclude each other |
//! | `NOHDRS` and more than one replica | read; nothing can be made of it | refused | such a set is a replica itself |
//! | sizes below zero and of 2^63 bytes or more | read, as another size | refused | it is not the size that is written |
//! | one path twice, one remote set twice | read; the second fails at creation | refused | it is one file |
//! | a remote set with `..` | read | refused | it would leave the target's directory |
//! | a node that begins with `-`, or is no `[user@]host` | read, and given to ssh | refused | ssh takes it for an option |
//! | a NUL byte | the rest of the line is lost | refused | it is not what is written |
//! | `AUTO` for what is no devdax device | refused as the set is read | refused as the set is opened | reading asks no device |

use std::{
    ffi::OsStr,
    fmt, fs,
    io::{self, Read as _},
    os::unix::{ffi::OsStrExt as _, fs::FileTypeExt as _},
    path::{Path, PathBuf},
};

use pmof_mem::open_to_read;

mod error;
mod parse;
mod size;
#[cfg(test)]
mod tests;

pub use error::{SetError, SetProblem};
pub use size::bytes_of_size;

/// The first line of every pool set file, without its newline.
pub const SET_SIGNATURE: &[u8] = b"PMEMPOOLSET";

/// The longest pool set file that is read.
pub const SET_LEN_BYTES_MAX: u64 = 1 << 20;

/// What a pool set file says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolSet {
    /// The file, as it was named.
    pub path: PathBuf,
    /// All copies of the pool; the first one is local and is the master.
    pub replicas: Vec<ReplicaSpec>,
    /// What holds for all of them.
    pub options: SetOptions,
}

/// What an `OPTION` line says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SetOptions {
    /// `SINGLEHDR`: only the first part of each replica has a header.
    pub single_header: bool,
    /// `NOHDRS`: no part has a header; for sets of a target only.
    pub no_headers: bool,
}

/// One copy of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplicaSpec {
    /// Parts on this machine, at least one, in their order.
    Local(Vec<PartSpec>),
    /// A pool set of another machine.
    Remote(RemoteSpec),
}

/// A file, a devdax device or a directory of such files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartSpec {
    /// Absolute. That it is a directory is found out when the set is opened.
    pub path: PathBuf,
    /// The file's length, or the space reserved for a directory.
    pub size: PartSize,
    /// Its line in the set file, from 1; 0 for one that was not read from a file.
    pub line: u64,
}

/// How long a part is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PartSize {
    /// So many bytes, 1 to 2^63 - 1.
    Bytes(u64),
    /// As long as the device: `AUTO`, for devdax only.
    Auto,
}

/// Where a remote replica is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteSpec {
    /// `[user@]host`, as ssh takes it.
    pub node: String,
    /// The pool set file there, relative to the target's directory.
    pub set: PathBuf,
    /// Its line in the set file, from 1; 0 for one that was not read from a file.
    pub line: u64,
}

impl PartSpec {
    /// A part of `len_bytes` bytes at `path`, for callers without a set file.
    pub fn new(path: impl Into<PathBuf>, len_bytes: u64) -> Self {
        Self { path: path.into(), size: PartSize::Bytes(len_bytes), line: 0 }
    }
}

impl ReplicaSpec {
    /// The parts, if they are on this machine.
    pub fn local(&self) -> Option<&[PartSpec]> {
        match self {
            Self::Local(parts) => Some(parts),
            Self::Remote(_) => None,
        }
    }

    /// Where it is, if that is another machine.
    pub fn remote(&self) -> Option<&RemoteSpec> {
        match self {
            Self::Local(_) => None,
            Self::Remote(remote) => Some(remote),
        }
    }
}

impl PoolSet {
    /// Reads and parses the pool set file `path`.
    ///
    /// Errors: [`SetError::Io`]; [`SetError::Line`] for the first line that is wrong.
    pub fn read(path: &Path) -> Result<Self, SetError> {
        let failed = |source| SetError::Io { path: path.into(), source };
        let file = open_to_read(path).map_err(failed)?;
        let mut bytes = Vec::new();
        file.take(SET_LEN_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
        Self::parse(path, &bytes)
    }

    /// Parses the contents of a pool set file; `path` is for messages.
    pub fn parse(path: &Path, bytes: &[u8]) -> Result<Self, SetError> {
        parse::parse(path, bytes)
    }

    /// Whether the file at `path` is a pool set file: begins as one. A device, such as one that is a pool's only part, is none.
    ///
    /// Errors: `InvalidInput` for what is neither a file nor a device; those of the system.
    pub fn is_set_file(path: &Path) -> io::Result<bool> {
        if fs::metadata(path)?.file_type().is_char_device() {
            return Ok(false);
        }
        let mut start = Vec::new();
        let file = open_to_read(path)?;
        file.take(SET_SIGNATURE.len() as u64).read_to_end(&mut start)?;
        Ok(start == SET_SIGNATURE)
    }

    /// The set as a file, which parses to the same set. Paths keep their bytes, which need not be UTF-8.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = [SET_SIGNATURE, b"\n"].concat();
        for (is_set, name) in [(self.options.single_header, "SINGLEHDR"), (self.options.no_headers, "NOHDRS")] {
            if is_set {
                bytes.extend_from_slice(format!("OPTION {name}\n").as_bytes());
            }
        }
        for (index, replica) in self.replicas.iter().enumerate() {
            match replica {
                ReplicaSpec::Local(parts) => {
                    if index > 0 {
                        bytes.extend_from_slice(b"REPLICA\n");
                    }
                    for part in parts {
                        bytes.extend_from_slice(format!("{} ", part.size).as_bytes());
                        push_line(&mut bytes, part.path.as_os_str());
                    }
                }
                ReplicaSpec::Remote(remote) => {
                    bytes.extend_from_slice(format!("REPLICA {} ", remote.node).as_bytes());
                    push_line(&mut bytes, remote.set.as_os_str());
                }
            }
        }
        bytes
    }
}

/// The last word of a line and its newline. Behind a CR it is CR LF, or the CR would be taken for a part of it.
fn push_line(bytes: &mut Vec<u8>, word: &OsStr) {
    bytes.extend_from_slice(word.as_bytes());
    bytes.extend_from_slice(if bytes.ends_with(b"\r") { b"\r\n" } else { b"\n" });
}

/// The set file; bytes of paths that are no text are replaced, see [`PoolSet::to_bytes`].
impl fmt::Display for PoolSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.to_bytes()))
    }
}

/// As a set file has it: a number of bytes with the largest suffix that loses nothing, or `AUTO`.
impl fmt::Display for PartSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => f.pad(&size::text(*bytes)),
            Self::Auto => f.pad("AUTO"),
        }
    }
}
