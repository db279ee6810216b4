//! Remembers what was measured of a file system, in a file of a cache directory.
//!
//! The file is text. Its first lines name the version and what it was measured on: file system, device with its serial number, kernel, mount
//! options. A file that names anything else, or is damaged, counts as missing. Nothing in it can make a method usable that is not: a false
//! one costs time, not bytes.
//!
//! ```text
//! pmof sync times 1
//! on ext4 /dev/sda1 8:1 Linux 6.12.1 rw,relatime serial=S3Z9
//! 512 1 15 fdatasync=70500/1000 msync=71300/1011 fdatasync
//! 512 16 15 fdatasync=17800/1000 msync=16900/949 msync
//! ...
//! crc32c 1b2c3d4e
//! ```

use std::{
    fmt::Write as _,
    fs,
    io::{self, Read as _, Write as _},
    os::{
        fd::AsFd as _,
        unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    },
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::{
    fs::{CWD, FlockOperation, Mode, OFlags, flock},
    io::Errno,
};

use crate::{
    MediumKind, MemError, SYSFS_ROOT, SyncCell, SyncChoice, SyncContender, SyncMeasurement, SyncMethod, SyncTime,
    causes, file::io_error, measure_sync, mounts::Mount, open_to_read, sysfs::attribute,
};

const FIRST_LINE: &str = "pmof sync times 1";

/// What a cache file may have at most.
const FILE_MAX_BYTES: u64 = 16 << 10;

/// Attributes in a disk's directory in sysfs that tell one disk from another of the same kind.
const DISK_ATTRIBUTES: [&str; 6] = ["wwid", "device/wwid", "device/serial", "serial", "size", "queue/write_cache"];

/// Where a choice comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SyncSource {
    /// It was measured now.
    Measured(SyncMeasurement),
    /// It was measured before on the same file system.
    Cached(SyncMeasurement),
    /// Nothing was measured: `fdatasync`.
    Usual {
        /// The reason, a sentence.
        why: String,
    },
}

impl SyncSource {
    /// The method for each length of writes and number of clients.
    pub fn choice(&self) -> SyncChoice {
        match self {
            Self::Measured(measurement) | Self::Cached(measurement) => measurement.choice(),
            Self::Usual { .. } => SyncChoice::default(),
        }
    }
}

/// Measurements of file systems, each in a file of a directory.
#[derive(Clone, Debug)]
pub struct SyncCache {
    directory: PathBuf,
}

impl SyncCache {
    /// In this directory, which is made when something is kept.
    pub fn new(directory: PathBuf) -> Self {
        Self { directory }
    }

    /// What is known of the file system of `root`, a directory. Where nothing is, it is measured for about `limit` and kept; without a limit, and where
    /// another process is measuring, `fdatasync` has to do.
    pub fn choose(&self, root: &Path, limit: Option<Duration>) -> SyncSource {
        let usual = |error: MemError| SyncSource::Usual { why: causes(&error).to_string() };
        let identity = match Identity::of(root) {
            Ok(identity) => identity,
            Err(error) => return usual(error),
        };
        if !SyncMethod::Msync.is_usable(MediumKind::PageCache, &identity.file_system) {
            let why = format!("on {} only fdatasync is durable by rule", identity.file_system);
            return SyncSource::Usual { why };
        }
        if let Some(measurement) = self.load(&identity) {
            return SyncSource::Cached(measurement);
        }
        let Some(limit) = limit else { return SyncSource::Usual { why: "nothing was measured yet".into() } };
        let _lock = match self.lock(&identity) {
            Ok(Some(lock)) => lock,
            Ok(None) => return SyncSource::Usual { why: "another process is measuring".into() },
            // What is not kept would be measured at each start.
            Err(error) => return SyncSource::Usual { why: format!("{}: {error}", self.directory.display()) },
        };
        match measure_sync(root, limit, false) {
            Ok(measurement) if measurement.cells.is_empty() => {
                SyncSource::Usual { why: format!("the disk is too slow to be measured in {limit:?}") }
            }
            Ok(measurement) => {
                let _ = self.keep(&identity, &measurement);
                SyncSource::Measured(measurement)
            }
            Err(error) => usual(error),
        }
    }

    /// Keeps a measurement of the file system of `root` for later.
    ///
    /// Errors: `Io` where the directory of the cache cannot be written.
    pub fn remember(&self, root: &Path, measurement: &SyncMeasurement) -> Result<(), MemError> {
        let identity = Identity::of(root)?;
        self.keep(&identity, measurement).map_err(|error| io_error("write", &self.path_of(&identity), "", error))
    }

    fn path_of(&self, identity: &Identity) -> PathBuf {
        self.directory.join(format!("sync-{:08x}", crc32c::crc32c(identity.line.as_bytes())))
    }

