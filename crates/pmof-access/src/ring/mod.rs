//! Rings of records in persistent memory that another host appends to without this one's CPU: the receives of a connection
//! lie in them, and a read behind the records makes them durable (read-after-send).

use std::{collections::VecDeque, fmt, io, sync::Arc};

use pmof_locks::{Mutex, MutexGuard};
use pmof_mem::{Medium, MemError};
use pmof_proto::DESCRIPTOR_BYTES;

use crate::{Region, RegisterError, RingRefusal, region::DeviceReach};

mod layout;
mod wait;

use layout::Place;
pub use layout::RECORD_MAX_BYTES;
pub(crate) use layout::{
    HEADER_BYTES, Layout, RECORD_HEADER_BYTES, RECORD_MAGIC, SLOT_BYTES, STREAM_MAGIC, message_bytes, seal_record,
};

/// One record of a ring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RingRecord {
    /// Its number: higher than those of all records appended before, and one more than the one before on its connection.
    pub sequence: u64,
    /// What was appended.
    pub bytes: Vec<u8>,
}

/// What lies in a ring that nobody appends to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RingContents {
    /// Made when the ring was, at random.
    pub identity: [u8; 16],
    /// The records that were not consumed, in order.
    pub records: Vec<RingRecord>,
}

/// Reads the ring at `offset` of `memory` after a crash, without a device and without changing anything: the records that
/// were appended and not consumed, in order, each checked. What is torn, and all that came after it, is left out: no flush
/// was answered that covers it.
pub fn read_ring(memory: &Arc<dyn Medium>, offset: u64, len_bytes: u64) -> Result<RingContents, RingError> {
    let layout = Layout::open(Arc::clone(memory), offset, len_bytes)?;
    let records = layout.recover()?.into_iter().map(|(_, record)| record).collect();
    Ok(RingContents { identity: layout.identity(), records })
}

/// A ring of this side that one connection at a time appends to; the target's end of read-after-send.
///
/// Made by [`Peer::create_ring`](crate::Peer::create_ring) or [`open_ring`](crate::Peer::open_ring), found by the other side
/// through its [`descriptor`](Self::descriptor). A record lies in the medium from its arrival until it is consumed; only
/// then is its slot filled anew. Records come in as long as there are free slots, whether or not this process runs.
///
/// Handles are cheap to clone. The ring is closed when the last one is dropped and no connection uses it; its records stay
/// in the medium.
#[derive(Clone, Debug)]
pub struct AppendRing(Arc<RingState>);

impl AppendRing {
    /// What the other side names in [`ConnectOptions::append_to`](crate::ConnectOptions::append_to) and in its flushes: the
    /// descriptor of a region. Whoever has it may append, and read the ring.
    pub fn descriptor(&self) -> [u8; DESCRIPTOR_BYTES] {
        self.0.region.descriptor()
    }

    /// Made when the ring was, at random.
    pub fn identity(&self) -> [u8; 16] {
        self.0.layout.identity()
    }

    /// Number of slots. All but 16, which the message stream uses, may hold records.
    pub fn slots(&self) -> u32 {
        self.0.layout.slots()
    }

    /// True while a connection appends, or may.
    pub fn is_attached(&self) -> bool {
        self.0.is_here() && self.0.lock().is_attached
    }

