//! Restores a part of a damaged replica: adjusts the existing file's length, or creates a new file.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use pmof_mem::{NewFile, System};
use rustix::{
    fs::{Gid, Mode, Uid},
    io::Errno,
};

use crate::{
    PartSize, PoolSetError,
    part::{Part, Place},
};

/// The suffix of a new file's name until it replaces one with bad blocks.
const BESIDE: &str = ".pmof-new";

/// The part at `place`. A file keeps its owner, its mode and the bytes that fit; a new one replaces it only if it has bad blocks. A missing file
/// gets owner and mode from one of `all`, the places of the replica's parts, if there is one, else from one in `beside`.
pub(super) fn part(system: &System, place: &Place, all: &[Place], beside: &[PathBuf]) -> Result<Part, PoolSetError> {
    let any = Place { path: place.path.clone(), size: None };
    match Part::find(&any) {
        Ok(part) => {
            if part.len_bytes == 0 && part.devdax_align_bytes.is_none() && !part.is_empty()? {
                return Err(PoolSetError::Busy { path: part.path });
            }
            if let (None, Some(PartSize::Bytes(len_bytes))) = (part.devdax_align_bytes, place.size) {
                part.resize(len_bytes)?;
            }
        }
        Err(PoolSetError::Missing { .. }) => {
            let (part, file) = Part::create(place)?;
            let others = all.iter().map(|other| &other.path).filter(|path| **path != place.path);
            if let Some(like) = others.chain(beside).find_map(|path| file_at(path)) {
                own_as(&part, &like)?;
            }
            file.into_iter().for_each(NewFile::keep);
            return Ok(part);
        }
        Err(error) => return Err(error),
    }
    let part = Part::open_filled(&any)?;
    let is_length = !matches!(place.size, Some(PartSize::Bytes(len_bytes)) if len_bytes != part.len_bytes);
    if is_length && part.check_bad_blocks(system, true).is_ok() {
        return Ok(part);
    }
    if part.devdax_align_bytes.is_some() {
        return Err(PoolSetError::WrongKind {
            path: part.path,
            why: "it is a device that is not as long as the set says, or has bad blocks",
            mend: "correct the set, or clear the blocks (`ndctl clear-errors`)",
        });
    }
    replaced(&part, place)
}

/// A new file with sound blocks, which replaces an existing one.
fn replaced(old: &Part, place: &Place) -> Result<Part, PoolSetError> {
    let (mut new, file) = Part::create(&Place { path: beside(&place.path), size: place.size })?;
    if let Some(like) = file_at(&old.path) {
        own_as(&new, &like)?;
    }
    fs::rename(&new.path, &place.path).map_err(|error| PoolSetError::io("rename", &new.path, "", error))?;
    new.path.clone_from(&place.path);
    file.into_iter().for_each(NewFile::keep);
    new.sync_name()?;
    Ok(new)
}

fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(BESIDE);
    name.into()
}

fn file_at(path: &Path) -> Option<fs::Metadata> {
    fs::symlink_metadata(path).ok().filter(fs::Metadata::is_file)
}

/// New files get the same owner as existing ones beside them.
pub(super) fn own_made_as_given(parts: &[Part]) -> Result<(), PoolSetError> {
    let mut given = parts.iter().filter(|part| !part.is_made);
    let Some(like) = given.find_map(|part| file_at(&part.path)) else { return Ok(()) };
    parts.iter().filter(|part| part.is_made).try_for_each(|part| own_as(part, &like))
}

/// Gives the part the owner and the mode of another file, if this process may change owners.
fn own_as(part: &Part, like: &fs::Metadata) -> Result<(), PoolSetError> {
    let failed = |call| move |errno: Errno| PoolSetError::io(call, &part.path, "", errno);
    let (owner, group) = (Uid::from_raw(like.uid()), Gid::from_raw(like.gid()));
    match rustix::fs::fchown(&part.file, Some(owner), Some(group)) {
        Ok(()) => {}
        // It keeps the defaults of a new file: the mode is meant for that owner.
        Err(Errno::PERM) => return Ok(()),
        Err(errno) => return Err(failed("fchown")(errno)),
    }
    let mode = Mode::from_raw_mode(like.mode() & 0o777);
    rustix::fs::fchmod(&part.file, mode).map_err(failed("fchmod"))
}
