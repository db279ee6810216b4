//! Pools of pool sets on a target, over tcp, or wherever `PMOF_TEST_LISTEN` has it listen, as over verbs in a machine of the test bed.

use std::{
    fs,
    os::unix::fs::{FileExt as _, symlink},
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use pmof_access::{Address, Durability, Medium as _, Memory};
use pmof_control::{OpenFor, PoolRefusal, SetName};
use pmof_mem::causes;
use pmof_pool::{
    Atomicity, Pool, PoolError, Receipt, RemoteRemoval, RemoteSetOptions, ReplicaError, SshReplicas, TargetOptions,
    TargetUrl,
};
use pmof_pool_set::{Attributes, DIGEST_BLOCK_LEN_BYTES, Reached, ReplicaAccess};
use pmof_target::{Service, ServiceOptions};
use tempfile::TempDir;

const POOL_BYTES: u64 = 8 << 20;
/// What has not come by then hangs.
const LONG: Duration = Duration::from_secs(60);
const HEADER_BYTES: u64 = 4096;
/// PMDK's bit of `incompat`.
const SINGLE_HEADER: u32 = 1;

struct Target {
    root: TempDir,
    service: Option<Service>,
}

impl Target {
    fn start() -> Self {
        let root = tempfile::tempdir_in("/dev/shm").unwrap();
        let address = std::env::var("PMOF_TEST_LISTEN").unwrap_or_else(|_| "tcp://127.0.0.1:0".to_owned());
        let address: Address = address.parse().unwrap();
        let options = ServiceOptions::default().trust_network(true);
        let service = Service::start(root.path(), &[address], options).unwrap();
        Self { root, service: Some(service) }
    }

    fn url(&self) -> TargetUrl {
        self.service.as_ref().unwrap().addresses()[0].clone().into()
    }

    /// A device takes the pages of what it is to reach when it is registered: then a file on tmpfs has no holes any more.
    fn keeps_holes(&self) -> bool {
        !self.url().to_string().starts_with("verbs")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// A set file with parts of 4 MiB.
    fn write_set(&self, name: &str, option: &str, parts: &[&str]) -> SetName {
        let parts: Vec<_> = parts.iter().map(|part| format!("4M {}\n", self.path(part).display())).collect();
        fs::write(self.path(name), format!("PMEMPOOLSET\n{option}{}", parts.concat())).unwrap();
        SetName::new(name).unwrap()
    }

    fn two_parts(&self) -> SetName {
        self.write_set("orders.set", "", &["one", "two"])
    }

    fn remote(&self, set: &SetName) -> RemoteSetOptions {
        RemoteSetOptions::new(self.url(), set.clone()).target(options())
    }

    fn create(&self, set: &SetName) -> Pool {
        self.remote(set).create(4 << 20, Some(&attributes())).unwrap()
    }

    /// With so many bytes of a mirror behind the header.
    fn create_with_mirror(&self, set: &SetName, seed: u64) -> Pool {
        self.remote(set).mirror(local_memory(seed)).create(4 << 20, Some(&attributes())).unwrap()
    }

    fn open(&self, set: &SetName) -> Pool {
        self.remote(set).open(0, OpenFor::Write).unwrap()
    }

    /// The replica as those have it who compare.
    fn replica(&self, set: &SetName) -> Box<dyn ReplicaAccess> {
        match SshReplicas::new(&options()).open_at(&self.url(), set, 0, OpenFor::Write).unwrap() {
            Reached::Whole(replica) => replica,
            Reached::Damaged(why) | Reached::HeadersDamaged(why) => panic!("{why}"),
        }
    }
}

fn options() -> TargetOptions {
    TargetOptions::default().loss_timeout(Duration::from_secs(5))
}

fn attributes() -> Attributes {
    Attributes {
        signature: *b"TESTPOOL",
        major: 1,
        incompat: 2,
        poolset_uuid: [1; 16],
        uuid: [2; 16],
        next_uuid: [3; 16],
        prev_uuid: [3; 16],
        ..Default::default()
    }
}

fn persist(pool: &Pool, offset: u64, bytes: &[u8], atomicity: Atomicity) -> Result<Receipt, PoolError> {
    let mut lane = pool.lane();
    lane.set_atomicity(atomicity);
    lane.write(offset, bytes)?;
    lane.persist()
}

fn refusal(error: &PoolError) -> Option<PoolRefusal> {
    match error.replica_error() {
        Some(ReplicaError::Refused { refusal, .. }) => Some(*refusal),
        _ => None,
    }
}

fn pattern(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64).map(|at| (at.wrapping_mul(seed | 1) >> 3) as u8).collect()
}

fn local_memory(seed: u64) -> Arc<Memory> {
    let memory = Memory::anonymous(POOL_BYTES - HEADER_BYTES).unwrap();
    memory.store(0, &pattern(memory.len_bytes() as usize, seed)).unwrap();
    Arc::new(memory)
}

#[test]
fn a_pool_is_made_written_in_lanes_and_opened_again() {
    let target = Target::start();
    let set = target.two_parts();
    let pool = target.create_with_mirror(&set, 77);
    // The second part's header takes a page of it.
    assert_eq!(pool.len_bytes(), POOL_BYTES - HEADER_BYTES);
    assert_eq!(pool.data_range(), HEADER_BYTES..POOL_BYTES - HEADER_BYTES);
    assert_eq!(pool.durability(), Durability::ProcessCrash);
    // Within one part, across their border, unaligned, at the very end, and nothing.
    let ranges = [(4096, 1), (4099, 5000), ((4 << 20) - 3000, 6001), (POOL_BYTES - HEADER_BYTES - 9, 9), (5000, 0)];
    for atomicity in [Atomicity::Words, Atomicity::Relaxed] {
        let mut lane = pool.lane();
        lane.set_atomicity(atomicity);
        for (offset, len) in ranges {
            lane.write_range(offset..offset + len).unwrap();
        }
        let receipt = lane.persist().unwrap();
        assert_eq!((receipt.replicas.len(), receipt.durability), (1, Durability::ProcessCrash));
    }
    let mut lane = pool.lane();
    lane.set_atomicity(Atomicity::Words);
    lane.persist_range(1 << 20..3 << 20).unwrap();
    persist(&pool, 8192, b"of the caller", Atomicity::Relaxed).unwrap();
    pool.close().unwrap();

    let pool = target.open(&set);
    let found = pool.attributes().unwrap();
    assert_eq!((found.signature, found.poolset_uuid, found.uuid), (*b"TESTPOOL", [1; 16], [2; 16]));
    let mut expected = pattern((POOL_BYTES - HEADER_BYTES) as usize, 77);
    expected[8192..8205].copy_from_slice(b"of the caller");
    for (offset, len) in ranges.into_iter().chain([(1 << 20, 2 << 20), (8192, 13)]) {
        let mut bytes = vec![0; len as usize];
        pool.read(offset, &mut bytes).unwrap();
        assert!(bytes == expected[offset as usize..(offset + len) as usize], "{len} bytes at {offset}");
    }
    // The header may be read, also together with what follows it.
    let mut bytes = [0; 4106];
    pool.read(0, &mut bytes).unwrap();
    assert_eq!((&bytes[..8], &bytes[4096..4097]), (&b"TESTPOOL"[..], &expected[4096..4097]));
}

#[test]
fn ranges_lanes_and_headers_are_guarded_and_nothing_is_lost_by_asking() {
    let target = Target::start();
    let set = target.two_parts();
    let pool = target.create(&set);
    let end = pool.len_bytes();
    for offset in [0, 1, 4095] {
        let error = persist(&pool, offset, b"x", Atomicity::Words).unwrap_err();
        assert!(matches!(error, PoolError::Header { .. }), "{error}");
    }
    for (offset, len) in [(end, 1), (end - 1, 2), (u64::MAX, 1), (u64::MAX - 1, 8)] {
        let error = persist(&pool, offset, &vec![0; len], Atomicity::Relaxed).unwrap_err();
        assert!(matches!(error, PoolError::OutOfBounds { .. }), "{error}");
        assert!(matches!(pool.read(offset, &mut vec![0; len]), Err(PoolError::OutOfBounds { .. })));
    }
    assert!(matches!(pool.persist_range(8192..8200), Err(PoolError::NoMirror)));
    persist(&pool, 8192, b"still works", Atomicity::Words).unwrap();
    pool.read(end, &mut []).unwrap();
}

#[test]
fn attributes_are_changed_and_kept() {
    let target = Target::start();
    let set = target.two_parts();
    let pool = target.create(&set);
    let changed = Attributes { next_uuid: [7; 16], user_flags: [8; 16], ..attributes() };
    pool.set_attributes(&changed).unwrap();
    pool.close().unwrap();
    let pool = target.open(&set);
    let found = pool.attributes().unwrap();
    assert_eq!((found.next_uuid, found.user_flags), ([7; 16], [8; 16]));
    // They are the client's, whatever they say; the parts have the headers that they have.
    let others = Attributes { incompat: SINGLE_HEADER | 1 << 31, ro_compat: u32::MAX, ..changed };
    for wanted in [others, Attributes::default()] {
        pool.set_attributes(&wanted).unwrap();
    }
    pool.set_attributes(&others).unwrap();
    persist(&pool, 8192, b"x", Atomicity::Words).unwrap();
    pool.close().unwrap();
    assert_eq!(target.open(&set).attributes(), Some(others));
}

/// What is looked at is locked until its connection asks for its removal, or ends.
#[test]
fn a_removal_is_prepared_and_then_carried_out_or_dropped() {
    let target = Target::start();
    let set = target.two_parts();
    target.create(&set).close().unwrap();
    let prepare = |force| RemoteRemoval::prepare(&target.url(), &set, [force, true], None, &options());
    let open = || target.remote(&set).open(0, OpenFor::Write);
    let removal = prepare(false).unwrap();
    assert_eq!(refusal(&open().unwrap_err()), Some(PoolRefusal::Busy));
    assert_eq!(refusal(&prepare(true).unwrap_err()), Some(PoolRefusal::Busy));
    drop(removal);
    let begun = Instant::now();
    // The target hears of it a little later.
    while prepare(false).is_err() {
        assert!(begun.elapsed() < LONG);
    }
    let begun = Instant::now();
    let pool = loop {
        match open() {
            Ok(pool) => break pool,
            Err(error) => assert!(begun.elapsed() < LONG, "{error}"),
        }
    };
    assert_eq!(refusal(&prepare(true).unwrap_err()), Some(PoolRefusal::Busy));
    pool.close().unwrap();
    prepare(false).unwrap().carry_out().unwrap();
    assert_eq!(refusal(&open().unwrap_err()), Some(PoolRefusal::NotFound), "the set's file is gone too");
}

/// Which pool is meant the initiator says: of another one nothing goes, by force, and with a damaged header, neither.
#[test]
fn a_removal_is_of_the_initiators_pool() {
    let target = Target::start();
    let set = target.two_parts();
    target.create(&set).close().unwrap();
    let prepare = |force, member: [u8; 16]| {
        RemoteRemoval::prepare(&target.url(), &set, [force, false], Some(&member), &options())
    };
    let intact = fs::read(target.path("one")).unwrap();
    for is_damaged in [false, true] {
        let mut bytes = intact.clone();
        bytes[200] ^= u8::from(is_damaged);
        fs::write(target.path("one"), &bytes).unwrap();
        for force in [false, true] {
            let refused = prepare(force, [9; 16]).unwrap_err();
            let expected = match (is_damaged, force) {
                (true, false) => PoolRefusal::NotAUsablePool,
                _ => PoolRefusal::AlreadyExists,
            };
            assert_eq!(refusal(&refused), Some(expected), "{refused}");
            let told = causes(&refused).to_string();
            assert!(is_damaged && !force || told.contains("belongs to the pool set"), "{told}");
        }
        assert!(fs::read(target.path("one")).unwrap() == bytes);
    }
    fs::write(target.path("one"), &intact).unwrap();
    prepare(false, [1; 16]).unwrap().carry_out().unwrap();
    assert!(!target.path("one").exists() && !target.path("two").exists());
}

/// What is made anew: what is left of that pool, and no other's, nor anybody's file. Force is no different in the latter.
#[test]
fn a_target_replaces_nothing_but_what_is_left_of_the_pool() {
    let target = Target::start();
    let set = target.two_parts();
    let replace = |member: [u8; 16]| RemoteRemoval::prepare_replacement(&target.url(), &set, &member, &options());
    target.create(&set).close().unwrap();
    // The length of one part, so that the pool is broken, and a byte of the header of the other.
    fs::OpenOptions::new().write(true).open(target.path("two")).unwrap().set_len(3 << 20).unwrap();
    let mut bytes = fs::read(target.path("one")).unwrap();
    bytes[200] ^= 1;
    fs::write(target.path("one"), &bytes).unwrap();
    let error = replace([9; 16]).unwrap_err();
    assert_eq!(refusal(&error), Some(PoolRefusal::AlreadyExists));
    drop(replace([1; 16]).unwrap());
    fs::write(target.path("two"), "dear all").unwrap();
    assert_eq!(refusal(&replace([1; 16]).unwrap_err()), Some(PoolRefusal::AlreadyExists));
    let force = RemoteRemoval::prepare(&target.url(), &set, [true, true], None, &options());
    assert_eq!(refusal(&force.unwrap_err()), Some(PoolRefusal::NotAUsablePool));
    assert!(fs::read(target.path("one")).unwrap() == bytes);
    assert_eq!(fs::read(target.path("two")).unwrap(), b"dear all");
    fs::remove_file(target.path("two")).unwrap();
    replace([1; 16]).unwrap().carry_out().unwrap();
    assert!(!target.path("one").exists());
    replace([1; 16]).unwrap();
}

/// Of parts without a header the first one speaks, and the pool's heap: a file that lacks what that has in use is not the pool's.
#[test]
fn a_target_removes_no_file_that_lacks_what_the_heap_has_in_use() {
    const HEAP: u64 = 0x30_2000;
    const CHUNK: u64 = 256 << 10;
    let target = Target::start();
    let set = target.write_set("orders.set", "OPTION SINGLEHDR\n", &["one", "two"]);
    let attributes = Attributes { signature: *b"PMEMOBJ\0", major: 6, incompat: 3, ..attributes() };
    target.remote(&set).create(4 << 20, Some(&attributes)).unwrap().close().unwrap();
    let file = |name| fs::OpenOptions::new().write(true).open(target.path(name)).unwrap();
    let one = file("one");
    let words = |offset: u64, words: [u32; 2]| {
        one.write_all_at(words.map(u32::to_le_bytes).as_flattened(), offset).unwrap();
    };
    one.write_all_at(b"MEMORY_HEAP_HDR\0", HEAP).unwrap();
    one.write_all_at(&((8 << 20) - HEAP).to_le_bytes(), 6144 + 32).unwrap();
    let (zone, chunks) = (HEAP + 1024, HEAP + 1024 + 64 + 65528 * 8);
    words(zone, [0xc3f0_a2d2, 18]);
    // Two free chunks, and an object of one at the begin of the other part.
    for (chunk, header) in [(0, [2, 2]), (2, [3, 1]), (3, [2, 15])] {
        words(zone + 64 + chunk * 8, header);
    }
    let object = chunks + 2 * CHUNK - (4 << 20);
    file("two").write_all_at(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0], object).unwrap();
    let prepare = |force| RemoteRemoval::prepare(&target.url(), &set, [force, false], None, &options());
    let own = fs::read(target.path("two")).unwrap();
    drop(prepare(false).unwrap());
    let letter = b"dear all,\n".repeat((4 << 20) / 10 + 1);
    fs::write(target.path("two"), &letter[..4 << 20]).unwrap();
    for force in [false, true] {
        let error = prepare(force).unwrap_err();
        assert_eq!(refusal(&error), Some(PoolRefusal::NotAUsablePool), "{error}");
        assert!(causes(&error).to_string().contains("two"), "{error}");
    }
    assert!(target.path("one").exists() && fs::read(target.path("two")).unwrap() == letter[..4 << 20]);
    fs::write(target.path("two"), own).unwrap();
    let begun = Instant::now();
    let removal = loop {
        match prepare(false) {
            Ok(removal) => break removal,
            Err(error) => assert!(begun.elapsed() < LONG, "{error}"),
        }
    };
    removal.carry_out().unwrap();
    assert!(!target.path("one").exists() && !target.path("two").exists());
}

