//! What each chart of the page shows.

use anyhow::Result;
use serde::Serialize;
use serde_json::{Value, json};

use super::words::x_text;
use crate::{
    document::{Beside, Document, Finished, Interval, Measured, Outcome},
    matrix::{Axis, CHARTS, Chart, Metric, Series},
};

/// A chart with its tables.
#[derive(Debug)]
pub(super) struct Figure {
    pub(super) id: String,
    pub(super) title: String,
    pub(super) chart: &'static Chart,
    pub(super) series: Vec<Shown>,
    pub(super) lines: Vec<Line>,
    pub(super) rows: Vec<Row>,
}

/// A series of one transport.
#[derive(Debug)]
pub(super) struct Shown {
    pub(super) index: usize,
    /// For tables: the transport and the series.
    pub(super) short: String,
    transport: String,
    definition: &'static Series,
}

/// A cell of a series, or a peer of it.
#[derive(Debug)]
struct Point {
    x: u64,
    command: String,
    measured: Result<Measured, String>,
}

/// A line that is drawn.
#[derive(Debug, Serialize)]
pub(super) struct Line {
    pub(super) label: String,
    pub(super) is_floor: bool,
    /// One of its own: no two lines of a chart share it.
    pub(super) color: String,
    /// Place, median, and both ends of its interval.
    pub(super) points: Vec<[f64; 4]>,
}

/// A cell.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) series: usize,
    pub(super) x: u64,
    pub(super) metric: Metric,
    pub(super) measured: Result<Measured, String>,
    pub(super) command: String,
}

/// Every chart of which a report has cells.
pub(super) fn figures(document: &Document) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for chart in CHARTS {
        let groups: Vec<Vec<&String>> = if chart.by_transport {
            document.plan.transports.iter().map(|transport| vec![transport]).collect()
        } else {
            vec![document.plan.transports.iter().collect()]
        };
        for transports in groups {
            let figure = figure(document, chart, &transports)?;
            figures.extend((!figure.rows.is_empty()).then_some(figure));
        }
    }
    Ok(figures)
}

fn figure(document: &Document, chart: &'static Chart, transports: &[&String]) -> Result<Figure> {
    let (mut id, mut title) = (chart.name.to_owned(), chart.title.to_owned());
    if chart.by_transport {
        for transport in transports {
            id = format!("{id}-{transport}");
            title = format!("{title}, {transport}");
        }
    }
    let mut figure = Figure { id, title, chart, series: Vec::new(), lines: Vec::new(), rows: Vec::new() };
    let mut floors: Vec<(&str, &str, bool)> = Vec::new();
    for transport in transports {
        for definition in chart.series {
            let cells = document.cells.iter().filter(|cell| {
                let place = &cell.place;
                place.chart == chart.name && place.transport == **transport && place.series == definition.name
            });
            let cells: Vec<&Finished> = cells.collect();
            if cells.is_empty() {
                continue;
            }
            let mut points = Vec::with_capacity(cells.len());
            for cell in &cells {
                let measured = match (&cell.outcome, cell.measured()?) {
                    (Outcome::Skipped(why), _) => Err(why.clone()),
                    (Outcome::Result(_), None) => continue,
                    (Outcome::Result(_), Some(measured)) => Ok(measured),
                };
                points.push(Point { x: cell.place.x, command: cell.command.clone(), measured });
            }
            let peers = peers(&points);
            let floor = (transport.as_str(), definition.medium, reads(definition));
            let has_floor = !floors.contains(&floor);
            if figure.add(format!("{transport}, {}", definition.label), (transport, definition), points, has_floor) {
                floors.push(floor);
            }
            for (name, points) in peers {
                figure.add(name, (transport, definition), points, false);
            }
        }
    }
    Ok(figure)
}

/// The points of each peer that was measured beside a series, in the order in which they were named.
fn peers(cells: &[Point]) -> Vec<(String, Vec<Point>)> {
    let mut peers: Vec<(String, Vec<Point>)> = Vec::new();
    for cell in cells {
        for Beside { name, measured, .. } in cell.measured.iter().flat_map(|measured| &measured.peers) {
            let point = Point { x: cell.x, command: cell.command.clone(), measured: measured.clone() };
            match peers.iter_mut().find(|(known, _)| known == name) {
                Some((_, points)) => points.push(point),
                None => peers.push((name.clone(), vec![point])),
            }
        }
    }
    peers
}

fn reads(series: &Series) -> bool {
    series.options.contains("read")
}

