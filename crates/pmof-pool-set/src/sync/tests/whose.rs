//! Foreign files with the names of damaged parts: never overwritten, whatever is requested.

use super::*;
use crate::{
    Attributes, HEADER_LEN_BYTES, Removal, part_header,
    replica::{NewParts, Restoration},
};
use pmof_mem::{System, causes};

/// What lies where the part of a replica should be.
type Lay = fn(part: &Path, foreign: &Path);

fn copied(part: &Path, foreign: &Path) {
    fs::copy(foreign, part).unwrap();
}

/// What it is, where it lies, and the words for it.
const FOREIGN: [(&str, Lay, &str); 12] = [
    (
        "a damaged part of another pool",
        |part, foreign| (copied(part, foreign), poke(part, 200)).1,
        "damaged part of the pool set",
    ),
    (
        "one whose checksum is damaged",
        |part, foreign| (copied(part, foreign), poke(part, 4090)).1,
        "damaged part of the pool set",
    ),
    (
        "one that has bytes where there are none",
        |part, foreign| (copied(part, foreign), poke(part, 3000)).1,
        "damaged part of",
    ),
    (
        "one whose signature is damaged",
        |part, foreign| (copied(part, foreign), poke(part, 0)).1,
        "damaged part of the pool set",
    ),
    (
        "one whose UUID is damaged",
        |part, foreign| (copied(part, foreign), poke(part, 24)).1,
        "damaged part of the pool set",
    ),
    (
        "one of another kind",
        |part, foreign| (copied(part, foreign), write(part, 0, b"PMEMLOG\0")).1,
        "damaged part of the pool set",
    ),
    (
        "one that is cut",
        |part, foreign| fs::write(part, &fs::read(foreign).unwrap()[..100]).unwrap(),
        "damaged part of the pool set",
    ),
    ("a whole part of another pool", copied, "belongs to the pool set"),
    ("a letter", |part, _| fs::write(part, "dear all").unwrap(), "does not begin as a part"),
    (
        "an image that begins with zeros",
        |part, _| fs::write(part, [vec![0; 32 << 10], vec![7; 9 << 20]].concat()).unwrap(),
        "holds something behind the zeros",
    ),
    (
        "one that is shorter than the part",
        |part, _| fs::write(part, [vec![0; 32 << 10], vec![0; 1 << 20], vec![7]].concat()).unwrap(),
        "holds something behind the zeros",
    ),
    ("a file of the right length", |part, _| fs::write(part, vec![7; 5 << 20]).unwrap(), "does not begin as a part"),
];

fn refused(set: &PoolSet, options: &SyncOptions, words: &str) {
    let error = sync(set, options, &mut NoRemotes, &mut |_| {}).unwrap_err();
    let error = causes(&error).to_string();
    assert!(error.contains("replica 1 failed: ") && error.contains(words), "{words}: {error}");
}

#[test]
fn somebody_elses_file_is_never_overwritten() {
    let (directory, set) = filled(SetOptions::default(), &[0, 1]);
    let (other, _) = filled(SetOptions::default(), &[0]);
    for (at, (what, lay, words)) in FOREIGN.into_iter().enumerate() {
        let path = directory.path().join(["r1p0", "r1p1"][at % 2]);
        let own = fs::read(&path).unwrap();
        lay(&path, &other.path().join("r0p0"));
        let before = contents(directory.path());
        let dry_run = SyncOptions { dry_run: true, ..SyncOptions::default() };
        let named = SyncOptions { from: Some(0), ..SyncOptions::default() };
        for options in [SyncOptions::default(), dry_run, named] {
            refused(&set, &options, words);
        }
        let report = checked(&set);
        assert!(report.sync_refusal.is_some_and(|refusal| refusal.contains(words)), "{what}");
        assert!(contents(directory.path()) == before, "{what}");
        fs::write(&path, own).unwrap();
    }
    // What is advised.
    fs::write(directory.path().join("r1p1"), "dear all").unwrap();
    refused(&set, &SyncOptions::default(), "move it away, or remove it");
    fs::remove_file(directory.path().join("r1p1")).unwrap();
    synced(&set);
    assert_sound(&set);
}

