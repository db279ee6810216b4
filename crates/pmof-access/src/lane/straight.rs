//! The short ways of the two most frequent operations, on a connection where they wait for nothing: a write that goes
//! straight to the memory, and a flush behind such writes that no message carries.

use super::{FLUSH_RANGES_MAX, Lane, Pending, Through, Way, choose_method, unnamed};
use crate::{
    Method, RemoteRegion,
    request::{Data, Registered},
    wire::Numbered,
};
use pmof_mem::{Durability, Promise};
use pmof_proto::{Completion, DirectAccess, Endpoint, Flushed, OperationKind, Outcome, Signal, Ticket};

impl Lane {
    /// A write of checked rights and bounds. `None`: it has to go by [`post`](Self::post).
    #[inline]
    pub(crate) fn write_straight(
        &mut self,
        through: &mut Through<'_>,
        (to, offset): (&RemoteRegion, u64),
        data: &Data<'_>,
        (signal, context): (Signal, u64),
        is_clear: &mut bool,
    ) -> Option<Ticket> {
        let len_bytes = data.len_bytes();
        if !self.is_open(through.endpoint, is_clear) || len_bytes > through.endpoint.agreed().payload_max_bytes {
            return None;
        }
        let number = self.number(through.endpoint.agreed().send_queue, signal);
        if !through.wire.write_straight(number, to, offset, data) {
            return None;
        }
        Some(self.wrote(through, number, (to, offset, len_bytes), (signal, context)))
    }

    /// As [`write_straight`](Self::write_straight), for a write that nothing is posted with: it is handed over at once.
    #[inline]
    pub(crate) fn write_alone(
        &mut self,
        through: &mut Through<'_>,
        (to, offset): (&RemoteRegion, u64),
        from: Registered<'_>,
        (signal, context): (Signal, u64),
    ) -> Option<Ticket> {
        let len_bytes = from.len_bytes;
        if !self.is_open(through.endpoint, &mut false) || len_bytes > through.endpoint.agreed().payload_max_bytes {
            return None;
        }
        let number = self.number(through.endpoint.agreed().send_queue, signal);
        if !through.wire.write_alone(number, to, offset, from) {
            return None;
        }
        Some(self.wrote(through, number, (to, offset, len_bytes), (signal, context)))
    }

    /// The next write's number. Places in the send queue are to be known free again before it is full.
    #[inline]
    pub(super) fn number(&self, send_queue: u32, signal: Signal) -> Numbered {
        let ticket = self.last + 1;
        let is_asked = signal == Signal::Always || ticket - self.asked >= u64::from(send_queue / 4);
        Numbered { ticket, is_asked }
    }

    /// The wire has taken a write.
    #[inline]
    fn wrote(
        &mut self,
        through: &mut Through<'_>,
        Numbered { ticket, is_asked }: Numbered,
        (to, offset, len_bytes): (&RemoteRegion, u64, u64),
        (signal, context): (Signal, u64),
    ) -> Ticket {
        if is_asked {
            self.asked = ticket;
        }
        self.note_range(through, to, offset, len_bytes);
        let is_signalled = signal == Signal::Always;
        match self.pending.back_mut() {
            Some(back) if !is_signalled && back.may_be_joined(OperationKind::Write, context) => {
                back.count += 1;
                self.last = ticket;
            }
            _ => self.went(OperationKind::Write, Outcome::Done { len_bytes }, is_signalled, context),
        }
        Ticket(ticket)
    }

    /// A flush of checked rights and bounds. `None`: it has to go by [`post`](Self::post).
    pub(crate) fn flush_straight(
        &mut self,
        through: &mut Through<'_>,
        (region, offset, len_bytes): (&RemoteRegion, u64, u64),
        level: Durability,
        (signal, context): (Signal, u64),
        is_clear: &mut bool,
    ) -> Option<Ticket> {
        if !self.is_open(through.endpoint, is_clear) {
            return None;
        }
        let (method, promise) = self.flush_method(through, region, level)?;
        if method == Method::SendAfterWrite || !through.wire.direct()?.has_room(0) {
            return None;
        }
        let ticket = self.last + 1;
        self.flush_directly(through, ticket, method, (region, offset, len_bytes, level)).ok()?;
        let outcome = Outcome::Flushed(Flushed { durability: level, promise });
        self.went(OperationKind::Flush, outcome, signal == Signal::Always, context);
        Some(Ticket(ticket))
    }

