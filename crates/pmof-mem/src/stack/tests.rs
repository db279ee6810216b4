use std::{fs, os::unix::fs::symlink, path::PathBuf};

use super::{Backing, Stack, block_stack};
use crate::{System, sysfs::fixture::Tree};

fn system(tree: &Tree) -> System {
    System::copied(tree.root().into(), "/proc".into(), None).with_answers(tree.root().join("answers"))
}

fn stack(tree: &Tree, major: u32, minor: u32) -> Stack {
    block_stack(&system(tree), (major, minor))
}

fn doubts(stack: &Stack) -> Vec<&str> {
    stack.doubts.iter().map(|doubt| doubt.why.as_str()).collect()
}

/// A device-mapper device over `lower`, mapped by `targets`.
fn mapper(tree: &Tree, lower: &[&PathBuf], targets: &str) -> PathBuf {
    let mapper = tree.block(&tree.root().join("devices/virtual"), "dm-0", "253:0");
    fs::create_dir(mapper.join("dm")).unwrap();
    for lower in lower {
        Tree::stack(&mapper, lower);
    }
    fs::create_dir(tree.root().join("answers")).unwrap();
    fs::write(tree.root().join("answers/dm-0"), targets).unwrap();
    mapper
}

#[test]
fn a_partition_and_a_stack_lead_to_their_regions() {
    let tree = Tree::new();
    let first = tree.block(&tree.region(0, Some("memory_controller"), "nd"), "pmem0", "259:0");
    let second = tree.block(&tree.region(1, Some("cpu_cache"), "nd"), "pmem1", "259:2");
    let partition = first.join("pmem0p1");
    fs::create_dir(&partition).unwrap();
    fs::write(partition.join("partition"), "1\n").unwrap();
    symlink(&partition, tree.root().join("dev/block/259:1")).unwrap();
    let names = |number| -> Vec<String> {
        let mut names: Vec<_> = stack(&tree, 259, number)
            .leaves
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
fn other_disks_are_distinguished() {
    let tree = Tree::new();
    let devices = tree.root().join("devices");
    tree.block(&devices, "sda", "8:0");
    tree.block(&devices, "ram3", "1:3");
    tree.block(&devices, "zram0", "252:0");
    tree.block(&devices, "dm-7", "253:7");
    let disk = tree.block(&devices, "loop4", "7:4");
    fs::create_dir(disk.join("loop")).unwrap();
    fs::write(disk.join("loop/backing_file"), "/srv/image\n").unwrap();
    let one = |major, minor| stack(&tree, major, minor).leaves.pop().unwrap();
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
fn a_stack_that_contains_itself_ends() {
    let tree = Tree::new();
    let mapper = tree.block(&tree.root().join("devices"), "dm-0", "253:0");
    Tree::stack(&mapper, &mapper);
    assert!(matches!(stack(&tree, 253, 0).leaves[..], [Backing::Unknown { .. }]));
}

#[test]
fn every_layer_has_to_pass_flushes_on() {
    let tree = Tree::new();
    let disk = tree.block(&tree.root().join("devices"), "sda", "8:0");
    let mapper = mapper(&tree, &[&disk], "linear\n");
    assert_eq!(doubts(&stack(&tree, 253, 0)), [""; 0]);
    fs::write(mapper.join("queue/write_cache"), "write through\n").unwrap();
    assert!(doubts(&stack(&tree, 253, 0))[0].contains("write through"));
    // Below is no cache either, and the driver confirms it.
    fs::write(disk.join("queue/write_cache"), "write through\n").unwrap();
    assert!(!doubts(&stack(&tree, 253, 0)).is_empty(), "the disk's driver was not heard");
    let word = disk.join("device/scsi_disk/0:0:0:0");
    fs::create_dir_all(&word).unwrap();
    fs::write(word.join("cache_type"), "write through\n").unwrap();
    assert_eq!(doubts(&stack(&tree, 253, 0)), [""; 0]);
    fs::remove_file(mapper.join("queue/write_cache")).unwrap();
    assert!(!doubts(&stack(&tree, 253, 0)).is_empty());
}

#[test]
fn tables_of_device_mapper_are_asked_for() {
    for (targets, is_sound) in [
        ("linear\n", true),
        ("linear\nstriped\n", true),
        ("crypt with a LUKS header\n", true),
        ("crypt\n", false),
        ("linear\nzero\n", false),
        ("snapshot\n", false),
        ("flakey\n", false),
        ("\n", false),
    ] {
        let tree = Tree::new();
        let disk = tree.block(&tree.root().join("devices"), "sda", "8:0");
        mapper(&tree, &[&disk], targets);
        let found = stack(&tree, 253, 0);
        assert_eq!(found.doubts.is_empty(), is_sound, "{targets}: {found:?}");
        assert!(found.doubts.iter().all(|doubt| doubt.is_of_table));
    }
    let tree = Tree::new();
    let disk = tree.block(&tree.root().join("devices"), "sda", "8:0");
    mapper(&tree, &[&disk], "linear\n");
    let silent = System::copied(tree.root().into(), "/proc".into(), None);
    assert!(!block_stack(&silent, (253, 0)).doubts.is_empty(), "nobody was asked");
}

#[test]
fn arrays_are_sound_by_their_level_and_state() {
    let whole = [("level", "raid1"), ("metadata_version", "1.2"), ("degraded", "0")];
    let five = [("level", "raid5"), ("metadata_version", "1.2"), ("degraded", "0")];
    let with = |base: [(&'static str, &'static str); 3], name: &'static str, value: &'static str| {
        let mut all = base.to_vec();
        all.retain(|(other, _)| *other != name);
        all.push((name, value));
        all
    };
    for (attributes, is_sound) in [
        (whole.to_vec(), true),
        (with(whole, "degraded", "1"), true),
        (with(whole, "metadata_version", "none"), false),
        (with(whole, "bitmap/backlog", "256"), false),
        (with(whole, "level", "multipath"), false),
        (five.to_vec(), true),
        (with(five, "degraded", "1"), false),
        ([with(five, "degraded", "1"), vec![("consistency_policy", "journal")]].concat(), true),
    ] {
        let tree = Tree::new();
        let devices = tree.root().join("devices");
        let array = tree.block(&devices, "md127", "9:127");
        Tree::stack(&array, &tree.block(&devices, "sda", "8:0"));
        for (name, value) in &attributes {
            let path = array.join("md").join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{value}\n")).unwrap();
        }
        let found = stack(&tree, 9, 127);
        assert_eq!(found.doubts.is_empty(), is_sound, "{attributes:?}: {found:?}");
    }
    let tree = Tree::new();
    let devices = tree.root().join("devices");
    let other = tree.block(&devices, "bcache0", "251:0");
    Tree::stack(&other, &tree.block(&devices, "sda", "8:0"));
    assert!(!stack(&tree, 251, 0).doubts.is_empty(), "a layer that is not known");
}

#[test]
fn disks_of_fabrics_and_of_the_kernel_itself_are_not_this_machines() {
    let (disk, served, unknown) = ("disk", "served", "unknown");
    for (parent, name, transport, kind) in [
        ("pci0000:00/0000:00:1f.2/ata1/host0/target0:0:0/0:0:0:0", "sda", None, disk),
        ("platform/host6/session1/target6:0:0/6:0:0:0", "sda", None, served),
        ("pci0000:00/0000:00:03.0/host2/rport-2:0-0/target2:0:0/2:0:0:0", "sda", None, served),
        ("pseudo_0/adapter0/host0/target0:0:0/0:0:0:0", "sda", None, served),
        ("tcm_loop_0/tcm_loop_adapter_0/host3/target3:0:1/3:0:1:0", "sda", None, served),
        ("pci0000:00/0000:00:04.0/nvme", "nvme0n1", Some("pcie"), disk),
        ("virtual/nvme-fabrics/ctl", "nvme0n1", Some("tcp"), served),
        ("virtual/nvme-fabrics/ctl", "nvme0n1", Some("loop"), served),
        ("pci0000:00/0000:00:04.0/nvme", "nvme0n1", None, unknown),
        ("pci0000:00/0000:00:02.0/virtio1", "vda", None, disk),
        ("virtual", "zd0", None, unknown),
        ("virtual", "sda", None, unknown),
        ("pci0000:00", "etherd!e1.0", None, unknown),
        ("pci0000:00", "sd", None, unknown),
        ("pci0000:00", "sd1", None, unknown),
    ] {
        let tree = Tree::new();
        let place = tree.block(&tree.root().join("devices").join(parent), name, "8:0");
        if let Some(transport) = transport {
            fs::write(place.parent().unwrap().join("transport"), format!("{transport}\n")).unwrap();
        }
        let found = match stack(&tree, 8, 0).leaves.pop().unwrap() {
            Backing::Disk { .. } => disk,
            Backing::Served { .. } => served,
            Backing::Unknown { .. } => unknown,
            other => panic!("{other:?}"),
        };
        assert_eq!(found, kind, "{parent}/{name}");
    }
}

#[test]
fn every_path_of_an_nvme_subsystem_counts() {
    let tree = Tree::new();
    let subsystem = tree.root().join("devices/virtual/nvme-subsystem/nvme-subsys0");
    let disk = tree.block(&subsystem, "nvme0n1", "259:0");
    let place = disk.parent().unwrap();
    let is_disk = || matches!(stack(&tree, 259, 0).leaves[..], [Backing::Disk { .. }]);
    assert!(!is_disk(), "no controller says how it is reached");
    for (name, transport) in [("nvme0", "pcie"), ("nvme1", "pcie")] {
        fs::create_dir(place.join(name)).unwrap();
        fs::write(place.join(name).join("transport"), format!("{transport}\n")).unwrap();
    }
    assert!(is_disk());
    fs::write(place.join("nvme1/transport"), "rdma\n").unwrap();
    assert!(!is_disk());
}

#[test]
fn a_write_through_that_the_driver_does_not_confirm_is_not_believed() {
    for (name, word, text, is_believed) in [
        ("vda", "cache_type", "write through", true),
        ("vda", "cache_type", "write back", false),
        ("vda", "nothing", "", false),
        ("sda", "device/scsi_disk/0:0:0:0/cache_type", "write through", true),
        ("sda", "device/scsi_disk/0:0:0:0/cache_type", "write back", false),
        ("sda", "nothing", "", false),
        ("mmcblk0", "queue/fua", "0", false),
        ("nvme0n1", "queue/fua", "0", true),
        ("nvme0n1", "queue/fua", "1", false),
        ("nvme0n1", "nothing", "", false),
    ] {
        let tree = Tree::new();
        let disk = tree.block(&tree.root().join("devices/pci0"), name, "8:0");
        fs::write(disk.parent().unwrap().join("transport"), "pcie\n").unwrap();
        fs::write(disk.join("queue/write_cache"), "write through\n").unwrap();
        fs::create_dir_all(disk.join(word).parent().unwrap()).unwrap();
        fs::write(disk.join(word), format!("{text}\n")).unwrap();
        let is_disk = matches!(stack(&tree, 8, 0).leaves[..], [Backing::Disk { .. }]);
        assert_eq!(is_disk, is_believed, "{name} {word} {text}");
    }
}

/// The block translation table has no cache; of a namespace without one, the kernel has to say that it flushes it.
#[test]
fn a_namespace_is_flushed_unless_it_is_a_table_of_sectors() {
    for (name, write_cache, is_sound) in [
        ("pmem0", Some("write back"), true),
        ("pmem0", Some("write through"), false),
        ("pmem0", None, false),
        ("pmem0s", Some("write back"), true),
        ("pmem0s", Some("write through"), true),
        ("pmem0s", Some("none"), false),
        ("pmem0s", None, false),
    ] {
        let tree = Tree::new();
        let disk = tree.block(&tree.region(0, Some("memory_controller"), "nd"), name, "259:0");
        match write_cache {
            Some(text) => fs::write(disk.join("queue/write_cache"), format!("{text}\n")).unwrap(),
            None => fs::remove_file(disk.join("queue/write_cache")).unwrap(),
        }
        assert_eq!(stack(&tree, 259, 0).doubts.is_empty(), is_sound, "{name} {write_cache:?}");
    }
}

#[test]
fn layers_that_cannot_be_listed_are_not_taken_for_none() {
    let tree = Tree::new();
    let disk = tree.block(&tree.root().join("devices"), "sda", "8:0");
    assert!(matches!(stack(&tree, 8, 0).leaves[..], [Backing::Disk { .. }]));
    fs::write(disk.join("slaves"), "no directory").unwrap();
    assert!(matches!(stack(&tree, 8, 0).leaves[..], [Backing::Unknown { .. }]));
}
