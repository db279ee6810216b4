//! Running a suite against a mutant, and judging what came out.

use std::{
    collections::BTreeSet,
    fs,
    io::Read as _,
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};

use crate::counts::{Counts, Runner};

#[cfg(test)]
mod tests;

/// No suite takes longer; building is not counted.
const TIME_LIMIT: Duration = Duration::from_secs(1200);
const POLL: Duration = Duration::from_millis(20);

/// A suite's command, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SuiteCommand {
    words: Vec<String>,
    runner: Runner,
}

/// What a suite says of a mutant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It passed.
    Passed,
    /// Tests failed: so many, and those that the output names.
    TestsFailed { count: u64, names: Vec<String> },
    /// It could not be built.
    NotBuilt,
    /// It ended with an error, and no test failed; or it ran no test.
    Unclear(String),
}

impl SuiteCommand {
    /// # Errors
    /// Where the command's quotes do not pair, or it is none whose tests can be counted.
    pub(super) fn parse(command: &str) -> Result<Self> {
        let words = shlex::split(command).with_context(|| format!("{command:?}: a quote has no end"))?;
        let first: Vec<_> = words.iter().take(2).map(String::as_str).collect();
        let runner = match first[..] {
            ["cargo", "nextest"] => Runner::Nextest,
            ["cargo", "test"] => Runner::Libtest,
            ["cargo", "xtask"] => Runner::Closing,
            _ => anyhow::bail!("{command:?}: a suite is cargo nextest run, cargo test or cargo xtask"),
        };
        ensure!(words.len() > 2, "{command:?} says too little");
        Ok(Self { words, runner })
    }

    /// What builds all that the command runs, so that a failure to build is told from a failing test.
    fn building(&self, package: &str) -> Vec<String> {
        let own = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        match self.runner {
            Runner::Nextest | Runner::Libtest => {
                let own_end = self.words.iter().position(|word| word == "--").unwrap_or(self.words.len());
                let mut words = self.words[..own_end].to_vec();
                words.push("--no-run".to_owned());
                words
            }
            Runner::Closing => own(&["cargo", "check", "--quiet", "--package", package, "--package", "xtask"]),
        }
    }

    /// Builds and runs it in a tree; `package` is the one that was changed. All output goes to the file `log`.
    pub(super) fn run(&self, tree: &Path, target: &Path, package: &str, log: &Path) -> Result<Verdict> {
        if !execute(&self.building(package), tree, target, log, None)?.0.is_some_and(|status| status.success()) {
            return Ok(Verdict::NotBuilt);
        }
        let (status, output) = execute(&self.words, tree, target, log, Some(TIME_LIMIT))?;
        Ok(self.judge(status, &output))
    }

    /// `status`: `None` where the time was over.
    fn judge(&self, status: Option<ExitStatus>, output: &str) -> Verdict {
        let Some(status) = status else { return Verdict::Unclear(format!("it did not end within {TIME_LIMIT:?}")) };
        let mut sum = Counts::default();
        for counts in output.lines().filter_map(|line| self.runner.counts_of_line(line)) {
            sum += counts;
        }
        match (status.success(), sum) {
            (true, Counts { passed: 0, .. }) => Verdict::Unclear("it ran no test".to_owned()),
            (true, _) => Verdict::Passed,
            (false, Counts { failed: 0, .. }) => {
                Verdict::Unclear(format!("no test failed, but it ended with {status}"))
            }
            (false, Counts { failed, .. }) => {
                let names: BTreeSet<_> = output.lines().filter_map(|line| self.runner.failure_of_line(line)).collect();
                Verdict::TestsFailed { count: failed, names: names.into_iter().collect() }
            }
        }
    }
}

/// Runs a command with its output in a file. Gives its status, `None` where the time was over, and what it wrote.
fn execute(
    words: &[String],
    tree: &Path,
    target: &Path,
    log: &Path,
    limit: Option<Duration>,
) -> Result<(Option<ExitStatus>, String)> {
    let mut file = fs::File::options().create(true).append(true).read(true).open(log)?;
    let before = file.metadata()?.len();
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).current_dir(tree).stdin(Stdio::null());
    command.stdout(file.try_clone()?).stderr(file.try_clone()?);
    command.env("CARGO_TARGET_DIR", target).env("NEXTEST_PROFILE", "mutants").env("CARGO_TERM_COLOR", "never");
    // Of the cargo that runs xtask; the tree has a lock file and packages of its own.
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("CARGO_PKG")) {
        command.env_remove(name);
    }
    command.env_remove("CARGO_MANIFEST_DIR").env_remove("CARGO_MANIFEST_PATH");
    // A group of its own, so that all of it can be ended.
    let mut child = command.process_group(0).spawn().with_context(|| format!("starting {}", words[0]))?;
    let status = wait(&mut child, limit)?;
    let mut output = Vec::new();
    std::io::Seek::seek(&mut file, std::io::SeekFrom::Start(before))?;
    file.read_to_end(&mut output)?;
    Ok((status, String::from_utf8_lossy(&output).into_owned()))
}

fn wait(child: &mut Child, limit: Option<Duration>) -> Result<Option<ExitStatus>> {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().context("waiting for a suite")? {
            return Ok(Some(status));
        }
        if limit.is_some_and(|limit| start.elapsed() >= limit) {
            let group = format!("-{}", child.id());
            Command::new("kill").args(["-KILL", "--", &group]).status().context("starting kill")?;
            child.wait().context("waiting for a suite that was ended")?;
            return Ok(None);
        }
        thread::sleep(POLL);
    }
}
