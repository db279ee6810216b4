//! Beside PMDK's own libraries, where they are installed (`libpmemobj-dev`, `libpmempool-dev`, `libpmemlog-dev`,
//! `libpmemblk-dev` of Debian 12, and a C compiler): they accept what is made here, and what they make is opened here.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Arc, OnceLock},
    time::Duration,
};

use pmof_locks::Mutex;
use pmof_mem::Memory;
use pmof_pool_set::{
    Comparison, ContentsState, LocalReplica, LocalSet, NewPool, NewSet, NoRemotes, OpenFor, PartSpec, PoolKind,
    PoolSet, PoolSetError, ReplicaAccess as _, ReplicaSpec, SetOptions, SyncOptions, TransformOptions, block_table,
    check, memory_state, part_header, sync, transform,
};
use tempfile::{TempDir, tempdir_in};

/// Says why, and that nothing was shown, where PMDK is not here.
macro_rules! need_pmdk {
    () => {
        // A process that is being started holds what others have open, locks among it, until its program runs.
        let _one = ONE_AT_A_TIME.lock();
        if let Err(why) = program() {
            skip_report::skipped!("PMDK's libraries cannot be asked ({why})");
            return;
        }
    };
}

mod extremes;
mod in_use;
mod spelling;

const SOURCES: &str = env!("CARGO_MANIFEST_DIR");
/// Where msync costs nothing: PMDK flushes at every step.
const PLACE: &str = "/dev/shm";
const MIB: u64 = 1 << 20;
const SINGLE: SetOptions = SetOptions { single_header: true, no_headers: false };

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The program that asks PMDK, or why there is none.
fn program() -> Result<&'static Path, &'static str> {
    static PROGRAM: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let build = || {
        let source = Path::new(SOURCES).join("tests/pmdk/pmdk.c");
        // Each test may be a process of its own: what one runs must not be what another is still writing.
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("pmdk");
        let new = program.with_extension(std::process::id().to_string());
        let libraries = ["-lpmemobj", "-lpmempool", "-lpmemlog", "-lpmemblk", "-lpthread"];
        let built = Command::new("cc").args(["-O1", "-Wall", "-o"]).arg(&new).arg(source).args(libraries).output();
        match built {
            Ok(output) if output.status.success() => {
                fs::rename(&new, &program).map_err(|error| format!("rename: {error}"))?;
                Ok(program)
            }
            Ok(output) => Err(String::from_utf8_lossy(&output.stderr).lines().next().unwrap_or("").to_owned()),
            Err(error) => Err(format!("cc: {error}")),
        }
    };
    PROGRAM.get_or_init(build).as_deref().map_err(String::as_str)
}

