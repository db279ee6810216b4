//! Outputs of the engine on any medium, the header of a new pool, and its first state.

use std::time::{SystemTime, UNIX_EPOCH};

use pmof_control::{
    CopySteps, DIGEST_WORD_BYTES, FileLayout, Header, NewPool, PageDigest, PageDigests, PoolFormat, PoolState,
    page_count,
};
use pmof_mem::{Medium, MemError};
use uuid::Uuid;

use crate::engine::{FIRST_SEQUENCE, Output, written};

/// Words of the digest area that are written at once.
const WORDS_AT_ONCE: u64 = 16 << 10;

/// Performs those of the outputs that are of any medium.
pub(super) fn perform(medium: &dyn Medium, output: &Output) -> Result<Vec<u8>, MemError> {
    match output {
        Output::Read { offset, len_bytes } => {
            let mut bytes = vec![0; *len_bytes];
            medium.read(*offset, &mut bytes)?;
            return Ok(bytes);
        }
        Output::ReadBegin(len_bytes) => {
            let mut bytes = vec![0; (*len_bytes as u64).min(medium.len_bytes()) as usize];
            medium.read(0, &mut bytes)?;
            return Ok(bytes);
        }
        Output::Store { offset, bytes } => medium.store(*offset, bytes)?,
        Output::StoreWord { offset, word } => medium.atomic_store(*offset, *word)?,
        Output::WriteBack(range) => medium.write_back(range.start, range.end - range.start)?,
        Output::Sync(range) => medium.sync_range(range.start, range.end - range.start)?,
        Output::KeepResident(range) => {
            let is_kept =
                medium.memory().is_some_and(|memory| memory.keep_resident(range.start, range.end - range.start));
            return Ok(vec![0; usize::from(is_kept)]);
        }
        Output::LetGo(range) => {
            if let Some(memory) = medium.memory() {
                memory.let_go(range.start, range.end - range.start);
            }
        }
        Output::Flush => medium.fence()?,
        Output::CheckName
        | Output::Publish
        | Output::CheckLevel
        | Output::LeaveToFormerWriters
        | Output::SyncName
        | Output::SettleHead
        | Output::SettleData(_)
        | Output::SettleForReader => {}
    }
    Ok(Vec::new())
}

/// Writes a structure into all of its copies, as durably as the medium can.
pub(super) fn write_copies(medium: &dyn Medium, steps: CopySteps) -> Result<(), MemError> {
    written(steps).try_for_each(|output| perform(medium, &output).map(drop))
}

/// Writes what a new file begins with, beside its zeros, as durably as the medium can: of a pool that keeps digests those of pages of zeros. The header comes last.
pub(super) fn write_head(medium: &dyn Medium, header: &Header, state: &PoolState) -> Result<(), MemError> {
    write_new(medium, header, state)?;
    write_copies(medium, header.steps())?;
    medium.fence()
}

/// The same without the header.
pub(super) fn write_new(medium: &dyn Medium, header: &Header, state: &PoolState) -> Result<(), MemError> {
    protect_zeros(medium, header, 0)?;
    write_copies(medium, state.steps(header.format, FIRST_SEQUENCE))
}

/// Writes the words of pages of zeros, from this page on. They are durable with the next fence.
pub(super) fn protect_zeros(medium: &dyn Medium, header: &Header, from_page: u64) -> Result<(), MemError> {
    let Some(area) = header.layout.digests() else { return Ok(()) };
    let (digests, end) = (PageDigests::new(header.pool_uuid), page_count(header.size_bytes));
    let mut page = from_page;
    while page < end {
        let pages = page..end.min(page + WORDS_AT_ONCE);
        let offset = area.start + page * DIGEST_WORD_BYTES;
        let words: Vec<u8> =
            pages.clone().flat_map(|page| digests.protected(page, PageDigest::ZEROS).to_le_bytes()).collect();
        medium.store(offset, &words)?;
        medium.write_back(offset, words.len() as u64)?;
        page = pages.end;
    }
    Ok(())
}

/// The header of a new replica, with digests of its pages where the pool's maker asked for them. `None`: it would be longer than a file can be.
pub(super) fn new_header(new: &NewPool) -> Option<Header> {
    let (format, layout) = match new.protection {
        Some(protected) => (PoolFormat::Four, FileLayout::with_digests(protected.max_size_bytes)?),
        None => (PoolFormat::Three, FileLayout::default()),
    };
    Some(Header {
        format,
        layout,
        compatible_features: 0,
        pool_uuid: new.pool_uuid,
        replica_uuid: Uuid::new_v4(),
        size_bytes: new.size_bytes,
        // A clock before 1970 is no reason to refuse a pool.
        created_at_unix_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        replica_count: new.replica_count,
        replica_index: new.replica_index,
        user_flags: new.user_flags,
    })
}
