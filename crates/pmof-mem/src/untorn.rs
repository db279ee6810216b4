//! Writes that a power cut leaves whole, by what the kernel says of a file: `statx(2)` with `STATX_WRITE_ATOMIC`, Linux 6.11; for files of
//! ext4 and XFS since 6.13.
//!
//! The promise is about writes with `O_DIRECT` and `RWF_ATOMIC`. Memory that is mapped is written back by the kernel, page by page and in
//! requests of its own choice, so the promise says nothing about it: stores to a pool stay whole by 8 aligned bytes.

use std::os::fd::BorrowedFd;

use rustix::fs::{AtFlags, StatxFlags};

/// `STATX_WRITE_ATOMIC` (linux/stat.h): wants and has the two limits.
const WRITE_ATOMIC: StatxFlags = StatxFlags::from_bits_retain(0x0001_0000);

/// The sizes of direct writes that a power cut leaves whole or undone. Both are 0 where the file system or its device promises none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UntornWrites {
    /// The shortest, in bytes; a power of two.
    pub min_bytes: u32,
    /// The longest, in bytes; a power of two.
    pub max_bytes: u32,
}

impl UntornWrites {
    /// Whether there is any such size.
    pub fn is_promised(&self) -> bool {
        self.max_bytes > 0
    }

    /// What the kernel says of an open file; `None` where it says nothing, as before Linux 6.11 and on most file systems.
    pub(crate) fn of(file: BorrowedFd<'_>) -> Option<Self> {
        let stat = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, WRITE_ATOMIC).ok()?;
        // A kernel that does not know the flag leaves it out, and the fields are unused there.
        let is_said = StatxFlags::from_bits_retain(stat.stx_mask).contains(WRITE_ATOMIC);
        let (min_bytes, max_bytes) = (stat.stx_atomic_write_unit_min, stat.stx_atomic_write_unit_max);
        is_said.then_some(Self { min_bytes, max_bytes })
    }
}

#[cfg(test)]
mod tests {
    use std::{
        mem::{offset_of, size_of},
        os::fd::{AsFd as _, AsRawFd as _},
        path::Path,
    };

    use rustix::fs::{CWD, Mode, OFlags, Statx};

    use super::*;
    use crate::file::{reserve_with_zeros, unnamed_file};

    const DISK: &str = env!("CARGO_MANIFEST_DIR");

    /// `RWF_ATOMIC` (linux/fs.h).
    const RWF_ATOMIC: i32 = 0x40;

    #[test]
    fn fields_lie_where_the_kernel_has_them() {
        // include/uapi/linux/stat.h, Linux 6.11.
        assert_eq!(offset_of!(Statx, stx_atomic_write_unit_min), 0xa8);
        assert_eq!(offset_of!(Statx, stx_atomic_write_unit_max), 0xac);
        assert_eq!(size_of::<Statx>(), 0x100);
    }

    #[test]
    fn memory_promises_no_untorn_writes() {
        let file = unnamed_file(Path::new("/dev/shm"), 4096).unwrap();
        assert!(!UntornWrites::of(file.as_fd()).unwrap_or_default().is_promised());
    }

    /// What is promised is also accepted: one write of the longest length, and none that is longer.
    #[test]
    fn an_untorn_write_is_accepted_up_to_the_limit() {
        let file = unnamed_file(Path::new(DISK), 0).unwrap();
        let Some(untorn) = UntornWrites::of(file.as_fd()) else {
            return skip_report::skipped!("untorn writes: the kernel says nothing of them here (statx, Linux 6.11)");
        };
        if !untorn.is_promised() {
            return skip_report::skipped!("untorn writes: the file system or its device promises none; 8 bytes it is");
        }
        let (min_bytes, max_bytes) = (untorn.min_bytes as usize, untorn.max_bytes as usize);
        assert!(min_bytes.is_power_of_two() && max_bytes.is_power_of_two() && min_bytes <= max_bytes, "{untorn:?}");
        reserve_with_zeros(file.as_fd(), Path::new(DISK), 4 * max_bytes as u64).unwrap();
        rustix::fs::fsync(&file).unwrap();
        let name = format!("/proc/self/fd/{}", file.as_raw_fd());
        let flags = OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC;
        let direct = rustix::fs::openat(CWD, name, flags, Mode::empty()).unwrap();
        let buffer = vec![7_u8; 4 * max_bytes];
        let lead_bytes = buffer.as_ptr().addr().wrapping_neg() % max_bytes;
        let write = |len_bytes: usize| {
            let part = libc::iovec { iov_base: buffer[lead_bytes..].as_ptr().cast_mut().cast(), iov_len: len_bytes };
            // SAFETY: the kernel reads `len_bytes` bytes of the buffer, which has twice as many behind its lead.
            unsafe { libc::pwritev2(direct.as_raw_fd(), &raw const part, 1, 0, RWF_ATOMIC) }
        };
        assert_eq!(write(max_bytes), isize::try_from(max_bytes).unwrap(), "{}", std::io::Error::last_os_error());
        assert_eq!(write(2 * max_bytes), -1, "beyond the limit it must not be accepted");
    }
}
