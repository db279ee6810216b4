//! What changes in a pool's file beside its data: which opening wrote it last, with whom, and whether that ended in order.

use alloc::{boxed::Box, vec::Vec};

use uuid::Uuid;
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U32, U64},
};

use crate::{
    CopySteps, HeaderError, PoolFormat, REPLICAS_MAX, block,
    checksum::{crc32c, is_all_zero},
};

#[cfg(test)]
mod tests;

/// Ancestors that a state names, at most: replicas further apart cannot be told to be older or newer.
pub const ANCESTORS_MAX: usize = 64;

/// Bytes of the state page of formats 2 and 3.
pub const STATE_BYTES: usize = 2 * SLOT_BYTES;

const SLOT_BYTES: usize = 2048;
const CHECKSUM_OFFSET: usize = SLOT_BYTES - 4;
const MAGIC: [u8; 8] = *b"PMOFSTAT";
/// What a slot says where each state is written to both slots before it is answered for. 0: to one of them, by earlier programs.
const COPIES: u8 = 2;
const RESERVED_BYTES: usize = CHECKSUM_OFFSET - 64 - ANCESTORS_MAX * size_of::<RawAncestor>();

/// What a block of format 4 says: in how many blocks each state lies.
const BLOCK_COPIES: u8 = 4;

const OPEN: u8 = 1;
const CONFIRMED: u8 = 2;
const BEHIND: u8 = 4;

/// An epoch: one opening for writing, and the replicas that took part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Epoch {
    /// Random, so that no two openings share it.
    pub id: Uuid,
    /// The replicas that took part: bit *n* stands for the replica of index *n*.
    pub members: u64,
}

impl Epoch {
    /// The epoch of this name, of the replicas with these indices.
    pub fn new(id: Uuid, indices: impl IntoIterator<Item = u16>) -> Self {
        Self { id, members: members_of(indices) }
    }

    /// Whether the replica of this index took part.
    pub fn has(&self, index: u16) -> bool {
        self.members & member_bit(index) != 0
    }

    /// Whether more than half of the `made` replicas took part.
    pub fn is_majority(&self, made: u16) -> bool {
        2 * self.members.count_ones() > u32::from(made)
    }
}

/// The replicas with these indices, a bit for each as in [`Epoch::members`].
pub fn members_of(indices: impl IntoIterator<Item = u16>) -> u64 {
    indices.into_iter().fold(0, |members, index| members | member_bit(index))
}

fn member_bit(index: u16) -> u64 {
    1_u64.checked_shl(u32::from(index)).unwrap_or(0)
}

