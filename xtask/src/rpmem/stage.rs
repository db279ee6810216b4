//! The other machine: an sshd on a loopback port with keys of its own, and below one directory what it serves.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};

use crate::sshd::{Sshd, write_program};

/// Where files lie in memory, on every Linux.
const MEMORY: &str = "/dev/shm";

/// A directory that goes with this value, and an sshd that lets this user in.
#[derive(Debug)]
pub(super) struct Stage {
    directory: PathBuf,
    sshd: Sshd,
}

impl Stage {
    /// Makes the directory in memory and starts sshd. `rpmemd` is what its script `rpmemd` becomes.
    pub(super) fn start(rpmemd: &Path) -> Result<Self> {
        ensure!(rpmemd.exists(), "no {}: cargo build --release -p pmof-cli makes it", rpmemd.display());
        let above = if Path::new(MEMORY).is_dir() { MEMORY.into() } else { env::temp_dir() };
        let directory = above.join(format!("pmof-rpmem-{}", std::process::id()));
        for part in ["sets", "parts", "local"] {
            let part = directory.join(part);
            fs::create_dir_all(&part).with_context(|| format!("making {}", part.display()))?;
        }
        let here = directory.display();
        let script =
            format!("#!/bin/sh\necho $$ >> {here}/pids\nexec {} --poolset-dir {here}/sets \"$@\"\n", rpmemd.display());
        write_program(&directory.join("rpmemd"), &script)?;
        // SHLVL keeps a shell from reading the user's start-up files, which may take longer than all else.
        let sshd = Sshd::start(&directory, "SetEnv SHLVL=2\n")?;
        sshd.write_client("ssh-cold", "")?;
        let shared = format!("  ControlMaster auto\n  ControlPath {here}/shared-%p\n  ControlPersist 20\n");
        sshd.write_client("ssh", &shared)?;
        Ok(Self { directory, sshd })
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// What ssh is told.
    pub(super) fn target(&self) -> String {
        format!("127.0.0.1:{}", self.sshd.port())
    }

    /// Has a program's librpmem, which lies in `library`, come here, by logins that share one connection.
    pub(super) fn prepare(&self, command: &mut Command, library: &Path) {
        command.env("LD_LIBRARY_PATH", library);
        command.env("RPMEM_SSH", self.directory.join("ssh")).env("RPMEM_CMD", self.directory.join("rpmemd"));
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // What is gone already needs no end. sshd ends with its value.
        let _ = Command::new(self.directory.join("ssh"))
            .args(["-O", "exit", "-p", &self.sshd.port().to_string(), "127.0.0.1"])
            .stderr(Stdio::null())
            .status();
        let _ = fs::remove_dir_all(&self.directory);
    }
}
