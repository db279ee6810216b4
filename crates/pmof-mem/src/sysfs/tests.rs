use std::fs;

use super::{
    ATTRIBUTE_MAX_BYTES, attribute, block_number, devdax_align_bytes, devdax_directory, devdax_len_bytes,
    fixture::Tree, probe_regions, region_above,
};
use crate::{MemError, PersistenceDomain};

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
    // One that cannot be listed is no empty one.
    fs::create_dir_all(empty.path().join("bus/nd")).unwrap();
    fs::write(empty.path().join("bus/nd/devices"), "no directory").unwrap();
    assert!(matches!(probe_regions(empty.path()), Err(MemError::Io { call: "readdir", .. })));
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
    // A partition's directory lies in its disk's too, which no path of /dev says.
    fs::create_dir_all(class.join("sda/sda1")).unwrap();
    fs::write(class.join("sda/sda1/dev"), "8:1\n").unwrap();
    for unknown in ["/dev/sdb", "/dev/mapper/other", "/dev/../sda1", "/dev/sda/sda1", "sda1", "server:/export"] {
        assert_eq!(number(unknown), None, "{unknown}");
    }
}

/// CXL names its regions alike. Persistence is an attribute of the nd region of the bridge, and of nothing else.
#[test]
fn a_region_of_cxl_is_no_nd_region() {
    let tree = Tree::new();
    for place in ["devices/root0/decoder0.0/region0/dax_region0/dax0.0", "devices/ndbus0/nmem0/dax0.0"] {
        let device = tree.root().join(place);
        fs::create_dir_all(&device).unwrap();
        assert_eq!(region_above(&device), None, "{place}");
    }
    let of_nd = tree.region(0, Some("cpu_cache"), "nd").join("dax0.0");
    assert!(region_above(&of_nd).is_some());
}

#[test]
fn mappings_of_devdax_are_aligned_as_the_kernel_says() {
    let tree = Tree::new();
    let device = tree.devdax(&tree.region(0, None, "nd"), "252:0", 1 << 30);
    let page = rustix::param::page_size() as u64;
    assert_eq!(devdax_align_bytes(&device), page);
    for (text, align_bytes) in
        [("2097152\n", 1 << 21), ("1073741824\n", 1 << 30), ("0\n", page), ("3\n", page), ("", page)]
    {
        fs::write(device.join("align"), text).unwrap();
        assert_eq!(devdax_align_bytes(&device), align_bytes, "{text:?}");
    }
}

#[test]
fn an_attribute_is_some_text_and_not_too_long() {
    let directory = tempfile::tempdir().unwrap();
    let longest = "a".repeat(ATTRIBUTE_MAX_BYTES as usize);
    for (text, expected) in [
        ("", None),
        ("\n", Some("")),
        ("write back\n", Some("write back")),
        (longest.as_str(), Some(longest.as_str())),
        (&format!("{longest}a"), None),
        (&format!("{longest}{longest}"), None),
    ] {
        fs::write(directory.path().join("said"), text).unwrap();
        assert_eq!(attribute(directory.path(), "said").as_deref(), expected, "{} bytes", text.len());
    }
    fs::write(directory.path().join("said"), b"\xff\n").unwrap();
    assert_eq!(attribute(directory.path(), "said"), None, "no text");
    assert_eq!(attribute(directory.path(), "nothing"), None);
}
