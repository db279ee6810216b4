//! `cargo xtask api`: the public interface of the facade, and of what it exports of the crates behind it, beside its snapshots.

use std::{
    collections::{BTreeSet, HashSet},
    env, fmt, fs,
    ops::RangeInclusive,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use serde::Deserialize;

use exported::Exported;

use crate::{counts::Counts, sshd::write_program, suites::program_file};

mod exported;

/// The crate that programs see.
const FACADE: &str = "pmof";

/// Crates of which only what the facade exports is public.
const BEHIND: [&str; 12] = [
    "pmof-access",
    "pmof-bootstrap",
    "pmof-control",
    "pmof-fabric",
    "pmof-mem",
    "pmof-pool",
    "pmof-pool-set",
    "pmof-proto",
    "pmof-rds",
    "pmof-target",
    "pmof-terms",
    "pmof-verbs",
];

const SNAPSHOTS: &str = "crates/pmof/public-api";

/// The formats of rustdoc's JSON that this release of public-api is known to read.
const FORMATS: RangeInclusive<u32> = 56..=57;

/// Options of `cargo xtask api`.
#[derive(Debug, Args)]
pub(crate) struct Api {
    /// Write the snapshots anew
    #[arg(long)]
    write: bool,
    /// Say of each crate whether its snapshot only adds to that of this revision, such as the last release, or may break programs; document nothing
    #[arg(long, value_name = "REVISION", conflicts_with = "write")]
    since: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Format {
    format_version: u32,
}

impl Api {
    pub(crate) fn run(&self) -> Result<ExitCode> {
        if let Some(revision) = &self.since {
            return changed_since(revision);
        }
        document()?;
        let facade = rustdoc_json(FACADE);
        let text = fs::read_to_string(&facade).with_context(|| format!("reading {}", facade.display()))?;
        let Format { format_version } = serde_json::from_str(&text).context("the version of rustdoc's JSON")?;
        let mut counts = Counts::default();
        if !FORMATS.contains(&format_version) {
            println!("skipped: this rustdoc writes JSON of version {format_version}, public-api reads {FORMATS:?}");
            counts.skipped = (1 + BEHIND.len()) as u64;
            println!("{counts}");
            return Ok(ExitCode::SUCCESS);
        }
        let exported = Exported::read()?;
        self.compare(FACADE, &listing(&facade)?, &mut counts)?;
        let mut unnamed = BTreeSet::new();
        for name in BEHIND {
            let reached = exported.of(name, &listing(&rustdoc_json(name))?);
            unnamed.extend(reached.iter().flat_map(|line| exported.unnamed(line)));
            self.compare(name, &reached, &mut counts)?;
        }
        if unnamed.is_empty() {
            println!("ok every type of the interface has a name in {FACADE}");
            counts += Counts::ONE_PASSED;
        } else {
            println!("FAILED types of the interface without a name in {FACADE}: {unnamed:?}");
            counts += Counts::ONE_FAILED;
        }
        println!("{counts}");
        Ok(if counts.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    fn compare(&self, name: &str, found: &[String], counts: &mut Counts) -> Result<()> {
        let path = Path::new(SNAPSHOTS).join(format!("{name}.txt"));
        if self.write {
            fs::write(&path, found.join("\n") + "\n").with_context(|| format!("writing {}", path.display()))?;
        }
        let text = fs::read_to_string(&path)
            .with_context(|| format!("reading {}; cargo xtask api --write makes it", path.display()))?;
        let changes = changes(&text, found);
        if changes.is_empty() {
            println!("ok {name}");
            *counts += Counts::ONE_PASSED;
        } else {
            let effect = Effect::of(&text, &changes);
            println!(
                "FAILED {name}: {effect}, beside {}; cargo xtask api --write takes what is meant:",
                path.display()
            );
            println!("{}", changes.join("\n"));
            *counts += Counts::ONE_FAILED;
        }
        Ok(())
    }
}

/// What a change of the public interface does to programs that use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    Nothing,
    Adds,
    Breaks,
}

impl Effect {
    /// What changes of a snapshot do. An item that is gone, or is now another, breaks programs. So may what is added to a trait, which they may
    /// implement, and to an enum or a struct that is not `#[non_exhaustive]`.
    fn of(snapshot: &str, changes: &[String]) -> Self {
        let breaks = |change: &String| change.strip_prefix("+ ").is_none_or(|added| is_owner_closed(snapshot, added));
        match changes {
            [] => Self::Nothing,
            changes if changes.iter().any(breaks) => Self::Breaks,
            _ => Self::Adds,
        }
    }
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nothing => "as before",
            Self::Adds => "adds to it",
            Self::Breaks => "may break programs",
        })
    }
}

