//! A replica that is open: its state, its roster and its map of write intent, and what requests make of them.

use std::{
    collections::{BTreeSet, VecDeque},
    mem,
    ops::Range,
};

use pmof_control::{
    CopySteps, Enclosed, FailureDomain, Header, INTENT_MESSAGE_WORDS_MAX, IntentLayout, OpenFor, PoolFormat, PoolState,
    Protection, Reply, Request, Roster, RosterError, RosterPart,
};
use pmof_terms::Durability;
use uuid::Uuid;

use super::{Machine, Output, Refusal, Rules, ShippedRules, Step, pages::Repair};

const WORD_BYTES: usize = size_of::<u64>();

/// Number of the first slot of a new replica's state.
pub(crate) const FIRST_SEQUENCE: u64 = 1;

/// A replica that is open, until it is closed or another connection takes it over.
#[derive(Clone, Debug)]
pub struct OpenReplica<R = ShippedRules> {
    header: Header,
    state: PoolState,
    /// Of the newest slot of the state page.
    sequence: u64,
    access: OpenFor,
    roster: Roster,
    /// Of the newest slot of the roster; 0 where there is none.
    roster_sequence: u64,
    /// Parts of a roster that is being set.
    roster_parts: Vec<u8>,
    /// A page that is being repaired.
    pub(super) repair: Repair,
    /// Pages that were kept in memory since they were raised.
    pub(super) kept_pages: BTreeSet<u64>,
    /// Its writer keeps the map of write intent.
    keeps_intent: bool,
    /// An epoch was begun since it was opened, so that it is for this opening to say that it ended in order.
    has_begun: bool,
    /// The epoch that its writer named when it came back over another connection.
    named_epoch: Option<Uuid>,
    rules: R,
}

/// What an opening has found.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) header: Header,
    pub(super) state: PoolState,
    pub(super) sequence: u64,
    pub(super) access: OpenFor,
    pub(super) roster: Roster,
    pub(super) roster_sequence: u64,
}

impl<R: Rules> OpenReplica<R> {
    /// A replica that was made with this header and state, and is open for writing.
    pub fn made(header: Header, state: PoolState, rules: R) -> Self {
        let (roster, access) = (Roster::made(header.replica_count), OpenFor::Write);
        let sequence = if header.format == PoolFormat::Four { FIRST_SEQUENCE } else { FIRST_SEQUENCE + 1 };
        let found = Found { header, state, sequence, access, roster, roster_sequence: 0 };
        Self { has_begun: true, ..Self::found(found, rules) }
    }

    pub(super) fn found(found: Found, rules: R) -> Self {
        let Found { header, state, sequence, access, roster, roster_sequence } = found;
        Self {
            header,
            state,
            sequence,
            access,
            roster,
            roster_sequence,
            roster_parts: Vec::new(),
            repair: Repair::default(),
            kept_pages: BTreeSet::new(),
            keeps_intent: false,
            has_begun: false,
            named_epoch: None,
            rules,
        }
    }

    /// The header as it was when the replica was opened.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Which opening wrote it last, and whether that ended in order.
    pub fn state(&self) -> &PoolState {
        &self.state
    }

    /// The members of the pool, as this replica knows them.
    pub fn roster(&self) -> &Roster {
        &self.roster
    }

    /// What it was opened for.
    pub fn access(&self) -> OpenFor {
        self.access
    }

    /// Whether an epoch was begun since it was opened.
    pub fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// The epoch that its writer named as its own.
    pub fn named_epoch(&self) -> Option<Uuid> {
        self.named_epoch
    }

    /// The same, for a writer that names an epoch of its own.
    #[must_use]
    pub fn named_by(self, named_epoch: Option<Uuid>) -> Self {
        Self { named_epoch, ..self }
    }

    /// The same for another holder, as if it had been opened anew: nothing was begun since.
    #[must_use]
    pub fn handed_over(self) -> Self {
        Self { keeps_intent: false, has_begun: false, roster_parts: Vec::new(), ..self }
    }

    /// Its writer keeps the map of write intent.
    pub(super) fn keep_intent(&mut self) {
        self.keeps_intent = true;
    }

    /// Whether an epoch is of the writer that has it open now.
    pub fn is_epoch_of_writer(&self, epoch: Uuid) -> bool {
        self.rules.is_epoch_of_writer(self, epoch)
    }

    /// Reads the map of write intent for [`told`](Self::told), which a reader is not told.
    pub fn map(&self) -> Option<Output> {
        (self.access == OpenFor::Write).then(|| read_map(&self.header))
    }

