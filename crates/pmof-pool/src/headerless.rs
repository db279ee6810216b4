//! Parts without a header: nothing says whose they are but what another replica holds there.

use std::{ops::Range, path::PathBuf};

use pmof_mem::Medium as _;

use crate::{
    Contents, LocalReplica, OpenFor, PoolSet, PoolSetError, ReplicaSpec,
    access::AccessError,
    contents::data_pages,
    format::{HEAP, HEAP_HEADER_LEN_BYTES, HEAP_SIGNATURE, OBJ_HEAP_LEN},
    heap::ChunksIn,
    part::{Part, page_bytes, places},
    replica::{UNLIKE_PAGES, resembles, unlike_pages},
};

/// What a replica holds, and how many bytes: `None` for one that is not whole, which says nothing.
pub type Held<'r> = Option<(&'r mut dyn Contents, u64)>;

/// What parts without a header show beside other replicas, and beside the pool's heap.
#[derive(Debug, Default)]
pub struct HeaderlessParts {
    /// Parts of zeros where more of the others have data than have none, or as many, and the heap has something in use there; and parts in which something that
    /// the heap has in use is not there. That file was lost, and made again by somebody. At most one of a replica.
    pub lost: Vec<LostPart>,
    /// Parts that have nothing in common with any other replica: they are another's files, or those are. By their replicas' places in the set.
    pub unlike: Vec<(usize, PathBuf)>,
    /// The same of replicas on other machines, by the offset in the pool of what their heap has in use and no other replica has: where their parts begin
    /// is not known here, so that the heap alone tells.
    pub elsewhere: Vec<(usize, u64)>,
}

/// A part that lacks what its replica held there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostPart {
    /// Its replica, by its place in the set, from 0.
    pub index: usize,
    /// The part.
    pub path: PathBuf,
    /// Why, in words, the part among them.
    pub reason: String,
    /// Nothing is in it.
    pub is_zero: bool,
}

/// A part of a replica, and what it holds of the pool.
struct Headerless {
    index: usize,
    part: Part,
    range: Range<u64>,
}

