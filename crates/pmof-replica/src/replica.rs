//! One replica as its initiator sees it: a connection, the control messages on it, and the pool's memory there.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use pmof_access::{
    Access, Address, CompletionQueue, ConnectOptions, Connection, ConnectionError, Durability, Flushed, Medium, Method,
    OperationError, Outcome, Peer, PostError, Region, RemoteRegion, Signal, Ticket,
};

use crate::{
    PoolRefusal, PoolUrl, ReplicaError, ReplicaReceipt,
    control::{MAX_MESSAGE_BYTES, Reply, Request},
    secret::{Nonces, Prover, Secret, random},
    ssh::SshSession,
};

/// The answer to the one control message under way carries this number.
const REQUEST_ID: u32 = 1;

/// How long a pool that another has open is asked for: longer than a target takes to notice that the other is gone, where its system
/// closed the connection.
const BUSY_WAIT: Duration = Duration::from_secs(1);
const BUSY_PAUSE: Duration = Duration::from_millis(5);

/// A connection to a target over which pools are asked for.
#[derive(Debug)]
pub(crate) struct TargetConnection {
    /// Through which it goes, and to which memory for its reads belongs.
    peer: Peer,
    connection: Connection,
    reply: Region,
    timeout: Duration,
    /// What the target lives by, if this side started it. Ends after the connection.
    session: Option<SshSession>,
}

/// A request that was sent and not answered yet.
#[derive(Debug)]
pub(crate) struct PendingReply(Ticket);

impl TargetConnection {
    pub(crate) fn open(
        peer: &Peer,
        queue: &CompletionQueue,
        address: &Address,
        options: &ConnectOptions,
        timeout: Duration,
    ) -> Result<Self, ReplicaError> {
        let connection = peer.connect(address, queue, options)?;
        let reply = peer.allocate(MAX_MESSAGE_BYTES as u64, Access::empty())?;
        Ok(Self { peer: peer.clone(), connection, reply, timeout, session: None })
    }

    /// Shows the target of an ssh session that this connection belongs to it, after the target has shown the same.
    pub(crate) fn prove(&self, secret: &Secret) -> Result<(), ReplicaError> {
        let initiator = random()?;
        let Reply::Challenged { nonce: target, proof } = self.ask(&Request::Challenge { nonce: initiator })? else {
            return Err(ReplicaError::Unexpected);
        };
        let nonces = Nonces { initiator, target };
        if !secret.is_proven(Prover::Target, &nonces, proof) {
            self.connection.disconnect();
            return Err(ReplicaError::Impostor);
        }
        match self.ask(&Request::Prove { proof: secret.proof(Prover::Initiator, &nonces) })? {
            Reply::Admitted => Ok(()),
            _ => Err(ReplicaError::Unexpected),
        }
    }

    /// Keeps the session that the target lives by as long as this connection.
    pub(crate) fn with_session(mut self, session: SshSession) -> Self {
        self.session = Some(session);
        self
    }

    /// Memory of this side that writes may be sent from where it lies.
    pub(crate) fn register(&self, memory: Arc<dyn Medium>, len_bytes: u64) -> Result<Region, ReplicaError> {
        Ok(self.peer.register(memory, 0, len_bytes, Access::empty())?)
    }

    /// Ends the connection; whoever waits on it is told.
    pub(crate) fn disconnect(&self) {
        self.connection.disconnect();
    }

    /// Waits until it is known how `region` is reached.
    pub(crate) fn prepare(&self, region: &RemoteRegion) -> Result<(), ReplicaError> {
        if self.connection.prepare(region, self.timeout) {
            return Ok(());
        }
        Err(self.timed_out())
    }

    /// How a flush of `region`, which was prepared, to `level` is done.
    pub(crate) fn flush_method(&self, region: &RemoteRegion, level: Durability) -> Result<Method, ReplicaError> {
        let (method, _) = self.connection.flush_method(region, level).map_err(post_failed)?;
        Ok(method)
    }

