//! Which replicas a pool has now, and where they lie.

use alloc::{borrow::ToOwned as _, boxed::Box, string::String, vec::Vec};

use uuid::Uuid;
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U16, U32, U64},
};

use crate::{
    CopySteps, HeaderError, PoolFormat, REPLICAS_MAX,
    checksum::{crc32c, is_all_zero},
    members_of,
};

#[cfg(test)]
mod tests;

/// Where the two slots of the roster begin in the file, in bytes.
pub const ROSTER_OFFSET: u64 = 8192;

/// Bytes of both slots.
pub const ROSTER_BYTES: usize = 2 * SLOT_BYTES;

/// Longest address of a member, in bytes.
pub const MAX_MEMBER_URL_BYTES: usize = 1024;

/// Longest failure domain of a member, in bytes.
pub const MAX_DOMAIN_BYTES: usize = 255;

/// Bytes of user data of a witness, which nobody reads or writes: few, and fewer than pools have.
pub const WITNESS_BYTES: u64 = 8;

const SLOT_BYTES: usize = 16 << 10;
const HEAD_BYTES: usize = 16;
const CHECKSUM_OFFSET: usize = SLOT_BYTES - 4;
const MAGIC: [u8; 8] = *b"PMOFROST";

const ADD: u8 = 1;
const REMOVE: u8 = 2;
const FORCED: u8 = 1;
const UNCERTAIN: u8 = 2;

/// What a slot says where each roster is written to both slots before it is answered for. 0: to one of them, by earlier programs.
const COPIES: u8 = 2;
/// What a copy of format 4 says: how many there are.
const BLOCK_COPIES: u8 = 4;
const COPIES_OFFSET: usize = 54;

/// What a member keeps of the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Role {
    /// Its bytes.
    #[default]
    Data = 0,
    /// Its epochs and its roster only.
    Witness = 1,
    /// Its bytes as they were at a consistency point. It counts for nothing: no epoch has it as a member.
    Asynchronous = 2,
    /// Nothing yet: a place that takes a lost member's when that is lost for long. It counts for nothing.
    Spare = 3,
}

/// One member of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RosterMember {
    /// Which replica of the pool it is: its bit in the members of an epoch.
    pub index: u16,
    /// What it keeps.
    pub role: Role,
    /// The replica; nil where only its index is known. Of a spare the one whose place it is about to take; else nil.
    pub replica_uuid: Uuid,
    /// Where it was found last, as a pool URL; empty where that is not known. At most [`MAX_MEMBER_URL_BYTES`].
    pub url: String,
    /// What it is lost together with; empty where that is not known. At most [`MAX_DOMAIN_BYTES`].
    pub domain: String,
}

/// A change of the members that an epoch makes: it holds if that epoch is confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RosterChange {
    /// The epoch.
    pub epoch: Uuid,
    /// The member that comes or goes.
    pub index: u16,
    /// It comes; else it goes.
    pub is_added: bool,
}

/// That somebody has opened the pool for writing with fewer members than are safe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forced {
    /// The number of that opening.
    pub opening: u64,
    /// When, in milliseconds since 1970, by the clock of whoever did it.
    pub unix_ms: u64,
    /// The epoch that it went on from.
    pub epoch: Uuid,
    /// The members that went on: bit *n* for index *n*.
    pub went_on: u64,
    /// The members that it went on without.
    pub left_out: u64,
}

