//! What the files of all pools say of them, read without opening or locking any.

use std::{collections::HashSet, os::unix::fs::FileExt as _};

use pmof_control::{
    DATA_OFFSET, HEADER_BYTES, Header, HeaderError, OpenFor, PoolFormat, PoolName, PoolState, ROSTER_BYTES,
    ROSTER_OFFSET, Roster, STATE_BYTES, STATE_OFFSET,
};

use super::{PoolStore, StoreError, root::Entry, roster::read_roster};
use crate::engine::Head;

/// Header and state.
const HEAD_BYTES: usize = STATE_OFFSET as usize + STATE_BYTES;
/// What a slot of a roster begins with is zero where it is blank.
const SLOT_BEGIN_BYTES: usize = 16;

/// A pool that can be used.
#[derive(Debug)]
pub(crate) struct Surveyed {
    pub(crate) header: Header,
    pub(crate) state: PoolState,
    pub(crate) roster: Roster,
    /// An initiator of this target has it open for writing.
    pub(crate) is_written: bool,
}

impl PoolStore {
    /// Looks at every pool once, in the order of their names: at its header, its state and its roster. Files that are nothing of a pool's are
    /// passed over, and so are files that vanish meanwhile; a file that cannot be read may be a pool. Fails where the root cannot be read.
    pub(crate) fn survey(
        &self,
        mut visit: impl FnMut(PoolName, Result<Surveyed, StoreError>),
    ) -> Result<(), StoreError> {
        let written: HashSet<_> = self.writers().keys().cloned().collect();
        for name in self.root.names_after(None)? {
            if self.device(&name).is_some() {
                continue;
            }
            match self.root.entry(&name).and_then(|entry| self.surveyed(&name, &entry, written.contains(&name))) {
                Err(error) if self.is_no_pool(&name, &error) => {}
                seen => visit(name, seen),
            }
        }
        for name in self.names_on_devices() {
            let seen = self.surveyed_on_device(&name, written.contains(&name));
            visit(name, seen);
        }
        Ok(())
    }

    fn surveyed(&self, name: &PoolName, entry: &Entry, is_written: bool) -> Result<Surveyed, StoreError> {
        let io = |error| self.root.io("read", name.as_str(), error);
        let unusable = |source| StoreError::Header { name: name.clone(), source };
        let mut head = entry.begin(HEAD_BYTES).map_err(io)?;
        head.resize(HEAD_BYTES, 0);
        let header = match Header::decode(&head[..HEADER_BYTES]) {
            Ok(header) => header,
            // What is behind it may say that it was one.
            Err(HeaderError::NotAPool) => entry.header().map_err(io)?.map_err(unusable)?,
            Err(source) => return Err(unusable(source)),
        };
        if let Some(expected_bytes) = header.file_len_bytes().filter(|expected| *expected != entry.len_bytes) {
            let (name, found_bytes) = (name.clone(), entry.len_bytes);
            return Err(StoreError::SizeMismatch { name, expected_bytes, found_bytes });
        }
        let read = |head: &[u8]| -> Result<(PoolState, Roster), HeaderError> {
            let (state, _) = PoolState::read(header.format, header.replica_count, &head[STATE_OFFSET as usize..])?;
            Ok((state, roster_of(entry, &header)?))
        };
        let found = read(&head).or_else(|_| {
            // A writer may have been changing it.
            let mut head = entry.begin(HEAD_BYTES).unwrap_or_default();
            head.resize(HEAD_BYTES, 0);
            read(&head)
        });
        let (state, roster) = found.map_err(unusable)?;
        Ok(Surveyed { header, state, roster, is_written })
    }

    fn surveyed_on_device(&self, name: &PoolName, is_written: bool) -> Result<Surveyed, StoreError> {
        let device = self
            .device(name)
            .ok_or_else(|| StoreError::NotFound { name: name.clone(), root: self.root.path().to_owned() })?;
        let memory = device.map(OpenFor::Read)?;
        let Head { header, state, .. } = self.read_head(name, &memory)?;
        let roster = read_roster(&memory, &header).map_err(|error| self.memory_error(name, error))?;
        let roster = roster.map_err(|source| StoreError::Header { name: name.clone(), source })?;
        Ok(Surveyed { header, state, roster, is_written })
    }
}

/// The members by the roster. Most pools keep none, which two short reads tell.
fn roster_of(entry: &Entry, header: &Header) -> Result<Roster, HeaderError> {
    if header.format != PoolFormat::Three {
        return Ok(Roster::made(header.replica_count));
    }
    let is_blank = |at: u64| {
        let mut begin = [0; SLOT_BEGIN_BYTES];
        entry.file.read_exact_at(&mut begin, at).is_ok_and(|()| begin == [0; SLOT_BEGIN_BYTES])
    };
    if is_blank(ROSTER_OFFSET) && is_blank(ROSTER_OFFSET + ROSTER_BYTES as u64 / 2) {
        return Ok(Roster::made(header.replica_count));
    }
    let mut slots = vec![0; ROSTER_BYTES];
    entry.file.read_exact_at(&mut slots, ROSTER_OFFSET).map_err(|_| HeaderError::BadRoster)?;
    Roster::read(header.replica_count, &slots).map(|(roster, _)| roster)
}

const _: () =
    assert!(HEADER_BYTES as u64 <= STATE_OFFSET && HEAD_BYTES as u64 <= ROSTER_OFFSET && ROSTER_OFFSET < DATA_OFFSET);