/// The state of one replica of a pool, on the page behind its header.
///
/// The page has two slots of 2048 bytes. A change is written to both, with the next two sequence numbers: first to slot `sequence mod 2`, then to
/// the other one, each durably, and only then it is answered. The whole slot with the higher number counts. So a crash leaves the old state or the new
/// one, and one damaged slot takes back nothing that was answered. All numbers are little-endian:
///
/// | offset | bytes | field |
/// |---|---|---|
/// | 0 | 8 | magic `PMOFSTAT` |
/// | 8 | 8 | sequence number, from 1 |
/// | 16 | 16 | epoch: random, chosen anew by each opening for writing and each loss of a replica |
/// | 32 | 8 | members of the epoch: bit *n* for the replica of index *n* |
/// | 40 | 8 | number of the opening: one more than its parent's |
/// | 48 | 1 | bit 0: open for writing; bit 1: confirmed, all members have this epoch; bit 2: behind it, or its parent before it is confirmed |
/// | 49 | 1 | ancestors that follow, at most 64 |
/// | 50 | 1 | 2: each state is written to both slots; 0: to one of them in turn, as earlier programs did |
/// | 51 | 5 | zero |
/// | 56 | 24 n | ancestors, the parent first: epoch `[16]`, members `u64` |
/// | | | zero up to byte 1592 |
/// | 1592 | 8 | mark: raised by the writer at its first persist, and then about once a second while it persists |
/// | 1600 | 444 | zero |
/// | 2044 | 4 | CRC32C of bytes 0..2044 |
///
/// In format 4 the state lies in [four blocks](PoolFormat::state_places) of 4096 bytes, all with the same sequence number, of which the first two are durable before the
/// last two are written, and the last two before the change is answered. The whole block with the highest number counts. Up to the checksum a block
/// is as a slot, with 4 at byte 50, and zero from byte 1600 on:
///
/// | offset | bytes | field |
/// |---|---|---|
/// | 4092 | 4 | CRC32C of bytes 0..4092 |
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolState {
    /// The latest opening that this replica knows of.
    pub epoch: Epoch,
    /// Which opening of the pool that was, counted along its ancestors.
    pub opening: u64,
    /// All members are known to have the epoch. Before that nothing is written under it.
    pub is_confirmed: bool,
    /// A writer has the pool open, or did not live to close it.
    pub is_open: bool,
    /// The replica knows of the epoch and is not a member of it: its contents are older, or mixed while it catches up. It is no source, and
    /// votes all the same. Before the epoch is confirmed: the same of its parent.
    pub is_behind: bool,
    /// How far its writers came: a number that only grows. Replicas in use are told to raise it, all of them before any is told again,
    /// so that two of one epoch are at most one apart unless one of them is an older copy.
    pub mark: u64,
    /// Confirmed epochs before this one, the latest first; at most [`ANCESTORS_MAX`].
    pub ancestors: Vec<Epoch>,
}

impl PoolState {
    /// The state of a new pool: open for writing by whoever makes it, with all replicas.
    pub fn new(id: Uuid, replica_count: u16) -> Self {
        let members = members_of(0..replica_count);
        let epoch = Epoch { id, members };
        let (is_confirmed, is_open, is_behind) = (true, true, false);
        Self { epoch, opening: 1, is_confirmed, is_open, is_behind, mark: 0, ancestors: Vec::new() }
    }

    /// What a file of format 1 says by its generation: each is a number of its own, and a descendant of those below.
    pub fn of_generation(generation: u32, replica_count: u16) -> Self {
        let members = members_of(0..replica_count.min(REPLICAS_MAX));
        let epoch = |generation: u32| Epoch { id: Uuid::from_u128(u128::from(generation)), members };
        // Nobody knows who took part, so that none of these counts as a member of what came later.
        let ancestors = (0..generation).rev().take(ANCESTORS_MAX).map(|older| Epoch { members: 0, ..epoch(older) });
        let opening = u64::from(generation);
        let ancestors = ancestors.collect();
        Self {
            epoch: Epoch { members: 0, ..epoch(generation) },
            opening,
            is_confirmed: true,
            is_open: false,
            is_behind: false,
            mark: 0,
            ancestors,
        }
    }

    /// What a replica keeps when an epoch is announced to it: nothing is written under the epoch before it is
    /// [confirmed](Self::confirmed). `index`: which replica it is.
    #[must_use]
    pub fn begun(&self, index: u16, epoch: Epoch, opening: u64, ancestors: &[Epoch]) -> Self {
        if self.is_confirmed && self.epoch.id == epoch.id {
            // Told again by a writer that connects again: what is confirmed stays so.
            return Self { is_open: true, ..self.clone() };
        }
        let is_own_parent = |parent: &Epoch| parent.id == epoch.id && parent.members != 0;
        if !self.is_confirmed && self.ancestors.first().is_some_and(is_own_parent) {
            // Its writer gives up what it has announced behind it: it is what it was there, and that was confirmed.
            let ancestors = ancestors.iter().copied().take(ANCESTORS_MAX).collect();
            return Self { epoch, opening, is_confirmed: true, is_open: true, ancestors, ..self.clone() };
        }
        let is_older = |known: &Epoch| known.id == epoch.id && known.members != 0;
        if self.is_confirmed && self.ancestors.iter().any(is_older) {
            // Told late by a writer that has told it of a later one meanwhile: what is confirmed is not taken back.
            return Self { is_open: true, ..self.clone() };
        }
        let is_parent = |id: Uuid| ancestors.first().is_some_and(|parent| parent.id == id);
        // Until it is confirmed it may be abandoned: then the replica is what it was at its parent.
        let is_behind = if is_parent(self.epoch.id) {
            self.is_behind_own(index)
        } else {
            // One that only this replica was told to be in force is given up as one that was announced: with that it holds all that was acknowledged under the parent.
            let beside = ancestors.iter().skip(1).take_while(|epoch| epoch.members == 0);
            let is_beside = |id: Uuid| beside.clone().any(|epoch| epoch.id == id);
            let is_given_up = !self.is_confirmed || is_beside(self.epoch.id);
            let own_parent = self.ancestors.iter().find(|parent| parent.members != 0 && !is_beside(parent.id));
            let is_sibling = is_given_up && own_parent.is_some_and(|parent| is_parent(parent.id));
            !is_sibling || self.is_behind
        };
        let ancestors = ancestors.iter().copied().take(ANCESTORS_MAX).collect();
        Self { epoch, opening, is_confirmed: false, is_open: true, is_behind, mark: self.mark, ancestors }
    }