/// The members of a pool, as one of them knows them.
///
/// Behind the state page there are two slots of 16 KiB. A change is written to both, with the next two sequence numbers: first to slot `sequence mod 2`,
/// then to the other one, each durably, and only then it is answered. The whole slot with the higher number counts. So a crash leaves the old roster or
/// the new one, and one damaged slot takes back nothing that was answered. While both are blank, the members are those that the pool was made with, and nothing else is known of them. All numbers are little-endian:
///
/// | offset | bytes | field |
/// |---|---|---|
/// | 0 | 8 | magic `PMOFROST` |
/// | 8 | 8 | sequence number, from 1 |
/// | 16 | 8 | version: one more with each change of the members |
/// | 24 | 8 | notes: one more each time that something else is noted: where members lie, or an asynchronous member; above the low 16 bits the opening at which the last change was settled |
/// | 32 | 16 | epoch that makes the change under way, or zeros |
/// | 48 | 2 | index of the member that comes or goes, or zero |
/// | 50 | 1 | change under way: 0 none, 1 that member comes, 2 it goes |
/// | 51 | 1 | flags: bit 0 a forced opening follows the members; bit 1 uncertain: it may be older than one that a damaged slot held |
/// | 52 | 2 | number of members, at most 64, the one that comes or goes among them |
/// | 54 | 1 | 2: each roster is written to both slots; 0: to one of them in turn, as earlier programs did. In control messages zero |
/// | 55 | 1 | zero |
/// | 56 | | members in the order of their indexes, without gaps, and the forced opening, if there is one |
/// | | | zero up to byte 16,380 |
/// | 16,380 | 4 | CRC32C of bytes 0..16,380 |
///
/// | bytes | field of a member |
/// |---|---|
/// | 2 | index, below 64 |
/// | 1 | role: 0 data, 1 witness, 2 asynchronous, 3 spare |
/// | 1 | zero |
/// | 16 | UUID of the replica, or zeros where it is not known; of a spare that of the replica whose place it is about to take, or zeros |
/// | 2, n | address: length, at most 1024, and UTF-8 |
/// | 2, n | failure domain: length, at most 255, and UTF-8 |
///
/// | bytes | field of a forced opening |
/// |---|---|
/// | 8 | its number |
/// | 8 | when, in milliseconds since 1970 |
/// | 16 | the epoch that it went on from |
/// | 8 | the members that went on: bit *n* for index *n* |
/// | 8 | the members that it went on without |
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roster {
    /// The higher one is newer. It says who the members are, before the change under way.
    pub version: u64,
    /// Of one version the higher one is newer. It says the same members that count, where they lie, and the asynchronous ones.
    pub notes: u64,
    /// The one that comes or goes among them, in the order of their indexes.
    pub members: Vec<RosterMember>,
    /// What becomes true once an epoch is confirmed.
    pub change: Option<RosterChange>,
    /// The last opening that was forced, until an operator says that it is known.
    pub forced: Option<Forced>,
    /// It is the whole one of two slots of a program that kept each roster in one of them. The other slot is damaged, and may have held a newer
    /// roster: this one is not believed without enough of the other members.
    pub is_uncertain: bool,
}

/// Why members make no roster.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RosterError {
    /// A pool has at least one member.
    #[error("it has no members")]
    Empty,
    /// It is full, or its addresses are too long.
    #[error(
        "its {members} members and their addresses do not fit into {SLOT_BYTES} bytes; shorten the addresses or have fewer members"
    )]
    TooLong {
        /// Members.
        members: usize,
    },
    /// Bytes that are no roster of this version.
    #[error("the roster is malformed: {what}")]
    Malformed {
        /// The rule that is broken.
        what: &'static str,
    },
}

impl RosterMember {
    /// A member of which only the index is known.
    fn unknown(index: u16) -> Self {
        Self { index, role: Role::Data, replica_uuid: Uuid::nil(), url: String::new(), domain: String::new() }
    }

    /// Whether the pool's epochs are told to it, and it counts among those that must know.
    pub fn counts(&self) -> bool {
        matches!(self.role, Role::Data | Role::Witness)
    }

    /// Whether this is that replica, as far as is known.
    pub fn is(&self, index: u16, replica_uuid: Uuid) -> bool {
        self.index == index && (self.replica_uuid.is_nil() || self.replica_uuid == replica_uuid)
    }
}

impl Roster {
    /// The members that a pool of so many was made with.
    pub fn made(count: u16) -> Self {
        let members = (0..count.min(REPLICAS_MAX)).map(RosterMember::unknown).collect();
        Self { version: 0, notes: 0, members, change: None, forced: None, is_uncertain: false }
    }

    /// The members that count: those that have the pool's bytes or its epochs, and no asynchronous ones or spares.
    pub fn counted(&self) -> impl Iterator<Item = &RosterMember> + Clone {
        self.members.iter().filter(|member| member.counts())
    }

    /// The members that have the pool's bytes as they are now.
    pub fn with_data(&self) -> impl Iterator<Item = &RosterMember> + Clone {
        self.members.iter().filter(|member| member.role == Role::Data)
    }

    /// The places that are to take those of members that are lost.
    pub fn spares(&self) -> impl Iterator<Item = &RosterMember> + Clone {
        self.members.iter().filter(|member| member.role == Role::Spare)
    }