/// Runs a command of the program; what it says, and whether PMDK agrees.
fn pmdk(arguments: &[&Path]) -> (bool, String) {
    let output = Command::new(program().unwrap()).args(arguments).output().unwrap();
    (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
}

fn agrees(command: &str, path: &Path, other: &str) -> String {
    let (is_fine, said) = pmdk(&[Path::new(command), path, Path::new(other)]);
    assert!(is_fine, "{command} {} {other}: {said}", path.display());
    said
}

/// A set file, with two parts in each replica.
fn set(directory: &TempDir, name: &str, options: SetOptions, sizes: &[[u64; 2]]) -> PoolSet {
    let path = directory.path().join(name);
    let replica = |(replica, sizes): (usize, &[u64; 2])| {
        let part =
            |(part, mib): (usize, &u64)| PartSpec::new(directory.path().join(format!("r{replica}p{part}")), mib * MIB);
        ReplicaSpec::Local(sizes.iter().enumerate().map(part).collect())
    };
    let set = PoolSet { path, replicas: sizes.iter().enumerate().map(replica).collect(), options };
    fs::write(&set.path, set.to_bytes()).unwrap();
    set
}

fn create(set: &PoolSet, pool: NewPool) {
    let new = NewSet::new(pool);
    LocalSet::create(set, &new, &new.plan(set).unwrap()).unwrap().close().unwrap();
}

fn obj() -> NewPool {
    NewPool::Obj { layout: "test".into() }
}

fn open(set: &PoolSet) -> Result<LocalSet, PoolSetError> {
    LocalSet::open(set, OpenFor::Write, None)
}

/// All replicas hold the same, wherever it means something. Says how many differences mean nothing.
fn assert_same(set: &PoolSet) -> u64 {
    let opened = open(set).unwrap();
    let kind = opened.replicas()[0].as_ref().unwrap().header(0).unwrap().kind();
    let len_bytes = opened.len_bytes();
    opened.close().unwrap();
    let replica =
        |spec: &ReplicaSpec| LocalReplica::open(spec.local().unwrap(), set.options, OpenFor::Write, None).unwrap();
    let mut replicas: Vec<_> = set.replicas.iter().map(replica).collect();
    let (first, others) = replicas.split_first_mut().unwrap();
    let comparison = Comparison::of_pool(kind, &first.memory(), len_bytes).unwrap();
    let mut unused = 0;
    for other in others {
        let found = comparison.differences(first.contents(), other.contents(), &mut |_| {}).unwrap();
        assert!(found.is_empty(), "{:x?}", found.told);
        unused += found.unused_count;
    }
    for replica in replicas {
        replica.close().unwrap();
    }
    unused
}

#[test]
fn pmdk_accepts_and_uses_pools_of_ours() {
    need_pmdk!();
    for options in [SetOptions::default(), SINGLE] {
        for sizes in [&[[6, 6]][..], &[[6, 6], [8, 5]], &[[6, 6], [6, 6], [7, 7]]] {
            let directory = tempdir_in(PLACE).unwrap();
            let set = set(&directory, "set", options, sizes);
            create(&set, obj());
            agrees("check", &set.path, "");
            agrees("obj-work", &set.path, "test");
            let unused = assert_same(&set);
            assert_eq!(unused > 0, sizes.len() > 1, "libpmemobj writes to free space of the first replica");
            agrees("obj-verify", &set.path, "test");
            agrees("obj-work", &set.path, "test");
            agrees("obj-verify", &set.path, "test");
            agrees("check", &set.path, "");
            let (is_fine, said) = pmdk(&[Path::new("obj-verify"), &set.path, Path::new("other")]);
            assert!(!is_fine && said.contains("layout"), "{said}");
        }
    }
}

#[test]
fn pmdk_accepts_logs_and_blocks_of_ours() {
    need_pmdk!();
    for options in [SetOptions::default(), SINGLE] {
        let directory = tempdir_in(PLACE).unwrap();
        let log = set(&directory, "log", options, &[[2, 3]]);
        create(&log, NewPool::Log);
        agrees("check", &log.path, "");
        assert_eq!(agrees("log-append", &log.path, "one "), "one ");
        open(&log).unwrap().close().unwrap();
        assert_eq!(agrees("log-append", &log.path, "two"), "one two");
        agrees("check", &log.path, "");
        agrees("rm", &log.path, "");
        let blk = set(&directory, "blk", options, &[[18, 2]]);
        create(&blk, NewPool::Blk { block_len_bytes: 512 });
        agrees("check", &blk.path, "");
        agrees("blk", &blk.path, "contents of a block");
        open(&blk).unwrap().close().unwrap();
        agrees("check", &blk.path, "");
    }
}

#[test]
fn pools_of_pmdk_are_opened() {
    need_pmdk!();
    for options in [SetOptions::default(), SINGLE] {
        let directory = tempdir_in(PLACE).unwrap();
        let set = set(&directory, "set", options, &[[6, 6], [8, 5]]);
        agrees("obj-create", &set.path, "theirs");
        let opened = open(&set).unwrap();
        let header = opened.replicas()[1].as_ref().unwrap().header(0).unwrap();
        assert_eq!(header.kind(), Some(PoolKind::Obj));
        opened.close().unwrap();
        assert_same(&set);
        agrees("obj-verify", &set.path, "theirs");
        agrees("check", &set.path, "");
    }
}

/// The same set made by both: all bytes that are no UUID, time or checksum of them are the same.
#[test]
fn new_pools_are_what_pmdk_makes() {
    need_pmdk!();
    for (options, command, pool) in
        [(SetOptions::default(), "log-create", NewPool::Log), (SINGLE, "log-create", NewPool::Log)]
    {
        let directory = tempdir_in(PLACE).unwrap();
        let set = set(&directory, "set", options, &[[2, 3]]);
        agrees(command, &set.path, "");
        let parts = set.replicas[0].local().unwrap();
        let read = || parts.iter().map(|part| fs::read(&part.path).unwrap()).collect::<Vec<_>>();
        let theirs = read();
        agrees("rm", &set.path, "");
        create(&set, pool);
        for (index, (ours, theirs)) in read().into_iter().zip(theirs).enumerate() {
            let differ = ours.iter().zip(&theirs).enumerate().filter(|(_, (one, other))| one != other);
            let strange = differ.map(|(offset, _)| offset).find(|offset| {
                let is_uuid_or_time = (24..128).contains(offset);
                // PMDK keeps pointers of the running program behind the descriptor of a log.
                let is_runtime = index == 0 && (4120..8192).contains(offset);
                !(is_uuid_or_time || (4088..4096).contains(offset) || is_runtime)
            });
            assert_eq!(strange, None, "part {index}");
        }
    }
}

#[test]
fn who_has_a_pool_open_keeps_the_other_out() {
    need_pmdk!();
    let directory = tempdir_in(PLACE).unwrap();
    let set = set(&directory, "set", SetOptions::default(), &[[6, 6]]);
    create(&set, obj());
    let opened = open(&set).unwrap();
    let (is_fine, said) = pmdk(&[Path::new("obj-work"), &set.path, Path::new("test")]);
    assert!(!is_fine && said.contains("temporarily unavailable"), "{said}");
    opened.close().unwrap();
    agrees("obj-work", &set.path, "test");
}

#[test]
fn pmdk_restores_and_transforms_sets_of_ours() {
    need_pmdk!();
    let directory = tempdir_in(PLACE).unwrap();
    // PMDK's tools want each part to be as long as a pool.
    let one = set(&directory, "set", SetOptions::default(), &[[9, 9], [9, 9]]);
    create(&one, obj());
    agrees("obj-work", &one.path, "test");
    assert_same(&one);
    fs::remove_file(directory.path().join("r1p1")).unwrap();
    match open(&one) {
        Err(PoolSetError::Missing { path }) => assert!(path.ends_with("r1p1")),
        other => panic!("{other:?}"),
    }
    agrees("sync", &one.path, "");
    assert_same(&one);
    agrees("obj-verify", &one.path, "test");
    let three = set(&directory, "three", SetOptions::default(), &[[9, 9], [9, 9], [10, 10]]);
    agrees("transform", &one.path, three.path.to_str().unwrap());
    assert_same(&three);
    agrees("obj-verify", &three.path, "test");
    agrees("transform", &three.path, one.path.to_str().unwrap());
    assert_same(&one);
    assert!(!directory.path().join("r2p0").exists());
}

#[test]
fn sets_of_pmdk_are_checked_restored_and_changed() {
    need_pmdk!();
    let directory = tempdir_in(PLACE).unwrap();
    let one = set(&directory, "set", SetOptions::default(), &[[6, 6], [6, 6]]);
    agrees("obj-create", &one.path, "theirs");
    let checked = |set: &PoolSet| check(set, None, &mut NoRemotes, &mut |_| {}).unwrap();
    let report = checked(&one);
    assert!(report.is_sound() && report.replicas[1].unused_count > 0, "{report:?}");
    // A byte of the root object, wherever it is: the heap's first run or chunk that is in use.
    let path = directory.path().join("r1p0");
    let file = fs::File::options().read(true).write(true).open(&path).unwrap();
    let mut root = [0; 8];
    file.read_exact_at(&mut root, 6144).unwrap();
    let offset = u64::from_le_bytes(root) + 8;
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 1], offset).unwrap();
    let report = checked(&one);
    assert_eq!(report.replicas[1].mismatches.iter().map(|mismatch| mismatch.offset).collect::<Vec<_>>(), [offset]);
    fs::remove_file(directory.path().join("r0p1")).unwrap();
    file.write_all_at(&byte, offset).unwrap();
    let synced = |set: &PoolSet| sync(set, &SyncOptions::default(), &mut NoRemotes, &mut |_| {}).unwrap();
    assert_eq!(synced(&one).source, 1);
    assert!(checked(&one).is_sound());
    agrees("check", &one.path, "");
    agrees("obj-verify", &one.path, "theirs");
    agrees("obj-work", &one.path, "theirs");
    let three = set(&directory, "three", SetOptions::default(), &[[6, 6], [6, 6], [8, 8]]);
    transform(&one, &three, &TransformOptions::default(), &mut NoRemotes, &mut |_| {}).unwrap();
    agrees("check", &three.path, "");
    agrees("obj-work", &three.path, "theirs");
    assert!(checked(&three).is_sound());
    transform(&three, &one, &TransformOptions::default(), &mut NoRemotes, &mut |_| {}).unwrap();
    agrees("obj-verify", &one.path, "theirs");
    agrees("check", &one.path, "");
}

