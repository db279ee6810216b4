use std::{
    fs,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

use pmof_mem::Medium as _;
use pmof_mem::causes;
use tempfile::{TempDir, tempdir_in};

use super::{Apart, Step, SyncError, SyncOptions, SyncReport, sync};
use crate::{
    LocalReplica, LocalSet, NewPool, NewSet, NoRemotes, OpenFor, PartSpec, PoolSet, PoolSetError, RemoteSpec,
    ReplicaSpec, SetOptions, TransformOptions, TransformReport, check, transform,
};

mod directories;
mod empty;
mod headerless;
mod kept;
mod misplaced;
mod named;
mod newer;
mod one_file;
mod remote;
mod restored;
mod transformed;
mod whose;

const DISK: &str = env!("CARGO_MANIFEST_DIR");
const MIB: u64 = 1 << 20;
const SINGLE: SetOptions = SetOptions { single_header: true, no_headers: false };

fn set(directory: &Path, options: SetOptions, replicas: &[usize]) -> PoolSet {
    let replica = |number: &usize| {
        let part = |part| PartSpec::new(directory.join(format!("r{number}p{part}")), 5 * MIB);
        ReplicaSpec::Local((0..2).map(part).collect())
    };
    PoolSet { path: directory.join("set"), replicas: replicas.iter().map(replica).collect(), options }
}

/// A pool with something in it, the same in all replicas.
fn filled(options: SetOptions, replicas: &[usize]) -> (TempDir, PoolSet) {
    let directory = tempdir_in(DISK).unwrap();
    let set = set(directory.path(), options, replicas);
    let new = NewSet::new(NewPool::Obj { layout: "test".into() });
    let made = LocalSet::create(&set, &new, &new.plan(&set).unwrap()).unwrap();
    for replica in made.replicas().iter().flatten() {
        let memory = replica.memory();
        for offset in (4 * MIB..8 * MIB).step_by(4096) {
            memory.store(offset, &(offset ^ 0x5555).to_le_bytes()).unwrap();
        }
        memory.write_back(4 * MIB, 4 * MIB).unwrap();
    }
    made.close().unwrap();
    (directory, set)
}

fn synced(set: &PoolSet) -> SyncReport {
    sync(set, &SyncOptions::default(), &mut NoRemotes, &mut |_| {}).unwrap_or_else(|error| panic!("{error}"))
}

fn dry(set: &PoolSet) -> SyncReport {
    sync(set, &SyncOptions { dry_run: true, ..SyncOptions::default() }, &mut NoRemotes, &mut |_| {})
        .unwrap_or_else(|error| panic!("{error}"))
}

/// What links the replicas of a set that names some of the pool's.
fn linked(set: &PoolSet, dry_run: bool) -> SyncReport {
    let options = SyncOptions { dry_run, from: Some(0), ..SyncOptions::default() };
    sync(set, &options, &mut NoRemotes, &mut |_| {}).unwrap()
}

fn turned(from: &PoolSet, to: &PoolSet, dry_run: bool) -> Result<TransformReport, SyncError> {
    let options = TransformOptions { dry_run, ..TransformOptions::default() };
    transform(from, to, &options, &mut NoRemotes, &mut |_| {})
}

fn checked(set: &PoolSet) -> crate::CheckReport {
    check(set, None, &mut NoRemotes, &mut |_| {}).unwrap()
}

fn assert_sound(set: &PoolSet) {
    let report = checked(set);
    assert!(report.is_sound(), "{report:?}");
    LocalSet::open(set, OpenFor::Write, None).unwrap().close().unwrap();
    let first = LocalReplica::open(set.replicas[0].local().unwrap(), set.options, OpenFor::Read, None).unwrap();
    let mut word = [0; 8];
    first.memory().read(6 * MIB, &mut word).unwrap();
    assert_eq!(u64::from_le_bytes(word), (6 * MIB) ^ 0x5555, "what was in it is in it");
}

fn poke(path: &Path, offset: u64) {
    let file = fs::File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[!byte[0]], offset).unwrap();
}

fn write(path: &Path, offset: u64, bytes: &[u8]) {
    fs::File::options().write(true).open(path).unwrap().write_all_at(bytes, offset).unwrap();
}

