//! What the drop-in librpma is judged with, made from Debian's packages: fio with its librpma engines, the headers that
//! programs for librpma are compiled against, and Debian's own librpma.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};

use super::{
    packages::{HOST_RELEASE, Package, Packages},
    recipe::{self, lines_of_words},
    testbed::Testbed,
    tools::{self, missing_to_build},
};
use crate::judge;

/// Where a Debian package has its libraries.
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

/// The libraries of rdma-core. A system's own are to be preferred: they load drivers of their own version only.
const RDMA_LIBRARIES: &[&str] = &["libibverbs.so", "librdmacm.so", "libnl-"];

/// An unmodified fio with the four librpma engines, linked to librpma.so.0.
#[derive(Clone, Debug)]
pub(crate) struct Fio {
    /// The program.
    pub(crate) binary: PathBuf,
    /// Libraries that it needs beside librpma and rdma-core.
    libraries: PathBuf,
    /// rdma-core, for hosts that have none.
    rdma: PathBuf,
}

impl Fio {
    fn in_directory(directory: &Path) -> Self {
        Self { binary: directory.join("fio"), libraries: directory.join("libraries"), rdma: directory.join("rdma") }
    }

    /// `LD_LIBRARY_PATH` for this host, with the librpma of a directory.
    pub(crate) fn library_path(&self, librpma: &Path) -> OsString {
        library_path(librpma, [self.libraries.as_path(), &self.rdma])
    }

    /// The files of its libraries, without rdma-core.
    pub(crate) fn libraries(&self) -> Result<Vec<PathBuf>> {
        let entries = fs::read_dir(&self.libraries).with_context(|| format!("reading {}", self.libraries.display()))?;
        let mut files: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
        files.sort();
        Ok(files)
    }
}

/// The last one, rdma-core, is left out where the host has its own.
fn library_path(librpma: &Path, [libraries, rdma]: [&Path; 2]) -> OsString {
    let mut path = OsString::from(librpma);
    for directory in [Some(libraries), (!host_has_rdma_core()).then_some(rdma)].into_iter().flatten() {
        path.push(":");
        path.push(directory);
    }
    path
}

fn host_has_rdma_core() -> bool {
    ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"].iter().any(|directory| {
        let has = |name| Path::new(directory).join(name).exists();
        has("libibverbs.so.1") && has("librdmacm.so.1")
    })
}

impl Testbed {
    /// fio, built where it is not there yet or its recipe has changed.
    pub(crate) fn fio(&self) -> Result<Fio> {
        let recipe = self.workspace().join("testbed/fio");
        let hash = recipe::hash_of_files(&recipe, &["packages", "source", "build.sh"])?;
        let make = |into: &Path| self.make_fio(&recipe, into);
        Ok(Fio::in_directory(&self.component_with("fio", &hash, missing_to_build, make)?))
    }

    /// Headers and libraries to build programs for librpma that run on this host and in the guest: a directory with
    /// `usr/include` and `usr/lib`. No C library is among them.
    pub(crate) fn librpma_sysroot(&self) -> Result<PathBuf> {
        let recipe = self.workspace().join("testbed/fio");
        let hash = recipe::hash_of_files(&recipe, &["packages"])?;
        let make = |into: &Path| {
            self.say("testbed/fio/packages: fetching librpma and what fio needs (once; some 10 MB)");
            unpack_only(&self.packages_of(HOST_RELEASE), &recipe.join("packages"), into).map(drop)
        };
        self.component_with("librpma-dev", &hash, missing_to_build, make)
    }

    /// Debian's librpma that fio is linked to: the directory with `librpma.so.0`.
    pub(crate) fn librpma_of_host_release(&self) -> Result<PathBuf> {
        Ok(self.librpma_sysroot()?.join(LIBRARIES))
    }

    /// Debian's librpma of the guest's release: the directory with `librpma.so.0`. It runs in the guest; its C library
    /// may be younger than the host's.
    pub(crate) fn librpma_reference(&self) -> Result<PathBuf> {
        let recipe = self.workspace().join("testbed/rpma");
        let hash = recipe::hash_of_files(&recipe, &["packages"])?;
        let make = |into: &Path| {
            self.say("testbed/rpma/packages: fetching Debian's librpma");
            let packages = unpack_only(self.guest_packages(), &recipe.join("packages"), into)?;
            let [package] = &packages[..] else { return Ok(()) };
            fs::write(into.join("version"), &package.version).context("writing the version of librpma")
        };
        Ok(self.component_with("librpma-reference", &hash, missing_to_build, make)?.join(LIBRARIES))
    }

