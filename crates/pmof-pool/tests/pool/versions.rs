//! Versions of the control messages that differ: a target of a former release is played by a relay that takes the announcement away from one of
//! this release, and an initiator of a former release by [`RawInitiator`].

use std::{
    net::{TcpListener, TcpStream},
    sync::Arc,
    thread,
};

use pmof_access::Address;
use pmof_control::{
    ControlError, ControlVersion, MAX_MESSAGE_BYTES, MeantReplica, MessageHead, Reply, Request, SpokenVersions,
};
use pmof_locks::Mutex;
use pmof_mem::causes;
use pmof_pool::{PoolError, ReplicaError};
use pmof_proto::frame::{Frame, Opcode};
use uuid::Uuid;

use crate::{
    lying::pass,
    support::{RawInitiator, Target, of_replica, options, pattern, read},
};

/// The versions of the messages that passed a relay, those of requests and those of replies.
type Passed = Arc<Mutex<[Vec<u16>; 2]>>;

/// What a relay makes of the private data of an accepted connection, and of each reply.
#[derive(Clone)]
struct Changes {
    announcement: Option<Vec<u8>>,
    reply_version: Option<u16>,
}

/// A relay between initiators and a target; gives its address, and what passes.
fn relay(target: &Target, changes: Changes) -> (String, Passed) {
    let there = target.address().to_string().trim_start_matches("tcp://").to_owned();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let here = format!("tcp://{}", listener.local_addr().unwrap());
    let passed = Passed::default();
    let noted = Arc::clone(&passed);
    thread::spawn(move || {
        for near in listener.incoming() {
            let (near, far) = (near.unwrap(), TcpStream::connect(&there).unwrap());
            near.set_nodelay(true).unwrap();
            far.set_nodelay(true).unwrap();
            let (from, to) = (near.try_clone().unwrap(), far.try_clone().unwrap());
            let (asked, answered, changes) = (Arc::clone(&noted), Arc::clone(&noted), changes.clone());
            thread::spawn(move || pass(from, to, |frame, payload| note(&asked, 0, frame, payload)));
            thread::spawn(move || {
                pass(far, near, |frame, payload| {
                    change(&changes, frame, payload);
                    note(&answered, 1, frame, payload);
                });
            });
        }
    });
    (here, passed)
}

fn note(passed: &Passed, way: usize, frame: &Frame, payload: &[u8]) {
    if frame.opcode == Opcode::Send {
        passed.lock()[way].push(u16::from_le_bytes([payload[0], payload[1]]));
    }
}

fn change(changes: &Changes, frame: &mut Frame, payload: &mut Vec<u8>) {
    match (frame.opcode, &changes.announcement, changes.reply_version) {
        (Opcode::Welcome, Some(announcement), _) => {
            payload.clone_from(announcement);
            (frame.length, frame.payload_crc) = (payload.len() as u64, crc32c::crc32c(payload));
        }
        (Opcode::Send, _, Some(version)) => *payload = with_version(payload.clone(), version),
        _ => {}
    }
}

fn with_version(mut message: Vec<u8>, version: u16) -> Vec<u8> {
    message[..2].copy_from_slice(&version.to_le_bytes());
    let end = message.len() - 4;
    let checksum = crc32c::crc32c(&message[..end]);
    message[end..].copy_from_slice(&checksum.to_le_bytes());
    message
}

/// Makes a pool at both, writes to it, closes it, opens it and removes it.
fn use_pool(urls: [String; 2]) {
    let bytes = pattern(8192, 5);
    let pool = options(urls.clone()).create(8192).expect("a pool");
    pool.persist(0, &bytes).expect("durable");
    pool.close().expect("closed");
    let pool = options(urls.clone()).open().expect("the pool");
    assert!(read(&pool, 0, 8192) == bytes);
    assert!(!pool.status().unwrap().is_degraded());
    pool.close().expect("closed");
    options(urls).remove().expect("removed");
}

