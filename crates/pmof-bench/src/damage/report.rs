//! What a run did and found.

use std::collections::BTreeMap;

use pmof_console::output::say;
use serde::Serialize;

use super::{
    case::Outcome,
    cell::{Cell, Extent, Moment, Spread, Structure, Way},
    control::Control,
    expected::{Fault, FaultKind},
};

/// Failures that are kept with their texts.
const KEPT_FAILURES: usize = 200;

/// What the cases of a cell, or of several, have shown.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Tally {
    cases: u64,
    healed_pages: u64,
    /// Cases in which pages were refused that no replica had.
    cases_refused: u64,
    refused_pages: u64,
    /// Cases in which a replica was left out for its head.
    cases_left_out: u64,
    /// Of these: cases in which too few replicas were left to open the pool.
    cases_not_opened: u64,
    /// Cases that read wrong bytes of what nothing covers.
    cases_uncovered: u64,
    cases_failed: u64,
    controls_wrong: u64,
    controls_right: u64,
    controls_missing: u64,
}

impl Tally {
    fn add(&mut self, other: &Self) {
        self.cases += other.cases;
        self.healed_pages += other.healed_pages;
        self.cases_refused += other.cases_refused;
        self.refused_pages += other.refused_pages;
        self.cases_left_out += other.cases_left_out;
        self.cases_not_opened += other.cases_not_opened;
        self.cases_uncovered += other.cases_uncovered;
        self.cases_failed += other.cases_failed;
        self.controls_wrong += other.controls_wrong;
        self.controls_right += other.controls_right;
        self.controls_missing += other.controls_missing;
    }

    /// Every control there is reads something wrong, and no case failed.
    fn has_passed(&self) -> bool {
        self.cases_failed == 0 && self.controls_right == 0
    }
}

/// One cell.
#[derive(Clone, Debug, Serialize)]
pub(super) struct CellReport {
    structure: Structure,
    extent: Extent,
    replicas: u8,
    damaged_replicas: u8,
    same_place: bool,
    when: Moment,
    transport: Way,
    #[serde(flatten)]
    tally: Tally,
}

/// A case that failed.
#[derive(Clone, Debug)]
pub(super) struct FailedCase {
    case: u64,
    cell: String,
    kind: FaultKind,
    reason: String,
}

/// What a run did and found.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Report {
    seed: u64,
    #[serde(flatten)]
    all: Tally,
    // Of a run that fails the error lists them.
    #[serde(skip)]
    failures: Vec<FailedCase>,
    no_control: Vec<&'static str>,
    cells: Vec<CellReport>,
    elapsed_s: f64,
    #[serde(skip)]
    tallies: BTreeMap<Cell, Tally>,
}

