//! A target's medium: the very bytes of a file, which tear, rot, are refused or find no room; and what the target's engine has done with them.

use std::rc::Rc;

use pmof_control::{
    CopySteps, INTENT_OFFSET, PoolFormat, PoolName, PoolState, REPLICAS_MAX, ROSTER_BYTES, ROSTER_OFFSET, Roster,
    STATE_BYTES, STATE_OFFSET,
};
use pmof_mem::MemError;
use pmof_target::{
    StoreError,
    engine::{Driver, FencingOutput, OpenReplica, Output, Rules, ShippedRules},
};
use uuid::Uuid;

use super::{faults::Fault, plan::Control, random::Random, world::World};

/// What a target's file holds before the data, but for its header.
#[derive(Clone, Debug)]
pub(super) struct Media {
    state: Vec<u8>,
    roster: Vec<u8>,
    intent: Vec<u8>,
    /// Pages that have changed since they were read last.
    changed: Vec<Page>,
}

/// What a file says of its pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Page {
    State,
    Roster,
}

impl Page {
    fn at(offset: u64) -> Option<(Self, usize)> {
        let within =
            |begin: u64, len_bytes: usize| offset.checked_sub(begin).map(|at| at as usize).filter(|at| *at < len_bytes);
        let state = within(STATE_OFFSET, STATE_BYTES).map(|at| (Self::State, at));
        state.or_else(|| within(ROSTER_OFFSET, ROSTER_BYTES).map(|at| (Self::Roster, at)))
    }
}

impl Media {
    /// Of a replica that has been written so.
    pub(super) fn made(state: &PoolState, roster: Option<&Roster>) -> Self {
        let mut media = Self {
            state: vec![0; STATE_BYTES],
            roster: vec![0; ROSTER_BYTES],
            intent: Vec::new(),
            changed: Vec::new(),
        };
        for (offset, slot) in state.slots(1) {
            media.state[offset..][..slot.len()].copy_from_slice(&slot);
        }
        for (offset, slot) in roster.into_iter().filter_map(|roster| roster.slots(1).ok()).flatten() {
            media.roster[offset..][..slot.len()].copy_from_slice(&slot);
        }
        media
    }

    /// The bytes of a page, to be changed.
    fn bytes(&mut self, page: Page) -> &mut [u8] {
        if !self.changed.contains(&page) {
            self.changed.push(page);
        }
        match page {
            Page::State => &mut self.state,
            Page::Roster => &mut self.roster,
        }
    }

    fn is_readable(&self, page: Page) -> bool {
        match page {
            Page::State => self.state().is_some(),
            Page::Roster => self.roster().is_some(),
        }
    }

    /// `None`: neither slot is whole.
    fn state(&self) -> Option<PoolState> {
        PoolState::read(PoolFormat::Three, REPLICAS_MAX, &self.state).ok().map(|(state, _)| state)
    }

    /// The roster, and whether one was ever written. `None`: neither slot is whole.
    fn roster(&self) -> Option<(Roster, bool)> {
        Roster::read(REPLICAS_MAX, &self.roster).ok().map(|(roster, sequence)| (roster, sequence > 0))
    }

    /// Puts its state page back to that of an older copy.
    pub(super) fn restore_state(&mut self, older: &Self) {
        self.bytes(Page::State).copy_from_slice(&older.state);
    }

    /// Writes so much of it, unless nothing could then be read: the other slot may have rotted before, and two faults are one too many. Returns whether
    /// it did.
    fn tear(&mut self, (page, at): (Page, usize), bytes: &[u8]) -> bool {
        let before = self.clone();
        self.bytes(page)[at..][..bytes.len()].copy_from_slice(bytes);
        let is_readable = self.is_readable(page);
        if !is_readable {
            *self = before;
        }
        is_readable
    }