    /// Records that are there and not consumed, as far as this side has looked: new ones are seen when the queue of their
    /// connection is driven.
    pub fn len(&self) -> usize {
        if self.0.is_here() { self.0.lock().unconsumed.len() } else { 0 }
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The record that is `index` places behind the oldest one that was not consumed, copied and checked; `None` if there
    /// are not so many.
    pub fn record(&self, index: usize) -> Result<Option<RingRecord>, RingError> {
        self.0.region.check_process()?;
        let inner = self.0.lock();
        let Some(place) = inner.unconsumed.get(index) else { return Ok(None) };
        match self.0.layout.record(place.slot, inner.through)? {
            Some((found, record)) if found == *place => Ok(Some(record)),
            _ => Err(RingError::Damaged { offset: self.0.layout.slot_at(place.slot) }),
        }
    }

    /// Consumes all records up to and with this number: they do not come back after a crash, and their slots are given back
    /// to the other side. The position is durable on return, as far as the medium goes.
    ///
    /// # Errors
    /// [`RingError::NotThere`] where no record that was not consumed has the number.
    pub fn consume(&self, sequence: u64) -> Result<(), RingError> {
        self.0.region.check_process()?;
        let mut inner = self.0.lock();
        let count = inner.unconsumed.partition_point(|place| place.sequence <= sequence);
        if count == 0 || inner.unconsumed[count - 1].sequence != sequence {
            return Err(RingError::NotThere { sequence });
        }
        // Before a slot may be filled anew its record must be known as consumed.
        self.0.layout.set_position(sequence)?;
        inner.through = sequence;
        let slots: Vec<_> = inner.unconsumed.drain(..count).map(|place| place.slot).collect();
        if !inner.is_attached {
            return Ok(());
        }
        inner.freed.extend(slots);
        let appender = inner.appender.clone();
        drop(inner);
        if let Some(appender) = appender {
            appender.slots_freed();
        }
        Ok(())
    }

    /// Over an opened or a new ring, of which this is the only handle.
    pub(crate) fn over(layout: Layout, region: Region) -> Result<Self, RingError> {
        let unreachable = |why| RingError::Unreachable { why };
        if let Some(why) = region.why_not_direct() {
            return Err(unreachable(why));
        }
        let no_device = || unreachable("the transport has no device".to_owned());
        region.device().ok_or_else(no_device)?.prepare_receives().map_err(unreachable)?;
        // What a process that died stored last need not be durable yet; and the memory has to be writable.
        layout.set_position(layout.position()?)?;
        Ok(Self(RingState::new(layout, region)?))
    }

    pub(crate) fn state(&self) -> &Arc<RingState> {
        &self.0
    }
}

/// A ring, whoever holds it.
#[derive(Debug)]
pub(crate) struct RingState {
    layout: Layout,
    region: Region,
    inner: Mutex<Inner>,
}

/// The connection whose other side appends to a ring. It does not keep the connection.
pub(crate) trait Appender: Send + Sync + fmt::Debug {
    /// Slots are free: the other side is to have them back.
    fn slots_freed(&self);
}

#[derive(Debug, Default)]
struct Inner {
    /// All records up to this number were consumed, or are void.
    through: u64,
    unconsumed: VecDeque<Place>,
    /// Slots whose records were consumed and that are not posted anew yet.
    freed: Vec<u32>,
    is_attached: bool,
    appender: Option<Arc<dyn Appender>>,
}

impl RingState {
    fn new(layout: Layout, region: Region) -> Result<Arc<Self>, RingError> {
        let state = Self { layout, region, inner: Mutex::default() };
        state.look(&mut state.lock())?;
        Ok(Arc::new(state))
    }

    pub(crate) fn key(&self) -> [u8; 16] {
        self.region.key()
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// How the device reaches the ring: offsets count from the ring's beginning.
    pub(crate) fn device(&self) -> Option<&Arc<dyn DeviceReach>> {
        self.region.device()
    }

    /// Takes the ring for one connection. Returns the position from which its records count.
    pub(crate) fn attach(self: &Arc<Self>) -> Result<Attached, RingRefusal> {
        let mut inner = self.lock();
        if inner.is_attached {
            return Err(RingRefusal::InUse);
        }
        if !inner.unconsumed.is_empty() {
            return Err(RingRefusal::NotConsumed);
        }
        inner.through = self.layout.begin().map_err(|_| RingRefusal::MediumFailed)?;
        inner.is_attached = true;
        Ok(Attached { state: Arc::clone(self), position: inner.through })
    }

    /// Whom to tell that slots are free again.
    pub(crate) fn belongs_to(&self, appender: Arc<dyn Appender>) {
        self.lock().appender = Some(appender);
    }

    /// A message of so many bytes with a record came into a slot.
    pub(crate) fn arrive(&self, slot: u32, arrived_bytes: u32) -> io::Result<()> {
        let mut inner = self.lock();
        let last = inner.unconsumed.back().map_or(inner.through, |place| place.sequence);
        let found = self.layout.record(slot, inner.through).map_err(io::Error::other)?;
        match found {
            Some((place, _))
                if place.sequence == last + 1 && message_bytes(place.len_bytes as usize) == arrived_bytes as usize =>
            {
                inner.unconsumed.push_back(place);
                Ok(())
            }
            _ => {
                let what = "the other side appended what is no record of this ring, or not the next one";
                Err(io::Error::new(io::ErrorKind::InvalidData, what))
            }
        }
    }

    /// Slots that may be posted anew.
    pub(crate) fn take_freed(&self) -> Vec<u32> {
        std::mem::take(&mut self.lock().freed)
    }

    /// What the medium holds is what counts: more may have come than anybody saw.
    fn look(&self, inner: &mut Inner) -> Result<(), RingError> {
        inner.through = self.layout.position()?;
        inner.unconsumed = self.layout.recover()?.into_iter().map(|(place, _)| place).collect();
        Ok(())
    }

    /// Whether this is the process that opened it.
    fn is_here(&self) -> bool {
        self.region.check_process().is_ok()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }
}

/// A ring that one connection's device fills. To be dropped when it fills it no more.
#[derive(Debug)]
pub(crate) struct Attached {
    state: Arc<RingState>,
    position: u64,
}

impl Attached {
    pub(crate) fn state(&self) -> &Arc<RingState> {
        &self.state
    }

