//! A pool that changes hands while it is open for writing: the memory stays locked, and nobody else can open it in between.
//!
//! Where a process other than this one has the file mapped and lives, its late stores cannot be kept out of that file. So the successor
//! gets another one: a copy under the same name. The old file is then cut to nothing, so that such stores meet an error (`SIGBUS`) and no
//! byte that anybody will read. A crash at any moment leaves one whole file under the name:
//!
//! 1. the copy is allocated, before anything is taken away, so that a full disk refuses the takeover and harms nobody;
//! 2. the bytes are copied and made durable;
//! 3. the copy is locked, then renamed over the old file, durably;
//! 4. the old file is cut, which must not become durable before the rename.

use std::sync::Arc;

use pmof_control::{OpenFor, PoolName};
use pmof_mem::{HandOut, Medium as _, MemError, Memory};

use super::{OpenPool, PoolStore, StoreError, Writer, root::WorkingFile};
use crate::events;

/// Bytes copied at a time.
const COPY_BYTES: usize = 1 << 20;

/// Room for a copy of a pool's file. Freed when dropped.
#[derive(Debug)]
pub(crate) struct Replacement {
    pub(super) file: WorkingFile,
    pub(super) memory: Memory,
}

/// What stays of a pool that could not be handed over.
#[derive(Debug)]
pub(crate) struct NotHandedOver {
    /// The pool, where its old file still has the name. Whoever may store to that file still may, so it must stay locked.
    pub(crate) kept: Option<OpenPool>,
    pub(crate) error: StoreError,
}

impl PoolStore {
    /// Whether a file can take the place of the pool's: not on a device.
    pub(crate) fn can_replace(&self, pool: &OpenPool) -> bool {
        self.device(pool.name()).is_none()
    }

    /// Takes the room for a copy of the pool's file.
    ///
    /// # Errors
    /// `NoSpace` where there is none; nothing was changed then.
    pub(crate) fn prepare_replacement(&self, pool: &OpenPool) -> Result<Replacement, StoreError> {
        self.room_for_copy(pool.name(), &pool.memory, pool.data_len_bytes())
    }

    /// The same of a pool whose user data has so many bytes.
    pub(super) fn room_for_copy(
        &self,
        name: &PoolName,
        memory: &Memory,
        size_bytes: u64,
    ) -> Result<Replacement, StoreError> {
        let file = self.root.working_file()?;
        let memory = Memory::create(&file.path(), memory.len_bytes(), self.options.declaration)
            .map_err(|error| self.creation_error(name, size_bytes, error))?
            .named(self.root.path().join(name.as_str()))
            .synced_by(self.options.sync_choice);
        memory.hand_out(HandOut::Marked);
        Ok(Replacement { file, memory })
    }

    /// Gives an open pool to another holder, as if it had been opened anew: what its last one stored is durable, and nothing was begun
    /// since. With a replacement it lies in another file from then on. Nobody may change the memory through this process any more.
    pub(crate) fn hand_over(
        &self,
        mut pool: OpenPool,
        replacement: Option<Replacement>,
        holder: String,
    ) -> Result<OpenPool, Box<NotHandedOver>> {
        assert!(pool.access() == OpenFor::Write && pool.unpublished.is_none(), "a pool that somebody writes");
        if let Some(Replacement { file, memory }) = replacement {
            pool = self.replace(pool, file, memory)?;
        } else {
            let durable = || make_durable(&pool.memory).map_err(|error| self.memory_error(pool.name(), error));
            let kept = self.check_named(&pool).and_then(|()| durable());
            kept.map_err(|error| Box::new(NotHandedOver { kept: None, error }))?;
        }
        pool.replica = pool.replica.handed_over();
        self.writers().insert(pool.name.clone(), Writer::new(holder, &pool.memory));
        Ok(pool)
    }

    /// Names another holder of a pool that is open for writing, for people.
    pub(crate) fn set_holder(&self, name: &PoolName, holder: String) {
        if let Some(writer) = self.writers().get_mut(name) {
            writer.holder = holder;
        }
    }

    /// Puts a copy in the place of the pool's file.
    fn replace(&self, pool: OpenPool, file: WorkingFile, copy: Memory) -> Result<OpenPool, Box<NotHandedOver>> {
        let name = pool.name.clone();
        let moved = match self.check_named(&pool) {
            Ok(()) => self.move_to_copy(&name, &pool.memory, file, copy),
            Err(error) => Err((false, error)),
        };
        match moved {
            Ok(memory) => Ok(OpenPool { memory, ..pool }),
            Err((is_renamed, error)) => Err(Box::new(NotHandedOver { kept: (!is_renamed).then_some(pool), error })),
        }
    }

    /// Copies a pool's file, which this store has locked, gives the copy its name and cuts the file. An error comes with whether the copy has the name.
    pub(super) fn move_to_copy(
        &self,
        name: &PoolName,
        old: &Memory,
        file: WorkingFile,
        copy: Memory,
    ) -> Result<Arc<Memory>, (bool, StoreError)> {
        copy_all(old, &copy).map_err(|error| (false, self.memory_error(name, error)))?;
        self.file_of(name, &copy).and_then(|file| self.lock(name, file)).map_err(|error| (false, error))?;
        // Whoever opens the pool by its name finds the one file locked, or the other.
        let mut writers = self.writers();
        file.replace(name)?;
        let memory = Arc::new(copy);
        let holder = writers.get(name).map_or_else(String::new, |writer| writer.holder.clone());
        writers.insert(name.clone(), Writer::new(holder, &memory));
        drop(writers);
        let cut = self.file_of(name, old).and_then(|old| {
            rustix::fs::ftruncate(old, 0).map_err(|errno| self.root.io("ftruncate", name.as_str(), errno))
        });
        if let Err(error) = cut {
            // It has no name any more: who still stores there changes nothing that anybody reads, and only hears of it later.
            events::failed("old_file_not_cut", name.as_str(), &pmof_mem::causes(&error));
        }
        Ok(memory)
    }
}

/// Makes what was stored durable, whoever stored it.
fn make_durable(memory: &Memory) -> Result<(), MemError> {
    memory.write_back(0, memory.len_bytes())?;
    memory.fence()
}

/// Copies what is no hole, durably.
fn copy_all(from: &Memory, to: &Memory) -> Result<(), MemError> {
    let mut buffer = vec![0; COPY_BYTES];
    let mut at = 0;
    while let Some(data) = from.next_data(at)? {
        at = data.start;
        while at < data.end {
            let part_bytes = (data.end - at).min(COPY_BYTES as u64);
            let part = &mut buffer[..part_bytes as usize];
            from.read(at, part)?;
            to.store(at, part)?;
            to.write_back(at, part_bytes)?;
            at += part_bytes;
        }
    }
    to.fence()
}
