//! The bytes of a pool's file: where its structures lie, how they are damaged, and what of them is whole.

use std::{
    collections::BTreeSet,
    fs::{File, OpenOptions},
    ops::Range,
    os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    path::Path,
};

use anyhow::{Context, Result, ensure};
use pmof_control::{
    DIGEST_WORD_BYTES, HEAD_4_BYTES, HEADER_BYTES, Header, IntentLayout, PAGE_BYTES, PageDigests, PageWord, PoolFormat,
    PoolState, Roster, page_count,
};

use rustix::fs::OFlags;

use super::cell::{Extent, Structure};
use crate::soak::Random;

/// What direct reads and writes are aligned to.
const DIRECT_BYTES: u64 = 4096;

/// Bytes of the magic that a header begins with.
const MAGIC_BYTES: usize = 8;

/// The file of one replica.
#[derive(Clone, Debug)]
pub(super) struct Image {
    pub(super) bytes: Vec<u8>,
    pub(super) header: Header,
}

impl Image {
    pub(super) fn read(path: &Path) -> Result<Self> {
        let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let (header, _) = Header::of_file(&bytes[..bytes.len().min(HEAD_4_BYTES as usize)])?;
        Ok(Self { bytes, header })
    }

    /// The bytes of the same file later, whose header may be damaged by then.
    pub(super) fn again(&self, path: &Path) -> Result<Self> {
        let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        ensure!(bytes.len() == self.bytes.len(), "the length of {} has changed", path.display());
        Ok(Self { bytes, header: self.header.clone() })
    }

    fn format(&self) -> PoolFormat {
        self.header.format
    }

    pub(super) fn pages(&self) -> u64 {
        page_count(self.header.size_bytes)
    }

    pub(super) fn word_range(&self, page: u64) -> Option<Range<u64>> {
        let begin = self.header.layout.digests()?.start + page * DIGEST_WORD_BYTES;
        Some(begin..begin + DIGEST_WORD_BYTES)
    }

    pub(super) fn page_range(&self, page: u64) -> Range<u64> {
        let begin = self.header.data_offset() + page * PAGE_BYTES;
        begin..begin + PAGE_BYTES
    }

    pub(super) fn intent_range(&self) -> Range<u64> {
        let begin = self.format().intent_offset();
        begin..begin + (IntentLayout::new(self.header.size_bytes).word_count() * size_of::<u64>()) as u64
    }

    /// Where the copies of a structure of the head lie.
    pub(super) fn copies(&self, structure: Structure) -> Vec<Range<u64>> {
        let format = self.format();
        let (places, len_bytes) = match structure {
            Structure::Header | Structure::AllHeaders => (format.header_places(), HEADER_BYTES),
            Structure::State | Structure::AllStates => (format.state_places(), format.state_bytes()),
            Structure::Roster | Structure::AllRosters => (format.roster_places(), format.roster_bytes()),
            _ => return Vec::new(),
        };
        places.iter().map(|place| *place..place + len_bytes as u64).collect()
    }

    pub(super) fn at(&self, range: &Range<u64>) -> &[u8] {
        &self.bytes[range.start as usize..range.end as usize]
    }

    pub(super) fn word(&self, page: u64) -> Option<u64> {
        let range = self.word_range(page)?;
        Some(u64::from_le_bytes(self.at(&range).try_into().expect("eight bytes")))
    }

    fn says(&self, page: u64) -> Option<PageWord> {
        Some(PageDigests::new(self.header.pool_uuid).decode(page, self.word(page)?))
    }

    pub(super) fn is_protected(&self, page: u64) -> bool {
        matches!(self.says(page), Some(PageWord::Protected(_)))
    }

    pub(super) fn is_unprotected(&self, page: u64) -> bool {
        self.says(page) == Some(PageWord::Unprotected)
    }

    /// Whether a page has the digest of its word; `None` where it is not protected.
    pub(super) fn is_whole(&self, page: u64) -> Option<bool> {
        let digests = PageDigests::new(self.header.pool_uuid);
        match self.says(page)? {
            PageWord::Protected(digest) => Some(digests.digest(page, self.at(&self.page_range(page))) == digest),
            PageWord::Unprotected => None,
            PageWord::Damaged => Some(false),
        }
    }

    /// Whether all copies of all structures of the head are whole.
    pub(super) fn is_head_whole(&self) -> bool {
        let joined = |structure| self.copies(structure).iter().flat_map(|range| self.at(range).to_vec()).collect();
        let (states, rosters): (Vec<u8>, Vec<u8>) = (joined(Structure::State), joined(Structure::Roster));
        let are_headers_whole = matches!(Header::of_file(&self.bytes[..HEAD_4_BYTES as usize]), Ok((_, true)));
        let kept = Roster::read_copies(self.format(), self.header.replica_count, &rosters);
        are_headers_whole
            && PoolState::is_in_all_copies(self.format(), &states)
            && kept.is_ok_and(|kept| kept.is_in_all_copies)
    }

