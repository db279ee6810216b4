use std::{
    fs,
    os::unix::{fs::symlink, net::UnixListener},
    path::Path,
};

use super::{MediumProbe, probe, probe_cpu, probe_with};
use crate::causes;
use crate::{
    CacheWriteBack, Durability, Evidence, Mechanism, MediumKind, MemError, Promise, System, sysfs::fixture::Tree,
};

#[test]
fn tmpfs_survives_the_process_only() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let found = probe(directory.path()).unwrap();
    assert_eq!((found.kind, found.strongest), (MediumKind::Tmpfs, Durability::ProcessCrash));
    assert_eq!(found.promise, Promise { mechanism: Mechanism::Store, evidence: Evidence::Probed });
    assert!(found.mend.unwrap().contains("battery"));
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0, "the probe left something behind");
}

/// The disk is the machine's own: what it is made of is taken from a fixture, the rest from the kernel.
fn probe_on_disk(system: &impl Fn(&Tree) -> System, path: &Path, disk: &str) -> MediumProbe {
    let tree = Tree::new();
    let device = rustix::fs::stat(path).unwrap().st_dev;
    let number = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    tree.block(&tree.root().join("devices"), disk, &number);
    fs::create_dir_all(tree.root().join("fs/ext4").join(disk)).unwrap();
    fs::write(tree.root().join("fs/ext4").join(disk).join("journal_task"), "<none>\n").unwrap();
    probe_with(&system(&tree), path).unwrap()
}

#[test]
fn a_disk_survives_power_by_file_sync_and_a_memory_disk_does_not() {
    let real = |tree: &Tree| System { sysfs_root: tree.root().into(), ..System::real() };
    let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let file = directory.path().join("empty");
    fs::write(&file, "").unwrap();
    for path in [directory.path(), &file] {
        let found = probe_on_disk(&real, path, "sda");
        assert_eq!((found.kind, found.strongest), (MediumKind::PageCache, Durability::PowerFailure), "{found:?}");
        assert_eq!(found.promise.mechanism, Mechanism::FileSync);
        assert_eq!(found.mend, None);
        assert!(found.evidence.iter().any(|sentence| sentence.contains("MAP_SYNC")), "{found:?}");
        let found = probe_on_disk(&real, path, "ram0");
        assert_eq!(found.strongest, Durability::ProcessCrash);
        assert!(found.mend.unwrap().contains("ram0"));
    }
    // Without /proc nothing is known of the mount.
    let blind = |tree: &Tree| System { proc_root: tree.root().into(), ..real(tree) };
    assert_eq!(probe_on_disk(&blind, &file, "sda").strongest, Durability::ProcessCrash);
}

#[test]
fn what_is_no_file_is_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    symlink("/dev/shm", path("link")).unwrap();
    let _listener = UnixListener::bind(path("socket")).unwrap();
    for (path, expected) in
        [(path("link"), "symbolic link"), (path("socket"), "socket"), ("/dev/null".into(), "character device")]
    {
        let error = probe(&path).unwrap_err();
        assert!(matches!(error, MemError::Unsuitable { .. }), "{error:?}");
        assert!(causes(&error).to_string().contains(expected), "{error}");
    }
    assert!(matches!(probe(&path("nothing")).unwrap_err(), MemError::Io { call: "stat", .. }));
}

#[test]
fn the_cpu_names_itself_and_its_instruction() {
    let cpu = probe_cpu();
    assert!(!cpu.model.is_empty());
    assert_eq!(cpu.write_back, CacheWriteBack::detect());
    if cpu.has_clwb {
        assert_eq!(cpu.write_back, Some(CacheWriteBack::Clwb));
    }
    let text = fs::read_to_string("/proc/cpuinfo").unwrap();
    if let Some(model) = text.lines().find_map(|line| line.strip_prefix("model name\t: ")) {
        assert!(cpu.model.contains(model.trim()), "{} and {model}", cpu.model);
    }
}
