//! What is measured: charts, their series, and the cells of both, each one run of `pmof bench`.

use std::net::IpAddr;

use anyhow::{Result, ensure};
use pmof_access::Transport;
use pmof_console::ratios::RoundRatios;
use serde::{Deserialize, Serialize};

use crate::{
    MEASURED,
    document::{Floor, Interval, Numbers, Place},
};

mod charts;

pub(crate) use charts::CHARTS;

/// What the operator asked for. It is saved with the cells, so that a report is resumed as it was begun.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Fewer sizes, shorter rounds.
    pub quick: bool,
    /// The transports, in the order of the report.
    pub transports: Vec<String>,
    /// Where the targets listen.
    pub address: Option<IpAddr>,
    /// Where the initiator comes from, over verbs.
    pub source: Option<IpAddr>,
    /// Parts of the names of the cells that are wanted; all where empty.
    pub only: Vec<String>,
    /// How long each contender of a cell is measured.
    pub seconds: f64,
    /// Rounds of each cell.
    pub rounds: u64,
    /// CPU of the initiator, and of the targets and floors.
    pub initiator_cpu: Option<usize>,
    /// The same for targets and floors.
    pub target_cpu: Option<usize>,
}

/// What a chart compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Metric {
    /// The median latency, in microseconds.
    Latency,
    /// MiB a second.
    Bandwidth,
}

/// What changes from the left to the right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Axis {
    Size,
    Threads,
    Depth,
    Load,
    Replicas,
}

/// A chart, for each transport or for all of them together.
#[derive(Debug)]
pub(crate) struct Chart {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    /// What is the same for all points.
    pub(crate) fixed: &'static str,
    pub(crate) metric: Metric,
    pub(crate) axis: Axis,
    /// One chart for each transport, as its series are many.
    pub(crate) by_transport: bool,
    /// Options of all cells.
    pub(crate) options: &'static str,
    pub(crate) series: &'static [Series],
}

/// A line of a chart.
#[derive(Debug)]
pub(crate) struct Series {
    /// Part of a cell's name.
    pub(crate) name: &'static str,
    /// For people.
    pub(crate) label: &'static str,
    pub(crate) mode: &'static str,
    pub(crate) medium: &'static str,
    /// More options.
    pub(crate) options: &'static str,
    /// Only over this transport.
    pub(crate) transport: Option<&'static str>,
    /// Left out by `--quick`.
    pub(crate) is_slow: bool,
}

/// One point to be measured.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Cell {
    pub(crate) place: Place,
    /// Arguments of `pmof`.
    pub(crate) arguments: Vec<String>,
    /// How long it should take.
    pub(crate) estimate_s: f64,
}

impl Metric {
    fn command(self) -> &'static str {
        match self {
            Self::Latency => "latency",
            Self::Bandwidth => "bandwidth",
        }
    }

    pub(crate) fn unit(self) -> &'static str {
        match self {
            Self::Latency => "µs",
            Self::Bandwidth => "MiB/s",
        }
    }

    pub(crate) fn of(self, numbers: &Numbers) -> Interval {
        match self {
            Self::Latency => numbers.p50_us,
            Self::Bandwidth => numbers.mib_per_s,
        }
    }

    pub(crate) fn ratio(self, floor: &Floor) -> RoundRatios {
        match self {
            Self::Latency => floor.ratio_p50,
            Self::Bandwidth => floor.ratio_bandwidth,
        }
    }
}

impl Axis {
    /// The points of a full and of a quick report.
    pub(crate) fn points(self, quick: bool) -> &'static [u64] {
        match (self, quick) {
            (Self::Size, true) => &[64, 512, 4096, 65_536],
            (Self::Size, false) => &[64, 256, 512, 1024, 4096, 8192, 16_384, 32_768, 65_536, 131_072, 262_144],
            (Self::Threads, true) => &[1, 2, 8],
            (Self::Threads, false) => &[1, 2, 4, 8, 12, 16, 32, 64],
            (Self::Depth, true) => &[1, 4, 16, 64],
            (Self::Depth, false) => &[1, 2, 4, 8, 16, 32, 64, 128],
            (Self::Load, true) => &[0, 50, 99],
            (Self::Load, false) => &[0, 25, 50, 75, 80, 85, 90, 95, 99],
            (Self::Replicas, _) => &[1, 2, 3],
        }
    }

    fn option(self) -> &'static str {
        match self {
            Self::Size => "--size",
            Self::Threads => "--threads",
            Self::Depth => "--depth",
            Self::Load => "--target-load",
            Self::Replicas => "--replicas",
        }
    }

    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Size => "block size (bytes)",
            Self::Threads => "threads",
            Self::Depth => "operations in flight",
            Self::Load => "load on the target's CPU (%)",
            Self::Replicas => "replicas",
        }
    }

    /// Doubles from mark to mark.
    pub(crate) fn is_logarithmic(self) -> bool {
        matches!(self, Self::Size | Self::Threads | Self::Depth)
    }
}

/// The chart of this name.
pub(crate) fn chart(name: &str) -> Option<&'static Chart> {
    CHARTS.iter().find(|chart| chart.name == name)
}

impl Chart {
    /// Its cells measure what users have instead, too.
    fn has_peers(&self) -> bool {
        self.options.contains("--peers")
    }

    /// Its series of this name.
    pub(crate) fn series(&self, name: &str) -> Option<&'static Series> {
        self.series.iter().find(|series| series.name == name)
    }
}

