//! A platform in one text file, laid out in a temporary directory as sysfs and procfs are.
//!
//! Lines: `PATH = CONTENT` with `\n`, `\t`, `\\`; `PATH -> TARGET` for a link; `PATH !` for a file that cannot be read (it
//! is made a directory); `# ...` says what the platform is. Paths begin with `sys/`, `proc/` or `answers/`, which has what
//! devices said when they were asked (`System::with_answers`).

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::symlink,
    path::{Component, Path, PathBuf},
    sync::OnceLock,
};

use pmof_doctor::{
    CapabilitiesUnknown, DeviceCapabilities, Libfabric, Platform, RdmaCapabilities, Rds, Report, cpu_write_back,
    examine,
};
use pmof_mem::System;
use tempfile::TempDir;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    Text(String),
    Link(String),
    Unreadable,
}

#[derive(Clone, Debug)]
pub(crate) struct Fixture {
    pub(crate) name: String,
    pub(crate) directory: PathBuf,
    pub(crate) entries: BTreeMap<String, Entry>,
    capabilities: BTreeMap<String, DeviceCapabilities>,
    library_missing: bool,
}

/// Every platform that is checked in.
pub(crate) fn all() -> &'static [Fixture] {
    static ALL: OnceLock<Vec<Fixture>> = OnceLock::new();
    ALL.get_or_init(load_all)
}

fn load_all() -> Vec<Fixture> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/platforms");
    let mut names: Vec<_> = fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.sort();
    names.iter().map(|directory| Fixture::load(directory)).collect()
}

impl Fixture {
    fn load(directory: &Path) -> Self {
        let text = fs::read_to_string(directory.join("platform.txt")).unwrap();
        let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
        let entries =
            lines.map(|line| parse(line).unwrap_or_else(|| panic!("{}: {line}", directory.display()))).collect();
        let mut fixture = Self {
            name: directory.file_name().unwrap().to_str().unwrap().to_owned(),
            directory: directory.into(),
            entries,
            capabilities: BTreeMap::new(),
            library_missing: false,
        };
        if let Ok(text) = fs::read_to_string(directory.join("capabilities.json")) {
            let value: serde_json::Value = serde_json::from_str(&text).unwrap();
            fixture.library_missing = value.get("error").is_some();
            if !fixture.library_missing {
                fixture.capabilities = serde_json::from_value(value).unwrap();
            }
        }
        fixture
    }

    pub(crate) fn text(&self, path: &str) -> Option<&str> {
        match self.entries.get(&self.resolve(path)?)? {
            Entry::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(crate) fn known(&self, device: &str) -> Option<&DeviceCapabilities> {
        self.capabilities.get(device)
    }

    /// The path without links, whether or not something is there.
    pub(crate) fn resolve(&self, path: &str) -> Option<String> {
        let mut parts: Vec<&str> = path.split('/').collect();
        let mut done: Vec<String> = Vec::new();
        for _ in 0..256 {
            if parts.is_empty() {
                return Some(done.join("/"));
            }
            match parts.remove(0) {
                "" | "." => {}
                ".." => drop(done.pop()?),
                part => done.push(part.to_owned()),
            }
            if let Some(Entry::Link(target)) = self.entries.get(&done.join("/")) {
                done.pop();
                parts.splice(0..0, target.split('/'));
            }
        }
        None
    }

    /// What the doctor says of the platform, with the paths of the temporary directory taken out.
    pub(crate) fn examine(&self) -> (Report, String) {
        let (directory, system) = self.system();
        self.examine_in(&directory, system)
    }

    /// The same where the platform is laid out already, and may have been changed.
    pub(crate) fn examine_in(&self, directory: &TempDir, system: System) -> (Report, String) {
        let report =
            examine(&Platform { system, paths: Vec::new(), libfabric: Libfabric::NotAsked, rds: Rds::NotAsked }, self);
        let text = report.to_string().replace(directory.path().to_str().unwrap(), "");
        (report, text)
    }

    pub(crate) fn system(&self) -> (TempDir, System) {
        // In memory: thousands of small files are made.
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let root = directory.path().canonicalize().unwrap();
        for (path, entry) in &self.entries {
            let path = root.join(path);
            // A mutation may have made a file of what another entry needs as a directory: then that entry is missing.
            if fs::create_dir_all(path.parent().unwrap()).is_err() || path.exists() {
                continue;
            }
            entry.make(&path);
        }
        let cpu = cpu_write_back(self.text("proc/cpuinfo").unwrap_or_default());
        (directory, System::copied(root.join("sys"), root.join("proc"), cpu).with_answers(root.join("answers")))
    }
}

impl Entry {
    pub(crate) fn make(&self, path: &Path) {
        match self {
            Self::Text(text) => fs::write(path, text).unwrap(),
            Self::Link(target) => symlink(target, path).unwrap(),
            Self::Unreadable => fs::create_dir(path).unwrap(),
        }
    }

    pub(crate) fn remove(&self, path: &Path) {
        match self {
            Self::Text(_) | Self::Link(_) => fs::remove_file(path).unwrap(),
            Self::Unreadable => fs::remove_dir(path).unwrap(),
        }
    }
}

impl RdmaCapabilities for Fixture {
    fn of(&self, device: &str) -> Result<DeviceCapabilities, CapabilitiesUnknown> {
        if self.library_missing {
            return Err(CapabilitiesUnknown::LibraryMissing);
        }
        let unknown = || CapabilitiesUnknown::Failed { why: format!("ibv_open_device({device}): Input/output error") };
        self.capabilities.get(device).cloned().ok_or_else(unknown)
    }
}

fn parse(line: &str) -> Option<(String, Entry)> {
    let (path, entry) = if let Some(path) = line.strip_suffix(" !") {
        (path, Entry::Unreadable)
    } else if let Some((path, text)) = line.split_once(" = ").or_else(|| Some((line.strip_suffix(" =")?, ""))) {
        (path, Entry::Text(unescape(text)))
    } else {
        let (path, target) = line.split_once(" -> ")?;
        (path, Entry::Link(target.to_owned()))
    };
    let is_plain = Path::new(path).components().all(|part| matches!(part, Component::Normal(_)));
    (is_plain && ["sys/", "proc/", "answers/"].iter().any(|root| path.starts_with(root)))
        .then(|| (path.to_owned(), entry))
}

fn unescape(text: &str) -> String {
    let mut plain = String::new();
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        plain.push(match letter {
            '\\' => match letters.next() {
                Some('n') => '\n',
                Some('t') => '\t',
                _ => '\\',
            },
            other => other,
        });
    }
    plain
}