/// All bytes of all files in a directory, by name.
fn contents(directory: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut all: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.clone(), fs::read(&path).unwrap()))
        .collect();
    all.sort();
    all
}

/// Two replicas have no majority: a dry run tells which one would be overwritten in what is in use.
#[test]
fn a_dry_run_tells_what_nothing_speaks_for() {
    for name in ["r0p0", "r1p0"] {
        let (directory, set) = filled(SetOptions::default(), &[0, 1]);
        assert!(dry(&set).undecided.is_empty());
        poke(&directory.path().join(name), 4 * MIB + 4096 + 17);
        assert_eq!(dry(&set).undecided, [1], "{name}");
        let named = SyncOptions { dry_run: true, from: Some(1), ..SyncOptions::default() };
        assert!(sync(&set, &named, &mut NoRemotes, &mut |_| {}).unwrap().undecided.is_empty(), "somebody decided");
        assert!(synced(&set).undecided.is_empty());
    }
    // Of three, each has a place of its own in which the other two agree with the source.
    let (directory, set) = filled(SetOptions::default(), &[0, 1, 2]);
    poke(&directory.path().join("r1p0"), 4 * MIB + 4096 + 17);
    poke(&directory.path().join("r2p0"), 4 * MIB + 8192 + 17);
    assert!(dry(&set).undecided.is_empty());
    // And one in which they are all different.
    write(&directory.path().join("r1p0"), 4 * MIB + 8192 + 17, &[0x5a]);
    assert_eq!(dry(&set).undecided, [1, 2]);
}

#[test]
fn a_flipped_byte_is_found_where_it_is_and_made_good() {
    for options in [SetOptions::default(), SINGLE] {
        let (directory, set) = filled(options, &[0, 1, 2]);
        assert_sound(&set);
        // In the second part of the last replica; without a header this is further on in the pool.
        poke(&directory.path().join("r2p1"), 2 * MIB + 17);
        let report = checked(&set);
        assert!(!report.is_sound() && report.replicas[0].problems.is_empty() && report.replicas[1].mismatch_count == 0);
        let [mismatch] = &report.replicas[2].mismatches[..] else { panic!("{report:?}") };
        assert_eq!((mismatch.part, mismatch.len_bytes), (Some((1, 2 * MIB + 17)), 1));
        let header_bytes = if options.single_header { 0 } else { crate::part::page_bytes() };
        assert_eq!(mismatch.offset, 7 * MIB + 17 - header_bytes);
        let before = contents(directory.path());
        let told = dry(&set);
        assert_eq!(contents(directory.path()), before, "a dry run changes nothing");
        let done = synced(&set);
        assert_eq!(told, done, "and tells the truth");
        assert_eq!((done.source, done.replicas[1].copied.blocks, done.replicas[0].copied.blocks), (0, 1, 0));
        assert_sound(&set);
        assert_eq!(synced(&set).replicas[1].copied.blocks, 0);
    }
}

/// A shutdown state has a checksum of its own: each of its bytes counts, and none of them is a reason to copy anything.
#[test]
fn each_byte_of_a_shutdown_state_counts() {
    let (directory, set) = filled(SetOptions::default(), &[0, 1]);
    let torn = |set| checked(set).replicas.iter().map(|replica| replica.torn_shutdown_states).collect::<Vec<_>>();
    assert_eq!(torn(&set), [0, 0]);
    for byte in 4024..4088 {
        poke(&directory.path().join("r1p0"), byte);
        let report = checked(&set);
        assert!(report.is_sound() && report.replicas[1].torn_shutdown_states == 1, "{byte}: {report:?}");
        poke(&directory.path().join("r1p0"), byte);
    }
    poke(&directory.path().join("r0p1"), 4030);
    assert_eq!(torn(&set), [1, 0]);
}

