use std::ops::Range;

use super::{
    Arch, Attributes, Checksummed, Feature, Features, HEADER_LEN_BYTES, HeaderError, PoolHeader, PoolKind,
    SHUTDOWN_STATE, SHUTDOWN_STATE_LEN_BYTES, ShutdownState, checksum, new_uuid, uuid_text,
};

/// What PMDK 1.12.1 (libpmemobj, libpmemlog and libpmemblk of Debian 12 on x86-64) wrote.
const OF_PMDK: [(&[u8; HEADER_LEN_BYTES], PoolKind); 3] = [
    (include_bytes!("../../tests/headers/pmdk-1.12.1-obj.bin"), PoolKind::Obj),
    (include_bytes!("../../tests/headers/pmdk-1.12.1-log.bin"), PoolKind::Log),
    (include_bytes!("../../tests/headers/pmdk-1.12.1-blk.bin"), PoolKind::Blk),
];

const SHUTDOWN: Range<usize> = SHUTDOWN_STATE..SHUTDOWN_STATE + SHUTDOWN_STATE_LEN_BYTES;

fn header(features: Features) -> PoolHeader {
    PoolHeader {
        signature: *b"PMEMOBJ\0",
        major: 6,
        features,
        poolset_uuid: new_uuid(),
        uuid: new_uuid(),
        prev_part_uuid: new_uuid(),
        next_part_uuid: new_uuid(),
        prev_replica_uuid: new_uuid(),
        next_replica_uuid: new_uuid(),
        created_at_unix_s: 1_700_000_000,
        arch: Arch::of_this_machine(),
        shutdown_state: ShutdownState::new(5, 0x1234_5678_9abc, true),
    }
}

#[test]
fn headers_of_pmdk_are_read_and_written_alike() {
    for (bytes, kind) in OF_PMDK {
        let header = PoolHeader::decode(bytes).unwrap();
        assert_eq!((header.kind(), header.major), (Some(kind), kind.major()));
        assert_eq!(header.features, Features::of_new_pools());
        assert_eq!(header.uuid, header.next_part_uuid);
        assert_eq!(header.arch.machine, 62);
        #[cfg(target_arch = "x86_64")]
        assert_eq!(header.arch, Arch::of_this_machine());
        assert!(header.shutdown_state.is_intact() && !header.shutdown_state.is_dirty());
        assert_eq!(&header.encode(), bytes);
        assert_eq!(&bytes[SHUTDOWN], header.shutdown_state.to_bytes());
    }
}

#[test]
fn what_is_encoded_is_decoded() {
    for features in [Features::of_new_pools(), Features::default(), Features { compat: 1 << 31, ..Features::default() }]
    {
        let header = header(features);
        assert_eq!(PoolHeader::decode(&header.encode()), Ok(header));
    }
}

/// Every byte of the header in turn, every bit of it in turn and all of them.
#[test]
fn no_changed_byte_goes_unnoticed() {
    for features in [Features::of_new_pools(), Features::of_new_pools().without(Feature::Checksum2k)] {
        let whole = header(features).encode();
        for offset in 0..HEADER_LEN_BYTES {
            for flip in (0..8).map(|bit| 1 << bit).chain([0xff]) {
                let mut bytes = whole;
                bytes[offset] ^= flip;
                match PoolHeader::decode(&bytes) {
                    Err(HeaderError::BadChecksum { stored, computed }) => assert_ne!(stored, computed),
                    // What the checksum of 2048 bytes does not cover.
                    Err(HeaderError::NotZero { offset: told }) => {
                        assert_eq!(told, offset);
                        assert!(features.has(Feature::Checksum2k) && (2048..SHUTDOWN.start).contains(&offset));
                    }
                    Ok(header) => {
                        assert!(features.has(Feature::Checksum2k) && SHUTDOWN.contains(&offset), "byte {offset}");
                        assert!(!header.shutdown_state.is_intact(), "byte {offset}");
                    }
                    Err(error) => panic!("byte {offset}: {error}"),
                }
            }
        }
    }
}

/// The control of the test above: a check that ignores a range misses its bytes.
#[test]
fn a_checksum_that_covers_less_would_be_found_out() {
    let mut bytes = header(Features::of_new_pools()).encode();
    let short = Checksummed { field: 4088, end: 1024 };
    let before = checksum(&bytes, &short);
    bytes[1500] ^= 1;
    assert_eq!(checksum(&bytes, &short), before);
}

#[test]
fn zeros_are_no_header() {
    assert_eq!(PoolHeader::decode(&[0; HEADER_LEN_BYTES]), Err(HeaderError::Blank));
    assert!(ShutdownState::default().is_intact());
    assert_eq!(ShutdownState::default(), ShutdownState::new(0, 0, false));
    assert!(ShutdownState::new(0, 0, true).is_intact());
}

#[test]
fn attributes_are_those_of_the_header() {
    let header = header(Features::of_new_pools());
    let attributes = header.attributes();
    let bytes = attributes.to_bytes();
    assert_eq!(bytes[..56], header.encode()[..56], "the first fields lie alike");
    assert_eq!(bytes[56..72], header.next_replica_uuid);
    assert_eq!(bytes[72..88], header.prev_replica_uuid);
    assert_eq!(bytes[88..], header.arch.to_bytes());
    assert_eq!(Attributes::from_bytes(&bytes), attributes);
    let mut other = super::tests::header(Features::default());
    let own = (other.uuid, other.next_part_uuid, other.prev_part_uuid, other.created_at_unix_s);
    other.set_attributes(&attributes);
    assert_eq!(own, (other.uuid, other.next_part_uuid, other.prev_part_uuid, other.created_at_unix_s));
    other.uuid = header.uuid;
    assert_eq!(other.attributes(), attributes);
    assert!(Attributes::default().is_zero() && !attributes.is_zero());
    let mut every = [0; super::ATTRIBUTES_LEN_BYTES];
    for (index, byte) in every.iter_mut().enumerate() {
        *byte = index as u8;
    }
    assert_eq!(Attributes::from_bytes(&every).to_bytes(), every);
}

#[test]
fn features_have_their_bits_and_names() {
    assert_eq!(Features::of_new_pools(), Features { compat: 1, incompat: 6, ro_compat: 0 });
    for feature in Feature::ALL {
        assert_eq!(Feature::of_name(feature.name()), Some(feature));
        let one = Features::default().with(feature);
        assert!(one.has(feature) && one.unknown() == Features::default());
        assert_eq!(one.known().collect::<Vec<_>>(), [feature]);
        assert_eq!(one.without(feature), Features::default());
    }
    let strange = Features { compat: 2, incompat: 8, ro_compat: 1 };
    assert_eq!(strange.with(Feature::SingleHeader).unknown(), strange);
    assert_eq!(Feature::of_name("singlehdr"), None);
}

#[test]
fn uuids_are_written_as_pmdk_does() {
    let bytes = [0xaf, 0x13, 0x34, 0xf5, 0xc9, 0x52, 0xcf, 0x45, 0xbe, 0xee, 0x1d, 0x9d, 0x50, 0x70, 0x77, 0x73];
    assert_eq!(uuid_text(&bytes), "f53413af-52c9-45cf-beee-1d9d50707773");
}