/// A part of this pool is, however it is damaged, as long as its header says so.
#[test]
fn what_is_of_this_pool_is_restored() {
    let (directory, set) = filled(SetOptions::default(), &[0, 1]);
    let changes: [fn(&Path); 8] = [
        // With a hole at its end.
        |part| fs::File::options().write(true).open(part).unwrap().set_len(20 * MIB).unwrap(),
        |part| poke(part, 200),
        |part| poke(part, 0),
        // Of the UUID, which the checksum tells to have been this pool's.
        |part| write(part, 24, &[0xff; 16]),
        |part| (poke(part, 0), poke(part, 12), poke(part, 3000)).2,
        |part| fs::write(part, &fs::read(part).unwrap()[..60]).unwrap(),
        |part| write(part, 0, &[0; HEADER_LEN_BYTES]),
        |part| fs::write(part, [0; 9]).unwrap(),
    ];
    for (at, change) in changes.into_iter().enumerate() {
        change(&directory.path().join(["r1p0", "r1p1"][at % 2]));
        assert!(synced(&set).replicas[0].damage.is_some());
    }
    assert_sound(&set);
}

/// Of a part without a header its length, and another pool's header, say that it is not the pool's.
#[test]
fn a_part_without_a_header_is_not_taken_from_another() {
    let (directory, set) = filled(SINGLE, &[0, 1]);
    let (other, _) = filled(SINGLE, &[0]);
    let foreign: [(Lay, &str); 4] = [
        (|part, _| fs::write(part, "dear all").unwrap(), "has 8 bytes and should have 5242880"),
        (copied, "belongs to the pool set"),
        (|part, foreign| (copied(part, foreign), poke(part, 200)).1, "damaged part of the pool set"),
        (|part, foreign| fs::write(part, &fs::read(foreign).unwrap()[..5000]).unwrap(), "belongs to the pool set"),
    ];
    for (lay, words) in foreign {
        let path = directory.path().join("r1p1");
        lay(&path, &other.path().join("r0p0"));
        fs::remove_file(directory.path().join("r1p0")).unwrap();
        let before = contents(directory.path());
        refused(&set, &SyncOptions::default(), words);
        assert!(contents(directory.path()) == before, "{words}");
        fs::remove_file(&path).unwrap();
        synced(&set);
        assert_sound(&set);
    }
    // Its own, whatever is in it.
    fs::remove_file(directory.path().join("r1p0")).unwrap();
    synced(&set);
    assert_sound(&set);
}

