//! Parts without a header, whose owner shows only in a comparison with other replicas.

use std::{ops::Range, path::PathBuf};

use crate::{
    Contents, DIGEST_BLOCK_LEN_BYTES, LocalReplica, OpenFor, PartSpec, PoolSet, PoolSetError, Reached, RemoteReplicas,
    RemoteSpec, ReplicaAccess, ReplicaSpec, SetOptions, Window,
    access::AccessError,
    contents::data_pages,
    format::{HEAP, HEAP_HEADER_LEN_BYTES, HEAP_SIGNATURE, OBJ_HEAP_LEN},
    heap::ChunksIn,
    part::{Part, page_bytes, places},
    replica::{SAMPLES, UNLIKE_PAGES, resembles},
    windows, zero_digests,
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
    /// The same of replicas on other machines, by what they hold of the pool.
    pub elsewhere: Vec<(usize, Range<u64>)>,
}

/// A part that lacks what its replica held there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostPart {
    /// Its replica, by its place in the set, from 0.
    pub index: usize,
    /// Why, in words, the part among them.
    pub reason: String,
}

/// A part of a replica, and what it holds of the pool.
struct Headerless {
    index: usize,
    place: Place,
    range: Range<u64>,
}

/// Where a part is.
enum Place {
    Here(PathBuf),
    /// On another machine, which tells what its parts hold, and not their names.
    There(RemoteSpec),
}

impl Headerless {
    fn name(&self) -> String {
        let Range { start, end } = self.range;
        match &self.place {
            Place::Here(path) => path.display().to_string(),
            Place::There(remote) => {
                format!(
                    "the part of {} on {} with bytes {start} to {end} of the pool",
                    remote.set.display(),
                    remote.node
                )
            }
        }
    }
}

impl HeaderlessParts {
    fn add_unlike(&mut self, part: &Headerless) {
        match &part.place {
            Place::Here(path) => self.unlike.push((part.index, path.clone())),
            Place::There(_) => self.elsewhere.push((part.index, part.range.clone())),
        }
    }

    fn has_lost(&self, index: usize) -> bool {
        self.lost.iter().any(|part| part.index == index)
    }
}

