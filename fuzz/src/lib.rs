//! One fuzz target for each parser of bytes that another process, another machine or a disk hands to pmof.
//!
//! A target takes any bytes. It fails by a panic: the parser's own, or that of the property that what a parser accepts survives being
//! written and read again. Where a checksum guards the bytes, the target also judges them with the checksum corrected, since noise
//! hardly ever gets past one.
//!
//! `tests/smoke.rs` runs all targets on the seeds in `corpus/` and on mutations of them.

use std::{fmt::Debug, path::Path, str::FromStr, sync::Arc};

use pmof_access::{Address, RECORD_MAX_BYTES, ShortDescriptor, read_ring};
use pmof_bootstrap::{Greeting, HELLO_BYTES, Hello, SshHost};
use pmof_control::{
    ControlError, ControlVersion, HEADER_BYTES, Header, HeaderError, MessageHead, PoolFormat, PoolName, PoolState,
    Reply, Request, SetName, SpokenVersions,
};
use pmof_mem::{Medium, Memory};
use pmof_pool::{PoolUrl, TargetUrl};
use pmof_pool_set::{HEADER_LEN_BYTES, HeaderError as PmdkError, PoolHeader, PoolSet};
use pmof_proto::{Descriptor, frame::Frame, limits};

/// A parser with its properties.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name, that of its directory of seeds too.
    pub name: &'static str,
    /// Parses; panics where a property does not hold.
    pub run: fn(&[u8]),
}

/// All of them.
pub const TARGETS: &[Target] = &[
    Target { name: "address", run: |bytes| survives_text::<Address>(bytes) },
    Target { name: "control_header", run: control_header },
    Target { name: "control_reply", run: control_reply },
    Target { name: "control_request", run: control_request },
    Target { name: "control_state", run: control_state },
    Target { name: "control_versions", run: control_versions },
    Target { name: "descriptor", run: descriptor },
    Target { name: "frame", run: frame },
    Target { name: "greeting", run: greeting },
    Target { name: "hello", run: hello },
    Target { name: "names", run: names },
    Target { name: "pmdk_header", run: pmdk_header },
    Target { name: "pool_set", run: pool_set },
    Target { name: "pool_url", run: |bytes| survives_text::<PoolUrl>(bytes) },
    Target { name: "ring", run: ring },
    Target { name: "short_descriptor", run: short_descriptor },
    Target { name: "ssh_host", run: |bytes| survives_text::<SshHost>(bytes) },
    Target { name: "target_url", run: |bytes| survives_text::<TargetUrl>(bytes) },
];

/// The target of this name.
pub fn target(name: &str) -> Option<Target> {
    TARGETS.iter().copied().find(|target| target.name == name)
}

/// The bytes, and the bytes with their last four made the CRC-32C of the others.
fn with_and_without_seal(bytes: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let sealed = bytes.split_last_chunk::<4>().map(|(said, _)| [said, &crc32c::crc32c(said).to_le_bytes()].concat());
    [Some(bytes.to_vec()), sealed].into_iter().flatten()
}

fn survives_text<T: FromStr + ToString + PartialEq + Debug>(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(value) = text.parse::<T>() {
        let written = value.to_string();
        assert!(written.parse::<T>().is_ok_and(|read| read == value), "{value:?} was written as {written:?}");
    }
}

/// The versions of control messages that what was decoded as `head` is to be encoded in, its own first.
fn versions(head: MessageHead) -> impl Iterator<Item = MessageHead> {
    let others = ControlVersion::ALL.into_iter().filter(move |version| *version != head.version);
    [head.version].into_iter().chain(others).map(move |version| MessageHead { version, ..head })
}

fn control_request(bytes: &[u8]) {
    for bytes in with_and_without_seal(bytes) {
        let Ok((found, request)) = Request::decode(&bytes) else { continue };
        for head in versions(found) {
            match request.encode(head) {
                // Version 4 has no fields, which newer versions may ignore.
                Ok(again) if head == found && head.version == ControlVersion::Four => assert_eq!(again, bytes),
                Ok(again) => assert_eq!(Request::decode(&again), Ok((head, request.clone()))),
                Err(error) => assert!(matches!(error, ControlError::Inexpressible { .. }) && head != found, "{error}"),
            }
        }
    }
}

fn control_reply(bytes: &[u8]) {
    for bytes in with_and_without_seal(bytes) {
        let Ok((found, reply)) = Reply::decode(&bytes) else { continue };
        for head in versions(found) {
            match reply.encode(head) {
                Ok(again) if head == found && head.version == ControlVersion::Four => assert_eq!(again, bytes),
                // An older version carries less of it.
                Ok(again) if head == found => assert_eq!(Reply::decode(&again), Ok((head, reply.clone()))),
                Ok(again) => assert!(Reply::decode(&again).is_ok_and(|(found, _)| found == head)),
                Err(error) => panic!("{reply:?}: {error}"),
            }
        }
    }
}

fn control_versions(bytes: &[u8]) {
    if let Ok(versions) = SpokenVersions::decode(bytes) {
        assert_eq!(SpokenVersions::decode(&versions.encode()), Ok(versions));
        if let Ok(common) = versions.common() {
            assert!((versions.oldest..=versions.newest).contains(&common.number()));
        }
    }
}

