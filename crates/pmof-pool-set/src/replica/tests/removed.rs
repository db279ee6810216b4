//! Parts that go: all of them, or none.

use super::*;
use crate::{LocalSet, NewPool, NewSet, PoolSet, ReplicaSpec};

fn prepare(specs: &[PartSpec], force: bool) -> Result<Removal, PoolSetError> {
    Removal::prepare(specs, ALL, force, None)
}

#[test]
fn what_is_about_to_go_is_there_and_locked_until_then() {
    let directory = tempdir_in(DISK).unwrap();
    let specs = made(directory.path(), "part", ALL);
    let before = names(directory.path());
    let removal = prepare(&specs, false).unwrap();
    assert!(matches!(open(&specs, ALL), Err(PoolSetError::Busy { .. })));
    drop(removal);
    assert_eq!(names(directory.path()), before);
    open(&specs, ALL).unwrap().close().unwrap();
    prepare(&specs, false).unwrap().carry_out().unwrap();
    assert!(names(directory.path()).is_empty());
}

#[test]
fn nothing_goes_where_a_part_is_not_the_pools() {
    let cases: [(Change, IsRight); 5] = [
        (|path| fs::remove_file(path).unwrap(), |error| matches!(error, PoolSetError::Missing { .. })),
        (|path| fs::write(path, vec![7; 3 << 20]).unwrap(), |error| matches!(error, PoolSetError::Header { .. })),
        (|path| fs::write(path, "").unwrap(), |error| matches!(error, PoolSetError::WrongLength { .. })),
        (
            |path| edit(path, |header| header.poolset_uuid = new_uuid()),
            |error| matches!(error, PoolSetError::OtherSet { .. }),
        ),
        (
            |path| edit(path, |header| header.uuid = new_uuid()),
            |error| matches!(error, PoolSetError::WrongNeighbour { .. }),
        ),
    ];
    for (change, is_right) in cases {
        let directory = tempdir_in(DISK).unwrap();
        let specs = made(directory.path(), "part", ALL);
        change(&specs[1].path);
        let before = names(directory.path());
        let error = prepare(&specs, false).unwrap_err();
        assert!(is_right(&error), "{error:?}");
        assert_eq!(names(directory.path()), before);
        if matches!(&error, PoolSetError::OtherSet { .. }) {
            assert!(matches!(prepare(&specs, true), Err(PoolSetError::OtherSet { .. })), "by force either");
            continue;
        }
        let removal = prepare(&specs, true).unwrap();
        let (absent, left) = (removal.absent().to_vec(), removal.left().to_vec());
        assert_eq!(removal.parts().count() + absent.len() + left.len(), specs.len());
        removal.carry_out().unwrap();
        // With force all that is there goes, but what was never a pool's.
        let is_letter = matches!(&error, PoolSetError::Header { .. });
        assert_eq!(names(directory.path()), if is_letter { vec!["part1"] } else { vec![] }, "{error}");
        assert_eq!(left, if is_letter { vec![specs[1].path.clone()] } else { vec![] }, "{error}");
        let is_absent = matches!(&error, PoolSetError::Missing { .. });
        assert_eq!(absent, if is_absent { vec![specs[1].path.clone()] } else { vec![] }, "{error}");
    }
}

/// What is left of a pool goes by force, and no other file, however much of it is left.
#[test]
fn force_removes_what_was_a_part_and_no_other_file() {
    type Write = fn(&Path);
    let write = |path: &Path, offset: u64, bytes: &[u8]| {
        fs::File::options().write(true).open(path).unwrap().write_all_at(bytes, offset).unwrap();
    };
    let cases: [(&str, bool, SetOptions, usize, Write); 13] = [
        ("a header with a flipped byte", true, ALL, 1, |path| flip(path, 200)),
        ("a header whose UUID is damaged", true, ALL, 1, |path| flip(path, 30)),
        ("a header whose signature is damaged", true, ALL, 1, |path| flip(path, 0)),
        ("a cut part", true, ALL, 1, |path| fs::write(path, &fs::read(path).unwrap()[..60]).unwrap()),
        ("an empty file", true, ALL, 1, |path| fs::write(path, "").unwrap()),
        ("a few zeros", true, ALL, 1, |path| fs::write(path, [0; 90]).unwrap()),
        ("a file of zeros", true, ALL, 1, |path| fs::write(path, vec![0; 2 << 20]).unwrap()),
        ("an image that begins with zeros", false, ALL, 1, |path| {
            fs::write(path, [vec![0; 32 << 10], vec![7; 9 << 20]].concat()).unwrap();
        }),
        ("a letter", false, ALL, 1, |path| fs::write(path, "dear all").unwrap()),
        ("a letter in the first place", false, ALL, 0, |path| fs::write(path, "dear all").unwrap()),
        ("a native pool", false, ALL, 1, |path| {
            fs::write(path, [&b"PMOFPOOL"[..], &[7; 108], &vec![0; 2 << 20]].concat()).unwrap();
        }),
        ("a letter for a part without a header", false, SINGLE, 1, |path| fs::write(path, "dear all").unwrap()),
        ("contents of a part without a header", true, SINGLE, 1, |path| {
            let len_bytes = fs::metadata(path).unwrap().len();
            fs::write(path, vec![7; len_bytes as usize]).unwrap();
        }),
    ];
    for (what, goes, options, place, change) in cases {
        let directory = tempdir_in(DISK).unwrap();
        let specs = made(directory.path(), "part", options);
        change(&specs[place].path);
        let before = fs::read(&specs[place].path).unwrap();
        Removal::prepare(&specs, options, true, None).unwrap().carry_out().unwrap();
        let left = if goes { vec![] } else { vec![format!("part{place}")] };
        assert_eq!(names(directory.path()), left, "{what}");
        assert!(goes || fs::read(&specs[place].path).unwrap() == before, "{what}");
    }
    // Nothing of its header is left: what lies behind it is a pool, and nothing says that it is this set's.
    let directory = tempdir_in(DISK).unwrap();
    let set = PoolSet {
        path: directory.path().join("set"),
        replicas: vec![ReplicaSpec::Local(vec![PartSpec::new(directory.path().join("part"), 9 * MIB)])],
        options: ALL,
    };
    let new = NewSet::new(NewPool::Obj { layout: "test".into() });
    LocalSet::create(&set, &new, &new.plan(&set).unwrap()).unwrap().close().unwrap();
    write(&directory.path().join("part"), 0, &[7; HEADER_LEN_BYTES]);
    let part = directory.path().join("part");
    let left = || Removal::prepare(set.replicas[0].local().unwrap(), ALL, true, None).unwrap().left().to_vec();
    assert_eq!(left(), std::slice::from_ref(&part));
    write(&part, 0, &[0; HEADER_LEN_BYTES]);
    assert_eq!(left(), [part]);
}