    /// What tells its initiator that it is open. `domain`: of the target. `map`: what was read of the [map](Self::map).
    pub fn told(&self, descriptor: Vec<u8>, domain: Option<FailureDomain>, map: Option<&[u8]>) -> Reply {
        let digests = self.header.layout.digests();
        let enclosed = Enclosed {
            roster: Some(self.roster.clone()),
            domain: Some(domain),
            intent: map.map(bits_of),
            protection: digests.map(|_| Protection { max_size_bytes: self.header.layout.max_size_bytes }),
        };
        Reply::Opened {
            pool_uuid: self.header.pool_uuid,
            replica_uuid: self.header.replica_uuid,
            size_bytes: self.header.size_bytes,
            replica_count: self.header.replica_count,
            replica_index: self.header.replica_index,
            user_flags: self.header.user_flags,
            state: self.state.clone(),
            descriptor,
            enclosed: Box::new(enclosed),
        }
    }

    /// Whether a request is one about an open replica.
    pub fn takes(request: &Request) -> bool {
        use Request::{Begin, ClearIntent, Close, Confirm, Intent, Mark, RaiseIntent, SetRoster};
        matches!(
            request,
            Begin { .. }
                | Confirm { .. }
                | Mark { .. }
                | Close { .. }
                | RaiseIntent { .. }
                | ClearIntent { .. }
                | Intent { .. }
                | Request::Roster { .. }
                | SetRoster { .. }
        )
    }

    /// Carries out a request about the state, the roster or the map of write intent, or a close. `strongest`: the strongest level that its medium reaches.
    pub fn serve(&mut self, request: Request, strongest: Option<Durability>) -> Serving<'_, R> {
        let mut tasks = VecDeque::new();
        let refused = self.plan(request, strongest, &mut tasks).err();
        Serving { replica: self, tasks, refused, is_awaiting: false }
    }

    fn plan(
        &mut self,
        request: Request,
        strongest: Option<Durability>,
        tasks: &mut VecDeque<Task>,
    ) -> Result<(), Refusal> {
        match request {
            Request::Begin { opening, epoch, ancestors } => {
                self.check_writable()?;
                if !self.keeps_intent {
                    tasks.extend([self.map_is_read(), Task::ChangeIntent(0, vec![0; self.word_count()], Change::Wipe)]);
                }
                let state = self.state.begun(self.header.replica_index, epoch, opening, &ancestors);
                tasks.extend([Task::WriteState(state), Task::HasBegun, Task::Answer(Reply::Begun)]);
            }
            Request::Confirm { epoch } => {
                let refused = Refusal::NotTheEpoch { epoch, found: self.state.epoch.id };
                let state = self.state.confirmed(self.header.replica_index, epoch).ok_or(refused)?;
                self.check_writable()?;
                tasks.extend([Task::WriteState(state), Task::Answer(Reply::Confirmed)]);
            }
            Request::Mark { mark } => {
                tasks.push_back(Task::Perform(Output::CheckName));
                if let Some(state) = self.state.raised(mark) {
                    self.check_writable()?;
                    tasks.push_back(Task::WriteState(state));
                }
                tasks.push_back(Task::Answer(Reply::Marked));
            }
            Request::Close { in_order } => {
                if in_order {
                    tasks.push_back(Task::Perform(Output::CheckName));
                    if self.has_begun && self.state.is_open {
                        let closed = Task::WriteState(self.state.closed());
                        tasks.extend([Task::Perform(Output::Flush), closed]);
                    }
                    tasks.push_back(Task::Perform(Output::Publish));
                }
                tasks.push_back(Task::Answer(Reply::Closed));
            }
            Request::RaiseIntent { first, words } => self.change_intent(first, words, Change::Raise, tasks)?,
            Request::ClearIntent { level, first, words } => {
                // What was written there is not as durable as the medium can make it.
                let is_weak = strongest.is_some_and(|strongest| level < strongest);
                self.change_intent(first, words, if is_weak { Change::Raise } else { Change::Clear }, tasks)?;
            }
            Request::Intent { first } => tasks.extend([self.map_is_read(), Task::AnswerIntent(first)]),
            Request::Roster { offset } => {
                let encoded = self.roster.encode().map_err(Refusal::Roster)?;
                tasks.push_back(Task::Answer(Reply::Roster(RosterPart::of(&encoded, offset))));
            }
            Request::SetRoster { offset, part } => {
                if let Some(roster) = self.take_part(offset, &part)? {
                    self.write_roster(roster, tasks)?;
                }
                tasks.push_back(Task::Answer(Reply::RosterSet));
            }
            other => panic!("not a request about an open replica: {other:?}"),
        }
        Ok(())
    }

    fn check_writable(&self) -> Result<(), Refusal> {
        if self.access == OpenFor::Read { Err(Refusal::ReadOnly) } else { Ok(()) }
    }

    /// Takes a part of a roster in; the roster, if it was the last.
    fn take_part(&mut self, offset: u16, part: &RosterPart) -> Result<Option<Roster>, Refusal> {
        let parts = &mut self.roster_parts;
        if offset == 0 {
            parts.clear();
        }
        if usize::from(offset) != parts.len() {
            return Err(Refusal::Roster(RosterError::Malformed { what: "its parts do not come in order" }));
        }
        parts.extend_from_slice(&part.bytes);
        if parts.len() < usize::from(part.len_bytes) {
            return Ok(None);
        }
        Roster::decode(&mem::take(parts)).map(Some).map_err(Refusal::Roster)
    }

    /// Replaces the roster in both slots. A crash leaves the old one or the new one; once it is answered for, one damaged slot takes nothing back.
    fn write_roster(&mut self, roster: Roster, tasks: &mut VecDeque<Task>) -> Result<(), Refusal> {
        self.check_writable()?;
        let steps = roster.steps(self.header.format, self.roster_sequence + 1).map_err(Refusal::Roster)?;
        // One that fails half way may have used all its numbers.
        self.roster_sequence += state_numbers(self.header.format, &steps);
        tasks.extend(written(steps).map(Task::Perform));
        tasks.push_back(Task::KeepRoster(roster));
        Ok(())
    }

    fn word_count(&self) -> usize {
        IntentLayout::new(self.header.size_bytes).word_count()
    }

    fn map_is_read(&self) -> Task {
        Task::Perform(read_map(&self.header))
    }

    fn change_intent(
        &self,
        first: u16,
        bits: Vec<u32>,
        change: Change,
        tasks: &mut VecDeque<Task>,
    ) -> Result<(), Refusal> {
        self.check_writable()?;
        tasks.extend([self.map_is_read(), Task::ChangeIntent(first, bits, change)]);
        tasks.extend([Task::KeepsIntent, Task::Answer(Reply::IntentChanged)]);
        Ok(())
    }
}