/// Whether a line of a listing adds to an item of the snapshot to which nothing can be added for sure.
fn is_owner_closed(snapshot: &str, added: &str) -> bool {
    let Some(item) = added.strip_prefix("pub ") else { return false };
    let (item, kinds): (_, &[&str]) = match item.strip_prefix("fn ").or_else(|| item.strip_prefix("type ")) {
        Some(item) => (item, &["pub trait"]),
        None => (item, &["pub enum", "pub struct"]),
    };
    let path = item.split(['(', '<', ' ']).next().unwrap_or_default().trim_end_matches(':');
    let Some((owner, _)) = path.rsplit_once("::") else { return false };
    let is_it = |line: &str, kind: &str| {
        let rest = line.strip_prefix(kind).and_then(|rest| rest.strip_prefix(' ')?.strip_prefix(owner));
        rest.is_some_and(|rest| !rest.starts_with("::") && !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
    };
    snapshot.lines().any(|line| kinds.iter().any(|kind| is_it(line, kind)))
}

/// Says of each snapshot what it does to programs that were written for that of a revision.
fn changed_since(revision: &str) -> Result<ExitCode> {
    let mut worst = Effect::Nothing;
    for name in [FACADE].iter().chain(&BEHIND) {
        let path = format!("{SNAPSHOTS}/{name}.txt");
        let shown =
            Command::new("git").args(["show", &format!("{revision}:{path}")]).output().context("starting git")?;
        ensure!(shown.status.success(), "git show: {}", String::from_utf8_lossy(&shown.stderr).trim());
        let before = String::from_utf8(shown.stdout).with_context(|| format!("{path} of {revision}"))?;
        let now = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
        let now: Vec<_> = now.lines().map(str::to_owned).collect();
        let changes = changes(&before, &now);
        let effect = Effect::of(&before, &changes);
        println!("{name}: {effect}");
        if !changes.is_empty() {
            println!("{}", changes.join("\n"));
        }
        worst = if worst == Effect::Breaks || effect == Effect::Nothing { worst } else { effect };
    }
    println!("since {revision}: {worst}");
    Ok(ExitCode::SUCCESS)
}

/// Has rustdoc describe the crates as JSON. Stable rustdoc does so only where this variable allows it; in cargo's own environment
/// it would have dependencies built anew.
fn document() -> Result<()> {
    let directory = env::current_dir()?.join(program_file("target/api"));
    fs::create_dir_all(&directory).with_context(|| format!("making {}", directory.display()))?;
    let rustdoc = directory.join("rustdoc");
    write_program(&rustdoc, "#!/bin/sh\nRUSTC_BOOTSTRAP=1 exec rustdoc \"$@\"\n")?;
    let packages = [FACADE].into_iter().chain(BEHIND).flat_map(|name| ["--package", name]);
    let status = Command::new("cargo")
        .args(["doc", "--quiet", "--no-deps", "--lib"])
        .args(packages)
        .env("RUSTDOC", &rustdoc)
        .env("RUSTDOCFLAGS", "-Zunstable-options --output-format=json --cap-lints=allow")
        .status()
        .context("starting cargo")?;
    ensure!(status.success(), "cargo doc: {status}");
    Ok(())
}

fn rustdoc_json(name: &str) -> PathBuf {
    program_file(&format!("target/doc/{}.json", name.replace('-', "_")))
}

/// What is public, one item a line. Of what is derived only that it is there, without its functions.
fn listing(json: &Path) -> Result<Vec<String>> {
    let list = |omits_derived| {
        let items = public_api::Builder::from_rustdoc_json(json)
            .omit_blanket_impls(true)
            .omit_auto_trait_impls(true)
            .omit_auto_derived_impls(omits_derived)
            .build();
        let items = items.with_context(|| format!("reading {}", json.display()))?;
        Ok::<Vec<String>, anyhow::Error>(items.items().map(ToString::to_string).collect())
    };
    let written: HashSet<String> = list(true)?.into_iter().collect();
    let is_kept =
        |line: &String| written.contains(line) || line.starts_with("impl") && !line.contains("StructuralPartialEq");
    Ok(list(false)?.into_iter().filter(is_kept).collect())
}

/// What the snapshot has and the listing has not, and the other way round.
fn changes(snapshot: &str, found: &[String]) -> Vec<String> {
    let before: BTreeSet<&str> = snapshot.lines().collect();
    let now: BTreeSet<&str> = found.iter().map(String::as_str).collect();
    let gone = before.difference(&now).map(|line| format!("- {line}"));
    gone.chain(now.difference(&before).map(|line| format!("+ {line}"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn what_comes_and_what_goes_is_reported() {
        assert_eq!(changes("pub fn a()\npub fn b()\n", &lines("pub fn a()\npub fn b()")), Vec::<String>::new());
        let found = lines("pub fn a()\npub fn b(u8)");
        assert_eq!(changes("pub fn a()\npub fn b()\n", &found), ["- pub fn b()", "+ pub fn b(u8)"]);
    }

    #[test]
    fn what_may_break_a_program_is_told_from_what_only_adds() {
        let snapshot = "pub trait a::T\npub trait a::U: core::fmt::Debug\npub fn a::T::f(&self)\npub enum a::E\npub a::E::One\n\
                        #[non_exhaustive] pub enum a::N\npub struct a::S\npub struct a::G<X>\npub fn a::S::f(&self)";
        let effect = |change: &str| Effect::of(snapshot, &[change.to_owned()]);
        for breaks in [
            "- pub fn a::S::f(&self)",
            "+ pub fn a::T::g(&self)",
            "+ pub fn a::U::g(&self)",
            "+ pub type a::T::Of",
            "+ pub a::E::Two",
            "+ pub a::E::Two(u8)",
            "+ pub a::S::field: u8",
            "+ pub a::G::field: u8",
        ] {
            assert_eq!(effect(breaks), Effect::Breaks, "{breaks}");
        }
        for adds in [
            "+ pub fn a::S::g(&self) -> a::E",
            "+ pub fn a::E::g(&self)",
            "+ pub a::N::Two",
            "+ pub struct a::New",
            "+ pub fn a::free()",
            "+ impl core::clone::Clone for a::S",
            "+ pub enum a::Ee",
            "+ pub a::Ee::One",
        ] {
            assert_eq!(effect(adds), Effect::Adds, "{adds}");
        }
        assert_eq!(Effect::of(snapshot, &[]), Effect::Nothing);
        assert_eq!(Effect::of(snapshot, &lines("+ pub struct a::New\n- pub a::E::One")), Effect::Breaks);
    }
}
