//! The short ways of the two most frequent operations, on a connection where they wait for nothing: a write that goes
//! straight to the memory, and a flush behind such writes that no message carries.

use super::{Lane, Pending, Through, Way, choose_method};
use crate::{Method, RemoteRegion, request::Data};
use pmof_mem::{Durability, Promise};
use pmof_proto::{DirectAccess, Endpoint, Flushed, OperationKind, Outcome, Signal, Ticket};

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
        let ticket = self.last + 1;
        if !through.wire.write_straight(ticket, to, offset, data) {
            return None;
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
        Some(Ticket(ticket))
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

    /// Direct operations took effect up to this one; 0 for none. True if there was one. `None`: what waited for it is to be
    /// [let go](Self::advance).
    #[inline]
    pub(crate) fn finished_through(&mut self, ticket: u64) -> Option<bool> {
        if ticket == 0 {
            return Some(false);
        }
        self.direct_done = ticket;
        if !self.deferred.is_empty() {
            return None;
        }
        self.complete();
        Some(true)
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
    pub(super) fn is_clear(&self, endpoint: &Endpoint) -> bool {
        let waits = !self.deferred.is_empty() || !self.streamed.is_empty();
        !waits && endpoint.is_established() && !endpoint.is_stalled() && endpoint.output_waiting_bytes() == 0
    }

    /// A direct operation was handed to the wire.
    fn went(&mut self, kind: OperationKind, outcome: Outcome, is_signalled: bool, context: u64) {
        self.last += 1;
        let way = Way::Direct;
        self.pending.push_back(Pending { first: self.last, count: 1, context, kind, is_signalled, way, outcome });
    }

    /// The method of a flush, and the promise behind it.
    fn flush_method(
        &mut self,
        through: &mut Through<'_>,
        region: &RemoteRegion,
        level: Durability,
    ) -> Option<(Method, Promise)> {
        match self.flush_method {
            // What is kept is for the device; the same region may be reached by messages too, whose flush is another.
            Some((key, of_level, found))
                if key == region.key() && of_level == level && region.direct() != DirectAccess::None =>
            {
                Some(found)
            }
            _ => {
                let found = choose_method(through.wire, through.forced, region, level).ok()?;
                // Over shm it changes when the region is mapped; a message does not go this way.
                if !through.wire.is_local() && found.0 != Method::SendAfterWrite {
                    self.flush_method = Some((region.key(), level, found));
                }
                Some(found)
            }
        }
    }
}
