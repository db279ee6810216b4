//! A mapping as pointer and length, and the copies in and out of it.
//!
//! Other threads and processes may write the bytes at any moment, so no reference to them is ever formed. All access
//! is by relaxed atomics of 1 or 8 bytes: aligned 8 bytes are never torn, and a race shows either old or new bytes.

use std::{
    io,
    os::fd::BorrowedFd,
    ptr::{self, NonNull},
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicU64, Ordering},
    },
};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mlock, mmap, mmap_anonymous, munlock, munmap};

use crate::{MemError, bus_error::Watch, check_bounds};

const _: () = assert!(size_of::<usize>() == 8, "offsets are u64 and must fit usize: pmof needs a 64-bit target");

/// Bytes copied out at a time for a checksum: enough to feed the crc32 instruction, small enough for L1 and the stack.
const CHECKSUM_CHUNK_BYTES: usize = 4096;

/// No page is smaller.
const TOUCHED_EVERY_BYTES: usize = 4096;

/// Bytes that the kernel is asked to read ahead per call: it loads at most the device's largest request for one call.
const LOADED_AHEAD_BYTES: usize = 128 << 10;

/// From this length on, the read-ahead call costs little compared with the access.
const LOAD_AHEAD_MIN_BYTES: u64 = 64 << 10;

/// From this length on, a non-temporal copy beats store + write-back on persistent memory (PMDK measured the same threshold).
pub(crate) const STREAM_MIN_BYTES: usize = 256;

/// Gone on drop, unless borrowed. The pointer is valid for `len_bytes` bytes as long as the value lives.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len_bytes: usize,
    writable: bool,
    /// `None`: the caller owns the mapping and unmaps it.
    addresses: Option<Arc<Addresses>>,
    /// The kernel loads single pages, and more only when it is told to.
    loads_pages: bool,
    /// For files and devices, whose pages may be unreadable.
    watch: Option<Watch>,
}

// SAFETY: the mapping belongs to no thread, and every access is atomic or made by the kernel.
unsafe impl Send for Mapping {}
// SAFETY: every access is atomic or made by the kernel, so threads that share the mapping race only as relaxed atomics do.
unsafe impl Sync for Mapping {}

/// A range of addresses that nothing else can take; freed when the last handle goes.
#[derive(Debug)]
pub(crate) struct Addresses {
    start: NonNull<u8>,
    len_bytes: usize,
}

// SAFETY: the value refers to addresses and accesses no byte there.
unsafe impl Send for Addresses {}
// SAFETY: the value refers to addresses and accesses no byte there.
unsafe impl Sync for Addresses {}

impl Addresses {
    /// # Safety
    ///
    /// The range is a whole mapping, and the caller's own.
    unsafe fn own(start: NonNull<u8>, len_bytes: usize) -> Arc<Self> {
        Arc::new(Self { start, len_bytes })
    }

    /// Puts private memory in the place of what is mapped there. Where the kernel refuses that, it stays mapped until the drop.
    ///
    /// # Safety
    ///
    /// Nobody relies any more on what is mapped there.
    unsafe fn clear(&self) {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: the range is this value's own, and the caller says the rest.
        let _ =
            unsafe { mmap_anonymous(self.start.as_ptr().cast(), self.len_bytes, protection, flags | MapFlags::FIXED) };
    }
}

impl Drop for Addresses {
    fn drop(&mut self) {
        // SAFETY: the range is this value's own, and the last of those who may use a pointer into it has gone.
        unsafe { release(self.start, self.len_bytes) };
    }
}

