//! Whether a majority of the replicas disagrees with the source of a synchronization.

use std::ops::Range;

use crate::{
    AccessError, Apart, Comparison, ComparisonError, Differences, PoolKind, ReplicaAccess, SyncError,
    sync::{Found, whole},
};

/// The used bytes in which a replica differs.
pub(crate) type Ranges = Vec<Range<u64>>;

/// A majority of the sound replicas, which agree with each other and differ from another one.
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

/// The objection of the other replicas against the one that they were compared with.
#[derive(Debug, Default)]
pub(crate) struct Opinions {
    /// A majority agrees with each other and differs from it.
    pub(crate) majority: Option<Majority>,
    /// Replicas that differ and were not used together with it.
    pub(crate) apart: Option<Apart>,
}

/// By what a pool's replicas are compared with `first`: in what its heap has in use, if it is here.
pub(crate) fn comparison_with(
    first: &mut dyn ReplicaAccess,
    kind: Option<PoolKind>,
    len_bytes: u64,
) -> Result<Comparison, AccessError> {
    match first.memory() {
        Some(memory) => Ok(Comparison::of_pool(kind, &*memory, len_bytes)?),
        None => Ok(Comparison::of_kind(kind, len_bytes)),
    }
}

/// All differences of one whole replica from another.
pub(crate) fn differences(
    found: &mut [Found],
    [first, other]: [usize; 2],
    comparison: &Comparison,
    progress: &mut dyn FnMut(u64),
) -> Result<Differences, SyncError> {
    let none = || SyncError::NoSource { reasons: Vec::new() };
    let [one, two] = two_of(found, [first, other]).ok_or_else(none)?;
    let differences = comparison.differences(whole(one)?.contents(), whole(two)?.contents(), progress);
    differences.map_err(|error| of_pair(first, other, error))
}

/// Two distinct elements, if both exist.
fn two_of<T>(all: &mut [T], [first, other]: [usize; 2]) -> Option<[&mut T; 2]> {
    let (before, behind) = all.split_at_mut_checked(first.max(other))?;
    let (low, high) = (before.get_mut(first.min(other))?, behind.first_mut()?);
    Some(if first < other { [low, high] } else { [high, low] })
}

/// Which of the two failed.
pub(crate) fn of_pair(first: usize, other: usize, error: ComparisonError) -> SyncError {
    SyncError::Replica { index: if error.replica == 0 { first } else { other }, source: error.source }
}

/// The objection of replicas that were compared with `source`. `is_linked`: they were used together.
pub(crate) fn opinions(
    found: &mut [Found],
    source: usize,
    is_linked: bool,
    differing: &[(usize, Ranges)],
) -> Result<Opinions, SyncError> {
    let apart: Vec<_> = differing.iter().filter(|(_, ranges)| !is_linked && !ranges.is_empty()).collect();
    let replicas = apart.into_iter().map(|(index, _)| *index).collect::<Vec<_>>();
    let read = |index: usize, offset: u64, into: &mut [u8]| {
        whole(&mut found[index])?.contents().read(offset, into).map_err(|source| SyncError::Replica { index, source })
    };
    let majority = majority_against(source, differing, read)?;
    Ok(Opinions { majority, apart: (!replicas.is_empty()).then_some(Apart { source, replicas }) })
}

/// Whether most replicas agree against `source`. `differing`: each other sound replica of the pool, with the ranges in which it
/// differs from the source. `read` copies bytes of a replica out.
fn majority_against(
    source: usize,
    differing: &[(usize, Ranges)],
    mut read: impl FnMut(usize, u64, &mut [u8]) -> Result<(), SyncError>,
) -> Result<Option<Majority>, SyncError> {
    let voters = differing.len() + 1;
    // Two replicas have no majority.
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
