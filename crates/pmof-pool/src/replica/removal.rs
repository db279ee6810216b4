//! Parts that go: looked at and locked first, all of them, and then removed.

use std::{collections::BTreeSet, fs, path::Path};

use rustix::fs::{Access as Permission, AtFlags, CWD, accessat};

use super::{LocalReplica, check_links, clear_header, header_count, read_header};
use crate::{
    PartSpec, PoolSetError, SetOptions, distinct,
    part::{Part, Place, places},
};

/// The parts of a replica that is about to be removed: locked, so that nobody opens them meanwhile. Nothing is changed before it
/// is [carried out](Self::carry_out), and nothing if it is dropped.
#[derive(Debug)]
pub struct Removal {
    parts: Vec<Part>,
}

impl Removal {
    /// Finds and locks all parts, and makes sure that they can be removed.
    ///
    /// `force`: parts that are missing, damaged or of another length than the set says do not matter. Without it the headers
    /// must be those of one pool: another file under a part's name is not the pool's. Holes do not matter.
    ///
    /// Errors: `Busy`, also with `force`; without it `Missing`, `WrongLength`, `Header`, `OtherSet`, `WrongNeighbour`,
    /// `Differs`; `WrongKind`, `Mem`, `Io`.
    pub fn prepare(specs: &[PartSpec], options: SetOptions, force: bool) -> Result<Self, PoolSetError> {
        distinct::check_parts(specs)?;
        // Directories can be parts with this one only.
        let single = SetOptions { single_header: true, no_headers: false };
        let places = match places(specs, single) {
            Ok(places) => places,
            Err(PoolSetError::Missing { .. }) if force => return Ok(Self { parts: Vec::new() }),
            Err(error) => return Err(error),
        };
        let count = places.len();
        let mut parts = Vec::with_capacity(count);
        for place in places {
            match Part::find(&Place { size: place.size.filter(|_| !force), ..place }) {
                Ok(part) => parts.push(part),
                Err(PoolSetError::Missing { .. }) if force => {}
                Err(error) => return Err(error),
            }
        }
        if !force {
            let headers = parts.iter().take(header_count(count, options)).map(read_header);
            check_links(&parts, &headers.collect::<Result<Vec<_>, _>>()?)?;
        }
        parts.iter().filter(|part| part.devdax_align_bytes.is_none()).try_for_each(check_removable)?;
        Ok(Self { parts })
    }

    /// Removes the parts, durably; of devdax devices the header is cleared, of directories the pool's files go.
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
        // What was removed does not come back with the power.
        let directories: BTreeSet<_> = self.parts.iter().filter_map(|part| part.path.parent()).collect();
        for directory in directories {
            let synced = fs::File::open(directory).and_then(|directory| directory.sync_all());
            synced.map_err(|error| PoolSetError::io("fsync", directory, "", error))?;
        }
        Ok(())
    }
}

/// Removes all parts of a replica, whatever they hold: [`Removal::prepare`] and [`Removal::carry_out`] at once, without a look at
/// headers.
pub fn remove(parts: &[PartSpec], force: bool) -> Result<(), PoolSetError> {
    let options = SetOptions { single_header: false, no_headers: true };
    Removal::prepare(parts, options, force)?.carry_out()
}

/// Whether names can be taken out of its directory.
fn check_removable(part: &Part) -> Result<(), PoolSetError> {
    let directory = part.path.parent().unwrap_or(Path::new("/"));
    let wanted = Permission::WRITE_OK | Permission::EXEC_OK;
    accessat(CWD, directory, wanted, AtFlags::EACCESS)
        .map_err(|errno| PoolSetError::io("access", directory, "parts are removed by those who may write there", errno))
}

impl LocalReplica {
    /// Takes its making back: files that were made for it go, headers of parts that were there before are zero again. One that
    /// was opened is only let go of.
    ///
    /// Errors: `Mem`, `Io`.
    pub fn discard(self) -> Result<(), PoolSetError> {
        if !self.is_new {
            return Ok(());
        }
        let blank = self.blank_again();
        let made = self.parts.into_iter().filter(|part| part.is_made && part.devdax_align_bytes.is_none()).collect();
        blank.and(Removal { parts: made }.carry_out())
    }

    /// Clears the headers of parts that were there before.
    pub(super) fn blank_again(&self) -> Result<(), PoolSetError> {
        let with_header = self.parts.iter().take(header_count(self.parts.len(), self.options));
        with_header.filter(|part| !part.is_made).map(clear_header).fold(Ok(()), Result::and)
    }
}
