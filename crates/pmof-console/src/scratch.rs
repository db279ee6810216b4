//! A directory for targets that is gone afterwards, on a file system that keeps what it promises.

use std::path::{Path, PathBuf};

use crate::interrupt::TemporaryDirectory;
use anyhow::{Context, bail};
use pmof::{Durability, causes};
use pmof_mem::{MediumProbe, probe};

/// A new directory under one whose files survive loss of power.
#[derive(Debug)]
pub struct Scratch {
    directory: TemporaryDirectory,
    probe: MediumProbe,
}

impl Scratch {
    /// Makes one under `parent`; without it under the system's directory for temporary files, else the current one.
    /// `prefix` begins its name.
    pub fn new(parent: Option<&Path>, prefix: &str) -> anyhow::Result<Self> {
        let candidates = match parent {
            Some(parent) => vec![parent.to_owned()],
            None => vec![std::env::temp_dir(), PathBuf::from(".")],
        };
        let mut refusals = Vec::new();
        for candidate in candidates {
            match probe(&candidate) {
                Ok(probe) if probe.strongest >= Durability::PowerFailure => {
                    let made = TemporaryDirectory::create(prefix, &candidate);
                    let directory =
                        made.with_context(|| format!("cannot make a directory in {}", candidate.display()))?;
                    return Ok(Self { directory, probe });
                }
                Ok(probe) => refusals.push(format!("{}: {}", candidate.display(), probe.mend.unwrap_or_default())),
                Err(error) => refusals.push(causes(&error).to_string()),
            }
        }
        bail!(
            "no directory whose files survive loss of power ({}); name one on a local disk with --dir DIR",
            refusals.join("; ")
        )
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// What its file system promises.
    pub fn probe(&self) -> &MediumProbe {
        &self.probe
    }

    /// Leaves the directory where it is, for somebody to look into.
    pub fn keep(self) -> PathBuf {
        self.directory.keep()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_file_systems_are_refused_with_the_mend() {
        let memory = Path::new("/dev/shm");
        if probe(memory).is_ok_and(|probe| probe.strongest < Durability::PowerFailure) {
            let error = Scratch::new(Some(memory), "pmof-test-").unwrap_err().to_string();
            assert!(error.contains("/dev/shm") && error.contains("--dir DIR"), "{error}");
        }
        let error = Scratch::new(Some(Path::new("/proc/no-such-directory")), "pmof-test-").unwrap_err().to_string();
        assert!(error.contains("no-such-directory"), "{error}");
    }

    #[test]
    fn it_is_gone_afterwards_unless_kept() {
        let parent = tempfile::tempdir_in(".").unwrap();
        // Where the sources themselves lie in memory there is nothing to test.
        let Ok(scratch) = Scratch::new(Some(parent.path()), "pmof-test-") else { return };
        let path = scratch.path().to_owned();
        assert!(path.is_dir());
        drop(scratch);
        assert!(!path.exists());
        let kept = Scratch::new(Some(parent.path()), "pmof-test-").unwrap().keep();
        assert!(kept.is_dir());
    }
}
