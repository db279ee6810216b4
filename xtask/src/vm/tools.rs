//! Programs of the host that the test bed needs, and which Debian package brings each.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail};

/// A program or file, and the Debian package that brings it.
const NEEDS: &[(&str, &str)] = &[
    ("apt-get", "apt"),
    ("dpkg-deb", "dpkg"),
    ("mke2fs", "e2fsprogs"),
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("setpriv", "util-linux"),
    ("strip", "binutils"),
    ("tar", "tar"),
    ("unshare", "util-linux"),
    ("xz", "xz-utils"),
    (KEYRING, "debian-archive-keyring"),
];

/// What fetching Debian's packages needs.
const FETCH_NEEDS: &[(&str, &str)] = &[
    ("apt-get", "apt"),
    ("dpkg-deb", "dpkg"),
    ("tar", "tar"),
    ("xz", "xz-utils"),
    (KEYRING, "debian-archive-keyring"),
];

/// What building programs from Debian's packages needs.
const BUILD_NEEDS: &[(&str, &str)] = &[
    ("apt-get", "apt"),
    ("cc", "gcc"),
    ("dpkg-deb", "dpkg"),
    ("make", "make"),
    ("sha256sum", "coreutils"),
    ("tar", "tar"),
    (KEYRING, "debian-archive-keyring"),
];

/// The keys that sign Debian's releases.
pub(crate) const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Why the test bed cannot run on this host, if so, and what mends it.
pub(crate) fn missing() -> Option<String> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Some("the guest's programs are those of an x86-64 Linux host".to_owned());
    }
    missing_of(NEEDS)
}

/// Why Debian's programs cannot be fetched and run on this host, if so, and what mends it.
pub(crate) fn missing_to_fetch() -> Option<String> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Some("the programs are those of an x86-64 Linux host".to_owned());
    }
    missing_of(FETCH_NEEDS)
}

/// Why programs cannot be built from Debian's packages on this host, if so, and what mends it.
pub(crate) fn missing_to_build() -> Option<String> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Some("fio has its librpma engines on x86-64 Linux only".to_owned());
    }
    missing_of(BUILD_NEEDS)
}

fn missing_of(needs: &[(&str, &str)]) -> Option<String> {
    let absent: Vec<_> = needs.iter().filter(|(name, _)| find(name).is_none()).collect();
    if absent.is_empty() {
        return None;
    }
    let names: Vec<_> = absent.iter().map(|(name, _)| *name).collect();
    let packages: Vec<_> = absent.iter().map(|(_, package)| *package).collect();
    Some(format!("no {} here: apt-get install {}", names.join(", "), packages.join(" ")))
}

/// Where a program lies: on the search path or where Debian has programs for administrators.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    if name.contains('/') {
        return Some(PathBuf::from(name)).filter(|path| path.exists());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    directories.map(|directory| directory.join(name)).find(|file| file.is_file())
}

/// A command for a program found by [`find`].
pub(crate) fn command(name: &str) -> Command {
    Command::new(find(name).unwrap_or_else(|| PathBuf::from(name)))
}

/// A program of unpacked Debian packages, called by this name. It runs by the loader and the libraries that it was built for.
pub(crate) fn of_tree(tree: &Path, program: &Path, name: &str) -> Command {
    let libraries = tree.join("usr/lib/x86_64-linux-gnu");
    let mut command = Command::new(libraries.join("ld-linux-x86-64.so.2"));
    command.arg("--library-path").arg(&libraries).args(["--argv0", name]);
    command.arg(tree.join(program));
    command
}

/// Runs a command to its end; its standard output, or an error with what it wrote to both streams.
pub(crate) fn run(command: &mut Command) -> Result<String> {
    let shown = show(command);
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("starting {shown}"))?;
    if !output.status.success() {
        let said = [output.stdout, output.stderr].concat();
        bail!("{shown}: {}\n{}", output.status, String::from_utf8_lossy(&said).trim_end());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn show(command: &Command) -> String {
    let words = [command.get_program()].into_iter().chain(command.get_args());
    words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}

/// Copies a file without its holes.
pub(crate) fn copy_sparse(from: &Path, to: &Path) -> Result<()> {
    run(command("cp").args(["--sparse=always", "--reflink=auto", "--"]).args([from, to])).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named_with_its_package() {
        let reason = missing_of(&[("sh", "dash"), ("no-such-tool", "its-package"), ("/no/file", "other")]).unwrap();
        assert_eq!(reason, "no no-such-tool, /no/file here: apt-get install its-package other");
        assert_eq!(missing_of(&[("sh", "dash")]), None);
    }

    #[test]
    fn a_failed_command_shows_what_it_said() {
        assert_eq!(run(command("sh").args(["-c", "echo out"])).unwrap(), "out\n");
        let error = run(command("sh").args(["-c", "echo why; echo because >&2; exit 3"])).unwrap_err().to_string();
        assert!(error.contains("why") && error.contains("because") && error.contains('3'), "{error}");
    }
}
