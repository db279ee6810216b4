//! A medium over plain memory that models what a crash can leave: for tests of everything that must survive one.
//!
//! The model is that of a persistence domain behind a CPU cache (Px86, Raad et al., POPL 2020), with lines of 64 bytes for
//! the DAX kinds, or behind the page cache, with pages of 4096 bytes:
//!
//! - A store changes what is read at once. It is taken apart into its 8-byte words, lowest address first.
//! - A line may be evicted at any moment. After a crash a line holds what it held after some prefix of the stores to it
//!   since it was last made durable; different lines are at different points, whatever the order of the stores.
//! - DAX kinds: write-back and a later fence make all stores to the line before the write-back durable.
//!   A store between the two is not covered. Non-temporal stores are not told apart from others.
//! - Page cache: a fence makes all earlier stores durable, if anything was written back since the last one;
//!   else it does nothing, as that of [`Memory`](crate::Memory).
//!
//! Not modelled: pages torn by a disk or by DMA racing with a store (a page is taken as it was at one moment), reordering
//! among threads, and failing devices (see [`faults`](crate::faults)).

mod images;
mod model;
mod replay;

use std::{io, os::fd::BorrowedFd, path::PathBuf};

use pmof_locks::{Mutex, MutexGuard};

pub use images::{CrashImages, Exhaustive};
pub use replay::{Coverage, CrashPoint, for_each_crash_point};

use crate::{Durability, Evidence, Mechanism, Medium, MediumKind, MemError, Promise, check_bounds, socket};
use model::Model;

/// The longest shadow: it keeps two copies of its bytes, and each image is one more.
pub const SHADOW_LEN_BYTES_MAX: u64 = 1 << 30;

/// One step in the life of a [`ShadowMedium`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Bytes were stored, or received, or changed by an atomic operation.
    Store {
        /// Of the first byte.
        offset: u64,
        /// What was stored.
        bytes: Vec<u8>,
    },
    /// A range was written back.
    WriteBack {
        /// Of the first byte.
        offset: u64,
        /// Bytes in the range.
        len_bytes: u64,
    },
    /// A fence.
    Fence,
    /// A mark of the test, such as the number of the last acknowledged operation.
    Mark(u64),
}

/// A medium that records all operations and enumerates what a crash could leave. See the module documentation.
///
/// The trace grows with every event; a shadow is for tests of bounded length.
#[derive(Debug)]
pub struct ShadowMedium {
    kind: MediumKind,
    len_bytes: u64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    model: Model,
    trace: Vec<Event>,
}

impl State {
    fn record(&mut self, event: Event) {
        self.model.apply(&event);
        self.trace.push(event);
    }
}

impl ShadowMedium {
    /// Zeros, all durable. `len_bytes`: 1 to [`SHADOW_LEN_BYTES_MAX`].
    ///
    /// Errors: `BadLength`; `Unsuitable` for kinds without a persistence domain (anonymous memory, tmpfs).
    pub fn new(len_bytes: u64, kind: MediumKind) -> Result<Self, MemError> {
        let why = match len_bytes {
            0 => "there must be at least one byte",
            1..=SHADOW_LEN_BYTES_MAX => return Self::from_image(vec![0; len_bytes as usize], kind),
            _ => "a shadow is for tests and holds at most 1 GiB",
        };
        Err(MemError::BadLength { len_bytes, why })
    }

    /// A medium that a crash left: `image`, all durable. Errors as [`new`](Self::new).
    pub fn from_image(image: Vec<u8>, kind: MediumKind) -> Result<Self, MemError> {
        let len_bytes = image.len() as u64;
        if len_bytes == 0 || len_bytes > SHADOW_LEN_BYTES_MAX {
            return Err(MemError::BadLength { len_bytes, why: "a shadow holds 1 byte to 1 GiB" });
        }
        let model = Model::new(kind, image)?;
        Ok(Self { kind, len_bytes, state: Mutex::new(State { model, trace: Vec::new() }) })
    }

    /// All operations so far, first to last.
    pub fn trace(&self) -> Vec<Event> {
        self.lock().trace.clone()
    }

    /// Notes `value` in the trace, between the steps before and after it.
    pub fn mark(&self, value: u64) {
        self.lock().record(Event::Mark(value));
    }

    /// What a crash right now could leave: every distinct image if there are at most `limit`, else a random sample of
    /// `limit` (at least 2), in which nothing-more-written and everything-written always are.
    pub fn crash_images(&self, limit: usize) -> CrashImages {
        self.lock().model.crash_images(limit)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic of a test's thread leaves the state whole: events are applied one by one.
        self.state.lock()
    }