    /// What it keeps when all members of the epoch have it. One that is no member is behind from then on. `None`: it is at another epoch.
    #[must_use]
    pub fn confirmed(&self, index: u16, epoch: Uuid) -> Option<Self> {
        let is_behind = !self.epoch.has(index);
        (self.epoch.id == epoch).then(|| Self { is_confirmed: true, is_behind, ..self.clone() })
    }

    /// Whether the replica of this index is behind the epoch that it names, where that is known to be confirmed.
    pub fn is_behind_own(&self, index: u16) -> bool {
        if self.is_confirmed { self.is_behind } else { !self.epoch.has(index) }
    }

    /// What it keeps when its writer raises the mark. `None`: it has this mark, or a higher one.
    #[must_use]
    pub fn raised(&self, mark: u64) -> Option<Self> {
        (mark > self.mark).then(|| Self { mark, ..self.clone() })
    }

    /// What it keeps when its writer closes it in order.
    #[must_use]
    pub fn closed(&self) -> Self {
        Self { is_open: false, ..self.clone() }
    }

    /// The state as the page behind a header of `format` has it, and the sequence number of its newest slot.
    ///
    /// # Errors
    /// [`HeaderError::BadState`] where neither slot is whole. [`HeaderError::UncertainState`] where one is damaged that may have held a newer state: it was
    /// written by a program that kept each state in one slot, and other replicas may lack what was acknowledged since the older one.
    pub fn read(format: PoolFormat, replica_count: u16, page: &[u8]) -> Result<(Self, u64), HeaderError> {
        let (state, sequence, is_uncertain) = Self::read_uncertain(format, replica_count, page)?;
        if is_uncertain { Err(HeaderError::UncertainState) } else { Ok((state, sequence)) }
    }

    /// The same also where a damaged slot may have held a newer state, and whether that is so: for an operator who decides that this one counts.
    ///
    /// # Errors
    /// [`HeaderError::BadState`] where neither slot is whole.
    pub fn read_uncertain(
        format: PoolFormat,
        replica_count: u16,
        page: &[u8],
    ) -> Result<(Self, u64, bool), HeaderError> {
        if let PoolFormat::One { generation } = format {
            return Ok((Self::of_generation(generation, replica_count), 0, false));
        }
        if let PoolFormat::Four = format {
            return Self::newest_of_blocks(page).map(|(state, sequence)| (state, sequence, false));
        }
        let slots = Slot::both(page).ok_or(HeaderError::BadState)?;
        let is_damaged = slots.iter().any(|slot| matches!(slot, Slot::Damaged));
        let is_blank = slots.iter().any(|slot| matches!(slot, Slot::Blank));
        let newest = slots.into_iter().filter_map(Slot::whole).max_by_key(|slot| slot.sequence);
        let WholeSlot { mut state, sequence, is_copied } = newest.ok_or(HeaderError::BadState)?;
        let is_uncertain = is_damaged && !is_copied && !state.is_of_one(replica_count);
        // A crash interrupted the write of the other slot, or the medium changed it.
        state.is_open |= is_damaged || (is_blank && is_copied);
        Ok((state, sequence, is_uncertain))
    }

