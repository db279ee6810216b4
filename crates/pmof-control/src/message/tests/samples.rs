//! Messages of every kind, which every version of the control messages that is spoken can carry.

use pmof_terms::{Durability, Evidence, Mechanism, MediumKind, Promise};
use uuid::Uuid;

use super::super::*;
use crate::{
    ANCESTORS_MAX, Epoch, FailureDomain, Header, INTENT_WORDS_MAX, MAX_EVENT_BYTES, MAX_TOLD_MEMBERS, MemberProgress,
    MemberStanding, NewPool, OpenFor, PoolFormat, PoolInfo, PoolName, PoolState, SetName, TargetStatus, ToldEvent,
    USER_FLAGS_BYTES, WriterStatus,
};

pub(super) fn name(text: &str) -> PoolName {
    PoolName::new(text).expect("a good name")
}

pub(super) fn set(text: &str) -> SetName {
    SetName::new(text).expect("a good name")
}

pub(super) fn epoch(number: u128) -> Epoch {
    Epoch { id: Uuid::from_u128(number), members: number as u64 }
}

/// As long as a state can be.
pub(super) fn sample_state() -> PoolState {
    let ancestors = (1..=ANCESTORS_MAX as u128).map(epoch).collect();
    PoolState {
        epoch: epoch(99),
        opening: 65,
        is_confirmed: true,
        is_open: false,
        is_behind: false,
        mark: 64,
        ancestors,
    }
}

pub(super) fn sample_info() -> PoolInfo {
    PoolInfo {
        name: name("orders"),
        header: Header {
            format: PoolFormat::Three,
            layout: crate::FileLayout::default(),
            compatible_features: 1,
            pool_uuid: Uuid::from_u128(2),
            replica_uuid: Uuid::from_u128(3),
            size_bytes: 4,
            created_at_unix_s: 5,
            replica_count: 8,
            replica_index: 7,
            user_flags: *b"sixteen bytes of",
        },
        state: sample_state(),
        file_len_bytes: 8192,
        medium: MediumKind::PageCache,
        promises: [
            Some(Promise { mechanism: Mechanism::Store, evidence: Evidence::Probed }),
            Some(Promise { mechanism: Mechanism::FileSync, evidence: Evidence::Declared }),
            None,
        ],
        open_by: Some("10.0.0.7:4711".to_owned()),
    }
}

pub(super) fn requests() -> Vec<Request> {
    vec![
        Request::Create {
            name: name("orders"),
            new: NewPool {
                size_bytes: 1 << 30,
                pool_uuid: Uuid::from_u128(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff),
                epoch: Uuid::from_u128(5),
                replica_index: 1,
                replica_count: 2,
                require: Durability::PowerFailure,
                user_flags: *b"PMOFCP\0\x01\x09\0\0\0\0\0\0\0",
                protection: None,
            },
            publish_on_close: true,
        },
        Request::Open { name: name("o"), access: OpenFor::Read, require: Durability::Visible, may_be_older: false },
        Request::Open { name: name("o"), access: OpenFor::Read, require: Durability::Visible, may_be_older: true },
        Request::TakeOver { name: name("o"), require: Durability::PowerFailure, silent_ms: 10_000, claim: Claim::None },
        Request::TakeOver {
            name: name("o"),
            require: Durability::Visible,
            silent_ms: 0,
            claim: Claim::Own(Uuid::from_u128(10)),
        },
        Request::TakeOver {
            name: name("o"),
            require: Durability::Visible,
            silent_ms: u64::MAX,
            claim: Claim::Superseded(Uuid::from_u128(10)),
        },
        Request::Close { in_order: true },
        Request::Begin { opening: 9, epoch: epoch(10), ancestors: sample_state().ancestors },
        Request::Confirm { epoch: Uuid::from_u128(10) },
        Request::Mark { mark: 11 },
        Request::Remove { name: name("größe"), meant: None },
        Request::Remove { name: name("größe"), meant: Some(MeantReplica::at_any_epoch(Uuid::from_u128(7))) },
        Request::Remove {
            name: name("größe"),
            meant: Some(MeantReplica { uuid: Uuid::from_u128(7), epoch: Some(Uuid::from_u128(8)) }),
        },
        Request::Info { name: name(&"n".repeat(255)) },
        Request::List { after: None },
        Request::List { after: Some(name("orders")) },
        Request::Challenge { nonce: [1; NONCE_BYTES] },
        Request::Prove { proof: [2; PROOF_BYTES] },
        Request::CreateSet {
            name: set("a/b.set"),
            size_bytes: 1 << 30,
            attributes: Some([3; ATTRIBUTES_BYTES]),
            require: Durability::ProcessCrash,
        },
        Request::CreateSet { name: set("b"), size_bytes: 8192, attributes: None, require: Durability::Visible },
        Request::OpenSet { name: set("b"), size_bytes: 0, access: OpenFor::Write, require: Durability::Visible },
        Request::SetFiles { name: set("a/b.set"), first: 7 },
        Request::OpenBehind { name: set("a/b.set") },
        Request::KeepSet,
        Request::SetAttributes { attributes: [4; ATTRIBUTES_BYTES] },
        Request::RemoveSet { name: set("b"), force: true, set_file: false },
        Request::PrepareRemoval { name: set("b"), force: false, set_file: true, member: None },
        Request::PrepareRemoval { name: set("b"), force: true, set_file: false, member: Some([8; 16]) },
        Request::PrepareReplacement { name: set("b"), member: [9; 16] },
        Request::Digest { offset: 1, len_bytes: 2, block_bytes: 3 },
        Request::Data { offset: 4 },
        Request::Headerless { offset: 5 },
        Request::Boot,
        Request::RaiseIntent { first: 3, words: vec![1, 2] },
        Request::ClearIntent {
            level: Durability::PowerFailure,
            first: (INTENT_WORDS_MAX - INTENT_MESSAGE_WORDS_MAX) as u16,
            words: vec![u32::MAX; INTENT_MESSAGE_WORDS_MAX],
        },
        Request::ClearIntent { level: Durability::Visible, first: 1, words: vec![2, 3] },
        Request::Intent { first: 258 },
        Request::Roster { offset: 6 },
        Request::SetRoster { offset: 7, part: RosterPart { len_bytes: 5000, bytes: vec![8; ROSTER_PART_BYTES] } },
        Request::SetRoster { offset: 7, part: RosterPart { len_bytes: 9, bytes: vec![8; 2] } },
        Request::Domain,
        Request::Status,
        Request::Discard { name: name("broken") },
        Request::TellStatus { status: WriterStatus::default() },
        Request::TellStatus { status: sample_writer_status(MAX_TOLD_MEMBERS as u16, 5) },
        Request::TellStatus { status: sample_writer_status(2, 3) },
        Request::WriterStatus { name: name("p") },
        Request::Infos { names: vec![name("p"), name("q")] },
        Request::infos_page(&vec![name(&"n".repeat(60)); 200]),
    ]
}

