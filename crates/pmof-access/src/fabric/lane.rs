//! The endpoint of a standing connection, and what goes over it.

use std::{io, sync::Arc};

use pmof_fabric::{Buffer, Bytes, Failure, MemoryPart, Operation, PostFailure, RemoteAddress};
use pmof_mem::causes;
use pmof_proto::{ConnectionError, LocalSlice, OperationError, OutputView, PostError, Refusal, Ticket};

use super::{
    items::{Items, Kind, Retired},
    opened::{Opened, SharedEndpoint},
    stream::{RECEIVE_BYTES, RECEIVES, Stream},
};
use crate::{
    messages::{FRONT_BYTES, Message, gather},
    wire::{DirectOutcome, Finished},
};

/// Numbers of receives, which no item has.
const RECEIVE_ID: u64 = 1 << 63;

/// Bytes that may be copied for operations that are not done, and bytes of buffers that are kept for the next ones.
const STAGED_MAX_BYTES: usize = 256 << 20;
const KEPT_MAX_BYTES: usize = 8 << 20;

/// Shorter buffers have a power of two as their length, so that they fit the next operation too.
const ROUNDED_MAX_BYTES: usize = 1 << 20;

/// Longer operations on registered memory use it where it is; copying shorter ones takes less than to keep track of it.
pub(super) const IN_PLACE_MIN_BYTES: u64 = 2048;

/// A buffer serves an operation that needs so many times less.
const FIT: usize = 4;

#[derive(Debug)]
pub(super) struct Lane {
    opened: Arc<Opened>,
    endpoint: SharedEndpoint,
    pub(super) items: Items,
    pub(super) stream: Stream,
    kept: Vec<Buffer>,
    kept_bytes: usize,
    staged_bytes: usize,
    /// The end of the stream is to be sent.
    pub(super) is_closing: bool,
    has_said_end: bool,
    /// Why it carries nothing any more.
    pub(super) broken: Option<String>,
}

impl Lane {
    pub(super) fn new(opened: &Arc<Opened>, endpoint: SharedEndpoint) -> io::Result<Self> {
        let mut stream = Stream::default();
        for _ in 0..RECEIVES {
            stream.free.push(Buffer::new(&opened.domain, RECEIVE_BYTES as usize).map_err(io::Error::other)?);
        }
        let mut lane = Self {
            opened: Arc::clone(opened),
            endpoint,
            items: Items::default(),
            stream,
            kept: Vec::new(),
            kept_bytes: 0,
            staged_bytes: 0,
            is_closing: false,
            has_said_end: false,
            broken: None,
        };
        lane.post_receives()?;
        Ok(lane)
    }

    pub(super) fn endpoint(&self) -> &SharedEndpoint {
        &self.endpoint
    }

    /// Takes in what the provider finished. True if there was anything.
    pub(super) fn poll(&mut self) -> io::Result<bool> {
        let (items, stream) = (&mut self.items, &mut self.stream);
        let mut bad = None;
        let polled = self.endpoint.lock().poll(|completion| {
            if completion.id & RECEIVE_ID == 0 {
                items.done(completion.id, completion.bytes, completion.result.map(drop));
                return;
            }
            let arrived = match (completion.result, completion.bytes) {
                (Ok(len_bytes), Bytes::Buffer(buffer)) => stream.arrive(buffer, len_bytes),
                (Ok(_), Bytes::Memory(_)) => unreachable!("receives have buffers"),
                (Err(failure), _) => Err(io::Error::new(io::ErrorKind::ConnectionAborted, failure)),
            };
            bad = bad.take().or(arrived.err());
        });
        let count = polled.map_err(io::Error::other)?;
        match bad {
            Some(error) => {
                self.broken.get_or_insert_with(|| error.to_string());
                Err(error)
            }
            None => Ok(count > 0),
        }
    }

    /// Tells the outcomes of what is done, in order.
    pub(super) fn tell(&mut self, finished: &mut dyn Finished) -> io::Result<bool> {
        let mut moved = false;
        while self.broken.is_none() {
            let Some(Retired { kind, bytes, result }) = self.items.retire() else { break };
            moved = true;
            let buffer = bytes.into_buffer();
            self.staged_bytes -= buffer.as_ref().map_or(0, Buffer::len_bytes);
            match (kind, result) {
                (Kind::Direct { ticket, into, len_bytes, .. }, Ok(())) => {
                    let copied = buffer.as_ref().map(|buffer| copy_out(buffer, len_bytes, into));
                    finished.finished(ticket, copied.unwrap_or(DirectOutcome::Done));
                    self.keep(buffer);
                }
                (Kind::Message, Ok(())) => self.keep(buffer),
                (Kind::Direct { ticket, offset, len_bytes, .. }, Err(failure)) => {
                    self.broken = Some(why_failed(&failure));
                    finished.finished(ticket, DirectOutcome::Failed(error_of(&failure, offset, len_bytes)));
                }
                (Kind::Message, Err(failure)) => {
                    let why = why_failed(&failure);
                    self.broken = Some(why.clone());
                    return Err(io::Error::new(io::ErrorKind::ConnectionAborted, why));
                }
            }
        }
        Ok(moved)
    }

