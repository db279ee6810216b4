//! Pools kept on all replicas of a pool set, through a command in ssh's place.

use std::{
    fs,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use pmof::{Atomicity, Differing, Pool, PoolError, ReplicaError, SetOptions, SshOptions, TargetOptions};
use pmof_pool_set as pool_set;
use pmof_pool_set::{Attributes, DIGEST_BLOCK_LEN_BYTES, LocalReplica, NewPool, NewSet, OpenFor, PartSpec, PoolSet};

use crate::support::{PMOF, Stage};

/// A set of two local and two remote replicas.
struct Fixture {
    stage: Stage,
}

impl Fixture {
    fn new() -> Self {
        Self::with_parts_of("9M")
    }

    fn with_parts_of(size: &str) -> Self {
        let stage = Stage::local();
        let fixture = Self { stage };
        let text = format!(
            "PMEMPOOLSET\n{size} {}\nREPLICA\n{size} {}\nREPLICA host-a a.set\nREPLICA host-b b.set\n",
            fixture.path("one").display(),
            fixture.path("two").display()
        );
        fs::write(fixture.path("local.set"), text).unwrap();
        for name in ["a", "b"] {
            let text = format!("PMEMPOOLSET\n{size} {}\n", fixture.path(name).display());
            fs::write(fixture.stage.root().join(format!("{name}.set")), text).unwrap();
        }
        fixture
    }

    fn path(&self, name: &str) -> PathBuf {
        self.stage.directory.path().join(name)
    }

    fn set(&self) -> PoolSet {
        PoolSet::read(&self.path("local.set")).unwrap()
    }

    fn options(&self) -> SetOptions {
        let command = format!("exec {PMOF} serve --stdio --root {}", self.stage.root().display());
        let ssh = SshOptions::default().program(self.path("ssh")).command(command);
        Pool::from_set(self.set()).target(TargetOptions::default().ssh(ssh))
    }

    fn create(&self) -> Pool {
        self.options().create(&NewSet::new(NewPool::Obj { layout: "test".to_owned() })).unwrap()
    }

    /// Replicas that differ are brought up to date.
    fn open(&self) -> Result<Pool, PoolError> {
        self.options().differing(Differing::Copy).open()
    }

    /// Behind the headers all parts must hold the same.
    fn check_same(&self) {
        let data = |name: &str| fs::read(self.path(name)).unwrap().split_off(4096);
        let first = data("one");
        for name in ["two", "a", "b"] {
            assert!(data(name) == first, "{name} differs");
        }
    }
}

const OFFSET: u64 = 5 << 20;

/// Bytes of a file that are in the page cache or on the disk as data, in blocks.
fn data_bytes(path: &Path) -> u64 {
    use std::os::fd::AsFd as _;
    let file = fs::File::open(path).unwrap();
    let len_bytes = file.metadata().unwrap().len();
    let (mut at, mut data) = (0, 0);
    while let Ok(start) = rustix::fs::seek(file.as_fd(), rustix::fs::SeekFrom::Data(at)) {
        at = rustix::fs::seek(file.as_fd(), rustix::fs::SeekFrom::Hole(start)).unwrap();
        data += at - start;
        assert!(at <= len_bytes);
    }
    data
}

/// What is zero by construction is neither read nor digested nor sent: reading all would bring all into the cache. What is read
/// brings along what the kernel reads ahead, up to some megabytes each time.
#[test]
fn a_large_new_pool_costs_what_it_holds() {
    let fixture = Fixture::with_parts_of("1G");
    let check = |when: &str| {
        for name in ["one", "two", "a", "b"] {
            let data = data_bytes(&fixture.path(name));
            assert!((3 << 20..256 << 20).contains(&data), "{name} has {data} bytes of data {when}");
        }
    };
    let pool = fixture.create();
    check("when it is made");
    write(&pool, 900 << 20, b"far out").unwrap();
    pool.close().unwrap();
    let pool = fixture.open().unwrap();
    check("when it is opened");
    assert_eq!(pool.copied_bytes(), 0);
    pool.close().unwrap();
    let set = fixture.path("local.set");
    let set = set.to_str().unwrap();
    fixture.stage.succeed(&["pool", "check", set]);
    check("when it is checked");
    fs::remove_file(fixture.path("a")).unwrap();
    fs::remove_file(fixture.path("two")).unwrap();
    fixture.stage.succeed(&["pool", "sync", set]);
    check("when replicas were made anew");
    let mut bytes = [0; 7];
    for name in ["one", "two", "a", "b"] {
        let file = fs::File::open(fixture.path(name)).unwrap();
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, 900 << 20).unwrap();
        assert_eq!(&bytes, b"far out", "{name}");
    }
}