    /// The newest state in the blocks of format 4. Any whole one has everything that was answered for, so a damaged one makes nothing uncertain.
    fn newest_of_blocks(blocks: &[u8]) -> Result<(Self, u64), HeaderError> {
        let whole = block::blocks(blocks).filter_map(Self::of_block);
        whole.max_by_key(|(_, sequence)| *sequence).ok_or(HeaderError::BadState)
    }

    fn of_block(bytes: &[u8]) -> Option<(Self, u64)> {
        let raw = RawSlot::read_from_bytes(&block::to_slot::<SLOT_BYTES>(bytes)?).ok()?;
        raw.state().filter(|_| raw.copies == BLOCK_COPIES).map(|state| (state, raw.sequence.get()))
    }

    /// Whether all copies that a format keeps hold the state that [`read`](Self::read) gives. `copies`: what lies at [its places](PoolFormat::state_places).
    /// Otherwise a crash left a change half done, a medium has changed a copy, or an earlier program wrote them.
    pub fn is_in_all_copies(format: PoolFormat, copies: &[u8]) -> bool {
        let PoolFormat::Four = format else { return Self::is_in_both_slots(copies) };
        let mut states = block::blocks(copies).map(Self::of_block);
        let first = states.next().flatten();
        first.is_some() && states.all(|state| state == first)
    }

    /// How the copies that a format keeps are replaced by this state. `sequence`: one more than the newest copy's.
    pub fn steps(&self, format: PoolFormat, sequence: u64) -> CopySteps {
        let places = format.state_places();
        if format != PoolFormat::Four {
            let slots = self.slots(sequence).into_iter();
            return slots.map(|(offset, slot)| Vec::from([(places[0] + offset as u64, slot.to_vec())])).collect();
        }
        let block = block::of_slot(&self.slot(sequence, BLOCK_COPIES).1);
        places.chunks(2).map(|pair| pair.iter().map(|place| (*place, block.clone())).collect()).collect()
    }

    /// Whether both slots of the page hold the state that [`read`](Self::read) gives. Otherwise a crash left a change half done, a medium has
    /// changed a slot, or an earlier program wrote the page.
    pub fn is_in_both_slots(page: &[u8]) -> bool {
        match Slot::both(page) {
            Some([Slot::Whole(one), Slot::Whole(other)]) => {
                one.state == other.state && one.is_copied && other.is_copied
            }
            _ => false,
        }
    }

    /// The slots with this state, and where they lie on the page, in bytes: to be written in this order, the first one durably before the second.
    /// `sequence`: one more than that of the newest slot; the second slot has the number behind it.
    pub fn slots(&self, sequence: u64) -> [(usize, [u8; SLOT_BYTES]); 2] {
        [sequence, sequence.wrapping_add(1)].map(|sequence| self.slot(sequence, COPIES))
    }

    /// Whether its pool has never had another replica.
    fn is_of_one(&self, replica_count: u16) -> bool {
        let mut epochs = core::iter::once(&self.epoch).chain(&self.ancestors);
        replica_count <= 1 && epochs.all(|epoch| epoch.members.count_ones() <= 1)
    }

