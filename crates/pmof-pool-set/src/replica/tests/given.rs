//! Parts that were there before the pool: made beforehand for their space, or to have it in one piece.

use super::*;

/// Three files as the set wants them: of zeros, all a hole, and of space without bytes.
fn given(directory: &Path) -> Vec<PartSpec> {
    let specs = specs(directory, "part");
    let len = |index: usize| match specs[index].size {
        PartSize::Bytes(len_bytes) => len_bytes,
        PartSize::Auto => unreachable!(),
    };
    fs::write(&specs[0].path, vec![0; len(0) as usize]).unwrap();
    fs::File::create(&specs[1].path).unwrap().set_len(len(1)).unwrap();
    let file = fs::File::create(&specs[2].path).unwrap();
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, len(2)).unwrap();
    specs
}

fn is_blank(path: &Path) -> bool {
    fs::read(path).unwrap().iter().all(|byte| *byte == 0)
}

#[test]
fn files_of_zeros_become_parts() {
    for options in [ALL, SINGLE, NONE] {
        let directory = tempdir_in(DISK).unwrap();
        let specs = given(directory.path());
        let replica = LocalReplica::create(&specs, &new(options)).unwrap();
        replica.memory().store(5 * MIB, b"kept").unwrap();
        replica.close().unwrap();
        let metadata = fs::metadata(&specs[1].path).unwrap();
        assert!(metadata.blocks() * 512 >= metadata.len(), "its holes are filled");
        open(&specs, options).unwrap().close().unwrap();
        // It is a pool now, of a set without headers too: something is in it.
        let before = specs.iter().map(|spec| fs::read(&spec.path).unwrap()).collect::<Vec<_>>();
        let refused = LocalReplica::create(&specs, &new(options)).unwrap_err();
        assert!(matches!(refused, PoolSetError::Exists { .. }), "{refused}");
        assert!(specs.iter().map(|spec| fs::read(&spec.path).unwrap()).eq(before));
    }
}

/// Disk images, file systems and parts without a header begin with zeros; the last byte tells as much as the first.
#[test]
fn a_file_with_a_byte_behind_the_zeros_is_somebodys() {
    for options in [ALL, SINGLE, NONE] {
        for (index, offset) in [(0, MIB), (1, 4096), (2, u64::MAX)] {
            let directory = tempdir_in(DISK).unwrap();
            let specs = given(directory.path());
            let path = &specs[index].path;
            let offset = offset.min(fs::metadata(path).unwrap().len() - 1);
            flip(path, offset);
            let before = fs::read(path).unwrap();
            let refused = LocalReplica::create(&specs, &new(options)).unwrap_err();
            let told = format!("it has zeros for a header and holds something behind them, from byte {offset} on");
            assert!(
                matches!(&refused, PoolSetError::Exists { path: told_path, found } if told_path == path && *found == told),
                "{refused}"
            );
            assert!(fs::read(path).unwrap() == before);
            assert!(specs.iter().enumerate().all(|(at, spec)| at == index || is_blank(&spec.path)));
        }
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

/// A part without a header is somebody's too if something is where a header would be.
#[test]
fn a_file_that_is_no_blank_part_is_not_taken_for_one_without_a_header() {
    let directory = tempdir_in(DISK).unwrap();
    let specs = given(directory.path());
    flip(&specs[1].path, 100);
    let before = fs::read(&specs[1].path).unwrap();
    let error = LocalReplica::create(&specs, &new(SINGLE)).unwrap_err();
    assert!(matches!(&error, PoolSetError::Exists { path, .. } if *path == specs[1].path), "{error}");
    assert!(fs::read(&specs[1].path).unwrap() == before && is_blank(&specs[0].path));
}

/// Open parts are in use, as in librpmem; that they exist comes second.
#[test]
fn parts_in_use_are_busy_and_not_only_there() {
    let directory = tempdir_in(DISK).unwrap();
    let specs = made(directory.path(), "part", ALL);
    for access in [OpenFor::Read, OpenFor::Write] {
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
        let replica = LocalReplica::create(&specs, &new(options)).unwrap();
        replica.memory().store(3 * MIB, b"not for long").unwrap();
        replica.discard().unwrap();
        assert_eq!(names(directory.path()), ["part1", "part2"]);
        assert!(specs[1..].iter().all(|spec| is_blank(&spec.path)));
        // One that was opened is not undone.
        LocalReplica::create(&specs, &new(options)).unwrap().close().unwrap();
        open(&specs, options).unwrap().discard().unwrap();
        open(&specs, options).unwrap().close().unwrap();
    }
}
