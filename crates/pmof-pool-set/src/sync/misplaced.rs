//! Parts that the set names in another order, or in another replica, than they are. Nothing is wrong with them, so nothing is made anew over
//! them: the set file must be corrected.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use super::{Found, MisplacedPart, SyncError};
use crate::{PoolHeader, PoolSet, part_header};

type Uuid = [u8; 16];

/// A part with a whole header, where the set has it.
struct Named {
    replica: usize,
    part: usize,
    path: PathBuf,
    header: PoolHeader,
}

/// Whole headers of the pool's parts on this machine, and what they say of each other.
struct Parts {
    named: Vec<Named>,
    /// UUIDs of first parts, by which replicas know their neighbours.
    firsts: BTreeSet<Uuid>,
    by_uuid: BTreeMap<Uuid, PoolHeader>,
}

/// Fails where parts of a broken replica are whole, and elsewhere in their replica, or in another one, than the set has them. Of parts without
/// a header nothing says it; files in directories have their order by their names.
///
/// Errors: `Misplaced`; those of asking a replica for its header.
pub(crate) fn check_order(set: &PoolSet, found: &mut [Found]) -> Result<(), SyncError> {
    let mut known = Vec::with_capacity(found.len());
    for (index, found) in found.iter_mut().enumerate() {
        if let Found::Whole(replica) | Found::Empty(replica) = found {
            known.push(replica.attributes().map_err(|source| SyncError::Replica { index, source })?);
        }
    }
    if !found.iter().any(|found| matches!(found, Found::Damaged(_))) {
        return Ok(());
    }
    let linked = known.iter().flat_map(|known| [known.uuid, known.next_uuid, known.prev_uuid]);
    let Some(parts) = Parts::of(set, known.first().map(|known| known.poolset_uuid), linked.collect()) else {
        return Ok(());
    };
    for index in (0..found.len()).filter(|index| matches!(found[*index], Found::Damaged(_))) {
        let misplaced = parts.misplaced(index);
        if !misplaced.is_empty() {
            return Err(SyncError::Misplaced { index, parts: misplaced });
        }
    }
    Ok(())
}

impl Parts {
    /// `member`: the pool's set where a replica is whole, else that of the first header.
    fn of(set: &PoolSet, member: Option<Uuid>, mut firsts: BTreeSet<Uuid>) -> Option<Self> {
        let mut named = Vec::new();
        for (replica, specs) in set.replicas.iter().enumerate().filter_map(|(at, spec)| Some((at, spec.local()?))) {
            for (part, spec) in specs.iter().enumerate().filter(|(_, spec)| spec.path.is_file()) {
                if let Ok(header) = part_header(&spec.path) {
                    named.push(Named { replica, part, path: spec.path.clone(), header });
                }
            }
        }
        let member = member.or_else(|| named.first().map(|named| named.header.poolset_uuid))?;
        named.retain(|named| named.header.poolset_uuid == member && !named.header.attributes().is_unfinished());
        firsts.extend(named.iter().flat_map(|named| [named.header.prev_replica_uuid, named.header.next_replica_uuid]));
        let by_uuid = named.iter().map(|named| (named.header.uuid, named.header.clone())).collect();
        Some(Self { named, firsts, by_uuid })
    }

    /// The first part of a part's replica, and which part of it this is; `None` where a part between them is not known.
    fn place(&self, header: &PoolHeader) -> Option<(Uuid, usize)> {
        let (mut uuid, mut before) = (header.uuid, header.prev_part_uuid);
        for number in 0..=self.by_uuid.len() {
            if self.firsts.contains(&uuid) {
                return Some((uuid, number));
            }
            uuid = before;
            before = self.by_uuid.get(&uuid).map_or(uuid, |header| header.prev_part_uuid);
        }
        None
    }

    /// Where a part should be: replica and part. A replica whose first part is nowhere is the one that the part is named in.
    fn right_place(&self, named: &Named) -> Option<(usize, usize)> {
        let (first, number) = self.place(&named.header)?;
        let is_first = |other: &&Named| other.header.uuid == first && other.part == 0;
        Some((self.named.iter().find(is_first).map_or(named.replica, |first| first.replica), number))
    }

    /// The parts of a replica, as far as they are known, if one of them is misplaced. A copy of one that is in its place is not.
    fn misplaced(&self, replica: usize) -> Vec<MisplacedPart> {
        let is_in_place = |named: &Named| self.right_place(named) == Some((named.replica, named.part));
        let has_place = |uuid: &Uuid| self.named.iter().any(|named| named.header.uuid == *uuid && is_in_place(named));
        let own = || self.named.iter().filter(|named| named.replica == replica);
        let is_misplaced = |named: &Named| self.right_place(named).is_some() && !has_place(&named.header.uuid);
        if !own().any(is_misplaced) {
            return Vec::new();
        }
        let told = |named: &Named| {
            let (replica, part) = self.right_place(named)?;
            Some(MisplacedPart { path: named.path.clone(), replica, part })
        };
        own().filter_map(told).collect()
    }
}
