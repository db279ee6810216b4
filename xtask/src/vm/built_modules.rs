//! Kernel modules that Debian's kernel is configured without, built from its own source with its own compiler: soft-iWARP.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

use super::{packages::Packages, recipe::lines_of_words, tools};

/// Where its source lies, and how the kernel's configuration would name it.
const SOURCE: &str = "drivers/infiniband/sw/siw";
const OPTION: &str = "CONFIG_RDMA_SIW=m";
const MODULE: &str = "siw.ko";

/// What the guest's list of modules calls it.
pub(crate) const NAME: &str = "siw";

/// Builds the module for the kernel of this release and adds it to that kernel's modules, in `modules`.
///
/// Compiler and headers are those of the guest's Debian, which may be another than the host's: they run in a directory of
/// their own, below `scratch`, entered through a user namespace.
pub(crate) fn build(
    packages: &Packages,
    recipe: &Path,
    release: &str,
    modules: &Path,
    scratch: &Path,
    progress: fn(&str),
) -> Result<()> {
    let root = scratch.join("build-root");
    fs::create_dir(&root)?;
    let list = fs::read_to_string(recipe.join("packages.modules"))?;
    // `6.12.3+deb13-amd64` is of `linux-source-6.12`.
    let series: Vec<&str> = release.splitn(3, '.').take(2).collect();
    let source = format!("linux-source-{}", series.join("."));
    let headers = format!("linux-headers-{release}");
    let names: Vec<&str> =
        lines_of_words(&list).flatten().chain(["base-files", "xz-utils", &source, &headers]).collect();
    progress("packages.modules: fetching a compiler and the kernel's source (once; some 250 MB)");
    for package in &packages.fetch(&names)? {
        packages.unpack(package, &root)?;
    }
    progress("building the kernel module siw");
    let built = make(&root, &source, release)?;
    let to = modules.join("updates");
    fs::create_dir_all(&to)?;
    fs::copy(&built, to.join(MODULE)).with_context(|| format!("copying {}", built.display()))?;
    fs::remove_dir_all(&root)?;
    Ok(())
}

/// The module's file, made inside `root`.
fn make(root: &Path, source: &str, release: &str) -> Result<PathBuf> {
    // What the packages' scripts would have made.
    for (name, target) in [("sh", "bash"), ("awk", "gawk")] {
        let link = root.join("usr/bin").join(name);
        if !link.exists() {
            symlink(target, link)?;
        }
    }
    let build = root.join("build");
    fs::create_dir(&build)?;
    let archive = root.join("usr/src").join(format!("{source}.tar.xz"));
    let depth = SOURCE.split('/').count() + 1;
    tools::run(
        tools::command("tar")
            .args(["--extract", "--xz", "--file"])
            .arg(archive)
            .args([&format!("--strip-components={depth}"), "--directory"])
            .arg(&build)
            .arg(format!("{source}/{SOURCE}")),
    )?;
    let script = format!(
        "mount --rbind /dev \"$0/dev\" && exec chroot \"$0\" /usr/bin/env -i PATH=/usr/bin:/usr/sbin LANG=C.UTF-8 sh -c \
         'make -C /usr/src/linux-headers-{release} M=/build {OPTION} modules && strip --strip-debug /build/{MODULE}'"
    );
    tools::run(tools::command("unshare").args(["--map-root-user", "--mount", "sh", "-c"]).arg(script).arg(root))?;
    Ok(build.join(MODULE))
}
