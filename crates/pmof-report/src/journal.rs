//! What is saved while a report is measured: a header, then each finished cell on a line of its own.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::{
    document::{FORMAT, Finished},
    machine::Machine,
    matrix::Plan,
};

/// The first line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Header {
    pub(crate) pmof_report_journal: u32,
    pub(crate) started: String,
    pub(crate) plan: Plan,
    pub(crate) machine: Machine,
}

impl Header {
    pub(crate) fn new(started: String, plan: Plan, machine: Machine) -> Self {
        Self { pmof_report_journal: FORMAT, started, plan, machine }
    }
}

/// The open file. It is locked: two reports that share one would both be wrong.
#[derive(Debug)]
pub(crate) struct Journal {
    file: File,
    path: PathBuf,
}

impl Journal {
    /// Begins one, where there is none.
    pub(crate) fn begin(path: &Path, header: &Header) -> Result<Self> {
        let file = match OpenOptions::new().read(true).append(true).create_new(true).open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => bail!(
                "{} holds the cells of a report that was not finished: go on with --resume, or remove it",
                path.display()
            ),
            Err(error) => return Err(error).with_context(|| format!("cannot make {}", path.display())),
        };
        let mut journal = Self { file, path: path.to_owned() };
        journal.lock()?;
        journal.append(header)?;
        Ok(journal)
    }

    /// Goes on with one: what it began with, and the cells that are finished. A last line that was cut short is dropped.
    pub(crate) fn resume(path: &Path) -> Result<(Self, Header, Vec<Finished>)> {
        let file = match OpenOptions::new().read(true).append(true).open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => bail!(
                "there is nothing to resume: {} does not exist; leave --resume out, or name the --output of the report that was stopped",
                path.display()
            ),
            Err(error) => return Err(error).with_context(|| format!("cannot open {}", path.display())),
        };
        let mut journal = Self { file, path: path.to_owned() };
        journal.lock()?;
        let mut text = Vec::new();
        journal.file.read_to_end(&mut text).with_context(|| format!("cannot read {}", path.display()))?;
        let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let (header, cells) = parse(&text[..whole])
            .with_context(|| format!("{} is not what `pmof report` saves: remove it and start anew", path.display()))?;
        journal.file.set_len(whole as u64).with_context(|| format!("cannot cut {}", path.display()))?;
        journal.file.seek(SeekFrom::End(0)).with_context(|| format!("cannot go on in {}", path.display()))?;
        Ok((journal, header, cells))
    }

    /// Saves a cell.
    pub(crate) fn save(&mut self, cell: &Finished) -> Result<()> {
        self.append(cell)
    }

    /// Removes it: the report is written.
    pub(crate) fn remove(self) -> Result<()> {
        std::fs::remove_file(&self.path).with_context(|| format!("cannot remove {}", self.path.display()))
    }

    fn append(&mut self, line: &impl Serialize) -> Result<()> {
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        let saved = self.file.write_all(&text).and_then(|()| self.file.sync_data());
        saved.with_context(|| {
            format!("cannot save to {}: make room there, then go on with --resume", self.path.display())
        })
    }

    fn lock(&self) -> Result<()> {
        use rustix::fs::{FlockOperation, flock};
        flock(&self.file, FlockOperation::NonBlockingLockExclusive)
            .with_context(|| format!("another `pmof report` works on {}", self.path.display()))
    }
}

fn parse(text: &[u8]) -> Result<(Header, Vec<Finished>)> {
    let mut lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let header: Header = serde_json::from_slice(lines.next().context("it is empty")?).context("its first line")?;
    let format = header.pmof_report_journal;
    ensure!(format == FORMAT, "it has format {format}, and this pmof resumes {FORMAT}: use the pmof that began it");
    let mut cells: Vec<Finished> = Vec::new();
    for line in lines {
        let cell: Finished = serde_json::from_slice(line).context("a line that is no cell")?;
        cell.measured().with_context(|| format!("the cell {}", cell.place))?;
        ensure!(cells.iter().all(|other| other.place != cell.place), "the cell {} is there twice", cell.place);
        cells.push(cell);
    }
    Ok((header, cells))
}

#[cfg(test)]
mod tests;
