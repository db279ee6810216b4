use super::*;
use crate::document::Outcome;

fn golden() -> Document {
    Document::parse(include_bytes!("../../tests/golden/report-1.json")).unwrap()
}

#[test]
fn every_measured_cell_is_drawn_once() {
    let document = golden();
    let figures = figures(&document).unwrap();
    let rows: usize = figures.iter().map(|figure| figure.rows.len()).sum();
    assert_eq!(rows, document.cells.len());
    let own: usize = figures.iter().map(|figure| figure.rows.iter().filter(|row| row.measured.is_ok()).count()).sum();
    assert_eq!(own, document.counts().0);
    for figure in &figures {
        let data = figure.data();
        let lines = data["lines"].as_array().unwrap();
        let of = |is_floor: bool| {
            let lines = lines.iter().filter(|line| line["is_floor"] == is_floor);
            lines.map(|line| line["points"].as_array().unwrap().len()).sum::<usize>()
        };
        assert_eq!(of(false), figure.rows.iter().filter(|row| row.measured.is_ok()).count(), "{}", figure.id);
        assert_eq!(of(false) + of(true), figure.points());
    }
}

#[test]
fn the_page_asks_nobody_for_anything() {
    let page = html(&golden()).unwrap();
    assert!(page.contains("default-src 'none'"));
    for words in ["src=\"", "@import", "url(", "fetch(", "XMLHttpRequest"] {
        assert!(!page.contains(words), "{words}");
    }
    let outside: Vec<_> = page.match_indices("href=\"").map(|(at, _)| &page[at + 6..at + 11]).collect();
    assert!(outside.iter().all(|link| link.starts_with('#') || *link == "data:"), "{outside:?}");
}

#[test]
fn what_a_report_says_is_text_and_no_markup() {
    let mut document = golden();
    let evil = "</script><img src=x onerror=alert(1)>";
    document.machine.cpu = evil.to_owned();
    document.cells[0].outcome = Outcome::Skipped(evil.to_owned());
    document.cells[0].command = evil.to_owned();
    for cell in &mut document.cells {
        if let Outcome::Result(value) = &mut cell.outcome {
            value["durability"] = evil.into();
        }
    }
    let page = html(&document).unwrap();
    assert!(!page.contains("<img"), "markup of a report is on the page");
    assert_eq!(page.matches("</script>").count(), 3);
}

#[test]
fn what_was_skipped_is_said_once_with_its_reason() {
    let mut document = golden();
    let first = document.cells[0].place.clone();
    let mut changed = 0;
    for cell in &mut document.cells {
        if (&cell.place.chart, &cell.place.transport, &cell.place.series)
            == (&first.chart, &first.transport, &first.series)
        {
            cell.outcome = Outcome::Skipped("no such device here".into());
            changed += 1;
        }
    }
    assert!(changed > 1);
    let figures = figures(&document).unwrap();
    let skipped = figures[0].skipped();
    assert!(skipped.iter().any(|(what, why)| *why == "no such device here" && !what.contains(" at ")), "{skipped:?}");
    document.cells[0].outcome = Outcome::Skipped("another reason".into());
    let figures = super::figures(&document).unwrap();
    let skipped = figures[0].skipped();
    assert!(skipped.iter().any(|(what, why)| *why == "another reason" && what.contains(" at ")), "{skipped:?}");
}

#[test]
fn a_debug_build_and_a_busy_machine_are_warned_of() {
    let mut document = golden();
    document.machine.build = "release".into();
    document.machine.load_average = 0.0;
    document.plan.rounds = 9;
    assert!(warnings(&document).is_empty());
    document.machine.build = "debug".into();
    document.machine.load_average = 2.0;
    document.plan.rounds = 3;
    assert_eq!(warnings(&document).len(), 3);
}

/// A golden report whose first measured cell of tcp has peers, one of which was skipped.
fn with_peers() -> Document {
    let mut document = golden();
    let mut cell = document.cells[0].clone();
    cell.place.chart = "peers-memory".into();
    cell.place.series = "pmof".into();
    let Outcome::Result(value) = &mut cell.outcome else { panic!("{cell:?}") };
    let mut peer = value.clone();
    peer["name"] = "nbdkit-tcp".into();
    peer["method"] = "NBD write, flush".into();
    value["peers"] = serde_json::json!([peer, { "name": "etcd", "skipped": "etcd is not installed" }]);
    document.cells.push(cell);
    document
}

#[test]
fn peers_are_drawn_and_listed_beside_pmof() {
    let document = with_peers();
    let figures = figures(&document).unwrap();
    let figure = figures.iter().find(|figure| figure.id == "peers-memory").unwrap();
    assert_eq!((figure.rows.len(), figure.points()), (3, 3), "pmof, its floor, one peer; and one that was skipped");
    let data = figure.data();
    let labels: Vec<&str> =
        data["lines"].as_array().unwrap().iter().map(|line| line["label"].as_str().unwrap()).collect();
    assert!(labels.iter().any(|label| label.starts_with("nbdkit-tcp: ProcessCrash by NBD write, flush")), "{labels:?}");
    let page = html(&document).unwrap();
    assert!(page.contains("etcd is not installed") && page.contains("of its time"), "no word of the peers");
    let table = crate::csv(&document).unwrap();
    let rows: Vec<&str> = table.lines().filter(|line| line.starts_with("peers-memory,tcp,")).collect();
    assert_eq!(rows.len(), 3, "{rows:?}");
    assert!(rows[1].contains(",nbdkit-tcp,") && rows[2].contains(",etcd,"), "{rows:?}");
    assert!(rows[2].contains("skipped,etcd is not installed"), "{rows:?}");
}
