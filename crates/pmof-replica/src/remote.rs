//! The pool of a pool set on another machine, as librpmem has it: created and opened by the set's name, written in lanes.

use std::{
    fmt,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use pmof_access::{
    DEFAULT_CONNECT_TIMEOUT, DEFAULT_LOSS_TIMEOUT, Durability, Flushed, Medium, Outcome, PostError, Promise, Region,
    RemoteRegion, Signal, Ticket, Waiting,
};
use pmof_pool::{ATTRIBUTES_LEN_BYTES, Attributes, DIGEST_BYTES, HEADER_LEN_BYTES};

use crate::{
    OpenFor, PoolOptions, PoolRefusal, ReplicaError, SetName, SshOptions, TargetUrl,
    control::{DIGESTED_MAX_BYTES, DIGESTS_MAX, Reply, Request},
    replica::TargetConnection,
};

mod removal;

pub use removal::RemoteRemoval;

/// Lanes of a pool, at most: as many as libpmemobj asks for.
pub const LANES_MAX: u32 = 1024;

/// Bytes of one write that a crash tears between its aligned 8 bytes only, at most: the target gathers it before it stores it.
const GATHERED_BYTES: u64 = 4096;

/// Bytes of one write of which a crash may leave any: enough to fill system calls, little enough to keep other lanes going.
const RELAXED_BYTES: u64 = 1 << 20;

/// How a remote pool is reached.
#[derive(Clone, Debug)]
pub struct RemotePoolOptions {
    /// How targets are started, for `ssh://`.
    pub ssh: SshOptions,
    /// The level that persisted bytes must reach; `None` for the strongest that the target's parts can give.
    pub require: Option<Durability>,
    /// Lanes; each is one caller's ordered stream. They cost nothing until they are used: all share one connection.
    pub lanes: u32,
    /// How to wait for the target.
    pub waiting: Waiting,
    /// Time for the data connection to stand.
    pub connect_timeout: Duration,
    /// Time without an answer that is due, after which the target counts as dead.
    pub loss_timeout: Duration,
}

impl Default for RemotePoolOptions {
    fn default() -> Self {
        Self {
            ssh: SshOptions::from_env(),
            require: None,
            lanes: LANES_MAX,
            waiting: pmof_access::QueueOptions::default().waiting,
            connect_timeout: DEFAULT_CONNECT_TIMEOUT,
            loss_timeout: DEFAULT_LOSS_TIMEOUT,
        }
    }
}

/// What a crash may leave of a write that was not acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atomicity {
    /// Aligned words of 8 bytes are old or new.
    Words,
    /// Any bytes of it. Takes less of the target's CPU for long writes, and none over RDMA.
    Relaxed,
}

/// Why an operation on a remote pool failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RemotePoolError {
    /// The range does not lie inside the pool.
    #[error("range of {len_bytes} bytes at offset {offset} lies outside the pool of {size_bytes} bytes")]
    OutOfBounds {
        /// First byte.
        offset: u64,
        /// Bytes.
        len_bytes: u64,
        /// Size of the pool, header included.
        size_bytes: u64,
    },
    /// The range touches the header, which only [`RemotePool::set_attributes`] changes.
    #[error(
        "offset {offset} lies in the pool's header, the first {HEADER_LEN_BYTES} bytes; change it by setting attributes"
    )]
    Header {
        /// First byte.
        offset: u64,
    },
    /// The pool was opened for reading.
    #[error("the pool is open for reading only")]
    ReadOnly,
    /// There is no such lane.
    #[error("there is no lane {lane}: the pool was opened with {lanes}, counted from 0")]
    NoSuchLane {
        /// What was asked for.
        lane: u32,
        /// How many there are.
        lanes: u32,
    },
    /// The number of lanes.
    #[error("{lanes} lanes: 1 to {LANES_MAX} are allowed")]
    BadLanes {
        /// What was asked for.
        lanes: u32,
    },
    /// No memory was named that persists could copy from.
    #[error("name the local memory first that ranges are copied from (RemotePool::use_memory)")]
    NoMemory,
    /// The pool has no header, or has one against what was asked for.
    #[error("the pool has no header, so it has no attributes")]
    NoHeader,
    /// The target, or the way there. Every later operation fails with the same.
    #[error("pool set {set} on {target}: {source}")]
    Failed {
        /// The target.
        target: Arc<TargetUrl>,
        /// The set.
        set: Arc<SetName>,
        /// What went wrong.
        source: Arc<ReplicaError>,
    },
}