    fn record_store(&self, offset: u64, bytes: &[u8]) {
        self.lock().record(Event::Store { offset, bytes: bytes.to_vec() });
    }

    /// Replaces the number at `offset` by what `change` makes of it; returns what was there.
    fn update(&self, offset: u64, change: impl FnOnce(u64) -> Option<u64>) -> Result<u64, MemError> {
        check_bounds(offset, 8, self.len_bytes)?;
        if offset % 8 != 0 {
            return Err(MemError::Misaligned { offset });
        }
        let mut state = self.lock();
        let mut found = [0; 8];
        found.copy_from_slice(state.model.current(offset, 8));
        let found = u64::from_le_bytes(found);
        if let Some(new) = change(found) {
            state.record(Event::Store { offset, bytes: new.to_le_bytes().to_vec() });
        }
        Ok(found)
    }
}

impl Medium for ShadowMedium {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn kind(&self) -> MediumKind {
        self.kind
    }

    fn promise(&self, level: Durability) -> Option<Promise> {
        let mechanism = match level {
            Durability::Visible | Durability::ProcessCrash => Mechanism::Store,
            Durability::PowerFailure if model::is_dax(self.kind) => Mechanism::CacheLineWriteBack,
            Durability::PowerFailure => Mechanism::FileSync,
        };
        Some(Promise { mechanism, evidence: Evidence::Probed })
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), MemError> {
        check_bounds(offset, into.len() as u64, self.len_bytes)?;
        into.copy_from_slice(self.lock().model.current(offset, into.len()));
        Ok(())
    }

    fn store(&self, offset: u64, bytes: &[u8]) -> Result<(), MemError> {
        check_bounds(offset, bytes.len() as u64, self.len_bytes)?;
        self.record_store(offset, bytes);
        Ok(())
    }

    fn receive(&self, fd: BorrowedFd<'_>, offset: u64, len_bytes: u64, tail: &mut [u8]) -> io::Result<usize> {
        check_bounds(offset, len_bytes, self.len_bytes).map_err(invalid_input)?;
        let mut buffer = vec![0; len_bytes as usize];
        let parts = [(buffer.as_mut_ptr(), buffer.len()), (tail.as_mut_ptr(), tail.len())];
        // SAFETY: both parts are live and borrowed by nothing else until the call returns.
        let received = unsafe { socket::receive(fd, parts) }?;
        let stored = received.min(buffer.len());
        if stored > 0 {
            self.record_store(offset, &buffer[..stored]);
        }
        Ok(received)
    }

    fn send(&self, fd: BorrowedFd<'_>, head: &[u8], offset: u64, len_bytes: u64, tail: &[u8]) -> io::Result<usize> {
        check_bounds(offset, len_bytes, self.len_bytes).map_err(invalid_input)?;
        let body = self.lock().model.current(offset, len_bytes as usize).to_vec();
        let parts = [head, &body, tail].map(|part| (part.as_ptr().cast_mut(), part.len()));
        // SAFETY: the parts are live until the call returns, and only read from.
        unsafe { socket::send(fd, parts) }
    }

    fn atomic_store(&self, offset: u64, value: u64) -> Result<(), MemError> {
        self.update(offset, |_| Some(value)).map(drop)
    }

    fn compare_and_swap(&self, offset: u64, expected: u64, new: u64) -> Result<u64, MemError> {
        self.update(offset, |found| (found == expected).then_some(new))
    }

    fn fetch_and_add(&self, offset: u64, addend: u64) -> Result<u64, MemError> {
        self.update(offset, |found| Some(found.wrapping_add(addend)))
    }

    fn write_back(&self, offset: u64, len_bytes: u64) -> Result<(), MemError> {
        check_bounds(offset, len_bytes, self.len_bytes)?;
        self.lock().record(Event::WriteBack { offset, len_bytes });
        Ok(())
    }

    fn fence(&self) -> Result<(), MemError> {
        self.lock().record(Event::Fence);
        Ok(())
    }

    fn crc32c(&self, offset: u64, len_bytes: u64) -> Result<u32, MemError> {
        check_bounds(offset, len_bytes, self.len_bytes)?;
        Ok(crc32c::crc32c(self.lock().model.current(offset, len_bytes as usize)))
    }
}

fn invalid_input(error: MemError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, error)
}

fn unsuitable() -> MemError {
    MemError::Unsuitable {
        path: PathBuf::from("(shadow)"),
        why: "a kind without a persistence domain has nothing to shadow",
        mend: "shadow FsDax or PageCache",
    }
}

#[cfg(test)]
mod tests;
