//! A file that gets its name when it is complete.

use std::{
    fs::{self, File, Permissions},
    io,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, fchown},
    path::{Path, PathBuf},
};

use pmof_console::interrupt::TemporaryFile;

/// A file that does not have its name yet, in the same directory; removed if dropped before.
#[derive(Debug)]
pub(crate) struct NewFile {
    file: TemporaryFile,
    path: PathBuf,
}

impl NewFile {
    /// An empty file for `path`; `prefix` begins its name until then.
    pub(crate) fn create(path: &Path, prefix: &str) -> io::Result<Self> {
        let mut builder = tempfile::Builder::new();
        // Narrowed by the umask, as for any new file.
        builder.prefix(prefix).suffix(".part").permissions(Permissions::from_mode(0o666));
        Ok(Self { file: TemporaryFile::create(&builder, directory_of(path))?, path: path.into() })
    }

    pub(crate) fn file(&self) -> &File {
        self.file.as_file()
    }

    /// Its final path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Gives the file its name. It either replaces an existing file, and takes that file's mode and, if this process may change owners, its owner; or it
    /// fails with `AlreadyExists`. The name is durable when [`sync_name`] returns.
    pub(crate) fn publish(self, replaces: bool) -> io::Result<()> {
        if let Some(old) = fs::symlink_metadata(&self.path).ok().filter(|old| replaces && old.is_file()) {
            match fchown(self.file(), Some(old.uid()), Some(old.gid())) {
                Err(error) if error.kind() != io::ErrorKind::PermissionDenied => return Err(error),
                _ => self.file().set_permissions(Permissions::from_mode(old.mode() & 0o777))?,
            }
        }
        self.file.persist(&self.path, replaces)
    }
}

/// Makes the name of a file durable.
pub(crate) fn sync_name(path: &Path) -> io::Result<()> {
    File::open(directory_of(path))?.sync_all()
}

/// The directory that a path's name is in.
pub(crate) fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
