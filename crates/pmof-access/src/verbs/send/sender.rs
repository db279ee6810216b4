//! How direct operations are handed to a device.

use pmof_proto::PostError;
use pmof_verbs::{INLINE_BYTES, Operation as WorkOperation, Payload, QueuePair, RemoteAddress, Sge};

use super::{Flight, Plain, SendQueue, Staged, Task};
use crate::{RegionSlice, request::Data};

/// Hands direct operations to the device: into its own ring, where nothing is to be handed over before, or else with the next
/// [`submit`](SendQueue::submit).
pub(in crate::verbs) struct Sender<'q> {
    pub(in crate::verbs) send: &'q mut SendQueue,
    /// Where they go into the ring.
    pub(in crate::verbs) queue_pair: Option<&'q mut QueuePair>,
    /// What is in the ring is posted at once.
    pub(in crate::verbs) rings_doorbell: bool,
}

impl Sender<'_> {
    #[inline]
    pub(in crate::verbs) fn write(
        &mut self,
        to: RemoteAddress,
        data: Data<'_>,
        plain: Plain,
        is_signalled: bool,
    ) -> Result<(), PostError> {
        let staged = match data {
            Data::Bytes(bytes) => self.send.staging.stage(bytes)?,
            _ => match self.send.staging.reach(data, plain.len_bytes) {
                Some((sge, keep)) => Staged { payload: Payload::Sge(sge), keep: Some(keep), scratch: None },
                None => return self.write_copy(to, data, plain, is_signalled),
            },
        };
        self.post_write(to, staged, plain, is_signalled);
        Ok(())
    }

    /// Writes registered bytes that go inline, or that the device does not reach.
    #[inline(never)]
    fn write_copy(
        &mut self,
        to: RemoteAddress,
        data: Data<'_>,
        plain: Plain,
        is_signalled: bool,
    ) -> Result<(), PostError> {
        let Some(local) = data.local() else { return Ok(()) };
        let mut buffer = [0; INLINE_BYTES];
        let staged = self.send.staging.stage_copy(&local, &mut buffer)?;
        self.post_write(to, staged, plain, is_signalled);
        Ok(())
    }

    #[inline]
    fn post_write(&mut self, to: RemoteAddress, staged: Staged<'_>, plain: Plain, is_signalled: bool) {
        let Staged { payload, keep, scratch } = staged;
        let is_signalled = is_signalled || self.send.is_silent_for_long();
        let after = std::mem::take(&mut self.send.reading);
        self.send.in_flight.push_plain(plain, self.send.staging.end(), keep, scratch);
        match &mut self.queue_pair {
            // One completion vouches for all of a batch: which one ends it shows only then.
            Some(queue_pair) if self.rings_doorbell || !is_signalled => {
                let operation = WorkOperation::Write { to, payload };
                self.send.hand_over(queue_pair, operation, is_signalled, self.rings_doorbell);
            }
            _ => {
                let bytes = self.send.bytes_of(payload);
                self.send.queue(after, Task::Write { to, bytes }, is_signalled);
            }
        }
    }

    pub(in crate::verbs) fn read(
        &mut self,
        from: RemoteAddress,
        into: &RegionSlice,
        plain: Plain,
        is_signalled: bool,
    ) -> Result<(), PostError> {
        let (staged, result) = self.send.staging.stage_read(into)?;
        match staged.payload {
            Payload::Sge(into) => {
                let Plain { ticket, offset, len_bytes } = plain;
                let flight = Flight::Direct { ticket, offset, len_bytes, result };
                self.bring(WorkOperation::Read { from, into }, flight, staged, 0);
            }
            // A read of nothing still keeps its place among the others.
            _ => self.post_write(from, Staged::nothing(), plain, is_signalled),
        }
        Ok(())
    }

    /// An atomic operation whose number comes back.
    pub(in crate::verbs) fn atomic(
        &mut self,
        plain: Plain,
        operation: impl FnOnce(Sge) -> WorkOperation<'static>,
    ) -> Result<(), PostError> {
        let (into, result) = self.send.staging.stage_number()?;
        let after = std::mem::take(&mut self.send.reading);
        let Plain { ticket, offset, len_bytes } = plain;
        let flight = Flight::Direct { ticket, offset, len_bytes, result };
        self.bring(operation(into), flight, Staged::nothing(), after);
        Ok(())
    }

    /// An operation without bytes of this side, but in itself.
    #[inline]
    pub(in crate::verbs) fn bare(&mut self, operation: WorkOperation<'static>, plain: Plain) {
        let after = std::mem::take(&mut self.send.reading);
        self.send.in_flight.push_bare(plain, self.send.staging.end());
        match &mut self.queue_pair {
            Some(queue_pair) => self.send.hand_over(queue_pair, operation, true, self.rings_doorbell),
            None => self.send.queue(after, Task::Other(operation), true),
        }
    }

    /// One range of a flush that names more.
    pub(in crate::verbs) fn flush_part(
        &mut self,
        operation: WorkOperation<'static>,
        Plain { ticket, offset, len_bytes }: Plain,
    ) {
        let after = std::mem::take(&mut self.send.reading);
        self.send.push(
            Task::Other(operation),
            after,
            Flight::FlushPart { ticket, offset, len_bytes },
            Staged::nothing(),
        );
    }

    /// An operation whose effect comes with its answer: what follows waits for that.
    fn bring(&mut self, operation: WorkOperation<'static>, flight: Flight, staged: Staged<'_>, after: u64) {
        self.send.push(Task::Other(operation), after, flight, staged);
        self.send.reading = self.send.last();
    }
}
