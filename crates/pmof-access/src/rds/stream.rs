//! The message stream: what came, and the credit for what goes.

use std::{collections::VecDeque, io};

use pmof_proto::{InputPlace, OutputView};

/// Datagrams that a side takes at once, and bytes of each: together less than half of the kernel's default receive buffer, from which on it would
/// hold up all who send to the socket.
pub(super) const DATAGRAMS: u16 = 12;
pub(super) const DATAGRAM_BYTES: u32 = 8 << 10;

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

/// What came, and how much the other side has room for. Counts wrap.
#[derive(Debug, Default)]
pub(super) struct Stream {
    /// Messages of the stream, each with how much of it was taken.
    arrived: VecDeque<(Box<[u8]>, usize)>,
    /// The other side said that nothing follows.
    pub(super) has_ended: bool,
    /// Messages that the other side takes at once, and bytes of each.
    room: (u16, u32),
    /// Messages sent, and how many of them the other side has given back.
    sent: u32,
    credited: u32,
    /// How many were sent up to the last one that was more than credit.
    sent_content: u32,
    /// Messages of the other side that were given back, and how many it was told of.
    consumed: u32,
    told: u32,
    /// Some of those that it was not told of were more than credit.
    owes_answer: bool,
}

impl Stream {
    pub(super) fn set_room(&mut self, datagrams: u16, datagram_bytes: u32) {
        self.room = (datagrams, datagram_bytes);
    }

    /// Bytes of the longest message.
    pub(super) fn message_bytes(&self) -> usize {
        self.room.1.min(DATAGRAM_BYTES) as usize
    }

    /// A message came.
    pub(super) fn arrive(&mut self, message: &[u8]) -> io::Result<()> {
        let bad = |what: &str| io::Error::new(io::ErrorKind::InvalidData, format!("the other side sent {what}"));
        let Some((front, content)) = message.split_first_chunk::<FRONT_BYTES>() else {
            return Err(bad("a message that is too short"));
        };
        let [credit @ .., kind, a, b, c] = *front;
        let credited = u32::from_le_bytes(credit);
        // A number that was never sent would make this side send without end.
        if credited.wrapping_sub(self.credited) > self.sent.wrapping_sub(self.credited) {
            return Err(bad("back messages that were not sent"));
        }
        let is_credit = kind == Message::Credit as u8;
        if (self.has_ended && !is_credit) || [a, b, c] != [0; 3] {
            return Err(bad("a message that does not belong there"));
        }
        if self.arrived.len() >= usize::from(DATAGRAMS) {
            return Err(bad("more messages than it has credit for"));
        }
        self.credited = credited;
        match kind {
            0 if !content.is_empty() => {
                self.arrived.push_back((content.into(), 0));
                return Ok(());
            }
            1 if content.is_empty() => {}
            2 if content.is_empty() => self.has_ended = true,
            _ => return Err(bad("a message of no known kind")),
        }
        self.give_back(!is_credit);
        Ok(())
    }

    fn give_back(&mut self, is_content: bool) {
        self.consumed = self.consumed.wrapping_add(1);
        self.owes_answer |= is_content;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.arrived.is_empty()
    }

    /// Whether a message of this kind may go.
    pub(super) fn may_send(&self, message: Message) -> bool {
        let credit = u32::from(self.room.0).saturating_sub(self.sent.wrapping_sub(self.credited));
        credit > if message == Message::Stream { CREDIT_RESERVE } else { 0 }
    }

    /// Whether so many messages were given back that the other side might wait to hear of it.
    pub(super) fn has_untold(&self) -> bool {
        self.consumed.wrapping_sub(self.told) >= u32::from(DATAGRAMS) / 2 || (self.has_ended && self.owes_answer)
    }

    /// Whether the other side was not told of something that it waits to hear of.
    pub(super) fn owes_answer(&self) -> bool {
        self.owes_answer
    }

    /// Whether the other side has not yet given back something that was more than credit.
    pub(super) fn awaits_answer(&self) -> bool {
        let content = self.sent_content.wrapping_sub(self.credited);
        content != 0 && content <= self.sent.wrapping_sub(self.credited)
    }

