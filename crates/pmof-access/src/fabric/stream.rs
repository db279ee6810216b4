//! The message stream: its receives, and the credit for them.

use std::{collections::VecDeque, io};

use pmof_fabric::Buffer;
use pmof_proto::{InputPlace, OutputView};

/// Receives of a connection, and bytes of each.
pub(super) const RECEIVES: u16 = 16;
pub(super) const RECEIVE_BYTES: u32 = 8 << 10;

/// Bytes in front of each message: how many messages were given back, modulo 2^32, then its kind, then zeros.
pub(super) const FRONT_BYTES: usize = 8;

/// Messages that the other side must always be able to send although it has no credit for more: the credit itself.
const CREDIT_RESERVE: u32 = 1;

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Message {
    /// Bytes of the stream.
    Stream = 0,
    /// Nothing but credit.
    Credit = 1,
    /// Nothing follows.
    End = 2,
}

#[derive(Debug)]
struct Arrived {
    buffer: Buffer,
    start: usize,
    end: usize,
}

/// What came, and how much the other side has room for.
#[derive(Debug, Default)]
pub(super) struct Stream {
    arrived: VecDeque<Arrived>,
    /// Receives to be posted anew.
    pub(super) free: Vec<Buffer>,
    /// The other side said that nothing follows.
    pub(super) has_ended: bool,
    /// Messages that the other side takes at once, and bytes of each.
    room: (u16, u32),
    /// Messages sent, and how many of them the other side has given back; both wrap.
    sent: u32,
    credited: u32,
    /// Messages of the other side that were given back, and how many it was told of; both wrap.
    consumed: u32,
    told: u32,
}

impl Stream {
    pub(super) fn set_room(&mut self, receives: u16, receive_bytes: u32) {
        self.room = (receives, receive_bytes);
    }

    /// Bytes of the longest message.
    pub(super) fn message_bytes(&self) -> usize {
        self.room.1.min(RECEIVE_BYTES) as usize
    }

    /// A message came.
    pub(super) fn arrive(&mut self, buffer: Buffer, len_bytes: usize) -> io::Result<()> {
        let bad = |what: &str| io::Error::new(io::ErrorKind::InvalidData, format!("the other side sent {what}"));
        let Some((front, _)) = buffer.bytes()[..len_bytes.min(buffer.len_bytes())].split_first_chunk::<FRONT_BYTES>()
        else {
            return Err(bad("a message that is too short"));
        };
        let [credit @ .., kind, a, b, c] = *front;
        let credited = u32::from_le_bytes(credit);
        // A number that was never sent would make this side send without end.
        if credited.wrapping_sub(self.credited) > self.sent.wrapping_sub(self.credited) {
            return Err(bad("back messages that were not sent"));
        }
        if self.has_ended || [a, b, c] != [0; 3] {
            return Err(bad("a message that does not belong there"));
        }
        self.credited = credited;
        match kind {
            0 if len_bytes > FRONT_BYTES => {
                self.arrived.push_back(Arrived { buffer, start: FRONT_BYTES, end: len_bytes });
                return Ok(());
            }
            1 if len_bytes == FRONT_BYTES => {}
            2 if len_bytes == FRONT_BYTES => self.has_ended = true,
            _ => return Err(bad("a message of no known kind")),
        }
        self.give_back(buffer);
        Ok(())
    }

    fn give_back(&mut self, buffer: Buffer) {
        self.free.push(buffer);
        self.consumed = self.consumed.wrapping_add(1);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.arrived.is_empty()
    }

    /// Messages that the other side has room for.
    fn credit(&self) -> u32 {
        u32::from(self.room.0).saturating_sub(self.sent.wrapping_sub(self.credited))
    }

    /// Whether a message of this kind may go.
    pub(super) fn may_send(&self, message: Message) -> bool {
        self.credit() > if message == Message::Stream { CREDIT_RESERVE } else { 0 }
    }

    /// Whether so many messages were given back that the other side might wait to hear of it.
    pub(super) fn has_untold(&self) -> bool {
        self.consumed.wrapping_sub(self.told) >= u32::from(RECEIVES) / 2
    }

    /// The front of the next message.
    pub(super) fn front(&mut self, message: Message) -> [u8; FRONT_BYTES] {
        self.told = self.consumed;
        self.sent = self.sent.wrapping_add(1);
        let [a, b, c, d] = self.told.to_le_bytes();
        [a, b, c, d, message as u8, 0, 0, 0]
    }

    /// Moves bytes that came to their place.
    pub(super) fn read(&mut self, place: InputPlace<'_>) -> io::Result<usize> {
        match place {
            InputPlace::Staging(buffer) => Ok(self.read_into(buffer)),
            InputPlace::Memory { memory, offset, len_bytes, tail } => {
                let mut done = 0;
                while done < len_bytes {
                    let Some(front) = self.arrived.front_mut() else { return Ok(done as usize) };
                    let count = (front.end - front.start).min((len_bytes - done) as usize);
                    let bytes = &front.buffer.bytes()[front.start..front.start + count];
                    memory.store(offset + done, bytes).map_err(io::Error::other)?;
                    done += count as u64;
                    self.took(count);
                }
                Ok(done as usize + self.read_into(tail))
            }
        }
    }

    fn read_into(&mut self, into: &mut [u8]) -> usize {
        let mut done = 0;
        while let (Some(front), true) = (self.arrived.front(), done < into.len()) {
            let count = (front.end - front.start).min(into.len() - done);
            into[done..done + count].copy_from_slice(&front.buffer.bytes()[front.start..front.start + count]);
            done += count;
            self.took(count);
        }
        done
    }

    /// So many bytes of the first message were taken.
    fn took(&mut self, count: usize) {
        let Some(front) = self.arrived.front_mut() else { return };
        front.start += count;
        if front.start == front.end {
            if let Some(Arrived { buffer, .. }) = self.arrived.pop_front() {
                self.give_back(buffer);
            }
        }
    }
}

/// Copies the bytes of the view from `from` on into a message; returns how many.
pub(super) fn gather(view: &OutputView<'_>, from: usize, message: &mut [u8]) -> io::Result<usize> {
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
