//! The target's side: rights, bounds, stores and flushes. This is the one place where a peer's request touches memory.

use std::sync::{Arc, Weak};

use pmof_mem::{Durability, MemError};

use super::{
    Endpoint,
    input::{Sink, WriteTarget},
    local::tell_failed,
};
use crate::{
    Access, ConnectionError, Flushed, LocalSlice, Method, OperationCounters, Refusal, RegionKey, RegisteredRegion,
    frame::{FLAG_PAYLOAD_CRC, FLAG_REPLY, Frame, Opcode},
    limits::{ATOMIC_BYTES, HEADER_BYTES, REPLY_COPY_MAX_BYTES},
};

/// A refusal with the limit that was broken.
type Refused = (Refusal, u64);

impl<D> Endpoint<D> {
    pub(super) fn request_arrived(&mut self, frame: &Frame) -> Option<Sink> {
        if frame.sequence != self.served + 1 {
            self.refuse_stream("a request is out of sequence");
            return None;
        }
        self.served = frame.sequence;
        let done = match frame.opcode {
            Opcode::Write => match self.begin_write(frame) {
                Ok(target) => return Some(Sink::Region(target)),
                Err(refused) => Err(refused),
            },
            Opcode::Send => match self.begin_message(frame) {
                Ok(sink) => return Some(sink),
                Err(refused) => Err(refused),
            },
            Opcode::Read => self.serve_read(frame),
            Opcode::Flush => self.serve_flush(frame),
            Opcode::AtomicWrite => self.serve_atomic_write(frame),
            Opcode::WriteBack => self.serve_write_back(frame),
            Opcode::CompareAndSwap | Opcode::FetchAndAdd => self.serve_atomic(frame),
            _ => {
                self.refuse_stream("an opcode has no place here");
                return None;
            }
        };
        match done {
            Ok(()) => {}
            Err((Refusal::Damaged, at)) => self.refuse_read(frame, at),
            Err((refusal, limit)) => self.refuse(frame, refusal, limit),
        }
        None
    }

    /// The payload of a write lies in its region.
    pub(super) fn write_arrived(&mut self, frame: &Frame, target: &WriteTarget) {
        // Write-back is started here, so that a flush only has to wait for what is still under way.
        if let Err(error) = target.region.memory().write_back(target.at, frame.length) {
            let (refusal, limit) = medium_failed(error);
            return self.refuse(frame, refusal, limit);
        }
        if frame.immediate_data().is_some() && !self.notice_written(frame) {
            return self.refuse(frame, Refusal::ReceiverNotReady, u64::from(self.own.inbox_messages));
        }
        self.count(|counters| counters.add_write(frame.length));
        self.reply_done(frame);
    }

    /// Answers a request with a refusal and ends the connection: like a queue pair in error, it does nothing more, so
    /// that no later flush can vouch for a write that was refused.
    pub(super) fn refuse(&mut self, frame: &Frame, refusal: Refusal, limit: u64) {
        let mut reply = Frame::new(Opcode::Reply, frame.sequence);
        reply.code = refusal as u8;
        reply.offset = frame.offset;
        reply.length = match frame.opcode {
            Opcode::AtomicWrite | Opcode::CompareAndSwap | Opcode::FetchAndAdd => ATOMIC_BYTES,
            _ => frame.length,
        };
        reply.operand = limit;
        self.tell_all_credit();
        self.output.push_bytes(&reply.encode());
        self.count(|counters| counters.add_refusal(refusal));
        self.end(ConnectionError::RefusedHere(refusal));
    }

    /// Answers a read of bytes that the medium has changed, from this offset of the region on. Nothing depends on a read, so the connection goes on.
    fn refuse_read(&mut self, frame: &Frame, at: u64) {
        let mut reply = Frame::new(Opcode::Reply, frame.sequence);
        reply.code = Refusal::Damaged as u8;
        (reply.offset, reply.length, reply.operand) = (frame.offset, frame.length, at);
        self.tell_all_credit();
        self.count(|counters| counters.add_refusal(Refusal::Damaged));
        self.reply(&reply);
    }

    /// The reply to a request that succeeded and has nothing to tell, if one is wanted.
    pub(super) fn reply_done(&mut self, frame: &Frame) {
        if frame.has(FLAG_REPLY) {
            self.tell_all_credit();
            self.reply(&Frame::new(Opcode::Reply, frame.sequence));
        }
    }

