//! The memory that the bytes of work requests lie in until the device has taken them, and what it brings.

use std::sync::Arc;

use pmof_mem::{Medium, Memory, causes};
use pmof_proto::{LocalSlice, PostError};
use pmof_verbs::{INLINE_BYTES, Payload, ProtectionDomain, Sge};

use super::ResultPlace;
use crate::{
    RegionSlice, SetupError,
    region::DeviceReach,
    request::Data,
    verbs::{confirm::ANSWER_BYTES, memory::DeviceMemory},
};

/// Staged bytes of one connection: small writes and messages until the device has taken them.
const STAGING_BYTES: u64 = 256 << 10;

/// Longest payload that is staged; longer ones get memory of their own, which costs a registration.
const STAGED_MAX_BYTES: u64 = 32 << 10;

/// Bytes of payloads with memory of their own, per connection, beyond which posting says `QueueFull`; one is always taken.
const SCRATCH_LIMIT_BYTES: u64 = 64 << 20;

/// A payload's memory is kept for the next one up to this length.
const SPARE_MAX_BYTES: u64 = 8 << 20;

/// Bytes on their way to the device.
pub(in crate::verbs) struct Staged<'k> {
    pub(super) payload: Payload<'k>,
    pub(super) keep: Option<&'k Arc<dyn DeviceReach>>,
    pub(super) scratch: Option<Arc<DeviceMemory>>,
}

impl<'k> Staged<'k> {
    #[inline]
    pub(in crate::verbs) fn nothing() -> Self {
        Self::bare(Payload::Empty)
    }

    #[inline]
    fn bare(payload: Payload<'k>) -> Self {
        Self { payload, keep: None, scratch: None }
    }
}

/// Memory of one connection for bytes on their way: a ring for short payloads, and memory of their own for long ones.
#[derive(Debug)]
pub(in crate::verbs) struct Staging {
    domain: ProtectionDomain,
    inline_max_bytes: usize,
    /// Of short payloads; behind it the answer to a probe.
    ring: Arc<DeviceMemory>,
    /// Bytes of the ring in use up to here, and free again up to here, since the beginning.
    staged: u64,
    unstaged: u64,
    scratch_bytes: u64,
    spare: Option<Arc<DeviceMemory>>,
}

impl Staging {
    pub(super) fn new(domain: &ProtectionDomain) -> Result<Self, SetupError> {
        let system = |why: String| SetupError::System { call: "ibv_reg_mr", source: std::io::Error::other(why) };
        let memory =
            Memory::anonymous(STAGING_BYTES + ANSWER_BYTES).map_err(|error| system(causes(&error).to_string()))?;
        Ok(Self {
            domain: domain.clone(),
            inline_max_bytes: 0,
            ring: DeviceMemory::scratch(domain, Arc::new(memory)).map_err(system)?,
            staged: 0,
            unstaged: 0,
            scratch_bytes: 0,
            spare: None,
        })
    }

    /// Longest payload in bytes that the device takes with its work request.
    #[inline]
    pub(super) fn inline_max_bytes(&self) -> usize {
        self.inline_max_bytes
    }

    pub(in crate::verbs) fn set_inline_max(&mut self, inline_max_bytes: usize) {
        self.inline_max_bytes = inline_max_bytes.min(INLINE_BYTES);
    }

    /// Whether a payload of so many bytes finds room.
    pub(super) fn has_room(&self, len_bytes: u64) -> bool {
        if len_bytes <= STAGED_MAX_BYTES {
            // Whatever is skipped at the end of the ring.
            self.staged - self.unstaged + 2 * STAGED_MAX_BYTES <= STAGING_BYTES
        } else {
            self.scratch_bytes == 0 || self.scratch_bytes + len_bytes <= SCRATCH_LIMIT_BYTES
        }
    }

    /// Where the ring's bytes in use end: what a work request that is queued now frees when it is done.
    #[inline]
    pub(super) fn end(&self) -> u64 {
        self.staged
    }

    /// The ring is free up to that [end](Self::end).
    #[inline]
    pub(super) fn free_up_to(&mut self, end: u64) {
        self.unstaged = end;
    }

    /// Where the device puts the answer to a probe; nobody looks at it.
    pub(super) fn answer(&self) -> Option<Sge> {
        self.ring.sge(STAGING_BYTES, ANSWER_BYTES).ok()
    }