    /// The indexes of the counted members that are so whatever becomes of the change under way, and of the one that goes: bit *n* for index *n*.
    pub fn indexes(&self) -> u64 {
        self.bits(|change| !change.is_added)
    }

    /// The indexes of the members once the change under way holds.
    pub fn next_indexes(&self) -> u64 {
        self.bits(|change| change.is_added)
    }

    fn bits(&self, has_changing: impl Fn(&RosterChange) -> bool) -> u64 {
        let is_in = |member: &&RosterMember| match &self.change {
            Some(change) if change.index == member.index => has_changing(change),
            _ => true,
        };
        members_of(self.counted().filter(is_in).map(|member| member.index))
    }

    /// What tells which of two rosters is newer.
    pub fn age(&self) -> (u64, u64) {
        (self.version, self.notes)
    }

    /// The same roster, as one that is believed.
    #[must_use]
    pub fn certain(&self) -> Self {
        Self { is_uncertain: false, ..self.clone() }
    }

    /// The member of this index, one that comes or goes too.
    pub fn member(&self, index: u16) -> Option<&RosterMember> {
        self.members.iter().find(|member| member.index == index)
    }

    /// This roster with a change that holds once `epoch` is confirmed.
    #[must_use]
    pub fn adding(&self, member: RosterMember, epoch: Uuid) -> Self {
        let change = RosterChange { epoch, index: member.index, is_added: true };
        let mut members: Vec<_> = self.members.iter().filter(|other| other.index != member.index).cloned().collect();
        members.push(member);
        members.sort_unstable_by_key(|member| member.index);
        Self { members, change: Some(change), ..*self }
    }

    /// The same without the member of `index`.
    #[must_use]
    pub fn removing(&self, index: u16, epoch: Uuid) -> Self {
        Self { change: Some(RosterChange { epoch, index, is_added: false }), ..self.clone() }
    }

    /// This roster with the mark of a forced opening, which is noted.
    #[must_use]
    pub fn forced_by(&self, forced: Forced) -> Self {
        Self { forced: Some(forced), notes: self.notes.saturating_add(1), ..self.clone() }
    }

    /// This roster without such a mark, which is noted.
    #[must_use]
    pub fn cleared(&self) -> Self {
        Self { forced: None, notes: self.notes.saturating_add(1), ..self.clone() }
    }

    /// The roster without a change under way: after it, or as if there had been none. `holds`: whether that epoch was confirmed.
    #[must_use]
    pub fn settled(&self, holds: impl FnOnce(Uuid) -> bool) -> Self {
        let Some(change) = self.change else { return self.clone() };
        let holds = holds(change.epoch);
        let goes = |member: &RosterMember| member.index == change.index && holds != change.is_added;
        let members = self.members.iter().filter(|member| !goes(member)).cloned().collect();
        Self { version: self.version.saturating_add(u64::from(holds)), members, change: None, ..*self }
    }

    /// Members that a [forced](Forced) opening went on without, as far as the pool has fewer members with data for that now: witnesses make up for none.
    pub fn forgone_count(&self) -> usize {
        let gone = self.forced.map_or(0, |forced| forced.left_out.count_ones() as usize);
        gone.saturating_sub(self.with_data().count())
    }

    /// Whether it can be kept.
    ///
    /// # Errors
    /// [`RosterError`].
    pub fn check(&self) -> Result<(), RosterError> {
        let len_bytes: usize = self.members.iter().map(|member| 24 + member.url.len() + member.domain.len()).sum();
        let is_short =
            |member: &RosterMember| member.url.len() <= MAX_MEMBER_URL_BYTES && member.domain.len() <= MAX_DOMAIN_BYTES;
        // The mark of a forced opening has its room, also where there is none yet.
        let is_room = size_of::<RawHead>() + len_bytes + size_of::<RawForced>() <= CHECKSUM_OFFSET - HEAD_BYTES;
        if self.members.is_empty() {
            return Err(RosterError::Empty);
        }
        if self.members.len() > usize::from(REPLICAS_MAX) || !is_room || !self.members.iter().all(is_short) {
            return Err(RosterError::TooLong { members: self.members.len() });
        }
        let indexes = self.members.iter().map(|member| member.index);
        let rules = [
            (indexes.clone().is_sorted_by(|one, next| one < next), "members are not in the order of their indexes"),
            (indexes.clone().all(|index| index < REPLICAS_MAX), "an index is above 63"),
            (
                self.change.is_none_or(|change| self.member(change.index).is_some()),
                "the member that changes is missing",
            ),
        ];
        match rules.into_iter().find(|(holds, _)| !holds) {
            Some((_, what)) => Err(RosterError::Malformed { what }),
            None => Ok(()),
        }
    }

