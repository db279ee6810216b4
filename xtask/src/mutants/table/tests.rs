use super::*;

fn mutant(name: &str) -> Mutant {
    Mutant {
        name: name.to_owned(),
        breaks: "one | two".to_owned(),
        file: "a.rs".into(),
        function: "one".to_owned(),
        search: "1".to_owned(),
        replace: "2".to_owned(),
        suites: vec!["cargo test -p x".to_owned()],
        short: false,
    }
}

#[test]
fn outcomes_stay_until_a_mutant_runs_again() {
    let mutants = [mutant("a"), mutant("b"), mutant("c")];
    let page = format!("# Page\n{BEGIN}{END}The end\n");
    let fates = BTreeMap::from([("a", Fate::Killed(Vec::new())), ("b", Fate::Survived("s".to_owned()))]);
    let page = updated(&page, &mutants, &fates).unwrap();
    assert!(page.starts_with("# Page\n") && page.ends_with(&format!("{END}The end\n")), "{page}");
    assert!(page.contains("1 of 3 mutants killed"), "{page}");
    assert!(page.contains("| `a` | one \\| two | `a.rs`, `one` | `cargo test -p x` | yes |\n"), "{page}");
    assert!(page.contains("| `b` | ") && page.contains(" | NO |\n") && page.contains(" | not run |\n"), "{page}");

    let fates = BTreeMap::from([("b", Fate::Killed(Vec::new()))]);
    let page = updated(&page, &mutants[..2], &fates).unwrap();
    assert!(page.contains("2 of 2 mutants killed") && !page.contains("`c`"), "{page}");
}

#[test]
fn a_page_without_marks_is_an_error() {
    assert!(updated("# Page\n", &[], &BTreeMap::new()).is_err());
}

#[test]
fn a_mutant_without_a_row_and_a_row_without_a_mutant_are_named() {
    let mutants = [mutant("a"), mutant("b"), mutant("c")];
    let page = updated(&format!("{BEGIN}{END}"), &mutants[..2], &BTreeMap::new()).unwrap();
    compare(&page, &mutants[..2]).unwrap();
    // Text beside the table is no row of it.
    compare(&format!("| `d` | other |\n{page}| `e` | table |\n"), &mutants[..2]).unwrap();
    let missing = compare(&page, &mutants).unwrap_err().to_string();
    assert!(missing.starts_with("c has no row") && missing.lines().count() == 1, "{missing}");
    let stale = compare(&page, &mutants[1..2]).unwrap_err().to_string();
    assert!(stale.starts_with("a has a row and is no mutant") && stale.lines().count() == 1, "{stale}");
}

#[test]
fn every_mutant_of_the_catalogue_has_its_row() {
    let root = Path::new("..");
    check(&root.join("docs/mutants.md"), &super::super::catalogue::load(root).unwrap()).unwrap();
}
