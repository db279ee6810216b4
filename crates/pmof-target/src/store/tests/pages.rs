//! Pools that keep digests of their pages: what is damaged is never read, and what a crash leaves is never taken for damage.
#![expect(clippy::single_range_in_vec_init, reason = "requests name ranges of pages, of which there may be one")]

use std::ops::Range;

use pmof_control::{DIGEST_WORD_BYTES, HEAD_4_BYTES, PAGE_BYTES, PageDigests, PageWord, PagesReply, PagesRequest};

use super::{
    super::{
        device::{self, Holds},
        outputs::run_on,
        protected::ProtectedMemory,
        state::{perform, write_head},
    },
    *,
};
use crate::engine::{Driver, Output};

const PAGES: u64 = 5;
const PAGE: usize = PAGE_BYTES as usize;

fn protected_pool(pages: u64) -> NewPool {
    let size_bytes = pages * PAGE_BYTES - 100;
    NewPool { protection: Some(Protection { max_size_bytes: 4 * size_bytes }), ..new_pool(size_bytes) }
}

/// A store with a pool that is open.
fn made() -> (TempDir, PoolStore, OpenPool) {
    let (root, store) = fresh();
    let pool = store.create(&name("orders"), &protected_pool(PAGES), "me".to_owned()).expect("a pool");
    (root, store, pool)
}

fn ask(pool: &mut OpenPool, request: PagesRequest) -> PagesReply {
    match pool.ask(Request::Pages(request)).expect("answered") {
        Reply::Pages(reply) => reply,
        other => panic!("{other:?}"),
    }
}

fn raise(pool: &mut OpenPool, pages: &[Range<u64>]) -> Vec<Range<u64>> {
    match ask(pool, PagesRequest::Raise { pages: pages.to_vec(), is_forced: false, is_alone: false }) {
        PagesReply::Raised { damaged, .. } => damaged,
        other => panic!("{other:?}"),
    }
}

/// Digests pages and protects them by that.
fn protect(pool: &mut OpenPool, pages: &[Range<u64>]) -> Vec<Range<u64>> {
    let PagesReply::Digests { words } = ask(pool, PagesRequest::Digest { pages: pages.to_vec() }) else { panic!() };
    match ask(pool, PagesRequest::Protect { pages: pages.to_vec(), words, is_alone: false }) {
        PagesReply::Protected { others } => others,
        other => panic!("{other:?}"),
    }
}

fn unprotected(pool: &mut OpenPool) -> Vec<Range<u64>> {
    match ask(pool, PagesRequest::Unprotected { pages: 0..u64::MAX }) {
        PagesReply::Unprotected { pages, end: PAGES } => pages,
        other => panic!("{other:?}"),
    }
}

fn damaged(pool: &mut OpenPool) -> Vec<Range<u64>> {
    match ask(pool, PagesRequest::Verify { pages: 0..PAGES }) {
        PagesReply::Verified { damaged, end: PAGES } => damaged,
        other => panic!("{other:?}"),
    }
}

/// Changes a byte behind the pool's back.
fn rot(pool: &OpenPool, page: u64, at: u64) {
    let (memory, offset) = (pool.medium(), pool.data_offset() + page * PAGE_BYTES + at);
    let mut byte = [0];
    memory.read(offset, &mut byte).expect("inside");
    memory.store(offset, &[byte[0] ^ 4]).expect("inside");
}

fn word_offset(pool: &OpenPool, page: u64) -> u64 {
    pool.header().layout.digests().expect("digests").start + page * DIGEST_WORD_BYTES
}

fn read(pool: &OpenPool, offset: u64, len_bytes: usize) -> Result<Vec<u8>, MemError> {
    let mut bytes = vec![0; len_bytes];
    pool.served_medium().read(pool.data_offset() + offset, &mut bytes).map(|()| bytes)
}

/// Which page was refused, and why.
#[derive(Debug, PartialEq, Eq)]
enum Refused {
    Damaged(u64),
    Protected(u64),
}

fn refused<T: std::fmt::Debug>(pool: &OpenPool, result: Result<T, MemError>) -> Refused {
    let page = |offset: u64| (offset - pool.data_offset()) / PAGE_BYTES;
    match result {
        Err(MemError::Damaged { offset, len_bytes: PAGE_BYTES }) => Refused::Damaged(page(offset)),
        Err(MemError::Protected { offset }) => Refused::Protected(page(offset)),
        other => panic!("{other:?}"),
    }
}