#[test]
fn a_target_tells_where_its_parts_without_a_header_are() {
    let target = Target::start();
    let parts = ["one", "two", "three"];
    let single = target.write_set("single.set", "OPTION SINGLEHDR\n", &parts);
    let attributes = Attributes { incompat: 2 | SINGLE_HEADER, ..attributes() };
    target.remote(&single).create(4 << 20, Some(&attributes)).unwrap().close().unwrap();
    let ranges = target.replica(&single).contents().headerless_ranges().unwrap();
    assert_eq!(ranges, [4 << 20..8 << 20, 8 << 20..12 << 20]);
    let all = target.two_parts();
    for part in parts {
        fs::remove_file(target.path(part)).unwrap();
    }
    target.create(&all).close().unwrap();
    assert_eq!(target.replica(&all).contents().headerless_ranges().unwrap(), []);
}

#[test]
fn without_headers_the_whole_pool_is_data() {
    let target = Target::start();
    let set = target.write_set("bare.set", "OPTION NOHDRS\n", &["bare"]);
    let pool = target.remote(&set).create(4 << 20, None).unwrap();
    assert_eq!((pool.len_bytes(), pool.data_range()), (4 << 20, 0..4 << 20));
    persist(&pool, 0, b"from the first byte on", Atomicity::Words).unwrap();
    assert!(matches!(pool.set_attributes(&attributes()), Err(PoolError::NoHeader)));
    pool.set_attributes(&Attributes::default()).unwrap();
    pool.close().unwrap();
    assert_eq!(target.open(&set).attributes(), None);
    let bytes = fs::read(target.path("bare")).unwrap();
    assert!(bytes.starts_with(b"from the first byte on"));
}

