use std::{
    fs::{self, File},
    os::fd::{AsFd as _, AsRawFd as _},
    path::Path,
};

use super::{is_changed_by, upper_file};
use crate::{System, answers::FileId, mounts::Mount};

fn write(path: &Path) -> File {
    fs::write(path, "bytes").unwrap();
    File::options().read(true).write(true).open(path).unwrap()
}

#[test]
fn a_file_changes_with_itself_alone() {
    let directory = tempfile::tempdir().unwrap();
    let (one, other) = (write(&directory.path().join("one")), write(&directory.path().join("other")));
    let same = File::open(directory.path().join("one")).unwrap();
    assert_eq!(is_changed_by(one.as_fd(), same.as_fd()), Ok(true));
    other.set_modified(one.metadata().unwrap().modified().unwrap()).unwrap();
    assert_eq!(is_changed_by(one.as_fd(), other.as_fd()), Ok(false), "alike in all but the time of change");
    other.set_len(1).unwrap();
    assert_eq!(is_changed_by(one.as_fd(), other.as_fd()), Ok(false));
}

/// A directory plays the overlay, with a link to its file where the mount says that the upper file is.
#[test]
fn the_upper_file_is_below_the_upper_directory_and_the_same() {
    let directory = tempfile::tempdir().unwrap();
    let base = directory.path().canonicalize().unwrap();
    for name in ["merged", "upper", "upper/part"] {
        fs::create_dir(base.join(name)).unwrap();
    }
    let file = write(&base.join("merged/file"));
    let mount = |root: &str, point: &str, upper: &str| Mount {
        id: "1".into(),
        device: (0, 50),
        root: root.into(),
        point: base.join(point),
        file_system: "overlay".into(),
        source: "overlay".into(),
        options: vec!["rw".into(), format!("upperdir={upper}")],
    };
    let upper = base.join("upper").display().to_string();
    let good = mount("/", "merged", &upper);
    let find = |mount: &Mount, file: &File| upper_file(&System::real(), mount, file.as_fd());
    assert!(find(&good, &file).unwrap_err().contains("cannot be opened"));
    fs::hard_link(base.join("merged/file"), base.join("upper/file")).unwrap();
    let found = find(&good, &file).unwrap();
    assert_ne!(found.as_raw_fd(), file.as_raw_fd());
    assert_eq!(FileId::of(found.as_fd()).unwrap(), FileId::of(file.as_fd()).unwrap());
    // A part of the overlay that is mounted by itself.
    fs::hard_link(base.join("merged/file"), base.join("upper/part/file")).unwrap();
    assert!(find(&mount("/part", "merged", &upper), &file).is_ok());
    let read_only = File::open(base.join("merged/file")).unwrap();
    assert!(find(&good, &read_only).unwrap_err().contains("opened for writing"));
    assert!(find(&mount("/", "merged", "upper"), &file).unwrap_err().contains("named from somewhere"));
    assert!(find(&mount("/", "upper", &upper), &file).unwrap_err().contains("is not below"));
    let without = Mount { options: vec!["rw".into()], ..good.clone() };
    assert!(find(&without, &file).unwrap_err().contains("no upper directory"));
    fs::remove_file(base.join("upper/file")).unwrap();
    write(&base.join("upper/file"));
    assert!(find(&good, &file).unwrap_err().contains("is not the overlay's upper file"));
}