    pub(super) fn reply(&mut self, reply: &Frame) {
        self.output.push_bytes(&reply.encode());
        self.output.end_reply();
    }

    fn begin_write(&mut self, frame: &Frame) -> Result<WriteTarget, Refused> {
        if frame.length > self.own.payload_max_bytes {
            return Err((Refusal::TooLong, self.own.payload_max_bytes));
        }
        let (region, at) = self.checked_range(frame, Access::WRITE, frame.length)?;
        Ok(WriteTarget { region, at })
    }

    fn serve_read(&mut self, frame: &Frame) -> Result<(), Refused> {
        let len_bytes = frame.length;
        if len_bytes > self.own.payload_max_bytes {
            return Err((Refusal::TooLong, self.own.payload_max_bytes));
        }
        let (region, at) = self.checked_range(frame, Access::READ, len_bytes)?;
        let memory = region.memory();
        let failed = |error| read_failed(error, &region);
        let mut reply = Frame::new(Opcode::ReadReply, frame.sequence);
        reply.length = len_bytes;
        if self.payload_crc_agreed() {
            reply.flags |= FLAG_PAYLOAD_CRC;
        }
        if len_bytes <= REPLY_COPY_MAX_BYTES && self.output.has_reply_room(len_bytes) {
            let mut bytes = [0; REPLY_COPY_MAX_BYTES as usize];
            let bytes = &mut bytes[..len_bytes as usize];
            memory.read(at, bytes).map_err(failed)?;
            if self.payload_crc_agreed() {
                reply.payload_crc = crc32c::crc32c(bytes);
            }
            self.output.push_bytes(&reply.encode());
            self.output.push_reply_bytes(bytes);
        } else {
            if self.payload_crc_agreed() {
                reply.payload_crc = memory.crc32c(at, len_bytes).map_err(failed)?;
            } else {
                // Behind the header there is no refusing any more.
                memory.touch(at, len_bytes).map_err(failed)?;
            }
            self.output.push_bytes(&reply.encode());
            self.output.push_reply_slice(LocalSlice { memory: Arc::clone(memory), offset: at, len_bytes });
        }
        self.output.end_reply();
        self.count(|counters| counters.add_read(len_bytes));
        Ok(())
    }

    /// False while there is no memory for what the request needs: it waits until answers before it have gone.
    pub(super) fn may_begin(&mut self, frame: &Frame) -> bool {
        let answer_bytes = match frame.opcode {
            Opcode::Read if frame.length <= REPLY_COPY_MAX_BYTES => HEADER_BYTES + frame.length as usize,
            opcode if opcode.is_request() => HEADER_BYTES,
            _ => return true,
        };
        self.output.make_room(answer_bytes) && self.may_change(frame)
    }

    /// Operations take effect in the order posted: bytes of a read that wait to be sent from their region are copied
    /// before a later request changes them. False: there is no room for the copy, so the request waits.
    fn may_change(&mut self, frame: &Frame) -> bool {
        let len_bytes = match frame.opcode {
            Opcode::Write => frame.length,
            Opcode::AtomicWrite | Opcode::CompareAndSwap | Opcode::FetchAndAdd => ATOMIC_BYTES,
            _ => return true,
        };
        if self.output.is_plain() {
            return true;
        }
        let Some(region) = self.region(RegionKey(frame.key)) else { return true };
        let Some(at) = region.offset().checked_add(frame.offset) else { return true };
        if !self.output.shares(region.memory(), at, len_bytes) {
            return true;
        }
        self.output.unshare(region.memory(), at, len_bytes).unwrap_or_else(|error| {
            tell_failed(&error);
            self.output.clear();
            self.end(ConnectionError::RefusedHere(Refusal::MediumFailed));
            false
        })
    }

    fn serve_flush(&mut self, frame: &Frame) -> Result<(), Refused> {
        let level = Durability::from_wire(frame.code).ok_or((Refusal::Malformed, 0))?;
        let rights = match level {
            Durability::Visible => Access::FLUSH_VISIBLE | Access::FLUSH_PERSISTENT,
            Durability::ProcessCrash | Durability::PowerFailure => Access::FLUSH_PERSISTENT,
        };
        let (region, at) = self.checked_range(frame, rights, frame.length)?;
        let memory = region.memory();
        let promise = memory.promise_in(level, at, frame.length).ok_or((Refusal::NotDurable, 0))?;
        // Every store of this connection was written back when it arrived (`write_arrived`, `serve_write_back`), in this
        // same order, so one fence covers all those to this medium, whatever the range.
        let flushed = Flushed { durability: level, method: Method::SendAfterWrite, promise };
        if level == Durability::PowerFailure && self.defer(frame, memory, flushed) {
            return Ok(());
        }
        memory.flush(level, at, frame.length).map_err(medium_failed)?;
        self.reply_flushed(frame, flushed);
        Ok(())
    }

