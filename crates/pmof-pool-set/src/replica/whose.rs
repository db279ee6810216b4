//! Determines which pool the parts of a set belong to, and whether a replica of it may be recreated.

use std::path::{Path, PathBuf};

use super::{
    header_count, is_behind_header,
    numbered::Numbered,
    owner::{Head, Named, file_start, not_ours, owner},
    vouched::Source,
};
use crate::{
    HEADER_LEN_BYTES, PartSize, PartSpec, PoolSet, PoolSetError, SetOptions, header,
    part::{Part, Place, number_of, page_bytes, places_left, places_of_broken},
    uuid_text,
};

/// The beginnings of parts, and whether parts of their numbers have headers.
type Heads = Vec<(PathBuf, Head, bool)>;

/// The pool set that headers name: that of the first valid one, else the one that fits all damaged ones, else that of the first of them.
fn set_of(heads: &Heads) -> Option<[u8; 16]> {
    let whole = heads.iter().find_map(|(_, head, _)| match head {
        Head::Whole(header) => Some(header.poolset_uuid),
        _ => None,
    });
    let named = || heads.iter().filter_map(|(_, head, has_header)| Some((head, head.set_named(*has_header)?)));
    let fits_all = |set: &[u8; 16]| named().all(|(head, _)| head.is_of(set));
    let mut damaged = named().map(|(_, set)| set);
    whole.or_else(|| named().map(|(_, set)| set).find(fits_all)).or_else(|| damaged.next())
}

/// Fails if one of these headers, even a damaged one, names another pool set than `member`.
fn check_heads(heads: &Heads, member: &[u8; 16]) -> Result<(), PoolSetError> {
    for (path, head, has_header) in heads {
        let Some(found) = head.set_named(*has_header).filter(|_| !head.is_of(member)) else { continue };
        let (found, expected) = (uuid_text(&found), uuid_text(member));
        return Err(PoolSetError::OtherSet { path: path.clone(), found, expected });
    }
    Ok(())
}

/// Checks that a file with the name of a part may be overwritten with a part of the pool set `member`: it does not exist, or belongs to nobody
/// or to the pool ([`owner`]). Nothing is changed or locked. `least`: bytes that the replica must hold; `source`: the replica to copy from.
///
/// Errors: `OtherSet`, `NotOurs`, `Incomplete`; those of reading.
pub(crate) fn check_replaceable(
    specs: &[PartSpec],
    options: SetOptions,
    member: &[u8; 16],
    least: u64,
    source: Source<'_>,
) -> Result<(), PoolSetError> {
    let places = places_of_broken(specs, options, least)?;
    let with_header = header_count(places.len(), options);
    let (mut parts, mut found) = (Vec::with_capacity(places.len()), Vec::with_capacity(places.len()));
    let (mut start, mut is_vouched) = (Some(0), false);
    for (index, place) in places.iter().enumerate() {
        let part = match Part::look_at_any(&place.path) {
            Ok(part) => Some(part),
            Err(PoolSetError::Missing { .. }) => None,
            Err(error) => return Err(error),
        };
        let is_behind_header = is_behind_header(index, options);
        let own_start = start.map(|start| file_start(start, is_behind_header));
        let held = held_len_bytes(place, part.as_ref(), is_behind_header);
        start = start.zip(held).map(|(start, len_bytes)| start + len_bytes);
        let Some(part) = part else { continue };
        is_vouched |= index == 0 && with_header > 0 && vouches(&part, member)?;
        parts.push(part);
        found.push((place.size, index < with_header, own_start));
    }
    let numbered = Numbered::of(specs, &parts)?;
    for (part, (size, has_header, start)) in parts.iter().zip(found) {
        let named = Named { size, has_header, is_vouched, start };
        owner(part, &named, Some(member), source)?.check(part)?;
        check_number(part, numbered.as_ref())?;
    }
    Ok(())
}

