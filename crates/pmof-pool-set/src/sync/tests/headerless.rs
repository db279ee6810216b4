//! Files in the place of parts that have no header.

use super::*;
use crate::ReplicaState;

/// As long as a part.
fn file_of(byte: impl FnMut(usize) -> u8) -> Vec<u8> {
    (0..5 << 20).map(byte).collect()
}

#[test]
fn zeros_in_the_place_of_a_part_are_not_copied_over_other_replicas() {
    for (name, broken) in [("r0p1", 0), ("r1p1", 1)] {
        let (directory, set) = filled(SINGLE, &[0, 1, 2]);
        fs::write(directory.path().join(name), file_of(|_| 0)).unwrap();
        let report = checked(&set);
        assert_eq!(report.state(broken), ReplicaState::Unsound, "{report:?}");
        assert!(report.replicas[broken].problems.concat().contains("nothing but zeros"), "{report:?}");
        assert_eq!((dry(&set).source, synced(&set).source), (1 - broken, 1 - broken));
        assert_sound(&set);
    }
}

/// Of two replicas one has zeros there, and the other something: nothing tells which is right where the heap has nothing.
#[test]
fn of_zeros_and_data_neither_is_copied_where_nothing_tells() {
    for name in ["r0p1", "r1p1"] {
        let (directory, set) = filled(SINGLE, &[0, 1]);
        fs::write(directory.path().join(name), file_of(|_| 0)).unwrap();
        let before = contents(directory.path());
        for from in [None, Some(0), Some(1)] {
            let options = SyncOptions { from, ..SyncOptions::default() };
            let refused = sync(&set, &options, &mut NoRemotes, &mut |_| {}).unwrap_err();
            assert!(matches!(&refused, SyncError::Unlike { path, .. } if !path.ends_with(name)), "{refused}");
        }
        assert!(contents(directory.path()) == before);
        fs::remove_file(directory.path().join(name)).unwrap();
        synced(&set);
        assert_sound(&set);
    }
}

#[test]
fn a_file_that_is_not_the_pools_is_neither_copied_nor_overwritten() {
    let native = |at: usize| if at < 8 { b"PMOFPOOL"[at] } else { (at / 4096) as u8 | 1 };
    let other_header = |at: usize| if at < 8 { b"PMEMLOG\0"[at] } else { 9 };
    let text = |at: usize| b"dear all, "[at % 10];
    let kinds: [(&dyn Fn(usize) -> u8, &str); 3] =
        [(&native, "PMOFPOOL"), (&other_header, "damaged part of a pool"), (&text, "nothing in it is what")];
    for (kind, words) in kinds {
        for name in ["r0p1", "r1p1"] {
            let (directory, set) = filled(SINGLE, &[0, 1]);
            let path = directory.path().join(name);
            fs::write(&path, file_of(kind)).unwrap();
            let before = contents(directory.path());
            for (dry_run, from) in [(true, None), (false, None), (false, Some(0)), (false, Some(1))] {
                let options = SyncOptions { dry_run, from, ..SyncOptions::default() };
                let refused = sync(&set, &options, &mut NoRemotes, &mut |_| {}).unwrap_err();
                assert!(causes(&refused).to_string().contains(words), "{name}: {}", causes(&refused));
            }
            let report = checked(&set);
            assert!(!report.is_sound() && report.sync_refusal.is_some(), "{report:?}");
            assert!(report.replicas.iter().any(|replica| !replica.problems.is_empty() || replica.unchecked.is_some()));
            assert!(contents(directory.path()) == before);
            fs::remove_file(&path).unwrap();
            synced(&set);
            assert_sound(&set);
        }
    }
}

/// A page that changed since is no reason to think that it is another's.
#[test]
fn replicas_that_differ_in_places_are_synced() {
    let (directory, set) = filled(SINGLE, &[0, 1]);
    for offset in (0..2 * MIB).step_by(8192) {
        poke(&directory.path().join("r1p1"), offset);
    }
    synced(&set);
    assert_sound(&set);
}

/// A pool of which little is in use: in a run that begins in the first part, and in a chunk of the second, a page each.
pub(super) fn sparse(replicas: &[usize]) -> (TempDir, PoolSet) {
    const CHUNK: u64 = 256 << 10;
    let (zone, chunks) = (0x30_2400, 0x38_2400);
    let directory = tempdir_in(DISK).unwrap();
    let set = set(directory.path(), SINGLE, replicas);
    let new = NewSet::new(NewPool::Obj { layout: "test".into() });
    let made = LocalSet::create(&set, &new, &new.plan(&set).unwrap()).unwrap();
    for replica in made.replicas().iter().flatten() {
        let memory = replica.memory();
        let store =
            |offset: u64, words: [u32; 2]| memory.store(offset, words.map(u32::to_le_bytes).as_flattened()).unwrap();
        store(zone, [0xc3f0_a2d2, 25]);
        // Free, five chunks; a run with a fitted bitmap; an object; free, the rest. Objects have short headers.
        for (chunk, header) in [(0, [2, 5]), (5, [4 | 9 << 16, 1]), (6, [3 | 1 << 16, 1]), (7, [2, 18])] {
            store(zone + 64 + chunk * 8, header);
        }
        // Of its blocks of 1024 bytes the one is in use that begins 64 bytes behind the start of the second part.
        let run = chunks + 5 * CHUNK;
        store(run, [1024, 0]);
        memory.store(run + 16 + 247 / 8, &[1 << (247 % 8)]).unwrap();
        store(5 * MIB + 64, [1000, 0]);
        store(chunks + 6 * CHUNK, [5000, 0]);
        memory.write_back(0, memory.len_bytes()).unwrap();
    }
    made.close().unwrap();
    assert!(checked(&set).is_sound());
    (directory, set)
}