    fn serve_write_back(&mut self, frame: &Frame) -> Result<(), Refused> {
        let rights = Access::FLUSH_VISIBLE | Access::FLUSH_PERSISTENT;
        let (region, at) = self.checked_range(frame, rights, frame.length)?;
        region.memory().write_back(at, frame.length).map_err(medium_failed)?;
        self.reply_done(frame);
        Ok(())
    }

    fn serve_atomic_write(&mut self, frame: &Frame) -> Result<(), Refused> {
        let (region, at) = self.checked_range(frame, Access::WRITE, ATOMIC_BYTES)?;
        region.memory().atomic_store(at, frame.operand).map_err(|error| atomic_failed(&error))?;
        region.memory().write_back(at, ATOMIC_BYTES).map_err(medium_failed)?;
        self.count(OperationCounters::add_atomic);
        self.reply_done(frame);
        Ok(())
    }

    fn serve_atomic(&mut self, frame: &Frame) -> Result<(), Refused> {
        let (region, at) = self.checked_range(frame, Access::ATOMIC, ATOMIC_BYTES)?;
        let memory = region.memory();
        let previous = match frame.opcode {
            Opcode::CompareAndSwap => memory.compare_and_swap(at, frame.length, frame.operand),
            _ => memory.fetch_and_add(at, frame.operand),
        }
        .map_err(|error| atomic_failed(&error))?;
        memory.write_back(at, ATOMIC_BYTES).map_err(medium_failed)?;
        self.count(OperationCounters::add_atomic);
        let mut reply = Frame::new(Opcode::Reply, frame.sequence);
        reply.operand = previous;
        self.reply(&reply);
        Ok(())
    }

    /// The region of a request and where its range begins in the region's medium, after all checks. One of `rights` is
    /// enough.
    fn checked_range(
        &mut self,
        frame: &Frame,
        rights: Access,
        len_bytes: u64,
    ) -> Result<(Arc<RegisteredRegion>, u64), Refused> {
        let region = self.region(RegionKey(frame.key)).ok_or((Refusal::UnknownRegion, 0))?;
        if !region.access().intersects(rights) {
            return Err((Refusal::NoRight, 0));
        }
        let inside = frame.offset.checked_add(len_bytes).is_some_and(|end| end <= region.len_bytes());
        if !inside {
            return Err((Refusal::OutOfBounds, region.len_bytes()));
        }
        let at = region.offset() + frame.offset;
        Ok((region, at))
    }

    fn region(&mut self, key: RegionKey) -> Option<Arc<RegisteredRegion>> {
        if let Some(recent) = self.recent_region.upgrade() {
            if recent.key() == key && !recent.is_revoked() {
                return Some(recent);
            }
        }
        let region = self.regions.find_for(self.number, key);
        self.recent_region = region.as_ref().map_or_else(Weak::new, Arc::downgrade);
        region
    }

    pub(super) fn payload_corrupt(&mut self, frame: &Frame) {
        match frame.opcode {
            Opcode::Write | Opcode::Send => self.refuse(frame, Refusal::CorruptPayload, 0),
            _ => self.refuse_stream("a payload's checksum is wrong"),
        }
    }
}

#[expect(clippy::needless_pass_by_value, reason = "it is what an error becomes")]
fn medium_failed(error: MemError) -> Refused {
    if matches!(error, MemError::Protected { .. }) {
        return (Refusal::Protected, 0);
    }
    tell_failed(&error);
    (Refusal::MediumFailed, 0)
}

fn read_failed(error: MemError, region: &RegisteredRegion) -> Refused {
    match error {
        MemError::Damaged { offset, .. } => {
            tell_failed(&error);
            (Refusal::Damaged, offset.saturating_sub(region.offset()))
        }
        error => medium_failed(error),
    }
}

fn atomic_failed(error: &MemError) -> Refused {
    match error {
        MemError::Misaligned { .. } => (Refusal::Misaligned, ATOMIC_BYTES),
        MemError::Protected { .. } => (Refusal::Protected, 0),
        error => {
            tell_failed(error);
            (Refusal::MediumFailed, 0)
        }
    }
}
