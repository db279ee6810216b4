//! Removes parts: first checks and locks all of them, then removes them.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use super::{
    LocalReplica, check_links, clear_header, header_count,
    numbered::Numbered,
    owner::{Named, Owner, owner},
    read_header,
    unlinkable::check_unlinkable,
    vouched::no_source,
    whose::{self, place_of},
};
use pmof_mem::System;

use crate::{
    PartSize, PartSpec, PoolSetError, SetOptions, distinct,
    part::{Part, Place, are_directories, places, places_left},
};

/// The parts of a replica that is about to be removed, locked, so that no program opens them meanwhile. Nothing is changed before it
/// is [carried out](Self::carry_out), and nothing if it is dropped.
#[derive(Debug)]
pub struct Removal {
    parts: Vec<Part>,
    absent: Vec<PathBuf>,
    left: Vec<PathBuf>,
}

impl Removal {
    /// Finds and locks all parts, and checks that they can be removed.
    ///
    /// `force`: ignores parts that are missing, damaged or of a wrong length; files that are not parts of a
    /// pool and do not look like damaged ones are [left](Self::left). Without it the headers
    /// must be those of one pool. Holes do not matter.
    ///
    /// `member`: the pool set of the other replicas. Parts of two pool sets are never removed, with or without `force`: a program cannot
    /// guess which of them is meant.
    ///
    /// Errors: `OtherSet`, and `Busy`, also with `force`; without it `Missing`, `WrongLength`, `Header`, `NotRemoved`, `WrongNeighbour`,
    /// `Differs`; `WrongKind`, `Mem`, `Io`.
    pub fn prepare(
        specs: &[PartSpec],
        options: SetOptions,
        force: bool,
        member: Option<&[u8; 16]>,
    ) -> Result<Self, PoolSetError> {
        distinct::check_parts(specs)?;
        are_directories(specs, options)?;
        if force {
            let mut removal = Self::of_what_is_there(specs)?;
            removal.leave_what_is_no_part(specs, options, member)?;
            return removal.checked();
        }
        let places = places(specs, options)?;
        let parts = places.iter().map(Part::find).collect::<Result<Vec<_>, _>>()?;
        let with_header = header_count(parts.len(), options);
        let headers = parts.iter().take(with_header).map(read_header).collect::<Result<Vec<_>, _>>()?;
        check_links(&parts, &headers)?;
        let removal = Self { parts, absent: Vec::new(), left: Vec::new() };
        let with_headers = &removal.parts[..with_header];
        let member = match headers.first() {
            Some(first) => whose::one_member(specs, with_headers, with_header, member)?.or(Some(first.poolset_uuid)),
            None => None,
        };
        removal.check_beside(specs, with_header, member.as_ref()).map_err(PoolSetError::of_removal)?;
        removal.checked()
    }

    /// The same for the remains of a replica of the pool set `member` that is to be recreated, and for nothing else.
    ///
    /// Errors: `OtherSet`, `NotOurs` for another pool's parts, and files that are no pool's; `Busy`, `WrongKind`, `Mem`, `Io`.
    pub fn prepare_member(specs: &[PartSpec], options: SetOptions, member: &[u8; 16]) -> Result<Self, PoolSetError> {
        distinct::check_parts(specs)?;
        let removal = Self::of_what_is_there(specs)?;
        let with_header = header_count(specs.len(), options);
        removal.check_own(specs, with_header, member)?;
        removal.checked()
    }

    /// Fails for a file without a header that does not belong to the pool set `member`, which all headers, being sound, name. `None`: there is no header,
    /// and the owner of a file is unknown.
    fn check_beside(
        &self,
        specs: &[PartSpec],
        with_header: usize,
        member: Option<&[u8; 16]>,
    ) -> Result<(), PoolSetError> {
        let numbered = Numbered::of(specs, &self.parts)?;
        for part in &self.parts[with_header..] {
            let (_, size) = place_of(specs, &part.path);
            let named = Named { size, has_header: false, is_vouched: with_header > 0, start: None };
            owner(part, &named, member, &mut no_source)?.check(part)?;
            whose::check_number(part, numbered.as_ref())?;
        }
        numbered.as_ref().map_or(Ok(()), Numbered::check_complete)
    }

    /// Fails for a file that does not belong to the pool set `member`.
    fn check_own(&self, specs: &[PartSpec], with_header: usize, member: &[u8; 16]) -> Result<(), PoolSetError> {
        let numbered = Numbered::of(specs, &self.parts)?;
        let is_vouched = with_header > 0 && self.is_vouched(specs, member)?;
        for part in &self.parts {
            let (index, size) = place_of(specs, &part.path);
            let named = Named { size, has_header: index < with_header, is_vouched, start: None };
            owner(part, &named, Some(member), &mut no_source)?.check(part)?;
            whose::check_number(part, numbered.as_ref())?;
        }
        Ok(())
    }

    /// Whether the first part vouches for those without a header.
    fn is_vouched(&self, specs: &[PartSpec], member: &[u8; 16]) -> Result<bool, PoolSetError> {
        let first = self.parts.iter().find(|part| place_of(specs, &part.path).0 == 0);
        first.map_or(Ok(false), |first| whose::vouches(first, member))
    }

    /// The existing files with the names of parts.
    fn of_what_is_there(specs: &[PartSpec]) -> Result<Self, PoolSetError> {
        let (mut parts, mut absent) = (Vec::with_capacity(specs.len()), Vec::new());
        for path in places_left(specs)? {
            match Part::find(&Place { path: path.clone(), size: None }) {
                Ok(part) => parts.push(part),
                Err(PoolSetError::Missing { .. }) => absent.push(path),
                Err(error) => return Err(error),
            }
        }
        Ok(Self { parts, absent, left: Vec::new() })
    }

