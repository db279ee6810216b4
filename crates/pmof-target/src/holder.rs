//! Who holds the lock of a file, for people.

use std::{
    fs, io,
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

/// The processes, other than this one, that have the file mapped for writing, as far as it is known: where the kernel shows what they map, and the
/// file system gives files the numbers there that it gives them elsewhere.
pub(crate) fn processes_that_map(file: impl AsFd) -> String {
    let found = rustix::fs::fstat(file).map_or_else(|_| Vec::new(), |stat| mapping(stat.st_dev, stat.st_ino));
    describe_all(&found).unwrap_or_else(|| SOMEBODY.to_owned())
}

/// The first few of them; `None` where there are none.
fn describe_all(processes: &[u32]) -> Option<String> {
    const NAMED_MAX: usize = 3;
    let named: Vec<_> = processes.iter().take(NAMED_MAX).map(|process| describe(*process)).collect();
    match (named.is_empty(), processes.len().saturating_sub(NAMED_MAX)) {
        (true, _) => None,
        (false, 0) => Some(named.join(", ")),
        (false, more) => Some(format!("{} and {more} more", named.join(", "))),
    }
}

fn mapping(device: u64, inode: u64) -> Vec<u32> {
    let file = format!("{:02x}:{:02x} {inode}", major(device), minor(device));
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    let number = |entry: io::Result<fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse::<u32>().ok();
    let maps = |process: &u32| fs::read_to_string(format!("/proc/{process}/maps")).unwrap_or_default();
    let is_other = |process: &u32| *process != std::process::id();
    processes.filter_map(number).filter(is_other).filter(|process| maps_for_writing(&maps(process), &file)).collect()
}

/// Whether a line of `/proc/PID/maps` (`proc_pid_maps(5)`) is a shared, writable mapping of `file`: `MAJOR:MINOR INODE`.
fn maps_for_writing(maps: &str, file: &str) -> bool {
    maps.lines().any(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        match words[..] {
            [_, access, _, device, inode, ..] => {
                access.contains('w') && access.ends_with('s') && file.split(' ').eq([device, inode])
            }
            _ => false,
        }
    })
}

/// How often the locks are read: the kernel gives them in pieces, and leaves some out where others change meanwhile.
const READS: usize = 4;

fn find(device: u64, inode: u64) -> Option<String> {
    let file = format!("{:02x}:{:02x}:{inode}", major(device), minor(device));
    let process = (0..READS).find_map(|_| process_of(&fs::read_to_string("/proc/locks").ok()?, &file))?;
    // One that has ended is still named where others, to which it handed the file on, have it mapped.
    let is_there = Path::new("/proc").join(process.to_string()).exists();
    let heirs = if is_there { None } else { describe_all(&mapping(device, inode)) };
    Some(heirs.unwrap_or_else(|| describe(process)))
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
    fn shared_writable_mappings_are_found() {
        let maps = "7f00-7f01 rw-s 00000000 fe:00 12   /a\n7f02-7f03 rw-p 00000000 fe:00 13   /b\n\
                    7f04-7f05 r--s 00000000 fe:00 14   /c\n7f06-7f07 rw-p 00000000 00:00 0 \n";
        let is_mapped = |file| maps_for_writing(maps, file);
        assert!(is_mapped("fe:00 12"));
        assert!(!is_mapped("fe:00 13") && !is_mapped("fe:00 14") && !is_mapped("fe:01 12") && !is_mapped("fe:00 1"));
    }

    #[test]
    fn waiting_and_shared_locks_are_not_taken_for_the_holder() {
        let locks = "1: -> FLOCK  ADVISORY  WRITE 7 08:01:5 0 EOF\n2: FLOCK  ADVISORY  READ 8 08:01:5 0 EOF\n\
                     3: POSIX  ADVISORY  WRITE 9 08:01:5 0 EOF\n4: FLOCK  ADVISORY  WRITE 10 08:01:55 0 EOF\n";
        assert_eq!(process_of(locks, "08:01:5"), None);
        assert_eq!(process_of(locks, "08:01:55"), Some(10));
    }
}
