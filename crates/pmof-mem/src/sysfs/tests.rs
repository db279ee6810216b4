use std::fs;

use super::{
    Backing, all_disks, block_backing, block_number, btrfs_members, devdax_directory, devdax_len_bytes, fixture::Tree,
    probe_regions, region_above,
};
use crate::PersistenceDomain;

#[test]
fn regions_are_listed_with_what_the_kernel_says() {
    let tree = Tree::new();
    tree.region(0, Some("memory_controller"), "nd_bus");
    tree.region(1, Some("cpu_cache"), "nd_bus");
    tree.region(2, Some(""), "nd_bus");
    tree.region(3, None, "nd_bus");
    tree.region(4, Some("memory_controller_of_tomorrow"), "nd_bus");
    tree.region(5, None, "virtio_pmem");
    fs::create_dir(tree.root().join("bus/nd/devices/namespace0.0")).unwrap();
    let regions = probe_regions(tree.root()).unwrap();
    let domains: Vec<_> = regions.iter().map(|region| region.domain).collect();
    let unknown = PersistenceDomain::Unknown;
    let known = [PersistenceDomain::MemoryController, PersistenceDomain::CpuCache];
    assert_eq!(domains, [known[0], known[1], unknown, unknown, unknown, unknown]);
    let virtio: Vec<_> = regions.iter().map(crate::RegionProbe::is_virtio).collect();
    assert_eq!(virtio, [false, false, false, false, false, true]);
    assert_eq!(regions[1].name, "region1");
}

#[test]
fn no_nd_bus_means_no_regions() {
    let empty = tempfile::tempdir().unwrap();
    assert_eq!(probe_regions(empty.path()).unwrap(), []);
}

#[test]
fn a_partition_and_a_stack_lead_to_their_regions() {
    let tree = Tree::new();
    let first = tree.block(&tree.region(0, Some("memory_controller"), "nd"), "pmem0", "259:0");
    let second = tree.block(&tree.region(1, Some("cpu_cache"), "nd"), "pmem1", "259:2");
    let partition = first.join("pmem0p1");
    fs::create_dir(&partition).unwrap();
    fs::write(partition.join("partition"), "1\n").unwrap();
    std::os::unix::fs::symlink(&partition, tree.root().join("dev/block/259:1")).unwrap();
    let names = |number| -> Vec<String> {
        let mut names: Vec<_> = block_backing(tree.root(), 259, number)
            .into_iter()
            .map(|backing| match backing {
                Backing::Region { device, region } => format!("{device} {} {}", region.name, region.domain),
                other => panic!("{other:?}"),
            })
            .collect();
        names.sort();
        names
    };
    assert_eq!(names(1), ["pmem0 region0 memory_controller"]);
    let mapper = tree.block(&tree.root().join("devices/virtual"), "dm-0", "259:9");
    Tree::stack(&mapper, &partition);
    Tree::stack(&mapper, &second);
    assert_eq!(names(9), ["pmem0 region0 memory_controller", "pmem1 region1 cpu_cache"]);
}

#[test]
fn other_disks_are_told_apart() {
    let tree = Tree::new();
    let devices = tree.root().join("devices");
    tree.block(&devices, "sda", "8:0");
    tree.block(&devices, "ram3", "1:3");
    tree.block(&devices, "zram0", "252:0");
    tree.block(&devices, "dm-7", "253:7");
    let disk = tree.block(&devices, "loop4", "7:4");
    fs::create_dir(disk.join("loop")).unwrap();
    fs::write(disk.join("loop/backing_file"), "/srv/image\n").unwrap();
    let one = |major, minor| block_backing(tree.root(), major, minor).pop().unwrap();
    assert_eq!(one(8, 0), Backing::Disk { device: "sda".into(), write_cache: "write back".into() });
    assert_eq!(one(1, 3), Backing::MemoryDisk { device: "ram3".into() });
    assert_eq!(one(252, 0), Backing::MemoryDisk { device: "zram0".into() });
    assert_eq!(one(7, 4), Backing::Loop { device: "loop4".into(), file: Some("/srv/image".into()) });
    tree.block(&devices, "nbd0", "43:0");
    let test_disk = tree.block(&devices, "sdb", "8:16");
    fs::create_dir(test_disk.join("device")).unwrap();
    fs::write(test_disk.join("device/model"), "scsi_debug      \n").unwrap();
    let silent = tree.block(&devices, "sdc", "8:32");
    fs::remove_file(silent.join("queue/write_cache")).unwrap();
    assert_eq!(one(43, 0), Backing::Served { device: "nbd0".into() });
    assert_eq!(one(8, 16), Backing::MemoryDisk { device: "sdb".into() });
    assert!(matches!(one(8, 32), Backing::Unknown { .. }));
    assert!(matches!(one(253, 7), Backing::Unknown { .. }));
    assert!(matches!(one(99, 1), Backing::Unknown { .. }));
}