/// Holds the parts without a header of the replicas of this machine against the other replicas. A page or two tell nothing, which may all have changed since
/// or be damage, unless the heap of the pool says that the part is not its own. `held`: of each replica of the set. Nothing is changed or locked.
///
/// # Errors
/// Those of reading, with the replica, by its place in the set.
pub fn headerless_parts(set: &PoolSet, held: &mut [Held<'_>]) -> Result<HeaderlessParts, (usize, AccessError)> {
    let mut found = HeaderlessParts::default();
    if !set.options.single_header {
        return Ok(found);
    }
    let parts = parts_of(set, held).map_err(|(index, error)| (index, error.into()))?;
    lose_zeros(&parts, held, &mut found)?;
    judge(&parts, held, &mut found)?;
    judge_elsewhere(set, held, &mut found)?;
    Ok(found)
}

/// Finds replicas on other machines that lack what their heap has in use.
fn judge_elsewhere(
    set: &PoolSet,
    held: &mut [Held<'_>],
    found: &mut HeaderlessParts,
) -> Result<(), (usize, AccessError)> {
    for (index, remote) in set.replicas.iter().enumerate().filter_map(|(at, spec)| Some((at, spec.remote()?))) {
        let Some((own, len_bytes)) = held.get_mut(index).and_then(Option::as_mut) else { continue };
        let (failed, len_bytes) = (|error| (index, error), *len_bytes);
        let Some(place) = foreign_place(&mut **own, len_bytes, &(0..len_bytes)).map_err(failed)? else { continue };
        let mut there = vec![0; page_bytes().min(len_bytes - place) as usize];
        own.read(place, &mut there).map_err(failed)?;
        let is_zero = there.iter().all(|byte| *byte == 0);
        let (mut is_beside_others, mut is_unlike_all) = (false, true);
        for (other, (contents, len_bytes)) in others(held, index) {
            let mut bytes = vec![0; there.len()];
            if place + bytes.len() as u64 <= len_bytes {
                contents.read(place, &mut bytes).map_err(|error| (other, error))?;
            }
            is_beside_others = true;
            is_unlike_all &= !resembles(&there, &bytes);
        }
        if is_beside_others && is_unlike_all && !is_zero {
            found.elsewhere.push((index, place));
            continue;
        }
        let reason = format!(
            "a part of {} on {} is not the pool's file, or lost what it held: the heap has something in use at offset {place} of the pool, and \
             it is not there",
            remote.set.display(),
            remote.node
        );
        found.lost.push(LostPart { index, path: remote.set.clone(), reason, is_zero });
        held[index] = None;
    }
    Ok(())
}

/// Finds parts of zeros that others tell were lost.
fn lose_zeros(
    parts: &[Headerless],
    held: &mut [Held<'_>],
    found: &mut HeaderlessParts,
) -> Result<(), (usize, AccessError)> {
    for Headerless { index, part, range } in parts {
        let Some((own, own_len_bytes)) = &mut held[*index] else { continue };
        let failed = |error| (*index, error);
        if !part.is_zero().map_err(|error| failed(error.into()))? {
            continue;
        }
        let chunks = chunks_in(&mut **own, *own_len_bytes, range).map_err(failed)?;
        let in_use = chunks.and_then(|chunks| chunks.are_in_use());
        if in_use == Some(false) {
            continue;
        }
        let (mut holder, mut balance) = (None, -1);
        for (other, (contents, len_bytes)) in others(held, *index) {
            let range = range.start..range.end.min(len_bytes);
            let pages = if range.is_empty() { Ok(0) } else { data_pages(contents, range, UNLIKE_PAGES) };
            match pages.map_err(|error| (other, error))? {
                0 => balance -= 1,
                UNLIKE_PAGES.. => (holder, balance) = (Some(other), balance + 1),
                _ => {}
            }
        }
        // Of as many of either kind the heap tells which is right, or nobody.
        if let Some(holder) = holder.filter(|_| balance > 0 || balance == 0 && in_use.is_some()) {
            let path = part.path.display();
            let reason = format!("{path} holds nothing but zeros, and replica {holder} has data there");
            found.lost.push(LostPart { index: *index, path: part.path.clone(), reason, is_zero: true });
            held[*index] = None;
        }
    }
    Ok(())
}

/// Finds parts that resemble no other replica's, and those that lack what their heap has in use.
fn judge(parts: &[Headerless], held: &mut [Held<'_>], found: &mut HeaderlessParts) -> Result<(), (usize, AccessError)> {
    let mut foreign = Vec::with_capacity(parts.len());
    for Headerless { index, range, .. } in parts {
        foreign.push(match &mut held[*index] {
            Some((own, len_bytes)) => foreign_place(&mut **own, *len_bytes, range).map_err(|error| (*index, error))?,
            None => None,
        });
    }
    // What lies in a replica that its own heap is against tells nothing about others.
    let is_believed =
        |index: usize| !parts.iter().zip(&foreign).any(|(part, place)| part.index == index && place.is_some());
    for (Headerless { index, part, range }, foreign) in parts.iter().zip(&foreign) {
        if held[*index].is_none() {
            continue;
        }
        // One page says enough then.
        let enough = if foreign.is_some() { 1 } else { UNLIKE_PAGES };
        let (mut is_beside_others, mut is_unlike_all) = (false, true);
        for (other, (contents, len_bytes)) in others(held, *index).filter(|(other, _)| is_believed(*other)) {
            let read = |place: u64, into: &mut [u8]| {
                if place + into.len() as u64 > len_bytes {
                    into.fill(0);
                    return Ok(());
                }
                contents.read(place, into)
            };
            is_beside_others = true;
            is_unlike_all = is_unlike_all
                && unlike_pages(part, range.start, read)
                    .map_err(|error| (other, error))?
                    .is_some_and(|count| count >= enough);
        }
        let path = &part.path;
        if is_beside_others && is_unlike_all {
            found.unlike.push((*index, path.clone()));
        } else if let Some(place) = *foreign {
            let offset = place - range.start;
            let reason = format!(
                "{} is not the pool's file, or lost what it held: the heap has something in use at offset {offset} of it, and it is not there",
                path.display()
            );
            let is_zero = part.is_zero().map_err(|error| (*index, error.into()))?;
            found.lost.push(LostPart { index: *index, path: path.clone(), reason, is_zero });
            held[*index] = None;
        }
    }
    Ok(())
}

/// Files of this machine in the places of parts without a header that are not the pool's, as far as anything tells: by their replicas' places
/// in the set. Replicas that cannot be opened and read by themselves tell nothing. Nothing is changed, or locked afterwards.
pub fn foreign_files(set: &PoolSet) -> Vec<(usize, PathBuf)> {
    if !set.options.single_header {
        return Vec::new();
    }
    let open = |replica: &ReplicaSpec| {
        replica.local().and_then(|parts| LocalReplica::open(parts, set.options, OpenFor::Read, None).ok())
    };
    let opened: Vec<_> = set.replicas.iter().map(open).collect();
    let mut contents: Vec<_> = opened.iter().map(|replica| replica.as_ref().map(LocalReplica::memory)).collect();
    let held = contents.iter_mut().map(|memory| {
        memory.as_mut().map(|memory| {
            let len_bytes = memory.len_bytes();
            (memory as &mut dyn Contents, len_bytes)
        })
    });
    let (mut held, mut found) = (held.collect::<Vec<_>>(), HeaderlessParts::default());
    // Zeros in another replica are no reason to take a file for the pool's.
    let judged = parts_of(set, &held)
        .map_err(|(index, error)| (index, error.into()))
        .and_then(|parts| judge(&parts, &mut held, &mut found));
    if judged.is_err() {
        return Vec::new();
    }
    let HeaderlessParts { lost, mut unlike, .. } = found;
    unlike.extend(lost.into_iter().filter(|part| !part.is_zero).map(|part| (part.index, part.path)));
    unlike
}

/// Where in that range the heap of a pool of objects has something in use that is not there; of other pools nothing is known.
fn foreign_place(contents: &mut dyn Contents, len_bytes: u64, range: &Range<u64>) -> Result<Option<u64>, AccessError> {
    let chunks = chunks_in(contents, len_bytes, range)?;
    chunks.map_or(Ok(None), |chunks| chunks.foreign_place(|offset, into| contents.read(offset, into)))
}

/// What the heap of a pool of objects says of that range; `None` of other pools.
fn chunks_in(contents: &mut dyn Contents, len_bytes: u64, range: &Range<u64>) -> Result<Option<ChunksIn>, AccessError> {
    let mut signature = [0; HEAP_SIGNATURE.len()];
    if len_bytes < HEAP + HEAP_HEADER_LEN_BYTES as u64 {
        return Ok(None);
    }
    contents.read(HEAP, &mut signature)?;
    if signature != *HEAP_SIGNATURE {
        return Ok(None);
    }
    let mut heap_len_bytes = [0; 8];
    contents.read(OBJ_HEAP_LEN, &mut heap_len_bytes)?;
    let heap_len_bytes = u64::from_le_bytes(heap_len_bytes).min(len_bytes - HEAP);
    ChunksIn::read(heap_len_bytes, range, |offset, into| contents.read(offset, into)).map(Some)
}

/// Whole replicas but this one, by their places.
fn others<'h, 'r>(
    held: &'h mut [Held<'r>],
    index: usize,
) -> impl Iterator<Item = (usize, (&'h mut dyn Contents, u64))> + use<'h, 'r> {
    let others = held.iter_mut().enumerate().filter(move |(other, _)| *other != index);
    others.filter_map(|(other, held)| {
        held.as_mut().map(|(contents, len_bytes)| (other, (&mut **contents as &mut dyn Contents, *len_bytes)))
    })
}

fn parts_of(set: &PoolSet, held: &[Held<'_>]) -> Result<Vec<Headerless>, (usize, PoolSetError)> {
    let mut all = Vec::new();
    for (index, replica) in set.replicas.iter().enumerate() {
        let Some(specs) = replica.local().filter(|_| held.get(index).is_some_and(Option::is_some)) else { continue };
        let failed = |error| (index, error);
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
