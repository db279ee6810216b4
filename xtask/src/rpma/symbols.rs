//! `cargo xtask rpma abi` and `rpma matrix`: what librpma.so.0 exports, beside Debian's, and who calls it.

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    fmt::Write as _,
    fs,
    path::Path,
    process::{Command, ExitCode},
};

use anyhow::{Context as _, Result, bail, ensure};

use crate::{capi, vm::testbed::Testbed};

/// The document that `matrix` writes, from the workspace's root.
const MATRIX: &str = "docs/librpma-functions.md";
/// What says, for manual pages too, how functions differ from librpma's.
const HEADER: &str = "capi/rpma/include/librpma.h";

/// Compares ours with Debian's: what `abidiff` says must be nothing.
pub(super) fn compare() -> Result<ExitCode> {
    let testbed = Testbed::new(|line| eprintln!("test bed: {line}"))?;
    let ours = capi::directory().join("librpma.so.0");
    ensure!(ours.exists(), "no {}: cargo xtask capi builds it", ours.display());
    let mut failed = 0;
    for (what, directory) in
        [("Debian 12", testbed.librpma_of_host_release()?), ("Debian 13", testbed.librpma_reference()?)]
    {
        let output = Command::new("abidiff").arg(directory.join("librpma.so.0")).arg(&ours).output();
        let output = output.context("starting abidiff: install the Debian package abigail-tools")?;
        let said = String::from_utf8_lossy(&output.stdout);
        if output.status.success() && said.trim().is_empty() {
            println!("ok {what}: abidiff finds no difference");
        } else {
            failed += 1;
            println!("FAILED {what}: abidiff: {}\n{said}{}", output.status, String::from_utf8_lossy(&output.stderr));
        }
    }
    println!("{} passed, {failed} failed, 0 skipped", 2 - failed);
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Writes the table of functions and who calls them, or, to check, fails where the document says something else.
pub(super) fn matrix(check: bool) -> Result<ExitCode> {
    let testbed = Testbed::new(|line| eprintln!("test bed: {line}"))?;
    let exported = symbols(&capi::directory().join("librpma.so.0"), "--defined-only")?;
    let fio = symbols(&testbed.fio()?.binary, "--undefined-only")?;
    let examples: BTreeSet<String> = fs::read_to_string("testbed/rpma/examples")?.lines().map(str::to_owned).collect();
    let calls = calls_of_the_check()?;
    let differences = capi::differences(Path::new(HEADER))?;
    let table = table(&exported, &fio, &examples, &calls, &differences);
    if !check {
        fs::write(MATRIX, table).with_context(|| format!("writing {MATRIX}"))?;
        return Ok(ExitCode::SUCCESS);
    }
    ensure!(fs::read_to_string(MATRIX)? == table, "{MATRIX} is out of date: cargo xtask rpma matrix writes it");
    Ok(ExitCode::SUCCESS)
}

/// The names of librpma that a program or library defines or needs.
fn symbols(file: &Path, which: &str) -> Result<BTreeSet<String>> {
    let output = Command::new("nm").args(["-D", which]).arg(file).output().context("starting nm")?;
    ensure!(output.status.success(), "nm {}: {}", file.display(), String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    let names = text.lines().filter_map(|line| line.split_whitespace().last()?.split('@').next());
    Ok(names.filter(|name| name.starts_with("rpma_")).map(str::to_owned).collect())
}

/// How often the C program called each function, on this host over TCP.
fn calls_of_the_check() -> Result<BTreeMap<String, u64>> {
    let here = env::current_exe().context("finding this program")?;
    let output = Command::new(here).args(["rpma", "check"]).output().context("running rpma check")?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        bail!("rpma check failed:\n{text}");
    }
    let counted = text.lines().filter_map(|line| line.strip_prefix("# calls ")?.split_once(' '));
    Ok(counted.filter_map(|(name, count)| Some((name.to_owned(), count.parse().ok()?))).collect())
}

fn table(
    exported: &BTreeSet<String>,
    fio: &BTreeSet<String>,
    examples: &BTreeSet<String>,
    calls: &BTreeMap<String, u64>,
    differences: &BTreeMap<String, String>,
) -> String {
    let mark = |set: &BTreeSet<String>, name: &str| if set.contains(name) { "yes" } else { "" };
    let mut text = format!(
        "# The functions of librpma.so.0\n\n\
         Made by `cargo xtask rpma matrix`. fio: imported by Debian 12's fio 3.33 with its four engines. examples: called by those of librpma\n\
         1.3 itself. checked: called by `testbed/rpma`, with what it is for and with what it must refuse, by `cargo xtask rpma check` over TCP\n\
         and shared memory, and over verbs in the virtual machine. differs: from librpma 1.3 (\"the original\") and why, as the\n\
         function's manual page has it. [All have in common](librpma.md#what-is-different-and-why) that an object that was deleted, or made before\n\
         a fork, is `RPMA_E_INVAL`, as a program should not crash for it, and that where a few bytes cannot be allocated (`RPMA_E_NOMEM`)\n\
         the process ends, as Rust's programs do.\n\n\
         {} functions: {} used by fio, {} by the examples, {} checked, {} differ.\n\n\
         | function | fio | examples | checked | differs |\n|---|---|---|---|---|\n",
        exported.len(),
        exported.intersection(fio).count(),
        exported.intersection(examples).count(),
        exported.iter().filter(|name| calls.get(*name).is_some_and(|count| *count > 0)).count(),
        exported.iter().filter(|name| differences.get(*name).is_some_and(|differs| !differs.is_empty())).count(),
    );
    for name in exported {
        let checked = if calls.get(name).is_some_and(|count| *count > 0) { "yes" } else { "**no**" };
        let differs = cell(differences, name);
        let _ = writeln!(text, "| `{name}` | {} | {} | {checked} | {differs} |", mark(fio, name), mark(examples, name));
    }
    text
}

/// The last column of the table, which the header alone makes.
fn cell<'a>(differences: &'a BTreeMap<String, String>, name: &str) -> &'a str {
    match differences.get(name).map(String::as_str) {
        None => "**not in the header**",
        Some("") => "-",
        Some(differs) => differs,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rest of the document takes fio to be made.
    #[test]
    fn the_document_tells_the_differences_that_the_header_tells() {
        let differences = capi::differences(&Path::new("..").join(HEADER)).unwrap();
        let document = fs::read_to_string(Path::new("..").join(MATRIX)).unwrap();
        let rows: Vec<_> = document.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`')).collect();
        assert_eq!(rows.len(), differences.len());
        for (name, row) in rows {
            assert!(row.ends_with(&format!("| {} |", cell(&differences, name))), "{name}: {row}");
        }
    }

    #[test]
    fn what_a_deletion_does_to_threads_that_wait_is_on_the_pages_of_both() {
        let header = fs::read_to_string("../capi/rpma/include/librpma.h").unwrap();
        let comment_of = |function: &str| {
            let (before, _) = header.split_once(&format!("\nint {function}(")).unwrap();
            before
                .rsplit_once("/*")
                .unwrap()
                .1
                .lines()
                .map(|line| line.trim_start_matches(" * "))
                .collect::<Vec<_>>()
                .join(" ")
        };
        for function in ["rpma_ep_shutdown", "rpma_conn_delete", "rpma_srq_delete"] {
            let comment = comment_of(function);
            let (does, differs) = comment.split_once("Differs: ").unwrap();
            for part in [does, differs] {
                let waiters = part.split(". ").find(|sentence| sentence.to_lowercase().contains("hread"));
                assert!(waiters.is_some_and(|sentence| sentence.contains("RPMA_E_INVAL")), "{function}: {part}");
            }
        }
        for function in
            ["rpma_ep_next_conn_req", "rpma_conn_next_event", "rpma_conn_wait", "rpma_cq_wait", "rpma_cq_get_wc"]
        {
            let comment = comment_of(function);
            let (_, errors) = comment.split_once("Errors: ").unwrap();
            let invalid = errors.split(';').find(|error| error.contains("RPMA_E_INVAL")).unwrap();
            assert!(invalid.contains("deleted meanwhile"), "{function}: {invalid}");
        }
    }

    #[test]
    fn what_nobody_checks_is_listed() {
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        let calls = BTreeMap::from([("rpma_a".to_owned(), 3), ("rpma_b".to_owned(), 0)]);
        let differences =
            BTreeMap::from([("rpma_a".to_owned(), "so".to_owned()), ("rpma_b".to_owned(), String::new())]);
        let text = table(&set(&["rpma_a", "rpma_b"]), &set(&["rpma_a"]), &set(&["rpma_b"]), &calls, &differences);
        assert!(text.contains("| `rpma_a` | yes |  | yes | so |\n| `rpma_b` |  | yes | **no** | - |"), "{text}");
        assert!(text.contains("2 functions: 1 used by fio, 1 by the examples, 1 checked, 1 differ."), "{text}");
    }
}
