//! How a store of pools behaves.

use std::path::PathBuf;

use pmof_control::{OpenFor, PoolName};
use pmof_mem::{Declaration, Durability, SyncChoice};

/// Largest pool that a store makes unless told otherwise: 16 TiB, the largest file of ext4 with 4 KiB blocks.
pub const DEFAULT_MAX_POOL_BYTES: u64 = 16 << 40;

/// How a store of pools behaves.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    pub(crate) declaration: Option<Declaration>,
    pub(crate) max_pool_bytes: u64,
    pub(crate) devices: Vec<(PoolName, PathBuf)>,
    pub(crate) sync_choice: SyncChoice,
}

impl Default for StoreOptions {
    /// Nothing declared, at most [`DEFAULT_MAX_POOL_BYTES`], no devices, `fdatasync`.
    fn default() -> Self {
        Self {
            declaration: None,
            max_pool_bytes: DEFAULT_MAX_POOL_BYTES,
            devices: Vec::new(),
            sync_choice: SyncChoice::default(),
        }
    }
}

impl StoreOptions {
    /// What the operator declares of the memory under the root, where the machine cannot be asked.
    #[must_use]
    pub fn declaration(mut self, declaration: Option<Declaration>) -> Self {
        self.declaration = declaration;
        self
    }

    /// Largest pool that may be made, in bytes of user data.
    #[must_use]
    pub fn max_pool_bytes(mut self, max_pool_bytes: u64) -> Self {
        self.max_pool_bytes = max_pool_bytes;
        self
    }

    /// The system calls by which pools in files are flushed: [`Memory::synced_by`](pmof_mem::Memory::synced_by).
    #[must_use]
    pub fn sync_choice(mut self, sync_choice: SyncChoice) -> Self {
        self.sync_choice = sync_choice;
        self
    }

    /// Names whose pools lie on a device of their own (a devdax device, or an existing file) instead of a file under the
    /// root. A pool takes the whole device.
    #[must_use]
    pub fn devices(mut self, devices: Vec<(PoolName, PathBuf)>) -> Self {
        self.devices = devices;
        self
    }
}

/// What is asked of a pool that is opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenTerms {
    /// For reading, or for writing too.
    pub(crate) access: OpenFor,
    /// The level that its memory must be able to give.
    pub(crate) require: Durability,
    /// Its state may be an older one.
    pub(crate) may_be_older: bool,
}
