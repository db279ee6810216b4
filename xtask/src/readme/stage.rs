//! Where the commands run: a clean clone, an empty home directory, and an sshd that `localhost` leads to.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};
use rustix::fs::{FlockOperation, flock};

use crate::{clone, sshd::Sshd};

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
        let head = clone::git(root, &["rev-parse", "HEAD"])?;
        clone::at(root, &directory.join("clone"), &head)?;
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
