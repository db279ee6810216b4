//! Pools that keep digests of their pages: what a medium changed is never read, and is repaired from where it is whole.

use std::{
    fs::{self, File, OpenOptions},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

use pmof_access::Durability;
use pmof_control::{HEAD_4_BYTES, Header, PAGE_BYTES, PageDigests, PageWord, page_count};
use pmof_pool::{Event, Pool, PoolError, PoolOptions};

use crate::support::*;

const SIZE_BYTES: u64 = (4 << 20) + 100;
const PAGE: usize = PAGE_BYTES as usize;

/// The files of replicas, whatever serves them.
struct Files(Vec<PathBuf>);

fn file_of(target: &Target) -> PathBuf {
    target.root.path().join("orders")
}

fn with_digests<U: Into<String>>(urls: impl IntoIterator<Item = U>) -> PoolOptions {
    options(urls).digests(true)
}

/// On a busy machine an opening may go on without a replica that is late, and that comes back.
fn open<U: Into<String>>(urls: impl IntoIterator<Item = U>) -> Pool {
    let pool = options(urls).open().unwrap();
    wait_in_sync(&pool);
    pool
}

fn start<const N: usize>() -> ([Target; N], Files) {
    let targets: [Target; N] = std::array::from_fn(|_| Target::start_fixed());
    let files = Files(targets.iter().map(file_of).collect());
    (targets, files)
}

fn header_of(path: &Path) -> (File, Header) {
    let file = OpenOptions::new().read(true).write(true).open(path).expect("a file");
    let mut begin = vec![0; HEAD_4_BYTES as usize];
    file.read_exact_at(&mut begin, 0).expect("the head");
    let (header, _) = Header::of_file(&begin).expect("a header");
    (file, header)
}

impl Files {
    /// Flips a bit of the data of a replica.
    fn rot(&self, replica: usize, offset: u64) {
        let (file, header) = header_of(&self.0[replica]);
        let at = header.data_offset() + offset;
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).expect("a byte");
        file.write_all_at(&[byte[0] ^ 8], at).expect("written");
    }

    /// Pages that are protected and whole, not protected, and damaged.
    fn judge(&self, replica: usize) -> [u64; 3] {
        let (file, header) = header_of(&self.0[replica]);
        let (digests, area) = (PageDigests::new(header.pool_uuid), header.layout.digests().expect("digests"));
        let mut found = [0; 3];
        for page in 0..page_count(header.size_bytes) {
            let (mut word, mut bytes) = ([0; 8], vec![0; PAGE]);
            file.read_exact_at(&mut word, area.start + 8 * page).expect("a word");
            file.read_exact_at(&mut bytes, header.data_offset() + page * PAGE_BYTES).expect("a page");
            found[match digests.decode(page, u64::from_le_bytes(word)) {
                PageWord::Protected(digest) if digest == digests.digest(page, &bytes) => 0,
                PageWord::Unprotected => 1,
                PageWord::Protected(_) | PageWord::Damaged => 2,
            }] += 1;
        }
        found
    }

    /// The first page behind so many others that is protected.
    fn protected(&self, replica: usize, skipped: usize) -> u64 {
        let (file, header) = header_of(&self.0[replica]);
        let (digests, area) = (PageDigests::new(header.pool_uuid), header.layout.digests().expect("digests"));
        let is_protected = |page: &u64| {
            let mut word = [0; 8];
            file.read_exact_at(&mut word, area.start + 8 * page).expect("a word");
            matches!(digests.decode(*page, u64::from_le_bytes(word)), PageWord::Protected(_))
        };
        (0..page_count(header.size_bytes)).filter(is_protected).nth(skipped).expect("a page that is protected")
    }

    /// Takes a page's protection back.
    fn unprotect(&self, replica: usize, page: u64) {
        let (file, header) = header_of(&self.0[replica]);
        let word = PageDigests::new(header.pool_uuid).unprotected(page);
        let area = header.layout.digests().expect("digests");
        file.write_all_at(&word.to_le_bytes(), area.start + 8 * page).expect("written");
    }

    #[track_caller]
    fn assert_protected(&self) {
        let all = [page_count(SIZE_BYTES), 0, 0];
        assert_eq!((0..self.0.len()).map(|replica| self.judge(replica)).collect::<Vec<_>>(), vec![all; self.0.len()]);
    }
}

