use std::{io::Cursor, os::fd::AsRawFd as _};

use super::*;
use crate::{Durability, Medium as _, MediumKind};

const SMAPS: &str = "\
7f0000000000-7f0000200000 rw-s 00100000 00:1d 1234                       /mnt/pmem/a file\n\
Size:               2048 kB\n\
VmFlags: rd wr sh mr mw me ms sf mm hg\n\
7f0000200000-7f0000300000 r--p 00000000 00:00 0 \n\
VmFlags: rd mr mw me ac sd\n";

#[test]
fn smaps_is_read() {
    let found = parse(Cursor::new(SMAPS), 0x7f00_0000_1000, 0x7f00_0000_2000).unwrap();
    let expected = Area {
        start: 0x7f00_0000_0000,
        end: 0x7f00_0020_0000,
        permissions: *b"rw-s",
        file_offset: 0x10_0000,
        file: (0, 0x1d, 1234),
        path: "/mnt/pmem/a file".into(),
        is_sync: true,
    };
    assert_eq!(found, [expected]);
    let both = parse(Cursor::new(SMAPS), 0x7f00_001f_f000, 0x7f00_0020_1000).unwrap();
    assert_eq!(both.len(), 2);
    assert!(!both[1].is_sync && both[1].permissions == *b"r--p" && both[1].file.2 == 0);
}

#[test]
fn memory_of_the_heap_promises_what_anonymous_memory_does() {
    let mut heap = vec![7_u8; 10_000];
    // SAFETY: the vector outlives the memory and is not touched meanwhile.
    let memory = unsafe { Memory::borrow(heap.as_mut_ptr().expose_provenance() as u64, 10_000, None) }.unwrap();
    assert_eq!((memory.kind(), memory.len_bytes()), (MediumKind::Anonymous, 10_000));
    assert!(memory.promise(Durability::Visible).is_some() && memory.promise(Durability::ProcessCrash).is_none());
    memory.store(9_990, &[9; 10]).unwrap();
    drop(memory);
    assert_eq!((heap[9_989], heap[9_990]), (7, 9));
}

#[test]
fn a_part_of_a_mapped_file_promises_what_the_file_does() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    let whole = Memory::create(&path, 1 << 20, None).unwrap();
    // SAFETY: `whole` outlives it.
    let part = unsafe { Memory::borrow(whole.address() + 8192, 4096, None) }.unwrap();
    assert_eq!(part.kind(), whole.kind());
    assert_eq!(part.promise(Durability::PowerFailure), whole.promise(Durability::PowerFailure));
    assert_eq!((part.path(), part.file_offset()), (path.as_path(), 8192));
    part.store(0, b"here").unwrap();
    part.write_back(0, 4).unwrap();
    part.fence().unwrap();
    let mut found = [0; 4];
    rustix::io::pread(whole.file().unwrap(), &mut found, 8192).unwrap();
    assert_eq!(&found, b"here");
}

#[test]
fn a_file_that_lost_its_name_promises_what_anonymous_memory_does() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    let whole = Memory::create(&path, 1 << 16, None).unwrap();
    std::fs::remove_file(&path).unwrap();
    // SAFETY: `whole` outlives it.
    let part = unsafe { Memory::borrow(whole.address(), 4096, None) }.unwrap();
    assert_eq!(part.kind(), MediumKind::Anonymous);
}

#[test]
fn a_private_mapping_of_a_file_promises_nothing() {
    let file = tempfile::tempfile().unwrap();
    file.set_len(8192).unwrap();
    // SAFETY: a new private mapping at an address of the kernel's choice.
    let start = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            8192,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE,
            file.as_raw_fd(),
            0,
        )
    };
    // SAFETY: the mapping stays.
    let memory = unsafe { Memory::borrow(start.expose_provenance() as u64, 8192, None) }.unwrap();
    assert_eq!(memory.kind(), MediumKind::Anonymous);
}

#[test]
fn what_is_not_there_is_refused() {
    for (address, len_bytes) in [(0, 4096), (u64::MAX - 10, 4096), (4096, 0)] {
        // SAFETY: nothing is there, which is what it has to notice.
        let refused = unsafe { Memory::borrow(address, len_bytes, None) };
        assert!(matches!(refused, Err(MemError::BadLength { .. })), "{address}: {refused:?}");
    }
}

#[test]
fn other_threads_may_map_meanwhile() {
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut kept = std::collections::VecDeque::new();
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    kept.push_back(vec![1_u8; 300_000]);
                    if kept.len() > 16 {
                        kept.pop_front();
                    }
                }
            });
        }
        for _ in 0..200 {
            let mut heap = vec![7_u8; 65_536];
            // SAFETY: the vector outlives the memory and is not touched meanwhile.
            let memory = unsafe { Memory::borrow(heap.as_mut_ptr().expose_provenance() as u64, 65_536, None) };
            assert!(memory.is_ok(), "{memory:?}");
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}