#[test]
fn whatever_is_broken_is_restored_from_the_first_sound_replica() {
    type Break = fn(&Path);
    let breaks: [(&str, Break); 8] = [
        ("r1p1", |path| fs::remove_file(path).unwrap()),
        ("r1p0", |path| fs::remove_file(path).unwrap()),
        ("r0p0", |path| fs::remove_file(path).unwrap()),
        ("r0p1", |path| fs::File::options().write(true).open(path).unwrap().set_len(MIB).unwrap()),
        ("r2p0", |path| fs::write(path, "").unwrap()),
        ("r0p0", |path| poke(path, 30)),
        ("r1p1", |path| fs::File::options().write(true).open(path).unwrap().write_all_at(&[0; 4096], 0).unwrap()),
        ("r2p1", |path| poke(path, 3000)),
    ];
    for (name, break_it) in breaks {
        let (directory, set) = filled(SetOptions::default(), &[0, 1, 2]);
        break_it(&directory.path().join(name));
        let report = checked(&set);
        let broken = name[1..2].parse::<usize>().unwrap();
        for (index, replica) in report.replicas.iter().enumerate() {
            assert_eq!(replica.problems.is_empty(), index != broken, "{name}: {replica:?}");
        }
        let before = contents(directory.path());
        assert!(dry(&set).replicas.iter().any(|replica| replica.index == broken && replica.damage.is_some()));
        assert_eq!(contents(directory.path()), before, "a dry run changes nothing");
        let done = synced(&set);
        assert_eq!(done.source, usize::from(broken == 0));
        assert_sound(&set);
    }
}

#[test]
fn a_replica_that_is_alone_is_read() {
    let (_directory, set) = filled(SINGLE, &[0]);
    let mut steps = Vec::new();
    assert!(check(&set, None, &mut NoRemotes, &mut |step| steps.push(step)).unwrap().is_sound());
    let done: u64 = steps.iter().map(|step| if let Step::Done(bytes) = step { *bytes } else { 0 }).sum();
    assert!(steps.contains(&Step::Total(done)) && done > 9 * MIB, "{steps:?}");
}

#[test]
fn two_lost_replicas_come_back() {
    let (directory, set) = filled(SINGLE, &[0, 1, 2]);
    for name in ["r0p0", "r0p1", "r1p0"] {
        fs::remove_file(directory.path().join(name)).unwrap();
    }
    let done = synced(&set);
    assert_eq!((done.source, done.replicas.len()), (2, 2));
    assert_sound(&set);
    for name in ["r0p1", "r1p0", "r2p0"] {
        fs::remove_file(directory.path().join(name)).unwrap();
    }
    match sync(&set, &SyncOptions::default(), &mut NoRemotes, &mut |_| {}) {
        Err(SyncError::NoSource { reasons }) => assert_eq!(reasons.len(), 3),
        other => panic!("{other:?}"),
    }
}

/// A restoration that is ended at each step: until it is done the replica is broken, and then it is whole.
#[test]
fn a_restoration_that_is_ended_goes_on() {
    let (directory, set) = filled(SetOptions::default(), &[0, 1]);
    fs::remove_file(directory.path().join("r1p0")).unwrap();
    let mut ends = 0;
    for limit in 1.. {
        let mut steps = 0;
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut count = |step| {
                if matches!(step, Step::Done(_)) {
                    steps += 1;
                    // What a signal would do.
                    assert!(steps < limit, "ended here");
                }
            };
            sync(&set, &SyncOptions::default(), &mut NoRemotes, &mut count).unwrap();
        }));
        if ended.is_ok() {
            break;
        }
        ends += 1;
        let problems = &checked(&set).replicas[1].problems;
        assert!(problems[0].contains("r1p"), "{problems:?}");
    }
    assert!(ends > 1);
    assert_sound(&set);
}

#[test]
fn links_that_are_wrong_are_made_right() {
    let (_directory, set) = filled(SetOptions::default(), &[0, 1, 2]);
    let mut fewer = set.clone();
    fewer.replicas.remove(1);
    assert!(matches!(LocalSet::open(&fewer, OpenFor::Write, None), Err(PoolSetError::WrongNeighbour { .. })));
    let report = checked(&fewer);
    assert!(!report.is_sound() && report.replicas.iter().all(|replica| replica.mismatch_count == 0));
    assert!(linked(&fewer, false).replicas[0].was_unlinked);
    assert_sound(&fewer);
    // The one that was left out is of the pool still, and of another time.
    assert!(!checked(&set).is_sound());
    synced(&set);
    assert_sound(&set);
}