impl Mapping {
    /// Zeroed private memory.
    pub(crate) fn anonymous(len_bytes: usize) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), len_bytes, protection, MapFlags::PRIVATE) }?;
        let start = non_null(start)?;
        // SAFETY: the kernel just mapped it.
        let addresses = Some(unsafe { Addresses::own(start, len_bytes) });
        Ok(Self { start, len_bytes, writable: true, addresses, loads_pages: false, watch: None })
    }

    /// The first `len_bytes` bytes of `file`; with `sync` the kernel must grant `MAP_SYNC`.
    pub(crate) fn of_file(file: BorrowedFd<'_>, len_bytes: usize, writable: bool, sync: bool) -> io::Result<Self> {
        Self::of_piece(&Piece { file, file_offset: 0, len_bytes, writable, sync })
    }

    /// A piece of a file; with `sync` the kernel must grant `MAP_SYNC`.
    pub(crate) fn of_piece(piece: &Piece<'_>) -> io::Result<Self> {
        let Piece { file, file_offset, len_bytes, writable, .. } = *piece;
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let start = unsafe { mmap(ptr::null_mut(), len_bytes, piece.protection(), piece.flags(), file, file_offset) }?;
        let start = non_null(start)?;
        // SAFETY: the kernel just mapped it.
        let addresses = Some(unsafe { Addresses::own(start, len_bytes) });
        // SAFETY: it is unmapped behind the watch's end, by drop.
        let watch = Some(unsafe { Watch::new(start, len_bytes) });
        Ok(Self { start, len_bytes, writable, addresses, loads_pages: false, watch })
    }

    /// Memory that somebody else mapped. `None` at address 0.
    ///
    /// # Safety
    ///
    /// The range stays mapped, and writable if `writable`, as long as the value lives.
    pub(crate) unsafe fn borrowed(address: u64, len_bytes: usize, writable: bool) -> Option<Self> {
        let start = NonNull::new(ptr::with_exposed_provenance_mut(address as usize))?;
        Some(Self { start, len_bytes, writable, addresses: None, loads_pages: false, watch: None })
    }

    pub(crate) fn len_bytes(&self) -> u64 {
        self.len_bytes as u64
    }

    pub(crate) fn address(&self) -> u64 {
        self.start.as_ptr().expose_provenance() as u64
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.writable
    }

    pub(crate) fn is_borrowed(&self) -> bool {
        self.addresses.is_none()
    }

    pub(crate) fn addresses(&self) -> Option<Arc<Addresses>> {
        self.addresses.clone()
    }

    /// Turns off the kernel's read-ahead for the mapping of a file.
    ///
    /// What it reads ahead it keeps in folios of up to 2 MiB (ext4 since Linux 6.16, XFS since 5.18), and a store through the mapping makes
    /// all of its folio dirty: a flush of 512 bytes then writes up to 2 MiB.
    pub(crate) fn load_pages(&mut self) {
        if self.is_borrowed() {
            return;
        }
        // SAFETY: the mapping is this value's own, and the advice changes no byte of it.
        let advised = unsafe { madvise(self.start.as_ptr().cast(), self.len_bytes, Advice::Random) };
        self.loads_pages = advised.is_ok();
    }

    /// Has the kernel begin to load a range that is about to be used, where it does not read ahead.
    fn load_ahead(&self, start: *mut u8, len_bytes: u64) {
        if !self.loads_pages || len_bytes < LOAD_AHEAD_MIN_BYTES {
            return;
        }
        let into_page = start.addr() % TOUCHED_EVERY_BYTES;
        for at in (0..len_bytes as usize).step_by(LOADED_AHEAD_BYTES) {
            let part = LOADED_AHEAD_BYTES.min(len_bytes as usize - at);
            // SAFETY: the range lies within this mapping, as [`range`](Self::range) has checked, and the advice changes no byte of it.
            let advised =
                unsafe { madvise(start.add(at).wrapping_sub(into_page).cast(), part + into_page, Advice::WillNeed) };
            if advised.is_err() {
                // The access itself reports errors.
                return;
            }
        }
    }

    /// Whether a page could not be loaded, so that what was read is not the file's and what was stored is not in it.
    #[inline]
    pub(crate) fn has_failed(&self) -> bool {
        self.watch.as_ref().is_some_and(Watch::has_failed)
    }

    /// The same mapping, without a watch.
    #[cfg(test)]
    pub(crate) fn forget_watch(mut self) -> Self {
        self.watch = None;
        self
    }

    /// Makes a system call on the memory, one that does not block; `None` where a page could not be loaded, before or in it.
    pub(crate) fn call<T>(&self, call: impl FnOnce() -> io::Result<T>) -> Option<io::Result<T>> {
        let Some(watch) = &self.watch else { return Some(call()) };
        let outcome = {
            let _call = watch.begin_call()?;
            call()
        };
        if outcome.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EFAULT)) {
            watch.mark_failed();
        }
        (!watch.has_failed()).then_some(outcome)
    }

    /// Touches every page of a range, so that one that cannot be loaded is found.
    pub(crate) fn touch(&self, offset: u64, len_bytes: u64) -> Result<(), MemError> {
        let start = self.range(offset, len_bytes)?;
        if self.watch.is_none() || len_bytes == 0 {
            return Ok(());
        }
        self.load_ahead(start, len_bytes);
        let last = len_bytes as usize - 1;
        for at in (0..last).step_by(TOUCHED_EVERY_BYTES).chain([last]) {
            // SAFETY: a byte of the range, which stays mapped while `self` lives.
            std::hint::black_box(unsafe { AtomicU8::from_ptr(start.add(at)) }.load(Ordering::Relaxed));
        }
        Ok(())
    }

    /// A pointer to `len_bytes` bytes at `offset`, all inside the mapping.
    pub(crate) fn range(&self, offset: u64, len_bytes: u64) -> Result<*mut u8, MemError> {
        check_bounds(offset, len_bytes, self.len_bytes())?;
        // SAFETY: the bounds were checked, so the result lies inside the mapping or one past its end.
        Ok(unsafe { self.start.as_ptr().add(offset as usize) })
    }

    pub(crate) fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), MemError> {
        let from = self.range(offset, into.len() as u64)?;
        self.load_ahead(from, into.len() as u64);
        // SAFETY: `from` is valid for `into.len()` bytes while `self` lives; `into` is a private borrow.
        unsafe { copy_out(from, into) };
        Ok(())
    }

    /// Has the kernel keep the pages of a range in memory. False: it refuses.
    pub(crate) fn lock(&self, offset: u64, len_bytes: u64) -> bool {
        let Ok(start) = self.range(offset, len_bytes) else { return false };
        // SAFETY: the range lies inside the mapping, which stays mapped while `self` is borrowed; locking changes no bytes.
        unsafe { mlock(start.cast(), len_bytes as usize) }.is_ok()
    }

    /// Lets them go again.
    pub(crate) fn unlock(&self, offset: u64, len_bytes: u64) {
        if let Ok(start) = self.range(offset, len_bytes) {
            // SAFETY: the range lies inside the mapping, which stays mapped while `self` is borrowed; unlocking changes no bytes.
            let _ = unsafe { munlock(start.cast(), len_bytes as usize) };
        }
    }

    /// The caller has checked that the mapping is writable.
    pub(crate) fn store(&self, offset: u64, bytes: &[u8]) -> Result<(), MemError> {
        debug_assert!(self.writable, "the caller refuses stores to a read-only mapping");
        let into = self.range(offset, bytes.len() as u64)?;
        self.load_ahead(into, bytes.len() as u64);
        // SAFETY: `into` is valid and writable for `bytes.len()` bytes while `self` lives.
        unsafe { copy_in(into, bytes, |word, value| word.store(value, Ordering::Relaxed)) };
        Ok(())
    }

    /// As `store`, past the CPU caches where the architecture can. On return the bytes are ordered before later stores.
    pub(crate) fn store_streaming(&self, offset: u64, bytes: &[u8]) -> Result<(), MemError> {
        debug_assert!(self.writable, "the caller refuses stores to a read-only mapping");
        let into = self.range(offset, bytes.len() as u64)?;
        // SAFETY: `into` is valid and writable for `bytes.len()` bytes while `self` lives.
        unsafe { copy_in(into, bytes, stream_word) };
        crate::cache::persist_fence();
        Ok(())
    }

    /// The 8 bytes at `offset` as an atomic; the reference must not outlive `self`.
    pub(crate) fn atomic(&self, offset: u64) -> Result<&AtomicU64, MemError> {
        let word = self.range(offset, 8)?;
        // Memory of the caller may begin anywhere.
        if word.addr() % 8 != 0 {
            return Err(MemError::Misaligned { offset });
        }
        // SAFETY: inside the mapping, 8-aligned, alive as long as `self`; every other access to these bytes is atomic or
        // made by the kernel.
        Ok(unsafe { AtomicU64::from_ptr(word.cast()) })
    }

    pub(crate) fn crc32c(&self, offset: u64, len_bytes: u64) -> Result<u32, MemError> {
        let start = self.range(offset, len_bytes)?;
        let mut chunk = [0_u8; CHECKSUM_CHUNK_BYTES];
        let (mut crc, mut done) = (0, 0);
        while done < len_bytes {
            if done % LOADED_AHEAD_BYTES as u64 == 0 {
                let part = (len_bytes - done).min(LOADED_AHEAD_BYTES as u64);
                self.load_ahead(start.wrapping_add(done as usize), part);
            }
            let part = &mut chunk[..(len_bytes - done).min(CHECKSUM_CHUNK_BYTES as u64) as usize];
            self.read(offset + done, part)?;
            crc = crc32c::crc32c_append(crc, part);
            done += part.len() as u64;
        }
        Ok(crc)
    }
}