/// The texts are as long as they may be.
pub(super) fn sample_writer_status(members: u16, events: u64) -> WriterStatus {
    let standings = [
        MemberStanding::InSync,
        MemberStanding::CatchingUp,
        MemberStanding::Slow,
        MemberStanding::Lost,
        MemberStanding::Following,
    ];
    let member = |index: u16| MemberProgress {
        index,
        standing: standings[usize::from(index) % standings.len()],
        missing_bytes: 1 << index,
        bytes_per_second: 2,
        lag_bytes: 3,
        lag_ms: u64::MAX,
    };
    let event = |at: u64| ToldEvent { unix_ms: at, text: at.to_string().repeat(MAX_EVENT_BYTES) };
    let (members, events) = ((0..members).map(member).collect(), (1..=events).map(event).collect());
    WriterStatus { members, events, scrubbed_unix_ms: 1 << 41 }
}

pub(super) fn sample_domain(kernel: Option<[u8; 16]>) -> FailureDomain {
    FailureDomain { name: "rack 7".parse().unwrap(), is_declared: kernel.is_some(), kernel }
}

pub(super) fn sample_status() -> TargetStatus {
    TargetStatus {
        version: "1.2.3".to_owned(),
        protocol_version: 1,
        control_versions: SpokenVersions::UNANNOUNCED,
        pool_format: 3,
        is_draining: true,
        is_root_writable: true,
        is_root_attached: true,
        uptime_ms: 2,
        connections: 4,
        max_connections: 5,
        memory_bytes: 6,
        memory_budget_bytes: 7,
        free_bytes: 8,
        total_bytes: 9,
        root: "/srv/pools".to_owned(),
    }
}

