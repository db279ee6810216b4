//! Rows on a file system with dax: one file each.

use std::{
    fs::{File, OpenOptions},
    path::Path,
};

use anyhow::{Context as _, Result};
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags};

use crate::{
    NEW, VALUE_BYTES,
    cpu::{self, PAGE, Place},
    row,
};

/// Names of the files and of the rows.
const STORE: &str = "fsdax_store";
const MSYNC: &str = "fsdax_store_msync";
const SYNC: &str = "fsdax_map_sync_clwb_sfence";
const NO_SYNC: &str = "fsdax_no_map_sync_clwb_sfence";

/// Does all rows. The last file is made without any `fsync` or synchronous fault behind it that would write the journal.
pub(crate) fn write(directory: &Path) -> Result<()> {
    for name in [STORE, MSYNC] {
        let file = create(directory, name)?;
        file.sync_all()?;
        let at = map(&file, MapFlags::SHARED_VALIDATE | MapFlags::SYNC)?;
        cpu::store(at, &NEW);
        if name == MSYNC {
            // SAFETY: `Place` says that the page is mapped, and this is all of it.
            unsafe { rustix::mm::msync(at.of(PAGE, PAGE).cast(), PAGE, MsyncFlags::SYNC) }.context("msync")?;
        }
    }
    for (name, flags) in [(SYNC, MapFlags::SHARED_VALIDATE | MapFlags::SYNC), (NO_SYNC, MapFlags::SHARED)] {
        let at = map(&create(directory, name)?, flags)?;
        cpu::store(at, &NEW);
        cpu::clwb(at);
        cpu::sfence();
    }
    Ok(())
}

/// Says what is in each file.
pub(crate) fn report(directory: &Path) -> Result<()> {
    for name in [STORE, MSYNC, SYNC, NO_SYNC] {
        match std::fs::read(directory.join(name)) {
            Ok(bytes) => row(name, bytes.get(..VALUE_BYTES).unwrap_or(b"short")),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => println!("{name} none"),
            Err(error) => return Err(error).with_context(|| format!("reading {name}")),
        }
    }
    Ok(())
}

fn create(directory: &Path, name: &str) -> Result<File> {
    let path = directory.join(name);
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path);
    let file = file.with_context(|| format!("creating {}", path.display()))?;
    file.set_len(PAGE as u64)?;
    Ok(file)
}

/// Never unmapped: the process ends by power cut.
fn map(file: &File, flags: MapFlags) -> Result<Place> {
    // SAFETY: a new mapping at an address of the kernel's choice touches no other memory.
    let start =
        unsafe { rustix::mm::mmap(std::ptr::null_mut(), PAGE, ProtFlags::READ | ProtFlags::WRITE, flags, file, 0) };
    let start = start.context("mapping a file: is the file system mounted with dax?")?;
    // SAFETY: it is one page, mapped just now for reading and writing; nothing unmaps it, and no reference is made of it.
    Ok(unsafe { Place::page(start.cast()) })
}
