//! Borrowed memory that its owner may take back.

use std::{
    io,
    os::fd::BorrowedFd,
    sync::atomic::{AtomicBool, Ordering},
};

use crate::{Durability, Medium, MediumKind, MemError, Memory, Promise};

/// [Borrowed](Memory::borrow) memory that its owner may take back while handles to it still exist: from then on every call
/// that would access its bytes fails with [`MemError::TakenBack`].
///
/// Taking it back does not wait for calls in flight in other threads: the caller must wait for them, as
/// `Region::deregister` of pmof-access does for those of its connections.
#[derive(Debug)]
pub struct Lent {
    memory: Memory,
    is_taken_back: AtomicBool,
}

impl Lent {
    /// Lends that memory until it is taken back or dropped.
    pub fn new(memory: Memory) -> Self {
        Self { memory, is_taken_back: AtomicBool::new(false) }
    }

    /// Ends the loan for calls that begin after this one.
    pub fn take_back(&self) {
        self.is_taken_back.store(true, Ordering::Release);
    }

    #[inline]
    fn reach(&self) -> Result<&Memory, MemError> {
        if self.is_taken_back.load(Ordering::Acquire) { Err(MemError::TakenBack) } else { Ok(&self.memory) }
    }

    /// The memory, if its owner still has all of the range mapped. This costs one system call. If the owner has unmapped or truncated it,
    /// the result is an error instead of the end of the process, unless that happens between this check and the access.
    fn reach_at(&self, offset: u64, len_bytes: u64, to_change: bool) -> Result<&Memory, MemError> {
        let memory = self.reach()?;
        memory.check_there(offset, len_bytes, to_change)?;
        Ok(memory)
    }

    fn reach_for_io(&self) -> io::Result<&Memory> {
        self.reach().map_err(|error| io::Error::new(io::ErrorKind::PermissionDenied, error))
    }
}

impl Medium for Lent {
    fn len_bytes(&self) -> u64 {
        self.memory.len_bytes()
    }

    fn kind(&self) -> MediumKind {
        self.memory.kind()
    }

    fn promise(&self, level: Durability) -> Option<Promise> {
        self.memory.promise(level)
    }

    fn promise_in(&self, level: Durability, offset: u64, len_bytes: u64) -> Option<Promise> {
        self.memory.promise_in(level, offset, len_bytes)
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), MemError> {
        self.reach_at(offset, into.len() as u64, false)?.read(offset, into)
    }

    fn store(&self, offset: u64, bytes: &[u8]) -> Result<(), MemError> {
        self.reach_at(offset, bytes.len() as u64, true)?.store(offset, bytes)
    }

    fn receive(&self, fd: BorrowedFd<'_>, offset: u64, len_bytes: u64, tail: &mut [u8]) -> io::Result<usize> {
        self.reach_for_io()?.receive(fd, offset, len_bytes, tail)
    }

    fn send(&self, fd: BorrowedFd<'_>, head: &[u8], offset: u64, len_bytes: u64, tail: &[u8]) -> io::Result<usize> {
        self.reach_for_io()?.send(fd, head, offset, len_bytes, tail)
    }

    fn atomic_store(&self, offset: u64, value: u64) -> Result<(), MemError> {
        self.reach_at(offset, 8, true)?.atomic_store(offset, value)
    }

    fn compare_and_swap(&self, offset: u64, expected: u64, new: u64) -> Result<u64, MemError> {
        self.reach_at(offset, 8, true)?.compare_and_swap(offset, expected, new)
    }

    fn fetch_and_add(&self, offset: u64, addend: u64) -> Result<u64, MemError> {
        self.reach_at(offset, 8, true)?.fetch_and_add(offset, addend)
    }

    fn write_back(&self, offset: u64, len_bytes: u64) -> Result<(), MemError> {
        self.reach_at(offset, len_bytes, false)?.write_back(offset, len_bytes)
    }

    fn fence(&self) -> Result<(), MemError> {
        self.reach()?.fence()
    }

    fn sync_range(&self, offset: u64, len_bytes: u64) -> Result<(), MemError> {
        self.reach_at(offset, len_bytes, false)?.sync_range(offset, len_bytes)
    }

