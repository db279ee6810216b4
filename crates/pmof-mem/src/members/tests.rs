use std::{fs, os::fd::AsFd};

use super::{BtrfsId, btrfs_id, btrfs_members, uuid_text};
use crate::{System, mounts::Mount, sysfs::fixture::Tree};

fn mount(source: &str) -> Mount {
    Mount {
        id: "1".into(),
        device: (0, 40),
        root: "/".into(),
        point: "/mnt".into(),
        file_system: "btrfs".into(),
        source: source.into(),
        options: Vec::new(),
    }
}

#[test]
fn every_device_of_a_btrfs_is_named() {
    let tree = Tree::new();
    let directory = tree.root().join("fs/btrfs/uuid");
    for (name, number) in [("sda1", "8:1"), ("zram0", "252:0")] {
        for place in [directory.join("devices"), tree.root().join("class/block")] {
            fs::create_dir_all(place.join(name)).unwrap();
            fs::write(place.join(name).join("dev"), number).unwrap();
        }
    }
    let system = System::copied(tree.root().into(), "/proc".into(), None);
    let members = |asked: Option<&BtrfsId>| {
        let mut numbers = btrfs_members(&system, &mount("/dev/sda1"), asked).ok()?.numbers;
        numbers.sort_unstable();
        Some(numbers)
    };
    let all = Some(vec![(8, 1), (252, 0)]);
    assert_eq!(members(None), all);
    let id = |uuid: &str, device_count| BtrfsId { uuid: uuid.into(), device_count };
    assert_eq!(members(Some(&id("uuid", 2))), all);
    assert_eq!(members(Some(&id("uuid", 3))), None, "one is not named");
    assert_eq!(members(Some(&id("other", 2))), None);
    assert!(btrfs_members(&system, &mount("/dev/sdb"), None).is_err());
    fs::create_dir_all(directory.join("allocation/metadata/raid5")).unwrap();
    assert_eq!(members(None), None, "parity");
}

#[test]
fn other_file_systems_have_no_identity_of_btrfs() {
    let file = tempfile::tempfile_in("/dev/shm").unwrap();
    assert!(btrfs_id(file.as_fd()).is_err());
}

#[test]
fn an_identity_of_btrfs_is_written_as_sysfs_writes_it() {
    let uuid = *b"\x01\x23\x45\x67\x89\xab\xcd\xef\x0f\xf0\x5a\xa5\x00\xff\x10\x42";
    assert_eq!(uuid_text(&uuid), "01234567-89ab-cdef-0ff0-5aa500ff1042");
}