fn write(pool: &OpenPool, offset: u64, bytes: &[u8]) -> Result<(), MemError> {
    let (medium, offset) = (pool.served_medium(), pool.data_offset() + offset);
    medium.store(offset, bytes)?;
    medium.write_back(offset, bytes.len() as u64)?;
    medium.fence()
}

#[test]
fn a_new_pool_is_protected_and_has_room_to_grow() {
    let (_root, store, mut pool) = made();
    assert_eq!(pool.header().format, PoolFormat::Four);
    assert_eq!(pool.header().layout.max_size_bytes, 4 * (PAGES * PAGE_BYTES - 100));
    assert_eq!((unprotected(&mut pool), damaged(&mut pool)), (vec![], vec![]));
    assert_eq!(read(&pool, 10, 3 * PAGE).expect("whole"), vec![0; 3 * PAGE]);
    drop(pool);
    let info = store.info(&name("orders")).expect("info");
    assert_eq!(Some(info.file_len_bytes), info.header.file_len_bytes());
    let pool = open(&store, "orders", OpenFor::Write).expect("a pool");
    let told = pool.told(Vec::new(), None);
    let Reply::Opened { enclosed, .. } = told else { panic!("{told:?}") };
    assert_eq!(enclosed.protection, protected_pool(PAGES).protection);
}

#[test]
fn no_damaged_byte_is_read() {
    let (_root, _store, mut pool) = made();
    assert_eq!(raise(&mut pool, &[0..PAGES]), []);
    write(&pool, 0, &[7; 2 * PAGE]).expect("raised");
    assert_eq!(protect(&mut pool, &[0..PAGES]), []);
    for page in 0..PAGES {
        for at in [0, 100, PAGE_BYTES - 1] {
            rot(&pool, page, at);
            let offset = pool.data_offset() + page * PAGE_BYTES;
            for (first, len_bytes) in [(at, 1), (8, 8), (0, PAGE)] {
                let result = read(&pool, page * PAGE_BYTES + first, len_bytes);
                assert_eq!(refused(&pool, result), Refused::Damaged(page), "{at}");
            }
            let served = pool.served_medium();
            assert_eq!(refused(&pool, served.touch(pool.data_offset(), PAGES * PAGE_BYTES)), Refused::Damaged(page));
            assert_eq!(refused(&pool, served.crc32c(offset + 5, 1)), Refused::Damaged(page));
            assert_eq!(damaged(&mut pool), [page..page + 1]);
            assert_eq!(raise(&mut pool, &[0..PAGES]), [page..page + 1], "it is no page to write to");
            assert_eq!(protect(&mut pool, &[0..PAGES]), [page..page + 1], "nor one to protect");
            rot(&pool, page, at);
            assert_eq!(damaged(&mut pool), []);
        }
    }
    assert_eq!(read(&pool, 0, 3 * PAGE).expect("whole"), [&[7; 2 * PAGE][..], &[0; PAGE]].concat());
}

#[test]
fn a_page_is_raised_before_it_is_written() {
    let (_root, _store, mut pool) = made();
    let (medium, word) = (pool.served_medium(), pool.data_offset() + 8);
    for result in [
        write(&pool, 8, b"word"),
        medium.atomic_store(word, 9),
        medium.fetch_and_add(word, 9).map(drop),
        medium.compare_and_swap(word, 0, 9).map(drop),
    ] {
        assert_eq!(refused(&pool, result), Refused::Protected(0));
    }
    assert_eq!(raise(&mut pool, &[0..2]), []);
    assert_eq!(refused(&pool, write(&pool, PAGE_BYTES, &[1; PAGE + 1])), Refused::Protected(2));
    write(&pool, PAGE_BYTES, &[1; PAGE]).expect("raised");
    assert_eq!(unprotected(&mut pool), [0..2]);
    // What is raised may be anything.
    rot(&pool, 1, 4);
    assert_eq!((damaged(&mut pool), read(&pool, PAGE_BYTES + 4, 1).expect("a byte")), (vec![], vec![5]));
}

