use std::{io::Write as _, ops::Deref};

use pmof::ConsistencyPoint;
use proptest::{collection::vec, prelude::*, sample::Index};
use uuid::Uuid;

use super::{
    format::{CHUNK_BYTES, ExportHeader, FormatError, HEADER_BYTES, Kind, Moment, RECORD_BYTES, Record},
    reader::{Contents, ExportReader, Piece, digests_of_export},
    writer::{ExportWriter, Written},
};

const CHUNK: usize = 4096;

/// An export, and what was said of it.
struct Made {
    output: Vec<u8>,
    written: Written,
}

impl Deref for Made {
    type Target = Written;

    fn deref(&self) -> &Written {
        &self.written
    }
}

fn header(size_bytes: u64) -> ExportHeader {
    ExportHeader {
        pool_uuid: Uuid::from_u128(7),
        size_bytes,
        user_flags: *b"flags of a user.",
        chunk_bytes: CHUNK as u32,
        moment: Moment::Closed,
        opening: 3,
        unix_ms: 1_700_000_000_000,
        base: None,
    }
}

fn written(header: ExportHeader, pool: &[u8], base: Option<&Made>) -> Made {
    let header = ExportHeader { base: base.map(|base| base.id), ..header };
    let mut writer = ExportWriter::new(Vec::new(), header, base.map(|base| base.digests.clone())).unwrap();
    // Windows of several chunks, as the pool is read.
    pool.chunks(2 * CHUNK).for_each(|window| writer.add(window).unwrap());
    let (output, written) = writer.finish().unwrap();
    Made { output, written }
}

/// A pool with data, zeroes, and a last chunk that is shorter.
fn pool() -> Vec<u8> {
    let mut pool = vec![0; 5 * CHUNK + 100];
    pool[10] = 1;
    pool[3 * CHUNK..5 * CHUNK].fill(7);
    pool[5 * CHUNK + 99] = 9;
    pool
}

fn read(stream: &[u8], before: Option<Contents>, pool: &mut [u8]) -> anyhow::Result<Contents> {
    ExportReader::open(stream)?.read_all(before, |piece| {
        match piece {
            Piece::Data { offset, bytes } => pool[offset as usize..][..bytes.len()].copy_from_slice(&bytes),
            Piece::Zeroes { offset, len_bytes } => pool[offset as usize..][..len_bytes as usize].fill(0),
        }
        Ok(())
    })
}

