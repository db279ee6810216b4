//! What can go wrong with a pool.

use std::{ops::Range, path::PathBuf, sync::Arc};

use pmof_access::{
    ConnectError, ConnectionError, DescriptorError, Durability, OperationError, PostError, Refusal, RegisterError,
    SetupError,
};
use pmof_bootstrap::{SshError, SshHostError};
use pmof_control::{ControlError, NameError, PoolRefusal, REPLICAS_MAX};
use pmof_mem::{MemError, causes};
use pmof_pool_set::{AccessError, HEADER_LEN_BYTES, PoolSetError};
use uuid::Uuid;

use crate::{ChangeError, PersistFailure, PoolUrl, PoolUrlError, ReplicaPlace, TargetUrl, lineage::Apart};

use self::lists::{domains, failed, listed, ranges_text};

pub(crate) use self::reasons::told;

mod conversions;
mod io;
mod lists;
mod outsiders;
mod reach;
mod reasons;

/// What a pool set says of a replica's place cannot be.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlaceError {
    /// The host that the set's file names.
    #[error(transparent)]
    Host(#[from] SshHostError),
    /// The set that the set's file names.
    #[error(transparent)]
    Name(#[from] NameError),
}

/// What went wrong with one replica.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplicaError {
    /// There is no connection to its target.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// ssh did not start a target.
    #[error(transparent)]
    Ssh(#[from] Box<SshError>),
    /// The target that ssh started is there, its data path cannot be reached.
    #[error(
        "ssh works, but the target's data path cannot be reached: {why}; open it in the firewall, or name an address that is reachable from here with `data-address` in the target's configuration"
    )]
    NoDataPath {
        /// What was tried, and how it failed.
        why: String,
    },
    /// What listens at the data path's address is not the target that ssh started.
    #[error(
        "what listens at the data path's address does not know the session's secret: it is not the target that ssh started"
    )]
    Impostor,
    /// The system gave no random bytes.
    #[error("no random bytes")]
    Random(#[from] getrandom::Error),
    /// The target refused.
    #[error("{text}")]
    Refused {
        /// The rule.
        refusal: PoolRefusal,
        /// The target's words.
        text: String,
    },
    /// The connection ended.
    #[error(transparent)]
    Ended(ConnectionError),
    /// No answer in time.
    #[error("no answer within {timeout_ms} ms")]
    TimedOut {
        /// The limit in milliseconds.
        timeout_ms: u64,
    },
    /// It had not answered when enough other replicas had, and was not waited for.
    #[error(
        "no answer within {waited_ms} ms, when enough other replicas had answered: is its target alive, and not stopped?"
    )]
    Silent {
        /// How long it was waited for, in milliseconds.
        waited_ms: u64,
    },
    /// The target and this program have no version of the control messages in common, that version cannot carry a request, or an answer was not understood.
    #[error("cannot exchange control messages with the target")]
    Control(#[from] ControlError),
    /// The target's answer does not fit the question.
    #[error("the target's answer does not fit the question; is it of another version?")]
    Unexpected,
    /// The descriptor of the pool's memory.
    #[error(transparent)]
    Descriptor(#[from] DescriptorError),
    /// The target's medium cannot give the level asked for.
    #[error(
        "the target's {medium} gives at most {strongest}, not {wanted}; keep the pool on a file system that does, or ask for less"
    )]
    NotDurable {
        /// The level asked for.
        wanted: Durability,
        /// The most there is.
        strongest: Durability,
        /// What the pool lies on.
        medium: String,
    },
    /// The replica belongs to another pool, or has another size.
    #[error(
        "it is of pool {found_uuid} with {found_bytes} bytes, the first replica of pool {uuid} with {size_bytes} bytes: name replicas of one pool, and put back the right file where that of another pool lies"
    )]
    Mismatch {
        /// The first replica's pool.
        uuid: Uuid,
        /// This replica's.
        found_uuid: Uuid,
        /// The first replica's size.
        size_bytes: u64,
        /// This replica's.
        found_bytes: u64,
    },
    /// Another initiator took the pool over. Nothing that this one has not been told of before is acknowledged any more.
    #[error(
        "the pool was taken over by {successor}; this writer may not write it any more, and must not go on as if it did"
    )]
    Fenced {
        /// Who has the pool now, as its target says.
        successor: String,
    },
    /// The replica was left behind: others went on without it, so it may lack writes that were acknowledged.
    #[error(
        "it was left behind at opening {opening}: the others went on without it, are at {newest}, and may have acknowledged writes since; it catches up when the pool is opened for writing with one that has everything (pmof pool scrub)"
    )]
    LeftBehind {
        /// Its last opening.
        opening: u64,
        /// The last opening of the others.
        newest: u64,
    },
    /// The replica's file was replaced by an older copy: it took part in openings that it knows nothing of.
    #[error(
        "its file is an older copy: it took part in openings up to {newest} and holds the state of opening {opening}; it catches up when the pool is opened for writing with enough members without it (pmof pool scrub); else put back the newest file, or bring back another member that has everything; of two members go on without it (pmof pool remove --force), remove it there (pmof pool rm), and add it anew (pmof pool add)"
    )]
    RolledBack {
        /// The opening whose state it has.
        opening: u64,
        /// The last opening that it took part in, or that followed.
        newest: u64,
    },
    /// The replica is at the same opening as the others, and lacks what was acknowledged in it.
    #[error(
        "it is an older state of opening {opening} (at mark {mark}, the others are at {newest}): its file is a copy made while the pool was open, or its medium lost what it had called durable; it catches up when the pool is opened for writing with enough members without it (pmof pool scrub); else put back the newest file, or bring back another member that has everything, or copy the pool without it (pmof cp --min-replicas) to a new name on all targets"
    )]
    Stale {
        /// The opening.
        opening: u64,
        /// Its mark; see [`PoolState::mark`](pmof_control::PoolState::mark).
        mark: u64,
        /// The highest mark of the others.
        newest: u64,
    },
    /// The replica catches up with the others, or has yet to begin: it may lack what they acknowledged.
    #[error("it is catching up with the others, and may lack writes that they acknowledged")]
    Behind,
    /// The replica knows that others went on without it, and none that has everything is among those that can be reached.
    #[error(
        "it knows that it is behind opening {opening}, and no replica that has all of that can be reached; bring one of those back"
    )]
    CatchingUp {
        /// The opening whose writes it lacks.
        opening: u64,
    },
    /// The replica was written with a minority of the pool's replicas, while the majority stayed where it was.
    #[error(
        "it went on with {members} of the pool's {made} replicas, and the majority knows nothing of what it may have acknowledged since (it is at opening {opening}, they are at {others}); open the majority without naming this one (min_replicas), or read what it has from it alone and copy that"
    )]
    WithoutMajority {
        /// Its last opening.
        opening: u64,
        /// The last opening of the others.
        others: u64,
        /// Replicas that took part in its last opening.
        members: u32,
        /// Replicas that the pool was made with.
        made: u16,
    },
    /// The replica and the others were written separately, so that each lacks what the other acknowledged.
    #[error(
        "it and the others went on separately: each may lack what the other acknowledged (it is at opening {opening}, they are at {others}); {}",
        if *majority { "the others are the majority, and the pool opens without it: read from it alone what they lack (min_replicas), then replace it (pmof pool replace)" }
        else { "none is newer than the other: open each alone (min_replicas) for reading, decide which to keep, and copy it to a new pool under another name" }
    )]
    Diverged {
        /// Its last opening.
        opening: u64,
        /// The last opening of the others.
        others: u64,
        /// The others were written by most of the pool's replicas.
        majority: bool,
    },
    /// Where a member of the pool was found before, another replica lies now.
    #[error(
        "replica {found} of the pool lies there, where the pool's members say that replica {index} is: name the address of each replica"
    )]
    NotTheMember {
        /// The one that was looked for.
        index: u16,
        /// The one that is there.
        found: u16,
    },
    /// The file is a copy of a member's, which is at its own address, as the pool's members have it.
    #[error(
        "it is a copy of replica {index}, which is at {home}: nothing depends on it; `pmof pool rm --force` removes the copy alone"
    )]
    ACopy {
        /// Which of the pool's replicas it is a copy of.
        index: u16,
        /// Where that lies.
        home: Arc<ReplicaPlace>,
    },
    /// The replica was removed from the pool's members, or was to become one and never did.
    #[error(
        "it is no member of the pool: it was removed, or its addition did not come to an end; remove what is left there (pmof pool rm), and add it again if it is to be one"
    )]
    NotAMember {
        /// Which of the pool's replicas it says that it is.
        index: u16,
    },
    /// The replica was a member of the pool until another one was [promoted](crate::PoolOptions::promote), and has what that one may lack.
    #[error(
        "it is no member of the pool any more: a pool was made of an asynchronous member without it (pmof pool promote), which may lack what this one acknowledged; keep the members, read what the pool lacks from this one alone \
         (pmof cp --min-replicas 1), and remove it there when that is not needed any more (pmof pool rm)"
    )]
    Superseded {
        /// Which of the pool's replicas it says that it is.
        index: u16,
    },
    /// The replica was a member of the pool before it and the members parted, and was written since, as where another one was [promoted](crate::PoolOptions::promote), or where each was
    /// forced to go on without the other.
    #[error(
        "it is another history of the same pool: it parted from the members and went on to opening {opening}, they are at {others}, as where a pool was made of an asynchronous member (pmof pool promote), \
         or where each of two members was forced to go on without the other (pmof pool remove --force); each lacks what the other acknowledged since: read each of the two alone (pmof cp --min-replicas 1), \
         and decide which to keep before you remove either (pmof pool rm --force)"
    )]
    AnotherHistory {
        /// Which of the pool's replicas it says that it is.
        index: u16,
        /// Its last opening.
        opening: u64,
        /// The last opening of the members.
        others: u64,
    },
    /// The replica and the members have the pool's identity in common, and no epoch: one of the two was made of an export, or they parted too long ago to know.
    #[error(
        "it is no member of the pool that the others are of, which has the same identity and nothing else in common with it, as where one was made by `pmof pool import`: name the replicas of one of the two only; \
         before you remove either, see which it is (pmof pool status of each alone)"
    )]
    SameIdentity {
        /// Which of the pool's replicas it says that it is.
        index: u16,
    },
    /// The member keeps no such consistency point, or not any more.
    #[error(
        "it does not keep consistency point {point:?}, or not any more; `pmof pool points` lists those that it keeps"
    )]
    NoSuchPoint {
        /// Its name or number.
        point: String,
    },
    /// What the member kept of its consistency points is not whole.
    #[error(
        "what it kept of its consistency points is damaged: it cannot go back to any; its data is as it was, and a writer with keep_points begins anew"
    )]
    PointsDamaged,
    /// The replica is an asynchronous member: it has the pool as it was at a consistency point, and counts for nothing.
    #[error(
        "it is an asynchronous member, which has what was written up to a consistency point: bring back members that have everything; or give up what it lacks, and make a pool of it (pmof pool promote)"
    )]
    Asynchronous {
        /// Which of the pool's replicas it is.
        index: u16,
    },
    /// The replica is a witness: it keeps the pool's epochs and its list of members, and none of its bytes.
    #[error(
        "it is a witness, which keeps the pool's epochs and none of its bytes: name a member that has them{}{}",
        if members.is_empty() { "" } else { ": " }, members.join(", ")
    )]
    Witness {
        /// Which of the pool's replicas it is.
        index: u16,
        /// Where the members lie that have the pool's bytes, as far as it knows.
        members: Vec<String>,
    },
    /// An operation could not be posted.
    #[error(transparent)]
    Post(#[from] PostError),
    /// An operation failed.
    #[error(transparent)]
    Operation(#[from] OperationError),
    /// Memory of this side.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// The memory of a replica on this machine.
    #[error(transparent)]
    Memory(#[from] MemError),
    /// Its medium changed bytes since they were written, by the digest that it keeps of their page. They are not given; all else of the replica is.
    #[error(
        "its medium changed the page at offset {offset} since it was written: check the device; the page is repaired from another replica where one has it"
    )]
    Damaged {
        /// First byte of the page.
        offset: u64,
    },
    /// The replica is not the one that belongs there, or does not hold the same as the others of its pool set.
    #[error(
        "it has another {what} than the set's other replicas: it is of another pool or place, was left behind, or lacks what was under way in a crash or what was stored in the mirror and never persisted; `pmof pool check` shows the difference, `pmof pool sync` mends it"
    )]
    Differs {
        /// What is not as it should be.
        what: &'static str,
    },
    /// A pool set was asked for where there is no target.
    #[error("{} is a directory of this machine, and no target has pool sets there: name the set's file instead", directory.display())]
    NoTarget {
        /// The directory.
        directory: PathBuf,
    },
    /// What a replica answered, when it was compared, cannot be.
    #[error("it could not be compared with the first")]
    NotCompared(#[source] AccessError),
}