/// Each page of a long write is looked at.
#[test]
fn no_page_of_a_long_write_is_left_out() {
    const MANY: u64 = 100;
    let (_root, store) = fresh();
    let mut pool = store.create(&name("orders"), &protected_pool(MANY), "me".to_owned()).expect("a pool");
    let bytes = vec![3; MANY as usize * PAGE - 100];
    for page in [0, 31, 32, 33, 63, 64, 98, 99] {
        assert_eq!(raise(&mut pool, &[0..MANY]), []);
        write(&pool, 0, &bytes).expect("raised");
        assert_eq!(protect(&mut pool, &[page..page + 1]), []);
        assert_eq!(refused(&pool, write(&pool, 0, &bytes)), Refused::Protected(page));
    }
}

#[test]
fn a_page_is_protected_by_the_digest_that_it_has_only() {
    let (_root, _store, mut pool) = made();
    assert_eq!(raise(&mut pool, &[1..3]), []);
    let PagesReply::Digests { words } = ask(&mut pool, PagesRequest::Digest { pages: vec![1..3] }) else { panic!() };
    write(&pool, PAGE_BYTES, b"later").expect("raised");
    let reply = ask(&mut pool, PagesRequest::Protect { pages: vec![1..3], words: words.clone(), is_alone: false });
    assert_eq!(reply, PagesReply::Protected { others: vec![1..2] });
    assert_eq!(unprotected(&mut pool), [1..2]);
}

/// Without another replica only what was in memory all the time gets a digest.
#[test]
fn a_page_that_may_have_been_loaded_again_gets_no_digest_alone() {
    let (_root, _store, mut pool) = made();
    let alone = |pool: &mut OpenPool, is_kept: bool| {
        ask(pool, PagesRequest::Raise { pages: vec![1..3], is_forced: false, is_alone: is_kept });
        let PagesReply::Digests { words } = ask(pool, PagesRequest::Digest { pages: vec![1..3] }) else { panic!() };
        ask(pool, PagesRequest::Protect { pages: vec![1..3], words, is_alone: true })
    };
    assert_eq!(alone(&mut pool, false), PagesReply::Protected { others: vec![1..3] });
    assert_eq!(unprotected(&mut pool), [1..3]);
    assert_eq!(
        alone(&mut pool, true),
        PagesReply::Protected { others: vec![1..3] },
        "it was not whole by a digest before"
    );
    assert_eq!(protect(&mut pool, &[1..3]), [], "with another replica");
    if pool.medium().keep_resident(pool.data_offset(), 4 * PAGE_BYTES) {
        assert_eq!(alone(&mut pool, true), PagesReply::Protected { others: vec![] });
        assert_eq!(alone(&mut pool, false), PagesReply::Protected { others: vec![1..3] }, "it was let go");
    }
}

#[test]
fn a_damaged_page_is_repaired_by_its_own_bytes_only() {
    let (_root, _store, mut pool) = made();
    assert_eq!(raise(&mut pool, &[2..3]), []);
    write(&pool, 2 * PAGE_BYTES, &[9; PAGE]).expect("raised");
    assert_eq!(protect(&mut pool, &[2..3]), []);
    let digests = PageDigests::new(pool.header().pool_uuid);
    let word = digests.protected(2, digests.digest(2, &[9; PAGE]));
    let repair = |pool: &mut OpenPool, page: u64, byte: u8| {
        let part =
            |offset: u16| Request::Pages(PagesRequest::Repair { page, word, offset, bytes: vec![byte; PAGE / 2] });
        pool.ask(part(0)).and_then(|_| pool.ask(part(PAGE as u16 / 2)))
    };
    for is_word in [false, true] {
        if is_word {
            pool.medium().store(word_offset(&pool, 2), &[0; 8]).expect("inside");
        }
        rot(&pool, 2, 77);
        assert_eq!(damaged(&mut pool), [2..3]);
        assert!(matches!(repair(&mut pool, 2, 8), Err(StoreError::NotItsDigest { page: 2, .. })));
        assert!(matches!(repair(&mut pool, 3, 9), Err(StoreError::NotItsDigest { page: 3, .. })));
        assert_eq!(damaged(&mut pool), [2..3]);
        repair(&mut pool, 2, 9).expect("its bytes");
        assert_eq!((damaged(&mut pool), read(&pool, 2 * PAGE_BYTES, PAGE).expect("a page")), (vec![], vec![9; PAGE]));
    }
    // Parts that do not come in order.
    let odd = PagesRequest::Repair { page: 2, word, offset: 7, bytes: vec![9; 8] };
    assert!(matches!(pool.ask(Request::Pages(odd)), Err(StoreError::NotItsDigest { page: 2, .. })));
}

