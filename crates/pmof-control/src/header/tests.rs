use proptest::prelude::*;

use super::*;

const GOLDEN_4: &[u8] = include_bytes!("../../tests/golden/pool_header_v4.bin");
const GOLDEN: &[u8] = include_bytes!("../../tests/golden/pool_header_v3.bin");
const GOLDEN_2: &[u8] = include_bytes!("../../tests/golden/pool_header_v2.bin");
const GOLDEN_1: &[u8] = include_bytes!("../../tests/golden/pool_header_v1.bin");

fn sample() -> Header {
    Header {
        format: PoolFormat::Three,
        layout: FileLayout::default(),
        compatible_features: 0x0102_0304_0506_0708,
        pool_uuid: Uuid::from_u128(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff),
        replica_uuid: Uuid::from_u128(0xffee_ddcc_bbaa_9988_7766_5544_3322_1100),
        size_bytes: 0x1_0000_0001,
        created_at_unix_s: 1_700_000_000,
        replica_count: 3,
        replica_index: 2,
        user_flags: *b"the maker's word",
    }
}

/// The sample's bytes, changed at `offset`, with a checksum that fits again.
fn changed(offset: usize, bytes: &[u8]) -> [u8; HEADER_BYTES] {
    let mut encoded = sample().encode();
    encoded[offset..offset + bytes.len()].copy_from_slice(bytes);
    let checksum = checksum(&encoded[..CHECKSUM_OFFSET]);
    encoded[CHECKSUM_OFFSET..].copy_from_slice(&checksum.to_le_bytes());
    encoded
}

#[test]
fn golden_files_of_every_version_are_read() {
    for (golden, format, major, data_offset, file_len_bytes) in [
        (GOLDEN, PoolFormat::Three, 3, 65_536, 0x1_0001_1000),
        (GOLDEN_2, PoolFormat::Two, 2, 8192, 0x1_0000_3000),
        (GOLDEN_1, PoolFormat::One { generation: 7 }, 1, 4096, 0x1_0000_2000),
    ] {
        let header = Header::decode(golden).expect("a version is read for ever");
        assert_eq!((header.format, header.format.major()), (format, major));
        assert_eq!((header.data_offset(), header.file_len_bytes()), (data_offset, Some(file_len_bytes)));
        assert_eq!(header.compatible_features, 0x0102_0304_0506_0708);
        assert_eq!(header.pool_uuid.to_string(), "00112233-4455-6677-8899-aabbccddeeff");
        assert_eq!(header.replica_uuid.to_string(), "ffeeddcc-bbaa-9988-7766-554433221100");
        assert_eq!(header.size_bytes, 4_294_967_297);
        assert_eq!(header.created_at_unix_s, 1_700_000_000);
        assert_eq!(header.replica_count, 3);
        assert_eq!(header.replica_index, 2);
        assert_eq!(header.user_flags, *b"the maker's word");
    }
}

#[test]
fn every_flipped_bit_of_a_generation_is_detected() {
    for at in GENERATION_OFFSET..GENERATION_OFFSET + 8 {
        let mut torn = GOLDEN_1.to_vec();
        torn[at] ^= 1;
        let (number, check) = torn[GENERATION_OFFSET..GENERATION_OFFSET + 8].split_at(4);
        let (stored, computed) = (u32::from_le_bytes(check.try_into().unwrap()), crc32c::crc32c(number));
        assert_eq!(Header::decode(&torn), Err(HeaderError::BadChecksum { stored, computed }), "{at}");
    }
}

#[test]
fn encoding_gives_the_golden_bytes() {
    assert_eq!(GOLDEN.len(), HEADER_BYTES);
    assert!(sample().encode()[..] == *GOLDEN, "the format of version 3.0 changed");
}

#[test]
fn every_flipped_bit_is_detected() {
    let whole = sample().encode();
    assert_eq!(Header::decode(&whole), Ok(sample()));
    for at in 0..HEADER_BYTES {
        for bit in 0..8 {
            let mut torn = whole;
            torn[at] ^= 1 << bit;
            let error = Header::decode(&torn).expect_err("a flipped bit");
            match error {
                HeaderError::NotAPool => assert!(at < 8),
                HeaderError::BadChecksum { .. } => assert!(at >= 8),
                HeaderError::Inconsistent { .. } => assert!((88..96).contains(&at)),
                other => panic!("byte {at}: {other}"),
            }
        }
    }
}

