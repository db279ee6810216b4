//! Copies a pool to a file.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::FileExt,
    path::Path,
    sync::mpsc,
    thread,
};

use anyhow::Context;
use pmof::{Durability, PoolUrl};
use pmof_mem::MemError;
use pmof_pool_set::part_header;
use pmof_terms::NATIVE_MAGIC;

use super::{
    Copied, CpArgs, Degraded, WINDOW_BYTES, WINDOWS_WAITING,
    checksums::Checksums,
    differs,
    error::CopyError,
    mark,
    moment::{Moment, PoolSource},
    progress::Progress,
    verify,
};
use crate::{
    failure, named,
    new_file::{NewFile, directory_of, sync_name},
    unequal::Unequal,
};

/// Zeroes are left out of the file by the block of this size: the smallest hole of the usual file systems.
const BLOCK_BYTES: usize = 4096;
const ZEROES: [u8; BLOCK_BYTES] = [0; BLOCK_BYTES];

/// Copies a pool into `destination`, which appears when it is complete, durable and verified.
pub(super) fn download(url: &PoolUrl, destination: &Path, args: &CpArgs) -> anyhow::Result<Copied> {
    check_destination(destination, args.force)?;
    let options = args.pool(url).require(Durability::Visible);
    let source = match &args.at_point {
        // Fewer members than are safe have to be asked for, and points have nothing to do with them.
        None => PoolSource::open(&options, args.min_replicas.is_none())?,
        Some(point) => PoolSource::at_point(&options, point)?,
    };
    match copy_of(&source, url, destination, args) {
        Err(error) if source.has_lost_its_point(&error) => {
            copy_of(&PoolSource::open(&options, false)?, url, destination, args)
        }
        copied => copied,
    }
}

fn copy_of(source: &PoolSource, url: &PoolUrl, destination: &Path, args: &CpArgs) -> anyhow::Result<Copied> {
    let pool = source.pool();
    let is_at_point = source.is_at_point();
    if !is_at_point {
        named::check_members(pool, &args.named(url).collect::<Vec<_>>())?;
    }
    let degraded = Degraded::of(pool, args.min_replicas.is_some()).filter(|_| !is_at_point);
    if let Some(degraded) = &degraded {
        failure::warn_as(&degraded.to_string(), &format!("pmof cp: {degraded}"));
    }
    let size_bytes = pool.len_bytes();
    let len_bytes = mark::decode(&pool.user_flags()).unwrap_or(size_bytes);
    if len_bytes > size_bytes {
        return Err(CopyError::BadMark { stated_bytes: len_bytes, size_bytes }.into());
    }
    let target = Destination::create(destination, len_bytes)?;
    let checksums = receive(source, &target, &args.progress("copying", len_bytes))?;
    target.sync()?;
    let mut compared = 0;
    if !args.no_verify {
        let replicas = source.to_compare();
        compared = replicas.len();
        let progress = args.progress("verifying", len_bytes * (replicas.len() as u64 + 1));
        target.verify(&checksums, &progress)?;
        if let Some(found) = verify(pool, &replicas, &checksums, &progress)? {
            // Which of them is wrong is not known: the copy is what one of them has.
            let unequal = Unequal::find(pool, &replicas, found.1.offset, found.1.len_bytes)?;
            source.check_difference(unequal.map_or_else(|| differs(pool, found), CopyError::Unequal))?;
        }
    }
    let moment = source.moment();
    if matches!(moment, Moment::Written(_)) {
        compared = 0;
    }
    let pool_uuid = pool.uuid();
    target.publish(args.force)?;
    Ok(Copied { pool_uuid, len_bytes, moved_bytes: len_bytes, receipt: None, degraded, compared, moment: Some(moment) })
}

/// Whether a new file may take this path.
pub(crate) fn check_destination(path: &Path, force: bool) -> Result<(), CopyError> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(CopyError::io("stat", path, error)),
        Ok(metadata) if !metadata.is_file() => Err(CopyError::NotReplaced { path: path.into() }),
        Ok(_) if !force => Err(CopyError::Exists { path: path.into() }),
        Ok(_) => pool_in(path).map_or(Ok(()), |found| Err(CopyError::Pool { path: path.into(), found })),
    }
}

/// Which pool a file is or is a part of, perhaps the one being copied. `None` if it cannot be read.
fn pool_in(path: &Path) -> Option<&'static str> {
    let mut begin = [0; 8];
    if File::open(path).and_then(|file| file.read_exact_at(&mut begin, 0)).is_ok() && begin == NATIVE_MAGIC {
        return Some("a pool of a target (it begins with PMOFPOOL)");
    }
    part_header(path).is_ok().then_some("a part of a pool set")
}