#[test]
fn what_is_asked_of_the_wrong_pool_or_page_is_refused() {
    let (_root, store, mut pool) = made();
    let beyond = PagesRequest::Verify { pages: 0..PAGES + 1 };
    assert!(matches!(pool.ask(Request::Pages(beyond)), Err(StoreError::NoSuchPage { page: PAGES, count: PAGES, .. })));
    drop(pool);
    let mut reader = open(&store, "orders", OpenFor::Read).expect("a pool");
    let raise = Request::Pages(PagesRequest::Raise { pages: vec![0..1], is_forced: true, is_alone: false });
    assert!(matches!(reader.ask(raise.clone()), Err(StoreError::ReadOnly { .. })));
    let mut former = create(&store, "former");
    assert!(matches!(former.ask(raise), Err(StoreError::NoDigests { .. })));
}

/// What a raise verified may be the source of a repair elsewhere; what had no protection, or was not looked at, may not.
#[test]
fn a_raise_tells_what_was_whole_until_then() {
    let (_root, _store, mut pool) = made();
    rot(&pool, 3, 4);
    let mut raised = |pages: Range<u64>, is_forced| {
        ask(&mut pool, PagesRequest::Raise { pages: vec![pages], is_forced, is_alone: false })
    };
    assert_eq!(raised(1..2, false), PagesReply::Raised { damaged: vec![], verified: vec![1..2] });
    let expected = PagesReply::Raised { damaged: vec![3..4], verified: vec![0..1, 2..3, 4..5] };
    assert_eq!(raised(0..5, false), expected);
    assert_eq!(raised(3..5, true), PagesReply::Raised { damaged: vec![], verified: vec![] });
}

/// A damaged block of the digest area hides no page: zeroed, filled, moved, or that of another pool.
#[test]
fn a_damaged_digest_is_told_from_a_page_without_one() {
    let (_root, store, mut pool) = made();
    let other = store.create(
        &name("other"),
        &NewPool { pool_uuid: Uuid::from_u128(9), ..protected_pool(PAGES) },
        "me".to_owned(),
    );
    let other = other.expect("a pool").medium();
    let (first, len_bytes) = (word_offset(&pool, 0), (PAGES * DIGEST_WORD_BYTES) as usize);
    let mut foreign = vec![0; len_bytes];
    other.read(first, &mut foreign).expect("inside");
    let mut own = vec![0; len_bytes];
    pool.medium().read(first, &mut own).expect("inside");
    let moved = [&own[8..], &own[..8]].concat();
    for words in [vec![0; len_bytes], vec![0xff; len_bytes], foreign, moved] {
        pool.medium().store(first, &words).expect("inside");
        assert_eq!((damaged(&mut pool), unprotected(&mut pool)), (vec![0..PAGES], vec![]));
        assert!(read(&pool, 0, 1).is_err());
    }
    pool.medium().store(first, &own).expect("inside");
    assert_eq!(damaged(&mut pool), []);
}

#[test]
fn one_damaged_block_of_the_head_changes_nothing() {
    let (_root, store, mut pool) = made();
    pool.set_roster(&Roster { version: 3, ..Roster::made(3) }).expect("set");
    pool.begin(Epoch { id: Uuid::from_u128(2), members: 0b11 }, 2, &[]).expect("begun");
    pool.confirm(Uuid::from_u128(2)).expect("confirmed");
    pool.close().expect("closed");
    let (header, state) = (pool.header().clone(), pool.state().clone());
    drop(pool);
    let path = store.root().join("orders");
    let whole = fs::read(&path).expect("a file");
    for block in 0..HEAD_4_BYTES / PAGE_BYTES {
        for filling in [0, 0xa5] {
            let mut file = whole.clone();
            file[(block * PAGE_BYTES) as usize..][..PAGE].fill(filling);
            // In place, as a device does.
            File::options().write(true).open(&path).and_then(|out| out.write_all_at(&file, 0)).expect("written");
            let info = store.info(&name("orders")).expect("a pool");
            assert_eq!((&info.header, &info.state), (&header, &state), "block {block}");
            let reader = open(&store, "orders", OpenFor::Read).expect("a pool");
            assert_eq!((reader.state(), reader.roster().version), (&state, 3), "block {block}");
            drop(reader);
            let writer = open(&store, "orders", OpenFor::Write).expect("a pool");
            assert_eq!((writer.state(), writer.roster().version), (&state, 3), "block {block}");
            drop(writer);
            // A writer has made all copies whole, but for the map, which says of itself what it lost.
            let mended = fs::read(&path).expect("a file");
            for places in [PoolFormat::Four.header_places(), PoolFormat::Four.state_places()] {
                for place in places {
                    let blocks = |file: &[u8]| file[*place as usize..][..PAGE].to_vec();
                    assert_eq!(blocks(&mended)[..8], blocks(&whole)[..8], "block {block}, place {place}");
                }
            }
        }
    }
}

