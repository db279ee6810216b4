//! The test bed's files: what is made once and kept under `target/testbed`, and what each run makes for itself.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicU32, Ordering},
};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::fs::{FlockOperation, flock};

use super::{
    components,
    packages::{GUEST_RELEASE, Packages},
    recipe, tools,
};

mod media;

/// The directory `target/testbed` and the recipe in `testbed/guest`.
///
/// Every worktree has one, whatever `CARGO_TARGET_DIR` says: it is too large to be made twice.
#[derive(Debug)]
pub(crate) struct Testbed {
    recipe: PathBuf,
    directory: PathBuf,
    packages: Packages,
    /// Where progress goes, a line at a time.
    progress: fn(&str),
}

/// The guest's kernel and root file system.
#[derive(Clone, Debug)]
pub(crate) struct Guest {
    pub(crate) kernel: PathBuf,
    pub(crate) initial_ram_disk: PathBuf,
    pub(crate) root_image: PathBuf,
    directory: PathBuf,
}

/// The images that a machine writes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Media {
    /// NVDIMM 0: device-DAX.
    pub(crate) devdax: PathBuf,
    /// NVDIMM 1: ext4 mounted with dax=always.
    pub(crate) fsdax: PathBuf,
    /// A disk with ext4, page-cached.
    pub(crate) file: PathBuf,
}

impl Guest {
    pub(super) fn in_directory(directory: PathBuf) -> Self {
        Self {
            kernel: directory.join("vmlinux"),
            initial_ram_disk: directory.join("initrd.cpio"),
            root_image: directory.join("root.img"),
            directory,
        }
    }
}

impl Media {
    pub(crate) fn in_directory(directory: &Path) -> Self {
        Self { devdax: directory.join("nv0.img"), fsdax: directory.join("nv1.img"), file: directory.join("file.img") }
    }

    /// Copies of the images, in another directory, that must exist.
    pub(crate) fn copy_to(&self, directory: &Path) -> Result<Self> {
        let copies = Self::in_directory(directory);
        for (from, to) in [(&self.devdax, &copies.devdax), (&self.fsdax, &copies.fsdax), (&self.file, &copies.file)] {
            tools::copy_sparse(from, to)?;
        }
        Ok(copies)
    }
}

impl Testbed {
    /// The test bed of this worktree. Directories that dead runs left behind are removed.
    pub(crate) fn new(progress: fn(&str)) -> Result<Self> {
        let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask lies in the workspace's root")?;
        let directory = workspace.join("target/testbed");
        for part in ["runs", "logs"] {
            let path = directory.join(part);
            fs::create_dir_all(&path).with_context(|| format!("making {}", path.display()))?;
        }
        let packages = Packages::new(directory.join("apt"), GUEST_RELEASE);
        let recipe = workspace.join("testbed/guest");
        let testbed = Self { recipe, directory, packages, progress };
        testbed.remove_dead_runs()?;
        Ok(testbed)
    }

    /// An apt of its own for a release of Debian that is not the guest's.
    pub(super) fn packages_of(&self, release: &'static str) -> Packages {
        Packages::new(self.directory.join(format!("apt-{release}")), release)
    }

    /// The apt for the guest's release.
    pub(super) fn guest_packages(&self) -> &Packages {
        &self.packages
    }

    /// Says what is being done.
    pub(super) fn say(&self, line: &str) {
        (self.progress)(line);
    }

    /// The root of the workspace.
    pub(crate) fn workspace(&self) -> &Path {
        self.recipe.parent().and_then(Path::parent).expect("the recipe lies two directories below the root")
    }

    /// The directory with the guest's recipe and scripts.
    pub(crate) fn recipe(&self) -> &Path {
        &self.recipe
    }

    /// Where serial logs of failed runs are kept.
    pub(crate) fn logs(&self) -> PathBuf {
        self.directory.join("logs")
    }

    pub(crate) fn guest(&self) -> Result<Guest> {
        let files = [&["packages.guest", "packages.kernel", "packages.modules"][..], components::GUEST_FILES].concat();
        let hash = recipe::hash_of_files(&self.recipe, &files)?;
        let make = |into: &Path| components::make_guest(&self.packages, &self.recipe, into, self.progress);
        let directory = self.component("guest", &hash, make)?;
        Ok(Guest::in_directory(directory))
    }

    /// The directory with the newer QEMU.
    pub(crate) fn qemu10(&self) -> Result<PathBuf> {
        self.unpacked("qemu", &self.recipe, "packages.qemu", tools::missing)
    }

    /// The directory with the packages of a list in a recipe, and with what they depend on.
    pub(crate) fn unpacked(
        &self,
        name: &str,
        recipe: &Path,
        list: &str,
        missing: fn() -> Option<String>,
    ) -> Result<PathBuf> {
        let hash = recipe::hash_of_files(recipe, &[list])?;
        let make = |into: &Path| components::unpack_list(&self.packages, recipe, list, into, self.progress);
        self.component_with(name, &hash, missing, make)
    }

