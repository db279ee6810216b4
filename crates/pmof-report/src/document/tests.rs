use serde_json::json;

use super::*;

const GOLDEN: &str = include_str!("../../tests/golden/report-1.json");

/// Format 1 as it was first written: every name stays.
#[test]
fn the_golden_report_is_read_and_written_without_a_change() {
    let document = Document::parse(GOLDEN.as_bytes()).unwrap();
    let written: Value = serde_json::from_str(&document.to_json().unwrap()).unwrap();
    assert_eq!(written, serde_json::from_str::<Value>(GOLDEN).unwrap());
    let (measured, skipped) = document.counts();
    assert!(measured > 50 && skipped > 2, "{measured} {skipped}");
}

#[test]
fn what_is_no_report_is_refused_with_what_to_do() {
    let newer = GOLDEN.replacen("\"pmof_report\":1", "\"pmof_report\":2", 1);
    let spoiled = GOLDEN.replacen("\"p50_us\":", "\"p50\":", 1);
    for (text, why) in [
        ("", "cut short"),
        (&GOLDEN[..GOLDEN.len() - 20], "cut short"),
        ("report", "no JSON"),
        ("{}", "another kind"),
        ("7", "another kind"),
        ("{\"pmof_report\": 1}", "missing"),
        (&newer, "format 2"),
        (&spoiled, "p50_us is missing"),
    ] {
        let error = format!("{:#}", Document::parse(text.as_bytes()).unwrap_err());
        assert!(error.contains(why), "{why}: {error}");
    }
}

#[test]
fn a_result_without_a_floor_says_why() {
    let document = Document::parse(GOLDEN.as_bytes()).unwrap();
    let result = document.cells.iter().find_map(|cell| match &cell.outcome {
        Outcome::Result(value) => Some(value.clone()),
        Outcome::Skipped(_) => None,
    });
    let mut result = result.unwrap();
    assert!(Measured::of(&result).unwrap().floor.is_ok());
    result["no_floor"] = json!("there is none");
    result["floor_p50_us"] = Value::Null;
    assert_eq!(Measured::of(&result).unwrap().floor.unwrap_err(), "there is none");
}

#[test]
fn a_file_is_written_whole_or_not_at_all() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("report.json");
    write_whole(&path, b"one").unwrap();
    write_whole(&path, b"two").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"two");
    assert!(write_whole(&directory.path().join("no/such"), b"x").is_err());
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
}
