//! Directories and files on a disk, and the moments between which system calls are looked at.

use std::{fs, path::Path};

use pmof_access::{Medium as _, Memory};
use pmof_mem::MediumKind;
use syscall_recorder::{Call, Unavailable};
use tempfile::{TempDir, tempdir_in};

pub(crate) const EIO: i32 = 5;

/// A directory whose files need fdatasync, unless the build lies where none does.
pub(crate) fn on_disk() -> Option<TempDir> {
    let directory = tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let probe = directory.path().join("probe");
    let kind = Memory::create(&probe, 4096, None).unwrap().kind();
    fs::remove_file(probe).unwrap();
    if kind == MediumKind::PageCache {
        return Some(directory);
    }
    skip_report::skipped!("the build directory lies on {kind}");
    None
}

pub(crate) fn available<T>(outcome: Result<T, Unavailable>) -> Option<T> {
    outcome.inspect_err(|error| skip_report::skipped!("{error}")).ok()
}

const NOWHERE: &str = "/no/such/directory";

/// Ends one stretch of the recorded calls and begins the next: a call that is recorded and does nothing.
pub(crate) fn mark() {
    fs::rename(NOWHERE, NOWHERE).expect_err("there is no such file");
}

/// The recorded calls between the marks.
pub(crate) fn stretches(calls: &[Call]) -> Vec<&[Call]> {
    calls.split(|call| matches!(call, Call::Rename(from, _) if from == Path::new(NOWHERE))).collect()
}

pub(crate) fn syncs_of(calls: &[Call], path: &Path) -> usize {
    calls.iter().filter(|call| call.is_sync_of(path)).count()
}