#[test]
fn what_is_of_another_pool_is_never_touched() {
    let (_one, set) = filled(SetOptions::default(), &[0, 1]);
    let (other_directory, other) = filled(SetOptions::default(), &[0, 1]);
    let mut mixed = set.clone();
    mixed.replicas[1] = other.replicas[1].clone();
    let before = contents(other_directory.path());
    let outcome = sync(&mixed, &SyncOptions::default(), &mut NoRemotes, &mut |_| {});
    assert!(matches!(outcome, Err(SyncError::OtherPool { index: 1, .. })), "{outcome:?}");
    assert!(!checked(&mixed).is_sound());
    // One part of it.
    let (ReplicaSpec::Local(own), Some(theirs)) = (&mut mixed.replicas[1], other.replicas[0].local()) else { panic!() };
    *own = vec![set.replicas[1].local().unwrap()[0].clone(), theirs[1].clone()];
    let own_before = fs::read(&own[0].path).unwrap();
    let own_path = own[0].path.clone();
    let outcome = sync(&mixed, &SyncOptions::default(), &mut NoRemotes, &mut |_| {});
    assert!(matches!(&outcome, Err(SyncError::Replica { index: 1, .. })), "{outcome:?}");
    assert_eq!(fs::read(own_path).unwrap(), own_before, "nor is what is of this pool, until all is known");
    assert_eq!(contents(other_directory.path()), before);
}

#[test]
fn replicas_are_added_and_removed() {
    for options in [SetOptions::default(), SINGLE] {
        let (directory, one) = filled(options, &[0]);
        let three = set(directory.path(), options, &[0, 1, 2]);
        let turn = |from: &PoolSet, to: &PoolSet, dry_run| {
            turned(from, to, dry_run).map(|report| (report.added, report.removed))
        };
        let before = contents(directory.path());
        assert_eq!(turn(&one, &three, true).unwrap(), (vec![1, 2], vec![]));
        assert_eq!(contents(directory.path()), before);
        assert_eq!(turn(&one, &three, false).unwrap(), (vec![1, 2], vec![]));
        assert_sound(&three);
        let other = set(directory.path(), options, &[2, 4]);
        assert_eq!(turn(&three, &other, false).unwrap(), (vec![1], vec![0, 1]));
        assert_sound(&other);
        let names: Vec<_> = contents(directory.path()).into_iter().map(|(path, _)| path).collect();
        assert_eq!(names, ["r2p0", "r2p1", "r4p0", "r4p1"].map(|name| directory.path().join(name)));
        fs::write(directory.path().join("r5p1"), "somebody's").unwrap();
        let taken = set(directory.path(), options, &[2, 5]);
        assert!(causes(&turn(&other, &taken, false).unwrap_err()).to_string().contains("exists"));
        assert_eq!(fs::read(directory.path().join("r5p1")).unwrap(), b"somebody's");
        assert_sound(&other);
        let foreign = set(directory.path(), options, &[7, 2]);
        assert!(matches!(turn(&other, &foreign, false), Err(SyncError::Unsupported { .. })));
        fs::remove_file(directory.path().join("r4p0")).unwrap();
        let single = set(directory.path(), options, &[2]);
        assert!(matches!(turn(&other, &single, false), Err(SyncError::NotSound { index: 1, .. })));
    }
}

/// Its heap goes to the end of the pool: nobody could open what is cut.
#[test]
fn a_pool_is_not_cut_to_a_shorter_replica() {
    for options in [SetOptions::default(), SINGLE] {
        let (directory, two) = filled(options, &[0, 1]);
        let before = contents(directory.path());
        let mut shorter = set(directory.path(), options, &[0]);
        shorter.replicas.push(ReplicaSpec::Local(vec![PartSpec::new(directory.path().join("short"), 8 * MIB)]));
        for dry_run in [true, false] {
            let done = turned(&two, &shorter, dry_run);
            assert!(
                matches!(done, Err(SyncError::TooSmall { index: 1, len_bytes, .. }) if len_bytes == 8 * MIB),
                "{done:?}"
            );
        }
        let options = SyncOptions::default();
        assert!(matches!(sync(&shorter, &options, &mut NoRemotes, &mut |_| {}), Err(SyncError::TooSmall { .. })));
        assert!(checked(&shorter).sync_refusal.unwrap().contains("make its parts larger"));
        assert_eq!(contents(directory.path()), before);
    }
}

