//! The copy of the workspace that mutants are made in.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    fs, io,
    os::unix::{ffi::OsStringExt as _, fs::symlink},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};
use rustix::fs::{FlockOperation, flock};

#[cfg(test)]
mod tests;

/// `target/mutants`: the tree, what cargo builds of it, and the output of suites. One xtask at a time works in it.
#[derive(Debug)]
pub(super) struct Tree {
    root: PathBuf,
    directory: PathBuf,
    /// Locked as long as it is open.
    _lock: fs::File,
}

impl Tree {
    /// Brings the copy in line with the workspace at `root`: what git tracks or would track, as it is on disk now.
    ///
    /// Files that are the same are left alone, so that cargo builds again only what changed.
    pub(super) fn of(root: &Path) -> Result<Self> {
        let directory = root.join("target/mutants");
        for part in ["tree/target", "target", "logs"] {
            let path = directory.join(part);
            fs::create_dir_all(&path).with_context(|| format!("making {}", path.display()))?;
        }
        let lock = fs::File::create(directory.join("lock"))?;
        flock(&lock, FlockOperation::LockExclusive).context("waiting for another cargo xtask mutants")?;
        let tree = Self { root: root.to_owned(), directory, _lock: lock };
        tree.bring_in_line()?;
        // The guest, its packages and the newer QEMU are too large to be made twice.
        let link = tree.path().join("target/testbed");
        fs::create_dir_all(root.join("target/testbed"))?;
        match symlink(root.join("target/testbed"), &link) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            outcome => outcome.with_context(|| format!("making {}", link.display()))?,
        }
        Ok(tree)
    }

    /// The copy.
    pub(super) fn path(&self) -> PathBuf {
        self.directory.join("tree")
    }

    /// Where cargo builds.
    pub(super) fn target(&self) -> PathBuf {
        self.directory.join("target")
    }

    /// An empty file for the output of a suite.
    pub(super) fn log(&self, name: &str) -> Result<PathBuf> {
        let path = self.directory.join("logs").join(name).with_extension("log");
        fs::write(&path, "").with_context(|| format!("writing {}", path.display()))?;
        Ok(path)
    }

    /// Puts a mutant in; it is taken out when the result is dropped.
    pub(super) fn change(&self, file: &Path, content: &str) -> Result<Change> {
        let path = self.path().join(file);
        let original = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
        fs::write(&path, content).with_context(|| format!("writing {}", path.display()))?;
        Ok(Change { path, original })
    }

    fn bring_in_line(&self) -> Result<()> {
        let wanted = tracked_files(&self.root)?;
        let copy = self.path();
        for file in &wanted {
            let (from, to) = (self.root.join(file), copy.join(file));
            if is_same(&from, &to)? {
                continue;
            }
            if let Some(parent) = to.parent() {
                fs::create_dir_all(parent).with_context(|| format!("making {}", parent.display()))?;
            }
            // The time of the copy is that of copying, which is later than that of all that was built before.
            fs::copy(&from, &to).with_context(|| format!("copying {}", from.display()))?;
        }
        remove_others(&copy, Path::new(""), &wanted)
    }
}

/// A mutant that is in the tree.
#[derive(Debug)]
pub(super) struct Change {
    path: PathBuf,
    original: Vec<u8>,
}

impl Drop for Change {
    fn drop(&mut self) {
        // Where this fails, the next run's comparison finds it.
        let _ = fs::write(&self.path, &self.original);
    }
}

/// Relative paths of the files that git tracks or would track, without those that are deleted or no regular files.
fn tracked_files(root: &Path) -> Result<BTreeSet<PathBuf>> {
    let mut git = Command::new("git");
    git.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]).current_dir(root);
    let output = git.output().context("starting git")?;
    ensure!(output.status.success(), "{git:?}: {}", String::from_utf8_lossy(&output.stderr));
    let names = output.stdout.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let paths = names.map(|name| PathBuf::from(OsString::from_vec(name.to_vec())));
    Ok(paths.filter(|path| root.join(path).symlink_metadata().is_ok_and(|metadata| metadata.is_file())).collect())
}

fn is_same(one: &Path, other: &Path) -> Result<bool> {
    match fs::read(other) {
        Ok(content) => Ok(fs::read(one).with_context(|| format!("reading {}", one.display()))? == content),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error).with_context(|| format!("reading {}", other.display())),
    }
}

/// Removes what is not wanted below `relative`, but never the tree's `target`.
fn remove_others(copy: &Path, relative: &Path, wanted: &BTreeSet<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(copy.join(relative))? {
        let entry = entry?;
        let path = relative.join(entry.file_name());
        if path == Path::new("target") {
            continue;
        }
        if entry.file_type()?.is_dir() {
            remove_others(copy, &path, wanted)?;
        } else if !wanted.contains(&path) {
            fs::remove_file(entry.path()).with_context(|| format!("removing {}", entry.path().display()))?;
        }
    }
    Ok(())
}