    /// Leaves files that belong neither to nobody nor to the pool that headers name. For parts without headers, force declares that files of their lengths belong to
    /// the pool, except those that begin like something else.
    fn leave_what_is_no_part(
        &mut self,
        specs: &[PartSpec],
        options: SetOptions,
        member: Option<&[u8; 16]>,
    ) -> Result<(), PoolSetError> {
        let with_header = header_count(specs.len(), options);
        let member = if with_header > 0 { whose::one_member(specs, &self.parts, with_header, member)? } else { None };
        let numbered = Numbered::of(specs, &self.parts)?;
        let is_vouched = member.map_or(Ok(with_header == 0), |member| self.is_vouched(specs, &member))?;
        for part in std::mem::take(&mut self.parts) {
            let (index, size) = place_of(specs, &part.path);
            let named = Named { size, has_header: index < with_header, is_vouched, start: None };
            let is_foreign = whose::check_number(&part, numbered.as_ref()).is_err();
            let owner = owner(&part, &named, member.as_ref(), &mut no_source)?;
            if !is_foreign && matches!(owner, Owner::Nobody | Owner::Own) {
                self.parts.push(part);
            } else {
                self.left.push(part.path);
            }
        }
        Ok(())
    }

    fn checked(self) -> Result<Self, PoolSetError> {
        self.parts
            .iter()
            .filter(|part| part.devdax_align_bytes.is_none())
            .try_for_each(|part| check_unlinkable(&part.path))?;
        Ok(self)
    }

    /// Leaves a file that the caller found not to be a part.
    pub fn leave(&mut self, path: &Path) {
        if let Some(index) = self.parts.iter().position(|part| part.path == path) {
            self.left.push(self.parts.remove(index).path);
        }
    }

    /// The parts to remove.
    pub fn parts(&self) -> impl Iterator<Item = &Path> {
        self.parts.iter().map(|part| part.path.as_path())
    }

    /// Parts that do not exist.
    pub fn absent(&self) -> &[PathBuf] {
        &self.absent
    }

    /// Files that have the names of parts but are not parts of a pool.
    pub fn left(&self) -> &[PathBuf] {
        &self.left
    }

    /// Removes the parts durably: clears the headers of devdax devices, and removes the pool's files from directories.
    ///
    /// Errors: `Mem`, `Io`.
    pub fn carry_out(self) -> Result<(), PoolSetError> {
        for (index, part) in self.parts.iter().rev().enumerate() {
            if part.devdax_align_bytes.is_some() {
                clear_header(part)?;
                continue;
            }
            let mend = if index == 0 { "" } else { "other parts are removed already; remove the rest with `--force`" };
            part.unlink(mend)?;
        }
        // A removed file must not reappear after a power failure.
        let directories: BTreeSet<_> = self.parts.iter().filter_map(|part| part.path.parent()).collect();
        for directory in directories {
            let synced = fs::File::open(directory).and_then(|directory| directory.sync_all());
            synced.map_err(|error| PoolSetError::io("fsync", directory, "", error))?;
        }
        Ok(())
    }
}

impl Removal {
    /// Makes room for a new replica in place of this one, durably: files become zeros with their length from the set, and keep their owner and mode; files that
    /// cannot be kept are removed as by [`carry_out`](Self::carry_out).
    ///
    /// Errors: `Mem`, `Io`.
    pub fn clear_out(self, specs: &[PartSpec]) -> Result<(), PoolSetError> {
        let Self { parts, absent, left } = self;
        let mut gone = Vec::new();
        for part in parts {
            match place_of(specs, &part.path).1 {
                Some(PartSize::Bytes(len_bytes))
                    if part.devdax_align_bytes.is_none() && part.check_bad_blocks(&System::real(), true).is_ok() =>
                {
                    part.make_zero(len_bytes)?;
                }
                _ => gone.push(part),
            }
        }
        Self { parts: gone, absent, left }.carry_out()
    }
}

/// Removes the remains of a replica of the pool set `member`: [`Removal::prepare_member`] and [`Removal::carry_out`] in one call.
pub(crate) fn remove_member(specs: &[PartSpec], options: SetOptions, member: &[u8; 16]) -> Result<(), PoolSetError> {
    Removal::prepare_member(specs, options, member).map_err(PoolSetError::of_removal)?.carry_out()
}

/// Fails if [`remove_member`] would; otherwise returns whether it would find anything. Nothing is changed.
pub(crate) fn check_member(specs: &[PartSpec], options: SetOptions, member: &[u8; 16]) -> Result<bool, PoolSetError> {
    let removal = Removal::prepare_member(specs, options, member).map_err(PoolSetError::of_removal)?;
    Ok(!removal.parts.is_empty())
}

impl LocalReplica {
    /// Undoes its creation: removes files that were created for it, and zeroes the headers of parts that existed before. A replica that
    /// was opened is only released.
    ///
    /// Errors: `Mem`, `Io`.
    pub fn discard(self) -> Result<(), PoolSetError> {
        if !self.is_new {
            return Ok(());
        }
        let blank = self.blank_again();
        let made = self.parts.into_iter().filter(|part| part.is_made && part.devdax_align_bytes.is_none()).collect();
        blank.and(Removal { parts: made, absent: Vec::new(), left: Vec::new() }.carry_out())
    }

    /// Restores parts that existed before: clears their headers, and the contents of files behind them.
    pub(super) fn blank_again(&self) -> Result<(), PoolSetError> {
        let with_header = self.parts.iter().take(header_count(self.parts.len(), self.options));
        let headers = with_header.filter(|part| !part.is_made).map(clear_header).fold(Ok(()), Result::and);
        headers.and(self.clear_files())
    }
}
