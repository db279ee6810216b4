//! What libpmemobj reads or changes is in use: a replica that differs there is not equal.

use std::{collections::BTreeSet, os::unix::process::ExitStatusExt as _, thread};

use pmof_mem::Medium as _;

use super::*;

const LEN_BYTES: usize = 48 << 20;
const ZONE: usize = 0x30_2400;
const CHUNK_HEADERS: usize = ZONE + 64;
const CHUNKS: usize = CHUNK_HEADERS + 65_528 * 8;
const CHUNK_LEN_BYTES: usize = 256 << 10;
const FREE: u16 = 2;
const USED: u16 = 3;
const RUN: u16 = 4;
/// What no two openings have in common: of the running program.
const RUNTIME: std::ops::Range<usize> = 6688..8192;
/// Objects with compact headers, with long ones, and of whole chunks, as `kinds-walk` numbers them.
const HEADED_KINDS: [(usize, usize); 3] = [(4, 16), (8, 64), (27, 16)];

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// Type, flags, count, and the index of the first of each chunk or row of chunks.
fn chunks(image: &[u8]) -> Vec<(u16, u16, usize, usize)> {
    let count = u64_at(image, ZONE) >> 32;
    let (mut index, mut found) = (0, Vec::new());
    while index < count as usize {
        let header = u64_at(image, CHUNK_HEADERS + 8 * index);
        let size = (header >> 32) as usize;
        found.push((header as u16, (header >> 16) as u16, size, index));
        index += size;
    }
    found
}

/// A byte that is changed, by these bits.
struct Flip {
    name: String,
    offset: usize,
    bits: u8,
}

/// Every byte of one header of each kind, in each place of a row of chunks.
fn flips(image: &[u8], walked: &str) -> Vec<Flip> {
    let mut flips = Vec::new();
    let mut add = |name: &str, start: usize, len: usize, patterns: &[u8]| {
        for at in 0..len {
            flips.extend(patterns.iter().map(|bits| Flip {
                name: format!("{name}, {at}"),
                offset: start + at,
                bits: *bits,
            }));
        }
    };
    add("zone", ZONE, 12, &[0xff]);
    let mut seen = BTreeSet::new();
    for (kind, flags, count, index) in chunks(image) {
        let places = [("first", 0), ("second", 1), ("third", 2), ("last", count - 1)];
        for (place, at) in places.into_iter().filter(|(_, at)| *at < count) {
            let name = format!("type {kind}, flags {}, {place}", if at == 0 { flags } else { 0 });
            // A bit may be enough where one header leads to another.
            let patterns: &[u8] = if kind == RUN && at > 0 { &[1, 0xff] } else { &[0xff] };
            if seen.insert(name.clone()) {
                add(&name, CHUNK_HEADERS + 8 * (index + at), 8, patterns);
            }
        }
        let name = format!("run, flags {flags}");
        if kind == RUN && [8, 14].contains(&flags) && seen.insert(name.clone()) {
            add(&name, CHUNKS + index * CHUNK_LEN_BYTES, 24, &[0xff]);
        }
    }
    for (kind, len) in HEADED_KINDS {
        let start = format!("{kind}.0: ");
        let offset = walked.lines().find_map(|line| line.strip_prefix(&start)?.split(',').next()).unwrap();
        let offset = usize::from_str_radix(offset, 16).unwrap();
        add(&format!("object of kind {kind}"), offset - len, len, &[0xff]);
    }
    for at in RUNTIME.step_by(61) {
        add("runtime", at, 1, &[0xff]);
    }
    flips
}

/// What libpmemobj did with a pool, and what is in it then.
struct Walk {
    signal: Option<i32>,
    code: Option<i32>,
    said: String,
    image: Vec<u8>,
}

fn walk(path: &Path) -> Walk {
    let output = Command::new(program().unwrap()).arg("kinds-walk").arg(path).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    Walk { signal: output.status.signal(), code: output.status.code(), said, image: fs::read(path).unwrap() }
}

/// Makes the file what it was before a walk.
fn restore(path: &Path, walked: &[u8], whole: &[u8]) {
    let file = fs::File::options().write(true).open(path).unwrap();
    for (page, (_, bytes)) in pages_apart(walked, whole) {
        file.write_all_at(bytes, page as u64 * 4096).unwrap();
    }
}

