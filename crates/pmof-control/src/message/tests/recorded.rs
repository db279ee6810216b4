//! Messages as programs of each version that is spoken here have written them (`tests/golden/README.md`).

use super::*;

/// What a file of messages holds: `samples`, in their order, without longer ones.
const RECORDED_MAX_BYTES: usize = 2048;
const REQUEST_ID: u32 = 77;

/// The recorded messages, one after the other: each says how long it is.
fn recorded(version: ControlVersion) -> Vec<&'static [u8]> {
    let mut rest: &[u8] = match version {
        ControlVersion::Four => include_bytes!("../../../tests/golden/messages_v4.bin"),
        ControlVersion::Five => include_bytes!("../../../tests/golden/messages_v5.bin"),
    };
    let mut messages = Vec::new();
    while let Some(len_bytes) = rest.get(8..12) {
        let body_bytes = u32::from_le_bytes(len_bytes.try_into().expect("four bytes"));
        let (message, behind) = rest.split_at(16 + body_bytes as usize);
        messages.push(message);
        rest = behind;
    }
    assert!(rest.is_empty(), "the file of version {version} is cut short");
    messages
}

/// Version 5 has requests that version 4 does not know; they came later than the others of its file.
fn samples(version: ControlVersion) -> Vec<(Vec<Request>, Vec<Reply>)> {
    let common = (requests(), replies());
    match version {
        ControlVersion::Four => vec![common],
        ControlVersion::Five => vec![common, (newer_requests(), newer_replies())],
    }
}

fn encoded(version: ControlVersion) -> Vec<Vec<u8>> {
    let head = MessageHead { version, request_id: REQUEST_ID };
    let messages = samples(version).into_iter().flat_map(|(requests, replies)| {
        let requests: Vec<_> = requests.iter().map(|request| request.encode(head)).collect();
        requests.into_iter().chain(replies.into_iter().map(move |reply| reply.encode(head)))
    });
    let messages = messages.map(|message| message.expect("the version carries it"));
    messages.filter(|message| message.len() <= RECORDED_MAX_BYTES).collect()
}

#[test]
fn recorded_messages_are_written_again() {
    for version in ControlVersion::ALL {
        let (recorded, encoded) = (recorded(version), encoded(version));
        assert_eq!(recorded.len(), encoded.len(), "version {version}");
        for (recorded, encoded) in recorded.into_iter().zip(encoded) {
            assert_eq!(recorded, encoded, "version {version}, kind {}", recorded[2]);
        }
    }
}

#[test]
fn recorded_messages_are_read() {
    for version in ControlVersion::ALL {
        let head = MessageHead { version, request_id: REQUEST_ID };
        let mut recorded = recorded(version).into_iter();
        let fits = |len_bytes: usize| len_bytes <= RECORDED_MAX_BYTES;
        for (requests, replies) in samples(version) {
            for request in requests.into_iter().filter(|request| fits(request.encode(head).unwrap().len())) {
                assert_eq!(recorded.next().map(Request::decode), Some(Ok((head, request))), "version {version}");
            }
            for reply in replies.into_iter().filter(|reply| fits(reply.encode(head).unwrap().len())) {
                assert_eq!(recorded.next().map(Reply::decode), Some(Ok((head, reply))), "version {version}");
            }
        }
        assert_eq!(recorded.next(), None);
    }
}

#[test]
fn every_kind_is_recorded() {
    for version in ControlVersion::ALL {
        let mut kinds: Vec<u8> = recorded(version).iter().map(|message| message[2]).collect();
        kinds.sort_unstable();
        kinds.dedup();
        let known = |kind: &u8| {
            let bytes = message_in(MessageHead { version, request_id: 1 }, u16::from(*kind), &[]);
            let is_unknown = |error| matches!(error, Some(ControlError::UnknownKind { .. }));
            !is_unknown(Request::decode(&bytes).err()) || !is_unknown(Reply::decode(&bytes).err())
        };
        assert_eq!(kinds, (0..=u8::MAX).filter(known).collect::<Vec<_>>(), "version {version}");
    }
}

/// Records the newest version anew, before it is released: `tests/golden/README.md` says when.
#[test]
#[ignore = "it writes tests/golden"]
fn record_the_newest_version() {
    let path = format!("{}/tests/golden/messages_v{}.bin", env!("CARGO_MANIFEST_DIR"), ControlVersion::NEWEST);
    std::fs::write(path, encoded(ControlVersion::NEWEST).concat()).expect("the source tree can be written");
}
