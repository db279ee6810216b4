use std::{
    fs::File,
    io::{ErrorKind, Read as _},
    os::{
        fd::AsFd as _,
        unix::{net::UnixStream, process::ExitStatusExt as _},
    },
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Barrier,
        atomic::{AtomicUsize, Ordering},
    },
};

use tempfile::{TempDir, tempdir};
use thin_disk::ThinDisk;

use crate::{FilePart, Medium, MemError, Memory, mapping::Mapping};

const LEN_BYTES: u64 = 1 << 20;
/// In a page that is cut off.
const LOST: u64 = 512 << 10;

fn file() -> (TempDir, PathBuf) {
    let directory = tempdir().unwrap();
    let path = file_in(directory.path());
    (directory, path)
}

fn file_in(directory: &Path) -> PathBuf {
    let path = directory.join("pool");
    let memory = Memory::create(&path, LEN_BYTES, None).unwrap();
    memory.store(0, &vec![7; LEN_BYTES as usize]).unwrap();
    path
}

fn cut_short(path: &Path) {
    File::options().write(true).open(path).unwrap().set_len(4096).unwrap();
}

fn has_failed<T>(outcome: Result<T, MemError>, path: &Path) -> bool {
    matches!(outcome, Err(MemError::MediumFailed { path: told }) if told == path)
}

type Touch = fn(&Memory) -> Result<(), MemError>;

/// Every way to touch the bytes, each on a page that is gone.
const TOUCHES: [(&str, Touch); 9] = [
    ("read", |memory| memory.read(LOST, &mut [0; 64])),
    ("a long read", |memory| memory.read(0, &mut vec![0; LEN_BYTES as usize])),
    ("store", |memory| memory.store(LOST, &[1; 64])),
    ("atomic_store", |memory| memory.atomic_store(LOST, 1)),
    ("compare_and_swap", |memory| memory.compare_and_swap(LOST, 0, 1).map(drop)),
    ("fetch_and_add", |memory| memory.fetch_and_add(LOST, 1).map(drop)),
    ("crc32c", |memory| memory.crc32c(0, LEN_BYTES).map(drop)),
    ("touch", |memory| memory.touch(0, LEN_BYTES)),
    ("touch of the last byte", |memory| memory.touch(LOST - 1, 2)),
];

#[test]
fn a_page_that_is_gone_is_an_error_and_not_the_end() {
    let (_directory, healthy_path) = file();
    let healthy = Memory::open(&healthy_path, None).unwrap();
    for (name, touch) in TOUCHES {
        let (_directory, path) = file();
        let memory = Memory::open(&path, None).unwrap();
        let mut bytes = [0; 64];
        memory.read(0, &mut bytes).unwrap();
        cut_short(&path);
        assert!(has_failed(touch(&memory), &path), "{name}");
        // From now on nothing of it is shown or taken, also where it could be.
        assert!(has_failed(memory.read(0, &mut bytes), &path), "{name}");
        assert!(TOUCHES.iter().all(|(_, touch)| has_failed(touch(&memory), &path)), "{name}");
        assert!(has_failed(memory.write_back(0, 4096), &path) && has_failed(memory.fence(), &path), "{name}");
        assert!(has_failed(memory.settle(), &path), "{name}");
        healthy.read(LOST, &mut bytes).unwrap();
        assert_eq!(bytes, [7; 64], "{name}");
    }
    healthy.store(LOST, &[1]).unwrap();
    healthy.write_back(LOST, 1).unwrap();
    healthy.fence().unwrap();
}

#[test]
fn a_system_call_on_a_page_that_is_gone_is_an_error_of_the_memory() {
    for receives in [true, false] {
        let (_directory, path) = file();
        let memory = Memory::open(&path, None).unwrap();
        cut_short(&path);
        let (near, mut far) = UnixStream::pair().unwrap();
        rustix::io::write(&far, &[5; 64]).unwrap();
        let outcome = if receives {
            memory.receive(near.as_fd(), LOST, 64, &mut [])
        } else {
            memory.send(near.as_fd(), &[], LOST, 64, &[])
        };
        let error = outcome.unwrap_err();
        assert!(error.to_string().contains("could not be loaded"), "{error}");
        assert!(has_failed(memory.read(0, &mut [0; 8]), &path));
        // Nor does anything go out afterwards.
        memory.send(near.as_fd(), b"header", 0, 64, &[]).unwrap_err();
        far.set_nonblocking(true).unwrap();
        assert_eq!(far.read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::WouldBlock);
    }
}

