//! Why a set cannot be synchronized.

use std::{ops::Range, path::PathBuf};

use super::Apart;
use crate::{AccessError, Majority, PartSize};

/// What is said of a part with holes.
const HOLES: &str = "has holes: data that was there";
const FILLED: &str =
    "; if this is a sparse copy and the holes held no data, `fallocate -l LENGTH FILE` fills them with zeros";

/// Why a set cannot be synchronized.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SyncError {
    /// No replica is sound.
    #[error("no replica is sound, so there is nothing to copy from: {}{}", reasons.join("; "), if reasons.iter().any(|reason| reason.contains(HOLES)) { FILLED } else { "" })]
    NoSource {
        /// What is wrong with each.
        reasons: Vec<String>,
    },
    /// Replicas of different pools.
    #[error("replica {index} is of the pool {found}, not of {expected}: name the replicas of one pool only")]
    OtherPool {
        /// Its place in the set, from 0.
        index: usize,
        /// UUID of its set.
        found: String,
        /// UUID of the source's set.
        expected: String,
    },
    /// Two replicas have one UUID.
    #[error(
        "replicas {other} and {index} are one: their headers have the UUID {uuid}; where both are the same files under two names, take one out of the pool set \
         file; where one is a copy of the other's files, move its files away, and it is recreated"
    )]
    SameReplica {
        /// The one that the set names later, by its place in it, from 0.
        index: usize,
        /// The one that it names first.
        other: usize,
        /// What the headers of both say.
        uuid: String,
    },
    /// A replica has no room for the pool.
    #[error("replica {index} holds {len_bytes} bytes, and the pool has {expected}: make its parts larger")]
    TooSmall {
        /// Its place in the set, from 0.
        index: usize,
        /// What it holds.
        len_bytes: u64,
        /// What it must hold.
        expected: u64,
    },
    /// The operation is not supported.
    #[error("{why}; {mend}")]
    Unsupported {
        /// What is not supported.
        why: &'static str,
        /// What to do instead.
        mend: &'static str,
    },
    /// Nothing says which is right: the newest after a crash is the source, the others after damage to it.
    #[error(
        "replicas {} agree with each other and differ from replica {}, the one to copy from, first at offset {} (places: {}): choose with \
         `pmof pool sync --from`: {} holds what most replicas hold; {} holds what was written last if the program was killed or lost power",
        list(&majority.replicas), majority.against, majority.offset, majority.places,
        majority.replicas.first().unwrap_or(&0), majority.against
    )]
    Outvoted {
        /// The replicas, and where they differ.
        majority: Majority,
    },
    /// Replicas that differ, and were not used together.
    #[error("{apart}: choose with `pmof pool sync --from`")]
    Apart {
        /// Who.
        apart: Apart,
    },
    /// A replica is to be recreated because of its headers, but its contents differ from the one to copy from.
    #[error(
        "the headers of replica {index} are damaged, but its contents are intact and differ from replica {source_index}, first at offset {offset}: nothing says which \
         was written last; `pmof pool sync --from {source_index}` overwrites it: keep a copy of its parts first, on their machine, if they may be newer"
    )]
    Kept {
        /// Its place in the set, from 0.
        index: usize,
        /// That of the one to copy from.
        source_index: usize,
        /// The first byte that differs, from the start of the pool.
        offset: u64,
    },
    /// A part without a header has nothing in common with any other replica.
    #[error(
        "{} of replica {index} has no header, and nothing in it is what any other replica holds there: if it does not belong to the pool, move it away, and it is \
         recreated; if the others' files do not, move those away",
        path.display()
    )]
    Unlike {
        /// Its place in the set, from 0.
        index: usize,
        /// The part.
        path: PathBuf,
    },
    /// The same on another machine, which reports the ranges of its parts but not their names.
    #[error(
        "the part of replica {index} that has bytes {} to {} of the pool has no header, and nothing in it is what any other replica holds there: if it does not belong to the pool, \
         move it away on that machine, and it is recreated; if the others' files do not, move those away",
        range.start, range.end
    )]
    UnlikeElsewhere {
        /// Its place in the set, from 0.
        index: usize,
        /// The range of the pool in the part.
        range: Range<u64>,
    },
    /// libpmemobj opened another replica after the last opening of the one to copy from.
    #[error(
        "libpmemobj counted {count} openings of replica {index}, and {source_count} of replica {source_index}, which would be copied to the others and looks like an old copy: \
         name the one to copy from (`pmof pool sync --from {index}` for the newer one)"
    )]
    OldSource {
        /// The newer one, by its place in the set, from 0.
        index: usize,
        /// How often it was opened.
        count: u64,
        /// The one to copy from.
        source_index: usize,
        /// How often that was opened.
        source_count: u64,
    },
    /// The set is not the current one of the pool.
    #[error(
        "replica {index} is linked to one that was made in another place than that of replica {beside} here: the pool was transformed to another \
         set, or replica {beside} was moved and lost; name the pool set file that the pool was transformed to, or, if this is the pool's set, the \
         replica to copy from (`pmof pool sync --from {index}`)"
    )]
    Transformed {
        /// Its place in the set, from 0.
        index: usize,
        /// The place of the one that the set has beside it.
        beside: usize,
    },
    /// The set does not name all replicas of the pool.
    #[error(
        "replica {index} is linked to a replica, {named}, that the set does not name: name the pool set file that lists it too; if a transform to this set was interrupted, run it \
         again; if that replica is gone for good, name the replica to copy from (`pmof pool sync --from {index}`), and those of this set are linked to each other"
    )]
    NotAll {
        /// Its place in the set, from 0.
        index: usize,
        /// The UUID of the replica that it names.
        named: String,
    },
    /// All readable replicas are empty, but another one may hold data.
    #[error(
        "replica {index} is empty (created and never written), and replica {other} may hold what was written: {reason}; bring back a copy of \
         replica {other}, or name replica {index} (`pmof pool sync --from {index}`) if nothing was ever written"
    )]
    EmptySource {
        /// The empty one, by its place in the set, from 0.
        index: usize,
        /// The one that cannot be read.
        other: usize,
        /// What is wrong with that.
        reason: String,
    },
    /// The replica to copy from is not usable.
    #[error("replica {index} cannot be copied from: {reason}; name another one")]
    NotASource {
        /// Its place in the set, from 0.
        index: usize,
        /// What is wrong.
        reason: String,
    },
    /// A replica that must be sound is not.
    #[error("replica {index} is not sound ({reason}): synchronize the set first (`pmof pool sync`)")]
    NotSound {
        /// Its place in the set, from 0.
        index: usize,
        /// What is wrong.
        reason: String,
    },
    /// A host with a replica that is to be removed cannot be reached.
    #[error(
        "replica {index}, which is to be removed, cannot be reached; where {node} is lost for good, `--lost {node}` leaves its \
         replica in place"
    )]
    HostAway {
        /// Its place in the old set, from 0.
        index: usize,
        /// The host, as the set names it.
        node: String,
        /// What went wrong.
        source: AccessError,
    },
    /// A host declared lost has a replica of the new set.
    #[error(
        "replica {index} of the new set is on {host}, which is declared lost: remove it from the set, or the host from `--lost`"
    )]
    LostAndKept {
        /// Its place in the new set, from 0.
        index: usize,
        /// The host.
        host: String,
    },
    /// A host declared lost has no replica that is to be removed.
    #[error("{host} is declared lost, but has no replica of the old set: name a host as the old set names it")]
    NothingLost {
        /// The host.
        host: String,
    },
    /// Where a replica is to be created, a replica of the same pool exists that differs.
    #[error(
        "replica {index} is not created: {place} is of this pool already, and differs: it is stale, or was used since; \
         `pmof pool check` of the new set says where, and `pmof pool sync --from N` of the new set copies what replica N holds"
    )]
    MadeAlready {
        /// Its place in the new set, from 0.
        index: usize,
        /// Where it is.
        place: String,
    },
    /// Where a replica is to be created, there is a sound one of another pool.
    #[error(
        "replica {index} cannot be created: {} on {node} is a replica of another pool: remove it on {node} first if it is not needed",
        set.display()
    )]
    Taken {
        /// Its place in the new set, from 0.
        index: usize,
        /// The host.
        node: String,
        /// The set there.
        set: PathBuf,
    },
    /// Sound parts that the set names in another order, or in another replica.
    #[error(
        "the set does not name the parts of replica {index} as they are: {}; write them so in the pool set file, the first part of each replica \
         (part 0) first",
        parts.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    )]
    Misplaced {
        /// Its place in the set, from 0.
        index: usize,
        /// What the parts are that the set names in it, as far as their headers say.
        parts: Vec<MisplacedPart>,
    },
    /// A replica that is to be added names a part of the old set.
    #[error(
        "replica {index} of the new set names {}, a part of replica {of} of the old set, {}: write that replica as the old set has it, or name \
         another file",
        path.display(), reused_text(*size, *old_size)
    )]
    Reused {
        /// Its place in the new set, from 0.
        index: usize,
        /// The place in the old set of the replica that the part is of.
        of: usize,
        /// The part.
        path: PathBuf,
        /// Its length by the new set.
        size: PartSize,
        /// Its length by the old set.
        old_size: PartSize,
    },
    /// A transform failed while it created or linked replicas.
    #[error(
        "the transform was not completed; the replicas of the old set are intact and none is removed, but some may be linked as in the new \
         set: run the same transform again once the reason is gone, and it continues"
    )]
    Halfway {
        /// What failed.
        source: Box<SyncError>,
    },
    /// A transform created the new replicas, but could not remove the old ones.
    #[error(
        "the pool has the replicas of the new set now, and they are complete: use that set; replica {index} of the old set is not removed, or only \
         partly; run the same transform again once the reason is gone, which removes what is left of the old set"
    )]
    NotRemoved {
        /// Its place in the old set, from 0.
        index: usize,
        /// What went wrong.
        source: AccessError,
    },
    /// A replica failed, or could not be reached.
    #[error("replica {index} failed")]
    Replica {
        /// Its place in the set, from 0.
        index: usize,
        /// What went wrong.
        source: AccessError,
    },
}

/// What a file is that the set names as another part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MisplacedPart {
    /// The file.
    pub path: PathBuf,
    /// The replica that it is of, by its place in the set, from 0.
    pub replica: usize,
    /// Which of its parts it is, from 0.
    pub part: usize,
}

impl std::fmt::Display for MisplacedPart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} is part {} of replica {}", self.path.display(), self.part, self.replica)
    }
}

fn reused_text(size: PartSize, old_size: PartSize) -> String {
    if size == old_size {
        "with other parts beside it, or in another order".to_owned()
    } else {
        format!("with another size ({size}, and {old_size} there)")
    }
}

pub(super) fn list(replicas: &[usize]) -> String {
    let texts: Vec<_> = replicas.iter().map(ToString::to_string).collect();
    texts.join(" and ")
}
