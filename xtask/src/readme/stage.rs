//! Where the commands run: a clean clone, an empty home directory, and an sshd that `localhost` leads to.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};
use rustix::fs::{FlockOperation, flock};

use crate::sshd::Sshd;

/// `target/readme`. What cargo builds and the clone's files stay, so that the next run builds only what changed.
#[derive(Debug)]
pub(super) struct Stage {
    directory: PathBuf,
    ssh: PathBuf,
    /// Registries and toolchains are this user's; everything else of the home directory is not there.
    cargo_home: PathBuf,
    rustup_home: PathBuf,
    _sshd: Sshd,
    _lock: fs::File,
}

impl Stage {
    pub(super) fn set(root: &Path) -> Result<Self> {
        let directory = root.join("target/readme");
        fs::create_dir_all(&directory).with_context(|| format!("making {}", directory.display()))?;
        let lock = fs::File::create(directory.join("lock"))?;
        flock(&lock, FlockOperation::LockExclusive).context("waiting for another cargo xtask readme")?;
        clone_head(root, &directory.join("clone"))?;
        for part in ["home", "sshd", "outputs"] {
            let path = directory.join(part);
            if path.exists() {
                fs::remove_dir_all(&path).with_context(|| format!("removing {}", path.display()))?;
            }
            fs::create_dir_all(&path).with_context(|| format!("making {}", path.display()))?;
        }
        let own_home = PathBuf::from(env::var_os("HOME").context("HOME is not set")?);
        let of_environment = |name: &str, below: &str| env::var_os(name).map_or(own_home.join(below), PathBuf::from);
        let path = search_path(&directory)?;
        let sshd = Sshd::start(&directory.join("sshd"), &format!("SetEnv PATH={}\n", path.to_string_lossy()))?;
        let ssh = sshd.write_client("ssh", &format!("  Port {}\n", sshd.port()))?;
        Ok(Self {
            ssh,
            cargo_home: of_environment("CARGO_HOME", ".cargo"),
            rustup_home: of_environment("RUSTUP_HOME", ".rustup"),
            directory,
            _sshd: sshd,
            _lock: lock,
        })
    }

    /// The clone.
    pub(super) fn clone(&self) -> PathBuf {
        self.directory.join("clone")
    }

    /// Where the output of a section's commands is kept.
    pub(super) fn outputs(&self, section: &str) -> PathBuf {
        self.directory.join("outputs").join(section)
    }

    /// A shell in the clone.
    pub(super) fn bash(&self) -> Command {
        let home = self.directory.join("home");
        let mut bash = Command::new("bash");
        bash.args(["--noprofile", "--norc"]).current_dir(self.clone());
        for (name, _) in env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("CARGO") || text.starts_with("PMOF_") || text.starts_with("RUST") {
                bash.env_remove(&name);
            }
        }
        bash.env("HOME", &home).env("CARGO_HOME", &self.cargo_home).env("RUSTUP_HOME", &self.rustup_home);
        bash.env("CARGO_INSTALL_ROOT", home.join(".cargo")).env("CARGO_TARGET_DIR", self.directory.join("target"));
        bash.env("CARGO_TERM_COLOR", "never").env("PMOF_SSH", &self.ssh);
        // The programs of the release profile are built and run by other suites: here it is the commands that count.
        for (setting, value) in [("LTO", "off"), ("DEBUG", "0"), ("OPT_LEVEL", "0"), ("CODEGEN_UNITS", "16")] {
            bash.env(format!("CARGO_PROFILE_RELEASE_{setting}"), value);
        }
        if let Ok(path) = search_path(&self.directory) {
            bash.env("PATH", path);
        }
        bash
    }
}

/// The search path, with the place first that `cargo install` puts programs in.
fn search_path(directory: &Path) -> Result<std::ffi::OsString> {
    let path = env::var_os("PATH").unwrap_or_default();
    let own = directory.join("home/.cargo/bin");
    env::join_paths(std::iter::once(own).chain(env::split_paths(&path))).context("PATH")
}

/// Makes `clone` what `git clone` of the commit that is checked out makes. Files that are right stay, with their times.
fn clone_head(root: &Path, clone: &Path) -> Result<()> {
    let head = git(root, &["rev-parse", "HEAD"])?;
    let brought = clone.join(".git").exists() && bring(root, clone, &head).is_ok();
    if !brought {
        if clone.exists() {
            fs::remove_dir_all(clone).with_context(|| format!("removing {}", clone.display()))?;
        }
        git(root, &["clone", "--quiet", "--no-checkout", ".", &clone.to_string_lossy()])?;
        bring(root, clone, &head)?;
    }
    let left = git(clone, &["status", "--porcelain", "--ignored"])?;
    ensure!(left.is_empty(), "{} is no clean clone: {left}", clone.display());
    println!("a clone of {head}");
    Ok(())
}

fn bring(root: &Path, clone: &Path, head: &str) -> Result<()> {
    git(clone, &["fetch", "--quiet", &root.to_string_lossy(), head])?;
    git(clone, &["checkout", "--quiet", "--force", "--detach", head])?;
    git(clone, &["clean", "--quiet", "-ffdx"]).map(drop)
}

fn git(directory: &Path, arguments: &[&str]) -> Result<String> {
    let mut git = Command::new("git");
    git.args(arguments).current_dir(directory);
    let output = git.output().context("starting git")?;
    ensure!(output.status.success(), "{git:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
}
