//! Tests that passed by their runner's count and reported that they could not run (`testbed/skip-report`).

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use anyhow::{Context as _, Result};
use skip_report::Report;

use crate::counts::Counts;

/// The reason of each, by binary and test: the first that a test reports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Skips(BTreeMap<(String, String), String>);

impl Skips {
    /// Takes the file of reports. Tests that failed after their report have failed.
    pub(crate) fn read(file: &Path, failures: &BTreeSet<String>) -> Result<Self> {
        let text = fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
        fs::remove_file(file).with_context(|| format!("removing {}", file.display()))?;
        let mut skips = Self::of_lines(&text);
        skips.0.retain(|(_, test), _| !failures.contains(test));
        Ok(skips)
    }

    /// The reports among the lines of a text.
    pub(crate) fn of_lines(text: &str) -> Self {
        let mut reasons = BTreeMap::new();
        for Report { binary, test, reason } in text.lines().filter_map(Report::parse) {
            reasons.entry((binary, test)).or_insert(reason);
        }
        Self(reasons)
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.len() as u64
    }

    /// Their runner counted them as passed.
    pub(crate) fn taken_from(&self, counts: Counts) -> Counts {
        let moved = self.count();
        Counts { passed: counts.passed.saturating_sub(moved), skipped: counts.skipped + moved, ..counts }
    }

    /// One line for each, of the suite with this name.
    pub(crate) fn lines(&self, suite: &str) -> impl Iterator<Item = String> {
        self.0.iter().map(move |((binary, test), reason)| format!("skipped: {suite}: {binary} {test}: {reason}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_that_failed_after_its_report_has_failed() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("reports");
        fs::write(&file, "skipped: b one: why\nnoise\nskipped: b two: why\n").unwrap();
        let skips = Skips::read(&file, &BTreeSet::from(["two".to_owned()])).unwrap();
        assert_eq!(skips.lines("s").collect::<Vec<_>>(), ["skipped: s: b one: why"]);
        assert!(!file.exists());
        let counts = Counts { passed: 4, failed: 1, skipped: 2 };
        assert_eq!(skips.taken_from(counts), Counts { passed: 3, failed: 1, skipped: 3 });
    }
}
