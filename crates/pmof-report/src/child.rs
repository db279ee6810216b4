//! Runs `pmof bench` as a child, until it ends, takes too long, or this process is told to stop.

use std::{
    fs::{self, File},
    io::{self, Read as _},
    os::{fd::OwnedFd, unix::net::UnixStream, unix::process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Child, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use pmof_console::{children::this_program, failure::Failure};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    process::{Pid, PidfdFlags, pidfd_open},
};
use serde_json::Value;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use tempfile::TempDir;

/// What stops a report; each leaves it to be resumed.
const SIGNALS: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];

/// Children of a child that was killed are killed by the kernel, soon but not at once.
const ORPHANS_LIMIT: Duration = Duration::from_secs(2);

/// What a child's errors are cut to: more helps nobody in a table.
const REASON_BYTES: usize = 600;

/// How `pmof bench` begins where a pool cannot be made; the pool's URL follows.
const POOL_FAILED: &str = "making the pool: replica ";

/// Told of signals.
#[derive(Debug)]
pub(crate) struct Interrupts {
    told: UnixStream,
}

impl Interrupts {
    /// From now on signals end no process, but are seen by [`Bench::run`]. Those that are ignored, as nohup has it, stay so.
    pub(crate) fn catch() -> Result<Self> {
        let (told, tell) = UnixStream::pair().context("cannot make a pair of sockets")?;
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        for signal in SIGNALS.into_iter().filter(|signal| !is_ignored(&status, *signal)) {
            let tell = tell.try_clone().context("cannot duplicate a socket")?;
            signal_hook::low_level::pipe::register(signal, tell).context("cannot catch a signal")?;
        }
        Ok(Self { told })
    }
}

/// How a child ended.
#[derive(Debug)]
pub(crate) enum Ended {
    /// What it printed.
    Done(Value),
    /// Why it failed.
    Failed(String),
    /// It was killed, because this process was told to stop.
    Interrupted,
}

