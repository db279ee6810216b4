//! The trait through which every store, flush and fence to a pool's memory goes.

use std::{
    fmt, io,
    os::fd::BorrowedFd,
    sync::atomic::{Ordering, fence},
};

use crate::{Durability, Lent, MediumKind, MemError, Memory, Promise};

/// Generates the methods of [`Medium`] that a wrapper forwards: all of them, or those named after the expression.
macro_rules! forward_medium {
    (|$wrapper:ident| $inner:expr) => {
        forward_medium!(|$wrapper| $inner; len_bytes, kind, promise, read, store, receive, send, atomics, write_back, fence, crc32c);
    };
    (|$wrapper:ident| $inner:expr; $($method:ident),+) => { $(forward_medium!(@$method $wrapper $inner);)+ };
    (@len_bytes $w:ident $inner:expr) => {
        fn len_bytes(&self) -> u64 {
            let $w = self;
            $inner.len_bytes()
        }
    };
    (@kind $w:ident $inner:expr) => {
        fn kind(&self) -> $crate::MediumKind {
            let $w = self;
            $inner.kind()
        }
    };
    (@promise $w:ident $inner:expr) => {
        fn promise(&self, level: $crate::Durability) -> Option<$crate::Promise> {
            let $w = self;
            $inner.promise(level)
        }
        fn promise_in(&self, level: $crate::Durability, offset: u64, len_bytes: u64) -> Option<$crate::Promise> {
            let $w = self;
            $inner.promise_in(level, offset, len_bytes)
        }
    };
    (@read $w:ident $inner:expr) => {
        fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), $crate::MemError> {
            let $w = self;
            $inner.read(offset, into)
        }
    };
    (@store $w:ident $inner:expr) => {
        fn store(&self, offset: u64, bytes: &[u8]) -> Result<(), $crate::MemError> {
            let $w = self;
            $inner.store(offset, bytes)
        }
    };
    (@receive $w:ident $inner:expr) => {
        fn receive(
            &self, fd: std::os::fd::BorrowedFd<'_>, offset: u64, len_bytes: u64, tail: &mut [u8],
        ) -> std::io::Result<usize> {
            let $w = self;
            $inner.receive(fd, offset, len_bytes, tail)
        }
    };
    (@send $w:ident $inner:expr) => {
        fn send(
            &self, fd: std::os::fd::BorrowedFd<'_>, head: &[u8], offset: u64, len_bytes: u64, tail: &[u8],
        ) -> std::io::Result<usize> {
            let $w = self;
            $inner.send(fd, head, offset, len_bytes, tail)
        }
    };
    (@atomics $w:ident $inner:expr) => {
        fn atomic_store(&self, offset: u64, value: u64) -> Result<(), $crate::MemError> {
            let $w = self;
            $inner.atomic_store(offset, value)
        }
        fn compare_and_swap(&self, offset: u64, expected: u64, new: u64) -> Result<u64, $crate::MemError> {
            let $w = self;
            $inner.compare_and_swap(offset, expected, new)
        }
        fn fetch_and_add(&self, offset: u64, addend: u64) -> Result<u64, $crate::MemError> {
            let $w = self;
            $inner.fetch_and_add(offset, addend)
        }
    };
    (@write_back $w:ident $inner:expr) => {
        fn write_back(&self, offset: u64, len_bytes: u64) -> Result<(), $crate::MemError> {
            let $w = self;
            $inner.write_back(offset, len_bytes)
        }
    };
    (@fence $w:ident $inner:expr) => {
        fn fence(&self) -> Result<(), $crate::MemError> {
            let $w = self;
            $inner.fence()
        }
        fn fence_device(&self) -> Option<u64> {
            let $w = self;
            $inner.fence_device()
        }
    };
    (@crc32c $w:ident $inner:expr) => {
        fn crc32c(&self, offset: u64, len_bytes: u64) -> Result<u32, $crate::MemError> {
            let $w = self;
            $inner.crc32c(offset, len_bytes)
        }
    };
}
pub(crate) use forward_medium;

/// Memory that peers may read and write at any moment.
///
/// No reference to the bytes is ever handed out: they are copied in and out, or moved between the memory and a
/// socket by the kernel. All methods may be called from several threads at once; when two threads write the same bytes,
/// each aligned 8 bytes come from one of them, as in hardware. A read beside a [`store`](Self::store) to a file may see part of an aligned 8 bytes,
/// where the kernel copies them; beside an [`atomic_store`](Self::atomic_store) it never does.
///
/// Making bytes durable takes two steps: [`write_back`](Self::write_back) each range, then one [`fence`](Self::fence).
/// The ranges have reached [`Durability::PowerFailure`] only after a successful fence, and only if
/// [`promise`](Self::promise) names a way to reach it.
pub trait Medium: Send + Sync + fmt::Debug {
    /// Size in bytes; constant.
    fn len_bytes(&self) -> u64;

    /// What the bytes lie on.
    fn kind(&self) -> MediumKind;