    /// Always `None`: the owner may take the memory back at any time, and then waits for the users of its connections, not for
    /// another thread's fence.
    fn fence_device(&self) -> Option<u64> {
        None
    }

    fn crc32c(&self, offset: u64, len_bytes: u64) -> Result<u32, MemError> {
        self.reach_at(offset, len_bytes, false)?.crc32c(offset, len_bytes)
    }

    fn touch(&self, offset: u64, len_bytes: u64) -> Result<(), MemError> {
        self.reach_at(offset, len_bytes, false).map(drop)
    }

    fn memory(&self) -> Option<&Memory> {
        Some(&self.memory)
    }

    fn lent(&self) -> Option<&Lent> {
        Some(self)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd as _, AsRawFd as _};

    use super::*;

    /// A shared mapping of a file of two pages, lent.
    fn lent_file() -> (Lent, std::fs::File, *mut libc::c_void) {
        const BYTES: usize = 2 * 4096;
        let file = tempfile::tempfile().unwrap();
        file.set_len(BYTES as u64).unwrap();
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a mapping of its own.
        let place = unsafe { libc::mmap(std::ptr::null_mut(), BYTES, access, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        assert_ne!(place, libc::MAP_FAILED);
        // SAFETY: what the tests do to it is what they are about: nothing touches it then.
        let memory = unsafe { Memory::borrow(place.expose_provenance() as u64, BYTES as u64, None) };
        (Lent::new(memory.unwrap()), file, place)
    }

    /// Every call on the second page.
    fn calls(lent: &Lent) -> [Result<(), MemError>; 8] {
        let mut bytes = [0; 8];
        [
            lent.read(4096, &mut bytes),
            lent.store(4096, &bytes),
            lent.atomic_store(4096, 1),
            lent.compare_and_swap(4096, 0, 1).map(drop),
            lent.fetch_and_add(4096, 1).map(drop),
            lent.write_back(4096, 8),
            lent.crc32c(4096, 8).map(drop),
            lent.touch(4096, 8),
        ]
    }

    #[test]
    #[cfg_attr(miri, ignore = "miri maps no files")]
    fn what_its_owner_cuts_or_unmaps_is_an_error() {
        for by_cutting in [true, false] {
            let (lent, file, place) = lent_file();
            assert!(calls(&lent).iter().all(Result::is_ok));
            if by_cutting {
                file.set_len(4096).unwrap();
            } else {
                // SAFETY: the second page of the mapping, which nothing touches any more.
                assert_eq!(unsafe { libc::munmap(place.byte_add(4096), 4096) }, 0);
            }
            let refused = calls(&lent);
            assert!(refused.iter().all(|call| matches!(call, Err(MemError::MediumFailed { .. }))), "{refused:?}");
            // The other page is there still, and so are calls on it.
            lent.store(0, &[7; 8]).unwrap();
            // SAFETY: nobody uses the mapping any more.
            unsafe { libc::munmap(place, 4096) };
        }
    }

    #[test]
    fn nothing_touches_what_was_taken_back() {
        let lent = Lent::new(Memory::anonymous(4096).unwrap());
        lent.store(8, &[7; 8]).unwrap();
        let mut bytes = [0; 8];
        lent.read(8, &mut bytes).unwrap();
        assert_eq!(bytes, [7; 8]);
        lent.take_back();
        let refused: [Result<(), MemError>; 9] = [
            lent.read(8, &mut bytes),
            lent.store(8, &bytes),
            lent.atomic_store(8, 1),
            lent.compare_and_swap(8, 0, 1).map(drop),
            lent.fetch_and_add(8, 1).map(drop),
            lent.write_back(8, 8),
            lent.fence(),
            lent.crc32c(8, 8).map(drop),
            lent.touch(8, 8),
        ];
        assert!(refused.iter().all(|call| matches!(call, Err(MemError::TakenBack))), "{refused:?}");
        let (one, other) = std::os::unix::net::UnixStream::pair().unwrap();
        assert_eq!(lent.send(one.as_fd(), &[], 8, 8, &[]).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        assert_eq!(lent.receive(other.as_fd(), 8, 8, &mut []).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        assert_eq!(lent.len_bytes(), 4096);
    }
}