    /// The bytes of a slot behind its sequence number, without the zeros at their end: as control messages carry them.
    ///
    /// # Errors
    /// What [`check`](Self::check) says.
    pub fn encode(&self) -> Result<Vec<u8>, RosterError> {
        self.check()?;
        let head = RawHead {
            version: self.version.into(),
            notes: self.notes.into(),
            epoch: self.change.map_or([0; 16], |change| *change.epoch.as_bytes()),
            index: self.change.map_or(0, |change| change.index).into(),
            change: self.change.map_or(0, |change| if change.is_added { ADD } else { REMOVE }),
            flags: (u8::from(self.forced.is_some()) * FORCED) | (u8::from(self.is_uncertain) * UNCERTAIN),
            count: (self.members.len() as u16).into(),
            reserved: 0.into(),
        };
        let mut bytes = head.as_bytes().to_vec();
        for member in &self.members {
            bytes.extend_from_slice(&member.index.to_le_bytes());
            bytes.extend_from_slice(&[member.role as u8, 0]);
            bytes.extend_from_slice(member.replica_uuid.as_bytes());
            for text in [&member.url, &member.domain] {
                bytes.extend_from_slice(&(text.len() as u16).to_le_bytes());
                bytes.extend_from_slice(text.as_bytes());
            }
        }
        if let Some(Forced { opening, unix_ms, epoch, went_on, left_out }) = self.forced {
            let (opening, unix_ms, epoch) = (opening.into(), unix_ms.into(), *epoch.as_bytes());
            let raw = RawForced { opening, unix_ms, epoch, went_on: went_on.into(), left_out: left_out.into() };
            bytes.extend_from_slice(raw.as_bytes());
        }
        Ok(bytes)
    }

    /// The roster that `bytes` are, but for zeros behind it. Any bytes give a roster that can be kept, or an error.
    ///
    /// # Errors
    /// [`RosterError::Malformed`], and what [`check`](Self::check) says.
    pub fn decode(bytes: &[u8]) -> Result<Self, RosterError> {
        let malformed = |what| RosterError::Malformed { what };
        let (head, mut rest) = RawHead::read_from_prefix(bytes).map_err(|_| malformed("it is too short"))?;
        let (epoch, index) = (Uuid::from_bytes(head.epoch), head.index.get());
        let change = match head.change {
            0 if epoch.is_nil() && index == 0 => None,
            ADD | REMOVE => Some(RosterChange { epoch, index, is_added: head.change == ADD }),
            _ => return Err(malformed("the change is unknown")),
        };
        let is_zero = head.flags & !(FORCED | UNCERTAIN) == 0 && head.reserved.get() == 0;
        let count = head.count.get();
        let members = (0..count).map(|_| take_member(&mut rest)).collect::<Option<Vec<_>>>();
        let members = members.ok_or(malformed("a member is malformed"))?;
        let forced = match head.flags & FORCED {
            0 => None,
            _ => Some(take_forced(&mut rest).ok_or(malformed("the forced opening is missing"))?),
        };
        if !is_zero || !is_all_zero(rest) {
            return Err(malformed("reserved bytes are not zero"));
        }
        let (version, notes, is_uncertain) = (head.version.get(), head.notes.get(), head.flags & UNCERTAIN != 0);
        let roster = Self { version, notes, members, change, forced, is_uncertain };
        roster.check()?;
        Ok(roster)
    }

    /// The roster as the slots have it, and its sequence number; 0 where nothing was kept. It is [uncertain](Self::is_uncertain) where a slot is damaged and nothing
    /// says that the other one held the same. `replica_count`: as the header has it.
    ///
    /// # Errors
    /// [`HeaderError::BadRoster`] where neither slot is whole.
    pub fn read(replica_count: u16, slots: &[u8]) -> Result<(Self, u64), HeaderError> {
        Self::read_kept(replica_count, slots).map(|kept| (kept.roster, kept.sequence))
    }