impl Report {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            seed,
            all: Tally::default(),
            failures: Vec::new(),
            no_control: Vec::new(),
            cells: Vec::new(),
            elapsed_s: 0.0,
            tallies: BTreeMap::new(),
        }
    }

    pub(super) fn add_case(&mut self, case: u64, cell: Cell, shown: Result<Outcome, Fault>) {
        let tally = self.tallies.entry(cell).or_default();
        tally.cases += 1;
        match shown {
            Ok(outcome) => {
                tally.healed_pages += outcome.healed_pages;
                tally.cases_refused += u64::from(outcome.refused_pages > 0);
                tally.refused_pages += outcome.refused_pages;
                tally.cases_left_out += u64::from(outcome.left_out > 0);
                tally.cases_not_opened += u64::from(outcome.is_not_opened);
                tally.cases_uncovered += u64::from(outcome.uncovered_pages > 0);
            }
            Err(fault) => {
                tally.cases_failed += 1;
                self.keep(case, cell, fault);
            }
        }
    }

    pub(super) fn add_control(&mut self, case: u64, cell: Cell, control: Result<Control, Fault>) {
        let tally = self.tallies.entry(cell).or_default();
        match control {
            Ok(Control::Wrong) => tally.controls_wrong += 1,
            Ok(Control::None(reason)) => {
                tally.controls_missing += 1;
                if !self.no_control.contains(&reason) {
                    self.no_control.push(reason);
                }
            }
            Ok(Control::Right) => {
                tally.controls_right += 1;
                let text = "nothing wrong was read without verification either";
                self.keep(case, cell, Fault::new(FaultKind::Control, text));
            }
            Err(fault) => {
                tally.controls_right += 1;
                self.keep(case, cell, Fault { text: format!("the control: {}", fault.text), ..fault });
            }
        }
    }

    fn keep(&mut self, case: u64, cell: Cell, fault: Fault) {
        if self.failures.len() < KEPT_FAILURES {
            let Fault { kind, text: reason } = fault;
            self.failures.push(FailedCase { case, cell: cell.to_string(), kind, reason });
        }
    }

    pub(super) fn cases(&self) -> u64 {
        self.tallies.values().map(|tally| tally.cases).sum()
    }

    pub(super) fn failed(&self) -> u64 {
        self.tallies.values().map(|tally| tally.cases_failed + tally.controls_right).sum()
    }

    pub(super) fn finish(&mut self, elapsed_s: f64) {
        self.elapsed_s = elapsed_s;
        self.all = self.sum(|_| true);
        self.cells = self.tallies.iter().map(|(cell, tally)| CellReport::new(*cell, *tally)).collect();
    }

    fn sum(&self, is: impl Fn(&Cell) -> bool) -> Tally {
        let mut sum = Tally::default();
        self.tallies.iter().filter(|(cell, _)| is(cell)).for_each(|(_, tally)| sum.add(tally));
        sum
    }

    /// The cells with a value of this in common, in order.
    fn group<K: Ord>(&self, key: impl Fn(&Cell) -> K) -> BTreeMap<K, Tally> {
        let mut groups = BTreeMap::<K, Tally>::new();
        self.tallies.iter().for_each(|(cell, tally)| groups.entry(key(cell)).or_default().add(tally));
        groups
    }

    pub(super) fn print(&self) {
        say!(
            "{:<24}{:>8}{:>9}{:>9}{:>9}{:>9}{:>8}{:>10}",
            "",
            "cases",
            "healed",
            "refused",
            "left out",
            "uncovered",
            "failed",
            "controls"
        );
        for (structure, tally) in self.group(|cell| cell.structure) {
            let controls = tally.controls_wrong + tally.controls_right;
            say!(
                "{:<24}{:>8}{:>9}{:>9}{:>9}{:>9}{:>8}{:>5}/{controls}",
                structure.name(),
                tally.cases,
                tally.healed_pages,
                tally.refused_pages,
                tally.cases_left_out,
                tally.cases_uncovered,
                tally.cases_failed,
                tally.controls_wrong,
            );
        }
        if self.failed() > 0 {
            say!("{}", self.failures().trim_start());
        }
        say!(
            "{} cases in {} cells, {} failed; {:.1} s; seed {}",
            self.all.cases,
            self.cells.len(),
            self.failed(),
            self.elapsed_s,
            self.seed
        );
    }

    /// Lines that say what failed.
    pub(super) fn failures(&self) -> String {
        let line = |failed: &FailedCase| {
            let FailedCase { case, cell, kind, reason } = failed;
            format!("\nfailed: --seed {} --case {case}: {cell}: {kind:?}: {reason}", self.seed)
        };
        self.failures.iter().map(line).collect()
    }

    #[cfg(test)]
    pub(super) fn kinds(&self) -> Vec<FaultKind> {
        self.failures.iter().map(|failed| failed.kind).collect()
    }

    pub(super) fn seed(&self) -> u64 {
        self.seed
    }

    /// The tables of `docs/damage.md`.
    pub(super) fn print_markdown(&self) {
        say!(
            "{} cases in {} cells, seed {}, {:.0} s, {} failed.",
            self.all.cases,
            self.cells.len(),
            self.seed,
            self.elapsed_s,
            self.failed()
        );
        let structures = |cell: &Cell| (cell.structure, cell.spread);
        Self::print_table(
            "structure | damaged replicas",
            self.group(structures),
            |(structure, spread): &(Structure, Spread)| format!("{} | {spread}", structure.name()),
        );
        let extents = |cell: &Cell| (cell.structure, cell.extent);
        Self::print_table(
            "structure | damaged at once",
            self.group(extents),
            |(structure, extent): &(Structure, Extent)| format!("{} | {}", structure.name(), extent.name()),
        );
        let moments = |cell: &Cell| (cell.structure, cell.moment, cell.way);
        Self::print_table(
            "structure | when | transport",
            self.group(moments),
            |(structure, moment, way): &(Structure, Moment, Way)| {
                format!("{} | {} | {}", structure.name(), moment.name(), way.name())
            },
        );
        for reason in &self.no_control {
            say!("\nNo control: {reason}.");
        }
    }

    fn print_table<K>(head: &str, groups: BTreeMap<K, Tally>, name: impl Fn(&K) -> String) {
        let columns = head.split('|').count();
        say!(
            "\n| {head} | cases | pages healed | cases with pages refused | cases with a replica left out | of these not opened | cases that read what nothing covers | failed | controls wrong | passed |"
        );
        say!("|{}", "---|".repeat(columns + 9));
        for (key, tally) in groups {
            let controls = match tally.controls_wrong + tally.controls_right {
                0 => "no control".to_owned(),
                all => format!("{} of {all}", tally.controls_wrong),
            };
            say!(
                "| {} | {} | {} | {} | {} | {} | {} | {} | {controls} | {} |",
                name(&key),
                tally.cases,
                tally.healed_pages,
                tally.cases_refused,
                tally.cases_left_out,
                tally.cases_not_opened,
                tally.cases_uncovered,
                tally.cases_failed,
                if tally.has_passed() { "yes" } else { "**no**" },
            );
        }
    }
}

impl CellReport {
    fn new(cell: Cell, tally: Tally) -> Self {
        let Cell { structure, extent, spread, moment, way } = cell;
        let Spread { replicas, damaged, is_same } = spread;
        Self {
            structure,
            extent,
            replicas,
            damaged_replicas: damaged,
            same_place: is_same,
            when: moment,
            transport: way,
            tally,
        }
    }
}
