//! Tests that find at run time that this machine cannot run them.
//!
//! Rust's test runners know no third outcome: a test that returns early passes. It says [`skipped!`](crate::skipped) first, which
//! prints one line, `skipped: BINARY TEST: REASON`, and appends it to the file that the environment variable [`REPORTS`] names.
//! `cargo xtask test` names one, and counts each test in it as skipped. A test of which a part cannot run says the same, and is
//! counted the same: what did not run in full has not passed.

use std::{
    env,
    fmt::{self, Arguments},
    fs::File,
    io::{self, Write as _},
    path::Path,
    thread,
};

/// The environment variable with the path of the file for reports.
pub const REPORTS: &str = "PMOF_SKIP_REPORTS";

/// What each report starts with.
pub const MARK: &str = "skipped: ";

/// Reports, with a reason in the manner of `println!`, that the calling test cannot run here. The test then returns.
#[macro_export]
macro_rules! skipped {
    ($($reason:tt)*) => {
        $crate::report(format_args!($($reason)*))
    };
}

/// One report, as a line of the file holds it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Report {
    /// The name of the test's program, without cargo's hash.
    pub binary: String,
    /// The test's name, as its runner prints it.
    pub test: String,
    /// Why it cannot run, on one line.
    pub reason: String,
}

impl Report {
    /// Reads one line; `None` where it is no report.
    pub fn parse(line: &str) -> Option<Self> {
        let (name, reason) = line.trim_end().strip_prefix(MARK)?.split_once(": ")?;
        let (binary, test) = name.split_once(' ')?;
        Some(Self { binary: binary.into(), test: test.into(), reason: reason.into() })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{MARK}{} {}: {}", self.binary, self.test, self.reason)
    }
}

/// What [`skipped!`](crate::skipped) does.
///
/// # Panics
/// Where the report cannot be written: the test would be counted as passed.
pub fn report(reason: Arguments<'_>) {
    let report = Report { binary: binary(), test: test(), reason: reason.to_string().replace('\n', " ") };
    eprintln!("{report}");
    if let Some(path) = env::var_os(REPORTS) {
        append(Path::new(&path), &report)
            .unwrap_or_else(|error| panic!("writing to {REPORTS} ({}): {error}", Path::new(&path).display()));
    }
}

fn append(path: &Path, report: &Report) -> io::Result<()> {
    // One write to a file open for appending: lines of processes that report at the same time do not mix.
    File::options().append(true).create(true).open(path)?.write_all(format!("{report}\n").as_bytes())
}

fn binary() -> String {
    let program = env::current_exe().unwrap_or_default();
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    match name.rsplit_once('-') {
        Some((name, hash)) if hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()) => name.into(),
        _ => name.into_owned(),
    }
}

/// libtest names each test's thread after the test; a thread that a test starts has its runner's word for it, if any.
fn test() -> String {
    match thread::current().name() {
        Some(name) if name != "main" => name.into(),
        _ => env::var("NEXTEST_TEST_NAME").unwrap_or_else(|_| "(unnamed)".into()),
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, process::Command};

    use super::*;

    /// Reports only where the next test asks for it.
    #[test]
    fn reporter() {
        if env::var_os("PMOF_SKIP_REPORTER").is_some() {
            skipped!("no {}\nhere: install it", "disk");
            skipped!("nor a net");
        }
    }

    #[test]
    fn reports_are_appended_with_binary_test_and_reason() {
        let path = env::temp_dir().join(format!("skip-report-{}", std::process::id()));
        let run = || {
            let mut command = Command::new(env::current_exe().unwrap());
            command.args(["--exact", "tests::reporter"]).env("PMOF_SKIP_REPORTER", "1").env(REPORTS, &path);
            command.env_remove("NEXTEST_TEST_NAME").output().unwrap().status.success()
        };
        assert!(run() && run());
        let lines = fs::read_to_string(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let expected = |reason: &str| format!("skipped: skip_report tests::reporter: {reason}\n");
        assert_eq!(lines, [expected("no disk here: install it"), expected("nor a net")].concat().repeat(2));
        let read = Report::parse(lines.lines().next().unwrap()).unwrap();
        assert_eq!(
            (&*read.binary, &*read.test, &*read.reason),
            ("skip_report", "tests::reporter", "no disk here: install it")
        );
        assert_eq!(Report::parse("skipped: nothing"), None);
    }

    #[test]
    fn a_report_that_cannot_be_written_fails_its_test() {
        let mut command = Command::new(env::current_exe().unwrap());
        command
            .args(["--exact", "tests::reporter"])
            .env("PMOF_SKIP_REPORTER", "1")
            .env(REPORTS, "/no/such/directory/f");
        assert!(!command.output().unwrap().status.success());
    }
}