/// A piece of a file, and how to map it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece<'a> {
    pub(crate) file: BorrowedFd<'a>,
    pub(crate) file_offset: u64,
    pub(crate) len_bytes: usize,
    pub(crate) writable: bool,
    pub(crate) sync: bool,
}

impl Piece<'_> {
    fn protection(&self) -> ProtFlags {
        if self.writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ }
    }

    fn flags(&self) -> MapFlags {
        if self.sync { MapFlags::SHARED_VALIDATE | MapFlags::SYNC } else { MapFlags::SHARED }
    }
}

/// Addresses that nothing else can take, to be filled with pieces of files from the first one on.
#[derive(Debug)]
pub(crate) struct Reservation {
    start: NonNull<u8>,
    len_bytes: usize,
    filled_bytes: usize,
    /// Bytes behind the filled ones that another thread may have mapped after a failed mapping.
    lost_bytes: usize,
}

impl Reservation {
    /// `len_bytes`: a multiple of the page size. `align_bytes`: a power of two and a multiple of the page size, which the
    /// first address is a multiple of.
    pub(crate) fn new(len_bytes: usize, align_bytes: usize) -> io::Result<Self> {
        debug_assert!(align_bytes.is_power_of_two(), "alignments of the kernel are powers of two");
        let whole_bytes = len_bytes.checked_add(align_bytes).ok_or(io::ErrorKind::OutOfMemory)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let whole = unsafe { mmap_anonymous(ptr::null_mut(), whole_bytes, ProtFlags::empty(), flags) }?;
        let whole = non_null(whole)?;
        let lead_bytes = whole.addr().get().wrapping_neg() & (align_bytes - 1);
        // SAFETY: the lead is shorter than the alignment, which the mapping is longer by.
        let start = unsafe { whole.add(lead_bytes) };
        // SAFETY: the end lies inside the mapping.
        let end = unsafe { start.add(len_bytes) };
        // SAFETY: the ranges before and behind what is kept are the mapping's own, and nobody has seen them.
        unsafe { release(whole, lead_bytes) };
        // SAFETY: what follows `end` up to the mapping's end is its own, and no reference into it was made.
        unsafe { release(end, align_bytes - lead_bytes) };
        Ok(Self { start, len_bytes, filled_bytes: 0, lost_bytes: 0 })
    }

