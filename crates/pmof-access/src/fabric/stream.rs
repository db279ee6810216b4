//! The message stream: its receives, and the credit for them.

use std::io;

use pmof_fabric::Buffer;
use pmof_proto::InputPlace;

use crate::messages::{Arrivals, Credit, FRONT_BYTES, Message, Received, invalid};

/// Receives of a connection, and bytes of each.
pub(super) const RECEIVES: u16 = 16;
pub(super) const RECEIVE_BYTES: u32 = 8 << 10;

impl Received for Buffer {
    fn received(&self) -> &[u8] {
        self.bytes()
    }
}

/// What came, and how much the other side has room for.
#[derive(Debug, Default)]
pub(super) struct Stream {
    arrived: Arrivals<Buffer>,
    /// Receives to be posted anew.
    pub(super) free: Vec<Buffer>,
    /// The other side said that nothing follows.
    pub(super) has_ended: bool,
    credit: Credit,
}

impl Stream {
    pub(super) fn set_room(&mut self, receives: u16, receive_bytes: u32) {
        self.credit.set_room(receives, receive_bytes);
    }

    /// Bytes of the longest message.
    pub(super) fn message_bytes(&self) -> usize {
        self.credit.message_bytes().min(RECEIVE_BYTES) as usize
    }

    /// A message came.
    pub(super) fn arrive(&mut self, buffer: Buffer, len_bytes: usize) -> io::Result<()> {
        let kind = self.credit.take_in(&buffer.bytes()[..len_bytes.min(buffer.len_bytes())])?;
        if self.has_ended {
            return Err(invalid("a message behind its end"));
        }
        if kind == Message::Stream {
            self.arrived.push(buffer, FRONT_BYTES..len_bytes);
            return Ok(());
        }
        self.has_ended = kind == Message::End;
        self.free.push(buffer);
        self.credit.give_back();
        Ok(())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.arrived.is_empty()
    }

    /// Whether a message of this kind may go.
    pub(super) fn may_send(&self, message: Message) -> bool {
        self.credit.may_send(message)
    }

    /// Whether so many messages were given back that the other side might wait to hear of it.
    pub(super) fn has_untold(&self) -> bool {
        self.credit.untold() >= u32::from(RECEIVES) / 2
    }

    /// The front of the next message.
    pub(super) fn front(&mut self, message: Message) -> [u8; FRONT_BYTES] {
        self.credit.front(message)
    }

    /// Moves bytes that came to their place.
    pub(super) fn read(&mut self, place: InputPlace<'_>) -> io::Result<usize> {
        self.arrived.read(place, |buffer| {
            self.free.push(buffer);
            self.credit.give_back();
        })
    }
}
