use std::{fs, path::PathBuf};

use super::{is_volume, luks_id};
use crate::{
    System,
    stack::{Stack, block_stack},
    sysfs::fixture::Tree,
};

const ID: &str = "0123456789abcdef0123456789abcdef";
const ID_WITH_HYPHENS: &str = "01234567-89ab-cdef-0123-456789abcdef";
/// A volume group and a volume.
const VOLUME: &str = "LVM-EnZ0w1CN7j0sFJlLdQxVn3fgyrqRSYkC6QLpPBCdKXT2c3pzrLDgh5eM4vcuIbxL";

/// Block devices on a disk whose flushes are known, and what udev found on them. Nobody may ask for tables.
struct Host {
    tree: Tree,
    disk: PathBuf,
}

impl Host {
    fn new() -> Self {
        let tree = Tree::new();
        let disk = tree.block(&tree.root().join("devices"), "sda", "8:0");
        fs::create_dir(tree.root().join("answers")).unwrap();
        Self { tree, disk }
    }

    /// `dm-MINOR` with that uuid over `lower`.
    fn mapper(&self, minor: u32, uuid: &str, lower: &[&PathBuf]) -> PathBuf {
        let mapper =
            self.tree.block(&self.tree.root().join("devices/virtual"), &format!("dm-{minor}"), &format!("253:{minor}"));
        fs::create_dir(mapper.join("dm")).unwrap();
        fs::write(mapper.join("dm/uuid"), format!("{uuid}\n")).unwrap();
        for lower in lower {
            Tree::stack(&mapper, lower);
        }
        mapper
    }

    fn udev(&self, number: &str, text: &str) {
        fs::write(self.tree.root().join("answers").join(format!("b{number}")), text).unwrap();
    }

    fn luks(&self, number: &str) {
        self.udev(number, &format!("S:disk/x\nI:71\nE:ID_FS_UUID={ID_WITH_HYPHENS}\nE:ID_FS_TYPE=crypto_LUKS\nV:1\n"));
    }

    fn physical(&self, number: &str) {
        self.udev(number, "E:ID_FS_UUID=Xo1D\nE:ID_FS_TYPE=LVM2_member\nE:ID_FS_USAGE=raid\n");
    }

    fn stack(&self, minor: u32) -> Stack {
        let system = System::copied(self.tree.root().into(), "/proc".into(), None);
        block_stack(&system.with_answers(self.tree.root().join("answers")), (253, minor))
    }

    /// Why it is not known that flushes pass, of the topmost device that does not say.
    fn doubt(&self, minor: u32) -> Option<String> {
        let stack = self.stack(minor);
        assert!(stack.doubts.iter().all(|doubt| doubt.is_of_table), "{stack:?}");
        stack.doubts.last().map(|doubt| doubt.why.clone())
    }
}

fn luks_uuid() -> String {
    format!("CRYPT-LUKS2-{ID}-root")
}

#[test]
fn a_user_without_rights_learns_of_luks_and_lvm() {
    let host = Host::new();
    let luks = host.mapper(0, &luks_uuid(), &[&host.disk]);
    host.luks("8:0");
    assert_eq!(host.doubt(0), None);
    assert!(host.stack(0).evidence[0].contains("sda begins with its header"), "{:?}", host.stack(0).evidence);
    // LVM on LUKS, and a striped volume on a second disk too.
    let second = host.tree.block(&host.tree.root().join("devices"), "sdb", "8:16");
    host.physical("253:0");
    host.physical("8:16");
    let volume = host.mapper(1, VOLUME, &[&luks]);
    host.mapper(2, VOLUME, &[&luks, &second]);
    assert_eq!((host.doubt(1), host.doubt(2)), (None, None));
    assert_eq!(host.stack(1).evidence.len(), 2);
    // LUKS on LVM.
    host.luks("253:1");
    host.mapper(3, &format!("CRYPT-LUKS1-{ID}-home"), &[&volume]);
    assert_eq!(host.doubt(3), None);
}

#[test]
fn a_name_of_luks_is_believed_with_the_header_of_that_name_below() {
    for (uuid, found, is_sound) in [
        (luks_uuid(), format!("E:ID_FS_TYPE=crypto_LUKS\nE:ID_FS_UUID={ID_WITH_HYPHENS}\n"), true),
        // The header is elsewhere, perhaps in memory.
        (luks_uuid(), "E:ID_FS_TYPE=ext4\n".into(), false),
        (luks_uuid(), String::new(), false),
        (luks_uuid(), format!("E:ID_FS_UUID={ID_WITH_HYPHENS}\n"), false),
        (luks_uuid(), "E:ID_FS_TYPE=crypto_LUKS\n".into(), false),
        (luks_uuid(), format!("E:ID_FS_TYPE=crypto_LUKS\nE:ID_FS_UUID=f{}\n", &ID_WITH_HYPHENS[1..]), false),
        (luks_uuid(), format!("E:ID_FS_TYPE=crypto_LUKS\nE:ID_FS_UUID={ID_WITH_HYPHENS}\nE:ID_FS_TYPE=ext4\n"), false),
        (
            format!("CRYPT-PLAIN-{ID}-root"),
            format!("E:ID_FS_TYPE=crypto_LUKS\nE:ID_FS_UUID={ID_WITH_HYPHENS}\n"),
            false,
        ),
    ] {
        let host = Host::new();
        host.mapper(0, &uuid, &[&host.disk]);
        host.udev("8:0", &found);
        assert_eq!(host.doubt(0).is_none(), is_sound, "{uuid} {found}");
    }
    // On dm-integrity, which begins with no header, and anew encrypted.
    for below in ["CRYPT-SUBDEV-0123-root_dif", "CRYPT-TEMP-root-overlay"] {
        let host = Host::new();
        let lower = host.mapper(0, below, &[&host.disk]);
        host.luks("8:0");
        host.mapper(1, &luks_uuid(), &[&lower]);
        assert!(host.doubt(1).is_some(), "{below}");
    }
    let host = Host::new();
    let second = host.tree.block(&host.tree.root().join("devices"), "sdb", "8:16");
    host.luks("8:0");
    host.luks("8:16");
    host.mapper(0, &luks_uuid(), &[&host.disk, &second]);
    assert!(host.doubt(0).unwrap().contains("one device"));
}

