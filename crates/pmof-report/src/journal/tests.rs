use std::fs;

use serde_json::json;

use super::*;
use crate::document::{Outcome, Place};

fn header() -> Header {
    let golden = include_str!("../../tests/golden/report-1.json");
    let document = crate::Document::parse(golden.as_bytes()).unwrap();
    Header::new(document.started, document.plan, document.machine)
}

fn cell(x: u64) -> Finished {
    let place = Place { chart: "latency-write".into(), transport: "tcp".into(), series: "auto".into(), x };
    Finished { place, command: "pmof".into(), outcome: Outcome::Skipped("why".into()) }
}

#[test]
fn cells_are_there_again_and_a_line_that_was_cut_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("report.journal");
    let mut journal = Journal::begin(&path, &header()).unwrap();
    journal.save(&cell(1)).unwrap();
    journal.save(&cell(2)).unwrap();
    drop(journal);
    let whole = fs::read(&path).unwrap();
    // However much of the last line was written.
    let last = whole[..whole.len() - 1].iter().rposition(|byte| *byte == b'\n').unwrap() + 1;
    for cut in last..whole.len() {
        fs::write(&path, &whole[..cut]).unwrap();
        let (mut journal, read, cells) = Journal::resume(&path).unwrap();
        assert_eq!((read, cells), (header(), vec![cell(1)]));
        journal.save(&cell(2)).unwrap();
        drop(journal);
        assert_eq!(fs::read(&path).unwrap(), whole, "cut at {cut}");
    }
}

#[test]
fn one_that_is_there_is_not_begun_again_and_one_in_use_is_not_touched() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("report.journal");
    let missing = Journal::resume(&path).unwrap_err();
    assert!(missing.to_string().contains("nothing to resume"), "{missing}");
    let journal = Journal::begin(&path, &header()).unwrap();
    let busy = Journal::resume(&path).unwrap_err();
    assert!(busy.to_string().contains("another `pmof report`"), "{busy}");
    drop(journal);
    let taken = Journal::begin(&path, &header()).unwrap_err();
    assert!(taken.to_string().contains("--resume"), "{taken}");
    Journal::resume(&path).unwrap().0.remove().unwrap();
    assert!(!path.exists());
}

#[test]
fn what_is_no_journal_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("report.journal");
    let line = |value: serde_json::Value| value.to_string() + "\n";
    let first = line(serde_json::to_value(header()).unwrap());
    let twice = line(serde_json::to_value(cell(1)).unwrap());
    let newer = serde_json::to_value(Header { pmof_report_journal: 2, ..header() }).unwrap();
    let no_result = json!({"chart": "a", "transport": "b", "series": "c", "x": 1, "command": "", "result": {}});
    for (text, why) in [
        (String::new(), "empty"),
        ("{}\n".to_owned(), "first line"),
        (line(newer), "format 2"),
        (format!("{first}{{}}\n"), "no cell"),
        (format!("{first}{twice}{twice}"), "twice"),
        (format!("{first}{}", line(no_result)), "samples is missing"),
    ] {
        fs::write(&path, &text).unwrap();
        let error = format!("{:#}", Journal::resume(&path).unwrap_err());
        assert!(error.contains(why) && error.contains("start anew"), "{why}: {error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), text, "it is left as it was");
    }
}