#[test]
fn a_remote_replica_that_cannot_be_reached_is_reported() {
    let (_directory, mut set) = filled(SetOptions::default(), &[0]);
    set.replicas.push(ReplicaSpec::Remote(RemoteSpec { node: "far".into(), set: "away".into(), line: 0 }));
    for dry_run in [true, false] {
        match sync(&set, &SyncOptions { dry_run, ..SyncOptions::default() }, &mut NoRemotes, &mut |_| {}) {
            Err(error @ SyncError::Replica { index: 1, .. }) => {
                assert!(causes(&error).to_string().contains("far"), "{error}");
            }
            other => panic!("{other:?}"),
        }
    }
}

/// The offset in the pool of byte `offset` of part 0.
const USED: u64 = MIB;

#[test]
fn a_majority_against_the_first_replica_is_named_and_asked_about() {
    let from = |from| SyncOptions { from: Some(from), ..SyncOptions::default() };
    let outvoted = |set: &PoolSet| match sync(set, &SyncOptions::default(), &mut NoRemotes, &mut |_| {}) {
        Err(SyncError::Outvoted { majority }) => majority,
        other => panic!("{other:?}"),
    };
    let (directory, set) = filled(SetOptions::default(), &[0, 1, 2]);
    poke(&directory.path().join("r0p0"), USED);
    let report = checked(&set);
    let named = report.majority.clone().unwrap();
    assert_eq!((&named.replicas[..], named.against, named.places, named.offset), (&[1, 2][..], 0, 1, USED));
    assert_eq!((report.is_sound(), report.sync_refusal), (false, None));
    let before = contents(directory.path());
    assert_eq!(outvoted(&set), named);
    let dry = SyncOptions { dry_run: true, ..SyncOptions::default() };
    assert!(matches!(sync(&set, &dry, &mut NoRemotes, &mut |_| {}), Err(SyncError::Outvoted { .. })));
    assert_eq!(contents(directory.path()), before, "nothing is changed before somebody says which is right");
    // The named replica wins.
    let mut byte = [0];
    for (source, place) in [(1, "r0p0"), (0, "r1p0")] {
        fs::File::open(directory.path().join(format!("r{source}p0"))).unwrap().read_exact_at(&mut byte, USED).unwrap();
        let expected = byte;
        let done = sync(&set, &from(source), &mut NoRemotes, &mut |_| {}).unwrap();
        assert_eq!(done.source, source);
        fs::File::open(directory.path().join(place)).unwrap().read_exact_at(&mut byte, USED).unwrap();
        assert_eq!(byte, expected);
        assert_sound(&set);
        poke(&directory.path().join("r0p0"), USED + 4096);
    }
    // The one that is right is taken over a majority, if it is named.
    assert_eq!(outvoted(&set).offset, USED + 4096);
    sync(&set, &from(0), &mut NoRemotes, &mut |_| {}).unwrap();
    assert_sound(&set);
}

#[test]
fn whoever_is_no_majority_is_not_asked_about() {
    // Two replicas, and three of three opinions, and a damaged one that has no vote.
    let (directory, two) = filled(SetOptions::default(), &[0, 1]);
    poke(&directory.path().join("r0p0"), USED);
    assert_eq!(checked(&two).majority, None);
    synced(&two);
    let (directory, three) = filled(SetOptions::default(), &[0, 1, 2]);
    poke(&directory.path().join("r0p0"), USED);
    for value in [1, 2_u8] {
        let file = fs::File::options().write(true).open(directory.path().join(format!("r{value}p0"))).unwrap();
        file.write_all_at(&[value; 8], USED).unwrap();
    }
    assert_eq!(checked(&three).majority, None);
    synced(&three);
    poke(&directory.path().join("r0p0"), USED);
    fs::remove_file(directory.path().join("r2p0")).unwrap();
    assert_eq!(checked(&three).majority, None);
    synced(&three);
    assert_sound(&three);
    // One that cannot be believed is not copied from.
    fs::remove_file(directory.path().join("r1p0")).unwrap();
    for from in [1, 3] {
        let options = SyncOptions { from: Some(from), ..SyncOptions::default() };
        let outcome = sync(&three, &options, &mut NoRemotes, &mut |_| {});
        assert!(matches!(outcome, Err(SyncError::NotASource { .. } | SyncError::Unsupported { .. })), "{outcome:?}");
    }
    assert!(!directory.path().join("r1p0").exists());
}