/// A replica on a shadow medium, whose requests go through the engine.
struct Shadow {
    medium: ShadowMedium,
    replica: OpenReplica,
}

impl Driver<Output, Vec<u8>> for Shadow {
    type Error = StoreError;

    fn perform(&mut self, output: Output) -> Result<Vec<u8>, StoreError> {
        perform(&self.medium, &output).map_err(|source| StoreError::Memory { name: name("orders"), source })
    }
}

impl Shadow {
    fn made() -> Self {
        let header = new_header(&protected_pool(PAGES)).expect("it fits");
        let len_bytes = header.file_len_bytes().expect("a length");
        let medium = ShadowMedium::from_image(vec![0; len_bytes as usize], MediumKind::DevDax).expect("a medium");
        let state = PoolState::new(Uuid::from_u128(43), 3);
        write_head(&medium, &header, &state).expect("written");
        let image = medium.crash_images(1).next().expect("an image");
        let medium = ShadowMedium::from_image(image, MediumKind::DevDax).expect("a medium");
        Self { medium, replica: OpenReplica::made(header, state, ShippedRules) }
    }

    fn ask(&mut self, request: PagesRequest) -> PagesReply {
        let mut replica = self.replica.clone();
        match run_on(&name("orders"), replica.serve_pages(request), self).expect("answered") {
            Reply::Pages(reply) => reply,
            other => panic!("{other:?}"),
        }
    }

    fn store(&self, offset: u64, bytes: &[u8]) {
        let offset = self.replica.header().data_offset() + offset;
        self.medium.store(offset, bytes).expect("inside");
        self.medium.write_back(offset, bytes.len() as u64).expect("inside");
    }

    /// Two rounds of writes to pages, each of them raised before and protected behind.
    fn write_and_protect(&mut self) {
        for round in 1..3_u8 {
            let pages = vec![1..2, 3..4];
            self.ask(PagesRequest::Raise { pages: pages.clone(), is_forced: round == 2, is_alone: false });
            self.store(PAGE_BYTES + 16, &[round; 8]);
            self.store(3 * PAGE_BYTES + 4000, &[round; 16]);
            self.medium.fence().expect("a fence");
            let PagesReply::Digests { words } = self.ask(PagesRequest::Digest { pages: pages.clone() }) else {
                panic!()
            };
            let reply = self.ask(PagesRequest::Protect { pages, words, is_alone: false });
            assert_eq!(reply, PagesReply::Protected { others: vec![] });
        }
    }

    /// Pages of an image whose words say that they are damaged, and pages that are protected.
    fn judged(header: &Header, image: &[u8]) -> (usize, usize) {
        Self::judged_of(header, image, PAGES)
    }

    fn judged_of(header: &Header, image: &[u8], pages: u64) -> (usize, usize) {
        let (digests, area) = (PageDigests::new(header.pool_uuid), header.layout.digests().expect("digests"));
        let (mut alarms, mut protected) = (0, 0);
        for page in 0..pages {
            let word = &image[(area.start + page * DIGEST_WORD_BYTES) as usize..][..8];
            let bytes = &image[(header.data_offset() + page * PAGE_BYTES) as usize..][..PAGE];
            match digests.decode(page, u64::from_le_bytes(word.try_into().expect("8 bytes"))) {
                PageWord::Unprotected => {}
                PageWord::Protected(digest) if digests.digest(page, bytes) == digest => protected += 1,
                PageWord::Protected(_) | PageWord::Damaged => alarms += 1,
            }
        }
        (alarms, protected)
    }
}