/// The range of the pool in a part; `None` if it is unknown.
fn held_len_bytes(place: &Place, part: Option<&Part>, is_behind_header: bool) -> Option<u64> {
    match (part, place.size) {
        (Some(part), _) if part.devdax_align_bytes.is_some() => Some(part.mapped_len_bytes(is_behind_header)),
        (_, Some(PartSize::Bytes(len_bytes))) => {
            let held = if is_behind_header { len_bytes.saturating_sub(page_bytes()) } else { len_bytes };
            Some(held - held % page_bytes())
        }
        _ => None,
    }
}

/// Whether a first part, even with a damaged header, belongs to the pool set `member` and thus vouches for the parts without a header behind it.
pub(super) fn vouches(first: &Part, member: &[u8; 16]) -> Result<bool, PoolSetError> {
    Ok(Head::of(first)?.is_of(member))
}

/// Fails for a file in a directory of the pool that does not belong to it. `numbered`: `None` if there are no directories.
pub(super) fn check_number(part: &Part, numbered: Option<&Numbered<'_>>) -> Result<(), PoolSetError> {
    match numbered.map(|numbered| numbered.why_foreign(part)).transpose()?.flatten() {
        Some(found) => Err(not_ours(part, format!("it is in a directory of the pool and none of its parts: {found}"))),
        None => Ok(()),
    }
}

/// Whether a first part records that its replica, of the pool set `member`, was being created.
pub(crate) fn is_begun(first: &Path, member: &[u8; 16]) -> bool {
    let bytes = Part::look(first).and_then(|part| part.header_bytes());
    bytes.is_ok_and(|bytes| bytes == [0; HEADER_LEN_BYTES] || header::is_begun(&bytes, member))
}

/// The beginnings of all readable local parts, with the places of their replicas. Nothing is locked.
fn heads_in(set: &PoolSet) -> Vec<(usize, Heads)> {
    let local = set.replicas.iter().enumerate().filter_map(|(index, replica)| Some((index, replica.local()?)));
    let read = |(index, specs): (usize, &[PartSpec])| {
        let with_header = header_count(specs.len(), set.options);
        let head = |path: PathBuf| {
            let head = Head::of(&Part::look_at_any(&path).ok()?).ok()?;
            let has_header = place_of(specs, &path).0 < with_header;
            Some((path, head, has_header))
        };
        (index, places_left(specs).unwrap_or_default().into_iter().filter_map(head).collect())
    };
    local.map(read).collect()
}

/// The pool set that the local parts belong to: by the first valid header, else by damaged ones; `None`
/// if it is unknown. Nothing is locked.
pub fn pool_set_uuid(set: &PoolSet) -> Option<[u8; 16]> {
    set_of(&heads_in(set).into_iter().flat_map(|(_, heads)| heads).collect())
}

/// Fails if the headers of local parts, damaged or not, name two pools; returns the place of a replica
/// that does not belong to the first pool.
pub(crate) fn check_one_pool(set: &PoolSet) -> Result<(), (usize, PoolSetError)> {
    let Some(member) = pool_set_uuid(set) else { return Ok(()) };
    heads_in(set).iter().try_for_each(|(index, heads)| check_heads(heads, &member).map_err(|error| (*index, error)))
}

/// The one pool set that headers of these parts name, damaged or not, and `expected` if that is known. `with_header`: how many parts of
/// the replica have one.
///
/// Errors: `OtherSet`; those of reading.
pub(super) fn one_member(
    specs: &[PartSpec],
    parts: &[Part],
    with_header: usize,
    expected: Option<&[u8; 16]>,
) -> Result<Option<[u8; 16]>, PoolSetError> {
    let head = |part: &Part| Ok((part.path.clone(), Head::of(part)?, place_of(specs, &part.path).0 < with_header));
    let heads = parts.iter().map(head).collect::<Result<Heads, PoolSetError>>()?;
    let Some(member) = expected.copied().or_else(|| set_of(&heads)) else { return Ok(None) };
    check_heads(&heads, &member)?;
    Ok(Some(member))
}

/// The part of the set that this is, with its expected length. A file in a directory is identified by its number.
pub(super) fn place_of(specs: &[PartSpec], path: &Path) -> (usize, Option<PartSize>) {
    match specs.iter().position(|spec| spec.path == path) {
        Some(index) => (index, Some(specs[index].size)),
        None => (number_of(path).unwrap_or(usize::MAX), None),
    }
}