#[test]
fn every_prefix_is_detected() {
    let whole = sample().encode();
    assert_eq!(Header::decode(&[]), Err(HeaderError::NotAPool));
    for len_bytes in 1..HEADER_BYTES {
        assert_eq!(Header::decode(&whole[..len_bytes]), Err(HeaderError::Truncated { len_bytes }));
    }
    assert_eq!(Header::decode(b"PMOFPOLL"), Err(HeaderError::NotAPool));
}

#[test]
fn bytes_behind_the_header_do_not_matter() {
    let mut long = sample().encode().to_vec();
    long.extend([0xa5; 100]);
    assert_eq!(Header::decode(&long), Ok(sample()));
}

#[test]
fn newer_versions_and_unknown_features_are_refused() {
    assert_eq!(Header::decode(&changed(8, &[5, 0, 5, 0])), Err(HeaderError::NewerVersion { found: 5, found_minor: 5 }));
    assert_eq!(Header::decode(&changed(16, &[4])), Err(HeaderError::UnknownFeature { flags: 4 }));
}

#[test]
fn a_higher_minor_version_may_use_reserved_bytes() {
    let mut bytes = changed(10, &[1, 0]);
    assert_eq!(Header::decode(&bytes), Ok(sample()));
    bytes[200] = 9;
    let checksum = checksum(&bytes[..CHECKSUM_OFFSET]);
    bytes[CHECKSUM_OFFSET..].copy_from_slice(&checksum.to_le_bytes());
    assert_eq!(Header::decode(&bytes), Ok(sample()));
}

#[test]
fn contradictions_are_refused() {
    for (offset, bytes, word) in [
        (8, &[0u8, 0][..], "major"),
        (12, &[1], "reserved"),
        (116, &[1], "reserved"),
        (4091, &[1], "reserved"),
        (64, &[0; 8], "size"),
        (64, &[0xff; 8], "more than a file"),
        (64, &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f], "more than a file"),
        (72, &[0, 0x10], "does not begin"),
        (88, &[1], "88"),
        (96, &[65, 0], "64"),
        (96, &[0, 0], "index"),
        (98, &[3, 0], "index"),
    ] {
        match Header::decode(&changed(offset, bytes)) {
            Err(HeaderError::Inconsistent { what }) => assert!(what.contains(word), "{offset}: {what}"),
            other => panic!("{offset}: {other:?}"),
        }
    }
}

#[test]
fn file_lengths_are_whole_pages_and_never_overflow() {
    assert_eq!(file_len_bytes(1), Some(69_632));
    assert_eq!(file_len_bytes(4096), Some(69_632));
    assert_eq!(file_len_bytes(4097), Some(73_728));
    assert_eq!(file_len_bytes(MAX_SIZE_BYTES), Some(i64::MAX.unsigned_abs() + 1 - PAGE_BYTES));
    assert_eq!(file_len_bytes(MAX_SIZE_BYTES + 1), None);
    assert_eq!(file_len_bytes(u64::MAX - DATA_OFFSET), None);
    assert_eq!(file_len_bytes(u64::MAX), None);
}