/// False alarms among the crash images of two rounds of writes, `keep` of whose events take place, and the images.
fn alarms(keep: impl Fn(usize, &Event) -> bool) -> (usize, usize) {
    let mut shadow = Shadow::made();
    let header = shadow.replica.header().clone();
    let before = shadow.medium.crash_images(1).next().expect("an image");
    shadow.write_and_protect();
    let replayed = ShadowMedium::from_image(before, MediumKind::DevDax).expect("a medium");
    let (mut alarms, mut images) = (0, 0);
    for (_, event) in shadow.medium.trace().iter().enumerate().filter(|(at, event)| keep(*at, event)) {
        replay(&replayed, event);
        for image in replayed.crash_images(200) {
            (alarms, images) = (alarms + Shadow::judged(&header, &image).0, images + 1);
        }
    }
    (alarms, images)
}

#[test]
fn no_crash_looks_like_damage() {
    let (found, images) = alarms(|_, _| true);
    assert_eq!(found, 0, "of {images} images");
    assert!(images > 50, "{images}");
    // The controls: the protection is not durably taken back, or the data not durable when it is protected.
    let is_word = |event: &Event| matches!(event, Event::Store { offset, .. } if *offset < HEAD_4_BYTES + 4096 && *offset >= HEAD_4_BYTES);
    assert!(alarms(|_, event| *event != Event::Fence).0 > 0);
    let mut words = 0;
    let first_words_are_lost = |_: usize, event: &Event| {
        words += usize::from(is_word(event));
        !(is_word(event) && words <= 2)
    };
    let lost = std::cell::RefCell::new(first_words_are_lost);
    assert!(alarms(|at, event| lost.borrow_mut()(at, event)).0 > 0);
}

#[test]
fn a_medium_that_cannot_be_verified_is_not_wrapped() {
    let (_root, store) = fresh();
    let former = create(&store, "former");
    assert!(ProtectedMemory::new(&former.medium(), former.header()).is_none());
}

/// A crash while a pool of format 4 is made on a device, or removed from it, leaves a whole pool or a free device.
#[test]
fn a_crash_leaves_a_whole_pool_on_a_device_or_none() {
    let header = new_header(&protected_pool(2)).expect("it fits");
    let (len_bytes, state) = (header.file_len_bytes().expect("a length"), PoolState::new(Uuid::from_u128(43), 3));
    let holds = |before: &[u8], steps: &dyn Fn(&ShadowMedium)| {
        let recorded = ShadowMedium::from_image(before.to_vec(), MediumKind::DevDax).expect("a medium");
        steps(&recorded);
        let replayed = ShadowMedium::from_image(before.to_vec(), MediumKind::DevDax).expect("a medium");
        let mut found = Vec::new();
        for event in recorded.trace() {
            replay(&replayed, &event);
            found.extend(replayed.crash_images(20).map(|image| (Holds::of(&image[..HEAD_4_BYTES as usize]), image)));
        }
        found
    };
    let free = [vec![0; HEADER_BYTES], vec![7; len_bytes as usize - HEADER_BYTES]].concat();
    let made = holds(&free, &|medium| {
        device::make(medium, &header, &state, len_bytes).and_then(|()| device::publish(medium)).expect("made");
    });
    for (holds, image) in &made {
        let is_whole = || *holds == Holds::Pool(header.clone()) && Shadow::judged_of(&header, image, 2) == (0, 2);
        assert!(*holds == Holds::Nothing || is_whole(), "{holds:?}");
    }
    let (last, pool) = made.last().expect("an image");
    assert_eq!(*last, Holds::Pool(header.clone()));
    let wiped = holds(pool, &|medium| device::wipe(medium).expect("wiped"));
    assert!(wiped.iter().all(|(holds, _)| [Holds::Nothing, Holds::Pool(header.clone())].contains(holds)));
    let (last, image) = wiped.last().expect("an image");
    assert_eq!(*last, Holds::Nothing);
    assert!(
        !Holds::of(&[&[7; HEADER_BYTES], &image[HEADER_BYTES..HEAD_4_BYTES as usize]].concat())
            .eq(&Holds::Pool(header))
    );
}
