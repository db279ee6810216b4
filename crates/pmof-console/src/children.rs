//! Targets as child processes, for the commands that kill some.

use std::{
    io::{self, BufRead, BufReader, Read as _},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
};

use anyhow::{Context, bail, ensure};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};

use crate::{
    interrupt::{KilledOnSignal, TemporaryDirectory},
    trust,
};

/// A `pmof serve` of this very binary. Killed (SIGKILL) when dropped, and by the kernel when the thread that started it
/// ends in any other way, such as by a signal to this process.
#[derive(Debug)]
pub struct Target {
    child: Child,
    on_signal: KilledOnSignal,
    address: String,
    /// Where its Unix socket lies, if it has one.
    _socket: Option<TemporaryDirectory>,
}

impl Target {
    /// Starts a target for `root` and waits until it accepts connections on `listen`; `more` are further options of
    /// `pmof serve`. Call it on a thread that outlives the target: the kernel takes the thread for the parent.
    pub fn start(root: &Path, listen: &str, more: &[&str]) -> anyhow::Result<Self> {
        Self::start_with(root, listen, more, None)
    }

    /// The same on a Unix socket in a directory of its own, because the path of a socket has at most 107 bytes.
    pub fn start_on_socket(root: &Path, more: &[&str]) -> anyhow::Result<Self> {
        let directory =
            TemporaryDirectory::create("pmof-", &std::env::temp_dir()).context("cannot make a directory")?;
        let listen = format!("shm://{}", directory.path().join("target.sock").display());
        Self::start_with(root, &listen, more, Some(directory))
    }

    fn start_with(
        root: &Path,
        listen: &str,
        more: &[&str],
        socket: Option<TemporaryDirectory>,
    ) -> anyhow::Result<Self> {
        let mut child = this_program("serve")?
            .arg("--root")
            .arg(root)
            .args(["--listen", listen, "--log-level", "error"])
            .args(more)
            .args(trust::option())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start a target")?;
        let output = child.stdout.take().context("the target has no output")?;
        let mut errors = child.stderr.take().context("the target has no standard error")?;
        let mut target =
            Self { on_signal: KilledOnSignal::new(&child), child, address: String::new(), _socket: socket };
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line).context("cannot read from the target")?;
        let Some(address) = line.trim_end().strip_prefix("ready ") else {
            let mut said = String::new();
            let _ = errors.read_to_string(&mut said);
            let said = said.trim().trim_start_matches("pmof: ");
            bail!("the target did not start: {}", if said.is_empty() { "it said nothing" } else { said });
        };
        target.address += address;
        // What it says from here on is for whoever looks.
        thread::Builder::new().spawn(move || io::copy(&mut errors, &mut io::stderr()))?;
        Ok(target)
    }

    /// Starts a target for `root` at the address of this one, which was killed. Call it on a thread that outlives the target.
    pub fn restart(&mut self, root: &Path, more: &[&str]) -> anyhow::Result<()> {
        let mut again = Self::start_with(root, &self.address, more, None)?;
        std::mem::swap(&mut self.child, &mut again.child);
        std::mem::swap(&mut self.on_signal, &mut again.on_signal);
        Ok(())
    }

    /// Where it listens, such as `tcp://HOST[:PORT]`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Its process number.
    pub fn process_id(&self) -> u32 {
        self.child.id()
    }

    /// Kills it with SIGKILL and waits until it is gone.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        self.child.kill().context("cannot kill the target")?;
        self.child.wait().context("cannot wait for the target")?;
        Ok(())
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // It may be dead already, as it should be.
        let _ = self.kill();
    }
}

/// A hidden or public command of this very binary, whose process ends with this one.
pub fn this_program(command: &str) -> anyhow::Result<Command> {
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let mut process = Command::new(program);
    process.arg(command).arg("--exit-with-parent").arg(std::process::id().to_string());
    Ok(process)
}

/// Has the kernel kill this process when the thread that started it ends. `parent` is the process number of the
/// starter, which may be gone already: then this fails.
pub fn exit_with_parent(parent: u32) -> anyhow::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL)).context("prctl(PR_SET_PDEATHSIG) failed")?;
    let now = getppid().map_or(0, |parent| parent.as_raw_nonzero().get().unsigned_abs());
    ensure!(now == parent, "the process {parent} that started this one is gone (--exit-with-parent)");
    Ok(())
}
