//! The pair, its wires, and a medium of plain memory that claims to be any kind.

use std::{collections::VecDeque, io, os::fd::BorrowedFd, sync::Arc, time::Duration};

use pmof_locks::{Mutex, MutexGuard};
use pmof_mem::{Durability, Evidence, Mechanism, Medium, MediumKind, MemError, Promise, check_bounds};

use crate::{
    Access, Capabilities, Completion, Endpoint, Event, InputPlace, LocalSlice, Operation, Outcome, Payload, RegionKey,
    RegionTable, RegisteredRegion, Settings, Signal, Ticket, frame::Frame,
};

/// The key of the region that every pair's target has.
pub(super) const KEY: RegionKey = RegionKey([0xA7; 16]);
/// Where that region begins in its medium; what lies before and behind must never be touched.
pub(super) const REGION_AT: u64 = 1024;
/// Bytes of that region.
pub(super) const REGION_BYTES: u64 = 16 << 10;
/// Bytes of its medium.
pub(super) const MEDIUM_BYTES: u64 = 2 * REGION_AT + REGION_BYTES;

/// Plain memory that promises what the design's table says of its kind.
#[derive(Debug)]
pub(super) struct Plain {
    bytes: Mutex<Vec<u8>>,
    kind: MediumKind,
    is_battery_backed: bool,
}

impl Plain {
    pub(super) fn new(len_bytes: u64, kind: MediumKind) -> Arc<Self> {
        Arc::new(Self { bytes: Mutex::new(vec![0; len_bytes as usize]), kind, is_battery_backed: false })
    }

    pub(super) fn battery_backed(len_bytes: u64) -> Arc<Self> {
        let bytes = Mutex::new(vec![0; len_bytes as usize]);
        Arc::new(Self { bytes, kind: MediumKind::Tmpfs, is_battery_backed: true })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<u8>> {
        self.bytes.lock()
    }

    fn update(&self, offset: u64, change: impl FnOnce(u64) -> u64) -> Result<u64, MemError> {
        check_bounds(offset, 8, self.len_bytes())?;
        if offset % 8 != 0 {
            return Err(MemError::Misaligned { offset });
        }
        let mut bytes = self.lock();
        let place = &mut bytes[offset as usize..offset as usize + 8];
        let mut found = [0; 8];
        found.copy_from_slice(place);
        let found = u64::from_le_bytes(found);
        place.copy_from_slice(&change(found).to_le_bytes());
        Ok(found)
    }
}

impl Medium for Plain {
    fn len_bytes(&self) -> u64 {
        self.lock().len() as u64
    }

    fn kind(&self) -> MediumKind {
        self.kind
    }

    fn promise(&self, level: Durability) -> Option<Promise> {
        let probed = |mechanism| Some(Promise { mechanism, evidence: Evidence::Probed });
        match (self.kind, level) {
            (_, Durability::Visible) => probed(Mechanism::Store),
            (MediumKind::Anonymous, _) => None,
            (_, Durability::ProcessCrash) => probed(Mechanism::Store),
            (MediumKind::Tmpfs, _) => {
                let declared = Promise { mechanism: Mechanism::Fence, evidence: Evidence::Declared };
                self.is_battery_backed.then_some(declared)
            }
            (MediumKind::PageCache | MediumKind::VirtioPmem, _) => probed(Mechanism::FileSync),
            (MediumKind::FsDax | MediumKind::DevDax, _) => probed(Mechanism::CacheLineWriteBack),
        }
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), MemError> {
        check_bounds(offset, into.len() as u64, self.len_bytes())?;
        into.copy_from_slice(&self.lock()[offset as usize..][..into.len()]);
        Ok(())
    }

