//! The ledger outside the machine, as `testbed/cut-judge/pattern.md` says.

use std::{
    fs::{File, OpenOptions},
    io::{BufRead as _, Write as _, stdin},
    os::unix::fs::OpenOptionsExt as _,
    path::PathBuf,
};

use anyhow::{Context as _, Result, ensure};
use pmof_locks::Mutex;
use rustix::fs::OFlags;

/// Where the ledger is, and whether somebody looks at what each line left.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct LedgerArgs {
    /// File or character device outside this machine; lines are appended, each synchronously
    #[arg(long, value_name = "PATH")]
    ledger: PathBuf,
    /// After each line, wait for a line on standard input
    #[arg(long)]
    step: bool,
}

/// A ledger that any thread may write to.
#[derive(Debug)]
pub(crate) struct Ledger {
    file: Mutex<File>,
    step: bool,
}

impl Ledger {
    pub(crate) fn open(args: &LedgerArgs) -> Result<Self> {
        let flags = i32::try_from((OFlags::SYNC | OFlags::NOCTTY).bits())?;
        let file = OpenOptions::new().append(true).create(true).custom_flags(flags).open(&args.ledger);
        let file = file.with_context(|| format!("opening the ledger {}", args.ledger.display()))?;
        Ok(Self { file: Mutex::new(file), step: args.step })
    }

    pub(crate) fn issue(&self, stream: u32, batch: u64) -> Result<()> {
        self.line(&format!("issue {stream} {batch}\n"))
    }

    pub(crate) fn acknowledge(&self, stream: u32, batch: u64) -> Result<()> {
        self.line(&format!("ack {stream} {batch}\n"))
    }

    /// Notes an operation on a pool as a whole before and after it.
    pub(crate) fn operation<T>(
        &self,
        operation: &str,
        name: &str,
        number: u64,
        run: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        self.line(&format!("begin {operation} {name} {number}\n"))?;
        let outcome = run().with_context(|| format!("{operation} of {name}"))?;
        self.line(&format!("done {operation} {name}\n"))?;
        Ok(outcome)
    }

    /// One call of write a line, so that a cut leaves all of it or a part without its end.
    fn line(&self, line: &str) -> Result<()> {
        let mut file = self.file.lock();
        file.write_all(line.as_bytes()).context("writing to the ledger")?;
        if self.step {
            let read = stdin().lock().read_line(&mut String::new()).context("waiting for the next step")?;
            ensure!(read > 0, "whoever looks at each step is gone");
        }
        Ok(())
    }
}