impl ReplicaError {
    /// Whether its target has no pool of this name.
    pub fn is_absent(&self) -> bool {
        matches!(self, Self::Refused { refusal: PoolRefusal::NotFound, .. })
    }

    /// Whether somebody else has the replica open: the same call may succeed later.
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::Refused { refusal: PoolRefusal::Busy | PoolRefusal::NotFenceable, .. })
    }

    /// Whether another initiator took over what this one had open.
    pub fn is_fenced(&self) -> bool {
        let is_said = |why: &ConnectionError| matches!(why, ConnectionError::Refused { refusal: Refusal::Fenced, .. });
        match self {
            Self::Fenced { .. } | Self::Operation(OperationError::Refused { refusal: Refusal::Fenced, .. }) => true,
            Self::Ended(why)
            | Self::Post(PostError::NotConnected(why))
            | Self::Operation(OperationError::ConnectionEnded(why)) => is_said(why),
            _ => false,
        }
    }

    pub(crate) fn of(apart: Apart, made: u16) -> Self {
        match apart {
            Apart::LeftBehind { opening, newest } => Self::LeftBehind { opening, newest },
            Apart::CatchingUp { opening } => Self::CatchingUp { opening },
            Apart::RolledBack { opening, newest } => Self::RolledBack { opening, newest },
            Apart::Stale { opening, mark, newest } => Self::Stale { opening, mark, newest },
            Apart::WithoutMajority { opening, others, members } => {
                Self::WithoutMajority { opening, others, members, made }
            }
            Apart::Diverged { opening, others, majority } => Self::Diverged { opening, others, majority },
        }
    }
}

