//! The programs of `testbed/cut-load` and `testbed/cut-judge`, and the drop-in libraries, for a machine.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use super::{testbed::Testbed, tools};
use crate::{capi, release};

/// Builds the loads, the judge and the drop-in libraries where they are not up to date; the files to bring.
pub(super) fn cut_programs(testbed: &Testbed, directory: &Path) -> Result<Vec<PathBuf>> {
    release::build(testbed.workspace())?;
    let libraries = testbed.workspace().join(capi::build()?);
    let target = libraries.parent().context("the libraries lie below cargo's directory")?.join("release");
    let mut files = vec![target.join("cut-load"), target.join("cut-judge")];
    for (name, library, soname) in [("cut-rpma", "rpma", "librpma.so.0"), ("cut-rpmem", "rpmem", "librpmem.so.1")] {
        files.push(compile(testbed, directory, &libraries, name, library)?);
        // A file of this name, not a link to it.
        let copy = directory.join(soname);
        fs::copy(libraries.join(soname), &copy).with_context(|| format!("copying {soname}"))?;
        files.push(copy);
    }
    Ok(files)
}

/// Compiles a C program of `testbed/cut-load/c` against a drop-in library.
fn compile(testbed: &Testbed, directory: &Path, libraries: &Path, name: &str, library: &str) -> Result<PathBuf> {
    let program = directory.join(name);
    let mut sysroot = std::ffi::OsString::from("--sysroot=");
    sysroot.push(testbed.sysroot()?);
    let mut compiler = Command::new("cc");
    compiler
        .arg(sysroot)
        // The guest's libraries are younger than the host's C library.
        .args([
            "-std=gnu11",
            "-O2",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-pthread",
            "-Wl,--allow-shlib-undefined",
            "-isystem",
        ])
        .arg(libraries.join("include"))
        .arg("-o")
        .arg(&program)
        .arg(testbed.workspace().join("testbed/cut-load/c").join(library).with_extension("c"))
        .arg("-L")
        .arg(libraries)
        .arg(format!("-l{library}"));
    tools::run(&mut compiler)?;
    Ok(program)
}
