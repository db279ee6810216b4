//! Parts without a header, of which nothing says whose they are but what another replica holds there.

use std::ops::Range;

use super::{Found, SyncError, whole};
use crate::{
    AccessError, PoolSet, PoolSetError,
    contents::has_pages,
    part::{Part, places},
    replica::{UNLIKE_PAGES, is_unlike},
};

/// A part of a whole replica, and what it holds of the pool.
struct Headerless {
    index: usize,
    part: Part,
    range: Range<u64>,
}

/// A replica with a part of zeros where as many others have data as have none is damaged: that file was lost, and made again by somebody. One page or two
/// tell nothing. Fails where a part has nothing in
/// common with any other replica: it is another's file, or those are.
///
/// Errors: `Unlike`; those of reading.
pub(crate) fn judge_headerless(set: &PoolSet, found: &mut [Found]) -> Result<(), SyncError> {
    if !set.options.single_header {
        return Ok(());
    }
    let parts = headerless(set, found)?;
    for Headerless { index, part, range } in &parts {
        let failed = |source: PoolSetError| SyncError::Replica { index: *index, source: source.into() };
        if !matches!(found[*index], Found::Whole(_)) || !part.is_zero().map_err(failed)? {
            continue;
        }
        let (mut holders, mut blank) = (Vec::new(), 1);
        for other in others(found, *index) {
            let held = whole(&mut found[other])?;
            let range = range.start..range.end.min(held.len_bytes());
            let mut has = |least| {
                let has = has_pages(held.contents(), range.clone(), least).map_err(|error| of(other, error));
                if range.is_empty() { Ok(false) } else { has }
            };
            if has(UNLIKE_PAGES)? {
                holders.push(other);
            } else if !has(1)? {
                blank += 1;
            }
        }
        if holders.len() < blank {
            continue;
        }
        let damage =
            format!("{} holds nothing but zeros, and replica {} has data there", part.path.display(), holders[0]);
        if let Found::Whole(replica) = std::mem::replace(&mut found[*index], Found::Damaged(damage)) {
            replica.close().map_err(|error| of(*index, error))?;
        }
    }
    for Headerless { index, part, range } in &parts {
        let others = others(found, *index);
        if !matches!(found[*index], Found::Whole(_)) || others.is_empty() {
            continue;
        }
        let mut is_unlike_all = true;
        for other in &others {
            let held = whole(&mut found[*other])?;
            let len_bytes = held.len_bytes();
            let read = |place: u64, into: &mut [u8]| {
                if place + into.len() as u64 > len_bytes {
                    into.fill(0);
                    return Ok(());
                }
                held.contents().read(place, into)
            };
            is_unlike_all &= is_unlike(part, range.start, read).map_err(|error| of(*index, error))?;
        }
        if is_unlike_all {
            return Err(SyncError::Unlike { index: *index, path: part.path.clone(), others: others.len() });
        }
    }
    Ok(())
}

fn of(index: usize, source: AccessError) -> SyncError {
    SyncError::Replica { index, source }
}

/// Whole replicas but this one.
fn others(found: &[Found], index: usize) -> Vec<usize> {
    (0..found.len()).filter(|other| *other != index && matches!(found[*other], Found::Whole(_))).collect()
}

fn headerless(set: &PoolSet, found: &[Found]) -> Result<Vec<Headerless>, SyncError> {
    let mut all = Vec::new();
    for (index, replica) in set.replicas.iter().enumerate() {
        let Some(specs) = replica.local().filter(|_| matches!(found[index], Found::Whole(_))) else { continue };
        let failed = |source: PoolSetError| SyncError::Replica { index, source: source.into() };
        let mut start = 0;
        for (number, place) in places(specs, set.options).map_err(failed)?.iter().enumerate() {
            let part = Part::look_at_any(&place.path).map_err(failed)?;
            let range = start..start + part.mapped_len_bytes(false);
            start = range.end;
            if number > 0 && part.devdax_align_bytes.is_none() {
                all.push(Headerless { index, part, range });
            }
        }
    }
    Ok(all)
}
