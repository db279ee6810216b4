//! Files of a replica that is made anew: whose they are, and what stays in them.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};

use super::*;

/// Some owner other than root.
const OWNER: u32 = 12_345;

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn a_file_that_is_too_short_or_too_long_keeps_its_owner_its_mode_and_what_fits() {
    for len_bytes in [0, 4096, 3 * MIB, 7 * MIB] {
        let (directory, set) = filled(SetOptions::default(), &[0, 1]);
        let path = directory.path().join("r1p1");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        if is_root() {
            chown(&path, Some(OWNER), Some(OWNER)).unwrap();
        }
        let before = fs::metadata(&path).unwrap();
        fs::File::options().write(true).open(&path).unwrap().set_len(len_bytes).unwrap();
        let report = synced(&set);
        let after = fs::metadata(&path).unwrap();
        assert_eq!((after.mode(), after.uid(), after.gid()), (before.mode(), before.uid(), before.gid()));
        assert_eq!((after.ino(), after.len()), (before.ino(), 5 * MIB));
        assert!(after.blocks() * 512 >= after.len(), "it has no holes");
        let damage = report.replicas[0].damage.as_deref().unwrap_or_default();
        assert!(damage.contains("r1p1"), "{damage}");
        assert_sound(&set);
    }
}

#[test]
fn a_file_that_was_missing_is_whose_the_others_of_its_replica_are() {
    for (lost, there) in [("r1p0", "r1p1"), ("r1p1", "r1p0")] {
        let (directory, set) = filled(SetOptions::default(), &[0, 1]);
        let (lost, there) = (directory.path().join(lost), directory.path().join(there));
        fs::set_permissions(&there, fs::Permissions::from_mode(0o604)).unwrap();
        if is_root() {
            chown(&there, Some(OWNER), Some(OWNER)).unwrap();
        }
        fs::remove_file(&lost).unwrap();
        synced(&set);
        let (lost, there) = (fs::metadata(lost).unwrap(), fs::metadata(there).unwrap());
        assert_eq!((lost.mode(), lost.uid(), lost.gid()), (there.mode(), there.uid(), there.gid()));
        assert_sound(&set);
    }
}

/// A replica of which nothing is left belongs to whom the others on this machine belong to: the program that has them open must open it too.
#[test]
fn a_replica_that_was_missing_whole_is_whose_another_replica_is() {
    let (directory, set) = filled(SetOptions::default(), &[0, 1, 2]);
    let path = |name: &str| directory.path().join(name);
    for (name, mode) in [("r0p0", 0o640), ("r2p0", 0o666)] {
        fs::set_permissions(path(name), fs::Permissions::from_mode(mode)).unwrap();
        if is_root() {
            chown(path(name), Some(OWNER + mode), Some(OWNER)).unwrap();
        }
    }
    for (lost, like) in [("r1", "r0p0"), ("r0", "r1p0")] {
        for part in [0, 1] {
            fs::remove_file(path(&format!("{lost}p{part}"))).unwrap();
        }
        synced(&set);
        let like = fs::metadata(path(like)).unwrap();
        for part in [0, 1] {
            let made = fs::metadata(path(&format!("{lost}p{part}"))).unwrap();
            assert_eq!((made.mode(), made.uid(), made.gid()), (like.mode(), like.uid(), like.gid()), "{lost}");
        }
        assert_sound(&set);
    }
}

/// So are those that a transform adds.
#[test]
fn a_replica_that_is_added_is_whose_the_others_are() {
    let (directory, set) = filled(SetOptions::default(), &[0]);
    let like = directory.path().join("r0p0");
    fs::set_permissions(&like, fs::Permissions::from_mode(0o644)).unwrap();
    if is_root() {
        chown(&like, Some(OWNER), Some(OWNER)).unwrap();
    }
    let two = super::set(directory.path(), SetOptions::default(), &[0, 1]);
    turned(&set, &two, false).unwrap();
    let (made, like) = (fs::metadata(directory.path().join("r1p1")).unwrap(), fs::metadata(&like).unwrap());
    assert_eq!((made.mode(), made.uid(), made.gid()), (like.mode(), like.uid(), like.gid()));
    assert_sound(&two);
}
