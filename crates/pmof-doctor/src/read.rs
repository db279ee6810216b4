//! Bounded reading of sysfs and procfs.

use std::{
    fs::{self, File},
    io::Read,
    path::{Path, PathBuf},
};

/// What is longer is not read: mount tables of busy hosts stay far below.
const FILE_MAX_BYTES: u64 = 4 << 20;

/// The text of a file without the blanks at its ends; `None` where it is missing, unreadable, empty or too long. Bytes that
/// are no UTF-8 are replaced.
pub(crate) fn text(path: &Path) -> Option<String> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(FILE_MAX_BYTES + 1).read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes).trim().to_owned();
    (bytes.len() as u64 <= FILE_MAX_BYTES && !text.is_empty()).then_some(text)
}

/// A decimal number in a file.
pub(crate) fn number<T: std::str::FromStr>(path: &Path) -> Option<T> {
    text(path)?.parse().ok()
}

/// The NUMA node in a device's directory; the kernel writes -1 where it knows none.
pub(crate) fn numa_node(directory: &Path) -> Option<u32> {
    number(&directory.join("numa_node"))
}

/// The entries of a directory, sorted as people count; empty where it cannot be listed.
pub(crate) fn entries(directory: &Path) -> Vec<(String, PathBuf)> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let mut names: Vec<_> =
        entries.flatten().filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path()))).collect();
    names.sort_by_key(|(name, _)| {
        let digits = name.trim_start_matches(|letter: char| !letter.is_ascii_digit());
        let count = digits.split(|letter: char| !letter.is_ascii_digit()).next().and_then(|text| text.parse().ok());
        (name[..name.len() - digits.len()].to_owned(), count.unwrap_or(u64::MAX), name.clone())
    });
    names
}

/// The last name that a link points to, as that of a driver.
pub(crate) fn link_name(path: &Path) -> Option<String> {
    Some(fs::read_link(path).ok()?.file_name()?.to_str()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_read_is_none_and_names_are_counted() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::write(path("node10"), " 12\n").unwrap();
        fs::write(path("node9"), [0xff, b'x']).unwrap();
        fs::write(path("empty"), "\n").unwrap();
        assert_eq!(number::<u32>(&path("node10")), Some(12));
        assert_eq!(text(&path("node9")).unwrap(), "\u{fffd}x");
        assert_eq!((text(&path("empty")), text(&path("none")), text(directory.path())), (None, None, None));
        File::create(path("long")).unwrap().set_len(FILE_MAX_BYTES + 1).unwrap();
        assert_eq!(text(&path("long")), None);
        let names: Vec<_> = entries(directory.path()).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["empty", "long", "node9", "node10"]);
    }
}