    /// Hands over to the provider what waits, as far as it takes it.
    pub(super) fn hand_over(&mut self) -> io::Result<()> {
        if self.broken.is_some() {
            return Ok(());
        }
        self.post_receives()?;
        if self.stream.has_untold() && self.stream.may_send(Message::Credit) {
            self.push_message(Message::Credit, &[])?;
        }
        if self.is_closing && !self.has_said_end && self.stream.may_send(Message::End) {
            self.has_said_end = true;
            self.push_message(Message::End, &[])?;
        }
        if !self.items.has_waiting() {
            return Ok(());
        }
        let mut endpoint = self.endpoint.lock();
        let posted = self.items.post(|operation, bytes, len_bytes, id| {
            endpoint
                .post(operation, bytes, len_bytes, id)
                .map_err(|(bytes, failure)| (bytes, (failure != PostFailure::Again).then_some(failure)))
        });
        drop(endpoint);
        posted.map(drop).map_err(|failure| {
            let why = format!("libfabric takes no more operations: {}", causes(&failure));
            self.broken = Some(why.clone());
            io::Error::new(io::ErrorKind::ConnectionAborted, why)
        })
    }

    fn post_receives(&mut self) -> io::Result<()> {
        if self.stream.free.is_empty() {
            return Ok(());
        }
        let mut endpoint = self.endpoint.lock();
        while let Some(buffer) = self.stream.free.pop() {
            let len_bytes = buffer.len_bytes();
            if let Err((bytes, failure)) = endpoint.post(Operation::Receive, buffer, len_bytes, RECEIVE_ID) {
                self.stream.free.extend(bytes.into_buffer());
                return if failure == PostFailure::Again { Ok(()) } else { Err(io::Error::other(failure)) };
            }
        }
        Ok(())
    }

    /// Sends bytes of the stream, as far as the other side has room for messages.
    pub(super) fn send(&mut self, view: &OutputView<'_>) -> io::Result<usize> {
        let mut total = 0;
        let room = self.stream.message_bytes();
        loop {
            let mut buffer = self.buffer(RECEIVE_BYTES as usize).map_err(io::Error::other)?;
            let len = gather(view, total, &mut buffer.bytes_mut()[FRONT_BYTES..room])?;
            let may_go = self.stream.may_send(Message::Stream) && !self.is_closing;
            if len == 0 || !may_go {
                self.keep(Some(buffer));
                return if total > 0 || len == 0 { Ok(total) } else { Err(io::ErrorKind::WouldBlock.into()) };
            }
            let front = self.stream.front(Message::Stream);
            buffer.bytes_mut()[..FRONT_BYTES].copy_from_slice(&front);
            self.push(Kind::Message, Operation::Send, buffer, FRONT_BYTES + len);
            total += len;
        }
    }

    fn push_message(&mut self, message: Message, bytes: &[u8]) -> io::Result<()> {
        let mut buffer = self.buffer(RECEIVE_BYTES as usize).map_err(io::Error::other)?;
        let front = self.stream.front(message);
        buffer.bytes_mut()[..FRONT_BYTES].copy_from_slice(&front);
        buffer.bytes_mut()[FRONT_BYTES..FRONT_BYTES + bytes.len()].copy_from_slice(bytes);
        // Behind the last message the endpoint is closed: it has to have arrived, and all before it.
        let operation = if message == Message::End { Operation::SendDelivered } else { Operation::Send };
        self.push(Kind::Message, operation, buffer, FRONT_BYTES + bytes.len());
        Ok(())
    }

