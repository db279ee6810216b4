//! Where exports are read from.

use std::{
    fs::File,
    io::{self, BufReader, Read},
    path::Path,
};

use anyhow::Context;
use pmof_mem::open_to_read;

/// Bytes that are read at a time.
const BUFFER_BYTES: usize = 1 << 20;

/// `-`: standard input, or standard output.
pub(crate) fn is_stream(path: &Path) -> bool {
    path == Path::new("-")
}

/// What people read of a path.
pub(crate) fn name_of(path: &Path, stream: &str) -> String {
    if is_stream(path) { stream.to_owned() } else { path.display().to_string() }
}

/// A regular file.
pub(crate) fn open_file(path: &Path) -> anyhow::Result<File> {
    open_to_read(path).with_context(|| format!("cannot open {}", path.display()))
}

/// A file, a pipe, or standard input.
pub(crate) fn open(path: &Path) -> anyhow::Result<Box<dyn Read + Send>> {
    if is_stream(path) {
        return Ok(Box::new(BufReader::with_capacity(BUFFER_BYTES, io::stdin())));
    }
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    Ok(Box::new(BufReader::with_capacity(BUFFER_BYTES, file)))
}
