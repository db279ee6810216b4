//! A thinly provisioned disk that runs out of room: ext4 on a loop device over a sparse file on a tmpfs.
//!
//! While the tmpfs is full, blocks of the disk that were never written cannot be: write-back of a file on it fails, and the
//! kernel counts the file's pages as clean from then on. After [`ThinDisk::free`] all works again, but for what was lost.
//!
//! Needs root, `/dev/loop-control` and the tools `mount`, `losetup` and `mkfs.ext4`.

use std::{
    fs::{self, File, OpenOptions},
    io::{ErrorKind, Write as _},
    os::{
        fd::OwnedFd,
        unix::fs::{FileExt as _, OpenOptionsExt as _},
    },
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail, ensure};
use tempfile::TempDir;

/// Of the file system that tests use.
const DISK_BYTES: u64 = 64 << 20;

/// What of it there is room for.
const ROOM_BYTES: u64 = 24 << 20;

/// Alignment of direct reads: that of any disk's blocks.
const ALIGN_BYTES: usize = 4096;

/// Pages of a file that stay in the page cache while this lives, since a pipe refers to them: the kernel else drops clean
/// pages whenever it wants their memory, those whose write-back failed among them.
#[derive(Debug)]
pub struct Cached {
    _pipe: (OwnedFd, OwnedFd),
}

impl Cached {
    /// Bytes of a file, at most what a pipe takes (1 MiB, unless the machine says otherwise).
    pub fn new(path: &Path, offset: u64, len_bytes: usize) -> Result<Self> {
        let file = File::open(path)?;
        let (reader, writer) = rustix::pipe::pipe()?;
        rustix::pipe::fcntl_setpipe_size(&writer, len_bytes)?;
        let (mut at, end) = (offset, offset + len_bytes as u64);
        while at < end {
            let left = usize::try_from(end - at)?;
            let flags = rustix::pipe::SpliceFlags::NONBLOCK;
            let count = rustix::pipe::splice(&file, Some(&mut at), &writer, None, left, flags)
                .with_context(|| format!("keeping {} cached", path.display()))?;
            ensure!(count > 0, "{} ends at {at}", path.display());
        }
        Ok(Self { _pipe: (reader, writer) })
    }
}

/// Undone on drop, whatever the test left.
#[derive(Debug)]
pub struct ThinDisk {
    device: Option<String>,
    directory: TempDir,
}

impl ThinDisk {
    /// The disk, or the reason why this machine cannot have one: to be told as that of a skipped test.
    ///
    /// Errors: a tool that failed although root runs it and there are loop devices.
    pub fn new() -> Result<Result<Self, &'static str>> {
        if !rustix::process::geteuid().is_root() {
            return Ok(Err("only root can mount"));
        }
        if !Path::new("/dev/loop-control").exists() {
            return Ok(Err("there are no loop devices"));
        }
        let tools = ["mount", "losetup", "mkfs.ext4"];
        if tools.iter().any(|tool| Command::new(tool).arg("--version").output().is_err()) {
            return Ok(Err("there is no mount, losetup or mkfs.ext4"));
        }
        let mut disk = Self { device: None, directory: TempDir::new()? };
        disk.make()?;
        Ok(Ok(disk))
    }

    /// As [`new`](Self::new), for tests: `None` where the test is skipped, and has said so. Where `PMOF_THIN_DISK` is set none is.
    ///
    /// # Panics
    /// Where a disk could not be made and should have been.
    pub fn of_test() -> Option<Self> {
        match Self::new().unwrap_or_else(|error| panic!("{error:#}")) {
            Ok(disk) => Some(disk),
            Err(why) if std::env::var_os("PMOF_THIN_DISK").is_none() => {
                skip_report::skipped!("{why}");
                None
            }
            Err(why) => panic!("PMOF_THIN_DISK says that there is one: {why}"),
        }
    }

    fn make(&mut self) -> Result<()> {
        let (room, files) = (self.directory.path().join("room"), self.files());
        fs::create_dir(&room)?;
        fs::create_dir(&files)?;
        run(Command::new("mount").args(["-t", "tmpfs", "-o", &format!("size={ROOM_BYTES}"), "tmpfs"]).arg(&room))?;
        let image = room.join("image");
        File::create(&image)?.set_len(DISK_BYTES)?;
        // Without a journal, which the lack of room would end for good.
        let options = ["-q", "-F", "-O", "^has_journal", "-E", "nodiscard,lazy_itable_init=0"];
        run(Command::new("mkfs.ext4").args(options).arg(&image))?;
        let device = run(Command::new("losetup").args(["--find", "--show"]).arg(&image))?.trim().to_owned();
        self.device = Some(device.clone());
        run(Command::new("mount").args(["-t", "ext4", &device]).arg(&files))?;
        Ok(())
    }

    /// The directory for files whose write-back may fail.
    pub fn files(&self) -> PathBuf {
        self.directory.path().join("files")
    }

    fn filler(&self) -> PathBuf {
        self.directory.path().join("room/filler")
    }

    /// Takes all room that is left. What was written to the disk before stays writable.
    pub fn fill(&self) -> Result<()> {
        rustix::fs::syncfs(File::open(self.files())?)?;
        let mut filler = File::create(self.filler())?;
        let zeros = vec![0; 4096];
        loop {
            match filler.write_all(&zeros) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::StorageFull => return Ok(()),
                Err(error) => return Err(error).context("filling the room"),
            }
        }
    }

    /// Gives it back.
    pub fn free(&self) -> Result<()> {
        fs::remove_file(self.filler()).context("freeing the room")
    }

    /// Cuts off the disk behind its first `len_bytes` bytes: what lies there cannot be read any more (`EIO`).
    pub fn truncate(&self, len_bytes: u64) -> Result<()> {
        rustix::fs::syncfs(File::open(self.files())?)?;
        OpenOptions::new().write(true).open(self.directory.path().join("room/image"))?.set_len(len_bytes)?;
        Ok(())
    }

    /// What the disk has of one of its files, past the page cache, whose dirty pages the kernel writes out first.
    pub fn on_disk(path: &Path) -> Result<Vec<u8>> {
        let direct = i32::try_from(rustix::fs::OFlags::DIRECT.bits())?;
        let file = OpenOptions::new().read(true).custom_flags(direct).open(path)?;
        let len = usize::try_from(file.metadata()?.len())?;
        // Direct reads are of whole blocks; the last one ends where the file does.
        let whole = len.next_multiple_of(ALIGN_BYTES);
        let mut buffer = vec![0; whole + ALIGN_BYTES];
        let lead = buffer.as_ptr().addr().wrapping_neg() % ALIGN_BYTES;
        let mut read_bytes = 0;
        while read_bytes < len {
            let into = &mut buffer[lead + read_bytes..lead + whole];
            let count = file
                .read_at(into, read_bytes as u64)
                .with_context(|| format!("reading {} directly", path.display()))?;
            ensure!(count > 0, "{} became shorter", path.display());
            read_bytes += count;
        }
        Ok(buffer[lead..lead + len].to_vec())
    }
}

impl Drop for ThinDisk {
    fn drop(&mut self) {
        // A test that failed may still hold files; nothing more can be done about a failure here.
        let _ = Command::new("umount").arg("--lazy").arg(self.files()).output();
        if let Some(device) = &self.device {
            let _ = Command::new("losetup").args(["--detach", device]).output();
        }
        let _ = Command::new("umount").arg("--lazy").arg(self.directory.path().join("room")).output();
    }
}

fn run(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("running {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?} failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8(output.stdout)?)
}
