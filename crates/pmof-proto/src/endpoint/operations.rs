//! The operations of a connection: one table, in the order posted, from posting to completion.
//!
//! An operation goes *by message*, as frames that the target's CPU carries out, or *direct*, past it, which is the transport's work. The
//! table knows nothing of either beyond their order: who must wait for whom, what was answered, and what completes next.

use std::collections::VecDeque;

use pmof_mem::{Durability, Evidence};

use super::{Completion, OperationKind, Outcome, Signal, Ticket};
use crate::{ConnectionError, LocalSlice, OperationError, frame::Frame};

/// What the sequence of an operation counts as that has none yet.
const NO_SEQUENCE: u64 = u64::MAX;

/// An operation without a completion; or some in a row that went direct and complete only on error, and perhaps one more that went direct
/// right after them.
#[derive(Debug)]
pub(super) struct Entry<D> {
    /// The first one's.
    ticket: u64,
    count: u64,
    /// Of the last frame that belongs to it or to what was posted before it; [`NO_SEQUENCE`] while it waits.
    sequence: u64,
    context: u64,
    kind: OperationKind,
    is_signalled: bool,
    /// It takes a receive of the other side.
    takes_receive: bool,
    /// Operations that do, among those posted so far, itself included.
    messages: u64,
    /// What those before the last one are, and their context, where the last one is not like them.
    led_by: Option<(OperationKind, u64)>,
    pub(super) stage: Stage<D>,
}

#[derive(Debug)]
pub(super) enum Stage<D> {
    /// It has not gone yet, and nothing that was posted after it has.
    Waiting(Box<Waiting<D>>),
    /// Its frames were queued for output, and there is no answer.
    Message(Message),
    /// The transport has it; what its success will be.
    Direct(Outcome),
    Done(Outcome),
    /// A read that brought nothing, and ends nothing else.
    Unread(Box<OperationError>),
    /// The operation with this ticket failed.
    Failed(u64, Box<OperationError>),
}

/// What an answer is checked against.
#[derive(Debug)]
pub(super) struct Message {
    /// Sequence of its first frame.
    pub(super) first: u64,
    /// A reply comes even of success.
    pub(super) is_replied: bool,
    pub(super) len_bytes: u64,
    /// Destination of a read.
    pub(super) into: Option<LocalSlice>,
    /// What a flush is to reach, and the weakest evidence for it that counts.
    pub(super) level: Option<(Durability, Evidence)>,
}

/// What is needed for an operation to go later.
#[derive(Debug)]
pub(super) enum Waiting<D> {
    Message { frame: Frame, message: Message, payload: KeptPayload, dirties: bool },
    Direct { request: D, success: Outcome, kept_bytes: usize },
}

#[derive(Debug)]
pub(super) enum KeptPayload {
    Bytes(Vec<u8>),
    Local(LocalSlice),
}

impl<D> Entry<D> {
    /// The last one's ticket.
    #[inline]
    fn last(&self) -> u64 {
        self.ticket + self.count - 1
    }
}

impl<D> Waiting<D> {
    /// Bytes that were copied for it.
    fn kept_bytes(&self) -> usize {
        match self {
            Self::Message { payload: KeptPayload::Bytes(bytes), .. } => bytes.len(),
            Self::Message { payload: KeptPayload::Local(_), .. } => 0,
            Self::Direct { kept_bytes, .. } => *kept_bytes,
        }
    }
}

#[derive(Debug)]
pub(super) struct Operations<D> {
    entries: VecDeque<Entry<D>>,
    /// Ticket of the operation posted last.
    last: u64,
    /// How many of the entries wait: the last ones.
    waiting: usize,
    kept_bytes: usize,
    /// Sequence of the last frame of a request, of the last one that asks for a reply, and of the last one that was answered.
    sequence: u64,
    asked: u64,
    answered: u64,
    /// Operations posted since one that asks for a reply.
    pub(super) unreplied: u32,
    /// Operations posted that take a receive of the other side.
    messages: u64,
    /// Among the messages without an answer: those that touch memory which direct operations reach, and flushes.
    touching: usize,
    message_flushes: usize,
    /// The transport carries out operations too.
    pub(super) has_direct: bool,
    /// It has stopped: nothing of this connection touches memory any more.
    pub(super) is_stopped: bool,
    /// Every direct operation up to this one took effect.
    direct_done: u64,
    /// Direct flushes without a completion.
    direct_flushes: usize,
    /// A borrowed payload is on its way: nothing may be queued before [`Endpoint::supply`](super::Endpoint::supply).
    pub(super) is_borrowing: bool,
}

