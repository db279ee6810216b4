//! `cargo xtask mutants`: the code is broken on purpose, in ways that have a name, and a suite must notice.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;

use crate::counts::Counts;
use catalogue::Mutant;
use suite::{SuiteCommand, Verdict};
use tree::Tree;

mod anchor;
mod catalogue;
mod suite;
mod table;
mod tree;

/// `cargo xtask mutants`: without options, all of the catalogue runs.
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is an option of the command line")]
pub(crate) struct Mutants {
    /// Name the mutants, what each breaks, and the suites that must notice; run nothing
    #[arg(long)]
    list: bool,
    /// See that the catalogue is whole, that every anchor is there exactly once, and that docs/mutants.md has a row of each mutant; run
    /// nothing
    #[arg(long, conflicts_with = "list")]
    check: bool,
    /// Run the mutants of these names only
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Run the short list: the cheapest
    #[arg(long)]
    short: bool,
    /// Write the table of docs/mutants.md; of mutants that did not run the last outcome stays
    #[arg(long)]
    markdown: bool,
}

/// What became of a mutant.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Fate {
    /// Every suite that it names noticed; the tests that failed, as far as they have names.
    Killed(Vec<String>),
    /// This suite passed.
    Survived(String),
    /// The catalogue is wrong, or a suite says nothing.
    Unclear(String),
}

impl Mutants {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask lies in the workspace's root")?;
        let all = catalogue::load(root)?;
        for name in &self.only {
            ensure!(all.iter().any(|mutant| mutant.name == *name), "no mutant is named {name}: see --list");
        }
        let is_wanted = |mutant: &&Mutant| {
            (self.only.is_empty() || self.only.contains(&mutant.name)) && (mutant.short || !self.short)
        };
        let wanted: Vec<_> = all.iter().filter(is_wanted).collect();
        if self.list {
            list(&wanted);
            return Ok(ExitCode::SUCCESS);
        }
        let mut fates = BTreeMap::new();
        if !self.check {
            fates = run_all(root, &wanted)?;
        }
        let page = root.join("docs/mutants.md");
        if self.markdown {
            table::write(&page, &all, &fates)?;
        }
        if self.check {
            table::check(&page, &all)?;
            println!("{} mutants, every anchor is there, and a row of each", all.len());
        }
        let all_killed = fates.values().all(|fate| matches!(fate, Fate::Killed(_)));
        Ok(if all_killed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

fn list(mutants: &[&Mutant]) {
    for mutant in mutants {
        let short = if mutant.short { " (short list)" } else { "" };
        println!("{}{short}: {}", mutant.name, mutant.breaks);
        println!("    {}, {}", mutant.file.display(), mutant.function);
        for suite in &mutant.suites {
            println!("    {suite}");
        }
    }
}

/// Runs the suites without mutants, then each mutant. Says what comes out, and closes with the line of counts.
fn run_all<'a>(root: &Path, mutants: &[&'a Mutant]) -> Result<BTreeMap<&'a str, Fate>> {
    ensure!(!mutants.is_empty(), "no mutant is left to run");
    let start = Instant::now();
    let tree = Tree::of(root)?;
    let mut mutants = mutants.to_vec();
    // Neighbours share what is built.
    mutants.sort_by(|one, other| (&one.file, &one.suites).cmp(&(&other.file, &other.suites)));
    check_suites(root, &tree, &mutants)?;
    let mut fates = BTreeMap::new();
    for mutant in mutants {
        let start = Instant::now();
        let log = tree.log(&mutant.name)?;
        let fate = fate_of(root, &tree, mutant, &log)?;
        let seconds = shown(start.elapsed());
        match &fate {
            Fate::Killed(tests) => println!("killed {} in {seconds}: {}", mutant.name, shown_tests(tests)),
            Fate::Survived(suite) => {
                println!("SURVIVED {} in {seconds}: {suite} passed; {}", mutant.name, mutant.breaks);
            }
            Fate::Unclear(why) => println!("UNCLEAR {} in {seconds}: {why}; {}", mutant.name, log.display()),
        }
        fates.insert(mutant.name.as_str(), fate);
    }
    let passed = fates.values().filter(|fate| matches!(fate, Fate::Killed(_))).count() as u64;
    println!("mutants: {} of {} killed, in {}", passed, fates.len(), shown(start.elapsed()));
    println!("{}", Counts { passed, failed: fates.len() as u64 - passed, skipped: 0 });
    Ok(fates)
}

/// Every suite must pass while nothing is broken: else its failure says nothing of a mutant.
fn check_suites(root: &Path, tree: &Tree, mutants: &[&Mutant]) -> Result<()> {
    let mut checked: Vec<&String> = Vec::new();
    for mutant in mutants {
        for suite in &mutant.suites {
            if checked.contains(&suite) {
                continue;
            }
            checked.push(suite);
            let (start, log) = (Instant::now(), tree.log(&format!("unbroken-{}", checked.len()))?);
            let package = package_of(root, &mutant.file)?;
            match SuiteCommand::parse(suite)?.run(&tree.path(), &tree.target(), &package, &log)? {
                Verdict::Passed => println!("unbroken: {suite}: passed in {}", shown(start.elapsed())),
                verdict => bail!("{suite} does not pass with nothing broken: {verdict:?}; see {}", log.display()),
            }
        }
    }
    Ok(())
}

fn fate_of(root: &Path, tree: &Tree, mutant: &Mutant, log: &Path) -> Result<Fate> {
    let package = package_of(root, &mutant.file)?;
    let _change = tree.change(&mutant.file, &mutant.mutated(&tree.path())?)?;
    let mut tests = Vec::new();
    for suite in &mutant.suites {
        match SuiteCommand::parse(suite)?.run(&tree.path(), &tree.target(), &package, log)? {
            Verdict::Passed => return Ok(Fate::Survived(suite.clone())),
            Verdict::TestsFailed { count, names } if names.is_empty() => tests.push(format!("{count} of {suite}")),
            Verdict::TestsFailed { names, .. } => tests.extend(names),
            Verdict::NotBuilt => return Ok(Fate::Unclear("it does not compile".to_owned())),
            Verdict::Unclear(why) => return Ok(Fate::Unclear(format!("{suite}: {why}"))),
        }
    }
    Ok(Fate::Killed(tests))
}

/// The package that a file belongs to: the nearest `Cargo.toml` above it.
fn package_of(root: &Path, file: &Path) -> Result<String> {
    for directory in root.join(file).ancestors().skip(1) {
        let Ok(text) = fs::read_to_string(directory.join("Cargo.toml")) else { continue };
        let manifest: toml::Table = toml::from_str(&text)?;
        let name = manifest.get("package").and_then(|package| package.get("name")).and_then(toml::Value::as_str);
        return name.map(str::to_owned).with_context(|| format!("{} belongs to no package", file.display()));
    }
    bail!("{} belongs to no package", file.display())
}

fn shown(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

fn shown_tests(tests: &[String]) -> String {
    match tests {
        [first, _, .., _] => format!("{first} and {} more", tests.len() - 1),
        tests => tests.join(", "),
    }
}
