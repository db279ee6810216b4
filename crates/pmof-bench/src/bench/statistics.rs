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
    /// 99.99 % took no longer.
    pub p9999_us: f64,
    /// The longest.
    pub max_us: f64,
    /// The arithmetic mean.
    pub mean_us: f64,
    /// The standard deviation.
    pub stddev_us: f64,
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

    /// How many latencies were recorded.
    pub fn len(&self) -> u64 {
        self.nanoseconds.len()
    }

    /// True before the first latency.
    pub fn is_empty(&self) -> bool {
        self.nanoseconds.is_empty()
    }

    /// The raw histogram: nanoseconds and how many latencies took so long, in ascending order. A step is 0.1 % wide at most, and
    /// named by its longest latency.
    pub fn counts(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.nanoseconds.iter_recorded().map(|step| (step.value_iterated_to(), step.count_at_value()))
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
            p9999_us: quantile_us(0.9999),
            max_us: self.nanoseconds.max() as f64 / 1e3,
            mean_us: self.nanoseconds.mean() / 1e3,
            stddev_us: self.nanoseconds.stdev() / 1e3,
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
    /// How many values.
    pub count: usize,
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
        Some(Self { median, min, max, count: values.len() })
    }
}

/// An interval that holds the true median with a known probability.
///
/// By order statistics, which assume nothing of the distribution: of `n` independent values, each lies below the median with
/// probability 1/2, so the number of those that do is binomial. (Conover, *Practical Nonparametric Statistics*, 3.2.)
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MedianInterval {
    /// The lower end, one of the values.
    pub low: f64,
    /// The upper end, one of the values.
    pub high: f64,
    /// The probability, in percent: at least [`CONFIDENCE_PERCENT`], or that of the extremes where there are fewer than six values.
    pub confidence_percent: f64,
}

/// What an interval should hold the median with.
pub const CONFIDENCE_PERCENT: f64 = 95.0;

impl MedianInterval {
    /// The narrowest symmetric one that reaches the confidence; `None` where there are no values.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let (first, last) = (*values.first()?, *values.last()?);
        let count = values.len();
        // Leaving out `left_out` values at each end misses the median with twice the probability of at most so many below it.
        let mut outside = 0.5_f64.powi(i32::try_from(count).unwrap_or(i32::MAX));
        let mut best = Self { low: first, high: last, confidence_percent: 100.0 * (1.0 - 2.0 * outside).max(0.0) };
        let mut term = outside;
        for left_out in 1..count.div_ceil(2) {
            term *= (count + 1 - left_out) as f64 / left_out as f64;
            outside += term;
            let confidence_percent = 100.0 * (1.0 - 2.0 * outside);
            if confidence_percent < CONFIDENCE_PERCENT {
                break;
            }
            best = Self { low: values[left_out], high: values[count - 1 - left_out], confidence_percent };
        }
        Some(best)
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
        assert_close(summary.p9999_us, 9_999.0);
        // Of 1 to n evenly: the square root of (n^2 - 1) / 12.
        assert_close(summary.stddev_us, 2_886.75);
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
        let mut expected =
            ["samples", "p50_us", "p90_us", "p99_us", "p999_us", "p9999_us", "max_us", "mean_us", "stddev_us"];
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
    fn raw_counts_hold_every_latency_within_the_resolution() {
        let mut histogram = LatencyHistogram::default();
        for us in [7, 7, 900, 123_456] {
            histogram.record(Duration::from_micros(us));
        }
        let counts: Vec<_> = histogram.counts().collect();
        assert_eq!(counts.iter().map(|(_, count)| *count).collect::<Vec<_>>(), [2, 1, 1]);
        for ((ns, _), us) in counts.iter().zip([7.0, 900.0, 123_456.0]) {
            assert_close(*ns as f64 / 1e3, us);
        }
        assert_eq!(LatencyHistogram::default().counts().count(), 0);
    }

    /// The ranks are those of the tables of the sign test at 95 %.
    #[test]
    fn the_interval_of_the_median_has_the_ranks_of_the_sign_test() {
        for (count, low, high, confidence) in
            [(6, 1, 6, 96.875), (10, 2, 9, 97.852), (15, 4, 12, 96.484), (25, 8, 18, 95.671), (61, 23, 39, 96.04)]
        {
            let interval = MedianInterval::of((1..=count).rev().map(f64::from)).unwrap();
            assert_eq!((interval.low, interval.high), (f64::from(low), f64::from(high)), "of {count}");
            assert!((interval.confidence_percent - confidence).abs() < 0.2, "of {count}: {interval:?}");
        }
    }

    #[test]
    fn few_values_have_the_extremes_and_say_how_little_they_prove() {
        let interval = |values: &[f64]| MedianInterval::of(values.iter().copied());
        assert_eq!(interval(&[]), None);
        assert_eq!(interval(&[3.0]), Some(MedianInterval { low: 3.0, high: 3.0, confidence_percent: 0.0 }));
        let five = interval(&[5.0, 1.0, 4.0, 2.0, 3.0]).unwrap();
        assert_eq!((five.low, five.high), (1.0, 5.0));
        assert!((five.confidence_percent - 93.75).abs() < 1e-9);
    }

    #[test]
    fn the_spread_of_known_values() {
        let spread = |values: &[f64]| Spread::of(values.iter().copied());
        assert_eq!(spread(&[]), None);
        assert_eq!(spread(&[3.0]), Some(Spread { median: 3.0, min: 3.0, max: 3.0, count: 1 }));
        assert_eq!(spread(&[5.0, 1.0, 2.0]), Some(Spread { median: 2.0, min: 1.0, max: 5.0, count: 3 }));
        assert_eq!(spread(&[4.0, 1.0, 2.0, 100.0]), Some(Spread { median: 3.0, min: 1.0, max: 100.0, count: 4 }));
    }
}