    /// Asks and waits for the answer.
    pub(crate) fn ask(&self, request: &Request) -> Result<Reply, ReplicaError> {
        let pending = self.send(request)?;
        self.answer(&pending)
    }

    /// Asks; again and again for a second where another has open what is asked for, who may be gone.
    pub(crate) fn ask_when_free(&self, request: &Request) -> Result<Reply, ReplicaError> {
        let pending = self.send(request)?;
        self.answer_when_free(request, &pending, Instant::now())
    }

    /// The answer to `request`, which was sent at `asked` for the first time: as [`ask_when_free`](Self::ask_when_free).
    pub(crate) fn answer_when_free(
        &self,
        request: &Request,
        pending: &PendingReply,
        asked: Instant,
    ) -> Result<Reply, ReplicaError> {
        let mut reply = self.answer(pending);
        while matches!(reply, Err(ReplicaError::Refused { refusal: PoolRefusal::Busy, .. }))
            && asked.elapsed() < BUSY_WAIT
        {
            thread::sleep(BUSY_PAUSE);
            reply = self.ask(request);
        }
        reply
    }

    pub(crate) fn send(&self, request: &Request) -> Result<PendingReply, ReplicaError> {
        let ticket = self.connection.receive(self.reply.slice(..)?, 0).map_err(post_failed)?;
        let message = request.encode(REQUEST_ID)?;
        // Writes that nobody made durable, and those of other threads, may fill the send queue.
        self.post(|connection| connection.batch().signal(Signal::OnError).send(&message))?;
        Ok(PendingReply(ticket))
    }

    /// The answer, or the refusal as an error.
    pub(crate) fn answer(&self, pending: &PendingReply) -> Result<Reply, ReplicaError> {
        let Outcome::Received { len_bytes, .. } = self.wait(pending.0)? else {
            return Err(ReplicaError::Unexpected);
        };
        let mut message = vec![0; len_bytes as usize];
        self.reply.read(0, &mut message)?;
        match Reply::decode(&message)? {
            (_, Reply::Refused { code, text }) => {
                Err(ReplicaError::Refused { refusal: PoolRefusal::from_code(code), text })
            }
            (REQUEST_ID, reply) => Ok(reply),
            _ => Err(ReplicaError::Unexpected),
        }
    }

    pub(crate) fn wait(&self, ticket: Ticket) -> Result<Outcome, ReplicaError> {
        let Some(done) = self.connection.queue().wait_for(self.connection.id(), ticket, self.timeout) else {
            return Err(self.timed_out());
        };
        done.outcome.map_err(|error| match error {
            OperationError::ConnectionEnded(why) => ReplicaError::Ended(why),
            other => ReplicaError::Operation(other),
        })
    }

    /// Does a step that posts; waits for room in the send queue where there is none.
    pub(crate) fn post<T>(&self, mut step: impl FnMut(&Connection) -> Result<T, PostError>) -> Result<T, ReplicaError> {
        let mut full_since = None;
        loop {
            match step(&self.connection) {
                Ok(posted) => return Ok(posted),
                Err(PostError::QueueFull { .. }) => {
                    let full_since = *full_since.get_or_insert_with(Instant::now);
                    if full_since.elapsed() > self.timeout || !self.connection.wait_send_room(self.timeout) {
                        return Err(self.timed_out());
                    }
                    // There may be a place, and no room for the bytes: those before have to go first.
                    self.connection.queue().wait_next_is_receive(ROOM_LOOK);
                }
                Err(error) => return Err(post_failed(error)),
            }
        }
    }

    /// Reads bytes at `offset` of `remote`, many pieces at a time, through `scratch`, which is made where it is missing or too
    /// short.
    pub(crate) fn read(
        &self,
        remote: &RemoteRegion,
        offset: u64,
        into: &mut [u8],
        scratch: &mut Option<Region>,
    ) -> Result<(), ReplicaError> {
        let mut at = offset;
        for window in into.chunks_mut(READ_WINDOW_BYTES) {
            let scratch = self.scratch(window.len(), scratch)?;
            self.read_window(remote, at, window, &scratch)?;
            at += window.len() as u64;
        }
        Ok(())
    }

