use tempfile::tempdir_in;

use super::*;

const DISK: &str = env!("CARGO_MANIFEST_DIR");

/// Between open and lock, the previous holder of the lock may have removed the file: its bytes would be gone with the last descriptor.
#[test]
fn a_lock_on_a_file_without_its_name_is_none() {
    let directory = tempdir_in(DISK).unwrap();
    let path = directory.path().join("part");
    fs::write(&path, vec![0; 4096]).unwrap();
    let part = Part::look(&path).unwrap();
    part.lock(OpenFor::Write).unwrap();
    fs::remove_file(&path).unwrap();
    assert!(matches!(part.lock(OpenFor::Write), Err(PoolSetError::Missing { .. })));
    fs::write(&path, "another's").unwrap();
    assert!(matches!(part.lock(OpenFor::Write), Err(PoolSetError::Missing { .. })));
    part.unlink("").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"another's", "only the file that is locked is removed");
}
