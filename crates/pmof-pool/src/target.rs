//! A connection to a target, and the control messages on it.

use std::{
    cell::Cell,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use pmof_access::{
    Access, Address, CompletionQueue, ConnectOptions, Connection, ConnectionError, Durability, Medium, Method,
    OperationError, Outcome, Peer, PostError, Refusal, Region, RemoteRegion, Signal, Ticket, Traffic,
};
use pmof_bootstrap::{Nonces, Prover, Secret, SshSession, random};
use pmof_control::{
    ControlError, ControlVersion, MAX_MESSAGE_BYTES, MessageHead, PoolName, PoolRefusal, Reply, Request, SpokenVersions,
};
use pmof_replication::asking::limits::{BUSY_WAIT, busy_pauses};

use crate::ReplicaError;

/// The answer to the one control message under way carries this number.
const REQUEST_ID: u32 = 1;

/// How long it is asked who took a pool over.
const HOLDER_WAIT: Duration = Duration::from_secs(1);

/// A connection to a target over which pools are asked for.
#[derive(Debug)]
pub(crate) struct TargetConnection {
    /// Through which it goes, and to which memory for its reads belongs.
    peer: Peer,
    connection: Connection,
    /// The newest version of the control messages that the target and this program speak.
    version: ControlVersion,
    reply: Region,
    timeout: Duration,
    /// The replica that was opened keeps digests of its pages.
    keeps_digests: AtomicBool,
    /// How it was reached, to be asked over another connection.
    address: Address,
    options: ConnectOptions,
    /// What the target lives by, if this side started it. Ends after the connection.
    session: Option<SshSession>,
}

/// A request that was sent and not answered yet.
#[derive(Debug)]
pub(crate) struct PendingReply {
    /// The receive of the next message.
    ticket: Cell<Ticket>,
    /// When it was asked, or when the target said last that it works on it.
    heard: Cell<Instant>,
}

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
        let (peer, address, options) = (peer.clone(), address.clone(), options.clone());
        let version = ControlVersion::NEWEST;
        // From here on its drop ends the connection.
        let keeps_digests = AtomicBool::new(false);
        let mut target =
            Self { peer, connection, version, reply, timeout, keeps_digests, address, options, session: None };
        target.version = SpokenVersions::decode(target.connection.private_data())?.common()?;
        Ok(target)
    }

    /// Who has a pool open for writing, asked over a connection of its own, since this one has ended. `None` where the target does not say so soon, or
    /// takes no other connection.
    pub(crate) fn holder_of(&self, name: &PoolName) -> Option<String> {
        if self.session.is_some() {
            return None;
        }
        let options = self.options.clone().timeout(HOLDER_WAIT).loss_timeout(HOLDER_WAIT).give_up(None);
        let asking = Self::open(&self.peer, self.connection.queue(), &self.address, &options, HOLDER_WAIT).ok()?;
        match asking.ask(&Request::Info { name: name.clone() }) {
            Ok(Reply::Info(info)) => info.open_by,
            _ => None,
        }
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

    /// What the connection has moved.
    pub(crate) fn traffic(&self) -> Traffic {
        self.connection.traffic()
    }

    /// Why the connection has ended, if it has. It looks: a connection on which nothing was asked does not tell.
    pub(crate) fn why_ended(&self) -> Option<ConnectionError> {
        // Looks at what the other side has sent, or that it has gone.
        let _ = self.connection.next_event(Duration::ZERO);
        // Where this side ended it, another thread says why.
        self.connection.ended().filter(|why| !matches!(why, ConnectionError::ClosedHere))
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
        until_free(self.ask(request), Instant::now(), || self.ask(request))
    }

    pub(crate) fn send(&self, request: &Request) -> Result<PendingReply, ReplicaError> {
        let message = request.encode(MessageHead { version: self.version, request_id: REQUEST_ID })?;
        let ticket = self.receive()?;
        // Writes that nobody made durable, and those of other threads, may fill the send queue.
        self.post(|connection| connection.batch().signal(Signal::OnError).send(&message))?;
        Ok(PendingReply { ticket: Cell::new(ticket), heard: Cell::new(Instant::now()) })
    }

    fn receive(&self) -> Result<Ticket, ReplicaError> {
        self.connection.receive(self.reply.slice(..)?, 0).map_err(post_failed)
    }

    /// The answer, or the refusal as an error. Its time runs from the asking, so that several that are silent run out of it together, or from when the
    /// target said last that it works on it.
    pub(crate) fn answer(&self, pending: &PendingReply) -> Result<Reply, ReplicaError> {
        loop {
            let heard = pending.heard.get();
            let left = self.timeout.saturating_sub(heard.elapsed()).max(LATE_LOOK);
            match self.answer_within(pending, left) {
                Some(answer) => return answer,
                None if pending.heard.get() == heard => return Err(self.timed_out()),
                None => {}
            }
        }
    }

    /// The same, at most so long. `None`: there is no answer yet.
    pub(crate) fn answer_within(&self, pending: &PendingReply, limit: Duration) -> Option<Result<Reply, ReplicaError>> {
        let start = Instant::now();
        loop {
            let left = limit.saturating_sub(start.elapsed());
            let Some(received) = self.wait_for(pending.ticket.get(), left) else {
                return (pending.heard.get().elapsed() >= self.timeout).then(|| Err(self.timed_out()));
            };
            match received.and_then(|received| self.reply(&received)) {
                Ok(Reply::Working) => match self.receive() {
                    Ok(ticket) => {
                        pending.ticket.set(ticket);
                        pending.heard.set(Instant::now());
                    }
                    Err(error) => return Some(Err(error)),
                },
                answer => return Some(answer),
            }
        }
    }

    fn reply(&self, received: &Outcome) -> Result<Reply, ReplicaError> {
        let Outcome::Received { len_bytes, .. } = *received else {
            return Err(ReplicaError::Unexpected);
        };
        let mut message = vec![0; len_bytes as usize];
        self.reply.read(0, &mut message)?;
        let reply = read_reply(&message, self.version)?;
        if let Reply::Opened { enclosed, .. } = &reply {
            self.keeps_digests.store(enclosed.protection.is_some(), Ordering::Release);
        }
        Ok(reply)
    }

    /// Whether the replica that was opened keeps digests of its pages.
    pub(crate) fn keeps_digests(&self) -> bool {
        self.keeps_digests.load(Ordering::Acquire)
    }

    pub(crate) fn wait(&self, ticket: Ticket) -> Result<Outcome, ReplicaError> {
        self.wait_for(ticket, self.timeout).unwrap_or_else(|| Err(self.timed_out()))
    }

    /// The same, at most so long. `None`: the time is up.
    pub(crate) fn wait_for(&self, ticket: Ticket, limit: Duration) -> Option<Result<Outcome, ReplicaError>> {
        let done = self.connection.queue().wait_for(self.connection.id(), ticket, limit)?;
        Some(done.outcome.map_err(|error| match error {
            OperationError::ConnectionEnded(why) => ReplicaError::Ended(why),
            OperationError::Refused { refusal: Refusal::Damaged, limit: offset, .. } => {
                ReplicaError::Damaged { offset }
            }
            other => ReplicaError::Operation(other),
        }))
    }

    /// Does a step that posts; waits for room in the send queue where there is none.
    pub(crate) fn post<T>(&self, step: impl FnMut(&Connection) -> Result<T, PostError>) -> Result<T, ReplicaError> {
        self.post_within(self.timeout, step)?.ok_or_else(|| self.timed_out())
    }

    /// The same, and waits for so long at most. `None`: there was no room.
    pub(crate) fn post_within<T>(
        &self,
        limit: Duration,
        mut step: impl FnMut(&Connection) -> Result<T, PostError>,
    ) -> Result<Option<T>, ReplicaError> {
        let mut full_since = None;
        loop {
            match step(&self.connection) {
                Ok(posted) => return Ok(Some(posted)),
                Err(PostError::QueueFull { .. }) => {
                    let full_since = *full_since.get_or_insert_with(Instant::now);
                    if full_since.elapsed() > limit || !self.connection.wait_send_room(limit) {
                        return Ok(None);
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
        let mut damaged = None;
        for (index, (piece, ticket)) in into.chunks_mut(READ_PIECE_BYTES).zip(tickets).enumerate() {
            match self.wait(ticket) {
                Ok(_) => scratch.read((index * READ_PIECE_BYTES) as u64, piece)?,
                // The others are waited for all the same.
                Err(error @ ReplicaError::Damaged { .. }) => _ = damaged.get_or_insert(error),
                Err(error) => return Err(error),
            }
        }
        damaged.map_or(Ok(()), Err)
    }

    /// Reads ranges, and shows each piece when it has arrived, in their order, while those behind it are still on their way. Memory
    /// is taken for all of them.
    pub(crate) fn read_ranges(
        &self,
        remote: &RemoteRegion,
        ranges: &[Range<u64>],
        scratch: &mut Option<Region>,
        arrived: &mut dyn FnMut(u64, &[u8]),
    ) -> Result<(), ReplicaError> {
        let bytes: u64 = ranges.iter().map(|range| range.end - range.start).sum();
        let scratch = self.scratch(bytes as usize, scratch)?;
        let mut pieces = Vec::with_capacity(ranges.len());
        let mut at = 0;
        for range in ranges {
            let mut from = range.start;
            while from < range.end {
                let len_bytes = (range.end - from).min(READ_PIECE_BYTES as u64);
                pieces.push((from, at..at + len_bytes));
                (from, at) = (from + len_bytes, at + len_bytes);
            }
        }
        let mut piece = vec![0; READ_PIECE_BYTES.min(bytes as usize)];
        // So many at once: small ones go in one batch, and others find room in the send queue meanwhile.
        for some in pieces.chunks(READS_AT_ONCE) {
            let mut tickets = Vec::with_capacity(some.len());
            while tickets.len() < some.len() {
                let posted = tickets.len();
                self.post(|connection| {
                    let mut batch = connection.batch();
                    for (from, place) in &some[posted..] {
                        match batch.read(remote, *from, scratch.slice(place.clone())?) {
                            Ok(ticket) => tickets.push(ticket),
                            // The others when there is room.
                            Err(PostError::QueueFull { .. }) if tickets.len() > posted => break,
                            Err(error) => return Err(error),
                        }
                    }
                    batch.submit();
                    Ok(())
                })?;
            }
            let mut damaged = None;
            for ((from, place), ticket) in some.iter().zip(tickets) {
                match self.wait(ticket) {
                    Ok(_) if damaged.is_none() => {}
                    Ok(_) => continue,
                    Err(error @ ReplicaError::Damaged { .. }) => {
                        damaged.get_or_insert(error);
                        continue;
                    }
                    Err(error) => return Err(error),
                }
                let bytes = &mut piece[..(place.end - place.start) as usize];
                scratch.read(place.start, bytes)?;
                arrived(*from, bytes);
            }
            if let Some(damaged) = damaged {
                return Err(damaged);
            }
        }
        Ok(())
    }

    /// Memory of the connection's own peer for reads of up to `len_bytes`: another peer's would have to be copied.
    fn scratch(&self, len_bytes: usize, kept: &mut Option<Region>) -> Result<Region, ReplicaError> {
        match kept {
            Some(scratch) if scratch.len_bytes() >= len_bytes as u64 => Ok(scratch.clone()),
            _ => {
                let len_bytes = len_bytes.next_power_of_two() as u64;
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

/// `reply`, or where another has open what was asked for at `since`, who may be gone, the answer to asking again and again for a second.
pub(crate) fn until_free(
    mut reply: Result<Reply, ReplicaError>,
    since: Instant,
    ask: impl Fn() -> Result<Reply, ReplicaError>,
) -> Result<Reply, ReplicaError> {
    let mut pauses = busy_pauses();
    while matches!(reply, Err(ReplicaError::Refused { refusal: PoolRefusal::Busy, .. })) && since.elapsed() < BUSY_WAIT
    {
        thread::sleep(pauses.next().unwrap_or_default());
        reply = ask();
    }
    reply
}

/// An operation could not be posted: says why the connection ended, if that is the reason.
fn post_failed(error: PostError) -> ReplicaError {
    match error {
        PostError::NotConnected(why) => ReplicaError::Ended(why),
        other => ReplicaError::Post(other),
    }
}

/// How long an answer is looked for whose time was up while others were waited for: it may have come.
const LATE_LOOK: Duration = Duration::from_millis(20);

/// How long it is driven between two tries to post what found no room.
const ROOM_LOOK: Duration = Duration::from_micros(50);

/// Bytes read at once.
const READ_WINDOW_BYTES: usize = 4 << 20;

/// Reads that are posted before the first of them is waited for.
const READS_AT_ONCE: usize = 64;

/// Bytes of one read: small enough that the first is copied out while the next arrive.
const READ_PIECE_BYTES: usize = 256 << 10;

/// What a target's answer to a request of this version says.
pub(crate) fn read_reply(message: &[u8], version: ControlVersion) -> Result<Reply, ReplicaError> {
    let (head, reply) = Reply::decode(message).map_err(|error| as_of_version(error, version))?;
    head.check_version(version)?;
    match reply {
        Reply::Refused { code, text } => Err(ReplicaError::Refused { refusal: PoolRefusal::from_code(code), text }),
        reply if head.request_id == REQUEST_ID => Ok(reply),
        _ => Err(ReplicaError::Unexpected),
    }
}

/// A message that cannot be read in a version that the connection does not have is one of another version, first of all.
fn as_of_version(error: ControlError, version: ControlVersion) -> ControlError {
    let head = match &error {
        ControlError::UnsupportedVersion { .. } => None,
        error => error.head(),
    };
    head.and_then(|head| head.check_version(version).err()).unwrap_or(error)
}