#[test]
fn the_newest_common_version_is_spoken() {
    let (targets, announced) =
        ([Target::start(), Target::start()], |oldest, newest| Some(SpokenVersions { oldest, newest }.encode()));
    for (announcement, spoken) in
        [(None, 5), (Some(vec![]), 4), (announced(4, 4), 4), (announced(3, 4), 4), (announced(5, 6), 5)]
    {
        let (here, passed) = relay(&targets[0], Changes { announcement: announcement.clone(), reply_version: None });
        use_pool([format!("{here}/orders"), targets[1].url("orders")]);
        for versions in &*passed.lock() {
            let are_spoken = versions.len() > 5 && versions.iter().all(|version| *version == spoken);
            assert!(are_spoken, "{announcement:?}: {versions:?}");
        }
    }
}

/// The error of an opening of a pool whose target is reached through such a relay, and what passed it.
fn refused(changes: Changes) -> (PoolError, [Vec<u16>; 2]) {
    let target = Target::start();
    options([target.url("orders")]).create(4096).expect("a pool").close().expect("closed");
    let (here, passed) = relay(&target, changes);
    let error = options([format!("{here}/orders")]).open().expect_err("they do not understand each other");
    let passed = passed.lock().clone();
    (error, passed)
}

#[track_caller]
fn control_error(error: &PoolError) -> &ControlError {
    match of_replica(error) {
        (_, ReplicaError::Control(error)) => error,
        (_, other) => panic!("{}", causes(other)),
    }
}

#[test]
fn a_target_two_versions_away_is_sent_nothing() {
    for (oldest, newest, side) in [(6, 7, "upgrade this side"), (2, 3, "upgrade that side")] {
        let target = SpokenVersions { oldest, newest };
        let announcement = Some(target.encode());
        let (error, passed) = refused(Changes { announcement, reply_version: None });
        assert_eq!(control_error(&error), &ControlError::NoCommonVersion { target });
        let text = causes(&error).to_string();
        for part in [&format!("speaks version {target}"), "speaks 4 to 5", side] {
            assert!(text.contains(part), "{text}");
        }
        assert_eq!(passed, [vec![], vec![]]);
    }
}

#[test]
fn a_malformed_announcement_is_an_error() {
    for announcement in [&b"\x01\0"[..], b"hello there", &SpokenVersions { oldest: 5, newest: 4 }.encode()] {
        let announcement = Some(announcement.to_vec());
        let (error, passed) = refused(Changes { announcement, reply_version: None });
        assert!(matches!(control_error(&error), ControlError::BadAnnouncement { .. }), "{error:?}");
        assert_eq!(passed, [vec![], vec![]]);
    }
}

/// A target of before version 4 announces nothing, and refuses in its own version.
#[test]
fn a_reply_of_another_version_is_an_error() {
    let (error, _) = refused(Changes { announcement: Some(vec![]), reply_version: Some(3) });
    assert!(matches!(control_error(&error), ControlError::UnsupportedVersion { found: 3, .. }), "{error:?}");
    for (announcement, settled, found) in
        [(None, ControlVersion::Five, ControlVersion::Four), (Some(vec![]), ControlVersion::Four, ControlVersion::Five)]
    {
        let (error, _) = refused(Changes { announcement, reply_version: Some(found.number()) });
        assert_eq!(control_error(&error), &ControlError::VersionChanged { request_id: 1, settled, found });
    }
}

fn in_version(version: ControlVersion) -> MessageHead {
    MessageHead { version, request_id: 9 }
}

/// What a target answers to the bytes of a message.
fn answer(initiator: &RawInitiator, message: &[u8]) -> (MessageHead, Reply) {
    initiator.connection.send(message).expect("posted");
    initiator.next_with_head()
}

#[track_caller]
fn refusal(reply: Reply) -> String {
    match reply {
        Reply::Refused { code: 256, text } => text,
        other => panic!("{other:?}"),
    }
}