impl RemotePoolError {
    /// What went wrong at the target or on the way there, if it did.
    pub fn replica_error(&self) -> Option<&ReplicaError> {
        match self {
            Self::Failed { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// An open pool on another machine. Operations of one lane take effect in order; lanes are independent, and any number of threads may use
/// different ones at once. After a failure every operation fails.
///
/// Dropping it closes it; a target that this side started through ssh ends.
pub struct RemotePool {
    url: Arc<TargetUrl>,
    set: Arc<SetName>,
    target: TargetConnection,
    /// The pool behind its header.
    data: RemoteRegion,
    /// The same, reached by messages: the target gathers what it stores.
    gathered: RemoteRegion,
    header: Option<RemoteRegion>,
    size_bytes: u64,
    access: OpenFor,
    durability: Durability,
    local: Option<Region>,
    lanes: Box<[Mutex<Lane>]>,
    /// One question at a time.
    asking: Mutex<()>,
    failure: OnceLock<Arc<ReplicaError>>,
}

/// What one caller's stream has under way.
#[derive(Debug, Default)]
struct Lane {
    /// What was written directly and not flushed: begin and end in the data region.
    direct: Option<(u64, u64)>,
    /// What the target gathered and was not flushed.
    gathered: Option<(u64, u64)>,
    scratch: Option<Region>,
}

impl fmt::Debug for RemotePool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemotePool").field("url", &self.url).field("set", &self.set).finish_non_exhaustive()
    }
}

/// What is asked of a target when a pool is opened.
struct Question<'q> {
    url: &'q TargetUrl,
    set: &'q SetName,
    options: &'q RemotePoolOptions,
}

impl RemotePool {
    /// Makes the pool of the target's pool set `set`, of `size_bytes` at least, header included, and opens it. Its parts must not exist. With
    /// attributes each part, or the first, gets a header; without, the set must say `OPTION NOHDRS`.
    ///
    /// On failure, and when this side dies before this returns, nothing is left at the target; but where only its answer to the last
    /// step is lost, the pool is there.
    pub fn create(
        url: &TargetUrl,
        set: &SetName,
        size_bytes: u64,
        attributes: Option<&Attributes>,
        options: &RemotePoolOptions,
    ) -> Result<Self, RemotePoolError> {
        let question = Question { url, set, options };
        let (pool, _) = question.open(OpenFor::Write, size_bytes, &|require| Request::CreateSet {
            name: set.clone(),
            size_bytes,
            attributes: attributes.map(Attributes::to_bytes),
            require,
        })?;
        match pool.ask(&Request::KeepSet)? {
            Reply::SetKept => Ok(pool),
            _ => Err(pool.fail(ReplicaError::Unexpected)),
        }
    }

    /// Opens the pool of the target's pool set `set`, which must have `size_bytes` at least (0 for any), and gives the attributes in its header.
    pub fn open(
        url: &TargetUrl,
        set: &SetName,
        size_bytes: u64,
        access: OpenFor,
        options: &RemotePoolOptions,
    ) -> Result<(Self, Option<Attributes>), RemotePoolError> {
        let question = Question { url, set, options };
        question.open(access, size_bytes, &|require| Request::OpenSet {
            name: set.clone(),
            size_bytes,
            access,
            require,
        })
    }

