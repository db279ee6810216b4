//! A first replica that is an old copy.

use super::*;
use crate::format::OBJ_OPENINGS;

/// Counts openings of a replica's pool.
fn opened(directory: &Path, name: &str, count: u64) {
    let file = fs::File::options().write(true).open(directory.join(name)).unwrap();
    file.write_all_at(&(2 * count).to_le_bytes(), OBJ_OPENINGS.start).unwrap();
}

#[test]
fn an_old_copy_is_not_copied_over_a_newer_replica() {
    for options in [SetOptions::default(), SINGLE] {
        let (directory, set) = filled(options, &[0, 1]);
        let place = directory.path();
        opened(place, "r0p0", 3);
        opened(place, "r1p0", 4);
        poke(&place.join("r1p0"), 4 * MIB + 4096 + 20);
        let before = contents(place);
        for dry_run in [true, false] {
            let asked = SyncOptions { dry_run, ..SyncOptions::default() };
            let refused = sync(&set, &asked, &mut NoRemotes, &mut |_| {}).unwrap_err();
            let SyncError::OldSource { index: 1, count: 4, source_index: 0, source_count: 3 } = refused else {
                panic!("{refused}")
            };
        }
        let report = checked(&set);
        assert!(report.sync_refusal.is_some_and(|refusal| refusal.contains("--from 1")));
        assert!(contents(place) == before);
        for from in [0, 1] {
            let asked = SyncOptions { dry_run: true, from: Some(from), ..SyncOptions::default() };
            assert_eq!(sync(&set, &asked, &mut NoRemotes, &mut |_| {}).unwrap().source, from);
        }
        // An older replica beside the first is what sync is for.
        opened(place, "r1p0", 2);
        assert_eq!(synced(&set).source, 0);
        assert_sound(&set);
    }
}

/// The power failed while the program opened the pool.
#[test]
fn an_opening_that_only_one_replica_counted_is_no_reason_to_ask() {
    let (directory, set) = filled(SetOptions::default(), &[0, 1]);
    opened(directory.path(), "r1p0", 1);
    assert_eq!(synced(&set).source, 0);
    assert_sound(&set);
}
