//! Whether processes that were given a file still have it mapped for writing.

use std::{io, os::fd::BorrowedFd, thread, time::Duration};

use pmof_mem::is_mapped_for_writing;
use rustix::io::Errno;

/// A writer that goes on has noticed that its target is gone, and unmaps the memory; one that ends does so too. A stopped one does not.
const ATTEMPTS: u32 = 50;
const PAUSE: Duration = Duration::from_millis(2);

/// Whether a process has the file mapped that was given it by a target that is gone, and keeps it mapped.
pub(super) fn stays_mapped(file: BorrowedFd<'_>) -> io::Result<bool> {
    for attempt in 1..=ATTEMPTS {
        if !is_mapped(file)? {
            return Ok(false);
        }
        if attempt < ATTEMPTS {
            thread::sleep(PAUSE);
        }
    }
    Ok(true)
}

/// Whether a process has it mapped now. A file system without such locks means that no process was given the file.
pub(super) fn is_mapped(file: BorrowedFd<'_>) -> io::Result<bool> {
    is_mapped_for_writing(file).or_else(|error| match Errno::from_io_error(&error) {
        Some(Errno::INVAL | Errno::NOLCK | Errno::NOSYS | Errno::OPNOTSUPP) => Ok(false),
        _ => Err(error),
    })
}
