//! The names that `docs/json.md` lists, held against what commands print.

use std::{collections::BTreeSet, fs, path::Path, sync::LazyLock};

use serde_json::Value;

/// The names of all tables; a `*` stands for the rest of a name.
pub(crate) static DOCUMENTED: LazyLock<BTreeSet<String>> = LazyLock::new(|| {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/json.md");
    let page = fs::read_to_string(page).unwrap();
    let cells = page.lines().filter_map(|line| line.strip_prefix("| `")?.split_once(" |"));
    let names: Vec<_> = cells.flat_map(|(first, _)| first.split(", ")).map(|name| name.replace('`', "")).collect();
    let distinct: BTreeSet<_> = names.iter().cloned().collect();
    assert!(distinct.len() > 300, "{} names", distinct.len());
    for name in &distinct {
        let count = names.iter().filter(|other| *other == name).count();
        assert_eq!(count, 1, "docs/json.md lists {name} {count} times");
    }
    distinct
});

/// Whether the page lists the name, or a row for its beginning or end and one for the rest.
pub(crate) fn is_documented(name: &str) -> bool {
    DOCUMENTED.contains(name)
        || DOCUMENTED.iter().any(|row| {
            let rest = match (row.strip_suffix('*'), row.strip_prefix('*')) {
                (Some(beginning), _) => name.strip_prefix(beginning),
                (_, Some(end)) => name.strip_suffix(end),
                _ => None,
            };
            rest.is_some_and(is_documented)
        })
}

/// All names in `value` that the page does not list, each once.
pub(crate) fn undocumented(value: &Value) -> BTreeSet<String> {
    match value {
        Value::Object(members) => members
            .iter()
            .flat_map(|(name, value)| {
                let mut names = undocumented(value);
                names.extend(Some(name.clone()).filter(|name| !is_documented(name)));
                names
            })
            .collect(),
        Value::Array(values) => values.iter().flat_map(undocumented).collect(),
        _ => BTreeSet::new(),
    }
}

/// What is wrong with a line of output; other lines than objects are none of its business.
pub(crate) fn fault(line: &str) -> Option<String> {
    if !line.starts_with('{') {
        return None;
    }
    let value: Value = serde_json::from_str(line).ok()?;
    let undocumented = undocumented(&value);
    if !line.starts_with("{\"schema_version\":1,") {
        return Some(format!("the first member is not schema_version: {line}"));
    }
    (!undocumented.is_empty()).then(|| format!("docs/json.md does not list {undocumented:?} of {line}"))
}

/// Fails where an object on a line of its own has another beginning, or a name that the page does not list.
#[track_caller]
pub(crate) fn check(printed: &str) {
    let faults: Vec<_> = printed.lines().filter_map(fault).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