#[test]
fn a_stack_that_stands_on_itself_ends() {
    let tree = Tree::new();
    let mapper = tree.block(&tree.root().join("devices"), "dm-0", "253:0");
    Tree::stack(&mapper, &mapper);
    assert!(matches!(block_backing(tree.root(), 253, 0)[..], [Backing::Unknown { .. }]));
}

#[test]
fn a_devdax_device_is_known_by_its_subsystem() {
    let tree = Tree::new();
    let region = tree.region(0, Some("cpu_cache"), "nd");
    tree.devdax(&region, "252:1", 1 << 21);
    let directory = devdax_directory(tree.root(), 252, 1).unwrap();
    assert_eq!(devdax_len_bytes(&directory), Some(1 << 21));
    let above = region_above(&directory).unwrap();
    assert_eq!((above.name.as_str(), above.domain), ("region0", PersistenceDomain::CpuCache));
    fs::remove_file(directory.join("subsystem")).unwrap();
    std::os::unix::fs::symlink("/class/mem", directory.join("subsystem")).unwrap();
    assert_eq!(devdax_directory(tree.root(), 252, 1), None);
}

#[test]
fn disks_are_found_by_the_name_that_a_mount_gives() {
    let tree = Tree::new();
    let class = tree.root().join("class/block");
    fs::create_dir_all(class.join("sda1")).unwrap();
    fs::create_dir_all(class.join("dm-3/dm")).unwrap();
    fs::write(class.join("sda1/dev"), "8:1\n").unwrap();
    fs::write(class.join("dm-3/dev"), "253:3\n").unwrap();
    fs::write(class.join("dm-3/dm/name"), "vg-home\n").unwrap();
    let number = |source| block_number(tree.root(), source);
    assert_eq!((number("/dev/sda1"), number("/dev/mapper/vg-home")), (Some((8, 1)), Some((253, 3))));
    for unknown in ["/dev/sdb", "/dev/mapper/other", "/dev/../sda1", "sda1", "server:/export"] {
        assert_eq!(number(unknown), None, "{unknown}");
    }
}

#[test]
fn every_device_of_a_btrfs_and_of_the_machine_is_named() {
    let tree = Tree::new();
    let members = tree.root().join("fs/btrfs/uuid/devices");
    for (name, number) in [("sda1", "8:1"), ("zram0", "252:0")] {
        fs::create_dir_all(members.join(name)).unwrap();
        fs::write(members.join(name).join("dev"), number).unwrap();
    }
    let mut found = btrfs_members(tree.root(), (8, 1)).unwrap();
    found.sort_unstable();
    assert_eq!(found, [(8, 1), (252, 0)]);
    assert_eq!(btrfs_members(tree.root(), (8, 2)), None);
    assert_eq!(all_disks(tree.root()), None);
    let devices = tree.root().join("devices");
    fs::create_dir(tree.root().join("block")).unwrap();
    for (name, number, sectors) in [("sda", "8:0", "2048\n"), ("zram0", "252:0", "0\n")] {
        let disk = tree.block(&devices, name, number);
        fs::write(disk.join("size"), sectors).unwrap();
        std::os::unix::fs::symlink(&disk, tree.root().join("block").join(name)).unwrap();
    }
    assert_eq!(all_disks(tree.root()).unwrap(), block_backing(tree.root(), 8, 0));
}
