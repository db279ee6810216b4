//! The outcomes of a suite that needs machines.

use std::time::Instant;

use anyhow::Result;

use crate::counts::Counts;

/// The outcomes of one suite, printed as they come.
pub(super) struct Report {
    suite: &'static str,
    counts: Counts,
    /// When the last outcome came.
    last: Instant,
}

impl Report {
    pub(super) fn new(suite: &'static str) -> Self {
        Self { suite, counts: Counts::default(), last: Instant::now() }
    }

    pub(super) fn counts(&self) -> Counts {
        self.counts
    }

    /// Counts one test; the outcome is its failure's reason. Its time is that since the test before.
    pub(super) fn test(&mut self, name: &str, outcome: Result<()>) {
        self.timed_test(name, None, outcome);
    }

    /// The same, with its own time, where that is known.
    pub(super) fn timed_test(&mut self, name: &str, seconds: Option<f64>, outcome: Result<()>) {
        let seconds = seconds.unwrap_or_else(|| self.last.elapsed().as_secs_f64());
        self.last = Instant::now();
        match outcome {
            Ok(()) => {
                self.counts += Counts::ONE_PASSED;
                println!("ok {}: {name} ({seconds:.1} s)", self.suite);
            }
            Err(error) => {
                self.counts += Counts::ONE_FAILED;
                println!("FAILED {}: {name} ({seconds:.1} s): {error:#}", self.suite);
            }
        }
    }

    /// Counts the tests of one program that counts for itself; one failure at least where the program failed. Its time is the given one,
    /// or else that since the test before.
    pub(super) fn counted(&mut self, name: &str, counts: Counts, seconds: Option<f64>, outcome: Result<()>) {
        let seconds = seconds.unwrap_or_else(|| self.last.elapsed().as_secs_f64());
        self.last = Instant::now();
        self.counts += counts;
        match outcome {
            Ok(()) if counts.failed == 0 && counts.passed > 0 => {
                println!("ok {}: {name}: {counts} ({seconds:.1} s)", self.suite);
            }
            outcome => {
                if counts.failed == 0 {
                    self.counts += Counts::ONE_FAILED;
                }
                let why =
                    outcome.err().map_or_else(|| "no test ran, or one failed".to_owned(), |why| format!("{why:#}"));
                println!("FAILED {}: {name}: {counts} ({seconds:.1} s): {why}", self.suite);
            }
        }
    }
}
