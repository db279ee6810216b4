//! The source file, read window by window without its holes.

use std::{
    fs::File,
    io,
    ops::Range,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use pmof_mem::open_to_read;
use rustix::{fs::SeekFrom, io::Errno};

use super::{WINDOW_BYTES, error::CopyError};

#[cfg(test)]
mod tests;

/// An open source.
#[derive(Debug)]
pub(crate) struct Source {
    file: File,
    path: PathBuf,
    len_bytes: u64,
}

/// A window of the file that is not entirely a hole. Bytes outside `data` are zeroes.
#[derive(Debug)]
pub(crate) struct Window {
    pub(crate) offset: u64,
    pub(crate) bytes: Vec<u8>,
    pub(crate) data: Vec<Range<usize>>,
}

impl Source {
    /// Opens a regular file; anything else is refused without reading it.
    pub(crate) fn open(path: &Path) -> Result<Self, CopyError> {
        let file = open_to_read(path).map_err(|error| match error.kind() {
            io::ErrorKind::InvalidInput => CopyError::NotAFile { path: path.into(), source: error },
            _ => CopyError::io("open", path, error),
        })?;
        let metadata = file.metadata().map_err(|error| CopyError::io("fstat", path, error))?;
        Ok(Self { file, path: path.into(), len_bytes: metadata.len() })
    }

    pub(crate) fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Reads the first window at or after `offset` (a multiple of the window's size) that has data, into `buffer`.
    pub(crate) fn next_window(&self, offset: u64, buffer: Vec<u8>) -> Result<Option<Window>, CopyError> {
        let Some(first) = self.data_after(offset)? else { return Ok(None) };
        let offset = first / WINDOW_BYTES as u64 * WINDOW_BYTES as u64;
        let end = (offset + WINDOW_BYTES as u64).min(self.len_bytes);
        let mut window = Window { offset, bytes: buffer, data: Vec::new() };
        window.bytes.resize((end - offset) as usize, 0);
        let mut filled = 0;
        let mut next = Some(first);
        while let Some(start) = next {
            if start >= end {
                break;
            }
            let stop = self.hole_after(start)?.min(end);
            let range = (start - offset) as usize..(stop - offset) as usize;
            window.bytes[filled..range.start].fill(0);
            self.read_exact(&mut window.bytes[range.clone()], start)?;
            filled = range.end;
            window.data.push(range);
            next = if stop < end { self.data_after(stop)? } else { None };
        }
        window.bytes[filled..].fill(0);
        Ok(Some(window))
    }

    /// Fails if the length of the file has changed since it was opened.
    pub(crate) fn check_length(&self) -> Result<(), CopyError> {
        let after_bytes = self.file.metadata().map_err(|error| CopyError::io("fstat", &self.path, error))?.len();
        if after_bytes == self.len_bytes { Ok(()) } else { Err(self.length_changed(after_bytes)) }
    }

    /// Where data begins at or after `offset`; `None` if only a hole or the end follows.
    fn data_after(&self, offset: u64) -> Result<Option<u64>, CopyError> {
        if offset >= self.len_bytes {
            return Ok(None);
        }
        match rustix::fs::seek(&self.file, SeekFrom::Data(offset)) {
            Ok(start) => Ok((start < self.len_bytes).then_some(start)),
            Err(Errno::NXIO) => Ok(None),
            // The file system does not support holes.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(Some(offset)),
            Err(errno) => Err(CopyError::io("lseek", &self.path, errno)),
        }
    }

    /// The end of the data around `offset`; greater than `offset`.
    fn hole_after(&self, offset: u64) -> Result<u64, CopyError> {
        match rustix::fs::seek(&self.file, SeekFrom::Hole(offset)) {
            Ok(end) if end > offset => Ok(end.min(self.len_bytes)),
            Ok(_) | Err(Errno::NXIO) => Err(self.length_changed(offset)),
            Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(self.len_bytes),
            Err(errno) => Err(CopyError::io("lseek", &self.path, errno)),
        }
    }

    fn read_exact(&self, into: &mut [u8], offset: u64) -> Result<(), CopyError> {
        self.file.read_exact_at(into, offset).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => {
                self.length_changed(self.file.metadata().map_or(offset, |metadata| metadata.len()))
            }
            _ => CopyError::io("read", &self.path, error),
        })
    }

    fn length_changed(&self, after_bytes: u64) -> CopyError {
        CopyError::LengthChanged { path: self.path.clone(), before_bytes: self.len_bytes, after_bytes }
    }
}