    /// Compiles `testbed/rpma`, which judges a librpma, into a directory that exists.
    pub(crate) fn build_rpma_check(&self, directory: &Path) -> Result<PathBuf> {
        let sources = self.workspace().join("testbed/rpma");
        let sysroot = self.librpma_sysroot()?;
        let libraries = sysroot.join(LIBRARIES);
        let program = directory.join("rpma-check");
        // Of libraries that librpma's need, some lie in the other directory.
        let rpath_link = [&libraries, &sysroot.join("lib/x86_64-linux-gnu")].map(|directory| {
            let mut argument = OsString::from("-Wl,-rpath-link,");
            argument.push(directory);
            argument
        });
        let mut compiler = judge::compiler(&judge::sources(&sources, &[""])?, &sysroot.join("usr/include"), &program)?;
        compiler.arg("-L").arg(&libraries).args(rpath_link).arg("-lrpma");
        tools::run(&mut compiler)?;
        Ok(program)
    }

    fn make_fio(&self, recipe: &Path, into: &Path) -> Result<()> {
        let sysroot = self.librpma_sysroot()?;
        let text = fs::read_to_string(recipe.join("source")).context("reading testbed/fio/source")?;
        let words = lines_of_words(&text).next().context("testbed/fio/source has no line")?;
        let [name, version, file, sum] = words[..] else {
            anyhow::bail!("testbed/fio/source has a line that is not NAME VERSION FILE SHA-256: {}", words.join(" "));
        };
        self.say(&format!("fetching the source of {name} {version} (once; some 6 MB)"));
        let archive = self.packages_of(HOST_RELEASE).fetch_source(name, version, file)?;
        let said = tools::run(tools::command("sha256sum").arg(&archive))?;
        ensure!(said.starts_with(sum), "{file} is not the file of testbed/fio/source: its SHA-256 is {said}");
        let source = into.join("source");
        fs::create_dir(&source)?;
        let mut unpack = tools::command("tar");
        unpack.args(["--extract", "--strip-components=1", "--file"]).arg(&archive).arg("--directory").arg(&source);
        tools::run(&mut unpack)?;
        self.say("building fio (once; about a minute)");
        let fio = Fio::in_directory(into);
        tools::run(tools::command("sh").arg(recipe.join("build.sh")).args([&source, &sysroot, &fio.binary]))?;
        fs::remove_dir_all(&source)?;
        copy_libraries(&sysroot.join(LIBRARIES), &fio)
    }
}

/// The shared libraries under the names that programs look for.
fn copy_libraries(from: &Path, fio: &Fio) -> Result<()> {
    for directory in [&fio.libraries, &fio.rdma] {
        fs::create_dir(directory)?;
    }
    // Some packages have theirs in /lib, which the host may have merged with /usr/lib.
    let top = from.ancestors().nth(3).context("a sysroot has a top")?.join("lib/x86_64-linux-gnu");
    for directory in [from, &top] {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            // `libz.so.1`, not `libz.so`, which is for linking, nor `libz.so.1.2.13`, to which the former leads.
            let is_soname = name.split_once(".so.").is_some_and(|(_, version)| !version.contains('.'));
            if !is_soname || name.starts_with("librpma.") {
                continue;
            }
            let rdma = RDMA_LIBRARIES.iter().any(|begin| name.starts_with(begin));
            let to = if rdma { &fio.rdma } else { &fio.libraries };
            fs::copy(entry.path(), to.join(&name)).with_context(|| format!("copying {name}"))?;
        }
    }
    Ok(())
}

/// Unpacks the packages of a list, without what they depend on.
fn unpack_only(packages: &Packages, list: &Path, into: &Path) -> Result<Vec<Package>> {
    let text = fs::read_to_string(list).with_context(|| format!("reading {}", list.display()))?;
    let names: Vec<&str> = lines_of_words(&text).flatten().collect();
    let fetched = packages.fetch_only(&names)?;
    for package in &fetched {
        packages.unpack(package, into)?;
    }
    Ok(fetched)
}