type Page<'i> = (usize, (&'i [u8], &'i [u8]));

fn pages_apart<'i>(one: &'i [u8], other: &'i [u8]) -> impl Iterator<Item = Page<'i>> {
    one.chunks(4096).zip(other.chunks(4096)).enumerate().filter(|(_, (one, other))| one != other)
}

/// Where images differ.
fn differing(one: &[u8], other: &[u8]) -> BTreeSet<usize> {
    let bytes = |(page, (one, other)): Page<'_>| {
        let differs = one.iter().zip(other).enumerate().filter(|(_, (one, other))| one != other);
        differs.map(|(at, _)| page * 4096 + at).collect::<Vec<_>>()
    };
    pages_apart(one, other).flat_map(bytes).collect()
}

fn memory_of(image: &[u8]) -> Arc<Memory> {
    let memory = Arc::new(Memory::anonymous(LEN_BYTES as u64).unwrap());
    memory.store(0, image).unwrap();
    memory
}

/// Whether a check that compares these replicas reports the byte, whichever of them is the first; one that is damaged by itself is restored.
fn is_reported(whole: &Arc<Memory>, flipped: &Arc<Memory>, offset: u64) -> bool {
    let byte = offset..offset + 1;
    let differs = |first: &Arc<Memory>, other: &Arc<Memory>| {
        let comparison = Comparison::of_pool(Some(PoolKind::Obj), &**first, LEN_BYTES as u64).unwrap();
        comparison.differs(&byte, &mut Arc::clone(first), &mut Arc::clone(other)).unwrap()
    };
    let is_damaged = || matches!(memory_state(Some(PoolKind::Obj), flipped).unwrap(), ContentsState::Damaged(_));
    differs(whole, flipped) && (differs(flipped, whole) || is_damaged())
}

#[test]
fn bytes_that_libpmemobj_depends_on_are_in_use() {
    need_pmdk!();
    let directory = tempdir_in(PLACE).unwrap();
    let path = directory.path().join("pool");
    fs::File::create(&path).unwrap().set_len(LEN_BYTES as u64).unwrap();
    agrees("kinds-make", &path, "");
    let whole = fs::read(&path).unwrap();
    let kinds: BTreeSet<_> = chunks(&whole).into_iter().map(|(kind, flags, ..)| (kind, flags)).collect();
    assert!([8, 9, 10, 12, 13, 14].iter().all(|flags| kinds.contains(&(RUN, *flags))), "{kinds:?}");
    assert!([FREE, USED].iter().all(|kind| kinds.iter().any(|(of, _)| of == kind)), "{kinds:?}");
    let [once, again] = [0, 1].map(|_| {
        let found = walk(&path);
        restore(&path, &found.image, &whole);
        found
    });
    assert!(once.code == Some(0) && once.said == again.said, "{:?}: {}", once.signal, once.said);
    // What is of the running program, times, and addresses: of those, two walks may have the higher bytes in common that a third has not.
    let words = differing(&once.image, &again.image).into_iter().flat_map(|byte| byte & !7..(byte & !7) + 8);
    let varying: BTreeSet<_> = words.chain(0..RUNTIME.end).collect();
    let flips = flips(&whole, &once.said);
    let judge = |half: usize| {
        let path = directory.path().join(format!("pool{half}"));
        let [first, other] = [0, 1].map(|_| memory_of(&whole));
        fs::write(&path, &whole).unwrap();
        let file = fs::File::options().write(true).open(&path).unwrap();
        let mut counts = [[0; 2]; 2];
        for flip in flips.iter().skip(half).step_by(2) {
            let at = flip.offset;
            let flipped = [whole[at] ^ flip.bits];
            file.write_all_at(&flipped, at as u64).unwrap();
            other.store(at as u64, &flipped).unwrap();
            let walk = walk(&path);
            let changed: Vec<_> = differing(&once.image, &walk.image).difference(&varying).copied().collect();
            let is_same = (walk.signal, walk.code, &walk.said) == (None, once.code, &once.said);
            let depends = !is_same || changed.iter().any(|byte| *byte != at);
            let is_reported = is_reported(&first, &other, at as u64);
            restore(&path, &walk.image, &whole);
            other.store(at as u64, &whole[at..=at]).unwrap();
            counts[usize::from(depends)][usize::from(is_reported)] += 1;
            let (name, bits, signal) = (&flip.name, flip.bits, walk.signal);
            let told = format!("{name} at {at:#x} ^ {bits:#x}: {signal:?}, said the same: {is_same}, {changed:x?}");
            assert!(!depends || is_reported && !RUNTIME.contains(&at), "{told}");
        }
        counts
    };
    let counts = thread::scope(|scope| {
        let other = scope.spawn(|| judge(1));
        [judge(0), other.join().unwrap()]
    });
    let count =
        |depends: usize, is_reported: usize| counts.iter().map(|counts| counts[depends][is_reported]).sum::<u32>();
    assert!(count(1, 1) > 100 && count(0, 0) > 20, "read, and not in use: {counts:?}");
}

