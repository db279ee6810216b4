//! Requests about the pages of a pool that keeps digests of them, and their replies.

use alloc::vec::Vec;
use core::ops::Range;

use super::{
    limits::MAX_BODY_BYTES,
    wire::{Body, Fault, Frame, Parsed},
};

/// Ranges of pages in one message, at most: as many as fit.
pub const PAGE_RANGES_MAX: usize = (MAX_BODY_BYTES - 12) / RANGE_BYTES;
/// Bytes of a page that one message repairs: the half of it.
pub const REPAIRED_BYTES: usize = 2048;
/// Pages that one request has verified, at most: as many as a request for digests covers.
pub const VERIFIED_PAGES_MAX: u64 = 8192;

/// First page and number of pages.
const RANGE_BYTES: usize = 12;
const WORD_BYTES: usize = 8;

/// What is asked about pages of the pool that this connection has open, in ranges of their numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PagesRequest {
    /// Take the protection of pages back, durably, before new bytes may reach them, and raise the bits of their extents in the map of write intent. A page that is
    /// damaged keeps its word.
    Raise {
        /// The pages, at most [`PAGE_RANGES_MAX`] ranges.
        pages: Vec<Range<u64>>,
        /// Also of pages that are damaged: what they hold is about to be replaced as a whole.
        is_forced: bool,
        /// Keep them in memory until they are protected: no other replica says what was written.
        is_alone: bool,
    },
    /// Compute the words of pages.
    Digest {
        /// The pages, as many as the words of one reply.
        pages: Vec<Range<u64>>,
    },
    /// Protect those of the pages that have these digests. All of their bytes are durable, and none is written before the reply.
    Protect {
        /// The pages; see [`protect_page`](Self::protect_page) for how many.
        pages: Vec<Range<u64>>,
        /// The word of each.
        words: Vec<u64>,
        /// No other replica has these words: only pages count that were kept in memory since they were raised.
        is_alone: bool,
    },
    /// Name pages that are not protected.
    Unprotected {
        /// Of these pages; those of the pool, where it has fewer.
        pages: Range<u64>,
    },
    /// Verify pages that are protected.
    Verify {
        /// The pages, at most [`VERIFIED_PAGES_MAX`].
        pages: Range<u64>,
    },
    /// Replace a page that is damaged by its bytes as another replica has them. It comes in parts, in order, and is stored with the last one if all of it has the page's digest.
    Repair {
        /// The page.
        page: u64,
        /// The word that it is to have. It counts only where the replica's own is damaged.
        word: u64,
        /// Where this part begins in the page.
        offset: u16,
        /// The part, at most [`REPAIRED_BYTES`].
        bytes: Vec<u8>,
    },
}

/// What is answered to a [`PagesRequest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PagesReply {
    /// To `Raise`: these pages are damaged, and all others not protected.
    Raised {
        /// The damaged ones, as many ranges as fit.
        damaged: Vec<Range<u64>>,
        /// Pages that were protected and whole until now, as many ranges as fit. None where the request was forced.
        verified: Vec<Range<u64>>,
    },
    /// To `Digest`: the word that each page would have.
    Digests {
        /// The words, in the order of the pages.
        words: Vec<u64>,
    },
    /// To `Protect`: the pages are protected, without these, whose bytes have another digest.
    Protected {
        /// The other ones.
        others: Vec<Range<u64>>,
    },
    /// To `Unprotected`.
    Unprotected {
        /// Pages that are not protected, as many ranges as fit.
        pages: Vec<Range<u64>>,
        /// How far the answer goes.
        end: u64,
    },
    /// To `Verify`.
    Verified {
        /// Pages that are damaged, or whose word is, as many ranges as fit.
        damaged: Vec<Range<u64>>,
        /// How far the answer goes.
        end: u64,
    },
    /// To `Repair`: the part was taken, and with the last one the page is as its word says.
    Repaired,
}

