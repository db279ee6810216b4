//! What a target decides about a replica, without an operating system: no thread, lock, clock, file or random number.
//!
//! Each [`Machine`] is given a request or a file, and is run to its outcome: it names one [`Output`] after the other, and its driver performs each and gives the
//! result back before the next. [`PoolStore`](crate::PoolStore) performs them on files and devices; the simulation of `pmof-pool` performs the same on simulated media, where each of them
//! may fail. After an output that failed, no other follows.

use std::ops::Range;

use pmof_control::{HeaderError, RosterError};
use uuid::Uuid;

pub use holder::{Fencing, FencingOutput, Holder, Verdict, judge};
pub use opening::{Head, HeadReading, Opening};
pub use pages::PageServing;
#[cfg(test)]
pub(crate) use replica::{Change, bits_of, read_map};
pub(crate) use replica::{FIRST_SEQUENCE, written};
pub use replica::{OpenReplica, Serving};
pub use rules::{Rules, ShippedRules};

mod holder;
mod opening;
mod pages;
mod replica;
mod rules;
#[cfg(test)]
mod tests;

/// What the driver does next, at byte offsets of the replica's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Reads bytes, and gives them back.
    Read {
        /// Where they begin.
        offset: u64,
        /// How many.
        len_bytes: usize,
    },
    /// Reads the bytes that the file begins with, as many of these as it has, and gives them back.
    ReadBegin(usize),
    /// Stores bytes. A crash may leave any part of them until they are synced.
    Store {
        /// Where they begin.
        offset: u64,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// Stores a word of 8 bytes at once: a crash leaves the old one or the new one.
    StoreWord {
        /// Where it lies.
        offset: u64,
        /// The word.
        word: u64,
    },
    /// Has the next flush make these bytes durable.
    WriteBack(Range<u64>),
    /// Makes these bytes durable, and need not wait for others.
    Sync(Range<u64>),
    /// Keeps bytes in memory until [`LetGo`](Self::LetGo), and gives back one byte if the kernel does.
    KeepResident(Range<u64>),
    /// They may leave memory.
    LetGo(Range<u64>),
    /// Makes all durable that was stored and written back, by peers too.
    Flush,
    /// Refuses a file that has lost its name to another process: what is written to it would be lost.
    CheckName,
    /// Gives the file its name, durably, where it has none yet.
    Publish,
    /// Refuses a medium that does not reach the level that was asked for.
    CheckLevel,
    /// Leaves the file to former writers that still have it mapped, and goes on with a copy.
    LeaveToFormerWriters,
    /// Makes the name of the file durable.
    SyncName,
    /// Makes durable what the bytes before the data show, the digests of its pages too: a former writer may not have done so.
    SettleHead,
    /// The same of these ranges of the user's data, in bytes from its beginning.
    SettleData(Vec<Range<u64>>),
    /// The same of the whole file for a reader, unless a writer has it open.
    SettleForReader,
}

/// The next step of a machine.
#[derive(Debug)]
pub enum Step<O, T> {
    /// The driver performs this, and gives the result to [`Machine::performed`].
    Perform(O),
    /// The machine has ended.
    Done(Result<T, Refusal>),
}

/// Something that a target does, output by output.
pub trait Machine {
    /// What it has its driver do.
    type Output;
    /// What the driver gives back.
    type Input;
    /// How it ends where nothing fails.
    type Outcome;

    /// The next output, or the end. Panics where the result of the last output was not given back.
    fn step(&mut self) -> Step<Self::Output, Self::Outcome>;

    /// The last output was performed.
    fn performed(&mut self, input: Self::Input);
}

/// What performs the outputs of machines.
pub trait Driver<O, I> {
    /// Why something was not performed.
    type Error;

    /// Performs an output.
    ///
    /// # Errors
    /// It was not performed, or not all of it.
    fn perform(&mut self, output: O) -> Result<I, Self::Error>;
}

/// Why a machine ended without its outcome.
#[derive(Debug)]
pub enum Failure<E> {
    /// A rule of the target.
    Refused(Refusal),
    /// An output was not performed.
    Failed(E),
}

/// Runs a machine to its end.
///
/// # Errors
/// [`Failure`].
pub fn run<M, D>(mut machine: M, driver: &mut D) -> Result<M::Outcome, Failure<D::Error>>
where
    M: Machine,
    D: Driver<M::Output, M::Input>,
{
    loop {
        match machine.step() {
            Step::Perform(output) => machine.performed(driver.perform(output).map_err(Failure::Failed)?),
            Step::Done(outcome) => return outcome.map_err(Failure::Refused),
        }
    }
}

/// A rule by which a target refuses a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The replica is open for reading.
    ReadOnly,
    /// The replica is at another epoch than the one to be confirmed.
    NotTheEpoch {
        /// The epoch to be confirmed.
        epoch: Uuid,
        /// The replica's.
        found: Uuid,
    },
    /// The roster cannot be kept.
    Roster(RosterError),
    /// The header, the state or the roster of the file cannot be used.
    Header(HeaderError),
    /// Pools of this former format can only be read.
    OldFormat(u16),
    /// The replica keeps no digests of its pages.
    NoDigests,
    /// It has fewer pages.
    NoSuchPage {
        /// The last one that was asked for.
        page: u64,
        /// Its pages.
        count: u64,
    },
    /// What was sent to repair a page is not what the page's digest is of, or comes in the wrong order, or the page has none.
    NotItsDigest {
        /// The page.
        page: u64,
    },
}
