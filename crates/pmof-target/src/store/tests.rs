use std::{
    fs::{self, File},
    os::unix::{
        fs::{FileExt, MetadataExt, symlink},
        net::UnixListener,
    },
    path::PathBuf,
    sync::Barrier,
    thread,
};

use pmof_control::{
    DATA_OFFSET, Epoch, HEADER_BYTES, PoolFormat, Protection, ROSTER_BYTES, ROSTER_OFFSET, Reply, Request, RosterPart,
    STATE_BYTES, STATE_OFFSET, without_magic,
};
use pmof_mem::{Declaration, Evidence, Mechanism, Medium, MediumKind, ShadowMedium, causes, shadow::Event};
use rustix::fs::{FlockOperation, flock};
use tempfile::TempDir;

use super::*;

mod devices;
mod handover;
mod intent;
mod naming;
mod pages;
mod processes;
mod rosters;
mod states;

const SIZE_BYTES: u64 = 10_000;

fn name(text: &str) -> PoolName {
    PoolName::new(text).expect("a good name")
}

fn new_pool(size_bytes: u64) -> NewPool {
    NewPool {
        pool_uuid: Uuid::from_u128(42),
        size_bytes,
        epoch: Uuid::from_u128(43),
        replica_index: 1,
        replica_count: 3,
        require: Durability::ProcessCrash,
        user_flags: *b"sixteen bytes of",
        protection: None,
    }
}

fn store_at(root: &Path) -> PoolStore {
    PoolStore::open(root, StoreOptions::default()).expect("a store")
}

fn fresh() -> (TempDir, PoolStore) {
    let root = tempfile::tempdir().expect("a directory");
    let store = store_at(root.path());
    (root, store)
}

fn create(store: &PoolStore, text: &str) -> OpenPool {
    store.create(&name(text), &new_pool(SIZE_BYTES), "the test".to_owned()).expect("a pool")
}

fn open(store: &PoolStore, text: &str, access: OpenFor) -> Result<OpenPool, StoreError> {
    store.open_pool(&name(text), access, "an opener".to_owned())
}

/// As an initiator asks for it.
impl OpenPool {
    fn ask(&mut self, request: Request) -> Result<Reply, StoreError> {
        self.served(None, request, String::new())
    }

    fn begin(&mut self, epoch: Epoch, opening: u64, ancestors: &[Epoch]) -> Result<(), StoreError> {
        self.ask(Request::Begin { opening, epoch, ancestors: ancestors.to_vec() }).map(drop)
    }

    fn confirm(&mut self, epoch: Uuid) -> Result<(), StoreError> {
        self.ask(Request::Confirm { epoch }).map(drop)
    }

    fn raise_mark(&mut self, mark: u64) -> Result<(), StoreError> {
        self.ask(Request::Mark { mark }).map(drop)
    }

    fn close(&mut self) -> Result<(), StoreError> {
        self.ask(Request::Close { in_order: true }).map(drop)
    }

    fn set_roster(&mut self, roster: &Roster) -> Result<(), StoreError> {
        let encoded = roster.encode().expect("it fits");
        RosterPart::requests(&encoded).try_for_each(|request| self.ask(request).map(drop))
    }

    fn intent(&mut self, first: u16) -> Vec<u32> {
        match self.ask(Request::Intent { first }) {
            Ok(Reply::Intent { words, .. }) => words,
            other => panic!("{other:?}"),
        }
    }

    fn raise_intent(&mut self, first: u16, words: &[u32]) -> Result<(), StoreError> {
        self.ask(Request::RaiseIntent { first, words: words.to_vec() }).map(drop)
    }

    fn clear_intent(&mut self, level: Durability, first: u16, words: &[u32]) -> Result<(), StoreError> {
        self.ask(Request::ClearIntent { level, first, words: words.to_vec() }).map(drop)
    }
}

/// Repeats what was done to another medium.
fn replay(medium: &ShadowMedium, event: &Event) {
    match event {
        Event::Store { offset, bytes } if bytes.len() == 8 => {
            let word = u64::from_le_bytes(bytes[..].try_into().expect("8 bytes"));
            medium.atomic_store(*offset, word).expect("inside");
        }
        Event::Store { offset, bytes } => medium.store(*offset, bytes).expect("inside"),
        Event::WriteBack { offset, len_bytes } => medium.write_back(*offset, *len_bytes).expect("inside"),
        Event::Fence => medium.fence().expect("a fence"),
        Event::Mark(_) => {}
    }
}