    /// Maps `piece` behind the one before. After an error the reservation can only be dropped.
    pub(crate) fn fill(&mut self, piece: &Piece<'_>) -> io::Result<()> {
        assert!(piece.len_bytes <= self.len_bytes - self.filled_bytes && self.lost_bytes == 0, "there is room");
        let Piece { file, file_offset, len_bytes, .. } = *piece;
        // SAFETY: there is room, so the address lies inside the reservation.
        let address = unsafe { self.start.add(self.filled_bytes) }.as_ptr();
        // SAFETY: the range replaced is the reservation's own, and no pointer to it has been given away.
        let mapped = unsafe {
            mmap(address.cast(), len_bytes, piece.protection(), piece.flags() | MapFlags::FIXED, file, file_offset)
        };
        match mapped {
            Ok(_) => {
                self.filled_bytes += len_bytes;
                Ok(())
            }
            Err(errno) => {
                // Some kernels undo what was there before they ask the file, and another thread may be there by now.
                self.lost_bytes = len_bytes;
                Err(errno.into())
            }
        }
    }

    /// All of it, filled.
    pub(crate) fn into_mapping(self, writable: bool) -> Mapping {
        assert_eq!(self.filled_bytes, self.len_bytes, "every address must be a file's");
        let (start, len_bytes) = (self.start, self.len_bytes);
        std::mem::forget(self);
        // SAFETY: the reservation's addresses are all filled and nobody else's.
        let addresses = Some(unsafe { Addresses::own(start, len_bytes) });
        // SAFETY: they are unmapped behind the watch's end, by drop.
        let watch = Some(unsafe { Watch::new(start, len_bytes) });
        Mapping { start, len_bytes, writable, addresses, loads_pages: false, watch }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let behind_bytes = self.filled_bytes + self.lost_bytes;
        // SAFETY: both ranges are the reservation's own; what a refused mapping left is not touched.
        unsafe {
            release(self.start, self.filled_bytes);
            release(self.start.add(behind_bytes), self.len_bytes - behind_bytes);
        }
    }
}

