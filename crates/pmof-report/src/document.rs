//! The report as JSON: what the page, the table and comparisons are made of.

use std::{fmt, fs, io, path::Path};

use anyhow::{Context as _, Result, bail, ensure};
use pmof_console::ratios::RoundRatios;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{machine::Machine, matrix::Plan};

/// The format. A reader refuses newer ones.
pub const FORMAT: u32 = 1;

/// A whole report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Document {
    /// [`FORMAT`]; its name tells a report from other objects.
    pub pmof_report: u32,
    /// When its first cell was measured (RFC 3339).
    pub started: String,
    /// When its last one was.
    pub finished: String,
    /// What was asked for.
    pub plan: Plan,
    /// Where it was measured.
    pub machine: Machine,
    /// All cells, in the order of the charts.
    pub cells: Vec<Finished>,
}

/// A cell that was measured, or why it was not.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finished {
    /// Which one.
    #[serde(flatten)]
    pub place: Place,
    /// What repeats it.
    pub command: String,
    /// What came of it.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// Where a cell belongs; its text names it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Place {
    /// The chart.
    pub chart: String,
    /// The transport.
    pub transport: String,
    /// The line of the chart.
    pub series: String,
    /// Where on the chart's axis.
    pub x: u64,
}

/// What came of a cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// What `pmof bench --json` printed, histograms and all.
    Result(Value),
    /// Why it was not measured.
    Skipped(String),
}

/// What a report needs of a result.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Measured {
    pub(crate) own: Numbers,
    /// The bare work of the transport, measured in the same rounds; or why there is none.
    pub(crate) floor: Result<Floor, String>,
    /// How it was made durable; `None` for reads.
    pub(crate) reached: Option<Reached>,
    /// What users have instead, measured in the same rounds.
    pub(crate) peers: Vec<Beside>,
}

/// What users have instead of pmof.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Beside {
    pub(crate) name: String,
    /// Its numbers, whose missing floor says how pmof compares; or why there are none.
    pub(crate) measured: Result<Measured, String>,
    /// What pmof takes of its time, where it was measured.
    pub(crate) ratio: Option<RoundRatios>,
}

/// One contender.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Numbers {
    pub(crate) samples: u64,
    pub(crate) p50_us: Interval,
    pub(crate) p90_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p999_us: f64,
    pub(crate) p9999_us: f64,
    pub(crate) max_us: f64,
    pub(crate) mean_us: f64,
    pub(crate) stddev_us: f64,
    pub(crate) mib_per_s: Interval,
    pub(crate) operations_per_s: f64,
    /// CPU time of the initiator and of the target for each operation; not known of every contender.
    pub(crate) cpu_us: Option<[f64; 2]>,
    /// Bytes that left the initiator for each operation, and that came to it; not known of every contender.
    pub(crate) moved_bytes: Option<[f64; 2]>,
}

/// The floor, and what pmof takes over it: medians of each round's own ratio, between the extremes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Floor {
    pub(crate) numbers: Numbers,
    pub(crate) ratio_p50: RoundRatios,
    pub(crate) ratio_bandwidth: RoundRatios,
}

/// A median, and two values that it lies between.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Interval {
    pub(crate) median: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

/// How writes were made durable.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Reached {
    pub(crate) durability: String,
    pub(crate) method: String,
    pub(crate) mechanism: String,
    pub(crate) evidence: String,
}

impl fmt::Display for Place {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { chart, transport, series, x } = self;
        write!(to, "{chart}/{transport}/{series}/{x}")
    }
}

impl Document {
    /// Reads a report, and says what is wrong with a file that is none.
    ///
    /// # Errors
    /// The file cannot be read, is no report, is cut short, or has a newer format.
    pub fn read(path: &Path) -> Result<Self> {
        let text = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("{} is not a report that can be read", path.display()))
    }

    /// The same, of a file's bytes.
    ///
    /// # Errors
    /// They are no report, are cut short, or have a newer format.
    pub fn parse(text: &[u8]) -> Result<Self> {
        let value: Value = match serde_json::from_slice(text) {
            Ok(value) => value,
            Err(error) if error.is_eof() => bail!("it is cut short: copy it again, or make it again"),
            Err(error) => bail!("it is no JSON ({error}): name the report.json that `pmof report` wrote"),
        };
        match value.get("pmof_report").and_then(Value::as_u64) {
            None => bail!("it is JSON of another kind: name the report.json that `pmof report` wrote"),
            Some(format) => ensure!(
                format <= FORMAT.into(),
                "it has format {format}, and this pmof knows {FORMAT} and older ones: use the pmof that wrote it, or a newer one"
            ),
        }
        let document: Self = serde_json::from_value(value).context("a part of it is missing or of another kind")?;
        for cell in &document.cells {
            cell.measured().with_context(|| format!("its cell {}", cell.place))?;
        }
        Ok(document)
    }

    /// How many cells were measured, and how many were skipped.
    pub fn counts(&self) -> (usize, usize) {
        let done = self.cells.iter().filter(|cell| matches!(cell.outcome, Outcome::Result(_))).count();
        (done, self.cells.len() - done)
    }

    /// Why the first of the cells that were skipped was.
    pub(crate) fn why_skipped(&self) -> Option<&str> {
        self.cells.iter().find_map(|cell| match &cell.outcome {
            Outcome::Skipped(why) => Some(why.as_str()),
            Outcome::Result(_) => None,
        })
    }

    /// The text of the file.
    ///
    /// # Errors
    /// Never, but for a lack of memory.
    pub fn to_json(&self) -> Result<String> {
        Ok(serde_json::to_string(self)? + "\n")
    }
}

