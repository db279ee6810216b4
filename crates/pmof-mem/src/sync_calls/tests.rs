use std::{fs, os::fd::AsFd as _, path::Path};

use syscall_recorder::{Silence, observe, silenced};

use super::{SEEN, check, check_for};
use crate::{
    Declaration, Durability, Evidence, FilePart, Mechanism, Medium as _, MediumKind, MediumProbe, Memory, Promise,
    System, probe, probe_mounts,
};

const DISK: &str = env!("CARGO_MANIFEST_DIR");
const SILENCES: [Silence; 2] = [Silence::All, Silence::Valid];

fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in(DISK).unwrap()
}

fn is_probed(promise: Option<Promise>) -> bool {
    promise.is_some_and(|promise| promise.evidence == Evidence::Probed)
}

/// Whether files of the disk survive loss of power here, by fdatasync: else no filter can take that away.
fn is_durable(directory: &Path) -> bool {
    let found = probe(directory).unwrap();
    let is_durable = (found.kind, found.strongest) == (MediumKind::PageCache, Durability::PowerFailure);
    if !is_durable {
        skip_report::skipped!("the disk of {DISK} gives no power-failure: {found}");
    }
    is_durable
}

fn assert_in_doubt(found: &MediumProbe) {
    assert_eq!(found.strongest, Durability::ProcessCrash, "{found:?}");
    let declared = Promise { mechanism: Mechanism::FileSync, evidence: Evidence::Declared };
    assert_eq!(found.declared, Some(declared), "{found:?}");
    let mend = found.mend.as_deref().unwrap();
    assert!(mend.contains("system call filter") && mend.contains("run this where no filter answers"), "{mend}");
}

/// Runs `act` under each filter.
fn under_filters(act: impl Fn(Silence) + Sync) {
    for silence in SILENCES {
        if let Err(error) = silenced(silence, || act(silence)) {
            skip_report::skipped!("{error}");
        }
    }
}

#[test]
fn flushes_that_a_filter_answers_are_not_believed() {
    let directory = directory();
    if !is_durable(directory.path()) {
        return;
    }
    under_filters(|silence| {
        let path = directory.path().join(format!("{silence:?}"));
        assert_in_doubt(&probe(directory.path()).unwrap());
        let memory = Memory::create(&path, 8192, None).unwrap();
        assert_eq!(memory.promise(Durability::PowerFailure), None, "{silence:?}");
        assert!(memory.not_durable(Durability::PowerFailure).to_string().contains("system call filter"));
        assert!(is_probed(memory.promise(Durability::ProcessCrash)));
        drop(memory);
        let memory = Memory::open(&path, Some(Declaration::BatteryBacked)).unwrap();
        assert_eq!(memory.promise(Durability::PowerFailure).map(|promise| promise.evidence), Some(Evidence::Declared));
        drop(memory);
        assert_in_doubt(&probe(&path).unwrap());
        let file = fs::File::options().read(true).write(true).open(&path).unwrap().into();
        let part = FilePart { path: path.clone(), file, file_offset: 0, len_bytes: 8192 };
        let memory = Memory::concatenate(vec![part], true, None).unwrap();
        assert_eq!(memory.promise(Durability::PowerFailure), None, "{silence:?}");
    });
    let names: Vec<_> = fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 2, "{names:?}");
    assert!(SEEN.lock().is_empty());
    assert_eq!(probe(directory.path()).unwrap().strongest, Durability::PowerFailure);
}

#[test]
fn no_mount_is_called_durable_under_a_filter() {
    under_filters(|silence| {
        for mount in probe_mounts(&System::real()).unwrap() {
            let found = mount.medium;
            assert_ne!(
                (found.promise.mechanism, found.strongest),
                (Mechanism::FileSync, Durability::PowerFailure),
                "{silence:?}: {found}"
            );
        }
    });
}

/// A filter that leaves these calls alone, as containers have: the effect is seen, once for a file system.
#[test]
fn flushes_that_pass_a_filter_are_believed() {
    let directory = directory();
    if !is_durable(directory.path()) {
        return;
    }
    let path = directory.path().join("pool");
    let outcome = observe(|| {
        assert!(check().is_err(), "nothing was tried yet");
        let memory = Memory::create(&path, 8192, None).unwrap();
        let evidence = memory.evidence().join("\n");
        assert!(is_probed(memory.promise(Durability::PowerFailure)), "{evidence}");
        assert!(evidence.contains("each was seen to write a page"), "{evidence}");
        assert_eq!(SEEN.lock().len(), 1);
        // Tried no more: there, no file could be made.
        let nowhere = Path::new("/nonexistent/pool");
        assert!(check_for(fs::File::open(&path).unwrap().as_fd(), nowhere).is_ok());
        assert_eq!(SEEN.lock().len(), 1);
    });
    if let Err(error) = outcome {
        skip_report::skipped!("{error}");
    }
    let names: Vec<_> = fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["pool"]);
}

/// Where no file can be made, as on a full disk, the refusals count, and the evidence says so.
#[test]
fn a_flush_that_cannot_be_tried_has_its_refusals_only() {
    let directory = directory();
    let path = directory.path().join("pool");
    fs::write(&path, [0; 4096]).unwrap();
    let outcome = observe(|| {
        let file = fs::File::open(&path).unwrap();
        // Another file system, and no directory at all.
        for place in ["/dev/shm/pool", "/nonexistent/pool"] {
            let evidence = check_for(file.as_fd(), Path::new(place)).unwrap().expect("there is a filter");
            assert!(evidence.contains("no effect was seen"), "{evidence}");
        }
    });
    if let Err(error) = outcome {
        skip_report::skipped!("{error}");
    }
}

#[test]
fn without_a_filter_nothing_is_tried() {
    if super::has_filter() {
        skip_report::skipped!("this process has a filter");
        return;
    }
    let directory = directory();
    let path = directory.path().join("pool");
    fs::write(&path, [0; 4096]).unwrap();
    assert_eq!(check(), Ok(()));
    assert_eq!(check_for(fs::File::open(&path).unwrap().as_fd(), Path::new("/nonexistent/pool")), Ok(None));
    assert!(SEEN.lock().is_empty());
}