#[test]
fn aligned_objects_of_pmdk_are_the_same_in_all_replicas() {
    need_pmdk!();
    let directory = tempdir_in(PLACE).unwrap();
    let set = set(&directory, "set", SetOptions::default(), &[[6, 6], [6, 6]]);
    agrees("obj-aligned", &set.path, "");
    assert!(assert_same(&set) > 0, "what never came to be differs");
}

#[test]
fn a_single_file_of_pmdk_is_a_replica_of_one_part() {
    need_pmdk!();
    let directory = tempdir_in(PLACE).unwrap();
    let set = set(&directory, "set", SetOptions::default(), &[[6, 6]]);
    agrees("obj-create", &set.path, "");
    let parts = set.replicas[0].local().unwrap();
    let header = part_header(&parts[1].path).unwrap();
    assert_eq!(header.prev_part_uuid, part_header(&parts[0].path).unwrap().uuid);
    assert!(!header.shutdown_state.is_dirty());
}

/// A file of PMDK's that is a pool of blocks, written by several threads.
fn blocks(directory: &TempDir) -> PathBuf {
    let path = directory.path().join("blocks");
    agrees("blk-fill", &path, "");
    path
}

fn is_sound(path: &Path) -> bool {
    let parts = vec![PartSpec::new(path, fs::metadata(path).unwrap().len())];
    let set = PoolSet { path: path.into(), replicas: vec![ReplicaSpec::Local(parts)], options: SetOptions::default() };
    check(&set, None, &mut NoRemotes, &mut |_| {}).unwrap().is_sound()
}