/// Nothing in them says whose they are, or it says that they are another's.
#[test]
fn parts_of_a_set_without_headers_go_by_force_only() {
    type Lay = fn(&Path, &Path);
    let cases: [(&str, Lay, bool); 6] = [
        ("zeros", |part, _| fs::write(part, vec![0; 3 << 20]).unwrap(), true),
        ("letters", |part, _| fs::write(part, vec![7; 3 << 20]).unwrap(), true),
        ("letters of another length", |part, _| fs::write(part, vec![7; 2 << 20]).unwrap(), false),
        (
            "a native pool",
            |part, _| fs::write(part, [&b"PMOFPOOL"[..], &vec![7; (3 << 20) - 8]].concat()).unwrap(),
            false,
        ),
        ("a part of another pool", |part, other| assert!(fs::copy(other, part).is_ok()), false),
        ("a damaged one", |part, other| (assert!(fs::copy(other, part).is_ok()), flip(part, 100)).1, false),
    ];
    for (what, lay, goes) in cases {
        let directory = tempdir_in(DISK).unwrap();
        let other = PartSpec::new(directory.path().join("other"), 3 * MIB);
        LocalReplica::create(std::slice::from_ref(&other), &new(ALL)).unwrap().close().unwrap();
        let spec = PartSpec::new(directory.path().join("part"), 3 * MIB);
        lay(&spec.path, &other.path);
        let specs = std::slice::from_ref(&spec);
        match Removal::prepare(specs, NONE, false, None) {
            Ok(_) => assert_eq!(what, "zeros"),
            Err(PoolSetError::WrongLength { .. }) => assert_eq!(what, "letters of another length"),
            Err(PoolSetError::NotRemoved { path, .. }) => assert!(path == spec.path && what != "zeros", "{what}"),
            Err(error) => panic!("{what}: {error}"),
        }
        assert_eq!(Removal::prepare(specs, NONE, true, None).unwrap().left().is_empty(), goes, "{what}");
        // Directories are parts of sets with one header only.
        let of_directory = PartSpec::new(directory.path(), 3 * MIB);
        for (options, force) in [(NONE, true), (NONE, false), (ALL, true), (ALL, false)] {
            let refused = Removal::prepare(std::slice::from_ref(&of_directory), options, force, None).unwrap_err();
            assert!(matches!(refused, PoolSetError::WrongKind { .. }), "{refused}");
        }
    }
}

/// A part that was copied sparsely, or cut off: it cannot be mapped, and need not be.
#[test]
fn holes_and_empty_files_do_not_keep_parts() {
    let directory = tempdir_in(DISK).unwrap();
    for (force, options) in [(false, ALL), (true, ALL), (true, NONE)] {
        let specs = made(directory.path(), "part", options);
        for spec in &specs {
            let bytes = fs::read(&spec.path).unwrap();
            fs::remove_file(&spec.path).unwrap();
            let sparse = fs::File::create(&spec.path).unwrap();
            sparse.write_all_at(&bytes[..HEADER_LEN_BYTES], 0).unwrap();
            sparse.set_len(bytes.len() as u64).unwrap();
        }
        if force {
            fs::File::options().write(true).open(&specs[2].path).unwrap().set_len(0).unwrap();
        }
        Removal::prepare(&specs, options, force, None).unwrap().carry_out().unwrap();
        assert!(names(directory.path()).is_empty());
    }
}