fn control_header(bytes: &[u8]) {
    let survives = |bytes: &[u8]| {
        let decoded = Header::decode(bytes);
        if let Ok(header) = &decoded {
            // Older formats are read and not written.
            let newest = Header { format: PoolFormat::Three, ..header.clone() };
            assert_eq!(Header::decode(&newest.encode()), Ok(newest));
        }
        decoded
    };
    if let (Err(HeaderError::BadChecksum { computed, .. }), Some(header)) = (survives(bytes), bytes.first_chunk()) {
        let mut header: [u8; HEADER_BYTES] = *header;
        header[HEADER_BYTES - 4..].copy_from_slice(&computed.to_le_bytes());
        let _ = survives(&header);
    }
}

fn control_state(bytes: &[u8]) {
    for replica_count in [1, 3] {
        if let Ok((state, sequence)) = PoolState::read(PoolFormat::Two, replica_count, bytes) {
            let _ = state.slots(sequence);
        }
    }
}

fn descriptor(bytes: &[u8]) {
    for bytes in with_and_without_seal(bytes) {
        if let Ok(descriptor) = Descriptor::decode(&bytes) {
            assert_eq!(descriptor.encode()[..], bytes);
        }
    }
}

fn short_descriptor(bytes: &[u8]) {
    if let Ok(descriptor) = ShortDescriptor::decode(bytes) {
        assert_eq!(ShortDescriptor::decode(&descriptor.encode()), Ok(descriptor));
    }
}

fn frame(bytes: &[u8]) {
    for bytes in with_and_without_seal(&bytes[..bytes.len().min(limits::HEADER_BYTES)]) {
        let Ok(bytes) = <&[u8; limits::HEADER_BYTES]>::try_from(&bytes[..]) else { return };
        if let Ok(frame) = Frame::decode(bytes) {
            assert_eq!(frame.encode(), *bytes, "{frame:?}");
        }
    }
}

fn hello(bytes: &[u8]) {
    for bytes in with_and_without_seal(&bytes[..bytes.len().min(HELLO_BYTES)]) {
        let Ok(bytes) = <&[u8; HELLO_BYTES]>::try_from(&bytes[..]) else { return };
        if let Ok(hello) = Hello::decode(bytes) {
            assert_eq!(Hello::decode(&hello.encode()).as_ref(), Ok(&hello));
        }
    }
}

/// The initiator's nonce here is zero: seeds hold answers to it.
fn greeting(bytes: &[u8]) {
    let nonce = [0; 16];
    for bytes in with_and_without_seal(bytes) {
        if let Ok(Some(found)) = Greeting::find(&bytes, &nonce) {
            let written = found.encode(&nonce);
            assert_eq!(Greeting::find(&written, &nonce).as_ref(), Ok(&Some(found)));
        }
    }
}

fn names(bytes: &[u8]) {
    survives_text::<PoolName>(bytes);
    survives_text::<SetName>(bytes);
    if let Ok(name) = PoolName::try_from(bytes) {
        assert_eq!(name.as_str().as_bytes(), bytes);
    }
}

fn pmdk_header(bytes: &[u8]) {
    let survives = |bytes: &[u8; HEADER_LEN_BYTES]| {
        let decoded = PoolHeader::decode(bytes);
        if let Ok(header) = &decoded {
            assert_eq!(PoolHeader::decode(&header.encode()).as_ref(), Ok(header));
        }
        decoded
    };
    // Seeds end where only zeros follow; the last eight bytes are the checksum.
    let mut header = [0; HEADER_LEN_BYTES];
    let len_bytes = bytes.len().min(HEADER_LEN_BYTES);
    header[..len_bytes].copy_from_slice(&bytes[..len_bytes]);
    if let Err(PmdkError::BadChecksum { computed, .. }) = survives(&header) {
        header[HEADER_LEN_BYTES - 8..].copy_from_slice(&computed.to_le_bytes());
        let _ = survives(&header);
    }
}

fn pool_set(bytes: &[u8]) {
    let parse = |bytes: &[u8]| PoolSet::parse(Path::new("fuzz.set"), bytes);
    if let Ok(set) = parse(bytes) {
        let written = set.to_bytes();
        let read = parse(&written).unwrap_or_else(|error| panic!("{set:?} was written as {written:?}: {error}"));
        assert_eq!(read.to_bytes(), written, "{set:?}");
    }
}

/// What a crash left of a ring at the beginning of memory; zeros follow the bytes, and the header's checksum is corrected.
fn ring(bytes: &[u8]) {
    const LEN_BYTES: usize = 4096 + 32 * 8192;
    const CHECKSUM_AT: usize = 60;
    let mut bytes = bytes[..bytes.len().min(LEN_BYTES)].to_vec();
    if bytes.len() >= CHECKSUM_AT + 4 {
        let checksum = crc32c::crc32c(&bytes[..CHECKSUM_AT]).to_le_bytes();
        bytes[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&checksum);
    }
    let memory = Memory::anonymous(LEN_BYTES as u64).expect("there is memory");
    memory.store(0, &bytes).expect("the bytes fit");
    let memory: Arc<dyn Medium> = Arc::new(memory);
    if let Ok(contents) = read_ring(&memory, 0, LEN_BYTES as u64) {
        assert!(contents.records.iter().all(|record| record.bytes.len() as u64 <= RECORD_MAX_BYTES));
        assert!(contents.records.windows(2).all(|pair| pair[0].sequence + 1 == pair[1].sequence));
    }
}