    /// Reads into a part of `scratch`, which is as long as `into` at least. Several reads are kept under way.
    fn read_window(
        &self,
        remote: &RemoteRegion,
        offset: u64,
        into: &mut [u8],
        scratch: &Region,
    ) -> Result<(), ReplicaError> {
        let mut tickets = Vec::with_capacity(into.len().div_ceil(READ_PIECE_BYTES));
        for (index, piece) in into.chunks(READ_PIECE_BYTES).enumerate() {
            let at = (index * READ_PIECE_BYTES) as u64;
            tickets.push(self.post(|connection| {
                let slice = scratch.slice(at..at + piece.len() as u64)?;
                connection.read(remote, offset + at, slice)
            })?);
        }
        for (index, (piece, ticket)) in into.chunks_mut(READ_PIECE_BYTES).zip(tickets).enumerate() {
            self.wait(ticket)?;
            scratch.read((index * READ_PIECE_BYTES) as u64, piece)?;
        }
        Ok(())
    }

    /// Memory of the connection's own peer for reads of up to `len_bytes`: another peer's would have to be copied.
    fn scratch(&self, len_bytes: usize, kept: &mut Option<Region>) -> Result<Region, ReplicaError> {
        match kept {
            Some(scratch) if scratch.len_bytes() >= len_bytes as u64 => Ok(scratch.clone()),
            _ => {
                let len_bytes = len_bytes.next_power_of_two().min(READ_WINDOW_BYTES) as u64;
                let made = self.peer.allocate(len_bytes, Access::empty())?;
                Ok(kept.insert(made).clone())
            }
        }
    }

    fn timed_out(&self) -> ReplicaError {
        self.connection.disconnect();
        ReplicaError::TimedOut { timeout_ms: self.timeout.as_millis() as u64 }
    }
}

impl Drop for TargetConnection {
    fn drop(&mut self) {
        // The queue may live on, and nobody asks for these outcomes any more.
        self.connection.disconnect();
        self.connection.queue().discard(self.connection.id());
    }
}

/// An operation could not be posted: says why the connection ended, if that is the reason.
fn post_failed(error: PostError) -> ReplicaError {
    match error {
        PostError::NotConnected(why) => ReplicaError::Ended(why),
        other => ReplicaError::Post(other),
    }
}

/// An open replica.
#[derive(Debug)]
pub(crate) struct Replica {
    pub(crate) url: Arc<PoolUrl>,
    target: TargetConnection,
    /// Which replica of the pool it is.
    pub(crate) index: u16,
    remote: RemoteRegion,
    /// How it is flushed, and to which level when the pool is closed; `None` where it is open for reading only.
    writing: Option<(Method, Durability)>,
    /// Where reads arrive; made by the first read.
    scratch: Option<Region>,
    /// Why it is out of use, if it is.
    failure: Option<Arc<ReplicaError>>,
    /// The flush under way.
    flushing: Option<Ticket>,
}

impl Replica {
    pub(crate) fn new(
        url: Arc<PoolUrl>,
        target: TargetConnection,
        index: u16,
        remote: RemoteRegion,
        writing: Option<(Method, Durability)>,
    ) -> Self {
        Self { url, target, index, remote, writing, scratch: None, failure: None, flushing: None }
    }

    /// The level to which everything is flushed when the pool is closed.
    pub(crate) fn closing_level(&self) -> Option<Durability> {
        self.writing.map(|(_, level)| level)
    }

    pub(crate) fn failure(&self) -> Option<&Arc<ReplicaError>> {
        self.failure.as_ref()
    }