#[test]
fn what_a_target_refuses_is_reported_by_its_rule() {
    let target = Target::start();
    let set = target.two_parts();
    let create = |name: &SetName, size, attributes: Option<&Attributes>| {
        target.remote(name).create(size, attributes).unwrap_err()
    };
    let attributes = attributes();
    let missing = SetName::new("missing/x.set").unwrap();
    assert_eq!(refusal(&create(&missing, 4096, Some(&attributes))), Some(PoolRefusal::NotFound));
    assert_eq!(refusal(&create(&set, 1 << 30, Some(&attributes))), Some(PoolRefusal::BadSize));
    assert_eq!(refusal(&create(&set, 4096, None)), Some(PoolRefusal::BadSet));
    let bare = target.write_set("bare.set", "OPTION NOHDRS\n", &["bare"]);
    assert_eq!(refusal(&create(&bare, 4096, Some(&attributes))), Some(PoolRefusal::BadSet));
    let single = target.write_set("single.set", "OPTION SINGLEHDR\n", &["single"]);
    assert_eq!(refusal(&create(&single, 4096, Some(&attributes))), Some(PoolRefusal::BadSet));
    fs::write(target.path("twice.set"), "PMEMPOOLSET\n4M /dev/shm/a\nREPLICA\n4M /dev/shm/b\n").unwrap();
    assert_eq!(
        refusal(&create(&SetName::new("twice.set").unwrap(), 4096, Some(&attributes))),
        Some(PoolRefusal::BadSet)
    );
    fs::write(target.path("broken.set"), "PMEMPOOLSET\nnonsense\n").unwrap();
    let error = create(&SetName::new("broken.set").unwrap(), 4096, Some(&attributes));
    assert!(causes(&error).to_string().contains("broken.set:2"), "{error}");
    // None of it left a part.
    for part in ["one", "two", "bare", "single"] {
        assert!(!target.path(part).exists(), "{part}");
    }
    let require = options().require(Some(Durability::PowerFailure));
    let error = target.remote(&set).target(require).create(4096, Some(&attributes)).unwrap_err();
    assert_eq!(refusal(&error), Some(PoolRefusal::NotDurable));
    assert!(!target.path("one").exists());
}

