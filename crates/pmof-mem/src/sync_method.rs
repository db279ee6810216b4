//! The system calls by which a fence can flush a file behind the page cache, and the choice between them.
//!
//! Both are durable by rule. The kernel carries each of them out by the file system's one `fsync` operation, with a range and the request to
//! leave out metadata that the data does not need (`vfs_fsync_range` with `datasync`; fs/sync.c, mm/msync.c): `fdatasync` names the whole
//! file, `msync` the range. `sync_file_range` is none of these: it flushes neither metadata nor the device's cache.
//!
//! A write with `RWF_DSYNC` or to a file opened with `O_DSYNC` ends in the same operation (`generic_write_sync`), but only of bytes that the
//! call itself stored. A fence cannot use them: the bytes are in the page cache already, stored through the mapping by this process, by others
//! or by a device, and writing them again could replace a newer store.

use std::{fmt, str::FromStr};

use crate::MediumKind;

/// File systems on which `msync` of a range is accepted: their `fsync` writes the range, then whatever metadata its blocks need, and
/// flushes the device. Not btrfs, whose ranged fsync lost extents in Linux 5.7 and 5.8, and not overlayfs, whose files are another file system's.
const RANGED_FILE_SYSTEMS: [&str; 4] = ["ext2", "ext3", "ext4", "xfs"];

/// From this mean length of a write on, the answer for 4 KiB counts; from the next on, that for 64 KiB: the geometric means of neighbours.
const CLASS_LIMITS_BYTES: [u64; 2] = [1448, 16 << 10];

/// A system call that makes the stored bytes of a file durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SyncMethod {
    /// `fdatasync(2)` of the file.
    #[default]
    Fdatasync,
    /// `msync(2)` with `MS_SYNC` of the range that was written back.
    Msync,
}

impl SyncMethod {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Fdatasync, Self::Msync];

    /// Whether the method is durable by rule for files of this kind and file system (its name in the mount table), and so may be chosen.
    pub fn is_usable(self, kind: MediumKind, file_system: &str) -> bool {
        match self {
            Self::Fdatasync => true,
            Self::Msync => kind == MediumKind::PageCache && RANGED_FILE_SYSTEMS.contains(&file_system),
        }
    }
}

impl fmt::Display for SyncMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Fdatasync => "fdatasync",
            Self::Msync => "msync",
        })
    }
}

impl FromStr for SyncMethod {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|method| method.to_string() == text).ok_or("it is neither fdatasync nor msync")
    }
}

/// Which method a fence uses, by the mean length of the writes that it covers and by their number. The default is `fdatasync` for all.
///
/// A choice is about speed only: every method that it may name is durable by rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SyncChoice {
    /// A bit for each cell; set is `msync`.
    msync_cells: u8,
    /// The file system (`st_dev`) that it was measured on; `None` is any.
    device: Option<u64>,
}

impl SyncChoice {
    /// The lengths of writes that have an answer of their own, in bytes.
    pub const SIZES_BYTES: [u64; 3] = [512, 4096, 64 << 10];
    /// The numbers of clients that have one.
    pub const CLIENTS: [usize; 2] = [1, 16];

    /// One method for all files on which it is durable by rule; `fdatasync` for the others.
    pub fn always(method: SyncMethod) -> Self {
        let cell_count = Self::SIZES_BYTES.len() * Self::CLIENTS.len();
        let msync_cells = if method == SyncMethod::Msync { (1 << cell_count) - 1 } else { 0 };
        Self { msync_cells, device: None }
    }

    /// The same for files of one file system only (`st_dev`); others get `fdatasync`.
    #[must_use]
    pub fn on_device(self, device: u64) -> Self {
        Self { device: Some(device), ..self }
    }

    /// Sets the method of one cell: indexes into [`SIZES_BYTES`](Self::SIZES_BYTES) and [`CLIENTS`](Self::CLIENTS).
    #[must_use]
    pub fn with_cell(self, (size, clients): (usize, usize), method: SyncMethod) -> Self {
        let bit = cell_bit(size, clients);
        let is_msync = method == SyncMethod::Msync;
        Self { msync_cells: if is_msync { self.msync_cells | bit } else { self.msync_cells & !bit }, ..self }
    }

