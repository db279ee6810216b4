//! The floor of libfabric: the same calls on an endpoint at each end, with nothing around them.
//!
//! A persist is a write that is done when the other side sees it (`FI_DELIVERY_COMPLETE`), a message behind it, and the answer; a write
//! alone, or a read, is done by its completion. Both ends spin. The ends exchange 276 bytes each way over a TCP connection, whose end ends
//! the server's thread:
//!
//! | bytes | what |
//! |---|---|
//! | 8 | the address of the memory, little-endian as all numbers; 0 from the client |
//! | 8 | its key; 0 from the client |
//! | 4 | bytes of the name |
//! | 256 | the name of the endpoint; zeros behind it. With connected endpoints that of the server's passive one, and none from the client |

use std::{
    collections::VecDeque,
    io::{self, Read as _, Write as _},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    sync::Arc,
    thread,
    time::Instant,
};

use anyhow::{Context as _, Result, bail, ensure};
use pmof_access::FabricProvider;
use pmof_fabric::{
    Buffer, Completion, Domain, Endpoint, EndpointKind, EndpointOptions, MemoryRegion, MrAccess, Operation,
    PassiveEndpoint, PostFailure, Query, RemoteAddress, list,
};

use super::{
    engine::{
        Engine,
        polled::{Polled, SPINS_PER_GLANCE, STALL_LIMIT, wait},
    },
    pattern::{Kind, Post},
    stage::POOL_BYTES,
};

/// The providers that it has a bare program of.
pub(super) const FLOORS: [FabricProvider; 3] = [FabricProvider::Tcp, FabricProvider::TcpConnected, FabricProvider::Net];

/// Operations of each end in flight.
const OPTIONS: EndpointOptions = EndpointOptions { operations: 256 };

/// Receives of each end, and bytes of each message.
const RECEIVES: usize = 64;
const MESSAGE_BYTES: usize = 64;

/// Bytes of the longest name, and of what the ends tell each other first.
const NAME_BYTES_MAX: usize = 256;
const GREETING_BYTES: usize = 20 + NAME_BYTES_MAX;

/// Numbers of operations that are not an operation of a slot.
const RECEIVE: u64 = u64::MAX;
const MESSAGE: u64 = u64::MAX - 1;
const WRITE_OF_BATCH: u64 = u64::MAX - 2;

/// What the ends tell each other first.
#[derive(Debug)]
struct Greeting {
    memory: RemoteAddress,
    name: Vec<u8>,
}

impl Greeting {
    fn of_server(region: &MemoryRegion, name: Vec<u8>) -> Self {
        Self { memory: RemoteAddress { address: region.base(), key: region.key() }, name }
    }

    fn of_client(name: Vec<u8>) -> Self {
        Self { memory: RemoteAddress { address: 0, key: 0 }, name }
    }

    /// Sends this one; returns that of the other end.
    fn exchange(&self, stream: &mut TcpStream) -> Result<Self> {
        let Self { memory, name } = self;
        ensure!(name.len() <= NAME_BYTES_MAX, "the endpoint's name has {} bytes", name.len());
        let mut bytes = [0; GREETING_BYTES];
        bytes[..8].copy_from_slice(&memory.address.to_le_bytes());
        bytes[8..16].copy_from_slice(&memory.key.to_le_bytes());
        bytes[16..20].copy_from_slice(&(name.len() as u32).to_le_bytes());
        bytes[20..20 + name.len()].copy_from_slice(name);
        stream.write_all(&bytes)?;
        stream.read_exact(&mut bytes)?;
        let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]));
        let len = (number(16) as u32) as usize;
        ensure!(len <= NAME_BYTES_MAX, "the other end's name has {len} bytes");
        Ok(Self { memory: RemoteAddress { address: number(0), key: number(8) }, name: bytes[20..20 + len].to_vec() })
    }
}

/// One end: an endpoint, and messages.
#[derive(Debug)]
struct End {
    domain: Domain,
    endpoint: Endpoint,
    messages: Vec<Buffer>,
}

impl End {
    /// The server's, over a TCP connection.
    fn serve(stream: &mut TcpStream, provider: FabricProvider, domain: &Domain, region: &MemoryRegion) -> Result<Self> {
        if !provider.is_connected() {
            let mut end = Self::new(domain, Endpoint::open(domain, domain.info(), OPTIONS)?)?;
            let theirs = Greeting::of_server(region, end.endpoint.name()?).exchange(stream)?;
            end.endpoint.set_peer(&theirs.name)?;
            return Ok(end);
        }
        let mut passive = PassiveEndpoint::open(domain, domain.info())?;
        Greeting::of_server(region, passive.name()?).exchange(stream)?;
        let request = within_limit(|| Ok(passive.next_request()?))?;
        let mut end = Self::new(domain, Endpoint::open_for(domain, &request, OPTIONS)?)?;
        end.endpoint.accept()?;
        end.connected()
    }

