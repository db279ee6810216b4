//! The other machine: an sshd on a loopback port with keys of its own, and below one directory what it serves.

use std::{
    env, fs,
    net::{TcpListener, TcpStream},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};

const SSHD: &str = "/usr/sbin/sshd";

/// Where files lie in memory, on every Linux.
const MEMORY: &str = "/dev/shm";

/// A directory that goes with this value, and an sshd that lets this user in.
#[derive(Debug)]
pub(super) struct Stage {
    directory: PathBuf,
    sshd: Child,
    port: u16,
}

impl Stage {
    /// Makes the directory in memory and starts sshd. `rpmemd` is what its script `rpmemd` becomes.
    pub(super) fn start(rpmemd: &Path) -> Result<Self> {
        ensure!(Path::new(SSHD).exists(), "no {SSHD} here: apt-get install openssh-server openssh-client");
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
        let (sshd, port) = start_sshd(&directory)?;
        let stage = Self { directory, sshd, port };
        stage.write_ssh("ssh-cold", "")?;
        let shared = format!(
            "  ControlMaster auto\n  ControlPath {}/shared-%p\n  ControlPersist 20\n",
            stage.directory.display()
        );
        stage.write_ssh("ssh", &shared)?;
        Ok(stage)
    }

    /// A script that is ssh with a configuration of its own.
    fn write_ssh(&self, name: &str, more: &str) -> Result<()> {
        let here = self.directory.display();
        let config = format!(
            "Host *\n  IdentityFile {here}/user_key\n  IdentitiesOnly yes\n  UserKnownHostsFile {here}/known_hosts\n  \
             StrictHostKeyChecking no\n  LogLevel ERROR\n{more}"
        );
        fs::write(self.directory.join(format!("{name}_config")), config).context("writing ssh's configuration")?;
        let script = format!("#!/bin/sh\nexec ssh -F {here}/{name}_config \"$@\"\n");
        write_program(&self.directory.join(name), &script)
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// What ssh is told.
    pub(super) fn target(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Has a program's librpmem, which lies in `library`, come here, by logins that share one connection.
    pub(super) fn prepare(&self, command: &mut Command, library: &Path) {
        command.env("LD_LIBRARY_PATH", library);
        command.env("RPMEM_SSH", self.directory.join("ssh")).env("RPMEM_CMD", self.directory.join("rpmemd"));
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // What is gone already needs no end.
        let _ = Command::new(self.directory.join("ssh"))
            .args(["-O", "exit", "-p", &self.port.to_string(), "127.0.0.1"])
            .stderr(Stdio::null())
            .status();
        let _ = self.sshd.kill();
        let _ = self.sshd.wait();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn write_program(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("writing {}", path.display()))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).with_context(|| format!("chmod of {}", path.display()))
}

fn start_sshd(directory: &Path) -> Result<(Child, u16)> {
    for key in ["host_key", "user_key"] {
        let made = Command::new("ssh-keygen")
            .args(["-q", "-t", "ed25519", "-N", "", "-f"])
            .arg(directory.join(key))
            .status()
            .context("starting ssh-keygen")?;
        ensure!(made.success(), "ssh-keygen: {made}");
    }
    fs::copy(directory.join("user_key.pub"), directory.join("authorized_keys")).context("copying a key")?;
    // sshd wants it where it runs as root, and systemd makes it only where it starts sshd itself.
    let _ = fs::create_dir("/run/sshd");
    let port =
        TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).context("looking for a port")?.port();
    let here = directory.display();
    // SHLVL keeps a shell from reading the user's start-up files, which may take longer than all else.
    let config = format!(
        "Port {port}\nListenAddress 127.0.0.1\nHostKey {here}/host_key\nPidFile {here}/sshd_pid\nUsePAM no\n\
         AuthorizedKeysFile {here}/authorized_keys\nStrictModes no\nPasswordAuthentication no\nPermitRootLogin yes\n\
         MaxSessions 100\nMaxStartups 100\nSetEnv SHLVL=2\n"
    );
    let file = directory.join("sshd_config");
    fs::write(&file, config).context("writing sshd's configuration")?;
    // It never outlives this process.
    let sshd = Command::new("setpriv")
        .args(["--pdeathsig", "KILL", SSHD, "-D", "-e", "-f"])
        .arg(file)
        .stderr(Stdio::null())
        .spawn()
        .context("starting sshd")?;
    let deadline = Instant::now() + Duration::from_secs(10);
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        ensure!(Instant::now() < deadline, "sshd accepts no connections on 127.0.0.1:{port}");
        thread::sleep(Duration::from_millis(10));
    }
    Ok((sshd, port))
}
