//! Errors in a pool set file.

use std::{io, path::PathBuf};

/// Why a pool set file could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetError {
    /// The file could not be read.
    #[error("cannot read the pool set file {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// A line is wrong.
    #[error("{}:{line}: {problem}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, from 1; one after the last for what is missing at the end.
        line: u64,
        /// What is wrong, and what to do.
        problem: SetProblem,
    },
}

/// What is wrong with a line of a pool set file. Each says what, why, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SetProblem {
    /// The file is longer than any pool set file.
    #[error("a pool set file has at most 1 MiB: name the file that lists the parts, not a part")]
    TooLong,
    /// The file does not begin as a pool set file.
    #[error("the first line must be exactly `PMEMPOOLSET`, with a newline behind it")]
    FirstLine,
    /// A NUL byte, which no path can have.
    #[error("the line has a NUL byte: write text only")]
    Nul,
    /// `REPLICA` or `OPTION` is not at the start of its line.
    #[error("`{word}` must be at the start of its line: remove the blanks before it")]
    IndentedKeyword {
        /// The keyword.
        word: &'static str,
    },
    /// Something is joined to a keyword.
    #[error("`{found}` is not a keyword: write `{word}` and a blank behind it")]
    JoinedKeyword {
        /// What the file has there.
        found: String,
        /// The intended keyword.
        word: &'static str,
    },
    /// A line that should name a part has one word only.
    #[error("`{found}` by itself does not name a part: write `SIZE /PATH`")]
    PartExpected {
        /// What the file has there.
        found: String,
    },
    /// More words than the line can have.
    #[error("`{token}` is one word too many: a path has no blanks, and a comment begins with `#`")]
    ExtraToken {
        /// The first such word.
        token: String,
    },
    /// The size of a part is invalid.
    #[error("`{text}` is not a size: {why}; write it as 16777216, 16M, 16MiB or 16MB, or AUTO for a devdax device")]
    BadSize {
        /// What the file has there.
        text: String,
        /// The rule that it breaks.
        why: &'static str,
    },
    /// The path of a part is not absolute.
    #[error("the path `{}` of a part must be absolute: begin it with `/`", path.display())]
    RelativePath {
        /// The path.
        path: PathBuf,
    },
    /// A path is longer than the system allows.
    #[error("the path has {len_bytes} bytes, and a path has at most 4095: shorten it")]
    PathTooLong {
        /// Its length.
        len_bytes: usize,
    },
    /// A path was named before.
    #[error("`{}` was named in line {first_line} already: a file can be only one part", path.display())]
    DuplicatePath {
        /// The path.
        path: PathBuf,
        /// Where it was named.
        first_line: u64,
    },
    /// A set of another machine was named before.
    #[error("the set `{}` of {node} was named in line {first_line} already: it can be only one replica", set.display())]
    DuplicateRemote {
        /// The machine.
        node: String,
        /// The set there.
        set: PathBuf,
        /// Where it was named.
        first_line: u64,
    },
    /// The set names no part.
    #[error("the set has no parts before this line: write at least one `SIZE /PATH` below `PMEMPOOLSET`")]
    NoParts,
    /// A local replica names no part.
    #[error("the replica of line {replica_line} has no parts: write at least one `SIZE /PATH` below it")]
    ReplicaWithoutParts {
        /// Where the replica begins.
        replica_line: u64,
    },
    /// `REPLICA NODE` without a set.
    #[error("the remote replica at `{node}` names no pool set: write `REPLICA [USER@]HOST SET`")]
    RemoteSetExpected {
        /// The node.
        node: String,
    },
    /// The pool set of a remote replica is named by an absolute path.
    #[error("the remote pool set `{}` must be relative to the target's directory: leave the leading `/` out", set.display())]
    RemoteSetAbsolute {
        /// The set.
        set: PathBuf,
    },
    /// The pool set of a remote replica would lie outside of the target's directory.
    #[error("the remote pool set `{}` leaves the target's directory: name it without `..`", set.display())]
    RemoteSetOutside {
        /// The set.
        set: PathBuf,
    },
    /// The node of a remote replica cannot be handed to ssh.
    #[error("`{node}` is not a valid node: {why}; write `[USER@]HOST`")]
    BadNode {
        /// What the file has there.
        node: String,
        /// The rule that it breaks.
        why: &'static str,
    },
    /// A part below a remote replica.
    #[error(
        "the remote replica of line {replica_line} has its parts in its own pool set: remove this line, or begin a local replica with `REPLICA`"
    )]
    PartOfRemote {
        /// Where the replica begins.
        replica_line: u64,
    },
    /// `OPTION` without a name.
    #[error("`OPTION` names no option: write `OPTION SINGLEHDR` or `OPTION NOHDRS`")]
    OptionExpected,
    /// An option that does not exist.
    #[error("`{name}` is not an option: there are SINGLEHDR and NOHDRS")]
    UnknownOption {
        /// What the file has there.
        name: String,
    },
    /// Options that exclude each other.
    #[error("SINGLEHDR and NOHDRS exclude each other: keep one")]
    ExclusiveOptions,
    /// `NOHDRS` in a set with replicas.
    #[error("a set with NOHDRS is a replica itself and has no other replicas: remove the option or the replicas")]
    NoHeadersWithReplicas,
}
