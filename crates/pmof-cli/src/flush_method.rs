//! The system call by which a target flushes pools in files: measured, or named by the operator.

use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::ValueEnum;
use pmof_mem::{SyncCache, SyncChoice, SyncMethod, SyncSource};

/// How long a target measures when it is started for the first time on a file system.
const MEASURE_LIMIT: Duration = Duration::from_secs(1);

/// Which call flushes pools in files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum FlushMethod {
    /// The one that was measured to be fastest; fdatasync where nothing was
    #[default]
    Auto,
    /// The whole file
    Fdatasync,
    /// The range that was written, on ext2, ext3, ext4 and XFS; fdatasync elsewhere
    Msync,
}

/// The calls for pools in files, and where they come from.
#[derive(Debug)]
pub(crate) struct ChosenFlush {
    pub(crate) choice: SyncChoice,
    origin: Origin,
}

#[derive(Debug)]
enum Origin {
    Named,
    Measured,
    Unmeasured { why: String },
}

impl FlushMethod {
    /// The calls for pools under `root`. `may_measure`: there is time for it, where nothing is known yet.
    pub(crate) fn choose(self, root: &Path, may_measure: bool) -> ChosenFlush {
        let named = |method| ChosenFlush { choice: SyncChoice::always(method), origin: Origin::Named };
        match self {
            Self::Fdatasync => named(SyncMethod::Fdatasync),
            Self::Msync => named(SyncMethod::Msync),
            Self::Auto => measured(root, may_measure),
        }
    }
}

impl ChosenFlush {
    /// Tells the log, once the target runs.
    pub(crate) fn tell(&self, root: &Path) {
        let (root, method) = (root.display(), described(self.choice));
        match &self.origin {
            Origin::Unmeasured { why } => {
                log::debug!(event = "flush_method", root:%, method = method.as_str(), reason = why.as_str(); "files in {root} are flushed by {method}: {why}");
            }
            Origin::Named => {
                log::info!(event = "flush_method", root:%, method = method.as_str(); "files in {root} are flushed by {method}, as the option says");
            }
            Origin::Measured => {
                log::info!(event = "flush_method", root:%, method = method.as_str(); "files in {root} are flushed by {method}, as measured");
            }
        }
    }
}

fn measured(root: &Path, may_measure: bool) -> ChosenFlush {
    let source = match flush_cache() {
        Some(cache) => cache.choose(root, may_measure.then_some(MEASURE_LIMIT)),
        None => SyncSource::Usual { why: "there is no cache directory".into() },
    };
    let choice = source.choice();
    let origin = match source {
        SyncSource::Usual { why } => Origin::Unmeasured { why },
        SyncSource::Measured(_) | SyncSource::Cached(_) => Origin::Measured,
    };
    ChosenFlush { choice, origin }
}

/// `fdatasync`, or `msync for 512 x 16, 4096 x 1; else fdatasync`.
fn described(choice: SyncChoice) -> String {
    let cells = SyncChoice::SIZES_BYTES.into_iter().enumerate();
    let cells = cells.flat_map(|(size, bytes)| {
        SyncChoice::CLIENTS.into_iter().enumerate().map(move |(clients, count)| ((size, clients), bytes, count))
    });
    let ranged: Vec<_> = cells
        .filter(|(cell, ..)| choice.cell(*cell) == SyncMethod::Msync)
        .map(|(_, bytes, count)| format!("{bytes} x {count}"))
        .collect();
    if ranged.is_empty() { "fdatasync".into() } else { format!("msync for {}, else fdatasync", ranged.join(", ")) }
}

/// Where measurements are kept; `None` for a process that has no directory for such.
pub(crate) fn flush_cache() -> Option<SyncCache> {
    #[allow(deprecated, reason = "deprecated for the sake of Windows until Rust 1.87")]
    let home = env::home_dir();
    cache_directory(env::var_os("CACHE_DIRECTORY"), env::var_os("XDG_CACHE_HOME"), home).map(SyncCache::new)
}

/// That of the service manager (systemd.exec(5)), or the user's (XDG Base Directory Specification). Relative paths are ignored, as the latter says.
fn cache_directory(service: Option<OsString>, user: Option<OsString>, home: Option<PathBuf>) -> Option<PathBuf> {
    // Of several directories of a service, the first.
    let service = service.and_then(|list| Some(PathBuf::from(list.to_str()?.split(':').next()?)));
    let below = |directory: PathBuf| directory.join("pmof");
    let user = user.map(|user| below(user.into()));
    let home = home.map(|home| below(home.join(".cache")));
    [service, user, home].into_iter().flatten().find(|directory| directory.is_absolute())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_lies_where_the_environment_says() {
        let found = |service: Option<&str>, user: Option<&str>, home: Option<&str>| {
            cache_directory(service.map(Into::into), user.map(Into::into), home.map(Into::into))
        };
        let all = found(Some("/var/cache/pmof:/var/cache/more"), Some("/x"), Some("/home/u"));
        assert_eq!(all, Some("/var/cache/pmof".into()));
        assert_eq!(found(None, Some("/x"), Some("/home/u")), Some("/x/pmof".into()));
        assert_eq!(found(None, Some("x"), Some("/home/u")), Some("/home/u/.cache/pmof".into()), "it is relative");
        assert_eq!(found(None, None, None), None);
    }

    #[test]
    fn an_operator_overrides_what_was_measured() {
        let root = Path::new("/no/such/root");
        assert_eq!(FlushMethod::Msync.choose(root, true).choice, SyncChoice::always(SyncMethod::Msync));
        assert_eq!(FlushMethod::Fdatasync.choose(root, true).choice, SyncChoice::default());
        assert_eq!(FlushMethod::Auto.choose(root, true).choice, SyncChoice::default(), "there is nothing to measure");
    }

    #[test]
    fn a_choice_is_described() {
        let choice = SyncChoice::default();
        assert_eq!(described(choice), "fdatasync");
        let choice = choice.with_cell((0, 1), SyncMethod::Msync).with_cell((2, 0), SyncMethod::Msync);
        assert_eq!(described(choice), "msync for 512 x 16, 65536 x 1, else fdatasync");
    }
}