    /// Deletes the parts of the target's pool set `set`, and with `set_file` its file; with `force` also where parts are missing or
    /// damaged.
    pub fn remove(
        url: &TargetUrl,
        set: &SetName,
        force: bool,
        set_file: bool,
        options: &RemotePoolOptions,
    ) -> Result<(), RemotePoolError> {
        let question = Question { url, set, options };
        let target = question.connect()?;
        match target.ask_when_free(&Request::RemoveSet { name: set.clone(), force, set_file }) {
            Ok(Reply::Removed) => Ok(()),
            Ok(_) => Err(question.failed(ReplicaError::Unexpected)),
            Err(error) => Err(question.failed(error)),
        }
    }

    /// Has persists copy from `memory`, the pool's image on this side: what lies at an offset there goes to the same offset of
    /// the pool. Its bytes must not change while they are being persisted. Memory that is lent ([`Lent`](pmof_access::Lent)) is not
    /// touched any more once the pool is closed or dropped.
    pub fn use_memory(&mut self, memory: Arc<dyn Medium>) -> Result<(), RemotePoolError> {
        let len_bytes = memory.len_bytes();
        let region = self.target.register(memory, len_bytes).map_err(|error| self.fail(error))?;
        if let Some(before) = self.local.replace(region) {
            before.deregister();
        }
        Ok(())
    }

    /// Bytes, header included.
    pub fn len_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Bytes of the header, which no persist may touch; 0 where there is none.
    pub fn header_bytes(&self) -> u64 {
        if self.header.is_some() { HEADER_LEN_BYTES as u64 } else { 0 }
    }

    /// Lanes, numbered from 0.
    pub fn lane_count(&self) -> u32 {
        self.lanes.len() as u32
    }

    /// The failure that persisted bytes survive.
    pub fn durability(&self) -> Durability {
        self.durability
    }

    /// How the target's parts keep [`durability`](Self::durability).
    pub fn promise(&self) -> Option<Promise> {
        self.data.promise(self.durability)
    }

    /// Copies a range of the local memory to the pool and makes it durable there: a [`flush`](Self::flush) and a
    /// [`drain`](Self::drain).
    pub fn persist(&self, lane: u32, offset: u64, len_bytes: u64, atomicity: Atomicity) -> Result<(), RemotePoolError> {
        let lane = &mut *self.lane(lane)?;
        self.start(lane, offset, len_bytes, atomicity, &Origin::Memory, Send::WithFlush)?;
        self.finish(lane)
    }

    /// The same with bytes of the caller instead of the local memory.
    pub fn persist_bytes(
        &self,
        lane: u32,
        offset: u64,
        bytes: &[u8],
        atomicity: Atomicity,
    ) -> Result<(), RemotePoolError> {
        let lane = &mut *self.lane(lane)?;
        self.start(lane, offset, bytes.len() as u64, atomicity, &Origin::Bytes(bytes), Send::WithFlush)?;
        self.finish(lane)
    }

    /// Starts to copy a range of the local memory to the pool. It is durable after this lane's next [`drain`](Self::drain), and must not
    /// change before. Any number may be under way; behind others it may wait until 256 KiB are together, or for the drain.
    pub fn flush(&self, lane: u32, offset: u64, len_bytes: u64, atomicity: Atomicity) -> Result<(), RemotePoolError> {
        self.start(&mut *self.lane(lane)?, offset, len_bytes, atomicity, &Origin::Memory, Send::Now)
    }

    /// The same with bytes of the caller, which are free again when this returns.
    pub fn flush_bytes(
        &self,
        lane: u32,
        offset: u64,
        bytes: &[u8],
        atomicity: Atomicity,
    ) -> Result<(), RemotePoolError> {
        self.start(&mut *self.lane(lane)?, offset, bytes.len() as u64, atomicity, &Origin::Bytes(bytes), Send::Now)
    }

    /// Returns when all that this lane flushed is durable: one flush at the target, however many there were.
    pub fn drain(&self, lane: u32) -> Result<(), RemotePoolError> {
        self.finish(&mut *self.lane(lane)?)
    }