    /// The client's, and the server's memory.
    fn connect(stream: &mut TcpStream, provider: FabricProvider, domain: &Domain) -> Result<(Self, RemoteAddress)> {
        if !provider.is_connected() {
            let mut end = Self::new(domain, Endpoint::open(domain, domain.info(), OPTIONS)?)?;
            let theirs = Greeting::of_client(end.endpoint.name()?).exchange(stream)?;
            end.endpoint.set_peer(&theirs.name)?;
            return Ok((end, theirs.memory));
        }
        let theirs = Greeting::of_client(Vec::new()).exchange(stream)?;
        let mut end = Self::new(domain, Endpoint::open_to(domain, domain.info(), &theirs.name, OPTIONS)?)?;
        end.endpoint.connect(&[])?;
        Ok((end.connected()?, theirs.memory))
    }

    /// Has its receives posted: some providers take messages as soon as an endpoint is connected.
    fn new(domain: &Domain, endpoint: Endpoint) -> Result<Self> {
        let mut end = Self { domain: domain.clone(), endpoint, messages: Vec::new() };
        for _ in 0..RECEIVES {
            let buffer = Buffer::new(&end.domain, MESSAGE_BYTES)?;
            end.post(Operation::Receive, buffer, MESSAGE_BYTES, RECEIVE)?;
        }
        Ok(end)
    }

    fn connected(mut self) -> Result<Self> {
        within_limit(|| Ok(self.endpoint.has_connected()?.then_some(())))?;
        Ok(self)
    }

    /// Posts as soon as there is room, which comes when completions are taken: by the caller, who holds none back.
    fn post(&mut self, operation: Operation, buffer: Buffer, len_bytes: usize, id: u64) -> Result<Option<Buffer>> {
        match self.endpoint.post(operation, buffer, len_bytes, id) {
            Ok(()) => Ok(None),
            Err((bytes, PostFailure::Again)) => Ok(bytes.into_buffer()),
            Err((_, failure)) => Err(failure.into()),
        }
    }

    /// A message for the other end.
    fn message(&mut self) -> Result<Buffer> {
        Ok(match self.messages.pop() {
            Some(buffer) => buffer,
            None => Buffer::new(&self.domain, MESSAGE_BYTES)?,
        })
    }

    /// Takes completions: receives are posted anew, and counted; the others are handed on.
    fn poll(&mut self, mut done: impl FnMut(u64, Buffer)) -> Result<usize> {
        let (mut arrived, mut failed) = (Vec::new(), None);
        let messages = &mut self.messages;
        self.endpoint.poll(|Completion { id, bytes, result, .. }| {
            failed = failed.take().or(result.err());
            let Some(buffer) = bytes.into_buffer() else { return };
            match id {
                RECEIVE => arrived.push(buffer),
                MESSAGE => messages.push(buffer),
                _ => done(id, buffer),
            }
        })?;
        if let Some(failure) = failed {
            return Err(failure.into());
        }
        let count = arrived.len();
        for buffer in arrived {
            let unposted = self.post(Operation::Receive, buffer, MESSAGE_BYTES, RECEIVE)?;
            ensure!(unposted.is_none(), "there is no room for a receive that was given back");
        }
        Ok(count)
    }
}

/// The provider's domain at an address of this machine.
fn open_domain(provider: FabricProvider, at: IpAddr) -> Result<Domain> {
    let kind = if provider.is_connected() { EndpointKind::Connected } else { EndpointKind::Datagram };
    let name = provider.library_name().map(ToOwned::to_owned);
    let query = Query { provider: name, kind, source: Some(at), ..Query::default() };
    let info = list(&query)?.into_iter().next().context("the provider has no endpoint there")?;
    Ok(Domain::open(info)?)
}

/// Asks until there is an answer.
fn within_limit<T>(mut ask: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let start = Instant::now();
    loop {
        if let Some(answer) = ask()? {
            return Ok(answer);
        }
        ensure!(start.elapsed() < STALL_LIMIT, "the endpoints do not connect in {} s", STALL_LIMIT.as_secs());
    }
}

/// Serves each connection on a thread of its own, until it closes.
pub(super) fn serve(listener: &TcpListener, provider: FabricProvider) -> io::Result<()> {
    loop {
        let (stream, _) = listener.accept()?;
        // The client learns of a failure by the closed connection; the next one is served.
        thread::Builder::new().spawn(move || serve_connection(stream, provider))?;
    }
}

