//! Targets, writers and commands of one release or the other.

use std::{
    io::{BufRead as _, BufReader, Read as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, channel},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

/// Longer than anything here takes on a machine that is busy.
const LONG: Duration = Duration::from_secs(60);

/// Between two looks at a pool's status.
const LOOK: Duration = Duration::from_millis(50);

/// A `pmof serve` at an address of its own. Killed when dropped.
#[derive(Debug)]
pub(super) struct Target {
    child: Child,
    pub(super) address: String,
}

impl Target {
    /// Starts one and waits until it is ready.
    pub(super) fn start(program: &Path, root: &Path, listen: &str) -> Result<Self> {
        let mut serve = Command::new(program);
        serve.args(["serve", "--config", "/dev/null", "--log-level", "error", "--listen", listen, "--root"]).arg(root);
        let child = serve.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let mut target = Self { child: child.context("starting a target")?, address: listen.to_owned() };
        let output = target.child.stdout.take().context("a target has no output")?;
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line).context("reading from a target")?;
        let address = line.trim_end().strip_prefix("ready ").context("the target did not start")?;
        target.address.replace_range(.., address);
        Ok(target)
    }

    /// Kills it and waits until it is gone.
    pub(super) fn kill(mut self) -> Result<()> {
        self.child.kill().context("killing a target")?;
        self.child.wait().context("waiting for a target").map(drop)
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = (self.child.kill(), self.child.wait());
    }
}

/// A process that writes to a pool and tells of each acknowledgement. Killed when dropped.
#[derive(Debug)]
pub(super) struct Writer {
    child: Child,
    acknowledged: Receiver<u64>,
}

impl Writer {
    /// Starts one, which opens the pool of these replicas, and waits for its first acknowledgement.
    pub(super) fn start(program: &Path, urls: &[String], round: u64) -> Result<Self> {
        let mut soak = Command::new(program);
        soak.args(["soak-writer", "--seed", "1", "--round", &round.to_string()]);
        soak.args(urls.iter().flat_map(|url| ["--pool", url]));
        let mut child = soak.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("starting a writer")?;
        let mut output = child.stdout.take().context("a writer has no output")?;
        let (sender, acknowledged) = channel();
        thread::spawn(move || {
            // A letter and a number each, as crates/pmof-bench/src/soak/writer.rs has them.
            let mut report = [0; 9];
            while output.read_exact(&mut report).is_ok() {
                let [kind, number @ ..] = report;
                if kind == b'A' && sender.send(u64::from_le_bytes(number)).is_err() {
                    break;
                }
            }
        });
        let mut writer = Self { child, acknowledged };
        writer.go_on()?;
        Ok(writer)
    }

    /// Waits for acknowledgements of batches that were issued after this call.
    pub(super) fn go_on(&mut self) -> Result<()> {
        let mut last = self.acknowledged.try_iter().last();
        for _ in 0..3 {
            let next = self.acknowledged.recv_timeout(LONG);
            let next = next.map_err(|_| anyhow::anyhow!("the writer acknowledges nothing behind batch {last:?}"))?;
            ensure!(last.is_none_or(|last| next == last + 1), "batch {next} follows {last:?}");
            last = Some(next);
        }
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("the writer ended with {status}"),
        }
    }

    pub(super) fn kill(mut self) -> Result<()> {
        self.child.kill().context("killing the writer")?;
        self.child.wait().context("waiting for the writer").map(drop)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = (self.child.kill(), self.child.wait());
    }
}

/// A command of one release, which must succeed; gives what it prints.
pub(super) fn done(program: &Path, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output().context("starting pmof")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "pmof {}: {}: {}", arguments.join(" "), output.status, said.trim_end());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The same of a command that prints JSON.
pub(super) fn json(program: &Path, arguments: &[&str]) -> Result<Value> {
    serde_json::from_str(&done(program, arguments)?).context("what pmof prints is no JSON")
}

/// Waits until all of the pool's members are in sync in an opening after the one with this number; gives the number. A writer that goes on without a
/// member begins another: until it has, one that was killed looks as it did.
pub(super) fn wait_in_sync(program: &Path, urls: &[String], after: u64) -> Result<u64> {
    let arguments: Vec<_> = ["pool", "status", "--json"].into_iter().chain(urls.iter().map(String::as_str)).collect();
    let until = Instant::now() + LONG;
    loop {
        let status = json(program, &arguments)?;
        let members = status["members"].as_array().context("pool status names no members")?;
        let opening = status["opening"].as_u64().context("pool status names no opening")?;
        let are_in_sync = members.len() == urls.len() && members.iter().all(|member| member["state"] == "in_sync");
        if are_in_sync && opening > after {
            return Ok(opening);
        }
        ensure!(Instant::now() < until, "the members are not in sync in time: {status}");
        thread::sleep(LOOK);
    }
}

/// Where the files of one drill lie: on a disk, since its pools are to survive a loss of power.
pub(super) fn directory() -> Result<tempfile::TempDir> {
    let parent: PathBuf = if Path::new("/var/tmp").is_dir() { "/var/tmp".into() } else { std::env::temp_dir() };
    tempfile::Builder::new().prefix("pmof-upgrade-").tempdir_in(parent).context("making a directory")
}