/// Reads the pool while windows read before are written on a thread of their own.
fn receive(source: &PoolSource, target: &Destination, progress: &Progress) -> anyhow::Result<Checksums> {
    let (filled, windows) = mpsc::sync_channel::<(u64, Vec<u8>)>(WINDOWS_WAITING);
    let (emptied, buffers) = mpsc::channel();
    thread::scope(|scope| {
        let writer = scope.spawn(move || {
            for (offset, bytes) in windows {
                target.write_sparse(offset, &bytes)?;
                // The buffer is not needed once everything is read.
                let _ = emptied.send(bytes);
            }
            Ok(())
        });
        let mut checksums = Checksums::new(target.len_bytes);
        let mut offset = 0;
        while offset < target.len_bytes {
            let mut bytes = buffers.try_recv().unwrap_or_default();
            bytes.resize((target.len_bytes - offset).min(WINDOW_BYTES as u64) as usize, 0);
            source.read(offset, &mut bytes)?;
            checksums.add(offset, &bytes);
            let len_bytes = bytes.len() as u64;
            if filled.send((offset, bytes)).is_err() {
                // The writer stopped; its error is reported below.
                break;
            }
            offset += len_bytes;
            progress.set(offset);
        }
        checksums.finish();
        drop(filled);
        let written: Result<(), CopyError> = match writer.join() {
            Ok(written) => written,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        written.map(|()| checksums).map_err(Into::into)
    })
}

/// The file that a pool is copied to.
struct Destination {
    new: NewFile,
    len_bytes: u64,
}

impl Destination {
    /// A sparse file of zeroes in the directory of its final path.
    fn create(path: &Path, len_bytes: u64) -> Result<Self, CopyError> {
        let new =
            NewFile::create(path, ".pmof-cp.").map_err(|error| CopyError::io("open", directory_of(path), error))?;
        let destination = Self { new, len_bytes };
        destination.file().set_len(len_bytes).map_err(|error| destination.failed("ftruncate", error))?;
        Ok(destination)
    }

    fn file(&self) -> &File {
        self.new.file()
    }

    /// Writes all blocks that are not zeroes, adjacent ones with one call.
    fn write_sparse(&self, offset: u64, bytes: &[u8]) -> Result<(), CopyError> {
        let mut start = 0;
        while start < bytes.len() {
            let is_zero = |block: &[u8]| *block == ZEROES[..block.len()];
            let blocks = bytes[start..].chunks(BLOCK_BYTES);
            let first_is_zero = blocks.clone().next().is_some_and(is_zero);
            let run_bytes: usize = blocks.take_while(|block| is_zero(block) == first_is_zero).map(<[u8]>::len).sum();
            let end = start + run_bytes;
            if !first_is_zero {
                let written = self.file().write_all_at(&bytes[start..end], offset + start as u64);
                written.map_err(|error| self.failed("write", error))?;
            }
            start = end;
        }
        Ok(())
    }

    fn sync(&self) -> Result<(), CopyError> {
        self.file().sync_all().map_err(|error| self.failed("fsync", error))
    }

    /// Reads the file again and compares it with what was received.
    fn verify(&self, expected: &Checksums, progress: &Progress) -> Result<(), CopyError> {
        let mut bytes = vec![0; WINDOW_BYTES];
        for window in expected.windows() {
            let found = &mut bytes[..window.len_bytes];
            self.file().read_exact_at(found, window.offset).map_err(|error| self.failed("read", error))?;
            if crc32c::crc32c(found) != window.checksum {
                let (offset, len_bytes) = (window.offset, window.len_bytes);
                return Err(CopyError::FileDiffers { path: self.new.path().into(), offset, len_bytes });
            }
            progress.advance(window.len_bytes as u64);
        }
        Ok(())
    }

    /// Gives the file its name, durably.
    fn publish(self, force: bool) -> anyhow::Result<()> {
        let path = self.new.path().to_owned();
        self.new.publish(force).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => CopyError::Exists { path: path.clone() },
            _ => CopyError::io("rename", &path, error),
        })?;
        sync_name(&path).with_context(|| format!("{} is complete, but fsync of its directory failed", path.display()))
    }

    fn failed(&self, call: &'static str, error: io::Error) -> CopyError {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                CopyError::NoSpace { directory: directory_of(self.new.path()).into(), len_bytes: self.len_bytes }
            }
            io::ErrorKind::FileTooLarge => CopyError::TooLong(MemError::too_long(self.new.path(), self.len_bytes)),
            _ => CopyError::io(call, self.new.path(), error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_of_a_target_is_not_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pool");
        for (begin, is_pool) in [(&b"PMOFPOOL and more"[..], true), (b"PMOFPOO", false), (b"anything else", false)] {
            fs::write(&path, begin).unwrap();
            match check_destination(&path, true) {
                Ok(()) => assert!(!is_pool),
                Err(CopyError::Pool { path: told, .. }) => assert!(is_pool && told == path),
                Err(error) => panic!("{error}"),
            }
            assert!(matches!(check_destination(&path, false), Err(CopyError::Exists { .. })));
        }
    }

    #[test]
    fn what_does_not_fit_is_reported_with_the_room_there_is() {
        let directory = tempfile::tempdir().unwrap();
        let file = Destination::create(&directory.path().join("copy"), 1 << 20).unwrap();
        for (kind, words) in [
            (io::ErrorKind::StorageFull, "no room for 1048576 bytes"),
            (io::ErrorKind::QuotaExceeded, "no room for 1048576 bytes"),
            (
                io::ErrorKind::FileTooLarge,
                "would have 1048576 bytes, and its file system does not support files of that length",
            ),
            (io::ErrorKind::PermissionDenied, "write of"),
        ] {
            let text = file.failed("write", kind.into()).to_string();
            assert!(text.contains(words), "{text}");
        }
    }
}
