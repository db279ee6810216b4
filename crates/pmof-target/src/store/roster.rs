//! Which members the pool of an open file has, as the file says.

use pmof_control::{
    Header, HeaderError, OpenFor, PoolFormat, ROSTER_BYTES, ROSTER_OFFSET, Roster, RosterError, RosterPart,
};
use pmof_mem::{Medium, MemError, Memory};

use super::{FIRST_SEQUENCE, OpenPool, StoreError};

/// The roster of an open pool.
#[derive(Debug)]
pub(super) struct KeptRoster {
    roster: Roster,
    /// Of the slot that it lies in; 0 where there is none.
    sequence: u64,
    /// Parts of one that is being set.
    parts: Vec<u8>,
}

impl OpenPool {
    /// The members of the pool, as this replica knows them.
    pub fn roster(&self) -> &Roster {
        &self.roster.roster
    }

    /// Replaces the roster, as durably as the medium can. A crash leaves the old one or the new one.
    pub fn set_roster(&mut self, roster: Roster) -> Result<(), StoreError> {
        if self.access == OpenFor::Read {
            return Err(StoreError::ReadOnly { name: self.name.clone() });
        }
        let write = |sequence| -> Result<(), StoreError> {
            let slot = roster.slot(sequence);
            let slot = slot.map_err(|source| StoreError::Roster { name: self.name.clone(), source })?;
            write_roster(self.memory.as_ref(), slot)
                .map_err(|source| StoreError::Memory { name: self.name.clone(), source })
        };
        let mut sequence = self.roster.sequence + 1;
        write(sequence)?;
        if sequence == FIRST_SEQUENCE {
            // One damaged slot must not look like none.
            sequence += 1;
            write(sequence)?;
        }
        (self.roster.roster, self.roster.sequence) = (roster, sequence);
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

/// The roster behind the state, of formats that have one.
pub(super) fn read_roster(memory: &Memory, header: &Header) -> Result<Result<KeptRoster, HeaderError>, MemError> {
    let mut slots = vec![0; ROSTER_BYTES];
    if header.format == PoolFormat::Three {
        memory.read(ROSTER_OFFSET, &mut slots)?;
    }
    let read = Roster::read(header.replica_count, &slots);
    Ok(read.map(|(roster, sequence)| KeptRoster { roster, sequence, parts: Vec::new() }))
}

/// Puts a roster into its slot, as durably as the medium can. A crash leaves it or the one in the other slot. Makes nothing else durable.
fn write_roster(medium: &dyn Medium, (offset, slot): (usize, Vec<u8>)) -> Result<(), MemError> {
    let offset = ROSTER_OFFSET + offset as u64;
    medium.store(offset, &slot)?;
    medium.sync_range(offset, slot.len() as u64)
}
