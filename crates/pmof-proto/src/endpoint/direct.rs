//! Direct operations: those that the transport carries out past this endpoint. Their caller hands them over; the endpoint says when, and
//! keeps their order among all others.

use super::{
    Endpoint, OperationKind, Outcome, Signal, Ticket,
    operations::{Stage, Waiting},
};
use crate::{OperationError, PostError, RegionKey};

impl<D> Endpoint<D> {
    /// Some operations of this connection will go direct.
    pub fn enable_direct(&mut self) {
        self.operations.has_direct = true;
    }

    /// Whether a direct operation that moves so many bytes could be posted now.
    ///
    /// # Errors
    /// [`PostError::NotConnected`], [`PostError::QueueFull`]; [`PostError::TooLong`] beyond what was agreed for writes and reads.
    #[inline]
    pub fn may_post_direct(&self, len_bytes: u64) -> Result<(), PostError> {
        self.may_post_bytes(len_bytes, self.agreed.payload_max_bytes)
    }

    /// The ticket of the operation that is posted next.
    #[inline]
    pub fn next_ticket(&self) -> Ticket {
        self.operations.next_ticket()
    }

    /// Whether a direct operation of this kind, posted now, may be handed to the transport at once: it overtakes nothing that it must not.
    #[inline]
    pub fn may_go_direct(&self, kind: OperationKind) -> bool {
        // What waits to be sent was posted before it.
        !self.operations.has_waiting() && self.output.is_empty() && self.operations.may_go_direct(kind)
    }

    /// Posts a direct operation that the transport has, under the [next ticket](Self::next_ticket). Its success will be this outcome.
    #[inline]
    pub fn went_direct(&mut self, kind: OperationKind, success: Outcome, signal: Signal, context: u64) -> Ticket {
        self.operations.push_direct(kind, signal, context, success)
    }

    /// Posts so many direct writes in a row that the transport has, each with [`Signal::OnError`], under the [next](Self::next_ticket) tickets.
    #[inline]
    pub fn went_direct_in_a_row(&mut self, count: u64, context: u64) {
        if count > 0 {
            // Nobody is told of their success.
            self.operations.push_direct_row(OperationKind::Write, context, (count, Outcome::Done { len_bytes: 0 }));
        }
    }

    /// Posts a direct operation that was carried out already, with this outcome, under the [next ticket](Self::next_ticket).
    #[inline]
    pub fn done_direct(&mut self, kind: OperationKind, outcome: Outcome, signal: Signal, context: u64) -> Ticket {
        if let Some(completion) = self.operations.push_done(kind, context, outcome) {
            let ticket = completion.ticket;
            if signal == Signal::Always {
                self.untaken += 1;
                self.completions.push_back(completion);
            }
            return ticket;
        }
        let ticket = self.operations.push_direct(kind, signal, context, outcome);
        self.direct_done(ticket);
        ticket
    }

    /// Posts a direct operation that may not go yet: it is kept until it is [due](Self::due_direct). `kept_bytes` were copied for it.
    pub fn keep_direct(
        &mut self,
        request: D,
        kept_bytes: usize,
        (kind, success): (OperationKind, Outcome),
        signal: Signal,
        context: u64,
    ) -> Ticket {
        let waiting = Waiting::Direct { request, success, kept_bytes };
        self.operations.push((kind, signal, context), false, Stage::Waiting(Box::new(waiting)))
    }

    /// The direct operation that everything posted after it waits for, if it may go now: the caller [takes](Self::take_due) it as soon as
    /// the transport has room.
    pub fn due_direct(&self) -> Option<&D> {
        let (request, kind) = self.waiting_direct()?;
        let may_go = self.is_established() && self.output.is_empty() && self.operations.may_go_direct(kind);
        may_go.then_some(request)
    }

    /// The same, whether it may go or not, and its kind.
    pub fn waiting_direct(&self) -> Option<(&D, OperationKind)> {
        match self.operations.first_waiting()? {
            (_, kind, Waiting::Direct { request, .. }) => Some((request, kind)),
            (_, _, Waiting::Message { .. }) => None,
        }
    }

    /// Takes the direct operation that was [due](Self::due_direct), to hand it to the transport before anything else; then
    /// [`due_went`](Self::due_went) is due. `None` where none waits first.
    pub fn take_due(&mut self) -> Option<(Ticket, D)> {
        self.waiting_direct()?;
        let ticket = self.operations.first_waiting()?.0;
        let Waiting::Direct { request, success, .. } = self.operations.take_waiting()? else { return None };
        self.operations.waiting_went(Stage::Direct(success));
        Some((ticket, request))
    }

    /// The transport has what was taken: what waited for it goes on.
    pub fn due_went(&mut self) {
        self.complete();
    }

    /// Every direct operation up to this one took effect.
    #[inline]
    pub fn direct_done(&mut self, through: Ticket) {
        self.operations.direct_done(through.0);
        self.complete();
    }

    /// The same, and this one brought something back.
    pub fn direct_returned(&mut self, ticket: Ticket, outcome: Outcome) {
        self.operations.direct_returned(ticket.0, outcome);
        self.complete();
    }

    /// A direct operation failed; every one before it took effect, and none after it will. The caller ends the connection.
    pub fn direct_failed(&mut self, ticket: Ticket, error: OperationError) {
        self.direct_done(Ticket(ticket.0 - 1));
        self.operations.direct_failed(ticket.0, error);
    }

    /// Whether the connection has ended and waits for the transport to [stop](Self::direct_stopped).
    pub fn awaits_stop(&self) -> bool {
        self.ended().is_some() && self.operations.has_direct && !self.operations.is_stopped
    }

    /// The transport touches no memory for this connection any more: what is left without an outcome gets one.
    pub fn direct_stopped(&mut self) {
        self.operations.is_stopped = true;
        self.end_posted();
    }

    /// Bytes of a region were written past the target's CPU: the next flush of them to [`PowerFailure`](pmof_mem::Durability::PowerFailure) names them, by message to
    /// that CPU, or direct as [`take_dirty`](Self::take_dirty) gives them.
    #[inline]
    pub fn note_dirty(&mut self, key: RegionKey, offset: u64, len_bytes: u64) {
        self.dirty.add(key, offset, len_bytes);
    }

    /// The same, where it goes on from what was noted last; false where it does not, and then nothing was noted.
    #[inline]
    pub fn extend_dirty(&mut self, key: RegionKey, offset: u64, len_bytes: u64) -> bool {
        self.dirty.extend(key, offset, len_bytes)
    }

    /// Takes out what was noted in a range of a region, as at most `limit` pieces of offset and length.
    pub fn take_dirty(&mut self, key: RegionKey, (offset, len_bytes): (u64, u64), limit: usize) -> &[(u64, u64)] {
        self.dirty.take(key, offset, len_bytes, limit)
    }
}
