//! Dry run of creating a replica: all checks that precede the first write.

use std::{collections::BTreeMap, fs, io, path::Path};

use pmof_mem::{MemError, NewFile, System};

use super::{NewParts, is_behind_header, unlinkable::check_unlinkable};
use crate::{
    POOL_LEN_BYTES_MIN, PartSize, PartSpec, PoolSetError, SetOptions, distinct,
    part::{
        Part, Place, Site, allocated_len_bytes, check_devices, new_places, page_bytes, places_left, places_of_broken,
    },
};

/// The bytes that new parts take from each file system, so that several do not count on the same space.
#[derive(Debug, Default)]
pub(crate) struct Rooms(BTreeMap<u64, u64>);

impl Rooms {
    /// Reserves this many more bytes on the file system of `path`.
    fn take(&mut self, path: &Path, len_bytes: u64, needed: u64) -> Result<(), PoolSetError> {
        let (device, free) = NewFile::room_at(path, len_bytes)?;
        let taken = self.0.entry(device).or_default();
        *taken = taken.saturating_add(needed);
        match free {
            Some(free) if free < *taken => Err(MemError::NoSpace { path: path.into(), len_bytes: *taken }.into()),
            _ => Ok(()),
        }
    }
}

impl NewParts {
    /// The checks of [`create`](Self::create) that precede any change; returns the bytes that the replica would have.
    pub(crate) fn check(specs: &[PartSpec], options: SetOptions, rooms: &mut Rooms) -> Result<u64, PoolSetError> {
        distinct::check_parts(specs)?;
        let places = new_places(specs, options)?;
        let mut devices = Vec::with_capacity(places.len());
        let mut len_bytes = 0;
        for (index, place) in places.iter().enumerate() {
            let behind_header = is_behind_header(index, options);
            let (part_bytes, align_bytes) = match Part::site(place)? {
                Site::File(part, _) => {
                    let stat = fs::symlink_metadata(&place.path);
                    let there = stat.map_or(0, |stat| allocated_len_bytes(&stat));
                    if there < part.len_bytes {
                        rooms.take(&place.path, part.len_bytes, part.len_bytes - there)?;
                    }
                    (part.mapped_len_bytes(behind_header), None)
                }
                Site::Device(part) => (part.mapped_len_bytes(behind_header), part.devdax_align_bytes),
                Site::Nothing { len_bytes } => {
                    rooms.take(&place.path, len_bytes, len_bytes)?;
                    let behind = if behind_header { len_bytes.saturating_sub(page_bytes()) } else { len_bytes };
                    (behind - behind % page_bytes(), None)
                }
            };
            len_bytes += part_bytes;
            devices.push((place.path.as_path(), align_bytes));
        }
        check_devices(devices.into_iter(), options)?;
        if let Some(first) = places.first() {
            check_least(&first.path, len_bytes, POOL_LEN_BYTES_MIN)?;
        }
        Ok(len_bytes)
    }
}

/// Fails if the replica could not be opened exclusively for a change: another program has a part open, even for reading, or it is not writable. A shared
/// lock does not show this. Nothing is changed.
pub(crate) fn check_unused(specs: &[PartSpec]) -> Result<(), PoolSetError> {
    for path in places_left(specs)? {
        match Part::find(&Place { path, size: None }) {
            Ok(_) | Err(PoolSetError::Missing { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Checks what [`NewParts::restore`] needs to recreate parts, before the first is changed: directories, limits, and space.
pub(crate) fn check_restorable(
    specs: &[PartSpec],
    options: SetOptions,
    least: u64,
    rooms: &mut Rooms,
) -> Result<(), PoolSetError> {
    let places = places_of_broken(specs, options, least)?;
    for place in &places {
        let Some(PartSize::Bytes(len_bytes)) = place.size else { continue };
        let stat = match fs::symlink_metadata(&place.path) {
            Ok(stat) => stat,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // The same refusals as for its creation.
                Part::site(place)?;
                rooms.take(&place.path, len_bytes, len_bytes)?;
                continue;
            }
            Err(error) => return Err(PoolSetError::io("stat", &place.path, "", error)),
        };
        if !stat.is_file() {
            continue;
        }
        if has_bad_blocks(&place.path)? {
            // The new file exists before the old one is removed.
            check_unlinkable(&place.path)?;
            rooms.take(&place.path, len_bytes, len_bytes)?;
            continue;
        }
        // It grows, and its holes are filled.
        let missing = len_bytes.saturating_sub(allocated_len_bytes(&stat));
        if missing > 0 {
            rooms.take(&place.path, len_bytes, missing)?;
        }
    }
    Ok(())
}

fn has_bad_blocks(path: &Path) -> Result<bool, PoolSetError> {
    Ok(Part::look_at_any(path)?.check_bad_blocks(&System::real(), true).is_err())
}

/// Fails if a replica of this many bytes is shorter than `least`. `path`: its first part.
pub(super) fn check_least(path: &Path, len_bytes: u64, least: u64) -> Result<(), PoolSetError> {
    if len_bytes >= least {
        return Ok(());
    }
    Err(PoolSetError::PoolTooSmall { path: path.into(), len_bytes, least })
}