impl PagesRequest {
    /// The first ranges of pages and their words that one message holds, and what is left of both.
    pub fn protect_page<'w>(pages: &mut Vec<Range<u64>>, words: &mut &'w [u64]) -> (Vec<Range<u64>>, &'w [u64]) {
        let (mut room, mut taken, mut count) = (MAX_BODY_BYTES - 9, Vec::new(), 0);
        while let Some(range) = pages.last_mut() {
            let fits = room.saturating_sub(RANGE_BYTES) / WORD_BYTES;
            let part = (fits as u64).min(range.end - range.start);
            if part == 0 {
                break;
            }
            taken.push(range.start..range.start + part);
            (room, count) = (room - RANGE_BYTES - part as usize * WORD_BYTES, count + part as usize);
            range.start += part;
            if range.is_empty() {
                pages.pop();
            }
        }
        let (first, rest) = words.split_at(count);
        *words = rest;
        (taken, first)
    }

    pub(super) fn kind(&self) -> u16 {
        match self {
            Self::Raise { .. } => 40,
            Self::Digest { .. } => 41,
            Self::Protect { .. } => 42,
            Self::Unprotected { .. } => 43,
            Self::Verify { .. } => 44,
            Self::Repair { .. } => 45,
        }
    }

    pub(super) fn encode(&self, frame: &mut Frame) {
        match self {
            Self::Raise { pages, is_forced, is_alone } => {
                frame.byte(u8::from(*is_forced));
                frame.byte(u8::from(*is_alone));
                frame.pages(pages);
            }
            Self::Digest { pages } => frame.pages(pages),
            Self::Protect { pages, words, is_alone } => {
                frame.byte(u8::from(*is_alone));
                frame.pages(pages);
                frame.page_words(words);
            }
            Self::Unprotected { pages } | Self::Verify { pages } => {
                frame.number_u64(pages.start);
                frame.number_u64(pages.end);
            }
            Self::Repair { page, word, offset, bytes } => {
                frame.number_u64(*page);
                frame.number_u64(*word);
                frame.number_u16(*offset);
                frame.number_u16(bytes.len() as u16);
                frame.bytes(bytes);
            }
        }
    }

    pub(super) fn parse(kind: u16, body: &mut Body<'_>) -> Parsed<Self> {
        Ok(match kind {
            40 => {
                let (is_forced, is_alone) = (body.flag()?, body.flag()?);
                Self::Raise { pages: body.pages()?, is_forced, is_alone }
            }
            41 => Self::Digest { pages: body.pages()? },
            42 => {
                let is_alone = body.flag()?;
                let (pages, words) = (body.pages()?, body.page_words()?);
                if page_count(&pages) != words.len() as u64 {
                    return Err(Fault::Malformed("not each page has a word"));
                }
                Self::Protect { pages, words, is_alone }
            }
            43 => Self::Unprotected { pages: body.number_u64()?..body.number_u64()? },
            44 => {
                let pages = body.number_u64()?..body.number_u64()?;
                if pages.start > pages.end || pages.end - pages.start > VERIFIED_PAGES_MAX {
                    return Err(Fault::Malformed("more pages than one request may have verified"));
                }
                Self::Verify { pages }
            }
            45 => {
                let (page, word, offset) = (body.number_u64()?, body.number_u64()?, body.number_u16()?);
                Self::Repair { page, word, offset, bytes: body.counted(REPAIRED_BYTES)?.to_vec() }
            }
            _ => return Err(Fault::UnknownKind),
        })
    }
}

impl PagesReply {
    pub(super) fn kind(&self) -> u16 {
        match self {
            Self::Raised { .. } => 0xa8,
            Self::Digests { .. } => 0xa9,
            Self::Protected { .. } => 0xaa,
            Self::Unprotected { .. } => 0xab,
            Self::Verified { .. } => 0xac,
            Self::Repaired => 0xad,
        }
    }

    pub(super) fn encode(&self, frame: &mut Frame) {
        match self {
            Self::Raised { damaged, verified } => {
                frame.pages(damaged);
                frame.pages(verified);
            }
            Self::Protected { others } => frame.pages(others),
            Self::Digests { words } => frame.page_words(words),
            Self::Unprotected { pages, end } | Self::Verified { damaged: pages, end } => {
                frame.number_u64(*end);
                frame.pages(pages);
            }
            Self::Repaired => {}
        }
    }

    pub(super) fn parse(kind: u16, body: &mut Body<'_>) -> Parsed<Self> {
        Ok(match kind {
            0xa8 => Self::Raised { damaged: body.pages()?, verified: body.pages()? },
            0xa9 => Self::Digests { words: body.page_words()? },
            0xaa => Self::Protected { others: body.pages()? },
            0xab => {
                let end = body.number_u64()?;
                Self::Unprotected { pages: body.pages()?, end }
            }
            0xac => {
                let end = body.number_u64()?;
                Self::Verified { damaged: body.pages()?, end }
            }
            0xad => Self::Repaired,
            _ => return Err(Fault::UnknownKind),
        })
    }
}

/// Pages in ranges of them.
pub(crate) fn page_count(pages: &[Range<u64>]) -> u64 {
    pages.iter().map(|range| range.end - range.start).sum()
}

impl Frame {
    /// A list that is longer than allowed makes a message that cannot be sealed.
    fn pages(&mut self, pages: &[Range<u64>]) {
        self.number_u16(pages.len() as u16);
        for range in pages {
            self.number_u64(range.start);
            self.bytes(&((range.end - range.start) as u32).to_le_bytes());
        }
    }

    fn page_words(&mut self, words: &[u64]) {
        self.number_u16(words.len() as u16);
        for word in words {
            self.number_u64(*word);
        }
    }
}

impl Body<'_> {
    fn pages(&mut self) -> Parsed<Vec<Range<u64>>> {
        let count = self.number_u16()?;
        let range = |body: &mut Self| {
            let (first, count) = (body.number_u64()?, u32::from_le_bytes(body.array()?));
            let end = first.checked_add(count.into()).filter(|end| *end > first);
            end.map(|end| first..end).ok_or(Fault::Malformed("a range of pages is empty or too long"))
        };
        (0..count).map(|_| range(self)).collect()
    }

    fn page_words(&mut self) -> Parsed<Vec<u64>> {
        let count = self.number_u16()?;
        (0..count).map(|_| self.number_u64()).collect()
    }
}
