//! Kinds of media.

use core::fmt;

/// What the bytes of a medium lie on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum MediumKind {
    /// Anonymous memory of one process.
    Anonymous = 1,
    /// tmpfs, shmem or hugetlbfs: memory that outlives a process, not the machine.
    Tmpfs = 2,
    /// A regular file behind the page cache.
    PageCache = 3,
    /// A file mapped with `MAP_SYNC` on a DAX file system.
    FsDax = 4,
    /// A DAX character device.
    DevDax = 5,
    /// A file on a virtio-pmem device. The kernel refuses `MAP_SYNC` there, since only the host can flush its own page
    /// cache: nothing that the CPU does in the guest makes bytes durable, fsync does (it asks the host to).
    VirtioPmem = 6,
}

impl MediumKind {
    /// Every kind.
    pub const ALL: [Self; 6] =
        [Self::Anonymous, Self::Tmpfs, Self::PageCache, Self::FsDax, Self::DevDax, Self::VirtioPmem];

    /// The kind with this wire number, if there is one.
    pub fn from_wire(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == number)
    }
}

impl fmt::Display for MediumKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Anonymous => "anonymous memory",
            Self::Tmpfs => "tmpfs",
            Self::PageCache => "page-cached file",
            Self::FsDax => "fsdax file",
            Self::DevDax => "devdax",
            Self::VirtioPmem => "virtio-pmem",
        })
    }
}
