//! Archives for the initial RAM disk, in the format `newc` (Linux, `Documentation/driver-api/early-userspace/buffer-format.rst`).

/// An archive in the making.
#[derive(Debug, Default)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const CHARACTER_DEVICE: u32 = 0o020_600;

impl Archive {
    pub(crate) fn directory(&mut self, path: &str) {
        self.entry(path, DIRECTORY, (0, 0), &[]);
    }

    /// A file that everybody may execute.
    pub(crate) fn file(&mut self, path: &str, content: &[u8]) {
        self.entry(path, PROGRAM, (0, 0), content);
    }

    pub(crate) fn character_device(&mut self, path: &str, major_minor: (u32, u32)) {
        self.entry(path, CHARACTER_DEVICE, major_minor, &[]);
    }

    /// The whole archive.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.entries = 0;
        self.entry("TRAILER!!!", 0, (0, 0), &[]);
        self.bytes
    }

    /// # Panics
    /// Where the content has 4 GiB or more, which the format cannot say.
    fn entry(&mut self, path: &str, mode: u32, (major, minor): (u32, u32), content: &[u8]) {
        let length = u32::try_from(content.len()).expect("a file of the initial RAM disk is below 4 GiB");
        let name_length = u32::try_from(path.len() + 1).expect("a path is below 4 GiB");
        let inode = self.entries;
        self.entries += 1;
        self.bytes.extend_from_slice(b"070701");
        // inode, mode, uid, gid, links, mtime, size, device (2), device of the node (2), length of the name, checksum
        for field in [inode, mode, 0, 0, 1, 0, length, 0, 0, major, minor, name_length, 0] {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_is_aligned_and_the_trailer_closes() {
        let mut archive = Archive::default();
        archive.directory("dev");
        archive.character_device("dev/console", (5, 1));
        archive.file("init", b"#!/bin/sh\n");
        let bytes = archive.finish();
        assert_eq!(bytes.len() % 4, 0);
        let text = String::from_utf8_lossy(&bytes);
        assert_eq!(text.matches("070701").count(), 4);
        assert!(text.trim_end_matches('\0').ends_with("TRAILER!!!"));
        // The first header has 110 bytes, then comes the name.
        assert_eq!(&bytes[110..114], b"dev\0");
        assert_eq!(&bytes[14..22], b"000041ed");
        let at = text.find("dev/console").unwrap() - 110;
        assert_eq!(&bytes[at + 78..at + 94], b"0000000500000001");
    }

    /// The reference reader is the one that the host has, where it has one.
    #[test]
    fn busybox_reads_it() {
        let mut archive = Archive::default();
        archive.directory("d");
        archive.file("d/odd", b"12345");
        let list = std::process::Command::new("busybox")
            .args(["cpio", "-t"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::null())
            .spawn();
        let Ok(mut list) = list else { return };
        std::io::Write::write_all(&mut list.stdin.take().unwrap(), &archive.finish()).unwrap();
        let output = list.wait_with_output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "d\nd/odd\n");
    }
}