    /// What differs from an earlier image of the same file.
    pub(super) fn harm_since(&self, before: &Self) -> Harm {
        let differs = |range: &Range<u64>| self.at(range) != before.at(range);
        let lost = |structure| before.copies(structure).iter().all(differs);
        let headers: Vec<bool> = before.copies(Structure::Header).iter().map(differs).collect();
        let is_replaced = self.bytes[..MAGIC_BYTES] != before.bytes[..MAGIC_BYTES];
        let mut harm = Harm {
            // A file that does not begin as a pool needs all other headers.
            is_header_lost: headers.iter().all(|differs| *differs)
                || is_replaced && headers[1..].iter().any(|differs| *differs),
            is_state_lost: lost(Structure::State),
            is_roster_lost: lost(Structure::Roster),
            ..Harm::default()
        };
        for page in 0..before.pages() {
            let is_word_changed = before.word_range(page).is_some_and(|range| differs(&range));
            if before.is_unprotected(page) && !is_word_changed {
                harm.moving.extend(differs(&before.page_range(page)).then_some(page));
            } else if is_word_changed || differs(&before.page_range(page)) {
                harm.pages.insert(page);
            }
        }
        harm
    }
}

/// What damage has done to one replica.
#[derive(Clone, Debug, Default)]
pub(super) struct Harm {
    pub(super) is_header_lost: bool,
    pub(super) is_state_lost: bool,
    pub(super) is_roster_lost: bool,
    /// Pages whose bytes or word changed while they were protected, or whose word changed.
    pub(super) pages: BTreeSet<u64>,
    /// Pages that changed and that no digest covers.
    pub(super) moving: BTreeSet<u64>,
}

impl Harm {
    pub(super) fn is_left_out(&self) -> bool {
        self.is_header_lost || self.is_state_lost || self.is_roster_lost
    }
}

/// What is stored in the place of some bytes.
#[derive(Clone, Debug)]
pub(super) struct Damage {
    pub(super) offset: u64,
    pub(super) bytes: Vec<u8>,
}

impl Damage {
    /// Damage of this extent around a byte of `within`, of which something changes. `older`: the file as it was some time before, a part of which may come back.
    pub(super) fn within(
        within: &Range<u64>,
        extent: Extent,
        image: &Image,
        older: Option<&Image>,
        random: &mut Random,
    ) -> Self {
        let at = within.start + random.below(within.end - within.start);
        let len_bytes = extent.len_bytes();
        let offset = at / len_bytes * len_bytes;
        let range = offset..(offset + len_bytes).min(image.bytes.len() as u64);
        let old = image.at(&range);
        let bytes = match extent {
            Extent::Bit => vec![old[0] ^ (1 << random.below(8))],
            Extent::Byte => vec![old[0].wrapping_add(1 + random.below(255) as u8)],
            _ => Self::large(&range, image, older, random),
        };
        // Whatever it is, it changes the structure that it is for.
        let inside = range.start.max(within.start)..range.end.min(within.end);
        let changed = (inside.start - offset) as usize..(inside.end - offset) as usize;
        if bytes[changed.clone()] == *image.at(&inside) {
            return Self { offset, bytes: noise(old.len(), random) };
        }
        Self { offset, bytes }
    }

    fn large(range: &Range<u64>, image: &Image, older: Option<&Image>, random: &mut Random) -> Vec<u8> {
        let len_bytes = (range.end - range.start) as usize;
        match random.below(5) {
            0 => vec![0; len_bytes],
            1 => vec![0xff; len_bytes],
            // What belongs elsewhere.
            2 => {
                let blocks = (image.bytes.len() - len_bytes) as u64 / 512;
                let from = random.below(blocks + 1) * 512;
                image.at(&(from..from + len_bytes as u64)).to_vec()
            }
            // A write that never reached the medium.
            3 if older.is_some() => older.expect("an older one").at(range).to_vec(),
            _ => noise(len_bytes, random),
        }
    }

    /// Stores it past the page cache: the kernel drops its cached pages, mapped ones included, and the next access loads them from the device.
    pub(super) fn store_direct(&self, path: &Path) -> Result<()> {
        let direct = i32::try_from(OFlags::DIRECT.bits()).context("no flag of this kernel")?;
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).custom_flags(direct).open(path);
        let file = file.context("cannot open the file past the page cache")?;
        let (begin, end) = (
            self.offset / DIRECT_BYTES * DIRECT_BYTES,
            (self.offset + self.bytes.len() as u64).next_multiple_of(DIRECT_BYTES),
        );
        let len_bytes = (end - begin) as usize;
        // The kernel wants memory that is aligned.
        let mut room = vec![0_u8; len_bytes + DIRECT_BYTES as usize];
        let skipped = room.as_ptr().align_offset(DIRECT_BYTES as usize);
        let aligned = &mut room[skipped..skipped + len_bytes];
        file.read_exact_at(aligned, begin).context("cannot read past the page cache")?;
        aligned[(self.offset - begin) as usize..][..self.bytes.len()].copy_from_slice(&self.bytes);
        file.write_all_at(aligned, begin).context("cannot write past the page cache")
    }

    /// Stores it by a descriptor of its own. Mappings of the file share the page cache with it, and so see it at once.
    pub(super) fn store(&self, path: &Path) -> Result<()> {
        let file: File = OpenOptions::new().write(true).open(path).context("cannot open the file to damage it")?;
        file.write_all_at(&self.bytes, self.offset).context("cannot damage the file")
    }
}

/// Random bytes.
pub(super) fn noise(len_bytes: usize, random: &mut Random) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len_bytes + 8);
    while bytes.len() < len_bytes {
        bytes.extend_from_slice(&random.word().to_le_bytes());
    }
    bytes.truncate(len_bytes);
    bytes
}