/// Reads the map of write intent of a replica with this header.
pub(crate) fn read_map(header: &Header) -> Output {
    let len_bytes = IntentLayout::new(header.size_bytes).word_count() * WORD_BYTES;
    Output::Read { offset: header.format.intent_offset(), len_bytes }
}

/// The bits of a map that was read.
pub(crate) fn bits_of(map: &[u8]) -> Vec<u32> {
    words_in(map).enumerate().map(|(index, word)| IntentLayout::decode(index, word)).collect()
}

/// The words of 8 bytes that were read.
pub(super) fn words_in(map: &[u8]) -> impl Iterator<Item = u64> {
    map.chunks_exact(WORD_BYTES).map(|bytes| bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)))
}

/// The outputs that replace what is kept in several copies: a crash leaves it or what was there before; once it is answered for, one damaged copy takes nothing back. Only these bytes are made durable:
/// a change of the epoch, which a writer waits for, does not wait for what the page cache has of the pool.
pub(crate) fn written(steps: CopySteps) -> impl Iterator<Item = Output> {
    steps.into_iter().flat_map(|step| {
        let begin = step.iter().map(|(offset, _)| *offset).min().unwrap_or(0);
        let end = step.iter().map(|(offset, bytes)| offset + bytes.len() as u64).max().unwrap_or(0);
        let stores = step.into_iter().map(|(offset, bytes)| Output::Store { offset, bytes });
        stores.chain([Output::Sync(begin..end)])
    })
}

/// Sequence numbers that these steps take: each copy of a former format has its own.
pub(super) fn state_numbers(format: PoolFormat, steps: &CopySteps) -> u64 {
    if format == PoolFormat::Four { 1 } else { steps.len() as u64 }
}

/// How bits of the map of write intent are changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Bits are added, durably. A crash leaves any of the words changed.
    Raise,
    /// No other bits are left. It need not be durable: a crash may leave more bits.
    Clear,
    /// It becomes a map that no writer keeps, durably.
    Wipe,
}