/// Files that were there before a pool was made are not known to be zero: what they hold does not become the pool's.
#[test]
fn what_a_replica_held_before_is_not_taken_for_zeros() {
    let fixture = Fixture::new();
    let pool = fixture.create();
    pool.close().unwrap();
    for name in ["two", "a"] {
        let file = fs::OpenOptions::new().write(true).open(fixture.path(name)).unwrap();
        std::os::unix::fs::FileExt::write_at(&file, &vec![8; 300_000], 6 << 20).unwrap();
    }
    let pool = fixture.open().unwrap();
    assert!(pool.copied_bytes() >= 600_000);
    pool.close().unwrap();
    fixture.check_same();
}

/// The other way round: what a replica lost is allocated and was never written there, a hole to a search for data.
#[test]
fn blocks_that_a_replica_lost_are_copied_to_it() {
    use rustix::fs::{FallocateFlags, fallocate};
    // Several of the pieces that are compared in one go: what lies beside the hole may be in the page cache, where it is data.
    const LEN_BYTES: u64 = 16 << 20;
    let fixture = Fixture::with_parts_of("32M");
    let pool = fixture.create();
    write(&pool, OFFSET, &vec![7; LEN_BYTES as usize]).unwrap();
    pool.close().unwrap();
    for name in ["two", "a"] {
        let file = fs::OpenOptions::new().write(true).open(fixture.path(name)).unwrap();
        for flags in [FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, FallocateFlags::empty()] {
            fallocate(&file, flags, OFFSET, LEN_BYTES).unwrap();
        }
    }
    let pool = fixture.open().unwrap();
    assert!(pool.copied_bytes() >= 2 * LEN_BYTES);
    pool.close().unwrap();
    fixture.check_same();
}

fn write(pool: &Pool, offset: u64, bytes: &[u8]) -> Result<(), PoolError> {
    pool.mirror().unwrap().store(offset, bytes).unwrap();
    let mut lane = pool.lane();
    lane.set_atomicity(Atomicity::Words);
    let receipt = lane.persist_range(offset..offset + bytes.len() as u64)?;
    assert_eq!(receipt.replicas.len(), pool.replica_count());
    Ok(())
}

/// Which replica of the set differs, and in what.
fn differs(error: &PoolError) -> Option<(usize, &'static str)> {
    match error {
        PoolError::Replica { replica, source } => match **source {
            ReplicaError::Differs { what } => Some((replica.index()?, what)),
            _ => None,
        },
        _ => None,
    }
}

#[test]
fn all_replicas_of_a_set_get_the_same() {
    let fixture = Fixture::new();
    let pool = fixture.create();
    assert_eq!((pool.len_bytes(), pool.replica_count()), (9 << 20, 4));
    // Of 1,024 lanes.
    let threads = fs::read_dir(format!("/proc/{}/task", holder_of(&fixture.path("a")))).unwrap().count();
    assert!(threads <= 16, "{threads}");
    fixture.check_same();
    write(&pool, OFFSET, b"everywhere").unwrap();
    pool.mirror().unwrap().store(OFFSET + 100_000, &vec![5; 50_000]).unwrap();
    pool.persist_range(OFFSET + 100_000..OFFSET + 150_000).unwrap();
    fixture.check_same();
    assert!(matches!(pool.persist_range(100..101), Err(PoolError::Header { .. })));
    assert!(matches!(pool.persist_range(100..10 << 20), Err(PoolError::OutOfBounds { .. })));
    pool.close().unwrap();

    let pool = fixture.open().unwrap();
    let mut bytes = [0; 10];
    pool.mirror().unwrap().read(OFFSET, &mut bytes).unwrap();
    assert_eq!(&bytes, b"everywhere");
    pool.close().unwrap();
    fixture.check_same();
}

