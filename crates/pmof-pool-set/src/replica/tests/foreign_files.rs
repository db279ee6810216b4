//! Files that lie in a pool's directories and are somebody else's.

use super::*;
use crate::{LocalSet, NewPool, NewSet, NoRemotes, PoolSet, ReplicaSpec, TransformOptions, transform};

/// One replica with 9 MiB in each of these directories, with this many parts.
fn set(directory: &Path, names: &[&str], sizes: &[u64]) -> PoolSet {
    let replica = |name: &&str| {
        let part = |(index, len_bytes): (usize, &u64)| {
            let path = directory.join(format!("{name}{index}"));
            let _ = fs::create_dir(&path);
            PartSpec::new(path, *len_bytes)
        };
        ReplicaSpec::Local(sizes.iter().enumerate().map(part).collect())
    };
    PoolSet { path: directory.join("set"), replicas: names.iter().map(replica).collect(), options: SINGLE }
}

fn made(set: &PoolSet) {
    let new = NewSet::new(NewPool::Obj { layout: "test".into() });
    LocalSet::create(set, &new, &new.plan(set).unwrap()).unwrap().close().unwrap();
}

fn random(len_bytes: u64) -> Vec<u8> {
    (0..len_bytes).map(|at| (at * at % 251) as u8 | 1).collect()
}

fn prepare(set: &PoolSet, index: usize, force: bool) -> Result<Removal, PoolSetError> {
    Removal::prepare(set.replicas[index].local().unwrap(), SINGLE, force, None)
}

/// Where a foreign file lies, how long it is, and whether it begins with zeros.
const FOREIGN: [(&str, u64, bool); 9] = [
    ("b0/000001.pmem", MIB, false),
    ("b0/000001.pmem", 9 * MIB, false),
    ("b0/000001.pmem", 4 * MIB, false),
    ("b0/000001.pmem", 3, false),
    ("b0/000001.pmem", 4 * MIB, true),
    ("b0/1.pmem", MIB, false),
    ("b0/0000001.pmem", 9 * MIB, true),
    ("b0/+1.pmem", 9 * MIB, false),
    ("b0/000002.pmem", 9 * MIB, false),
];

#[test]
fn what_lies_behind_the_pool_is_not_removed() {
    for (name, len_bytes, is_blank) in FOREIGN {
        let directory = tempdir_in(DISK).unwrap();
        let two = set(directory.path(), &["a", "b"], &[9 * MIB]);
        made(&two);
        let path = directory.path().join(name);
        let mut bytes = random(len_bytes);
        if is_blank {
            bytes[..HEADER_LEN_BYTES].fill(0);
        }
        fs::write(&path, &bytes).unwrap();
        let there =
            || [directory.path().join("b0/000000.pmem").exists(), fs::read(&path).is_ok_and(|now| now == bytes)];
        let refused = prepare(&two, 1, false).unwrap_err();
        // Where a number is missing before it, the pool counts as damaged.
        let is_behind_a_gap = name.contains('2');
        assert!(
            matches!(&refused, PoolSetError::NotRemoved { path: told, .. } if *told == path)
                || is_behind_a_gap && matches!(&refused, PoolSetError::Missing { .. }),
            "{name}: {refused}"
        );
        assert!(is_behind_a_gap || refused.to_string().contains("move it away"), "{refused}");
        // Before it changes anything; what it would add is not made either.
        let to = set(directory.path(), &["a", "c"], &[9 * MIB]);
        for dry_run in [true, false] {
            let options = TransformOptions { dry_run, ..TransformOptions::default() };
            transform(&two, &to, &options, &mut NoRemotes, &mut |_| {}).unwrap_err();
            assert_eq!(there(), [true, true], "{name}");
            assert!(names(&directory.path().join("c0")).is_empty());
        }
        let removal = prepare(&two, 1, true).unwrap();
        assert_eq!(removal.left(), std::slice::from_ref(&path), "{name}");
        removal.carry_out().unwrap();
        assert_eq!(there(), [false, true], "{name}");
        // What is advised.
        fs::remove_file(&path).unwrap();
        prepare(&two, 0, false).unwrap().carry_out().unwrap();
    }
}