    /// The same, and whether both slots hold it.
    ///
    /// # Errors
    /// [`HeaderError::BadRoster`] where neither slot is whole.
    pub fn read_kept(replica_count: u16, slots: &[u8]) -> Result<KeptRoster, HeaderError> {
        let slots = Slot::both(slots).ok_or(HeaderError::BadRoster)?;
        let is_in_all_copies = match &slots {
            [Slot::Whole(one), Slot::Whole(other)] => {
                one.roster == other.roster && one.is_copied() && other.is_copied()
            }
            _ => false,
        };
        let is_damaged = slots.iter().any(|slot| matches!(slot, Slot::Damaged));
        let is_blank = slots.iter().any(|slot| matches!(slot, Slot::Blank));
        let newest = slots.into_iter().filter_map(Slot::whole).max_by_key(|slot| slot.sequence);
        match newest {
            Some(slot) => {
                let is_uncertain = slot.roster.is_uncertain || (is_damaged && !slot.is_copied());
                let WholeSlot { roster, sequence, .. } = slot;
                Ok(KeptRoster { roster: Self { is_uncertain, ..roster }, sequence, is_in_all_copies })
            }
            // The first one was being written, or is damaged.
            None if is_blank => {
                let roster = Self { is_uncertain: is_damaged, ..Self::made(replica_count) };
                Ok(KeptRoster { roster, sequence: 0, is_in_all_copies })
            }
            None => Err(HeaderError::BadRoster),
        }
    }

    /// The roster as the copies of a format have it. `copies`: what lies at [its places](PoolFormat::roster_places). In format 4 any whole copy has all that was answered for.
    ///
    /// # Errors
    /// [`HeaderError::BadRoster`] where no copy is whole.
    pub fn read_copies(format: PoolFormat, replica_count: u16, copies: &[u8]) -> Result<KeptRoster, HeaderError> {
        if format != PoolFormat::Four {
            return Self::read_kept(replica_count, copies);
        }
        let found: Vec<_> = copies.chunks(SLOT_BYTES).map(Slot::of).collect();
        let are_blank = found.iter().all(|slot| matches!(slot, Slot::Blank));
        let whole: Vec<_> = found.into_iter().filter_map(Slot::whole).collect();
        let is_in_all = whole.len() == BLOCK_COPIES.into()
            && whole.iter().all(|slot| slot.sequence == whole[0].sequence && slot.copies == BLOCK_COPIES);
        match whole.into_iter().filter(|slot| slot.copies == BLOCK_COPIES).max_by_key(|slot| slot.sequence) {
            Some(WholeSlot { roster, sequence, .. }) => {
                Ok(KeptRoster { roster, sequence, is_in_all_copies: is_in_all })
            }
            None if are_blank => {
                Ok(KeptRoster { roster: Self::made(replica_count), sequence: 0, is_in_all_copies: false })
            }
            None => Err(HeaderError::BadRoster),
        }
    }

    /// How the copies that a format keeps are replaced by this roster. `sequence`: one more than that of the newest copy.
    ///
    /// # Errors
    /// What [`check`](Self::check) says.
    pub fn steps(&self, format: PoolFormat, sequence: u64) -> Result<CopySteps, RosterError> {
        let places = format.roster_places();
        if format != PoolFormat::Four {
            let slots = self.slots(sequence)?.into_iter();
            return Ok(slots.map(|(offset, slot)| Vec::from([(places[0] + offset as u64, slot)])).collect());
        }
        let (_, copy) = self.slot(sequence, BLOCK_COPIES)?;
        Ok(places.chunks(2).map(|pair| pair.iter().map(|place| (*place, copy.clone())).collect()).collect())
    }

    /// The slots with this roster, and where they lie behind [`ROSTER_OFFSET`], in bytes: to be written in this order, the first one durably before
    /// the second, and both before it is answered for. `sequence`: one more than that of the newest slot; the second slot has the number behind it.
    ///
    /// # Errors
    /// What [`check`](Self::check) says.
    pub fn slots(&self, sequence: u64) -> Result<[(usize, Vec<u8>); 2], RosterError> {
        Ok([self.slot(sequence, COPIES)?, self.slot(sequence.wrapping_add(1), COPIES)?])
    }