    /// Makes a range durable that was written before, by whomever: a flush at the target of what is there.
    pub fn make_durable(&self, lane: u32, offset: u64, len_bytes: u64) -> Result<(), RemotePoolError> {
        let lane = &mut *self.lane(lane)?;
        self.check_writable()?;
        self.check(offset, len_bytes)?;
        let begin = offset.max(self.header_bytes()) - self.header_bytes();
        let end = (offset + len_bytes).max(self.header_bytes()) - self.header_bytes();
        lane.gathered = Some(lane.gathered.map_or((begin, end), |(first, last)| (first.min(begin), last.max(end))));
        self.finish(lane)
    }

    /// Starts what [`drain`](Self::drain) does; [`Draining::wait`] is its end. So several pools drain at once.
    pub fn start_drain(&self, lane: u32) -> Result<Draining<'_>, RemotePoolError> {
        let mut lane = self.lane(lane)?;
        let tickets = self.post_flushes(&mut lane)?;
        Ok(Draining { pool: self, tickets: Some(tickets), _lane: lane })
    }

    /// Copies bytes of the pool out, its header included.
    pub fn read(&self, lane: u32, offset: u64, into: &mut [u8]) -> Result<(), RemotePoolError> {
        let lane = &mut *self.lane(lane)?;
        self.check(offset, into.len() as u64)?;
        self.check_alive()?;
        let header_bytes = self.header_bytes();
        let in_header = header_bytes.saturating_sub(offset).min(into.len() as u64) as usize;
        let (head, rest) = into.split_at_mut(in_header);
        let read = |region: &RemoteRegion, offset, into: &mut [u8], lane: &mut Lane| {
            self.target.read(region, offset, into, &mut lane.scratch).map_err(|error| self.fail(error))
        };
        if let (Some(header), false) = (&self.header, head.is_empty()) {
            read(header, offset, head, lane)?;
        }
        if rest.is_empty() { Ok(()) } else { read(&self.data, offset.max(header_bytes) - header_bytes, rest, lane) }
    }

    /// Changes what the headers of the target's parts say, durably. A pool without headers has attributes of zeroes.
    pub fn set_attributes(&self, attributes: &Attributes) -> Result<(), RemotePoolError> {
        self.check_writable()?;
        if self.header.is_none() {
            return if attributes.is_zero() { self.check_alive() } else { Err(RemotePoolError::NoHeader) };
        }
        match self.ask(&Request::SetAttributes { attributes: attributes.to_bytes() })? {
            Reply::AttributesSet => Ok(()),
            _ => Err(self.fail(ReplicaError::Unexpected)),
        }
    }

    /// BLAKE3 digests of the blocks of `block_bytes` from `offset` on, which the target computes; the last may be shorter.
    pub fn digests(
        &self,
        offset: u64,
        len_bytes: u64,
        block_bytes: u64,
    ) -> Result<Vec<[u8; DIGEST_BYTES]>, RemotePoolError> {
        self.check(offset, len_bytes)?;
        let block_bytes = block_bytes.clamp(1, DIGESTED_MAX_BYTES);
        let at_once = (DIGESTED_MAX_BYTES / block_bytes).min(DIGESTS_MAX as u64) * block_bytes;
        let mut digests = Vec::with_capacity(len_bytes.div_ceil(block_bytes) as usize);
        let mut done = 0;
        while done < len_bytes {
            let part = at_once.min(len_bytes - done);
            let request = Request::Digest { offset: offset + done, len_bytes: part, block_bytes };
            match self.ask(&request)? {
                Reply::Digests { digests: page } if page.len() as u64 == part.div_ceil(block_bytes) => {
                    digests.extend(page);
                }
                _ => return Err(self.fail(ReplicaError::Unexpected)),
            }
            done += part;
        }
        Ok(digests)
    }

