use std::fs::{self, File};

use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
use tempfile::tempdir_in;

use super::{Caller, Inode, check_unlinkable, refusal};
use crate::PoolSetError;

const DISK: &str = env!("CARGO_MANIFEST_DIR");
const PLAIN: Inode = Inode { owner: 5, is_sticky: false, is_append_only: false, is_immutable: false };
const STICKY: Inode = Inode { is_sticky: true, ..PLAIN };

#[test]
fn a_sticky_directory_gives_files_to_their_owners_alone() {
    let other = Inode { owner: 6, ..PLAIN };
    let user = |user| Caller { user, acts_for_owners: false };
    assert_eq!(refusal(user(7), PLAIN, other), None);
    assert!(refusal(user(7), STICKY, other).is_some_and(|refused| refused.is_of_directory));
    // Whose directory it is, whose file it is, and who may act for both.
    assert_eq!(refusal(user(5), STICKY, other), None);
    assert_eq!(refusal(user(6), STICKY, other), None);
    assert_eq!(refusal(Caller { user: 7, acts_for_owners: true }, STICKY, other), None);
    // A file's own sticky bit decides nothing.
    assert_eq!(refusal(user(7), PLAIN, STICKY), None);
}

#[test]
fn attributes_hold_for_everybody() {
    let root = Caller { user: 0, acts_for_owners: true };
    for marked in [Inode { is_append_only: true, ..PLAIN }, Inode { is_immutable: true, ..PLAIN }] {
        assert!(refusal(root, marked, PLAIN).is_some_and(|refused| refused.is_of_directory));
        assert!(refusal(root, PLAIN, marked).is_some_and(|refused| !refused.is_of_directory));
    }
}

/// What the kernel then does.
#[test]
fn the_kernel_decides_the_same() {
    let directory = tempdir_in(DISK).unwrap();
    let path = directory.path().join("part");
    fs::write(&path, "a").unwrap();
    check_unlinkable(&path).unwrap();
    let marks = [(directory.path(), IFlags::APPEND), (directory.path(), IFlags::IMMUTABLE), (&path, IFlags::APPEND)];
    for (marked, flag) in marks {
        let file = File::open(marked).unwrap();
        let before = ioctl_getflags(&file).and_then(|before| ioctl_setflags(&file, before | flag).map(|()| before));
        let Ok(before) = before else {
            return skip_report::skipped!(
                "{flag:?} cannot be set here, which takes root and a file system that has it"
            );
        };
        let (checked, removed) = (check_unlinkable(&path), fs::remove_file(&path));
        ioctl_setflags(&file, before).unwrap();
        let told = checked.unwrap_err();
        assert!(matches!(&told, PoolSetError::NotUnlinkable { .. } | PoolSetError::Io { .. }), "{told}");
        assert!(removed.is_err() && told.to_string().contains(marked.to_str().unwrap()), "{told}");
    }
    check_unlinkable(&path).unwrap();
}