/// A file of the right length is somebody else's, too, unless the first part vouches for it, or its bytes do.
#[test]
fn a_file_of_the_right_length_is_vouched_for_or_refused() {
    type Change = fn(&Path, &Path);
    let foreign: Change = |part, _| fs::write(part, vec![7; 5 << 20]).unwrap();
    // Files that begin as the pool's part does, and as zeros do.
    let half: Change = |part, _| write(part, 2 << 20, &vec![7; 1 << 20]);
    let late: Change = |part, _| fs::write(part, [vec![0; 4 << 20], vec![7; 1 << 20]].concat()).unwrap();
    let kept: Change = |_, _| {};
    let zeros: Change = |part, _| fs::write(part, vec![0; 5 << 20]).unwrap();
    let gone: Change = |first, _| fs::remove_file(first).unwrap();
    let blank: Change = |first, _| write(first, 0, &[0; HEADER_LEN_BYTES]);
    let damaged: Change = |first, _| poke(first, 200);
    let cut: Change = |first, own| fs::write(first, &fs::read(own).unwrap()[..4096]).unwrap();
    for (first, second, is_ours) in [
        (gone, foreign, false),
        (gone, half, false),
        (gone, late, false),
        (blank, foreign, false),
        (blank, late, false),
        (gone, kept, true),
        (gone, zeros, true),
        (blank, kept, true),
        (damaged, foreign, true),
        (damaged, late, true),
        (cut, foreign, true),
    ] {
        let (directory, set) = filled(SINGLE, &[0, 1]);
        let (first_path, path) = (directory.path().join("r1p0"), directory.path().join("r1p1"));
        second(&path, &directory.path().join("r0p0"));
        let own = fs::read(&first_path).unwrap();
        first(&first_path, &first_path);
        let before = contents(directory.path());
        let specs = set.replicas[1].local().unwrap();
        let forced = Removal::prepare(specs, SINGLE, true, None).unwrap();
        let is_vouched = fs::read(&first_path).is_ok_and(|now| now[24..40] == own[24..40]);
        let is_zero = fs::read(&path).unwrap().iter().all(|byte| *byte == 0);
        assert_eq!(forced.left().contains(&path), !is_vouched && !is_zero);
        drop(forced);
        if !is_ours {
            for dry_run in [true, false] {
                let options = SyncOptions { dry_run, ..SyncOptions::default() };
                refused(&set, &options, "r1p1 is not overwritten");
                refused(&set, &options, "move it away");
            }
            assert!(contents(directory.path()) == before);
            fs::rename(&path, directory.path().join("away")).unwrap();
        }
        // Ours, and intact as far as a pool begins: whether it is the newer nobody knows.
        let is_asked = is_vouched && fs::metadata(&first_path).unwrap().len() == own.len() as u64;
        if is_asked {
            let asked = sync(&set, &SyncOptions::default(), &mut NoRemotes, &mut |_| {}).unwrap_err();
            assert!(matches!(&asked, SyncError::Kept { index: 1, source_index: 0, .. }), "{asked}");
        }
        let options = SyncOptions { from: is_asked.then_some(0), ..SyncOptions::default() };
        sync(&set, &options, &mut NoRemotes, &mut |_| {}).unwrap();
        assert_sound(&set);
    }
}

/// Killed halfway, a restoration goes on: what its first part begins with vouches for what is half old, half new.
fn restored(
    system: &System,
    specs: &[PartSpec],
    options: SetOptions,
    links: &Attributes,
) -> Result<NewParts, PoolSetError> {
    let restoration = Restoration { options, links, least: 0, declaration: None, beside: &[] };
    NewParts::restore(system, specs, &restoration, &mut |_, _| true)
}

#[test]
fn a_restoration_that_was_ended_is_taken_for_one() {
    let (directory, set) = filled(SINGLE, &[0, 1]);
    let links = LocalReplica::open(set.replicas[1].local().unwrap(), SINGLE, OpenFor::Read, None).unwrap();
    let attributes = links.attributes().unwrap();
    drop(links);
    let specs = set.replicas[1].local().unwrap();
    for is_gone in [false, true] {
        let first = directory.path().join("r1p0");
        if is_gone {
            fs::remove_file(&first).unwrap();
        } else {
            poke(&first, 200);
            fs::write(directory.path().join("r1p1"), vec![7; 5 << 20]).unwrap();
        }
        let system = System::real();
        let parts = restored(&system, specs, SINGLE, &attributes).unwrap();
        assert!(part_header(&first).is_err(), "it does not pass for a whole one");
        drop(parts);
        write(&directory.path().join("r1p1"), 3 << 20, &[9; 8192]);
        assert!(Removal::prepare(specs, SINGLE, true, None).unwrap().left().is_empty());
        assert!(synced(&set).replicas[0].damage.is_some());
        assert_sound(&set);
    }
}

/// Of a transform, too: where a new replica is to be, and where an old one was.
#[test]
fn a_transform_overwrites_and_removes_nothing_else() {
    for options in [SetOptions::default(), SINGLE] {
        let (directory, one) = filled(options, &[0]);
        let (other, _) = filled(options, &[0]);
        let two = set(directory.path(), options, &[0, 1]);
        for (at, (what, lay, _)) in FOREIGN.into_iter().enumerate() {
            let path = directory.path().join(["r1p0", "r1p1"][at % 2]);
            lay(&path, &other.path().join("r0p0"));
            let before = contents(directory.path());
            turned(&one, &two, at % 3 == 0).unwrap_err();
            assert!(contents(directory.path()) == before, "{what}");
            fs::remove_file(&path).unwrap();
        }
        turned(&one, &two, false).unwrap();
        assert_sound(&two);
    }
}