#[test]
fn what_the_heap_has_in_use_is_missed_where_a_part_was_lost() {
    for (name, broken) in [("r0p1", 0), ("r1p1", 1)] {
        let (directory, set) = sparse(&[0, 1]);
        let before = contents(directory.path());
        fs::write(directory.path().join(name), file_of(|_| 0)).unwrap();
        let report = checked(&set);
        assert!(report.replicas[broken].problems.concat().contains("in use at offset 64"), "{report:?}");
        assert_eq!((dry(&set).source, synced(&set).source), (1 - broken, 1 - broken));
        assert!(checked(&set).is_sound());
        let path = directory.path().join(name);
        let good = before.into_iter().find_map(|(other, bytes)| (other == path).then_some(bytes));
        assert!(fs::read(&path).unwrap() == good.unwrap());
    }
    // The run is in order, the chunk behind it is not.
    let (directory, set) = sparse(&[0]);
    let path = directory.path().join("r0p1");
    let file = fs::File::options().write(true).open(&path).unwrap();
    file.write_all_at(&[0; 4096], 0x2000).unwrap();
    let report = checked(&set);
    assert!(report.replicas[0].problems.concat().contains("in use at offset 9216"), "{report:?}");
    assert!(report.sync_refusal.is_some());
}

/// Zeros are right where the heap has nothing in use, and the other file is not copied over them.
#[test]
fn a_file_in_the_place_of_a_part_that_is_not_in_use_is_not_copied() {
    let (directory, set) = sparse(&[0, 1]);
    for name in ["r0p", "r1p"] {
        let first = fs::File::options().write(true).open(directory.path().join(format!("{name}0"))).unwrap();
        // A free chunk instead of the run, and of the object.
        first.write_all_at(&[2, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0], 0x30_2400 + 64 + 5 * 8).unwrap();
        fs::write(directory.path().join(format!("{name}1")), file_of(|_| 0)).unwrap();
    }
    assert!(checked(&set).is_sound());
    let path = directory.path().join("r1p1");
    fs::write(&path, file_of(|at| b"dear all, "[at % 10])).unwrap();
    let before = contents(directory.path());
    let refused = sync(&set, &SyncOptions::default(), &mut NoRemotes, &mut |_| {}).unwrap_err();
    assert!(matches!(&refused, SyncError::Unlike { path: unlike, .. } if *unlike == path), "{refused}");
    assert!(contents(directory.path()) == before);
}

#[test]
fn a_page_of_another_file_is_enough_where_the_heap_misses_something() {
    for name in ["r0p1", "r1p1"] {
        let (directory, set) = sparse(&[0, 1]);
        let path = directory.path().join(name);
        fs::write(&path, file_of(|at| if at < 4096 { b"dear all, "[at % 10] } else { 0 })).unwrap();
        let before = contents(directory.path());
        let refused = sync(&set, &SyncOptions::default(), &mut NoRemotes, &mut |_| {}).unwrap_err();
        assert!(matches!(&refused, SyncError::Unlike { path: unlike, .. } if *unlike == path), "{refused}");
        assert!(contents(directory.path()) == before);
    }
}

/// Both differ from each other in everything: the heap tells which is the pool's.
#[test]
fn the_part_that_the_heap_is_against_is_the_one_that_is_named() {
    for (name, good) in [("r0p1", "r1p1"), ("r1p1", "r0p1")] {
        let (directory, set) = sparse(&[0, 1]);
        for part in ["r0p1", "r1p1"] {
            // Behind what the heap looks at.
            let file = fs::File::options().write(true).open(directory.path().join(part)).unwrap();
            file.write_all_at(&vec![0xa5; 1 << 20], 1 << 20).unwrap();
        }
        let path = directory.path().join(name);
        fs::write(&path, file_of(|at| b"dear all, "[at % 10])).unwrap();
        let refused = sync(&set, &SyncOptions::default(), &mut NoRemotes, &mut |_| {}).unwrap_err();
        assert!(matches!(&refused, SyncError::Unlike { path: unlike, .. } if *unlike == path), "{refused}");
        let found: Vec<_> =
            crate::foreign_files(&set, &mut NoRemotes).unwrap().unlike.into_iter().map(|(_, path)| path).collect();
        assert!(found == [path.as_path()]);
        let bytes = fs::read(directory.path().join(good)).unwrap();
        fs::remove_file(&path).unwrap();
        synced(&set);
        assert!(fs::read(&path).unwrap() == bytes);
    }
}

/// Parts whose header was lost, or that have another length, and of which libpmemobj left this and that in one replica only.
#[test]
fn a_part_that_resembles_the_pools_is_its_own() {
    for change in 0..4 {
        let (directory, set) = filled(SINGLE, &[0, 1]);
        let [first, path] = ["r1p0", "r1p1"].map(|name| directory.path().join(name));
        // One of 33 pages.
        for offset in (0..3 * MIB).step_by(33 * 4096) {
            poke(&path, offset);
        }
        let file = fs::File::options().write(true).open(&path).unwrap();
        match change {
            0 => fs::remove_file(&first).unwrap(),
            1 => fs::File::options().write(true).open(&first).unwrap().write_all_at(&[0; 4096], 0).unwrap(),
            2 => file.set_len(MIB).unwrap(),
            _ => file.set_len(16 * MIB).unwrap(),
        }
        let options = SyncOptions { from: Some(0), ..SyncOptions::default() };
        let done = sync(&set, &options, &mut NoRemotes, &mut |_| {}).unwrap();
        assert!(done.replicas[0].damage.is_some());
        assert_sound(&set);
    }
}