#[track_caller]
fn fails(stream: &[u8], before: Option<Contents>) -> FormatError {
    let error = read(stream, before, &mut vec![0; 1 << 20]).unwrap_err();
    error.downcast::<FormatError>().unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn what_is_written_is_read_and_zeroes_are_not_stored() {
    let pool = pool();
    let full = written(header(pool.len() as u64), &pool, None);
    assert_eq!(full.stored_bytes, 3 * CHUNK as u64 + 100);
    assert_eq!(full.stream_bytes, full.output.len() as u64);
    let mut back = vec![0; pool.len()];
    let contents = read(&full.output, None, &mut back).unwrap();
    assert!(back == pool);
    assert_eq!((contents.id, &contents.header, &contents.digests), (full.id, &full.header, &full.digests));
    for zeroes in [1, CHUNK, CHUNK + 1] {
        let full = written(header(zeroes as u64), &vec![0; zeroes], None);
        assert_eq!(full.stored_bytes, 0);
        read(&full.output, None, &mut []).unwrap();
    }
}

#[test]
fn an_increment_has_what_changed_and_what_became_zeroes() {
    let mut pool = pool();
    let full = written(header(pool.len() as u64), &pool, None);
    let mut back = vec![0; pool.len()];
    let before = read(&full.output, None, &mut back).unwrap();
    pool[2 * CHUNK] = 5;
    pool[3 * CHUNK..].fill(0);
    let increment = written(header(pool.len() as u64), &pool, Some(&full));
    assert_eq!(increment.stored_bytes, CHUNK as u64);
    let contents = read(&increment.output, Some(before.clone()), &mut back).unwrap();
    assert!(back == pool);
    let next = written(header(pool.len() as u64), &pool, Some(&increment));
    assert_eq!(next.stored_bytes, 0);
    read(&next.output, Some(contents), &mut back).unwrap();
    assert!(back == pool);
    // In another order, without the base, or on another pool.
    assert!(matches!(fails(&next.output, Some(before.clone())), FormatError::WrongBase { .. }));
    assert!(matches!(fails(&next.output, None), FormatError::NoBase { .. }));
    assert!(matches!(fails(&full.output, Some(before.clone())), FormatError::NoIncrement));
    let other = ExportHeader { pool_uuid: Uuid::from_u128(8), ..header(pool.len() as u64) };
    assert!(matches!(fails(&written(other, &pool, Some(&full)).output, Some(before)), FormatError::OtherPool { .. }));
}

#[test]
fn a_stream_that_is_cut_anywhere_is_refused() {
    let pool = pool();
    let stream = written(header(pool.len() as u64), &pool, None).output;
    for len in 0..stream.len() {
        let error = fails(&stream[..len], None);
        assert!(matches!(error, FormatError::Cut { at } if at == len as u64), "{len}: {error}");
    }
    let longer = [&stream[..], &[0]].concat();
    assert!(matches!(fails(&longer, None), FormatError::Trailing { .. }));
}

#[test]
fn a_bit_that_flips_anywhere_is_found() {
    let pool = pool();
    let full = written(header(pool.len() as u64), &pool, None);
    let mut changed = pool.clone();
    changed[CHUNK * 3..].fill(0);
    changed[0] = 9;
    let increment = written(header(pool.len() as u64), &changed, Some(&full)).output;
    let before = read(&full.output, None, &mut vec![0; pool.len()]).unwrap();
    for (stream, before) in [(full.output, None), (increment, Some(before))] {
        for at in 0..stream.len() {
            let mut stream = stream.clone();
            stream[at] ^= 1 << (at % 8);
            fails(&stream, before.clone());
        }
    }
}

/// All records are sound, and one is missing, or two have changed places.
#[test]
fn records_that_are_missing_or_elsewhere_are_found() {
    let pool = pool();
    let stream = written(header(pool.len() as u64), &pool, None).output;
    let first = HEADER_BYTES..HEADER_BYTES + RECORD_BYTES + CHUNK;
    let second = first.end..first.end + RECORD_BYTES + CHUNK;
    let without = [&stream[..first.start], &stream[first.end..]].concat();
    // Where the digests are is not where the end says that they are.
    assert!(matches!(fails(&without, None), FormatError::Missing { .. }));
    let end = without.len() - RECORD_BYTES;
    let told = Record::parse(&without[end..].try_into().unwrap());
    let Some(Record::End { digests_at, id }) = told else { panic!("{told:?}") };
    let moved = Record::End { digests_at: digests_at - (RECORD_BYTES + CHUNK) as u64, id }.to_bytes();
    let without = [&without[..end], &moved].concat();
    assert!(matches!(fails(&without, None), FormatError::Missing { .. }));
    let swapped = [&stream[..first.start], &stream[second.clone()], &stream[first], &stream[second.end..]].concat();
    assert!(matches!(fails(&swapped, None), FormatError::Record { .. }));
    let other = ExportHeader { opening: 4, ..header(pool.len() as u64) };
    let mixed = [&written(other, &pool, None).output[..HEADER_BYTES], &stream[HEADER_BYTES..]].concat();
    assert!(matches!(fails(&mixed, None), FormatError::Id));
}

#[test]
fn other_versions_and_other_files_are_told() {
    let pool = pool();
    let full = written(header(pool.len() as u64), &pool, None);
    let mut stream = full.output.clone();
    stream[8] = 2;
    assert!(matches!(fails(&stream[..12], None), FormatError::Version { found: 2 }));
    assert!(matches!(fails(&[0; 5000], None), FormatError::NotAnExport));
    let mut digests = Vec::new();
    full.write_digests(&mut digests).unwrap();
    assert!(matches!(fails(&digests, None), FormatError::DigestsOnly));
}

#[test]
fn headers_come_back() {
    let point = ConsistencyPoint { number: 9, opening: 3, written_bytes: 5, unix_ms: 6, name: "day".to_owned() };
    for moment in [Moment::Closed, Moment::NotClosed, Moment::Point(point)] {
        for base in [None, Some([5; 32])] {
            let header = ExportHeader { moment: moment.clone(), base, chunk_bytes: CHUNK_BYTES, ..header(1 << 40) };
            for kind in [Kind::Export, Kind::Digests] {
                assert_eq!(ExportHeader::parse(&header.to_bytes(kind)).unwrap(), (header.clone(), kind));
            }
        }
    }
}

#[test]
fn digests_of_a_header_that_lies_about_its_size_take_no_memory() {
    let stream = header(1 << 62).to_bytes(Kind::Export);
    assert!(matches!(fails(&stream, None), FormatError::Memory { .. }));
}

#[test]
fn digests_are_read_from_exports_and_from_files_of_their_own() {
    let pool = pool();
    let full = written(header(pool.len() as u64), &pool, None);
    let mut digests = Vec::new();
    full.write_digests(&mut digests).unwrap();
    assert!(digests.len() < 2000);
    let file = |bytes: &[u8]| {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        std::io::Seek::rewind(&mut file).unwrap();
        file
    };
    for stream in [&full.output, &digests] {
        let contents = digests_of_export(file(stream)).unwrap();
        assert_eq!((contents.id, &contents.digests), (full.id, &full.digests));
        for len in 0..stream.len() {
            assert!(digests_of_export(file(&stream[..len])).is_err(), "{len}");
        }
    }
    for at in 0..digests.len() {
        let mut digests = digests.clone();
        digests[at] ^= 1;
        // Their identifier does not count which of the two it is.
        assert!(digests_of_export(file(&digests)).is_err(), "{at}");
    }
}

/// Reads whatever it is: each piece lies in the pool, and what is not refused has the digests that it says. True if it is not refused.
fn read_wild(stream: &[u8], before: Option<&Made>, pool: &mut [u8]) -> bool {
    let before = before.map(|made| Contents {
        header: header(pool.len() as u64),
        id: made.written.id,
        digests: made.written.digests.clone(),
    });
    match read(stream, before, pool) {
        Ok(contents) => {
            let found: Vec<_> = pool.chunks(CHUNK).map(super::format::digest_of).collect();
            assert!(found == contents.digests, "it does not hold what it says");
            true
        }
        Err(error) => {
            assert!(error.is::<FormatError>(), "{error:#}");
            false
        }
    }
}

/// Some change of a stream.
#[derive(Clone, Debug)]
enum Edit {
    Set(Index, u8),
    Insert(Index, Vec<u8>),
    Remove(Index, usize),
    /// Bytes of another place.
    Copy(Index, Index, usize),
}

fn edit() -> impl Strategy<Value = Edit> {
    let place = any::<Index>;
    // Sizes of records and of what follows them, among others.
    let len = || prop_oneof![Just(RECORD_BYTES), Just(CHUNK), Just(RECORD_BYTES + CHUNK), 1..5000_usize];
    prop_oneof![
        3 => (place(), any::<u8>()).prop_map(|(at, byte)| Edit::Set(at, byte)),
        1 => (place(), vec(any::<u8>(), 1..100)).prop_map(|(at, bytes)| Edit::Insert(at, bytes)),
        2 => (place(), len()).prop_map(|(at, len)| Edit::Remove(at, len)),
        2 => (place(), place(), len()).prop_map(|(from, to, len)| Edit::Copy(from, to, len)),
    ]
}

fn apply(stream: &mut Vec<u8>, edit: &Edit) {
    let place = |index: &Index| index.index(stream.len() + 1);
    match edit {
        Edit::Set(at, byte) => {
            let at = place(at);
            stream.get_mut(at).into_iter().for_each(|found| *found = *byte);
        }
        Edit::Insert(at, bytes) => {
            let at = place(at);
            stream.splice(at..at, bytes.iter().copied());
        }
        Edit::Remove(at, len) => {
            let at = place(at);
            stream.drain(at..stream.len().min(at + len));
        }
        Edit::Copy(from, to, len) => {
            let (from, to) = (place(from), place(to));
            let bytes = stream[from..stream.len().min(from + len)].to_vec();
            stream.splice(to..to, bytes);
        }
    }
}

/// Records that all have their checksum: wrong in their places, lengths and order only.
fn record(size_bytes: u64) -> impl Strategy<Value = (Record, Vec<u8>)> {
    let chunk = CHUNK as u64;
    let at = prop_oneof![6 => (0..8_u64).prop_map(move |at| at * chunk), 1 => 0..=size_bytes, 1 => any::<u64>()];
    let len = prop_oneof![6 => Just(CHUNK), 1 => Just(100), 1 => 0..2 * CHUNK];
    let bytes = (any::<bool>(), len, any::<u8>()).prop_map(|(is_right, len, byte)| (is_right, vec![byte; len]));
    (0..4_u8, at, bytes, 0..8_u64, any::<u64>()).prop_map(move |(kind, at, (is_right, bytes), count, wild)| {
        let digest = super::format::digest_of(if is_right { &bytes } else { b"" });
        let len_bytes = bytes.len() as u32;
        match kind {
            0 => (Record::Data { offset: at, len_bytes, digest }, bytes),
            1 if is_right => (Record::Zeroes { offset: at, len_bytes: count * chunk }, Vec::new()),
            1 => (Record::Zeroes { offset: at, len_bytes: wild }, Vec::new()),
            2 => (Record::Digests { first: count, len_bytes, digest }, bytes),
            _ => (Record::End { digests_at: at, id: digest }, Vec::new()),
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn an_export_with_any_edits_is_refused_or_is_what_it_says(edits in vec(edit(), 0..4), is_increment: bool) {
        let (mut pool, mut changed) = (pool(), pool());
        changed[CHUNK..2 * CHUNK].fill(5);
        let full = written(header(pool.len() as u64), &pool, None);
        let increment = written(header(pool.len() as u64), &changed, Some(&full)).output;
        let (mut stream, before) = if is_increment { (increment, Some(&full)) } else { (full.output.clone(), None) };
        let sound = stream.clone();
        for edit in &edits {
            apply(&mut stream, edit);
        }
        if !is_increment {
            pool.fill(0);
        }
        prop_assert_eq!(read_wild(&stream, before, &mut pool), stream == sound);
    }

    #[test]
    fn records_in_any_order_and_of_any_length_are_refused_or_are_what_they_say(
        records in vec(record(5 * CHUNK as u64 + 100), 0..12),
    ) {
        let mut pool = vec![0; 5 * CHUNK + 100];
        let mut stream = header(pool.len() as u64).to_bytes(Kind::Export).to_vec();
        for (record, bytes) in &records {
            stream.extend_from_slice(&record.to_bytes());
            stream.extend_from_slice(bytes);
        }
        read_wild(&stream, None, &mut pool);
    }
}