impl<D> Default for Operations<D> {
    fn default() -> Self {
        Self {
            entries: VecDeque::new(),
            last: 0,
            waiting: 0,
            kept_bytes: 0,
            sequence: 0,
            asked: 0,
            answered: 0,
            unreplied: 0,
            messages: 0,
            touching: 0,
            message_flushes: 0,
            has_direct: false,
            is_stopped: false,
            direct_done: 0,
            direct_flushes: 0,
            is_borrowing: false,
        }
    }
}

/// Whether the target's CPU touches the memory of regions for an operation of this kind, later than a direct one would.
fn touches_memory(kind: OperationKind) -> bool {
    !matches!(kind, OperationKind::Send | OperationKind::WriteBack | OperationKind::Flush)
}

impl<D> Operations<D> {
    /// Operations posted without a completion.
    #[inline]
    pub(super) fn outstanding(&self) -> usize {
        self.entries.front().map_or(0, |front| self.last + 1 - front.ticket) as usize
    }

    /// The ticket of the operation that is posted next.
    #[inline]
    pub(super) fn next_ticket(&self) -> Ticket {
        Ticket(self.last + 1)
    }

    /// True while operations wait for what is before them, or for room at the other side.
    #[inline]
    pub(super) fn has_waiting(&self) -> bool {
        self.waiting > 0
    }

    /// Bytes copied for operations that wait.
    #[inline]
    pub(super) fn kept_bytes(&self) -> usize {
        self.kept_bytes
    }

    /// True if a reply is due. Operations that ask for none do not count, nor do those that wait for room or for a receive at
    /// the other side: how long that lasts is the application's affair.
    pub(super) fn awaits_reply(&self) -> bool {
        self.asked > self.answered
    }

    /// Whether a message may go, as far as the operations before it are concerned. Devices may let one pass a FLUSH that was posted before
    /// it.
    pub(super) fn may_go_by_message(&self, kind: OperationKind) -> bool {
        kind != OperationKind::AtomicWrite || self.direct_flushes == 0
    }

    /// The same of a direct operation: the target's CPU touches memory when it gets to it, later than the transport would. As with the
    /// devices' own FLUSH, an atomic write waits for the flush before it, a plain write does not.
    #[inline]
    pub(super) fn may_go_direct(&self, kind: OperationKind) -> bool {
        self.touching == 0 && (kind != OperationKind::AtomicWrite || self.message_flushes == 0)
    }

    /// Whether all that has gone was answered, and waits for receives of the other side.
    pub(super) fn awaits_receives(&self, taken: u64) -> bool {
        let is_over = |entry: &Entry<D>| match entry.stage {
            Stage::Direct(_) => self.direct_done >= entry.last(),
            Stage::Done(_) => true,
            _ => false,
        };
        let gone = self.entries.len() - self.waiting;
        self.entries.front().is_some_and(|front| gone > 0 && front.messages > taken)
            && self.entries.iter().take(gone).all(is_over)
    }

    /// Adds an operation. One that goes by message has its sequence [given](Self::next_sequence) already.
    pub(super) fn push(
        &mut self,
        (kind, signal, context): (OperationKind, Signal, u64),
        takes_receive: bool,
        stage: Stage<D>,
    ) -> Ticket {
        self.messages += u64::from(takes_receive);
        let sequence = match &stage {
            Stage::Waiting(waiting) => {
                self.waiting += 1;
                self.kept_bytes += waiting.kept_bytes();
                NO_SEQUENCE
            }
            _ => self.sequence,
        };
        self.count_gone(kind, &stage);
        self.add((kind, signal, context), (1, takes_receive), sequence, stage)
    }

