use super::*;
use crate::document::Finished;

fn golden() -> Document {
    Document::parse(include_bytes!("../../tests/golden/report-1.json")).unwrap()
}

fn around(median: f64) -> Interval {
    Interval { median, low: median * 0.98, high: median * 1.02 }
}

#[test]
fn a_report_differs_from_itself_by_noise_alone() {
    let report = golden();
    let comparison = compare(&report, &report).unwrap();
    assert!(!comparison.cells.is_empty());
    assert!(comparison.cells.iter().all(|cell| cell.verdict == Verdict::Noise && (cell.ratio - 1.0).abs() < 1e-9));
    assert!(comparison.not_compared.is_empty() && comparison.machines_differ.is_none());
}

#[test]
fn only_intervals_that_do_not_overlap_differ() {
    let of = |metric, before, after| verdict(metric, around(before), around(after), None);
    assert_eq!(of(Metric::Latency, 10.0, 10.3), Verdict::Noise);
    assert_eq!(of(Metric::Latency, 10.0, 11.0), Verdict::Worse);
    assert_eq!(of(Metric::Latency, 11.0, 10.0), Verdict::Better);
    assert_eq!(of(Metric::Bandwidth, 10.0, 11.0), Verdict::Better);
    assert_eq!(of(Metric::Bandwidth, 11.0, 10.0), Verdict::Worse);
}

#[test]
fn a_floor_that_moved_as_far_makes_it_the_machine() {
    let with = |before, after, floor_after| {
        verdict(Metric::Latency, around(before), around(after), Some((around(8.0), around(floor_after))))
    };
    assert_eq!(with(10.0, 12.0, 9.6), Verdict::Machine);
    assert_eq!(with(10.0, 12.0, 8.4), Verdict::Worse, "the floor moved less");
    assert_eq!(with(10.0, 12.0, 6.0), Verdict::Worse, "the floor moved the other way");
    assert_eq!(with(12.0, 10.0, 6.0), Verdict::Machine);
    assert_eq!(with(12.0, 10.0, 8.0), Verdict::Better);
}

/// One cell of a report becomes slower, and nothing else is named.
#[test]
fn a_slower_cell_is_found_among_the_others() {
    let (before, mut after) = (golden(), golden());
    let slower = after.cells.iter_mut().find_map(|Finished { place, outcome, .. }| match outcome {
        Outcome::Result(value) if place.chart == "latency-write" => Some((place.clone(), value)),
        _ => None,
    });
    let (place, value) = slower.unwrap();
    for name in ["p50_us", "p50_us_low", "p50_us_high"] {
        let us = value[name].as_f64().unwrap();
        value[name] = (us * 3.0).into();
    }
    let comparison = compare(&before, &after).unwrap();
    let different: Vec<_> = comparison.cells.iter().filter(|cell| cell.verdict != Verdict::Noise).collect();
    let [cell] = &different[..] else { panic!("{different:?}") };
    assert_eq!((&cell.place, cell.verdict, cell.unit), (&place, Verdict::Worse, "us"));
    assert!((cell.ratio - 3.0).abs() < 1e-9);
}

#[test]
fn cells_of_only_one_report_are_named_with_why() {
    let (mut before, mut after) = (golden(), golden());
    let gone = after.cells.pop().unwrap();
    let of = |cells: &[Finished]| cells.iter().position(|cell| matches!(cell.outcome, Outcome::Result(_))).unwrap();
    let (at, added) = (of(&after.cells), before.cells.remove(of(&before.cells)));
    assert_eq!(after.cells[at].place, added.place);
    let at = of(&before.cells);
    let place = before.cells[at].place.clone();
    before.cells[at].outcome = Outcome::Skipped("no device".into());
    after.machine.kernel = "another".into();
    let comparison = compare(&before, &after).unwrap();
    let why = |place| comparison.not_compared.iter().find(|cell| cell.place == place).map(|cell| cell.reason.as_str());
    assert_eq!(why(gone.place), Some("not in the second"));
    assert_eq!(why(added.place), Some("not in the first"));
    assert_eq!(why(place), Some("skipped in the first: no device"));
    assert!(comparison.machines_differ.unwrap().contains("kernel"));
}