    /// Bytes inline, or copied to where the device finds them.
    #[inline]
    pub(in crate::verbs) fn stage<'k>(&mut self, bytes: &'k [u8]) -> Result<Staged<'k>, PostError> {
        match bytes.len() {
            0 => Ok(Staged::nothing()),
            len if len <= self.inline_max_bytes => Ok(Staged::bare(Payload::Inline(bytes))),
            _ => self.stage_long(bytes),
        }
    }

    #[inline(never)]
    fn stage_long<'k>(&mut self, bytes: &[u8]) -> Result<Staged<'k>, PostError> {
        let place = self.place(bytes.len() as u64)?;
        place.store(bytes)?;
        Ok(place.staged)
    }

    /// Registered bytes where they lie, if the device reaches them there and they do not go inline; and what keeps them.
    #[expect(clippy::inline_always, reason = "as of `hand_over`")]
    #[inline(always)]
    pub(super) fn reach<'k>(&self, data: Data<'k>, len_bytes: u64) -> Option<(Sge, &'k Arc<dyn DeviceReach>)> {
        if len_bytes <= self.inline_max_bytes as u64 {
            return None;
        }
        let (reach, at) = match data {
            Data::Slice(slice) => (slice.device.as_ref()?, Ok(slice.local.offset)),
            Data::Part(part) => part.device().map(|(reach, offset)| (reach, Err(offset)))?,
            Data::None | Data::Bytes(_) => return None,
        };
        let memory = DeviceMemory::of(&**reach)?;
        let offset = match at {
            Ok(of_memory) => of_memory.checked_sub(memory.offset())?,
            Err(of_region) => of_region,
        };
        Some((memory.sge_at(offset, len_bytes, &self.domain)?, reach))
    }

    /// Bytes of registered memory, copied: inline where that is possible, through `buffer`.
    pub(super) fn stage_copy<'k>(
        &mut self,
        local: &LocalSlice,
        buffer: &'k mut [u8; INLINE_BYTES],
    ) -> Result<Staged<'k>, PostError> {
        if local.len_bytes <= self.inline_max_bytes as u64 {
            let bytes = &mut buffer[..local.len_bytes as usize];
            local.memory.read(local.offset, bytes).map_err(|error| local_failed(&error))?;
            return self.stage(bytes);
        }
        let place = self.place(local.len_bytes)?;
        let mut chunk = [0; 4096];
        let mut done = 0;
        while done < local.len_bytes {
            let part = &mut chunk[..(local.len_bytes - done).min(4096) as usize];
            local.memory.read(local.offset + done, part).map_err(|error| local_failed(&error))?;
            place.store_at(done, part)?;
            done += part.len() as u64;
        }
        Ok(place.staged)
    }

    /// Where the device puts what a read brings: into the slice, or into memory that is copied from.
    pub(super) fn stage_read<'k>(&mut self, slice: &'k RegionSlice) -> Result<(Staged<'k>, ResultPlace), PostError> {
        if slice.local.len_bytes == 0 {
            return Ok((Staged::nothing(), ResultPlace::None));
        }
        if let Some(reach) = &slice.device {
            let memory = DeviceMemory::of(&**reach);
            if let Some(sge) = memory.and_then(|memory| memory.sge_into(&slice.local, &self.domain)) {
                let staged = Staged { payload: Payload::Sge(sge), keep: Some(reach), scratch: None };
                return Ok((staged, ResultPlace::None));
            }
        }
        let place = self.scratch(slice.local.len_bytes)?;
        Ok((place.staged, ResultPlace::Copy(Box::new(slice.local.clone()))))
    }

    /// Eight bytes that an atomic operation brings its result to.
    pub(in crate::verbs) fn stage_number(&mut self) -> Result<(Sge, ResultPlace), PostError> {
        // The device wants them aligned.
        self.staged = self.staged.next_multiple_of(8);
        let at = self.allocate(8);
        let sge = self.ring.sge(at, 8).map_err(local_why)?;
        Ok((sge, ResultPlace::Number(at)))
    }

    /// The number that an atomic operation brought.
    pub(in crate::verbs) fn number(&self, at: u64) -> u64 {
        let mut bytes = [0; 8];
        // The place lies inside the staging memory, where it was allocated.
        let _ = self.ring.memory().read(at, &mut bytes);
        u64::from_le_bytes(bytes)
    }

    /// Gives back the memory of a finished operation.
    pub(in crate::verbs) fn recycle(&mut self, scratch: Arc<DeviceMemory>) {
        self.scratch_bytes -= scratch.len_bytes();
        if scratch.len_bytes() <= SPARE_MAX_BYTES {
            self.spare = Some(scratch);
        }
    }

    fn place(&mut self, len_bytes: u64) -> Result<Place, PostError> {
        if len_bytes > STAGED_MAX_BYTES {
            return self.scratch(len_bytes);
        }
        let at = self.allocate(len_bytes);
        let payload = Payload::Sge(self.ring.sge(at, len_bytes).map_err(local_why)?);
        Ok(Place { memory: Arc::clone(self.ring.memory()), at, staged: Staged::bare(payload) })
    }

    /// A contiguous piece of the staging memory; [`has_room`](Self::has_room) saw to it that there is one.
    fn allocate(&mut self, len_bytes: u64) -> u64 {
        let at = self.staged % STAGING_BYTES;
        if at + len_bytes > STAGING_BYTES {
            self.staged += STAGING_BYTES - at;
        }
        let at = self.staged % STAGING_BYTES;
        self.staged += len_bytes;
        assert!(self.staged - self.unstaged <= STAGING_BYTES, "room was asked for before");
        at
    }

    fn scratch(&mut self, len_bytes: u64) -> Result<Place, PostError> {
        let scratch = if let Some(spare) = self.spare.take_if(|spare| spare.len_bytes() >= len_bytes) {
            spare
        } else {
            let memory = Memory::anonymous(len_bytes.next_power_of_two()).map_err(|error| local_failed(&error))?;
            DeviceMemory::scratch(&self.domain, Arc::new(memory)).map_err(|why| PostError::LocalMemory { why })?
        };
        self.scratch_bytes += scratch.len_bytes();
        let payload = Payload::Sge(scratch.sge(0, len_bytes).map_err(local_why)?);
        let memory = Arc::clone(scratch.memory());
        Ok(Place { memory, at: 0, staged: Staged { payload, keep: None, scratch: Some(scratch) } })
    }
}

/// Memory that a payload is copied to.
struct Place {
    memory: Arc<dyn Medium>,
    at: u64,
    staged: Staged<'static>,
}

impl Place {
    fn store(&self, bytes: &[u8]) -> Result<(), PostError> {
        self.store_at(0, bytes)
    }

    fn store_at(&self, offset: u64, bytes: &[u8]) -> Result<(), PostError> {
        self.memory.store(self.at + offset, bytes).map_err(|error| local_failed(&error))
    }
}

fn local_failed(error: &pmof_mem::MemError) -> PostError {
    PostError::LocalMemory { why: causes(&error).to_string() }
}

fn local_why(why: &str) -> PostError {
    PostError::LocalMemory { why: why.to_owned() }
}
