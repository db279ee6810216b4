//! Parts that were there before the pool: made beforehand for their space, or to have it in one piece.

use super::*;

/// Three files as the set wants them: of zeros, all a hole, and with bytes behind the header.
fn given(directory: &Path) -> Vec<PartSpec> {
    let specs = specs(directory, "part");
    let len = |index: usize| match specs[index].size {
        PartSize::Bytes(len_bytes) => len_bytes,
        PartSize::Auto => unreachable!(),
    };
    fs::write(&specs[0].path, vec![0; len(0) as usize]).unwrap();
    fs::File::create(&specs[1].path).unwrap().set_len(len(1)).unwrap();
    fs::write(&specs[2].path, vec![0; len(2) as usize]).unwrap();
    fs::File::options().write(true).open(&specs[2].path).unwrap().write_all_at(b"kept", MIB).unwrap();
    specs
}

fn bytes_at(path: &Path, offset: u64) -> [u8; 4] {
    let mut bytes = [0; 4];
    fs::File::open(path).unwrap().read_exact_at(&mut bytes, offset).unwrap();
    bytes
}

fn is_blank(path: &Path) -> bool {
    matches!(part_header(path), Err(PoolSetError::Header { problem: HeaderError::Blank, .. }))
}

#[test]
fn blank_files_become_parts_and_keep_what_is_behind_the_header() {
    for options in [ALL, SINGLE, NONE] {
        let directory = tempdir_in(DISK).unwrap();
        let specs = given(directory.path());
        let replica = LocalReplica::create(&specs, &new(options)).unwrap();
        replica.close().unwrap();
        assert_eq!(bytes_at(&specs[2].path, MIB), *b"kept");
        let metadata = fs::metadata(&specs[1].path).unwrap();
        assert!(metadata.blocks() * 512 >= metadata.len(), "its holes are filled");
        open(&specs, options).unwrap().close().unwrap();
        // It is a pool now. Of a set without headers nothing says so, and nothing is changed.
        match LocalReplica::create(&specs, &new(options)) {
            Err(PoolSetError::Exists { path }) if options != NONE => assert_eq!(path, specs[0].path),
            Ok(replica) if options == NONE => replica.close().unwrap(),
            other => panic!("{other:?}"),
        }
        assert_eq!(bytes_at(&specs[2].path, MIB), *b"kept");
    }
}

#[test]
fn files_that_are_no_blank_parts_are_refused_and_left_as_they_are() {
    let cases: [(Change, IsRight); 5] = [
        (
            |path| fs::write(path, vec![0; 3 << 20 | 1]).unwrap(),
            |error| matches!(error, PoolSetError::WrongLength { .. }),
        ),
        (|path| fs::write(path, "").unwrap(), |error| matches!(error, PoolSetError::WrongLength { .. })),
        (|path| flip(path, 0), |error| matches!(error, PoolSetError::Exists { .. })),
        (|path| flip(path, 4095), |error| matches!(error, PoolSetError::Exists { .. })),
        (
            |path| {
                fs::remove_file(path).unwrap();
                fs::create_dir(path).unwrap();
            },
            |error| matches!(error, PoolSetError::WrongKind { .. }),
        ),
    ];
    for (change, is_right) in cases {
        let directory = tempdir_in(DISK).unwrap();
        let specs = given(directory.path());
        fs::remove_file(&specs[0].path).unwrap();
        change(&specs[1].path);
        let before = fs::read(&specs[1].path).ok();
        let error = LocalReplica::create(&specs, &new(ALL)).unwrap_err();
        assert!(is_right(&error), "{error:?}");
        assert!(!specs[0].path.exists(), "what was made is gone");
        assert_eq!(fs::read(&specs[1].path).ok(), before);
        assert!(is_blank(&specs[2].path));
    }
}

/// Whoever has them open uses them, as librpmem says it; that they are there comes second.
#[test]
fn parts_in_use_are_busy_and_not_only_there() {
    let directory = tempdir_in(DISK).unwrap();
    let specs = made(directory.path(), "part", ALL);
    for access in [Access::ReadOnly, Access::ReadWrite] {
        let opened = LocalReplica::open(&specs, ALL, access, None).unwrap();
        assert!(matches!(LocalReplica::create(&specs, &new(ALL)), Err(PoolSetError::Busy { .. })));
        opened.close().unwrap();
    }
    assert!(matches!(LocalReplica::create(&specs, &new(ALL)), Err(PoolSetError::Exists { .. })));
}

#[test]
fn a_creation_that_is_taken_back_leaves_what_was_there() {
    for options in [ALL, SINGLE, NONE] {
        let directory = tempdir_in(DISK).unwrap();
        let specs = given(directory.path());
        fs::remove_file(&specs[0].path).unwrap();
        LocalReplica::create(&specs, &new(options)).unwrap().discard().unwrap();
        assert_eq!(names(directory.path()), ["part1", "part2"]);
        assert!(specs[1..].iter().all(|spec| is_blank(&spec.path)));
        assert_eq!(bytes_at(&specs[2].path, MIB), *b"kept");
        // One that was opened is not undone.
        LocalReplica::create(&specs, &new(options)).unwrap().close().unwrap();
        open(&specs, options).unwrap().discard().unwrap();
        open(&specs, options).unwrap().close().unwrap();
    }
}
