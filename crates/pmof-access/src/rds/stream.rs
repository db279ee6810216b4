//! The message stream: what came, and the credit for what goes.

use std::io;

use pmof_proto::InputPlace;

use crate::messages::{Arrivals, Credit, FRONT_BYTES, Message, invalid};

/// Datagrams that a side takes at once, and bytes of each: together less than half of the kernel's default receive buffer, from which on it would
/// hold up all who send to the socket.
pub(super) const DATAGRAMS: u16 = 12;
pub(super) const DATAGRAM_BYTES: u32 = 8 << 10;

/// What came, and how much the other side has room for.
#[derive(Debug, Default)]
pub(super) struct Stream {
    arrived: Arrivals<Box<[u8]>>,
    /// The other side said that nothing follows.
    pub(super) has_ended: bool,
    credit: Credit,
    /// How many were sent up to the last one that was more than credit. Wraps.
    sent_content: u32,
    /// Some of those that the other side was not told of were more than credit.
    owes_answer: bool,
}

impl Stream {
    pub(super) fn set_room(&mut self, datagrams: u16, datagram_bytes: u32) {
        self.credit.set_room(datagrams, datagram_bytes);
    }

    /// Bytes of the longest message.
    pub(super) fn message_bytes(&self) -> usize {
        self.credit.message_bytes().min(DATAGRAM_BYTES) as usize
    }

    /// A message came.
    pub(super) fn arrive(&mut self, message: &[u8]) -> io::Result<()> {
        let kind = self.credit.take_in(message)?;
        if self.has_ended && kind != Message::Credit {
            return Err(invalid("a message behind its end"));
        }
        if self.arrived.len() >= usize::from(DATAGRAMS) {
            return Err(invalid("more messages than it has credit for"));
        }
        if kind == Message::Stream {
            self.arrived.push(message.into(), FRONT_BYTES..message.len());
            return Ok(());
        }
        self.has_ended |= kind == Message::End;
        self.owes_answer |= kind == Message::End;
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
        self.credit.untold() >= u32::from(DATAGRAMS) / 2 || (self.has_ended && self.owes_answer)
    }

    /// Whether the other side was not told of something that it waits to hear of.
    pub(super) fn owes_answer(&self) -> bool {
        self.owes_answer
    }

    /// Whether the other side has not yet given back something that was more than credit.
    pub(super) fn awaits_answer(&self) -> bool {
        let content = self.sent_content.wrapping_sub(self.credit.credited());
        content != 0 && content <= self.credit.unanswered()
    }

    /// The front of the next message.
    pub(super) fn front(&mut self, message: Message) -> [u8; FRONT_BYTES] {
        let front = self.credit.front(message);
        self.owes_answer = false;
        if message != Message::Credit {
            self.sent_content = self.credit.sent();
        } else if !self.awaits_answer() {
            // So that it never lags behind by half of all numbers.
            self.sent_content = self.credit.credited();
        }
        front
    }

    /// Moves bytes that came to their place.
    pub(super) fn read(&mut self, place: InputPlace<'_>) -> io::Result<usize> {
        self.arrived.read(place, |_| {
            self.credit.give_back();
            self.owes_answer = true;
        })
    }
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
