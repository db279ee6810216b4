//! Pools as wholes: made, filled, closed, opened and removed with power lost on the way.
//!
//! What the ledger tells narrows down what a name may hold: an operation that is done has happened, one that only began has
//! happened or has not, and nothing is ever half there.

use crate::{
    ledger::{Operation, Step},
    pattern::{AREA_WORDS_MIN, Stream},
    pool_file::PoolFile,
    words::WORD_BYTES,
};

/// Words that a fill writes.
const FILLED_WORDS: usize = 512;

/// What one replica may hold under a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// Nothing.
    Absent,
    /// A whole pool.
    Pool {
        /// Bytes of data.
        bytes: u64,
        /// What it was filled with; zeros otherwise.
        value: Option<u64>,
        /// Openings for writing, at least, the first one by its making.
        opening: u64,
        /// Not closed in order.
        is_open: bool,
    },
}

impl Expected {
    /// The state that an operation leads to.
    fn after(self, step: &Step) -> Result<Self, String> {
        Ok(match (step.operation, self) {
            (Operation::Create, Self::Absent) => {
                Self::Pool { bytes: step.number, value: None, opening: 1, is_open: true }
            }
            (Operation::Fill, Self::Pool { bytes, opening, is_open, .. }) => {
                Self::Pool { bytes, value: Some(step.number), opening, is_open }
            }
            (Operation::Close, Self::Pool { bytes, value, opening, .. }) => {
                Self::Pool { bytes, value, opening, is_open: false }
            }
            (Operation::Open, Self::Pool { bytes, value, opening, .. }) => {
                Self::Pool { bytes, value, opening: opening + 1, is_open: true }
            }
            (Operation::Remove, Self::Pool { .. }) => Self::Absent,
            _ => return Err(format!("the ledger has {step:?} of a pool that is {self:?}")),
        })
    }

    /// Whether that is what was found: the bytes of the file or device, if there is one.
    fn is_met(self, found: Option<&[u8]>) -> Result<(), String> {
        let pool = found.map(PoolFile::read).transpose()?.flatten();
        match (self, pool, found) {
            (Self::Absent, None, _) => Ok(()),
            (Self::Absent, Some(pool), _) => Err(format!("there is a pool: {pool:?}")),
            (Self::Pool { .. }, None, _) | (Self::Pool { .. }, _, None) => Err("there is no pool".to_owned()),
            (Self::Pool { bytes, value, opening, is_open }, Some(pool), Some(found)) => {
                if pool.data_bytes != bytes {
                    return Err(format!("it has {} bytes of data, not {bytes}", pool.data_bytes));
                }
                if let Some(state) = pool.state {
                    if state.opening < opening || state.is_open != is_open {
                        let due = if is_open { "open" } else { "closed" };
                        return Err(format!("its state is {state:?}, and opening {opening}, {due}, was due"));
                    }
                }
                content(pool.data(found), value)
            }
        }
    }
}

fn content(data: &[u8], value: Option<u64>) -> Result<(), String> {
    let word = |index: usize| match value {
        Some(value) if index < FILLED_WORDS => Stream::new(value, 0, AREA_WORDS_MIN).word(0, index),
        _ => 0,
    };
    let is_wrong = |(index, bytes): &(usize, &[u8])| *bytes != word(*index).to_le_bytes();
    match data.chunks_exact(WORD_BYTES).enumerate().find(is_wrong) {
        None => Ok(()),
        Some((index, bytes)) => {
            Err(format!("word {index} holds {:#x}, not {:#x}", crate::pool_file::number(bytes, 0, 8), word(index)))
        }
    }
}

/// What a replica may hold under a name: the state that is certain, and the one that an operation under way leads to.
pub fn possible(steps: &[Step], name: &str) -> Result<Vec<Expected>, String> {
    let mut certain = Expected::Absent;
    for step in steps.iter().filter(|step| step.name == name) {
        let next = certain.after(step)?;
        if !step.is_done {
            return Ok(vec![certain, next]);
        }
        certain = next;
    }
    Ok(vec![certain])
}

/// Judges what one replica holds under a name. A fill that was not done may have left any of its words.
pub fn judge(steps: &[Step], name: &str, found: Option<&[u8]>) -> Result<(), String> {
    let under_way = steps.iter().rfind(|step| step.name == name).filter(|step| !step.is_done);
    let possible = possible(steps, name)?;
    let mut why = Vec::new();
    for expected in &possible {
        let met = match (under_way.map(|step| step.operation), expected, found) {
            (Some(Operation::Fill), Expected::Pool { value: Some(value), .. }, Some(found)) => {
                expected.is_met(Some(&filled(found, *value)))
            }
            _ => expected.is_met(found),
        };
        match met {
            Ok(()) => return Ok(()),
            Err(what) => why.push(what),
        }
    }
    Err(format!("{name}: {}", why.join("; or: ")))
}

