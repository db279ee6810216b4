//! Predicts whether the kernel would allow unlink(2) or rename(2) of a name: checked for every part before the first one is removed.

use std::path::Path;

use rustix::fs::{Access as Permission, AtFlags, CWD, Statx, StatxAttributes, StatxFlags, accessat, statx};
use rustix::thread::CapabilitySet;

use crate::PoolSetError;

#[cfg(test)]
mod tests;

/// The sticky bit of a directory's mode (inode(7)).
const STICKY: u32 = 0o1000;

/// The relevant properties of a file or directory.
#[derive(Clone, Copy, Debug)]
struct Inode {
    owner: u32,
    is_sticky: bool,
    is_append_only: bool,
    is_immutable: bool,
}

/// The relevant properties of this process.
#[derive(Clone, Copy, Debug)]
struct Caller {
    user: u32,
    /// `CAP_FOWNER`.
    acts_for_owners: bool,
}

/// Why a name cannot be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Refusal {
    is_of_directory: bool,
    why: &'static str,
    mend: &'static str,
}

/// Fails if this process could not unlink the file at `path`, or replace it by rename. Nothing is changed.
///
/// Errors: `NotUnlinkable`; `Io` where the directory may not be written.
pub fn check_unlinkable(path: &Path) -> Result<(), PoolSetError> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let wanted = Permission::WRITE_OK | Permission::EXEC_OK;
    accessat(CWD, directory, wanted, AtFlags::EACCESS).map_err(|errno| {
        PoolSetError::io("access", directory, "parts are removed by those who may write there", errno)
    })?;
    let refused =
        refusal(Caller::new(), Inode::at(directory, AtFlags::empty())?, Inode::at(path, AtFlags::SYMLINK_NOFOLLOW)?);
    match refused {
        None => Ok(()),
        Some(Refusal { is_of_directory, why, mend }) => {
            let of = if is_of_directory { directory } else { path };
            Err(PoolSetError::NotUnlinkable { path: path.into(), of: of.into(), why, mend })
        }
    }
}

/// As `may_delete` of Linux has it, behind the permission to write to the directory.
fn refusal(caller: Caller, directory: Inode, file: Inode) -> Option<Refusal> {
    let of = |is_of_directory, why, mend| Some(Refusal { is_of_directory, why, mend });
    if directory.is_append_only {
        return of(true, "is append-only", "take the attribute off (`chattr -a`)");
    }
    if directory.is_immutable {
        return of(true, "is immutable", "take the attribute off (`chattr -i`)");
    }
    if file.is_append_only {
        return of(false, "is append-only", "take the attribute off (`chattr -a`)");
    }
    if file.is_immutable {
        return of(false, "is immutable", "take the attribute off (`chattr -i`)");
    }
    let is_owner = [directory.owner, file.owner].contains(&caller.user) || caller.acts_for_owners;
    if directory.is_sticky && !is_owner {
        return of(
            true,
            "is sticky, and neither it nor the file is this user's",
            "the owner of the file or of the directory, or root, can do it",
        );
    }
    None
}

impl Caller {
    fn new() -> Self {
        let effective = rustix::thread::capabilities(None).map(|sets| sets.effective);
        let acts_for_owners = effective.is_ok_and(|effective| effective.contains(CapabilitySet::FOWNER));
        Self { user: rustix::process::geteuid().as_raw(), acts_for_owners }
    }
}

impl Inode {
    fn at(path: &Path, flags: AtFlags) -> Result<Self, PoolSetError> {
        let found = statx(CWD, path, flags, StatxFlags::BASIC_STATS);
        Ok(Self::of(&found.map_err(|errno| PoolSetError::io("statx", path, "", errno))?))
    }

    fn of(found: &Statx) -> Self {
        let has = |attribute| found.stx_attributes.contains(attribute);
        Self {
            owner: found.stx_uid,
            is_sticky: u32::from(found.stx_mode) & STICKY != 0,
            is_append_only: has(StatxAttributes::APPEND),
            is_immutable: has(StatxAttributes::IMMUTABLE),
        }
    }
}