fn entries(root: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(root)
        .expect("a directory")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8"))
        .collect();
    names.sort();
    names
}

/// Changes the header of a closed pool and gives it a checksum that fits again.
fn change_header(path: &Path, offset: usize, bytes: &[u8]) {
    let mut head = fs::read(path).expect("a pool")[..HEADER_BYTES].to_vec();
    head[offset..offset + bytes.len()].copy_from_slice(bytes);
    // Bytes 88..96 count as zero.
    let zeroed = [&head[..88], &[0; 8], &head[96..HEADER_BYTES - 4]].concat();
    let checksum = crc32c::crc32c(&zeroed);
    head[HEADER_BYTES - 4..].copy_from_slice(&checksum.to_le_bytes());
    File::options().write(true).open(path).expect("a pool").write_all_at(&head, 0).expect("a write");
}

fn assert_busy<T: std::fmt::Debug>(result: Result<T, StoreError>, expected: &str) {
    match result {
        Err(StoreError::Busy { holder, .. }) => assert_eq!(holder, expected),
        other => panic!("not busy: {other:?}"),
    }
}

#[test]
fn a_new_pool_is_whole_zeroed_and_allocated() {
    let (root, store) = fresh();
    let pool = create(&store, "orders");
    assert_eq!(pool.name().as_str(), "orders");
    assert_eq!((pool.data_offset(), pool.data_len_bytes()), (DATA_OFFSET, SIZE_BYTES));
    assert_eq!(pool.access(), OpenFor::Write);
    assert_eq!(pool.medium().len_bytes(), DATA_OFFSET + 12_288);

    assert_eq!(entries(root.path()), ["orders"]);
    let path = root.path().join("orders");
    let bytes = fs::read(&path).expect("the file");
    assert_eq!(bytes.len() as u64, DATA_OFFSET + 12_288);
    assert!(bytes[DATA_OFFSET as usize..].iter().all(|byte| *byte == 0));
    assert!(fs::metadata(&path).expect("the file").blocks() * 512 >= DATA_OFFSET + 12_288, "all space is allocated");

    let header = Header::decode(&bytes).expect("a header");
    assert_eq!(&header, pool.header());
    assert_eq!(header.pool_uuid, Uuid::from_u128(42));
    assert_eq!(&header.user_flags, b"sixteen bytes of");
    assert_ne!(header.replica_uuid, header.pool_uuid);
    assert_eq!((header.replica_index, header.replica_count), (1, 3));
    assert_eq!(pool.state(), &PoolState::new(Uuid::from_u128(43), 3));
    assert!(header.created_at_unix_s > 1_700_000_000);
    assert_ne!(header.replica_uuid, create(&store, "other").header().replica_uuid);
}

#[test]
fn what_was_stored_is_there_when_opened_again() {
    let (_root, store) = fresh();
    let pool = create(&store, "orders");
    let medium = pool.medium();
    medium.store(pool.data_offset() + 7, b"hello").expect("a store");
    let header = pool.header().clone();
    drop((pool, medium));
    for access in [OpenFor::Read, OpenFor::Write] {
        let again = open(&store, "orders", access).expect("the pool");
        assert_eq!(again.header(), &header);
        assert_eq!(again.access(), access);
        let mut bytes = [0; 5];
        again.medium().read(DATA_OFFSET + 7, &mut bytes).expect("a read");
        assert_eq!(&bytes, b"hello");
        assert_eq!(again.medium().store(DATA_OFFSET, b"x").is_ok(), access == OpenFor::Write);
    }
}

/// A target writes this into its log when the file fails.
#[test]
fn the_memory_of_a_pool_is_named_as_its_file() {
    let (root, store) = fresh();
    let path = root.path().join("orders");
    let pool = create(&store, "orders");
    assert_eq!(pool.memory.path(), path);
    drop(pool);
    for access in [OpenFor::Read, OpenFor::Write] {
        assert_eq!(open(&store, "orders", access).unwrap().memory.path(), path);
    }
}