#[test]
fn no_link_leads_out_of_the_root() {
    let target = Target::start();
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("x.set"), format!("PMEMPOOLSET\n4M {}\n", target.path("x").display())).unwrap();
    symlink(outside.path(), target.path("out")).unwrap();
    let name = SetName::new("out/x.set").unwrap();
    target.remote(&name).create(4096, Some(&attributes())).unwrap_err();
    assert!(!target.path("x").exists());
}

#[test]
fn the_second_opener_learns_who_has_the_pool() {
    let target = Target::start();
    let set = target.two_parts();
    let _first = target.create(&set);
    let error = target.remote(&set).open(0, OpenFor::Write).unwrap_err();
    assert_eq!(refusal(&error), Some(PoolRefusal::Busy));
    assert!(causes(&error).to_string().contains(&format!("process {}", std::process::id())), "{error}");
    let error = target.remote(&set).remove(false, false).unwrap_err();
    assert!(target.path("one").exists(), "{error}");
}

#[test]
fn removing_takes_the_parts_and_if_asked_the_set() {
    let target = Target::start();
    let set = target.two_parts();
    target.create(&set).close().unwrap();
    target.remote(&set).remove(false, false).unwrap();
    assert!(!target.path("one").exists() && !target.path("two").exists() && target.path("orders.set").exists());
    // What is gone can be removed once more by force only.
    target.remote(&set).remove(false, false).unwrap_err();
    target.remote(&set).remove(true, true).unwrap();
    assert!(!target.path("orders.set").exists());
}