/// Directories for what children make. All is removed when it is dropped.
#[derive(Debug)]
pub(crate) struct Bench {
    /// Sockets, and what a child prints.
    scratch: TempDir,
    /// Of each medium, its pools' directory, or why it cannot be made.
    media: Vec<(&'static str, io::Result<TempDir>)>,
    interrupts: Interrupts,
}

impl Bench {
    /// Makes the directories; each medium's in its own.
    pub(crate) fn new(media: &[(&'static str, &Path)], interrupts: Interrupts) -> Result<Self> {
        let directory = || {
            let mut builder = tempfile::Builder::new();
            builder.prefix("pmof-report-");
            builder
        };
        let scratch = directory().tempdir().context("cannot make a directory for temporary files")?;
        let media = media.iter().map(|(medium, parent)| (*medium, directory().tempdir_in(parent))).collect();
        Ok(Self { scratch, media, interrupts })
    }

    /// Runs `pmof` with these arguments, and `--json`, for so long at most.
    pub(crate) fn run(&self, arguments: &[String], medium: &str, limit: Duration) -> Result<Ended> {
        let pools = match self.media.iter().find(|(name, _)| *name == medium) {
            Some((_, Ok(directory))) => directory.path(),
            Some((_, Err(error))) => return Ok(Ended::Failed(format!("no directory for its pools: {error}"))),
            None => return Ok(Ended::Failed(format!("no directory for pools on {medium}"))),
        };
        let (output, errors) = (self.scratch.path().join("output"), self.scratch.path().join("errors"));
        let (command, rest) = arguments.split_first().context("a cell has no command")?;
        let mut child = this_program(command)?
            .args(rest)
            .arg("--json")
            .arg("--dir")
            .arg(pools)
            .env("TMPDIR", self.scratch.path())
            .stdin(Stdio::null())
            .stdout(new_file(&output)?)
            .stderr(new_file(&errors)?)
            // A key that stops this process is not for the child, which would die without taking its pools down.
            .process_group(0)
            .spawn()
            .context("cannot start a measurement")?;
        let status = match self.wait(&mut child, limit)? {
            Waited::Ended(status) => status,
            Waited::TooLong => return Ok(Ended::Failed(format!("it did not end within {} s", limit.as_secs()))),
            Waited::Interrupted => return Ok(Ended::Interrupted),
        };
        if !status.success() {
            return Ok(Ended::Failed(reason(&errors, status)));
        }
        let text = fs::read(&output).context("cannot read what a measurement printed")?;
        match serde_json::from_slice::<Value>(&text) {
            Ok(mut value) => {
                // A report has a version of its own.
                value.as_object_mut().map(|result| result.remove("schema_version"));
                Ok(Ended::Done(value))
            }
            Err(error) => Ok(Ended::Failed(format!("it printed no result ({error})"))),
        }
    }

    fn wait(&self, child: &mut Child, limit: Duration) -> Result<Waited> {
        let process =
            i32::try_from(child.id()).ok().and_then(Pid::from_raw).context("a child has no process number")?;
        let ended: OwnedFd = pidfd_open(process, PidfdFlags::empty()).context("pidfd_open failed")?;
        let until = Instant::now() + limit;
        loop {
            let left = Timespec::try_from(until.saturating_duration_since(Instant::now())).map_err(io::Error::other)?;
            let mut waits = [PollFd::new(&ended, PollFlags::IN), PollFd::new(&self.interrupts.told, PollFlags::IN)];
            let count = match poll(&mut waits, Some(&left)) {
                Ok(count) => count,
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno).context("waiting for a measurement"),
            };
            let waited = if !waits[1].revents().is_empty() {
                Waited::Interrupted
            } else if count > 0 {
                return Ok(Waited::Ended(child.wait().context("waiting for a measurement")?));
            } else {
                Waited::TooLong
            };
            child.kill().context("cannot kill a measurement")?;
            child.wait().context("waiting for a measurement that was killed")?;
            self.clear();
            return Ok(waited);
        }
    }

    /// Removes what a killed child left, while its own children are still being killed.
    fn clear(&self) {
        let until = Instant::now() + ORPHANS_LIMIT;
        let directories = self.media.iter().filter_map(|(_, directory)| directory.as_ref().ok()).chain([&self.scratch]);
        for directory in directories {
            while !is_emptied(directory.path()) && Instant::now() < until {
                thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

enum Waited {
    Ended(ExitStatus),
    TooLong,
    Interrupted,
}

fn is_emptied(directory: &Path) -> bool {
    let Ok(entries) = fs::read_dir(directory) else { return true };
    for entry in entries.flatten() {
        let path = entry.path();
        // What is still being written is found by the next round.
        let _ = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
    }
    fs::read_dir(directory).is_ok_and(|mut left| left.next().is_none())
}

fn new_file(path: &PathBuf) -> Result<File> {
    File::create(path).with_context(|| format!("cannot make {}", path.display()))
}

/// From `/proc/PID/status`: a bit for each signal, the first for signal 1 (`proc_pid_status`(5)).
fn is_ignored(status: &str, signal: i32) -> bool {
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

/// The last words of a child that failed.
fn reason(errors: &Path, status: ExitStatus) -> String {
    let mut text = Vec::new();
    let read = File::open(errors).and_then(|mut file| file.read_to_end(&mut text));
    let text = String::from_utf8_lossy(&text);
    // The error is the last line, an object; what stands alone is of a child that ended before it knew how to say so.
    let said = text.lines().next_back().and_then(|line| serde_json::from_str::<Failure>(line).ok());
    let text = said.map_or(text.into_owned(), |said| said.error.text());
    let words: Vec<&str> = text.split_whitespace().collect();
    let words = &words.join(" ")[..];
    // The address of a target that is gone helps nobody, and would make one reason many.
    let words = match words.split_once(" failed: ") {
        Some((head, rest)) if head.starts_with(POOL_FAILED) => rest,
        _ => words,
    };
    if read.is_err() || words.is_empty() {
        return format!("it ended with {status} and said nothing");
    }
    let cut = (0..=words.len().min(REASON_BYTES)).rev().find(|at| words.is_char_boundary(*at)).unwrap_or_default();
    words[..cut].to_owned()
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    #[test]
    fn ignored_signals_are_known() {
        let status = "Name:\tpmof\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\n";
        assert!(is_ignored(status, SIGHUP));
        assert!(!is_ignored(status, SIGINT) && !is_ignored(status, SIGTERM));
        assert!(!is_ignored("", SIGHUP) && !is_ignored("SigIgn:\tx\n", SIGHUP));
    }

    #[test]
    fn the_words_of_a_failed_child_are_one_line_without_its_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("errors");
        let failed = ExitStatus::from_raw(256);
        fs::write(&path, r#"{"error":{"message":"no such device","causes":["look"],"exit_code":1}}"#).unwrap();
        assert_eq!(reason(&path, failed), "no such device: look");
        fs::write(&path, "making the pool: replica tcp://127.0.0.1:7/a failed: it cannot; it failed: no\n").unwrap();
        assert_eq!(reason(&path, failed), "it cannot; it failed: no");
        fs::write(&path, "\n").unwrap();
        assert!(reason(&path, failed).contains("said nothing"));
        fs::write(&path, "ü".repeat(REASON_BYTES)).unwrap();
        assert_eq!(reason(&path, failed), "ü".repeat(REASON_BYTES / 2));
    }
}