#[test]
fn sizes_are_checked() {
    let root = tempfile::tempdir().expect("a directory");
    let options = StoreOptions::default().max_pool_bytes(8192);
    let store = PoolStore::open(root.path(), options).expect("a store");
    let make = |store: &PoolStore, text: &str, size| store.create(&name(text), &new_pool(size), String::new());
    assert!(matches!(make(&store, "a", 0), Err(StoreError::Empty { .. })));
    assert!(matches!(make(&store, "a", 8193), Err(StoreError::TooLarge { limit_bytes: 8192, .. })));
    assert_eq!(make(&store, "one", 1).expect("a pool").medium().len_bytes(), DATA_OFFSET + 4096);
    assert_eq!(make(&store, "limit", 8192).expect("a pool").medium().len_bytes(), DATA_OFFSET + 8192);

    let options = StoreOptions::default().max_pool_bytes(u64::MAX);
    let boundless = PoolStore::open(root.path(), options).expect("a store");
    for size in [u64::MAX, u64::MAX - 4095, u64::MAX - 8192, 1 << 63, MAX_SIZE_BYTES + 1] {
        assert!(matches!(make(&boundless, "a", size), Err(StoreError::TooLarge { .. })), "{size}");
    }
    assert!(make(&boundless, "a", MAX_SIZE_BYTES).is_err());
    assert_eq!(entries(root.path()), ["limit", "one"]);
}

#[test]
fn replica_numbers_are_checked() {
    let (root, store) = fresh();
    for (replica_index, replica_count) in [(0, 0), (1, 1), (u16::MAX, u16::MAX)] {
        let new = NewPool { replica_index, replica_count, ..new_pool(1) };
        let result = store.create(&name("a"), &new, String::new());
        assert!(matches!(result, Err(StoreError::BadReplica { .. })));
    }
    assert!(entries(root.path()).is_empty());
}

#[test]
fn a_taken_name_is_left_alone() {
    let (root, store) = fresh();
    drop(create(&store, "pool"));
    fs::write(root.path().join("file"), b"mine").expect("a file");
    fs::create_dir(root.path().join("directory")).expect("a directory");
    symlink("nowhere", root.path().join("link")).expect("a link");
    let before = fs::read(root.path().join("pool")).expect("the pool");
    for text in ["pool", "file", "directory", "link"] {
        let result = store.create(&name(text), &new_pool(1), String::new());
        assert!(matches!(result, Err(StoreError::AlreadyExists { .. })), "{text}: {result:?}");
    }
    assert_eq!(fs::read(root.path().join("pool")).expect("the pool"), before);
    assert_eq!(fs::read(root.path().join("file")).expect("the file"), b"mine");
    assert_eq!(entries(root.path()), ["directory", "file", "link", "pool"]);
}