    /// How this medium provides `level`, or `None` if it cannot.
    fn promise(&self, level: Durability) -> Option<Promise>;

    /// How a range provides `level`: like the whole medium, or with less work if the range is on the better one of several media.
    fn promise_in(&self, level: Durability, _offset: u64, _len_bytes: u64) -> Option<Promise> {
        self.promise(level)
    }

    /// Copies `into.len()` bytes at `offset` out.
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), MemError>;

    /// Copies `bytes` in at `offset`.
    fn store(&self, offset: u64, bytes: &[u8]) -> Result<(), MemError>;

    /// Receives from the socket `fd` (one `recvmsg` without waiting): first into `len_bytes` bytes at `offset`, then
    /// into `tail`. Returns how many bytes came in all; 0 is the end of the stream.
    ///
    /// The range must lie inside the medium, and range and tail must not both be empty, else `InvalidInput`.
    fn receive(&self, fd: BorrowedFd<'_>, offset: u64, len_bytes: u64, tail: &mut [u8]) -> io::Result<usize>;

    /// Sends to the socket `fd` (one `sendmsg` without waiting and without `SIGPIPE`): `head`, then `len_bytes` bytes at
    /// `offset`, then `tail`. Returns how many bytes went in all.
    ///
    /// The range must lie inside the medium, else `InvalidInput`.
    fn send(&self, fd: BorrowedFd<'_>, head: &[u8], offset: u64, len_bytes: u64, tail: &[u8]) -> io::Result<usize>;

    /// Stores 8 bytes atomically at an offset divisible by 8, as a little-endian number.
    fn atomic_store(&self, offset: u64, value: u64) -> Result<(), MemError>;

    /// Replaces the little-endian number at `offset` by `new` if it is `expected`; returns what was there.
    fn compare_and_swap(&self, offset: u64, expected: u64, new: u64) -> Result<u64, MemError>;

    /// Adds `addend` (wrapping) to the little-endian number at `offset`; returns what was there.
    fn fetch_and_add(&self, offset: u64, addend: u64) -> Result<u64, MemError>;

    /// Starts to move the stored bytes of a range towards the persistence domain.
    fn write_back(&self, offset: u64, len_bytes: u64) -> Result<(), MemError>;

    /// Returns when everything that was written back before has reached the persistence domain.
    fn fence(&self) -> Result<(), MemError>;

    /// Brings the bytes of a range that were written back before to `level`, and returns how; `None`, without any effect, if the range cannot provide
    /// the level.
    fn flush(&self, level: Durability, offset: u64, len_bytes: u64) -> Result<Option<Promise>, MemError> {
        let Some(promise) = self.promise_in(level, offset, len_bytes) else { return Ok(None) };
        match level {
            // The store is enough; this orders it before what follows.
            Durability::Visible | Durability::ProcessCrash => fence(Ordering::SeqCst),
            Durability::PowerFailure => self.fence()?,
        }
        Ok(Some(promise))
    }

    /// Returns when the stored bytes of a range have reached the persistence domain: both steps for one range, without waiting for other ranges
    /// if the kernel can separate them. It makes no promise about ranges that were written back before.
    fn sync_range(&self, offset: u64, len_bytes: u64) -> Result<(), MemError> {
        self.write_back(offset, len_bytes)?;
        self.fence()
    }

    /// The device that [`fence`](Self::fence) waits for in a system call (`st_dev` of stat(2); of several files, the first such). A
    /// caller with other work leaves such a fence to another thread. `None` if a fence is a few instructions.
    fn fence_device(&self) -> Option<u64> {
        None
    }

    /// CRC32C of a range, computed in place.
    fn crc32c(&self, offset: u64, len_bytes: u64) -> Result<u32, MemError>;

    /// Checks that all of a range can be read, without copying it: for bytes that are sent in place behind a
    /// header that announces them.
    fn touch(&self, _offset: u64, _len_bytes: u64) -> Result<(), MemError> {
        Ok(())
    }

    /// The mapped memory that this medium is, for transports that let a device or another process reach it directly.
    /// `None` if every access must use the methods above: in simulations and under injected faults.
    fn memory(&self) -> Option<&Memory> {
        None
    }

    /// The medium as a loan, if its owner may take it back.
    fn lent(&self) -> Option<&Lent> {
        None
    }
}

/// A shared medium is the same medium for all clones.
impl<M: Medium + ?Sized> Medium for std::sync::Arc<M> {
    forward_medium!(|arc| **arc);

    fn sync_range(&self, offset: u64, len_bytes: u64) -> Result<(), MemError> {
        (**self).sync_range(offset, len_bytes)
    }

    fn touch(&self, offset: u64, len_bytes: u64) -> Result<(), MemError> {
        (**self).touch(offset, len_bytes)
    }

    fn memory(&self) -> Option<&Memory> {
        (**self).memory()
    }

    fn lent(&self) -> Option<&Lent> {
        (**self).lent()
    }
}
