//! What goes over the queue pair as SENDs: the message stream with its credit, and records for a ring.

use std::io;

use pmof_proto::{OutputView, PostError};
use pmof_verbs::WorkCompletion;

use super::VerbsWire;
use crate::{
    ring::{RECORD_HEADER_BYTES, SLOT_BYTES, STREAM_MAGIC, message_bytes, seal_record},
    verbs::{
        receive::{RECEIVE_BYTES, RECEIVES},
        send::{Flight, Staged},
    },
};

/// Messages that the other side must always be able to send although it has no credit for more: the credit itself.
const CREDIT_RESERVE: u32 = 1;

/// Bytes in front of each message where messages carry no immediate number: the credit.
pub(super) const CREDIT_BYTES: usize = 4;

impl VerbsWire {
    /// Sends bytes of the stream, as far as the other side has room for messages.
    pub(super) fn send_messages(&mut self, view: &OutputView<'_>) -> io::Result<usize> {
        if !self.manager.is_standing() || self.is_broken {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut message = [0; RECEIVE_BYTES as usize];
        let room = (self.room.receive_bytes as usize).min(message.len());
        // Over iWARP the credit goes in front; in a ring, which is never there, each message says what it is.
        let start = if self.remote_ring.is_some() { STREAM_MAGIC.len() } else { self.credit_bytes };
        if self.remote_ring.is_some() {
            message[..start].copy_from_slice(&STREAM_MAGIC);
        } else {
            message[..start].copy_from_slice(&self.credit_to_tell()[..start]);
        }
        let mut total = 0;
        loop {
            let len = gather_message(view, total, &mut message[start..room])?;
            if len == 0 {
                return Ok(total);
            }
            if self.credit() <= CREDIT_RESERVE || !self.queues.send.has_room((start + len) as u64, 1) {
                return if total > 0 { Ok(total) } else { Err(io::ErrorKind::WouldBlock.into()) };
            }
            let staged = self.queues.send.staging.stage(&message[..start + len]).map_err(io::Error::other)?;
            self.push_message(staged, Flight::Stream);
            total += len;
        }
    }

    /// What a message says of how many messages the other side has given back.
    pub(super) fn credit_in(&self, completion: &WorkCompletion) -> io::Result<u32> {
        if self.credit_bytes == 0 {
            return Ok(completion.imm().unwrap_or(self.credited));
        }
        if (completion.byte_len() as usize) < self.credit_bytes {
            let what = "the other side sent a message that is too short for its credit";
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        self.queues.receive.number(completion.wr_id())
    }

    /// Messages that the other side has room for.
    fn credit(&self) -> u32 {
        u32::from(self.room.receives).saturating_sub(self.sent.wrapping_sub(self.credited))
    }

    /// The first bytes of the next message, as many as go in front of it.
    fn credit_to_tell(&self) -> [u8; CREDIT_BYTES] {
        self.queues.receive.consumed.to_le_bytes()
    }

    /// Longest record for the other side's ring; `None` where there is none.
    pub(in crate::verbs) fn record_max_bytes(&self) -> Option<u64> {
        self.remote_ring.map(|_| crate::RECORD_MAX_BYTES)
    }

    /// Whether the ring with this key is the one that this side appends to.
    pub(in crate::verbs) fn is_remote_ring(&self, key: [u8; 16]) -> bool {
        self.remote_ring.is_some_and(|ring| ring.key == key)
    }

    /// Whether one more record leaves the message stream its receives.
    pub(in crate::verbs) fn has_free_slot(&self) -> bool {
        let is_established = self.remote_ring.is_some_and(|ring| ring.next.is_some());
        is_established && self.credit() > u32::from(RECEIVES)
    }

    /// Queues a record for the other side's ring, whose bytes `fill` copies.
    pub(in crate::verbs) fn push_record(
        &mut self,
        len_bytes: u64,
        fill: impl FnOnce(&mut [u8]) -> Result<(), PostError>,
        flight: Flight,
    ) -> Result<(), PostError> {
        let next = self.remote_ring.as_mut().and_then(|ring| ring.next.as_mut());
        let (identity, sequence) = next.ok_or(PostError::NoRing)?;
        let mut message = [0; SLOT_BYTES as usize];
        let record = &mut message[..RECORD_HEADER_BYTES + len_bytes as usize];
        fill(&mut record[RECORD_HEADER_BYTES..])?;
        seal_record(record, identity, *sequence);
        let staged = self.queues.send.staging.stage(&message[..message_bytes(len_bytes as usize)])?;
        *sequence += 1;
        self.push_message(staged, flight);
        Ok(())
    }

    fn push_message(&mut self, staged: Staged<'_>, flight: Flight) {
        self.told = self.queues.receive.consumed;
        self.sent = self.sent.wrapping_add(1);
        let immediate = (self.credit_bytes == 0).then_some(self.told);
        self.queues.send.push_message(immediate, flight, staged);
    }

    /// Whether so many messages were given back that the other side might wait to hear of it.
    #[inline]
    pub(super) fn has_untold(&self) -> bool {
        self.queues.receive.consumed.wrapping_sub(self.told) >= u32::from(RECEIVES) / 2
    }

    /// Tells the other side that there is room, where it might wait for that.
    pub(super) fn tell_credit(&mut self) {
        if !self.has_untold() || self.credit() == 0 || !self.manager.is_standing() {
            return;
        }
        let front = self.credit_to_tell();
        if self.credit_bytes == 0 {
            self.push_message(Staged::nothing(), Flight::Service);
        } else if self.queues.send.has_room(CREDIT_BYTES as u64, 1) {
            if let Ok(staged) = self.queues.send.staging.stage(&front) {
                self.push_message(staged, Flight::Service);
            }
        }
    }
}

/// Copies the bytes of the view from `from` on into a message; returns how many.
fn gather_message(view: &OutputView<'_>, from: usize, message: &mut [u8]) -> io::Result<usize> {
    let body_len = view.body.map_or(0, |body| body.len_bytes as usize);
    let (mut skip, mut done, room) = (from, 0, message.len());
    let mut take = |len: usize| {
        let start = skip.min(len);
        let count = (len - start).min(room - done);
        skip -= start;
        let at = done;
        done += count;
        (start, at, count)
    };
    let (start, at, count) = take(view.head.len());
    message[at..at + count].copy_from_slice(&view.head[start..start + count]);
    let (start, at, count) = take(body_len);
    if let Some(body) = view.body {
        if count > 0 {
            let bytes = &mut message[at..at + count];
            body.memory.read(body.offset + start as u64, bytes).map_err(io::Error::other)?;
        }
    }
    let (start, at, count) = take(view.tail.len());
    message[at..at + count].copy_from_slice(&view.tail[start..start + count]);
    Ok(done)
}
