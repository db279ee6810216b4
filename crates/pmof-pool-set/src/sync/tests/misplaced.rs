//! Parts that the set file names in another order, or in another replica, than they are.

use super::*;
use crate::MisplacedPart;

fn parts(set: &mut PoolSet, replica: usize) -> &mut Vec<PartSpec> {
    let ReplicaSpec::Local(parts) = &mut set.replicas[replica] else { panic!("replica {replica} is not here") };
    parts
}

fn exchanged(set: &PoolSet, [one, other]: [(usize, usize); 2]) -> PoolSet {
    let mut changed = set.clone();
    parts(&mut changed, one.0)[one.1] = parts(&mut set.clone(), other.0)[other.1].clone();
    parts(&mut changed, other.0)[other.1] = parts(&mut set.clone(), one.0)[one.1].clone();
    changed
}

/// Refused with what each part is, by sync and by check, and nothing is changed.
fn assert_misplaced(directory: &Path, set: &PoolSet, index: usize, told: &[(&str, usize, usize)]) {
    let before = contents(directory);
    for (dry_run, from) in [(true, None), (false, None), (false, Some(1 - index.min(1)))] {
        let options = SyncOptions { dry_run, from, ..SyncOptions::default() };
        let failed = sync(set, &options, &mut NoRemotes, &mut |_| {}).unwrap_err();
        let SyncError::Misplaced { index: found, parts } = &failed else { panic!("{failed}") };
        let part = |(name, replica, part): &(&str, usize, usize)| MisplacedPart {
            path: directory.join(name),
            replica: *replica,
            part: *part,
        };
        assert_eq!((*found, parts), (index, &told.iter().map(part).collect::<Vec<_>>()), "{failed}");
        assert_eq!(checked(set).sync_refusal.unwrap(), failed.to_string());
    }
    assert!(contents(directory) == before);
}

#[test]
fn parts_in_another_order_are_not_made_anew() {
    let (directory, right) = filled(SetOptions::default(), &[0, 1]);
    let here = directory.path();
    let second = exchanged(&right, [(1, 0), (1, 1)]);
    assert_misplaced(here, &second, 1, &[("r1p1", 1, 1), ("r1p0", 1, 0)]);
    let first = exchanged(&right, [(0, 0), (0, 1)]);
    assert_misplaced(here, &first, 0, &[("r0p1", 0, 1), ("r0p0", 0, 0)]);
    assert_misplaced(here, &exchanged(&second, [(0, 0), (0, 1)]), 0, &[("r0p1", 0, 1), ("r0p0", 0, 0)]);
    // Parts of two replicas.
    let crossed = exchanged(&right, [(0, 1), (1, 1)]);
    assert_misplaced(here, &crossed, 0, &[("r0p0", 0, 0), ("r1p1", 1, 1)]);
    assert_sound(&right);
    // A single replica identifies its first part by itself.
    let (directory, alone) = filled(SetOptions::default(), &[0]);
    let swapped = exchanged(&alone, [(0, 0), (0, 1)]);
    let refusal = checked(&swapped).sync_refusal.unwrap();
    assert!(refusal.contains("r0p0 is part 0 of replica 0") && refusal.contains("in the pool set file"), "{refusal}");
    assert_misplaced(directory.path(), &swapped, 0, &[("r0p1", 0, 1), ("r0p0", 0, 0)]);
}

/// Where later parts have no header, the first one is known.
#[test]
fn a_first_part_is_known_where_others_have_no_header() {
    let (directory, right) = filled(SINGLE, &[0, 1]);
    let swapped = exchanged(&right, [(1, 0), (1, 1)]);
    assert_misplaced(directory.path(), &swapped, 1, &[("r1p0", 1, 0)]);
    assert_sound(&right);
}

/// A copy of a part that is where it belongs is no part, wherever it lies.
#[test]
fn a_copy_of_a_part_is_made_anew() {
    for (of, to) in [("r1p0", "r1p1"), ("r0p0", "r1p0"), ("r0p1", "r1p0")] {
        let (directory, set) = filled(SetOptions::default(), &[0, 1]);
        fs::copy(directory.path().join(of), directory.path().join(to)).unwrap();
        synced(&set);
        assert_sound(&set);
    }
}
