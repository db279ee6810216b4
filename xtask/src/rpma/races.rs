//! `cargo xtask rpma races`: threads of a program for librpma under helgrind and drd, with the suppressions that we ship.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context as _, Result, ensure};
use clap::Args;

use crate::{capi, counts::Counts, vm::testbed::Testbed};

const TOOLS: [&str; 2] = ["helgrind", "drd"];

/// What valgrind's exit code is where it reports errors; the program's own are less.
const ERRORS: i32 = 9;

/// The program's races, by the functions in which it makes them; drd may take a short one for a part of its caller.
const RACES: [(&str, &[&str]); 3] = [
    ("a variable between calls", &["race_between_calls", "race"]),
    ("a variable in its log function", &["race_in_callback"]),
    ("registered memory", &["race_in_memory"]),
];

/// Options of `rpma races`.
#[derive(Debug, Args)]
pub(crate) struct Races {
    /// What the library is told to use (`PMOF_TRANSPORT`)
    #[arg(long, default_value = "tcp", value_parser = ["tcp", "shm"])]
    transport: String,
    /// The first of the 16 ports that are used
    #[arg(long, default_value_t = 7420)]
    port: u16,
    /// Another file of suppressions
    #[arg(long, value_name = "FILE")]
    suppressions: Option<PathBuf>,
}

/// One run under one tool.
struct Seen {
    code: Option<i32>,
    text: String,
}

impl Races {
    pub(super) fn run(&self) -> Result<ExitCode> {
        let here = env::current_dir().context("finding the current directory")?;
        let library = here.join(capi::directory());
        ensure!(library.join("librpma.so.0").exists(), "no librpma.so.0 there: cargo xtask capi builds it");
        let suppressions = self.suppressions.clone().unwrap_or_else(|| library.join("librpma.supp"));
        let testbed = Testbed::new(|line| eprintln!("test bed: {line}"))?;
        let directory = here.join("target/rpma");
        fs::create_dir_all(&directory).with_context(|| format!("making {}", directory.display()))?;
        let program = testbed.build_rpma_check(&directory)?;
        let mut counts = Counts::default();
        for tool in TOOLS {
            let see = |kind| self.see(tool, &suppressions, &library, &program, kind);
            let clean = see("clean")?;
            let is_clean = clean.code == Some(0);
            tell(&mut counts, is_clean, &format!("{tool}: threads over {} without an error", self.transport));
            if !is_clean {
                println!("{}", clean.text);
            }
            let racing = see("race")?;
            for (what, functions) in RACES {
                let is_found = racing.code == Some(ERRORS) && reports(&racing.text, functions);
                tell(&mut counts, is_found, &format!("{tool}: a race of the program itself, on {what}, is reported"));
            }
        }
        println!("{counts}");
        Ok(if counts.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    fn see(&self, tool: &str, suppressions: &Path, library: &Path, program: &Path, kind: &str) -> Result<Seen> {
        let mut command = Command::new("valgrind");
        command
            .args(["--quiet", "--error-limit=no", &format!("--tool={tool}"), &format!("--error-exitcode={ERRORS}")])
            .arg(format!("--suppressions={}", suppressions.display()))
            .arg(program)
            .args(["--threads", kind, "--port", &self.port.to_string(), "127.0.0.1"])
            .env("LD_LIBRARY_PATH", library)
            .env("PMOF_TRANSPORT", &self.transport);
        let output = command.output().context("starting valgrind: install the Debian package valgrind")?;
        let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        Ok(Seen { code: output.status.code(), text: text.into_owned() })
    }
}

fn tell(counts: &mut Counts, has_passed: bool, what: &str) {
    println!("{} {what}", if has_passed { "ok" } else { "FAILED" });
    *counts += if has_passed { Counts::ONE_PASSED } else { Counts::ONE_FAILED };
}

/// Whether a report's stack begins in one of the functions: `==1==    at 0x11AB40: NAME (FILE:LINE)`.
fn reports(text: &str, functions: &[&str]) -> bool {
    let first_frames = text.lines().filter_map(|line| line.split_once(" at 0x")?.1.split_once(": "));
    let mut names = first_frames.filter_map(|(_, frame)| frame.split_once(" ("));
    names.any(|(name, place)| functions.contains(&name) && place.starts_with("threads.c:"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_race_is_found_by_the_function_that_makes_it() {
        let text = "==1== Possible data race during read of size 4 at 0x1351C0 by thread #4\n\
                    ==1==    at 0x11AB40: race_between_calls (threads.c:373)\n\
                    ==1==    by 0x11AF5F: race_in_memory (threads.c:388)\n\
                    ==1==    at 0x11AB41: elsewhere (other.c:1)\n";
        assert!(reports(text, &["race_between_calls"]));
        assert!(!reports(text, &["race_in_memory"]), "who calls it is not who makes it");
        assert!(!reports(text, &["elsewhere"]), "not of this program");
    }
}