fn serve_connection(mut stream: TcpStream, provider: FabricProvider) -> Result<()> {
    let domain = open_domain(provider, stream.local_addr()?.ip())?;
    let memory: Arc<dyn pmof_mem::Medium> = Arc::new(pmof_mem::Memory::anonymous(POOL_BYTES)?);
    let rights = MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE;
    let region = domain.register(memory, (0, POOL_BYTES), rights, 1)?;
    let mut end = End::serve(&mut stream, provider, &domain, &region)?;
    stream.set_nonblocking(true)?;
    let (mut due, mut spins) = (0, 0);
    loop {
        due += end.poll(|_, _| {})?;
        while due > 0 {
            let answer = end.message()?;
            if let Some(unposted) = end.post(Operation::Send, answer, 8, MESSAGE)? {
                end.messages.push(unposted);
                break;
            }
            due -= 1;
        }
        spins += 1;
        if spins % SPINS_PER_GLANCE == 0 && matches!(stream.read(&mut [0]), Ok(0)) {
            return Ok(());
        }
    }
}

/// Writes and reads of a thread, and a message behind each batch of writes.
#[derive(Debug)]
pub(super) struct FabricFloor {
    end: End,
    remote: RemoteAddress,
    size_bytes: usize,
    depth: usize,
    batch: u32,
    data: Vec<Buffer>,
    /// What has no room yet, in order.
    waiting: VecDeque<(Operation, Option<Buffer>, u64)>,
    /// Slots that wait for the answer to their message, in order.
    flushing: VecDeque<usize>,
    over: Vec<usize>,
    /// Its end is how the server learns of this one's.
    _stream: TcpStream,
}

impl FabricFloor {
    pub(super) fn connect(
        to: SocketAddr,
        provider: FabricProvider,
        size_bytes: u64,
        depth: usize,
        batch: u32,
    ) -> Result<Self> {
        let mut stream = TcpStream::connect(to)?;
        stream.set_read_timeout(Some(STALL_LIMIT))?;
        let domain = open_domain(provider, stream.local_addr()?.ip())?;
        let connected = End::connect(&mut stream, provider, &domain);
        let (end, remote) = connected.context("the floor server does not answer; see above")?;
        let (size_bytes, data, over) = (size_bytes as usize, Vec::new(), Vec::new());
        let (waiting, flushing) = (VecDeque::new(), VecDeque::new());
        Ok(Self { end, remote, size_bytes, depth, batch, data, waiting, flushing, over, _stream: stream })
    }

    /// Posts what waits, as far as there is room.
    fn hand_over(&mut self) -> Result<()> {
        while let Some((operation, buffer, id)) = self.waiting.pop_front() {
            let is_message = operation == Operation::Send;
            let buffer = match buffer {
                Some(buffer) => buffer,
                None if is_message => self.end.message()?,
                None => match self.data.pop() {
                    Some(buffer) => buffer,
                    None => Buffer::new(&self.end.domain, self.size_bytes)?,
                },
            };
            let len_bytes = if is_message { 8 } else { self.size_bytes };
            if let Some(unposted) = self.end.post(operation, buffer, len_bytes, id)? {
                self.waiting.push_front((operation, Some(unposted), id));
                break;
            }
        }
        Ok(())
    }
}

impl Polled for FabricFloor {
    fn poll(&mut self) -> Result<bool> {
        self.hand_over()?;
        let (data, over) = (&mut self.data, &mut self.over);
        let answers = self.end.poll(|id, buffer| {
            data.push(buffer);
            if id != WRITE_OF_BATCH {
                over.push(id as usize);
            }
        })?;
        over.extend(self.flushing.drain(..answers.min(self.flushing.len())));
        Ok(!over.is_empty())
    }
}

impl Engine for FabricFloor {
    fn depth(&self) -> usize {
        self.depth
    }

    fn post(&mut self, posts: &[Post]) -> Result<()> {
        let RemoteAddress { address, key } = self.remote;
        for post in posts {
            let id = if post.kind == Kind::Write && self.batch > 0 { WRITE_OF_BATCH } else { post.slot as u64 };
            for place in &post.places {
                let at = RemoteAddress { address: address + place, key };
                let operation = if post.kind == Kind::Read { Operation::Read(at) } else { Operation::Write(at) };
                self.waiting.push_back((operation, None, id));
            }
            if id == WRITE_OF_BATCH {
                self.waiting.push_back((Operation::Send, None, MESSAGE));
                self.flushing.push_back(post.slot);
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
        self.waiting.push_back((Operation::Send, None, MESSAGE));
        self.flushing.push_back(0);
        wait(self, None)?;
        if self.over.pop() != Some(0) {
            bail!("something was in flight");
        }
        Ok(())
    }
}
