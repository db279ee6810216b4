//! Latencies, counted in a histogram and summed up in microseconds; and the spread of what each round gave.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

/// Longer latencies are counted as this one: no wait of a benchmark is allowed to last as long.
const LONGEST_NS: u64 = 60_000_000_000;

/// Significant decimal digits kept: a step of 0.1 %, well below the spread between two runs.
const SIGNIFICANT_DIGITS: u8 = 3;

/// Collects latencies of 1 ns to 60 s with a resolution of 0.1 %.
#[derive(Debug)]
pub struct LatencyHistogram {
    nanoseconds: Histogram<u64>,
}

/// What a set of latencies amounts to. All but `samples` in microseconds; all zero where there are no samples.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LatencySummary {
    /// How many latencies were recorded.
    pub samples: u64,
    /// Half of them took no longer.
    pub p50_us: f64,
    /// 90 % took no longer.
    pub p90_us: f64,
    /// 99 % took no longer.
    pub p99_us: f64,
    /// 99.9 % took no longer.
    pub p999_us: f64,
    /// The longest.
    pub max_us: f64,
    /// The arithmetic mean.
    pub mean_us: f64,
}

impl Default for LatencyHistogram {
    fn default() -> Self {
        let nanoseconds =
            Histogram::new_with_bounds(1, LONGEST_NS, SIGNIFICANT_DIGITS).expect("the constant bounds are valid");
        Self { nanoseconds }
    }
}

impl LatencyHistogram {
    /// Counts one latency.
    pub fn record(&mut self, latency: Duration) {
        let ns = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        self.nanoseconds.saturating_record(ns);
    }

    /// Counts all that `other` has counted.
    #[expect(clippy::missing_panics_doc, reason = "all histograms have the same bounds")]
    pub fn add(&mut self, other: &Self) {
        self.nanoseconds.add(&other.nanoseconds).expect("all histograms have the same bounds");
    }

    /// Half of the latencies took no longer; in microseconds.
    pub fn p50_us(&self) -> f64 {
        self.nanoseconds.value_at_quantile(0.50) as f64 / 1e3
    }

    /// Sums up what was recorded so far.
    pub fn summary(&self) -> LatencySummary {
        let quantile_us = |quantile| self.nanoseconds.value_at_quantile(quantile) as f64 / 1e3;
        LatencySummary {
            samples: self.nanoseconds.len(),
            p50_us: quantile_us(0.50),
            p90_us: quantile_us(0.90),
            p99_us: quantile_us(0.99),
            p999_us: quantile_us(0.999),
            max_us: self.nanoseconds.max() as f64 / 1e3,
            mean_us: self.nanoseconds.mean() / 1e3,
        }
    }
}

/// How the values of several rounds lie.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// Half of the values are no larger; the mean of the two in the middle where there is no single one.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The greatest.
    pub max: f64,
}

impl Spread {
    /// `None` where there are no values.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median =
            if values.len() % 2 == 0 { f64::midpoint(values[middle - 1], values[middle]) } else { values[middle] };
        Some(Self { median, min, max })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Within the resolution, and not just anything.
    fn assert_close(measured: f64, expected: f64) {
        assert!((measured - expected).abs() <= expected * 0.002, "{measured} is not {expected}");
    }

    #[test]
    fn quantiles_of_a_known_ramp() {
        let mut histogram = LatencyHistogram::default();
        for us in 1..=10_000 {
            histogram.record(Duration::from_micros(us));
        }
        let summary = histogram.summary();
        assert_eq!(summary.samples, 10_000);
        assert_close(summary.p50_us, 5_000.0);
        assert_close(summary.p90_us, 9_000.0);
        assert_close(summary.p99_us, 9_900.0);
        assert_close(summary.p999_us, 9_990.0);
        assert_close(summary.max_us, 10_000.0);
        assert_close(summary.mean_us, 5_000.5);
    }

    #[test]
    fn latencies_beyond_the_bounds_are_counted_at_the_bounds() {
        let mut histogram = LatencyHistogram::default();
        histogram.record(Duration::ZERO);
        histogram.record(Duration::MAX);
        let summary = histogram.summary();
        assert_eq!(summary.samples, 2);
        assert_close(summary.max_us, LONGEST_NS as f64 / 1e3);
    }

    #[test]
    fn nothing_recorded_is_all_zero() {
        let summary = LatencyHistogram::default().summary();
        assert_eq!(summary.samples, 0);
        assert!([summary.p50_us, summary.p999_us, summary.max_us, summary.mean_us].iter().all(|us| us.abs() < 1e-9));
    }

    #[test]
    fn names_carry_their_units_in_json() {
        let json = serde_json::to_value(LatencyHistogram::default().summary()).unwrap();
        let names: Vec<&str> = json.as_object().unwrap().keys().map(String::as_str).collect();
        let mut expected = ["samples", "p50_us", "p90_us", "p99_us", "p999_us", "max_us", "mean_us"];
        expected.sort_unstable();
        assert_eq!(names, expected);
    }

    #[test]
    fn histograms_add_up() {
        let (mut one, mut two) = (LatencyHistogram::default(), LatencyHistogram::default());
        one.record(Duration::from_micros(10));
        two.record(Duration::from_micros(30));
        two.record(Duration::from_micros(30));
        one.add(&two);
        assert_eq!(one.summary().samples, 3);
        assert_close(one.p50_us(), 30.0);
        assert_close(two.p50_us(), one.p50_us());
    }

    #[test]
    fn the_spread_of_known_values() {
        let spread = |values: &[f64]| Spread::of(values.iter().copied());
        assert_eq!(spread(&[]), None);
        assert_eq!(spread(&[3.0]), Some(Spread { median: 3.0, min: 3.0, max: 3.0 }));
        assert_eq!(spread(&[5.0, 1.0, 2.0]), Some(Spread { median: 2.0, min: 1.0, max: 5.0 }));
        assert_eq!(spread(&[4.0, 1.0, 2.0, 100.0]), Some(Spread { median: 3.0, min: 1.0, max: 100.0 }));
    }
}
