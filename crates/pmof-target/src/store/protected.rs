//! Memory of a pool that keeps digests of its pages: what is read is verified, and what is protected is not stored to.
//!
//! A page counts as damaged only if its word is the same before and after it was copied out: its protection is taken back before new bytes may reach it, so a read beside a
//! write never takes new bytes for damage.

use std::{
    cell::RefCell,
    io::{self, IoSlice},
    ops::Range,
    os::fd::BorrowedFd,
    sync::Arc,
};

use pmof_control::{DIGEST_WORD_BYTES, Header, PAGE_BYTES, PageDigests, PageWord};
use pmof_mem::{Durability, Lent, Medium, MediumKind, MemError, Memory, Promise};
use rustix::{
    io::Errno,
    net::{SendAncillaryBuffer, SendFlags, sendmsg},
};

const PAGE: usize = PAGE_BYTES as usize;
const WORD: usize = DIGEST_WORD_BYTES as usize;
/// Words that are read at once.
const WORDS_AT_ONCE: usize = 32;
/// Bytes that are verified and sent at once.
const SENT_BYTES: usize = 64 << 10;

thread_local! {
    static SENT: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The memory of a pool's file as its peers have it. Offsets are those of the file.
#[derive(Debug)]
pub(crate) struct ProtectedMemory {
    memory: Arc<Memory>,
    digests: PageDigests,
    words: u64,
    data: u64,
}

impl ProtectedMemory {
    /// `None` where the pool keeps no digests.
    pub(crate) fn new(memory: &Arc<Memory>, header: &Header) -> Option<Self> {
        let area = header.layout.digests()?;
        let (digests, data) = (PageDigests::new(header.pool_uuid), header.data_offset());
        Some(Self { memory: Arc::clone(memory), digests, words: area.start, data })
    }

    fn word(&self, page: u64) -> Result<u64, MemError> {
        let mut word = [0; DIGEST_WORD_BYTES as usize];
        self.memory.read(self.words + page * DIGEST_WORD_BYTES, &mut word)?;
        Ok(u64::from_le_bytes(word))
    }

    /// The pages of a range of the file that lies in the data.
    fn pages(&self, offset: u64, len_bytes: u64) -> Range<u64> {
        let begin = offset.saturating_sub(self.data);
        begin / PAGE_BYTES..(begin + len_bytes).div_ceil(PAGE_BYTES)
    }

    /// Copies a whole page out and verifies it.
    fn read_page(&self, page: u64, into: &mut [u8]) -> Result<(), MemError> {
        let offset = self.data + page * PAGE_BYTES;
        let mut before = self.word(page)?;
        loop {
            self.memory.read(offset, into)?;
            let is_whole = match self.digests.decode(page, before) {
                PageWord::Unprotected => true,
                PageWord::Protected(digest) => self.digests.digest(page, into) == digest,
                PageWord::Damaged => false,
            };
            if is_whole {
                return Ok(());
            }
            let after = self.word(page)?;
            if after == before {
                return Err(MemError::Damaged { offset, len_bytes: PAGE_BYTES });
            }
            // It was written meanwhile. Each change of a word takes its writer seconds, so this ends.
            before = after;
        }
    }

    /// Refuses a store to a page that is protected.
    fn check_unprotected(&self, offset: u64, len_bytes: u64) -> Result<(), MemError> {
        let mut pages = self.pages(offset, len_bytes);
        let mut words = [0; WORDS_AT_ONCE * WORD];
        while !pages.is_empty() {
            let count = (pages.end - pages.start).min(WORDS_AT_ONCE as u64) as usize;
            let words = &mut words[..count * WORD];
            self.memory.read(self.words + pages.start * DIGEST_WORD_BYTES, words)?;
            for (word, page) in words.chunks_exact(WORD).zip(pages.by_ref()) {
                let word = word.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
                if word != self.digests.unprotected(page) {
                    return Err(MemError::Protected { offset: self.data + page * PAGE_BYTES });
                }
            }
        }
        Ok(())
    }
}

impl Medium for ProtectedMemory {
    fn len_bytes(&self) -> u64 {
        Medium::len_bytes(&*self.memory)
    }

    fn kind(&self) -> MediumKind {
        Medium::kind(&*self.memory)
    }

    fn promise(&self, level: Durability) -> Option<Promise> {
        Medium::promise(&*self.memory, level)
    }

    fn promise_in(&self, level: Durability, offset: u64, len_bytes: u64) -> Option<Promise> {
        self.memory.promise_in(level, offset, len_bytes)
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), MemError> {
        let pages = self.pages(offset, into.len() as u64);
        let (mut done, mut within) = (0, ((offset - self.data) % PAGE_BYTES) as usize);
        for page in pages {
            let part = (PAGE - within).min(into.len() - done);
            let part_into = &mut into[done..done + part];
            if part == PAGE {
                self.read_page(page, part_into)?;
            } else {
                let mut whole = [0; PAGE];
                self.read_page(page, &mut whole)?;
                part_into.copy_from_slice(&whole[within..within + part]);
            }
            (done, within) = (done + part, 0);
        }
        Ok(())
    }

    fn store(&self, offset: u64, bytes: &[u8]) -> Result<(), MemError> {
        self.check_unprotected(offset, bytes.len() as u64)?;
        self.memory.store(offset, bytes)
    }

    fn receive(&self, fd: BorrowedFd<'_>, offset: u64, len_bytes: u64, tail: &mut [u8]) -> io::Result<usize> {
        self.check_unprotected(offset, len_bytes).map_err(io::Error::other)?;
        self.memory.receive(fd, offset, len_bytes, tail)
    }

    /// What is sent was verified after it was copied out; a page that turns out to be damaged here was whole when the reply began, and ends the connection.
    fn send(&self, fd: BorrowedFd<'_>, head: &[u8], offset: u64, len_bytes: u64, tail: &[u8]) -> io::Result<usize> {
        SENT.with_borrow_mut(|buffer| {
            let part = (len_bytes as usize).min(SENT_BYTES - (offset as usize % PAGE));
            buffer.resize(part, 0);
            self.read(offset, buffer).map_err(io::Error::other)?;
            let tail = if part as u64 == len_bytes { tail } else { &[] };
            let slices = [IoSlice::new(head), IoSlice::new(buffer), IoSlice::new(tail)];
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            loop {
                match sendmsg(fd, &slices, &mut SendAncillaryBuffer::default(), flags) {
                    Err(Errno::INTR) => {}
                    sent => return Ok(sent?),
                }
            }
        })
    }

    fn atomic_store(&self, offset: u64, value: u64) -> Result<(), MemError> {
        self.check_unprotected(offset, 8)?;
        self.memory.atomic_store(offset, value)
    }

    fn compare_and_swap(&self, offset: u64, expected: u64, new: u64) -> Result<u64, MemError> {
        self.check_unprotected(offset, 8)?;
        self.memory.compare_and_swap(offset, expected, new)
    }

    fn fetch_and_add(&self, offset: u64, addend: u64) -> Result<u64, MemError> {
        self.check_unprotected(offset, 8)?;
        self.memory.fetch_and_add(offset, addend)
    }

    fn write_back(&self, offset: u64, len_bytes: u64) -> Result<(), MemError> {
        self.memory.write_back(offset, len_bytes)
    }

    fn fence(&self) -> Result<(), MemError> {
        self.memory.fence()
    }

    fn flush(&self, level: Durability, offset: u64, len_bytes: u64) -> Result<Option<Promise>, MemError> {
        self.memory.flush(level, offset, len_bytes)
    }

    fn sync_range(&self, offset: u64, len_bytes: u64) -> Result<(), MemError> {
        self.memory.sync_range(offset, len_bytes)
    }

    fn fence_device(&self) -> Option<u64> {
        self.memory.fence_device()
    }

    fn crc32c(&self, offset: u64, len_bytes: u64) -> Result<u32, MemError> {
        self.touch(offset, len_bytes)?;
        self.memory.crc32c(offset, len_bytes)
    }

    /// Verifies the range, so that what is damaged is refused before a reply begins.
    fn touch(&self, offset: u64, len_bytes: u64) -> Result<(), MemError> {
        let mut page_bytes = [0; PAGE];
        self.pages(offset, len_bytes).try_for_each(|page| self.read_page(page, &mut page_bytes))
    }

    fn memory(&self) -> Option<&Memory> {
        Some(&self.memory)
    }

    fn lent(&self) -> Option<&Lent> {
        self.memory.lent()
    }
}
