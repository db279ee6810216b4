//! What most replicas agree on against the one that the others are made equal to.

use std::ops::Range;

use crate::SyncError;

/// Replicas, more than half of all that are sound, that agree with each other and not with another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Majority {
    /// Those that agree, by their places in the set, from 0.
    pub replicas: Vec<usize>,
    /// The one that they differ from.
    pub against: usize,
    /// In how many places.
    pub places: u64,
    /// The first of these, in bytes from the start of the pool.
    pub offset: u64,
}

/// Whether most replicas agree against `source`. `differing`: each other sound replica of the pool, with the ranges in which it
/// differs from the source. `read` copies bytes of a replica out.
pub(crate) fn majority_against(
    source: usize,
    differing: &[(usize, Vec<Range<u64>>)],
    mut read: impl FnMut(usize, u64, &mut [u8]) -> Result<(), SyncError>,
) -> Result<Option<Majority>, SyncError> {
    let voters = differing.len() + 1;
    // Two replicas are of two opinions.
    if voters < 3 {
        return Ok(None);
    }
    let mut places: Vec<_> = differing.iter().flat_map(|(_, ranges)| ranges.iter().cloned()).collect();
    places.sort_by_key(|range| (range.start, range.end));
    let mut found: Option<Majority> = None;
    let mut counted_until = 0;
    for place in places {
        if found.is_some() && place.start < counted_until {
            continue;
        }
        let mut bytes = vec![0; (place.end - place.start) as usize];
        read(source, place.start, &mut bytes)?;
        let mut opinions: Vec<(Vec<u8>, Vec<usize>)> = Vec::new();
        for (replica, _) in differing {
            let mut own = bytes.clone();
            read(*replica, place.start, &mut own)?;
            match opinions.iter_mut().find(|(opinion, _)| *opinion == own) {
                Some((_, replicas)) => replicas.push(*replica),
                None => opinions.push((own, vec![*replica])),
            }
        }
        let against = opinions.into_iter().find(|(opinion, replicas)| *opinion != bytes && replicas.len() * 2 > voters);
        if let Some((_, replicas)) = against {
            counted_until = place.end;
            let new = Majority { replicas, against: source, places: 0, offset: place.start };
            found.get_or_insert(new).places += 1;
        }
    }
    Ok(found)
}