    fn slot(&self, sequence: u64, copies: u8) -> (usize, [u8; SLOT_BYTES]) {
        let mut ancestors = [RawAncestor { epoch: [0; 16], members: 0.into() }; ANCESTORS_MAX];
        for (raw, epoch) in ancestors.iter_mut().zip(&self.ancestors) {
            *raw = RawAncestor { epoch: *epoch.id.as_bytes(), members: epoch.members.into() };
        }
        let mut raw = RawSlot {
            magic: MAGIC,
            sequence: sequence.into(),
            epoch: *self.epoch.id.as_bytes(),
            members: self.epoch.members.into(),
            opening: self.opening.into(),
            flags: self.flags(),
            ancestor_count: self.ancestors.len().min(ANCESTORS_MAX) as u8,
            copies,
            reserved_low: [0; 5],
            ancestors,
            mark: self.mark.into(),
            reserved: [0; RESERVED_BYTES],
            checksum: 0.into(),
        };
        raw.checksum = crc32c(&raw.as_bytes()[..CHECKSUM_OFFSET]).into();
        ((sequence % 2) as usize * SLOT_BYTES, zerocopy::transmute!(raw))
    }

    /// Open, confirmed and behind, as bits of the file and of control messages.
    pub fn flags(&self) -> u8 {
        (u8::from(self.is_open) * OPEN)
            | (u8::from(self.is_confirmed) * CONFIRMED)
            | (u8::from(self.is_behind) * BEHIND)
    }

    /// Whether it is open, confirmed, and behind. `None` for other bits.
    pub fn from_flags(flags: u8) -> Option<(bool, bool, bool)> {
        let is = |bit: u8| flags & bit != 0;
        (flags & !(OPEN | CONFIRMED | BEHIND) == 0).then_some((is(OPEN), is(CONFIRMED), is(BEHIND)))
    }
}

/// What one slot of the page holds.
enum Slot {
    Blank,
    Damaged,
    Whole(Box<WholeSlot>),
}

struct WholeSlot {
    state: PoolState,
    sequence: u64,
    /// Its writer puts each state into both slots.
    is_copied: bool,
}

impl Slot {
    fn both(page: &[u8]) -> Option<[Self; 2]> {
        let (first, second) = page.split_at_checked(SLOT_BYTES)?;
        Some([Self::of(first), Self::of(second)])
    }

    fn of(bytes: &[u8]) -> Self {
        if is_all_zero(bytes) {
            return Self::Blank;
        }
        let Ok(raw) = RawSlot::read_from_bytes(bytes) else { return Self::Damaged };
        let is_whole = raw.checksum.get() == crc32c(&bytes[..CHECKSUM_OFFSET]);
        match raw.state().filter(|_| is_whole) {
            Some(state) => {
                let (sequence, is_copied) = (raw.sequence.get(), raw.copies == COPIES);
                Self::Whole(Box::new(WholeSlot { state, sequence, is_copied }))
            }
            None => Self::Damaged,
        }
    }

    fn whole(self) -> Option<WholeSlot> {
        match self {
            Self::Whole(slot) => Some(*slot),
            Self::Blank | Self::Damaged => None,
        }
    }
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawSlot {
    magic: [u8; 8],
    sequence: U64,
    epoch: [u8; 16],
    members: U64,
    opening: U64,
    flags: u8,
    ancestor_count: u8,
    copies: u8,
    reserved_low: [u8; 5],
    ancestors: [RawAncestor; ANCESTORS_MAX],
    mark: U64,
    reserved: [u8; RESERVED_BYTES],
    checksum: U32,
}

impl RawSlot {
    /// The state, where the fields are those of one. The checksum is not looked at.
    fn state(&self) -> Option<PoolState> {
        let (is_open, is_confirmed, is_behind) = PoolState::from_flags(self.flags)?;
        let ancestors = self.ancestors.get(..usize::from(self.ancestor_count))?;
        (self.magic == MAGIC).then(|| PoolState {
            epoch: Epoch { id: Uuid::from_bytes(self.epoch), members: self.members.get() },
            opening: self.opening.get(),
            is_confirmed,
            is_open,
            is_behind,
            mark: self.mark.get(),
            ancestors: ancestors.iter().map(RawAncestor::epoch).collect(),
        })
    }
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawAncestor {
    epoch: [u8; 16],
    members: U64,
}

impl RawAncestor {
    fn epoch(&self) -> Epoch {
        Epoch { id: Uuid::from_bytes(self.epoch), members: self.members.get() }
    }
}
