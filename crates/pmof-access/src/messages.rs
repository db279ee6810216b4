//! A stream of bytes as messages that come whole, over libfabric and RDS: what came, and the credit for what goes.

use std::{collections::VecDeque, io, ops::Range};

use pmof_proto::{InputPlace, OutputView};

/// Bytes in front of each message: how many messages were given back, modulo 2^32, then its kind, then zeros.
pub(crate) const FRONT_BYTES: usize = 8;

/// Messages that the other side must always be able to send although it has no credit for more: the credit itself.
const CREDIT_RESERVE: u32 = 1;

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Message {
    /// Bytes of the stream.
    Stream = 0,
    /// Nothing but credit.
    Credit = 1,
    /// Nothing follows.
    End = 2,
}

pub(crate) fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the other side sent {what}"))
}

/// How much each side has room for. Counts wrap.
#[derive(Debug, Default)]
pub(crate) struct Credit {
    /// Messages that the other side takes at once, and bytes of each.
    room: (u16, u32),
    /// Messages sent, and how many of them the other side has given back.
    sent: u32,
    credited: u32,
    /// Messages of the other side that were given back, and how many it was told of.
    consumed: u32,
    told: u32,
}

impl Credit {
    pub(crate) fn set_room(&mut self, messages: u16, message_bytes: u32) {
        self.room = (messages, message_bytes);
    }

    /// Bytes of the longest message that the other side takes.
    pub(crate) fn message_bytes(&self) -> u32 {
        self.room.1
    }

    /// Reads the front of a message that came; what it is, if it is one.
    pub(crate) fn take_in(&mut self, message: &[u8]) -> io::Result<Message> {
        let Some((front, content)) = message.split_first_chunk::<FRONT_BYTES>() else {
            return Err(invalid("a message that is too short"));
        };
        let [credit @ .., kind, a, b, c] = *front;
        let credited = u32::from_le_bytes(credit);
        // A number that was never sent would make this side send without end.
        if credited.wrapping_sub(self.credited) > self.unanswered() {
            return Err(invalid("back messages that were not sent"));
        }
        let message = match (kind, content.is_empty()) {
            (0, false) => Message::Stream,
            (1, true) => Message::Credit,
            (2, true) => Message::End,
            _ => return Err(invalid("a message of no known kind")),
        };
        if [a, b, c] != [0; 3] {
            return Err(invalid("a message that does not belong there"));
        }
        self.credited = credited;
        Ok(message)
    }

    /// Room of this side's is free again.
    pub(crate) fn give_back(&mut self) {
        self.consumed = self.consumed.wrapping_add(1);
    }

    /// Whether a message of this kind may go.
    pub(crate) fn may_send(&self, message: Message) -> bool {
        let credit = u32::from(self.room.0).saturating_sub(self.unanswered());
        credit > if message == Message::Stream { CREDIT_RESERVE } else { 0 }
    }

    /// Messages that were given back without the other side having been told.
    pub(crate) fn untold(&self) -> u32 {
        self.consumed.wrapping_sub(self.told)
    }

    pub(crate) fn sent(&self) -> u32 {
        self.sent
    }

    pub(crate) fn credited(&self) -> u32 {
        self.credited
    }

    /// Messages sent that the other side has not given back.
    pub(crate) fn unanswered(&self) -> u32 {
        self.sent.wrapping_sub(self.credited)
    }

    /// The front of the next message.
    pub(crate) fn front(&mut self, message: Message) -> [u8; FRONT_BYTES] {
        self.told = self.consumed;
        self.sent = self.sent.wrapping_add(1);
        let [a, b, c, d] = self.told.to_le_bytes();
        [a, b, c, d, message as u8, 0, 0, 0]
    }
}

/// Where a message that came lies.
pub(crate) trait Received {
    fn received(&self) -> &[u8];
}

impl Received for Box<[u8]> {
    fn received(&self) -> &[u8] {
        self
    }
}

/// Messages of the stream that came, each with what of it was not taken.
#[derive(Debug)]
pub(crate) struct Arrivals<B>(VecDeque<(B, Range<usize>)>);

impl<B> Default for Arrivals<B> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<B: Received> Arrivals<B> {
    /// A message came, with `content` of the stream.
    pub(crate) fn push(&mut self, message: B, content: Range<usize>) {
        self.0.push_back((message, content));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[cfg(feature = "rds")]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Moves bytes that came to their place; messages that were taken whole are given back.
    pub(crate) fn read(&mut self, place: InputPlace<'_>, mut give_back: impl FnMut(B)) -> io::Result<usize> {
        let (mut done, tail) = match place {
            InputPlace::Staging(buffer) => (0, buffer),
            InputPlace::Memory { memory, offset, len_bytes, tail } => {
                let mut done = 0;
                while done < len_bytes {
                    let at = offset + done;
                    let store = |bytes: &[u8]| memory.store(at, bytes).map_err(io::Error::other);
                    match self.take((len_bytes - done) as usize, store, &mut give_back)? {
                        0 => return Ok(done as usize),
                        count => done += count as u64,
                    }
                }
                (done as usize, tail)
            }
        };
        let mut filled = 0;
        while filled < tail.len() {
            let into = &mut tail[filled..];
            let len_max = into.len();
            let copy = |bytes: &[u8]| {
                into[..bytes.len()].copy_from_slice(bytes);
                Ok(())
            };
            match self.take(len_max, copy, &mut give_back)? {
                0 => break,
                count => filled += count,
            }
        }
        done += filled;
        Ok(done)
    }

    /// Takes at most `len_max` bytes of the first message; 0 where there is none.
    fn take(
        &mut self,
        len_max: usize,
        take: impl FnOnce(&[u8]) -> io::Result<()>,
        give_back: &mut impl FnMut(B),
    ) -> io::Result<usize> {
        let Some((message, content)) = self.0.front_mut() else { return Ok(0) };
        let count = content.len().min(len_max);
        take(&message.received()[content.start..content.start + count])?;
        content.start += count;
        if content.start == content.end {
            if let Some((message, _)) = self.0.pop_front() {
                give_back(message);
            }
        }
        Ok(count)
    }
}

/// Copies the bytes of the view from `from` on behind a message's front; returns how many.
pub(crate) fn gather(view: &OutputView<'_>, from: usize, message: &mut [u8]) -> io::Result<usize> {
    let body_len = view.body.map_or(0, |body| body.len_bytes as usize);
    let (mut skip, mut done) = (from, 0);
    for (part, len) in [view.head.len(), body_len, view.tail.len()].into_iter().enumerate() {
        let start = skip.min(len);
        let count = (len - start).min(message.len() - done);
        skip -= start;
        let into = &mut message[done..done + count];
        done += count;
        match (part, view.body) {
            (0, _) => into.copy_from_slice(&view.head[start..start + count]),
            (1, Some(body)) if count > 0 => {
                body.memory.read(body.offset + start as u64, into).map_err(io::Error::other)?;
            }
            (2, _) => into.copy_from_slice(&view.tail[start..start + count]),
            _ => {}
        }
    }
    Ok(done)
}