/// A failed operation on a pool.
///
/// It prints what failed and why on one line, with all causes, as `{:?}` does: programs print one line. So it has no
/// [source](std::error::Error::source), which those that print each error of a chain would print again; [`replica_error`](Self::replica_error) is why a replica failed.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// A replica's URL was not understood.
    #[error("{}", causes(.0))]
    Url(PoolUrlError),
    /// No asynchronous member of the pool keeps this consistency point.
    #[error(
        "no asynchronous member of the pool keeps consistency point {point:?}{}; `pmof pool points` lists those that are kept",
        replicas.iter().fold(String::new(), |text, (replica, why)| text + &format!("; {replica:#}: {}", causes(why)))
    )]
    NoPoint {
        /// Its name or number.
        point: String,
        /// The asynchronous members that were asked, and why each does not give it.
        replicas: Vec<(Arc<ReplicaPlace>, Arc<ReplicaError>)>,
    },
    /// No asynchronous member keeps any point.
    #[error(
        "no asynchronous member of the pool keeps a consistency point{}; `pmof pool add --async --keep-points N` makes one that keeps those that the program \
         names with `Pool::consistency_point`",
        replicas.iter().fold(String::new(), |text, (replica, why)| text + &format!("; {replica:#}: {}", causes(why)))
    )]
    NoPoints {
        /// The asynchronous members that could not be asked, and why.
        replicas: Vec<(Arc<ReplicaPlace>, Arc<ReplicaError>)>,
    },
    /// No replica was named.
    #[error("a pool needs at least one replica: name one, such as tcp://127.0.0.1:7204/orders")]
    NoReplicas,
    /// The pool has no replica of this number.
    #[error("there is no replica {index}: the pool was opened with {replica_count}, counted from 0")]
    NoSuchReplica {
        /// The number asked for.
        index: usize,
        /// How many there are.
        replica_count: usize,
    },
    /// One replica is named twice.
    #[error("replica {replica} is named twice: name each replica once")]
    Twice {
        /// The replica.
        replica: Arc<PoolUrl>,
    },
    /// More replicas than a pool can have.
    #[error("{named} replicas are named, and a pool has at most {REPLICAS_MAX}")]
    TooMany {
        /// Replicas named.
        named: usize,
    },
    /// Two of those named are the same replica: one is a copy of the other's file.
    #[error("{replica} and {other} are both replica {index} of the pool: one is a copy of the other; name one of them")]
    SameReplica {
        /// The one.
        replica: Arc<ReplicaPlace>,
        /// The other.
        other: Arc<ReplicaPlace>,
        /// Which replica of the pool they are, from 0.
        index: u16,
    },
    /// No replica was opened, so that it is not known how many the pool was made with.
    #[error("no replica can be opened:{}", listed(replicas))]
    NoneOpened {
        /// All that were named, and why.
        replicas: Vec<(Arc<ReplicaPlace>, Arc<ReplicaError>)>,
    },
    /// Fewer members can be opened than an opening needs, since one is out of reach or unfit.
    #[error(
        "{here} of the pool's {made} members can be opened, and it takes {needed} to know that no other goes on without them: bring back as many, or read what is there with fewer \
         (min_replicas, pmof cp --min-replicas){}; {}",
        if *made == 2 { "; or, where the other one is lost for good, go on without it (pmof pool replace --force)" } else { "" },
        failed(replica, source, others)
    )]
    TooFew {
        /// Members that can be opened.
        here: usize,
        /// Members that the pool has.
        made: usize,
        /// Members that it takes.
        needed: usize,
        /// One of those that cannot.
        replica: Arc<ReplicaPlace>,
        /// Why.
        r#source: Arc<ReplicaError>,
        /// The others that cannot, and why.
        others: Vec<(Arc<ReplicaPlace>, Arc<ReplicaError>)>,
    },
    /// Fewer replicas can be opened together than the opening needs.
    #[error(
        "{opened} of the {made} replicas that the pool was made with can be opened together, and {needed} are asked for: {}{}{}",
        if needed > made {
            "it never had so many, so ask for fewer (min_replicas, --min-replicas; only a majority is safe)"
        } else {
            "name them all, or say how many are enough (min_replicas, --min-replicas; only a majority is safe)"
        },
        if left_out.is_empty() { "" } else { "; left out:" }, listed(left_out)
    )]
    Degraded {
        /// Replicas that were opened.
        opened: usize,
        /// Replicas that the pool was made with.
        made: usize,
        /// Replicas that must be opened: [`PoolOptions::min_replicas`](crate::PoolOptions::min_replicas), or a majority.
        needed: usize,
        /// Those that were named and cannot be opened with the others, and why.
        left_out: Vec<(Arc<ReplicaPlace>, Arc<ReplicaError>)>,
    },
    /// Rosters that may be older than those that were in force: an earlier version of pmof wrote each in one of two slots, and the other one is damaged.
    #[error(
        "the list of the pool's members may be an older one where it was damaged: an earlier version of pmof wrote it, and too few of the other members are here to tell \
         (name all of them, or bring back those that are away; the next opening for writing mends the list), or read what is there with fewer (min_replicas, pmof cp --min-replicas):{}",
        listed(replicas)
    )]
    UncertainRoster {
        /// All that were named or found and are not here, and why; where none is missing, those members know of others.
        replicas: Vec<(Arc<ReplicaPlace>, Arc<ReplicaError>)>,
    },
    /// The replicas do not belong together: some lack what others acknowledged.
    #[error("the replicas do not belong together:{}", listed(replicas))]
    Apart {
        /// Those that do not belong to the others, and why.
        replicas: Vec<(Arc<ReplicaPlace>, Arc<ReplicaError>)>,
    },
    /// The pool has fewer replicas than a persist is to be [on](crate::Acknowledge::AtLeast): none would ever be acknowledged.
    #[error("a persist is to be on {wanted} replicas, and the pool has {made}: ask for {made} at most")]
    NeverAcknowledged {
        /// Replicas that are asked for.
        wanted: usize,
        /// Replicas that the pool was made with.
        made: usize,
    },
    /// The replicas are in too few failure domains for what a persist is to [survive](crate::Acknowledge::Survive).
    #[error(
        "a persist is to be in {wanted} failure domains, and the replicas are in {found}: {}; add replicas on other machines, or tell targets apart that do not fail together (pmof serve --failure-domain)",
        domains(.replicas)
    )]
    TooFewDomains {
        /// Failure domains that are needed: one more than may be lost.
        wanted: usize,
        /// Failure domains that the replicas are in, as far as that is known.
        found: usize,
        /// The replicas that are open, and the names of their failure domains; `None` where a target does not say it.
        replicas: Vec<(Arc<ReplicaPlace>, Option<String>)>,
    },
    /// More consistency points than an asynchronous member keeps.
    #[error(
        "{wanted} consistency points are to be kept, and an asynchronous member keeps {limit} at most: ask for fewer (keep_points)"
    )]
    TooManyPoints {
        /// Points asked for.
        wanted: u16,
        /// Points that there can be.
        limit: usize,
    },
    /// So many replicas as none are asked for.
    #[error("{option} is 0: say how many replicas are needed, 1 at least, or leave it out")]
    Zero {
        /// Where it was said.
        option: &'static str,
    },
    /// The pool that is there has another size than was asked for.
    #[error(
        "the pool is there and has {size_bytes} bytes, not {wanted_bytes}: ask for its own size, or open it without asking for one (open)"
    )]
    OtherSize {
        /// Its size.
        size_bytes: u64,
        /// The size asked for.
        wanted_bytes: u64,
    },
    /// Nobody said which failure the data must survive.
    #[error("say which durability the pool needs (Visible, ProcessCrash or PowerFailure): there is no default")]
    NoDurability,
    /// A resource of this side.
    #[error("{}", causes(.0))]
    Setup(SetupError),
    /// One replica failed, so the call was not carried out; what it had begun elsewhere was undone where possible.
    #[error("{replica:#} failed: {}", causes(source))]
    Replica {
        /// The replica.
        replica: Arc<ReplicaPlace>,
        /// What went wrong.
        r#source: Arc<ReplicaError>,
    },
    /// A target did not answer a question about all its pools.
    #[error("target {target} failed: {}", causes(source))]
    Target {
        /// The target.
        target: Box<TargetUrl>,
        /// What went wrong.
        r#source: Arc<ReplicaError>,
    },
    /// The range does not lie inside the pool.
    #[error(
        "range of {len_bytes} bytes at offset {offset} lies outside the pool of {size_bytes} bytes: end at its last byte, or make a larger pool and copy this one into it (a pool keeps its size)"
    )]
    OutOfBounds {
        /// First byte.
        offset: u64,
        /// Bytes.
        len_bytes: u64,
        /// Size of the pool.
        size_bytes: u64,
    },
    /// The range ends before it starts.
    #[error("range {start}..{end} ends before it starts")]
    Reversed {
        /// First byte.
        start: u64,
        /// The byte behind its last one.
        end: u64,
    },
    /// The pool was opened for reading.
    #[error("the pool is open for reading only")]
    ReadOnly,
    /// A persist that too few replicas can acknowledge; those that it reached keep the data.
    #[error("{0}")]
    Persist(Box<PersistFailure>),
    /// An asynchronous member of a new pool was not made, and neither was the pool.
    #[error("an asynchronous member was not made, and neither was the pool: {}", causes(.0))]
    Asynchronous(Box<ChangeError>),
    /// A consistency point has a name that stands for a number. No point was made.
    #[error(
        "{name:?} is no name of a consistency point: one of digits only would be taken for a number; put a letter into it"
    )]
    PointName {
        /// The name.
        name: String,
    },
    /// A spare of a new pool cannot be one, and the pool was not made.
    #[error("a spare was not added, and the pool was not made: {}", causes(.0))]
    Spare(Box<ChangeError>),
    /// A witness of a new pool was not made, and neither was the pool.
    #[error("a witness was not made, and neither was the pool: {}", causes(.0))]
    Witness(Box<ChangeError>),
    /// The offset of an atomic write.
    #[error("offset {offset} is not divisible by 8, as an 8-byte atomic write needs")]
    Misaligned {
        /// The offset.
        offset: u64,
    },
    /// A replica of a pool set on this machine.
    #[error("{}", causes(.0))]
    Set(PoolSetError),
    /// What a pool set says of a remote replica's place.
    #[error("the pool set names replica {index} wrongly: {}", causes(source))]
    Place {
        /// Its number in the set, from 0.
        index: usize,
        /// The rule broken.
        r#source: PlaceError,
    },
    /// The first replica of a pool set cannot be copied from.
    #[error(
        "the first replica is not copied to the others: {reason}, and {sound:#} is sound; `pmof pool sync` copies from that one"
    )]
    BadSource {
        /// What is wrong with the first one.
        reason: &'static str,
        /// One that is sound.
        sound: Arc<ReplicaPlace>,
    },
    /// Another replica was opened by libpmemobj after the first was opened last.
    #[error(
        "the first replica is not copied to the others: libpmemobj counted {count} openings of it, and {newer_count} of replica {newer}, so it looks like an old copy; \
         bring the set in order (`pmof pool sync`)"
    )]
    OldSource {
        /// How often the first one was opened.
        count: u64,
        /// One that is newer.
        newer: Arc<ReplicaPlace>,
        /// How often that was opened.
        newer_count: u64,
    },
    /// A part of the first replica was lost, and made again.
    #[error("the first replica is not copied to the others: {reason}; `pmof pool sync` copies from that one")]
    LostPart {
        /// Which part, and who has it.
        reason: String,
    },
    /// A part without a header holds nothing that another replica has there: it is another's file, or those are.
    #[error(
        "{} of replica {index} has no header, and nothing in it is what any other replica holds there: move away the file that is not the \
         pool's, and bring the set in order (`pmof pool sync`)",
        path.display()
    )]
    UnlikePart {
        /// The replica, by its number in the set, from 0.
        index: usize,
        /// The part.
        path: PathBuf,
    },
    /// The same on another machine, which tells what its parts have of the pool, and not their names.
    #[error(
        "the part of replica {index} that has bytes {} to {} of the pool has no header, and nothing in it is what any other replica holds there: move away the file that is \
         not the pool's, on that machine or here, and bring the set in order (`pmof pool sync`)",
        range.start, range.end
    )]
    UnlikeElsewhere {
        /// The replica, by its number in the set, from 0.
        index: usize,
        /// What the part has of the pool.
        range: Range<u64>,
    },
    /// The first replica of a pool set must be local.
    #[error("the pool set has no local replica: the first one must be local, and is where the program's memory is")]
    NoLocalReplica,
    /// The range begins in the header, which only [`Pool::set_attributes`](crate::Pool::set_attributes) changes.
    #[error(
        "offset {offset} lies in the pool's header, its first {HEADER_LEN_BYTES} bytes; change it by setting attributes"
    )]
    Header {
        /// First byte.
        offset: u64,
    },
    /// The pool has no header.
    #[error("the pool has no header, so it has no attributes")]
    NoHeader,
    /// The pool's format has no epochs, which say what its replicas have in common.
    #[error(
        "a pool set is not compared while it is open: close the pool, and compare its replicas (`pmof pool check`)"
    )]
    NoEpochs,
    /// The pool has no mirror that ranges could be persisted from.
    #[error("the pool has no mirror: open it with one (mirror), or write bytes")]
    NoMirror,
    /// The mirror's memory.
    #[error("the pool's mirror failed: {}", causes(.0))]
    Mirror(MemError),
    /// Pages that the media of all replicas have changed since they were written: no replica has them as their digests say. All other bytes can be read and written; these can be
    /// replaced, in whole pages of 4096 bytes.
    #[error(
        "{} of the pool {} damaged on every replica that can be asked: check the devices, restore from a backup, or write the whole pages anew",
        ranges_text(ranges),
        if ranges.len() == 1 { "is" } else { "are" }
    )]
    Damaged {
        /// The bytes, in whole pages, in order and apart.
        ranges: Vec<Range<u64>>,
    },
    /// Replicas in sync hold other bytes in the same pages, and each has the digest that it keeps of its own: none of them is believed, and nothing was changed.
    #[error(
        "{} of the pool differ between replicas whose digests both say that they are whole: find out which is right (`pmof cp --min-replicas 1 MEMBER FILE`), and remove the other",
        ranges_text(ranges)
    )]
    Undecided {
        /// The bytes, in whole pages, in order and apart.
        ranges: Vec<Range<u64>>,
    },
    /// The pool was closed, by this handle or another.
    #[error("the pool is closed: open it again, and use what that returns")]
    Closed,
    /// The caller's process was forked from the one that opened the pool. Nothing was done, and the pool is open there.
    #[error(
        "the pool was opened before fork(): only the process that opened it may use it; fork before you open the pool, or open it again in the child when the parent has closed it"
    )]
    Forked,
    /// No replica is left to read from.
    #[error("no replica is left; the last to fail was {replica}: {}", causes(source))]
    NoneLeft {
        /// The last one.
        replica: Arc<ReplicaPlace>,
        /// What went wrong with it.
        r#source: Arc<ReplicaError>,
    },
}