fn healed(events: &mut pmof_pool::Events) -> Vec<(String, u64)> {
    let mut healed = Vec::new();
    while let Some(event) = events.next_for(std::time::Duration::ZERO) {
        if let Event::Healed { replica, range } = event {
            healed.push((replica.to_string(), range.start / PAGE_BYTES));
        }
    }
    healed
}

/// What a user found: one bit of the first replica, and a program that read another amount.
#[test]
fn one_flipped_bit_is_never_read() {
    const TEXT: &[u8] = b"pay Alice 100 EUR";
    for count in [2, 3] {
        for reads_only in [false, true] {
            let targets: Vec<_> = (0..count).map(|_| Target::start_fixed()).collect();
            let files = Files(targets.iter().map(file_of).collect());
            let pool = with_digests(urls(&targets)).create(SIZE_BYTES).unwrap();
            pool.persist(5000, TEXT).unwrap();
            pool.close().unwrap();
            files.assert_protected();
            files.rot(0, 5000 + 10);
            if reads_only {
                let reader = options(urls(&targets)).open_read_only().unwrap();
                assert_eq!(read(&reader, 5000, TEXT.len()), TEXT);
                assert_eq!(files.judge(0)[2], 1, "a reader changes nothing");
                continue;
            }
            let pool = open(urls(&targets));
            let mut events = pool.events();
            assert_eq!(read(&pool, 5000, TEXT.len()), TEXT);
            assert_eq!(read(&pool, 5000, TEXT.len()), TEXT);
            assert_eq!(healed(&mut events), [(targets[0].url("orders"), 1)]);
            pool.close().unwrap();
            files.assert_protected();
        }
    }
}

#[test]
fn another_page_on_each_replica_is_healed() {
    let (targets, files) = start::<2>();
    let bytes = pattern(SIZE_BYTES as usize, 3);
    let pool = with_digests(urls(&targets)).create(SIZE_BYTES).unwrap();
    pool.persist(0, &bytes).unwrap();
    pool.close().unwrap();
    files.assert_protected();
    let last = page_count(SIZE_BYTES) - 1;
    for (replica, page) in [(0, 0), (0, 7), (1, 8), (1, 700), (0, last)] {
        files.rot(replica, page * PAGE_BYTES + 50);
    }
    let pool = open(urls(&targets));
    let mut events = pool.events();
    assert!(read(&pool, 0, SIZE_BYTES as usize) == bytes);
    assert_eq!(healed(&mut events).len(), 3, "those of the replica that is read");
    // The other ones when they are written to.
    pool.persist(8 * PAGE_BYTES + 9, b"later").unwrap();
    pool.persist(700 * PAGE_BYTES, b"later").unwrap();
    assert_eq!(healed(&mut events), [8, 700].map(|page| (targets[1].url("orders"), page)));
    let mut expected = bytes;
    expected[8 * PAGE + 9..][..5].copy_from_slice(b"later");
    expected[700 * PAGE..][..5].copy_from_slice(b"later");
    assert!(read(&pool, 0, SIZE_BYTES as usize) == expected);
    pool.close().unwrap();
    files.assert_protected();
    for replica in 0..2 {
        let file = fs::read(&files.0[replica]).unwrap();
        let data = header_of(&files.0[replica]).1.data_offset() as usize;
        assert!(file[data..][..expected.len()] == expected, "replica {replica}");
    }
}

