use std::{fs, io::Write};

use tempfile::NamedTempFile;

use super::*;

const WINDOW: u64 = WINDOW_BYTES as u64;

fn windows(source: &Source) -> Vec<Window> {
    let mut offset = 0;
    std::iter::from_fn(|| {
        // A dirty buffer: what is not read must be zeroed.
        let window = source.next_window(offset, vec![0xee; WINDOW_BYTES]).expect("a read")?;
        offset = window.offset + WINDOW;
        Some(window)
    })
    .collect()
}

#[test]
fn data_is_read_and_holes_are_skipped() {
    let file = NamedTempFile::new().expect("a file");
    file.as_file().set_len(20 * WINDOW + 100).expect("longer");
    let pieces: [(u64, &[u8]); 3] = [(5000, b"first"), (7 * WINDOW - 3, b"across"), (20 * WINDOW + 90, b"the end...")];
    for (offset, bytes) in pieces {
        file.as_file().write_all_at(bytes, offset).expect("a write");
    }
    let source = Source::open(file.path()).expect("a source");
    let windows = windows(&source);
    let whole = fs::read(file.path()).expect("the file");
    let mut rebuilt = vec![0; whole.len()];
    for window in &windows {
        let at = window.offset as usize;
        assert_eq!(window.bytes, whole[at..at + window.bytes.len()], "at {at}");
        for range in &window.data {
            rebuilt[at + range.start..at + range.end].copy_from_slice(&window.bytes[range.clone()]);
        }
    }
    assert!(rebuilt == whole);
    assert!(windows.len() < 20, "{} windows: nothing was skipped", windows.len());
    source.check_length().expect("as it was");
}

#[test]
fn a_changed_length_is_reported() {
    let mut file = NamedTempFile::new().expect("a file");
    file.write_all(&[7; 10_000]).expect("a write");
    let source = Source::open(file.path()).expect("a source");
    assert_eq!((source.len_bytes(), windows(&source).len()), (10_000, 1));
    for after in [9_999, 0, 10_001] {
        file.as_file().set_len(after).expect("another length");
        let error = source.check_length().expect_err("changed");
        assert!(
            matches!(error, CopyError::LengthChanged { before_bytes: 10_000, after_bytes, .. } if after_bytes == after)
        );
        // What is read of it meanwhile is no matter: the length is looked at last.
        let read = source.next_window(0, Vec::new());
        assert!(matches!(read, Ok(_) | Err(CopyError::LengthChanged { .. })));
    }
}

#[test]
fn only_regular_files_are_opened() {
    let directory = tempfile::tempdir().expect("a directory");
    let fifo = directory.path().join("fifo");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).expect("a FIFO");
    for path in [directory.path(), &fifo, Path::new("/dev/zero")] {
        assert!(matches!(Source::open(path), Err(CopyError::NotAFile { .. })), "{}", path.display());
    }
    assert!(matches!(Source::open(&directory.path().join("missing")), Err(CopyError::Io { call: "open", .. })));
}