/// The same with the words that a fill has not reached yet: zeros become what it writes.
fn filled(found: &[u8], value: u64) -> Vec<u8> {
    let mut bytes = found.to_vec();
    if let Ok(Some(pool)) = PoolFile::read(found) {
        let (stream, start) = (Stream::new(value, 0, AREA_WORDS_MIN), pool.data_offset as usize);
        let words = bytes[start..].chunks_exact_mut(WORD_BYTES).take(FILLED_WORDS).enumerate();
        for (index, word) in words.filter(|(_, word)| word.iter().all(|byte| *byte == 0)) {
            word.copy_from_slice(&stream.word(0, index).to_le_bytes());
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ledger::Ledger,
        pool_file::tests::{DATA_OFFSET, file, slot},
    };

    fn steps(text: &str) -> Vec<Step> {
        Ledger::parse(text.as_bytes()).unwrap().steps
    }

    fn filled_file(opening: u64, is_open: bool) -> Vec<u8> {
        let mut bytes = file(8192, opening, is_open);
        let stream = Stream::new(5, 0, AREA_WORDS_MIN);
        for index in 0..FILLED_WORDS {
            bytes[DATA_OFFSET + index * 8..][..8].copy_from_slice(&stream.word(0, index).to_le_bytes());
        }
        bytes
    }

    /// The control: a pool that vanished, or is not whole, is found.
    #[test]
    fn a_pool_that_was_made_is_there_and_whole() {
        let made = steps("begin create p 8192\ndone create p\n");
        let whole = file(8192, 1, true);
        judge(&made, "p", Some(&whole)).unwrap();
        assert!(judge(&made, "p", None).unwrap_err().contains("no pool"));
        assert!(judge(&made, "p", Some(&vec![0; DATA_OFFSET + 8192])).unwrap_err().contains("no pool"));
        assert!(judge(&made, "p", Some(&whole[..whole.len() - 4096])).is_err());
        assert!(judge(&made, "p", Some(&file(4096, 1, true))).unwrap_err().contains("4096 bytes"));
        let mut dirty = whole.clone();
        dirty[DATA_OFFSET + 808] = 1;
        assert!(judge(&made, "p", Some(&dirty)).unwrap_err().contains("word 101"));
        // While it was being made: whole, or absent, and nothing in between.
        let making = steps("begin create p 8192\n");
        judge(&making, "p", Some(&whole)).unwrap();
        judge(&making, "p", None).unwrap();
        assert!(judge(&making, "p", Some(&dirty)).is_err());
        let mut torn = whole;
        torn[20] ^= 1;
        assert!(judge(&making, "p", Some(&torn)).unwrap_err().contains("checksum"));
    }

    #[test]
    fn a_closed_pool_says_so_and_an_open_one_too() {
        let closed = "begin create p 8192\ndone create p\nbegin fill p 5\ndone fill p\nbegin close p 0\ndone close p\n";
        let mut bytes = filled_file(1, true);
        assert!(judge(&steps(closed), "p", Some(&bytes)).unwrap_err().contains("closed, was due"));
        slot(&mut bytes, 2, 1, false);
        judge(&steps(closed), "p", Some(&bytes)).unwrap();
        assert!(judge(&steps(closed), "p", Some(&file(8192, 1, false))).unwrap_err().contains("word 0"));

        let opened = closed.to_owned() + "begin open p 0\ndone open p\n";
        assert!(judge(&steps(&opened), "p", Some(&bytes)).unwrap_err().contains("opening 2"));
        slot(&mut bytes, 3, 2, true);
        judge(&steps(&opened), "p", Some(&bytes)).unwrap();
        // Under way, it may be either.
        let opening = closed.to_owned() + "begin open p 0\n";
        judge(&steps(&opening), "p", Some(&bytes)).unwrap();

        let removed = opened + "begin close p 0\ndone close p\nbegin remove p 0\ndone remove p\n";
        judge(&steps(&removed), "p", None).unwrap();
        assert!(judge(&steps(&removed), "p", Some(&bytes)).unwrap_err().contains("there is a pool"));
    }

    #[test]
    fn a_fill_under_way_leaves_any_of_its_words() {
        let filling = steps("begin create p 8192\ndone create p\nbegin fill p 5\n");
        let mut bytes = filled_file(1, true);
        judge(&filling, "p", Some(&bytes)).unwrap();
        bytes[DATA_OFFSET + 80..DATA_OFFSET + 160].fill(0);
        judge(&filling, "p", Some(&bytes)).unwrap();
        bytes[DATA_OFFSET + 80] = 1;
        assert!(judge(&filling, "p", Some(&bytes)).is_err());
        bytes[DATA_OFFSET + 80] = 0;
        let filled = steps("begin create p 8192\ndone create p\nbegin fill p 5\ndone fill p\n");
        assert!(judge(&filled, "p", Some(&bytes)).unwrap_err().contains("word 10"));
    }
}
