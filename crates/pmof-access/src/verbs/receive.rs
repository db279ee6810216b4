//! The ring of receives that the messages of the protocol arrive in, of one connection or shared by many.

use std::{collections::VecDeque, io, sync::Arc};

use pmof_mem::{Medium, Memory, causes};
use pmof_proto::InputPlace;
use pmof_verbs::{ProtectionDomain, QueuePair, Receive, ReceiveFailure, SharedReceiveQueue};

use super::memory::DeviceMemory;
use crate::{
    SetupError,
    ring::{HEADER_BYTES, RECORD_MAGIC, RingState, SLOT_BYTES, STREAM_MAGIC},
};

/// Bytes of one receive: a frame with a page behind it fits, and one with two does not leave half of it empty.
pub(super) const RECEIVE_BYTES: u32 = 8 << 10;

// A slot of a ring is a receive.
const _: () = assert!(SLOT_BYTES == RECEIVE_BYTES as u64);

/// Receives of a connection that has its own: 128 KiB cover a round trip at the speed of a copy.
pub(super) const RECEIVES: u16 = 16;

/// Most receives that many connections may share, in buffers: what devices take (`max_srq_wr` of soft-RoCE is the least).
const SHARED_RECEIVES_MAX: u32 = 32 << 10;

/// Marks the completions of receives; the rest of the number is the buffer.
pub(super) const RECEIVE_ID: u64 = 1 << 63;

/// Receives that the connections of one peer share.
#[derive(Clone, Debug)]
pub(super) struct SharedRing {
    pub(super) queue: SharedReceiveQueue,
    memory: Arc<DeviceMemory>,
}

impl SharedRing {
    /// How many there are.
    pub(super) fn count(&self) -> u32 {
        (self.memory.len_bytes() / u64::from(RECEIVE_BYTES)) as u32
    }

    pub(super) fn new(domain: &ProtectionDomain, count: u32) -> Result<Self, SetupError> {
        let count = count.clamp(u32::from(RECEIVES), SHARED_RECEIVES_MAX);
        let ring = Self { queue: SharedReceiveQueue::new(domain, count, 1)?, memory: buffers(domain, count)? };
        let all: Vec<_> = (0..count).collect();
        ring.queue.post_receives(&receives_of(&ring.memory, 0, &all)).map_err(post_failed)?;
        Ok(ring)
    }
}

fn buffers(domain: &ProtectionDomain, count: u32) -> Result<Arc<DeviceMemory>, SetupError> {
    let system = |why: String| SetupError::System { call: "ibv_reg_mr", source: io::Error::other(why) };
    let memory = Memory::anonymous(u64::from(count) * u64::from(RECEIVE_BYTES));
    let memory: Arc<dyn Medium> = Arc::new(memory.map_err(|error| system(causes(&error).to_string()))?);
    DeviceMemory::scratch(domain, memory).map_err(system)
}

fn post_failed(failure: ReceiveFailure) -> SetupError {
    SetupError::System { call: "ibv_post_recv", source: io::Error::other(failure) }
}

/// Receives into buffers, the first of which lies at `start` of the memory.
fn receives_of(memory: &DeviceMemory, start: u64, buffers: &[u32]) -> Vec<Receive> {
    let len = u64::from(RECEIVE_BYTES);
    let receive = |index: &u32| {
        let into = memory.sge(start + u64::from(*index) * len, len).ok()?;
        Some(Receive { id: RECEIVE_ID | u64::from(*index), into })
    };
    buffers.iter().filter_map(receive).collect()
}

#[derive(Debug)]
struct Arrived {
    buffer: u32,
    start: u32,
    end: u32,
}

/// Where the messages of one connection arrive.
#[derive(Debug)]
pub(super) struct ReceiveRing {
    memory: Arc<DeviceMemory>,
    shared: Option<SharedReceiveQueue>,
    /// The persistent ring that the buffers are the slots of, where they are.
    durable: Option<Arc<RingState>>,
    arrived: VecDeque<Arrived>,
    /// Buffers to be posted anew.
    free: Vec<u32>,
    /// Messages whose buffer was given back, as far as the other side is to know; wraps.
    pub(super) consumed: u32,
}

impl ReceiveRing {
    pub(super) fn new(domain: &ProtectionDomain, shared: Option<&SharedRing>) -> Result<Self, SetupError> {
        let (memory, free) = match shared {
            Some(ring) => (Arc::clone(&ring.memory), Vec::new()),
            None => (buffers(domain, u32::from(RECEIVES))?, (0..u32::from(RECEIVES)).collect()),
        };
        let shared = shared.map(|ring| ring.queue.clone());
        Ok(Self { memory, shared, durable: None, arrived: VecDeque::new(), free, consumed: 0 })
    }

    /// The slots of a persistent ring, all of which are free.
    pub(super) fn durable(ring: &Arc<RingState>) -> Result<Self, SetupError> {
        let system = |why: &str| SetupError::System { call: "ibv_reg_mr", source: io::Error::other(why.to_owned()) };
        let memory = ring.device().and_then(|reach| Arc::clone(reach).into_any().downcast::<DeviceMemory>().ok());
        let memory = memory.ok_or_else(|| system("the ring has no device"))?;
        let free = (0..ring.layout().slots()).collect();
        let durable = Some(Arc::clone(ring));
        Ok(Self { memory, shared: None, durable, arrived: VecDeque::new(), free, consumed: 0 })
    }