    /// The right to measure. `None` where another process has it.
    fn lock(&self, identity: &Identity) -> io::Result<Option<fs::File>> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.directory)?;
        let path = self.path_of(identity).with_extension("lock");
        let file = fs::OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(file)),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    fn load(&self, identity: &Identity) -> Option<SyncMeasurement> {
        let mut text = String::new();
        open_to_read(&self.path_of(identity)).ok()?.take(FILE_MAX_BYTES).read_to_string(&mut text).ok()?;
        parse(&text, identity)
    }

    fn keep(&self, identity: &Identity, measurement: &SyncMeasurement) -> io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.directory)?;
        let path = self.path_of(identity);
        let unfinished = path.with_extension(format!("new-{}", std::process::id()));
        let mut options = fs::OpenOptions::new();
        let mut file = options.write(true).create_new(true).mode(0o600).open(&unfinished)?;
        let outcome =
            file.write_all(text_of(identity, measurement).as_bytes()).and_then(|()| fs::rename(&unfinished, path));
        outcome.inspect_err(|_| {
            let _ = fs::remove_file(&unfinished);
        })
    }
}

/// What a measurement is valid for.
#[derive(Clone, Debug)]
struct Identity {
    file_system: String,
    device: u64,
    /// All of it in one line.
    line: String,
}

impl Identity {
    fn of(root: &Path) -> Result<Self, MemError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::openat(CWD, root, flags, Mode::empty())
            .map_err(|errno| io_error("open", root, "the directory must exist", errno))?;
        let stat = rustix::fs::fstat(&directory).map_err(|errno| io_error("fstat", root, "", errno))?;
        let mount = Mount::of("/proc".as_ref(), directory.as_fd());
        let mount = mount.ok_or_else(|| io_error("read", root, "mount procfs", io::ErrorKind::NotFound))?;
        let kernel = attribute("/proc/sys/kernel".as_ref(), "osrelease").unwrap_or_default();
        let (major, minor) = mount.device;
        let (file_system, source, options) = (&mount.file_system, &mount.source, mount.options.join(","));
        let mut line = format!("{file_system} {source} {major}:{minor} Linux {kernel} {options}");
        for (name, value) in disk_attributes(major, minor) {
            let _ = write!(line, " {name}={value}");
        }
        // One line, whatever a device says.
        let line = line.replace(char::is_control, "?");
        Ok(Self { file_system: mount.file_system, device: stat.st_dev, line })
    }
}

fn disk_attributes(major: u32, minor: u32) -> Vec<(&'static str, String)> {
    let link = Path::new(SYSFS_ROOT).join(format!("dev/block/{major}:{minor}"));
    let Ok(directory) = fs::canonicalize(link) else { return Vec::new() };
    let is_partition = directory.join("partition").exists();
    let disk = if is_partition { directory.parent().unwrap_or(&directory) } else { &directory };
    let said = |name: &'static str| Some((name, attribute(disk, name)?.trim().to_owned()));
    DISK_ATTRIBUTES.into_iter().filter_map(said).collect()
}

fn text_of(identity: &Identity, measurement: &SyncMeasurement) -> String {
    let mut text = format!("{FIRST_LINE}\non {}\n", identity.line);
    for cell in &measurement.cells {
        let _ = write!(text, "{} {} {}", cell.size_bytes, cell.client_count, cell.round_count);
        for time in &cell.times {
            // Fences only: the rest is for information.
            if let SyncContender::Fence(method) = time.contender {
                let _ = write!(text, " {method}={}/{}", time.median_ns, time.to_fdatasync_permille);
            }
        }
        let _ = writeln!(text, " {}", cell.chosen);
    }
    let crc = crc32c::crc32c(text.as_bytes());
    let _ = writeln!(text, "crc32c {crc:08x}");
    text
}

fn parse(text: &str, identity: &Identity) -> Option<SyncMeasurement> {
    let at = text.rfind("crc32c ")?;
    let (body, end) = text.split_at(at);
    let crc = u32::from_str_radix(end.strip_prefix("crc32c ")?.strip_suffix('\n')?, 16).ok()?;
    let mut lines = body.lines();
    if crc != crc32c::crc32c(body.as_bytes()) || lines.next()? != FIRST_LINE {
        return None;
    }
    if lines.next()?.strip_prefix("on ")? != identity.line {
        return None;
    }
    let cells: Vec<_> = lines.map(parse_cell).collect::<Option<_>>()?;
    let wanted = SyncChoice::SIZES_BYTES.into_iter().flat_map(|size| SyncChoice::CLIENTS.map(|count| (size, count)));
    let found = cells.iter().map(|cell| (cell.size_bytes, cell.client_count));
    if !wanted.eq(found) {
        return None;
    }
    Some(SyncMeasurement { file_system: identity.file_system.clone(), device: identity.device, cells })
}

fn parse_cell(line: &str) -> Option<SyncCell> {
    let mut words = line.split(' ');
    let (size_bytes, client_count) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let round_count = words.next()?.parse().ok()?;
    let mut words: Vec<_> = words.collect();
    let chosen = words.pop()?.parse().ok()?;
    let times = words.into_iter().map(|word| {
        let (method, times) = word.split_once('=')?;
        let (median_ns, to_fdatasync) = times.split_once('/')?;
        Some(SyncTime {
            contender: SyncContender::Fence(method.parse().ok()?),
            median_ns: median_ns.parse().ok()?,
            to_fdatasync_permille: to_fdatasync.parse().ok()?,
        })
    });
    Some(SyncCell { size_bytes, client_count, round_count, times: times.collect::<Option<_>>()?, chosen })
}

#[cfg(test)]
mod tests;
