//! The floor of verbs: the same work requests on a queue pair at each end, with nothing around them.
//!
//! A durable write is a write and what its method posts behind it, in one batch: a read of 8 bytes, a native flush of the range, or a message
//! whose answer is waited for. A write alone, or a read, is done by its completion. The server's memory is anonymous; it names its address
//! and key in the private data of its accept, 8 and 4 bytes, little-endian. The client asks with one byte: 1 where the server has messages
//! to answer, for which it spins, else 0.

use std::{
    collections::VecDeque,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use pmof::Method;
use pmof_console::output::say;
use pmof_mem::{Medium, Memory};
use pmof_verbs::{
    CmEventKind, CmId, CompletionQueue, ConnectParameters, Device, EventChannel, MemoryRegion, MrAccess, Opcode,
    Operation, Payload, Placement, QueuePair, QueuePairOptions, RESOLVE_TIMEOUT, Receive, RemoteAddress,
    WorkCompletion, WorkRequest,
};

use super::{
    engine::{
        Engine,
        polled::{Polled, SPINS_PER_GLANCE, STALL_LIMIT, sleep_on, wait},
    },
    pattern::{Kind, Post},
    stage::POOL_BYTES,
};

/// Receives of each end that has messages, and bytes of each message.
const RECEIVES: usize = 64;
const MESSAGE_BYTES: u64 = 8;

/// Bytes of the read that follows a write.
const READ_BEHIND_BYTES: u64 = 8;

/// Completions that are taken at once.
const TAKEN: usize = 16;

/// Numbers of work requests that are not an operation of a slot.
const RECEIVE: u64 = u64::MAX;
const MESSAGE: u64 = u64::MAX - 1;

/// One end of a connection.
#[derive(Debug)]
struct End {
    queue_pair: QueuePair,
    queue: CompletionQueue,
    region: MemoryRegion,
    /// Where in the region messages arrive.
    messages_at: u64,
}

impl End {
    /// `len_bytes` for operations, and messages behind them.
    fn new(id: &CmId, len_bytes: u64, operations: usize, notified: bool) -> Result<Self> {
        let device = id.device()?;
        let domain = device.protection_domain()?;
        let (requests, receives) = (u32::try_from(operations + RECEIVES)?, RECEIVES as u32);
        let queue = CompletionQueue::new(&device, requests + receives, notified)?;
        let memory: Arc<dyn Medium> = Arc::new(Memory::anonymous(len_bytes + RECEIVES as u64 * MESSAGE_BYTES)?);
        let total_bytes = memory.len_bytes();
        let region = domain.register(memory, 0, total_bytes, rights(&device))?;
        let options = QueuePairOptions {
            send_cq: queue.clone(),
            receive_cq: queue.clone(),
            srq: None,
            send_depth: requests,
            receive_depth: receives,
            inline_bytes: 0,
            max_sge: 1,
            flush: true,
            atomic_write: false,
            classic: false,
        };
        let queue_pair = id.create_queue_pair(&domain, &options)?;
        let mut end = Self { queue_pair, queue, region, messages_at: len_bytes };
        for _ in 0..RECEIVES {
            end.receive()?;
        }
        Ok(end)
    }

    /// Posts a receive. All of them have the same memory: nobody looks at what a message says.
    fn receive(&mut self) -> Result<()> {
        let into = self.region.sge(self.messages_at, MESSAGE_BYTES).context("a message lies outside of the region")?;
        Ok(self.queue_pair.post_receives(&[Receive { id: RECEIVE, into }])?)
    }

    fn message(&self) -> Result<WorkRequest<'static>> {
        let from = self.region.sge(self.messages_at, MESSAGE_BYTES).context("a message lies outside of the region")?;
        Ok(signaled(MESSAGE, Operation::Send { payload: Payload::Sge(from) }))
    }

    /// Takes completions; counts messages and hands the numbers of operations on.
    fn poll(&mut self, mut done: impl FnMut(u64)) -> Result<usize> {
        let mut taken = [WorkCompletion::default(); TAKEN];
        let count = self.queue.poll(&mut taken)?;
        let mut messages = 0;
        for completion in &taken[..count] {
            ensure!(completion.is_success(), "a work request of the floor failed: {:?}", completion.status());
            match completion.wr_id() {
                RECEIVE => messages += 1,
                MESSAGE => {}
                id => done(id),
            }
            debug_assert_eq!(completion.wr_id() == RECEIVE, completion.opcode() == Opcode::Receive);
        }
        for _ in 0..messages {
            self.receive()?;
        }
        Ok(messages)
    }
}

