//! What is recorded, failed and delayed, by the calls of the standard library.

use std::{fs, io, os::fd::AsFd as _, path::Path, thread};

use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
use syscall_recorder::{Call, Unavailable, Verdict, observe, record};
use tempfile::tempdir;

fn available<T>(outcome: Result<T, Unavailable>) -> Option<T> {
    outcome.inspect_err(|error| skip_report::skipped!("{error}")).ok()
}

#[test]
fn calls_come_in_order_and_are_carried_out() {
    let directory = tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let act = || {
        let file = fs::File::create(path("a")).unwrap();
        file.sync_all().unwrap();
        file.sync_data().unwrap();
        fs::rename(path("a"), path("b")).unwrap();
        fs::hard_link(path("b"), path("c")).unwrap();
        fs::File::open(directory.path()).unwrap().sync_all().unwrap();
        rustix::fs::syncfs(file.as_fd()).unwrap();
        7
    };
    let Some((done, calls)) = available(observe(act)) else { return };
    assert_eq!(done, 7);
    let expected = [
        Call::Fsync(path("a")),
        Call::Fdatasync(path("a")),
        Call::Rename(path("a"), path("b")),
        Call::Link(path("b"), path("c")),
        Call::Fsync(directory.path().into()),
        Call::SyncAll,
    ];
    assert_eq!(calls, expected);
    assert!(path("c").exists() && !path("a").exists());
    assert!(calls[1].is_sync_of(&path("a")) && !calls[2].is_sync_of(&path("a")));
    assert_eq!(calls[4].to_string(), format!("fsync {}", directory.path().display()));
}

#[test]
fn a_range_of_addresses_is_reported_by_the_file_that_is_mapped_there() {
    let directory = tempdir().unwrap();
    let path = directory.path().join("a file");
    fs::write(&path, [0; 8192]).unwrap();
    let file = fs::File::options().read(true).write(true).open(&path).unwrap();
    let act = || {
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping of a file of two pages, which nobody else uses and nothing cuts.
        unsafe {
            let at = mmap(std::ptr::null_mut(), 8192, rights, MapFlags::SHARED, &file, 0).unwrap();
            msync(at.wrapping_byte_add(4096), 4096, MsyncFlags::SYNC).unwrap();
            munmap(at, 8192).unwrap();
        }
    };
    let Some(((), calls)) = available(observe(act)) else { return };
    assert_eq!(calls, [Call::Msync(path.clone())]);
    assert!(calls[0].is_sync_of(&path));
}

#[test]
fn a_call_may_be_failed_and_threads_are_watched_too() {
    // A name: syncs of nameless files are not shown.
    let named = tempfile::NamedTempFile::new().unwrap();
    let file = named.as_file();
    let mut seen = 0;
    let judge = |call: &Call| {
        assert!(matches!(call, Call::Fdatasync(_)), "{call}");
        seen += 1;
        if seen == 2 { Verdict::Fail(5) } else { Verdict::Pass }
    };
    let act = || thread::scope(|scope| scope.spawn(|| [0; 3].map(|_| file.sync_data())).join().unwrap());
    let Some((outcomes, calls)) = available(record(judge, act)) else { return };
    let errors = outcomes.map(|outcome: io::Result<()>| outcome.err().and_then(|error| error.raw_os_error()));
    assert_eq!((errors, calls.len()), ([None, Some(5), None], 3));
}

#[test]
fn the_callers_own_calls_are_not_seen() {
    // A name: syncs of nameless files are not shown.
    let named = tempfile::NamedTempFile::new().unwrap();
    let file = named.as_file();
    let Some(((), calls)) = available(observe(|| ())) else { return };
    file.sync_all().unwrap();
    assert_eq!(calls, []);
    assert!(Path::new("/proc/self").exists());
}
