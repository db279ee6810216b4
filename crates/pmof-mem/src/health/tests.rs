#![expect(clippy::single_range_in_vec_init, reason = "bad blocks are lists of ranges, often of one")]

use std::{fs, io::Write as _, os::fd::AsFd as _, os::unix::fs::FileExt as _, path::Path};

use tempfile::tempdir_in;

use super::{Modules, bad_blocks, bad_blocks_of_device, bad_in_file, modules_below};
use crate::{
    System,
    extents::{Extent, extents},
    judge::magic_of,
    sysfs::fixture::Tree,
};

const DISK: &str = env!("CARGO_MANIFEST_DIR");

fn system(tree: &Tree) -> System {
    System::copied(tree.root().into(), "/proc".into(), None)
}

/// A file, and a tree in which its disk lies in region 0.
fn file_on_persistent_memory() -> (tempfile::TempDir, fs::File, Tree, std::path::PathBuf) {
    let directory = tempdir_in(DISK).unwrap();
    let mut file = fs::File::create_new(directory.path().join("part")).unwrap();
    file.write_all(&vec![1; 1 << 20]).unwrap();
    file.sync_all().unwrap();
    let tree = Tree::new();
    let region = tree.region(0, Some("memory_controller"), "nd_pmem");
    let device = rustix::fs::fstat(&file).unwrap().st_dev;
    let number = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    let disk = tree.block(&region, "pmem0", &number);
    (directory, file, tree, disk)
}

fn module(tree: &Tree, number: u32, dirty: &str, identity: &str) {
    let directory = tree.root().join(format!("devices/bus0/ndbus0/nmem{number}/nfit"));
    fs::create_dir_all(&directory).unwrap();
    fs::write(directory.join("dirty_shutdown"), format!("{dirty}\n")).unwrap();
    fs::write(directory.join("id"), format!("{identity}\n")).unwrap();
}

#[test]
fn unsafe_shutdowns_are_summed_over_the_modules() {
    let (_directory, file, tree, disk) = file_on_persistent_memory();
    let region = tree.root().join("devices/bus0/ndbus0/region0");
    assert_eq!(modules_below(&system(&tree), file.as_fd()), Modules::default(), "a module that says nothing");
    module(&tree, 0, "3", "8089-a2-1749-0000000b");
    module(&tree, 10, "4", "8089-a2-1749-00000aaa");
    fs::write(region.join("mappings"), "2\n").unwrap();
    fs::write(region.join("mapping0"), "nmem10,0,4096,0\n").unwrap();
    fs::write(region.join("mapping1"), "nmem0,0,4096,0\n").unwrap();
    let expected = Modules {
        unsafe_shutdowns: 7,
        identities: vec!["8089-a2-1749-0000000b".into(), "8089-a2-1749-00000aaa".into()],
    };
    assert_eq!(modules_below(&system(&tree), file.as_fd()), expected);
    fs::write(disk.join("partition"), "1\n").unwrap();
    assert_eq!(modules_below(&system(&tree), file.as_fd()), Modules::default(), "PMDK knows whole disks only");
}

#[test]
fn bad_blocks_of_the_disk_are_those_of_the_file_where_it_lies_on_them() {
    let (directory, file, tree, disk) = file_on_persistent_memory();
    let path = directory.path().join("part");
    let bad = || bad_blocks(&system(&tree), file.as_fd(), &path).unwrap();
    assert_eq!(bad(), []);
    let extents = match extents(file.as_fd()) {
        Ok(extents) if !extents.is_empty() => extents,
        other => return skip_report::skipped!("the file system here names no extents ({other:?})"),
    };
    assert_eq!(extents.iter().map(|extent| extent.len_bytes).sum::<u64>(), 1 << 20);
    let first = extents[0];
    let sector = first.physical / 512;
    fs::write(disk.join("badblocks"), format!("{} 8\n", sector + 8)).unwrap();
    assert_eq!(bad(), [first.logical + 4096..first.logical + 8192]);
    let far = extents.iter().map(|extent| extent.physical + extent.len_bytes).max().unwrap() / 512;
    fs::write(disk.join("badblocks"), format!("{far} 1\n")).unwrap();
    assert_eq!(bad(), []);
}

/// More pieces than are asked for at a time, each with a hole before it; then some that were never written.
#[test]
fn every_piece_of_a_file_is_found() {
    const PIECES: u64 = 150;
    let directory = tempdir_in(DISK).unwrap();
    let file = fs::File::create_new(directory.path().join("part")).unwrap();
    for piece in 0..PIECES {
        file.write_all_at(&[1; 4096], piece * 12_288 + 4096).unwrap();
    }
    file.sync_all().unwrap();
    let is_known = [0xef53, 0x5846_5342].contains(&magic_of(file.as_fd()).unwrap());
    if !is_known {
        return skip_report::skipped!("the file system here is neither ext4 nor XFS, which name their extents");
    }
    let found = extents(file.as_fd()).unwrap();
    let expected: Vec<_> = (0..PIECES).map(|piece| (piece * 12_288 + 4096, 4096)).collect();
    assert_eq!(found.iter().map(|extent| (extent.logical, extent.len_bytes)).collect::<Vec<_>>(), expected);
    let mut places: Vec<_> = found.iter().map(|extent| extent.physical).collect();
    places.sort_unstable();
    assert!(places.windows(2).all(|two| two[0] + 4096 <= two[1]), "no two are in one place: {places:?}");
    // What is still in the page cache has no place yet.
    file.write_all_at(&[1; 4096], PIECES * 12_288 + 4096).unwrap();
    assert!(extents(file.as_fd()).unwrap().iter().all(|extent| extent.physical != 0));
}

#[test]
fn ranges_are_cut_to_the_extents() {
    let extent = |logical, physical, len_bytes| Extent { logical, physical, len_bytes };
    let extents = [extent(0, 10_000, 4096), extent(4096, 50_000, 8192)];
    for (bad, start, expected) in [
        (0..10_000, 0, vec![]),
        (0..10_001, 0, vec![0..1]),
        (9_000..60_000, 0, vec![0..4096, 4096..12_288]),
        (50_512..51_024, 0, vec![4608..5120]),
        (50_512..51_024, 512, vec![4096..4608]),
    ] {
        assert_eq!(bad_in_file(&[bad], start, &extents), expected);
    }
}

#[test]
fn bad_blocks_of_a_devdax_device_are_those_of_its_place_in_the_region() {
    let tree = Tree::new();
    let region = tree.region(0, Some("memory_controller"), "nd_pmem");
    let device = tree.devdax(&region, "250:1", 1 << 20);
    assert_eq!(bad_blocks_of_device(&device), []);
    fs::write(region.join("badblocks"), "8 1\n4096 2\n").unwrap();
    assert_eq!(bad_blocks_of_device(&device), [4096..4608, 2_097_152..2_098_176], "where it begins is not known");
    fs::write(region.join("resource"), "0x100000000\n").unwrap();
    fs::write(device.join("resource"), "0x1001ffc00\n").unwrap();
    assert_eq!(bad_blocks_of_device(&device), [1024..2048]);
    assert_eq!(bad_blocks_of_device(Path::new("/nothing")), []);
}
