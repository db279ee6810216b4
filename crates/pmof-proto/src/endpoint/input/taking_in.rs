//! Taking in bytes: frames are begun, payloads stored, frames carried out.

use super::{Incoming, Sink};
use crate::{
    ConnectionError, LocalSlice, Refusal,
    endpoint::{Endpoint, InputPlace, State, local::tell_failed},
    frame::{FLAG_PAYLOAD_CRC, Frame, Opcode},
    limits::{ACCEPT_PRIVATE_MAX_BYTES, CONNECT_PRIVATE_MAX_BYTES, HEADER_BYTES, STAGING_BYTES, STAGING_TAIL_BYTES},
};

impl<D> Endpoint<D> {
    /// True if [`input_place`](Self::input_place) would give a place.
    pub fn wants_input(&self) -> bool {
        let has_room = !self.deferred.holds_input() || !self.input.is_full();
        has_room && !self.input.paused && !matches!(self.state, State::Ended(_) | State::Requested)
    }

    /// Where the next bytes belong; `None` while nothing may be read (the other side does not take its replies, the
    /// application has not decided on the request, or the connection has ended).
    pub fn input_place(&mut self) -> Option<InputPlace<'_>> {
        if !self.wants_input() || self.refuse_revoked_write() {
            return None;
        }
        let input = &mut self.input;
        input.staging.resize(STAGING_BYTES, 0);
        let in_place = input.current.as_ref().filter(|current| current.goes_in_place());
        if let Some(slice) = in_place.and_then(Incoming::rest_in_memory) {
            debug_assert_eq!(input.start, input.end, "the staged part of a payload was moved on already");
            let tail = &mut input.staging[..STAGING_TAIL_BYTES];
            let LocalSlice { memory, offset, len_bytes } = slice;
            return Some(InputPlace::Memory { memory, offset, len_bytes, tail });
        }
        if input.start > 0 {
            input.staging.copy_within(input.start..input.end, 0);
            input.end -= input.start;
            input.start = 0;
        }
        Some(InputPlace::Staging(&mut input.staging[input.end..]))
    }

    /// `count` bytes came, into the place that [`input_place`](Self::input_place) last gave.
    ///
    /// # Panics
    ///
    /// If the place held fewer.
    pub fn input_arrived(&mut self, count: usize) {
        // The whole handshake has one limit of time, so that nobody keeps it open byte by byte.
        self.heard |= !self.is_handshaking();
        self.operations.is_borrowing = false;
        if self.ended().is_some() {
            return;
        }
        let mut staged = count;
        if let Some(current) = &mut self.input.current {
            if current.goes_in_place() {
                let in_place = (count as u64).min(current.frame.length - current.arrived);
                current.arrived += in_place;
                staged -= in_place as usize;
            }
        }
        self.input.end += staged;
        assert!(self.input.end <= self.input.staging.len(), "more arrived than the place held");
        self.process();
    }

    /// Takes in as many frames as there are.
    pub(in crate::endpoint) fn process(&mut self) {
        if self.deferred.holds_input() {
            return;
        }
        self.input.paused = false;
        loop {
            if self.input.paused
                || self.deferred.holds_input()
                || matches!(self.state, State::Ended(_) | State::Requested)
            {
                return;
            }
            if self.input.current.is_some() {
                if !self.payload_step() {
                    return;
                }
                continue;
            }
            if self.input.staged().len() < HEADER_BYTES {
                return;
            }
            if self.output.replies_waiting() > self.agreed.send_queue as usize {
                self.input.paused = true;
                return;
            }
            self.header_step();
        }
    }

    fn header_step(&mut self) {
        let mut header = [0; HEADER_BYTES];
        header.copy_from_slice(&self.input.staged()[..HEADER_BYTES]);
        let frame = match Frame::decode(&header) {
            Ok(frame) => frame,
            Err(why) => {
                self.last_words(Refusal::Malformed);
                return self.end(why);
            }
        };
        if !self.may_begin(&frame) {
            self.input.paused = true;
            return;
        }
        self.input.consume(HEADER_BYTES);
        if self.lacks_crc(&frame) {
            return self.refuse_stream("a payload lacks its checksum");
        }
        if let Some(sink) = self.begin(&frame) {
            self.input.current = Some(Incoming { frame, sink, arrived: 0 });
        }
    }

    /// Starts a frame: does it, if it has no payload, or says where its payload goes.
    fn begin(&mut self, frame: &Frame) -> Option<Sink> {
        match (&self.state, frame.opcode) {
            (State::AwaitHello, Opcode::Hello) => self.begin_private_data(frame, CONNECT_PRIVATE_MAX_BYTES),
            (State::AwaitWelcome, Opcode::Welcome) => self.begin_private_data(frame, ACCEPT_PRIVATE_MAX_BYTES),
            (State::Established, Opcode::Reply | Opcode::ReadReply) => self.reply_arrived(frame),
            (State::Established, Opcode::Credit) => {
                self.credit_arrived(frame);
                None
            }
            (State::Established, Opcode::Disconnect) => {
                // Nobody reads there any more.
                self.output.clear();
                self.end(ConnectionError::Closed);
                None
            }
            (State::Established, Opcode::Hello | Opcode::Welcome) => {
                self.refuse_stream("a second handshake");
                None
            }
            (State::Established, _) => self.request_arrived(frame),
            _ => {
                self.refuse_stream("the first frame is no handshake");
                None
            }
        }
    }

    /// True if the frame must carry a payload checksum and does not.
    fn lacks_crc(&self, frame: &Frame) -> bool {
        let is_due = match frame.opcode {
            Opcode::Hello | Opcode::Welcome => true,
            Opcode::Write | Opcode::Send | Opcode::ReadReply => self.payload_crc_agreed(),
            _ => false,
        };
        is_due && !frame.has(FLAG_PAYLOAD_CRC)
    }

    fn begin_private_data(&mut self, frame: &Frame, max_bytes: usize) -> Option<Sink> {
        if frame.length > max_bytes as u64 {
            self.refuse_stream("the handshake carries too much private data");
            return None;
        }
        Some(Sink::Buffer(Vec::with_capacity(frame.length as usize)))
    }

    /// Moves staged bytes of the payload on. False: more must come first.
    fn payload_step(&mut self) -> bool {
        if self.refuse_revoked_write() {
            return true;
        }
        let Some(current) = &mut self.input.current else { return true };
        let rest = current.frame.length - current.arrived;
        let step = rest.min((self.input.end - self.input.start) as u64) as usize;
        if current.is_gathered() && (step as u64) < rest {
            return false;
        }
        let bytes = &self.input.staging[self.input.start..self.input.start + step];
        let frame = current.frame;
        if current.is_gathered() && frame.has(FLAG_PAYLOAD_CRC) && crc32c::crc32c(bytes) != frame.payload_crc {
            // Not a byte of it was stored.
            self.payload_corrupt(&frame);
            return true;
        }
        let in_memory = current.rest_in_memory();
        let stored = match (&mut current.sink, in_memory) {
            (Sink::Buffer(buffer), _) => {
                buffer.extend_from_slice(bytes);
                Ok(())
            }
            (_, Some(slice)) => slice.memory.store(slice.offset, bytes),
            (_, None) => Ok(()),
        };
        current.arrived += step as u64;
        let complete = current.arrived == current.frame.length;
        self.input.consume(step);
        if let Err(error) = stored {
            tell_failed(&error);
            self.store_failed();
            return true;
        }
        if complete {
            if let Some(incoming) = self.input.current.take() {
                self.payload_complete(incoming);
            }
        }
        complete
    }

    fn payload_complete(&mut self, incoming: Incoming) {
        if !payload_is_intact(&incoming) {
            if let Sink::Receive(receive) = incoming.sink {
                self.return_receive(receive);
            }
            return self.payload_corrupt(&incoming.frame);
        }
        let frame = incoming.frame;
        match (incoming.sink, frame.opcode) {
            (Sink::Buffer(data), Opcode::Hello) => self.hello_arrived(&frame, data),
            (Sink::Buffer(data), Opcode::Welcome) => self.welcome_arrived(&frame, data),
            (Sink::Buffer(data), _) => self.message_buffered(&frame, data),
            (Sink::Region(target), _) => self.write_arrived(&frame, &target),
            (Sink::Read(_), _) => self.read_complete(&frame),
            (Sink::Receive(receive), _) => self.message_received(&frame, &receive),
        }
    }

    /// A write whose region was deregistered while its payload came in is refused. True if so.
    fn refuse_revoked_write(&mut self) -> bool {
        let Some(Incoming { frame, sink: Sink::Region(target), .. }) = self.input.current.as_ref() else {
            return false;
        };
        if !target.region.is_revoked() {
            return false;
        }
        let frame = *frame;
        self.refuse(&frame, Refusal::UnknownRegion, 0);
        true
    }

    /// A store of staged payload failed although its bounds were checked.
    fn store_failed(&mut self) {
        match self.input.current.as_ref() {
            Some(Incoming { frame, sink: Sink::Region(_) | Sink::Receive(_), .. }) => {
                let frame = *frame;
                self.refuse(&frame, Refusal::MediumFailed, 0);
            }
            _ => self.local_memory_failed("the destination of a read"),
        }
    }
}

/// Checks the payload's CRC where it came to lie; that of a gathered one was checked before.
fn payload_is_intact(incoming: &Incoming) -> bool {
    if !incoming.frame.has(FLAG_PAYLOAD_CRC) || incoming.is_gathered() {
        return true;
    }
    let whole = |slice: &LocalSlice| slice.memory.crc32c(slice.offset, incoming.frame.length);
    let found = match &incoming.sink {
        Sink::Region(target) => target.region.memory().crc32c(target.at, incoming.frame.length),
        Sink::Read(slice) => whole(slice),
        Sink::Receive(receive) => whole(&receive.into),
        Sink::Buffer(buffer) => Ok(crc32c::crc32c(buffer)),
    };
    found.is_ok_and(|crc| crc == incoming.frame.payload_crc)
}