    /// Adds the entry of so many operations in a row: the ticket of the last one.
    #[inline]
    fn add(
        &mut self,
        (kind, signal, context): (OperationKind, Signal, u64),
        (count, takes_receive): (u64, bool),
        sequence: u64,
        stage: Stage<D>,
    ) -> Ticket {
        let ticket = self.last + 1;
        self.last += count;
        let is_signalled = signal == Signal::Always;
        let messages = self.messages;
        self.entries.push_back(Entry {
            ticket,
            count,
            sequence,
            context,
            kind,
            is_signalled,
            takes_receive,
            messages,
            led_by: None,
            stage,
        });
        Ticket(self.last)
    }

    /// The last entry, where it is of direct operations in a row, none of them a flush, of which nobody is to hear unless they fail.
    #[inline]
    fn silent_row(&mut self) -> Option<&mut Entry<D>> {
        let back = self.entries.back_mut()?;
        let is_silent = !back.is_signalled && back.led_by.is_none() && back.kind != OperationKind::Flush;
        (is_silent && matches!(back.stage, Stage::Direct(_))).then_some(back)
    }

    /// Adds an operation that the transport has.
    #[inline]
    pub(super) fn push_direct(
        &mut self,
        kind: OperationKind,
        signal: Signal,
        context: u64,
        success: Outcome,
    ) -> Ticket {
        match (signal, kind) {
            (Signal::OnError, kind) if kind != OperationKind::Flush => {
                self.push_direct_row(kind, context, (1, success));
                Ticket(self.last)
            }
            _ => {
                self.direct_flushes += usize::from(kind == OperationKind::Flush);
                let Some(row) = self.silent_row() else {
                    return self.add((kind, signal, context), (1, false), self.sequence, Stage::Direct(success));
                };
                row.led_by = Some((row.kind, row.context));
                row.count += 1;
                (row.kind, row.context, row.is_signalled) = (kind, context, signal == Signal::Always);
                row.stage = Stage::Direct(success);
                self.last += 1;
                Ticket(self.last)
            }
        }
    }

    /// Adds so many operations in a row, at least one, that the transport has, and of which nobody is to hear unless they fail. None of them
    /// is a flush.
    #[inline]
    pub(super) fn push_direct_row(&mut self, kind: OperationKind, context: u64, (count, success): (u64, Outcome)) {
        match self.silent_row() {
            Some(row) if (row.kind, row.context) == (kind, context) => {
                row.count += count;
                self.last += count;
            }
            _ => {
                self.add((kind, Signal::OnError, context), (count, false), self.sequence, Stage::Direct(success));
            }
        }
    }

    /// Counts an operation that is done, if nothing is before it: its completion.
    #[inline]
    pub(super) fn push_done(&mut self, kind: OperationKind, context: u64, outcome: Outcome) -> Option<Completion> {
        if !self.entries.is_empty() {
            return None;
        }
        self.last += 1;
        self.direct_done = self.last;
        Some(Completion { ticket: Ticket(self.last), context, kind, outcome: Ok(outcome) })
    }

    /// Gives the next frame of a request its number.
    pub(super) fn next_sequence(&mut self, is_replied: bool) -> u64 {
        self.sequence += 1;
        if is_replied {
            self.asked = self.sequence;
        }
        self.sequence
    }

    /// The first operation that waits.
    pub(super) fn first_waiting(&self) -> Option<(Ticket, OperationKind, &Waiting<D>)> {
        let entry = self.entries.get(self.entries.len() - self.waiting)?;
        match &entry.stage {
            Stage::Waiting(waiting) => Some((Ticket(entry.ticket), entry.kind, waiting)),
            _ => None,
        }
    }

    /// Takes what the first operation that waits needs, to have it go now.
    pub(super) fn take_waiting(&mut self) -> Option<Waiting<D>> {
        let at = self.entries.len() - self.waiting;
        let entry = self.entries.get_mut(at)?;
        let Stage::Waiting(waiting) = std::mem::replace(&mut entry.stage, Stage::Done(Outcome::Done { len_bytes: 0 }))
        else {
            return None;
        };
        self.kept_bytes -= waiting.kept_bytes();
        Some(*waiting)
    }

