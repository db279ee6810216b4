use std::{fs, os::fd::AsFd, os::unix::fs::MetadataExt, path::Path};

use rustix::io::Errno;

use super::{ZEROS_BYTES, allocate, create_whole, map_error, reserve, space_error, unnamed_file, write_zeros};
use crate::MemError;

#[test]
fn writing_takes_the_room_where_allocation_cannot() {
    let file = tempfile::tempfile_in("/dev/shm").unwrap();
    let len_bytes = 2 * ZEROS_BYTES as u64 + 7;
    write_zeros(file.as_fd(), Path::new("zeros"), len_bytes).unwrap();
    let found = file.metadata().unwrap();
    assert_eq!(found.len(), len_bytes);
    assert!(found.blocks() * 512 >= len_bytes);
}

#[test]
fn allocation_counts_as_blocks() {
    for directory in ["/dev/shm", env!("CARGO_MANIFEST_DIR")] {
        let file = tempfile::tempfile_in(directory).unwrap();
        allocate(file.as_fd(), Path::new("file"), 1 << 20).unwrap();
        assert!(file.metadata().unwrap().blocks() * 512 >= 1 << 20);
    }
}

/// Beyond what the file systems can ever hold, so that nothing is taken while it is refused.
#[test]
fn the_kernels_own_refusal_is_no_space() {
    let refused = |outcome: Result<(), MemError>| match outcome {
        // ext4 has no files as long as that.
        Err(MemError::NoSpace { len_bytes, .. } | MemError::TooLong { len_bytes, limit_bytes: None, .. }) => len_bytes,
        other => panic!("{other:?}"),
    };
    for directory in ["/dev/shm", env!("CARGO_MANIFEST_DIR")] {
        let file = tempfile::tempfile_in(directory).unwrap();
        assert_eq!(refused(reserve(file.as_fd(), Path::new("file"), 1 << 46)), 1 << 46);
    }
    for errno in [Errno::NOSPC, Errno::DQUOT] {
        assert!(matches!(space_error("pwrite", Path::new("file"), 1, errno), MemError::NoSpace { .. }));
    }
    let too_long = space_error("pwrite", Path::new("file"), 1, Errno::FBIG);
    assert!(matches!(too_long, MemError::TooLong { limit_bytes: None, .. }), "{too_long:?}");
}

#[test]
fn a_created_file_goes_unless_it_is_kept() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pool");
    drop(create_whole(&path, 4096).unwrap());
    assert!(!path.exists());
    create_whole(&path, 4096).unwrap().1.keep();
    assert!(path.exists());
    // Another file has the name by now.
    fs::remove_file(&path).unwrap();
    let made = create_whole(&path, 4096).unwrap();
    fs::remove_file(&path).unwrap();
    fs::write(&path, "another's").unwrap();
    drop(made);
    assert_eq!(fs::read(&path).unwrap(), b"another's");
}

#[test]
fn a_probe_file_has_no_name() {
    let directory = tempfile::tempdir().unwrap();
    let file = unnamed_file(directory.path(), 4096).unwrap();
    assert_eq!(rustix::fs::fstat(&file).unwrap().st_size, 4096);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

/// A limit of this process is not the file system's fault.
#[test]
fn a_mapping_without_room_is_told_from_one_that_is_refused() {
    for (errno, words) in
        [(Errno::NOMEM, "vm.max_map_count"), (Errno::AGAIN, "ulimit -l"), (Errno::NODEV, "shared mappings")]
    {
        let text = map_error(Path::new("/pool"), errno).to_string();
        assert!(text.contains(words) && text.contains("mmap of /pool"), "{text}");
    }
}