#[test]
fn a_volume_on_parts_of_volumes_is_not_taken_for_a_linear_one() {
    for part in [
        // Origin and store of snapshots; pools, thin and VDO; caches; what stands in for a missing device.
        "-real",
        "-cow",
        "-tpool",
        "-vpool",
        "-cdata",
        "-cmeta",
        "-cvol",
        "-missing_0_0",
        // Images of mirrors and RAID, and what pvmove moves, have no suffix.
        "",
    ] {
        let host = Host::new();
        let lower = host.mapper(0, &format!("{VOLUME}{part}"), &[&host.disk]);
        host.physical("8:0");
        host.physical("253:0");
        host.mapper(1, VOLUME, &[&lower]);
        assert!(host.doubt(1).unwrap().contains("a part of a volume"), "{part}");
        // A part by itself is not one that programs see.
        assert_eq!(host.doubt(0).is_some(), !part.is_empty(), "{part}");
    }
    let host = Host::new();
    let silent = host.mapper(0, VOLUME, &[&host.disk]);
    host.physical("8:0");
    host.physical("253:0");
    host.mapper(1, VOLUME, &[&silent]);
    fs::remove_file(silent.join("dm/uuid")).unwrap();
    assert!(host.doubt(1).unwrap().contains("a part of a volume"), "it does not say whose it is");
}

#[test]
fn a_volume_is_made_of_physical_volumes() {
    for found in ["", "E:ID_FS_TYPE=ext4\n", "E:ID_FS_TYPE_NEW=LVM2_member\n", "ID_FS_TYPE=LVM2_member\n"] {
        let host = Host::new();
        host.mapper(0, VOLUME, &[&host.disk]);
        host.udev("8:0", found);
        assert!(host.doubt(0).unwrap().contains("is a physical volume"), "{found}");
    }
    let host = Host::new();
    host.mapper(0, VOLUME, &[&host.disk]);
    assert!(host.doubt(0).is_some(), "udev is not there");
}

#[test]
fn a_table_that_can_be_read_decides() {
    let host = Host::new();
    host.mapper(0, VOLUME, &[&host.disk]);
    host.physical("8:0");
    assert_eq!(host.doubt(0), None);
    for (table, is_sound) in [("linear\n", true), ("flakey\n", false), ("", false)] {
        fs::write(host.tree.root().join("answers/dm-0"), table).unwrap();
        assert_eq!(host.doubt(0).is_none(), is_sound, "{table}");
    }
}

#[test]
fn uuids_of_other_makers_say_nothing() {
    for uuid in [
        "",
        "mpath-3600508b400105e210000900000490000",
        "part1-mpath-3600508b400105e210000900000490000",
        "DMRAID-isw_dgaeae_Volume0",
        "CRYPT-VERITY-0123456789abcdef0123456789abcdef-root",
        "CRYPT-LUKS2-OPAL-0123456789abcdef0123456789abcdef-root",
        "stratis-1-private-0-flex-mdv",
        "lvm-EnZ0w1CN7j0sFJlLdQxVn3fgyrqRSYkC6QLpPBCdKXT2c3pzrLDgh5eM4vcuIbxL",
    ] {
        let host = Host::new();
        host.mapper(0, uuid, &[&host.disk]);
        host.physical("8:0");
        assert!(host.doubt(0).unwrap().contains("not of LUKS or of an LVM volume"), "{uuid}");
    }
    assert!(is_volume(VOLUME));
    for uuid in [&VOLUME[..67], &format!("{VOLUME}A"), &VOLUME.replace('E', "-"), &VOLUME[4..]] {
        assert!(!is_volume(uuid), "{uuid}");
    }
    assert_eq!(luks_id(&luks_uuid()), Some(ID));
    for uuid in [format!("CRYPT-LUKS2-{ID}"), format!("CRYPT-LUKS2-{ID}-"), format!("CRYPT-LUKS3-{ID}-root")] {
        assert_eq!(luks_id(&uuid), None, "{uuid}");
    }
    assert_eq!(luks_id(&format!("CRYPT-LUKS2-{}-root", &ID[1..])), None);
}
