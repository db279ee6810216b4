//! What is asked of the kernel to make files durable, and when: by the system calls themselves.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Barrier,
    thread,
    time::Duration,
};

use pmof_mem::{FilePart, Medium as _, MediumKind, MemError, Memory, SyncChoice, SyncMethod};
use syscall_recorder::{Call, Unavailable, Verdict, observe, record};
use tempfile::{TempDir, tempdir_in};

const LEN_BYTES: u64 = 64 << 10;
const EIO: i32 = 5;

/// A directory whose files need fdatasync, unless the build lies where none does.
fn on_disk() -> Option<TempDir> {
    let directory = tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let memory = Memory::create(&directory.path().join("probe"), 4096, None).unwrap();
    if memory.kind() != MediumKind::PageCache {
        skip_report::skipped!("the build directory lies on {}", memory.kind());
        return None;
    }
    fs::remove_file(directory.path().join("probe")).unwrap();
    Some(directory)
}

fn available<T>(outcome: Result<T, Unavailable>) -> Option<T> {
    outcome.inspect_err(|error| skip_report::skipped!("{error}")).ok()
}

fn syncs_of(calls: &[Call], path: &Path) -> usize {
    calls.iter().filter(|call| call.is_sync_of(path)).count()
}

#[test]
fn a_new_file_is_synced_before_the_directory_that_names_it() {
    let Some(directory) = on_disk() else { return };
    let path = directory.path().join("pool");
    let Some((made, calls)) = available(observe(|| Memory::create(&path, LEN_BYTES, None))) else { return };
    made.unwrap();
    // Space and length first, so that the name never leads to less than a whole file.
    assert_eq!(calls, [Call::Fsync(path), Call::Fsync(directory.path().into())]);
}

#[test]
fn a_file_that_is_not_durable_is_not_made() {
    let Some(directory) = on_disk() else { return };
    let path = directory.path().join("pool");
    for failing in [path.as_path(), directory.path()] {
        let judge = |call: &Call| if call.is_sync_of(failing) { Verdict::Fail(EIO) } else { Verdict::Pass };
        let Some((made, _)) = available(record(judge, || Memory::create(&path, LEN_BYTES, None))) else { return };
        let error = made.unwrap_err();
        assert!(matches!(&error, MemError::Io { source, .. } if source.raw_os_error() == Some(EIO)), "{error}");
        assert!(!path.exists(), "nothing is left behind");
    }
}

#[test]
fn a_range_is_synced_without_the_rest_of_its_file() {
    let Some(directory) = on_disk() else { return };
    let path = directory.path().join("pool");
    for fails in [false, true] {
        let judge = |call: &Call| {
            let is_range = *call == Call::Msync(path.clone());
            if fails && is_range { Verdict::Fail(EIO) } else { Verdict::Pass }
        };
        let memory = if fails { Memory::open(&path, None) } else { Memory::create(&path, LEN_BYTES, None) }.unwrap();
        memory.fence().unwrap();
        let act = || {
            memory.store(0, &[1; 8192]).unwrap();
            memory.store(16384, &[1; 8]).unwrap();
            memory.sync_range(16384, 8)
        };
        let Some((synced, calls)) = available(record(judge, act)) else { return };
        assert_eq!(calls, [Call::Msync(path.clone())]);
        assert_eq!(synced.is_err(), fails);
        if fails {
            // The kernel tells of a lost page once: what comes later is not believed.
            for outcome in [memory.sync_range(0, 8), memory.fence()] {
                assert!(matches!(outcome, Err(MemError::Poisoned { .. })), "{outcome:?}");
            }
        }
    }
}

/// A new file that fences flush by `method`, all of it on the disk, with the call that is expected. `None` where that method is not used.
fn synced_by(method: SyncMethod, path: &Path) -> Option<(Memory, Call)> {
    let memory = Memory::create(path, LEN_BYTES, None).unwrap().synced_by(SyncChoice::always(method));
    if !method.is_usable(memory.kind(), memory.file_system()) {
        skip_report::skipped!("{method} is not used on {}", memory.file_system());
        return None;
    }
    memory.fence().unwrap();
    let call = match method {
        SyncMethod::Fdatasync => Call::Fdatasync(path.into()),
        SyncMethod::Msync => Call::Msync(path.into()),
    };
    Some((memory, call))
}

#[test]
fn a_fence_flushes_by_the_chosen_call() {
    let Some(directory) = on_disk() else { return };
    for method in SyncMethod::ALL {
        let path = directory.path().join(method.to_string());
        let Some((memory, call)) = synced_by(method, &path) else { continue };
        let act = || {
            for offset in [0, 20_000, 40_000] {
                memory.store(offset, &[1; 8]).unwrap();
                memory.write_back(offset, 8).unwrap();
            }
            memory.fence().unwrap();
            memory.fence().unwrap();
        };
        let Some(((), calls)) = available(observe(act)) else { return };
        assert_eq!(calls, [call], "one call for all ranges, and none where nothing was written");
    }
}

