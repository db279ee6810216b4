//! The members that the pool of an open file has: what is asked of them, and how they are set.

use pmof_control::{OpenFor, Roster, RosterError, RosterPart};

use super::{OpenPool, StoreError, roster::write_roster};

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
