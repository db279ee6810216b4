//! An sshd of its own on a loopback port, with throw-away keys, that lets this user in.

use std::{
    fs,
    net::{TcpListener, TcpStream},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};

const SSHD: &str = "/usr/sbin/sshd";

/// The daemon; it ends with this value, and at the latest with this process.
#[derive(Debug)]
pub(crate) struct Sshd {
    directory: PathBuf,
    process: Child,
    port: u16,
}

impl Sshd {
    /// Makes keys and configuration in a directory, which must exist, and starts it. `more`: further lines of its configuration.
    pub(crate) fn start(directory: &Path, more: &str) -> Result<Self> {
        ensure!(Path::new(SSHD).exists(), "no {SSHD} here: apt-get install openssh-server openssh-client");
        for key in ["host_key", "user_key"] {
            let mut keygen = Command::new("ssh-keygen");
            keygen.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(directory.join(key));
            let made = keygen.status().context("starting ssh-keygen")?;
            ensure!(made.success(), "ssh-keygen: {made}");
        }
        fs::copy(directory.join("user_key.pub"), directory.join("authorized_keys")).context("copying a key")?;
        // sshd wants it where it runs as root, and systemd makes it only where it starts sshd itself.
        let _ = fs::create_dir("/run/sshd");
        let port =
            TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).context("looking for a port")?.port();
        let here = directory.display();
        let config = format!(
            "Port {port}\nListenAddress 127.0.0.1\nHostKey {here}/host_key\nPidFile {here}/sshd_pid\nUsePAM no\n\
             AuthorizedKeysFile {here}/authorized_keys\nStrictModes no\nPasswordAuthentication no\nPermitRootLogin yes\n\
             MaxSessions 100\nMaxStartups 100\n{more}"
        );
        let file = directory.join("sshd_config");
        fs::write(&file, config).context("writing sshd's configuration")?;
        let process = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", SSHD, "-D", "-e", "-f"])
            .arg(file)
            .stderr(Stdio::null())
            .spawn()
            .context("starting sshd")?;
        let sshd = Self { directory: directory.to_owned(), process, port };
        let deadline = Instant::now() + Duration::from_secs(10);
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            ensure!(Instant::now() < deadline, "sshd accepts no connections on 127.0.0.1:{port}");
            thread::sleep(Duration::from_millis(10));
        }
        Ok(sshd)
    }

    /// The port that it listens on.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Writes a script of this name beside the keys that is ssh with a configuration of its own: the keys, and `more`.
    pub(crate) fn write_client(&self, name: &str, more: &str) -> Result<PathBuf> {
        let here = self.directory.display();
        let config = format!(
            "Host *\n  IdentityFile {here}/user_key\n  IdentitiesOnly yes\n  UserKnownHostsFile {here}/known_hosts\n  \
             StrictHostKeyChecking no\n  LogLevel ERROR\n{more}"
        );
        fs::write(self.directory.join(format!("{name}_config")), config).context("writing ssh's configuration")?;
        let path = self.directory.join(name);
        write_program(&path, &format!("#!/bin/sh\nexec ssh -F {here}/{name}_config \"$@\"\n"))?;
        Ok(path)
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        // What is gone already needs no end.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Writes a script that can be executed.
pub(crate) fn write_program(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("writing {}", path.display()))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).with_context(|| format!("chmod of {}", path.display()))
}
