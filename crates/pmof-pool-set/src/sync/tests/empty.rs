//! Replicas that were created and never written, beside others that hold something, or may.

use super::*;
use crate::{Attributes, EMPTY, NewReplica, PoolKind, ReplicaState};

const DATA: u64 = 4096;

/// Replicas of `kind` that know each other and hold nothing, as a client of librpmem makes them.
fn never_written(signature: [u8; 8], replicas: &[usize]) -> (TempDir, PoolSet) {
    let directory = tempdir_in(DISK).unwrap();
    let set = set(directory.path(), SetOptions::default(), replicas);
    let uuids: Vec<_> = replicas.iter().map(|_| crate::new_uuid()).collect();
    let count = replicas.len();
    for (index, replica) in set.replicas.iter().enumerate() {
        let attributes = Attributes {
            signature,
            major: 6,
            compat: 0,
            incompat: 2,
            ro_compat: 0,
            poolset_uuid: [7; 16],
            uuid: uuids[index],
            next_uuid: uuids[(index + 1) % count],
            prev_uuid: uuids[(index + count - 1) % count],
            user_flags: crate::header::Arch::of_this_machine().to_bytes(),
        };
        let new = NewReplica { attributes: Some(attributes), ..NewReplica::default() };
        LocalReplica::create(replica.local().unwrap(), &new).unwrap().close().unwrap();
    }
    (directory, set)
}

/// Makes a range of a file zero.
fn zero(path: &Path, range: std::ops::Range<u64>) {
    let zeros = vec![0; (range.end - range.start) as usize];
    fs::File::options().write(true).open(path).unwrap().write_all_at(&zeros, range.start).unwrap();
}

/// All that a replica holds behind its headers.
fn empty(directory: &Path, replica: usize) {
    for part in 0..2 {
        zero(&directory.join(format!("r{replica}p{part}")), DATA..5 * MIB);
    }
}

fn states(set: &PoolSet) -> Vec<ReplicaState> {
    let report = checked(set);
    (0..set.replicas.len()).map(|index| report.state(index)).collect()
}

fn sync_from(set: &PoolSet, from: Option<usize>) -> Result<SyncReport, SyncError> {
    sync(set, &SyncOptions { from, ..SyncOptions::default() }, &mut NoRemotes, &mut |_| {})
}

/// The loss that this is about: the first replica wins over the good one.
#[test]
fn a_zeroed_descriptor_or_heap_is_no_source() {
    for range in [4096..6144, 0x30_2000..0x30_2400, 4096..8192] {
        let (directory, set) = filled(SetOptions::default(), &[0, 1]);
        zero(&directory.path().join("r0p0"), range);
        assert_eq!(states(&set), [ReplicaState::Unsound, ReplicaState::Sound]);
        assert_eq!(synced(&set).source, 1);
        assert_sound(&set);
    }
}

#[test]
fn an_empty_replica_is_made_equal_to_one_that_holds_something_wherever_it_is() {
    for broken in [0, 1, 2] {
        let (directory, set) = filled(SetOptions::default(), &[0, 1, 2]);
        empty(directory.path(), broken);
        let found = states(&set);
        assert_eq!(found[broken], ReplicaState::Empty, "{found:?}");
        assert_eq!(found.iter().filter(|state| **state == ReplicaState::Empty).count(), 1);
        let report = checked(&set);
        assert!(!report.is_sound() && report.sync_refusal.is_none() && report.majority.is_none(), "{report:?}");
        let before = contents(directory.path());
        match sync_from(&set, Some(broken)) {
            Err(SyncError::NotASource { index, reason }) => {
                assert!(index == broken && reason.starts_with(EMPTY), "{reason}");
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(contents(directory.path()), before);
        let done = synced(&set);
        assert_eq!(done.source, usize::from(broken == 0));
        let replica = done.replicas.iter().find(|replica| replica.index == broken).unwrap();
        assert_eq!(replica.damage.as_deref(), Some(EMPTY));
        assert_sound(&set);
    }
    // Two of three: no majority against the one.
    let (directory, set) = filled(SetOptions::default(), &[0, 1, 2]);
    empty(directory.path(), 0);
    empty(directory.path(), 1);
    assert_eq!(synced(&set).source, 2);
    assert_sound(&set);
}

#[test]
fn replicas_that_are_all_empty_are_equal() {
    for signature in [PoolKind::Obj.signature(), *b"MINEOWN\0"] {
        let (directory, set) = never_written(signature, &[0, 1]);
        let report = checked(&set);
        assert!(report.is_sound() && report.has_empty() && !report.holds_something(), "{report:?}");
        assert_eq!(states(&set), [ReplicaState::Empty; 2]);
        let done = synced(&set);
        assert!(done.source == 0 && done.replicas[0].damage.is_none() && done.replicas[0].copied.blocks == 0);
        let three = super::set(directory.path(), SetOptions::default(), &[0, 1, 2]);
        assert_eq!(turned(&set, &three, false).unwrap().added, [2]);
        assert!(checked(&three).is_sound());
        // Of a kind that nobody knows the first byte decides too.
        poke(&directory.path().join("r2p1"), 3 * MIB);
        if PoolKind::of_signature(&signature).is_none() {
            assert_eq!(states(&three), [ReplicaState::Empty, ReplicaState::Empty, ReplicaState::Sound]);
            let two = super::set(directory.path(), SetOptions::default(), &[0, 2]);
            assert!(matches!(turned(&three, &two, false), Err(SyncError::NotSound { index: 0, .. })));
            assert_eq!(synced(&three).source, 2);
            assert!(checked(&three).is_sound() && !checked(&three).has_empty());
        } else {
            assert_eq!(states(&three)[2], ReplicaState::Unsound);
        }
    }
}

/// What the other held may be worth more than zeros.
#[test]
fn an_empty_replica_is_no_source_beside_a_damaged_one_unless_it_is_named() {
    let (directory, set) = filled(SetOptions::default(), &[0, 1]);
    empty(directory.path(), 0);
    poke(&directory.path().join("r1p0"), 30);
    let before = contents(directory.path());
    let refusal = checked(&set).sync_refusal.unwrap();
    assert!(refusal.contains("replica 1 may hold what was written") && refusal.contains("--from 0"), "{refusal}");
    for dry_run in [true, false] {
        let options = SyncOptions { dry_run, ..SyncOptions::default() };
        let outcome = sync(&set, &options, &mut NoRemotes, &mut |_| {});
        assert!(matches!(outcome, Err(SyncError::EmptySource { index: 0, other: 1, .. })), "{outcome:?}");
    }
    assert_eq!(contents(directory.path()), before);
    assert_eq!(sync_from(&set, Some(0)).unwrap().source, 0);
    assert_eq!(states(&set), [ReplicaState::Empty; 2]);
}
