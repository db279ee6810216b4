//! Test tools: media that skip a step or fail on purpose.
//!
//! A test of durable code wraps its medium in each of these and must fail: [`SkipWriteBack`] and [`SkipFence`] are
//! the positive controls of every crash test. [`FailNth`] drives code through each of its failure paths. [`HoldFence`] is a disk
//! that answers when the test lets it.

use std::{
    io,
    os::fd::BorrowedFd,
    path::PathBuf,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

use pmof_locks::{Condvar, Mutex, MutexGuard};

use crate::{Medium, MemError, medium::forward_medium};

/// A medium that never writes back.
#[derive(Debug)]
pub struct SkipWriteBack<M>(
    /// The medium that does the rest.
    pub M,
);

impl<M: Medium> Medium for SkipWriteBack<M> {
    forward_medium!(|skip| skip.0; len_bytes, kind, promise, read, store, receive, send, atomics, fence, crc32c);

    fn write_back(&self, _offset: u64, _len_bytes: u64) -> Result<(), MemError> {
        Ok(())
    }
}

/// A medium that never fences.
#[derive(Debug)]
pub struct SkipFence<M>(
    /// The medium that does the rest.
    pub M,
);

impl<M: Medium> Medium for SkipFence<M> {
    forward_medium!(|skip| skip.0; len_bytes, kind, promise, read, store, receive, send, atomics, write_back, crc32c);

    fn fence(&self) -> Result<(), MemError> {
        Ok(())
    }
}

/// Which calls [`FailNth`] counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FaultPoint {
    /// `store`, `receive`, and the three atomic operations.
    Store,
    /// `write_back`.
    WriteBack,
    /// `fence`.
    Fence,
    /// All of these.
    Any,
}

/// A medium whose n-th counted call fails with `EIO` and does nothing.
///
/// As with [`Memory`](crate::Memory), after a failed write-back or fence all later ones fail with `Poisoned`.
#[derive(Debug)]
pub struct FailNth<M> {
    inner: M,
    point: FaultPoint,
    /// Counted calls up to and including the failing one; 0 once it has failed, or if none is to fail.
    calls_left: AtomicU64,
    has_failed: AtomicBool,
    is_poisoned: AtomicBool,
}

impl<M: Medium> FailNth<M> {
    /// Fails call `nth` of `point`, counted from 1; with 0 none.
    pub fn new(inner: M, point: FaultPoint, nth: u64) -> Self {
        let (has_failed, is_poisoned) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { inner, point, calls_left: AtomicU64::new(nth), has_failed, is_poisoned }
    }

    /// The medium that does the work.
    pub fn inner(&self) -> &M {
        &self.inner
    }

    /// Whether the failing call has come: a test that walks `nth` upwards is done when it has not.
    pub fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Acquire)
    }

    fn count(&self, point: FaultPoint, call: &'static str) -> Result<(), MemError> {
        if point != FaultPoint::Store && self.is_poisoned.load(Ordering::Acquire) {
            return Err(MemError::Poisoned { path: fault_path() });
        }
        if self.point != point && self.point != FaultPoint::Any {
            return Ok(());
        }
        let before = self.calls_left.fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| left.checked_sub(1));
        if before != Ok(1) {
            return Ok(());
        }
        self.has_failed.store(true, Ordering::Release);
        self.is_poisoned.fetch_or(point != FaultPoint::Store, Ordering::AcqRel);
        let source = io::Error::from_raw_os_error(libc::EIO);
        Err(MemError::Io { call, path: fault_path(), mend: "this failure was injected by a test", source })
    }
}

impl<M: Medium> Medium for FailNth<M> {
    forward_medium!(|fail| fail.inner; len_bytes, kind, promise, read, send, crc32c);

    fn store(&self, offset: u64, bytes: &[u8]) -> Result<(), MemError> {
        self.count(FaultPoint::Store, "store")?;
        self.inner.store(offset, bytes)
    }

    fn receive(&self, fd: BorrowedFd<'_>, offset: u64, len_bytes: u64, tail: &mut [u8]) -> io::Result<usize> {
        self.count(FaultPoint::Store, "receive").map_err(|_| io::Error::from_raw_os_error(libc::EIO))?;
        self.inner.receive(fd, offset, len_bytes, tail)
    }

    fn atomic_store(&self, offset: u64, value: u64) -> Result<(), MemError> {
        self.count(FaultPoint::Store, "atomic_store")?;
        self.inner.atomic_store(offset, value)
    }

    fn compare_and_swap(&self, offset: u64, expected: u64, new: u64) -> Result<u64, MemError> {
        self.count(FaultPoint::Store, "compare_and_swap")?;
        self.inner.compare_and_swap(offset, expected, new)
    }

    fn fetch_and_add(&self, offset: u64, addend: u64) -> Result<u64, MemError> {
        self.count(FaultPoint::Store, "fetch_and_add")?;
        self.inner.fetch_and_add(offset, addend)
    }

    fn write_back(&self, offset: u64, len_bytes: u64) -> Result<(), MemError> {
        self.count(FaultPoint::WriteBack, "write_back")?;
        self.inner.write_back(offset, len_bytes)
    }

    fn fence(&self) -> Result<(), MemError> {
        self.count(FaultPoint::Fence, "fence")?;
        self.inner.fence()
    }

    fn fence_device(&self) -> Option<u64> {
        self.inner.fence_device()
    }
}

/// A medium whose fences wait for a device, and return only when a test lets them.
#[derive(Debug)]
pub struct HoldFence<M> {
    inner: M,
    device: u64,
    fences: Mutex<Fences>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Fences {
    begun: u64,
    /// The number of fences that may return.
    passed: u64,
}

impl<M: Medium> HoldFence<M> {
    /// Claims to wait for this [device](Medium::fence_device), and lets no fence return.
    pub fn new(inner: M, device: u64) -> Self {
        Self { inner, device, fences: Mutex::default(), changed: Condvar::new() }
    }

    /// Lets the first `count` fences return, those that come later included.
    pub fn let_pass(&self, count: u64) {
        self.lock().passed = count;
        self.changed.notify_all();
    }

    /// How many fences have begun.
    pub fn begun(&self) -> u64 {
        self.lock().begun
    }

    fn lock(&self) -> MutexGuard<'_, Fences> {
        self.fences.lock()
    }
}

impl<M: Medium> Medium for HoldFence<M> {
    forward_medium!(|hold| hold.inner; len_bytes, kind, promise, read, store, receive, send, atomics, write_back, crc32c);

    fn fence(&self) -> Result<(), MemError> {
        // This fence does not cover later stores.
        let outcome = self.inner.fence();
        let mut fences = self.lock();
        fences.begun += 1;
        let number = fences.begun;
        self.changed.wait_while(&mut fences, |fences| fences.passed < number);
        outcome
    }

    fn fence_device(&self) -> Option<u64> {
        Some(self.device)
    }
}

fn fault_path() -> PathBuf {
    PathBuf::from("(injected)")
}

#[cfg(test)]
mod tests;