    /// The ranges of `range` outside of which all bytes are zero, durably, in order and apart, as the target's file system tells;
    /// all of it where that does not tell, or the target is of a release that is not asked.
    pub fn data_ranges(&self, range: Range<u64>) -> Result<Vec<Range<u64>>, RemotePoolError> {
        self.check(range.start, range.end.saturating_sub(range.start))?;
        let mut all = Vec::new();
        let mut at = range.start;
        while at < range.end {
            match self.ask(&Request::Data { offset: at }) {
                Ok(Reply::Data { ranges, end }) if end > at && are_in(&ranges, at..end) => {
                    let inside = ranges.into_iter().map(|data| data.start..data.end.min(range.end));
                    all.extend(inside.filter(|data| !data.is_empty()));
                    at = end;
                }
                Ok(_) => return Err(self.fail(ReplicaError::Unexpected)),
                Err(error) if refuses_to_tell(&error) => {
                    all.push(at..range.end);
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(all)
    }

    /// Closes the pool in order. What was flushed and not drained may or may not be there.
    pub fn close(self) -> Result<(), RemotePoolError> {
        self.check_alive()?;
        match self.ask(&Request::Close { in_order: true })? {
            Reply::Closed => Ok(()),
            _ => Err(self.fail(ReplicaError::Unexpected)),
        }
    }

    fn start(
        &self,
        lane: &mut Lane,
        offset: u64,
        len_bytes: u64,
        atomicity: Atomicity,
        origin: &Origin<'_>,
        send: Send,
    ) -> Result<(), RemotePoolError> {
        self.check_writable()?;
        self.check(offset, len_bytes)?;
        if offset < self.header_bytes() {
            return Err(RemotePoolError::Header { offset });
        }
        self.check_alive()?;
        if let Origin::Memory = origin {
            let local = self.local.as_ref().ok_or(RemotePoolError::NoMemory)?;
            let size_bytes = local.len_bytes();
            if offset + len_bytes > size_bytes {
                return Err(RemotePoolError::OutOfBounds { offset, len_bytes, size_bytes });
            }
        }
        if len_bytes == 0 {
            return Ok(());
        }
        let (region, limit) = match atomicity {
            Atomicity::Words => (&self.gathered, GATHERED_BYTES),
            Atomicity::Relaxed => (&self.data, RELAXED_BYTES),
        };
        let begin = offset - self.header_bytes();
        let mut at = begin;
        let end = begin + len_bytes;
        while at < end {
            // Pieces end at multiples of their length, so that none cuts a word.
            let piece_end = (at / limit * limit + limit).min(end);
            let from_start = at - begin;
            self.post(|connection| {
                // Behind others it need not go at once: what goes together costs fewer system calls.
                let goes_now = matches!(send, Send::Now) && connection.outstanding() == 0;
                let mut batch = connection.batch();
                batch.signal(Signal::OnError);
                let ticket = match (origin, &self.local) {
                    (Origin::Bytes(bytes), _) => {
                        let piece = &bytes[from_start as usize..(piece_end - begin) as usize];
                        batch.write(region, at, piece)
                    }
                    (Origin::Memory, Some(local)) => {
                        let from = offset + from_start;
                        batch.write(region, at, local.slice(from..from + (piece_end - at))?)
                    }
                    (Origin::Memory, None) => return Ok(None),
                };
                let ticket = ticket?;
                if goes_now {
                    batch.submit();
                } else {
                    // Until the flush, or until there is enough to send.
                    batch.hold();
                }
                Ok(Some(ticket))
            })?;
            at = piece_end;
        }
        let written = match atomicity {
            Atomicity::Words => &mut lane.gathered,
            Atomicity::Relaxed => &mut lane.direct,
        };
        *written = Some(written.map_or((begin, end), |(first, last)| (first.min(begin), last.max(end))));
        Ok(())
    }

    fn finish(&self, lane: &mut Lane) -> Result<(), RemotePoolError> {
        let tickets = self.post_flushes(lane)?;
        self.wait_flushed(tickets)
    }

    /// Flushes what the lane has written: at most two ranges, of which each way of writing has one.
    fn post_flushes(&self, lane: &mut Lane) -> Result<[Option<Ticket>; 2], RemotePoolError> {
        self.check_alive()?;
        let flushes = [(&self.data, lane.direct.take()), (&self.gathered, lane.gathered.take())];
        let mut tickets = [None; 2];
        for (slot, (region, range)) in tickets.iter_mut().zip(flushes) {
            if let Some((begin, end)) = range {
                *slot = Some(self.post(|connection| connection.flush(region, begin..end, self.durability))?);
            }
        }
        Ok(tickets)
    }

    fn wait_flushed(&self, tickets: [Option<Ticket>; 2]) -> Result<(), RemotePoolError> {
        for ticket in tickets.into_iter().flatten() {
            match self.target.wait(ticket) {
                Ok(Outcome::Flushed(Flushed { durability, .. })) if durability >= self.durability => {}
                Ok(_) => return Err(self.fail(ReplicaError::Unexpected)),
                Err(error) => return Err(self.fail(error)),
            }
        }
        Ok(())
    }

    fn post<T>(
        &self,
        step: impl FnMut(&pmof_access::Connection) -> Result<T, PostError>,
    ) -> Result<T, RemotePoolError> {
        self.target.post(step).map_err(|error| self.fail(error))
    }

    fn ask(&self, request: &Request) -> Result<Reply, RemotePoolError> {
        let _one = self.asking.lock().unwrap_or_else(PoisonError::into_inner);
        self.check_alive()?;
        self.target.ask(request).map_err(|error| self.fail(error))
    }

    fn lane(&self, index: u32) -> Result<MutexGuard<'_, Lane>, RemotePoolError> {
        let lanes = self.lane_count();
        let lane = self.lanes.get(index as usize).ok_or(RemotePoolError::NoSuchLane { lane: index, lanes })?;
        Ok(lane.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn check(&self, offset: u64, len_bytes: u64) -> Result<(), RemotePoolError> {
        let size_bytes = self.size_bytes;
        let is_inside = offset.checked_add(len_bytes).is_some_and(|end| end <= size_bytes);
        if is_inside { Ok(()) } else { Err(RemotePoolError::OutOfBounds { offset, len_bytes, size_bytes }) }
    }

    fn check_writable(&self) -> Result<(), RemotePoolError> {
        if self.access == OpenFor::Write { Ok(()) } else { Err(RemotePoolError::ReadOnly) }
    }

    fn check_alive(&self) -> Result<(), RemotePoolError> {
        self.failure.get().map_or(Ok(()), |source| Err(self.failed(source)))
    }

    /// Takes the pool out of use, unless the target only refused something. What failed first stays the reason.
    fn fail(&self, error: ReplicaError) -> RemotePoolError {
        if let ReplicaError::Refused { .. } = error {
            return self.failed(&Arc::new(error));
        }
        // Of those who fail at once, one says why the connection ended; the others only hear that it did.
        let source = self.failure.get_or_init(|| Arc::new(error));
        self.target.disconnect();
        self.failed(source)
    }

    fn failed(&self, source: &Arc<ReplicaError>) -> RemotePoolError {
        let (target, set) = (Arc::clone(&self.url), Arc::clone(&self.set));
        RemotePoolError::Failed { target, set, source: Arc::clone(source) }
    }
}

/// Whether ranges are in order, apart, and inside of another.
fn are_in(ranges: &[Range<u64>], whole: Range<u64>) -> bool {
    let is_ordered = ranges.is_sorted_by(|one, next| one.end < next.start);
    is_ordered
        && ranges.iter().all(|range| whole.start <= range.start && range.start < range.end && range.end <= whole.end)
}

/// Whether the target did not understand the question, or its memory does not tell.
fn refuses_to_tell(error: &RemotePoolError) -> bool {
    matches!(error.replica_error(), Some(ReplicaError::Refused { refusal: PoolRefusal::Failed, .. }))
}

/// When writes go out.
#[derive(Clone, Copy, Debug)]
enum Send {
    Now,
    WithFlush,
}

/// A drain under way. Its lane waits for it. Dropping it waits too, and a failure is then the next operation's.
#[must_use = "nothing is known to be durable before it was waited for"]
#[derive(Debug)]
pub struct Draining<'p> {
    pool: &'p RemotePool,
    /// `None` once they were waited for.
    tickets: Option<[Option<Ticket>; 2]>,
    _lane: MutexGuard<'p, Lane>,
}

impl Drop for Draining<'_> {
    fn drop(&mut self) {
        // The failure is kept by the pool.
        let _ = self.end();
    }
}

impl Drop for RemotePool {
    fn drop(&mut self) {
        if let Some(local) = self.local.take() {
            local.deregister();
        }
    }
}

impl Draining<'_> {
    /// Returns when all that the lane flushed is durable.
    pub fn wait(mut self) -> Result<(), RemotePoolError> {
        self.end()
    }

    fn end(&mut self) -> Result<(), RemotePoolError> {
        self.tickets.take().map_or(Ok(()), |tickets| self.pool.wait_flushed(tickets))
    }
}

/// Where bytes come from.
enum Origin<'b> {
    /// The pool's local memory.
    Memory,
    Bytes(&'b [u8]),
}

impl Question<'_> {
    fn connect(&self) -> Result<TargetConnection, RemotePoolError> {
        let RemotePoolOptions { ssh, waiting, connect_timeout, loss_timeout, .. } = self.options;
        let options = PoolOptions::default()
            .ssh(ssh.clone())
            .waiting(*waiting)
            .connect_timeout(*connect_timeout)
            .loss_timeout(*loss_timeout);
        options.reach(&mut options.peers(), self.url, None).map_err(|error| self.failed(error))
    }

