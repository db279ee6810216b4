//! The RDS socket of a standing connection, and what goes over it.

use std::{collections::VecDeque, io, net::SocketAddrV4, sync::Arc};

use pmof_proto::OutputView;
use pmof_rds::{SendFailure, Socket};

use super::stream::{DATAGRAM_BYTES, Stream};
use crate::messages::{FRONT_BYTES, Message, gather};

/// Datagrams that are taken in before others get their turn.
const RECEIVES_PER_TURN: usize = 32;

#[derive(Debug)]
pub(super) struct Lane {
    socket: Arc<Socket>,
    /// Where the other side's socket is bound; from when it is known.
    peer: Option<SocketAddrV4>,
    pub(super) stream: Stream,
    /// Messages that the socket has not taken yet.
    waiting: VecDeque<Vec<u8>>,
    /// Where datagrams are received.
    incoming: Box<[u8]>,
    /// Datagrams of others than the other side, which were dropped.
    strays: u64,
    /// The end of the stream is to be sent.
    pub(super) is_closing: bool,
    has_said_end: bool,
    /// Why it carries nothing any more.
    pub(super) broken: Option<String>,
}

impl Lane {
    pub(super) fn new(socket: Arc<Socket>) -> Self {
        Self {
            socket,
            peer: None,
            stream: Stream::default(),
            waiting: VecDeque::new(),
            // One byte more than there may be, so that a longer one is noticed.
            incoming: vec![0; DATAGRAM_BYTES as usize + 1].into(),
            strays: 0,
            is_closing: false,
            has_said_end: false,
            broken: None,
        }
    }

    pub(super) fn local_address(&self) -> SocketAddrV4 {
        self.socket.local_address()
    }

    pub(super) fn set_peer(&mut self, peer: SocketAddrV4) {
        self.peer = Some(peer);
    }

    /// Takes in what came. True if there was anything.
    pub(super) fn poll(&mut self) -> io::Result<bool> {
        self.poll_socket().inspect_err(|error| {
            self.broken.get_or_insert_with(|| error.to_string());
        })
    }

    fn poll_socket(&mut self) -> io::Result<bool> {
        let mut moved = false;
        let mut done = Vec::new();
        for _ in 0..RECEIVES_PER_TURN {
            let received = match self.socket.receive(&mut self.incoming, &mut done) {
                Ok(Some(received)) => received,
                Ok(None) => continue,
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => break,
                Err(error) => return Err(error),
            };
            if Some(received.from) != self.peer {
                self.strays += 1;
                log::debug!(
                    target: "pmof::connection",
                    event = "stray"; "a datagram of {} was dropped: the other side is elsewhere; {} so far", received.from, self.strays
                );
                continue;
            }
            moved = true;
            let Some(message) =
                self.incoming.get(..received.len_bytes).filter(|bytes| bytes.len() < self.incoming.len())
            else {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "the other side sent a message that is too long",
                ));
            };
            self.stream.arrive(message)?;
        }
        Ok(moved)
    }

    /// Hands what waits to the kernel, as far as it takes it. True if anything went.
    pub(super) fn hand_over(&mut self) -> io::Result<bool> {
        if self.broken.is_some() {
            return Ok(false);
        }
        if self.stream.has_untold() {
            self.answer();
        }
        if self.is_closing && !self.has_said_end && self.stream.may_send(Message::End) {
            self.has_said_end = true;
            self.push_empty(Message::End);
        }
        let Some(peer) = self.peer else { return Ok(false) };
        let mut moved = false;
        while let Some(message) = self.waiting.front() {
            match self.socket.send(peer, message) {
                Ok(()) => {
                    self.waiting.pop_front();
                    moved = true;
                }
                Err(SendFailure::Again) => break,
                Err(error) => {
                    let why = format!("RDS takes no more messages: {}", pmof_mem::causes(&error));
                    self.broken = Some(why.clone());
                    return Err(io::Error::new(io::ErrorKind::ConnectionAborted, why));
                }
            }
        }
        Ok(moved)
    }

    /// Tells the other side what was given back, unless it is told already.
    pub(super) fn answer(&mut self) {
        if self.stream.may_send(Message::Credit) {
            self.push_empty(Message::Credit);
        }
    }

    fn push_empty(&mut self, message: Message) {
        let front = self.stream.front(message);
        self.waiting.push_back(front.to_vec());
    }

    /// Sends bytes of the stream, as far as the other side has room for messages.
    pub(super) fn send(&mut self, view: &OutputView<'_>) -> io::Result<usize> {
        let mut total = 0;
        while self.stream.may_send(Message::Stream) && !self.is_closing {
            let mut message = vec![0; self.stream.message_bytes()];
            let len = gather(view, total, &mut message[FRONT_BYTES..])?;
            if len == 0 {
                return Ok(total);
            }
            message.truncate(FRONT_BYTES + len);
            message[..FRONT_BYTES].copy_from_slice(&self.stream.front(Message::Stream));
            self.waiting.push_back(message);
            total += len;
        }
        if total > 0 { Ok(total) } else { Err(io::ErrorKind::WouldBlock.into()) }
    }

    /// Whether something waits for the kernel to take it.
    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether the other side has not heard all that was said: the kernel forgets it when the socket is closed.
    pub(super) fn has_to_say(&self) -> bool {
        self.broken.is_none()
            && (self.has_waiting() || self.stream.awaits_answer() || (self.is_closing && !self.has_said_end))
    }
}
