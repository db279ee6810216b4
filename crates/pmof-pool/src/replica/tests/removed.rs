//! Parts that go: all of them, or none.

use super::*;
use crate::replica::Removal;

fn prepare(specs: &[PartSpec], force: bool) -> Result<Removal, PoolSetError> {
    Removal::prepare(specs, ALL, force)
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
        prepare(&specs, true).unwrap().carry_out().unwrap();
        assert!(names(directory.path()).is_empty(), "with force all goes");
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
        Removal::prepare(&specs, options, force).unwrap().carry_out().unwrap();
        assert!(names(directory.path()).is_empty());
    }
}