/// Zeros where a header would be say nothing of whose it is: what lies behind them does.
#[test]
fn zeros_for_a_header_are_no_leave_to_overwrite_what_lies_behind() {
    let (directory, set) = filled(SetOptions::default(), &[0, 1]);
    for name in ["r1p0", "r1p1"] {
        let path = directory.path().join(name);
        let own = fs::read(&path).unwrap();
        write(&path, 0, &[0; HEADER_LEN_BYTES]);
        for offset in [4096 + 100, 3 << 20, (5 << 20) - 9] {
            // Another pool's part, or none.
            fs::write(&path, vec![0; 5 << 20]).unwrap();
            write(&path, offset, b"letters");
            let before = contents(directory.path());
            for dry_run in [true, false] {
                refused(&set, &SyncOptions { dry_run, ..SyncOptions::default() }, "it has zeros for a header");
            }
            assert!(checked(&set).sync_refusal.is_some_and(|refusal| refusal.contains("zeros for a header")));
            let removal =
                Removal::prepare(set.replicas[1].local().unwrap(), SetOptions::default(), true, None).unwrap();
            assert_eq!(removal.left(), std::slice::from_ref(&path));
            assert!(contents(directory.path()) == before);
        }
        // The pool's own, as what it holds shows.
        fs::write(&path, own).unwrap();
        write(&path, 0, &[0; HEADER_LEN_BYTES]);
        synced(&set);
        assert_sound(&set);
    }
    for name in ["r1p0", "r1p1"] {
        let one = super::set(directory.path(), SetOptions::default(), &[0]);
        let three = super::set(directory.path(), SetOptions::default(), &[0, 2]);
        let path = directory.path().join(name.replace("r1", "r2"));
        fs::write(&path, [vec![0; 4 << 20], vec![7; 1 << 20]].concat()).unwrap();
        assert!(turned(&one, &three, false).is_err());
        assert!(fs::read(&path).unwrap().ends_with(&[7; 9]));
        fs::remove_file(&path).unwrap();
    }
}

/// Another pool's part under the name of one without a header: no replica is sound with it, and none is written to.
#[test]
fn a_whole_header_in_a_part_without_one_is_another_pools() {
    let (directory, set) = filled(SINGLE, &[0, 1]);
    let (other, _) = filled(SINGLE, &[0]);
    let path = directory.path().join("r1p1");
    copied(&path, &other.path().join("r0p0"));
    let before = contents(directory.path());
    let opened = LocalReplica::open(set.replicas[1].local().unwrap(), SINGLE, OpenFor::Write, None);
    assert!(matches!(opened, Err(PoolSetError::OtherSet { path: told, .. }) if told == path));
    assert!(checked(&set).replicas[1].problems.iter().any(|problem| problem.contains("belongs to the pool set")));
    refused(&set, &SyncOptions::default(), "belongs to the pool set");
    assert!(contents(directory.path()) == before);
}

/// Every part with a header says from the start of a restoration on whose it is, so that one that was killed goes on.
#[test]
fn a_restoration_of_parts_with_headers_that_was_ended_goes_on() {
    let (directory, set) = filled(SetOptions::default(), &[0, 1]);
    let specs = set.replicas[1].local().unwrap();
    let replica = LocalReplica::open(specs, set.options, OpenFor::Read, None).unwrap();
    let attributes = replica.attributes().unwrap();
    drop(replica);
    poke(&directory.path().join("r1p0"), 200);
    let system = System::real();
    drop(restored(&system, specs, set.options, &attributes).unwrap());
    for name in ["r1p0", "r1p1"] {
        assert!(part_header(&directory.path().join(name)).is_err());
        write(&directory.path().join(name), 4 << 20, &[9; 8192]);
    }
    assert!(synced(&set).replicas[0].damage.is_some());
    assert_sound(&set);
}
