//! Damage that is not a reason to overwrite: holes, and headers before contents that are intact.

use super::*;
use crate::{HEADER_LEN_BYTES, ReplicaState};

fn with(dry_run: bool, from: Option<usize>) -> SyncOptions {
    SyncOptions { dry_run, from, ..SyncOptions::default() }
}

fn run(set: &PoolSet, options: &SyncOptions) -> Result<SyncReport, SyncError> {
    sync(set, options, &mut NoRemotes, &mut |_| {})
}

/// A byte of a header does not decide which contents win.
#[test]
fn contents_that_differ_are_asked_about_whatever_the_header_says() {
    for (options, name) in [(SetOptions::default(), "r0p0"), (SetOptions::default(), "r0p1"), (SINGLE, "r0p0")] {
        for replicas in [&[0, 1][..], &[0, 1, 2]] {
            let (directory, set) = filled(options, replicas);
            poke(&directory.path().join("r0p1"), 2 * MIB + 5);
            poke(&directory.path().join(name), 60);
            let before = contents(directory.path());
            for dry_run in [true, false] {
                let refused = run(&set, &with(dry_run, None)).unwrap_err();
                assert!(matches!(&refused, SyncError::Kept { index: 0, source_index: 1, .. }), "{refused}");
            }
            assert!(checked(&set).sync_refusal.is_some_and(|refusal| refusal.contains("--from 1")));
            assert!(contents(directory.path()) == before);
            run(&set, &with(false, Some(1))).unwrap();
            assert_sound(&set);
        }
    }
    // What nobody has in use is no reason to ask, nor are contents that are equal, or damaged.
    let (directory, set) = filled(SetOptions::default(), &[0, 1]);
    for offset in [7000, 60] {
        poke(&directory.path().join("r0p0"), offset);
    }
    synced(&set);
    for offset in [5000, 60] {
        poke(&directory.path().join("r0p0"), offset);
    }
    synced(&set);
    assert_sound(&set);
}

/// Parts are made in full: what was punched out of one is lost, and no reason to copy zeros over the replica that has it.
#[test]
fn holes_are_damage_that_another_replica_makes_good() {
    for (options, name) in [(SetOptions::default(), "r0p1"), (SINGLE, "r0p1"), (SetOptions::default(), "r1p0")] {
        let (directory, set) = filled(options, &[0, 1]);
        let path = directory.path().join(name);
        let punch = || {
            let file = fs::File::options().write(true).open(&path).unwrap();
            let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(&file, flags, 4096, 5 * MIB - 4096).unwrap();
        };
        punch();
        let broken = usize::from(name.starts_with("r1"));
        let report = checked(&set);
        assert_eq!(report.state(broken), ReplicaState::Unsound);
        let [problem] = &report.replicas[broken].problems[..] else { panic!("{report:?}") };
        assert!(problem.contains("has holes") && !problem.contains("fallocate"), "{problem}");
        assert_eq!((report.sync_refusal, report.compared_with), (None, Some(1 - broken)));
        let before = contents(directory.path());
        let other = format!("r{}", 1 - broken);
        assert_eq!(run(&set, &with(true, None)).unwrap().source, 1 - broken);
        assert!(contents(directory.path()) == before);
        assert_eq!(synced(&set).source, 1 - broken);
        let is_other = |(path, _): &(PathBuf, Vec<u8>)| path.file_name().unwrap().to_str().unwrap().starts_with(&other);
        let behind = |all: Vec<(PathBuf, Vec<u8>)>| {
            all.into_iter().filter(is_other).map(|(_, bytes)| bytes[HEADER_LEN_BYTES..].to_vec()).collect::<Vec<_>>()
        };
        assert!(behind(contents(directory.path())) == behind(before), "the good one is what it was");
        let found = fs::metadata(&path).unwrap();
        assert!(std::os::unix::fs::MetadataExt::blocks(&found) * 512 >= found.len());
        assert_sound(&set);
        // Somebody else's file with holes is not written to.
        fs::write(&path, vec![7; 5 << 20]).unwrap();
        punch();
        if options != SINGLE {
            let refused = run(&set, &with(false, None)).unwrap_err();
            assert!(causes(&refused).to_string().contains("does not begin as a part"), "{refused}");
        }
        // A pool that has no other replica is told what can be done.
        let alone = set.replicas[broken].local().unwrap();
        let refused = LocalReplica::open(alone, options, OpenFor::Read, None).unwrap_err();
        assert!(matches!(&refused, PoolSetError::Holes { path: told } if *told == path), "{refused}");
    }
}