/// How long each contender of a cell is measured by default, in seconds, and in how many rounds. What keeps a quick report of two transports below
/// six minutes on two CPUs; six rounds give 95 % confidence.
pub(crate) fn extent(quick: bool) -> (f64, u64) {
    if quick { (0.25, 7) } else { (3.0, 15) }
}

/// Of setting up and taking down a cell.
const SET_UP_S: f64 = 0.5;

/// Peers that are measured where all are installed, and what it takes to start and end all of them.
const PEERS: f64 = 10.0;
const PEER_SIZES: &[u64] = &[64, 512, 4096, 65_536];
const PEERS_SET_UP_S: f64 = 4.0;

impl Plan {
    /// All cells, in the order in which they are measured and shown.
    pub(crate) fn cells(&self) -> Vec<Cell> {
        let mut cells = self.every_cell();
        cells.retain(|cell| {
            self.only.is_empty() || self.only.iter().any(|part| cell.place.to_string().contains(part.as_str()))
        });
        cells
    }

    /// Those of all names.
    fn every_cell(&self) -> Vec<Cell> {
        let mut cells = Vec::new();
        for chart in CHARTS {
            for transport in &self.transports {
                for series in chart.series.iter().filter(|series| self.wants(series, transport)) {
                    let points = if chart.has_peers() { PEER_SIZES } else { chart.axis.points(self.quick) };
                    cells.extend(points.iter().map(|x| self.cell(chart, series, transport, *x)));
                }
            }
        }
        cells
    }

    /// The options of the command that made it; those left out are as by default.
    pub(crate) fn options(&self) -> String {
        let mut words: Vec<String> = if self.quick { vec![" --quick".to_owned()] } else { Vec::new() };
        let mut add = |option: &str, value: String| words.push(format!(" {option} {value}"));
        if self.transports != MEASURED.map(Transport::scheme) {
            add("--transports", self.transports.join(","));
        }
        for (option, address) in [("--address", self.address), ("--source", self.source)] {
            if let Some(address) = address {
                add(option, address.to_string());
            }
        }
        for part in &self.only {
            add("--only", part.clone());
        }
        let (seconds, rounds) = extent(self.quick);
        if (self.seconds - seconds).abs() > f64::EPSILON {
            add("--time", format!("{}s", self.seconds));
        }
        if self.rounds != rounds {
            add("--rounds", self.rounds.to_string());
        }
        words.concat()
    }

    /// Fails where a part of a name is in none.
    pub(crate) fn check(&self) -> Result<()> {
        let names: Vec<String> = self.every_cell().iter().map(|cell| cell.place.to_string()).collect();
        let nowhere = self.only.iter().find(|part| !names.iter().any(|name| name.contains(part.as_str())));
        ensure!(
            nowhere.is_none(),
            "no cell has a name that contains {}, which --only asks for: `pmof report --list` prints the names",
            nowhere.map(String::as_str).unwrap_or_default()
        );
        Ok(())
    }

    fn wants(&self, series: &Series, transport: &str) -> bool {
        !(self.quick && series.is_slow) && series.transport.is_none_or(|only| only == transport)
    }

    fn cell(&self, chart: &Chart, series: &Series, transport: &str, x: u64) -> Cell {
        let mut arguments: Vec<String> = ["bench", chart.metric.command()].map(str::to_owned).into();
        arguments.extend(self.reach(transport));
        for (option, value) in [("--medium", series.medium), ("--mode", series.mode)] {
            arguments.extend([option.to_owned(), value.to_owned()]);
        }
        let words = chart.options.split_whitespace().chain(series.options.split_whitespace());
        arguments.extend(words.map(str::to_owned));
        arguments.extend([chart.axis.option().to_owned(), x.to_string()]);
        for (option, cpu) in [("--initiator-cpu", self.initiator_cpu), ("--target-cpu", self.target_cpu)] {
            arguments.extend(cpu.into_iter().flat_map(|cpu| [option.to_owned(), cpu.to_string()]));
        }
        arguments.extend(["--rounds".to_owned(), self.rounds.to_string()]);
        arguments.extend(["--time".to_owned(), self.seconds.to_string()]);
        let (contenders, set_up_s) = match chart.axis {
            Axis::Replicas if x > 1 => (3.0, SET_UP_S),
            _ if chart.has_peers() => (2.0 + PEERS, PEERS_SET_UP_S),
            _ => (2.0, SET_UP_S),
        };
        let place =
            Place { chart: chart.name.to_owned(), transport: transport.to_owned(), series: series.name.to_owned(), x };
        Cell { place, arguments, estimate_s: set_up_s + contenders * self.seconds }
    }

    /// One operation: what shows whether a mode works over a transport.
    pub(crate) fn trial(&self, transport: &str, mode: &str) -> Vec<String> {
        let mut arguments: Vec<String> = ["bench", "latency"].map(str::to_owned).into();
        arguments.extend(self.reach(transport));
        arguments.extend(["--mode", mode, "--count", "1", "--rounds", "1"].map(str::to_owned));
        arguments
    }

    fn reach(&self, transport: &str) -> Vec<String> {
        let mut options = vec!["--transport".to_owned(), transport.to_owned()];
        // Shm has no addresses, and only verbs has sources.
        let of = |option: &str, address: Option<IpAddr>| address.map(|ip| [option.to_owned(), ip.to_string()]);
        if transport != "shm" {
            options.extend(of("--address", self.address).into_iter().flatten());
        }
        if transport == "verbs" {
            options.extend(of("--source", self.source).into_iter().flatten());
        }
        options
    }
}

#[cfg(test)]
mod tests;
