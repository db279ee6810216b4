//! Rows on a block device, written past the page cache.

use std::{
    fs::{File, OpenOptions},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::Path,
};

use anyhow::{Context as _, Result};
use rustix::fs::OFlags;

use crate::{NEW, row};

/// Bytes of a row, and alignment of its memory.
const BYTES: usize = 4096;

#[repr(align(4096))]
struct Block([u8; BYTES]);

const FLUSHED: u64 = 0;
const NOT_FLUSHED: u64 = BYTES as u64;

/// Does both rows; the flushed one first, since a flush is of the whole disk.
pub(crate) fn write(device: &Path) -> Result<()> {
    let file = open(device)?;
    let block = Block([NEW[0]; BYTES]);
    file.write_all_at(&block.0, FLUSHED)?;
    file.sync_data().context("fdatasync")?;
    file.write_all_at(&block.0, NOT_FLUSHED)?;
    Ok(())
}

/// Says what is in both.
pub(crate) fn report(device: &Path) -> Result<()> {
    let file = open(device)?;
    let mut block = Block([0; BYTES]);
    for (name, at) in [("disk_write_fdatasync", FLUSHED), ("disk_write", NOT_FLUSHED)] {
        file.read_exact_at(&mut block.0, at)?;
        row(name, &block.0);
    }
    Ok(())
}

fn open(device: &Path) -> Result<File> {
    let direct = i32::try_from(OFlags::DIRECT.bits())?;
    let file = OpenOptions::new().read(true).write(true).custom_flags(direct).open(device);
    file.with_context(|| format!("opening {}", device.display()))
}
