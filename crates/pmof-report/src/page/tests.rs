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

/// Changes all results of a report.
fn with_results(change: impl Fn(&mut serde_json::Value)) -> Document {
    let mut document = golden();
    for cell in &mut document.cells {
        if let Outcome::Result(value) = &mut cell.outcome {
            change(value);
        }
    }
    document
}

/// The mean of two rounds, one of which was disturbed, contradicts both medians that stand beside it.
#[test]
fn few_rounds_show_their_extremes_and_no_median() {
    let page = |rounds: u64| {
        let document = with_results(|value| {
            for name in ["ratio_p50", "ratio_bandwidth"] {
                value["rounds"] = rounds.into();
                value[name] = 456.7.into();
                value[format!("{name}_min")] = 1.21.into();
                value[format!("{name}_max")] = 912.19.into();
            }
        });
        (html(&document).unwrap(), crate::rows::markdown(&document).unwrap())
    };
    let (few, rows) = page(2);
    assert!(few.contains("1.21× to 912×, 2 rounds only") && !few.contains("457×"), "no word of two rounds");
    assert!(rows.contains("1.21 to 912.19, 2 rounds only") && !rows.contains("456.70"), "{rows}");
    let (enough, rows) = page(9);
    assert!(enough.contains("457× (1.21× to 912×!)") && rows.contains("456.70 (1.21 to 912.19!)"), "{rows}");
}

#[test]
fn no_two_lines_of_a_chart_share_a_colour() {
    let mut document = with_peers();
    for cell in &mut document.cells {
        if let Outcome::Result(value) = &mut cell.outcome {
            let Some(peers) = value.get_mut("peers").and_then(serde_json::Value::as_array_mut) else { continue };
            let peer = peers[0].clone();
            peers.extend((0..30).map(|number| {
                let mut peer = peer.clone();
                peer["name"] = format!("peer {number}").into();
                peer
            }));
        }
    }
    let figures = figures(&document).unwrap();
    assert!(figures.iter().any(|figure| figure.lines.len() > 30));
    for figure in &figures {
        let mut colors: Vec<_> = figure.lines.iter().map(|line| &line.color).collect();
        colors.sort();
        colors.dedup();
        assert_eq!(colors.len(), figure.lines.len(), "{}", figure.id);
    }
}

#[test]
fn every_point_is_drawn_without_the_script() {
    let document = golden();
    let page = html(&document).unwrap();
    let figures = figures(&document).unwrap();
    let points: usize = figures.iter().map(Figure::points).sum();
    assert!(points > 0 && !page.contains("NaN") && !page.contains("noscript"));
    let drawn = figures.iter().filter(|figure| !figure.lines.is_empty()).count();
    assert_eq!((page.matches("<circle").count(), page.matches("<svg").count()), (points, drawn));
    for line in figures.iter().flat_map(|figure| &figure.lines) {
        assert!(page.contains(&line.label), "{}", line.label);
    }
}