/// Nothing of a page that is damaged on all replicas is given, nor lost silently by a write to a part of it.
#[test]
fn a_page_that_is_damaged_everywhere_is_an_error() {
    for count in [1, 2] {
        let targets: Vec<_> = (0..count).map(|_| Target::start_fixed()).collect();
        let files = Files(targets.iter().map(file_of).collect());
        let pool = with_digests(urls(&targets)).create(SIZE_BYTES).unwrap();
        pool.close().unwrap();
        files.assert_protected();
        (0..count).for_each(|replica| files.rot(replica, 3 * PAGE_BYTES + replica as u64));
        let pool = open(urls(&targets));
        let damaged = |result: Result<(), PoolError>| match result {
            Err(PoolError::Damaged { ranges }) => ranges,
            other => panic!("{other:?}"),
        };
        let page = 3 * PAGE_BYTES..4 * PAGE_BYTES;
        let mut bytes = vec![0; 4 * PAGE];
        assert!(damaged(pool.read(PAGE_BYTES, &mut bytes)).iter().eq([&page]));
        assert!(damaged(pool.read(page.start + 4000, &mut bytes[..1])).iter().eq([&page]));
        assert!(damaged(pool.persist(page.start + 8, b"a part").map(drop)).iter().eq([&page]));
        let text = damaged_text(&pool, page.start);
        assert!(text.contains("bytes 12288 to 16384 of the pool are damaged") || text.contains("is damaged"), "{text}");
        assert_eq!(read(&pool, 4 * PAGE_BYTES, 2 * PAGE), vec![0; 2 * PAGE], "the others can be read");
        pool.persist(4 * PAGE_BYTES, b"and written").unwrap();
        // A write of all of it is what was lost.
        pool.persist(page.start, &[7; PAGE]).unwrap();
        assert_eq!(read(&pool, page.start, PAGE), [7; PAGE]);
        pool.close().unwrap();
        if count > 1 {
            files.assert_protected();
        }
    }
}

fn damaged_text(pool: &Pool, offset: u64) -> String {
    pool.read(offset, &mut [0]).expect_err("it is damaged").to_string()
}

/// With two replicas, too, whose comparison says nothing, and with one.
#[test]
fn a_scrub_repairs_what_differs_from_its_digest() {
    let (targets, files) = start::<2>();
    let pool = with_digests(urls(&targets)).create(SIZE_BYTES).unwrap();
    pool.persist(50_000, &pattern(100_000, 4)).unwrap();
    pool.close().unwrap();
    for (replica, page) in [(0, 13), (1, 14), (1, 900), (0, 1000), (1, 1000)] {
        files.rot(replica, page * PAGE_BYTES);
    }
    let pool = open(urls(&targets));
    let report = pool.scrub(&mut |_| {}).unwrap();
    let pages = |found: &[pmof_pool::Repaired]| {
        let mut pages: Vec<_> =
            found.iter().map(|found| (found.replica.to_string(), found.range.start / PAGE_BYTES)).collect();
        pages.sort();
        pages
    };
    let mut expected =
        [(0, 13), (1, 14), (1, 900)].map(|(replica, page): (usize, u64)| (targets[replica].url("orders"), page));
    expected.sort();
    assert_eq!(pages(&report.repaired), expected);
    assert_eq!((pages(&report.damaged).len(), report.compared_bytes, report.replica_count), (2, SIZE_BYTES, 2));
    assert_eq!([files.judge(0)[2], files.judge(1)[2]], [1, 1]);
    pool.persist(1000 * PAGE_BYTES, &[0; PAGE]).unwrap();
    let clean = pool.scrub(&mut |_| {}).unwrap();
    assert!(clean.repaired.is_empty() && clean.damaged.is_empty() && clean.undecided.is_empty(), "{clean:?}");
    pool.close().unwrap();
    files.assert_protected();
}

