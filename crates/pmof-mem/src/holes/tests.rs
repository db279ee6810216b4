use std::{
    fs,
    ops::Range,
    os::fd::AsFd as _,
    path::{Path, PathBuf},
};

use proptest::prelude::*;
use tempfile::{TempDir, tempdir_in};

use super::{next_in_file, tells_holes};
use crate::{FilePart, Medium as _, Memory, NewFile};

const PAGE: u64 = 4096;
const TMPFS: &str = "/dev/shm";
const DISK: &str = env!("CARGO_MANIFEST_DIR");
const PART_PAGES: u64 = 200;

/// New files as one memory, without the first page of each.
fn parts(parent: &str, count: usize) -> (TempDir, Vec<PathBuf>, Memory) {
    let directory = tempdir_in(parent).unwrap();
    let paths: Vec<_> = (0..count).map(|index| directory.path().join(format!("part{index}"))).collect();
    let part = |path: &PathBuf| {
        NewFile::create(path, PART_PAGES * PAGE).unwrap().keep();
        let file = fs::File::options().read(true).write(true).open(path).unwrap().into();
        FilePart { file, path: path.clone(), file_offset: PAGE, len_bytes: (PART_PAGES - 1) * PAGE }
    };
    let memory = Memory::concatenate(paths.iter().map(part).collect(), true, None).unwrap();
    (directory, paths, memory)
}

fn data(memory: &Memory) -> Vec<Range<u64>> {
    let mut found: Vec<Range<u64>> = Vec::new();
    while let Some(range) = memory.next_data(found.last().map_or(0, |last| last.end)).unwrap() {
        assert!(range.start < range.end && range.end <= memory.len_bytes(), "{range:?}");
        found.push(range);
    }
    found
}

/// Whether holes are known where the tests lie.
fn knows_holes(path: &Path) -> bool {
    let knows = tells_holes(fs::File::open(path).unwrap().as_fd(), 0);
    if !knows {
        skip_report::skipped!("the file system of {} is not one that tells holes", path.display());
    }
    knows
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, ..ProptestConfig::default() })]

    /// Before it is written to the disk, after, and when the page cache was dropped.
    #[test]
    fn no_stored_byte_lies_in_a_hole(
        count in 1_usize..4,
        stores in prop::collection::vec((0_u64..(PART_PAGES - 1) * PAGE, 1_usize..10_000), 0..12),
    ) {
        for parent in [TMPFS, DISK] {
            let (_directory, _paths, memory) = parts(parent, count);
            let mut stored = vec![0; memory.len_bytes() as usize];
            for (index, (offset, len)) in stores.iter().enumerate() {
                let offset = offset + (index % count) as u64 * (PART_PAGES - 1) * PAGE;
                let len = (*len).min((memory.len_bytes() - offset) as usize);
                memory.store(offset, &vec![7; len]).unwrap();
                stored[offset as usize..][..len].fill(7);
            }
            for round in 0..3 {
                let mut holes = stored.clone();
                for range in data(&memory) {
                    holes[range.start as usize..range.end as usize].fill(0);
                }
                prop_assert!(holes.iter().all(|byte| *byte == 0), "{parent}, round {round}");
                if round == 0 {
                    memory.write_back(0, memory.len_bytes()).unwrap();
                    memory.fence().unwrap();
                } else {
                    memory.settle().unwrap();
                }
            }
        }
    }
}

#[test]
fn a_new_file_is_one_hole_until_something_is_stored() {
    for parent in [TMPFS, DISK] {
        for count in [1, 3] {
            let (_directory, paths, memory) = parts(parent, count);
            if !knows_holes(&paths[0]) {
                continue;
            }
            assert_eq!(memory.next_data(0).unwrap(), None, "{parent}");
            let offset = (PART_PAGES - 1) * PAGE * count as u64 - 5 * PAGE;
            memory.store(offset, b"x").unwrap();
            let found = memory.next_data(0).unwrap().unwrap();
            assert!(found.contains(&offset), "{found:?}");
            // Read ahead around the page is in the cache and counts as data, until it is dropped.
            memory.settle().unwrap();
            let found = memory.next_data(0).unwrap().unwrap();
            assert!(found.contains(&offset), "{found:?}");
            assert!(found.end - found.start <= 64 * PAGE, "{found:?}");
            assert_eq!(memory.next_data(memory.len_bytes()).unwrap(), None);
            memory.next_data(memory.len_bytes() + 1).unwrap_err();
        }
    }
}

#[test]
fn what_does_not_tell_is_data() {
    let memory = Memory::anonymous(10 * PAGE).unwrap();
    assert_eq!(memory.next_data(PAGE).unwrap(), Some(PAGE..10 * PAGE));
    // Devices lie on devtmpfs, which tells the holes of its files.
    let device = fs::File::open("/dev/zero").unwrap();
    assert_eq!(next_in_file(device.as_fd(), PAGE..9 * PAGE), Some(PAGE..9 * PAGE));
    let process = fs::File::open("/proc/self/status").unwrap();
    assert_eq!(next_in_file(process.as_fd(), 0..9), Some(0..9));
}

/// Bytes behind its end cannot be read: they are not zero.
#[test]
fn a_file_that_was_cut_short_has_no_holes() {
    for parent in [TMPFS, DISK] {
        let (_directory, paths, memory) = parts(parent, 2);
        fs::File::options().write(true).open(&paths[1]).unwrap().set_len(20 * PAGE).unwrap();
        let second = (PART_PAGES - 1) * PAGE;
        let found = memory.next_data(second).unwrap();
        assert_eq!(found, Some(second..memory.len_bytes()), "{parent}");
    }
}
