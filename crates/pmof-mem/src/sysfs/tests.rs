use std::fs;

use super::{block_number, devdax_directory, devdax_len_bytes, fixture::Tree, probe_regions, region_above};
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