    fn open(
        &self,
        access: OpenFor,
        least_bytes: u64,
        request: &dyn Fn(Durability) -> Request,
    ) -> Result<(RemotePool, Option<Attributes>), RemotePoolError> {
        let lanes = self.options.lanes;
        if !(1..=LANES_MAX).contains(&lanes) {
            return Err(RemotePoolError::BadLanes { lanes });
        }
        let target = self.connect()?;
        let reply = target.ask_when_free(&request(self.options.require.unwrap_or(Durability::Visible)));
        let opened = reply.and_then(|reply| {
            let Reply::SetOpened { size_bytes, attributes, descriptor, header_descriptor } = reply else {
                return Err(ReplicaError::Unexpected);
            };
            let data = RemoteRegion::from_descriptor(&descriptor)?;
            let has_header = !header_descriptor.is_empty();
            let header = has_header.then(|| RemoteRegion::from_descriptor(&header_descriptor)).transpose()?;
            let header_bytes = if has_header { HEADER_LEN_BYTES as u64 } else { 0 };
            if attributes.is_some() != has_header || size_bytes.checked_sub(header_bytes) != Some(data.len_bytes()) {
                return Err(ReplicaError::Unexpected);
            }
            if size_bytes < least_bytes {
                return Err(ReplicaError::Unexpected);
            }
            if let Some(wanted) = self.options.require.filter(|wanted| data.promise(*wanted).is_none()) {
                let (strongest, medium) = (data.strongest(), data.kind().to_string());
                return Err(ReplicaError::NotDurable { wanted, strongest, medium });
            }
            target.prepare(&data)?;
            Ok((size_bytes, attributes, data, header))
        });
        let (size_bytes, attributes, data, header) = opened.map_err(|error| self.failed(error))?;
        let pool = RemotePool {
            url: Arc::new(self.url.clone()),
            set: Arc::new(self.set.clone()),
            target,
            data,
            gathered: data.by_messages(),
            header,
            size_bytes,
            access,
            durability: self.options.require.unwrap_or(data.strongest()),
            local: None,
            lanes: (0..lanes).map(|_| Mutex::default()).collect(),
            asking: Mutex::new(()),
            failure: OnceLock::new(),
        };
        Ok((pool, attributes.map(|bytes: [u8; ATTRIBUTES_LEN_BYTES]| Attributes::from_bytes(&bytes))))
    }