    /// Number of the first record to come.
    pub(crate) fn first_sequence(&self) -> u64 {
        self.position + 1
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let mut inner = self.state.lock();
        // Where the medium fails, what was seen stays known, and using it tells.
        let _ = self.state.look(&mut inner);
        *inner =
            Inner { through: inner.through, unconsumed: std::mem::take(&mut inner.unconsumed), ..Inner::default() };
    }
}

/// Sixteen bytes as people read them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hex(pub [u8; 16]);

impl fmt::Display for Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Why a ring cannot be made, opened or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RingError {
    /// The memory failed, is read-only, or does not contain the range.
    #[error(transparent)]
    Memory(#[from] MemError),
    /// The range has no room for the fewest slots, or for those that the ring was made with.
    #[error("a ring of {len_bytes} bytes is too small: this one needs {least_bytes}")]
    TooSmall {
        /// Bytes given.
        len_bytes: u64,
        /// Bytes needed.
        least_bytes: u64,
    },
    /// A ring begins at a page.
    #[error("offset {offset} is not divisible by {alignment_bytes}, as the beginning of a ring must be")]
    Misaligned {
        /// The offset given.
        offset: u64,
        /// What it must be a multiple of.
        alignment_bytes: u64,
    },
    /// Something lies where a ring was to be made.
    #[error(
        "there is something at offset {offset} already: open the ring, or, to give up what is there, zero its first 8 bytes"
    )]
    Occupied {
        /// Where.
        offset: u64,
    },
    /// What lies there is no ring.
    #[error("there is no ring at offset {offset}: create one, or look for its offset")]
    NoRing {
        /// Where.
        offset: u64,
    },
    /// The ring was made by a version that this one does not know.
    #[error("the ring has version {found}, this program knows {known}: open it with the program that made it")]
    Version {
        /// That of the ring.
        found: u16,
        /// The one known.
        known: u16,
    },
    /// The header, or a record that was there, does not have its checksum any more.
    #[error("the ring is damaged at offset {offset} of its medium: something else wrote there, or the device failed")]
    Damaged {
        /// Where in the medium.
        offset: u64,
    },
    /// Another ring than the one expected lies there.
    #[error("the ring there is {found}, not {expected}: is this the right device?")]
    OtherRing {
        /// The identity found.
        found: Hex,
        /// The identity expected.
        expected: Hex,
    },
    /// The ring is open in this peer already.
    #[error("the ring {identity} is open already: use a clone of that handle")]
    OpenAlready {
        /// Its identity.
        identity: Hex,
    },
    /// The device cannot fill or read the memory.
    #[error("the device cannot reach the ring's memory: {why}")]
    Unreachable {
        /// Why.
        why: String,
    },
    /// The device takes fewer receives than the ring has slots.
    #[error(
        "the device takes {most} receives at once, the ring has {slots} slots: make a shorter one, or use another device"
    )]
    TooManySlots {
        /// Slots of the ring.
        slots: u32,
        /// Receives that a queue pair of the device takes.
        most: u32,
    },
    /// The transport has no receives that could lie in persistent memory.
    #[error("rings exist over verbs only (InfiniBand or RoCE): other transports append by write and flush")]
    NotVerbs,
    /// No record with this number is there to be consumed.
    #[error("no record {sequence} is there to be consumed: it was consumed before, or has not come")]
    NotThere {
        /// The number.
        sequence: u64,
    },
    /// The operating system gave no random bytes for the identity.
    #[error("no random identity for the ring")]
    Random {
        /// The system's answer.
        source: io::Error,
    },
    /// The memory could not be registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
}