    /// The front of the next message.
    pub(super) fn front(&mut self, message: Message) -> [u8; FRONT_BYTES] {
        self.told = self.consumed;
        self.owes_answer = false;
        self.sent = self.sent.wrapping_add(1);
        if message != Message::Credit {
            self.sent_content = self.sent;
        } else if !self.awaits_answer() {
            // So that it never lags behind by half of all numbers.
            self.sent_content = self.credited;
        }
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
                    let Some((message, taken)) = self.arrived.front() else { return Ok(done as usize) };
                    let count = (message.len() - taken).min((len_bytes - done) as usize);
                    memory.store(offset + done, &message[*taken..taken + count]).map_err(io::Error::other)?;
                    done += count as u64;
                    self.took(count);
                }
                Ok(done as usize + self.read_into(tail))
            }
        }
    }

    fn read_into(&mut self, into: &mut [u8]) -> usize {
        let mut done = 0;
        while let (Some((message, taken)), true) = (self.arrived.front(), done < into.len()) {
            let count = (message.len() - taken).min(into.len() - done);
            into[done..done + count].copy_from_slice(&message[*taken..taken + count]);
            done += count;
            self.took(count);
        }
        done
    }

    /// So many bytes of the first message were taken.
    fn took(&mut self, count: usize) {
        let Some((message, taken)) = self.arrived.front_mut() else { return };
        *taken += count;
        if *taken == message.len() {
            self.arrived.pop_front();
            self.give_back(true);
        }
    }
}

/// Copies the bytes of the view from `from` on behind a message's front; returns how many.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Stream, Stream) {
        let (mut here, mut there) = (Stream::default(), Stream::default());
        here.set_room(DATAGRAMS, DATAGRAM_BYTES);
        there.set_room(DATAGRAMS, DATAGRAM_BYTES);
        (here, there)
    }

    fn send(from: &mut Stream, to: &mut Stream, message: Message, content: &[u8]) -> io::Result<()> {
        assert!(from.may_send(message), "{message:?} has credit");
        let mut bytes = from.front(message).to_vec();
        bytes.extend_from_slice(content);
        to.arrive(&bytes)
    }

    #[test]
    fn bytes_come_in_order_and_the_credit_returns() {
        let (mut here, mut there) = pair();
        for round in 0..100_u8 {
            while here.may_send(Message::Stream) {
                send(&mut here, &mut there, Message::Stream, &[round; 100]).unwrap();
            }
            assert!(here.awaits_answer());
            assert!(here.may_send(Message::Credit), "a message of credit can always go");
            let mut bytes = [0; 150];
            while !there.is_empty() {
                let count = there.read(InputPlace::Staging(&mut bytes)).unwrap();
                assert!(count > 0 && bytes[..count].iter().all(|byte| *byte == round));
            }
            assert!(there.has_untold() && there.owes_answer());
            send(&mut there, &mut here, Message::Credit, &[]).unwrap();
            assert!(!there.has_untold() && !there.owes_answer());
            assert!(!here.awaits_answer() && !here.owes_answer(), "credit asks for no answer");
        }
    }

    #[test]
    fn an_end_is_answered_at_once_and_nothing_follows_it() {
        let (mut here, mut there) = pair();
        send(&mut here, &mut there, Message::End, &[]).unwrap();
        assert!(there.has_ended && there.has_untold());
        assert!(here.awaits_answer());
        send(&mut there, &mut here, Message::Credit, &[]).unwrap();
        assert!(!here.awaits_answer());
        send(&mut here, &mut there, Message::Credit, &[]).unwrap();
        assert!(send(&mut here, &mut there, Message::Stream, &[1]).is_err());
    }

    #[test]
    fn what_breaks_the_rules_is_refused() {
        let fresh = || {
            let (mut here, _) = pair();
            here.front(Message::Stream);
            here
        };
        for wrong in [
            &[0; 7][..],
            // Empty of the stream, credit with content, an unknown kind, what is zero, and credit for what was not sent.
            &[0; 8],
            &[0, 0, 0, 0, 1, 0, 0, 0, 9],
            &[0, 0, 0, 0, 3, 0, 0, 0],
            &[0, 0, 0, 0, 1, 0, 0, 1],
            &[2, 0, 0, 0, 1, 0, 0, 0],
        ] {
            assert_eq!(fresh().arrive(wrong).unwrap_err().kind(), io::ErrorKind::InvalidData, "{wrong:?}");
        }
        assert!(fresh().arrive(&[1, 0, 0, 0, 1, 0, 0, 0]).is_ok());
        let mut flooded = fresh();
        for _ in 0..DATAGRAMS {
            flooded.arrive(&[0, 0, 0, 0, 0, 0, 0, 0, 9]).unwrap();
        }
        assert!(flooded.arrive(&[0, 0, 0, 0, 0, 0, 0, 0, 9]).is_err(), "more than there is credit for");
    }
}
