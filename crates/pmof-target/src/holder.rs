//! Who holds the lock of a file, for people.

use std::{
    fs,
    os::{fd::AsFd, unix::fs::MetadataExt as _},
    path::Path,
};

use rustix::fs::{major, minor};

/// What is said where nothing is known.
const SOMEBODY: &str = "another process";

/// Who holds the exclusive lock (`flock`) of the file at `path`, as far as it is known.
pub(crate) fn holder_of(path: &Path) -> String {
    let metadata = fs::metadata(path).ok();
    metadata.and_then(|metadata| find(metadata.dev(), metadata.ino())).unwrap_or_else(|| SOMEBODY.to_owned())
}

/// The same of an open file.
pub(crate) fn holder_of_file(file: impl AsFd) -> String {
    let stat = rustix::fs::fstat(file).ok();
    stat.and_then(|stat| find(stat.st_dev, stat.st_ino)).unwrap_or_else(|| SOMEBODY.to_owned())
}

/// How often the locks are read: the kernel gives them in pieces, and leaves some out where others change meanwhile.
const READS: usize = 4;

fn find(device: u64, inode: u64) -> Option<String> {
    let file = format!("{:02x}:{:02x}:{inode}", major(device), minor(device));
    let process = (0..READS).find_map(|_| process_of(&fs::read_to_string("/proc/locks").ok()?, &file))?;
    Some(describe(process))
}

/// The process that has the exclusive lock of `file`, as `/proc/locks` (proc(5)) names it: `MAJOR:MINOR:INODE`.
fn process_of(locks: &str, file: &str) -> Option<u32> {
    locks.lines().find_map(|line| {
        // Number, kind, mandatory or not, access, process, file, range; of waiting ones an arrow after the number.
        let words: Vec<_> = line.split_whitespace().collect();
        match words[..] {
            [_, "FLOCK", _, "WRITE", process, locked, ..] if locked == file => process.parse().ok(),
            _ => None,
        }
    })
}

/// The process, and who started it through ssh, where that may be read.
fn describe(process: u32) -> String {
    let read = |name: &str| fs::read(format!("/proc/{process}/{name}")).unwrap_or_default();
    let words = |bytes: &[u8]| {
        let texts: Vec<_> = bytes.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
        texts.join(" ").trim().chars().filter(|c| !c.is_control()).take(100).collect::<String>()
    };
    let command = words(&read("cmdline"));
    let environment = read("environ");
    let from = environment.split(|byte| *byte == 0).find_map(|entry| entry.strip_prefix(b"SSH_CONNECTION="));
    let from = from.and_then(|from| from.split(|byte| *byte == b' ').next()).map(words);
    let from = from.map_or_else(String::new, |from| format!(" for an initiator at {from}"));
    format!("process {process}{from} ({command})")
}

#[cfg(test)]
mod tests {
    use rustix::fs::{FlockOperation, flock};

    use super::*;

    #[test]
    fn the_holder_of_a_lock_is_found() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(holder_of(file.path()), SOMEBODY);
        flock(&file, FlockOperation::LockExclusive).unwrap();
        let holder = holder_of(file.path());
        assert_eq!(holder, holder_of_file(&file));
        assert!(holder.contains(&format!("process {}", std::process::id())), "{holder}");
    }

    #[test]
    fn waiting_and_shared_locks_are_not_taken_for_the_holder() {
        let locks = "1: -> FLOCK  ADVISORY  WRITE 7 08:01:5 0 EOF\n2: FLOCK  ADVISORY  READ 8 08:01:5 0 EOF\n\
                     3: POSIX  ADVISORY  WRITE 9 08:01:5 0 EOF\n4: FLOCK  ADVISORY  WRITE 10 08:01:55 0 EOF\n";
        assert_eq!(process_of(locks, "08:01:5"), None);
        assert_eq!(process_of(locks, "08:01:55"), Some(10));
    }
}