#[test]
fn a_dead_replica_is_named_and_the_others_go_on() {
    let fixture = Fixture::new();
    let pool = fixture.create();
    let target = holder_of(&fixture.path("a"));
    assert!(Command::new("kill").args(["-9", &target.to_string()]).status().unwrap().success());
    for round in 0..3_u8 {
        let error = write(&pool, OFFSET, &[round + 1; 1000]).unwrap_err();
        let PoolError::Persist(failure) = &error else { panic!("{error}") };
        assert_eq!(failure.failed.iter().map(|(replica, _)| replica.index()).collect::<Vec<_>>(), [Some(2)]);
        assert_eq!(failure.receipt.replicas.len(), 3, "the others have it");
    }
    // Its loss was told, and does not keep the others from being closed in order.
    pool.close().unwrap();
    let part = |name: &str| fs::read(fixture.path(name)).unwrap()[OFFSET as usize..][..1000].to_vec();
    for name in ["one", "two", "b"] {
        assert_eq!(part(name), [3; 1000], "{name}");
    }
    assert_ne!(part("a"), [3; 1000]);

    // What it lacks is found, and copied, and then it is whole.
    let refuse = fixture.options();
    let error = refuse.open().unwrap_err();
    assert_eq!(differs(&error), Some((2, "contents")), "{error}");
    let pool = fixture.open().unwrap();
    assert!(pool.copied_bytes() > 0 && pool.copied_bytes() <= 2 * DIGEST_BLOCK_LEN_BYTES, "{}", pool.copied_bytes());
    pool.close().unwrap();
    fixture.check_same();
    refuse.open().unwrap().close().unwrap();
}

#[test]
fn a_flipped_byte_of_any_replica_is_found_and_mended() {
    let fixture = Fixture::new();
    let pool = fixture.create();
    write(&pool, OFFSET, &[9; 4096]).unwrap();
    pool.close().unwrap();
    for (replica, name) in [(1, "two"), (2, "a"), (3, "b")] {
        let file = fs::OpenOptions::new().write(true).open(fixture.path(name)).unwrap();
        std::os::unix::fs::FileExt::write_at(&file, &[8], OFFSET + 77).unwrap();
        let error = fixture.options().open().unwrap_err();
        assert_eq!(differs(&error).map(|(found, _)| found), Some(replica), "{error}");
        let pool = fixture.open().unwrap();
        assert_eq!(pool.copied_bytes(), DIGEST_BLOCK_LEN_BYTES);
        pool.close().unwrap();
        fixture.check_same();
    }
}

/// A program that asks for the first replica to be copied does not ask for zeros.
#[test]
fn a_first_replica_with_nothing_in_it_is_not_copied() {
    for range in [4096..9 << 20, 4096..6144] {
        let fixture = Fixture::new();
        fixture.create().close().unwrap();
        let file = fs::File::options().write(true).open(fixture.path("one")).unwrap();
        file.write_all_at(&vec![0; range.end - range.start], range.start as u64).unwrap();
        let before = fs::read(fixture.path("b")).unwrap()[4096..].to_vec();
        match fixture.open() {
            Err(PoolError::BadSource { sound, reason }) => {
                assert_eq!(sound.index(), Some(1));
                assert!(reason.contains("empty") || reason.contains("zero"));
            }
            other => panic!("{other:?}"),
        }
        assert!(fs::read(fixture.path("b")).unwrap()[4096..] == before);
    }
}

/// The process that has a part mapped.
fn holder_of(part: &Path) -> u32 {
    let processes =
        fs::read_dir("/proc").unwrap().filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    let has = |process: &u32| {
        let maps = fs::read_to_string(format!("/proc/{process}/maps")).unwrap_or_default();
        let command = fs::read_to_string(format!("/proc/{process}/cmdline")).unwrap_or_default();
        command.contains("--stdio") && maps.lines().any(|line| line.ends_with(part.to_str().unwrap()))
    };
    processes.into_iter().find(has).expect("a target")
}

#[test]
fn a_set_that_cannot_be_made_leaves_nothing() {
    let fixture = Fixture::new();
    fs::write(fixture.stage.root().join("b.set"), "PMEMPOOLSET\nnonsense\n").unwrap();
    let error = fixture.options().create(&NewSet::new(NewPool::Obj { layout: "test".to_owned() })).unwrap_err();
    let is_named = matches!(&error, PoolError::Replica { replica, .. } if replica.index() == Some(3));
    assert!(is_named, "{error}");
    for name in ["one", "two", "a", "b"] {
        assert!(!fixture.path(name).exists(), "{name}");
    }
}