#[test]
fn of_many_that_create_one_name_one_succeeds() {
    let (root, store) = fresh();
    let other = store_at(root.path());
    let start = Barrier::new(8);
    let made: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|number| {
                let (store, start) = (if number % 2 == 0 { &store } else { &other }, &start);
                scope.spawn(move || {
                    start.wait();
                    store.create(&name("orders"), &new_pool(SIZE_BYTES), number.to_string())
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    assert_eq!(made.iter().filter(|result| result.is_ok()).count(), 1);
    assert!(made.iter().flat_map(Result::as_ref).all(|pool| pool.data_len_bytes() == SIZE_BYTES));
    assert!(made.iter().filter_map(|r| r.as_ref().err()).all(|e| matches!(e, StoreError::AlreadyExists { .. })));
    assert_eq!(entries(root.path()), ["orders"]);
}

#[test]
fn a_pool_has_one_writer_and_many_readers() {
    let (_root, store) = fresh();
    let writer = create(&store, "orders");
    assert_busy(open(&store, "orders", OpenFor::Write), "the test");
    let readers = [open(&store, "orders", OpenFor::Read), open(&store, "orders", OpenFor::Read)];
    assert!(readers.iter().all(Result::is_ok));

    // Whoever still has the memory can still write, so the pool stays busy.
    let medium = writer.medium();
    drop(writer);
    assert_busy(open(&store, "orders", OpenFor::Write), "the test");
    drop(medium);
    let second = open(&store, "orders", OpenFor::Write).expect("free again, whoever reads");
    assert_busy(open(&store, "orders", OpenFor::Write), "an opener");
    drop(second);
    open(&store, "orders", OpenFor::Write).expect("free again");
}

#[test]
fn another_store_sees_the_lock() {
    let (root, store) = fresh();
    let other = store_at(root.path());
    let writer = create(&store, "orders");
    // The kernel tells one store of this process from another, and names the process.
    let holder = other.info(&name("orders")).expect("info").open_by.expect("a holder");
    assert!(holder.contains(&format!("process {} ", std::process::id())), "{holder}");
    assert_busy(open(&other, "orders", OpenFor::Write), &holder);
    assert_busy(other.remove(&name("orders")), &holder);
    open(&other, "orders", OpenFor::Read).expect("reading is allowed");
    drop(writer);
    assert_eq!(other.info(&name("orders")).expect("info").open_by, None);
    let second = open(&other, "orders", OpenFor::Write).expect("free");
    assert_busy(open(&store, "orders", OpenFor::Write), &holder);
    drop(second);
    other.remove(&name("orders")).expect("free");
}

#[test]
fn damaged_files_are_refused_and_not_touched() {
    let (root, store) = fresh();
    drop(create(&store, "orders"));
    let path = root.path().join("orders");
    let whole = fs::read(&path).expect("the pool");
    let expect = |bytes: &[u8], kind: &str| {
        fs::write(&path, bytes).expect("a write");
        for result in [
            open(&store, "orders", OpenFor::Read).map(drop),
            open(&store, "orders", OpenFor::Write).map(drop),
            store.info(&name("orders")).map(drop),
        ] {
            let error = result.expect_err(kind);
            assert!(format!("{error:?}").contains(kind), "{kind}: {error:?}");
        }
        if kind != "SizeMismatch" {
            let error = store.remove(&name("orders")).expect_err(kind);
            assert!(format!("{error:?}").contains(kind), "{kind}: {error:?}");
        }
        assert!(fs::read(&path).expect("still there") == bytes, "{kind}: untouched");
    };
    for at in (0..8).chain((8..HEADER_BYTES).step_by(97)) {
        let mut torn = whole.clone();
        torn[at] ^= 0x10;
        expect(&torn, if at < 8 { "Overwritten" } else { "BadChecksum" });
    }
    expect(b"", "NotAPool");
    expect(b"a letter to my aunt", "NotAPool");
    expect(&whole[..4095], "Truncated");
    expect(&whole[..4096], "SizeMismatch");
    expect(&whole[..whole.len() - 1], "SizeMismatch");
    expect(&[&whole[..], b"x"].concat(), "SizeMismatch");
    fs::write(&path, &whole).expect("a write");
    open(&store, "orders", OpenFor::Write).expect("the whole file opens");
}

#[test]
fn links_and_special_files_are_refused() {
    let (root, store) = fresh();
    let outside = tempfile::tempdir().expect("a directory");
    drop(create(&store_at(outside.path()), "target"));
    let target = outside.path().join("target");
    symlink(&target, root.path().join("link")).expect("a link");
    fs::create_dir(root.path().join("directory")).expect("a directory");
    let _listener = UnixListener::bind(root.path().join("socket")).expect("a socket");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, root.path().join("fifo"), rustix::fs::FileType::Fifo, mode, 0)
        .expect("a FIFO");
    for text in ["link", "directory", "socket", "fifo"] {
        for result in [
            open(&store, text, OpenFor::Read).map(drop),
            open(&store, text, OpenFor::Write).map(drop),
            store.info(&name(text)).map(drop),
            store.remove(&name(text)),
        ] {
            assert!(matches!(result, Err(StoreError::NotAFile { .. })), "{text}: {result:?}");
        }
    }
    assert_eq!(store.list(None, 100).expect("a list"), []);
    assert!(target.exists());
    assert_eq!(entries(root.path()), ["directory", "fifo", "link", "socket"]);
}

#[test]
fn removing_takes_closed_pools_only() {
    let (root, store) = fresh();
    assert!(matches!(store.remove(&name("orders")), Err(StoreError::NotFound { .. })));
    let pool = create(&store, "orders");
    assert_busy(store.remove(&name("orders")), "the test");
    drop(pool);
    let reader = open(&store, "orders", OpenFor::Read).expect("the pool");
    // Whoever made the one before removes it, late.
    let (other, found) = (Uuid::from_u128(1), store.info(&name("orders")).unwrap().header.replica_uuid);
    let meant = |uuid, epoch| MeantReplica { uuid, epoch };
    let error = store.remove_replica(&name("orders"), meant(other, None)).unwrap_err();
    assert!(matches!(error, StoreError::OtherReplica { .. }) && error.to_string().contains("not touched"), "{error}");
    assert_eq!(store.info(&name("orders")).unwrap().header.replica_uuid, found);
    // Another program wrote to it meanwhile.
    let seen = store.info(&name("orders")).unwrap().state.epoch.id;
    let mut writer = open(&store, "orders", OpenFor::Write).expect("the pool");
    writer.begin(Epoch::new(Uuid::new_v4(), [0]), 2, &[]).unwrap();
    drop(writer);
    let error = store.remove_replica(&name("orders"), meant(found, Some(seen))).unwrap_err();
    assert!(matches!(error, StoreError::OpenedSince { .. }) && error.to_string().contains("not touched"), "{error}");
    let seen = store.info(&name("orders")).unwrap().state.epoch.id;
    store.remove_replica(&name("orders"), meant(found, Some(seen))).expect("readers do not keep it");
    assert!(entries(root.path()).is_empty());
    let mut head = [0; 8];
    reader.medium().read(0, &mut head).expect("still mapped");
    assert_eq!(&head, b"PMOFPOOL");
    assert!(matches!(open(&store, "orders", OpenFor::Read), Err(StoreError::NotFound { .. })));
    drop(create(&store, "orders"));
}

#[test]
fn newer_pools_can_be_removed() {
    let (root, store) = fresh();
    for (offset, bytes) in [(8, &[9u8, 0][..]), (16, &[1])] {
        drop(create(&store, "orders"));
        change_header(&root.path().join("orders"), offset, bytes);
        assert!(matches!(open(&store, "orders", OpenFor::Read), Err(StoreError::Header { .. })));
        store.remove(&name("orders")).expect("a newer pool");
    }
    assert!(entries(root.path()).is_empty());
}

/// It may be the only copy, and a copy of another member's may be none any more.
#[test]
fn what_is_left_of_a_pool_is_removed_only_by_whoever_says_so() {
    let (root, store) = fresh();
    let path = root.path().join("orders");
    let file = || File::options().write(true).open(&path).expect("a file");
    let cut = |by: u64| file().set_len(file().metadata().expect("a length").len() - by).expect("shorter");
    let damage = || file().write_all_at(&[0xff; STATE_BYTES], STATE_OFFSET).expect("a write");
    let faults: [&dyn Fn(); 3] = [&|| cut(1), &|| cut(5000), &damage];
    for spoil in faults {
        drop(create(&store, "orders"));
        spoil();
        let error = store.remove(&name("orders")).expect_err("not whole");
        assert!(matches!(error, StoreError::SizeMismatch { .. } | StoreError::Header { .. }), "{error:?}");
        assert_eq!(entries(root.path()).len(), 1);
        store.discard(&name("orders")).expect("by force");
        assert!(entries(root.path()).is_empty());
    }
}

/// What lies behind the header tells, and 4096 zeroes are nothing else that anybody keeps there.
#[test]
fn a_pool_whose_header_is_lost_is_listed_and_can_be_discarded() {
    let (root, store) = fresh();
    let path = root.path().join("orders");
    let put = |bytes: &[u8], offset: u64| {
        File::options().write(true).open(&path).expect("a file").write_all_at(bytes, offset).expect("a write");
    };
    let (garbage, zeroes) = (vec![0xa5; DATA_OFFSET as usize], vec![0; DATA_OFFSET as usize]);
    let cases = [
        (vec![(&garbage[..1], 3)], HeaderError::Overwritten),
        (vec![(&garbage[..HEADER_BYTES], 0)], HeaderError::Overwritten),
        (vec![(&zeroes[..HEADER_BYTES], 0)], HeaderError::Overwritten),
        (vec![(&zeroes[..], 0)], HeaderError::Zeroed),
        (vec![(&zeroes[..HEADER_BYTES], 0), (&garbage[HEADER_BYTES..], STATE_OFFSET)], HeaderError::Zeroed),
        // Nothing is left that tells.
        (vec![(&garbage[..], 0)], HeaderError::NotAPool),
    ];
    for (writes, expected) in cases {
        drop(create(&store, "orders"));
        for (bytes, offset) in writes {
            put(bytes, offset);
        }
        let is_known = expected != HeaderError::NotAPool;
        assert_eq!(store.list(None, 9).expect("a list").len(), usize::from(is_known), "{expected:?}");
        for error in [store.info(&name("orders")).map(drop), store.remove(&name("orders"))] {
            let Err(StoreError::Header { source, .. }) = error else { panic!("{expected:?}: {error:?}") };
            assert_eq!(source, expected);
        }
        assert_eq!(store.discard(&name("orders")).is_ok(), is_known, "{expected:?}");
        assert_eq!(path.exists(), !is_known);
    }
}

#[test]
fn a_roster_alone_tells_of_a_pool() {
    let [(_, slot), _] = Roster::made(2).slots(1).expect("a roster");
    let mut begin = vec![7; DATA_OFFSET as usize];
    begin[ROSTER_OFFSET as usize..][..ROSTER_BYTES].fill(0);
    assert_eq!(without_magic(&begin), HeaderError::NotAPool);
    begin[ROSTER_OFFSET as usize + ROSTER_BYTES / 2..][..slot.len()].copy_from_slice(&slot);
    assert_eq!(without_magic(&begin), HeaderError::Overwritten);
    for len_bytes in [0, 1, HEADER_BYTES - 1] {
        assert_eq!(without_magic(&vec![0; len_bytes]), HeaderError::NotAPool);
    }
}

#[test]
fn a_file_replaced_while_it_is_opened_is_refused() {
    let (root, store) = fresh();
    drop(create(&store, "orders"));
    drop(create(&store, "other"));
    let (orders, path) = (name("orders"), root.path().join("orders"));
    let entry = store.root.entry(&orders).expect("the pool");
    let memory = store.map(&orders, &entry, OpenFor::Write).expect("positive control");
    let flags = rustix::io::fcntl_getfd(&entry.file).expect("flags");
    assert!(flags.contains(rustix::io::FdFlags::CLOEXEC), "a program that is started has it too");
    let file = store.file_of(&orders, &memory).expect("a file");
    store.lock_named(&orders, file, entry.identity).expect("positive control");

    // As another process could between any two steps.
    fs::rename(root.path().join("other"), &path).expect("a rename");
    assert!(matches!(store.map(&orders, &entry, OpenFor::Write), Err(StoreError::Replaced { .. })));
    assert!(matches!(store.lock_named(&orders, file, entry.identity), Err(StoreError::Replaced { .. })));
    fs::remove_file(&path).expect("removed");
    assert!(matches!(store.lock_named(&orders, file, entry.identity), Err(StoreError::Replaced { .. })));
}

#[test]
fn leftovers_are_removed_and_look_alikes_stay() {
    let root = tempfile::tempdir().expect("a directory");
    let leftover = ".pmof.0123456789abcdef0123456789abcdef.new";
    let others = [
        ".pmof.0123456789abcdef0123456789abcde.new",
        ".pmof.0123456789ABCDEF0123456789abcdef.new",
        ".pmof.0123456789abcdef0123456789abcdef.new~",
        "pmof.0123456789abcdef0123456789abcdef.new",
    ];
    let directory = ".pmof.ffffffffffffffffffffffffffffffff.new";
    for entry in others.iter().chain([&leftover]) {
        fs::write(root.path().join(entry), b"x").expect("a file");
    }
    fs::create_dir(root.path().join(directory)).expect("a directory");
    let link = ".pmof.eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee.new";
    symlink(others[0], root.path().join(link)).expect("a link");

    // While somebody makes a pool, nothing counts as left over.
    let maker = File::open(root.path()).expect("the directory");
    flock(&maker, FlockOperation::LockShared).expect("a lock");
    let store = store_at(root.path());
    assert!(root.path().join(leftover).exists());
    flock(&maker, FlockOperation::Unlock).expect("unlocked");

    assert_eq!(store.root.remove_leftovers().expect("a look"), 1);
    let left = entries(root.path());
    assert!(!left.contains(&leftover.to_owned()));
    assert!(others.iter().chain([&directory, &link]).all(|entry| left.contains(&(*entry).to_owned())));
}

#[test]
fn a_full_file_system_leaves_nothing() {
    let (root, store) = fresh();
    let capacity = rustix::fs::statvfs(root.path()).expect("a file system");
    let size_bytes = capacity.f_blocks * capacity.f_frsize * 2;
    let result = store.create(&name("huge"), &new_pool(size_bytes), String::new());
    assert!(matches!(result, Err(StoreError::NoSpace { .. })), "{result:?}");
    assert!(entries(root.path()).is_empty());
    drop(create(&store, "small"));
}

#[test]
fn a_file_with_holes_is_refused() {
    let (root, store) = fresh();
    let pool = create(&store, "orders");
    let header = pool.header().encode();
    drop(pool);
    let path = root.path().join("sparse");
    let sparse = File::create_new(&path).expect("a file");
    sparse.write_all_at(&header, 0).expect("a write");
    sparse.set_len(DATA_OFFSET + 12_288).expect("longer");
    let error = open(&store, "sparse", OpenFor::Write).expect_err("holes");
    assert!(matches!(error, StoreError::Memory { source: MemError::Unsuitable { .. }, .. }), "{error:?}");
    assert!(causes(&error).to_string().contains(&*path.to_string_lossy()), "{error}");
}

#[test]
fn codes_stay_as_they_are() {
    let (name, root) = (name("a"), PathBuf::new());
    let source = || io::Error::other("x");
    let errors = [
        StoreError::Root { path: root.clone(), source: source() },
        StoreError::NoProc { root: root.clone() },
        StoreError::NotWritable { root: root.clone(), source: source() },
        StoreError::NotFound { name: name.clone(), root: root.clone() },
        StoreError::AlreadyExists { name: name.clone(), root: root.clone() },
        StoreError::Busy { name: name.clone(), holder: String::new() },
        StoreError::NotAFile { name: name.clone(), what: "" },
        StoreError::Header { name: name.clone(), source: HeaderError::NotAPool },
        StoreError::SizeMismatch { name: name.clone(), expected_bytes: 0, found_bytes: 0 },
        StoreError::Empty { name: name.clone() },
        StoreError::TooLarge { name: name.clone(), size_bytes: 0, limit_bytes: 0 },
        StoreError::BadReplica { index: 0, count: 0 },
        StoreError::NoSpace { name: name.clone(), size_bytes: 0, root: root.clone() },
        StoreError::NotDurable {
            name: name.clone(),
            wanted: Durability::Visible,
            medium: MediumKind::Tmpfs,
            mend: String::new(),
        },
        StoreError::Replaced { name: name.clone() },
        StoreError::Memory { name: name.clone(), source: MemError::Misaligned { offset: 1 } },
        StoreError::Io { call: "x", path: root, source: source() },
    ];
    let codes: Vec<_> = errors.iter().map(StoreError::code).collect();
    assert_eq!(codes, (1..=17).collect::<Vec<u16>>());
}

#[test]
fn roots_are_checked() {
    let (root, store) = fresh();
    drop(create(&store, "orders"));
    for path in [root.path().join("missing"), root.path().join("orders")] {
        let result = PoolStore::open(&path, StoreOptions::default());
        assert!(matches!(result, Err(StoreError::Root { .. })), "{result:?}");
    }
    // Even the superuser can make no file in sysfs.
    let read_only = store_at(Path::new("/sys/kernel"));
    let result = read_only.create(&name("orders"), &new_pool(1), String::new());
    assert!(matches!(result, Err(StoreError::NotWritable { .. })), "{result:?}");
    assert!(matches!(open(&read_only, "orders", OpenFor::Read), Err(StoreError::NotFound { .. })));
}

#[test]
fn a_root_that_is_replaced_leads_nowhere_else() {
    let parent = tempfile::tempdir().expect("a directory");
    let (old, moved): (PathBuf, PathBuf) = (parent.path().join("root"), parent.path().join("moved"));
    fs::create_dir(&old).expect("a directory");
    let store = store_at(&old);
    drop(create(&store, "orders"));
    let mut held = store.create_unpublished(&name("held"), &new_pool(1)).expect("a pool");
    fs::rename(&old, &moved).expect("a rename");
    fs::create_dir(&old).expect("a directory");
    // Neither there, where nobody looks who asks for the path, nor here.
    let is_detached = |error: &StoreError| matches!(error, StoreError::Detached { .. });
    let refused = store.create(&name("more"), &new_pool(1), String::new());
    assert!(refused.as_ref().is_err_and(is_detached), "{refused:?}");
    for access in [OpenFor::Read, OpenFor::Write] {
        assert!(open(&store, "orders", access).as_ref().is_err_and(is_detached));
    }
    assert!(store.remove(&name("orders")).as_ref().is_err_and(is_detached));
    assert!(store.publish(&mut held, String::new()).as_ref().is_err_and(is_detached));
    drop(held);
    assert!(entries(&old).is_empty());
    assert_eq!(entries(&moved), ["orders"]);
    fs::remove_dir(&old).expect("empty");
    assert!(open(&store, "orders", OpenFor::Read).as_ref().is_err_and(is_detached));
    fs::rename(&moved, &old).expect("a rename");
    open(&store, "orders", OpenFor::Write).expect("the pool");
}

#[test]
fn a_level_that_the_medium_cannot_give_is_refused() {
    let root = tempfile::tempdir_in("/dev/shm").expect("tmpfs");
    let wanted = NewPool { require: Durability::PowerFailure, ..new_pool(1) };
    let result = store_at(root.path()).create(&name("orders"), &wanted, String::new());
    assert!(
        matches!(
            result,
            Err(StoreError::NotDurable { wanted: Durability::PowerFailure, medium: MediumKind::Tmpfs, .. })
        ),
        "{result:?}"
    );
    assert!(entries(root.path()).is_empty());

    let options = StoreOptions::default().declaration(Some(Declaration::BatteryBacked));
    let declared = PoolStore::open(root.path(), options).expect("a store");
    let pool = declared.create(&name("orders"), &wanted, String::new()).expect("as declared");
    pool.require(Durability::PowerFailure).expect("as declared");
    drop(pool);
    // A store without the declaration opens the pool, but does not promise what it was made with.
    let pool = open(&store_at(root.path()), "orders", OpenFor::Write).expect("the pool");
    pool.require(Durability::ProcessCrash).expect("by store");
    let error = pool.require(Durability::PowerFailure).expect_err("nobody declared it");
    assert!(causes(&error).to_string().contains("battery-backed") && !error.to_string().contains("/proc"), "{error}");
    drop(pool);
    let promise = declared.info(&name("orders")).expect("info").promises[2];
    assert_eq!(promise.map(|promise| promise.evidence), Some(Evidence::Declared));
}

#[test]
fn info_says_what_there_is() {
    let (_root, store) = fresh();
    assert!(matches!(store.info(&name("orders")), Err(StoreError::NotFound { .. })));
    let pool = create(&store, "orders");
    let info = store.info(&name("orders")).expect("info");
    assert_eq!(info.name, name("orders"));
    assert_eq!(&info.header, pool.header());
    assert_eq!(info.file_len_bytes, DATA_OFFSET + 12_288);
    assert_eq!(info.medium, pool.medium().kind());
    assert_eq!(info.promises, Durability::ALL.map(|level| pool.medium().promise(level)));
    assert_eq!(info.promises[1].map(|promise| promise.mechanism), Some(Mechanism::Store));
    assert_eq!(info.open_by.as_deref(), Some("the test"));
    drop(pool);
    assert_eq!(store.info(&name("orders")).expect("info").open_by, None);
}

#[test]
fn lists_name_pools_in_order_and_by_the_page() {
    let (root, store) = fresh();
    for text in ["c", "a", "b", "damaged"] {
        drop(create(&store, text));
    }
    fs::write(root.path().join("b2"), b"not a pool").expect("a file");
    File::options().write(true).open(root.path().join("damaged")).expect("a file").set_len(100).expect("shorter");
    let list = |after: Option<&str>, limit| {
        let names = store.list(after.map(name).as_ref(), limit).expect("a list");
        names.iter().map(|name| name.as_str().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(list(None, 100), ["a", "b", "c", "damaged"]);
    assert_eq!(list(None, 2), ["a", "b"]);
    assert_eq!(list(Some("b"), 100), ["c", "damaged"]);
    assert_eq!(list(Some("bb"), 1), ["c"]);
    assert!(list(Some("damaged"), 100).is_empty());
}