/// libpmemobj writes to the second replica only what it needs there.
#[test]
fn headers_that_libpmemobj_replicates_are_in_use() {
    need_pmdk!();
    let directory = tempdir_in(PLACE).unwrap();
    let mib = LEN_BYTES as u64 / MIB;
    let set = set(&directory, "set", SINGLE, &[[mib - 4, 4], [mib - 4, 4]]);
    create(&set, NewPool::Obj { layout: "kinds".into() });
    let image = || [0, 1].map(|part| fs::read(directory.path().join(format!("r1p{part}"))).unwrap()).concat();
    let mut before = image();
    let mut changed = 0;
    for kind in 0..28 {
        agrees("kinds-make", &set.path, &kind.to_string());
        let after = image();
        let [first, other] = [&before, &after].map(|image| memory_of(image));
        let comparison = Comparison::of_pool(Some(PoolKind::Obj), &*other, LEN_BYTES as u64).unwrap();
        for at in differing(&before, &after).range(CHUNK_HEADERS..CHUNKS) {
            let byte = *at as u64..*at as u64 + 1;
            let is_in_use = comparison.differs(&byte, &mut Arc::clone(&first), &mut Arc::clone(&other)).unwrap();
            assert!(is_in_use, "kind {kind}: {at:#x}");
            changed += 1;
        }
        before = after;
    }
    assert!(changed > 100, "{changed}");
}

/// A program would die of such a bit: the copy of a replica that has it is no mend of others.
#[test]
fn a_damaged_header_of_a_run_is_not_copied_over_sound_replicas() {
    need_pmdk!();
    for (replicas, bits) in [(2, 0xff), (3, 1)] {
        let directory = tempdir_in(PLACE).unwrap();
        let mib = LEN_BYTES as u64 / MIB;
        let set = set(&directory, "set", SINGLE, &vec![[mib - 4, 4]; replicas]);
        agrees("kinds-make", &set.path, "");
        let part = |replica: usize| directory.path().join(format!("r{replica}p0"));
        let whole = fs::read(part(0)).unwrap();
        let runs = chunks(&whole).into_iter().filter(|(kind, _, count, _)| *kind == RUN && *count > 1);
        let headers = runs.flat_map(|(_, _, count, index)| [1, count - 1].map(|at| CHUNK_HEADERS + 8 * (index + at)));
        let headers: BTreeSet<_> = headers.collect();
        assert!(headers.len() > 4, "{headers:?}");
        for at in headers {
            let byte = |replica: usize| fs::read(part(replica)).unwrap()[at];
            let file = fs::File::options().write(true).open(part(0)).unwrap();
            file.write_all_at(&[whole[at] ^ bits], at as u64).unwrap();
            let outcome = sync(&set, &SyncOptions::default(), &mut NoRemotes, &mut |_| {});
            assert!((1..replicas).all(|sound| byte(sound) == whole[at]), "{at:#x} ^ {bits:#x}: {outcome:?}");
            match outcome {
                Ok(done) => assert!(done.source != 0 && byte(0) == whole[at], "{at:#x} ^ {bits:#x}: {done:?}"),
                Err(pmof_pool_set::SyncError::Outvoted { majority }) => assert_eq!(majority.against, 0),
                Err(error) => panic!("{at:#x} ^ {bits:#x}: {error}"),
            }
            file.write_all_at(&[whole[at]], at as u64).unwrap();
        }
    }
}
