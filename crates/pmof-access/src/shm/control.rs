//! The control channel: who asks for the memory behind a key, and what the answer brings.
//!
//! One message a packet (`SOCK_SEQPACKET`); numbers are little-endian.
//!
//! | message | bytes | fields |
//! |---|---|---|
//! | ask | 24 | 1 (u8), 7 zeros, key (16 bytes) |
//! | answer | 40 | 2 (u8), granted 0 or 1 (u8), access bits (u16), flags (u8: 1 writable, 2 declared battery-backed, 4 declared kept), 3 zeros, key (16), offset in the file (u64), bytes of the region (u64) |
//!
//! A granted answer carries exactly two descriptors, the memory and the page; every other message carries none. Whatever
//! else comes ends the connection. Descriptors that came are closed at once, unless they are those two.

use std::{
    collections::VecDeque,
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

use pmof_mem::{Declaration, forks::Uninherited};
use pmof_proto::{Access, RegionKey};
use rustix::{
    io::Errno,
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, SocketType, recvmsg, sendmsg, sockopt,
    },
};
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout,
    little_endian::{U16, U64},
};

use super::shares::{Shares, Terms};
use crate::wire::Socket;

const ASK: u8 = 1;
const ANSWER: u8 = 2;
const FLAG_WRITABLE: u8 = 1;
const FLAG_BATTERY_BACKED: u8 = 2;
const FLAG_MEMORY_KEPT: u8 = 4;

const DECLARATIONS: [Declaration; 2] = [Declaration::BatteryBacked, Declaration::MemoryKept];

/// What says that the target's operator declared so much.
fn flag_of(declaration: Option<Declaration>) -> u8 {
    match declaration {
        Some(Declaration::BatteryBacked) => FLAG_BATTERY_BACKED,
        Some(Declaration::MemoryKept) => FLAG_MEMORY_KEPT,
        // The other side then promises less.
        _ => 0,
    }
}

/// Descriptors of a granted answer.
const GRANTED_FDS: usize = 2;

/// Messages taken in at one turn: a peer that asks without end keeps nobody else waiting.
const MESSAGES_PER_TURN: usize = 16;

/// Questions without an answer. More are asked when these are answered.
const ASKED_MAX: usize = 64;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct RawAsk {
    kind: u8,
    zero: [u8; 7],
    key: [u8; 16],
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct RawAnswer {
    kind: u8,
    granted: u8,
    access: U16,
    flags: u8,
    zero: [u8; 3],
    key: [u8; 16],
    offset: U64,
    len_bytes: U64,
}

const ASK_BYTES: usize = size_of::<RawAsk>();
const ANSWER_BYTES: usize = size_of::<RawAnswer>();
const _: () = assert!(ASK_BYTES == 24 && ANSWER_BYTES == 40);

/// An answer to a question of this side: the terms, the memory and the page, or that it has to do without.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) key: RegionKey,
    pub(super) grant: Option<(Terms, OwnedFd, OwnedFd)>,
}

/// This side's end of the channel.
#[derive(Debug)]
pub(super) struct Control {
    socket: Arc<Uninherited>,
    shares: Arc<Shares>,
    to_ask: VecDeque<RegionKey>,
    asked: VecDeque<RegionKey>,
    /// A question of the other side whose answer the socket does not take yet.
    to_answer: Option<RegionKey>,
}

impl Control {
    /// Errors: `InvalidData` if the socket is no end of a control channel, as when a hostile peer passed something else.
    pub(super) fn new(socket: OwnedFd, shares: Arc<Shares>) -> io::Result<Self> {
        let is_unix = sockopt::socket_domain(&socket) == Ok(AddressFamily::UNIX);
        if !is_unix || sockopt::socket_type(&socket) != Ok(SocketType::SEQPACKET) {
            return Err(violation("what it passed as its control channel is no such socket"));
        }
        let socket = Arc::new(Uninherited::open(|| Ok::<_, Errno>(socket))?);
        Ok(Self { socket, shares, to_ask: VecDeque::new(), asked: VecDeque::new(), to_answer: None })
    }

    /// Asks for the memory of a region, once [`progress`](Self::progress) is called.
    pub(super) fn ask(&mut self, key: RegionKey) {
        self.to_ask.push_back(key);
    }

