//! Ways to start targets: a command in ssh's place, and a real sshd on a loopback port.

use std::{
    fs,
    io::{BufRead, BufReader, Write as _},
    net::{TcpListener, TcpStream},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use pmof::SshOptions;
use tempfile::TempDir;

pub(crate) const PMOF: &str = env!("CARGO_BIN_EXE_pmof");

/// A directory with a command that replaces ssh.
pub(crate) struct Stage {
    pub(crate) directory: TempDir,
    ssh: PathBuf,
}

impl Stage {
    /// `script` runs in ssh's place; `$command` is the command line for the other machine.
    pub(crate) fn new(script: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("root")).unwrap();
        let ssh = directory.path().join("ssh");
        write_program(&ssh, &format!("#!/bin/sh\nfor command; do :; done\n{script}\n"));
        Self { directory, ssh }
    }

    /// What runs the command here, as ssh would there.
    pub(crate) fn local() -> Self {
        Self::new("exec sh -c \"$command\"")
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.directory.path().join("root")
    }

    /// How a program gets the same targets.
    pub(crate) fn options(&self) -> SshOptions {
        let command = format!("exec {PMOF} serve --stdio --root {}", self.root().display());
        SshOptions::default().program(self.ssh.clone()).command(command)
    }

    /// `pmof` with this in ssh's place, and this root on the other side.
    pub(crate) fn pmof(&self, arguments: &[&str]) -> Output {
        self.pmof_with(arguments, None)
    }

    /// The same with something on its standard input.
    pub(crate) fn pmof_with(&self, arguments: &[&str], input: Option<&[u8]>) -> Output {
        run_pmof(&self.ssh, &self.root(), arguments, input)
    }

    /// Runs `pmof`, which must succeed.
    pub(crate) fn succeed(&self, arguments: &[&str]) -> String {
        let output = self.pmof(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs `pmof`, which must fail; gives its words.
    pub(crate) fn fail(&self, arguments: &[&str]) -> String {
        let output = self.pmof(arguments);
        let is_told = matches!(output.status.code(), Some(1 | 3));
        assert!(is_told, "{arguments:?}: {:?}: {}", output.status, String::from_utf8_lossy(&output.stdout));
        String::from_utf8(output.stderr).unwrap()
    }
}

fn run_pmof(ssh: &Path, root: &Path, arguments: &[&str], input: Option<&[u8]>) -> Output {
    let mut pmof = Command::new(PMOF);
    let pmof = pmof.args(arguments).env("PMOF_SSH", ssh).stdin(Stdio::piped()).stdout(Stdio::piped());
    let pmof = pmof.env("PMOF_SSH_COMMAND", format!("exec {PMOF} serve --stdio --root {}", root.display()));
    let mut pmof = pmof.stderr(Stdio::piped()).spawn().unwrap();
    let (mut stdin, input) = (pmof.stdin.take().unwrap(), input.unwrap_or_default().to_vec());
    // One that does not want all of it may end first.
    let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let output = pmof.wait_with_output().unwrap();
    writer.join().unwrap();
    output
}

fn write_program(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Ports that are tried.
const PORTS_TRIED: usize = 5;

/// An sshd of its own on a loopback port, with throw-away keys, that lets this user in.
pub(crate) struct Sshd {
    directory: TempDir,
    process: Child,
    port: u16,
}

impl Sshd {
    pub(crate) fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::create_dir(path("root")).unwrap();
        for key in ["host_key", "user_key"] {
            let made = Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(path(key)).status();
            assert!(made.expect("ssh-keygen starts").success());
        }
        fs::copy(path("user_key.pub"), path("authorized_keys")).unwrap();
        // sshd wants it when it runs as root, and systemd makes it only when it starts sshd itself.
        let _ = fs::create_dir("/run/sshd");
        let here = directory.path().display();
        fs::write(
            path("client_config"),
            format!(
                "Host *\n  IdentityFile {here}/user_key\n  IdentitiesOnly yes\n  UserKnownHostsFile {here}/known_hosts\n  \
                 StrictHostKeyChecking no\n  LogLevel ERROR\n"
            ),
        )
        .unwrap();
        write_program(&path("ssh"), &format!("#!/bin/sh\nexec ssh -F {here}/client_config \"$@\"\n"));
        let (process, port) = (0..PORTS_TRIED).find_map(|_| serve(directory.path())).expect("sshd finds a port");
        Self { directory, process, port }
    }

    pub(crate) fn url(&self, name: &str) -> String {
        format!("ssh://127.0.0.1:{}/{name}", self.port)
    }

    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// How programs reach it by any name that leads to this machine, as pool sets name hosts.
    pub(crate) fn options(&self) -> SshOptions {
        self.configure_client(&format!("  Port {}\n", self.port));
        let root = self.directory().join("root");
        let command = format!("exec {PMOF} serve --stdio --root {}", root.display());
        SshOptions::default().program(self.directory().join("ssh")).command(command)
    }

    /// Adds lines to the client's configuration.
    pub(crate) fn configure_client(&self, lines: &str) {
        let path = self.directory().join("client_config");
        let text = fs::read_to_string(&path).unwrap();
        fs::write(path, text + lines).unwrap();
    }

    pub(crate) fn pmof(&self, arguments: &[&str]) -> Output {
        self.pmof_with(arguments, None)
    }

    pub(crate) fn pmof_with(&self, arguments: &[&str], input: Option<&[u8]>) -> Output {
        run_pmof(&self.directory().join("ssh"), &self.directory().join("root"), arguments, input)
    }
}

/// Starts it on a port that was free. `None`: somebody else had it by then, another test's sshd maybe.
fn serve(directory: &Path) -> Option<(Child, u16)> {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let (here, config) = (directory.display(), directory.join("sshd_config"));
    let name = format!("{here}").replace(|letter: char| !letter.is_ascii_alphanumeric(), "");
    fs::write(
        &config,
        format!(
            "Port {port}\nListenAddress 127.0.0.1\nHostKey {here}/host_key\nPidFile {here}/pid\nUsePAM no\n\
             AuthorizedKeysFile {here}/authorized_keys\nStrictModes no\nPasswordAuthentication no\nPermitRootLogin yes\n\
             VersionAddendum {name}\n"
        ),
    )
    .unwrap();
    let mut sshd = Command::new("/usr/sbin/sshd");
    let mut process = sshd.args(["-D", "-e", "-f"]).arg(&config).stderr(Stdio::null()).spawn().expect("sshd starts");
    let deadline = Instant::now() + Duration::from_secs(10);
    while process.try_wait().unwrap().is_none() {
        assert!(Instant::now() < deadline, "sshd does not accept connections");
        let mut greeting = String::new();
        let answers = |stream| BufReader::new(stream).read_line(&mut greeting).is_ok();
        if TcpStream::connect(("127.0.0.1", port)).is_ok_and(answers) && greeting.contains(&name) {
            return Some((process, port));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    None
}

impl Drop for Sshd {
    fn drop(&mut self) {
        // It may be dead already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