    /// The directory with headers and libraries for programs that run in the guest; also `target/testbed/sysroot`.
    pub(crate) fn sysroot(&self) -> Result<PathBuf> {
        let directory = self.unpacked("sysroot", &self.recipe, "packages.sysroot", tools::missing)?;
        let link = self.directory.join("sysroot");
        if fs::read_link(&link).ok().as_deref() != directory.file_name().map(Path::new) {
            let _ = fs::remove_file(&link);
            let target = directory.file_name().context("the sysroot's directory has a name")?;
            std::os::unix::fs::symlink(target, &link).with_context(|| format!("making {}", link.display()))?;
        }
        Ok(directory)
    }

    /// The version of the guest's C library, as in `2.41`.
    pub(crate) fn guest_libc(&self) -> Result<String> {
        let path = self.guest()?.directory.join("libc-version");
        fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))
    }

    /// Refuses a host whose C library is newer than the guest's: what is built here would not start there.
    pub(super) fn check_libc(&self) -> Result<()> {
        let guest = self.guest_libc()?;
        let said = tools::run(tools::command("getconf").arg("GNU_LIBC_VERSION"))?;
        let host = said.split_whitespace().last().unwrap_or_default();
        ensure!(
            !is_newer(host, &guest),
            "this host's C library is {host}, the guest's is {guest}: programs built here do not start there. Build them \
             on a host with glibc {guest} or older, such as Debian 12 or 13, or in a container of one"
        );
        Ok(())
    }

    /// A file in which something found out about this host is kept, under a name that says for what.
    pub(crate) fn note(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// A new directory for one run, removed with the value.
    pub(crate) fn run_directory(&self) -> Result<RunDirectory> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("{}-{}", process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = self.directory.join("runs").join(name);
        fs::create_dir(&path).with_context(|| format!("making {}", path.display()))?;
        Ok(RunDirectory { path })
    }

    fn component(&self, name: &str, hash: &str, make: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
        self.component_with(name, hash, tools::missing, make)
    }

    /// The directory of a component, made where it is not there yet and `missing` has no reason against it. It appears
    /// under its name only when it is whole.
    pub(super) fn component_with(
        &self,
        name: &str,
        hash: &str,
        missing: fn() -> Option<String>,
        make: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<PathBuf> {
        let whole = self.directory.join(format!("{name}-{hash}"));
        if whole.exists() {
            return Ok(whole);
        }
        if let Some(reason) = missing() {
            bail!("{reason}");
        }
        // One maker at a time for each component; a media maker boots a guest, hence a lock of its own for each.
        let lock_path = self.directory.join(format!("{name}.lock"));
        let lock = File::create(&lock_path).with_context(|| format!("making {}", lock_path.display()))?;
        flock(&lock, FlockOperation::LockExclusive).with_context(|| format!("locking {}", lock_path.display()))?;
        if whole.exists() {
            return Ok(whole);
        }
        (self.progress)(&format!("making {}", whole.display()));
        let partial = self.directory.join(format!("{name}.partial"));
        remove_if_there(&partial)?;
        fs::create_dir(&partial).with_context(|| format!("making {}", partial.display()))?;
        make(&partial).with_context(|| format!("making the test bed's {name}"))?;
        self.remove_older(name)?;
        fs::rename(&partial, &whole).with_context(|| format!("naming {}", whole.display()))?;
        Ok(whole)
    }

    fn remove_older(&self, name: &str) -> Result<()> {
        for entry in fs::read_dir(&self.directory)?.flatten() {
            let file_name = entry.file_name();
            let hash = file_name.to_str().and_then(|file_name| file_name.strip_prefix(name)?.strip_prefix('-'));
            if hash.is_some_and(|hash| hash.len() == 16) {
                remove_if_there(&entry.path())?;
            }
        }
        Ok(())
    }

    fn remove_dead_runs(&self) -> Result<()> {
        for entry in fs::read_dir(self.directory.join("runs"))?.flatten() {
            let name = entry.file_name();
            let owner = name.to_str().and_then(|name| name.split_once('-')).map(|(owner, _)| owner);
            if owner.is_none_or(|owner| !Path::new("/proc").join(owner).exists()) {
                remove_if_there(&entry.path())?;
            }
        }
        Ok(())
    }
}

fn is_newer(version: &str, than: &str) -> bool {
    let parts = |text: &str| text.split('.').map(|part| part.parse().unwrap_or(0)).collect::<Vec<u32>>();
    parts(version) > parts(than)
}

/// Removes a directory tree, whatever its modes.
fn remove_if_there(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        result => result.with_context(|| format!("removing {}", path.display())),
    }
}

/// A directory that lives as long as the value.
#[derive(Debug)]
pub(crate) struct RunDirectory {
    path: PathBuf,
}

impl RunDirectory {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for RunDirectory {
    fn drop(&mut self) {
        // What cannot be removed now is removed as a dead run's later.
        let _ = fs::remove_dir_all(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::is_newer;

    #[test]
    fn versions_are_compared_by_number() {
        assert!(is_newer("2.42", "2.41"));
        assert!(is_newer("2.100", "2.41"));
        assert!(!is_newer("2.41", "2.41"));
        assert!(!is_newer("2.36", "2.41"));
        assert!(!is_newer("2.4", "2.41"));
    }
}
