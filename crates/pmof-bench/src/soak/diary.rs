//! The ledger that outlives the machine: lines of a file or device, read back after the power came again.
//!
//! The first says whose it is: `run SEED POOL`. `issue N` is written before batch N is posted, `ack N` after its acknowledgement; numbers ascend. A line that a cut left
//! without its end says nothing.

use std::{
    fs::File,
    io::{Read as _, Write},
    path::Path,
};

use anyhow::{Context, Result, ensure};
use pmof_mem::{open_to_append, open_to_read};
use uuid::Uuid;

/// A ledger being written.
#[derive(Debug)]
pub(super) struct Diary(File);

impl Diary {
    /// Opens a file, which is made where it is missing, or a character device such as a serial port. A file that holds something is
    /// refused: batches are numbered from 0, and two runs in one ledger say nothing.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let file = open_to_append(path, true).with_context(|| format!("cannot write the ledger {}", path.display()))?;
        let len_bytes = file.metadata().with_context(|| format!("cannot write the ledger {}", path.display()))?.len();
        ensure!(
            len_bytes == 0,
            "{} holds something already, and a ledger is of one run: name a new file, or remove it",
            path.display()
        );
        Ok(Self(file))
    }

    /// Whose ledger it is: what the writes depend on, and the pool.
    pub(super) fn begin(&mut self, run: Run) -> Result<()> {
        self.line(&format!("run {} {}\n", run.seed, run.pool))
    }

    pub(super) fn issue(&mut self, batch: u64) -> Result<()> {
        self.line(&format!("issue {batch}\n"))
    }

    pub(super) fn acknowledge(&mut self, batch: u64) -> Result<()> {
        self.line(&format!("ack {batch}\n"))
    }

    fn line(&mut self, line: &str) -> Result<()> {
        self.0.write_all(line.as_bytes()).context("cannot write to the ledger")
    }
}

/// One run of `pmof soak write`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) seed: u64,
    pub(super) pool: Uuid,
}

/// What a ledger says: whose it is, and how many batches, counted from batch 0, were issued and acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) run: Option<Run>,
    pub(super) issued: u64,
    pub(super) acked: u64,
}

impl Run {
    fn parse(text: &str) -> Option<Self> {
        let (seed, pool) = text.split_once(' ')?;
        Some(Self { seed: seed.parse().ok()?, pool: pool.parse().ok()? })
    }
}

impl Told {
    pub(super) fn read(path: &Path) -> Result<Self> {
        let mut bytes = Vec::new();
        let read = open_to_read(path).and_then(|mut file| file.read_to_end(&mut bytes));
        read.with_context(|| format!("cannot read the ledger {}", path.display()))?;
        Self::parse(&bytes).with_context(|| format!("{} is not the ledger of one `pmof soak write`", path.display()))
    }

    fn parse(bytes: &[u8]) -> Result<Self> {
        let mut told = Self::default();
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        for line in String::from_utf8_lossy(&bytes[..whole]).lines() {
            // Serial ports turn "\n" into "\r\n".
            let (word, number) = line.trim_end().split_once(' ').with_context(|| format!("line {line:?}"))?;
            if word == "run" && told == Self::default() {
                told.run = Some(Run::parse(number).with_context(|| format!("line {line:?}"))?);
                continue;
            }
            ensure!(told.run.is_some(), "line {line:?} where the run was due");
            let number: u64 = number.parse().with_context(|| format!("line {line:?}"))?;
            let count = match word {
                "issue" => &mut told.issued,
                "ack" => &mut told.acked,
                _ => anyhow::bail!("line {line:?}"),
            };
            ensure!(number == *count, "line {line:?} where {word} {count} was due");
            *count += 1;
            ensure!(told.acked <= told.issued, "line {line:?} before its issue");
        }
        Ok(told)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_but_for_a_line_that_was_cut() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ledger");
        let mut diary = Diary::open(&path).unwrap();
        let run = Run { seed: 7, pool: Uuid::from_u128(9) };
        diary.begin(run).unwrap();
        for batch in 0..12 {
            diary.issue(batch).unwrap();
            if batch < 11 {
                diary.acknowledge(batch).unwrap();
            }
        }
        assert_eq!(Told::read(&path).unwrap(), Told { run: Some(run), issued: 12, acked: 11 });
        std::fs::write(&path, format!("run 7 {}\r\nissue 0\r\nack 0\r\nissue 1\nack 1", run.pool)).unwrap();
        assert_eq!(Told::read(&path).unwrap(), Told { run: Some(run), issued: 2, acked: 1 });
        std::fs::write(&path, b"").unwrap();
        assert_eq!(Told::read(&path).unwrap(), Told::default());
    }

    #[test]
    fn what_no_writer_wrote_is_refused() {
        let run = format!("run 7 {}\n", Uuid::from_u128(9));
        for wrong in
            ["ack 0\n", "issue 0\nissue 2\n", "issue 0\nack 0\nack 0\n", "hello\n", "issue x\n", "done 0\n", &run]
        {
            assert!(Told::parse(format!("{run}{wrong}").as_bytes()).is_err(), "{wrong:?}");
        }
        for wrong in ["issue 0\n", "run 7\n", "run x 00000000-0000-0000-0000-000000000009\n", "run 7 9\n"] {
            assert!(Told::parse(wrong.as_bytes()).is_err(), "{wrong:?}");
        }
    }
}