impl Finished {
    /// The numbers; `None` where it was skipped.
    pub(crate) fn measured(&self) -> Result<Option<Measured>> {
        match &self.outcome {
            Outcome::Result(value) => Measured::of(value).map(Some),
            Outcome::Skipped(_) => Ok(None),
        }
    }
}

impl Measured {
    /// From what `pmof bench --json` prints.
    pub(crate) fn of(value: &Value) -> Result<Self> {
        let rounds = value.get("rounds").and_then(Value::as_u64);
        let floor = match value.get("no_floor").and_then(Value::as_str) {
            Some(why) => Err(why.to_owned()),
            None => Ok(Floor {
                numbers: Numbers::of(value, "floor_")?,
                ratio_p50: ratios(value, "ratio_p50", rounds)?,
                ratio_bandwidth: ratios(value, "ratio_bandwidth", rounds)?,
            }),
        };
        let peers = value.get("peers").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let peers = peers.iter().map(|peer| Beside::of(peer, rounds)).collect::<Result<_>>()?;
        Ok(Self { own: Numbers::of(value, "")?, floor, reached: Reached::of(value), peers })
    }
}

impl Reached {
    fn of(value: &Value) -> Option<Self> {
        let word = |name: &str| value.get(name).and_then(Value::as_str).map(str::to_owned);
        Some(Self {
            durability: word("durability")?,
            method: word("method")?,
            mechanism: word("mechanism")?,
            evidence: word("evidence")?,
        })
    }
}

impl Beside {
    fn of(value: &Value, rounds: Option<u64>) -> Result<Self> {
        let word = |name: &str| value.get(name).and_then(Value::as_str).map(str::to_owned);
        let name = word("name").context("a peer has no name")?;
        let absent = word("skipped").or_else(|| Some(format!("it failed: {}", word("failed")?)));
        if let Some(why) = absent {
            return Ok(Self { name, measured: Err(why), ratio: None });
        }
        let ratio = ratios(value, "ratio_p50", rounds)?;
        let compared = format!("pmof over it, of its time: {}", ratio.text(None, |ratio| format!("{ratio:.2}")));
        let (own, reached) = (Numbers::of(value, "")?, Reached::of(value));
        let measured = Ok(Measured { own, floor: Err(compared), reached, peers: Vec::new() });
        Ok(Self { name, measured, ratio: Some(ratio) })
    }
}

impl Numbers {
    fn of(value: &Value, prefix: &str) -> Result<Self> {
        let of = |name: &str| number(value, &format!("{prefix}{name}"));
        let interval = |name: &str| -> Result<Interval> {
            Ok(Interval { median: of(name)?, low: of(&format!("{name}_low"))?, high: of(&format!("{name}_high"))? })
        };
        Ok(Self {
            samples: value
                .get(format!("{prefix}samples"))
                .and_then(Value::as_u64)
                .with_context(|| format!("{prefix}samples is missing"))?,
            p50_us: interval("p50_us")?,
            p90_us: of("p90_us")?,
            p99_us: of("p99_us")?,
            p999_us: of("p999_us")?,
            p9999_us: of("p9999_us")?,
            max_us: of("max_us")?,
            mean_us: of("mean_us")?,
            stddev_us: of("stddev_us")?,
            mib_per_s: interval("mib_per_s")?,
            operations_per_s: of("operations_per_s")?,
            cpu_us: of("initiator_cpu_us").ok().zip(of("target_cpu_us").ok()).map(<[f64; 2]>::from),
            moved_bytes: of("sent_bytes").ok().zip(of("received_bytes").ok()).map(<[f64; 2]>::from),
        })
    }
}

fn ratios(value: &Value, name: &str, rounds: Option<u64>) -> Result<RoundRatios> {
    let of = |end: &str| number(value, &format!("{name}{end}"));
    Ok(RoundRatios { median: of("")?, min: of("_min")?, max: of("_max")?, rounds })
}

fn number(value: &Value, name: &str) -> Result<f64> {
    value.get(name).and_then(Value::as_f64).with_context(|| format!("{name} is missing"))
}

/// Writes a file that is there whole or not at all.
pub(crate) fn write_whole(path: &Path, text: &[u8]) -> io::Result<()> {
    use std::{io::Write as _, os::unix::fs::PermissionsExt as _};

    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut builder = tempfile::Builder::new();
    // Narrowed by the umask, as for any new file.
    builder.prefix(".pmof-report-").permissions(fs::Permissions::from_mode(0o666));
    let mut file = builder.tempfile_in(directory)?;
    file.write_all(text)?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

#[cfg(test)]
mod tests;
