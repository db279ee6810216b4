//! `pmof report compare`: two reports side by side, and which differences are more than noise.

use std::{collections::HashMap, path::PathBuf};

use anyhow::{Result, ensure};
use clap::Args;
use pmof_console::output::{print_json, say};
use serde::Serialize;

use crate::{
    document::{Document, Interval, Measured, Outcome, Place},
    machine::Machine,
    matrix::{Metric, chart},
};

/// Set two reports side by side and say which differences are more than noise
///
/// A cell differs where the 95 % confidence intervals of its medians in both reports do not overlap. Where its floor moved as far in the same
/// direction, the machine changed, not pmof.
#[derive(Debug, Args)]
pub(crate) struct CompareArgs {
    /// The report.json of before
    #[arg(value_name = "A.json")]
    before: PathBuf,
    /// The report.json of after
    #[arg(value_name = "B.json")]
    after: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What a difference is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    /// More bytes, or less time.
    Better,
    /// Fewer bytes, or more time.
    Worse,
    /// The intervals overlap.
    Noise,
    /// The floor changed as much.
    Machine,
}

/// A cell of both reports.
#[derive(Debug, Serialize)]
struct Compared {
    #[serde(flatten)]
    place: Place,
    unit: &'static str,
    before: f64,
    after: f64,
    /// After over before.
    ratio: f64,
    /// The same of their floors.
    floor_ratio: Option<f64>,
    verdict: Verdict,
}

/// A cell that only one report measured.
#[derive(Debug, Serialize)]
struct Lonely {
    #[serde(flatten)]
    place: Place,
    reason: String,
}

/// All of it.
#[derive(Debug, Serialize)]
struct Comparison {
    machines_differ: Option<String>,
    cells: Vec<Compared>,
    not_compared: Vec<Lonely>,
}

pub(crate) fn run(args: &CompareArgs) -> Result<()> {
    let (before, after) = (Document::read(&args.before)?, Document::read(&args.after)?);
    let comparison = compare(&before, &after)?;
    ensure!(!comparison.cells.is_empty(), "the reports have no measured cell in common");
    if args.json {
        return print_json(&comparison);
    }
    comparison.say(&before.machine, &after.machine);
    Ok(())
}

fn compare(before: &Document, after: &Document) -> Result<Comparison> {
    let mut later: HashMap<&Place, _> = after.cells.iter().map(|cell| (&cell.place, cell)).collect();
    let (mut cells, mut not_compared) = (Vec::new(), Vec::new());
    let mut lonely = |place: &Place, why: String| not_compared.push(Lonely { place: place.clone(), reason: why });
    for cell in &before.cells {
        let other = later.remove(&cell.place);
        match (&cell.outcome, other.map(|other| (other, &other.outcome))) {
            (_, None) => lonely(&cell.place, "not in the second".to_owned()),
            (Outcome::Skipped(why), Some((_, Outcome::Result(_)))) => {
                lonely(&cell.place, format!("skipped in the first: {why}"));
            }
            (Outcome::Result(_), Some((_, Outcome::Skipped(why)))) => {
                lonely(&cell.place, format!("skipped in the second: {why}"));
            }
            (_, Some((other, _))) => {
                if let (Some(before), Some(after)) = (cell.measured()?, other.measured()?) {
                    cells.push(compared(&cell.place, &before, &after));
                }
            }
        }
    }
    let new = after.cells.iter().filter(|cell| later.contains_key(&cell.place));
    new.for_each(|cell| lonely(&cell.place, "not in the first".to_owned()));
    Ok(Comparison { machines_differ: before.machine.difference(&after.machine), cells, not_compared })
}

fn compared(place: &Place, before: &Measured, after: &Measured) -> Compared {
    let metric = chart(&place.chart).map_or(Metric::Latency, |chart| chart.metric);
    let of = |numbers| metric.of(numbers);
    let floors = before.floor.as_ref().ok().zip(after.floor.as_ref().ok());
    let floors = floors.map(|(before, after)| (of(&before.numbers), of(&after.numbers)));
    let (one, two) = (of(&before.own), of(&after.own));
    Compared {
        place: place.clone(),
        unit: match metric {
            Metric::Latency => "us",
            Metric::Bandwidth => "MiB/s",
        },
        before: one.median,
        after: two.median,
        ratio: two.median / one.median,
        floor_ratio: floors.map(|(one, two)| two.median / one.median),
        verdict: verdict(metric, one, two, floors),
    }
}

/// What changed, from the intervals of both and of their floors.
fn verdict(metric: Metric, before: Interval, after: Interval, floors: Option<(Interval, Interval)>) -> Verdict {
    let overlaps = |one: Interval, two: Interval| one.low <= two.high && two.low <= one.high;
    if overlaps(before, after) {
        return Verdict::Noise;
    }
    let grew = after.median > before.median;
    if let Some((floor_before, floor_after)) = floors {
        let moved = !overlaps(floor_before, floor_after);
        let (own, floor) = (after.median / before.median, floor_after.median / floor_before.median);
        if moved && (if grew { floor >= own } else { floor <= own }) {
            return Verdict::Machine;
        }
    }
    if grew == (metric == Metric::Bandwidth) { Verdict::Better } else { Verdict::Worse }
}

impl Comparison {
    fn say(&self, before: &Machine, after: &Machine) {
        if let Some(difference) = &self.machines_differ {
            say!("The reports are of different machines or software: {difference}.");
        }
        for (name, machine) in [("A", before), ("B", after)] {
            say!("{name}: pmof {} ({}), {}, {}", machine.pmof, machine.build, machine.cpu, machine.kernel);
        }
        let width = self.cells.iter().map(|cell| cell.place.to_string().len()).max().unwrap_or_default();
        say!("\n{:width$}{:>12}{:>12}        {:>8}{:>8}", "", "A", "B", "B/A", "floors");
        for cell in &self.cells {
            let floor = cell.floor_ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"));
            say!(
                "{:width$}{:>12.2}{:>12.2} {:<7}{:>8.2}{floor:>8}  {}",
                cell.place.to_string(),
                cell.before,
                cell.after,
                cell.unit,
                cell.ratio,
                cell.verdict.text()
            );
        }
        for cell in &self.not_compared {
            say!("{:width$}  {}", cell.place.to_string(), cell.reason);
        }
        let count = |verdict| self.cells.iter().filter(|cell| cell.verdict == verdict).count();
        say!(
            "\n{} better, {} worse, {} noise, {} where the machine changed as much; {} not compared",
            count(Verdict::Better),
            count(Verdict::Worse),
            count(Verdict::Noise),
            count(Verdict::Machine),
            self.not_compared.len()
        );
    }
}

impl Verdict {
    fn text(self) -> &'static str {
        match self {
            Self::Better => "better",
            Self::Worse => "worse",
            Self::Noise => "noise",
            Self::Machine => "the floor changed as much",
        }
    }
}

#[cfg(test)]
mod tests;
