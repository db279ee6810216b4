//! Checks that a set names all parts and replicas of its pool, according to the headers.

use super::{numbered::pool_len_bytes, owner::Head};
use crate::{
    Attributes, Misfit, OpenFor, PartSpec, PoolSet, PoolSetError, Reached, RemoteReplicas, RemoteSpec, ReplicaSpec,
    first_misfit,
    part::{Part, Place, places},
    uuid_text,
};

/// Fails if the set names fewer parts than the pool needs, or replicas that are linked to others than the set has beside them. Nothing
/// is locked on this machine; hosts are asked, and closed again. Damaged headers and unreachable hosts are ignored.
///
/// Errors: `NotAll`; those of reading parts of this machine.
pub fn check_named_whole(set: &PoolSet, remotes: &mut dyn RemoteReplicas) -> Result<(), PoolSetError> {
    let mut headers = Vec::with_capacity(set.replicas.len());
    let mut firsts = Vec::with_capacity(set.replicas.len());
    for replica in &set.replicas {
        let parts = match replica {
            ReplicaSpec::Local(specs) => found(set, specs)?,
            ReplicaSpec::Remote(remote) => {
                headers.push(attributes_there(remote, remotes));
                firsts.push(remote.set.clone());
                continue;
            }
        };
        let head = if set.options.no_headers { None } else { parts.first().map(Head::of).transpose()? };
        headers.push(match head {
            Some(Head::Whole(header)) => {
                if set.options.single_header {
                    check_parts(&parts)?;
                }
                Some(header.attributes()).filter(|attributes| !attributes.is_unfinished())
            }
            _ => None,
        });
        firsts.push(parts.into_iter().next().map(|part| part.path).unwrap_or_default());
    }
    let Some((index, Misfit::Neighbour { side, found, expected })) = first_misfit(&headers) else { return Ok(()) };
    let (found, expected) = (uuid_text(&found), uuid_text(&expected));
    let found = format!("its {side} replica is {found}, and the set has {expected} there");
    Err(PoolSetError::NotAll { path: firsts.swap_remove(index), found })
}

/// The headers of a host's replica.
fn attributes_there(remote: &RemoteSpec, remotes: &mut dyn RemoteReplicas) -> Option<Attributes> {
    let Ok(Reached::Whole(mut replica)) = remotes.open(remote, 0, OpenFor::Read) else { return None };
    let attributes = replica.attributes().ok();
    // It was only read.
    let _ = replica.close();
    attributes.filter(|attributes| !attributes.is_unfinished())
}

/// The existing parts; empty if one is missing, which other checks report.
fn found(set: &PoolSet, specs: &[PartSpec]) -> Result<Vec<Part>, PoolSetError> {
    let places = match places(specs, set.options) {
        Ok(places) => places,
        Err(error) if error.is_damage() => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let look = |place: &Place| Part::look_at_any(&place.path);
    match places.iter().map(look).collect() {
        Err(PoolSetError::Missing { .. }) => Ok(Vec::new()),
        parts => parts,
    }
}

/// Fails if parts of which only the first has a header are together shorter than the pool. With headers, their links decide.
fn check_parts(parts: &[Part]) -> Result<(), PoolSetError> {
    let Some(first) = parts.first() else { return Ok(()) };
    let held = parts.iter().map(|part| part.mapped_len_bytes(false)).sum::<u64>();
    match pool_len_bytes(first)? {
        Some(pool) if pool > held => {
            let found = format!("the pool has {pool} bytes, and the parts that are named hold {held}");
            Err(PoolSetError::NotAll { path: first.path.clone(), found })
        }
        _ => Ok(()),
    }
}