#[test]
fn a_dead_target_is_the_reason_of_every_later_failure() {
    let mut target = Target::start();
    let set = target.two_parts();
    let pool = target.create(&set);
    persist(&pool, 8192, b"kept", Atomicity::Words).unwrap();
    target.service = None;
    let first = persist(&pool, 8192, b"lost", Atomicity::Words).unwrap_err();
    let why = |error: &PoolError| error.replica_error().unwrap().to_string();
    for _ in 0..3 {
        let error = persist(&pool, 8192, b"lost", Atomicity::Words).unwrap_err();
        assert!(matches!(&error, PoolError::Persist(failure) if failure.receipt.replicas.is_empty()), "{error}");
        assert_eq!(why(&error), why(&first));
        assert_eq!(why(&pool.read(8192, &mut [0]).unwrap_err()), why(&first));
        assert_eq!(why(&pool.check_replicas().unwrap_err()), why(&first));
    }
    let bytes = fs::read(target.path("one")).unwrap();
    assert_eq!(&bytes[8192..8196], b"kept");
}

#[test]
fn digests_are_those_of_the_bytes() {
    let target = Target::start();
    let set = target.two_parts();
    let pool = target.create_with_mirror(&set, 5);
    let end = pool.len_bytes();
    pool.persist_range(pool.data_range()).unwrap();
    pool.close().unwrap();
    let mut replica = target.replica(&set);
    let expected = pattern(end as usize, 5);
    for (offset, len) in [(4096, end - 4096), (4097, 70_001), (8192, 10), (8192, 0)] {
        let digests = replica.contents().digests(offset..offset + len).unwrap();
        let blocks = expected[offset as usize..(offset + len) as usize].chunks(DIGEST_BLOCK_LEN_BYTES as usize);
        let own: Vec<_> = blocks.map(|block| *blake3::hash(block).as_bytes()).collect();
        assert!(digests == own, "{len} bytes at {offset}");
    }
}

