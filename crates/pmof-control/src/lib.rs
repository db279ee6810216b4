//! What an initiator and a target have in common: the messages by which pools are asked for, what a pool's file begins with,
//! which names pools may have, and what a refusal means.
//!
//! Nothing here does input or output: both sides depend on it, and neither on the other.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod block;
mod change_set;
mod checksum;
mod domain;
mod header;
mod intent;
mod kept_points;
mod message;
mod name;
mod page_digest;
mod pool;
mod process;
mod refusal;
mod roster;
mod state;
mod status;
mod writer_status;

pub use block::CopySteps;
pub use change_set::{
    CHANGE_HEADER_BYTES, CHANGE_SET_HEADER_BYTES, CONSISTENCY_POINT_BYTES, ChangeHeader, ChangeSetHeader,
    ConsistencyPoint, MAX_POINT_NAME_BYTES,
};
pub use domain::{DomainName, DomainNameError, FailureDomain, MAX_DOMAIN_NAME_BYTES};
pub use header::{
    DATA_OFFSET, EXTENSIONS_MAX, Extension, FileLayout, HEAD_4_BYTES, HEADER_BYTES, Header, HeaderError,
    MAX_SIZE_BYTES, PoolFormat, REPLICAS_MAX, STATE_OFFSET, USER_FLAGS_BYTES, file_len_bytes, without_magic,
};
pub use intent::{INTENT_BYTES, INTENT_OFFSET, INTENT_WORDS_MAX, IntentLayout, WORD_EXTENTS};
pub use kept_points::{
    KEPT_POINTS_MAX, KeptPoint, POINT_INDEX_HEAD_BYTES, POINT_INDEX_MAX_BYTES, PointIndex, PointIndexHead,
};
pub use message::{
    ATTRIBUTES_BYTES, Claim, ControlError, ControlVersion, DATA_RANGES_MAX, DIGEST_BYTES, DIGESTED_MAX_BYTES,
    DIGESTS_MAX, Enclosed, FILE_IDENTITY_BYTES, INTENT_MESSAGE_WORDS_MAX, MAX_DESCRIPTOR_BYTES, MAX_HOLDER_BYTES,
    MAX_MESSAGE_BYTES, MAX_PATH_BYTES, MAX_REFUSAL_BYTES, MeantReplica, MessageHead, NONCE_BYTES, PAGE_RANGES_MAX,
    PROOF_BYTES, PagesReply, PagesRequest, REPAIRED_BYTES, ROSTER_PART_BYTES, Reply, Request, RosterPart, SetFile,
    SettledVersion, SpokenVersions, VERIFIED_PAGES_MAX,
};
pub use name::{MAX_NAME_BYTES, MAX_SET_NAME_BYTES, NameError, PoolName, SetName};
pub use page_digest::{DIGEST_WORD_BYTES, PAGE_BYTES, PageDigest, PageDigests, PageWord, page_count};
pub use pmof_terms::OpenFor;
pub use pool::{NewPool, PoolInfo, Protection};
pub use process::{InitiatorProcess, MAX_PROGRAM_BYTES};
pub use refusal::{PoolRefusal, ServiceCode};
pub use roster::{
    Forced, KeptRoster, MAX_DOMAIN_BYTES, MAX_MEMBER_URL_BYTES, ROSTER_BYTES, ROSTER_OFFSET, Role, Roster,
    RosterChange, RosterError, RosterMember, WITNESS_BYTES,
};
pub use state::{ANCESTORS_MAX, Epoch, PoolState, STATE_BYTES, members_of};
pub use status::{MAX_ROOT_BYTES, MAX_VERSION_BYTES, TargetStatus};
pub use writer_status::{
    MAX_EVENT_BYTES, MAX_TOLD_EVENTS, MAX_TOLD_MEMBERS, MemberProgress, MemberStanding, ToldEvent, WriterStatus,
};