    /// It went.
    pub(super) fn waiting_went(&mut self, stage: Stage<D>) {
        let at = self.entries.len() - self.waiting;
        let Some(kind) = self.entries.get(at).map(|entry| entry.kind) else { return };
        self.waiting -= 1;
        self.count_gone(kind, &stage);
        let entry = &mut self.entries[at];
        entry.sequence = self.sequence;
        entry.stage = stage;
    }

    #[inline]
    fn count_gone(&mut self, kind: OperationKind, stage: &Stage<D>) {
        match stage {
            Stage::Message(_) if kind == OperationKind::Flush => self.message_flushes += 1,
            Stage::Message(_) if touches_memory(kind) => self.touching += 1,
            Stage::Direct(_) if kind == OperationKind::Flush => self.direct_flushes += 1,
            _ => {}
        }
    }

    /// The place of the operation that a reply with this sequence belongs to. All before it that asked for no reply succeeded.
    pub(super) fn place_of_reply(&mut self, sequence: u64) -> Result<usize, &'static str> {
        const NOT_POSTED: &str = "a reply to what was not posted";
        if sequence <= self.answered || sequence > self.sequence {
            return Err(NOT_POSTED);
        }
        let mut at = self.entries.partition_point(|entry| entry.sequence <= self.answered);
        loop {
            let entry = self.entries.get(at).ok_or(NOT_POSTED)?;
            let Stage::Message(message) = &entry.stage else {
                at += 1;
                continue;
            };
            if entry.sequence >= sequence {
                return if message.first <= sequence { Ok(at) } else { Err(NOT_POSTED) };
            }
            if message.is_replied {
                return Err("a reply was left out");
            }
            let done = Outcome::Done { len_bytes: message.len_bytes };
            self.answered(at, Stage::Done(done));
            at += 1;
        }
    }

    /// What was asked of the operation in this place, and its kind; and whether the sequence is that of its last frame.
    pub(super) fn asked_at(&self, at: usize, sequence: u64) -> Option<(&Message, OperationKind, bool)> {
        let entry = self.entries.get(at)?;
        match &entry.stage {
            Stage::Message(message) => Some((message, entry.kind, entry.sequence == sequence)),
            _ => None,
        }
    }

    /// The place of the operation whose last frame has this sequence.
    pub(super) fn place_of(&self, sequence: u64) -> Option<usize> {
        let at = self.entries.partition_point(|entry| entry.sequence < sequence);
        self.entries.get(at).filter(|entry| entry.sequence == sequence).map(|_| at)
    }

    /// The operation in this place has its answer.
    pub(super) fn answered(&mut self, at: usize, stage: Stage<D>) {
        let Some(entry) = self.entries.get_mut(at) else { return };
        if matches!(entry.stage, Stage::Message(_)) {
            match entry.kind {
                OperationKind::Flush => self.message_flushes -= 1,
                kind if touches_memory(kind) => self.touching -= 1,
                _ => {}
            }
            self.answered = entry.sequence;
        }
        entry.stage = stage;
    }

    /// The operation in this place fails.
    /// Whether the message in this place, with this sequence number, is a read without an answer.
    pub(super) fn is_read(&self, at: usize, sequence: u64) -> bool {
        self.asked_at(at, sequence).is_some_and(|(_, kind, is_last)| kind == OperationKind::Read && is_last)
    }

    pub(super) fn failed(&mut self, at: usize, error: OperationError) {
        if let Some(ticket) = self.entries.get(at).map(|entry| entry.ticket) {
            self.answered(at, Stage::Failed(ticket, Box::new(error)));
        }
    }

    /// A message that was answered met a receive that is too small for it. False if there is no such message.
    pub(super) fn fail_late(&mut self, sequence: u64, error: impl FnOnce() -> OperationError) -> bool {
        let Some(entry) = self.place_of(sequence).and_then(|at| self.entries.get_mut(at)) else { return false };
        let is_it = entry.takes_receive && matches!(entry.stage, Stage::Done(_));
        if is_it {
            entry.stage = Stage::Failed(entry.ticket, Box::new(error()));
        }
        is_it
    }

    /// Every direct operation up to this one took effect.
    #[inline]
    pub(super) fn direct_done(&mut self, through: u64) {
        self.direct_done = self.direct_done.max(through);
    }

    /// A direct operation's outcome where it brings something back. All before it took effect.
    pub(super) fn direct_returned(&mut self, ticket: u64, outcome: Outcome) {
        self.direct_done(ticket);
        // What others before the last of a row bring, nobody is to hear of.
        if let Some(entry) = self.entry_mut(ticket).filter(|entry| ticket == entry.last()) {
            entry.stage = Stage::Direct(outcome);
        }
    }

    /// A direct operation failed; all before it took effect, which is known.
    pub(super) fn direct_failed(&mut self, ticket: u64, error: OperationError) {
        if let Some(entry) = self.entry_mut(ticket) {
            entry.stage = Stage::Failed(ticket, Box::new(error));
        }
    }

    fn entry_mut(&mut self, ticket: u64) -> Option<&mut Entry<D>> {
        let after = self.entries.partition_point(|entry| entry.ticket <= ticket);
        self.entries.get_mut(after.checked_sub(1)?)
    }

    /// Completes the oldest operations, as far as they succeeded and every message up to them found one of the `taken` receives.
    #[inline]
    pub(super) fn complete(&mut self, taken: u64, completions: &mut VecDeque<Completion>) {
        while let Some(front) = self.entries.front_mut() {
            if let Stage::Unread(error) = &front.stage {
                let (ticket, context, kind) = (Ticket(front.last()), front.context, front.kind);
                completions.push_back(Completion { ticket, context, kind, outcome: Err((**error).clone()) });
                self.entries.pop_front();
                continue;
            }
            let (done, outcome) = match front.stage {
                Stage::Direct(outcome) => {
                    ((self.direct_done + 1).saturating_sub(front.ticket).min(front.count), outcome)
                }
                Stage::Done(outcome) => (front.count, outcome),
                _ => return,
            };
            if done == 0 || front.messages > taken {
                return;
            }
            if done < front.count {
                front.ticket += done;
                front.count -= done;
                return;
            }
            if matches!(front.stage, Stage::Direct(_)) && front.kind == OperationKind::Flush {
                self.direct_flushes -= 1;
            }
            if front.is_signalled {
                let (ticket, context, kind) = (Ticket(front.last()), front.context, front.kind);
                completions.push_back(Completion { ticket, context, kind, outcome: Ok(outcome) });
            }
            self.entries.pop_front();
        }
    }

    /// Gives every operation its last outcome: the connection has ended, and nothing touches this side's memory any more. What is left here
    /// is behind one that failed, so all of it fails, in order, as with a queue pair in error: also what was answered already, and what
    /// nobody was to hear of unless it fails.
    pub(super) fn end(&mut self, why: &ConnectionError, completions: &mut VecDeque<Completion>) {
        (self.waiting, self.kept_bytes, self.touching, self.message_flushes, self.direct_flushes) = (0, 0, 0, 0, 0);
        for entry in std::mem::take(&mut self.entries) {
            let last = entry.last();
            let Entry { ticket: first, context, kind, led_by, stage, .. } = entry;
            // Of those in a row, what was posted before the one that failed took effect.
            let (begin, mut failure) = match stage {
                Stage::Failed(ticket, error) => (ticket, Some((ticket, *error))),
                Stage::Unread(error) => (first, Some((last, *error))),
                _ => (first, None),
            };
            for ticket in begin..=last {
                let (kind, context) = led_by.filter(|_| ticket < last).unwrap_or((kind, context));
                let own = failure.take_if(|(failed, _)| *failed == ticket).map(|(_, error)| error);
                let error = own.unwrap_or_else(|| OperationError::ConnectionEnded(why.clone()));
                completions.push_back(Completion { ticket: Ticket(ticket), context, kind, outcome: Err(error) });
            }
        }
    }
}
