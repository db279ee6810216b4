//! Prints the ratios of rounds: a median with its spread if there are enough rounds, and a mark on rounds that contradict it.

/// Fewer rounds give no median with 95 % confidence.
pub const ROUNDS_MIN: u64 = 6;

/// A round is an outlier where its ratio is more than this many times the median, or less than the median over this.
pub const OUTLIER: f64 = 2.0;

/// The ratios of all rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoundRatios {
    /// The median.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The greatest.
    pub max: f64,
    /// How many rounds. `None`: not known.
    pub rounds: Option<u64>,
}

impl RoundRatios {
    /// Whether there are enough rounds for a median.
    pub fn has_median(&self) -> bool {
        self.rounds.is_none_or(|rounds| rounds >= ROUNDS_MIN)
    }

    /// Whether a round is an outlier.
    pub fn has_outliers(&self) -> bool {
        self.max > self.median * OUTLIER || self.min < self.median / OUTLIER
    }

    /// Whether the ratio of two numbers that are shown beside it is none that a round had.
    pub fn contradicts(&self, shown: f64) -> bool {
        // The numbers are of all operations together, the ratios of whole rounds.
        shown > self.max * 1.05 || shown < self.min / 1.05
    }

    /// `1.21 (1.10 to 1.40)`, `1.21 (1.10 to 9.30!)`, `1.21 to 912, 2 rounds only`. `!` marks an outlier, or a contradiction to `shown`, the ratio of the two numbers beside it.
    pub fn text(&self, shown: Option<f64>, number: impl Fn(f64) -> String) -> String {
        let Self { median, min, max, .. } = *self;
        let [median, min, max] = [median, min, max].map(number);
        let mark = if self.has_outliers() || shown.is_some_and(|shown| self.contradicts(shown)) { "!" } else { "" };
        match self.rounds.filter(|_| !self.has_median()) {
            None => format!("{median} ({min} to {max}{mark})"),
            Some(1) => format!("{median}, 1 round only"),
            Some(rounds) => format!("{min} to {max}, {rounds} rounds only"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text([median, min, max]: [f64; 3], rounds: Option<u64>, shown: f64) -> String {
        RoundRatios { median, min, max, rounds }.text(Some(shown), |value| format!("{value:.2}"))
    }

    #[test]
    fn few_rounds_have_no_median() {
        // The mean of two rounds, one of which was disturbed: no number that anybody measured.
        assert_eq!(text([456.7, 1.21, 912.19], Some(2), 1.21), "1.21 to 912.19, 2 rounds only");
        assert_eq!(text([1.2, 1.2, 1.2], Some(1), 1.2), "1.20, 1 round only");
        assert_eq!(text([1.2, 1.1, 1.4], Some(6), 1.2), "1.20 (1.10 to 1.40)");
        assert_eq!(text([1.2, 1.1, 1.4], None, 1.2), "1.20 (1.10 to 1.40)");
    }

    #[test]
    fn outliers_and_contradictions_are_marked() {
        assert_eq!(text([1.2, 1.1, 2.5], Some(9), 1.2), "1.20 (1.10 to 2.50!)");
        assert_eq!(text([1.2, 0.5, 1.3], Some(9), 1.2), "1.20 (0.50 to 1.30!)");
        assert_eq!(text([1.2, 1.1, 1.4], Some(9), 7.0), "1.20 (1.10 to 1.40!)");
    }
}