/// What the server's region allows; a native flush where the device has it.
fn rights(device: &Device) -> MrAccess {
    let rights = MrAccess::LOCAL_WRITE | MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE;
    if device.capabilities().native_flush_global { rights | MrAccess::FLUSH_GLOBAL } else { rights }
}

fn signaled(id: u64, operation: Operation<'_>) -> WorkRequest<'_> {
    WorkRequest { id, signaled: true, fence: false, operation }
}

/// The next event, or `None` after `limit`.
fn next_event(channel: &EventChannel, limit: Duration) -> Result<Option<CmEventKind>> {
    let until = Instant::now() + limit;
    loop {
        if let Some(event) = channel.next_event()? {
            return Ok(Some(event.kind));
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        sleep_on(channel, left)?;
    }
}

/// Serves each connection on a thread of its own, until it is disconnected. Says where it listens.
pub(super) fn serve(at: SocketAddr) -> Result<()> {
    let channel = EventChannel::new()?;
    let listener = CmId::new(&channel)?;
    listener.bind(at)?;
    listener.listen(16)?;
    let address = listener.local_address().context("the listener has no address")?;
    say!("ready tcp://{address}");
    loop {
        let kind = next_event(&channel, STALL_LIMIT)?;
        let Some(CmEventKind::ConnectRequest { request, private_data, .. }) = kind else { continue };
        // The client learns of a failure by the connection's end; the next one is served.
        thread::Builder::new().spawn(move || serve_connection(&request, private_data.first() == Some(&1)))?;
    }
}

fn serve_connection(id: &CmId, answers: bool) -> Result<()> {
    let channel = EventChannel::new()?;
    id.migrate(&channel)?;
    let mut end = End::new(id, POOL_BYTES, RECEIVES, false)?;
    let mut place = [0; 12];
    place[..8].copy_from_slice(&end.region.address().to_le_bytes());
    place[8..].copy_from_slice(&end.region.rkey().to_le_bytes());
    id.accept(&ConnectParameters { private_data: &place, ..ConnectParameters::default() })?;
    loop {
        let patience = if answers { Duration::ZERO } else { STALL_LIMIT };
        if let Some(CmEventKind::Disconnected) = next_event(&channel, patience)? {
            id.disconnect()?;
            return Ok(());
        }
        if !answers {
            continue;
        }
        for _ in 0..SPINS_PER_GLANCE {
            for _ in 0..end.poll(|_| {})? {
                let answer = end.message()?;
                end.queue_pair.post_one(&answer)?;
            }
        }
    }
}

/// Writes and reads of a thread, and a flush behind each batch of writes.
#[derive(Debug)]
pub(super) struct VerbsFloor {
    end: End,
    remote: RemoteAddress,
    size_bytes: u64,
    depth: usize,
    batch: u32,
    method: Method,
    requests: Vec<WorkRequest<'static>>,
    /// Slots that wait for the answer to their message, in order.
    flushing: VecDeque<usize>,
    over: Vec<usize>,
    id: CmId,
    _channel: EventChannel,
}

/// What a floor does.
#[derive(Clone, Copy, Debug)]
pub(super) struct VerbsWork {
    pub(super) size_bytes: u64,
    pub(super) depth: usize,
    /// Writes with one flush; 0: each write is done by its completion.
    pub(super) batch: u32,
    /// What follows the writes.
    pub(super) method: Method,
    /// Spin on the completion queue.
    pub(super) polling: bool,
}

impl VerbsFloor {
    pub(super) fn connect(to: SocketAddr, source: Option<IpAddr>, work: VerbsWork) -> Result<Self> {
        let VerbsWork { size_bytes, depth, batch, method, polling } = work;
        let channel = EventChannel::new()?;
        let id = CmId::new(&channel)?;
        id.resolve_address(source.map(|ip| SocketAddr::new(ip, 0)), to, RESOLVE_TIMEOUT)?;
        let mut private_data = None;
        while private_data.is_none() {
            let kind = next_event(&channel, STALL_LIMIT)?.context("the floor server does not answer; see above")?;
            match kind {
                CmEventKind::AddressResolved => id.resolve_route(RESOLVE_TIMEOUT)?,
                CmEventKind::RouteResolved => break,
                kind => bail!("there is no way to the floor server: {kind:?}"),
            }
        }
        let slots_bytes = (size_bytes.max(READ_BEHIND_BYTES)) * depth as u64;
        let end = End::new(&id, slots_bytes, depth * (batch as usize + 1), !polling)?;
        let answers = [u8::from(method == Method::SendAfterWrite)];
        id.connect(&ConnectParameters { private_data: &answers, ..ConnectParameters::default() })?;
        while private_data.is_none() {
            match next_event(&channel, STALL_LIMIT)?.context("the floor server does not answer; see above")? {
                CmEventKind::Established { private_data: data, .. } => private_data = Some(data),
                kind => bail!("the floor server gave no connection: {kind:?}"),
            }
        }
        let place = private_data.filter(|data| data.len() >= 12).context("the floor server named no memory")?;
        let address = u64::from_le_bytes(std::array::from_fn(|at| place[at]));
        let rkey = u32::from_le_bytes(std::array::from_fn(|at| place[8 + at]));
        Ok(Self {
            end,
            remote: RemoteAddress { address, rkey },
            size_bytes,
            depth,
            batch,
            method,
            requests: Vec::new(),
            flushing: VecDeque::new(),
            over: Vec::new(),
            id,
            _channel: channel,
        })
    }

    fn at(&self, place: u64) -> RemoteAddress {
        RemoteAddress { address: self.remote.address + place, ..self.remote }
    }

    /// Adds what makes a range durable, with a slot's number.
    fn flush(&mut self, range: std::ops::Range<u64>, slot: usize) -> Result<()> {
        let request = match self.method {
            Method::NativeFlush => {
                let len_bytes = u32::try_from(range.end - range.start)?;
                let (at, placement) = (self.at(range.start), Placement::Global);
                signaled(slot as u64, Operation::Flush { at, len_bytes, placement, whole_region: false })
            }
            Method::SendAfterWrite => {
                self.flushing.push_back(slot);
                self.end.message()?
            }
            _ => {
                let into = self.end.region.sge(0, READ_BEHIND_BYTES).context("a read is too long")?;
                // The region of the server ends behind its messages, so there are 8 bytes everywhere.
                signaled(slot as u64, Operation::Read { from: self.at(range.start), into })
            }
        };
        self.requests.push(request);
        Ok(())
    }

    fn hand_over(&mut self) -> Result<()> {
        let posted = self.end.queue_pair.post(&self.requests);
        self.requests.clear();
        Ok(posted?)
    }
}

impl Polled for VerbsFloor {
    fn poll(&mut self) -> Result<bool> {
        let over = &mut self.over;
        let answers = self.end.poll(|id| over.push(id as usize))?;
        over.extend(self.flushing.drain(..answers.min(self.flushing.len())));
        Ok(!over.is_empty())
    }

    fn spins(&self) -> bool {
        self.end.queue.channel().is_none()
    }

    fn sleep(&mut self, limit: Duration) -> Result<()> {
        let Some(channel) = self.end.queue.channel().map(Arc::clone) else { return Ok(()) };
        self.end.queue.request_notify()?;
        if !self.poll()? {
            sleep_on(channel.as_ref(), limit)?;
        }
        self.end.queue.take_event()?;
        Ok(())
    }
}

impl Engine for VerbsFloor {
    fn depth(&self) -> usize {
        self.depth
    }

    fn post(&mut self, posts: &[Post]) -> Result<()> {
        let slot_bytes = self.size_bytes.max(READ_BEHIND_BYTES);
        for post in posts {
            let here = self.end.region.sge(post.slot as u64 * slot_bytes, self.size_bytes);
            let here = here.context("an operation lies outside of the region")?;
            let flushes = post.kind == Kind::Write && self.batch > 0;
            for place in &post.places {
                let at = self.at(*place);
                let operation = match post.kind {
                    Kind::Read => Operation::Read { from: at, into: here },
                    Kind::Write => Operation::Write { to: at, payload: Payload::Sge(here) },
                };
                let request = signaled(post.slot as u64, operation);
                self.requests.push(WorkRequest { signaled: !flushes, ..request });
            }
            if flushes {
                self.flush(post.range(self.size_bytes), post.slot)?;
            }
        }
        self.hand_over()
    }

    fn collect(&mut self, until: Option<Instant>, done: &mut Vec<usize>) -> Result<()> {
        wait(self, until)?;
        done.append(&mut self.over);
        Ok(())
    }

    fn settle(&mut self) -> Result<()> {
        if self.batch > 0 {
            return Ok(());
        }
        self.flush(0..POOL_BYTES, 0)?;
        self.hand_over()?;
        wait(self, None)?;
        ensure!(self.over.pop() == Some(0), "something was in flight");
        Ok(())
    }
}

impl Drop for VerbsFloor {
    fn drop(&mut self) {
        // The server learns of this end by the disconnect, or by the identifier's drop.
        let _ = self.id.disconnect();
    }
}