    /// True while an answer is to come.
    pub(super) fn waits(&self) -> bool {
        !self.asked.is_empty()
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub(super) fn socket(&self) -> Socket {
        Arc::<Uninherited>::clone(&self.socket)
    }

    /// Sends what waits to be asked.
    fn send(&mut self) -> io::Result<()> {
        while let Some(key) = self.to_ask.front().copied() {
            let ask = RawAsk { kind: ASK, zero: [0; 7], key: key.0 };
            if self.asked.len() >= ASKED_MAX || !send_message(self.socket.as_fd(), ask.as_bytes(), &[])? {
                return Ok(());
            }
            self.to_ask.pop_front();
            self.asked.push_back(key);
        }
        Ok(())
    }

    /// Serves the other side's questions, which come over the connection with this number, and hands over the answers to this
    /// side's. True if anything moved.
    pub(super) fn progress(&mut self, connection: u64, mut take: impl FnMut(Answer)) -> io::Result<bool> {
        self.send()?;
        for turn in 0..MESSAGES_PER_TURN {
            if let Some(key) = self.to_answer {
                if !self.answer(connection, key)? {
                    return Ok(turn > 0);
                }
                self.to_answer = None;
            }
            let Some((message, len_bytes, fds)) = receive_message(self.socket.as_fd())? else { return Ok(turn > 0) };
            match (message[0], len_bytes) {
                (ASK, ASK_BYTES) if fds.is_empty() => {
                    let (ask, _) = RawAsk::read_from_prefix(&message).map_err(|_| violation("a short question"))?;
                    self.to_answer = Some(RegionKey(ask.key));
                }
                (ANSWER, ANSWER_BYTES) => {
                    take(self.read_answer(&message, fds)?);
                    self.send()?;
                }
                (_, 0) => return Err(io::ErrorKind::ConnectionReset.into()),
                _ => return Err(violation("a message on the control channel that is none")),
            }
        }
        Ok(true)
    }

    /// False if the socket takes no more now.
    fn answer(&self, connection: u64, key: RegionKey) -> io::Result<bool> {
        let grant = self.shares.find_for(connection, key).and_then(|share| share.grant());
        let mut raw = RawAnswer::new(key);
        let Some((terms, memory, page)) = &grant else {
            return send_message(self.socket.as_fd(), raw.as_bytes(), &[]);
        };
        raw.granted = 1;
        raw.access = terms.access.bits().into();
        raw.flags = (u8::from(terms.is_writable) * FLAG_WRITABLE) | flag_of(terms.declaration);
        raw.offset = terms.offset.into();
        raw.len_bytes = terms.len_bytes.into();
        send_message(self.socket.as_fd(), raw.as_bytes(), &[memory.as_fd(), page.as_fd()])
    }

    fn read_answer(&mut self, message: &[u8; ANSWER_BYTES], fds: Vec<OwnedFd>) -> io::Result<Answer> {
        let raw: RawAnswer = zerocopy::transmute!(*message);
        let key = RegionKey(raw.key);
        if self.asked.pop_front() != Some(key) {
            return Err(violation("an answer to a question that was not asked"));
        }
        let fds: Result<[OwnedFd; GRANTED_FDS], _> = fds.try_into();
        let grant = match (raw.granted, fds) {
            (0, Err(fds)) if fds.is_empty() => None,
            (1, Ok([memory, page])) => {
                let access = Access::from_bits(raw.access.get()).ok_or_else(|| violation("unknown rights"))?;
                let is = |flag| raw.flags & flag != 0;
                let terms = Terms {
                    access,
                    offset: raw.offset.get(),
                    len_bytes: raw.len_bytes.get(),
                    is_writable: is(FLAG_WRITABLE),
                    declaration: DECLARATIONS.into_iter().find(|declaration| is(flag_of(Some(*declaration)))),
                };
                Some((terms, memory, page))
            }
            _ => return Err(violation("an answer with the wrong number of descriptors")),
        };
        Ok(Answer { key, grant })
    }
}

impl RawAnswer {
    /// A refusal.
    fn new(key: RegionKey) -> Self {
        let (access, offset, len_bytes) = (0.into(), 0.into(), 0.into());
        Self { kind: ANSWER, granted: 0, access, flags: 0, zero: [0; 3], key: key.0, offset, len_bytes }
    }
}

/// Sends one message whole. False if the socket takes no more now, or too many descriptors are on their way.
pub(super) fn send_message(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<bool> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(GRANTED_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(violation("too many descriptors for one message"));
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    match sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags) {
        Ok(_) => Ok(true),
        Err(Errno::WOULDBLOCK | Errno::INTR | Errno::NOBUFS | Errno::TOOMANYREFS) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// A message, how long it is, and its descriptors.
type Message = ([u8; ANSWER_BYTES], usize, Vec<OwnedFd>);

/// Receives at most one message; a longer one is a violation, as are more descriptors than a message may carry.
fn receive_message(socket: BorrowedFd<'_>) -> io::Result<Option<Message>> {
    let mut message = [0; ANSWER_BYTES];
    match receive_with_fds(socket, &mut message)? {
        Some((len_bytes, fds)) => Ok(Some((message, len_bytes, fds))),
        None => Ok(None),
    }
}

/// Receives bytes and the descriptors that come with them. `None`: nothing is there.
pub(super) fn receive_with_fds(socket: BorrowedFd<'_>, into: &mut [u8]) -> io::Result<Option<(usize, Vec<OwnedFd>)>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(GRANTED_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = match recvmsg(socket, &mut [IoSliceMut::new(into)], &mut control, flags) {
        Ok(received) => received,
        Err(Errno::WOULDBLOCK | Errno::INTR) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    };
    // Taken out before anything is refused: what is not handed on is closed with the list.
    let fds: Vec<OwnedFd> = control
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds),
            _ => None,
        })
        .flatten()
        .collect();
    if received.flags.intersects(ReturnFlags::CTRUNC | ReturnFlags::TRUNC) {
        return Err(violation(
            "a message that is too long, or more descriptors than a message may carry or this process \
                              may hold (ulimit -n)",
        ));
    }
    Ok(Some((received.bytes, fds)))
}

pub(super) fn violation(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the other side broke the rules of shared memory: {what}"))
}
