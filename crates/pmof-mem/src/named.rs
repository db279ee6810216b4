//! Files whose names come from a command line or a configuration: opened without blocking, whatever has the name.

use std::{fs::File, io, path::Path};

use rustix::{
    fs::{FileType, Mode, OFlags, Stat},
    io::Errno,
};

/// The device `/dev/null`, which reads as an empty file.
const NULL_DEVICE: (u32, u32) = (1, 3);

/// Opens a regular file, or `/dev/null`, for reading, through links too.
///
/// # Errors
/// `InvalidInput` with what it is instead (a pipe, say), before anything is read of it; those of opening.
pub fn open_to_read(path: &Path) -> io::Result<File> {
    // Without NONBLOCK a pipe would wait for a writer.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = open(path, flags)?;
    let stat = rustix::fs::fstat(&file)?;
    match kind_of(&stat) {
        None => Ok(file),
        Some(_) if is_null(&stat) => Ok(file),
        Some(kind) => Err(wrong(kind, "name a regular file")),
    }
}

/// Opens a file for appending, which is created if it does not exist; a character device, such as a terminal or a serial port; or a pipe that
/// has a reader. Writes block as usual, with `is_synchronous` until the medium has them.
///
/// # Errors
/// `InvalidInput` with what it is instead, a pipe without a reader among it; those of opening.
pub fn open_to_append(path: &Path, is_synchronous: bool) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let read_by_all = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::WGRP | Mode::ROTH | Mode::WOTH;
    let file = match rustix::fs::open(path, if is_synchronous { flags | OFlags::SYNC } else { flags }, read_by_all) {
        Ok(file) => File::from(file),
        Err(Errno::NXIO) => return Err(wrong("a pipe that nobody reads, or a socket", "name a file")),
        Err(errno) => return Err(errno.into()),
    };
    match kind_of(&rustix::fs::fstat(&file)?) {
        None | Some("a device" | "a pipe") => {}
        Some(kind) => return Err(wrong(kind, "name a file")),
    }
    // Only to open it without waiting.
    let status = rustix::fs::fcntl_getfl(&file)?;
    rustix::fs::fcntl_setfl(&file, status - OFlags::NONBLOCK)?;
    Ok(file)
}

fn open(path: &Path, flags: OFlags) -> io::Result<File> {
    match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => Ok(file.into()),
        Err(Errno::NXIO) => Err(wrong("a socket, or a device that is not there", "name a regular file")),
        Err(errno) => Err(errno.into()),
    }
}

/// What it is, unless it is a regular file.
fn kind_of(stat: &Stat) -> Option<&'static str> {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => None,
        FileType::Directory => Some("a directory"),
        FileType::Fifo => Some("a pipe"),
        FileType::Socket => Some("a socket"),
        FileType::CharacterDevice => Some("a device"),
        FileType::BlockDevice => Some("a block device"),
        _ => Some("no file"),
    }
}

fn is_null(stat: &Stat) -> bool {
    let number = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
    FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice && number == NULL_DEVICE
}

fn wrong(kind: &str, mend: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("it is {kind}: {mend}"))
}

#[cfg(test)]
mod tests;