proptest! {
    #[test]
    fn what_is_encoded_is_decoded(
        compatible_features: u64,
        pool: u128,
        replica: u128,
        size_bytes in 1..=MAX_SIZE_BYTES,
        created_at_unix_s: u64,
        user_flags: [u8; USER_FLAGS_BYTES],
        (replica_count, replica_index) in (1..=REPLICAS_MAX).prop_flat_map(|count| (Just(count), 0..count)),
    ) {
        let header = Header {
            format: PoolFormat::Three,
            layout: FileLayout::default(),
            compatible_features,
            pool_uuid: Uuid::from_u128(pool),
            replica_uuid: Uuid::from_u128(replica),
            size_bytes,
            created_at_unix_s,
            replica_count,
            replica_index,
            user_flags,
        };
        prop_assert_eq!(Header::decode(&header.encode()), Ok(header));
    }

    #[test]
    fn any_bytes_give_a_value_or_an_error(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..2 * HEADER_BYTES),
        own_magic: bool,
        own_checksum: bool,
    ) {
        if own_magic && bytes.len() >= 8 {
            bytes[..8].copy_from_slice(&NATIVE_MAGIC);
        }
        if own_checksum && bytes.len() >= HEADER_BYTES {
            let checksum = checksum(&bytes[..CHECKSUM_OFFSET]);
            bytes[CHECKSUM_OFFSET..HEADER_BYTES].copy_from_slice(&checksum.to_le_bytes());
        }
        // Random bytes behind a right magic and checksum still break a rule of the format.
        prop_assert!(Header::decode(&bytes).is_err());
    }
}

/// A pool of 4 GiB and a byte that can grow to 64 GiB.
fn sample_4() -> Header {
    Header { format: PoolFormat::Four, layout: FileLayout::with_digests(64 << 30).unwrap(), ..sample() }
}

fn decoded_4(change: impl FnOnce(&mut Header)) -> Result<Header, HeaderError> {
    let mut header = sample_4();
    change(&mut header);
    Header::decode(&header.encode())
}

#[test]
fn the_golden_header_of_format_4_is_read_and_written() {
    assert!(sample_4().encode() == GOLDEN_4, "the format of the header changed");
    let header = Header::decode(GOLDEN_4).expect("a version is read for ever");
    assert_eq!(header, sample_4());
    assert_eq!((header.format.major(), header.layout.max_size_bytes), (4, 64 << 30));
    assert_eq!(header.layout.digests(), Some(262_144..262_144 + (128 << 20)));
    assert_eq!((header.data_offset(), header.file_len_bytes()), (134_479_872, Some(134_479_872 + 0x1_0000_1000)));
}

#[test]
fn a_layout_that_contradicts_itself_is_refused() {
    let is_refused = |change: fn(&mut Header)| {
        let decoded = decoded_4(change);
        assert!(matches!(decoded, Err(HeaderError::Inconsistent { .. })), "{decoded:?}");
    };
    is_refused(|header| header.size_bytes = (64 << 30) + 1);
    is_refused(|header| header.layout.sequence = 0);
    is_refused(|header| header.layout.data_offset = HEAD_4_BYTES - 4096);
    is_refused(|header| header.layout.data_offset += 8);
    is_refused(|header| header.layout.data_offset -= 4096);
    is_refused(|header| header.layout.max_size_bytes = 64 << 40);
    is_refused(|header| header.layout.max_size_bytes = u64::MAX);
    is_refused(|header| header.layout.extensions[0].offset = 8192);
    is_refused(|header| header.layout.extensions[0].len_bytes = u64::MAX);
    is_refused(|header| header.layout.extensions.push(header.layout.extensions[0]));
    assert_eq!(FileLayout::with_digests(1 << 63), None);
}

#[test]
fn unknown_extensions_are_minded_as_they_ask_for() {
    let other = Extension { kind: 9, version: 1, flags: 0, offset: 40 << 10, len_bytes: 4096 };
    let with = |flags| decoded_4(|header| header.layout.extensions.insert(0, Extension { flags, ..other }));
    assert_eq!(with(0).map(|header| header.layout.unknown_to_writers()), Ok(None));
    let unknown = Some(Extension { flags: Extension::NEEDED_TO_WRITE, ..other });
    assert_eq!(with(Extension::NEEDED_TO_WRITE).map(|header| header.layout.unknown_to_writers()), Ok(unknown));
    let error = HeaderError::UnknownExtension { kind: 9, version: 1 };
    assert_eq!(with(Extension::NEEDED_TO_READ), Err(error.clone()));
    let newer = decoded_4(|header| header.layout.extensions[0].version = 2);
    assert_eq!(newer.map(|header| header.layout.unknown_to_writers().is_some()), Ok(true), "of digests, too");
}
