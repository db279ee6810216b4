//! The bytes of every kind of frame and of the descriptor, as they were first released: a change of the wire format is
//! seen here. To write the files anew: `PMOF_BLESS=1 cargo test -p pmof-proto golden`.

use std::{fmt::Write as _, fs, path::PathBuf};

use pmof_mem::{Durability, Evidence, MediumKind};

use super::{scenario::frames_of, support::*};
use crate::{Access, Operation, Payload, Refusal, Signal};

fn hex(bytes: &[u8]) -> String {
    let mut text = String::new();
    for (index, byte) in bytes.iter().enumerate() {
        let separator = match index {
            0 => "",
            _ if index % 16 == 0 => "\n",
            _ if index % 4 == 0 => " ",
            _ => "",
        };
        write!(text, "{separator}{byte:02x}").expect("strings take all");
    }
    text + "\n"
}

fn compare(name: &str, bytes: &[u8]) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(format!("{name}.hex"));
    let found = hex(bytes);
    if std::env::var_os("PMOF_BLESS").is_some() {
        fs::write(&path, &found).expect("the golden directory can be written");
    }
    let golden = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert_eq!(found, golden, "{name}: the wire format has changed; that needs a new protocol version");
}

/// A connection in which each side says everything once, with payload checksums.
fn conversation() -> Pair {
    let mut pair = Pair::apart([settings(true); 2], b"private hello");
    pair.register(1, KEY, Plain::new(MEDIUM_BYTES, MediumKind::FsDax), Access::all());
    pair.run();
    pair.sides[1].endpoint.accept(b"private welcome");
    pair.run();
    let (key, offset) = (KEY, 4096);
    let immediate = Some(0x0102_0304);
    pair.post(Operation::Write { key, offset, payload: Payload::Inline(b"sixteen bytes..."), immediate: None });
    pair.post_as(0, write(1, b"unsignalled"), Signal::OnError, 0);
    pair.post(Operation::Read { key, offset, into: local(&[0; 16]) });
    pair.post(Operation::Flush {
        key,
        offset,
        len_bytes: 16,
        level: Durability::PowerFailure,
        evidence: Evidence::Declared,
    });
    pair.post(Operation::AtomicWrite { key, offset, value: 0x1112_1314_1516_1718 });
    pair.post(Operation::CompareAndSwap { key, offset, expected: 0x1112_1314_1516_1718, new: 5 });
    pair.post(Operation::FetchAndAdd { key, offset, addend: 7 });
    pair.post_receive(1, 16);
    pair.post(Operation::Send { payload: Payload::Inline(b"message"), immediate });
    pair.run();
    pair.sides[0].endpoint.disconnect();
    pair.run();
    pair
}

#[test]
fn the_conversation_is_as_it_was() {
    let names = [
        vec![
            "hello",
            "write",
            "write_unsignalled",
            "read",
            "flush",
            "atomic_write",
            "compare_and_swap",
            "fetch_and_add",
            "send_immediate",
            "disconnect",
        ],
        vec![
            "welcome",
            "reply_write",
            "read_reply",
            "reply_flush",
            "reply_atomic_write",
            "reply_compare_and_swap",
            "reply_fetch_and_add",
            "credit",
            "reply_send",
        ],
    ];
    let pair = conversation();
    for (wire, names) in pair.wires.iter().zip(names) {
        let frames = frames_of(&wire.log);
        assert_eq!(frames.len(), names.len(), "{frames:?}");
        for ((start, frame), name) in frames.into_iter().zip(names) {
            compare(name, &wire.log[start..start + 64 + frame.payload_bytes() as usize]);
        }
    }
}

#[test]
fn a_write_back_is_as_it_was() {
    let mut pair = Pair::new(settings(false));
    pair.wires[0].log.clear();
    pair.post_as(0, Operation::WriteBack { key: KEY, offset: 4096, len_bytes: 100 }, Signal::OnError, 0);
    pair.run();
    compare("write_back", &pair.wires[0].log);
}

#[test]
fn refusals_are_as_they_were() {
    let mut pair = Pair::new(settings(false));
    pair.wires[1].log.clear();
    assert!(pair.outcome(write(REGION_BYTES, b"outside")).is_err());
    compare("refusal", &pair.wires[1].log);

    let mut pair = Pair::apart([settings(false); 2], b"");
    pair.sides[1].endpoint.reject(Refusal::TooManyConnections, b"come back later");
    pair.run();
    compare("rejection", &pair.wires[1].log);
}

#[test]
fn the_descriptor_is_as_it_was() {
    let descriptor = conversation().tables[1].find(KEY).expect("registered").descriptor();
    compare("descriptor", &descriptor.encode());
    assert_eq!(crate::Descriptor::decode(&descriptor.encode()), Ok(descriptor));
}