/// In the place of a part, and not as long as one there could be.
#[test]
fn what_lies_where_a_part_was_is_not_removed_or_overwritten() {
    for len_bytes in [3, 3 * MIB, 5 * MIB, 60 * MIB] {
        let directory = tempdir_in(DISK).unwrap();
        let two = set(directory.path(), &["a", "b"], &[5 * MIB, 4 * MIB]);
        made(&two);
        let path = directory.path().join("b1/000001.pmem");
        fs::write(&path, random(len_bytes)).unwrap();
        assert!(matches!(prepare(&two, 1, false), Err(PoolSetError::NotRemoved { .. })), "{len_bytes}");
        // With the header that says how long the pool is, and without.
        for first in [None, Some(vec![0; 5 << 20])] {
            if let Some(bytes) = first {
                fs::write(directory.path().join("b0/000000.pmem"), bytes).unwrap();
            }
            let specs = two.replicas[1].local().unwrap();
            let header = part_header(&directory.path().join("a0/000000.pmem")).unwrap();
            let refused =
                super::super::check_replaceable(specs, SINGLE, &header.poolset_uuid, 0, &mut |_, _| true).unwrap_err();
            assert!(matches!(&refused, PoolSetError::NotOurs { .. }), "{len_bytes}: {refused}");
            assert_eq!(prepare(&two, 1, true).unwrap().left(), std::slice::from_ref(&path), "{len_bytes}");
        }
        assert_eq!(fs::read(&path).unwrap(), random(len_bytes));
    }
}

/// As PMDK extends one: the heap is longer, and another file is there that the set does not know.
#[test]
fn what_a_pool_was_extended_by_is_its_own() {
    let directory = tempdir_in(DISK).unwrap();
    let one = set(directory.path(), &["a"], &[9 * MIB]);
    made(&one);
    let first = fs::File::options().read(true).write(true).open(directory.path().join("a0/000000.pmem")).unwrap();
    let added = directory.path().join("a0/000001.pmem");
    // Before the heap is longer nothing is in it.
    fs::write(&added, vec![0; 4 << 20]).unwrap();
    drop(prepare(&one, 0, false).unwrap());
    fs::write(&added, random(4 * MIB)).unwrap();
    assert!(matches!(prepare(&one, 0, false), Err(PoolSetError::NotRemoved { .. })));
    let mut heap = [0; 8];
    first.read_exact_at(&mut heap, crate::format::OBJ_HEAP_LEN).unwrap();
    let longer = u64::from_le_bytes(heap) + 4 * MIB;
    first.write_all_at(&longer.to_le_bytes(), crate::format::OBJ_HEAP_LEN).unwrap();
    for force in [true, false] {
        let removal = prepare(&one, 0, force).unwrap();
        assert_eq!((removal.parts().count(), removal.left().len()), (2, 0));
    }
    prepare(&one, 0, false).unwrap().carry_out().unwrap();
    assert!(names(&directory.path().join("a0")).is_empty());
}

/// Two pools in one set are refused even with force: the user must say which is meant.
#[test]
fn parts_of_two_pools_are_not_removed_at_once() {
    for options in [ALL, SINGLE] {
        let directory = tempdir_in(DISK).unwrap();
        let (one, two) = (super::made(directory.path(), "one", options), super::made(directory.path(), "two", options));
        let mixed = [one[0].clone(), PartSpec::new(two[0].path.clone(), 2 * MIB)];
        let other = part_header(&two[0].path).unwrap().poolset_uuid;
        let before = names(directory.path());
        for force in [true, false] {
            for (specs, member) in [(&mixed[..], None), (&one[..], Some(&other))] {
                let refused = Removal::prepare(specs, options, force, member).unwrap_err();
                assert!(matches!(&refused, PoolSetError::OtherSet { .. }), "{force}: {refused}");
            }
        }
        // Nor one whose header is damaged: what it still says is heard, whatever else of it is wrong.
        for (offset, len_bytes) in [(200, 1), (8, 4), (0, 1)] {
            // Where parts have no header nothing but the signature tells that there is one.
            if offset == 0 && options == SINGLE {
                continue;
            }
            let intact = fs::read(&two[0].path).unwrap();
            (offset..offset + len_bytes).for_each(|offset| flip(&two[0].path, offset));
            let refused = Removal::prepare(&mixed, options, true, None).unwrap_err();
            assert!(matches!(&refused, PoolSetError::OtherSet { .. }), "{offset}: {refused}");
            fs::write(&two[0].path, intact).unwrap();
        }
        // Where all are damaged the one that the others fit with is meant.
        flip(&one[0].path, 200);
        flip(&two[0].path, 200);
        let refused = Removal::prepare(&mixed, options, true, None).unwrap_err();
        assert!(matches!(&refused, PoolSetError::OtherSet { .. }), "{refused}");
        assert_eq!(names(directory.path()), before);
    }
}

/// A record and zeros behind it, as a program may begin a page with: no header, although it could have been one.
#[test]
fn contents_that_look_like_a_header_are_the_pools() {
    let directory = tempdir_in(DISK).unwrap();
    for force in [false, true] {
        let specs = super::made(directory.path(), "part", SINGLE);
        let part = fs::File::options().write(true).open(&specs[1].path).unwrap();
        part.write_all_at(&[7; 136], 0).unwrap();
        let removal = Removal::prepare(&specs, SINGLE, force, None).unwrap();
        assert_eq!((removal.parts().count(), removal.left().len()), (3, 0));
        removal.carry_out().unwrap();
    }
}
