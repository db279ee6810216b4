//! `pmof report rows`: the numbers that documents quote, as lines of a Markdown table with the command and the day that they come from.

use std::{iter, path::PathBuf};

use anyhow::{Result, ensure};
use clap::Args;
use pmof_console::{
    output::{print_json, say},
    ratios::RoundRatios,
};
use serde::Serialize;

use crate::{
    document::{Document, Measured},
    matrix::Metric,
};

/// Print the lines of a Markdown table for a document: what a report says of the most usual operations, with its day and its command
#[derive(Debug, Args)]
pub(crate) struct RowsArgs {
    /// The report.json
    #[arg(value_name = "REPORT.json")]
    report: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What is quoted: chart, series, place, and in words.
const QUOTED: [(&str, &str, u64, &str); 5] = [
    ("latency-write", "auto", 512, "durable write, 512 B, in memory"),
    ("latency-write", "auto", 4096, "durable write, 4 KiB, in memory"),
    ("latency-write", "file", 4096, "durable write, 4 KiB, to a file"),
    ("latency-read", "auto", 4096, "read, 4 KiB"),
    ("bandwidth-write", "stream", 65_536, "writes, 64 KiB, 16 in flight"),
];

/// One line.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Row {
    operation: String,
    pmof: f64,
    /// The floor, or a peer.
    beside: String,
    beside_value: f64,
    unit: &'static str,
    /// pmof over what is beside it: the median of the rounds' ratios, and their extremes.
    ratio: f64,
    ratio_min: f64,
    ratio_max: f64,
    rounds: Option<u64>,
}

#[derive(Debug, Serialize)]
struct Rows {
    rows: Vec<Row>,
    source: String,
}

pub(crate) fn run(args: &RowsArgs) -> Result<()> {
    let document = Document::read(&args.report)?;
    let rows = Rows { rows: rows(&document)?, source: source(&document) };
    ensure!(!rows.rows.is_empty(), "the report has measured nothing that is quoted: make it without --only");
    if args.json {
        return print_json(&rows);
    }
    say!("{}", rows.markdown());
    Ok(())
}

fn rows(document: &Document) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for transport in &document.plan.transports {
        let of = |chart: &str, series: &str, x: u64| -> Result<Option<Measured>> {
            let is_it = |place: &crate::Place| {
                (place.chart.as_str(), place.series.as_str(), place.x) == (chart, series, x)
                    && place.transport == *transport
            };
            Ok(document
                .cells
                .iter()
                .find(|cell| is_it(&cell.place))
                .map(crate::Finished::measured)
                .transpose()?
                .flatten())
        };
        for (chart, series, x, operation) in QUOTED {
            let metric = if chart.starts_with("latency") { Metric::Latency } else { Metric::Bandwidth };
            if let Some(Measured { own, floor: Ok(floor), .. }) = of(chart, series, x)? {
                rows.push(row(
                    format!("{transport}: {operation}"),
                    "floor".to_owned(),
                    (metric.of(&own).median, metric.of(&floor.numbers).median, metric.ratio(&floor)),
                    metric.unit(),
                ));
            }
        }
        for (chart, medium) in
            [("peers-memory", "in memory"), ("peers-file", "to a file"), ("peers-verbs", "in memory")]
        {
            for (x, size) in [(64, "64 B"), (512, "512 B"), (4096, "4 KiB"), (65_536, "64 KiB")] {
                let Some(measured) = of(chart, "pmof", x)? else { continue };
                for peer in &measured.peers {
                    let (Ok(theirs), Some(ratio)) = (&peer.measured, peer.ratio) else { continue };
                    let (own, theirs) = (measured.own.p50_us.median, theirs.own.p50_us.median);
                    let operation = format!("{transport}: durable write, {size}, {medium}");
                    rows.push(row(operation, peer.name.clone(), (own, theirs, ratio), Metric::Latency.unit()));
                }
            }
        }
    }
    Ok(rows)
}

fn row(operation: String, beside: String, (pmof, other, ratio): (f64, f64, RoundRatios), unit: &'static str) -> Row {
    let RoundRatios { median, min, max, rounds } = ratio;
    Row { operation, pmof, beside, beside_value: other, unit, ratio: median, ratio_min: min, ratio_max: max, rounds }
}

/// Where the numbers come from: what whoever reads them needs to judge or repeat them.
fn source(document: &Document) -> String {
    let machine = &document.machine;
    format!(
        "Measured {} with `pmof report{}`, pmof {} ({} build), on {} ({} CPUs{}), Linux {}, load {:.1} at the start.",
        document.started.get(..10).unwrap_or(&document.started),
        document.plan.options(),
        machine.pmof,
        machine.build,
        machine.cpu,
        machine.cpus,
        if machine.is_virtual { ", virtual" } else { "" },
        machine.kernel,
        machine.load_average
    )
}

/// All lines of a report.
#[cfg(test)]
pub(crate) fn markdown(document: &Document) -> Result<String> {
    Ok(Rows { rows: rows(document)?, source: source(document) }.markdown())
}

impl Rows {
    fn markdown(&self) -> String {
        let head = "| operation | pmof | beside | it takes | pmof over it |\n|---|---|---|---|---|".to_owned();
        let line = |row: &Row| {
            let Row {
                operation,
                pmof,
                beside,
                beside_value,
                unit,
                ratio: median,
                ratio_min: min,
                ratio_max: max,
                rounds,
            } = row;
            let ratios = RoundRatios { median: *median, min: *min, max: *max, rounds: *rounds };
            let ratio = ratios.text(Some(pmof / beside_value), |ratio| format!("{ratio:.2}"));
            format!("| {operation} | {pmof:.1} {unit} | {beside} | {beside_value:.1} {unit} | {ratio} |")
        };
        let lines = iter::once(head).chain(self.rows.iter().map(line)).chain([String::new(), self.source.clone()]);
        lines.collect::<Vec<_>>().join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_the_numbers_of_the_report_with_their_day_and_command() {
        let mut document = Document::parse(include_bytes!("../tests/golden/report-1.json")).unwrap();
        let found = rows(&document).unwrap();
        let first = found.iter().find(|row| row.operation == "tcp: durable write, 4 KiB, in memory").unwrap();
        assert_eq!((first.unit, first.beside.as_str()), ("µs", "floor"));
        assert!(first.pmof > 0.0 && first.beside_value > 0.0 && first.ratio > 0.0, "{first:?}");
        document.plan.quick = true;
        let text = Rows { rows: found.clone(), source: source(&document) }.markdown();
        assert!(text.lines().count() == found.len() + 4, "{text}");
        let day = &document.started[..10];
        let command = "pmof report --quick --transports tcp,shm,verbs --time 0.45s --rounds 9";
        assert!(text.contains(&format!("Measured {day} with `{command}`")), "{text}");
        document.cells.clear();
        assert!(rows(&document).unwrap().is_empty());
    }
}
