//! Inspects the contents of a replica that is not open.

use std::sync::Arc;

use pmof_mem::{Declaration, Medium as _, Memory, System};

use super::{LocalReplica, check_lengths, header_count, map, owner, read_header};
use crate::{
    AccessError, ContentsState, OpenFor, PartSpec, PoolKind, PoolSetError, SetOptions,
    contents::state_of,
    part::{Part, places},
};

/// The contents of a replica with damaged headers, if they begin like a pool of that kind; `None` if there is nothing to compare with
/// another replica: the damage is not in the headers, or the replica was being created.
pub(crate) fn contents_behind(
    specs: &[PartSpec],
    options: SetOptions,
    kind: Option<PoolKind>,
    declaration: Option<Declaration>,
) -> Result<Option<Arc<Memory>>, AccessError> {
    match LocalReplica::open(specs, options, OpenFor::Read, declaration) {
        Err(PoolSetError::Header { .. } | PoolSetError::Differs { .. }) => {}
        // A caller that waits until it is free must not overwrite it without a look.
        Err(busy @ PoolSetError::Busy { .. }) => return Err(busy.into()),
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

/// The contents of a replica with damaged headers, to be compared with another replica, from the first byte of its first header on. The parts are
/// locked for as long as the memory lives. `None`: its headers are sound, something else is wrong, or it was being created. Nothing is
/// changed.
///
/// # Errors
/// As of [`LocalReplica::open`].
pub fn open_contents_behind(
    specs: &[PartSpec],
    options: SetOptions,
    declaration: Option<Declaration>,
) -> Result<Option<Arc<Memory>>, AccessError> {
    contents_behind(specs, options, None, declaration)
}

/// Whether a replica with damaged headers holds data behind them: false if its headers are sound, something else is
/// wrong, or it was being created. Nothing is changed.
///
/// # Errors
/// As of [`LocalReplica::open`].
pub fn has_contents_behind(specs: &[PartSpec], options: SetOptions) -> Result<bool, AccessError> {
    Ok(contents_behind(specs, options, None, None)?.is_some())
}

/// The contents of one replica of a pool that may be in use: nothing is locked or changed. Block tables are not checked.
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