impl Figure {
    /// Adds a series, and its floor unless that is there already; true where the floor was added.
    fn add(
        &mut self,
        short: String,
        (transport, definition): (&str, &'static Series),
        cells: Vec<Point>,
        with_floor: bool,
    ) -> bool {
        let series = Shown { index: self.series.len(), short, transport: transport.to_owned(), definition };
        let (mut points, mut floor_points) = (Vec::new(), Vec::new());
        let mut label = None;
        let metric = self.chart.metric;
        for Point { x, command, measured } in cells {
            if let Ok(measured) = &measured {
                let point = |value: Interval| [x as f64, value.median, value.low, value.high];
                points.push(point(metric.of(&measured.own)));
                floor_points.extend(measured.floor.iter().map(|floor| point(metric.of(&floor.numbers))));
                label.get_or_insert_with(|| label_of(&series, measured));
            }
            self.rows.push(Row { series: series.index, x, metric, measured, command });
        }
        let has_floor = with_floor && !floor_points.is_empty();
        if let Some(label) = label {
            let color = color(self.lines.len());
            self.lines.push(Line { label, is_floor: false, color, points });
        }
        if has_floor {
            let (label, color) = (floor_label(&series, self.chart), color(self.lines.len()));
            self.lines.push(Line { label, is_floor: true, color, points: floor_points });
        }
        self.series.push(series);
        has_floor
    }

    /// What the page's script draws.
    pub(super) fn data(&self) -> Value {
        let Chart { axis, metric, .. } = self.chart;
        json!({
            "id": self.id,
            "x": {
                "label": axis.label(),
                "is_logarithmic": axis.is_logarithmic(),
                "places": self.places(),
                "texts": self.places().iter().map(|x| x_text(*axis, *x)).collect::<Vec<_>>(),
                "ticks": self.places().iter().map(|x| tick(*axis, *x)).collect::<Vec<_>>(),
            },
            "y": { "label": match metric { Metric::Latency => "median latency (µs)", Metric::Bandwidth => "MiB/s" }, "unit": metric.unit() },
            "lines": self.lines,
        })
    }

    /// How many points are drawn.
    pub(super) fn points(&self) -> usize {
        self.lines.iter().map(|line| line.points.len()).sum()
    }

    /// Places on the axis that a cell has.
    pub(super) fn places(&self) -> Vec<u64> {
        let mut places: Vec<u64> = self.rows.iter().map(|row| row.x).collect();
        places.sort_unstable();
        places.dedup();
        places
    }

    pub(super) fn row(&self, series: usize, x: u64) -> Option<&Row> {
        self.rows.iter().find(|row| row.series == series && row.x == x)
    }

    /// The series that have a measured cell.
    pub(super) fn measured(&self) -> impl Iterator<Item = &Shown> {
        let has_one = |index| self.rows.iter().any(|row| row.series == index && row.measured.is_ok());
        self.series.iter().filter(move |series| has_one(series.index))
    }

    /// What was skipped and why: series, with their places unless all of them were.
    pub(super) fn skipped(&self) -> Vec<(String, &str)> {
        let mut skipped: Vec<(String, &str)> = Vec::new();
        for series in &self.series {
            let rows: Vec<&Row> = self.rows.iter().filter(|row| row.series == series.index).collect();
            let mut reasons: Vec<&str> = Vec::new();
            for why in rows.iter().filter_map(|row| row.measured.as_ref().err()) {
                if !reasons.contains(&why.as_str()) {
                    reasons.push(why);
                }
            }
            for why in reasons {
                let at = rows.iter().filter(|row| row.measured.as_ref().err().is_some_and(|other| other == why));
                let at: Vec<String> = at.map(|row| x_text(self.chart.axis, row.x)).collect();
                let what = if at.len() == rows.len() {
                    series.short.clone()
                } else {
                    format!("{} at {}", series.short, at.join(", "))
                };
                match skipped.iter_mut().find(|(_, other)| *other == why) {
                    Some((names, _)) => *names = format!("{names}; {what}"),
                    None => skipped.push((what, why)),
                }
            }
        }
        skipped
    }
}

/// The transport and the series, the durability reached and by what.
fn label_of(series: &Shown, measured: &Measured) -> String {
    match &measured.reached {
        Some(reached) => format!(
            "{}: {} by {} ({}, {})",
            series.short, reached.durability, reached.method, reached.mechanism, reached.evidence
        ),
        None => series.short.clone(),
    }
}

fn floor_label(series: &Shown, chart: &Chart) -> String {
    let transport = &series.transport;
    let is_file = series.definition.medium == "file";
    let exchange = match chart.metric {
        Metric::Latency => "a raw exchange",
        Metric::Bandwidth => "a raw stream with answers",
    };
    let what = match (transport.as_str(), reads(series.definition), is_file) {
        ("shm", true, _) => "the same loads in the process".to_owned(),
        ("shm", false, true) => "the same stores and msync in the process".to_owned(),
        ("shm", false, false) => "the same stores in the process".to_owned(),
        (_, false, true) => format!("{exchange}, with pwrite and fdatasync"),
        _ => exchange.to_owned(),
    };
    format!("floor of {transport}: {what}")
}

/// Colours that the style sheet chooses.
const COLORS: usize = 12;

/// A colour of the style sheet, as the name of its property; behind these, one by the golden angle.
fn color(index: usize) -> String {
    match index.checked_sub(COLORS) {
        None => format!("--c{index}"),
        Some(more) => format!("hsl({:.1} 65% {}%)", (more as f64 * 137.508 + 20.0) % 360.0, 42 + more / 24 % 3 * 10),
    }
}

/// A short form for the axis itself.
pub(super) fn tick(axis: Axis, x: u64) -> String {
    match axis {
        Axis::Size if x >= 1024 && x % 1024 == 0 => format!("{}K", x >> 10),
        _ => x.to_string(),
    }
}
