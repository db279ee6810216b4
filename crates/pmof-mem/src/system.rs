//! The system whose media are judged.

use std::path::{Path, PathBuf};

use crate::{CacheWriteBack, SYSFS_ROOT, answers::Answers};

/// The source of facts: this machine's kernel and CPU, or a copy from another machine.
#[derive(Clone, Debug)]
pub struct System {
    pub(crate) sysfs_root: PathBuf,
    pub(crate) proc_root: PathBuf,
    pub(crate) cpu: Option<CacheWriteBack>,
    pub(crate) answers: Answers,
}

impl System {
    /// This machine.
    pub fn real() -> Self {
        let answers = Answers::Devices;
        Self { sysfs_root: SYSFS_ROOT.into(), proc_root: "/proc".into(), cpu: CacheWriteBack::detect(), answers }
    }

    /// Another machine: copies of its `/sys` and `/proc`, and its instruction for cache write-back.
    ///
    /// Facts that require a query of its devices, the files of loop devices and the tables of device-mapper, are unknown.
    pub fn copied(sysfs_root: PathBuf, proc_root: PathBuf, cpu: Option<CacheWriteBack>) -> Self {
        Self { sysfs_root, proc_root, cpu, answers: Answers::None }
    }

    /// The same with what the other machine's devices answered, in files of `directory`: `loopN` has `MAJOR:MINOR INODE`,
    /// the file behind that loop device; `dm-N` has the name of a target in each line, and is missing where nobody was
    /// allowed to ask; `files` has lines `MAJOR:MINOR INODE PATH`, what each path leads to; `bMAJOR:MINOR` is what udev
    /// kept of that block device.
    #[must_use]
    pub fn with_answers(self, directory: PathBuf) -> Self {
        Self { answers: Answers::Copied(directory), ..self }
    }

    /// Where sysfs is read.
    pub fn sysfs_root(&self) -> &Path {
        &self.sysfs_root
    }

    /// Where procfs is read.
    pub fn proc_root(&self) -> &Path {
        &self.proc_root
    }

    /// The instruction that writes cache lines back.
    pub fn cpu(&self) -> Option<CacheWriteBack> {
        self.cpu
    }
}
