//! Numbers for people.

use crate::{
    document::{Floor, Interval, Numbers},
    matrix::{Axis, Metric},
};

/// Three digits that count, and groups of thousands.
pub(super) fn number(value: f64) -> String {
    match value {
        value if value < 0.005 => "0".to_owned(),
        value if value < 10.0 => format!("{value:.2}"),
        value if value < 100.0 => format!("{value:.1}"),
        value => grouped(&format!("{value:.0}")),
    }
}

/// With a comma before each three digits.
fn grouped(digits: &str) -> String {
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `1.18x`.
pub(super) fn ratio(value: f64) -> String {
    format!("{}×", number(value))
}

/// `1.18× (1.10× to 1.30×)`: pmof over the floor, by rounds.
pub(super) fn over_floor(metric: Metric, own: &Numbers, floor: &Floor) -> String {
    let shown = metric.of(own).median / metric.of(&floor.numbers).median;
    metric.ratio(floor).text(Some(shown), ratio)
}

/// `7.90 to 8.10`.
pub(super) fn interval(value: Interval) -> String {
    format!("{} to {}", number(value.low), number(value.high))
}

/// `512 B`, `4 KiB`.
pub(super) fn bytes(value: u64) -> String {
    for (shift, unit) in [(20, "MiB"), (10, "KiB")] {
        if value >> shift > 0 && value % (1 << shift) == 0 {
            return format!("{} {unit}", value >> shift);
        }
    }
    format!("{value} B")
}

/// A place on an axis.
pub(super) fn x_text(axis: Axis, x: u64) -> String {
    match axis {
        Axis::Size => bytes(x),
        Axis::Load => format!("{x} %"),
        Axis::Threads | Axis::Depth | Axis::Replicas => x.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_that_count() {
        for (value, text) in
            [(0.0, "0"), (0.123, "0.12"), (7.891, "7.89"), (78.91, "78.9"), (789.1, "789"), (1_234_567.0, "1,234,567")]
        {
            assert_eq!(number(value), text);
        }
        assert_eq!(ratio(1.1849), "1.18×");
    }

    #[test]
    fn places_have_their_units() {
        assert_eq!((x_text(Axis::Size, 512), x_text(Axis::Size, 4096)), ("512 B".into(), "4 KiB".into()));
        assert_eq!((x_text(Axis::Size, 1000), x_text(Axis::Load, 99)), ("1000 B".into(), "99 %".into()));
        assert_eq!((x_text(Axis::Size, 1 << 20), x_text(Axis::Depth, 4)), ("1 MiB".into(), "4".into()));
    }
}
