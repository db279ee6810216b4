//! What lies in the parts of a replica that is not opened.

use std::sync::Arc;

use pmof_mem::{Declaration, Medium as _, Memory, System};

use super::{LocalReplica, check_lengths, header_count, map, owner, read_header};
use crate::{
    AccessError, ContentsState, OpenFor, PartSpec, PoolKind, PoolSetError, SetOptions,
    contents::state_of,
    part::{Part, places},
};

/// What a replica holds whose headers are damaged, if it begins as the contents of a pool of that kind do; `None` where there is nothing to hold against
/// another replica: what is wrong is not in the headers, or it was being made.
pub(crate) fn contents_behind(
    specs: &[PartSpec],
    options: SetOptions,
    kind: Option<PoolKind>,
    declaration: Option<Declaration>,
) -> Result<Option<Arc<Memory>>, AccessError> {
    match LocalReplica::open(specs, options, OpenFor::Read, declaration) {
        Err(PoolSetError::Header { .. } | PoolSetError::Differs { .. }) => {}
        _ => return Ok(None),
    }
    let places = places(specs, options)?;
    let parts = places.iter().map(|place| Part::open(place, OpenFor::Read)).collect::<Result<Vec<_>, _>>()?;
    for part in parts.iter().take(header_count(parts.len(), options)) {
        if owner::is_being_made(part)? {
            return Ok(None);
        }
    }
    if parts.iter().any(|part| part.check_bad_blocks(&System::real(), true).is_err()) {
        return Ok(None);
    }
    let mut memory = map(parts.iter(), options, OpenFor::Read, declaration)?;
    let len_bytes = memory.len_bytes();
    Ok((state_of(kind, &mut memory, len_bytes)? == ContentsState::Sound).then_some(memory))
}

/// Whether the parts of a replica whose headers are damaged hold something behind them: false where its headers are sound or something else is
/// wrong, and where it was being made. Nothing is changed.
///
/// # Errors
/// As of [`LocalReplica::open`].
pub fn has_contents_behind(specs: &[PartSpec], options: SetOptions) -> Result<bool, AccessError> {
    Ok(contents_behind(specs, options, None, None)?.is_some())
}

/// What the parts of one replica hold, for a look at a pool that may be in use: nothing is locked or changed. Block tables are not looked at.
///
/// # Errors
/// As for [`part_header`](super::part_header), and those of reading.
pub fn part_contents(parts: &[PartSpec], options: SetOptions) -> Result<ContentsState, AccessError> {
    let places = places(parts, options)?;
    let parts = places.iter().map(|place| Part::look(&place.path)).collect::<Result<Vec<_>, _>>()?;
    check_lengths(&parts)?;
    let first = parts.first().map(read_header).transpose()?;
    parts.iter().try_for_each(|part| part.check_bad_blocks(&System::real(), true))?;
    let mut memory = map(parts.iter(), options, OpenFor::Read, None)?;
    let len_bytes = memory.len_bytes();
    state_of(first.and_then(|header| header.kind()), &mut memory, len_bytes)
}
