//! What a measurement prints: one JSON object, or a few lines for people.

use anyhow::{Context as _, Result};
use pmof::{Flushed, Receipt, ReplicaReceipt};
use pmof_console::{output::print_json, ratios::RoundRatios};
use serde::Serialize;
use serde_json::{Map, Value};

use super::statistics::{LatencySummary, Spread};

/// Named values in the order of their names.
#[derive(Debug, Default)]
pub(super) struct Report(Map<String, Value>);

impl Report {
    /// Adds a value under a name that carries its unit.
    pub(super) fn put(&mut self, name: &str, value: impl Serialize) -> Result<&mut Self> {
        self.0.insert(name.to_owned(), serde_json::to_value(value).with_context(|| format!("reporting {name}"))?);
        Ok(self)
    }

    /// Adds every value of a summary, each name after `prefix`.
    pub(super) fn put_latencies(&mut self, prefix: &str, summary: &LatencySummary) -> Result<&mut Self> {
        if let Value::Object(fields) = serde_json::to_value(summary)? {
            self.0.extend(fields.into_iter().map(|(name, value)| (format!("{prefix}{name}"), value)));
        }
        Ok(self)
    }

    /// Adds the median under `name`, and the extremes under `name_min` and `name_max`.
    pub(super) fn put_spread(&mut self, name: &str, spread: &Spread) -> Result<&mut Self> {
        self.put(name, spread.median)?;
        self.put(&format!("{name}_min"), spread.min)?;
        self.put(&format!("{name}_max"), spread.max)
    }

    /// Says that there was no floor, and why: every name of `absent` is null.
    pub(super) fn put_no_floor(&mut self, why: &str, absent: &[&str]) -> Result<&mut Self> {
        for name in absent {
            self.put(name, Value::Null)?;
        }
        self.put("no_floor", why)
    }

    /// Adds what a flush of one connection reached, under the names of a receipt.
    pub(super) fn put_flushed(&mut self, flushed: Flushed) -> Result<&mut Self> {
        let Flushed { durability, method, promise } = flushed;
        self.put("durability", durability.to_string())?;
        self.put("method", method.to_string())?;
        self.put("mechanism", promise.mechanism.to_string())?;
        self.put("evidence", promise.evidence.to_string())
    }

    /// Adds what a receipt says: `durability`, `method`, `mechanism`, `evidence`.
    pub(super) fn put_receipt(&mut self, receipt: &Receipt) -> Result<&mut Self> {
        let replica = receipt.replicas.first().context("the receipt names no replica")?;
        let ReplicaReceipt { method, promise, .. } = replica;
        self.put("durability", receipt.durability.to_string())?;
        self.put("method", method.to_string())?;
        self.put("mechanism", promise.mechanism.to_string())?;
        self.put("evidence", promise.evidence.to_string())
    }

    /// The object, to be a part of another one.
    pub(super) fn into_value(self) -> Value {
        Value::Object(self.0)
    }

    /// Prints the object on one line.
    pub(super) fn print(self) -> Result<()> {
        print_json(&self.0)
    }
}

/// A line of a table of latencies in microseconds.
pub(super) fn latency_line(what: &str, summary: &LatencySummary) -> String {
    let LatencySummary { p50_us, p90_us, p99_us, p999_us, .. } = summary;
    format!("{what:<12}{p50_us:>12.2}{p90_us:>12.2}{p99_us:>12.2}{p999_us:>12.2}")
}

/// The head of that table.
pub(super) fn latency_head() -> String {
    format!("{:<12}{:>12}{:>12}{:>12}{:>12}", "", "p50 us", "p90 us", "p99 us", "p999 us")
}

/// `1.080 (1.050 to 1.130) over the rounds`; with fewer than six rounds their extremes and how many they were.
pub(super) fn spread_text(spread: &Spread) -> String {
    let Spread { median, min, max, count } = *spread;
    let ratios = RoundRatios { median, min, max, rounds: Some(count as u64) };
    let text = ratios.text(None, |ratio| format!("{ratio:.3}"));
    if ratios.has_median() { text + " over the rounds" } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::statistics::LatencyHistogram;

    #[test]
    fn names_are_prefixed_and_extremes_named() {
        let mut report = Report::default();
        let mut histogram = LatencyHistogram::default();
        histogram.record(std::time::Duration::from_micros(7));
        report.put_latencies("floor_", &histogram.summary()).unwrap();
        report.put_spread("ratio_p50", &Spread { median: 1.1, min: 1.0, max: 1.5, count: 9 }).unwrap();
        report.put("size_bytes", 512).unwrap();
        for name in ["floor_p50_us", "floor_p999_us", "ratio_p50", "ratio_p50_min", "ratio_p50_max", "size_bytes"] {
            assert!(report.0.contains_key(name), "{name} of {:?}", report.0);
        }
        assert!(!report.0.contains_key("p50_us"));
    }

    #[test]
    fn tables_are_aligned() {
        let summary = LatencyHistogram::default().summary();
        assert_eq!(latency_head().len(), latency_line("3 replicas", &summary).len());
    }
}