/// Writers that die leave pages without protection, and none that seems to be damaged.
#[test]
fn a_writer_that_dies_leaves_no_false_alarm() {
    let (targets, files) = start::<2>();
    let mut expected = vec![0; SIZE_BYTES as usize];
    drop(with_digests(urls(&targets)).create(SIZE_BYTES).unwrap());
    for round in 0..5_u64 {
        let pool = open(urls(&targets));
        assert!(read(&pool, 0, SIZE_BYTES as usize) == expected);
        // What was damaged beside what may differ is no part of what an opening compares.
        pool.scrub(&mut |_| {}).unwrap();
        for write in 0..20 {
            let (offset, bytes) =
                ((round * 7919 + write * 104_729) % (SIZE_BYTES - 9000), pattern(9000, round * 50 + write + 1));
            pool.persist(offset, &bytes).unwrap();
            expected[offset as usize..][..9000].copy_from_slice(&bytes);
        }
        let mut lane = pool.lane();
        lane.write(round * 4096, b"never flushed").unwrap();
        expected[round as usize * PAGE..][..13].copy_from_slice(b"never flushed");
        assert!(read(&pool, 0, SIZE_BYTES as usize) == expected);
        drop((lane, pool));
        assert!(files.judge(0)[2] + files.judge(1)[2] == 0 && files.judge(0)[1] > 0);
        // Beside what may differ, in the same extents: a page of each replica that is protected.
        for (replica, skipped) in [(0, 0), (1, 40)] {
            let page = files.protected(replica, skipped);
            files.rot(replica, page * PAGE_BYTES + round);
        }
        // A page that was raised on the first replica only, and written there: the other one's digest holds.
        let page = files.protected(0, 200);
        files.unprotect(0, page);
        files.rot(0, page * PAGE_BYTES + 7);
    }
    let pool = open(urls(&targets));
    assert!(read(&pool, 0, SIZE_BYTES as usize) == expected);
    pool.scrub(&mut |_| {}).unwrap();
    pool.close().unwrap();
    assert_eq!([files.judge(0)[2], files.judge(1)[2]], [0, 0]);
}

#[test]
fn a_replica_that_was_away_catches_up_and_is_protected() {
    let (mut targets, files) = start::<3>();
    let pool = with_digests(urls(&targets)).create(SIZE_BYTES).unwrap();
    let mut expected = vec![0; SIZE_BYTES as usize];
    let mut write = |pool: &Pool, offset: u64, seed| {
        let bytes = pattern(20_000, seed);
        pool.persist(offset, &bytes).unwrap();
        expected[offset as usize..][..20_000].copy_from_slice(&bytes);
    };
    write(&pool, 100_000, 1);
    targets[1].stop();
    write(&pool, 110_000, 2);
    write(&pool, 2_000_000, 3);
    targets[1].restart();
    write(&pool, 2_010_000, 4);
    wait_in_sync(&pool);
    write(&pool, 3_000_000, 5);
    pool.close().unwrap();
    // What it was copied is protected later, while the pool is open.
    assert_eq!([0, 1, 2].map(|replica| files.judge(replica)[2]), [0; 3]);
    assert_eq!([files.judge(0)[1], files.judge(2)[1]], [0; 2]);
    files.rot(0, 115_000);
    files.rot(2, 2_005_000);
    let pool = open(urls(&targets));
    assert!(read(&pool, 0, SIZE_BYTES as usize) == expected);
    pool.close().unwrap();
    // Away for a whole session, so that no page that it lacks is raised by the next writer.
    targets[2].stop();
    let pool = options(urls(&targets[..2])).open().unwrap();
    pool.persist(3_500_000, &[5; 10_000]).unwrap();
    expected[3_500_000..][..10_000].fill(5);
    pool.close().unwrap();
    targets[2].restart();
    let pool = open(urls(&targets));
    pool.close().unwrap();
    let pool = open([targets[2].url("orders")]);
    assert!(read(&pool, 0, SIZE_BYTES as usize) == expected);
    pool.close().unwrap();
    assert_eq!([0, 1, 2].map(|replica| files.judge(replica)[2]), [0, 0, 0]);
}