fn is_sound_table(path: &Path) -> bool {
    let memory = Memory::open_read_only(path, None).unwrap();
    block_table(&memory).unwrap().is_some_and(|table| table.defect.is_none())
}

/// The fields of a table's head, each by a byte of it.
const FIELDS: [(&str, usize); 21] = [
    ("signature", 0),
    ("uuid", 16),
    ("parent uuid", 47),
    ("flags", 48),
    ("major", 52),
    ("minor", 54),
    ("length of a block", 56),
    ("blocks", 60),
    ("length of a place", 64),
    ("places", 68),
    ("free places", 72),
    ("length of the head", 76),
    ("next arena", 80),
    ("data", 88),
    ("map", 96),
    ("log", 104),
    ("copy", 112),
    ("copy, highest byte", 119),
    ("unused", 120),
    ("unused, last byte", 4087),
    ("checksum", 4095),
];

/// A change of one byte of a table.
struct Flip {
    name: String,
    offset: usize,
    bits: u8,
    /// PMDK may take no notice of it: of a sequence number it reads two bits, and it asks for nothing of a place that was never used.
    is_ours_alone: bool,
}

/// Every field of the head and its copy, entries of the map and pairs of the log that were used and that were not.
fn flips(bytes: &[u8], info: usize) -> Vec<Flip> {
    let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let at = |field: usize| info + u32_at(info + field) as usize;
    let (map, log, copy) = (at(96), at(104), at(112));
    let flip = |name: String, offset, bits| Flip { name, offset, bits, is_ours_alone: false };
    let mut flips = Vec::new();
    for (head, start) in [("head", info), ("copy", copy)] {
        flips.extend(FIELDS.map(|(field, offset)| flip(format!("{head}: {field}"), start + offset, 1)));
    }
    let blocks = u32_at(info + 60) as usize;
    let first = |state: u32| (0..blocks).find(|block| u32_at(map + 4 * block) >> 30 == state).unwrap();
    // Never written, zeroed, unreadable, written.
    for block in [0, 2, 1, 3].map(first).into_iter().chain([blocks - 1]) {
        for (byte, bits) in [(0, 1), (2, 0x80), (3, 0x40), (3, 0x80), (3, 0xc0)] {
            flips.push(flip(format!("map of block {block}: {byte}, {bits:#x}"), map + 4 * block + byte, bits));
        }
    }
    let last = u32_at(info + 72) as usize - 1;
    let is_used = |pair: usize| u32_at(log + 64 * pair + 28) != 0;
    assert!(is_used(0) && !is_used(last));
    for pair in [0, 1, last] {
        for (word, field) in ["block", "old", "new", "sequence"].iter().cycle().take(8).enumerate() {
            let is_sequence = *field == "sequence";
            let changes = if is_sequence { [(0, 1), (0, 3), (3, 0x40)] } else { [(0, 1), (1, 2), (3, 0x40)] };
            flips.extend(changes.map(|(byte, bits)| Flip {
                is_ours_alone: is_sequence && byte > 0 || pair == last && *field == "old",
                ..flip(
                    format!("pair {pair}: {word}, {field}: {byte}, {bits:#x}"),
                    log + 64 * pair + 4 * word + byte,
                    bits,
                )
            }));
        }
        flips.push(flip(format!("pair {pair}: padding"), log + 64 * pair + 40, 1));
    }
    flips
}