#[test]
fn parts_that_are_whole_keep_their_names() {
    let (directory, set) = filled(SetOptions::default(), &[0, 1]);
    let uuid = |name: &str| crate::part_header(&directory.path().join(name)).unwrap().uuid;
    let names = ["r0p0", "r0p1", "r1p0", "r1p1"];
    let before = names.map(uuid);
    for lost in ["r1p0", "r1p1", "r0p0", "r0p1"] {
        fs::remove_file(directory.path().join(lost)).unwrap();
        synced(&set);
        assert_sound(&set);
        assert_eq!(names.map(uuid), before, "{lost} was lost, and is known by its neighbours");
    }
    // Of nobody who knows it any more.
    for lost in ["r1p0", "r1p1"] {
        fs::remove_file(directory.path().join(lost)).unwrap();
    }
    synced(&set);
    assert_sound(&set);
    assert_ne!(uuid("r1p1"), before[3]);
}

#[test]
fn what_a_sync_would_refuse_is_said() {
    let (directory, set) = filled(SetOptions::default(), &[0, 1]);
    assert_eq!(checked(&set).sync_refusal, None);
    let (_other_directory, other) = filled(SetOptions::default(), &[0, 1]);
    let mut mixed = set.clone();
    mixed.replicas[1] = other.replicas[1].clone();
    assert!(checked(&mixed).sync_refusal.unwrap().contains("pool"));
    for name in ["r0p0", "r1p0"] {
        fs::remove_file(directory.path().join(name)).unwrap();
    }
    assert!(checked(&set).sync_refusal.unwrap().contains("no replica is sound"));
    let (directory, single) = filled(SINGLE, &[0]);
    fs::remove_file(directory.path().join("r0p1")).unwrap();
    assert!(checked(&single).sync_refusal.unwrap().contains("no other replica"));
}

/// The second one was taken out, used by itself, and returned: only a person knows that it is the newer one.
#[test]
fn replicas_that_were_used_apart_and_differ_are_asked_about() {
    let (directory, both) = filled(SetOptions::default(), &[0, 1]);
    let alone = set(directory.path(), SetOptions::default(), &[1]);
    let report = linked(&alone, true);
    assert!(report.source_was_unlinked && !checked(&alone).is_sound(), "a dry run tells of the links");
    assert!(checked(&alone).sync_refusal.is_some_and(|refusal| refusal.contains("does not name")));
    assert_eq!(linked(&alone, false), report);
    assert!(!synced(&alone).source_was_unlinked);
    assert_sound(&alone);
    assert_eq!(checked(&both).apart, None, "they hold the same");
    poke(&directory.path().join("r1p0"), USED);
    let before = contents(directory.path());
    let found = checked(&both);
    assert_eq!((found.apart.clone(), found.sync_refusal), (Some(Apart { source: 0, replicas: vec![1] }), None));
    for dry_run in [true, false] {
        let options = SyncOptions { dry_run, ..SyncOptions::default() };
        match sync(&both, &options, &mut NoRemotes, &mut |_| {}) {
            Err(SyncError::Apart { apart }) => assert_eq!(Some(apart), found.apart),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(contents(directory.path()), before);
    let newer = fs::read(directory.path().join("r1p0")).unwrap();
    let from = SyncOptions { from: Some(1), ..SyncOptions::default() };
    assert_eq!(sync(&both, &from, &mut NoRemotes, &mut |_| {}).unwrap().source, 1);
    assert_sound(&both);
    assert_eq!(fs::read(directory.path().join("r0p0")).unwrap()[4096..], newer[4096..]);
}
