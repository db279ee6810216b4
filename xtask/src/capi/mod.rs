//! `cargo xtask capi`: links the drop-in libraries, and checks what they export.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail, ensure};
use pmof_locks::Mutex;

use crate::release;

pub(crate) use manual::differences;

mod manual;

/// A library that programs load in place of another one.
#[derive(Clone, Copy, Debug)]
struct Library {
    /// The static library that cargo makes.
    archive: &'static str,
    /// Its name for the dynamic loader.
    soname: &'static str,
    /// Its name for the linker.
    link_name: &'static str,
    /// The directory of its version script, header and so on.
    directory: &'static str,
    version_script: &'static str,
    header: &'static str,
    /// For valgrind, where the library needs it.
    suppressions: Option<&'static str>,
    description: &'static str,
    /// The version of the original that it stands in for.
    version: &'static str,
    manual: manual::Library,
}

const LIBRARIES: &[Library] = &[RPMA, RPMEM];

const RPMA: Library = Library {
    archive: "libpmof_rpma.a",
    soname: "librpma.so.0",
    link_name: "librpma.so",
    directory: "capi/rpma",
    version_script: "librpma.map",
    header: "librpma.h",
    suppressions: Some("librpma.supp"),
    description: "librpma's interface on pmof",
    version: "1.3.0",
    manual: manual::Library {
        name: "librpma on pmof",
        int_value: "0, or a negative number that rpma_err_2str(3) names. Where it fails, what it would have written stays as it was.",
        object_value: "",
        see_also: "docs/librpma.md of pmof",
    },
};

const RPMEM: Library = Library {
    archive: "libpmof_rpmem.a",
    soname: "librpmem.so.1",
    link_name: "librpmem.so",
    directory: "capi/rpmem",
    version_script: "librpmem.map",
    header: "librpmem.h",
    suppressions: None,
    description: "librpmem's interface on pmof",
    version: "1.3",
    manual: manual::Library {
        name: "librpmem on pmof",
        int_value: "0, or -1 with errno set; rpmem_errormsg(3) says in words what went wrong.",
        object_value: "A pool, or NULL with errno set; rpmem_errormsg(3) says in words what went wrong.",
        see_also: "docs/librpmem.md of pmof has what differs from the original, and why.",
    },
};

/// Where the libraries go.
pub(crate) fn directory() -> PathBuf {
    target_directory().join("capi")
}

fn target_directory() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from)
}

/// Builds them and nothing that they do not need; returns their directory.
pub(crate) fn build_alone() -> Result<PathBuf> {
    release::build_these(Path::new("."), &["pmof-rpma", "pmof-rpmem"])?;
    link_all()?;
    Ok(directory())
}

/// Builds them with all else that suites run, once in the life of this process; returns their directory.
pub(crate) fn build() -> Result<PathBuf> {
    // Suites run beside each other: what one of them copies, another one must not link anew.
    static IS_BUILT: Mutex<bool> = Mutex::new(false);
    let mut is_built = IS_BUILT.lock();
    if !*is_built {
        release::build(Path::new("."))?;
        link_all()?;
        *is_built = true;
    }
    Ok(directory())
}

fn link_all() -> Result<()> {
    let directory = directory();
    fs::create_dir_all(directory.join("include"))?;
    fs::create_dir_all(directory.join("pkgconfig"))?;
    for library in LIBRARIES {
        link(library, &directory).with_context(|| format!("building {}", library.soname))?;
        check_exports(library, &directory)?;
    }
    Ok(())
}

fn run(command: &mut Command) -> Result<Vec<u8>> {
    let output = command.output().with_context(|| format!("starting {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(output.stdout)
}

fn link(library: &Library, directory: &Path) -> Result<()> {
    let script = Path::new(library.directory).join(library.version_script);
    let shared = directory.join(library.soname);
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-o"]).arg(&shared);
    cc.arg(format!("-Wl,-soname,{}", library.soname));
    cc.arg(format!("-Wl,--version-script={}", script.display()));
    // Threads of the library run its code, so it stays once it is loaded.
    cc.args(["-Wl,--gc-sections", "-Wl,-z,defs", "-Wl,-z,nodelete", "-Wl,-z,relro", "-Wl,-z,now"]);
    cc.args(exports(library)?.iter().map(|name| format!("-Wl,-u,{name}")));
    cc.arg(target_directory().join("release").join(library.archive)).args([
        "-lgcc_s",
        "-lpthread",
        "-ldl",
        "-lm",
        "-lc",
    ]);
    run(&mut cc)?;
    let link = directory.join(library.link_name);
    if link.symlink_metadata().is_ok() {
        fs::remove_file(&link)?;
    }
    std::os::unix::fs::symlink(library.soname, &link)?;
    let header = Path::new(library.directory).join("include").join(library.header);
    fs::copy(&header, directory.join("include").join(library.header))?;
    let name = library.link_name.trim_end_matches(".so");
    if let Some(file) = library.suppressions {
        fs::copy(Path::new(library.directory).join(file), directory.join(file))?;
    }
    let pages = manual::write(&header, &library.manual, &directory.join("man/man3"))?;
    ensure!(pages == exports(library)?.len(), "the header describes {pages} functions, not all");
    let package = format!(
        "libdir=${{pcfiledir}}/..\nincludedir=${{libdir}}/include\n\nName: {name}\nDescription: {0}\nVersion: {1}\nLibs: -L${{libdir}} -l{2}\nCflags: -I${{includedir}}\n",
        library.description,
        library.version,
        name.trim_start_matches("lib"),
    );
    fs::write(directory.join("pkgconfig").join(format!("{name}.pc")), package)?;
    Ok(())
}

/// The names in the version script.
fn exports(library: &Library) -> Result<BTreeSet<String>> {
    let script = fs::read_to_string(Path::new(library.directory).join(library.version_script))?;
    let names = script.lines().filter_map(|line| line.trim().strip_suffix(';'));
    Ok(names.filter(|name| *name != "*" && *name != "}").map(str::to_owned).collect())
}

/// The library exports what its version script names, under its version, and nothing else.
fn check_exports(library: &Library, directory: &Path) -> Result<()> {
    let nm = run(Command::new("nm").args(["-D", "--defined-only"]).arg(directory.join(library.soname)))?;
    let script = fs::read_to_string(Path::new(library.directory).join(library.version_script))?;
    let version = script.split_whitespace().next().context("the version script names a version")?;
    let mut found = BTreeSet::new();
    for line in String::from_utf8_lossy(&nm).lines() {
        let Some(symbol) = line.split_whitespace().last() else { continue };
        match symbol.split_once("@@") {
            Some((name, of)) if of == version => found.insert(name.to_owned()),
            // The version itself.
            _ if symbol == version => continue,
            _ => bail!("{} exports {symbol}, which is not of {version}", library.soname),
        };
    }
    let expected = exports(library)?;
    if found != expected {
        let missing: Vec<_> = expected.difference(&found).collect();
        let more: Vec<_> = found.difference(&expected).collect();
        bail!("{} lacks {missing:?} and exports {more:?} besides", library.soname);
    }
    Ok(())
}
