use std::process::Command;

use super::*;

const README: &str = include_str!("../../../README.md");
const POOL_SETS: &str = include_str!("../../../docs/pool-sets.md");
const BACKUP: &str = include_str!("../../../docs/backup.md");
const OPERATING: &str = include_str!("../../../docs/operating.md");

/// The sections, with this page in README's place.
fn sections_with(readme: &str) -> Result<Vec<Section>> {
    let text = |page: &str| match page {
        "README.md" => readme,
        "docs/backup.md" => BACKUP,
        "docs/operating.md" => OPERATING,
        _ => POOL_SETS,
    };
    sections(|page| Ok(text(page).to_owned()))
}

fn plain(text: &str) -> (PageCommand, Option<&'static str>) {
    (PageCommand { text: text.to_owned(), prints: None, exit_status: 0 }, None)
}

#[test]
fn the_pages_can_be_run() {
    let sections = sections_with(README).unwrap();
    let has = |text: &str| sections.iter().flatten().any(|(command, _)| command.text == text);
    assert!(has("cargo run --release -- demo") && has("pmof pool check near.set"));
    let differs = "contents differ at offset 9000000";
    let says = |command: &PageCommand| command.prints.as_ref().is_some_and(|text| text.contains(differs));
    assert!(sections.iter().flatten().any(|(command, _)| says(command) && command.exit_status == 3));
}

#[test]
fn a_new_command_is_picked_up() {
    let count = |page: &str| sections_with(page).unwrap().concat().len();
    let page = README.replace("\npmof doctor ", "\npmof doctor --json\npmof doctor ");
    assert_eq!(count(&page), count(README) + 1);
}

#[test]
fn a_command_that_is_not_run_must_be_there() {
    let error = sections_with(&README.replace("cargo xtask test --quick", "cargo xtask test --fast")).unwrap_err();
    assert!(error.to_string().contains("\"cargo xtask test --quick\""), "{error}");
}

#[test]
fn a_wrong_command_fails_its_section() {
    let directory = tempfile::tempdir().unwrap();
    let mut shell =
        Shell::start(Command::new("bash").current_dir(directory.path()), &directory.path().join("out")).unwrap();
    let (skipped, _) = plain("exit 1");
    let section = vec![plain("true"), (skipped, Some("never")), plain("no-such-program"), plain("true")];
    assert_eq!(run_section(&mut shell, &section), Counts { passed: 1, failed: 1, skipped: 1 });
}
