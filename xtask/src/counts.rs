//! Counts of tests and the names of those that failed, read from what the runners print.

use std::{fmt, ops::AddAssign};

/// How many tests, or suites, came out how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
}

impl Counts {
    pub(crate) const ONE_PASSED: Self = Self { passed: 1, failed: 0, skipped: 0 };
    pub(crate) const ONE_FAILED: Self = Self { passed: 0, failed: 1, skipped: 0 };
    pub(crate) const ONE_SKIPPED: Self = Self { passed: 0, failed: 0, skipped: 1 };
}

impl fmt::Display for Counts {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

/// Who runs tests and prints their counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Runner {
    /// Closes with one `Summary` line. Shows the output of failed tests, which holds libtest's lines: not to be counted.
    Nextest,
    /// Closes each test binary with a `test result:` line.
    Libtest,
    /// Closes with a line that is the counts and nothing else, as xtask itself does.
    Closing,
}

impl Runner {
    /// The counts that one line of this runner's output names; `None` for any other line. Colours are ignored.
    pub(crate) fn counts_of_line(self, line: &str) -> Option<Counts> {
        let line = without_colours(line);
        match self {
            Self::Nextest => nextest_counts(line.trim_start().strip_prefix("Summary [")?),
            Self::Libtest => libtest_counts(line.strip_prefix("test result: ")?),
            Self::Closing => closing_counts(&line),
        }
    }

    /// The failed test that one line of this runner's output names; `None` for any other line. Colours are ignored.
    pub(crate) fn failure_of_line(self, line: &str) -> Option<String> {
        let line = without_colours(line);
        let words: Vec<_> = line.split_whitespace().collect();
        match (self, &words[..]) {
            // `        FAIL [   0.004s] ( 1/14) pmof-mem flush::tests::name`
            (Self::Nextest, [end, .., test]) if NEXTEST_FAILURES.contains(end) => Some((*test).to_owned()),
            // `test name ... FAILED`
            (Self::Libtest, ["test", test, "...", "FAILED"]) => Some((*test).to_owned()),
            (Self::Closing, [first, _, ..]) if CLOSING_FAILURES.contains(first) => {
                Some(line[first.len()..].trim_start().chars().take(MOST_OF_A_FAILURE).collect())
            }
            _ => None,
        }
    }
}

/// The start of a line that names a failed test, and how a test of nextest ends that did not come to its end.
const NEXTEST_FAILURES: [&str; 6] = ["FAIL", "TIMEOUT", "SIGABRT", "SIGSEGV", "SIGBUS", "LEAK-FAIL"];
/// What the first word of a line says where one of xtask's own suites names a failure.
const CLOSING_FAILURES: [&str; 4] = ["FAILED", "SURVIVED", "UNCLEAR", "Error:"];
/// Of a line of xtask's own suites, which may tell why at length.
const MOST_OF_A_FAILURE: usize = 300;

/// `ok. 3 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out; finished in 0.01s`
fn libtest_counts(rest: &str) -> Option<Counts> {
    let (_, counts) = rest.split_once(". ")?;
    let mut known = Counts::default();
    for (number, word) in counts.split("; ").filter_map(number_and_word) {
        match word {
            "passed" => known.passed += number,
            "failed" => known.failed += number,
            "ignored" => known.skipped += number,
            _ => {}
        }
    }
    Some(known)
}

/// `   0.123s] 4/5 tests run: 2 passed (1 slow, 1 flaky), 1 failed, 1 timed out, 1 skipped`
fn nextest_counts(rest: &str) -> Option<Counts> {
    let (_, counts) = rest.split_once("run: ")?;
    let mut known = Counts::default();
    for (number, word) in without_parentheses(counts).split(", ").filter_map(number_and_word) {
        match word {
            "passed" => known.passed += number,
            "skipped" => known.skipped += number,
            // Every other word is a way to fail: failed, timed out, exec failed.
            _ => known.failed += number,
        }
    }
    Some(known)
}

/// `23 passed, 0 failed, 0 skipped`
fn closing_counts(line: &str) -> Option<Counts> {
    let words: Vec<_> = line.split(", ").map(number_and_word).collect();
    let [Some((passed, "passed")), Some((failed, "failed")), Some((skipped, "skipped"))] = words[..] else {
        return None;
    };
    Some(Counts { passed, failed, skipped })
}

fn number_and_word(part: &str) -> Option<(u64, &str)> {
    let (number, word) = part.trim().split_once(' ')?;
    Some((number.parse().ok()?, word.trim()))
}

fn without_parentheses(text: &str) -> String {
    let mut depth = 0_u32;
    let outside = |character: &char| {
        match character {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => return depth == 0,
        }
        false
    };
    text.chars().filter(outside).collect()
}

