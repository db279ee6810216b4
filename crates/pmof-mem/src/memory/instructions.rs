//! What the CPU carries out for stores, write-backs and fences of each medium, instruction by instruction.

use tempfile::tempdir_in;

use super::{Memory, tests::as_if_dax};
use crate::{
    CacheWriteBack, Declaration, FilePart, Mechanism, Medium, MediumKind,
    cache::steps::{Step, steps},
    line_bytes,
};

/// The lines of a range, by the address of each.
fn lines(memory: &Memory, offset: u64, len_bytes: u64) -> Vec<u64> {
    let line = line_bytes() as u64;
    let (first, last) = (memory.address() + offset, memory.address() + offset + len_bytes - 1);
    (first / line..=last / line).map(|index| index * line).collect()
}

/// The lines written back, by the address of each.
fn written_back(steps: &[Step]) -> Vec<u64> {
    let line = |address: u64| address / line_bytes() as u64 * line_bytes() as u64;
    steps
        .iter()
        .filter_map(|step| if let Step::WriteBack(address) = step { Some(line(*address)) } else { None })
        .collect()
}

#[test]
fn every_line_of_a_range_is_written_back_and_then_fenced() {
    for kind in [MediumKind::FsDax, MediumKind::DevDax] {
        let memory = as_if_dax(kind, Mechanism::CacheLineWriteBack);
        for (offset, len_bytes) in [(0, 1), (63, 2), (64, 64), (1, 64), (5, 4096), (4000, 1000), ((1 << 16) - 1, 1)] {
            let begun = steps(|| memory.write_back(offset, len_bytes).unwrap());
            assert_eq!(written_back(&begun), lines(&memory, offset, len_bytes), "{len_bytes} bytes at {offset}");
            assert!(!begun.contains(&Step::Fence), "one fence is for all that was written back");
        }
        assert_eq!(steps(|| memory.write_back(8, 0).unwrap()), []);
        assert_eq!(steps(|| memory.fence().unwrap()), [Step::Fence]);
    }
}

#[test]
fn where_caches_are_kept_a_fence_is_all_and_never_left_out() {
    let memory = as_if_dax(MediumKind::FsDax, Mechanism::Fence);
    assert_eq!(steps(|| memory.write_back(0, 4096).unwrap()), []);
    assert_eq!(steps(|| memory.fence().unwrap()), [Step::Fence]);
}

#[test]
fn what_is_stored_past_the_caches_is_fenced_before_anybody_hears_of_it() {
    let memory = as_if_dax(MediumKind::DevDax, Mechanism::CacheLineWriteBack);
    let stored = steps(|| memory.store(64, &[7; 512]).unwrap());
    assert_eq!(stored.iter().filter(|step| **step == Step::Streamed).count(), 64, "{stored:?}");
    assert_eq!(stored.last(), Some(&Step::Fence));
    assert_eq!(steps(|| memory.store(64, &[7; 16]).unwrap()), []);
}

#[test]
fn memory_that_is_kept_without_its_caches_has_lines_written_back() {
    assert!(CacheWriteBack::detect().is_some(), "every x86-64 has clflush");
    let directory = tempdir_in("/dev/shm").unwrap();
    let kept = Some(Declaration::MemoryKept);
    let paths = ["a", "b"].map(|name| directory.path().join(name));
    let [one, _] = paths.each_ref().map(|path| Memory::create(path, 8192, kept).unwrap());
    let begun = steps(|| one.write_back(100, 200).unwrap());
    assert_eq!(written_back(&begun), lines(&one, 100, 200));
    assert_eq!(steps(|| one.fence().unwrap()), [Step::Fence]);

    let part = |path: &std::path::PathBuf| FilePart {
        file: std::fs::File::options().read(true).write(true).open(path).unwrap().into(),
        path: path.clone(),
        file_offset: 0,
        len_bytes: 8192,
    };
    let both = Memory::concatenate(paths.iter().map(part).collect(), true, kept).unwrap();
    let begun = steps(|| both.write_back(8000, 400).unwrap());
    assert_eq!(written_back(&begun), lines(&both, 8000, 400), "on both sides of the border");
    let fenced = steps(|| both.fence().unwrap());
    assert!(!fenced.is_empty() && fenced.iter().all(|step| *step == Step::Fence), "{fenced:?}");
}
