//! `cargo xtask unit`: the unit of systemd, installed as the guide says, under a systemd of its own.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};

use crate::{counts::Counts, readme::commands};

const SYSTEMD: &str = "/lib/systemd/systemd";
/// The conformance suite under two threads takes a minute or two.
const LIMIT: Duration = Duration::from_secs(900);

/// Why it cannot run here, if so.
pub(crate) fn missing() -> Option<String> {
    if !Path::new(SYSTEMD).exists() {
        return Some("no systemd here: Debian package systemd".to_owned());
    }
    let mounts = "mount -t tmpfs tmpfs /run && mount -t cgroup2 cgroup2 /run";
    let namespaces = Command::new("unshare").args(["-mpfCun", "sh", "-c", mounts]).stderr(Stdio::null()).status();
    (!namespaces.is_ok_and(|status| status.success()))
        .then(|| "no namespaces of its own for systemd: run it as root, outside of containers".to_owned())
}

/// Runs it, and closes with the line of counts.
pub(crate) fn run() -> Result<ExitCode> {
    if let Some(why) = missing() {
        bail!("{why}");
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask lies in the workspace's root")?;
    let work = tempfile::tempdir_in(root.join("target")).context("making a directory")?;
    let page = fs::read_to_string(root.join("docs/operating.md")).context("reading docs/operating.md")?;
    let lines: Vec<_> = commands::of_section(&page, "Under systemd")?.into_iter().map(|command| command.text).collect();
    fs::write(work.path().join("install.sh"), lines.join("\n"))?;
    fs::copy(conformance(root)?, work.path().join("conformance")).context("copying the conformance suite")?;
    ensure!(root.join("target/release/pmof").exists(), "no target/release/pmof: cargo build --release -p pmof-cli");

    let (output, ended) = (work.path().join("output"), work.path().join("ended"));
    File::create(&output)?;
    let manager = root.join("testbed/systemd/manager.sh");
    let mut systemd = Command::new("unshare")
        .args(["--mount", "--pid", "--fork", "--cgroup", "--uts", "--net", "--kill-child", "--mount-proc", "bash"])
        .arg(manager)
        .arg(work.path())
        .current_dir(root)
        .stdin(Stdio::null())
        .spawn()
        .context("starting unshare (Debian package util-linux)")?;
    let until = Instant::now() + LIMIT;
    while !ended.exists() && Instant::now() < until && systemd.try_wait()?.is_none() {
        thread::sleep(Duration::from_millis(100));
    }
    let is_whole = ended.exists();
    // It may have ended by itself.
    let _ = systemd.kill();
    systemd.wait().context("waiting for systemd")?;
    let text = fs::read_to_string(&output)?;
    print!("{text}");
    let count = |word: &str| text.lines().filter(|line| line.starts_with(word)).count() as u64;
    let counts = Counts { passed: count("ok unit: "), failed: count("FAILED unit: "), ..Counts::default() };
    println!("{counts}");
    ensure!(is_whole, "systemd did not run the whole probe");
    Ok(if counts.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The program of the conformance suite.
fn conformance(root: &Path) -> Result<PathBuf> {
    let test = ["test", "--no-run", "--message-format=json", "-p", "pmof-access", "--test", "conformance"];
    let built = Command::new("cargo").args(test).current_dir(root).stderr(Stdio::inherit()).output()?;
    ensure!(built.status.success(), "the conformance suite does not build");
    let printed = String::from_utf8(built.stdout).context("what cargo printed")?;
    let programs = printed.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let programs = programs.filter(|message| message["target"]["name"] == "conformance");
    let program = programs.filter_map(|message| message["executable"].as_str().map(PathBuf::from)).next_back();
    program.context("cargo names no program of the conformance suite")
}
