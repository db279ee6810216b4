//! Digests of the pages of a pool, by which a byte that a medium changed is told from one that was written.

use twox_hash::XxHash3_64;
use uuid::Uuid;

use crate::checksum::is_all_zero;

#[cfg(test)]
mod tests;

/// Bytes of a page, the unit of protection.
pub const PAGE_BYTES: u64 = 4096;

/// Bytes of a word of the digest area.
pub const DIGEST_WORD_BYTES: u64 = 8;

const DIGEST_BITS: u32 = 48;
const DIGEST_MASK: u64 = (1 << DIGEST_BITS) - 1;
const PROTECTED: u64 = 1 << 63;
/// Tells the words of pages without a digest from those with one.
const UNPROTECTED_SALT: u64 = 0x756e_7072_6f74_6563;

/// The words of the digest area of one pool: one for each page, in order, each 8 bytes, little-endian. The area lies behind the head of a file of format 4.
///
/// | bits | of a page that is protected | of one that is not |
/// |---|---|---|
/// | 0 to 47 | 0 if all of its 4096 bytes are zero; else the low bits of their XXH3-64 with the page's seed, or 1 if these are 0 | bits 0 to 62: the low bits of XXH3-64 of the page's number, with the seed of all pages that are not protected |
/// | 48 to 62 | the low bits of XXH3-64 of bits 0 to 47 as `u64`, with the page's seed | |
/// | 63 | 1 | 0 |
///
/// The seed of a page is XXH3-64 of the pool's UUID plus the page's number times 2^64 / φ; that of unprotected ones is the hash of the UUID XOR a constant. So a word is good for one page of one pool,
/// and every word checks itself: a block of the area that is lost, zeroed or swapped is told from pages that are damaged. A word changes by one atomic store: it is set, with the
/// digest, when the page is durable, and taken back, durably, before a new byte may reach the page.
///
/// A page that is damaged passes for whole with a probability of 2^-48; a damaged word for one of a protected page with 2^-15 (and its page then for damaged), and for one of a page that is not with 2^-63.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageDigests {
    pool_seed: u64,
}

/// What a word says of its page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageWord {
    /// The page may be in motion, or had no digest yet: nothing is known of its bytes.
    Unprotected,
    /// Its bytes have this digest, or are damaged.
    Protected(PageDigest),
    /// The word itself is damaged.
    Damaged,
}

/// The digest of a page, of 48 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageDigest(u64);

impl PageDigest {
    /// That of a page of zeros, as all pages of a new pool are.
    pub const ZEROS: Self = Self(0);
}

impl PageDigests {
    /// The words of the pool with this UUID, the same on all of its replicas.
    pub fn new(pool_uuid: Uuid) -> Self {
        Self { pool_seed: XxHash3_64::oneshot(pool_uuid.as_bytes()) }
    }

    /// The digest of a page: `bytes` are its [`PAGE_BYTES`] bytes, those behind the pool's end included.
    pub fn digest(self, page: u64, bytes: &[u8]) -> PageDigest {
        debug_assert_eq!(bytes.len() as u64, PAGE_BYTES, "a digest is of a whole page");
        if is_all_zero(bytes) {
            return PageDigest::ZEROS;
        }
        PageDigest((XxHash3_64::oneshot_with_seed(self.seed(page), bytes) & DIGEST_MASK).max(1))
    }

    /// The word of a page that is protected by this digest.
    pub fn protected(self, page: u64, digest: PageDigest) -> u64 {
        let check = XxHash3_64::oneshot_with_seed(self.seed(page), &digest.0.to_le_bytes());
        PROTECTED | (check << DIGEST_BITS & !PROTECTED) | digest.0
    }

    /// The word of a page that is not protected.
    pub fn unprotected(self, page: u64) -> u64 {
        XxHash3_64::oneshot_with_seed(self.pool_seed ^ UNPROTECTED_SALT, &page.to_le_bytes()) & !PROTECTED
    }

    /// What the word that lies at a page's place says.
    pub fn decode(self, page: u64, word: u64) -> PageWord {
        if word & PROTECTED == 0 {
            return if word == self.unprotected(page) { PageWord::Unprotected } else { PageWord::Damaged };
        }
        let digest = PageDigest(word & DIGEST_MASK);
        if word == self.protected(page, digest) { PageWord::Protected(digest) } else { PageWord::Damaged }
    }

    fn seed(self, page: u64) -> u64 {
        self.pool_seed.wrapping_add(page.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }
}

/// Pages of a pool with so many bytes, the last one perhaps not full.
pub fn page_count(size_bytes: u64) -> u64 {
    size_bytes.div_ceil(PAGE_BYTES)
}