/// Drops the escape sequences `ESC [ ... letter`.
fn without_colours(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut parts = text.split("\x1b[");
    plain.extend(parts.next());
    for part in parts {
        let end = part.find(|character: char| character.is_ascii_alphabetic()).map_or(part.len(), |at| at + 1);
        plain.push_str(&part[end..]);
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks what one line counts, in the order passed, failed, skipped.
    fn assert_counts(runner: Runner, line: &str, [passed, failed, skipped]: [u64; 3]) {
        assert_eq!(runner.counts_of_line(line), Some(Counts { passed, failed, skipped }), "{line}");
    }

    #[test]
    fn libtest_lines() {
        let line = "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out; finished in 0.00s";
        assert_counts(Runner::Libtest, line, [3, 0, 1]);
        let line = "test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.50s";
        assert_counts(Runner::Libtest, line, [1, 2, 0]);
        let line = "test result: \x1b[32mok\x1b[0m. 7 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out";
        assert_counts(Runner::Libtest, line, [7, 0, 0]);
    }

    #[test]
    fn nextest_lines() {
        let line = "     Summary [   0.005s] 3 tests run: 3 passed, 0 skipped";
        assert_counts(Runner::Nextest, line, [3, 0, 0]);
        let line = "     Summary [   0.005s] 1 test run: 1 passed, 12 skipped";
        assert_counts(Runner::Nextest, line, [1, 0, 12]);
        let line = "\x1b[31;1m     Summary\x1b[0m [   9.1s] \x1b[1m4\x1b[0m/\x1b[1m6\x1b[0m tests run: \
                    \x1b[1m2\x1b[0m \x1b[32mpassed\x1b[0m (\x1b[1m1\x1b[0m slow, 1 flaky), 1 failed, 1 timed out, \
                    1 exec failed, 2 skipped";
        assert_counts(Runner::Nextest, line, [2, 3, 2]);
        let line = "     Summary [   0.000s] 0 tests run: 0 passed, 0 skipped";
        assert_counts(Runner::Nextest, line, [0, 0, 0]);
    }

    #[test]
    fn closing_lines() {
        let counts = Counts { passed: 23, failed: 1, skipped: 4 };
        assert_counts(Runner::Closing, &counts.to_string(), [23, 1, 4]);
        for line in ["vm guest: 23 passed, 0 failed, 0 skipped in 9.0 s", "1 passed, 2 failed", "ok guest: a", ""] {
            assert_eq!(Runner::Closing.counts_of_line(line), None, "{line}");
        }
    }

    #[test]
    fn lines_that_name_a_failure() {
        let named = |runner: Runner, line: &str| runner.failure_of_line(line);
        let line = "\x1b[31;1m        FAIL\x1b[0m [   0.004s] ( 1/14) pmof-mem flush::tests::name";
        assert_eq!(named(Runner::Nextest, line).as_deref(), Some("flush::tests::name"));
        assert_eq!(named(Runner::Nextest, "     TIMEOUT [ 300.0s] pmof-mem a::b").as_deref(), Some("a::b"));
        assert_eq!(named(Runner::Libtest, "test a::b ... FAILED").as_deref(), Some("a::b"));
        assert_eq!(named(Runner::Closing, "FAILED pools: a (1.0 s): why").as_deref(), Some("pools: a (1.0 s): why"));
        assert_eq!(named(Runner::Closing, "Error: no suite").as_deref(), Some("no suite"));
        assert_eq!(named(Runner::Closing, &format!("SURVIVED {}", "ö".repeat(400))).unwrap().chars().count(), 300);
        for line in ["        PASS [   0.004s] ( 1/14) pmof-mem a", "test a ... ok", "ok a", "FAILED", ""] {
            for runner in [Runner::Nextest, Runner::Libtest, Runner::Closing] {
                assert_eq!(named(runner, line), None, "{line}");
            }
        }
    }

    #[test]
    fn other_lines_count_nothing() {
        let lines =
            ["", "running 3 tests", "test result", "Summary: 3 passed", "3 passed, 0 failed, 0 skipped", "\x1b["];
        for line in lines {
            assert_eq!(Runner::Libtest.counts_of_line(line), None, "{line}");
            assert_eq!(Runner::Nextest.counts_of_line(line), None, "{line}");
        }
    }

    #[test]
    fn output_of_a_failed_test_is_not_counted_again() {
        for line in ["    test result: FAILED. 0 passed; 1 failed", "test result: FAILED. 0 passed; 1 failed"] {
            assert_eq!(Runner::Nextest.counts_of_line(line), None, "{line}");
        }
        assert_eq!(Runner::Libtest.counts_of_line("Summary [ 1s] 1 test run: 1 passed"), None);
    }
}