    /// Flips a bit, unless the other slot is damaged. Returns whether it did.
    fn flip(&mut self, page: Page, random: &mut Random) -> bool {
        let bytes = self.bytes(page);
        let (at, bit) = (random.below(bytes.len()), 1 << random.below(8));
        bytes[at] ^= bit;
        let is_readable = self.is_readable(page);
        if !is_readable {
            self.bytes(page)[at] ^= bit;
        }
        is_readable
    }

    fn read(&self, offset: u64, len_bytes: usize) -> Vec<u8> {
        let mut bytes = match Page::at(offset) {
            Some((Page::State, at)) => self.state[at..].to_vec(),
            Some((Page::Roster, at)) => self.roster[at..].to_vec(),
            None => self.intent[((offset - INTENT_OFFSET) as usize).min(self.intent.len())..].to_vec(),
        };
        bytes.resize(len_bytes, 0);
        bytes
    }
}

/// The rules of a target, of which a control breaks one.
#[derive(Clone, Copy, Debug)]
pub(super) struct TargetRules(pub(super) Option<Control>);

impl Rules for TargetRules {
    fn state_steps(&self, state: &PoolState, format: PoolFormat, sequence: u64) -> CopySteps {
        let mut steps = ShippedRules.state_steps(state, format, sequence);
        if self.0 == Some(Control::StateWrittenOnce) {
            steps.truncate(1);
        }
        steps
    }

    fn is_kept(&self, format: PoolFormat, copies: &[u8]) -> bool {
        self.0 == Some(Control::StateWrittenOnce) || ShippedRules.is_kept(format, copies)
    }

    fn is_epoch_of_writer<R: Rules>(&self, replica: &OpenReplica<R>, epoch: Uuid) -> bool {
        let is_found = self.0 == Some(Control::FoundEpochNames) && replica.state().epoch.id == epoch;
        is_found || ShippedRules.is_epoch_of_writer(replica, epoch)
    }
}

/// How the second slot of a page fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SecondSlot {
    NotWritten,
    Torn,
}

/// A target's medium, on which its engine's outputs are performed.
pub(super) struct OnMedia<'w> {
    world: &'w mut World,
    number: usize,
    fails: Option<SecondSlot>,
}

impl<'w> OnMedia<'w> {
    pub(super) fn new(world: &'w mut World, number: usize) -> Self {
        Self { world, number, fails: None }
    }

    fn tear(&mut self, at: (Page, usize), bytes: &[u8]) {
        if self.world.targets[self.number].media.tear(at, &bytes[..bytes.len() / 3]) {
            self.world.count(if at.0 == Page::State { Fault::StateTorn } else { Fault::RosterTorn });
        }
    }

    fn store(&mut self, (page, at): (Page, usize), bytes: &[u8]) -> Result<(), StoreError> {
        let is_state = page == Page::State;
        match self.fails.take() {
            Some(SecondSlot::NotWritten) => {
                self.world.count(if is_state { Fault::StateInOneSlot } else { Fault::RosterInOneSlot });
                return Err(failed());
            }
            Some(SecondSlot::Torn) => {
                self.tear((page, at), bytes);
                return Err(failed());
            }
            None => {}
        }
        if std::mem::take(&mut self.world.targets[self.number].fails_state) {
            let (is_written, is_torn) = (self.world.random.once_in(2), self.world.decay.once_in(2));
            self.world.count(match (is_state, is_written) {
                (true, false) => Fault::StateNotWritten,
                (true, true) => Fault::StateWrittenAndRefused,
                (false, false) => Fault::RosterNotWritten,
                (false, true) => Fault::RosterWrittenAndRefused,
            });
            if !is_written {
                if is_torn {
                    self.tear((page, at), bytes);
                }
                return Err(failed());
            }
            self.fails = Some(if is_torn { SecondSlot::Torn } else { SecondSlot::NotWritten });
        }
        self.world.targets[self.number].media.bytes(page)[at..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }
}

impl Driver<Output, Vec<u8>> for OnMedia<'_> {
    type Error = StoreError;