    /// As [`flush_straight`](Self::flush_straight), for a flush that nothing is posted with and that one range is enough for: it
    /// is handed over at once.
    #[inline]
    pub(crate) fn flush_alone(
        &mut self,
        through: &mut Through<'_>,
        (region, offset, len_bytes): (&RemoteRegion, u64, u64),
        level: Durability,
        (signal, context): (Signal, u64),
    ) -> Option<Ticket> {
        if !self.is_open(through.endpoint, &mut false) {
            return None;
        }
        // The first flush of a region finds the method out.
        let (method, promise) = self.known_method(region, level)?;
        let ticket = self.last + 1;
        if level == Durability::PowerFailure {
            self.flush_named(through, ticket, (region, offset, len_bytes), (level, method))?;
        } else if !through.wire.flush_alone(ticket, region, unnamed(region, offset, len_bytes, level), (level, method))
        {
            return None;
        }
        let outcome = Outcome::Flushed(Flushed { durability: level, promise });
        self.went(OperationKind::Flush, outcome, signal == Signal::Always, context);
        Some(Ticket(ticket))
    }

    /// The same where what was written is named. `None`: not by one range; nothing was taken.
    fn flush_named(
        &mut self,
        through: &mut Through<'_>,
        ticket: u64,
        (region, offset, len_bytes): (&RemoteRegion, u64, u64),
        to: (Durability, Method),
    ) -> Option<()> {
        if to.1 != Method::NativeFlush || self.unwritten.count(region.key()) > 1 {
            return None;
        }
        self.unwritten.forget_taken();
        let range = match self.unwritten.take(region.key(), offset, len_bytes, FLUSH_RANGES_MAX) {
            [] => Some(unnamed(region, offset, len_bytes, to.0)),
            [range] => Some(*range),
            _ => None,
        };
        if range.is_some_and(|range| through.wire.flush_alone(ticket, region, range, to)) {
            return Some(());
        }
        self.unwritten.put_back(region.key());
        None
    }

    /// Direct operations took effect up to this one. False: what waited for it is to be [let go](Self::advance).
    #[inline]
    pub(crate) fn finished_through(&mut self, ticket: u64) -> bool {
        self.direct_done = ticket;
        self.deferred.is_empty()
    }

    /// The next outcome of those that are known, without a stop on the way where it is the only one.
    #[inline]
    pub(crate) fn next_finished(&mut self) -> Option<Completion> {
        if self.completions.is_empty() {
            while let Some(front) = self.pending.front() {
                if !front.is_whole(self.direct_done) {
                    break;
                }
                let Pending { first, context, kind, is_signalled, outcome, .. } = *front;
                self.pending.pop_front();
                if is_signalled {
                    self.complete();
                    return Some(Completion { ticket: Ticket(first), context, kind, outcome: Ok(outcome) });
                }
            }
        }
        self.complete();
        self.next_completion()
    }

    /// Whether the short ways are open: nothing is before the operation that it might overtake, and it has a place in the
    /// send queue. `is_clear`: the first was found out, and nothing but what goes these ways was posted since.
    #[inline]
    fn is_open(&self, endpoint: &Endpoint, is_clear: &mut bool) -> bool {
        *is_clear = *is_clear || self.is_clear(endpoint);
        *is_clear && self.outstanding() < endpoint.agreed().send_queue as usize
    }

    /// True on a standing connection on which nothing waits and no message is under way: a direct operation overtakes
    /// nothing.
    #[inline]
    pub(super) fn is_clear(&self, endpoint: &Endpoint) -> bool {
        let waits = !self.deferred.is_empty() || !self.streamed.is_empty();
        !waits && endpoint.is_established() && !endpoint.is_stalled() && endpoint.output_waiting_bytes() == 0
    }

    /// A direct operation was handed to the wire.
    #[inline]
    fn went(&mut self, kind: OperationKind, outcome: Outcome, is_signalled: bool, context: u64) {
        self.last += 1;
        if kind != OperationKind::Write {
            self.asked = self.last;
        }
        let way = Way::Direct;
        self.pending.push_back(Pending { first: self.last, count: 1, context, kind, is_signalled, way, outcome });
    }

    /// The same, if it was found out by the last flush.
    #[inline]
    fn known_method(&self, region: &RemoteRegion, level: Durability) -> Option<(Method, Promise)> {
        // What is kept is for the device; the same region may be reached by messages too, whose flush is another.
        let (key, of_level, found) = self.flush_method?;
        let is_it = key == region.key() && of_level == level && region.direct() != DirectAccess::None;
        is_it.then_some(found)
    }

    /// The method of a flush, and the promise behind it.
    #[inline]
    fn flush_method(
        &mut self,
        through: &mut Through<'_>,
        region: &RemoteRegion,
        level: Durability,
    ) -> Option<(Method, Promise)> {
        if let Some(found) = self.known_method(region, level) {
            return Some(found);
        }
        let found = choose_method(through.wire, through.forced, region, level).ok()?;
        // Over shm it changes when the region is mapped; a message does not go this way.
        if !through.wire.is_local() && found.0 != Method::SendAfterWrite {
            self.flush_method = Some((region.key(), level, found));
        }
        Some(found)
    }
}
