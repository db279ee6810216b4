//! A target's state page: the very bytes of a file, written slot by slot, torn and flipped.

use pmof_control::{PoolFormat, PoolState, REPLICAS_MAX, STATE_BYTES};

use super::{faults::Fault, plan::Control, random::Random, world::World};

/// How far a change of the state comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    TornFirst,
    First,
    TornSecond,
    Both,
}

#[derive(Clone, Debug)]
pub(super) struct StatePage {
    bytes: Vec<u8>,
    /// Of the newest slot.
    sequence: u64,
}

impl StatePage {
    pub(super) fn made(state: &PoolState) -> Self {
        let mut page = Self { bytes: vec![0; STATE_BYTES], sequence: 0 };
        page.write(state, Progress::Both, None);
        page
    }

    /// As `store::write_state`.
    pub(super) fn write(&mut self, state: &PoolState, progress: Progress, control: Option<Control>) {
        let is_once = control == Some(Control::StateWrittenOnce);
        let slots = state.slots(self.sequence + 1);
        let lens = match progress {
            Progress::TornFirst => [slots[0].1.len() / 3, 0],
            Progress::First => [slots[0].1.len(), 0],
            Progress::TornSecond => [slots[0].1.len(), slots[1].1.len() / 3],
            Progress::Both => slots.each_ref().map(|(_, slot)| slot.len()),
        };
        for ((offset, slot), len_bytes) in slots.iter().zip(lens).take(if is_once { 1 } else { 2 }) {
            self.bytes[*offset..][..len_bytes].copy_from_slice(&slot[..len_bytes]);
        }
        self.sequence += if is_once { 1 } else { 2 };
    }

    /// As `PoolStore::open_pool` reads it at the next opening. `None`: neither slot is whole.
    pub(super) fn read(&mut self) -> Option<PoolState> {
        let (state, sequence) = PoolState::read(PoolFormat::Three, REPLICAS_MAX, &self.bytes).ok()?;
        self.sequence = sequence;
        Some(state)
    }

    /// As `store::keep_in_both_slots`.
    fn keep_in_both_slots(&mut self, state: &PoolState, control: Option<Control>) {
        if !PoolState::is_in_both_slots(&self.bytes) && control != Some(Control::StateWrittenOnce) {
            self.write(state, Progress::Both, None);
        }
    }

    /// Flips a bit, unless the other slot is damaged. Returns whether it did.
    fn flip(&mut self, random: &mut Random) -> bool {
        let at = random.below(STATE_BYTES);
        let bit = 1 << random.below(8);
        self.bytes[at] ^= bit;
        let is_readable = PoolState::read(PoolFormat::Three, REPLICAS_MAX, &self.bytes).is_ok();
        if !is_readable {
            self.bytes[at] ^= bit;
        }
        is_readable
    }
}

impl World {
    /// A program opens the replica for writing.
    pub(super) fn read_state_to_write(&mut self, number: usize) {
        self.read_state(number);
        let control = self.control;
        let target = &mut self.targets[number];
        target.page.keep_in_both_slots(&target.state, control);
    }

    /// A process learns of the state from the file.
    pub(super) fn read_state(&mut self, number: usize) {
        let target = &mut self.targets[number];
        if let Some(state) = target.page.read() {
            target.state = state;
        }
    }

    /// A change that fails, and comes so far.
    pub(super) fn fail_to_write_state(&mut self, number: usize, state: &PoolState, is_first_written: bool) {
        let progress = match (is_first_written, self.decay.once_in(2)) {
            (false, false) => None,
            (false, true) => Some(Progress::TornFirst),
            (true, false) => Some(Progress::First),
            (true, true) => Some(Progress::TornSecond),
        };
        let control = self.control;
        let target = &mut self.targets[number];
        if let Some(progress) = progress {
            let mut page = target.page.clone();
            page.write(state, progress, control);
            // The other slot may have rotted before: two faults are one too many.
            if page.read().is_some() {
                target.page = page;
                let is_torn = matches!(progress, Progress::TornFirst | Progress::TornSecond);
                self.count(if is_torn { Fault::StateTorn } else { Fault::StateInOneSlot });
            }
        }
        self.read_state(number);
    }

    /// A bit of a state page flips. A writer that has the replica open does not see it, and soon overwrites it.
    pub(super) fn rot_state(&mut self) {
        let number = self.decay.below(self.targets.len());
        let target = &mut self.targets[number];
        if !target.is_there || !target.page.flip(&mut self.decay) {
            return;
        }
        let is_open = target.open_by.is_some();
        self.count(Fault::StateRotten);
        self.note(|| format!("a bit flips in the state of t{number}"));
        if !is_open {
            self.read_state(number);
        }
    }
}