/// Over shm and in a file of this process as over tcp; where bytes are stored past the target's CPU, too.
#[test]
fn pages_are_protected_over_every_way_to_a_replica() {
    let here = tempfile::tempdir().unwrap();
    let shm = Target::start_with(tempfile::tempdir().unwrap(), pmof_target::ServiceOptions::default());
    let socket = here.path().join("target.sock");
    let _shm = pmof_target::Service::start(
        shm.root.path(),
        &[format!("shm://{}", socket.display()).parse().unwrap()],
        pmof_target::ServiceOptions::default(),
    )
    .unwrap();
    let tcp = Target::start_fixed();
    fs::create_dir(here.path().join("pools")).unwrap();
    let urls = [
        format!("shm://{}?pool=orders", socket.display()),
        format!("file://{}/pools/orders", here.path().display()),
        tcp.url("orders"),
    ];
    let files = Files(vec![file_of(&shm), here.path().join("pools/orders"), file_of(&tcp)]);
    let bytes = pattern(300_000, 9);
    let pool = with_digests(urls.clone()).create(SIZE_BYTES).unwrap();
    pool.persist(1_000_001, &bytes).unwrap();
    pool.close().unwrap();
    files.assert_protected();
    for first in 0..3 {
        let mut urls = urls.to_vec();
        urls.rotate_left(first);
        files.rot(first, 1_100_000);
        let pool = open(urls);
        assert!(read(&pool, 1_000_001, 300_000) == bytes, "{first}");
        pool.persist(1_100_000, &bytes[99_999..99_999 + 8]).unwrap();
        pool.close().unwrap();
        files.assert_protected();
    }
}