    /// The method of one cell: indexes into [`SIZES_BYTES`](Self::SIZES_BYTES) and [`CLIENTS`](Self::CLIENTS).
    pub fn cell(&self, (size, clients): (usize, usize)) -> SyncMethod {
        if self.msync_cells & cell_bit(size, clients) == 0 { SyncMethod::Fdatasync } else { SyncMethod::Msync }
    }

    /// The method for a fence that covers `write_count` writes of `len_bytes` in all. Several writes count as those of many clients: a range
    /// around them is flushed as one.
    pub(crate) fn method(&self, len_bytes: u64, write_count: u64) -> SyncMethod {
        let mean_bytes = len_bytes / write_count.max(1);
        let size = CLASS_LIMITS_BYTES.iter().filter(|limit| mean_bytes >= **limit).count();
        self.cell((size, usize::from(write_count > 1)))
    }

    /// The part of the choice that holds for a file of this kind, file system and device.
    pub(crate) fn for_file(self, kind: MediumKind, file_system: &str, device: u64) -> Self {
        let is_measured = self.device.is_none_or(|own| own == device);
        if is_measured && SyncMethod::Msync.is_usable(kind, file_system) { self } else { Self::default() }
    }

    /// Whether any cell names `msync`, so that the ranges of writes must be known.
    pub(crate) fn needs_ranges(&self) -> bool {
        self.msync_cells != 0
    }
}

fn cell_bit(size: usize, clients: usize) -> u8 {
    let (sizes, client_counts) = (SyncChoice::SIZES_BYTES.len(), SyncChoice::CLIENTS.len());
    assert!(size < sizes && clients < client_counts, "a cell of the table");
    1 << (size * client_counts + clients)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cell_has_its_own_method() {
        let choice = SyncChoice::default().with_cell((2, 1), SyncMethod::Msync).with_cell((0, 0), SyncMethod::Msync);
        for (len_bytes, write_count, expected) in [
            (1, 1, SyncMethod::Msync),
            (1447, 1, SyncMethod::Msync),
            (1448, 1, SyncMethod::Fdatasync),
            (64 << 10, 1, SyncMethod::Fdatasync),
            (512 * 16, 16, SyncMethod::Fdatasync),
            (16 << 20, 16, SyncMethod::Msync),
            (0, 0, SyncMethod::Msync),
        ] {
            assert_eq!(choice.method(len_bytes, write_count), expected, "{write_count} writes, {len_bytes} bytes");
        }
        assert_eq!(choice.with_cell((0, 0), SyncMethod::Fdatasync).cell((0, 0)), SyncMethod::Fdatasync);
    }

    #[test]
    fn a_choice_holds_only_where_it_is_durable_by_rule() {
        use MediumKind::{FsDax, PageCache, VirtioPmem};
        let choice = SyncChoice::always(SyncMethod::Msync);
        for (kind, file_system, is_usable) in [
            (PageCache, "ext4", true),
            (PageCache, "xfs", true),
            (PageCache, "btrfs", false),
            (PageCache, "overlay", false),
            (PageCache, "nfs4", false),
            (VirtioPmem, "ext4", false),
            (FsDax, "xfs", false),
        ] {
            assert_eq!(choice.for_file(kind, file_system, 7).needs_ranges(), is_usable, "{kind} on {file_system}");
        }
        assert!(!choice.on_device(8).for_file(PageCache, "ext4", 7).needs_ranges(), "measured elsewhere");
        assert!(choice.on_device(7).for_file(PageCache, "ext4", 7).needs_ranges());
    }

    #[test]
    fn methods_are_read_by_name() {
        for method in SyncMethod::ALL {
            assert_eq!(method.to_string().parse(), Ok(method));
        }
        "sync_file_range".parse::<SyncMethod>().unwrap_err();
    }
}