#[test]
fn all_of_a_memory_of_several_files_fails() {
    let ((_one_directory, one), (_two_directory, two)) = (file(), file());
    let part = |path: &Path| FilePart {
        file: File::options().read(true).write(true).open(path).unwrap().into(),
        path: path.into(),
        file_offset: 0,
        len_bytes: LEN_BYTES,
    };
    let memory = Memory::concatenate(vec![part(&one), part(&two)], true, None).unwrap();
    cut_short(&two);
    memory.read(0, &mut [0; 8]).unwrap();
    assert!(has_failed(memory.read(LEN_BYTES + LOST, &mut [0; 8]), &one));
    assert!(has_failed(memory.read(0, &mut [0; 8]), &one));
}

#[test]
fn threads_that_touch_it_at_once_all_hear_of_it() {
    let (_directory, path) = file();
    let memory = Memory::open(&path, None).unwrap();
    cut_short(&path);
    let (barrier, failures) = (Barrier::new(8), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for thread in 0..8_u64 {
            let (memory, barrier, failures, path) = (&memory, &barrier, &failures, &path);
            scope.spawn(move || {
                barrier.wait();
                for round in 0..100 {
                    let outcome = memory.read(LOST + 4096 * ((thread + round) % 64), &mut [0; 64]);
                    failures.fetch_add(usize::from(has_failed(outcome, path)), Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(failures.into_inner(), 800);
}

#[test]
fn addresses_that_are_used_again_are_another_memory() {
    for _ in 0..50 {
        let (_directory, path) = file();
        let memory = Memory::open(&path, None).unwrap();
        cut_short(&path);
        assert!(has_failed(memory.read(LOST, &mut [0; 8]), &path));
        drop(memory);
        let (_other_directory, other_path) = file();
        let other = Memory::open(&other_path, None).unwrap();
        let mut bytes = [0; 8];
        other.read(LOST, &mut bytes).unwrap();
        assert_eq!(bytes, [7; 8]);
    }
}

#[test]
fn a_sector_that_cannot_be_read_is_an_error() {
    let Some(disk) = ThinDisk::of_test() else { return };
    let path = disk.files().join("pool");
    let memory = Memory::create(&path, LEN_BYTES, None).unwrap();
    memory.store(0, &vec![7; LEN_BYTES as usize]).unwrap();
    memory.write_back(0, LEN_BYTES).unwrap();
    memory.fence().unwrap();
    memory.settle().unwrap();
    disk.truncate(4096).unwrap();
    assert!(has_failed(memory.read(LOST, &mut [0; 64]), &path));
    drop(memory);
    // A new opening finds the same.
    let memory = Memory::open(&path, None).unwrap();
    assert!(has_failed(memory.read(LOST, &mut [0; 64]), &path));
}

/// Where a process that a test starts finds the test's directory: it may end without clearing anything up.
const CHILD: &str = "PMOF_TEST_BUS_ERROR";

/// Runs one test of this file in a process of its own, which is expected to end by the test's own doing.
fn child(test: &str) -> std::process::ExitStatus {
    let name = format!("bus_error::tests::{test}");
    let (own, directory) = (std::env::current_exe().unwrap(), tempdir().unwrap());
    Command::new(own).args(["--exact", &name, "--nocapture"]).env(CHILD, directory.path()).output().unwrap().status
}

/// The directory of the test that started this process.
fn as_child() -> Option<PathBuf> {
    std::env::var_os(CHILD).map(PathBuf::from)
}

/// Touches a page behind the end of a file that this crate has not mapped.
fn touch_foreign_page(path: &Path) {
    File::options().write(true).open(path).unwrap().set_len(LEN_BYTES).unwrap();
    let file = File::open(path).unwrap();
    let foreign = Mapping::of_file(file.as_fd(), LEN_BYTES as usize, false, false).unwrap().forget_watch();
    cut_short(path);
    foreign.read(LOST, &mut [0; 8]).unwrap();
}

#[test]
fn a_foreign_page_still_ends_the_process() {
    if let Some(directory) = as_child() {
        let path = file_in(&directory);
        let _memory = Memory::open(&path, None).unwrap();
        return touch_foreign_page(&path);
    }
    assert_eq!(child("a_foreign_page_still_ends_the_process").signal(), Some(libc::SIGBUS));
}

extern "C" fn exit_with_77(_signal: libc::c_int) {
    // SAFETY: ends the process, as a handler may.
    unsafe { libc::_exit(77) };
}

#[test]
fn a_handler_that_was_there_before_is_asked() {
    if let Some(directory) = as_child() {
        // SAFETY: a handler of the right type, which calls only what one may.
        unsafe { libc::signal(libc::SIGBUS, exit_with_77 as *const () as usize) };
        let path = file_in(&directory);
        let memory = Memory::open(&path, None).unwrap();
        cut_short(&path);
        assert!(has_failed(memory.read(LOST, &mut [0; 8]), &path), "its own it does not pass on");
        drop(memory);
        return touch_foreign_page(&path);
    }
    assert_eq!(child("a_handler_that_was_there_before_is_asked").code(), Some(77));
}