/// While the pool is open pages are protected again some seconds after the last write to them, also a pool of one replica.
#[test]
fn pages_that_are_left_alone_are_protected_again() {
    let (targets, files) = start::<2>();
    let pool = with_digests(urls(&targets)).require(Durability::PowerFailure);
    let Ok(pool) = pool.create(SIZE_BYTES) else { return };
    pool.persist(0, &pattern(100_000, 1)).unwrap();
    let before = files.judge(0);
    assert!(before[1] >= 25 && before[2] == 0, "{before:?}");
    let until = std::time::Instant::now() + LONG;
    while files.judge(0)[1] + files.judge(1)[1] > 32 {
        pool.persist(SIZE_BYTES - 8, b"on and on").unwrap_err();
        pool.persist(SIZE_BYTES - 9, b"on and on").unwrap();
        assert!(std::time::Instant::now() < until, "{:?}", files.judge(0));
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    files.rot(0, 50_000);
    assert!(read(&pool, 0, 100_000) == pattern(100_000, 1));
    pool.close().unwrap();
    files.assert_protected();
}

/// A scrub repairs what no read has met: of two replicas, and where most hold the same wrong bytes.
#[test]
fn a_scrub_repairs_pages_by_their_digests() {
    for count in [2, 3] {
        let targets: Vec<_> = (0..count).map(|_| Target::start_fixed()).collect();
        let files = Files(targets.iter().map(file_of).collect());
        let bytes = pattern(SIZE_BYTES as usize, 5);
        let pool = with_digests(urls(&targets)).create(SIZE_BYTES).unwrap();
        pool.persist(0, &bytes).unwrap();
        pool.close().unwrap();
        // The first one is read: of that page nothing would be noticed.
        files.rot(1, 9 * PAGE_BYTES + 1);
        (1..count).for_each(|replica| files.rot(replica, 700 * PAGE_BYTES));
        let pool = options(urls(&targets)).open().unwrap();
        let report = pool.scrub(&mut |_| ()).unwrap();
        assert!(report.undecided.is_empty() && report.compared_bytes == SIZE_BYTES, "{report:?}");
        let mut repaired: Vec<_> = report.repaired.iter().map(|page| page.range.start / PAGE_BYTES).collect();
        repaired.sort_unstable();
        assert_eq!(repaired, [9, 700, 700][..count]);
        assert!(read(&pool, 0, SIZE_BYTES as usize) == bytes);
        pool.close().unwrap();
        files.assert_protected();
    }
}

/// A page that is damaged everywhere fails no scrub, and takes no replica out of use.
#[test]
fn a_scrub_goes_on_where_a_page_is_lost() {
    let (targets, files) = start::<3>();
    let pool = with_digests(urls(&targets)).create(SIZE_BYTES).unwrap();
    pool.persist(0, &pattern(100_000, 4)).unwrap();
    pool.close().unwrap();
    // Two of them alike.
    for (replica, offset) in [(0, 4), (1, 4), (2, 5)] {
        files.rot(replica, 3 * PAGE_BYTES + offset);
    }
    files.rot(1, 5 * PAGE_BYTES);
    let pool = options(urls(&targets)).open().unwrap();
    let mut events = pool.events();
    pool.scrub(&mut |_| ()).unwrap();
    assert_eq!(healed(&mut events), [(targets[1].url("orders"), 5)]);
    assert!(!pool.status().unwrap().is_degraded());
    assert!(matches!(pool.read(3 * PAGE_BYTES, &mut [0]), Err(PoolError::Damaged { .. })));
}

/// A write of digest words that never reached the medium leaves older ones, each whole: the pages are as on the other replica, whose digests hold.
#[test]
fn older_words_are_replaced() {
    let (targets, files) = start::<2>();
    let bytes = pattern(SIZE_BYTES as usize, 8);
    let pool = with_digests(urls(&targets)).create(SIZE_BYTES).unwrap();
    let (file, header) = header_of(&files.0[0]);
    let at = header.layout.digests().unwrap().start;
    let mut older = vec![0; 512];
    file.read_exact_at(&mut older, at).unwrap();
    pool.persist(0, &bytes).unwrap();
    pool.close().unwrap();
    file.write_all_at(&older, at).unwrap();
    assert_eq!(files.judge(0)[2], 64);
    let pool = options(urls(&targets)).open().unwrap();
    let mut expected = bytes;
    pool.persist(7 * PAGE_BYTES + 9, b"a part of a page").unwrap();
    expected[7 * PAGE + 9..][..16].copy_from_slice(b"a part of a page");
    assert!(read(&pool, 0, SIZE_BYTES as usize) == expected);
    assert_eq!(files.judge(0)[2], 0);
    pool.close().unwrap();
    assert_eq!((files.judge(0)[2], files.judge(1)), (0, [page_count(SIZE_BYTES), 0, 0]));
}

#[test]
fn a_page_and_its_word_are_repaired_before_a_part_of_it_is_written() {
    let (targets, files) = start::<2>();
    let mut bytes = pattern(SIZE_BYTES as usize, 9);
    let pool = with_digests(urls(&targets)).create(SIZE_BYTES).unwrap();
    pool.persist(0, &bytes).unwrap();
    pool.close().unwrap();
    for (replica, page) in [(0, 4), (1, 9)] {
        files.rot(replica, page * PAGE_BYTES + 100);
        let (file, header) = header_of(&files.0[replica]);
        file.write_all_at(&[0xa5; 8], header.layout.digests().unwrap().start + 8 * page).unwrap();
        assert_eq!(files.judge(replica)[2], 1);
    }
    let pool = options(urls(&targets)).open().unwrap();
    for page in [4, 9] {
        pool.persist(page * PAGE_BYTES + 9, b"a part of a page").unwrap();
        bytes[page as usize * PAGE + 9..][..16].copy_from_slice(b"a part of a page");
    }
    pool.close().unwrap();
    files.assert_protected();
    for url in urls(&targets) {
        let replica = options([url]).min_replicas(1).open_read_only().unwrap();
        assert!(read(&replica, 0, SIZE_BYTES as usize) == bytes);
    }
}
