//! Files in the place of parts that have no header.

use super::*;
use crate::ReplicaState;

/// As long as a part.
fn file_of(byte: impl FnMut(usize) -> u8) -> Vec<u8> {
    (0..5 << 20).map(byte).collect()
}

#[test]
fn zeros_in_the_place_of_a_part_are_not_copied_over_another_replica() {
    for (name, broken) in [("r0p1", 0), ("r1p1", 1)] {
        let (directory, set) = filled(SINGLE, &[0, 1]);
        fs::write(directory.path().join(name), file_of(|_| 0)).unwrap();
        let report = checked(&set);
        assert_eq!(report.state(broken), ReplicaState::Unsound, "{report:?}");
        assert!(report.replicas[broken].problems.concat().contains("nothing but zeros"), "{report:?}");
        assert_eq!(dry(&set).source, 1 - broken);
        assert_eq!(synced(&set).source, 1 - broken);
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
            assert!(contents(directory.path()) == before);
            fs::remove_file(&path).unwrap();
            synced(&set);
            assert_sound(&set);
        }
    }
}

/// A page that changed since is no reason to think that it is another's.
#[test]
fn replicas_that_differ_in_places_are_brought_in_order() {
    let (directory, set) = filled(SINGLE, &[0, 1]);
    for offset in (0..2 * MIB).step_by(8192) {
        poke(&directory.path().join("r1p1"), offset);
    }
    synced(&set);
    assert_sound(&set);
}