#[test]
fn damage_to_block_tables_is_found_as_pmdk_finds_it() {
    need_pmdk!();
    let directory = tempdir_in(PLACE).unwrap();
    let path = blocks(&directory);
    let whole = fs::read(&path).unwrap();
    // The same table without the headers of a pool. libpmempool 1.12.1 dies of SIGSEGV when it is to check one.
    let bare_path = directory.path().join("bare");
    fs::write(&bare_path, &whole[4096..]).unwrap();
    agrees("check", &path, "");
    assert!(is_sound(&path) && is_sound_table(&bare_path));
    let [file, bare] = [&path, &bare_path].map(|path| fs::File::options().write(true).open(path).unwrap());
    let write = |offset: usize, byte: u8| {
        file.write_all_at(&[byte], offset as u64).unwrap();
        bare.write_all_at(&[byte], offset as u64 - 4096).unwrap();
    };
    let mut found = [0, 0];
    for Flip { name, offset, bits, is_ours_alone } in flips(&whole, 8192) {
        write(offset, whole[offset] ^ bits);
        let (theirs, said) = pmdk(&[Path::new("check"), &path, Path::new("")]);
        // What a check begins with; the rest of it reads the pool in full.
        let memory = Arc::new(Memory::open_read_only(&path, None).unwrap());
        let ours = memory_state(Some(PoolKind::Blk), &memory).unwrap() == ContentsState::Sound;
        let ours_bare = is_sound_table(&bare_path);
        write(offset, whole[offset]);
        assert!(ours == theirs || is_ours_alone && theirs, "{name}: sound: {ours}, by PMDK {theirs}: {said}");
        assert_eq!(ours, ours_bare, "{name}: without a pool");
        found[usize::from(theirs)] += 1;
    }
    assert!(found[0] > 50 && found[1] > 30, "damaged and not, by PMDK: {found:?}");
}

#[test]
fn block_tables_are_sound_after_their_writer_was_killed() {
    need_pmdk!();
    let directory = tempdir_in(PLACE).unwrap();
    let path = blocks(&directory);
    for kill in 0..12 {
        let mut writer = Command::new(program().unwrap());
        let mut writer = writer.args([Path::new("blk-endless"), &path]).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(writer.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "at work\n");
        std::thread::sleep(Duration::from_micros(700 * kill));
        writer.kill().unwrap();
        writer.wait().unwrap();
        agrees("check", &path, "");
        assert!(is_sound(&path), "kill {kill}");
    }
}