    /// A message came, whose first `start` bytes are no part of the stream. One with nothing behind them only carries credit;
    /// in a persistent ring any other says what it is.
    pub(super) fn arrive(&mut self, id: u64, start: u32, len_bytes: u32) -> io::Result<()> {
        let buffer = (id & !RECEIVE_ID) as u32;
        let end = len_bytes.min(RECEIVE_BYTES);
        if end <= start {
            self.give_back(buffer);
            return Ok(());
        }
        let Some(ring) = &self.durable else {
            self.arrived.push_back(Arrived { buffer, start, end });
            return Ok(());
        };
        let mut magic = [0; 8];
        ring.layout().memory().read(ring.layout().slot_at(buffer), &mut magic).map_err(io::Error::other)?;
        let start = magic.len() as u32;
        match magic {
            // Until it is consumed the slot belongs to the ring.
            RECORD_MAGIC => ring.arrive(buffer, end)?,
            STREAM_MAGIC if end > start => self.arrived.push_back(Arrived { buffer, start, end }),
            _ => {
                let what = "the other side sent to a ring what is neither a record nor a message";
                return Err(io::Error::new(io::ErrorKind::InvalidData, what));
            }
        }
        Ok(())
    }

    /// Takes back the slots whose records were consumed.
    pub(super) fn collect_freed(&mut self) {
        if let Some(ring) = &self.durable {
            let freed = ring.take_freed();
            self.consumed = self.consumed.wrapping_add(freed.len() as u32);
            self.free.extend(freed);
        }
    }

    /// Where a buffer begins in the medium.
    fn buffer_at(&self, buffer: u32) -> u64 {
        match &self.durable {
            Some(ring) => ring.layout().slot_at(buffer),
            None => u64::from(buffer) * u64::from(RECEIVE_BYTES),
        }
    }

    /// The number at the beginning of a message that came.
    pub(super) fn number(&self, id: u64) -> io::Result<u32> {
        let mut bytes = [0; 4];
        let at = (id & !RECEIVE_ID) * u64::from(RECEIVE_BYTES);
        self.memory.memory().read(at, &mut bytes).map_err(io::Error::other)?;
        Ok(u32::from_le_bytes(bytes))
    }

    /// A receive came back unused, which only a shared one is posted again after.
    pub(super) fn return_unused(&mut self, id: u64) {
        self.free.push((id & !RECEIVE_ID) as u32);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.arrived.is_empty()
    }

    /// Moves bytes that came to their place.
    pub(super) fn read(&mut self, place: InputPlace<'_>) -> io::Result<usize> {
        match place {
            InputPlace::Staging(buffer) => self.read_into(buffer),
            InputPlace::Memory { memory, offset, len_bytes, tail } => {
                let mut done = 0;
                let mut chunk = [0; 4096];
                while done < len_bytes && !self.arrived.is_empty() {
                    let room = (len_bytes - done).min(chunk.len() as u64) as usize;
                    let count = self.read_into(&mut chunk[..room])?;
                    memory.store(offset + done, &chunk[..count]).map_err(io::Error::other)?;
                    done += count as u64;
                }
                if done < len_bytes { Ok(done as usize) } else { Ok(done as usize + self.read_into(tail)?) }
            }
        }
    }

    fn read_into(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while done < buffer.len() {
            let Some(place) = self.arrived.front().map(|front| self.buffer_at(front.buffer)) else { break };
            let Some(front) = self.arrived.front_mut() else { break };
            let count = (buffer.len() - done).min((front.end - front.start) as usize);
            let at = place + u64::from(front.start);
            self.memory.memory().read(at, &mut buffer[done..done + count]).map_err(io::Error::other)?;
            front.start += count as u32;
            done += count;
            if front.start == front.end {
                let buffer = front.buffer;
                self.arrived.pop_front();
                self.give_back(buffer);
            }
        }
        Ok(done)
    }

    fn give_back(&mut self, buffer: u32) {
        self.free.push(buffer);
        self.consumed = self.consumed.wrapping_add(1);
    }

    /// True if buffers wait to be posted anew; of a persistent ring that is known only when they are collected.
    #[inline]
    pub(super) fn may_have_free(&self) -> bool {
        !self.free.is_empty() || self.durable.is_some()
    }

    /// Posts the buffers that are free.
    pub(super) fn post(&mut self, queue_pair: &mut QueuePair) -> io::Result<()> {
        if self.free.is_empty() {
            return Ok(());
        }
        let start = if self.durable.is_some() { HEADER_BYTES } else { 0 };
        let receives = receives_of(&self.memory, start, &self.free);
        let posted = match &self.shared {
            Some(queue) => queue.post_receives(&receives),
            None => queue_pair.post_receives(&receives),
        };
        // Those that were not taken are offered again with the next ones.
        let count = posted.as_ref().map_or_else(|failure| failure.posted, |()| self.free.len());
        self.free.drain(..count);
        posted.map_err(io::Error::other)
    }
}

impl Drop for ReceiveRing {
    fn drop(&mut self) {
        // The others that share the ring need the buffers; if the device fails now, they learn it from their own.
        if let Some(queue) = &self.shared {
            self.free.extend(self.arrived.drain(..).map(|arrived| arrived.buffer));
            let _ = queue.post_receives(&receives_of(&self.memory, 0, &self.free));
        }
    }
}
