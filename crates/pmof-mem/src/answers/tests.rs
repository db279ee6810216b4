use std::{fs, os::fd::AsFd, os::unix::fs::symlink, path::Path};

use rustix::fs::{FileType, Mode, OFlags};

use super::{
    Answers, DM_HEADER_BYTES, DM_TARGET_BYTES, FileId, Found, decode_number, encode_number, is_header_of, open_device,
    open_regular, parse_table,
};
use crate::sysfs::{attribute, parse_number};

/// The answer to `DM_TABLE_STATUS` about these targets.
fn table(targets: &[&str]) -> Vec<u8> {
    let mut bytes = vec![0; DM_HEADER_BYTES];
    bytes[16..20].copy_from_slice(&(DM_HEADER_BYTES as u32).to_le_bytes());
    bytes[20..24].copy_from_slice(&(targets.len() as u32).to_le_bytes());
    for target in targets {
        let mut spec = vec![0; DM_TARGET_BYTES + 8];
        let next = bytes.len() - DM_HEADER_BYTES + spec.len();
        spec[20..24].copy_from_slice(&(next as u32).to_le_bytes());
        spec[24..24 + target.len()].copy_from_slice(target.as_bytes());
        bytes.extend(spec);
    }
    bytes
}

#[test]
fn tables_are_taken_apart() {
    assert_eq!(parse_table(&table(&["linear", "zero"])).unwrap(), ["linear", "zero"]);
    assert_eq!(parse_table(&table(&[])).unwrap(), [""; 0]);
    let mut full = table(&["linear"]);
    full[29] = 1;
    assert_eq!(parse_table(&full), None, "the answer had no room");
    let cut = table(&["linear", "zero"]);
    assert_eq!(parse_table(&cut[..cut.len() - 20]), None);
    assert_eq!(parse_table(&[]), None);
}

#[test]
fn a_path_is_the_file_only_if_device_and_inode_are_the_same() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    fs::write(&path, "1").unwrap();
    let id = FileId::of(fs::File::open(&path).unwrap().as_fd()).unwrap();
    let at = |path: &Path, id| Answers::Devices.file_at(Path::new("/proc"), path, id);
    assert!(matches!(at(&path, id), Ok(Found::Open(_))));
    assert!(at(&path, FileId { inode: id.inode + 1, ..id }).is_err());
    assert!(at(&path, FileId { device: (id.device.0, id.device.1 + 1), ..id }).is_err());
    fs::rename(&path, directory.path().join("old")).unwrap();
    fs::write(&path, "2").unwrap();
    assert!(at(&path, id).is_err(), "another file has the name");
    assert!(Answers::None.file_at(Path::new("/proc"), &path, id).is_err());
}

#[test]
fn only_what_it_should_be_is_opened() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, "1").unwrap();
    symlink(&file, directory.path().join("link")).unwrap();
    let opened = open_regular(&file).unwrap();
    // What replaces the file after it was looked at is not followed, waited for, or left to programs that are started.
    let flags = rustix::fs::fcntl_getfl(&opened).unwrap();
    assert!(flags.contains(OFlags::NOFOLLOW | OFlags::NONBLOCK), "{flags:?}");
    assert!(rustix::io::fcntl_getfd(&opened).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
    let pipe = directory.path().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let link = directory.path().join("link");
    for other in [directory.path(), &link, &pipe, Path::new("/dev/null"), Path::new("/none")] {
        assert!(open_regular(other).is_err(), "{}", other.display());
    }
}

/// Each block device of this machine that has a node, and what has another number or is no block device.
#[test]
fn a_block_device_is_known_by_its_number() {
    let devices = Answers::Devices;
    assert!(open_device("null", (1, 3)).is_err() && !devices.is_device("/dev/null", (1, 3)), "no block device");
    assert!(open_device("none", (1, 3)).is_err() && !devices.is_device("/dev/none", (1, 3)));
    assert!(Answers::None.is_device("/dev/none", (1, 3)), "a copy cannot say");
    let class = fs::read_dir("/sys/class/block").into_iter().flatten().map_while(Result::ok);
    for entry in class {
        let Some((major, minor)) = attribute(&entry.path(), "dev").and_then(|text| parse_number(&text)) else {
            continue;
        };
        let name = entry.file_name().into_string().unwrap();
        let path = format!("/dev/{}", name.replace('!', "/"));
        if !Path::new(&path).exists() {
            continue;
        }
        assert!(devices.is_device(&path, (major, minor)), "{path}");
        for other in [(major, minor + 1), (major + 1, minor)] {
            assert!(!devices.is_device(&path, other), "{path}");
            assert!(open_device(&name, other).unwrap_err().contains("is not the block device"), "{path}");
        }
    }
}

#[test]
fn numbers_of_devices_are_coded_as_the_kernel_does() {
    // As makedev(3) codes them below 2^32.
    for (number, coded) in [
        ((0, 0), 0),
        ((7, 4), 0x704),
        ((259, 255), 0x1_03ff),
        ((253, 256), 0x0010_fd00),
        ((0xfff, 0xf_ffff), 0xffff_ffff),
        ((0x805, 0x1_2345), 0x1238_0545),
    ] {
        assert_eq!((encode_number(number), decode_number(coded)), (coded, number), "{number:?}");
    }
}

#[test]
fn a_header_of_luks_is_that_of_the_uuid() {
    const OWN: &str = "01234567-89ab-cdef-0123-456789abcdef";
    let header = |magic: &[u8], uuid: &str| {
        let mut bytes = vec![0; 208];
        bytes[..magic.len()].copy_from_slice(magic);
        bytes[168..168 + uuid.len()].copy_from_slice(uuid.as_bytes());
        bytes
    };
    let magic = b"LUKS\xba\xbe";
    let digits = OWN.replace('-', "");
    for (bytes, uuid, is_its) in [
        (header(magic, OWN), format!("CRYPT-LUKS1-{digits}-root"), true),
        (header(magic, OWN), format!("CRYPT-LUKS2-{digits}-root-of-all"), true),
        (header(b"SKUL\xba\xbe", OWN), format!("CRYPT-LUKS2-{digits}-root"), false),
        (header(magic, OWN), format!("CRYPT-PLAIN-{digits}-root"), false),
        (header(magic, OWN), format!("CRYPT-LUKS2-{}-root", digits.replace('0', "f")), false),
        (header(magic, ""), "CRYPT-LUKS2--root".into(), false),
        (header(magic, ""), String::new(), false),
        (Vec::new(), format!("CRYPT-LUKS2-{digits}-root"), false),
    ] {
        assert_eq!(is_header_of(&bytes, &uuid), is_its, "{uuid}");
    }
}