/// Holds the parts without a header, wherever they are, against the other replicas. A page or two tell nothing, which may all have changed since
/// or be damage, unless the heap of the pool says that the part is not its own. `held`: of each replica of the set. Nothing is changed or locked.
///
/// # Errors
/// Those of reading, with the replica, by its place in the set.
pub fn headerless_parts(set: &PoolSet, held: &mut [Held<'_>]) -> Result<HeaderlessParts, (usize, AccessError)> {
    let mut found = HeaderlessParts::default();
    if !set.options.single_header {
        return Ok(found);
    }
    let parts = parts_of(set, held)?;
    lose_zeros(&parts, held, &mut found)?;
    for (part, reason) in judge(&parts, held, &mut found)? {
        if !found.has_lost(part.index) {
            found.lost.push(LostPart { index: part.index, reason });
        }
    }
    Ok(found)
}

/// Finds parts of zeros that others tell were lost.
fn lose_zeros(
    parts: &[Headerless],
    held: &mut [Held<'_>],
    found: &mut HeaderlessParts,
) -> Result<(), (usize, AccessError)> {
    for part in parts {
        let Headerless { index, range, .. } = part;
        let Some((own, own_len_bytes)) = &mut held[*index] else { continue };
        let failed = |error| (*index, error);
        if found.has_lost(*index) || data_pages(&mut **own, range.clone(), 1).map_err(failed)? > 0 {
            continue;
        }
        let chunks = chunks_in(&mut **own, *own_len_bytes, range).map_err(failed)?;
        let in_use = chunks.and_then(|chunks| chunks.are_in_use());
        if in_use == Some(false) {
            continue;
        }
        let (mut holder, mut balance) = (None, -1);
        for (other, (contents, len_bytes)) in others(held, *index).filter(|(other, _)| !found.has_lost(*other)) {
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
            let reason = format!("{} holds nothing but zeros, and replica {holder} has data there", part.name());
            found.lost.push(LostPart { index: *index, reason });
        }
    }
    Ok(())
}

/// Finds parts that resemble no other replica's; gives those that resemble one and lack what their heap has in use, and why, in words.
fn judge<'p>(
    parts: &'p [Headerless],
    held: &mut [Held<'_>],
    found: &mut HeaderlessParts,
) -> Result<Vec<(&'p Headerless, String)>, (usize, AccessError)> {
    let mut foreign = Vec::with_capacity(parts.len());
    for Headerless { index, range, .. } in parts {
        foreign.push(match &mut held[*index] {
            Some((own, len_bytes)) => foreign_place(&mut **own, *len_bytes, range).map_err(|error| (*index, error))?,
            None => None,
        });
    }
    // What lies in a replica that lost a part, or that its own heap is against, tells nothing about others.
    let is_believed =
        |index: usize| !parts.iter().zip(&foreign).any(|(part, place)| part.index == index && place.is_some());
    let mut lacking = Vec::new();
    for (part, foreign) in parts.iter().zip(&foreign) {
        let Headerless { index, range, .. } = part;
        // One page says enough then.
        let enough = if foreign.is_some() { 1 } else { UNLIKE_PAGES };
        let Some((own, own_len_bytes)) = held[*index].take() else { continue };
        let others = others(held, *index).filter(|(other, _)| is_believed(*other) && !found.has_lost(*other));
        let (mut is_beside_others, mut is_unlike_all) = (false, true);
        for (other, contents) in others {
            is_beside_others = true;
            is_unlike_all = is_unlike_all
                && unlike_pages(own, range, contents)
                    .map_err(|(is_own, error)| (if is_own { *index } else { other }, error))?
                    .is_some_and(|count| count >= enough);
        }
        held[*index] = Some((own, own_len_bytes));
        if is_beside_others && is_unlike_all {
            found.add_unlike(part);
        } else if let Some(place) = *foreign {
            let offset = place - range.start;
            let reason = format!(
                "{} is not the pool's file, or lost what it held: the heap has something in use at offset {offset} of it, and it is not there",
                part.name()
            );
            lacking.push((part, reason));
        }
    }
    Ok(lacking)
}

/// How many pages all over a part that are not zero were compared with what another replica has there, where none resembles it; `None` where one does.
///
/// # Errors
/// Those of reading, and whether it was the part.
fn unlike_pages(
    own: &mut dyn Contents,
    range: &Range<u64>,
    (other, other_len_bytes): (&mut dyn Contents, u64),
) -> Result<Option<usize>, (bool, AccessError)> {
    let data = own.data_ranges(range.clone()).map_err(|error| (true, error))?;
    let stride = (range.end - range.start).div_ceil(SAMPLES).next_multiple_of(page_bytes());
    let mut count = 0;
    for start in range.clone().step_by(stride as usize) {
        let sample = start..range.end.min(start + stride);
        let Some((offset, page)) = first_page(own, sample, &data).map_err(|error| (true, error))? else { continue };
        let mut there = vec![0; page.len()];
        if offset + page.len() as u64 <= other_len_bytes {
            other.read(offset, &mut there).map_err(|error| (false, error))?;
        }
        if resembles(&page, &there) {
            return Ok(None);
        }
        count += 1;
    }
    Ok(Some(count))
}

/// The first page of a range that is not zero, and where it lies. Outside of `data` all is.
fn first_page(
    contents: &mut dyn Contents,
    range: Range<u64>,
    data: &[Range<u64>],
) -> Result<Option<(u64, Vec<u8>)>, AccessError> {
    for Window { range: window, .. } in windows(range, &[data]) {
        let zeros = zero_digests(window.end - window.start);
        let Some(block) = contents.digests(window.clone())?.iter().zip(&zeros).position(|(found, zero)| found != zero)
        else {
            continue;
        };
        let start = window.start + block as u64 * DIGEST_BLOCK_LEN_BYTES;
        let mut bytes = vec![0; window.end.min(start + DIGEST_BLOCK_LEN_BYTES).saturating_sub(start) as usize];
        contents.read(start, &mut bytes)?;
        let mut pages = (start..).step_by(page_bytes() as usize).zip(bytes.chunks(page_bytes() as usize));
        if let Some((offset, page)) = pages.find(|(_, page)| page.iter().any(|byte| *byte != 0)) {
            return Ok(Some((offset, page.to_vec())));
        }
    }
    Ok(None)
}

/// Files in the places of parts without a header that are not the pool's, as far as anything tells. Replicas that cannot be opened and read by themselves
/// tell nothing. Nothing is changed, or locked afterwards. `lost` stays empty.
///
/// # Errors
/// Those of reading a replica on another machine, by its place in the set.
pub fn foreign_files(set: &PoolSet, remotes: &mut dyn RemoteReplicas) -> Result<HeaderlessParts, (usize, AccessError)> {
    let mut found = HeaderlessParts::default();
    if !set.options.single_header {
        return Ok(found);
    }
    let open = |replica: &ReplicaSpec| -> Option<Box<dyn ReplicaAccess>> {
        match replica {
            ReplicaSpec::Local(parts) => {
                Some(Box::new(LocalReplica::open(parts, set.options, OpenFor::Read, None).ok()?))
            }
            ReplicaSpec::Remote(remote) => match remotes.open(remote, 0, OpenFor::Read) {
                Ok(Reached::Whole(replica)) => Some(replica),
                _ => None,
            },
        }
    };
    let mut opened: Vec<_> = set.replicas.iter().map(open).collect();
    let held = opened.iter_mut().map(|replica| {
        replica.as_mut().map(|replica| {
            let len_bytes = replica.len_bytes();
            (replica.contents(), len_bytes)
        })
    });
    let mut held = held.collect::<Vec<_>>();
    let judged = parts_of(set, &mut held).and_then(|parts| {
        // Zeros in another replica are no reason to take a file for the pool's.
        let lacking = judge(&parts, &mut held, &mut found)?;
        for (part, _) in lacking {
            let Some((own, _)) = &mut held[part.index] else { continue };
            if data_pages(&mut **own, part.range.clone(), 1).map_err(|error| (part.index, error))? > 0 {
                found.add_unlike(part);
            }
        }
        Ok(())
    });
    for replica in opened.into_iter().flatten() {
        // It was only read.
        let _ = replica.close();
    }
    match judged {
        Ok(()) => Ok(found),
        Err((index, error)) if set.replicas[index].remote().is_some() => Err((index, error)),
        // What is wrong with a part of this machine does not keep it from being removed.
        Err(_) => Ok(HeaderlessParts::default()),
    }
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

fn parts_of(set: &PoolSet, held: &mut [Held<'_>]) -> Result<Vec<Headerless>, (usize, AccessError)> {
    let mut all = Vec::new();
    for (index, replica) in set.replicas.iter().enumerate() {
        let Some((contents, _)) = held.get_mut(index).and_then(Option::as_mut) else { continue };
        match replica {
            ReplicaSpec::Local(specs) => {
                let here = parts_here(specs, set.options).map_err(|error| (index, error.into()))?;
                all.extend(here.into_iter().map(|(path, range)| Headerless { index, place: Place::Here(path), range }));
            }
            ReplicaSpec::Remote(remote) => {
                let ranges = contents.headerless_ranges().map_err(|error| (index, error))?;
                let part = |range| Headerless { index, place: Place::There(remote.clone()), range };
                all.extend(ranges.into_iter().map(part));
            }
        }
    }
    Ok(all)
}

/// The parts of a replica of this machine that are files without a header, and what they hold of the pool.
fn parts_here(specs: &[PartSpec], options: SetOptions) -> Result<Vec<(PathBuf, Range<u64>)>, PoolSetError> {
    let (mut all, mut start) = (Vec::new(), 0);
    for (number, place) in places(specs, options)?.iter().enumerate() {
        let part = Part::look_at_any(&place.path)?;
        let range = start..start + part.mapped_len_bytes(false);
        start = range.end;
        if number > 0 && part.devdax_align_bytes.is_none() {
            all.push((part.path, range));
        }
    }
    Ok(all)
}
