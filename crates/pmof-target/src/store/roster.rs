//! Which members the pool of an open file has, as the file says.

use pmof_control::{
    Header, HeaderError, OpenFor, PoolFormat, ROSTER_BYTES, ROSTER_OFFSET, Roster, RosterError, RosterPart,
};
use pmof_mem::{Medium, MemError, Memory};

use super::{OpenPool, StoreError};

/// The roster of an open pool.
#[derive(Debug)]
pub(super) struct KeptRoster {
    pub(super) roster: Roster,
    /// Of the newest slot; 0 where there is none.
    sequence: u64,
    /// Parts of one that is being set.
    parts: Vec<u8>,
}

impl OpenPool {
    /// The members of the pool, as this replica knows them.
    pub fn roster(&self) -> &Roster {
        &self.roster.roster
    }

    /// Replaces the roster in both slots, as durably as the medium can. A crash leaves the old one or the new one; once it is answered for, one
    /// damaged slot takes nothing back.
    pub fn set_roster(&mut self, roster: Roster) -> Result<(), StoreError> {
        if self.access == OpenFor::Read {
            return Err(StoreError::ReadOnly { name: self.name.clone() });
        }
        let sequence = self.roster.sequence + 1;
        let slots = roster.slots(sequence);
        let slots = slots.map_err(|source| StoreError::Roster { name: self.name.clone(), source })?;
        // One that fails half way may have used both numbers.
        self.roster.sequence = sequence + 1;
        write_roster(self.memory.as_ref(), &slots)
            .map_err(|source| StoreError::Memory { name: self.name.clone(), source })?;
        self.roster.roster = roster;
        Ok(())
    }

    /// The part of its encoded form that begins at `offset`.
    pub fn roster_part(&self, offset: u16) -> Result<RosterPart, StoreError> {
        let encoded = self.roster.roster.encode();
        let encoded = encoded.map_err(|source| StoreError::Roster { name: self.name.clone(), source })?;
        Ok(RosterPart::of(&encoded, offset))
    }

    /// Takes a part of a roster that is to be [set](Self::set_roster), and sets it with the last one.
    pub fn set_roster_part(&mut self, offset: u16, part: &RosterPart) -> Result<(), StoreError> {
        let failed = |what| StoreError::Roster { name: self.name.clone(), source: RosterError::Malformed { what } };
        let parts = &mut self.roster.parts;
        if offset == 0 {
            parts.clear();
        }
        if usize::from(offset) != parts.len() {
            return Err(failed("its parts do not come in order"));
        }
        parts.extend_from_slice(&part.bytes);
        if parts.len() < usize::from(part.len_bytes) {
            return Ok(());
        }
        let roster = Roster::decode(&std::mem::take(parts));
        self.set_roster(roster.map_err(|source| StoreError::Roster { name: self.name.clone(), source })?)
    }
}

impl KeptRoster {
    /// Of a pool that was made with so many replicas.
    pub(super) fn made(replica_count: u16) -> Self {
        Self { roster: Roster::made(replica_count), sequence: 0, parts: Vec::new() }
    }
}

/// The roster behind the state, of formats that have one. Before a writer depends on it, it is in both slots: a crash, a damaged slot or an earlier program may
/// have left it in one.
pub(super) fn read_roster(
    memory: &Memory,
    header: &Header,
    access: OpenFor,
) -> Result<Result<KeptRoster, HeaderError>, MemError> {
    let mut bytes = vec![0; ROSTER_BYTES];
    if header.format == PoolFormat::Three {
        memory.read(ROSTER_OFFSET, &mut bytes)?;
    }
    let (roster, mut sequence) = match Roster::read(header.replica_count, &bytes) {
        Ok(read) => read,
        Err(error) => return Ok(Err(error)),
    };
    if access == OpenFor::Write && sequence > 0 && !Roster::is_in_both_slots(&bytes) {
        // What was read can be written.
        if let Ok(slots) = roster.slots(sequence + 1) {
            write_roster(memory, &slots)?;
            sequence += 2;
        }
    }
    Ok(Ok(KeptRoster { roster, sequence, parts: Vec::new() }))
}

/// Puts a roster into both slots, one after the other, as durably as the medium can. Makes nothing else durable.
pub(super) fn write_roster(medium: &dyn Medium, slots: &[(usize, Vec<u8>)]) -> Result<(), MemError> {
    for (offset, slot) in slots {
        let offset = ROSTER_OFFSET + *offset as u64;
        medium.store(offset, slot)?;
        medium.sync_range(offset, slot.len() as u64)?;
    }
    Ok(())
}