#[test]
fn the_first_fence_flushes_the_whole_file_by_any_choice() {
    let Some(directory) = on_disk() else { return };
    let path = directory.path().join("pool");
    drop(Memory::create(&path, LEN_BYTES, None).unwrap());
    let memory = Memory::open(&path, None).unwrap().synced_by(SyncChoice::always(SyncMethod::Msync));
    let act = || {
        memory.store(0, &[1; 8]).unwrap();
        memory.write_back(0, 8).unwrap();
        memory.fence().unwrap();
    };
    let Some(((), calls)) = available(observe(act)) else { return };
    // A process that died may have left bytes anywhere in it.
    assert_eq!(calls, [Call::Fdatasync(path)]);
}

#[test]
fn a_call_that_fails_poisons_by_each_method() {
    let Some(directory) = on_disk() else { return };
    for method in SyncMethod::ALL {
        let path = directory.path().join(method.to_string());
        let Some((memory, failing)) = synced_by(method, &path) else { continue };
        memory.store(0, &[1; 8]).unwrap();
        memory.write_back(0, 8).unwrap();
        let judge = |call: &Call| if *call == failing { Verdict::Fail(EIO) } else { Verdict::Pass };
        let Some((fenced, _)) = available(record(judge, || memory.fence())) else { return };
        let Err(MemError::Io { call, source, .. }) = fenced else { panic!("{method}: {fenced:?}") };
        assert_eq!((call, source.raw_os_error()), (method.to_string().as_str(), Some(EIO)));
        // The kernel counts the lost page as clean: no later flush is believed, by whatever call.
        for outcome in [memory.fence(), memory.write_back(0, 8), memory.sync_range(0, 8), memory.fence()] {
            assert!(matches!(outcome, Err(MemError::Poisoned { .. })), "{method}: {outcome:?}");
        }
        memory.settle().unwrap();
        assert!(matches!(memory.fence(), Err(MemError::Poisoned { .. })), "its writer has to hear of it");
    }
}

#[test]
fn clients_that_wait_for_a_flush_that_fails_hear_of_it() {
    let Some(directory) = on_disk() else { return };
    for method in SyncMethod::ALL {
        let path = directory.path().join(method.to_string());
        let Some((memory, _)) = synced_by(method, &path) else { continue };
        memory.store(0, &[1; 8]).unwrap();
        memory.write_back(0, 8).unwrap();
        let judge = |_: &Call| {
            // Long enough for the others to wait.
            thread::sleep(Duration::from_millis(50));
            Verdict::Fail(EIO)
        };
        let act = || {
            thread::scope(|scope| {
                let fences: Vec<_> = (0..4).map(|_| scope.spawn(|| memory.fence().is_err())).collect();
                fences.into_iter().all(|fence| fence.join().unwrap())
            })
        };
        let Some((have_failed, calls)) = available(record(judge, act)) else { return };
        assert!(have_failed, "{method}: all of them wait for the same bytes");
        assert_eq!(calls.len(), 1, "{method}: {calls:?}");
    }
}

#[test]
fn a_flush_covers_nothing_that_was_stored_while_it_ran() {
    for method in SyncMethod::ALL {
        flush_during_a_store(method);
    }
}

fn flush_during_a_store(method: SyncMethod) {
    let Some(directory) = on_disk() else { return };
    let path = directory.path().join("pool");
    let Some((memory, _)) = synced_by(method, &path) else { return };
    let mut is_first = true;
    // Another thread stores while the first fdatasync is under way: the kernel may have passed its page already.
    let judge = |_: &Call| {
        if std::mem::take(&mut is_first) {
            memory.store(4096, &[7; 8]).unwrap();
            memory.write_back(4096, 8).unwrap();
        }
        Verdict::Pass
    };
    let act = || {
        memory.store(0, &[7; 8]).unwrap();
        memory.write_back(0, 8).unwrap();
        memory.fence().unwrap();
        memory.fence().unwrap();
        memory.fence().unwrap();
    };
    let Some(((), calls)) = available(record(judge, act)) else { return };
    assert_eq!(syncs_of(&calls, &path), 2, "the second fence flushes what came during the first: {calls:?}");
}

#[test]
fn a_wait_for_a_flush_before_the_store_flushes_again() {
    for method in SyncMethod::ALL {
        store_during_a_flush(method);
    }
}