/// # Safety
///
/// The range is the caller's own, at page boundaries, and no pointer into it is used again.
unsafe fn release(start: NonNull<u8>, len_bytes: usize) {
    if len_bytes > 0 {
        // SAFETY: no pointer into the range is used again, and it is nobody else's. munmap of such a range has no failure that could be
        // answered here.
        let _ = unsafe { munmap(start.as_ptr().cast(), len_bytes) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let addresses = self.addresses.take();
        // Who holds the addresses may still store there, and what is mapped is nobody's to change any more.
        if let Some(held) = addresses.as_ref().filter(|addresses| Arc::strong_count(addresses) > 1) {
            // SAFETY: no pointer of this value's users outlives it, and those who hold the addresses were told that this happens.
            unsafe { held.clear() };
        }
        // Before another mapping can take the addresses.
        self.watch = None;
    }
}

fn non_null(start: *mut std::ffi::c_void) -> io::Result<NonNull<u8>> {
    NonNull::new(start.cast()).ok_or_else(|| io::Error::other("the kernel mapped at address 0"))
}

/// Bytes before the first 8-aligned address at or after `pointer`, at most `len`.
fn lead_bytes(pointer: *const u8, len: usize) -> usize {
    (pointer.addr().wrapping_neg() & 7).min(len)
}

/// # Safety
///
/// `from` must be valid for reads of `into.len()` bytes that others access atomically only.
pub(crate) unsafe fn copy_out(from: *mut u8, into: &mut [u8]) {
    let lead = lead_bytes(from, into.len());
    let (head, rest) = into.split_at_mut(lead);
    // SAFETY: `head` and `tail` cover bytes of the range, and single bytes need no alignment.
    let byte = |index: usize| unsafe { AtomicU8::from_ptr(from.add(index)) }.load(Ordering::Relaxed);
    for (index, slot) in head.iter_mut().enumerate() {
        *slot = byte(index);
    }
    let (words, tail) = rest.split_at_mut(rest.len() / 8 * 8);
    let tail_start = lead + words.len();
    for (index, slot) in words.chunks_exact_mut(8).enumerate() {
        // SAFETY: inside the range, and 8-aligned since `from + lead` is.
        let word = unsafe { AtomicU64::from_ptr(from.add(lead + index * 8).cast()) };
        slot.copy_from_slice(&u64::from_le(word.load(Ordering::Relaxed)).to_le_bytes());
    }
    for (index, slot) in tail.iter_mut().enumerate() {
        *slot = byte(tail_start + index);
    }
}

/// # Safety
///
/// `into` must be valid for writes of `bytes.len()` bytes that others access atomically only.
unsafe fn copy_in(into: *mut u8, bytes: &[u8], store_word: impl Fn(&AtomicU64, u64)) {
    let lead = lead_bytes(into, bytes.len());
    let (head, rest) = bytes.split_at(lead);
    let store_byte = |index: usize, value: u8| {
        // SAFETY: `index` lies inside the range, and single bytes need no alignment.
        unsafe { AtomicU8::from_ptr(into.add(index)) }.store(value, Ordering::Relaxed);
    };
    for (index, value) in head.iter().enumerate() {
        store_byte(index, *value);
    }
    let (words, tail) = rest.split_at(rest.len() / 8 * 8);
    let tail_start = lead + words.len();
    let mut value = [0; 8];
    for (index, bytes) in words.chunks_exact(8).enumerate() {
        value.copy_from_slice(bytes);
        // SAFETY: inside the range, and 8-aligned since `into + lead` is.
        let word = unsafe { AtomicU64::from_ptr(into.add(lead + index * 8).cast()) };
        store_word(word, u64::from_le_bytes(value).to_le());
    }
    for (index, value) in tail.iter().enumerate() {
        store_byte(tail_start + index, *value);
    }
}

#[cfg(target_arch = "x86_64")]
fn stream_word(word: &AtomicU64, value: u64) {
    // SAFETY: the word is valid and 8-aligned; `movnti` of 8 aligned bytes is a single store (Intel SDM 3A, 9.1.1).
    unsafe { core::arch::x86_64::_mm_stream_si64(word.as_ptr().cast(), i64::from_le_bytes(value.to_le_bytes())) };
}

#[cfg(not(target_arch = "x86_64"))]
fn stream_word(word: &AtomicU64, value: u64) {
    word.store(value, Ordering::Relaxed);
}

#[cfg(test)]
mod tests;
