use std::{fs, os::fd::AsFd, os::unix::fs::symlink, path::Path};

use super::{Answers, DM_HEADER_BYTES, DM_TARGET_BYTES, FileId, Found, open_device, open_regular, parse_table};

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
    assert!(open_regular(&file).is_ok());
    for other in [directory.path(), &directory.path().join("link"), Path::new("/dev/null"), Path::new("/none")] {
        assert!(open_regular(other).is_err(), "{}", other.display());
    }
    assert!(open_device("null", (1, 3)).is_err(), "no block device");
}