#[test]
fn what_was_never_written_is_reported_as_zeros() {
    let target = Target::start();
    let set = target.two_parts();
    target.create(&set).close().unwrap();
    let mut replica = target.replica(&set);
    let end = replica.len_bytes();
    let pool = replica.contents();
    assert!(!target.keeps_holes() || pool.data_ranges(HEADER_BYTES..end).unwrap().is_empty());
    let written = [5000, 1 << 20, (4 << 20) + 5, end - 1];
    for offset in written {
        pool.write(offset, b"x").unwrap();
        pool.persist(offset..offset + 1).unwrap();
    }
    let found = pool.data_ranges(HEADER_BYTES..end).unwrap();
    assert!(written.iter().all(|offset| found.iter().any(|range| range.contains(offset))), "{found:?}");
    if target.keeps_holes() {
        assert!(found.iter().map(|range| range.end - range.start).sum::<u64>() < 1 << 20, "{found:?}");
        assert_eq!(pool.data_ranges(2 << 20..3 << 20).unwrap(), []);
    }
    let around = pool.data_ranges(0..5001).unwrap();
    assert!(around.iter().all(|range| range.end <= 5001) && around.iter().any(|range| range.contains(&5000)));
}

/// More ranges than one answer holds.
#[test]
fn data_in_many_pieces_is_listed_in_many_replies() {
    let target = Target::start();
    let text = format!("PMEMPOOLSET\n80M {}\n", target.path("large").display());
    fs::write(target.path("large.set"), text).unwrap();
    let set = SetName::new("large.set").unwrap();
    let pool = target.create(&set);
    let written: Vec<u64> = (1 << 20..80 << 20).step_by(128 << 10).collect();
    let mut lane = pool.lane();
    for offset in &written {
        lane.write(*offset, b"x").unwrap();
    }
    lane.persist().unwrap();
    pool.close().unwrap();
    let found = target.replica(&set).contents().data_ranges(pool.data_range()).unwrap();
    assert!(written.iter().all(|offset| found.iter().any(|range| range.contains(offset))));
    assert!(!target.keeps_holes() || found.len() == written.len());
}

#[test]
fn many_threads_use_their_lanes_at_once() {
    let target = Target::start();
    let set = target.two_parts();
    let pool = target.create_with_mirror(&set, 11);
    let expected = &pattern(POOL_BYTES as usize, 11);
    let before = threads();
    std::thread::scope(|scope| {
        for index in 0..16 {
            let mut lane = pool.lane();
            scope.spawn(move || {
                lane.set_atomicity(Atomicity::Words);
                for round in 0..50 {
                    let offset = HEADER_BYTES + index * 200_000 + round * 4000;
                    lane.persist_range(offset..offset + 3999).unwrap();
                    let mut bytes = [0; 3999];
                    lane.read(offset, &mut bytes).unwrap();
                    assert!(bytes[..] == expected[offset as usize..][..3999]);
                }
            });
        }
    });
    // A thread that was joined may still be on its way out.
    let begun = Instant::now();
    while threads() > before {
        assert!(begun.elapsed() < LONG, "lanes have no threads: {} and {before}", threads());
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn threads() -> usize {
    fs::read_dir("/proc/self/task").unwrap().count()
}