    /// Posts a write that goes out with the next flush. A failure is kept for [`failure`](Self::failure).
    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) {
        let _ = self.post(|connection, remote| {
            let mut batch = connection.batch();
            let ticket = batch.signal(Signal::OnError).write(remote, offset, bytes)?;
            batch.hold();
            Ok(ticket)
        });
    }

    /// Posts an 8-byte atomic write that goes out with the next flush. A failure is kept.
    pub(crate) fn atomic_write(&mut self, offset: u64, value: u64) {
        let _ = self.post(|connection, remote| {
            let mut batch = connection.batch();
            let ticket = batch.signal(Signal::OnError).atomic_write(remote, offset, value)?;
            batch.hold();
            Ok(ticket)
        });
    }

    /// Posts a flush of all writes so far and sends everything. A failure is kept.
    pub(crate) fn start_flush(&mut self, level: Durability) {
        self.flushing = self.post(|connection, remote| connection.flush(remote, .., level));
    }

    /// Waits for the flush under way. `None`: the replica failed.
    pub(crate) fn finish_flush(&mut self) -> Option<ReplicaReceipt> {
        let ticket = self.flushing.take()?;
        match (self.target.wait(ticket), self.writing) {
            (Ok(Outcome::Flushed(Flushed { durability, promise })), Some((method, _))) => {
                Some(ReplicaReceipt { replica: Arc::clone(&self.url), durability, method, promise })
            }
            (Ok(_), _) => {
                self.fail(ReplicaError::Unexpected);
                None
            }
            (Err(error), _) => {
                self.fail(error);
                None
            }
        }
    }

    /// Sends a request. A failure is kept.
    pub(crate) fn start_asking(&mut self, request: &Request) -> Option<PendingReply> {
        if self.failure.is_some() {
            return None;
        }
        self.target.send(request).map_err(|error| self.fail(error)).ok()
    }

    /// Waits for the answer. A failure is kept.
    pub(crate) fn finish_asking(&mut self, pending: &PendingReply) -> Option<Reply> {
        self.target.answer(pending).map_err(|error| self.fail(error)).ok()
    }

    /// Reads bytes at `offset`, many pieces at a time.
    pub(crate) fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), Arc<ReplicaError>> {
        if let Some(failure) = &self.failure {
            return Err(Arc::clone(failure));
        }
        let done = self.target.read(&self.remote, offset, into, &mut self.scratch);
        done.map_err(|error| self.fail(error))
    }

    /// Closes the pool there. The connection stands for more questions.
    pub(crate) fn close(self) -> Result<TargetConnection, ReplicaError> {
        if let Some(failure) = self.failure {
            let why = ConnectionError::Lost { why: failure.to_string() };
            return Err(Arc::into_inner(failure).unwrap_or(ReplicaError::Ended(why)));
        }
        match self.target.ask(&Request::Close { in_order: true })? {
            Reply::Closed => Ok(self.target),
            _ => Err(ReplicaError::Unexpected),
        }
    }

    /// Does a step on a replica in use. A failure is kept.
    fn post(&mut self, step: impl FnMut(&Connection, &RemoteRegion) -> Result<Ticket, PostError>) -> Option<Ticket> {
        if self.failure.is_some() {
            return None;
        }
        let remote = self.remote;
        let mut step = step;
        self.target.post(|connection| step(connection, &remote)).map_err(|error| self.fail(error)).ok()
    }

    /// Takes the replica out of use. What failed first stays the reason.
    pub(crate) fn fail(&mut self, error: ReplicaError) -> Arc<ReplicaError> {
        self.target.connection.disconnect();
        self.target.connection.queue().discard(self.target.connection.id());
        Arc::clone(self.failure.get_or_insert_with(|| Arc::new(error)))
    }
}

/// How long it is driven between two tries to post what found no room.
const ROOM_LOOK: Duration = Duration::from_micros(50);

/// Bytes read at once.
const READ_WINDOW_BYTES: usize = 4 << 20;

/// Bytes of one read: small enough that the first is copied out while the next arrive.
const READ_PIECE_BYTES: usize = 256 << 10;