fn store_during_a_flush(method: SyncMethod) {
    let Some(directory) = on_disk() else { return };
    let path = directory.path().join("pool");
    let Some((memory, _)) = synced_by(method, &path) else { return };
    let (begun, go) = (Barrier::new(2), Barrier::new(2));
    let mut is_first = true;
    let judge = |_: &Call| {
        if std::mem::take(&mut is_first) {
            begun.wait();
            go.wait();
        }
        Verdict::Pass
    };
    let act = || {
        thread::scope(|scope| {
            memory.write_back(0, 8).unwrap();
            scope.spawn(|| memory.fence().unwrap());
            begun.wait();
            memory.store(8, &[1; 8]).unwrap();
            memory.write_back(8, 8).unwrap();
            let late = scope.spawn(|| memory.fence().unwrap());
            // Long enough for it to come to its wait, or to take the flush under way for its own.
            thread::sleep(Duration::from_millis(50));
            assert!(!late.is_finished(), "what came too late is not durable yet");
            go.wait();
        });
    };
    let Some(((), calls)) = available(record(judge, act)) else { return };
    assert_eq!(syncs_of(&calls, &path), 2, "{calls:?}");
}

#[test]
fn a_fence_reaches_every_part_and_fails_with_any() {
    let Some(directory) = on_disk() else { return };
    let paths = ["a", "b", "c"].map(|name| directory.path().join(name));
    for path in &paths {
        drop(Memory::create(path, 8192, None).unwrap());
    }
    let part = |path: &PathBuf| FilePart {
        file: fs::File::options().read(true).write(true).open(path).unwrap().into(),
        path: path.clone(),
        file_offset: 0,
        len_bytes: 8192,
    };
    let memory = Memory::concatenate(paths.iter().map(part).collect(), true, None).unwrap();
    memory.fence().unwrap();
    let act = || {
        memory.store(0, &vec![3; 3 * 8192]).unwrap();
        memory.write_back(0, 3 * 8192).unwrap();
        memory.fence().unwrap();
        memory.write_back(8192, 8192).unwrap();
        memory.fence().unwrap();
        memory.write_back(8191, 2).unwrap();
        memory.fence().unwrap();
    };
    let Some(((), calls)) = available(observe(act)) else { return };
    assert_eq!(paths.each_ref().map(|path| syncs_of(&calls, path)), [2, 3, 1], "{calls:?}");
    let judge = |call: &Call| if call.is_sync_of(&paths[1]) { Verdict::Fail(EIO) } else { Verdict::Pass };
    let act = || {
        memory.write_back(0, 3 * 8192).unwrap();
        [memory.fence(), memory.fence()]
    };
    let Some((outcomes, _)) = available(record(judge, act)) else { return };
    let [first, second] = outcomes;
    assert!(matches!(&first, Err(MemError::Io { path, .. }) if *path == paths[1]), "{first:?}");
    assert!(second.is_err(), "the part stays poisoned");
}

/// Bytes of the page cache that this thread has made dirty.
fn dirtied_bytes() -> u64 {
    let counts = fs::read_to_string("/proc/thread-self/io").unwrap();
    let line = counts.lines().find_map(|line| line.strip_prefix("write_bytes: ")).unwrap();
    line.parse().unwrap()
}

/// File systems keep what the kernel read ahead in large folios, which a store through a mapping makes dirty as a whole.
#[test]
fn a_small_store_makes_its_page_dirty_and_no_more() {
    const ALL_BYTES: u64 = 64 << 20;
    const STEP_BYTES: u64 = 256 << 10;
    let Some(directory) = on_disk() else { return };
    let path = directory.path().join("pool");
    let memory = Memory::create(&path, ALL_BYTES, None).unwrap();
    let bytes = vec![1; STEP_BYTES as usize];
    for at in (0..ALL_BYTES).step_by(STEP_BYTES as usize) {
        memory.store(at, &bytes).unwrap();
    }
    memory.write_back(0, ALL_BYTES).unwrap();
    memory.fence().unwrap();
    drop(memory);
    for how in ["as it was written", "in large pieces", "for a checksum"] {
        if how != "as it was written" {
            let file = fs::File::open(&path).unwrap();
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        }
        let memory = Memory::open(&path, None).unwrap();
        match how {
            "in large pieces" => read_all(&memory, STEP_BYTES as usize),
            "for a checksum" => assert_ne!(memory.crc32c(0, ALL_BYTES).unwrap(), 0),
            _ => {}
        }
        let before = dirtied_bytes();
        for at in (0..ALL_BYTES).step_by(STEP_BYTES as usize) {
            memory.store(at + 64, &[7; 64]).unwrap();
            memory.write_back(at + 64, 64).unwrap();
        }
        let dirtied = dirtied_bytes() - before;
        memory.fence().unwrap();
        // The file system makes a page of its own dirty now and then; a large folio would be 16 KiB at the least.
        let stored = ALL_BYTES / STEP_BYTES * 4096;
        assert!((stored..2 * stored).contains(&dirtied), "{dirtied} bytes made dirty in a file read {how}");
    }
}

fn read_all(memory: &Memory, piece_bytes: usize) {
    let mut bytes = vec![0; piece_bytes];
    for at in (0..memory.len_bytes()).step_by(piece_bytes) {
        memory.read(at, &mut bytes).unwrap();
    }
}