pub(super) fn replies() -> Vec<Reply> {
    vec![
        Reply::Opened {
            pool_uuid: Uuid::from_u128(1),
            replica_uuid: Uuid::from_u128(2),
            size_bytes: 3,
            replica_count: 2,
            replica_index: 1,
            user_flags: [6; USER_FLAGS_BYTES],
            state: sample_state(),
            descriptor: vec![5; MAX_DESCRIPTOR_BYTES],
            enclosed: Box::default(),
        },
        Reply::Closed,
        Reply::Removed,
        Reply::Begun,
        Reply::Confirmed,
        Reply::Marked,
        Reply::Challenged { nonce: [1; NONCE_BYTES], proof: [2; PROOF_BYTES] },
        Reply::Admitted,
        Reply::SetOpened {
            size_bytes: 1,
            attributes: Some([5; ATTRIBUTES_BYTES]),
            descriptor: vec![5; MAX_DESCRIPTOR_BYTES],
            header_descriptor: vec![6; MAX_DESCRIPTOR_BYTES],
        },
        Reply::SetOpened { size_bytes: 1, attributes: None, descriptor: vec![1], header_descriptor: vec![] },
        Reply::SetFiles { files: vec![], more: false },
        Reply::files_page(&vec![SetFile { identity: [8; 32], path: "p".repeat(MAX_PATH_BYTES) }; 5]),
        Reply::Working,
        Reply::SetKept,
        Reply::Removable,
        Reply::AttributesSet,
        Reply::Digests { digests: vec![[7; DIGEST_BYTES]; DIGESTS_MAX] },
        Reply::Data { ranges: (0..DATA_RANGES_MAX as u64).map(|at| 2 * at..2 * at + 1).collect(), end: 1 << 40 },
        Reply::Digests { digests: vec![[7; DIGEST_BYTES], [8; DIGEST_BYTES]] },
        Reply::Data { ranges: vec![2..5, 7..8], end: 9 },
        Reply::Data { ranges: vec![], end: 0 },
        Reply::Headerless { ranges: vec![2..5, 7..8], end: 9 },
        Reply::Headerless { ranges: (0..DATA_RANGES_MAX as u64).map(|at| at..at + 1).collect(), end: 1 << 40 },
        Reply::Boot { boot: Uuid::from_u128(3) },
        Reply::IntentChanged,
        Reply::Intent { first: 4, words: vec![5; INTENT_MESSAGE_WORDS_MAX] },
        Reply::Roster(RosterPart { len_bytes: 3, bytes: vec![1, 2, 3] }),
        Reply::Roster(RosterPart { len_bytes: 0, bytes: vec![] }),
        Reply::Intent { first: 4, words: vec![5, 6] },
        Reply::SetFiles { files: vec![SetFile { identity: [8; 32], path: "/srv/part".to_owned() }], more: true },
        Reply::RosterSet,
        Reply::Info(Box::new(sample_info())),
        Reply::Info(Box::new(PoolInfo { open_by: None, ..sample_info() })),
        Reply::Infos(vec![Ok(sample_info()), Err((4, "no such pool".to_owned()))]),
        Reply::infos_page((0..300).map(|_| Err((4, String::new())))),
        Reply::infos_page((0..100).map(|_| Ok(sample_info()))),
        Reply::List { names: vec![name("a"), name("b")], more: true },
        Reply::List { names: vec![], more: false },
        Reply::Status(Box::new(sample_status())),
        Reply::Status(Box::new(TargetStatus { is_root_writable: false, is_root_attached: false, ..sample_status() })),
        Reply::StatusTold,
        Reply::WriterStatus(None),
        Reply::WriterStatus(Some(sample_writer_status(2, 3))),
        Reply::Domain(None),
        Reply::Domain(Some(sample_domain(None))),
        Reply::Domain(Some(sample_domain(Some([6; 16])))),
        Reply::Refused { code: 513, text: "no".to_owned() },
    ]
}

/// Requests that version 4 does not know.
pub(super) fn newer_requests() -> Vec<Request> {
    vec![
        Request::Pages(PagesRequest::Raise { pages: vec![7..8, 9..300], is_forced: true, is_alone: false }),
        Request::Pages(PagesRequest::Raise { pages: vec![0..1; PAGE_RANGES_MAX], is_forced: false, is_alone: true }),
        Request::Pages(PagesRequest::Raise { pages: vec![7..8, 1..2], is_forced: false, is_alone: true }),
        Request::Pages(PagesRequest::Digest { pages: vec![4..5, 6..7] }),
        Request::Pages(PagesRequest::Protect { pages: vec![7..8, 9..10], words: vec![1 << 63, 5], is_alone: false }),
        Request::Pages(PagesRequest::Protect { pages: vec![7..8, 9..10], words: vec![1 << 63, 5], is_alone: true }),
        Request::Pages(PagesRequest::Unprotected { pages: 1 << 33..u64::MAX }),
        Request::Pages(PagesRequest::Verify { pages: 5..5 + VERIFIED_PAGES_MAX }),
        Request::Pages(PagesRequest::Repair { page: 6, word: 1 << 63, offset: 2048, bytes: vec![9; REPAIRED_BYTES] }),
        Request::Pages(PagesRequest::Repair { page: 6, word: 7, offset: 0, bytes: vec![1, 2] }),
    ]
}

/// Replies that version 4 does not know.
pub(super) fn newer_replies() -> Vec<Reply> {
    vec![
        Reply::Pages(PagesReply::Raised { damaged: vec![3..4, 9..12], verified: vec![5..9, 13..14] }),
        Reply::Pages(PagesReply::Digests { words: vec![1 << 63, 7] }),
        Reply::Pages(PagesReply::Protected { others: vec![] }),
        Reply::Pages(PagesReply::Unprotected { pages: vec![0..1; PAGE_RANGES_MAX], end: 1 << 40 }),
        Reply::Pages(PagesReply::Unprotected { pages: vec![7..9, 0..1], end: 10 }),
        Reply::Pages(PagesReply::Verified { damaged: vec![0..1, 1 << 40..(1 << 40) + 2], end: 8192 }),
        Reply::Pages(PagesReply::Repaired),
    ]
}