impl PoolError {
    /// Whether somebody else has the pool, or a file of it, open. Nothing was changed, and the same call may succeed later.
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::Set(PoolSetError::Busy { .. })) || self.replica_error().is_some_and(ReplicaError::is_busy)
    }

    /// Whether too few replicas are left because some are lost. Of an open pool: the same call succeeds when enough are back, unless the pool
    /// [must be opened again](Self::must_reopen). Of an opening: replicas are out of reach, and the others are too few without them. A wrong address is no lost replica: a host name
    /// that does not resolve, also where the resolver is down for a moment, or something there that is no target.
    pub fn is_replica_lost(&self) -> bool {
        match self {
            Self::Persist(failure) => !failure.is_fenced(),
            Self::NoneLeft { .. } => !self.is_fenced(),
            Self::NoneOpened { replicas } => replicas.iter().any(|(_, why)| why.is_lost()),
            _ => self.replica_error().is_some_and(ReplicaError::is_lost),
        }
    }

    /// Whether an open pool has lost all replicas that were in sync, so that this handle acknowledges nothing any more, also when they are back. What
    /// was written and not acknowledged is lost with their connections. Close or drop the pool, open it again, and write that again. A pool set
    /// is to be opened again after the loss of any replica.
    pub fn must_reopen(&self) -> bool {
        match self {
            Self::Persist(failure) => failure.must_reopen(),
            Self::NoneLeft { .. } => !self.is_fenced(),
            _ => false,
        }
    }

    /// Whether another initiator took the pool over ([`PoolOptions::take_over`](crate::PoolOptions::take_over)): this handle acknowledges nothing
    /// any more, and is to be dropped. [`ReplicaError::Fenced`] names the successor.
    pub fn is_fenced(&self) -> bool {
        match self {
            Self::Persist(failure) => failure.is_fenced(),
            _ => self.replica_error().is_some_and(ReplicaError::is_fenced),
        }
    }

    /// What went wrong with a replica, if that is what this says; of several, with the first that was fenced, or else the first.
    pub fn replica_error(&self) -> Option<&ReplicaError> {
        match self {
            Self::Replica { source, .. }
            | Self::Target { source, .. }
            | Self::NoneLeft { source, .. }
            | Self::TooFew { source, .. } => Some(source),
            Self::Persist(failure) => {
                let fenced = failure.failed.iter().find(|(_, why)| why.is_fenced());
                fenced.or(failure.failed.first()).map(|(_, source)| &**source)
            }
            _ => None,
        }
    }
}