    /// Queues a write of memory where it is, or of what `fill` copies.
    pub(super) fn write(
        &mut self,
        (ticket, offset): (Ticket, u64),
        to: RemoteAddress,
        len_bytes: u64,
        from: Option<LocalSlice>,
        fill: impl FnOnce(&mut [u8]) -> Result<(), PostError>,
    ) -> Result<(), PostError> {
        if let Some(part) = from.and_then(|from| self.in_place(&from)) {
            let kind = Kind::Direct { ticket, offset, len_bytes, into: None };
            self.items.push(kind, Operation::Write(to), part.into(), len_bytes as usize);
            return Ok(());
        }
        let mut buffer = self.buffer(len_bytes as usize)?;
        fill(&mut buffer.bytes_mut()[..len_bytes as usize])?;
        let kind = Kind::Direct { ticket, offset, len_bytes, into: None };
        self.push(kind, Operation::Write(to), buffer, len_bytes as usize);
        Ok(())
    }

    /// Queues a read.
    pub(super) fn read(
        &mut self,
        (ticket, offset): (Ticket, u64),
        from: RemoteAddress,
        into: LocalSlice,
    ) -> Result<(), PostError> {
        let len_bytes = into.len_bytes;
        let part = if len_bytes < IN_PLACE_MIN_BYTES { None } else { self.in_place(&into) };
        if let Some(part) = part {
            let kind = Kind::Direct { ticket, offset, len_bytes, into: None };
            self.items.push(kind, Operation::Read(from), part.into(), len_bytes as usize);
            return Ok(());
        }
        let buffer = self.buffer(len_bytes as usize)?;
        let kind = Kind::Direct { ticket, offset, len_bytes, into: Some(into) };
        self.push(kind, Operation::Read(from), buffer, len_bytes as usize);
        Ok(())
    }

    /// The memory itself, where the provider can use it.
    fn in_place(&self, local: &LocalSlice) -> Option<MemoryPart> {
        MemoryPart::new(&self.opened.domain, Arc::clone(&local.memory), (local.offset, local.len_bytes))
    }

    fn push(&mut self, kind: Kind, operation: Operation, buffer: Buffer, len_bytes: usize) {
        self.staged_bytes += buffer.len_bytes();
        self.items.push(kind, operation, buffer.into(), len_bytes);
    }

    pub(super) fn has_room(&self, len_bytes: u64) -> bool {
        self.items.is_empty() || self.staged_bytes as u64 + len_bytes <= STAGED_MAX_BYTES as u64
    }

    /// A buffer of at least so many bytes.
    fn buffer(&mut self, len_bytes: usize) -> Result<Buffer, PostError> {
        let wanted = len_bytes.max(RECEIVE_BYTES as usize);
        let wanted = if wanted < ROUNDED_MAX_BYTES { wanted.next_power_of_two() } else { wanted };
        let fits = |buffer: &Buffer| (wanted..=wanted.saturating_mul(FIT)).contains(&buffer.len_bytes());
        if let Some(at) = self.kept.iter().rposition(fits) {
            let buffer = self.kept.swap_remove(at);
            self.kept_bytes -= buffer.len_bytes();
            return Ok(buffer);
        }
        Buffer::new(&self.opened.domain, wanted)
            .map_err(|error| PostError::LocalMemory { why: causes(&error).to_string() })
    }

    fn keep(&mut self, buffer: Option<Buffer>) {
        let Some(buffer) = buffer else { return };
        if self.kept_bytes + buffer.len_bytes() <= KEPT_MAX_BYTES {
            self.kept_bytes += buffer.len_bytes();
            self.kept.push(buffer);
        }
    }

    /// Ends all that is under way.
    pub(super) fn stop(&mut self) {
        self.broken.get_or_insert_with(|| "the connection was closed".to_owned());
        self.endpoint.lock().close();
        self.items.clear();
        self.staged_bytes = 0;
    }
}

/// What a read brought goes to its place.
fn copy_out(buffer: &Buffer, len_bytes: u64, into: Option<LocalSlice>) -> DirectOutcome {
    let Some(into) = into else { return DirectOutcome::Done };
    match into.memory.store(into.offset, &buffer.bytes()[..len_bytes as usize]) {
        Ok(()) => DirectOutcome::Done,
        Err(_) => DirectOutcome::Failed(OperationError::ConnectionEnded(ConnectionError::LocalMemoryFailed {
            what: "the destination of a read",
        })),
    }
}

fn why_failed(failure: &Failure) -> String {
    format!("libfabric says: {failure}")
}

/// Where the provider says that the other side refused the operation, that; else its outcome is unknown.
fn error_of(failure: &Failure, offset: u64, len_bytes: u64) -> OperationError {
    if failure.is_refusal() {
        OperationError::Refused { refusal: Refusal::DeviceRefused, offset, len_bytes, limit: 0 }
    } else {
        OperationError::ConnectionEnded(ConnectionError::Lost { why: why_failed(failure) })
    }
}
