//! The ledger of a load, as `pattern.md` says.

use std::collections::BTreeMap;

/// How many batches of a stream were issued and acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Batches 0 to this one, exclusive, were issued.
    pub issued: u64,
    /// Batches 0 to this one, exclusive, were acknowledged.
    pub acknowledged: u64,
}

/// What changes a pool as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Makes it.
    Create,
    /// Writes the value's words to its beginning.
    Fill,
    /// Closes it.
    Close,
    /// Opens it for writing.
    Open,
    /// Removes it.
    Remove,
    /// Makes all replicas of a pool set whole and equal.
    Sync,
}

/// An operation that began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Which.
    pub operation: Operation,
    /// The pool.
    pub name: String,
    /// Bytes of a pool that is made, the value that it is filled with, else 0.
    pub number: u64,
    /// Whether it was acknowledged.
    pub is_done: bool,
}

/// What a ledger says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// By the stream's number.
    pub streams: BTreeMap<u64, Progress>,
    /// In the order in which they began.
    pub steps: Vec<Step>,
}

impl Ledger {
    /// Reads a ledger. A last line without its end is left out; any other line that no load writes is an error.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let mut ledger = Self::default();
        for line in String::from_utf8_lossy(&bytes[..whole]).lines() {
            // Serial ports turn "\n" into "\r\n".
            let words: Vec<_> = line.split_ascii_whitespace().collect();
            ledger
                .take(&words)
                .ok_or_else(|| format!("the ledger's line {line:?} is none of a load's, or out of turn"))?;
        }
        Ok(ledger)
    }

    fn take(&mut self, words: &[&str]) -> Option<()> {
        match words {
            ["issue", stream, batch] => {
                let progress = self.streams.entry(stream.parse().ok()?).or_default();
                (batch.parse() == Ok(progress.issued)).then(|| progress.issued += 1)
            }
            ["ack", stream, batch] => {
                let progress = self.streams.get_mut(&stream.parse().ok()?)?;
                let is_due = batch.parse() == Ok(progress.acknowledged) && progress.acknowledged < progress.issued;
                is_due.then(|| progress.acknowledged += 1)
            }
            ["begin", operation, name, number] => {
                // One operation on a pool at a time.
                let is_free = self.last(name).is_none_or(|step| step.is_done);
                let step = Step {
                    operation: operation_of(operation)?,
                    name: (*name).to_owned(),
                    number: number.parse().ok()?,
                    is_done: false,
                };
                is_free.then(|| self.steps.push(step))
            }
            ["done", operation, name] => {
                let operation = operation_of(operation)?;
                let step = self.steps.iter_mut().rfind(|step| step.name == *name)?;
                (step.operation == operation && !step.is_done).then(|| step.is_done = true)
            }
            _ => None,
        }
    }

    fn last(&self, name: &str) -> Option<&Step> {
        self.steps.iter().rfind(|step| step.name == name)
    }

    /// Batches issued and acknowledged, over all streams.
    pub fn total(&self) -> Progress {
        let add = |sum: Progress, one: &Progress| Progress {
            issued: sum.issued + one.issued,
            acknowledged: sum.acknowledged + one.acknowledged,
        };
        self.streams.values().fold(Progress::default(), add)
    }
}

fn operation_of(word: &str) -> Option<Operation> {
    Some(match word {
        "create" => Operation::Create,
        "fill" => Operation::Fill,
        "close" => Operation::Close,
        "open" => Operation::Open,
        "remove" => Operation::Remove,
        "sync" => Operation::Sync,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ledger_is_read_but_for_a_line_that_was_cut() {
        let text = "issue 0 0\r\nack 0 0\r\nissue 1 0\nissue 0 1\nbegin create p 4096\ndone create p\nbegin close p 0\nack 0 1";
        let ledger = Ledger::parse(text.as_bytes()).unwrap();
        assert_eq!(ledger.streams[&0], Progress { issued: 2, acknowledged: 1 });
        assert_eq!(ledger.total(), Progress { issued: 3, acknowledged: 1 });
        let steps: Vec<_> = ledger.steps.iter().map(|step| (step.operation, step.number, step.is_done)).collect();
        assert_eq!(steps, [(Operation::Create, 4096, true), (Operation::Close, 0, false)]);
        assert_eq!(Ledger::parse(b"").unwrap(), Ledger::default());
    }

    #[test]
    fn what_no_load_writes_is_refused() {
        for wrong in [
            "ack 0 0\n",
            "issue 0 1\n",
            "issue 0 0\nack 0 0\nack 0 0\n",
            "issue 0\n",
            "issue 0 x\n",
            "hello\n",
            "done create p\n",
            "begin create p 1\ndone close p\n",
            "begin create p 1\nbegin close p 0\n",
            "begin melt p 0\n",
        ] {
            assert!(Ledger::parse(wrong.as_bytes()).is_err(), "{wrong:?}");
        }
    }
}