    fn perform(&mut self, output: Output) -> Result<Vec<u8>, StoreError> {
        if output == Output::Flush {
            return if self.world.flush(self.number) { Ok(Vec::new()) } else { Err(failed()) };
        }
        let target = &mut self.world.targets[self.number];
        match output {
            Output::Read { offset: 0, .. } => return Ok(target.header().encode().to_vec()),
            Output::KeepResident(_) | Output::LetGo(_) | Output::ReadBegin(_) => {
                panic!("the simulation's files have format 3")
            }
            Output::Read { offset, len_bytes } => return Ok(target.media.read(offset, len_bytes)),
            Output::Store { offset, bytes } => match Page::at(offset) {
                Some(at) => self.store(at, &bytes)?,
                None => self.world.truth.violate(|| format!("a target stores at {offset}")),
            },
            Output::StoreWord { offset, word } => {
                let (at, intent) = ((offset - INTENT_OFFSET) as usize, &mut target.media.intent);
                intent.resize(intent.len().max(at + 8), 0);
                intent[at..at + 8].copy_from_slice(&word.to_le_bytes());
            }
            Output::Sync(_) if target.is_poisoned => return Err(failed()),
            Output::SettleData(_) => target.durable = target.cache,
            Output::Sync(_)
            | Output::Flush
            | Output::WriteBack(_)
            | Output::CheckName
            | Output::Publish
            | Output::CheckLevel
            | Output::LeaveToFormerWriters
            | Output::SyncName
            | Output::SettleHead
            | Output::SettleForReader => {}
        }
        Ok(Vec::new())
    }
}

/// The connection that has a replica open, of which another one takes it.
pub(super) struct OnHolder<'w> {
    pub(super) world: &'w mut World,
    pub(super) number: usize,
    pub(super) holder: usize,
}

impl Driver<FencingOutput, bool> for OnHolder<'_> {
    type Error = StoreError;

    fn perform(&mut self, output: FencingOutput) -> Result<bool, StoreError> {
        match output {
            FencingOutput::EndConnection if self.world.control != Some(Control::NotFenced) => {
                self.world.end_there(self.holder);
            }
            FencingOutput::HandOver { .. } if !self.world.flush(self.number) => return Err(failed()),
            // Initiators here have no memory mapped.
            FencingOutput::EndConnection
            | FencingOutput::HandOver { .. }
            | FencingOutput::PrepareCopy
            | FencingOutput::NameSuccessor
            | FencingOutput::Revoke
            | FencingOutput::FindMapping
            | FencingOutput::EndReaders => {}
        }
        Ok(false)
    }
}

pub(super) fn pool_name() -> PoolName {
    "p".parse().expect("a name")
}

fn failed() -> StoreError {
    StoreError::Memory { name: pool_name(), source: MemError::Poisoned { path: "p".into() } }
}

impl World {
    /// What the file says of its pool is what others than its writer learn.
    pub(super) fn read_media(&mut self, number: usize) {
        let target = &mut self.targets[number];
        for page in std::mem::take(&mut target.media.changed) {
            match page {
                Page::State => target.state = target.media.state().unwrap_or_else(|| target.state.clone()),
                Page::Roster => {
                    if let Some((roster, is_written)) = target.media.roster() {
                        target.roster = is_written.then(|| Rc::new(roster));
                    }
                }
            }
        }
    }

    /// A bit of a state page or of a roster flips. A writer that has the replica open does not see it, and soon overwrites it.
    pub(super) fn rot_head(&mut self) {
        let number = self.decay.below(self.targets.len());
        let page = if self.decay.once_in(3) { Page::Roster } else { Page::State };
        let target = &mut self.targets[number];
        if !target.is_there || !target.media.flip(page, &mut self.decay) {
            return;
        }
        let is_open = target.open.is_some();
        self.count(if page == Page::State { Fault::StateRotten } else { Fault::RosterRotten });
        self.note(|| format!("a bit of t{number} flips: {page:?}"));
        if !is_open {
            self.read_media(number);
        }
    }
}
