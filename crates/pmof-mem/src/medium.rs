//! The seam through which every store, flush and fence to a pool's memory goes.

use std::{
    fmt, io,
    os::fd::BorrowedFd,
    sync::atomic::{Ordering, fence},
};

use crate::{Durability, Lent, MediumKind, MemError, Memory, Promise};

/// Writes the methods of [`Medium`] that a wrapper passes on: all of them, or those named after the expression.
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
/// socket by the kernel. All methods may be called from several threads at once; bytes written by two at the same time
/// are one or the other for each aligned 8 bytes, as the hardware has it.
///
/// Making bytes durable takes two steps: [`write_back`](Self::write_back) each range, then one [`fence`](Self::fence).
/// Only after a successful fence have the ranges reached [`Durability::PowerFailure`], and only where
/// [`promise`](Self::promise) names a way to it.
pub trait Medium: Send + Sync + fmt::Debug {
    /// Size in bytes; constant.
    fn len_bytes(&self) -> u64;

    /// What the bytes lie on.
    fn kind(&self) -> MediumKind;

    /// How this medium keeps `level`, or `None` where it cannot.
    fn promise(&self, level: Durability) -> Option<Promise>;

    /// How a range keeps `level`: as the whole does, or by less where the range lies on the better one of several media.
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

    /// Stores 8 bytes at an offset divisible by 8, whole or not at all, as a little-endian number.
    fn atomic_store(&self, offset: u64, value: u64) -> Result<(), MemError>;

    /// Replaces the little-endian number at `offset` by `new` if it is `expected`; returns what was there.
    fn compare_and_swap(&self, offset: u64, expected: u64, new: u64) -> Result<u64, MemError>;

    /// Adds `addend` (wrapping) to the little-endian number at `offset`; returns what was there.
    fn fetch_and_add(&self, offset: u64, addend: u64) -> Result<u64, MemError>;

    /// Starts to move the stored bytes of a range towards the persistence domain.
    fn write_back(&self, offset: u64, len_bytes: u64) -> Result<(), MemError>;

    /// Returns when all that was written back before has reached the persistence domain.
    fn fence(&self) -> Result<(), MemError>;

    /// Brings all of a range that was written back before to `level`, and says how; `None`, and nothing done, where the range cannot keep
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

    /// Returns when the stored bytes of a range have reached the persistence domain: both steps for one range, which waits for no other
    /// where the kernel can tell them apart. It vouches for nothing that was written back before.
    fn sync_range(&self, offset: u64, len_bytes: u64) -> Result<(), MemError> {
        self.write_back(offset, len_bytes)?;
        self.fence()
    }

    /// The device that [`fence`](Self::fence) waits for in a system call (`st_dev` of stat(2); of several files, the first such). A
    /// caller with other work leaves such a fence to another thread. `None` where a fence is a few instructions.
    fn fence_device(&self) -> Option<u64> {
        None
    }

    /// CRC32C of a range, computed where it lies.
    fn crc32c(&self, offset: u64, len_bytes: u64) -> Result<u32, MemError>;

    /// Finds out whether all of a range can be read, without a copy of it: for bytes that are to go out from where they lie, under a
    /// header that promises them.
    fn touch(&self, _offset: u64, _len_bytes: u64) -> Result<(), MemError> {
        Ok(())
    }

    /// The mapped memory that this medium is, for transports that let a device or another process reach it directly.
    /// `None` where every access has to come through the methods above: in simulations and under injected faults.
    fn memory(&self) -> Option<&Memory> {
        None
    }

    /// The loan that this medium is, where its owner may take it back.
    fn lent(&self) -> Option<&Lent> {
        None
    }
}

/// A shared medium is the medium: what clones do is one.
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