/// Opening refuses what check calls unsound: headers are compared in one way.
#[test]
fn headers_that_check_refuses_are_refused_at_opening() {
    type Change = fn(&mut Attributes);
    let changes: [(&str, Change, &str); 5] = [
        ("b", |header| header.user_flags[0] ^= 1, "architecture"),
        ("b", |header| header.compat ^= 1, "set of features"),
        ("a", |header| header.prev_uuid = header.uuid, "neighbour"),
        // Of a local one what it says of the remote one beside it.
        ("two", |header| header.next_uuid = header.uuid, "neighbour"),
        ("one", |header| header.prev_uuid = header.uuid, "neighbour"),
    ];
    for (name, change, expected) in changes {
        let fixture = Fixture::new();
        fixture.create().close().unwrap();
        let parts = [PartSpec::new(fixture.path(name), 9 << 20)];
        let replica =
            LocalReplica::open_for_client(&parts, pool_set::SetOptions::default(), OpenFor::Write, None).unwrap();
        let mut attributes = replica.attributes().unwrap();
        change(&mut attributes);
        replica.set_attributes(&attributes).unwrap();
        replica.close().unwrap();
        let error = fixture.open().unwrap_err();
        assert_eq!(differs(&error).map(|(_, what)| what), Some(expected), "{name}: {error}");
        let report = fixture.options().check(&mut |_| {}).unwrap();
        assert!(!report.is_sound(), "{name}");
    }
}

#[test]
fn a_replica_of_another_pool_is_refused() {
    let fixture = Fixture::new();
    fixture.create().close().unwrap();
    let swapped = fs::read_to_string(fixture.path("local.set")).unwrap();
    let swapped = swapped.replace("a.set", "x").replace("b.set", "a.set").replace(" x\n", " b.set\n");
    fs::write(fixture.path("local.set"), swapped).unwrap();
    let error = fixture.open().unwrap_err();
    assert_eq!(differs(&error).map(|(_, what)| what), Some("neighbour"), "{error}");
}

/// As of a local one: what lies behind the header decides, not the header.
#[test]
fn a_flipped_bit_of_a_remote_header_is_repaired() {
    let fixture = Fixture::new();
    let pool = fixture.create();
    write(&pool, OFFSET, &[9; 4096]).unwrap();
    pool.close().unwrap();
    let set = fixture.path("local.set");
    let set = set.to_str().unwrap();
    let flip = |name: &str, offset: u64| {
        let file = fs::File::options().read(true).write(true).open(fixture.path(name)).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, offset).unwrap();
        file.write_all_at(&[byte[0] ^ 1], offset).unwrap();
    };
    for offset in [0, 9, 30, 2000, 4095] {
        flip("a", offset);
        let refused = fixture.options().open().unwrap_err();
        assert!(pmof::causes(&refused).to_string().contains("header"), "{refused}");
        fixture.stage.fail(&["pool", "check", set]);
        let told = fixture.stage.fail(&["pool", "sync", set, "--dry-run"]);
        assert!(told.contains("would change replicas"), "{told}");
        let told = fixture.stage.succeed(&["pool", "sync", set]);
        assert!(told.contains("replica 2: restored from replica 0"), "{told}");
        fixture.stage.succeed(&["pool", "check", set]);
        fixture.check_same();
        fixture.options().open().unwrap().close().unwrap();
    }
    // What is in use behind it differs: nothing tells which is newer.
    flip("b", 30);
    flip("b", OFFSET);
    let before = fs::read(fixture.path("b")).unwrap();
    for dry_run in [&["--dry-run"][..], &[]] {
        let told = fixture.stage.fail(&[&["pool", "sync", set], dry_run].concat());
        assert!(told.contains(&format!("first at offset {OFFSET}")) && told.contains("--from 0"), "{told}");
    }
    assert!(fs::read(fixture.path("b")).unwrap() == before);
    fixture.stage.succeed(&["pool", "sync", set, "--from", "0"]);
    fixture.check_same();
}