    fn store(&self, offset: u64, bytes: &[u8]) -> Result<(), MemError> {
        check_bounds(offset, bytes.len() as u64, self.len_bytes())?;
        self.lock()[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn receive(&self, _: BorrowedFd<'_>, _: u64, _: u64, _: &mut [u8]) -> io::Result<usize> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn send(&self, _: BorrowedFd<'_>, _: &[u8], _: u64, _: u64, _: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn atomic_store(&self, offset: u64, value: u64) -> Result<(), MemError> {
        self.update(offset, |_| value).map(drop)
    }

    fn compare_and_swap(&self, offset: u64, expected: u64, new: u64) -> Result<u64, MemError> {
        self.update(offset, |found| if found == expected { new } else { found })
    }

    fn fetch_and_add(&self, offset: u64, addend: u64) -> Result<u64, MemError> {
        self.update(offset, |found| found.wrapping_add(addend))
    }

    fn write_back(&self, offset: u64, len_bytes: u64) -> Result<(), MemError> {
        check_bounds(offset, len_bytes, self.len_bytes())
    }

    fn fence(&self) -> Result<(), MemError> {
        Ok(())
    }

    fn crc32c(&self, offset: u64, len_bytes: u64) -> Result<u32, MemError> {
        check_bounds(offset, len_bytes, self.len_bytes())?;
        Ok(crc32c::crc32c(&self.lock()[offset as usize..][..len_bytes as usize]))
    }
}

/// How many bytes move at once.
#[derive(Clone, Copy, Debug)]
pub(super) enum Chunk {
    Bytes(usize),
    /// 1 to 200, from this state on.
    Random(u64),
}

impl Chunk {
    fn next(&mut self) -> usize {
        match self {
            Self::Bytes(count) => *count,
            Self::Random(state) => {
                *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (*state >> 33) as usize % 200 + 1
            }
        }
    }
}

/// All the chunk sizes worth trying.
pub(super) const CHUNKS: [Chunk; 4] =
    [Chunk::Bytes(1), Chunk::Bytes(63), Chunk::Random(0x706d_6f66), Chunk::Bytes(usize::MAX)];

/// One direction.
#[derive(Debug)]
pub(super) struct Wire {
    waiting: VecDeque<u8>,
    /// All that was ever sent, as sent.
    pub(super) log: Vec<u8>,
    /// Bytes that the wire holds; what is beyond waits in the endpoint.
    pub(super) window_bytes: usize,
    /// The connection breaks after so many bytes.
    pub(super) cut_after: Option<usize>,
    /// The byte at this position is changed by exclusive or with the mask.
    pub(super) corrupt: Option<(usize, u8)>,
}

impl Wire {
    fn new() -> Self {
        Self { waiting: VecDeque::new(), log: Vec::new(), window_bytes: usize::MAX, cut_after: None, corrupt: None }
    }

    fn is_cut(&self) -> bool {
        self.cut_after.is_some_and(|limit| self.log.len() >= limit)
    }

    fn put(&mut self, bytes: &[u8]) -> usize {
        let cut = self.cut_after.unwrap_or(usize::MAX).saturating_sub(self.log.len());
        let count = bytes.len().min(self.window_bytes - self.waiting.len()).min(cut);
        for byte in &bytes[..count] {
            let mask = self.corrupt.filter(|(at, _)| *at == self.log.len()).map_or(0, |(_, mask)| mask);
            self.waiting.push_back(byte ^ mask);
            self.log.push(*byte);
        }
        count
    }
}

/// One end and what came out of it.
#[derive(Debug)]
pub(super) struct Side {
    pub(super) endpoint: Endpoint,
    pub(super) completions: VecDeque<Completion>,
    pub(super) events: VecDeque<Event>,
}

/// Two ends. Side 0 is the initiator, wire 0 leads from it to side 1.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) sides: [Side; 2],
    pub(super) wires: [Wire; 2],
    pub(super) chunk: Chunk,
    pub(super) now: Duration,
    /// The regions of each side.
    pub(super) tables: [Arc<RegionTable>; 2],
    /// Flushes that were handed out stay under way.
    pub(super) keeps_flushes: bool,
}

/// The settings of most tests.
pub(super) fn settings(has_crc: bool) -> Settings {
    let capabilities = if has_crc { Capabilities::PAYLOAD_CRC } else { Capabilities::empty() };
    Settings { capabilities, ..Settings::default() }
}

impl Pair {
    /// An established connection to a target with one region of anonymous memory under [`KEY`].
    pub(super) fn new(settings: Settings) -> Self {
        Self::with_medium(settings, Plain::new(MEDIUM_BYTES, MediumKind::Anonymous))
    }

    /// The same over any medium of [`MEDIUM_BYTES`].
    pub(super) fn with_medium(settings: Settings, medium: Arc<dyn Medium>) -> Self {
        let mut pair = Self::apart([settings, settings], b"");
        pair.register(1, KEY, medium, Access::all());
        pair.connect();
        pair
    }

    /// Two ends that have not exchanged a byte.
    pub(super) fn apart(settings: [Settings; 2], private_data: &[u8]) -> Self {
        let tables = [Arc::<RegionTable>::default(), Arc::default()];
        let endpoints = [
            Endpoint::initiator(settings[0], Arc::clone(&tables[0]), private_data),
            Endpoint::target(settings[1], Arc::clone(&tables[1])),
        ];
        let side = |endpoint| Side { endpoint, completions: VecDeque::new(), events: VecDeque::new() };
        Self {
            sides: endpoints.map(side),
            wires: [Wire::new(), Wire::new()],
            chunk: Chunk::Bytes(usize::MAX),
            now: Duration::ZERO,
            tables,
            keeps_flushes: false,
        }
    }

    pub(super) fn connect(&mut self) {
        self.run();
        self.sides[1].endpoint.accept(b"");
        self.run();
        assert!(self.sides.iter().all(|side| side.endpoint.is_established()), "the handshake works");
        self.sides.iter_mut().for_each(|side| side.events.clear());
    }

    /// Registers the middle of a medium of [`MEDIUM_BYTES`].
    pub(super) fn register(&mut self, side: usize, key: RegionKey, medium: Arc<dyn Medium>, access: Access) {
        let len_bytes = medium.len_bytes() - 2 * REGION_AT;
        self.tables[side].insert(Arc::new(RegisteredRegion::new(key, medium, REGION_AT, len_bytes, access)));
    }

    pub(super) fn post(&mut self, operation: Operation<'_>) -> Ticket {
        self.post_as(0, operation, Signal::Always, 0)
    }

    pub(super) fn post_as(&mut self, side: usize, operation: Operation<'_>, signal: Signal, context: u64) -> Ticket {
        self.sides[side].endpoint.post(operation, signal, context).expect("can be posted")
    }

    pub(super) fn post_receive(&mut self, side: usize, len_bytes: u64) -> (Ticket, LocalSlice) {
        let into = local(&vec![0; len_bytes as usize]);
        let ticket = self.sides[side].endpoint.post_receive(into.clone(), 0).expect("can be posted");
        (ticket, into)
    }

    /// Posts, runs, and takes the one outcome that there must be.
    pub(super) fn outcome(&mut self, operation: Operation<'_>) -> Result<Outcome, crate::OperationError> {
        let ticket = self.post(operation);
        self.run();
        let completion = self.sides[0].completions.pop_front().expect("an outcome");
        assert_eq!(completion.ticket, ticket);
        assert!(self.sides[0].completions.is_empty());
        completion.outcome
    }

    /// Puts bytes on the wire that `side` did not make; nothing of its own may be on it half.
    pub(super) fn inject(&mut self, side: usize, bytes: &[u8]) {
        assert_eq!(self.wires[side].put(bytes), bytes.len(), "the wire takes all");
    }

    pub(super) fn inject_frame(&mut self, side: usize, frame: &Frame) {
        self.inject(side, &frame.encode());
    }

    /// Reads from the target's region.
    pub(super) fn peek(&self, offset: u64, len_bytes: u64) -> Vec<u8> {
        let region = self.tables[1].find(KEY).expect("the region is registered");
        let mut bytes = vec![0; len_bytes as usize];
        region.memory().read(region.offset() + offset, &mut bytes).expect("in bounds");
        bytes
    }

    /// Moves bytes until nothing moves.
    pub(super) fn run(&mut self) {
        loop {
            let mut moved = false;
            for side in 0..2 {
                moved |= self.send_some(side);
                moved |= self.receive_some(1 - side);
                moved |= !self.keeps_flushes && self.finish_flush(side);
                self.collect(side);
                self.collect(1 - side);
            }
            if !moved {
                return;
            }
        }
    }

    /// Carries out the flush that was handed out, if one was.
    pub(super) fn finish_flush(&mut self, side: usize) -> bool {
        let endpoint = &mut self.sides[side].endpoint;
        let Some(flush) = endpoint.take_flush() else { return false };
        let outcome = flush.memory.fence();
        endpoint.flush_done(flush.ticket, outcome.as_ref().copied());
        endpoint.resume();
        true
    }

    /// Sends one chunk.
    pub(super) fn send_some(&mut self, side: usize) -> bool {
        let (endpoint, wire) = (&mut self.sides[side].endpoint, &mut self.wires[side]);
        let Some(view) = endpoint.output_view() else { return false };
        let mut bytes = view.head.to_vec();
        if let Some(body) = view.body {
            let start = bytes.len();
            bytes.resize(start + body.len_bytes as usize, 0);
            body.memory.read(body.offset, &mut bytes[start..]).expect("posted slices are in bounds");
        }
        bytes.extend(view.tail);
        assert!(!bytes.is_empty(), "a view holds something");
        let count = wire.put(&bytes[..bytes.len().min(self.chunk.next())]);
        endpoint.output_sent(count);
        count > 0
    }

    /// Delivers one chunk to `side`, or the end of the stream.
    pub(super) fn receive_some(&mut self, side: usize) -> bool {
        let is_broken = self.wires.iter().any(Wire::is_cut);
        let is_closed = is_broken || self.sides[1 - side].endpoint.is_finished();
        let (endpoint, wire) = (&mut self.sides[side].endpoint, &mut self.wires[1 - side]);
        if wire.waiting.is_empty() && is_closed && endpoint.ended().is_none() {
            endpoint.wire_lost("the wire was cut".to_owned());
            return true;
        }
        let limit = wire.waiting.len().min(self.chunk.next());
        if limit == 0 {
            return false;
        }
        let Some(place) = endpoint.input_place() else { return false };
        let count = match place {
            InputPlace::Staging(buffer) => {
                let count = buffer.len().min(limit);
                buffer.iter_mut().zip(wire.waiting.drain(..count)).for_each(|(to, from)| *to = from);
                count
            }
            InputPlace::Memory { memory, offset, len_bytes, tail } => {
                let inside: Vec<u8> = wire.waiting.drain(..limit.min(len_bytes as usize)).collect();
                if let Err(error) = memory.store(offset, &inside) {
                    endpoint.wire_lost(error.to_string());
                    return true;
                }
                let beyond = tail.len().min(limit - inside.len());
                tail.iter_mut().zip(wire.waiting.drain(..beyond)).for_each(|(to, from)| *to = from);
                inside.len() + beyond
            }
        };
        endpoint.input_arrived(count);
        count > 0
    }

    pub(super) fn collect(&mut self, side: usize) {
        let side = &mut self.sides[side];
        side.completions.extend(std::iter::from_fn(|| side.endpoint.poll_completion()));
        side.events.extend(std::iter::from_fn(|| side.endpoint.poll_event()));
    }
}

/// Anonymous memory of this side with these bytes.
pub(super) fn local(bytes: &[u8]) -> LocalSlice {
    let memory = Plain::new(bytes.len() as u64, MediumKind::Anonymous);
    memory.store(0, bytes).expect("in bounds");
    LocalSlice { memory, offset: 0, len_bytes: bytes.len() as u64 }
}

pub(super) fn bytes_of(slice: &LocalSlice) -> Vec<u8> {
    let mut bytes = vec![0; slice.len_bytes as usize];
    slice.memory.read(slice.offset, &mut bytes).expect("in bounds");
    bytes
}

pub(super) fn write(offset: u64, bytes: &[u8]) -> Operation<'_> {
    Operation::Write { key: KEY, offset, payload: Payload::Inline(bytes), immediate: None }
}

pub(super) fn send(bytes: &[u8]) -> Operation<'_> {
    Operation::Send { payload: Payload::Inline(bytes), immediate: None }
}

pub(super) fn flush(level: Durability) -> Operation<'static> {
    Operation::Flush { key: KEY, offset: 0, len_bytes: REGION_BYTES, level, evidence: Evidence::Declared }
}

/// Bytes that differ from their neighbours.
pub(super) fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|index| (index as u8).wrapping_mul(31).wrapping_add((index >> 8) as u8).wrapping_add(seed)).collect()
}
