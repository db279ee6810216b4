//! The table of docs/mutants.md.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    path::Path,
};

use anyhow::{Context as _, Result, ensure};

use super::{Fate, catalogue::Mutant};

#[cfg(test)]
mod tests;

const BEGIN: &str = "<!-- table: begin, written by cargo xtask mutants --markdown -->\n";
const END: &str = "<!-- table: end -->\n";

/// Writes the table between its marks, with the outcomes that are there now and those that were there before.
pub(super) fn write(path: &Path, mutants: &[Mutant], fates: &BTreeMap<&str, Fate>) -> Result<()> {
    let page = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    fs::write(path, updated(&page, mutants, fates)?).with_context(|| format!("writing {}", path.display()))
}

/// Sees that each mutant has a row, and each row a mutant.
pub(super) fn check(path: &Path, mutants: &[Mutant]) -> Result<()> {
    let page = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    compare(&page, mutants).with_context(|| path.display().to_string())
}

fn compare(page: &str, mutants: &[Mutant]) -> Result<()> {
    let (_, table, _) = parted(page)?;
    let rows: BTreeSet<_> =
        table.lines().filter_map(|line| Some(line.strip_prefix("| `")?.split_once('`')?.0)).collect();
    let names: BTreeSet<_> = mutants.iter().map(|mutant| mutant.name.as_str()).collect();
    let mut wrong: Vec<_> = names
        .difference(&rows)
        .map(|name| {
            format!("{name} has no row: run it with --markdown, or have --check --markdown write that it did not run")
        })
        .collect();
    wrong.extend(
        rows.difference(&names).map(|name| format!("{name} has a row and is no mutant: --check --markdown removes it")),
    );
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// The text before the table, in it, and behind it.
fn parted(page: &str) -> Result<(&str, &str, &str)> {
    let (before, rest) = page.split_once(BEGIN).context("the page has no mark where the table begins")?;
    let (table, after) = rest.split_once(END).context("the page has no mark where the table ends")?;
    Ok((before, table, after))
}

fn updated(page: &str, mutants: &[Mutant], fates: &BTreeMap<&str, Fate>) -> Result<String> {
    let (before, old, after) = parted(page)?;
    let count = |fate| mutants.iter().filter(|mutant| outcome(mutant, fates, old) == fate).count();
    let mut table = format!("\n{} of {} mutants killed", count("yes"), mutants.len());
    if count("not run") > 0 {
        write!(table, ", {} not run since they were written or changed", count("not run"))?;
    }
    table += ".\n\n";
    table += "| mutant | what it breaks | where | the suite that kills it | killed |\n|---|---|---|---|---|\n";
    for mutant in mutants {
        let suites: Vec<_> = mutant.suites.iter().map(|suite| format!("`{}`", suite.replace('|', "\\|"))).collect();
        let short = if mutant.short { " (short list)" } else { "" };
        writeln!(
            table,
            "| `{}`{short} | {} | `{}`, `{}` | {} | {} |",
            mutant.name,
            mutant.breaks.replace('|', "\\|"),
            mutant.file.display(),
            mutant.function,
            suites.join(" and "),
            outcome(mutant, fates, old)
        )?;
    }
    Ok(format!("{before}{BEGIN}{table}\n{END}{after}"))
}

/// `yes`, `NO`, `unclear`, or `not run`.
fn outcome<'a>(mutant: &Mutant, fates: &BTreeMap<&str, Fate>, old: &'a str) -> &'a str {
    match fates.get(mutant.name.as_str()) {
        Some(Fate::Killed(_)) => "yes",
        Some(Fate::Survived(_)) => "NO",
        Some(Fate::Unclear(_)) => "unclear",
        None => {
            let begin = format!("| `{}`", mutant.name);
            let row = old.lines().find(|line| line.starts_with(&begin));
            row.and_then(|row| row.trim_end_matches(" |").rsplit(" | ").next()).unwrap_or("not run")
        }
    }
}