    fn slot(&self, sequence: u64, copies: u8) -> Result<(usize, Vec<u8>), RosterError> {
        let body = self.encode()?;
        let mut slot = Vec::with_capacity(SLOT_BYTES);
        slot.extend_from_slice(&MAGIC);
        slot.extend_from_slice(&sequence.to_le_bytes());
        slot.extend_from_slice(&body);
        slot.resize(CHECKSUM_OFFSET, 0);
        slot[COPIES_OFFSET] = copies;
        slot.extend_from_slice(&crc32c(&slot).to_le_bytes());
        Ok(((sequence % 2) as usize * SLOT_BYTES, slot))
    }
}

/// A roster as its slots have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptRoster {
    /// The newest one.
    pub roster: Roster,
    /// Its sequence number; 0 where nothing was kept.
    pub sequence: u64,
    /// Otherwise a crash left a change half done, a medium has changed a slot, or an earlier program wrote them.
    pub is_in_all_copies: bool,
}

/// What one slot holds.
enum Slot {
    Blank,
    Damaged,
    Whole(Box<WholeSlot>),
}

struct WholeSlot {
    roster: Roster,
    sequence: u64,
    /// In how many places its writer puts each roster; 0: in one of two.
    copies: u8,
}

impl Slot {
    fn both(slots: &[u8]) -> Option<[Self; 2]> {
        let (first, second) = slots.split_at_checked(SLOT_BYTES)?;
        Some([first, second].map(Self::of))
    }

    fn of(slot: &[u8]) -> Self {
        if is_all_zero(slot) {
            return Self::Blank;
        }
        WholeSlot::of(slot).map_or(Self::Damaged, |whole| Self::Whole(Box::new(whole)))
    }

    fn whole(self) -> Option<WholeSlot> {
        match self {
            Self::Whole(slot) => Some(*slot),
            Self::Blank | Self::Damaged => None,
        }
    }
}

impl WholeSlot {
    fn is_copied(&self) -> bool {
        self.copies == COPIES
    }

    fn of(slot: &[u8]) -> Option<Self> {
        let (framed, checksum) = slot.get(..SLOT_BYTES)?.split_last_chunk::<4>()?;
        let (head, body) = framed.split_at_checked(HEAD_BYTES)?;
        let sequence = U64::read_from_bytes(head.get(MAGIC.len()..)?).ok()?.get();
        if !head.starts_with(&MAGIC) || U32::from_bytes(*checksum).get() != crc32c(framed) {
            return None;
        }
        let mut body = body.to_vec();
        let copies = core::mem::take(body.get_mut(COPIES_OFFSET - HEAD_BYTES)?);
        let roster = Roster::decode(&body).ok().filter(|_| matches!(copies, 0 | COPIES | BLOCK_COPIES))?;
        Some(Self { roster, sequence, copies })
    }
}

fn take_member(rest: &mut &[u8]) -> Option<RosterMember> {
    let index = U16::from_bytes(take(rest)?).get();
    let role = match take(rest)? {
        [0, 0] => Role::Data,
        [1, 0] => Role::Witness,
        [2, 0] => Role::Asynchronous,
        [3, 0] => Role::Spare,
        _ => return None,
    };
    let replica_uuid = Uuid::from_bytes(take(rest)?);
    let mut text = || {
        let len_bytes = usize::from(U16::from_bytes(take(rest)?).get());
        let (text, behind) = rest.split_at_checked(len_bytes)?;
        *rest = behind;
        core::str::from_utf8(text).ok().map(str::to_owned)
    };
    Some(RosterMember { index, role, replica_uuid, url: text()?, domain: text()? })
}

fn take_forced(rest: &mut &[u8]) -> Option<Forced> {
    let RawForced { opening, unix_ms, epoch, went_on, left_out } =
        RawForced::read_from_bytes(&take::<48>(rest)?).ok()?;
    let (opening, unix_ms, epoch) = (opening.get(), unix_ms.get(), Uuid::from_bytes(epoch));
    Some(Forced { opening, unix_ms, epoch, went_on: went_on.get(), left_out: left_out.get() })
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, behind) = rest.split_first_chunk()?;
    *rest = behind;
    Some(*taken)
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawHead {
    version: U64,
    notes: U64,
    epoch: [u8; 16],
    index: U16,
    change: u8,
    flags: u8,
    count: U16,
    reserved: U16,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawForced {
    opening: U64,
    unix_ms: U64,
    epoch: [u8; 16],
    went_on: U64,
    left_out: U64,
}
