//! The catalogue: `xtask/mutants/*.toml`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use serde::Deserialize;

use super::{anchor::Source, suite::SuiteCommand};

#[cfg(test)]
mod tests;

/// Where the catalogue lies in the workspace.
pub(super) const DIRECTORY: &str = "xtask/mutants";

/// One way to break the code.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Mutant {
    /// Lowercase letters, digits and hyphens.
    pub(super) name: String,
    /// The promise that it breaks, in a few words.
    pub(super) breaks: String,
    /// From the root of the workspace.
    pub(super) file: PathBuf,
    /// The function that holds `search` exactly once: see [`Source::replaced`].
    pub(super) function: String,
    pub(super) search: String,
    pub(super) replace: String,
    /// Each of these must notice.
    pub(super) suites: Vec<String>,
    /// Whether it belongs to the short list.
    #[serde(default)]
    pub(super) short: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    mutant: Vec<Mutant>,
}

impl Mutant {
    /// The content of its file with the mutant in it.
    pub(super) fn mutated(&self, root: &Path) -> Result<String> {
        self.mutated_in(&read_source(root, &self.file)?)
    }

    fn mutated_in(&self, source: &Source) -> Result<String> {
        source.replaced(&self.function, &self.search, &self.replace).with_context(|| self.file.display().to_string())
    }

    fn check(&self, source: Result<&Source, &anyhow::Error>) -> Result<()> {
        let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        ensure!(!self.name.is_empty() && self.name.bytes().all(is_plain), "a name has a-z, 0-9 and - only");
        ensure!(!self.breaks.trim().is_empty(), "`breaks` says nothing");
        ensure!(!self.suites.is_empty(), "it names no suite");
        for suite in &self.suites {
            SuiteCommand::parse(suite)?;
        }
        let source = source.map_err(|error| anyhow!("{error:#}"))?;
        self.mutated_in(source).map(drop)
    }
}

fn read_source(root: &Path, file: &Path) -> Result<Source> {
    let path = root.join(file);
    let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    Source::parse(text).with_context(|| file.display().to_string())
}

/// All mutants, in the order of files and of places in them.
///
/// # Errors
/// All that is wrong with the catalogue: files that cannot be read, names that are taken, anchors that are gone.
pub(super) fn load(root: &Path) -> Result<Vec<Mutant>> {
    let mutants = read(&root.join(DIRECTORY))?;
    let mut names = BTreeSet::new();
    let mut wrong = Vec::new();
    // Each file is parsed once.
    let mut sources = BTreeMap::new();
    for mutant in &mutants {
        let source = sources.entry(&mutant.file).or_insert_with(|| read_source(root, &mutant.file));
        if !names.insert(&mutant.name) {
            wrong.push(format!("{}: another one has this name", mutant.name));
        }
        if let Err(error) = mutant.check(source.as_ref()) {
            wrong.push(format!("{}: {error:#}", mutant.name));
        }
    }
    if !wrong.is_empty() {
        bail!("wrong in {DIRECTORY}:\n{}", wrong.join("\n"));
    }
    Ok(mutants)
}

fn read(directory: &Path) -> Result<Vec<Mutant>> {
    let entries = fs::read_dir(directory).with_context(|| format!("reading {}", directory.display()))?;
    let mut files = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    files.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    files.sort();
    let mut mutants = Vec::new();
    for path in files {
        let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        let file: File = toml::from_str(&text).with_context(|| format!("reading {}", path.display()))?;
        mutants.extend(file.mutant);
    }
    Ok(mutants)
}