fn a_connection_keeps_its_version_at(address: &Address) {
    for (settled, other) in [(ControlVersion::Four, ControlVersion::Five), (ControlVersion::Five, ControlVersion::Four)]
    {
        let initiator = RawInitiator::connect(address);
        assert_eq!(initiator.connection.private_data(), SpokenVersions::OURS.encode());
        let list = |version| Request::List { after: None }.encode(in_version(version)).expect("fits");
        let listed = Reply::List { names: vec![], more: false };
        // Of no version that it speaks: the answer is in its newest, and nothing is settled.
        for found in [ControlVersion::OLDEST.number() - 1, ControlVersion::NEWEST.number() + 1] {
            let (head, reply) = answer(&initiator, &with_version(list(settled), found));
            let text = refusal(reply);
            assert!(text.contains(&format!("version {found}")) && text.contains("speaks 4 to 5"), "{text}");
            assert_eq!(head, in_version(ControlVersion::NEWEST));
        }
        assert_eq!(answer(&initiator, &list(settled)), (in_version(settled), listed.clone()));
        let (head, reply) = answer(&initiator, &list(other));
        assert_eq!((head, refusal(reply).contains(&format!("have {settled}"))), (in_version(settled), true));
        // A digest is computed before the request is answered.
        let digest =
            Request::Digest { offset: 0, len_bytes: 1, block_bytes: 1 }.encode(in_version(other)).expect("fits");
        let (head, reply) = answer(&initiator, &digest);
        assert_eq!((head, refusal(reply).contains(&format!("have {settled}"))), (in_version(settled), true));
        assert_eq!(answer(&initiator, &list(settled)), (in_version(settled), listed));
    }
}

#[test]
fn a_connection_keeps_its_version() {
    a_connection_keeps_its_version_at(&Target::start().address());
}

/// A frame that says version 4 carries a field of version 5: nothing is removed.
#[test]
fn an_older_message_with_a_newer_field_is_refused() {
    let target = Target::start();
    options([target.url("orders")]).create(4096).expect("a pool").close().expect("closed");
    let initiator = RawInitiator::connect(&target.address());
    let (name, meant) = ("orders".parse().expect("a name"), Some(MeantReplica::at_any_epoch(Uuid::from_u128(7))));
    let guarded = Request::Remove { name, meant }.encode(in_version(ControlVersion::Five)).expect("fits");
    let (head, reply) = answer(&initiator, &with_version(guarded, 4));
    assert_eq!(head, in_version(ControlVersion::Four));
    let text = refusal(reply);
    assert!(text.contains("malformed"), "{text}");
    // A body of version 4, and a field behind it.
    let list = Request::List { after: None }.encode(in_version(ControlVersion::Four)).expect("fits");
    let field = [&list[12..list.len() - 4], b"\x01\x80\x01\0x"].concat();
    let longer = [&list[..8], &(field.len() as u32).to_le_bytes(), &field, &[0; 4]].concat();
    assert!(longer.len() < MAX_MESSAGE_BYTES);
    let (head, reply) = answer(&initiator, &with_version(longer, 4));
    assert_eq!(head, in_version(ControlVersion::Four));
    let text = refusal(reply);
    assert!(text.contains("left over"), "{text}");
    assert_eq!(target.files(), ["orders"]);
}

/// The target does not know a field that must not be ignored: the request is refused as a whole.
#[test]
fn an_unknown_guard_is_refused() {
    let target = Target::start();
    options([target.url("orders")]).create(4096).expect("a pool").close().expect("closed");
    let initiator = RawInitiator::connect(&target.address());
    let remove = Request::Remove { name: "orders".parse().expect("a name"), meant: None };
    let remove = remove.encode(in_version(ControlVersion::Five)).expect("fits");
    let with_field = |tag: &[u8; 2]| {
        let body = [&remove[12..remove.len() - 4], tag, b"\x01\0x"].concat();
        with_version([&remove[..8], &(body.len() as u32).to_le_bytes(), &body, &[0; 4]].concat(), 5)
    };
    let (_, reply) = answer(&initiator, &with_field(b"\x09\x80"));
    let text = refusal(reply);
    assert!(text.contains("field 9") && text.contains("upgrade this side"), "{text}");
    assert_eq!(target.files(), ["orders"]);
    // One that may be ignored is.
    assert_eq!(answer(&initiator, &with_field(b"\x09\0")).1, Reply::Removed);
    assert_eq!(target.files(), [""; 0]);
}
