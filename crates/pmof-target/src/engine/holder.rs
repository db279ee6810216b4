//! Who has a replica open for writing, and how another connection takes it over.
//!
//! The order is what makes a takeover safe. Nothing is granted before all of it is done:
//!
//! 1. what can refuse the takeover is asked first, while the holder is unharmed: the room for a copy where one is needed;
//! 2. the holder's connection ends: what it has in flight is not carried out, and a success that comes later is not reported;
//! 3. its rights to the memory are revoked: the device's key is gone, and a process that has the memory mapped reads that it is fenced;
//! 4. where such a process lives, the replica moves to another file, since its late stores reach the old one whatever it reads.

use std::{mem, time::Duration};

use pmof_control::Claim;

use super::{Machine, OpenReplica, Rules, Step};

/// What is known of the connection that has a replica open for writing.
#[derive(Clone, Copy, Debug)]
pub struct Holder<'a, R> {
    /// Its replica. `None`: a request of it is being carried out.
    pub replica: Option<&'a OpenReplica<R>>,
    /// How long nothing was heard of it.
    pub silent_for: Duration,
}

/// What becomes of a holder whose replica another connection asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is fenced.
    Fenced,
    /// It is judged once its request is carried out.
    Awaited,
    /// It keeps the replica: a request of it is being carried out, so that it is not silent.
    Served,
    /// It keeps the replica: it was heard.
    Heard,
}

/// Judges a holder. `silence`: for which it must have been silent, unless an epoch of it is named.
pub fn judge<R: Rules>(holder: &Holder<'_, R>, silence: Duration, claim: Claim) -> Verdict {
    match holder.replica {
        None if silence.is_zero() => Verdict::Awaited,
        None => Verdict::Served,
        // Where another one has it open by now, the epoch is none of that one's.
        Some(replica) if claim.epoch().is_some_and(|epoch| replica.is_epoch_of_writer(epoch)) => Verdict::Fenced,
        Some(_) if holder.silent_for >= silence => Verdict::Fenced,
        Some(_) => Verdict::Heard,
    }
}

/// What the driver does to take a replica from its holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FencingOutput {
    /// Takes the room for a copy of the file.
    PrepareCopy,
    /// Names the successor to programs that find the replica in use.
    NameSuccessor,
    /// Ends the holder's connection.
    EndConnection,
    /// Revokes the holder's rights to the memory. Gives back whether it had the memory mapped.
    Revoke,
    /// Gives back whether a process has the file mapped for writing.
    FindMapping,
    /// Ends the readers of the file, which is about to be cut.
    EndReaders,
    /// Makes durable what was stored, and goes on in a copy of the file if it is to move.
    HandOver {
        /// It goes on in the copy.
        moves: bool,
    },
}

/// Takes a replica from its holder. Afterwards nothing that this one does reaches it.
#[derive(Debug)]
pub struct Fencing {
    next: Option<FencingOutput>,
    /// The holder is not fenced before that is known.
    is_fenced: bool,
    has_room: bool,
    is_awaiting: bool,
}

impl Fencing {
    /// `may_store`: the holder has the memory mapped, and its process lives.
    pub fn new(may_store: bool) -> Self {
        let first = if may_store { FencingOutput::PrepareCopy } else { FencingOutput::NameSuccessor };
        Self { next: Some(first), is_fenced: false, has_room: false, is_awaiting: false }
    }
}

impl Machine for Fencing {
    type Output = FencingOutput;
    type Input = bool;
    type Outcome = ();

    fn step(&mut self) -> Step<FencingOutput, ()> {
        assert!(!self.is_awaiting, "an output that failed or is being performed is not followed by others");
        self.is_awaiting = self.next.is_some();
        self.next.map_or(Step::Done(Ok(())), Step::Perform)
    }

    fn performed(&mut self, is_mapped: bool) {
        use FencingOutput::{EndConnection, EndReaders, FindMapping, HandOver, NameSuccessor, PrepareCopy, Revoke};
        assert!(mem::take(&mut self.is_awaiting), "the driver performed what it was not told");
        let performed = self.next.expect("it awaits what it named");
        self.next = match performed {
            PrepareCopy => {
                self.has_room = true;
                Some(if self.is_fenced { EndReaders } else { NameSuccessor })
            }
            // Who is fenced asks at once who has the replica now, over another connection.
            NameSuccessor => Some(EndConnection),
            EndConnection => Some(Revoke),
            // It may have been mapped just before, and unmapped since; or handed on, as a fork does, by a process that has ended.
            Revoke => {
                self.is_fenced = true;
                Some(if is_mapped { FindMapping } else { HandOver { moves: false } })
            }
            FindMapping if !is_mapped => Some(HandOver { moves: false }),
            FindMapping if !self.has_room => Some(PrepareCopy),
            // One that is in the middle of a read meets the end of the file, which is an error there.
            FindMapping => Some(EndReaders),
            EndReaders => Some(HandOver { moves: true }),
            HandOver { .. } => None,
        };
    }
}