    fn failed(&self, error: ReplicaError) -> RemotePoolError {
        let (target, set) = (Arc::new(self.url.clone()), Arc::new(self.set.clone()));
        RemotePoolError::Failed { target, set, source: Arc::new(error) }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path, time::Instant};

    use super::*;
    use crate::{Service, ServiceOptions};

    /// A target with one set, and the file of its part.
    fn target(root: &Path) -> (Service, TargetUrl, SetName) {
        fs::write(root.join("x.set"), format!("PMEMPOOLSET\n2M {}\n", root.join("part").display())).unwrap();
        let address = "tcp://127.0.0.1:0".parse().unwrap();
        let service = Service::start(root, &[address], ServiceOptions::default()).unwrap();
        let url = service.addresses()[0].clone().into();
        (service, url, SetName::new("x.set").unwrap())
    }

    /// What its flush names is all that a device makes durable.
    #[test]
    fn a_lane_flushes_all_that_it_wrote_and_not_the_last_range_alone() {
        let root = tempfile::tempdir().unwrap();
        let (_service, url, set) = target(root.path());
        let attributes = Attributes { signature: *b"TESTPOOL", incompat: 2, uuid: [1; 16], ..Default::default() };
        let pool = RemotePool::create(&url, &set, 1 << 20, Some(&attributes), &RemotePoolOptions::default()).unwrap();
        let unflushed = |pool: &RemotePool| {
            let lane = pool.lane(5).unwrap();
            (lane.direct, lane.gathered)
        };
        let writes = [(500_000, 100), (4096, 8), (900_000, 70_000), (600_000, 1)];
        for atomicity in [Atomicity::Words, Atomicity::Relaxed] {
            for (offset, len_bytes) in writes {
                pool.flush_bytes(5, offset, &vec![1; len_bytes], atomicity).unwrap();
            }
            let all = Some((0, 970_000 - pool.header_bytes()));
            let expected = if atomicity == Atomicity::Words { (None, all) } else { (all, None) };
            assert_eq!(unflushed(&pool), expected);
            pool.drain(5).unwrap();
            assert_eq!(unflushed(&pool), (None, None));
        }
        // Both ways at once.
        pool.flush_bytes(5, 8192, &[1; 8], Atomicity::Words).unwrap();
        pool.flush_bytes(5, 700_000, &[1; 8], Atomicity::Relaxed).unwrap();
        assert_eq!(pool.post_flushes(&mut pool.lane(5).unwrap()).unwrap().map(|ticket| ticket.is_some()), [true; 2]);
    }

    #[test]
    fn an_initiator_that_vanishes_before_it_keeps_the_pool_leaves_nothing() {
        let root = tempfile::tempdir().unwrap();
        let (_service, url, set) = target(root.path());
        let options = RemotePoolOptions::default();
        let question = Question { url: &url, set: &set, options: &options };
        let attributes = Attributes { signature: *b"TESTPOOL", incompat: 2, uuid: [1; 16], ..Default::default() };
        let create = |require| Request::CreateSet {
            name: set.clone(),
            size_bytes: 4096,
            attributes: Some(attributes.to_bytes()),
            require,
        };
        let (pool, _) = question.open(OpenFor::Write, 4096, &create).unwrap();
        pool.persist_bytes(0, 4096, b"not kept", Atomicity::Words).unwrap();
        assert!(root.path().join("part").exists());
        drop(pool);
        let begun = Instant::now();
        while root.path().join("part").exists() {
            assert!(begun.elapsed() < Duration::from_secs(10), "the part is still there");
            std::thread::sleep(Duration::from_millis(1));
        }
        // And the next one can make it.
        RemotePool::create(&url, &set, 4096, Some(&attributes), &options).unwrap().close().unwrap();
        assert!(root.path().join("part").exists());
    }
}
