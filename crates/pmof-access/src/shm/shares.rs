//! The registered regions of a peer that other processes may map, and what is handed over with them.

use std::{collections::HashMap, os::fd::OwnedFd, sync::Arc};

use pmof_locks::{Mutex, MutexGuard};
use pmof_mem::{Declaration, Medium, MemError, Memory, open_again};
use pmof_proto::{Access, RegionKey, RegisteredRegion};

/// Bytes of the page that tells of deregistration.
const PAGE_BYTES: u64 = 4096;

/// Why a region is gone: what the page's first word says from then on. Before, it is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Revocation {
    Deregistered = 1,
    /// Another initiator took the memory over.
    Fenced = 2,
}

impl Revocation {
    /// What a word of a page says; `None` where the region is there. What newer targets may write means that it is gone.
    pub(super) fn from_word(word: u64) -> Option<Self> {
        match word {
            0 => None,
            2 => Some(Self::Fenced),
            _ => Some(Self::Deregistered),
        }
    }
}

/// The registered regions of one peer that other processes may map.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    by_key: Mutex<HashMap<RegionKey, Arc<Share>>>,
}

impl Shares {
    /// Allows the region to be mapped.
    pub(crate) fn add(&self, region: &Arc<RegisteredRegion>) {
        let share = Arc::new(Share { region: Arc::clone(region), state: Mutex::default() });
        self.lock().insert(region.key(), share);
    }

    /// Takes it away, also from those that have it mapped. Whether one of them may have it mapped for writing.
    pub(crate) fn revoke(&self, key: RegionKey, why: Revocation) -> bool {
        let Some(share) = self.lock().remove(&key) else { return false };
        let mut state = share.state.lock();
        state.is_revoked = true;
        if let Some(page) = &state.page {
            // A page of ours, writable and long enough: there is no way to fail.
            let _ = page.atomic_store(0, why as u64);
        }
        state.is_handed_out_for_writing
    }

    /// Whether another process got the region's memory to be mapped for writing.
    pub(crate) fn is_handed_out_for_writing(&self, key: RegionKey) -> bool {
        let share = self.lock().get(&key).cloned();
        share.is_some_and(|share| share.state.lock().is_handed_out_for_writing)
    }

    /// What the connection with this number may map under this key.
    pub(super) fn find_for(&self, connection: u64, key: RegionKey) -> Option<Arc<Share>> {
        self.lock().get(&key).filter(|share| share.region.is_open_to(connection)).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<RegionKey, Arc<Share>>> {
        self.by_key.lock()
    }
}

/// A region that other processes may map.
#[derive(Debug)]
pub(crate) struct Share {
    region: Arc<RegisteredRegion>,
    state: Mutex<ShareState>,
}

#[derive(Debug, Default)]
struct ShareState {
    /// Made for the first one who asks.
    page: Option<Memory>,
    is_revoked: bool,
    is_handed_out_for_writing: bool,
}

/// What one process hands to another about a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Terms {
    pub(super) access: Access,
    /// Where the region begins in the file, and its size, in bytes.
    pub(super) offset: u64,
    pub(super) len_bytes: u64,
    /// The descriptor allows a writable mapping.
    pub(super) is_writable: bool,
    /// What the target's operator declared of the memory.
    pub(super) declaration: Option<Declaration>,
}

impl Share {
    /// What to hand over: the terms, a descriptor of the memory and one of the page. `None` where there is nothing that
    /// can be handed over just now.
    pub(super) fn grant(&self) -> Option<(Terms, OwnedFd, OwnedFd)> {
        let mut state = self.state.lock();
        if state.is_revoked {
            return None;
        }
        let region = &self.region;
        let memory = region.memory().memory()?;
        let file = memory.file()?;
        let may_change = region.access().intersects(Access::WRITE | Access::ATOMIC);
        let is_writable = may_change && memory.is_writable();
        let terms = Terms {
            access: region.access(),
            offset: memory.file_offset() + region.offset(),
            len_bytes: region.len_bytes(),
            is_writable,
            declaration: memory.declaration(),
        };
        if state.page.is_none() {
            state.page = Some(new_page().ok()?);
        }
        let page = open_again(state.page.as_ref()?.file()?, false).ok()?;
        let memory = if is_writable { memory.file_for_writers() } else { open_again(file, false) }.ok()?;
        state.is_handed_out_for_writing |= is_writable;
        Some((terms, memory, page))
    }
}

/// Whether other processes can map this medium.
pub(crate) fn is_shareable(medium: &dyn Medium) -> bool {
    medium.memory().is_some_and(|memory| memory.file().is_some())
}

fn new_page() -> Result<Memory, MemError> {
    Memory::shared_anonymous(PAGE_BYTES, true)
}
