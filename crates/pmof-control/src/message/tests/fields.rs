//! The optional fields at the end of a body, and what version 4 cannot say.

use super::*;
use crate::Protection;

const REQUIRED: u16 = 0x8000;

/// The bytes of a field.
fn field(tag: u16, bytes: &[u8]) -> Vec<u8> {
    [&tag.to_le_bytes()[..], &(bytes.len() as u16).to_le_bytes(), bytes].concat()
}

/// A removal of `ab` with these fields.
fn removal(fields: &[Vec<u8>]) -> Result<Option<MeantReplica>, ControlError> {
    let body = [&b"\x02\0ab"[..], &fields.concat()].concat();
    match Request::decode(&message(4, &body))? {
        (_, Request::Remove { meant, .. }) => Ok(meant),
        other => panic!("{other:?}"),
    }
}

fn replica(number: u128) -> Vec<u8> {
    field(REQUIRED | 1, Uuid::from_u128(number).as_bytes())
}

fn epoch_field(number: u128) -> Vec<u8> {
    field(REQUIRED | 2, Uuid::from_u128(number).as_bytes())
}

fn malformed(result: Result<Option<MeantReplica>, ControlError>) -> &'static str {
    match result {
        Err(ControlError::Malformed { what, .. }) => what,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_bytes_of_version_5_stay_as_they_are() {
    let meant = MeantReplica { uuid: Uuid::from_u128(258), epoch: Some(Uuid::from_u128(2)) };
    let bytes = Request::Remove { name: name("ab"), meant: Some(meant) }.encode(newest(0x0403_0201)).expect("fits");
    let fields = [replica(258), epoch_field(2)].concat();
    let (head, body) = (&b"\x05\0\x04\0\x01\x02\x03\x04\x2c\0\0\0"[..], &b"\x02\0ab"[..]);
    assert_eq!(bytes[..bytes.len() - 4], [head, body, &fields].concat());
    assert_eq!(fields[..6], *b"\x01\x80\x10\0\0\0");
    let prepare = Request::PrepareRemoval { name: set("ab"), force: true, set_file: false, member: Some([8; 16]) };
    let bytes = prepare.encode(newest(1)).expect("fits");
    assert_eq!(bytes[12..bytes.len() - 4], [&b"\x01\0\x02\0ab"[..], &field(REQUIRED | 1, &[8; 16])].concat());
    let versions = SpokenVersions { oldest: 6, newest: 263 };
    let status = TargetStatus { control_versions: versions, ..sample_status() };
    let bytes = Reply::Status(Box::new(status.clone())).encode(newest(1)).expect("fits");
    assert_eq!(bytes[bytes.len() - 12..bytes.len() - 4], field(1, b"\x06\0\x07\x01"));
    assert_eq!(Reply::decode(&bytes), Ok((newest(1), Reply::Status(Box::new(status)))));
}

#[test]
fn fields_are_optional_each() {
    let meant = |uuid, epoch: Option<u128>| {
        Some(MeantReplica { uuid: Uuid::from_u128(uuid), epoch: epoch.map(Uuid::from_u128) })
    };
    assert_eq!(removal(&[]), Ok(None));
    assert_eq!(removal(&[replica(7)]), Ok(meant(7, None)));
    assert_eq!(removal(&[replica(0), epoch_field(0)]), Ok(meant(0, Some(0))));
    assert_eq!(malformed(removal(&[epoch_field(8)])), "a removal names an epoch and no replica");
}

#[test]
fn an_unknown_field_is_ignored_or_refused() {
    let meant = Ok(Some(MeantReplica::at_any_epoch(Uuid::from_u128(7))));
    assert_eq!(removal(&[replica(7), field(2, b"no UUID")]).err().map(|error| error.head()), Some(Some(newest(77))));
    assert_eq!(removal(&[replica(7), field(3, b"of a newer release"), field(0x7fff, b"")]), meant);
    let unknown = ControlError::UnknownField { head: newest(77), kind: 4, field: 3 };
    assert_eq!(removal(&[replica(7), field(REQUIRED | 3, b"a new guard")]), Err(unknown.clone()));
    assert!(unknown.to_string().contains("must not ignore"), "{unknown}");
    // Also behind messages that have no fields yet.
    assert_eq!(Request::decode(&message(12, &field(1, b"x"))), Ok((newest(77), Request::KeepSet)));
    assert_eq!(Reply::decode(&message(0x82, &field(1, b"x"))), Ok((newest(77), Reply::Closed)));
    let refused = Reply::decode(&message(0x82, &field(REQUIRED | 9, b"")));
    assert_eq!(refused, Err(ControlError::UnknownField { head: newest(77), kind: 0x82, field: 9 }));
}

#[test]
fn malformed_fields_are_refused() {
    let long = field(REQUIRED | 1, &[0; 17]);
    assert_eq!(malformed(removal(&[long])), "a field has the wrong length");
    assert_eq!(malformed(removal(&[replica(7), replica(7)])), "a field is there twice or out of order");
    let disordered = [replica(7), field(4, b""), field(3, b"")];
    assert_eq!(malformed(removal(&disordered)), "a field is there twice or out of order");
    assert_eq!(malformed(removal(&[field(0, b"")])), "a field is there twice or out of order");
    let whole = [replica(7), field(3, b"abc")].concat();
    for len in 1..whole.len() {
        let body = [&b"\x02\0ab"[..], &whole[..len]].concat();
        let cut = Request::decode(&message(4, &body));
        assert_eq!(cut.is_ok(), len == replica(7).len(), "{len}: {cut:?}");
    }
}

/// The message says version 4, and has what came with version 5.
#[test]
fn an_older_message_with_fields_is_malformed() {
    let older = |kind, body: &[u8]| message_in(four(77), kind, body);
    let left_over = ControlError::Malformed { head: four(77), kind: 4, what: "bytes are left over behind the body" };
    let body = [&[7; 16][..], &[8; 16], b"\x02\0ab", &replica(7)].concat();
    assert_eq!(Request::decode(&older(4, &body)), Err(left_over));
    // As version 5 has it, from its first byte on.
    let body = [&b"\x02\0ab"[..], &replica(7), &epoch_field(8)].concat();
    assert!(matches!(
        Request::decode(&older(4, &body)),
        Err(ControlError::Malformed { .. } | ControlError::BadName { .. })
    ));
    assert!(matches!(Request::decode(&older(12, &field(1, b"x"))), Err(ControlError::Malformed { .. })));
    assert!(matches!(Reply::decode(&older(0x82, &field(1, b"x"))), Err(ControlError::Malformed { .. })));
    // And the other way round: zeros in front of the name are an empty name.
    let body = [&[0; 32][..], b"\x02\0ab"].concat();
    assert!(Request::decode(&message(4, &body)).is_err());
}

#[test]
fn version_4_never_sends_less_than_was_asked() {
    let replica = |uuid, epoch| MeantReplica { uuid: Uuid::from_u128(uuid), epoch };
    let removal = |meant| Request::Remove { name: name("ab"), meant: Some(meant) };
    let prepare = Request::PrepareRemoval { name: set("b"), force: true, set_file: true, member: Some([0; 16]) };
    for request in [removal(replica(0, None)), removal(replica(7, Some(Uuid::nil()))), prepare] {
        let error = request.encode(four(1)).expect_err("version 4 would say another thing");
        let (version, needed) = (ControlVersion::Four, ControlVersion::Five);
        assert!(
            matches!(error, ControlError::Inexpressible { version: v, needed: n, .. } if (v, n) == (version, needed))
        );
        let text = error.to_string();
        assert!(text.contains("speaks version 4") && text.contains("version 5"), "{text}");
        let bytes = request.encode(newest(1)).expect("version 5 says it");
        assert_eq!(Request::decode(&bytes), Ok((newest(1), request)));
    }
}

/// Zeros mean nothing in version 4: neither a replica nor an epoch.
#[test]
fn an_epoch_of_no_replica_is_malformed() {
    let body = [&[0; 16][..], &[8; 16], b"\x02\0ab"].concat();
    let error = Request::decode(&message_in(four(77), 4, &body)).expect_err("it is of no replica");
    assert!(error.to_string().contains("no replica"), "{error}");
}

/// A reply with the optional fields for which there is room.
fn opened(state: PoolState, size_bytes: u64, enclosed: Enclosed) -> Reply {
    Reply::Opened {
        pool_uuid: Uuid::from_u128(1),
        replica_uuid: Uuid::from_u128(2),
        size_bytes,
        replica_count: 2,
        replica_index: 1,
        user_flags: [0; USER_FLAGS_BYTES],
        state,
        descriptor: b"there".to_vec(),
        enclosed: Box::new(enclosed),
    }
}

fn enclosed_in(message: &[u8]) -> Enclosed {
    match Reply::decode(message) {
        Ok((_, Reply::Opened { enclosed, .. })) => *enclosed,
        other => panic!("{other:?}"),
    }
}

fn short_state() -> PoolState {
    PoolState { ancestors: vec![], ..sample_state() }
}

/// A map of three words.
const MAP_BYTES: u64 = 80 << 20;

#[test]
fn an_opened_pool_encloses_what_would_be_asked_for() {
    let (roster, kernel) = (Roster::made(2), Some([9; 16]));
    let whole = Enclosed {
        roster: Some(roster.clone()),
        domain: Some(Some(sample_domain(kernel))),
        intent: Some(vec![0, 0x0403_0201, 5]),
        protection: Some(Protection { max_size_bytes: 5 << 40 }),
    };
    let bytes = opened(short_state(), MAP_BYTES, whole.clone()).encode(newest(1)).expect("fits");
    let domain = [&b"\x01\x01\x01"[..], &[9; 16], b"\x06\0rack 7"].concat();
    let intent = b"\x01\0\x02\0\x01\x02\x03\x04\x05\0\0\0";
    let protection = (5_u64 << 40).to_le_bytes();
    let fields =
        [field(1, &roster.encode().unwrap()), field(2, &domain), field(3, intent), field(4, &protection)].concat();
    assert!(bytes[..bytes.len() - 4].ends_with(&fields), "{bytes:?}");
    assert_eq!(enclosed_in(&bytes), whole);
    for part in [
        Enclosed { roster: whole.roster.clone(), ..Enclosed::default() },
        Enclosed { domain: Some(None), ..Enclosed::default() },
        Enclosed { intent: Some(vec![0; 3]), ..Enclosed::default() },
        Enclosed { intent: Some(vec![u32::MAX; 3]), ..Enclosed::default() },
        Enclosed::default(),
    ] {
        let reply = opened(short_state(), MAP_BYTES, part.clone());
        assert_eq!(enclosed_in(&reply.encode(newest(1)).expect("fits")), part);
    }
}

#[test]
fn version_4_encloses_nothing() {
    let enclosed =
        Enclosed { roster: Some(Roster::made(2)), domain: Some(None), intent: Some(vec![1; 3]), protection: None };
    let bytes = opened(short_state(), MAP_BYTES, enclosed).encode(four(1)).expect("fits");
    assert_eq!(bytes, opened(short_state(), MAP_BYTES, Enclosed::default()).encode(four(1)).expect("fits"));
    assert_eq!(enclosed_in(&bytes), Enclosed::default());
}

/// Of the longest state, descriptor, roster and map some are left out, and the message can be sent.
#[test]
fn what_an_opened_pool_has_no_room_for_is_left_out() {
    let member = |index| RosterMember {
        index,
        replica_uuid: Uuid::from_u128(index.into()),
        role: Role::Data,
        url: "u".repeat(200),
        domain: String::new(),
    };
    let long = Roster { members: (0..12).map(member).collect(), ..Roster::made(12) };
    assert!(long.encode().is_ok_and(|bytes| bytes.len() > 2500));
    let map_bytes = (INTENT_WORDS_MAX as u64) << 25;
    let (all_set, few): (Vec<_>, Vec<_>) = (0..INTENT_WORDS_MAX).map(|at| (u32::MAX, u32::from(at % 100 == 0))).unzip();
    let long_state = sample_state;
    for (state, roster, intent, fits) in [
        (short_state(), long.clone(), few.clone(), [true, true]),
        (short_state(), Roster::made(3), all_set.clone(), [true, false]),
        (long_state(), long, few.clone(), [false, true]),
        (long_state(), Roster::made(3), few, [true, true]),
    ] {
        let whole = Enclosed {
            roster: Some(roster),
            domain: Some(Some(sample_domain(None))),
            intent: Some(intent),
            protection: Some(Protection { max_size_bytes: map_bytes }),
        };
        let mut reply = opened(state, map_bytes, whole.clone());
        if let Reply::Opened { descriptor, .. } = &mut reply {
            descriptor.resize(MAX_DESCRIPTOR_BYTES, 7);
        }
        let expected = Enclosed {
            roster: whole.roster.filter(|_| fits[0]),
            domain: whole.domain,
            intent: whole.intent.filter(|_| fits[1]),
            protection: whole.protection,
        };
        assert_eq!(enclosed_in(&reply.encode(newest(1)).expect("fits")), expected);
    }
}

#[test]
fn enclosed_fields_are_checked() {
    let with = |field: &[u8]| {
        let bytes = opened(short_state(), MAP_BYTES, Enclosed::default()).encode(newest(77)).expect("fits");
        let body = [&bytes[12..bytes.len() - 4], field].concat();
        Reply::decode(&message(0x81, &body)).map(|(_, reply)| match reply {
            Reply::Opened { enclosed, .. } => *enclosed,
            other => panic!("{other:?}"),
        })
    };
    for (bad, word) in [
        (field(2, b"\x02"), "flag"),
        (field(2, b""), "too short"),
        (field(2, b"\x00\x01"), "cut short"),
        (field(3, b"\x00\0\x01\0\x01\0\0"), "too short"),
        (field(3, b"\x03\0\x01\0\x01\0\0\0"), "fewer words"),
    ] {
        match with(&bad) {
            Err(ControlError::Malformed { what, .. }) => assert!(what.contains(word), "{what}"),
            other => panic!("{other:?}"),
        }
    }
    // A roster of a newer release is asked for, and refused there.
    assert_eq!(with(&field(1, b"of a newer release")), Ok(Enclosed::default()));
    // What a newer release says behind a domain is passed over.
    let known = Enclosed { domain: Some(None), ..Enclosed::default() };
    assert_eq!(with(&field(2, &[&b"\0"[..], &field(1, b"more")].concat())), Ok(known));
}
