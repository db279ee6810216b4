use super::*;

const SOURCE: &str = "fn one() -> u32 { 1 }\n";
const ENTRY: &str = r#"
[[mutant]]
name = "two"
breaks = "one is one"
file = "source.rs"
function = "one"
search = "1"
replace = "2"
suites = ["cargo nextest run -p xtask"]
"#;

/// A workspace with this catalogue.
fn workspace(catalogue: &str) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir_all(root.path().join(DIRECTORY)).unwrap();
    fs::write(root.path().join("source.rs"), SOURCE).unwrap();
    fs::write(root.path().join(DIRECTORY).join("a.toml"), catalogue).unwrap();
    root
}

fn error(catalogue: &str) -> String {
    format!("{:#}", load(workspace(catalogue).path()).unwrap_err())
}

#[test]
fn every_anchor_of_the_catalogue_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mutants = load(root).unwrap();
    assert!(mutants.iter().any(|mutant| mutant.short));
}

#[test]
fn an_entry_is_read() {
    let root = workspace(ENTRY);
    let mutants = load(root.path()).unwrap();
    assert_eq!(mutants.len(), 1);
    assert!(!mutants[0].short);
    assert_eq!(mutants[0].mutated(root.path()).unwrap(), "fn one() -> u32 { 2 }\n");
}

#[test]
fn what_is_wrong_is_said_of_all() {
    let error = error(&format!(
        "{}{}",
        ENTRY.replace("search = \"1\"", "search = \"5\""),
        ENTRY.replace("\"one\"", "\"other\"")
    ));
    assert!(error.contains("two: another one has this name"), "{error}");
    assert!(error.contains(r#"the function one does not hold "5""#), "{error}");
    assert!(error.contains("no function other"), "{error}");
}

#[test]
fn entries_are_checked() {
    for (right, wrong, says) in [
        ("\"two\"", "\"Two\"", "a-z, 0-9"),
        ("one is one", " ", "says nothing"),
        ("[\"cargo nextest run -p xtask\"]", "[]", "no suite"),
        ("cargo nextest run -p xtask", "cargo 'nextest", "quote"),
        ("source.rs", "gone.rs", "gone.rs"),
        ("suites", "suite", "unknown field"),
    ] {
        let error = error(&ENTRY.replace(right, wrong));
        assert!(error.contains(says), "{says}: {error}");
    }
}