impl Change {
    /// The outputs that change words from the index `first` on, each by one atomic store.
    pub(crate) fn outputs(self, format: PoolFormat, map: &[u8], first: u16, bits: &[u32]) -> Vec<Output> {
        let mut outputs = Vec::new();
        let mut changed: Option<Range<u64>> = None;
        for ((index, old), bits) in words_in(map).enumerate().skip(first.into()).zip(bits) {
            let word = match self {
                Self::Raise => IntentLayout::encode(index, IntentLayout::decode(index, old) | bits),
                Self::Clear => IntentLayout::encode(index, *bits),
                Self::Wipe => 0,
            };
            if word != old {
                let offset = format.intent_offset() + (index * WORD_BYTES) as u64;
                outputs.push(Output::StoreWord { offset, word });
                changed = Some(changed.map_or(offset, |range| range.start)..offset + WORD_BYTES as u64);
            }
        }
        outputs.extend(
            changed.map(|range| if self == Self::Clear { Output::WriteBack(range) } else { Output::Sync(range) }),
        );
        outputs
    }
}

/// What is left to do for a request.
#[derive(Debug)]
enum Task {
    Perform(Output),
    WriteState(PoolState),
    KeepState(PoolState),
    KeepRoster(Roster),
    HasBegun,
    KeepsIntent,
    /// Of the map that was read last.
    ChangeIntent(u16, Vec<u32>, Change),
    AnswerIntent(u16),
    Answer(Reply),
}

/// A request that is being carried out. Where an output fails the replica keeps what it had.
#[derive(Debug)]
pub struct Serving<'r, R = ShippedRules> {
    replica: &'r mut OpenReplica<R>,
    tasks: VecDeque<Task>,
    refused: Option<Refusal>,
    is_awaiting: bool,
}

impl<R: Rules> Serving<'_, R> {
    fn perform_first(&mut self, outputs: impl IntoIterator<Item = Output>, then: Option<Task>) {
        let mut tasks: VecDeque<_> = outputs.into_iter().map(Task::Perform).chain(then).collect();
        tasks.append(&mut self.tasks);
        self.tasks = tasks;
    }
}

impl<R: Rules> Machine for Serving<'_, R> {
    type Output = Output;
    type Input = Vec<u8>;
    type Outcome = Reply;

    fn step(&mut self) -> Step<Output, Reply> {
        assert!(!self.is_awaiting, "an output that failed or is being performed is not followed by others");
        if let Some(refused) = self.refused.take() {
            return Step::Done(Err(refused));
        }
        loop {
            let task = self.tasks.pop_front().expect("each request ends with an answer");
            match task {
                Task::Perform(output) => {
                    self.is_awaiting = true;
                    return Step::Perform(output);
                }
                Task::WriteState(state) => {
                    let replica = &mut *self.replica;
                    let format = replica.header.format;
                    let steps = replica.rules.state_steps(&state, format, replica.sequence + 1);
                    // One that fails half way may have used all its numbers.
                    replica.sequence += state_numbers(format, &steps);
                    self.perform_first(written(steps), Some(Task::KeepState(state)));
                }
                Task::KeepState(state) => self.replica.state = state,
                Task::KeepRoster(roster) => self.replica.roster = roster,
                Task::HasBegun => self.replica.has_begun = true,
                Task::KeepsIntent => self.replica.keeps_intent = true,
                Task::ChangeIntent(..) | Task::AnswerIntent(_) => panic!("the map is read first"),
                Task::Answer(reply) => {
                    assert!(self.tasks.is_empty(), "an answer is the last that happens");
                    return Step::Done(Ok(reply));
                }
            }
        }
    }

    fn performed(&mut self, read: Vec<u8>) {
        assert!(mem::take(&mut self.is_awaiting), "the driver performed what it was not told");
        match self.tasks.pop_front() {
            Some(Task::ChangeIntent(first, bits, change)) => {
                assert_eq!(read.len(), self.replica.word_count() * WORD_BYTES, "the whole map is read");
                self.perform_first(change.outputs(self.replica.header.format, &read, first, &bits), None);
            }
            Some(Task::AnswerIntent(first)) => {
                let words = bits_of(&read).into_iter().skip(first.into()).take(INTENT_MESSAGE_WORDS_MAX).collect();
                self.tasks.push_front(Task::Answer(Reply::Intent { first, words }));
            }
            other => other.into_iter().for_each(|task| self.tasks.push_front(task)),
        }
    }
}
